"""Idempotent batches that this broker refused for a reason that passes, and those sent after them (INV-20, INV-17). Pure.

A producer has up to five batches in flight. When the first is refused, because too few replicas are in sync, or this broker
does not lead yet or does not know whether it still does, and that is over before the second is looked at, Kafka looks at
the second alone:

1. Of a producer that the log does not know it is taken, at any sequence. The first then comes too late for ever.
2. Of a known one it is OUT_OF_ORDER_SEQUENCE_NUMBER. librdkafka then begins a new epoch for all its partitions, and sends
   anew under it what another partition may have in its log already: records are there twice (librdkafka's issue 4953).

So what comes behind a refused batch is refused for the same reason until that one comes again: the producer repeats all in order.
Batches before it, which may be in the log, are answered as ever. A note ends when its batch is in the log (it was there before,
or another broker led meanwhile), when the producer has a new epoch, and after a minute: then it is as with Kafka. Of several
refused ones each is noted: the first may be a duplicate, and the second not.
"""

from __future__ import annotations

from typing import NamedTuple

from broker.storage.producers.producer_state import SEQUENCE_MAX, ProducerState
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.record_batch import HEADER_SIZE, Buffer, parse_header
from protocol.types import TopicPartition

REMEMBERED_S = 60.0
"""Longer than what was sent behind a refused batch can be on its way."""
PRODUCERS_MAX = 10_000
"""Of producers and partitions. What comes beyond is answered as Kafka does."""
TOPIC_NAME_MAX = 249
"""Characters: what is refused may be for a topic that there is not."""
BATCHES_MAX = 10
"""Of one producer and partition; it has five in flight."""

FOR_NOW = frozenset(
    (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
)
"""The refusals after which a producer sends the same batch again, maybe to this broker."""


class Refused(NamedTuple):
    """`sequences`: the first ones of the refused batches, in their order; `at_s`: when the first was refused last (monotonic)."""

    epoch: int
    sequences: tuple[int, ...]
    at_s: float


class RefusedBatches:
    """Of one broker. Empty in good times: the produce path then only looks whether it is."""

    __slots__ = ("_refused",)

    def __init__(self) -> None:
        self._refused: dict[tuple[TopicPartition, int], Refused] = {}  # the oldest first

    def __bool__(self) -> bool:
        return bool(self._refused)

    def note(self, tp: TopicPartition, records: Buffer, now_s: float) -> None:
        """What a producer sent is refused now, and may be taken when it comes again."""
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
        if before:  # those that wait for the first do not prolong it
            self._refused[key] = known._replace(sequences=sequences)
        else:
            self._refused.pop(key, None)
            self._refused[key] = Refused(known.epoch, sequences, now_s)

    def check(self, tp: TopicPartition, records: Buffer, producers: ProducerState, now_s: float) -> None:
        """Before an append. Raises KafkaError(NOT_ENOUGH_REPLICAS) for a batch behind a refused one."""
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
                f"the batch with sequence {missing[0]}, before this one of {header.base_sequence}, was refused",
            )
        if missing and header.base_sequence == missing[0]:
            missing = missing[1:]
        if not missing:
            del self._refused[key]
        else:
            self._refused[key] = refused._replace(sequences=missing)

    def _forget_old(self, now_s: float) -> None:
        while self._refused:
            key = next(iter(self._refused))
            if now_s - self._refused[key].at_s <= REMEMBERED_S:
                return
            del self._refused[key]


def _not_in_log(refused: Refused, producers: ProducerState, producer_id: int) -> tuple[int, ...]:
    """Some may have come by another way, or have been there already: the refusal does not look."""
    entry = producers.producers.get(producer_id)
    if entry is None or entry.epoch < refused.epoch:
        return refused.sequences
    if entry.epoch > refused.epoch:
        return ()
    following = (entry.last_sequence + 1) & SEQUENCE_MAX
    return tuple(sequence for sequence in refused.sequences if not _is_after(following, sequence))


def _is_after(sequence: int, other: int) -> bool:
    """Sequences begin again at 0 after 2^31-1: what is less than half the circle ahead comes after."""
    return 0 < (sequence - other) & SEQUENCE_MAX <= SEQUENCE_MAX // 2
