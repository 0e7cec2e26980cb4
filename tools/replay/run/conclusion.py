"""What is written and printed at the end of a replay: summary, report page, and the files for CI."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tools.replay.pages.checks import write_run_checks
from tools.replay.pages.run_page import write_run_page
from tools.replay.run.outcome import read_analysis
from tools.replay.run.plan import OutputDirectory, write_json
from tools.replay.run.summary import summary_lines, summary_of


def conclude(output: OutputDirectory, verdict: dict[str, Any], **more: Mapping[str, Any]) -> Iterator[str]:
    """Writes `summary.json` (with `more`), `report.html`, `junit.xml` and `summary.md`. Returns the measurements in words."""
    analysis = read_analysis(output)
    write_json(output.summary, {**summary_of(analysis, verdict), **more})
    write_run_page(output.path)
    write_run_checks(output.path)
    return summary_lines(analysis, verdict)
