"""DeleteRecords (LOG-1): the leader moves its log start and waits until all live replicas have moved theirs.

Followers learn the new log start from the answer to a fetch, and report their own log start with their next fetch. The *low
watermark* is the least log start of all live replicas. When it reaches the offset, no live replica serves the records.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple

from broker.purgatory import CheckResult, DelayedOperation, Purgatory, Timers
from broker.replication.hosted_partitions import HostedPartitions
from broker.replication.partition import Partition
from protocol.errors import ErrorCode, KafkaError
from protocol.types import TopicPartition

NO_OFFSET: Final = -1


class RecordDeletion(NamedTuple):
    """The result for one partition. After an error other than REQUEST_TIMED_OUT, the low watermark is -1."""

    error: ErrorCode
    low_watermark: int = NO_OFFSET


DeletionResponder = Callable[[dict[TopicPartition, RecordDeletion]], None]


class Awaited(NamedTuple):
    """The log start that the live replicas of the partition must reach."""

    partition: Partition
    offset: int


class DelayedDeletion(DelayedOperation[TopicPartition]):
    """Watches the partitions whose replicas have not reached the offset. A partition whose leadership ends gets an error."""

    __slots__ = ("_awaited", "_is_suspect", "_respond", "_results")

    def __init__(
        self,
        awaited: dict[TopicPartition, Awaited],
        results: dict[TopicPartition, RecordDeletion],
        respond: DeletionResponder,
        is_suspect: Callable[[], bool],
    ) -> None:
        super().__init__()
        self._awaited = awaited
        self._results = results
        self._respond = respond
        self._is_suspect = is_suspect

    def try_complete(self, keys: Collection[TopicPartition]) -> CheckResult:
        for key in keys:
            awaited = self._awaited.get(key)
            if awaited is None:
                continue
            result = _progress(awaited)
            if result.error is ErrorCode.NONE and (result.low_watermark < awaited.offset or self._is_suspect()):
                continue
            self._results[key] = result
            del self._awaited[key]
        return CheckResult.WAIT if self._awaited else CheckResult.DONE

    def on_complete(self, *, expired: bool) -> None:
        for tp, awaited in self._awaited.items():
            self._results[tp] = RecordDeletion(ErrorCode.REQUEST_TIMED_OUT, _progress(awaited).low_watermark)
        self._awaited = {}
        self._respond(self._results)


def _progress(awaited: Awaited) -> RecordDeletion:
    try:
        return RecordDeletion(ErrorCode.NONE, awaited.partition.low_watermark())
    except KafkaError as error:
        return RecordDeletion(error.code)


class RecordDeletions:
    """The requests of one broker. `answer_followers` answers their parked fetches, so that they learn the new log start."""

    def __init__(
        self,
        hosted: HostedPartitions,
        timers: Timers,
        is_suspect: Callable[[], bool],
        answer_followers: Callable[[Collection[TopicPartition]], None],
    ) -> None:
        self._hosted = hosted
        self._is_suspect = is_suspect
        self._answer_followers = answer_followers
        self._waiting: Purgatory[TopicPartition] = Purgatory(timers)

    @property
    def purgatory(self) -> Purgatory[TopicPartition]:
        return self._waiting

    def __len__(self) -> int:
        """Requests that wait now."""
        return len(self._waiting)

    def delete(self, offsets: Mapping[TopicPartition, int], timeout_s: float, respond: DeletionResponder) -> None:
        """Deletes the records below each offset (-1: the high watermark). `respond` gets one result for each partition."""
        results: dict[TopicPartition, RecordDeletion] = {}
        awaited: dict[TopicPartition, Awaited] = {}
        for tp, offset in offsets.items():
            try:
                if self._is_suspect():
                    raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
                partition = self._hosted.find(tp)
                awaited[tp] = Awaited(partition, partition.delete_records(offset))
            except KafkaError as error:
                results[tp] = RecordDeletion(error.code)
        operation = DelayedDeletion(awaited, results, respond, self._is_suspect)
        if not self._waiting.try_complete_else_watch(operation, tuple(awaited), timeout_s):
            self._answer_followers(tuple(awaited))

    def check(self, tp: TopicPartition) -> None:
        """A log start moved, or the leadership changed."""
        self._waiting.check(tp)

    def check_all(self) -> None:
        """The live brokers changed, so requests wait for other replicas; or the lease is trusted again."""
        self._waiting.check_all(self._waiting.watched_keys())
