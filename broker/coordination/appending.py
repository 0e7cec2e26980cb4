"""Appends records to a coordinator's topic with acks=all (INV-23).

`respond` is called when the records are below the high watermark, or failed. It is always called, because the caller has marked the
write as pending: an exception becomes UNKNOWN_SERVER_ERROR.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from broker.process.clock import Clock
from broker.replication.appending.appends import ACKS_ALL
from broker.replication.appending.delayed_produce import ProduceResponder
from broker.storage.log_types import AppendOrigin
from protocol.errors import ErrorCode
from protocol.kafka.record_batch import TRANSACTIONAL_BIT, build_batch
from protocol.types import TopicPartition

log = logging.getLogger(__name__)

NO_SEQUENCE = -1

Headers = Sequence[tuple[str, bytes | None]]

Appended = Callable[[ErrorCode, int], None]
"""Gets the error and, without one, the offset of the batch."""


class Replicas(Protocol):
    """The part of `Appends` that coordinators use."""

    def append(
        self,
        acks: int,
        timeout_ms: int,
        entries: Sequence[tuple[TopicPartition, memoryview]],
        respond: ProduceResponder,
        *,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> None: ...


def append_batch(
    replicas: Replicas,
    clock: Clock,
    tp: TopicPartition,
    records: Sequence[tuple[bytes, bytes | None]],
    respond: Appended,
    *,
    headers: Iterable[Headers] = itertools.repeat(()),
    timeout_ms: int,
    compression: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
) -> None:
    """Appends one batch of (key, value); a value of None is a tombstone. Calls `respond` with the append's own error, now or later,
    exactly once. `headers`: those of each record. With a producer, the batch is part of its transaction. Its sequence is 0, as in Kafka,
    and means nothing."""
    is_answered = False

    def answer(error: ErrorCode, base: int) -> None:
        nonlocal is_answered
        if not is_answered:
            is_answered = True
            respond(error, base)

    try:
        now_ms = clock.wall_ms()
        batch = build_batch(
            [(key, value, of_record, now_ms) for (key, value), of_record in zip(records, headers, strict=False)],
            compression=compression,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=0 if producer_id >= 0 else NO_SEQUENCE,
            attributes=TRANSACTIONAL_BIT if producer_id >= 0 else 0,
        )
        replicas.append(
            ACKS_ALL,
            timeout_ms,
            [(tp, memoryview(batch))],
            lambda results: answer(ErrorCode(results[0].error), results[0].base_offset),
            origin=AppendOrigin.COORDINATOR,
        )
    except Exception:
        if is_answered:
            raise  # `respond` raised it.
        log.exception("%s: an append failed", tp)
        answer(ErrorCode.UNKNOWN_SERVER_ERROR, -1)
