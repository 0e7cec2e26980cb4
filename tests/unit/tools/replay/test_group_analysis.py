"""The analysis of a consumer group's reads: pauses, skipped events, rebalances and commits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.faults.script import DoneFault
from tools.replay.demo.group_analysis import ProducedEvent, analyse_group, longest_pause, pauses
from tools.replay.demo.group_member import GroupRead

BEGAN = 1_000.0
KILL = DoneFault("kill", "leader of t-0", 2, int((BEGAN + 5.0) * 1e9), [("t", 0)])
RETURN = DoneFault("restart", "it", 2, int((BEGAN + 9.0) * 1e9))


def a_member(number: int, assigned_at: list[float], committed_at: list[float]) -> dict[str, Any]:
    return {
        "member": number,
        "partitions": [number],
        "assigned_at": [BEGAN + at for at in assigned_at],
        "committed_at": [BEGAN + at for at in committed_at],
        "failed_commits": number,
    }


def some_facts() -> dict[str, Any]:
    return {
        "group": "flight-readers",
        "assignor": "cooperative-sticky",
        "coordinators": [2, 3],
        "lag": 0,
        "members": [a_member(0, [-2.0, -1.0, 6.0], [1.0, 4.5, 7.25]), a_member(1, [-1.0, 6.0], [4.0])],
    }


def event(number: int, partition: int, due: float) -> ProducedEvent:
    return ProducedEvent(number, partition, BEGAN + due)


def read(number: int, partition: int, at: float, member: int = 0) -> GroupRead:
    return GroupRead(member, partition, number, number, BEGAN + at)


EVENTS = [event(0, 0, 1.0), event(1, 0, 4.9), event(2, 0, 6.0), event(10, 1, 1.0), event(11, 1, 8.0), event(20, 1, 8.5)]
READS = [
    read(0, 0, 1.1),
    read(1, 0, 5.5),
    read(2, 0, 7.0),
    read(2, 0, 7.5, 1),
    read(10, 1, 1.1, 1),
    read(11, 1, 8.1, 1),
]


def test_counts_what_the_group_did_around_the_kill() -> None:
    found = analyse_group(some_facts(), READS, EVENTS, [KILL, RETURN], BEGAN)
    assert (found["read"], found["read_again"], found["skipped"], found["lag"]) == (6, 1, 1, 0)
    assert [(each["read"], each["commits"]) for each in found["members"]] == [(3, 3), (3, 1)]
    assert found["coordinator"] == {"before": 2, "after": 3, "was_killed": True}
    assert (found["commits"], found["failed_commits"]) == (4, 1)
    assert found["commit_gap_s"] == pytest.approx(2.75)
    assert (found["rebalances"], found["rebalances_after_kill"]) == (3, 1)
    # Event 2 waited from 6.0 to 7.0; the gap of partition 1 from 1.1 to 8.1 is none, since nothing was due before 8.0.
    assert found["pause_s"] == pytest.approx(1.0)
    assert found["pause_partition"] == 0
    assert found["by_second"][7] == {"second": 7, "read": [1, 1], "commits": 1}
    assert len(found["by_second"]) == 10


def test_without_a_kill_the_whole_replay_counts() -> None:
    found = analyse_group(some_facts(), READS, EVENTS, [], BEGAN)
    assert found["coordinator"]["was_killed"] is False
    assert (found["rebalances_after_kill"], found["commit_gap_s"]) == (0, None)
    assert found["pause_s"] == pytest.approx(1.0)


def test_a_group_that_read_nothing_skipped_everything() -> None:
    found = analyse_group(some_facts() | {"lag": None}, [], EVENTS, [KILL], BEGAN)
    assert (found["read"], found["skipped"], found["pause_s"], found["pause_partition"]) == (0, len(EVENTS), 0.0, None)
    assert found["by_second"] == [{"second": 0, "read": [0, 0], "commits": 0}]


def test_only_pauses_that_touch_the_time_count() -> None:
    assert longest_pause(READS, EVENTS, BEGAN + 8.05, BEGAN + 9.0) == (pytest.approx(0.1), 1)
    assert longest_pause(READS, EVENTS, BEGAN + 20.0, BEGAN + 30.0) == (0.0, None)


WAITS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)).map(lambda wait: (wait[0], sum(wait))), max_size=8)


@given(WAITS)
def test_pauses_are_the_windows_without_a_read_in_which_something_was_due(waits: list[tuple[int, int]]) -> None:
    """By the slow way: every moment, as a half of a second, is in a pause when an event that is due is not read yet."""
    moments = [number + 0.5 for number in range(60)]
    waiting = {moment for moment in moments for due, at in waits if due < moment < at}
    found = pauses([(float(due), float(at)) for due, at in waits])
    assert {moment for moment in moments for start, end in found if start < moment < end} == waiting
    reads = {at for _, at in waits}
    assert not any(start < at < end for start, end in found for at in reads)
