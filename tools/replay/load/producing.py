"""A replayed producer: it sends the batches of the trace at their times, with the trace's acks.

The batches of one partition form a *lane*. At most LANE_IN_FLIGHT batches of a lane are in flight. Later batches wait, which shows as
a late `sent`. After a failure that passes (a new leader, a lost connection), the lane waits until each batch in flight has an answer
or none, and sends the failed batches again in their order. With acks=all, batches have Kafka's sequence numbers (KIP-98), so a broker
appends each batch once. With other acks, a batch may be in the log twice after a failure, as with any Kafka producer.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field

from protocol.errors import ErrorCode, error_name, is_retriable
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.record_batch import TRANSACTIONAL_BIT
from protocol.types import TopicPartition
from tools.replay.load import stamps
from tools.replay.load.background import Background
from tools.replay.load.operations import Operation
from tools.wire import frames
from tools.wire.cluster_view import ClusterView, Unreachable
from tools.wire.connection import BrokerConnection

LANE_IN_FLIGHT = 5
"""A broker recognises a repeated batch if it is among the last five batches of its producer and partition."""
ACKS_ALL = -1
REQUEST_TIMEOUT_MS = 30_000
INIT_PRODUCER_ID_VERSION = 1
SEQUENCES = 2**31
NOT_ANSWERED = "not answered in time"
NO_LIMIT = nullcontext()


def is_passing(error: int) -> bool:
    """Whether the same batch, or fetch, is sent again. A batch that was refused as corrupt would be refused again."""
    return error == ErrorCode.BROKER_NOT_AVAILABLE or (is_retriable(error) and error != ErrorCode.CORRUPT_MESSAGE)


@dataclass(slots=True, eq=False)
class Identity:
    """A producer id from the cluster, and its epoch. Each lane counts its own sequence numbers."""

    producer_id: int
    epoch: int


@dataclass(slots=True, eq=False)
class Lane:
    """The batches of one producer and partition with the same acks, in order."""

    partition: TopicPartition
    acks: int
    identity: Identity | None = None
    next_sequence: int = 0
    count: int = 0
    """Batches so far."""
    pending: deque[Operation] = field(default_factory=deque)
    flying: deque[Operation] = field(default_factory=deque)
    failed: list[Operation] = field(default_factory=list)
    """Batches to send again when no batch of the lane is in flight."""
    connection: BrokerConnection | None = None
    waits: bool = False
    """True while the lane waits for a leader, a connection or an identity."""


class ProducingClient:
    """One client of the trace. `done` is called with each operation that has its answer, or will have none.

    `transactional_id`: all batches are parts of transactions; `identify` gives the producer id and the epoch.
    """

    def __init__(
        self,
        name: str,
        number: int,
        run: int,
        view: ClusterView,
        background: Background,
        now_ns: Callable[[], int],
        delivery_timeout_ns: int,
        done: Callable[[Operation], None],
        transactional_id: str | None = None,
        identify: Callable[[], Awaitable[Identity]] | None = None,
    ) -> None:
        self.number = number
        self._name = name.encode()[:32000]
        self._run = run
        self._view = view
        self._background = background
        self._now = now_ns
        self._delivery_timeout_ns = delivery_timeout_ns
        self._done = done
        self._transactional_id = None if transactional_id is None else transactional_id.encode()
        self._attributes = 0 if transactional_id is None else TRANSACTIONAL_BIT
        self._identify = identify or (lambda: new_producer_id(view))
        self._lanes: dict[tuple[TopicPartition, int], Lane] = {}
        self._connections: dict[int, BrokerConnection] = {}
        self._opening: dict[int, list[Lane]] = {}
        self._outbox: dict[BrokerConnection, list[tuple[Lane, Operation]]] = {}
        self._identity: Identity | None = None
        self._identity_wanted: list[Lane] = []
        self._renewal: asyncio.Task[None] | None = None
        self._sequence = 0
        self._is_closed = False

    def connect_ahead(self, partition: TopicPartition, acks: int, limit: asyncio.Semaphore) -> list[asyncio.Task[None]]:
        """Starts to get the connection and the producer id that batches of the partition will need, unless they were asked for.

        `limit`: of the connections that all clients open at the same time before they need them.
        """
        started = []
        leader = self._view.leader(partition)
        if leader >= 0 and leader not in self._connections and leader not in self._opening:
            self._opening[leader] = []
            started.append(self._background.start(self._open(leader, limit)))
        if acks == ACKS_ALL and self._identity is None and self._renewal is None:
            started.append(self._renew_identity(limit))
        return started

    def add(self, operation: Operation) -> None:
        """Queues a batch, and puts it into the outbox if its lane can send. Call `flush` afterwards."""
        assert operation.acks is not None
        key = (operation.topic_partition, operation.acks)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(*key)
        operation.first_sequence = self._sequence
        self._sequence += operation.records
        operation.place = lane.count
        lane.count += 1
        lane.pending.append(operation)
        if not lane.waits and not lane.failed:
            self._pump(lane)

    def flush(self) -> None:
        """Sends what is in the outbox: one request for each connection and acks."""
        while self._outbox:  # with acks=0, a batch that is sent makes room for the next one at once
            outbox, self._outbox = self._outbox, {}
            for connection, sent in outbox.items():
                for acks in {lane.acks for lane, _ in sent}:
                    self._send(connection, acks, [row for row in sent if row[0].acks == acks])

    def expire(self) -> None:
        """Fails batches that wait for too long, and closes connections whose broker is silent. To be called every second."""
        for connection in list(self._connections.values()):
            connection.close_if_stuck(REQUEST_TIMEOUT_MS / 1000)
        for lane in self._lanes.values():
            self._expire(lane)

    def give_up(self) -> None:
        """Closes all connections. Operations without an answer fail."""
        self._is_closed = True
        for connection in list(self._connections.values()):
            connection.close()
        self.start_over(NOT_ANSWERED)

    def start_over(self, error: str) -> None:
        """Operations without an answer fail, and the next ones need another identity."""
        self._identity = None
        self._outbox.clear()
        lanes, self._lanes = self._lanes, {}
        for lane in lanes.values():
            operations = [*lane.flying, *lane.failed, *lane.pending]
            for each in (lane.flying, lane.failed, lane.pending):
                each.clear()
            for operation in operations:
                self._fail(operation, error, is_answer=False)

    async def connection_to(self, broker: int) -> BrokerConnection:
        """The open connection to a broker. Raises OSError."""
        connection = self._connections.get(broker)
        if connection is None or not connection.is_open:
            opened = await self._view.connect(broker, lambda _: None)
            connection = self._connections.get(broker)
            if connection is not None and connection.is_open:  # another one was opened meanwhile, and may be used
                opened.close()
            else:
                connection = self._connections[broker] = opened
        return connection

    # -- sending ------------------------------------------------------------------------------------------------------

    def _pump(self, lane: Lane) -> None:
        connection = lane.connection
        if connection is None or not connection.is_open:
            connection = lane.connection = self._connection_for(lane)
            if connection is None:
                return
        if lane.acks == ACKS_ALL and lane.identity is None:
            if self._identity is None:
                self._want_identity(lane)
                return
            lane.identity, lane.next_sequence = self._identity, 0
        outbox = self._outbox.setdefault(connection, [])
        # Counted from the oldest batch without an acknowledgement: newer ones must not push it out of those that the broker remembers.
        oldest = (lane.flying or lane.pending)[0].place if lane.pending else 0
        while lane.pending and lane.pending[0].place - oldest < LANE_IN_FLIGHT:
            operation = lane.pending.popleft()
            lane.flying.append(operation)
            outbox.append((lane, operation))

    def _send(self, connection: BrokerConnection, acks: int, sent: list[tuple[Lane, Operation]]) -> None:
        batches: dict[bytes, list[tuple[int, bytes]]] = {}
        later: list[tuple[Lane, Operation]] = []
        in_this: set[TopicPartition] = set()
        now = self._now()
        leader = next((broker for broker, known in self._connections.items() if known is connection), -1)
        for lane, operation in sent:
            if lane.partition in in_this:  # one batch of a partition for each request
                later.append((lane, operation))
                continue
            in_this.add(lane.partition)
            operation.leader = leader
            operation.sent = operation.sent or now
            topic, partition = lane.partition
            batches.setdefault(topic.encode(), []).append((partition, self._batch(lane, operation)))
        frame = frames.produce_frame(self._name, acks, REQUEST_TIMEOUT_MS, batches, self._transactional_id)
        rows = [row for row in sent if row not in later] if later else sent
        if not connection.is_open:
            self._answered(rows, None)
        elif acks == 0:
            connection.send(frame, None)
            for lane, operation in rows:
                lane.flying.remove(operation)
                operation.answered = operation.sent
                operation.batch = None
                self._done(operation)
            for lane in {lane for lane, _ in rows}:
                if lane.pending:
                    self._pump(lane)
        else:
            connection.send(frame, lambda answer: self._answered(rows, answer))
        if later:
            self._send(connection, acks, later)

    def _batch(self, lane: Lane, operation: Operation) -> bytes:
        if operation.batch is None:
            identity = lane.identity if lane.acks == ACKS_ALL else None
            if identity is not None:
                operation.sequence = lane.next_sequence
                lane.next_sequence = (lane.next_sequence + operation.records) % SEQUENCES
            operation.batch = stamps.build(
                operation.records,
                operation.bytes,
                run=self._run,
                producer=self.number,
                first_sequence=operation.first_sequence,
                timestamp_ms=time.time_ns() // 1_000_000,
                compression=operation.compression,
                producer_id=identity.producer_id if identity else -1,
                producer_epoch=identity.epoch if identity else -1,
                base_sequence=operation.sequence,
                attributes=self._attributes,
                key_size=operation.key_size,
                keys=operation.keys,
            )
            operation.bytes = len(operation.batch)
        return operation.batch

    # -- answers ------------------------------------------------------------------------------------------------------

    def _answered(self, sent: list[tuple[Lane, Operation]], answer: memoryview | None) -> None:
        results: dict[TopicPartition, frames.Produced] = {}
        if answer is not None:
            try:
                results = {TopicPartition(result.topic, result.partition): result for result in frames.produced(answer)}
            except (struct.error, UnicodeDecodeError):
                answer = None
        now = self._now()
        for lane, operation in sent:
            if operation not in lane.flying:
                continue  # it has failed by `give_up`
            lane.flying.remove(operation)
            result = results.get(lane.partition)
            error = ErrorCode.NETWORK_EXCEPTION if result is None else result.error
            if error in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                operation.answered = now
                operation.offset = -1 if result is None else result.base_offset
                operation.batch = None
                self._done(operation)
            elif is_passing(error) or (
                # An earlier batch of the lane failed, so this batch is out of order. Both are sent again, in order.
                error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and (lane.failed or lane.identity is None)
            ):
                operation.retries += 1
                lane.failed.append(operation)
            else:
                self._refused(lane, operation, error)
        if not self._is_closed:
            for lane in {id(lane): lane for lane, _ in sent}.values():
                self._after_answer(lane)
            self.flush()

    def _after_answer(self, lane: Lane) -> None:
        if lane.failed:
            if not lane.flying:
                if lane.identity is None:
                    for operation in lane.failed:
                        operation.batch = None  # its sequence was another producer id's
                lane.pending.extendleft(reversed(lane.failed))
                lane.failed.clear()
                lane.connection = None
                self._wait_for_leader(lane)
        elif lane.pending and not lane.waits:
            self._pump(lane)

    def _refused(self, lane: Lane, operation: Operation, code: int) -> None:
        """Fails a batch after an error that does not pass. Its sequence numbers are missing, so the lane needs another producer id."""
        self._fail(operation, error_name(code), is_answer=True)
        self._abandon_identity(lane)

    def _abandon_identity(self, lane: Lane) -> None:
        if lane.identity is None:
            return
        if lane.identity is self._identity:
            self._identity = None
        lane.identity = None
        for operation in lane.pending:
            operation.batch = None

    def _expire(self, lane: Lane) -> None:
        latest = self._now() - self._delivery_timeout_ns
        while lane.pending and lane.pending[0].scheduled < latest:
            operation = lane.pending.popleft()
            if operation.batch is not None:
                self._abandon_identity(lane)
            self._fail(operation, NOT_ANSWERED, is_answer=False)

    def _fail(self, operation: Operation, error: str, *, is_answer: bool) -> None:
        operation.error = error
        operation.answered = self._now() if is_answer else 0
        operation.batch = None
        self._done(operation)

    # -- leaders, connections, producer ids -----------------------------------------------------------------------------

    def _connection_for(self, lane: Lane) -> BrokerConnection | None:
        """The open connection to the partition's leader, or None: the lane then waits for it."""
        leader = self._view.leader(lane.partition)
        connection = self._connections.get(leader)
        if connection is not None and connection.is_open:
            return connection
        if leader < 0:
            self._wait_for_leader(lane)
            return None
        lane.waits = True
        waiting = self._opening.get(leader)
        if waiting is not None:
            waiting.append(lane)
        else:
            self._opening[leader] = [lane]
            self._background.start(self._open(leader, NO_LIMIT))
        return None

    async def _open(self, leader: int, limit: AbstractAsyncContextManager[None]) -> None:
        try:
            async with limit:
                await self.connection_to(leader)
        except OSError:
            for lane in self._opening.pop(leader):
                self._wait_for_leader(lane)
            return
        for lane in self._opening.pop(leader):
            self._resume(lane)

    def _wait_for_leader(self, lane: Lane) -> None:
        lane.waits = True
        self._view.ask_again(lambda: self._resume(lane))

    def _resume(self, lane: Lane) -> None:
        lane.waits = False
        self._expire(lane)
        if lane.pending and not lane.failed and not self._is_closed:
            self._pump(lane)
            self.flush()

    def _want_identity(self, lane: Lane) -> None:
        lane.waits = True
        self._identity_wanted.append(lane)
        if self._renewal is None:
            self._renew_identity(NO_LIMIT)

    def _renew_identity(self, limit: AbstractAsyncContextManager[None]) -> asyncio.Task[None]:
        self._renewal = self._background.start(self._get_identity(limit))
        return self._renewal

    async def _get_identity(self, limit: AbstractAsyncContextManager[None]) -> None:
        while self._identity is None:
            try:
                async with limit:
                    self._identity = await self._identify()
            except Unreachable:
                await asyncio.sleep(0.1)
        self._renewal = None
        lanes, self._identity_wanted = self._identity_wanted, []
        for lane in lanes:
            self._resume(lane)


async def new_producer_id(view: ClusterView) -> Identity:
    """Waits while the cluster cannot give one. Raises Unreachable if no broker answers."""
    while True:
        body = {"transactional_id": None, "transaction_timeout": 60_000}
        answer = await view.ask_any(ApiKey.INIT_PRODUCER_ID, INIT_PRODUCER_ID_VERSION, body)
        if int(answer.error_code) == 0:
            return Identity(int(answer.producer_id), int(answer.producer_epoch))
        await asyncio.sleep(0.1)
