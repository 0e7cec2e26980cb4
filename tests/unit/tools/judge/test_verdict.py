"""The verdict: exit codes, what is allowed, which fault a finding falls to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.tools.judge.tables import log_of, reports_of
from tools.judge.lines import lines_of
from tools.judge.logs import Logs
from tools.judge.tables import Tables
from tools.judge.verdict import MEMBER, Client, Fault, Verdict, conclude, rates

LOSES = "acked 0 0 a; acked 0 1 b; acked 0 2 c"
KILL, LATER = Fault("kill", "leader of t-0", 2, 0.5, [("t", 0)]), Fault("kill", "controller", 1, 1.5, [])


def client(text: str, logs: Logs, name: str = "your program", broken: tuple[str, ...] = ()) -> Client:
    return Client.of(name, reports_of(text), logs, {}, 10, broken=broken)


def verdict_of(text: str, logs: Logs, *faults: Fault, **options: object) -> Verdict:
    return conclude(10, [client(text, logs)], faults, (), **options)  # type: ignore[arg-type]


def test_clean() -> None:
    verdict = verdict_of("acked 0 0 a; consumed 0 0 a", log_of("a"), KILL)
    assert verdict.exit_code == 0
    assert next(lines_of(verdict)) == "PASSED  clean: 0 findings"


def test_a_loss_fails_and_falls_to_the_first_fault_after_its_acknowledgement() -> None:
    verdict = verdict_of(LOSES, log_of("-bc"), KILL, LATER)
    assert verdict.exit_code == 1
    assert [dict(result.findings) for result in verdict.faults] == [{"lost": 1}, {}]
    lines = list(lines_of(verdict))
    assert lines[0] == "FAILED  1 lost"
    assert "  t-0@0 id 'a', line 1: there is no record at this offset" in lines


def test_other_findings_fall_to_the_last_fault_before() -> None:
    verdict = verdict_of("acked 0 0 a; acked 0 1 b", log_of("abb"), KILL, LATER)
    assert [dict(result.findings) for result in verdict.faults] == [{"duplicates": 1}, {}]


@pytest.mark.parametrize(
    ("options", "exit_code"),
    [
        ({}, 1),
        ({"allowed": ["duplicates"]}, 0),
        ({"allowed": ["lost"]}, 1),
        ({"allowed": ["duplicates"], "forbidden": ["duplicates"]}, 1),
    ],
)
def test_duplicates_can_be_allowed(options: dict[str, list[str]], exit_code: int) -> None:
    assert verdict_of("acked 0 0 a", log_of("aa"), **options).exit_code == exit_code


def test_what_is_harmless_can_be_forbidden() -> None:
    text = "acked 0 0 a; consumed 0 0 a; consumed 0 0 a"
    assert verdict_of(text, log_of("a")).exit_code == 0
    assert verdict_of(text, log_of("a"), forbidden=["read-again"]).exit_code == 1


def test_a_fault_says_which_partitions_it_cost_most() -> None:
    """The longest windows: a waits from 0 to 2 s until it is acknowledged, and from 2 to 5 s until it is read."""
    text = (
        "produced a; produced b; acked 0 0 a; acked 0 1 b; acked 1 0 c; consumed 0 0 a; consumed 1 0 c; consumed 0 1 b"
    )
    verdict = verdict_of(text, log_of("ab c"), Fault("kill", f"{MEMBER}eager-2", None, 0.1, ()))
    lines = list(lines_of(verdict))
    assert lines[4] == (
        "   0.10 s  kill member eager-2: no writes for 2.00 s (t-0), no reads for 3.00 s (t-0 for g), recovered after 6.90 s"
    )


def test_a_partition_that_does_not_recover() -> None:
    verdict = verdict_of("acked 0 0 a; produced b", log_of("ab"), KILL)
    assert verdict.headline == "1 unrecovered"
    assert verdict.faults[0].cost.recovered_s is None


@pytest.mark.parametrize(
    ("one", "reason"),
    [
        (client("acked 0 0 a", log_of("a"), broken=("line 7: no event",)), "1 broken report lines, the first: line 7"),
        (client("produced a; failed a", log_of("")), "nothing was acknowledged"),
        (client("acked 0 0 a", log_of("x")), "--id says where"),
    ],
)
def test_what_makes_a_verdict_incomplete(one: Client, reason: str) -> None:
    verdict = conclude(10, [one], (), ())
    assert verdict.exit_code == 2
    assert reason in verdict.incomplete[0]


def test_a_finding_outweighs_what_is_incomplete() -> None:
    assert conclude(10, [client(LOSES, log_of("-bc"))], (), ["interrupted"]).exit_code == 1


def test_rates_have_what_was_after_the_start_of_the_program() -> None:
    reports = [replace(report, at=report.at - 1) for report in reports_of("acked 0 0 a; acked 0 1 b; consumed 0 1 b")]
    assert rates(Tables.of(reports), 2, 1) == {"acknowledged": [1, 0, 0], "consumed": [0, 1, 0]}
