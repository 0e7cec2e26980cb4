"""Appends to `__consumer_offsets`: groups, commits, tombstones (CLI-2, INV-23).

`respond` is always called, when the records are below the high watermark or failed (`broker.coordination.appending`).
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from broker.coordination.appending import Appended, Headers, Replicas, append_batch
from broker.groups.group.messages import CommittedOffset, GroupMetadata, TransactionalProducer
from broker.groups.offsets_topic.records import (
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
    topic_id_headers,
)
from broker.process.clock import Clock
from protocol.errors import ErrorCode, KafkaError
from protocol.topic_names import OFFSETS_TOPIC
from protocol.types import TopicPartition

log = logging.getLogger(__name__)

BATCH_BYTES_MAX = 256 * 1024
"""Maximum bytes in a batch of several tombstones, or in a part of a large consumer group: well below any sensible max.message.bytes."""
REPLICATED_WITHIN_MS = 300_000
"""How long changes of a consumer group may wait for their replication. Their answers wait shorter (`consumer_groups`)."""

Stored = Callable[[ErrorCode], None]
Record = TypeVar("Record")

_UNAVAILABLE = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}
TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.INVALID_FETCH_SIZE)
GROUP_ERRORS = {
    **_UNAVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.REBALANCE_IN_PROGRESS,
    **dict.fromkeys(TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ErrorCode.INVALID_REQUEST: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""The error of an append -> the error for the group (GroupMetadataManager.storeGroup). Other errors stay as they are."""
COMMIT_ERRORS = {
    **_UNAVAILABLE,
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    **dict.fromkeys(TOO_LARGE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
    ErrorCode.INVALID_REQUEST: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
}
"""The error of an append -> the error for the committer (GroupMetadataManager.maybeConvertOffsetCommitError)."""


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """`offsets.*` of the broker's configuration. `compression`: the codec's number in a batch."""

    commit_timeout_ms: int = 5_000
    compression: int = 0


class OffsetsWriter:
    """Appends to the partitions that this broker leads."""

    def __init__(self, replicas: Replicas, clock: Clock, settings: WriterSettings) -> None:
        self._replicas = replicas
        self._clock = clock
        self._settings = settings

    def store_group(self, partition: int, group_id: str, metadata: GroupMetadata, respond: Stored) -> None:
        """`respond` gets the error for the group (GROUP_ERRORS)."""
        try:
            record = (encode_group_key(group_id), encode_group_value(metadata))
        except KafkaError as error:
            log.error("group %.200s, generation %d cannot be stored: %s", group_id, metadata.generation, error)
            respond(GROUP_ERRORS.get(error.code, error.code))
            return
        except Exception:
            log.exception("group %.200s, generation %d cannot be stored", group_id, metadata.generation)
            respond(ErrorCode.UNKNOWN_SERVER_ERROR)
            return

        def appended(error: ErrorCode, _: int) -> None:
            group_error = GROUP_ERRORS.get(error, error)
            if group_error not in (ErrorCode.NONE, *_UNAVAILABLE.values(), ErrorCode.REBALANCE_IN_PROGRESS):
                generation = metadata.generation
                log.error("group %.200s, generation %d could not be stored: %s", group_id, generation, error.name)
            respond(group_error)

        self.append(partition, [record], appended)

    def commit(
        self,
        partition: int,
        group_id: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        respond: Appended,
        *,
        producer: TransactionalProducer | None = None,
    ) -> None:
        """Appends all offsets in one batch, in the transaction of `producer`, if any. `respond` gets the error for the committer
        (COMMIT_ERRORS)."""
        try:
            records = [(encode_offset_key(group_id, tp), encode_offset_value(at)) for tp, at in offsets.items()]
        except KafkaError as error:
            respond(COMMIT_ERRORS.get(error.code, error.code), -1)
            return
        except Exception:
            log.exception("offsets of group %.200s cannot be stored", group_id)
            respond(ErrorCode.UNKNOWN_SERVER_ERROR, -1)
            return
        headers = [topic_id_headers(at.topic_id) for at in offsets.values()]
        self.append(
            partition, records, lambda error, base: respond(COMMIT_ERRORS.get(error, error), base), producer, headers
        )

    def remove(
        self,
        partition: int,
        group_id: str,
        offsets: Iterable[TopicPartition],
        respond: Appended,
        *,
        group_keys: Iterable[bytes] = (),
    ) -> None:
        """Appends tombstones for these offsets and the records of the group itself: in one batch, or in several without a pause.

        `respond` is called after all batches. It gets the append's own error, of the first batch that failed, or NONE and the offset
        of the first batch (-1: there was nothing to remove). Commits below that offset are removed; commits above it are newer.
        """
        try:
            keys = [*(encode_offset_key(group_id, tp) for tp in offsets), *group_keys]
        except Exception:
            log.exception("the tombstones of group %.200s cannot be made", group_id)
            respond(ErrorCode.UNKNOWN_SERVER_ERROR, -1)
            return
        batches = list(_batches(keys, len))
        errors: list[ErrorCode] = []
        bases: list[int] = []

        def appended(error: ErrorCode, base: int) -> None:
            errors.append(error)
            bases.append(base)
            if len(errors) == len(batches):
                failure = next((error for error in errors if error is not ErrorCode.NONE), ErrorCode.NONE)
                respond(failure, min(bases))

        if not batches:
            respond(ErrorCode.NONE, -1)
        for batch in batches:
            self.append(partition, [(key, None) for key in batch], appended)

    def store_changes(
        self,
        partition: int,
        records: Sequence[tuple[bytes, bytes | None]],
        respond: Stored,
        *,
        may_split: bool = False,
    ) -> ErrorCode:
        """Appends what has changed in a consumer group of the new kind, in one batch, so that a part of it is never there without the rest.
        Of records with the same key the last one counts. `may_split`: a large change may take several batches, without a pause.

        NONE: all of it is in the log, and `respond` is called once, when it is below the high watermark or this broker does not lead the
        partition any more: perhaps before this returns. Another error: nothing follows; REQUEST_TIMED_OUT: a part is in the log; one of
        TOO_LARGE: it needs a larger batch than the topic takes.
        """
        last = dict(records)
        batches = [list(last.items())]
        if may_split:
            large = [
                record for record in last.items() if _size(record) > BATCH_BYTES_MAX
            ]  # the first: the log may refuse them
            small = (record for record in last.items() if _size(record) <= BATCH_BYTES_MAX)
            batches = [*([record] for record in large), *_batches(small, _size)]
        waiting = len(batches)
        refused = ErrorCode.NONE
        is_asking = True

        def appended(error: ErrorCode, _: int) -> None:
            nonlocal waiting, refused
            if is_asking and error is not ErrorCode.NONE:
                refused = error
                return
            waiting -= 1
            if error is not ErrorCode.NONE and waiting >= 0:
                waiting = -1
                respond(GROUP_ERRORS.get(error, error))
            elif not waiting:
                respond(ErrorCode.NONE)

        for number, batch in enumerate(batches):
            self.append(partition, batch, appended, timeout_ms=REPLICATED_WITHIN_MS)
            if refused is not ErrorCode.NONE:
                waiting = -1
                log.error("%d records of a consumer group could not be stored: %s", len(records), refused.name)
                if number:
                    return ErrorCode.REQUEST_TIMED_OUT
                return refused if refused in TOO_LARGE else GROUP_ERRORS.get(refused, refused)
        is_asking = False
        return ErrorCode.NONE

    def append(
        self,
        partition: int,
        records: Sequence[tuple[bytes, bytes | None]],
        respond: Appended,
        producer: TransactionalProducer | None = None,
        headers: Iterable[Headers] = itertools.repeat(()),
        *,
        timeout_ms: int | None = None,
    ) -> None:
        """Appends one batch of (key, value), with their headers; a value of None is a tombstone. Calls `respond` with the append's own
        error, now or later, exactly once. The batch of a transaction has its producer's id and epoch."""
        append_batch(
            self._replicas,
            self._clock,
            TopicPartition(OFFSETS_TOPIC, partition),
            records,
            respond,
            headers=headers,
            timeout_ms=self._settings.commit_timeout_ms if timeout_ms is None else timeout_ms,
            compression=self._settings.compression,
            producer_id=producer.producer_id if producer is not None else -1,
            producer_epoch=producer.producer_epoch if producer is not None else -1,
        )


def _size(record: tuple[bytes, bytes | None]) -> int:
    return len(record[0]) + len(record[1] or b"")


def _batches(records: Iterable[Record], size_of: Callable[[Record], int]) -> Iterator[list[Record]]:
    batch: list[Record] = []
    size = 0
    for record in records:
        record_size = size_of(record)
        if batch and size + record_size > BATCH_BYTES_MAX:
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += record_size
    if batch:
        yield batch
