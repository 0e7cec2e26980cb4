"""The offsets of a group while commits, removals and expiry come in any order (CLI-2, INV-23)."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker.groups.group.messages import CommittedOffset
from broker.groups.group.offsets import GroupOffsets, PendingCommit
from protocol.types import TopicPartition

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
HOUR_MS = 3_600_000


def at(offset: int, committed_ms: int = 0, expires_ms: int | None = None) -> CommittedOffset:
    return CommittedOffset(offset, 3, "m", committed_ms, expires_ms)


def with_offsets(**committed_ms: int) -> GroupOffsets:
    """Topic -> when the offset of its partition 0 was committed."""
    offsets = GroupOffsets()
    for log_offset, (topic, moment) in enumerate(committed_ms.items()):
        offsets.complete(offsets.begin({TopicPartition(topic, 0): at(1, moment)}), log_offset)
    return offsets


def test_a_commit_counts_when_it_is_complete() -> None:
    """INV-23: until then OffsetFetch gets the old offset, and the partition is not stable."""
    offsets = GroupOffsets()
    assert offsets.is_empty
    first = offsets.begin({T0: at(5), T1: at(6)})
    assert offsets.get(T0) is None
    assert offsets.is_pending(T0)
    assert not offsets.is_pending(U0)
    assert not offsets.is_empty
    offsets.complete(first, 100)
    assert (offsets.get(T0), offsets.get(T1), len(offsets)) == (at(5), at(6), 2)
    assert not offsets.is_pending(T0)
    second = offsets.begin({T0: at(7)})
    assert offsets.get(T0) == at(5)
    offsets.fail(second)
    assert offsets.get(T0) == at(5)
    assert not offsets.is_pending(T0)
    assert list(offsets) == [T0, T1]


@pytest.mark.parametrize("is_first_failed", [True, False])
def test_of_two_commits_the_later_in_the_log_counts(is_first_failed: bool) -> None:
    offsets = GroupOffsets()
    first, second = offsets.begin({T0: at(9)}), offsets.begin({T0: at(4)})
    offsets.complete(second, 11)
    assert offsets.is_pending(T0)
    if is_first_failed:
        offsets.fail(first)
    else:
        offsets.complete(first, 10)
    assert offsets.get(T0) == at(4)
    assert offsets.log_offset(T0) == 11
    assert not offsets.is_pending(T0)


def test_two_equal_commits_are_counted_apart() -> None:
    offsets = GroupOffsets()
    first, second = offsets.begin({T0: at(9)}), offsets.begin({T0: at(9)})
    offsets.complete(first, 10)
    assert offsets.is_pending(T0)
    offsets.complete(second, 11)
    assert offsets.log_offset(T0) == 11


def test_a_tombstone_removes_what_was_committed_before_it() -> None:
    """It may be anywhere in the log: memory must have what a load would give."""
    offsets = with_offsets(t=0, u=0)
    before, behind = offsets.begin({T0: at(8), T1: at(8), U0: at(8)}), offsets.begin({U0: at(9)})
    offsets.removed([T0, T1], 52)
    offsets.removed([T0], 51)
    assert list(offsets) == [U0]
    offsets.complete(before, 49)
    offsets.complete(behind, 55)
    assert {tp: offsets.get(tp) for tp in offsets} == {U0: at(9)}
    offsets.removed([U0], 55)
    assert list(offsets) == [U0], "it came behind the tombstone"
    offsets.removed([U0, T0], 60)
    assert offsets.is_empty
    offsets.complete(offsets.begin({T0: at(3)}), 61)
    assert offsets.get(T0) == at(3)


def test_a_deletion_of_a_group_or_topic_includes_pending_commits() -> None:
    offsets = with_offsets(t=0, u=0)
    commit = offsets.begin({T1: at(9), U0: at(9)})
    assert offsets.of_topics(["t", "nobody's"]) == [T0, T1]
    assert offsets.with_pending() == [T0, U0, T1]
    offsets.fail(commit)
    assert offsets.with_pending() == [T0, U0]
    offsets.removed(offsets.of_topics(["t"]), 70)
    assert offsets.with_pending() == [U0]


def expired(offsets: GroupOffsets, now_ms: int, **group: object) -> list[TopicPartition]:
    """Retention one hour; a STABLE group of consumers that subscribe to u, unless told."""
    told: dict[str, object] = {
        "protocol_type": "consumer",
        "is_empty": False,
        "is_stable": True,
        "state_since_ms": 0,
        "subscribed_topics": frozenset("u"),
    }
    return offsets.expired(now_ms, HOUR_MS, **(told | group))


SIMPLE = {"protocol_type": None, "is_empty": True, "is_stable": False, "subscribed_topics": None}
EMPTY = {"is_empty": True, "is_stable": False, "subscribed_topics": None}


@pytest.mark.parametrize(
    ("group", "now_ms", "gone"),
    [
        # Committed at 0 (topic t) and at 5 (u); the retention is an hour.
        ({}, HOUR_MS - 1, []),
        ({}, HOUR_MS, [T0]),
        ({}, 10 * HOUR_MS, [T0]),
        ({"subscribed_topics": None}, 10 * HOUR_MS, []),
        ({"subscribed_topics": frozenset()}, 10 * HOUR_MS, [T0, U0]),
        ({"protocol_type": "connect"}, 10 * HOUR_MS, []),
        ({"is_stable": False}, 10 * HOUR_MS, []),
        (EMPTY, HOUR_MS, [T0, U0]),
        (EMPTY | {"state_since_ms": 1000}, HOUR_MS + 999, []),
        (EMPTY | {"state_since_ms": 1000}, HOUR_MS + 1000, [T0, U0]),
        (EMPTY | {"state_since_ms": -1}, HOUR_MS, [T0]),
        (EMPTY | {"state_since_ms": -1}, HOUR_MS + 5, [T0, U0]),
        (EMPTY | {"protocol_type": "connect"}, HOUR_MS, [T0, U0]),
        (SIMPLE | {"state_since_ms": 10 * HOUR_MS}, HOUR_MS, [T0]),
        (SIMPLE | {"protocol_type": ""}, HOUR_MS + 5, [T0, U0]),
    ],
)
def test_expiry(group: dict[str, object], now_ms: int, gone: list[TopicPartition]) -> None:
    """As Kafka's GroupMetadata.removeExpiredOffsets (KIP-211, KIP-496)."""
    offsets = with_offsets(t=0, u=5)
    assert expired(offsets, now_ms, **group) == gone
    assert len(offsets) == 2, "they are only named"


def test_an_offset_with_its_own_expiry_time_expires_then() -> None:
    """OffsetCommit v2..4 may say how long an offset is to be kept."""
    offsets = GroupOffsets()
    offsets.complete(offsets.begin({T0: at(1, 0, 50), T1: at(1, 0, 100 * HOUR_MS)}), 0)
    assert expired(offsets, 49, **EMPTY) == []
    assert expired(offsets, 50, **EMPTY) == [T0]
    assert expired(offsets, 99 * HOUR_MS, **SIMPLE) == [T0]
    assert expired(offsets, 100 * HOUR_MS) == [T0, T1]
    assert expired(offsets, 100 * HOUR_MS, is_stable=False) == []


def test_a_partition_with_a_pending_commit_does_not_expire() -> None:
    offsets = with_offsets(t=0, u=0)
    commit = offsets.begin({T0: at(2, 9 * HOUR_MS)})
    assert expired(offsets, 9 * HOUR_MS, **EMPTY) == [U0]
    offsets.fail(commit)
    assert expired(offsets, 9 * HOUR_MS, **EMPTY) == [T0, U0]


class NewsInAnyOrder(RuleBasedStateMachine):
    """Commits and tombstones are appended in one order and completed in another: memory has what a load would give."""

    def __init__(self) -> None:
        super().__init__()
        self.offsets = GroupOffsets()
        self.log_end = 0
        self.commits: list[tuple[PendingCommit, int, dict[TopicPartition, CommittedOffset]]] = []
        self.removals: list[tuple[int, list[TopicPartition]]] = []
        self.heard: list[tuple[int, TopicPartition, CommittedOffset | None]] = []

    @rule(offsets=st.dictionaries(st.sampled_from([T0, T1, U0]), st.integers(0, 3).map(at), min_size=1))
    def commit(self, offsets: dict[TopicPartition, CommittedOffset]) -> None:
        self.commits.append((self.offsets.begin(offsets), self.log_end, offsets))
        self.log_end += len(offsets)

    @rule(partitions=st.lists(st.sampled_from([T0, T1, U0]), min_size=1, unique=True))
    def remove(self, partitions: list[TopicPartition]) -> None:
        self.removals.append((self.log_end, partitions))
        self.log_end += len(partitions)

    @rule(which=st.integers(0, 9), is_written=st.booleans())
    def hear_of_a_commit(self, which: int, is_written: bool) -> None:
        if not self.commits:
            return
        commit, log_offset, offsets = self.commits.pop(which % len(self.commits))
        if is_written:
            self.offsets.complete(commit, log_offset)
            self.heard += [(log_offset, tp, committed) for tp, committed in offsets.items()]
        else:
            self.offsets.fail(commit)

    @rule(which=st.integers(0, 9))
    def hear_of_tombstones(self, which: int) -> None:
        if self.removals:
            log_offset, partitions = self.removals.pop(which % len(self.removals))
            self.offsets.removed(partitions, log_offset)
            self.heard += [(log_offset, tp, None) for tp in partitions]

    @invariant()
    def memory_is_what_the_log_says(self) -> None:
        said = {tp: committed for _, tp, committed in sorted(self.heard, key=lambda record: record[0])}
        expected = {tp: committed for tp, committed in said.items() if committed is not None}
        assert {tp: self.offsets.get(tp) for tp in self.offsets} == expected
        assert len(self.offsets) == len(expected)
        for tp in (T0, T1, U0):
            assert self.offsets.is_pending(tp) == any(tp in offsets for _, _, offsets in self.commits)


TestNewsInAnyOrder = NewsInAnyOrder.TestCase
TestNewsInAnyOrder.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
