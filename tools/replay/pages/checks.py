"""A run or a comparison as CI reads it: JUnit XML and Markdown (RPL-3)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.pages.checks import FAILED, NOT_VERIFIED, Check, junit
from tools.pages.markdown import plain, table
from tools.private_files import write_anew
from tools.replay.checks import generator_limit, run_checks
from tools.replay.pages.words import difference_table, evidence_rows, fault_sentence, key_figures


def comparison_checks(comparison: Mapping[str, Any]) -> list[Check]:
    """Each run delivered; there are enough runs; no row is worse beyond noise."""
    return [Check(**check) for check in comparison["checks"]]


def side_names(comparison: Mapping[str, Any]) -> Iterator[str]:
    """`A: run-1, run-2`, then B."""
    for side in "AB":
        yield f"{side}: {', '.join(run['name'] for run in comparison['runs'] if run['side'] == side)}"


def run_markdown(analysis: Mapping[str, Any], verdict: Mapping[str, Any] | None) -> str:
    checks = run_checks(analysis, verdict)
    faults = "".join(f"- {plain(fault_sentence(fault))}\n" for fault in analysis["faults"])
    return (
        f"## {_heading(checks, 'replay', generator_limit(analysis))}\n\n"
        + _checks_table(checks)
        + "\n"
        + table(("figure", "value", ""), key_figures(analysis, verdict))
        + (f"\n{faults}" if faults else "")
        + "".join(_evidence(check) for check in checks)
    )


def comparison_markdown(comparison: Mapping[str, Any]) -> str:
    checks = comparison_checks(comparison)
    words = "".join(f"{plain(line)}\n\n" for line in [*side_names(comparison), *comparison["unlike"]])
    return (
        f"## {_heading(checks, 'comparison')}\n\n{words}"
        + table(*difference_table(comparison))
        + "\n"
        + _checks_table(checks)
    )


def _heading(checks: Sequence[Check], what: str, limit: str | None = None) -> str:
    wrong = [check.name for check in checks if check.result == FAILED]
    if wrong:
        return f"❌ {what}: {plain(', '.join(wrong))}"
    unknown = [check.name for check in checks if check.result == NOT_VERIFIED]
    if unknown:
        return f"⚠️ {what}: not verified: {plain(', '.join(unknown))}"
    return f"✅ {what}: all checks passed" if limit is None else f"⚠️ {what}: {limit}"


def _checks_table(checks: Sequence[Check]) -> str:
    rows = [
        (check.name, check.problem or (f"not verified: {check.unverified}" if check.unverified else "passed"))
        for check in checks
    ]
    return table(("check", "result"), rows)


def _evidence(check: Check) -> str:
    if not check.evidence:
        return ""
    header, rows = evidence_rows(check.evidence)
    return f"\n### {plain(check.name)}\n\n{table([plain(name) for name in header], rows)}"


def write_run_checks(directory: Path, analysis: Mapping[str, Any], verdict: Mapping[str, Any] | None) -> None:
    """Writes junit.xml and summary.md of a run."""
    write_anew(directory / "junit.xml", junit("ottla.replay", run_checks(analysis, verdict), analysis["seconds"]))
    write_anew(directory / "summary.md", run_markdown(analysis, verdict))


def write_comparison_checks(directory: Path, comparison: Mapping[str, Any]) -> None:
    """Writes junit.xml and summary.md of a comparison."""
    write_anew(directory / "junit.xml", junit("ottla.replay.compare", comparison_checks(comparison)))
    write_anew(directory / "summary.md", comparison_markdown(comparison))
