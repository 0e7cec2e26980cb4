"""Produce requests that wait: with acks=all for the high watermark, with acks=1 for a flush (REP-4)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from broker.purgatory import CheckResult, DelayedOperation
from broker.replication.partition import NO_HINT, Partition
from protocol.errors import ErrorCode
from protocol.kafka.produce_codec import ProducePartitionResult
from protocol.types import TopicPartition

ProduceResponder = Callable[[list[ProducePartitionResult]], None]
"""Gets one result for each entry of the request, in its order."""


class AwaitedAppend(NamedTuple):
    """The append of entry `position` of the request. It is acknowledged when the high watermark, or with acks=1 the log's
    `claimable_end`, reaches `required_offset`."""

    position: int
    partition: Partition
    required_offset: int
    generation: int


class DelayedProduce(DelayedOperation[TopicPartition]):
    """Watches the partitions that the request appended to. A partition that fails gets its error; the others still wait.

    While the lease is suspect, no partition is acknowledged, but partitions that fail get their errors (FLT-6).
    """

    __slots__ = ("_awaited", "_is_suspect", "_respond", "_results")

    def __init__(
        self,
        awaited: dict[TopicPartition, AwaitedAppend],
        results: list[ProducePartitionResult],
        respond: ProduceResponder,
        is_suspect: Callable[[], bool],
    ) -> None:
        super().__init__()
        self._awaited = awaited
        self._results = results
        self._respond = respond
        self._is_suspect = is_suspect

    def try_complete(self, keys: Collection[TopicPartition]) -> CheckResult:
        suspect = self._is_suspect()
        is_blocked = False
        for key in keys:
            append = self._awaited.get(key)
            if append is None:
                continue
            error = self._acknowledgement(append)
            if error is None or (suspect and error is ErrorCode.NONE):
                is_blocked = True
                continue
            del self._awaited[key]
            if error is not ErrorCode.NONE:
                self._fail(append, error)
        if not self._awaited:
            return CheckResult.DONE
        # Requests wait in the order of their appends, so a later request waits for a higher offset. Only a duplicate may
        # wait for a lower offset; it is answered together with the requests before it.
        return CheckResult.WAIT_LIKE_ALL_LATER if is_blocked else CheckResult.WAIT

    def _acknowledgement(self, append: AwaitedAppend) -> ErrorCode | None:
        return append.partition.acknowledgement(append.required_offset, append.generation)

    def on_complete(self, *, expired: bool) -> None:
        for append in self._awaited.values():
            self._fail(append, ErrorCode.REQUEST_TIMED_OUT)
        self._awaited = {}
        self._respond(self._results)

    def _fail(self, append: AwaitedAppend, error: ErrorCode) -> None:
        hint = append.partition.hint if error is ErrorCode.NOT_LEADER_OR_FOLLOWER else NO_HINT
        self._results[append.position] = self._results[append.position]._replace(
            error=error,
            base_offset=-1,
            log_append_time_ms=-1,
            log_start_offset=-1,
            leader_id=hint.leader,
            leader_epoch=hint.leader_epoch,
        )


class DelayedFlush(DelayedProduce):
    """With acks=1: waits for the flush that `flush.messages` asks for, and not for the other replicas."""

    __slots__ = ()

    def _acknowledgement(self, append: AwaitedAppend) -> ErrorCode | None:
        return append.partition.leader_acknowledgement(append.required_offset, append.generation)
