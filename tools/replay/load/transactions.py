"""A replayed transactional producer: it sends the batches of the trace in the transactions of the trace (KIP-98).

Batches and ends leave in the order of the trace. The first batch of a transaction in a partition waits until the partition is part of the
transaction. An end waits until all batches of its transaction are answered, and later batches wait for the end, as for a real producer,
which flushes before it commits. After an error that passes, the coordinator is found and asked again.

Offsets are committed for the replay's group. What was recorded means nothing here, and the group's members may be in other tasks. So the
newest offset that the group has committed in this replay is committed again; if there is none, the one at which the replay begins.

After any other error of a batch or of the coordinator, the transaction cannot be committed: its other batches fail, its end aborts it and
is an operation that failed if it is a commit, and the producer gets a new epoch. A transaction that has no end in the trace is aborted when
the replay ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from protocol.errors import ErrorCode, error_name
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.framing import MalformedRequest
from protocol.types import TopicPartition
from tools.replay.load.background import Background
from tools.replay.load.operations import Operation
from tools.replay.load.producing import INIT_PRODUCER_ID_VERSION, NOT_ANSWERED, Identity, ProducingClient, is_passing
from tools.replay.traces.schema import COMMIT, ENDS, PRODUCE
from tools.wire import frames
from tools.wire.cluster_view import ClusterView, Unreachable
from tools.wire.connection import BrokerConnection
from tools.wire.group_member import (
    GROUP_KEY,
    TRANSACTION_KEY,
    GroupError,
    GroupMember,
    by_topic,
    check,
    find_coordinator,
)

VERSIONS = {
    ApiKey.INIT_PRODUCER_ID: INIT_PRODUCER_ID_VERSION,
    ApiKey.ADD_PARTITIONS_TO_TXN: 1,
    ApiKey.ADD_OFFSETS_TO_TXN: 1,
    ApiKey.TXN_OFFSET_COMMIT: 2,
    ApiKey.END_TXN: 1,
}
"""Those that both Kafka 2.1 and Kafka 4 serve."""
TIMEOUT_MS = 60_000
"""Of a transaction, Kafka's default. Then the coordinator aborts it, and refuses the producer."""
ANSWER_TIMEOUT_S = 5.0
RETRY_S = 0.02
"""Pause before the coordinator is asked again. As Kafka's clients, which wait so for the markers of the transaction before."""
ABORT_TIMEOUT_NS = 5_000_000_000
"""Limit of the time for which the end of the replay waits for an abort."""


class TransactionFailed(Unreachable):
    """The coordinator refuses, or does not answer in time. The text is the error of the operations."""


class TransactionalProducer:
    """One transactional id of one client. The arguments are those of `ProducingClient`, which sends the batches."""

    def __init__(
        self,
        name: str,
        number: int,
        run: int,
        view: ClusterView,
        background: Background,
        now_ns: Callable[[], int],
        timeout_ns: int,
        done: Callable[[Operation], None],
        transactional_id: str,
        start_offsets: Mapping[str, Sequence[int]],
    ) -> None:
        """`start_offsets`: topic -> where the replay begins in each partition."""
        self.number = number
        self._run_name = f"{run:08x}"
        self._start_offsets = start_offsets
        self._name = name
        self._id = transactional_id
        self._view = view
        self._background = background
        self._now = now_ns
        self._timeout_ns = timeout_ns
        self._done = done
        self._producer = ProducingClient(
            name,
            number,
            run,
            view,
            background,
            now_ns,
            timeout_ns,
            self._batch_done,
            transactional_id,
            self._identified,
        )
        self._coordinators: dict[str, int] = {}
        """Of the transactional id (""), and of groups."""
        self._identity: Identity | None = None
        self._identifying = asyncio.Lock()
        self._waiting: deque[Operation] = deque()
        """What is not sent, in order. The first ones may be offsets or an end that are being sent."""
        self._work: asyncio.Task[None] | None = None
        self._ends = 0
        """How many ends were added."""
        self._partitions: set[TopicPartition] = set()
        self._groups: set[str] = set()
        """Of the transaction that is open."""
        self._unanswered = 0
        self._all_answered = asyncio.Event()
        self._committed: dict[TopicPartition, int] = {}
        """What the group had committed in this replay when it was asked last."""
        self._error: str | None = None
        """Why the transaction that is open cannot be committed."""

    def connect_ahead(self, partition: TopicPartition, acks: int, limit: asyncio.Semaphore) -> list[asyncio.Task[None]]:
        """As `ProducingClient.connect_ahead`."""
        return self._producer.connect_ahead(partition, acks, limit)

    def add(self, operation: Operation) -> None:
        """Queues a batch, offsets, or the end of a transaction. Call `flush` afterwards."""
        operation.transaction = self._ends
        self._ends += operation.op in ENDS
        if self._waiting or operation.op != PRODUCE or operation.topic_partition not in self._partitions:
            self._waiting.append(operation)
        else:
            self._send(operation)

    def flush(self) -> None:
        """Sends what was added."""
        self._producer.flush()
        if self._waiting and self._work is None:
            self._work = self._background.start(self._send_waiting())

    def expire(self) -> None:
        """As `ProducingClient.expire`. What waits here is limited by the time for which the coordinator is asked."""
        self._producer.expire()

    async def abort(self) -> None:
        """Aborts what the trace has left open. If that fails, the cluster does it after TIMEOUT_MS."""
        if (self._partitions or self._groups) and self._work is None:
            with contextlib.suppress(TransactionFailed):
                await self._ask(ApiKey.END_TXN, {"committed": False}, self._now() + ABORT_TIMEOUT_NS)

    def give_up(self) -> None:
        """As `ProducingClient.give_up`."""
        self._producer.give_up()
        waiting, self._waiting = self._waiting, deque()
        for operation in waiting:
            self._fail(operation, NOT_ANSWERED)

    # -- batches ------------------------------------------------------------------------------------------------------

    async def _send_waiting(self) -> None:
        while self._waiting:
            operation = self._waiting[0]
            if operation.op in ENDS:
                await self._end(operation)
                self._waiting.popleft()
                continue
            if operation.op != PRODUCE:
                of_request = [each for each in self._waiting if each.request == operation.request]
                await self._commit_offsets(of_request)
                for _ in of_request:
                    self._waiting.popleft()
                continue
            if operation.topic_partition not in self._partitions and self._error is None:
                await self._add_partitions(operation.scheduled + self._timeout_ns)
            while self._waiting and self._waiting[0].op == PRODUCE:
                if self._error is None and self._waiting[0].topic_partition not in self._partitions:
                    break  # it was added meanwhile
                self._send(self._waiting.popleft())
            self._producer.flush()
        self._work = None

    async def _add_partitions(self, until_ns: int) -> None:
        """Adds the partitions of all batches before the next end to the transaction."""
        operations = itertools.takewhile(lambda operation: operation.op not in ENDS, self._waiting)
        batches = [operation for operation in operations if operation.op == PRODUCE]
        new = {each.topic_partition: each.partition for each in batches if each.topic_partition not in self._partitions}
        try:
            await self._identified(until_ns)
            await self._ask(ApiKey.ADD_PARTITIONS_TO_TXN, {"topics": by_topic(new)}, until_ns)
            self._partitions |= new.keys()
        except TransactionFailed as problem:
            self._error = str(problem)

    def _send(self, operation: Operation) -> None:
        if self._error is None:
            self._unanswered += 1
            self._producer.add(operation)
        else:
            self._fail(operation, aborted_words(self._error))

    def _batch_done(self, operation: Operation) -> None:
        self._unanswered -= 1
        self._done(operation)
        if operation.error is not None and self._error is None:
            self._error = operation.error
            self._producer.start_over(aborted_words(self._error))
        if not self._unanswered:
            self._all_answered.set()

    def _fail(self, operation: Operation, error: str) -> None:
        operation.error = error
        self._done(operation)

    # -- offsets and ends ---------------------------------------------------------------------------------------------------------

    async def _commit_offsets(self, operations: Sequence[Operation]) -> None:
        """`operations`: those of one request."""
        group, until_ns = operations[0].group, operations[0].scheduled + self._timeout_ns
        if self._error is not None:
            for operation in operations:
                self._fail(operation, aborted_words(self._error))
            return
        sent, retries, error, answered = self._now(), 0, None, 0
        try:
            await self._identified(until_ns)
            if group not in self._groups:
                retries += await self._ask(ApiKey.ADD_OFFSETS_TO_TXN, {"group_id": group}, until_ns)
                self._groups.add(group)
            retries += await self._ask(ApiKey.OFFSET_FETCH, {}, until_ns, group)
            body = {
                "group_id": group,
                "topics": by_topic({each.topic_partition: self._row(each) for each in operations}),
            }
            retries += await self._ask(ApiKey.TXN_OFFSET_COMMIT, body, until_ns, group)
            answered = self._now()
        except TransactionFailed as problem:
            error = self._error = str(problem)
            answered = 0 if error == NOT_ANSWERED else self._now()
        for operation in operations:
            operation.sent, operation.answered, operation.retries, operation.error = sent, answered, retries, error
            operation.leader = self._coordinators.get(group, -1)
            self._done(operation)

    def _row(self, operation: Operation) -> dict[str, Any]:
        known = self._committed.get(operation.topic_partition)
        return {
            "partition_index": operation.partition,
            "committed_offset": self._start_offsets[operation.topic][operation.partition] if known is None else known,
            "committed_leader_epoch": -1,
            "committed_metadata": self._run_name,
        }

    async def _end(self, operation: Operation) -> None:
        while self._unanswered:  # each batch has an answer or fails in time
            self._all_answered.clear()
            await self._all_answered.wait()
        wanted, error = operation.op == COMMIT, self._error
        operation.sent = self._now()
        try:
            if self._partitions or self._groups:  # else there is nothing to end, as for a real producer
                until_ns = max(operation.scheduled + self._timeout_ns, operation.sent + ABORT_TIMEOUT_NS)
                operation.retries = await self._ask(ApiKey.END_TXN, {"committed": wanted and error is None}, until_ns)
                operation.leader = self._coordinators[""]
            operation.answered = self._now()
            if wanted and error is not None:
                operation.error = aborted_words(error)
        except TransactionFailed as problem:
            error = operation.error = str(problem)
            operation.answered = 0 if error == NOT_ANSWERED else self._now()
        if error is not None:
            self._identity = None
            self._producer.start_over(error)
        self._partitions.clear()
        self._groups.clear()
        self._error = None
        self._done(operation)

    # -- the coordinator ----------------------------------------------------------------------------------------------

    async def _identified(self, until_ns: int = 0) -> Identity:
        """The producer id and the epoch. Raises TransactionFailed."""
        async with self._identifying:
            if self._identity is None:
                until_ns = until_ns or self._now() + self._timeout_ns
                await self._ask(ApiKey.INIT_PRODUCER_ID, {"transaction_timeout": TIMEOUT_MS}, until_ns)
            assert self._identity is not None
            return self._identity

    async def _ask(self, key: ApiKey, body: Mapping[str, Any], until_ns: int, group: str = "") -> int:
        """Asks the coordinator, that of the group if one is named, until it agrees. Returns how often it was asked again. Raises
        TransactionFailed."""
        retries = 0
        while True:
            try:
                if group not in self._coordinators:
                    who = (group, GROUP_KEY) if group else (self._id, TRANSACTION_KEY)
                    self._coordinators[group], _ = await find_coordinator(self._view, *who)
                connection = await self._producer.connection_to(self._coordinators[group])
                if key == ApiKey.OFFSET_FETCH:
                    await self._take_offsets(GroupMember(self._name, group, ANSWER_TIMEOUT_S, connection))
                else:
                    self._take(key, await self._answer(connection, key, body))
                return retries
            except GroupError as problem:
                error = problem.error
            except (OSError, MalformedRequest, Unreachable):
                error = ErrorCode.NETWORK_EXCEPTION
            if not is_passing(error):
                raise TransactionFailed(error_name(error))
            if error != ErrorCode.CONCURRENT_TRANSACTIONS:
                self._coordinators.pop(group, None)
            if self._now() > until_ns:
                raise TransactionFailed(NOT_ANSWERED)
            retries += 1
            await asyncio.sleep(RETRY_S)

    async def _answer(self, connection: BrokerConnection, key: ApiKey, body: Mapping[str, Any]) -> Any:
        """Raises OSError, MalformedRequest."""
        named: dict[str, Any] = {"transactional_id": self._id, **body}
        if key != ApiKey.INIT_PRODUCER_ID:
            assert self._identity is not None
            named |= {"producer_id": self._identity.producer_id, "producer_epoch": self._identity.epoch}
        if key == ApiKey.ADD_PARTITIONS_TO_TXN:
            named = {f"v3_and_below_{name}": value for name, value in named.items()}
        frame = frames.request_frame(key, VERSIONS[key], self._name, named)
        return frames.answer(key, VERSIONS[key], await connection.ask(frame, ANSWER_TIMEOUT_S))

    async def _take_offsets(self, group: GroupMember) -> None:
        """Raises GroupError, OSError, MalformedRequest."""
        found = await group.committed()
        self._committed = {
            partition: committed.offset
            for partition, committed in found.items()
            if committed.metadata == self._run_name
        }

    def _take(self, key: ApiKey, answer: Any) -> None:
        """Raises GroupError."""
        if key == ApiKey.ADD_PARTITIONS_TO_TXN:
            topics = answer.results_by_topic_v3_and_below
            errors = {row.partition_error_code for topic in topics for row in topic.results_by_partition}
            for error in sorted(errors, key=lambda error: error == ErrorCode.OPERATION_NOT_ATTEMPTED):
                check(error)  # the others were not attempted because of that one
        elif key == ApiKey.TXN_OFFSET_COMMIT:
            for topic in answer.topics:
                for row in topic.partitions:
                    check(row.error_code)
        else:
            check(answer.error_code)
        if key == ApiKey.INIT_PRODUCER_ID:
            self._identity = Identity(int(answer.producer_id), int(answer.producer_epoch))


def aborted_words(error: str) -> str:
    """The error of operations in a transaction of which another one failed."""
    return f"the transaction was aborted: {error}"
