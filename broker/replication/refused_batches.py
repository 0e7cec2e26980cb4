"""Idempotent batches that this broker refused for a reason that passes, and those sent after them (INV-20, INV-17). Pure.

A producer has up to five batches in flight. When the first is refused, because too few replicas are in sync, or this broker
does not lead yet or does not know whether it still does, and that is over before the second is looked at, Kafka looks at
the second alone:

1. Of a producer that the log does not know it is taken, at any sequence. The first then comes too late for ever.
2. Of a known one it is OUT_OF_ORDER_SEQUENCE_NUMBER. librdkafka then begins a new epoch for all its partitions, and sends
   anew under it what another partition may have in its log already: records are there twice (librdkafka's issue 4953).

So what comes behind a refused batch is refused for the same reason until that one comes again: the producer repeats all in order.
Batches before it, which may be in the log, are answered as ever. A note ends when the log shows that its batch came by
another way (another broker led meanwhile), when the producer has a new epoch, and after a minute: then it is as with Kafka.
"""

from __future__ import annotations

from typing import NamedTuple

from broker.storage.producer_state import SEQUENCE_MAX, ProducerState
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.record_batch import HEADER_SIZE, BatchHeader, Buffer, parse_header
from protocol.types import TopicPartition

REMEMBERED_S = 60.0
"""Longer than what was sent behind a refused batch can be on its way."""
PRODUCERS_MAX = 10_000
"""Of producers and partitions. What comes beyond is answered as Kafka does."""

FOR_NOW = frozenset(
    (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
)
"""The refusals after which a producer sends the same batch again, maybe to this broker."""


class Refused(NamedTuple):
    """The first sequence of the earliest refused batch, and when that was refused last (monotonic seconds)."""

    epoch: int
    sequence: int
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
        if len(records) < HEADER_SIZE:
            return
        header = parse_header(records)
        if header.producer_id < 0 or header.base_sequence < 0:
            return
        self._forget_old(now_s)
        key = (tp, header.producer_id)
        known = self._refused.get(key)
        if known is not None:
            if known.epoch == header.producer_epoch and _is_after(header.base_sequence, known.sequence):
                return
            del self._refused[key]
        elif len(self._refused) >= PRODUCERS_MAX:
            return
        self._refused[key] = Refused(header.producer_epoch, header.base_sequence, now_s)

    def check(self, tp: TopicPartition, records: Buffer, producers: ProducerState, now_s: float) -> None:
        """Before an append. Raises KafkaError(NOT_ENOUGH_REPLICAS) for a batch behind a refused one."""
        self._forget_old(now_s)
        if len(records) < HEADER_SIZE:
            return
        header = parse_header(records)
        key = (tp, header.producer_id)
        refused = self._refused.get(key)
        if refused is None:
            return
        if header.base_sequence == refused.sequence or _is_over(refused, header, producers):
            del self._refused[key]
        elif _is_after(header.base_sequence, refused.sequence):
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"the batch with sequence {refused.sequence}, before this one of {header.base_sequence}, was refused",
            )

    def _forget_old(self, now_s: float) -> None:
        while self._refused:
            key = next(iter(self._refused))
            if now_s - self._refused[key].at_s <= REMEMBERED_S:
                return
            del self._refused[key]


def _is_over(refused: Refused, header: BatchHeader, producers: ProducerState) -> bool:
    if header.producer_epoch != refused.epoch:
        return True
    entry = producers.producers.get(header.producer_id)
    if entry is None or entry.epoch < refused.epoch:
        return False
    return entry.epoch > refused.epoch or (entry.last_sequence + 1) & SEQUENCE_MAX != refused.sequence


def _is_after(sequence: int, other: int) -> bool:
    """Sequences begin again at 0 after 2^31-1: what is less than half the circle ahead comes after."""
    return 0 < (sequence - other) & SEQUENCE_MAX <= SEQUENCE_MAX // 2
