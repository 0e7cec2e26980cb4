"""Summary and page from an analysis: exact keys, honest words, everything inside one file."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tools.replay import figures
from tools.replay.report import page
from tools.replay.runner import exit_code
from tools.replay.summary import summary_lines, summary_of


def an_analysis(**totals: int) -> dict[str, Any]:
    outage = {"topic": "departures", "seconds": 0.0, "due": 0, "led_by_broker": False}
    return {
        "topic": "departures",
        "bootstrap_servers": "a:1,<b>:2",
        "speed": 10080.0,
        "trace_first_time_us": 1_357_035_420_000_000,
        "trace_last_time_us": 1_357_637_460_000_000,
        "tasks": {"producing": 2, "reading": 2},
        "seconds": 3.0,
        "totals": {"sent": 4, "acknowledged": 3, "failed": 1, "read": 3, "lost": 0, "duplicated": 1, "read_again": 0}
        | {"acknowledged_bytes": 100, "acknowledged_per_second": 1.23456}
        | totals,
        "latency_ms": {"p50": 1.23456, "p95": 2.0, "p99": 3.0, "p999": None},
        "distribution": [
            {"quantile": 0.0, "acknowledged_ms": 1.0, "read_ms": 2.0},
            {"quantile": 0.5, "acknowledged_ms": 2.0, "read_ms": None},
            {"quantile": 1.0, "acknowledged_ms": 9.0, "read_ms": 9.0},
        ],
        "by_second": [
            {"second": second, "due": 2, "acknowledged": 1, "read": 1, "p50_ms": 1.0, "p99_ms": 2.0, "max_ms": 3.0}
            for second in (0, 2)
        ],
        "errors": [{"op": "produce", "error": "<timed out>", "operations": 1}],
        "partitions": [{"partition": 0, "events": 4, "failed": 1, "leaders": [1, 2], "longest_outage_s": 0.5}],
        "faults": [
            {
                "kind": "kill",
                "broker": 1,
                "second": 1.0,
                "until_second": 2.0,
                "outages": [
                    outage | {"partition": 0, "seconds": 1.23456, "due": 3, "led_by_broker": True},
                    outage | {"partition": 1, "seconds": 2.5, "due": 2},
                    outage | {"partition": 2, "led_by_broker": True},
                ],
            },
            {"kind": "return", "broker": 1, "second": 2.0, "until_second": 3.0, "outages": []},
        ],
    }


def a_group(**changes: Any) -> dict[str, Any]:
    return {
        "group": "flight-<readers>",
        "assignor": "cooperative-sticky",
        "members": [
            {"member": 1, "partitions": [0, 1], "read": 2, "commits": 3},
            {"member": 2, "partitions": [], "read": 1, "commits": 0},
        ],
        "coordinator": {"before": 1, "after": 2, "was_killed": True},
        "read": 3,
        "read_again": 1,
        "skipped": 0,
        "lag": 0,
        "commits": 3,
        "failed_commits": 1,
        "rebalances": 2,
        "rebalances_after_kill": 0,
        "pause_s": 0.71239,
        "pause_partition": 0,
        "commit_gap_s": 0.5,
        "by_second": [{"second": second, "read": [1, 0], "commits": second} for second in range(3)],
    } | changes


def test_the_summary_has_the_group_that_read_along() -> None:
    analysis = an_analysis() | {"group": a_group()}
    group = summary_of(analysis)["group"]
    assert group.items() >= {"group": "flight-<readers>", "members": 2, "longest_pause_s": 0.712}.items()
    same = a_group()
    unchanged = {"coordinator", "read", "read_again", "skipped", "lag", "commits", "rebalances"}
    unchanged |= {"rebalances_after_kill", "commit_gap_s"}
    assert {key: group[key] for key in unchanged} == {key: same[key] for key in unchanged}
    assert len(group) == 3 + len(unchanged)
    text = "\n".join(summary_lines(analysis))
    shown = ("2 members", "broker 1, which was killed, then by broker 2", "0 after the kill", "0.71 s", "(partition 0)")
    for part in shown:
        assert part in text
    assert "<--" not in "\n".join(summary_lines(an_analysis(duplicated=0) | {"group": a_group()}))
    assert "<-- acknowledged, the group never read them" in "\n".join(
        summary_lines(analysis | {"group": a_group(skipped=2)})
    )


@pytest.mark.parametrize(
    ("group", "words"),
    [
        ({}, "broker 2 took the group over"),
        ({}, "The members kept their partitions"),
        ({"rebalances_after_kill": 2}, "assigned its partitions again 2 time(s)"),
        ({"coordinator": {"before": 1, "after": None, "was_killed": True}}, "its successor is unknown"),
        ({"coordinator": {"before": 3, "after": 3, "was_killed": False}}, "broker 3, which was not killed"),
        ({"skipped": 2}, "the consumer group skipped 2 event(s)"),
        ({"lag": None, "commit_gap_s": None, "pause_partition": None}, "unknown"),
    ],
)
def test_the_page_shows_the_group(group: dict[str, Any], words: str) -> None:
    text = page(an_analysis(duplicated=0) | {"group": a_group(**group)})
    assert words in text
    assert "flight-<readers>" not in text
    assert text.count('role="img"') == text.count("<svg") == 5
    assert ('class="verdict bad"' in text) == ("skipped" in group)


@pytest.mark.parametrize(
    ("totals", "group", "code"),
    [
        ({"duplicated": 0}, None, 0),
        ({"duplicated": 0}, a_group(), 0),
        ({"duplicated": 0}, a_group(skipped=1), 1),
        ({"duplicated": 1}, a_group(), 1),
        ({"duplicated": 0, "lost": 1}, None, 1),
    ],
)
def test_the_exit_code_tells_what_must_not_be(totals: dict[str, int], group: dict[str, Any] | None, code: int) -> None:
    assert exit_code(an_analysis(**totals) | ({} if group is None else {"group": group})) == code


def test_the_summary_has_exactly_these_keys() -> None:
    assert summary_of(an_analysis()) == {
        "sent": 4,
        "acknowledged": 3,
        "read": 3,
        "lost": 0,
        "duplicated": 1,
        "outages": [
            {"topic": "departures", "partition": 0, "seconds": 1.235},
            {"topic": "departures", "partition": 2, "seconds": 0.0},
        ],
        "throughput": 1.23,
        "latency_ms": {"p50": 1.235, "p95": 2.0, "p99": 3.0, "p999": None},
    }


def test_the_summary_in_words() -> None:
    text = "\n".join(summary_lines(an_analysis(lost=2)))
    for part in ("2  <-- acknowledged, never read", "(1 not acknowledged)", "1.23 s", "not seen: nothing was due"):
        assert part in text
    assert "2.50 s (departures-1)" in text


@pytest.mark.parametrize(
    ("totals", "verdict"),
    [
        ({"duplicated": 0}, "Nothing was lost, nothing was written twice."),
        ({"duplicated": 3}, "Nothing was lost, but 3 event(s) were written more than once."),
        ({"lost": 2}, "2 acknowledged event(s) were lost."),
        ({"acknowledged": 0}, "Nothing was ack"),
    ],
)
def test_the_page_says_what_was_lost(totals: dict[str, int], verdict: str) -> None:
    text = page(an_analysis(**totals))
    assert verdict in text
    assert ('class="verdict bad"' in text) == (totals != {"duplicated": 0})


def test_the_page_needs_nothing_else_and_escapes_what_it_shows() -> None:
    text = page(an_analysis())
    assert not re.findall(r"""(?:src|href)=["'](?!#)""", re.sub(r'xlink:href="#[^"]*"', "", text))
    assert "<b>:2" not in text
    assert "<timed out>" not in text
    assert text.count('role="img"') == text.count("<svg") == 4
    assert text.count("<table>") == 5


def test_a_replay_without_faults_or_answers_has_a_page_too() -> None:
    analysis = an_analysis(acknowledged=0, acknowledged_per_second=0)
    analysis |= {"faults": [], "errors": [], "latency_ms": dict.fromkeys(("p50", "p95", "p99", "p999"))}
    for second in analysis["by_second"]:
        second |= {"p50_ms": None, "p99_ms": None, "max_ms": None}
    assert "No fault was injected." in page(analysis)
    assert summary_of(analysis)["outages"] == []
    assert any("nothing was acknowledged" in line for line in summary_lines(analysis))


def test_seconds_without_events_are_drawn_as_zero() -> None:
    seconds = figures.every_second(an_analysis()["by_second"])
    assert [(second["second"], second["due"]) for second in seconds] == [(0, 2), (1, 0), (2, 2), (3, 0)]
