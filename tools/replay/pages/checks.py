"""A run or a comparison as CI reads it: JUnit XML and Markdown (RPL-3)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.pages.checks import FAILED, NOT_VERIFIED, Check, junit
from tools.pages.units import count, digits, milliseconds, percent, quantity, scaled, seconds
from tools.private_files import write_anew
from tools.replay.checks import generator_limit, run_checks
from tools.replay.pages.run_charts import fault_name
from tools.replay.pages.words import cpu_words, evidence_rows, longest_outage


def comparison_checks(comparison: Mapping[str, Any]) -> list[Check]:
    """Each run delivered; there are enough runs; no row is worse beyond noise."""
    return [Check(**check) for check in comparison["checks"]]


def difference_word(row: Mapping[str, Any]) -> str:
    """What the runs say of a row."""
    if row["p"] is None:
        return "no statement"
    return "worse" if row["worse"] else "better" if row["differs"] else "no difference beyond noise"


def side_names(comparison: Mapping[str, Any]) -> Iterator[str]:
    """`A: run-1, run-2`, then B."""
    for side in "AB":
        yield f"{side}: {', '.join(run['name'] for run in comparison['runs'] if run['side'] == side)}"


def _markdown(value: Any) -> str:
    """Text from outside as Markdown: on one line, and neither markup nor HTML."""
    one_line = " ".join(str(value).split())
    return re.sub(
        r"([\\`*_{}\[\]|#~])", r"\\\1", one_line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    )


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [header, ["---"] * len(header), *([_markdown(value) for value in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def run_markdown(analysis: Mapping[str, Any], verdict: Mapping[str, Any] | None) -> str:
    checks = run_checks(analysis, verdict)
    totals, produced = analysis["totals"], analysis["latency_ms"]["produce"]["scheduled"] or {}
    worst = longest_outage(analysis)
    read = (analysis["end_to_end"] or {}).get("ms") or {}
    figures = [
        ("acknowledged records", count(totals["produce"]["records"])),
        (
            "throughput",
            f"{scaled(totals['produce']['bytes_per_second'], 'B/s')}, {digits(totals['produce']['records_per_second'])} records/s",
        ),
        (
            "latency of produce, 50 % / 99 % / max",
            " / ".join(milliseconds(produced.get(name)) for name in ("p50", "p99", "max")),
        ),
        (
            "longest outage",
            "none" if worst is None else f"{seconds(worst['seconds'])} ({worst['topic']}-{worst['partition']})",
        ),
        (
            "latency end to end, 50 % / 99 % / max",
            " / ".join(milliseconds(read.get(name)) for name in ("p50", "p99", "max")),
        ),
        ("lateness, 99 %", milliseconds((analysis["lateness_ms"] or {}).get("p99"))),
        ("cores", cpu_words(analysis)),
    ]
    faults = [
        (fault_name(fault), seconds(fault["second"]), seconds(fault["outage_s"]), count(fault["delayed"]))
        for fault in analysis["faults"]
    ]
    return (
        f"## {_heading(checks, 'replay', generator_limit(analysis))}\n\n"
        + _checks_table(checks)
        + "\n"
        + markdown_table(("figure", "value"), figures)
        + ("\n" + markdown_table(("fault", "at", "outage", "records delayed"), faults) if faults else "")
        + "".join(_evidence(check) for check in checks)
    )


def comparison_markdown(comparison: Mapping[str, Any]) -> str:
    checks = comparison_checks(comparison)
    rows = [
        (
            row["metric"],
            quantity(row["a"], row["unit"]),
            quantity(row["b"], row["unit"]),
            percent(row["change"]),
            difference_word(row),
        )
        for row in comparison["rows"]
    ]
    words = "".join(f"{_markdown(line)}\n\n" for line in [*side_names(comparison), *comparison["unlike"]])
    return (
        f"## {_heading(checks, 'comparison')}\n\n{words}"
        + markdown_table(("metric", "A", "B", "change", ""), rows)
        + "\n"
        + _checks_table(checks)
    )


def _heading(checks: Sequence[Check], what: str, limit: str | None = None) -> str:
    wrong = [check.name for check in checks if check.result == FAILED]
    if wrong:
        return f"❌ {what}: {_markdown(', '.join(wrong))}"
    unknown = [check.name for check in checks if check.result == NOT_VERIFIED]
    if unknown:
        return f"⚠️ {what}: not verified: {_markdown(', '.join(unknown))}"
    return f"✅ {what}: all checks passed" if limit is None else f"⚠️ {what}: {limit}"


def _checks_table(checks: Sequence[Check]) -> str:
    rows = [
        (check.name, check.problem or (f"not verified: {check.unverified}" if check.unverified else "passed"))
        for check in checks
    ]
    return markdown_table(("check", "result"), rows)


def _evidence(check: Check) -> str:
    if not check.evidence:
        return ""
    header, rows = evidence_rows(check.evidence)
    return f"\n### {_markdown(check.name)}\n\n{markdown_table([_markdown(name) for name in header], rows)}"


def write_run_checks(directory: Path, analysis: Mapping[str, Any], verdict: Mapping[str, Any] | None) -> None:
    """Writes junit.xml and summary.md of a run."""
    write_anew(directory / "junit.xml", junit("ottla.replay", run_checks(analysis, verdict), analysis["seconds"]))
    write_anew(directory / "summary.md", run_markdown(analysis, verdict))


def write_comparison_checks(directory: Path, comparison: Mapping[str, Any]) -> None:
    """Writes junit.xml and summary.md of a comparison."""
    write_anew(directory / "junit.xml", junit("ottla.replay.compare", comparison_checks(comparison)))
    write_anew(directory / "summary.md", comparison_markdown(comparison))
