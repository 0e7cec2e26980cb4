"""The parts of the analysis that need no Spark: percentiles of histograms, intervals, the knee, the way back to normal, the summary."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as some

from tools.replay.run.analysis import INTERVALS_MAX, interval_of, knee_of, skew_of
from tools.replay.run.generator import generator_of, is_limited, still_shares
from tools.replay.run.groups import groups_of
from tools.replay.run.histograms import GROWTH, milliseconds, quantiles
from tools.replay.run.outage_windows import fault_spans, normal_after_s
from tools.replay.run.plan import OutputDirectory, write_json
from tools.replay.run.summary import summary_lines, summary_of


@given(some.lists(some.floats(1e-3, 1e5), min_size=1, max_size=200), some.floats(0, 1))
def test_a_percentile_of_a_histogram_is_exact_to_half_a_percent(times_ms: list[float], point: float) -> None:
    buckets = [round(math.log(time * 1e6) / math.log(GROWTH)) for time in times_ms]
    values = numpy.arange(min(buckets), max(buckets) + 1.0)
    counts = numpy.bincount(numpy.array(buckets) - min(buckets), minlength=len(values))[None, :]
    expected = sorted(times_ms)[max(math.ceil(point * len(times_ms)), 1) - 1]
    assert quantiles(counts, milliseconds(values), [point])[0, 0] == pytest.approx(expected, rel=0.00501)


@given(some.floats(0, 1e7))
def test_a_run_has_a_bounded_number_of_intervals(seconds: float) -> None:
    assert seconds / interval_of(seconds) <= INTERVALS_MAX


@pytest.mark.parametrize(("seconds", "interval"), [(0, 1), (600, 1), (601, 2), (3600, 10), (1e7, 18000)])
def test_intervals_are_round(seconds: float, interval: int) -> None:
    assert interval_of(seconds) == interval


@pytest.mark.parametrize(
    ("holds", "knee"),
    [
        ([True, True, False, False], 2),
        ([True, False, True], 1),
        ([False, False], None),
        ([True, True, True], None),
        ([True, True, None], None),
        ([], None),
    ],
)
def test_the_knee_is_the_last_step_before_one_that_does_not_hold(holds: list[bool | None], knee: int | None) -> None:
    ramp = [{"speed": at + 1, "offered_per_second": 10.0, "holds": each} for at, each in enumerate(holds)]
    assert knee_of(ramp) == (None if knee is None else {"speed": knee, "per_second": 10.0})


@pytest.mark.parametrize(
    ("p99_ms", "second", "until", "after"),
    [
        ([2, 3, 2, 2, 2], 2.5, 5, 0.0),
        ([2, 3, 900, 900, 3, 2], 2.5, 6, 1.5),
        ([2, 3, 2, 900, None, 2], 2.5, 6, 2.5),
        ([2, 3, 900, 900], 2.5, 4, None),
        ([2, 3, 2, 2, 900, 2], 2.5, 4, 0.0),
        ([2, 3, 4, 4], 2.0, 4, 0.0),
        ([None, 3], 0.5, 2, None),
    ],
    ids=[
        "stays",
        "comes back",
        "no acknowledgement is not normal",
        "never",
        "after the next fault",
        "twice",
        "unknown",
    ],
)
def test_the_time_to_normal(p99_ms: list[float | None], second: float, until: float, after: float | None) -> None:
    assert normal_after_s(p99_ms, 1, second, until) == after


def test_a_fault_lasts_until_the_next_one_that_was_carried_out() -> None:
    faults = [{"at_ns": 10, "error": ""}, {"at_ns": 20, "error": "nobody"}, {"at_ns": 30, "error": ""}]
    assert fault_spans(faults, 50) == [(10, 30), (20, 30), (30, 50)]


def test_skew() -> None:
    assert skew_of({"t-0": 30, "t-1": 0, "t-2": 0}) == {"max_over_mean": 3, "largest": "t-0"}
    assert skew_of({"t-0": 0}) == {"max_over_mean": None, "largest": None}


CPU = {"brokers": 0.91, "generator": 0.42, "spark": None}


def test_the_summary_has_the_names_of_the_demo() -> None:
    points = {"p50": 1.23456, "p90": 2.0, "p95": 3.0, "p99": 4.0, "p999": None, "p9999": None, "max": 5.0}
    outages = [
        {"topic": "t", "partition": 0, "led": True, "seconds": 1.23456},
        {"topic": "t", "partition": 1, "led": False, "seconds": 2.0},
    ]
    fault = {"role": "leader of t-0", "broker": 1, "second": 20.0, "error": "", "outages": outages, "delayed": 7}
    fault |= {"outage_s": 2.0, "normal_after_s": None}
    fetch = {"operations": 0, "answered": 0, "failed": 0, "records_per_second": 0.0, "bytes_per_second": 0.0}
    produce = {"operations": 12, "acknowledged": 11, "failed": 1, "sent_records": 120, "records_per_second": 10.126}
    group = {"members": 2, "joins": 4, "rebalances": 1, "commits": 9, "failed_commits": 3, "error": ""}
    group |= {"longest_without_heartbeat_s": 1.26, "longest_without_commit_s": 5.5, "longest_overdue_s": 0.126}
    group |= {"read": 20, "read_again": 1, "skipped": 2}
    group |= {"protocol": "consumer"}
    analysis: dict[str, Any] = {
        "seconds": 60.0,
        "totals": {"produce": produce | {"bytes_per_second": 1e6}, "fetch": fetch, "operations": 12, "not_done": 3},
        "tasks": [],
        "latency_ms": {"produce": {"scheduled": points}},
        "lateness_ms": points,
        "loop": "open",
        "generator": {"is_limited": True, "limited": 6, "intervals": 60, "late_ms": points, "cpu": CPU},
        "end_to_end": {"records": 100, "unread": 4, "drained_s": None, "ms": points},
        "errors": [{"op": "produce", "error": "REQUEST_TIMED_OUT", "operations": 1}],
        "faults": [fault | {"verb": "kill"}, fault | {"verb": "restart", "broker": None}],
        "groups": [group | {"group": f"g{number}"} for number in range(6)],
        "knee": None,
        "changes": ["one"],
        "problem": "task 1 was lost\nat ...",
    }
    verdict = {
        "acknowledged": 110,
        "found": 108,
        "lost": 1,
        "duplicated": 2,
        "reordered": 0,
        "corrupted": 0,
        "unseen": 4,
        "elsewhere": 0,
        "evidence": {},
    }
    summary = summary_of(analysis, verdict)
    checks = {name: row["result"] for name, row in summary.pop("checks").items() if row["result"] != "passed"}
    assert checks == {
        "lost": "failed",
        "duplicated": "failed",
        "unseen": "not verified",
        "errors": "failed",
        "groups": "not verified",
        "not done": "not verified",
        "whole": "failed",
    }
    assert summary == {
        "changes": ["one"],
        "sent": 120,
        "acknowledged": 110,
        "read": 105,
        "lost": 1,
        "duplicated": 2,
        "outages": [{"topic": "t", "partition": 0, "seconds": 1.235}],
        "throughput": 10.13,
        "latency_ms": {"p50": 1.235, "p95": 3.0, "p99": 4.0, "p999": None},
        "without_acks_all": {},
        "loop": "open",
        "generator": {"is_limited": True, "limited": 6, "intervals": 60, "cpu": CPU},
        "end_to_end": {"records": 100, "unread": 4, "drained_s": None, "ms": points | {"p50": 1.235}},
        "groups": analysis["groups"],
    }
    lines = list(summary_lines(analysis, verdict))
    assert lines[0].startswith("  generator limited: the generator was the limit in 6 of 60 intervals")
    text = "\n".join(lines)
    assert "of it the generator 4.0 ms" in text
    assert "brokers 0.91, generator 0.42, spark not known" in text
    assert "p99 4.0   end to end" in text
    assert "4   records were not read until the end" in text
    assert "at 20.0 s: kill leader of t-0 (broker 1): outage 2.00 s, 7 records delayed, did not become normal" in text
    assert "operations because a task was lost: task 1 was lost\n" in text
    assert "g4: 2 members by the consumer protocol, 1 rebalances, 9 commits, 3 failed\n" in text
    assert (
        "20 records read, 1 of them again, 2 skipped; at most 0.13 s overdue, 1.3 s without a heartbeat, 5.5 s" in text
    )
    assert "g5" not in text
    assert "  group         1 others" in text


def test_the_figures_of_a_group_are_those_of_all_tasks(tmp_path: Path) -> None:
    figures = {"members": 2, "joins": 4, "rebalances": 1, "commits": 9, "failed_commits": 3, "error": ""}
    figures |= {"longest_without_heartbeat_s": 1.5, "longest_without_commit_s": 5.5}
    other = figures | {"rebalances": 2, "commits": 1, "longest_without_heartbeat_s": 1.0, "error": "INVALID_GROUP_ID"}
    read = {"read": 21, "ranges": {"t-0": [[0, 10], [12, 20]], "t-1": [[5, 9]]}}  # one of the offsets is a marker's
    more = {"read": 4, "ranges": {"t-0": [[9, 11], [15, 16]], "u-0": [[7, 8]]}}
    output = OutputDirectory(tmp_path)
    assert groups_of(output) == []
    write_json(output.groups / "task-0000.json", {"b": figures | read, "a": figures | read})
    write_json(output.groups / "task-0001.json", {"a": other | more})
    both = {"members": 4, "joins": 8, "rebalances": 2, "commits": 10, "failed_commits": 6, "error": "INVALID_GROUP_ID"}
    both |= {"longest_without_heartbeat_s": 1.5, "longest_without_commit_s": 5.5}
    of_a = {"read": 21 + 4, "read_again": 1 + 1, "skipped": 1}
    of_b = {"read": 21, "read_again": 0, "skipped": 2}
    assert groups_of(output) == [{"group": "a", **both, **of_a}, {"group": "b", **figures, **of_b}]


@pytest.mark.parametrize(
    ("still_s", "shares"),
    [
        ([], [0, 0, 0, 0]),
        ([(1.25, 1.5)], [0, 0.25, 0, 0]),
        ([(0.5, 2.25), (2.5, 2.75)], [0.5, 1, 0.5, 0]),
        ([(-5, 0.1), (3.9, 9)], [0.1, 0, 0, 0.1]),
    ],
)
def test_how_long_a_loop_stood_still_in_each_interval(still_s: list[tuple[float, float]], shares: list[float]) -> None:
    second = 1_000_000_000
    meter = {"still": [(round(begin * second), round(end * second)) for begin, end in still_s]}
    other = {"still": [(0, second // 20)]}
    found = still_shares({0: meter, 1: other}, 0, second, 4)
    assert found == pytest.approx([max(shares[0], 0.05), *shares[1:]], abs=1e-9)


@pytest.mark.parametrize(
    ("ready_p99_ms", "still", "limited"),
    [(None, 0.0, False), (19.0, 0.09, False), (21.0, 0.0, True), (None, 0.1, True)],
)
def test_the_generator_is_the_limit_of_an_interval(ready_p99_ms: float | None, still: float, limited: bool) -> None:
    assert is_limited(ready_p99_ms, still) == limited


@pytest.mark.parametrize(
    ("limited", "p99_ms", "is_limited"), [(0, None, False), (5, 99.0, False), (6, 5.0, True), (1, 101.0, True)]
)
def test_the_generator_is_the_limit_of_a_run(limited: int, p99_ms: float | None, is_limited: bool) -> None:
    over = [{"limited": at < limited} for at in range(100)]
    assert generator_of(over, 100, {"p99": p99_ms}, CPU)["is_limited"] == is_limited
