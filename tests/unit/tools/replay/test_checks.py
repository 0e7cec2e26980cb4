"""What must hold of a replay: the exit code, and all that is written, say the same of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from tests.support import report_data
from tools.cli import main
from tools.pages.checks import junit
from tools.replay.checks import exit_code, generator_limit, outcome_lines, parse_gate, parse_limit, run_checks
from tools.replay.pages.checks import run_markdown
from tools.replay.pages.run_page import verdict_banner
from tools.replay.run.summary import summary_of

FAILED, UNVERIFIED = 1, 2
"""Exit codes."""


LIMITED = report_data.analysis()["generator"] | {"is_limited": True, "limited": 9}
BOTH = ["produce.p99 < 1s", "outage.longest < 9s"]


def of(
    totals: Mapping[str, Any] | None = None, produce: Mapping[str, Any] | None = None, asked: Any = None, **more: Any
) -> dict[str, Any]:
    """An analysis of 96,000 operations in which all went well, but for what is given."""
    analysis = report_data.analysis() | more
    analysis["totals"] |= totals or {}
    analysis["totals"]["produce"] |= produce or {}
    if asked is not None:
        analysis["asked"] = {"max_failed": "0", "assert": [], **asked}
    return analysis


@pytest.mark.parametrize(
    ("analysis", "counts", "code", "names"),
    [
        (of(), {}, 0, []),
        (of(), {"lost": 1}, FAILED, ["lost"]),
        (of(), {"without_acks_all": {"lost": 3, "duplicated": 2, "reordered": 1}}, 0, []),
        (of(asked={"forbid": ["lost"]}), {"without_acks_all": {"lost": 3, "duplicated": 2}}, FAILED, ["lost"]),
        (of(), {"elsewhere": 1}, FAILED, ["elsewhere"]),
        (of(), {"unseen": 800}, UNVERIFIED, ["unseen"]),
        (of(), {"deleted": 3000}, UNVERIFIED, ["deleted"]),
        (of(), {"unseen": 800, "reordered": 1}, FAILED, ["reordered", "unseen"]),
        (of(produce={"acknowledged": 0}), {"acknowledged": 0}, FAILED, ["acknowledged"]),
        (of(), {"acknowledged": 0}, 0, []),  # all with acks=0, or in transactions that the trace aborts
        (of(), {"acknowledged": 0, "left_open": 5}, UNVERIFIED, ["acknowledged"]),
        (of(produce={"operations": 0}), {"acknowledged": 0}, 0, []),
        (of(totals={"not_done": 5}), {}, UNVERIFIED, ["not done"]),
        (of(problem="an executor is gone"), {}, FAILED, ["whole"]),
        (of(produce={"failed": 1}), {}, FAILED, ["errors"]),
        (of(produce={"failed": 10}, asked={"max_failed": "10"}), {}, 0, []),
        (of(produce={"failed": 11}, asked={"max_failed": "10"}), {}, FAILED, ["errors"]),
        (of({"operations": 1000}, {"failed": 1}, {"max_failed": "0.1%"}), {}, 0, []),
        (of({"operations": 1000}, {"failed": 2}, {"max_failed": "0.1%"}), {}, FAILED, ["errors"]),
        (of(asked={"assert": ["produce.p99 < 1s", "errors < 0.1%"]}), {}, 0, []),
        (of({"operations": 1000}, {"failed": 3}, {"assert": ["errors < 0.5%"]}), {}, 0, []),
        (of({"operations": 1000}, {"failed": 6}, {"assert": ["errors < 0.5%"]}), {}, FAILED, ["errors < 0.5%"]),
        (of(asked={"assert": ["produce.p50 < 1ms"]}), {}, FAILED, ["produce.p50 < 1ms"]),
        (of(asked={"assert": ["end_to_end.p99 < 1s"]}), {}, 0, []),
        (of(asked={"assert": ["end_to_end.p99 < 30ms"]}), {}, FAILED, ["end_to_end.p99 < 30ms"]),
        (of(asked={"assert": ["end_to_end.p99 < 1s"]}, end_to_end=None), {}, UNVERIFIED, ["end_to_end.p99 < 1s"]),
        (of(asked={"assert": ["produce.p99 < 1s", "outage.longest < 9s"]}, generator=LIMITED), {}, UNVERIFIED, BOTH),
        (of(asked={"assert": ["produce.p50 < 1ms"]}, generator=LIMITED), {}, UNVERIFIED, ["produce.p50 < 1ms"]),
        (of(asked={"assert": ["lateness.p99 < 1ms"]}, generator=LIMITED), {}, FAILED, ["lateness.p99 < 1ms"]),
        (of(asked={"assert": ["lateness.max < 1ms"]}, lateness_ms=None), {}, UNVERIFIED, ["lateness.max < 1ms"]),
    ],
)
def test_all_that_is_written_says_the_same(
    analysis: dict[str, Any], counts: dict[str, int], code: int, names: list[str]
) -> None:
    verdict = report_data.verdict(**counts)
    checks = run_checks(analysis, verdict)
    assert exit_code(checks) == code
    wrong = [check.name for check in checks if check.problem or check.unverified]
    assert wrong == names
    lines = outcome_lines(checks)
    assert len(lines) == max(len(names), 1)
    assert lines[0].split()[0] == {0: "PASSED", FAILED: "FAILED", UNVERIFIED: "NOT"}[code]
    suite = ElementTree.fromstring(junit("s", checks))[0]
    assert int(suite.get("failures", "")) + int(suite.get("errors", "")) == len(names)
    summary = {name: row["result"] for name, row in summary_of(analysis, verdict)["checks"].items()}
    assert [name for name, result in summary.items() if result != "passed"] == names
    assert run_markdown(analysis, verdict).startswith(f"## {'✅❌⚠'[code]}")
    banner = verdict_banner(analysis, verdict).html
    assert {0: "good", FAILED: "bad", UNVERIFIED: "warning"}[code] in banner


def test_a_run_that_the_generator_limited_is_not_green() -> None:
    """Nothing failed, and yet no line says that all checks passed."""
    analysis, verdict = of(generator=LIMITED), report_data.verdict()
    checks, limit = run_checks(analysis, verdict), generator_limit(analysis)
    assert exit_code(checks) == 0
    assert outcome_lines(checks, limit) == [f"  LIMITED       {limit}"]
    assert run_markdown(analysis, verdict).startswith(
        "## ⚠️ replay: generator limited: the generator was the limit in 9"
    )
    assert 'class="banner warning"' in (banner := verdict_banner(analysis, verdict).html)
    assert "Generator limited" in banner
    assert generator_limit(of()) is None


def test_records_that_were_not_read_back_are_not_verified() -> None:
    checks = run_checks(of(), None)
    assert exit_code(checks) == UNVERIFIED
    assert run_markdown(of(), None).startswith("## ⚠️ replay: not verified: lost")


@pytest.mark.parametrize(
    ("text", "metric", "limit", "shown"),
    [
        ("produce.p99<50ms", "produce.p99", 50.0, "produce.p99 is"),
        ("fetch.max <= 1.5s", "fetch.max", 1500.0, "fetch.max is"),
        ("lateness.p50 < 10us", "lateness.p50", 0.01, "lateness.p50 is 0.110 ms"),
        ("outage.longest < 1s", "outage.longest", 1000.0, "outage.longest is"),
        ("produce.rate > 1000000/s", "produce.rate", 1e6, "produce.rate is"),
        ("errors > 0.1%", "errors", 0.001, "errors is 0.000%"),
    ],
)
def test_conditions(text: str, metric: str, limit: float, shown: str) -> None:
    gate = parse_gate(text)
    assert (gate.metric, gate.limit) == (metric, pytest.approx(limit))
    if metric != "produce.p99":
        assert shown in str(gate.check(of()).problem) or gate.check(of()).problem is None


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--assert", "produce.p99"], "is not METRIC < VALUE, such as produce.p99 < 50ms"),
        (["--assert", "produce.p98 < 5ms"], "there is no 'produce.p98'; there are produce.p50, "),
        (["--assert", "produce.p99 < 5"], "the unit of produce.p99 is us or ms or s"),
        (["--assert", "errors < 5ms"], "the unit of errors is %"),
        (["--max-failed", "-1"], "is neither a number of operations, such as 10, nor a share of them"),
        (["--max-failed", "5000%"], "is more than all operations"),
        (["--assert", "outage.longest < 50ms"], "outages shorter than 100 ms are not measured"),
        (["--max-failed", "1.5"], "is neither a number of operations"),
    ],
)
def test_bad_conditions_are_refused(tmp_path: Path, options: list[str], reason: str) -> None:
    done = CliRunner().invoke(main, ["replay", "run", str(tmp_path), *options])
    assert done.exit_code == 2
    assert reason in " ".join(done.output.split())


def test_limits() -> None:
    assert not parse_limit("10").is_exceeded(10, 10)
    assert parse_limit("10").is_exceeded(11, 100)
    assert parse_limit("0.5%").is_exceeded(6, 1000)
