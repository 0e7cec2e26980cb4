"""What is written at the end of a replay: summary, report page, and the files for CI."""

from __future__ import annotations

from typing import Any

from tools.replay.pages.checks import write_run_checks
from tools.replay.pages.run_page import write_run_page
from tools.replay.run.exports import write_exports
from tools.replay.run.outcome import Conclusion, conclusion_of, read_analysis
from tools.replay.run.plan import OutputDirectory, write_json
from tools.replay.run.summary import summary_of


def conclude(output: OutputDirectory, verdict: dict[str, Any]) -> Conclusion:
    """Writes `summary.json`, `report.html`, `junit.xml`, `summary.md`, and the figures for other programs."""
    analysis = read_analysis(output)
    write_json(output.summary, summary_of(analysis, verdict))
    write_exports(output, analysis)
    write_run_page(output.path)
    write_run_checks(output.path)
    return conclusion_of(output, verdict)
