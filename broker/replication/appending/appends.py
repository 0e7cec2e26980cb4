"""Produce: appends batches to the logs of partitions that this broker leads, and answers when they are replicated (REP-4).

There are two ways, because most requests need neither a pause nor a thread:

* `append`, and the start of `append_in_slices`, are plain functions. They append almost every batch, within microseconds.
  `append` is for the group coordinator, whose batches are small. It appends even a long batch at once.
* `append_in_slices` returns a coroutine for the rest of a request that would hold the loop for too long. It pauses between
  partitions; `storage/producers/produced_batches.py` checks a long batch in steps and unpacks it in a thread.

If all requests used a coroutine, each would need a task: 4 us, and one more turn of the loop before the answer.
During a pause everything may change: the leadership, its epoch, the log, its settings. All are checked again before the append.
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
from broker.replication.appending.refused_batches import TRANSIENT_ERRORS, RefusedBatches
from broker.replication.appending.transaction_verification import (
    TransactionVerification,
    Verification,
    transactional_header,
)
from broker.replication.hosted_partitions import HostedPartitions
from broker.replication.partition import NO_HINT
from broker.settings.config import TopicConfig
from broker.storage.disk.disk_threads import UNPACKING, UNPACKING_PLACES
from broker.storage.failures import is_passing
from broker.storage.log_types import AppendOrigin
from broker.storage.producers import produced_batches
from broker.storage.producers.produced_batches import AcceptedBefore, Allowance
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.produce_codec import ProducePartitionResult
from protocol.kafka.record_batch import BatchHeader
from protocol.kafka.record_checks import TakesLong
from protocol.types import TopicPartition

ACKS_ALL = -1
APPENDS_AT_ONCE_S = 0.005
"""How long one turn of the loop appends batches of one Produce request. Later turns append the rest."""
EXPECTED_ERRORS = frozenset(
    (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    )
)
"""Errors that are not counted as failed produce requests (Kafka's `ReplicaManager.appendToLocalLog`)."""
ACCEPT_ATTEMPTS_MAX = 5
"""How many times a batch is checked if its topic's settings change during each check."""


class Appends:
    """`appended` is called with the partition after each append. Producers with acks=all wait in `waiting`."""

    def __init__(
        self,
        hosted: HostedPartitions,
        clock: Clock,
        is_suspect: Callable[[], bool],
        refused_batches: RefusedBatches,
        waiting: Purgatory[TopicPartition],
        appended: Callable[[TopicPartition], None],
        budget: LoopBudget,
        verification: TransactionVerification,
    ) -> None:
        self._hosted = hosted
        self._clock = clock
        self._is_suspect = is_suspect
        self._refused_batches = refused_batches
        self._waiting = waiting
        self._appended = appended
        self._budget = budget
        self.verification = verification

    def append(
        self,
        acks: int,
        timeout_ms: int,
        entries: Sequence[tuple[TopicPartition, memoryview]],
        respond: ProduceResponder,
        *,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> None:
        """Appends to each partition; `respond` gets the results in the order of `entries`.

        `origin` is COORDINATOR for markers, and for offsets in a transaction. These are not verified here: the group coordinator has
        done so (`broker/groups/transactions.py`).

        `respond` is called before this returns, unless acks is -1 and an append must wait for its replication.
        """
        results: list[ProducePartitionResult] = []
        awaited: dict[TopicPartition, AwaitedAppend] = {}
        for tp, records in entries:
            try:
                result = self._append_one(len(results), tp, records, acks, awaited, origin=origin)
            except TakesLong:
                result = self._append_long(len(results), tp, records, acks, awaited, origin)
            results.append(result)
        self._answer_or_await(results, awaited, timeout_ms, respond)

    def append_in_slices(
        self,
        acks: int,
        timeout_ms: int,
        entries: Sequence[tuple[TopicPartition, memoryview]],
        respond: ProduceResponder,
        verification: Verification | None = None,
    ) -> Coroutine[Any, Any, None] | None:
        """Like `append`, for batches of clients. If appending all batches at once would take too long, returns a coroutine for the rest.

        Until the coroutine ends, the caller appends nothing else of the same connection, because that would be out of order.
        """
        results: list[ProducePartitionResult] = []
        awaited: dict[TopicPartition, AwaitedAppend] = {}
        allowance = Allowance() if len(entries) > 1 else None
        ends_at = 0.0
        for tp, records in entries:
            if results:
                now = self._clock.monotonic()
                ends_at = ends_at or now + APPENDS_AT_ONCE_S
                if now > ends_at:
                    return self._append_rest(
                        acks, timeout_ms, entries, results, awaited, respond, allowance, verification
                    )
            try:
                results.append(
                    self._append_one(len(results), tp, records, acks, awaited, allowance, verification=verification)
                )
            except TakesLong:
                return self._append_rest(acks, timeout_ms, entries, results, awaited, respond, allowance, verification)
        self._answer_or_await(results, awaited, timeout_ms, respond)
        return None

    def append_plain(
        self,
        tp: TopicPartition,
        batches: Sequence[tuple[memoryview, BatchHeader]],
        *,
        needs_all: bool,
        config: TopicConfig,
    ) -> tuple[Sequence[int], int]:
        """Appends batches of clients that are plain for `config` (`produced_batches.plain`) to one partition, with one write.

        Returns the base offsets of those that are appended, the first ones, perhaps none, and the log start offset. The next one needs
        `append`, which finds out what is wrong. Their replication is not awaited: call `when_replicated`.
        """
        partition = self._hosted.get(tp)
        if partition is None or self._is_suspect():
            return (), -1
        try:
            offsets = partition.append_plain(batches, needs_all=needs_all, config=config)
        except KafkaError:
            return (), -1
        if not offsets:
            return (), -1
        self._appended(tp)
        return offsets, partition.log.log_start_offset if partition.log is not None else -1

    def append_transactional(
        self,
        transactional_id: str,
        acks: int,
        timeout_ms: int,
        entries: Sequence[tuple[TopicPartition, memoryview]],
        respond: ProduceResponder,
    ) -> Coroutine[Any, Any, None] | None:
        """Like `append_in_slices`, for the batches of a transactional producer, which are verified first."""
        try:
            verification = self.verification.of_batches(entries)
        except KafkaError as error:
            respond([self._refused(tp, error.code, error.message) for tp, _ in entries])
            return None
        if verification is None or not verification.is_needed:
            return self.append_in_slices(acks, timeout_ms, entries, respond, verification)
        return self._append_verified(transactional_id, acks, timeout_ms, entries, respond, verification)

    async def _append_verified(
        self,
        transactional_id: str,
        acks: int,
        timeout_ms: int,
        entries: Sequence[tuple[TopicPartition, memoryview]],
        respond: ProduceResponder,
        verification: Verification,
    ) -> None:
        await verification.ask(transactional_id)
        await self._append_rest(acks, timeout_ms, entries, [], {}, respond, None, verification)

    def when_replicated(
        self, tp: TopicPartition, end_offset: int, timeout_ms: int, respond: Callable[[ProducePartitionResult], None]
    ) -> None:
        """For records below `end_offset` that are in the log already: answers like an append of them with acks=all, without offsets."""
        partition = self._hosted.get(tp)
        if partition is None:
            respond(self._refused(tp, ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return
        awaited = {tp: AwaitedAppend(0, partition, end_offset, partition.generation)}
        results = [ProducePartitionResult(tp.partition, ErrorCode.NONE)]
        self._answer_or_await(results, awaited, timeout_ms, lambda found: respond(found[0]))

    async def _append_rest(
        self,
        acks: int,
        timeout_ms: int,
        entries: Sequence[tuple[TopicPartition, memoryview]],
        results: list[ProducePartitionResult],
        awaited: dict[TopicPartition, AwaitedAppend],
        respond: ProduceResponder,
        allowance: Allowance | None,
        verification: Verification | None = None,
    ) -> None:
        """Appends the entries that have no result yet."""
        allowance = allowance or Allowance()
        for tp, records in islice(entries, len(results), None):
            await self._budget.pause()
            try:
                result = self._append_one(
                    len(results), tp, records, acks, awaited, allowance, verification=verification
                )
            except TakesLong:
                result = await self._append_when_accepted(
                    len(results), tp, records, acks, awaited, allowance, verification
                )
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
        verification: Verification | None,
    ) -> ProducePartitionResult:
        """Checks the batch with pauses, then appends it. After the pauses `_append_one` checks everything else again."""
        for _ in range(ACCEPT_ATTEMPTS_MAX):
            try:
                accepted = await self._accept(tp, records, allowance)
                return self._append_one(
                    index, tp, records, acks, awaited, allowance, accepted, verification=verification
                )
            except TakesLong:
                continue  # the topic's settings changed during the check
            except KafkaError as error:
                return self._failed(tp, records, error)
        return self._refused(
            tp, ErrorCode.REQUEST_TIMED_OUT, "the topic's settings changed during each check of the batch"
        )

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
        origin: AppendOrigin,
    ) -> ProducePartitionResult:
        """Checks the batch and appends it, without a pause."""
        try:
            partition_log = self._hosted.find(tp).leader_log()
            accepted = produced_batches.at_once(partition_log.accepting(records, Allowance(), origin))
        except KafkaError as error:
            return self._failed(tp, records, error, origin)
        return self._append_one(
            index,
            tp,
            records,
            acks,
            awaited,
            accepted=AcceptedBefore(partition_log.config, accepted),
            origin=origin,
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
        origin: AppendOrigin = AppendOrigin.CLIENT,
        verification: Verification | None = None,
    ) -> ProducePartitionResult:
        """Appends one batch, or makes the result of its refusal. Raises TakesLong if the batch must be checked in steps."""
        if tp in awaited:
            return self._refused(tp, ErrorCode.INVALID_REQUEST, f"{tp} is named twice in the request")
        try:
            if self._is_suspect():
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            partition = self._hosted.find(tp)
            if verification is not None and transactional_header(records) is not None:
                verification.check(tp)
            info = partition.append_as_leader(records, acks=acks, allowance=allowance, accepted=accepted, origin=origin)
        except KafkaError as error:
            return self._failed(tp, records, error, origin)
        self._appended(tp)
        if acks == ACKS_ALL:
            # A duplicate waits like the batch that it repeats: both are acknowledged only when replicated (BUG-11).
            awaited[tp] = AwaitedAppend(index, partition, info.last_offset + 1, partition.generation)
        return ProducePartitionResult(
            tp.partition, ErrorCode.NONE, info.first_offset, info.log_append_time_ms, info.log_start_offset
        )

    def _failed(
        self, tp: TopicPartition, records: memoryview, error: KafkaError, origin: AppendOrigin = AppendOrigin.CLIENT
    ) -> ProducePartitionResult:
        hosted = self._hosted.get(tp)
        if origin is AppendOrigin.CLIENT and (error.code in TRANSIENT_ERRORS or is_passing(error)):
            self._refused_batches.note(tp, records, self._clock.monotonic(), is_here=hosted is not None)
        if hosted is not None:
            hosted.stats.failed_produce_requests += error.code not in EXPECTED_ERRORS
        return self._refused(tp, error.code, error.message, error.record_errors)

    def _refused(
        self, tp: TopicPartition, error: ErrorCode, message: str = "", records: Sequence[tuple[int, str]] = ()
    ) -> ProducePartitionResult:
        hint = self._hosted.leader_hint(tp) if error is ErrorCode.NOT_LEADER_OR_FOLLOWER else NO_HINT
        return ProducePartitionResult(tp.partition, error, -1, -1, -1, message or None, *hint, record_errors=records)
