"""Produce: batches to the logs of the partitions that are led here, and who is answered when (REP-4).

A batch that holds the loop for too long is looked at with stops, and unpacked in a thread (`storage/produced_batches.py`).
Meanwhile others have their turn, so all is looked at anew before it is appended: the leadership, its epoch, the log, its settings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from itertools import islice
from typing import Any

from broker.process.clock import Clock
from broker.process.loop_budget import LoopBudget
from broker.purgatory import Purgatory
from broker.replication.appending.delayed_produce import AwaitedAppend, DelayedProduce, ProduceResponder
from broker.replication.appending.refused_batches import FOR_NOW, RefusedBatches
from broker.replication.hosted_partitions import HostedPartitions
from broker.replication.partition import Partition
from broker.storage.disk.disk_threads import UNPACKING, UNPACKING_PLACES
from broker.storage.log_types import LogDirFailed, is_passing
from broker.storage.producers import produced_batches
from broker.storage.producers.produced_batches import AcceptedBefore, Allowance
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.produce_codec import ProducePartitionResult
from protocol.kafka.record_checks import TakesLong
from protocol.types import TopicPartition

ACKS_ALL = -1
APPENDS_AT_ONCE_S = 0.005
"""Of the loop's time for the batches of one Produce request; the rest of them comes in later turns."""
ACCEPTED_AGAIN_MAX = 5
"""How often a batch is looked at again because its topic's settings have changed meanwhile."""


class Appends:
    """`appended` is told of each partition that was appended to; `waiting` is where producers wait for replication."""

    def __init__(
        self,
        hosted: HostedPartitions,
        clock: Clock,
        is_suspect: Callable[[], bool],
        remembered: RefusedBatches,
        waiting: Purgatory[TopicPartition],
        appended: Callable[[TopicPartition], None],
        disk_failed: Callable[[Partition, LogDirFailed], None],
        budget: LoopBudget,
    ) -> None:
        self._hosted = hosted
        self._clock = clock
        self._is_suspect = is_suspect
        self._remembered = remembered
        self._waiting = waiting
        self._appended = appended
        self._disk_failed = disk_failed
        self._budget = budget

    def append(
        self,
        acks: int,
        timeout_ms: int,
        entries: Sequence[tuple[TopicPartition, memoryview]],
        respond: ProduceResponder,
    ) -> None:
        """Appends to each partition; `respond` gets the results in the order of `entries`.

        It is called before this returns, unless acks is -1 and some append has to wait for its replication.
        """
        results: list[ProducePartitionResult] = []
        awaited: dict[TopicPartition, AwaitedAppend] = {}
        for tp, records in entries:
            try:
                results.append(self._append_one(len(results), tp, records, acks, awaited))
            except TakesLong:
                results.append(self._append_long(len(results), tp, records, acks, awaited))
        self._answer_or_await(results, awaited, timeout_ms, respond)

    def append_in_slices(
        self,
        acks: int,
        timeout_ms: int,
        entries: Sequence[tuple[TopicPartition, memoryview]],
        respond: ProduceResponder,
    ) -> Coroutine[Any, Any, None] | None:
        """As `append`, for what clients send. A coroutine goes on with what holds the loop for too long; until its end nothing
        else of the connection is to be appended, or it would come before."""
        results: list[ProducePartitionResult] = []
        awaited: dict[TopicPartition, AwaitedAppend] = {}
        allowance = Allowance() if len(entries) > 1 else None
        ends_at = 0.0
        for tp, records in entries:
            if results:
                now = self._clock.monotonic()
                ends_at = ends_at or now + APPENDS_AT_ONCE_S
                if now > ends_at:
                    return self._append_rest(acks, timeout_ms, entries, results, awaited, respond, allowance)
            try:
                results.append(self._append_one(len(results), tp, records, acks, awaited, allowance))
            except TakesLong:
                return self._append_rest(acks, timeout_ms, entries, results, awaited, respond, allowance)
        self._answer_or_await(results, awaited, timeout_ms, respond)
        return None

    async def _append_rest(
        self,
        acks: int,
        timeout_ms: int,
        entries: Sequence[tuple[TopicPartition, memoryview]],
        results: list[ProducePartitionResult],
        awaited: dict[TopicPartition, AwaitedAppend],
        respond: ProduceResponder,
        allowance: Allowance | None,
    ) -> None:
        """Those of which there are no results yet."""
        allowance = allowance or Allowance()
        for tp, records in islice(entries, len(results), None):
            await self._budget.pause()
            try:
                result = self._append_one(len(results), tp, records, acks, awaited, allowance)
            except TakesLong:
                result = await self._append_when_accepted(len(results), tp, records, acks, awaited, allowance)
            results.append(result)
        self._answer_or_await(results, awaited, timeout_ms, respond)

    async def _append_when_accepted(
        self,
        index: int,
        tp: TopicPartition,
        records: memoryview,
        acks: int,
        awaited: dict[TopicPartition, AwaitedAppend],
        allowance: Allowance,
    ) -> ProducePartitionResult:
        """Who leads, in which epoch, and the log itself are looked at anew after each await; so are the topic's settings."""
        for _ in range(ACCEPTED_AGAIN_MAX):
            try:
                accepted = await self._accept(tp, records, allowance)
                return self._append_one(index, tp, records, acks, awaited, allowance, accepted)
            except TakesLong:
                continue  # the topic's settings changed meanwhile
            except KafkaError as error:
                return self._failed(tp, records, error)
        return self._refused(tp, ErrorCode.REQUEST_TIMED_OUT, "the topic's settings change all the time")

    async def _accept(self, tp: TopicPartition, records: memoryview, allowance: Allowance) -> AcceptedBefore:
        partition_log = self._hosted.find(tp).leader_log()
        config = partition_log.config
        async with UNPACKING_PLACES.place():
            steps = partition_log.accepting(records, allowance)
            done: Any = None
            while True:
                try:
                    work = steps.send(done)
                except StopIteration as end:
                    return AcceptedBefore(config, end.value)
                done = None
                if work is None:
                    await self._budget.pause()
                else:
                    done = await asyncio.get_running_loop().run_in_executor(UNPACKING, work)

    def _append_long(
        self,
        index: int,
        tp: TopicPartition,
        records: memoryview,
        acks: int,
        awaited: dict[TopicPartition, AwaitedAppend],
    ) -> ProducePartitionResult:
        """All at once."""
        try:
            partition_log = self._hosted.find(tp).leader_log()
            accepted = produced_batches.at_once(partition_log.accepting(records, Allowance()))
        except KafkaError as error:
            return self._failed(tp, records, error)
        return self._append_one(
            index, tp, records, acks, awaited, accepted=AcceptedBefore(partition_log.config, accepted)
        )

    def _answer_or_await(
        self,
        results: list[ProducePartitionResult],
        awaited: dict[TopicPartition, AwaitedAppend],
        timeout_ms: int,
        respond: ProduceResponder,
    ) -> None:
        if not awaited:
            respond(results)
            return
        operation = DelayedProduce(awaited, results, respond, self._is_suspect)
        self._waiting.try_complete_else_watch(operation, tuple(awaited), timeout_ms / 1000)

    def _append_one(
        self,
        index: int,
        tp: TopicPartition,
        records: memoryview,
        acks: int,
        awaited: dict[TopicPartition, AwaitedAppend],
        allowance: Allowance | None = None,
        accepted: AcceptedBefore | None = None,
    ) -> ProducePartitionResult:
        """Raises TakesLong."""
        if tp in awaited:
            return self._refused(tp, ErrorCode.INVALID_REQUEST, f"{tp} twice in one request")
        if self._is_suspect():
            self._remembered.note(tp, records, self._clock.monotonic())
            return self._refused(tp, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        try:
            partition = self._hosted.find(tp)
            info = partition.append_as_leader(records, acks=acks, allowance=allowance, accepted=accepted)
        except KafkaError as error:
            return self._failed(tp, records, error)
        except LogDirFailed as error:
            if is_passing(error):
                self._remembered.note(tp, records, self._clock.monotonic())
            self._disk_failed(self._hosted.find(tp), error)
            return self._refused(tp, ErrorCode.KAFKA_STORAGE_ERROR)
        self._appended(tp)
        if acks == ACKS_ALL:
            # A duplicate waits like the batch that it repeats: its answer promises the same (BUG-11).
            awaited[tp] = AwaitedAppend(index, partition, info.last_offset + 1, partition.generation)
        return ProducePartitionResult(
            tp.partition, ErrorCode.NONE, info.first_offset, info.log_append_time_ms, info.log_start_offset
        )

    def _failed(self, tp: TopicPartition, records: memoryview, error: KafkaError) -> ProducePartitionResult:
        if error.code in FOR_NOW:
            self._remembered.note(tp, records, self._clock.monotonic())
        return self._refused(tp, error.code, error.message, error.record_errors)

    def _refused(
        self, tp: TopicPartition, error: ErrorCode, message: str = "", records: Sequence[tuple[int, str]] = ()
    ) -> ProducePartitionResult:
        hint = self._hosted.leader_hint(tp)
        return ProducePartitionResult(tp.partition, error, -1, -1, -1, message or None, *hint, record_errors=records)
