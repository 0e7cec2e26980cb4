"""The offsets of a group while commits, removals and expiry come in any order (CLI-2, INV-23)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker.groups.group.messages import CommittedOffset
from broker.groups.group.offsets import (
    COUNTED_IN_A_STEP,
    FREED_IN_A_STEP,
    ROWS_IN_A_STEP,
    GroupOffsets,
    PendingCommit,
    expiry_rule,
)
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


def every(offsets: GroupOffsets, topics: Collection[str] | None = None) -> list[TopicPartition]:
    """The partitions of all parts."""
    return sorted({tp for part in offsets.parts(2, topics) for tp in part})


def test_a_deletion_of_a_group_or_topic_includes_pending_commits() -> None:
    offsets = with_offsets(t=0, u=0)
    commit = offsets.begin({T1: at(9), U0: at(9)})
    assert every(offsets, ["t", "nobody's"]) == [T0, T1]
    assert every(offsets) == [T0, T1, U0]
    offsets.fail(commit)
    assert every(offsets) == [T0, U0]
    offsets.removed(every(offsets, ["t"]), 70)
    assert every(offsets) == [U0]


def test_the_parts_of_a_group_that_changes_meanwhile() -> None:
    """What is there at the first part is in one of them, also if it is committed, or removed, between two parts."""
    offsets = with_offsets(t=0, u=0, v=0, w=0)
    pending, in_transaction = offsets.begin({T1: at(9)}), offsets.begin({TopicPartition("t", 2): at(9)}, 7)
    parts = offsets.parts(1)
    found = next(parts)
    offsets.complete(pending, 10)
    offsets.complete(in_transaction, 11)
    ended(offsets, 7, 12)
    found += next(parts) + next(parts)
    offsets.removed([U0], 13)
    offsets.complete(offsets.begin({TopicPartition("x", 0): at(9)}), 14)
    for part in parts:
        found += part
    there = {T0, T1, TopicPartition("t", 2), *(TopicPartition(topic, 0) for topic in "vw")}
    assert there <= set(found) <= there | {U0, TopicPartition("x", 0)}


def test_bytes_after_a_load_are_counted_in_steps() -> None:
    """NET-4."""
    offsets, loaded = GroupOffsets(), GroupOffsets()
    many = {TopicPartition("t", number): at(number) for number in range(3 * COUNTED_IN_A_STEP)}
    offsets.complete(offsets.begin(many), 1)
    loaded.of_topic("t").update({tp.partition: (1, *committed) for tp, committed in many.items()})
    loaded.loaded()
    assert len(list(loaded.counting())) == 3
    assert loaded.bytes == offsets.bytes > 0


def test_a_large_group_is_freed_in_steps() -> None:
    """NET-4."""
    offsets = GroupOffsets()
    many = {TopicPartition("t", number): at(number) for number in range(3 * FREED_IN_A_STEP)}
    offsets.complete(offsets.begin(many), 1)
    assert [len(offsets) for _ in offsets.clearing()] == [2 * FREED_IN_A_STEP, FREED_IN_A_STEP]


def expired(offsets: GroupOffsets, now_ms: int, **group: object) -> list[TopicPartition]:
    """Retention one hour; a STABLE group of consumers that subscribe to u, unless told."""
    told: dict[str, Any] = {
        "protocol_type": "consumer",
        "is_empty": False,
        "is_stable": True,
        "state_since_ms": 0,
        "subscribed_topics": frozenset("u"),
    }
    rule = expiry_rule(**(told | group))
    return [] if rule is None else offsets.expired(offsets, rule, now_ms, HOUR_MS)


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


def ended(offsets: GroupOffsets, producer_id: int, marker_offset: int, *, is_commit: bool = True) -> None:
    for _ in offsets.ending(producer_id, marker_offset, is_commit=is_commit):
        continue


def test_a_transactional_commit_counts_from_its_marker_on() -> None:
    """KIP-447: until then the partition is pending, and does not expire."""
    offsets = with_offsets(t=0, u=0)
    commit = offsets.begin({T0: at(2), T1: at(3)}, 7)
    assert offsets.has_transaction(7)
    offsets.complete(commit, 50)
    assert (offsets.get(T0), offsets.get(T1)) == (at(1), None)
    assert [offsets.is_pending(tp) for tp in (T0, T1, U0)] == [True, True, False]
    assert expired(offsets, 9 * HOUR_MS, **EMPTY) == [U0]
    assert (every(offsets), every(offsets, ["t"])) == ([T0, T1, U0], [T0, T1])
    assert [offsets.is_stored(tp) for tp in (T0, T1, U0, TopicPartition("v", 0))] == [True, True, True, False]
    ended(offsets, 8, 60)
    assert offsets.has_transaction(7)
    ended(offsets, 7, 61)
    assert (offsets.get(T0), offsets.get(T1)) == (at(2), at(3))
    assert not offsets.is_pending(T0)
    assert not offsets.has_transaction(7)


def test_a_marker_decides_only_about_offsets_before_it() -> None:
    """A marker that is repeated may be replicated after the next transaction has started."""
    offsets = GroupOffsets()
    offsets.complete(offsets.begin({T0: at(2), T1: at(3)}, 7), 10)
    offsets.complete(offsets.begin({T0: at(4)}, 7), 20)
    ended(offsets, 7, 15)
    assert (offsets.get(T0), offsets.get(T1)) == (None, at(3)), (
        "the later offset of T0 has taken the earlier one's place"
    )
    assert offsets.is_pending(T0)
    ended(offsets, 7, 21, is_commit=False)
    assert list(offsets) == [T1]
    assert not offsets.is_pending(T0)


def test_bytes_are_counted_while_a_transaction_is_open() -> None:
    offsets = GroupOffsets()
    empty = offsets.bytes
    growth = offsets.growth({T0: at(2), T1: at(3)}, 7)
    offsets.complete(offsets.begin({T0: at(2), T1: at(3)}, 7), 10)
    assert offsets.bytes == empty + growth
    assert offsets.growth({T0: at(4)}, 7) == 0 < offsets.growth({T0: at(4)}, 8)
    ended(offsets, 7, 11)
    assert offsets.bytes == empty + growth
    offsets.complete(offsets.begin({T0: at(5)}, 7), 12)
    ended(offsets, 7, 13, is_commit=False)
    assert offsets.bytes == empty + growth
    offsets.complete(offsets.begin({T0: at(5)}, 7), 14)
    offsets.removed([T0, T1], 15)
    assert offsets.bytes == empty
    assert offsets.is_empty


def test_a_large_transaction_ends_in_steps() -> None:
    """NET-4."""
    offsets = GroupOffsets()
    many = {TopicPartition("t", number): at(number) for number in range(3 * ROWS_IN_A_STEP)}
    offsets.complete(offsets.begin(many, 7), 10)
    steps = offsets.ending(7, 11, is_commit=True)
    next(steps)
    assert len(offsets) == ROWS_IN_A_STEP
    offsets.complete(offsets.begin({T0: at(9)}, 7), 12)  # of the next transaction, between two steps
    assert len(list(steps)) == 2
    assert len(offsets) == 3 * ROWS_IN_A_STEP
    assert offsets.is_pending(T0)


class NewsInAnyOrder(RuleBasedStateMachine):
    """Commits, markers and tombstones are appended in one order and completed in another: memory has what a load would give.

    A marker is heard of after the commits of its producer that are before it: both wait for the same high watermark.
    """

    def __init__(self) -> None:
        super().__init__()
        self.offsets = GroupOffsets()
        self.log_end = 0
        self.commits: list[tuple[PendingCommit, int, dict[TopicPartition, CommittedOffset]]] = []
        self.removals: list[tuple[int, list[TopicPartition]]] = []
        self.markers: list[tuple[int, int, bool]] = []
        self.heard: list[tuple[int, TopicPartition, CommittedOffset | None, int | None]] = []
        self.heard_markers: list[tuple[int, int, bool]] = []

    @rule(
        offsets=st.dictionaries(st.sampled_from([T0, T1, U0]), st.integers(0, 3).map(at), min_size=1),
        producer=st.sampled_from([None, None, 7, 8]),
    )
    def commit(self, offsets: dict[TopicPartition, CommittedOffset], producer: int | None) -> None:
        """Not of a producer whose marker is on its way: see `mark`."""
        if any(marked == producer for marked, _, _ in self.markers):
            return
        self.commits.append((self.offsets.begin(offsets, producer), self.log_end, offsets))
        self.log_end += len(offsets)

    @rule(partitions=st.lists(st.sampled_from([T0, T1, U0]), min_size=1, unique=True))
    def remove(self, partitions: list[TopicPartition]) -> None:
        self.removals.append((self.log_end, partitions))
        self.log_end += len(partitions)

    @rule(producer=st.sampled_from([7, 8]), is_commit=st.booleans())
    def mark(self, producer: int, is_commit: bool) -> None:
        """The transaction coordinator sends no marker before the previous one is answered, and no commit of the next transaction
        comes before that."""
        if not any(marked == producer for marked, _, _ in self.markers):
            self.markers.append((producer, self.log_end, is_commit))
            self.log_end += 1

    @rule(which=st.integers(0, 9), is_written=st.booleans())
    def hear_of_a_commit(self, which: int, is_written: bool) -> None:
        if self.commits:
            self._hear_of(self.commits.pop(which % len(self.commits)), is_written)

    def _hear_of(
        self, pending: tuple[PendingCommit, int, dict[TopicPartition, CommittedOffset]], is_written: bool
    ) -> None:
        commit, log_offset, offsets = pending
        if is_written:
            self.offsets.complete(commit, log_offset)
            self.heard += [(log_offset, tp, committed, commit.producer_id) for tp, committed in offsets.items()]
        else:
            self.offsets.fail(commit)

    @rule(which=st.integers(0, 9))
    def hear_of_tombstones(self, which: int) -> None:
        if self.removals:
            log_offset, partitions = self.removals.pop(which % len(self.removals))
            self.offsets.removed(partitions, log_offset)
            self.heard += [(log_offset, tp, None, None) for tp in partitions]

    @rule(which=st.integers(0, 9))
    def hear_of_a_marker(self, which: int) -> None:
        if not self.markers:
            return
        producer, marker_offset, is_commit = self.markers.pop(which % len(self.markers))
        before = [c for c in self.commits if c[0].producer_id == producer and c[1] < marker_offset]
        for pending in before:
            self.commits.remove(pending)
            self._hear_of(pending, True)
        ended(self.offsets, producer, marker_offset, is_commit=is_commit)
        self.heard_markers.append((producer, marker_offset, is_commit))

    def _outcome(self, log_offset: int, producer: int | None) -> bool | None:
        """True: committed, False: aborted, None: the transaction is open."""
        if producer is None:
            return True
        marks = [mark for mark in self.heard_markers if mark[0] == producer and mark[1] > log_offset]
        return min(marks, key=lambda mark: mark[1])[2] if marks else None

    @invariant()
    def memory_is_what_the_log_says(self) -> None:
        heard = sorted(self.heard, key=lambda record: record[0])
        said = {tp: committed for at, tp, committed, producer in heard if self._outcome(at, producer)}
        expected = {tp: committed for tp, committed in said.items() if committed is not None}
        assert {tp: self.offsets.get(tp) for tp in self.offsets} == expected
        assert len(self.offsets) == len(expected)
        for tp in (T0, T1, U0):
            removed_at = max((at for at, of, committed, _ in heard if of == tp and committed is None), default=-1)
            in_the_log = any(
                of == tp and at > removed_at and self._outcome(at, producer) is None for at, of, _, producer in heard
            )
            is_pending = in_the_log or any(tp in offsets for _, _, offsets in self.commits)
            assert self.offsets.is_pending(tp) == is_pending


TestNewsInAnyOrder = NewsInAnyOrder.TestCase
TestNewsInAnyOrder.settings = settings(max_examples=50, stateful_step_count=30)
