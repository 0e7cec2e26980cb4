"""Idempotent batches that this broker refused for a transient reason, and the batches sent after them (INV-20, INV-17). Pure.

A producer has up to five batches in flight. Suppose the first is refused because too few replicas are in sync, or because
this broker does not lead yet or does not know whether it still leads. If the reason ends before the second batch is checked,
Kafka checks the second batch without regard to the first:

1. If the log does not know the producer, it accepts the second batch with any sequence. The first can then never be appended.
2. If the log knows the producer, the answer is OUT_OF_ORDER_SEQUENCE_NUMBER. librdkafka then starts a new epoch for all its
   partitions, and sends batches again that another partition may already have: records are duplicated (librdkafka's issue 4953).

The batch may also have been refused by the previous leader. librdkafka (2.16) then sometimes sends the next batch to the new leader
first. During the first minute of a leader that is not the partition's first, a batch that leaves a gap is *early*: for GAP_S it is
refused with NOT_ENOUGH_REPLICAS, and so are those behind it, so that the missing one can come. After that the answer is Kafka's.

Therefore this broker notes each refused batch, not only the first, which may be a duplicate. It refuses later batches too, with
NOT_ENOUGH_REPLICAS, until the refused batch comes again: the producer repeats all of them in order. Earlier batches, which may be
in the log, are answered as usual. A note ends when its batch is in the log (it was a duplicate, or another broker led in between),
when the producer has a new epoch, and after a minute; then this broker answers as Kafka does.
"""

from __future__ import annotations

from typing import NamedTuple

from broker.storage.producers.producer_state import SEQUENCE_MAX, ProducerState
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.record_batch import HEADER_SIZE, Buffer, parse_header
from protocol.types import TopicPartition

REMEMBERED_S = 60.0
"""No batch that was sent behind a refused batch is in flight for longer."""
GAP_S = 5.0
"""How long a batch may be early. A producer repeats a batch that was refused after a tenth of a second, or a few."""
PRODUCERS_MAX = 10_000
"""Limit of pairs of producer and partition. Batches of further pairs are answered as Kafka does."""
TOPIC_NAME_MAX = 249
"""Characters. A refused batch may name a topic that does not exist: longer names are not kept."""
BATCHES_MAX = 10
"""Limit of refused batches of one producer and partition. A producer has at most five batches in flight."""

TRANSIENT_ERRORS = frozenset(
    (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
)
"""Errors after which a producer sends the same batch again, perhaps to this broker."""


class Refused(NamedTuple):
    """`sequences`: the base sequences of the refused batches, in order. `at_s`: when the first of them was last refused (monotonic)."""

    epoch: int
    sequences: tuple[int, ...]
    at_s: float


class Gap(NamedTuple):
    """The batch of `expected` is missing since `at_s` (monotonic)."""

    epoch: int
    expected: int
    at_s: float


class RefusedBatches:
    """The refused batches of one broker. Usually there are none: then the produce path only tests `bool(...)`."""

    __slots__ = ("_gaps", "_refused")

    def __init__(self) -> None:
        self._gaps: dict[tuple[TopicPartition, int], Gap] = {}  # oldest first
        self._refused: dict[tuple[TopicPartition, int], Refused] = {}  # oldest first

    def __bool__(self) -> bool:
        return bool(self._refused)

    def note(self, tp: TopicPartition, records: Buffer, now_s: float) -> None:
        """Notes a batch that is refused now and may be accepted when it comes again."""
        if len(records) < HEADER_SIZE or len(tp.topic) > TOPIC_NAME_MAX:
            return
        header = parse_header(records)
        sequence = header.base_sequence
        if header.producer_id < 0 or sequence < 0:
            return
        self._forget_old(now_s)
        key = (tp, header.producer_id)
        known = self._refused.get(key)
        if known is None or known.epoch < header.producer_epoch:
            if known is None and len(self._refused) >= PRODUCERS_MAX:
                return
            known = Refused(header.producer_epoch, (), now_s)
        elif known.epoch > header.producer_epoch:
            return
        before = [other for other in known.sequences if _is_after(sequence, other)]
        behind = [other for other in known.sequences if _is_after(other, sequence)]
        sequences = (*before, sequence, *behind)[:BATCHES_MAX]
        if before:  # batches that wait for the first do not prolong its note
            self._refused[key] = known._replace(sequences=sequences)
        else:
            self._refused.pop(key, None)
            self._refused[key] = Refused(known.epoch, sequences, now_s)

    def check(self, tp: TopicPartition, records: Buffer, producers: ProducerState, now_s: float) -> None:
        """To be called before an append. Raises KafkaError(NOT_ENOUGH_REPLICAS) for a batch behind a refused one."""
        self._forget_old(now_s)
        if len(records) < HEADER_SIZE:
            return
        header = parse_header(records)
        key = (tp, header.producer_id)
        refused = self._refused.get(key)
        if refused is None or header.producer_epoch < refused.epoch:
            return
        missing = () if header.producer_epoch > refused.epoch else _not_in_log(refused, producers, header.producer_id)
        if missing and _is_after(header.base_sequence, missing[0]):
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"sequence {header.base_sequence} must wait: the batch of sequence {missing[0]} was refused and comes first",
            )
        if missing and header.base_sequence == missing[0]:
            missing = missing[1:]
        if not missing:
            del self._refused[key]
        else:
            self._refused[key] = refused._replace(sequences=missing)

    def check_early(self, tp: TopicPartition, records: Buffer, producers: ProducerState, now_s: float) -> None:
        """To be called for a batch that is out of order. Raises KafkaError(NOT_ENOUGH_REPLICAS) if it leaves a gap for less than GAP_S."""
        header = parse_header(records)
        entry = producers.producers.get(header.producer_id)
        if entry is None or entry.epoch != header.producer_epoch:
            return
        expected = (entry.last_sequence + 1) & SEQUENCE_MAX
        if not _is_after(header.base_sequence, expected):
            return
        while self._gaps and now_s - self._gaps[next(iter(self._gaps))].at_s > REMEMBERED_S:
            del self._gaps[next(iter(self._gaps))]
        key = (tp, header.producer_id)
        gap = self._gaps.get(key)
        if gap is None or (gap.epoch, gap.expected) != (entry.epoch, expected):
            self._gaps.pop(key, None)
            if len(self._gaps) >= PRODUCERS_MAX:
                return
            gap = self._gaps[key] = Gap(entry.epoch, expected, now_s)
        if now_s - gap.at_s <= GAP_S:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"sequence {header.base_sequence} must wait: sequence {expected} may still come, as the partition has just moved here",
            )

    def _forget_old(self, now_s: float) -> None:
        while self._refused:
            key = next(iter(self._refused))
            if now_s - self._refused[key].at_s <= REMEMBERED_S:
                return
            del self._refused[key]


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
