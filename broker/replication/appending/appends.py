"""Produce: appends batches to the logs of partitions that this broker leads, and answers when they are replicated or flushed (REP-4).

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
from typing import Any, Final

from broker.process.clock import Clock
from broker.process.loop_budget import LoopBudget
from broker.purgatory import WAIT_MAX_S, Purgatory
from broker.replication.appending.delayed_produce import AwaitedAppend, DelayedFlush, DelayedProduce, ProduceResponder
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
from broker.storage.producers.produced_batches import AcceptedBefore, Allowance, PlainBatch
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.produce_codec import ProducePartitionResult
from protocol.kafka.record_checks import TakesLong
from protocol.types import TopicPartition

ACKS_ALL: Final = -1
NO_ACKS: Final = 0
LEADER_ONLY: Final = 1
APPENDS_AT_ONCE_S: Final = 0.005
"""How long one turn of the loop appends batches of one Produce request. Later turns append the rest."""
EXPECTED_ERRORS: Final = frozenset(
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
ACCEPT_ATTEMPTS_MAX: Final = 5
"""How many times a batch is checked if its topic's settings change during each check."""


class Appends:
    """`appended` is called with the partition after each append. Producers with acks=all wait in `waiting`, those with acks=1 in
    `waiting_for_flush` if `flush.messages` asks for a flush. Kafka flushes within the append, whatever time-out the request names: so
    acks=1 has no time limit but the purgatory's. With acks=all the request's time-out includes the flush.
    """

    def __init__(
        self,
        hosted: HostedPartitions,
        clock: Clock,
        is_suspect: Callable[[], bool],
        refused_batches: RefusedBatches,
        waiting: Purgatory[TopicPartition],
        waiting_for_flush: Purgatory[TopicPartition],
        appended: Callable[[TopicPartition], None],
        budget: LoopBudget,
        verification: TransactionVerification,
    ) -> None:
        self._hosted = hosted
        self._clock = clock
        self._is_suspect = is_suspect
        self._refused_batches = refused_batches
        self._waiting = waiting
        self._waiting_for_flush = waiting_for_flush
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

        `respond` is called before this returns, unless an append must wait for its replication (acks is -1) or for a flush.
        """
        _Request(self, acks, timeout_ms, entries, respond, origin=origin).append_at_once()

    def append_in_slices(
        self,
        acks: int,
        timeout_ms: int,
        entries: Sequence[tuple[TopicPartition, memoryview]],
        respond: ProduceResponder,
    ) -> Coroutine[Any, Any, None] | None:
        """Like `append`, for batches of clients. If appending all batches at once would take too long, returns a coroutine for the rest.

        Until the coroutine ends, the caller appends nothing else of the same connection, because that would be out of order.
        """
        return _Request(self, acks, timeout_ms, entries, respond).append_in_slices()

    def append_transactional(
        self,
        transactional_id: str,
        acks: int,
        timeout_ms: int,
        entries: Sequence[tuple[TopicPartition, memoryview]],
        respond: ProduceResponder,
        *,
        adds: bool = False,
    ) -> Coroutine[Any, Any, None] | None:
        """Like `append_in_slices`, for the batches of a transactional producer, which are verified first. `adds`: their partitions are
        added to its transaction."""
        try:
            verification = self.verification.of_batches(entries, adds=adds)
        except KafkaError as error:
            respond([self._refusal(tp, error.code, error.message) for tp, _ in entries])
            return None
        request = _Request(self, acks, timeout_ms, entries, respond, verification=verification)
        if verification is None or not verification.is_needed:
            return request.append_in_slices()
        return request.append_verified(verification, transactional_id)

    def append_plain(
        self,
        tp: TopicPartition,
        batches: Sequence[PlainBatch],
        *,
        needs_all: bool,
        config: TopicConfig,
    ) -> tuple[Sequence[int], int, bool]:
        """Appends batches of clients that are plain for `config` (`produced_batches.plain`) to one partition, with one write.

        Returns the base offsets of those that are appended, the first ones, perhaps none, the log start offset, and whether acks=1 may
        be answered now. The next one needs `append`, which finds out what is wrong. Nothing is awaited: call `when_replicated` or
        `when_flushed`.
        """
        partition = self._hosted.get(tp)
        if partition is None or self._is_suspect():
            return (), -1, True
        try:
            offsets = partition.append_plain(batches, needs_all=needs_all, config=config)
        except KafkaError:
            return (), -1, True
        partition_log = partition.log
        if not offsets or partition_log is None:
            return (), -1, True
        self._appended(tp)
        return offsets, partition_log.log_start_offset, not partition_log.owes_flush

    def when_replicated(
        self, tp: TopicPartition, end_offset: int, timeout_ms: int, respond: Callable[[ProducePartitionResult], None]
    ) -> None:
        """For records below `end_offset` that are in the log already: answers like an append of them with acks=all, without offsets."""
        self._when(ACKS_ALL, tp, end_offset, timeout_ms, respond)

    def when_flushed(
        self, tp: TopicPartition, end_offset: int, respond: Callable[[ProducePartitionResult], None]
    ) -> None:
        """As `when_replicated`, for acks=1."""
        self._when(LEADER_ONLY, tp, end_offset, 0, respond)

    def _when(
        self,
        acks: int,
        tp: TopicPartition,
        end_offset: int,
        timeout_ms: int,
        respond: Callable[[ProducePartitionResult], None],
    ) -> None:
        partition = self._hosted.get(tp)
        if partition is None:
            respond(self._refusal(tp, ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return
        awaited = {tp: AwaitedAppend(0, partition, end_offset, partition.generation)}
        results = [ProducePartitionResult(tp.partition, ErrorCode.NONE)]
        self._answer_or_await(acks, results, awaited, timeout_ms, lambda found: respond(found[0]))

    def _answer_or_await(
        self,
        acks: int,
        results: list[ProducePartitionResult],
        awaited: dict[TopicPartition, AwaitedAppend],
        timeout_ms: int,
        respond: ProduceResponder,
    ) -> None:
        if not awaited:
            respond(results)
        elif acks == ACKS_ALL:
            operation = DelayedProduce(awaited, results, respond, self._is_suspect)
            self._waiting.try_complete_else_watch(operation, tuple(awaited), timeout_ms / 1000)
        else:
            flush = DelayedFlush(awaited, results, respond, self._is_suspect)
            self._waiting_for_flush.try_complete_else_watch(flush, tuple(awaited), WAIT_MAX_S)

    def _refusal(
        self, tp: TopicPartition, error: ErrorCode, message: str = "", records: Sequence[tuple[int, str]] = ()
    ) -> ProducePartitionResult:
        hint = self._hosted.leader_hint(tp) if error is ErrorCode.NOT_LEADER_OR_FOLLOWER else NO_HINT
        return ProducePartitionResult(tp.partition, error, -1, -1, -1, message or None, *hint, record_errors=records)


class _Request:
    """One request: its entries, and what became of those that are done. `awaited`: the appends that must be replicated or flushed."""

    __slots__ = (
        "_acks",
        "_allowance",
        "_appends",
        "_awaited",
        "_entries",
        "_origin",
        "_respond",
        "_results",
        "_timeout_ms",
        "_verification",
    )

    def __init__(
        self,
        appends: Appends,
        acks: int,
        timeout_ms: int,
        entries: Sequence[tuple[TopicPartition, memoryview]],
        respond: ProduceResponder,
        *,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        verification: Verification | None = None,
    ) -> None:
        self._appends = appends
        self._acks = acks
        self._timeout_ms = timeout_ms
        self._entries = entries
        self._respond = respond
        self._origin = origin
        self._verification = verification
        self._results: list[ProducePartitionResult] = []
        self._awaited: dict[TopicPartition, AwaitedAppend] = {}
        self._allowance: Allowance | None = None

    def append_at_once(self) -> None:
        for tp, records in self._entries:
            try:
                self._append(tp, records)
            except TakesLong:
                self._append_long(tp, records)
        self._answer()

    def append_in_slices(self) -> Coroutine[Any, Any, None] | None:
        if len(self._entries) > 1:
            self._allowance = Allowance()
        clock = self._appends._clock
        ends_at = 0.0
        for tp, records in self._entries:
            if self._results:
                now = clock.monotonic()
                ends_at = ends_at or now + APPENDS_AT_ONCE_S
                if now > ends_at:
                    return self._append_rest()
            try:
                self._append(tp, records)
            except TakesLong:
                return self._append_rest()
        self._answer()
        return None

    async def append_verified(self, verification: Verification, transactional_id: str) -> None:
        await verification.ask(transactional_id)
        await self._append_rest()

    async def _append_rest(self) -> None:
        """Appends the entries that have no result yet."""
        self._allowance = self._allowance or Allowance()
        for tp, records in islice(self._entries, len(self._results), None):
            await self._appends._budget.pause()
            try:
                self._append(tp, records)
            except TakesLong:
                await self._append_when_accepted(tp, records, self._allowance)
        self._answer()

    def _append(self, tp: TopicPartition, records: memoryview, accepted: AcceptedBefore | None = None) -> None:
        """Appends the next entry, or refuses it. Raises TakesLong if the batch must be checked in steps."""
        appends = self._appends
        if tp in self._awaited:
            self._refuse(tp, ErrorCode.INVALID_REQUEST, f"{tp} is named twice in the request")
            return
        try:
            if appends._is_suspect():
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            partition = appends._hosted.find(tp)
            if self._verification is not None and (header := transactional_header(records)) is not None:
                self._verification.check(tp, header)
            info = partition.append_as_leader(
                records, acks=self._acks, allowance=self._allowance, accepted=accepted, origin=self._origin
            )
        except KafkaError as error:
            self._fail(tp, records, error)
            return
        appends._appended(tp)
        partition_log = partition.log
        must_flush = partition_log is not None and partition_log.owes_flush
        if self._acks == ACKS_ALL or (must_flush and self._acks != NO_ACKS):
            # A duplicate waits like the batch that it repeats: both are acknowledged only when replicated (BUG-11).
            position = len(self._results)
            self._awaited[tp] = AwaitedAppend(position, partition, info.last_offset + 1, partition.generation)
        self._results.append(
            ProducePartitionResult(
                tp.partition, ErrorCode.NONE, info.first_offset, info.log_append_time_ms, info.log_start_offset
            )
        )

    def _append_long(self, tp: TopicPartition, records: memoryview) -> None:
        """Checks the batch and appends it, without a pause."""
        try:
            partition_log = self._appends._hosted.find(tp).leader_log()
            accepted = produced_batches.at_once(partition_log.accepting(records, Allowance(), self._origin))
        except KafkaError as error:
            self._fail(tp, records, error)
            return
        self._append(tp, records, AcceptedBefore(partition_log.config, accepted))

    async def _append_when_accepted(self, tp: TopicPartition, records: memoryview, allowance: Allowance) -> None:
        """Checks the batch with pauses, then appends it. After the pauses `_append` checks everything else again."""
        for _ in range(ACCEPT_ATTEMPTS_MAX):
            try:
                self._append(tp, records, await self._accept(tp, records, allowance))
            except TakesLong:
                continue  # the topic's settings changed during the check
            except KafkaError as error:
                self._fail(tp, records, error)
            return
        self._refuse(tp, ErrorCode.REQUEST_TIMED_OUT, "the topic's settings changed during each check of the batch")

    async def _accept(self, tp: TopicPartition, records: memoryview, allowance: Allowance) -> AcceptedBefore:
        partition_log = self._appends._hosted.find(tp).leader_log()
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
                    await self._appends._budget.pause()
                else:
                    done = await asyncio.get_running_loop().run_in_executor(UNPACKING, work)

    def _fail(self, tp: TopicPartition, records: memoryview, error: KafkaError) -> None:
        appends = self._appends
        hosted = appends._hosted.get(tp)
        if self._origin is AppendOrigin.CLIENT and (error.code in TRANSIENT_ERRORS or is_passing(error)):
            appends._refused_batches.note(tp, records, appends._clock.monotonic(), is_here=hosted is not None)
        if hosted is not None:
            hosted.stats.failed_produce_requests += error.code not in EXPECTED_ERRORS
        self._refuse(tp, error.code, error.message, error.record_errors)

    def _refuse(
        self, tp: TopicPartition, error: ErrorCode, message: str, record_errors: Sequence[tuple[int, str]] = ()
    ) -> None:
        self._results.append(self._appends._refusal(tp, error, message, record_errors))

    def _answer(self) -> None:
        self._appends._answer_or_await(self._acks, self._results, self._awaited, self._timeout_ms, self._respond)
