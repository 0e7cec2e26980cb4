"""Idempotent batches that this broker refused for a transient reason, and the batches sent after them (INV-20, INV-17). Pure.

A producer has up to five batches in flight. Suppose the first is refused because too few replicas are in sync, or because
this broker does not lead yet or does not know whether it still leads. If the reason ends before the second batch is checked,
Kafka checks the second batch without regard to the first:

1. If the log does not know the producer, it accepts the second batch with any sequence. The first can then never be appended.
2. If the log knows the producer, the answer is OUT_OF_ORDER_SEQUENCE_NUMBER. librdkafka then starts a new epoch for all its
   partitions, and sends batches again that another partition may already have: records are duplicated (librdkafka's issue 4953).

Therefore this broker notes each refused batch, not only the first, which may be a duplicate. It refuses later batches too, with
NOT_ENOUGH_REPLICAS, until the refused batch comes again: the producer repeats all of them in order. Earlier batches, which may be
in the log, are answered as usual. A note ends when its batch is in the log (it was a duplicate, or another broker led in between),
when the producer has a new epoch, and after a minute; then this broker answers as Kafka does.

Notes belong to the replica, and go with its log: a topic that is made again has other batches. A batch may also be refused before the
replica is here; such a note is for a few seconds, since it may be about a topic that is deleted meanwhile.

The batch may also have been refused by the previous leader. librdkafka (2.16) then sometimes sends the next batch to the new leader
first. During the first minute of a leader that is not the partition's first, a batch that leaves a gap is *early*: for GAP_S it is
refused with NOT_ENOUGH_REPLICAS, and so are those behind it, so that the missing one can come. After that the answer is Kafka's.
A new epoch starts at sequence 0, and so does a producer that the log does not know: without that rule, a batch of an unknown producer
would be accepted with any sequence. If such a producer was only forgotten, it waits for GAP_S in vain.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from broker.storage.producers.producer_state import SEQUENCE_MAX, ProducerState
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.record_batch import HEADER_SIZE, parse_header
from protocol.types import Buffer, TopicPartition

REMEMBERED_S = 60.0
"""How long a note is kept. No batch that was sent behind a refused batch is in flight for longer."""
GAP_S = 5.0
"""How long a batch may be early, and a note without a replica is kept. A producer repeats a batch after a tenth of a second, or a few."""
PRODUCERS_MAX = 10_000
"""Limit of notes, one for each producer and partition, and of gaps. Batches of further producers are answered as Kafka does."""
TOPIC_NAME_MAX = 249
"""Characters. A refused batch may name a topic that does not exist: longer names are not kept."""
BATCHES_MAX = 10
"""Limit of refused batches of one producer and partition. A producer has at most five batches in flight."""

TRANSIENT_ERRORS = frozenset(
    (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
)
"""Errors after which a producer sends the same batch again, perhaps to this broker."""


class Refused(NamedTuple):
    """`sequences`: the base sequences of the refused batches, in order. `until_s`: how long they are waited for (monotonic)."""

    epoch: int
    sequences: tuple[int, ...]
    until_s: float


class Gap(NamedTuple):
    """The batch of `expected` is missing since `at_s` (monotonic)."""

    epoch: int
    expected: int
    at_s: float


class _Notes:
    """Those of one partition, by producer id, oldest first. `at_s`: when the last one was made (monotonic)."""

    __slots__ = ("at_s", "gaps", "refused")

    def __init__(self) -> None:
        self.at_s = 0.0
        self.gaps: dict[int, Gap] = {}
        self.refused: dict[int, Refused] = {}

    def __len__(self) -> int:
        return len(self.gaps) + len(self.refused)

    def forget_old(self, now_s: float) -> int:
        """Returns how many."""
        before = len(self)
        while self.refused and self.refused[next(iter(self.refused))].until_s < now_s:
            del self.refused[next(iter(self.refused))]
        while self.gaps and self.gaps[next(iter(self.gaps))].at_s + REMEMBERED_S < now_s:
            del self.gaps[next(iter(self.gaps))]
        return before - len(self)


NO_PRODUCERS: Mapping[int, Refused] = {}


class RefusedBatches:
    """The refused batches of one broker. Usually there are none: then the produce path only tests `bool(...)`."""

    __slots__ = ("_count", "_notes")

    def __init__(self) -> None:
        self._notes: dict[TopicPartition, _Notes] = {}  # the one that was noted last is the last
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self._notes)

    def producers(self, tp: TopicPartition) -> Container[int]:
        """The producers whose batches must be checked."""
        notes = self._notes.get(tp)
        return NO_PRODUCERS if notes is None else notes.refused

    def forget(self, tp: TopicPartition) -> None:
        """The replica is no longer here, and neither is its log."""
        notes = self._notes.pop(tp, None)
        self._count -= 0 if notes is None else len(notes)

    def note(self, tp: TopicPartition, records: Buffer, now_s: float, *, is_here: bool) -> None:
        """Notes a batch that is refused now and may be accepted when it comes again. `is_here`: this broker has the replica."""
        if len(records) < HEADER_SIZE or len(tp.topic) > TOPIC_NAME_MAX:
            return
        header = parse_header(records)
        sequence, producer_id = header.base_sequence, header.producer_id
        if producer_id < 0 or sequence < 0:
            return
        until_s = now_s + (REMEMBERED_S if is_here else GAP_S)
        with self._changing(tp, now_s) as notes:
            known = notes.refused.get(producer_id)
            if known is None or known.epoch < header.producer_epoch or known.until_s < now_s:
                if known is None and self._count >= PRODUCERS_MAX:
                    return
                known = Refused(header.producer_epoch, (), until_s)
            elif known.epoch > header.producer_epoch:
                return
            before = [other for other in known.sequences if _is_after(sequence, other)]
            behind = [other for other in known.sequences if _is_after(other, sequence)]
            sequences = (*before, sequence, *behind)[:BATCHES_MAX]
            if before:  # batches that wait for the first do not prolong its note
                notes.refused[producer_id] = known._replace(sequences=sequences)
            else:
                notes.refused.pop(producer_id, None)
                notes.refused[producer_id] = Refused(known.epoch, sequences, until_s)

    def check(self, tp: TopicPartition, records: Buffer, producers: ProducerState, now_s: float) -> None:
        """To be called before an append. Raises KafkaError(NOT_ENOUGH_REPLICAS) for a batch behind a refused one."""
        notes = self._notes.get(tp)
        if notes is None or len(records) < HEADER_SIZE:
            return
        header = parse_header(records)
        refused = notes.refused.get(header.producer_id)
        if refused is None or header.producer_epoch < refused.epoch:
            return
        is_over = header.producer_epoch > refused.epoch or refused.until_s < now_s
        missing = () if is_over else _not_in_log(refused, producers, header.producer_id)
        if missing and _is_after(header.base_sequence, missing[0]):
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"sequence {header.base_sequence} must wait: the batch of sequence {missing[0]} was refused and comes first",
            )
        if missing and header.base_sequence == missing[0]:
            missing = missing[1:]
        if missing:
            notes.refused[header.producer_id] = refused._replace(sequences=missing)
            return
        del notes.refused[header.producer_id]
        self._count -= 1
        if not notes:
            del self._notes[tp]

    def check_early(self, tp: TopicPartition, records: Buffer, producers: ProducerState, now_s: float) -> None:
        """To be called before an append in the first minute of a leader. Raises KafkaError(NOT_ENOUGH_REPLICAS) if the batch leaves a gap
        for less than GAP_S."""
        if len(records) < HEADER_SIZE:
            return
        header = parse_header(records)
        producer_id, epoch = header.producer_id, header.producer_epoch
        entry = producers.producers.get(producer_id)
        if producer_id < 0 or header.base_sequence < 0 or (entry is not None and epoch < entry.epoch):
            return
        expected = (entry.last_sequence + 1) & SEQUENCE_MAX if entry is not None and epoch == entry.epoch else 0
        if not _is_after(header.base_sequence, expected):
            return
        with self._changing(tp, now_s) as notes:
            gap = notes.gaps.get(producer_id)
            if gap is None or (gap.epoch, gap.expected) != (epoch, expected):
                if gap is None and self._count >= PRODUCERS_MAX:
                    return
                notes.gaps.pop(producer_id, None)
                gap = notes.gaps[producer_id] = Gap(epoch, expected, now_s)
        if now_s - gap.at_s <= GAP_S:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"sequence {header.base_sequence} must wait: sequence {expected} may still come, as the partition has just moved here",
            )

    @contextmanager
    def _changing(self, tp: TopicPartition, now_s: float) -> Iterator[_Notes]:
        """The notes of the partition, to be changed. Forgets the old ones here, and partitions that have only old ones."""
        while self._notes and self._notes[next(iter(self._notes))].at_s + REMEMBERED_S < now_s:
            self.forget(next(iter(self._notes)))
        notes = self._notes.pop(tp, None) or _Notes()
        self._count -= notes.forget_old(now_s)
        notes.at_s = now_s
        before = len(notes)
        try:
            yield notes
        finally:
            self._count += len(notes) - before
            if notes:
                self._notes[tp] = notes


def _not_in_log(refused: Refused, producers: ProducerState, producer_id: int) -> tuple[int, ...]:
    """The refused sequences that are not in the log. Some may be: a batch is refused before it is known to be a duplicate."""
    entry = producers.producers.get(producer_id)
    if entry is None or entry.epoch < refused.epoch:
        return refused.sequences
    if entry.epoch > refused.epoch:
        return ()
    following = (entry.last_sequence + 1) & SEQUENCE_MAX
    return tuple(sequence for sequence in refused.sequences if not _is_after(following, sequence))


def _is_after(sequence: int, other: int) -> bool:
    """Whether `sequence` is at most half the circle ahead of `other`: sequences restart at 0 after 2^31-1."""
    return 0 < (sequence - other) & SEQUENCE_MAX <= SEQUENCE_MAX // 2
