"""A replayed consumer: it sends the fetches of the trace at their times, each from the client's position.

A client has at most one fetch in flight at each broker, as Kafka's consumers do. What becomes due meanwhile leaves together in the next
fetch, as a consumer would ask once for all; the records of a partition count for the first of these operations. A fetch waits for records
at most until the client's next fetch at that broker is due: in the trace, it had been answered by then. A closed loop sends each fetch of
the trace by itself.

The first fetch of a partition starts as far behind the high watermark as the recorded fetch was, or at the high watermark if that is
not known. The next fetches continue from there. When the recorded offset jumps, the position jumps by as much.

A fetch also asks for the client's other partitions at that broker, so it returns when one of them has records, as a consumer's fetch
does. The records of the other partitions count for the first operation of the fetch.

A client with a consumer group is a member of it (`membership`) and fetches what it owns: the partition of the trace if it owns that, else
the one that it has not fetched for the longest time. It goes on where the group has committed. Its fetches wait while it has no assignment:
in the classic protocol, while the group rebalances. A member that owns nothing has nothing to fetch: its operations end at once, without
records.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from protocol.errors import ErrorCode, KafkaError, error_name
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.framing import MalformedRequest
from protocol.kafka.record_batch import iter_batches
from protocol.types import TopicPartition
from tools.replay.load.background import Background
from tools.replay.load.groups import Groups
from tools.replay.load.membership import ANSWER_TIMEOUT_S
from tools.replay.load.operations import Operation
from tools.replay.load.producing import NOT_ANSWERED, REQUEST_TIMEOUT_MS, is_passing
from tools.wire import frames
from tools.wire.client import TIMEOUT_S
from tools.wire.cluster_view import ClusterView, Unreachable
from tools.wire.connection import BrokerConnection
from tools.wire.offsets import LATEST, offsets_at, offsets_body, offsets_in
from tools.wire.offsets import VERSION as OFFSETS_VERSION

CLIENT = "ottla-replay"
"""The client id of requests that no client of the trace sends."""
NEVER = -(2**62)
RECENTLY_NS = 5_000_000_000
"""A fetch asks for all partitions that the client's trace had within this time, as a consumer asks for all that it is assigned."""
RETRY_S = 0.1
ANSWER_NS = 1_000_000
"""The wait of a fetch ends this long before the client's next fetch is due, so that the answer is there in time."""
PARTITION_MAX_BYTES = 1024 * 1024
RESPONSE_MAX_BYTES = 50 * 1024 * 1024


class Result(NamedTuple):
    """An answer for one partition. `next_offset`: after the last record, -1 if there is none. `reads`: the offsets that were read, each
    (first, after the last); an aborted transaction interrupts them."""

    error: int
    records: int
    bytes: int
    next_offset: int
    reads: Sequence[tuple[int, int]] = ()


NO_RESULT = Result(ErrorCode.NETWORK_EXCEPTION, 0, 0, -1)


class ComingFetch(NamedTuple):
    """A row of the trace that is not due yet. `due`: nanoseconds since 1970 UTC, 0 for as soon as possible."""

    due: int
    partition: TopicPartition


def wait_ms(recorded_ms: int, now: int, next_due: int | None) -> int:
    """How long a fetch that leaves now waits for records. `next_due`: of the client's next fetch at that broker; None: not known."""
    if next_due is None:
        return recorded_ms
    return max(min(recorded_ms, (next_due - now - ANSWER_NS) // 1_000_000), 0)


@dataclass(slots=True, eq=False)
class Position:
    """Where a client reads next in a partition. `recorded`: the offset of the trace's next fetch, unless it jumps."""

    offset: int
    is_end: bool = False
    """Whether it is the high watermark. Then the first operation says how far behind to start."""
    recorded: int | None = None
    fetched_ns: int = NEVER
    """The scheduled time of the last operation for the partition."""


class FetchingClient:
    """One client of the trace. `done` is called with each operation that has its answer, or will have none.

    `connecting` limits the connections that all clients open at the same time before they need them. `group`: as the trace names it.
    `merges`: whether the requests that wait for a broker become one. `read_committed`: it gets no records of open or aborted transactions.
    """

    def __init__(
        self,
        name: str,
        view: ClusterView,
        background: Background,
        now_ns: Callable[[], int],
        timeout_ns: int,
        done: Callable[[Operation], None],
        connecting: asyncio.Semaphore,
        groups: Groups | None = None,
        group: str | None = None,
        *,
        merges: bool = True,
        read_committed: bool = False,
    ) -> None:
        self._name = name
        self._view = view
        self._background = background
        self._now = now_ns
        self._timeout_ns = timeout_ns
        self._done = done
        self._connecting = connecting
        self._merges = merges
        self._read_committed = read_committed
        self._member = groups.join(group, name, self) if groups is not None and group is not None else None
        self._owned: list[TopicPartition] | None = None
        """What the group has assigned to it; None while the group rebalances."""
        self._unassigned: list[list[Operation]] = []
        """Requests that wait for the assignment."""
        self._coming: deque[ComingFetch] = deque()
        """The operations for which `add` will be called, as far as they are known."""
        self._positions: dict[TopicPartition, Position] = {}
        self._queues: dict[int, deque[list[Operation]]] = {}
        """Broker -> requests that wait for their turn."""
        self._connections: dict[int, BrokerConnection] = {}
        self._connection_locks: dict[int, asyncio.Lock] = {}
        self._busy: set[int] = set()
        """Brokers with a request in flight, or to which a connection is being opened."""
        self._looking: list[Operation] = []
        """Operations whose partition has no leader now."""
        self._flying: dict[int, list[Operation]] = {}
        self._is_closed = False

    def expect(self, fetches: Iterable[ComingFetch]) -> None:
        """Says which operations `add` will be called with after those that were expected before. Opens the connections that they need."""
        for fetch in fetches:
            self._coming.append(fetch)
            if self._member is None:
                self.connect_ahead(fetch.partition)
            else:
                self._member.expect(fetch.partition.topic, fetch.due)

    def connect_ahead(self, partition: TopicPartition) -> list[asyncio.Task[None]]:
        """Starts to open the connection to the partition's leader, unless there was one."""
        leader = self._view.leader(partition)
        if leader < 0 or leader in self._connection_locks:
            return []
        self._connection_locks[leader] = asyncio.Lock()
        return [self._background.start(self._connect_ahead(leader))]

    def join(self, topic: str) -> None:
        """Joins the client's group before it fetches from the topic."""
        if self._member is not None:
            self._member.expect(topic, self._now())

    def add(self, request: list[Operation]) -> None:
        """Sends the rows of one request. Each of them was expected. Rows whose partitions have different leaders become requests of their
        own."""
        for operation in request:
            self._coming.popleft()
            if self._member is not None:
                self._member.expect(operation.topic, operation.scheduled)
        self._queue(request)

    def offsets(self) -> dict[TopicPartition, int]:
        return {partition: position.offset for partition, position in self._positions.items()}

    def revoke(self) -> None:
        self._owned = None
        self._positions.clear()
        for queue in self._queues.values():
            self._unassigned += queue
            queue.clear()

    def release(self, partitions: Collection[TopicPartition]) -> None:
        gone = set(partitions)
        self._owned = [partition for partition in self._owned or () if partition not in gone]
        moved: list[list[Operation]] = []
        for partition in gone:
            self._positions.pop(partition, None)
        for queue in self._queues.values():
            requests = list(queue)
            queue.clear()
            for request in requests:
                is_moved = any(operation.topic_partition in gone for operation in request)
                (moved if is_moved else queue).append(request)
        for request in moved:
            self._queue(request)

    async def assign(self, partitions: Collection[TopicPartition], offsets: Mapping[TopicPartition, int]) -> None:
        new = [partition for partition in partitions if partition not in self._positions]
        unknown = [partition for partition in new if partition not in offsets]
        ends = await end_offsets(self._view, unknown, ANSWER_TIMEOUT_S) if unknown else {}
        self._owned = sorted(partitions)
        for partition in new:
            if partition in offsets:
                self._positions[partition] = Position(offsets[partition])
            elif partition in ends:
                self._positions[partition] = Position(ends[partition], is_end=True)
            self.connect_ahead(partition)
        waiting, self._unassigned = self._unassigned, []
        for request in waiting:
            self._queue(request)

    def _queue(self, request: list[Operation]) -> None:
        if self._member is not None:
            if self._owned is None:
                self._unassigned.append(request)
                return
            if not self._owned:
                self._end_without_records(request)
                return
            self._redirect(request, self._owned)
        by_leader: dict[int, list[Operation]] = {}
        for operation in request:
            by_leader.setdefault(self._view.leader(operation.topic_partition), []).append(operation)
        for leader, operations in by_leader.items():
            if leader < 0:
                self._look_for_leaders(operations)
            else:
                self._queues.setdefault(leader, deque()).append(operations)
                self._next(leader)

    def _redirect(self, request: list[Operation], owned: list[TopicPartition]) -> None:
        """Makes the rows fetch partitions that the member owns, and one broker leads."""

        def fetched_ns(partition: TopicPartition) -> int:
            position = self._positions.get(partition)
            return NEVER if position is None else position.fetched_ns

        first = request[0].topic_partition
        if first not in owned:
            first = min(owned, key=fetched_ns)
        leader = self._view.leader(first)
        others = [partition for partition in owned if partition != first and self._view.leader(partition) == leader]
        places = [first, *sorted(others, key=fetched_ns)]
        for operation, place in zip(request, itertools.cycle(places)):
            operation.topic, operation.partition = place

    def _end_without_records(self, request: list[Operation]) -> None:
        for operation in request:
            operation.sent = operation.answered = self._now()
            operation.records = operation.bytes = 0
            self._done(operation)

    def expire(self) -> None:
        """Fails operations that wait for too long, and closes connections whose broker is silent. To be called every second."""
        for connection in list(self._connections.values()):
            connection.close_if_stuck(REQUEST_TIMEOUT_MS / 1000)
        latest = self._now() - self._timeout_ns
        for queue in self._queues.values():
            while queue and queue[0][0].scheduled < latest:
                self._fail(queue.popleft())
        while self._unassigned and self._unassigned[0][0].scheduled < latest:
            self._fail(self._unassigned.pop(0))
        late = [operation for operation in self._looking if operation.scheduled < latest]
        self._looking = [operation for operation in self._looking if operation.scheduled >= latest]
        self._fail(late)

    def give_up(self) -> None:
        """Closes all connections. Operations without an answer fail."""
        self._is_closed = True
        flying, self._flying = self._flying, {}
        for operations in flying.values():
            self._fail(operations)
        for connection in list(self._connections.values()):
            connection.close()
        for queue in (*self._queues.values(), self._unassigned):
            for operations in queue:
                self._fail(operations)
            queue.clear()
        self._fail(self._looking)
        self._looking = []

    # -- sending ------------------------------------------------------------------------------------------------------

    def _next(self, leader: int) -> None:
        if leader in self._busy or self._is_closed or not self._queues[leader]:
            return
        queue = self._queues[leader]
        operations = queue.popleft()
        if self._merges and queue:
            operations = [*operations, *itertools.chain.from_iterable(queue)]
            queue.clear()
        self._busy.add(leader)
        self._flying[leader] = operations
        asked = dict.fromkeys(operation.topic_partition for operation in operations)
        new = [partition for partition in asked if partition not in self._positions]
        connection = self._connections.get(leader)
        if connection is None or not connection.is_open or new:
            self._background.start(self._prepare_and_send(leader, operations, new))
        else:
            self._send(leader, connection, operations)

    async def _prepare_and_send(self, leader: int, operations: list[Operation], new: list[TopicPartition]) -> None:
        try:
            connection = await self._connected(leader)
            if new:
                await self._find_positions(connection, new)
        except (OSError, MalformedRequest):
            self._again(leader, operations)
            return
        is_unknown = any(operation.topic_partition not in self._positions for operation in operations)
        if is_unknown or not connection.is_open:
            self._again(leader, operations)
            return
        self._send(leader, connection, operations)

    async def _connected(self, leader: int) -> BrokerConnection:
        """The connection to the broker, opened if it must be. Raises OSError."""
        async with self._connection_locks.setdefault(leader, asyncio.Lock()):
            connection = self._connections.get(leader)
            if connection is None or not connection.is_open:
                connection = self._connections[leader] = await self._view.connect(leader, lambda _: None)
            return connection

    async def _connect_ahead(self, leader: int) -> None:
        async with self._connecting:
            with contextlib.suppress(OSError):  # the first fetch at the broker tries again
                await self._connected(leader)

    async def _find_positions(self, connection: BrokerConnection, new: list[TopicPartition]) -> None:
        """Asks for the high watermarks of partitions that the client did not read yet."""
        body = offsets_body(new)
        frame = frames.request_frame(ApiKey.LIST_OFFSETS, OFFSETS_VERSION, self._name, body)
        answer = await connection.ask(frame, TIMEOUT_S)
        ends = offsets_in(frames.answer(ApiKey.LIST_OFFSETS, OFFSETS_VERSION, answer))
        for partition, end in ends.items():
            if self._member is None or partition in (self._owned or ()):
                self._positions.setdefault(partition, Position(end, is_end=True))

    def _send(self, leader: int, connection: BrokerConnection, operations: list[Operation]) -> None:
        if self._flying.get(leader) is not operations:
            return  # they have failed by `give_up`
        now = self._now()
        for operation in operations:
            position = self._positions[operation.topic_partition]
            if position.is_end:
                position.offset, position.is_end = max(position.offset - (operation.behind or 0), 0), False
            if operation.recorded_offset is not None and self._member is None:
                if position.recorded is not None and operation.recorded_offset != position.recorded:
                    position.offset = max(position.offset + operation.recorded_offset - position.recorded, 0)
                position.recorded = operation.recorded_offset + operation.trace_records
            operation.recorded_offset = None  # if it is sent again, it does not jump again
            position.fetched_ns = operation.scheduled
            operation.offset = position.offset
            operation.sent = operation.sent or now
            operation.leader = leader
        newest = operations[-1]
        asked = {operation.topic_partition: operation.offset for operation in operations}
        for partition, position in self._positions.items():
            is_read = self._member is not None or position.fetched_ns > newest.scheduled - RECENTLY_NS
            if is_read and self._view.leader(partition) == leader and partition not in asked:
                asked[partition] = position.offset
                if self._member is not None:
                    position.fetched_ns = newest.scheduled
        positions: dict[str, list[tuple[int, int]]] = {}
        for (topic, number), offset in asked.items():
            positions.setdefault(topic, []).append((number, offset))
        most = max(operation.max_bytes for operation in operations) or RESPONSE_MAX_BYTES
        wait = wait_ms(newest.max_wait_ms, now, self._next_due(leader, now + newest.max_wait_ms * 1_000_000))
        limit = min(most, PARTITION_MAX_BYTES)
        frame = frames.fetch_frame(
            self._name, wait, newest.min_bytes, most, limit, positions, read_committed=self._read_committed
        )
        due = operations[0].scheduled + wait * 1_000_000
        connection.send(frame, lambda answer: self._answered(leader, operations, asked, due, answer))

    def _next_due(self, leader: int, until: int) -> int | None:
        """When the client's next fetch at the broker is due; None if it is not known, or not due until then."""
        if self._queues.get(leader):
            return 0
        for due, partition in self._coming:
            if due > until:
                break
            if self._view.leader(partition) == leader or (self._owned is not None and partition not in self._owned):
                return due
        return None

    # -- answers ------------------------------------------------------------------------------------------------------

    def _answered(
        self,
        leader: int,
        operations: list[Operation],
        asked: Mapping[TopicPartition, int],
        due: int,
        answer: memoryview | None,
    ) -> None:
        """`due`: when the answer was due at the latest."""
        if self._flying.get(leader) is not operations:
            return
        try:
            results = {} if answer is None else _results(answer, asked)
        except (MalformedRequest, KafkaError):
            self._connections[leader].close()
            results = {}
        now = self._now()
        if self._member is not None and results:
            ends = {partition: found.next_offset for partition, found in results.items()}
            self._member.note_read(asked, ends, sum(found.records for found in results.values()), now - due)
        more_records, more_bytes = self._take_others(operations, asked, results)
        reads = [(*each, *read) for each, found in results.items() for read in found.reads]
        again: list[Operation] = []
        for operation in operations:
            partition = operation.topic_partition
            error, records, size, next_offset, _ = results.get(partition, NO_RESULT)
            if error == ErrorCode.NONE:
                operation.answered, operation.records, operation.bytes = now, records + more_records, size + more_bytes
                more_records = more_bytes = 0
                operation.reads, reads = reads or None, []
                results[partition] = Result(error, 0, 0, next_offset)  # another row may be for the same partition
                if next_offset >= 0 and partition in self._positions:
                    self._positions[partition].offset = next_offset
                self._done(operation)
            elif error == ErrorCode.OFFSET_OUT_OF_RANGE:
                self._positions.pop(partition, None)  # found again as for the first fetch
                operation.behind = None
                again.append(operation)
            elif is_passing(error):
                again.append(operation)
            else:
                operation.answered = now
                self._fail([operation], error_name(error))
        if again:
            self._again(leader, again)
            return
        self._flying.pop(leader, None)
        self._busy.discard(leader)
        self._next(leader)

    def _take_others(
        self, operations: list[Operation], asked: Mapping[TopicPartition, int], results: Mapping[TopicPartition, Result]
    ) -> tuple[int, int]:
        """Moves on in the partitions that are asked for beside those of the operations; (records, bytes) of them together."""
        own = {operation.topic_partition for operation in operations}
        records_of_all = bytes_of_all = 0
        for partition in asked.keys() - own:
            error, records, size, next_offset, _ = results.get(partition, NO_RESULT)
            position = self._positions.get(partition)
            if position is None:
                continue
            if error == ErrorCode.NONE:
                records_of_all += records
                bytes_of_all += size
                position.offset = max(position.offset, next_offset)
            else:  # left out until the trace has an operation for it, which finds out what to do
                position.fetched_ns = NEVER
        return records_of_all, bytes_of_all

    def _again(self, leader: int, operations: list[Operation]) -> None:
        """After a failure that passes: looks for the leaders, then sends the operations to them again."""
        if self._is_closed:
            return
        self._flying.pop(leader, None)
        self._busy.discard(leader)
        for operation in operations:
            operation.retries += 1
        self._look_for_leaders(operations)
        # The requests that wait for this broker may have another leader by now, too.
        for waiting in self._queues.pop(leader, ()):
            self._look_for_leaders(waiting)

    def _look_for_leaders(self, operations: list[Operation]) -> None:
        if not self._looking:
            self._view.ask_again(self._leaders_were_asked_for)
        self._looking += operations

    def _leaders_were_asked_for(self) -> None:
        if self._is_closed:
            return
        self.expire()
        found, self._looking = self._looking, []
        by_request: dict[int, list[Operation]] = {}
        for operation in found:
            by_request.setdefault(operation.request, []).append(operation)
        for operations in by_request.values():
            self._queue(operations)

    def _fail(self, operations: list[Operation], error: str = NOT_ANSWERED) -> None:
        for operation in operations:
            operation.error = error
            operation.records = operation.bytes = 0
            self._done(operation)


async def end_offsets(
    view: ClusterView, partitions: Collection[TopicPartition], timeout_s: float, timestamp: int = LATEST
) -> dict[TopicPartition, int]:
    """The high watermark of each partition, or its log start offset (EARLIEST). Partitions whose leader does not answer within
    `timeout_s` are missing."""
    ends: dict[TopicPartition, int] = {}
    deadline = time.monotonic() + timeout_s
    while True:
        with contextlib.suppress(Unreachable):
            await view.start()
        by_leader: dict[int, list[TopicPartition]] = {}
        for partition in partitions:
            if partition not in ends:
                by_leader.setdefault(view.leader(partition), []).append(partition)
        for leader, of_leader in by_leader.items():
            address = view.address(leader)
            if address is not None:
                with contextlib.suppress(OSError, MalformedRequest):
                    ends |= await offsets_at(view.client, address, of_leader, timestamp)
        if len(ends) == len(partitions) or time.monotonic() > deadline:
            return ends
        await asyncio.sleep(RETRY_S)


def _results(answer: memoryview, asked: Mapping[TopicPartition, int]) -> dict[TopicPartition, Result]:
    """The results by partition. A batch may begin before the offset that was asked for; those records do not count, nor do markers and
    what the answer says is of an aborted transaction."""
    response = frames.fetched(answer)
    results = {}
    for topic, partitions in response.topics:
        for data in partitions:
            partition = TopicPartition(str(topic), data.partition)
            records = size = 0
            next_offset = -1
            begin, reads = asked.get(partition, 0), []
            aborted = frames.Aborted(data.aborted_transactions or ())
            for buffer in data.records:
                for _, header in iter_batches(buffer):
                    if aborted.has(header):
                        if begin < header.base_offset:
                            reads.append((begin, header.base_offset))
                        begin = header.next_offset
                    elif not header.is_control:
                        records += header.record_count - max(begin - header.base_offset, 0)
                    size += header.size_in_bytes
                    next_offset = header.next_offset
            if next_offset >= 0:
                reads.append((begin, next_offset))
            results[partition] = Result(response.error or data.error, max(records, 0), size, next_offset, reads)
    return results
