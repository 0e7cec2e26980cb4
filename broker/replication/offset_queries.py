"""ListOffsets and OffsetForLeaderEpoch on a partition that this broker leads."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from broker.replication.hosted_partitions import HostedPartitions
from broker.replication.partition import Partition
from broker.storage.log import Log
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.fetch_codec import READ_COMMITTED
from protocol.types import TopicPartition

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
NO_MATCH = (-1, -1, -1)
CONSUMER = -1

OFFSETS_BEFORE_MAX = 1_000
"""Limit of offsets for one partition in an answer of ListOffsets v0, which has an offset for each segment."""
SEGMENTS_IN_A_STEP = 100

OffsetAnswer = tuple[int, int, int]
"""(timestamp ms or -1, offset or -1, leader epoch or -1)"""


class OffsetQueries:
    """Each query is about one partition. Raises KafkaError if this broker does not lead it, and for REP-8."""

    def __init__(self, hosted: HostedPartitions) -> None:
        self._hosted = hosted

    def end_of_epoch(
        self, tp: TopicPartition, current_leader_epoch: int, leader_epoch: int, replica_id: int = CONSUMER
    ) -> tuple[int, int]:
        """(epoch, end offset): the largest epoch not above `leader_epoch`, and where it ends in this log. Both -1: there is none."""
        partition = self._hosted.find(tp)
        partition.leader_log(current_leader_epoch)
        _check_replica(partition, replica_id)
        end = partition.end_of_epoch(leader_epoch)
        return end.epoch, end.end_offset

    def listing_offset(
        self, tp: TopicPartition, timestamp: int, current_leader_epoch: int, isolation_level: int, replica_id: int
    ) -> Generator[Callable[[], Any] | None, Any, OffsetAnswer]:
        """Finds the first record with at least this timestamp (ms), or the offset of a special time above. Raises KafkaError.

        Replica id CONSUMER sees records below the high watermark, with isolation level READ_COMMITTED those below the last stable offset.
        Other ids see all records: a follower's, and Kafka's debugging id -2. Only a search by time yields: None to pause, or a
        function for a thread, whose result the caller sends back. After a search, the leadership is checked again.
        """
        partition = self._hosted.find(tp)
        log = partition.leader_log(current_leader_epoch)
        _check_replica(partition, replica_id)
        generation = partition.generation
        if replica_id != CONSUMER:
            limit = log.log_end_offset
        elif isolation_level == READ_COMMITTED:
            limit = partition.last_stable_offset()
        else:
            limit = partition.high_watermark
        # A new leader's HW may be below offsets that consumers have already seen (INV-16).
        is_limit_behind = replica_id == CONSUMER and partition.high_watermark < partition.epoch_start_offset
        if timestamp in (EARLIEST, EARLIEST_LOCAL):
            return -1, log.log_start_offset, _epoch_at(log, log.log_start_offset)
        if timestamp == LATEST:
            if is_limit_behind:
                raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE)
            return -1, limit, partition.leader_epoch
        if timestamp < MAX_TIMESTAMP:
            return NO_MATCH
        if timestamp == MAX_TIMESTAMP:
            found = yield from log.searching_newest()
        else:
            found = yield from log.searching(timestamp, limit)
        if partition.generation != generation:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if found is not None and found[1] < limit:
            return found
        if is_limit_behind:
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE)
        return NO_MATCH

    def offsets_before(
        self, tp: TopicPartition, timestamp: int, count: int, replica_id: int, now_ms: int
    ) -> Generator[None, None, list[int]]:
        """ListOffsets v0: the log end and the starts of the segments that were last written at this time (ms) or before, newest first.

        At most `count` of them; LATEST: all, EARLIEST: the log start. Raises KafkaError. Consumers get the high watermark in the place of
        offsets above it. Pauses between segments.
        """
        partition = self._hosted.find(tp)
        log = partition.leader_log()
        _check_replica(partition, replica_id)
        if timestamp == EARLIEST:
            return [log.log_start_offset][:count]
        is_consumer = replica_id == CONSUMER
        if is_consumer and partition.high_watermark < partition.epoch_start_offset:  # as in `listing_offset`
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE)
        generation = partition.generation
        found: list[int] = []
        end, high_watermark = log.log_end_offset, partition.high_watermark
        segments = list(log.segments)
        held = set(segments)
        if segments[-1].size and (timestamp == LATEST or now_ms <= timestamp):
            found.append(end)
        is_before = timestamp == LATEST
        for number, segment in enumerate(reversed(segments), 1):
            if len(found) >= count:
                break
            if segment not in held:
                continue  # removed in a pause, and perhaps its file
            is_before = is_before or segment.written_ms() <= timestamp
            if is_before:
                found.append(max(segment.base_offset, log.log_start_offset))
            if number % SEGMENTS_IN_A_STEP == 0:
                yield
                held = set(log.segments)
        if partition.generation != generation:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if is_consumer and any(offset > high_watermark for offset in found):
            found = [high_watermark, *(offset for offset in found if offset <= high_watermark)]
        return found[:count]


def _check_replica(partition: Partition, replica_id: int) -> None:
    """A replica id must be that of an assigned follower (BAD-28). Raises KafkaError(NOT_LEADER_OR_FOLLOWER)."""
    if replica_id > CONSUMER and replica_id not in partition.followers:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)


def _epoch_at(log: Log, offset: int) -> int:
    epoch = log.leader_epochs.epoch_for_offset(offset)
    return -1 if epoch is None else epoch
