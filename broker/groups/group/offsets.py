"""The offsets of one group: committed, being written, expired (CLI-2, INV-23). Pure.

A commit is `begin`, the append of its batch, and `complete` when the batch is below the high watermark, or `fail`. Until then the
partition is pending, and OffsetFetch gets the old offset. Each offset has the log offset of its batch. The commit that is later in
the log counts, even if its outcome arrives earlier, so memory always has what a load of the log would give.

A commit in a transaction counts from the transaction's marker on: `complete` notes its offsets in `TransactionalOffsets`, and `ending`
is called when the marker is below the high watermark. Until then the partitions are pending too. Here, too, the log decides: by a
marker's offset, about the offsets that its producer wrote before it.

The offsets are tuples of numbers and strings, by topic and partition: Python's garbage collector does not track them. With a million
tracked objects it would stop the loop for a tenth of a second.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from broker.groups.group.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from broker.groups.group.messages import CommittedOffset
from broker.groups.group.transactional_offsets import StoredOffset, TransactionalOffsets, size_of, size_with
from protocol.types import TopicPartition

ROWS_IN_A_STEP = 200
"""Offsets of a transaction that end in one step."""
FREED_IN_A_STEP = 2_000
COUNTED_IN_A_STEP = 1_000


TopicId = Callable[[str], bytes | None]
"""Topic -> its id now, None if it is not known."""


def unknown_id(topic: str) -> bytes | None:
    """No topic's id is known: every offset counts."""
    return None


class PendingCommit:
    """A commit that is being written. `producer_id` None: it is not in a transaction. Compared by identity."""

    __slots__ = ("offsets", "producer_id")

    def __init__(self, offsets: Mapping[TopicPartition, CommittedOffset], producer_id: int | None) -> None:
        self.offsets = dict(offsets)
        self.producer_id = producer_id


class GroupOffsets:
    """The committed and pending offsets. A load fills it through `of_topic`."""

    __slots__ = ("_by_topic", "_bytes", "_pending", "_pending_partitions", "_tombstones", "transactional")

    def __init__(self) -> None:
        self._by_topic: dict[str, dict[int, StoredOffset]] = {}
        self._pending: dict[PendingCommit, None] = {}
        self._pending_partitions: Counter[TopicPartition] = Counter()
        """Number of pending commits that contain the partition."""
        self._bytes = 0
        self.transactional = TransactionalOffsets()
        self._tombstones: dict[TopicPartition, int] = {}
        """Partition -> log offset of its tombstone, while commits are pending. Commits before the tombstone do not count."""

    def __len__(self) -> int:
        """Number of committed offsets."""
        return sum(map(len, self._by_topic.values()))

    def __iter__(self) -> Iterator[TopicPartition]:
        """The partitions with a committed offset; a snapshot."""
        return iter([TopicPartition(topic, n) for topic, offsets in self._by_topic.items() for n in offsets])

    def partitions(self, topic_id: TopicId = unknown_id) -> dict[str, list[int]]:
        """Topic -> the partitions with a committed offset that is not of an earlier topic; a snapshot."""
        found = {}
        for topic, offsets in self._by_topic.items():
            now = topic_id(topic)
            partitions = (
                list(offsets)
                if now is None
                else [number for number, stored in offsets.items() if stored[6] == now or stored[6] is None]
            )
            if partitions:
                found[topic] = partitions
        return found

    @property
    def bytes(self) -> int:
        """Approximate bytes in memory, without commits that are being written."""
        return self._bytes + self.transactional.bytes

    @property
    def is_empty(self) -> bool:
        """True if nothing is committed or pending. An EMPTY group without offsets is deleted (Kafka's hasOffsets)."""
        return not self._pending and not self.transactional and not any(self._by_topic.values())

    def get(self, tp: TopicPartition, topic_id: TopicId = unknown_id) -> CommittedOffset | None:
        """The committed offset, if it is not of an earlier topic."""
        stored = self._by_topic.get(tp.topic, {}).get(tp.partition)
        if stored is None or _is_of_earlier_topic(stored, topic_id(tp.topic)):
            return None
        return CommittedOffset(*stored[1:])

    def log_offset(self, tp: TopicPartition) -> int | None:
        """The log offset of the batch with the partition's commit; None: nothing is committed."""
        stored = self._by_topic.get(tp.topic, {}).get(tp.partition)
        return None if stored is None else stored[0]

    def is_pending(self, tp: TopicPartition) -> bool:
        """True while a commit of the partition is being written, or its transaction has not ended: requests for stable offsets get
        UNSTABLE_OFFSET_COMMIT (KIP-447)."""
        return tp in self._pending_partitions or tp in self.transactional

    # -- commits --------------------------------------------------------------------------------------------------

    def begin(self, offsets: Mapping[TopicPartition, CommittedOffset], producer_id: int | None = None) -> PendingCommit:
        """Called before the append. `complete` or `fail` ends the commit, exactly once. `producer_id`: of the transaction, if any."""
        commit = PendingCommit(offsets, producer_id)
        self._pending[commit] = None
        self._pending_partitions.update(commit.offsets.keys())
        return commit

    def growth(self, offsets: Mapping[TopicPartition, CommittedOffset], producer_id: int | None = None) -> int:
        """Approximate bytes that a commit of these offsets would add."""
        total = 0
        for tp, committed in offsets.items():
            if producer_id is None:
                stored = self._by_topic.get(tp.topic, {}).get(tp.partition)
            else:
                stored = self.transactional.get(producer_id, tp)
            total += size_with(committed.metadata) - (size_of(stored) if stored is not None else 0)
        return total

    def complete(self, commit: PendingCommit, log_offset: int) -> None:
        """The batch of the commit, at `log_offset`, is below the high watermark."""
        for tp, committed in commit.offsets.items():
            if log_offset < self._tombstones.get(tp, -1):
                continue
            if commit.producer_id is None:
                self._put(tp, (log_offset, *committed))
            else:
                self.transactional.add(commit.producer_id, tp, (log_offset, *committed))
        self._end(commit)

    def _put(self, tp: TopicPartition, stored: StoredOffset) -> None:
        """The offset is committed, unless a later one is."""
        offsets = self._by_topic.setdefault(tp.topic, {})
        current = offsets.get(tp.partition)
        if current is None or current[0] < stored[0]:
            offsets[tp.partition] = stored
            self._bytes += size_of(stored) - (size_of(current) if current is not None else 0)

    def fail(self, commit: PendingCommit) -> None:
        """The commit was not written, or its outcome is unknown. Earlier commits still count."""
        self._end(commit)

    def _end(self, commit: PendingCommit) -> None:
        del self._pending[commit]
        left = self._pending_partitions
        for tp in commit.offsets:
            left[tp] -= 1
            if not left[tp]:
                del left[tp]
        if not self._pending:
            self._tombstones.clear()

    # -- transactions ---------------------------------------------------------------------------------------------

    def has_transaction(self, producer_id: int) -> bool:
        """True if a transaction of the producer has offsets here, in the log or being written."""
        return self.transactional.has(producer_id) or any(c.producer_id == producer_id for c in self._pending)

    def ending(self, producer_id: int, marker_offset: int, *, is_commit: bool) -> Iterator[None]:
        """The producer's marker, at `marker_offset`, is below the high watermark: ends the transaction, in steps.

        Offsets that the producer wrote after the marker stay: they are of its next transaction.
        """
        for number, tp in enumerate(self.transactional.partitions_of(producer_id), 1):
            self.end(producer_id, tp, marker_offset, is_commit=is_commit)
            if number % ROWS_IN_A_STEP == 0:
                yield

    def end(self, producer_id: int, tp: TopicPartition, marker_offset: int, *, is_commit: bool) -> None:
        """As `ending`, for one partition."""
        stored = self.transactional.take(producer_id, tp, marker_offset)
        if stored is not None and is_commit:
            self._put(tp, stored)

    # -- removal --------------------------------------------------------------------------------------------------

    def removed(self, partitions: Iterable[TopicPartition], log_offset: int) -> None:
        """The partitions' tombstones, from `log_offset` on, are below the high watermark. Later commits stay."""
        for tp in partitions:
            offsets = self._by_topic.get(tp.topic, {})
            stored = offsets.get(tp.partition)
            if stored is not None and stored[0] < log_offset:
                del offsets[tp.partition]
                self._bytes -= size_of(stored)
                if not offsets:
                    del self._by_topic[tp.topic]
            self.transactional.drop(tp, log_offset)
            if self._pending:
                self._tombstones[tp] = max(log_offset, self._tombstones.get(tp, -1))

    def is_stored(self, tp: TopicPartition) -> bool:
        """True if the log has an offset of the partition, committed or in a transaction: a deletion needs a tombstone."""
        return tp.partition in self._by_topic.get(tp.topic, ()) or tp in self.transactional

    def parts(self, size: int, topics: Collection[str] | None = None) -> Iterator[list[TopicPartition]]:
        """The partitions, of these topics, with a committed or pending offset, in lists of at most `size`.

        The group may change between two lists. What is committed or pending at the first list is in one of them, perhaps twice; what
        comes later perhaps is not.
        """
        partitions = self._partitions(topics)
        while some := list(itertools.islice(partitions, size)):
            yield some

    def _partitions(self, topics: Collection[str] | None) -> Iterator[TopicPartition]:
        # The pending ones first, all at once: they may be committed before the last list.
        for tp in [*self.transactional, *(tp for commit in self._pending for tp in commit.offsets)]:
            if topics is None or tp.topic in topics:
                yield tp
        for topic in list(self._by_topic) if topics is None else topics:
            for number in list(self._by_topic.get(topic, ())):
                yield TopicPartition(topic, number)

    # -- expiry ---------------------------------------------------------------------------------------------------

    def expired(
        self,
        partitions: Iterable[TopicPartition],
        rule: ExpiryRule,
        now_ms: int,
        retention_ms: int,
        topic_id: TopicId = unknown_id,
    ) -> list[TopicPartition]:
        """Those of the partitions whose offsets have expired by wall clock, without pending ones (KIP-211, KIP-496).

        An offset with its own expiry time expires at that time, if the group's state allows its offsets to expire at all. One of an
        earlier topic has expired, even if members subscribe to the topic.
        """
        found = []
        for tp in partitions:
            stored = self._by_topic.get(tp.topic, {}).get(tp.partition)
            if stored is None or self.is_pending(tp):
                continue
            if _is_of_earlier_topic(stored, topic_id(tp.topic)):
                found.append(tp)
                continue
            if tp.topic in rule.subscribed:
                continue
            since_ms = _commit_timestamp(stored) if rule.since_ms is None else rule.since_ms
            if _is_over(stored, now_ms, since_ms, retention_ms):
                found.append(tp)
        return found

    # -- loading --------------------------------------------------------------------------------------------------

    def of_topic(self, topic: str) -> dict[int, StoredOffset]:
        """Partition -> offset. A load fills the dict, and calls `loaded` at the end."""
        return self._by_topic.setdefault(topic, {})

    def loaded(self) -> None:
        """Removes topics without offsets. `counting` follows."""
        for topic in [topic for topic, offsets in self._by_topic.items() if not offsets]:
            del self._by_topic[topic]

    def counting(self) -> Iterator[None]:
        """Counts the bytes after a load, in steps. Nothing changes meanwhile."""
        self._bytes = 0
        stored = (at for offsets in self._by_topic.values() for at in offsets.values())
        while sizes := [size_of(at) for at in itertools.islice(stored, COUNTED_IN_A_STEP)]:
            self._bytes += sum(sizes)
            yield

    # -- the end --------------------------------------------------------------------------------------------------

    def clearing(self) -> Iterator[None]:
        """Frees the memory of many committed offsets, in steps. Nobody uses them any more."""
        for offsets in list(self._by_topic.values()):
            while len(offsets) > FREED_IN_A_STEP:
                for _ in range(FREED_IN_A_STEP):
                    offsets.popitem()
                yield


class ExpiryRule(NamedTuple):
    """Since when the retention time of a group's offsets counts, in ms of the wall clock (None: since each commit), and the topics
    whose offsets do not expire."""

    since_ms: int | None = None
    subscribed: frozenset[str] = frozenset()


def expiry_rule(
    *,
    protocol_type: str | None,
    is_empty: bool,
    is_stable: bool,
    state_since_ms: int,
    subscribed_topics: frozenset[str] | None,
) -> ExpiryRule | None:
    """The rule for a group whose state is EMPTY, or STABLE, or neither, since that time (-1: not known), and whose members subscribe
    to these topics (None: not known). None: no offset expires.

        no protocol type        offsets of consumers without membership: the retention time after the commit
        EMPTY                   that time after the group became empty, or after the commit if that is not known
        STABLE consumers        offsets of topics to which no member subscribes: that time after the commit
        any other group         none
    """
    if not protocol_type:
        return ExpiryRule()
    if is_empty:
        return ExpiryRule(state_since_ms if state_since_ms >= 0 else None)
    if is_stable and protocol_type == CONSUMER_PROTOCOL_TYPE and subscribed_topics is not None:
        return ExpiryRule(subscribed=subscribed_topics)
    return None


def _is_of_earlier_topic(stored: StoredOffset, topic_id: bytes | None) -> bool:
    """Whether the topic has been deleted and made again since the commit. `topic_id`: its id now; None: not known."""
    return stored[6] != topic_id and stored[6] is not None and topic_id is not None


def _commit_timestamp(stored: StoredOffset) -> int:
    return stored[4]


def _is_over(stored: StoredOffset, now_ms: int, since_ms: int, retention_ms: int) -> bool:
    expires_ms = stored[5]
    return now_ms >= expires_ms if expires_ms is not None else now_ms - since_ms >= retention_ms
