"""The log of the groups, `__consumer_offsets`: which partition is a group's, what is appended there, and loading it (CLI-2).

Appends go through the replica manager with acks=all: `respond` comes when the records are below the high watermark, or failed
(INV-23). It comes in any case, since whoever asked has noted that something is under way: an exception is UNKNOWN_SERVER_ERROR.

A load reads from the log start to the log end, as Kafka does, in slices of a millisecond or two: heartbeats and all
other requests go on in between. Whatever may have changed meanwhile is asked of `is_current` after each pause.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from broker.groups.group.messages import CommittedOffset, GroupMetadata
from broker.groups.group.offsets import GroupOffsets
from broker.groups.offsets_topic.image import OffsetsImage
from broker.groups.offsets_topic.records import (
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
)
from broker.process.clock import Clock
from broker.replication.appending.delayed_produce import ProduceResponder
from broker.replication.hosted_partitions import HostedPartitions
from broker.replication.log_dirs.directory_failures import DirectoryFailures
from broker.storage.log import Log, LogDirFailed, ReadResult, WouldBlock, is_passing
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.record_batch import build_batch
from protocol.topic_names import OFFSETS_TOPIC
from protocol.types import TopicPartition

log = logging.getLogger(__name__)

ACKS_ALL = -1
SLICE_S = 0.0015
"""How long a load keeps the loop at a time."""
TURNS_PER_PAUSE = 4
"""Of the loop: so many takes a request from its socket to the answer, and it should not wait for a slice in each."""
READ_BYTES_MAX = 256 * 1024
READ_AGAIN_S = 1.0
"""More than that in one read would take longer than a slice, in memory that was never touched."""
TOMBSTONES_BYTES_MAX = 256 * 1024
"""Of keys in one batch: well below any sensible max.message.bytes."""

Stored = Callable[[ErrorCode], None]
Appended = Callable[[ErrorCode, int], None]
"""Gets the error and, without one, the offset of the batch."""
Sink = Callable[[str, GroupMetadata | None, GroupOffsets], None]
"""Gets each group once: its id, what is stored of it (None: only its offsets are), its offsets."""

_UNAVAILABLE = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}
_TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.INVALID_FETCH_SIZE)
GROUP_ERRORS = {
    **_UNAVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.REBALANCE_IN_PROGRESS,
    **dict.fromkeys(_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ErrorCode.INVALID_REQUEST: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""What a group is told of the error of its record's append (GroupMetadataManager.storeGroup); all others as they are."""
COMMIT_ERRORS = {
    **_UNAVAILABLE,
    **dict.fromkeys(_TOO_LARGE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
    ErrorCode.INVALID_REQUEST: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
}
"""What a committer is told of the same (GroupMetadataManager.maybeConvertOffsetCommitError)."""


class Replicas(Protocol):
    """What is needed of the ReplicaManager."""

    partitions: HostedPartitions
    failures: DirectoryFailures

    def append(
        self,
        acks: int,
        timeout_ms: int,
        entries: Sequence[tuple[TopicPartition, memoryview]],
        respond: ProduceResponder,
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class OffsetsTopicSettings:
    """`offsets.*` of the broker's configuration. `compression`: the codec's number in a batch."""

    commit_timeout_ms: int = 5_000
    load_buffer_bytes: int = 5 * 1024 * 1024
    compression: int = 0


def partition_for(group_id: str, partitions: int) -> int:
    """The partition whose leader coordinates the group, as Kafka's clients and brokers see it: Java's hash of the string."""
    units = group_id.encode("utf-16-be", "surrogatepass")
    number = 0
    for at in range(0, len(units), 2):
        number = (31 * number + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    # Utils.abs: the sign bit's own value becomes 0, every other negative number its opposite.
    if number >= 0x80000000:
        number = 0 if number == 0x80000000 else 0x100000000 - number
    return number % partitions


class OffsetsTopic:
    """The partitions of the topic that this broker leads."""

    def __init__(self, replicas: Replicas, clock: Clock, settings: OffsetsTopicSettings) -> None:
        self._replicas = replicas
        self._clock = clock
        self._settings = settings

    # -- appending ------------------------------------------------------------------------------------------------

    def store_group(self, partition: int, group_id: str, metadata: GroupMetadata, respond: Stored) -> None:
        """`respond` gets the error as the group is to be told of it (GROUP_ERRORS)."""
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
            told = GROUP_ERRORS.get(error, error)
            if told not in (ErrorCode.NONE, *_UNAVAILABLE.values(), ErrorCode.REBALANCE_IN_PROGRESS):
                generation = metadata.generation
                log.error("group %.200s, generation %d could not be stored: %s", group_id, generation, error.name)
            respond(told)

        self.append(partition, [record], appended)

    def commit(
        self, partition: int, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset], respond: Appended
    ) -> None:
        """All in one batch. `respond` gets the error as the committer is to be told of it (COMMIT_ERRORS)."""
        try:
            records = [(encode_offset_key(group_id, tp), encode_offset_value(at)) for tp, at in offsets.items()]
        except KafkaError as error:
            respond(COMMIT_ERRORS.get(error.code, error.code), -1)
            return
        except Exception:
            log.exception("offsets of group %.200s cannot be stored", group_id)
            respond(ErrorCode.UNKNOWN_SERVER_ERROR, -1)
            return
        self.append(partition, records, lambda error, base: respond(COMMIT_ERRORS.get(error, error), base))

    def remove(
        self,
        partition: int,
        group_id: str,
        offsets: Iterable[TopicPartition],
        respond: Appended,
        *,
        with_group: bool = False,
    ) -> None:
        """Tombstones for these offsets, and for the group. They may be more than a batch holds, and then are several, with
        nothing between them.

        `respond` gets the first error, as it is, after all; without one the offset of the first batch (-1: there was none):
        what was committed below that is gone, what lies above came later.
        """
        try:
            keys = [encode_offset_key(group_id, tp) for tp in offsets]
            if with_group:
                keys.append(encode_group_key(group_id))
        except Exception:
            log.exception("the tombstones of group %.200s cannot be made", group_id)
            respond(ErrorCode.UNKNOWN_SERVER_ERROR, -1)
            return
        batches = list(_batches(keys))
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

    def append(self, partition: int, records: Sequence[tuple[bytes, bytes | None]], respond: Appended) -> None:
        """One batch of (key, value; None: a tombstone). `respond` gets the append's own error, now or later, and once."""
        tp = TopicPartition(OFFSETS_TOPIC, partition)
        is_answered = False

        def answer(error: ErrorCode, base: int) -> None:
            nonlocal is_answered
            if not is_answered:
                is_answered = True
                respond(error, base)

        try:
            now_ms = self._clock.wall_ms()
            batch = build_batch(
                [(key, value, (), now_ms) for key, value in records], compression=self._settings.compression
            )
            self._replicas.append(
                ACKS_ALL,
                self._settings.commit_timeout_ms,
                [(tp, memoryview(batch))],
                lambda results: answer(ErrorCode(results[0].error), results[0].base_offset),
            )
        except Exception:
            if is_answered:
                raise  # It is the answer's own exception.
            log.exception("%s: an append failed", tp)
            answer(ErrorCode.UNKNOWN_SERVER_ERROR, -1)

    # -- loading --------------------------------------------------------------------------------------------------

    async def load(self, partition: int, is_current: Callable[[], bool], sink: Sink) -> bool:
        """Reads the partition, then gives each group to `sink`. False: given up, since `is_current` says no any more, or this
        broker does not lead it; then what the sink has got is void.

        Raises KafkaError for a log that cannot be read: who goes on without it would answer offsets of long ago.
        """
        began = self._clock.monotonic()
        tp = TopicPartition(OFFSETS_TOPIC, partition)
        image = OffsetsImage()
        slices = _Slices(self._clock)
        if not await self._read_all(tp, image, slices, is_current):
            return False
        count = offsets_count = 0
        for group_id, metadata, offsets in image.groups():
            sink(group_id, metadata, offsets)
            count += 1
            offsets_count += len(offsets)
            if slices.is_over():
                await slices.pause()
                if not is_current():
                    return False
        _say(tp, image)
        seconds = self._clock.monotonic() - began
        log.info("%s: %d groups and %d offsets loaded in %.3f s", tp, count, offsets_count, seconds)
        return True

    async def _read_all(
        self, tp: TopicPartition, image: OffsetsImage, slices: _Slices, is_current: Callable[[], bool]
    ) -> bool:
        offset = -1
        while True:
            await slices.pause()
            partition_log = self._led(tp) if is_current() else None
            if partition_log is None:
                return False
            offset = max(offset, partition_log.log_start_offset)
            if offset >= partition_log.log_end_offset:
                return True
            result = await self._read(tp, partition_log, offset)
            if result is None or not is_current():
                return False
            for records in result.records:
                for _ in image.steps(records):
                    if slices.is_over():
                        await slices.pause()
                        if not is_current():
                            return False
            if not result.size or image.next_offset <= offset:
                return True
            offset = image.next_offset

    def _led(self, tp: TopicPartition) -> Log | None:
        try:
            return self._replicas.partitions.find(tp).leader_log()
        except KafkaError:
            return None

    async def _read(self, tp: TopicPartition, partition_log: Log, offset: int) -> ReadResult | None:
        """The next batches; None: the disk failed, or the log is not led any more."""
        end = partition_log.log_end_offset
        size = min(self._settings.load_buffer_bytes, READ_BYTES_MAX)
        try:
            while True:
                try:
                    try:
                        return partition_log.read(offset, size, end, True)
                    except WouldBlock:
                        return await partition_log.read_cold(offset, size, end, True)
                except LogDirFailed as error:
                    partition = self._replicas.partitions.get(tp)
                    if partition is not None:
                        self._replicas.failures.disk_failed(partition, error)
                    if not is_passing(error):
                        return None
                await asyncio.sleep(READ_AGAIN_S)
                if self._led(tp) is not partition_log:
                    return None
        except KafkaError as error:
            # The log was closed, or cut, which happens to followers only.
            if error.code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.OFFSET_OUT_OF_RANGE):
                return None
            raise


class _Slices:
    """The loop's time, in small pieces."""

    def __init__(self, clock: Clock) -> None:
        self._monotonic = clock.monotonic
        self._began = clock.monotonic()

    def is_over(self) -> bool:
        return self._monotonic() - self._began >= SLICE_S

    async def pause(self) -> None:
        for _ in range(TURNS_PER_PAUSE):
            await asyncio.sleep(0)
        self._began = self._monotonic()


def _batches(keys: Sequence[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for key in keys:
        if batch and size + len(key) > TOMBSTONES_BYTES_MAX:
            yield batch
            batch, size = [], 0
        batch.append(key)
        size += len(key)
    if batch:
        yield batch


def _say(tp: TopicPartition, image: OffsetsImage) -> None:
    for what, count in image.skipped.items():
        reason = image.first_errors.get(what, "written by another version of the broker")
        log.warning("%s: %d %s are kept and skipped: %s", tp, count, what, reason)
    if image.open_transactions:
        log.warning("%s: offsets of %d unfinished transactions are left out", tp, image.open_transactions)
