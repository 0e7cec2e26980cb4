"""One task of a replay: it gets the rows of its clients in the order of their times, and sends each when it is due.

The calling thread reads the rows from Spark in batches. An event loop in another thread sends them, so Spark delays no operation.
The task is an open loop: an operation leaves when it is due, whether or not the operations before it are answered. When it cannot, it
leaves late, and its row shows by how much, and whether the loop or the cluster was the reason. Without a pace, the task is a closed loop:
an operation leaves when there are fewer than UNANSWERED_MAX_AT_ONCE unanswered ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow
import pyarrow.compute
import uvloop

from protocol.kafka.framing import MalformedRequest
from protocol.types import Address, TopicPartition
from tools.group_protocols import CLASSIC
from tools.replay.load import stamps
from tools.replay.load.background import Background
from tools.replay.load.fetching import CLIENT, ComingFetch, FetchingClient
from tools.replay.load.groups import Groups
from tools.replay.load.loop_meter import LoopMeter
from tools.replay.load.operations import Operation
from tools.replay.load.pace import Pace
from tools.replay.load.producing import ProducingClient, new_producer_id
from tools.replay.load.results import CLIENT_BITS, GENERATOR, GROUPS, OPERATIONS, parquet_of, table_of
from tools.replay.load.transactions import TransactionalProducer
from tools.replay.traces.schema import FETCH, OFFSETS, PRODUCE
from tools.wire.client import Client
from tools.wire.cluster_view import ClusterView
from tools.wire.frames import COMPRESSION_CODES
from tools.wire.offsets import offsets_at
from tools.wire.security import PLAINTEXT, Security

ROWS_AT_ONCE = 1024
"""Rows that are turned into Python objects at once: about a millisecond, during which the loop's thread has to wait."""
BATCHES_AHEAD = 4
"""Batches of ROWS_AT_ONCE rows that wait for the loop. More would no longer be in the processor's caches when they are sent."""
CONNECTING_AHEAD_MAX = 16
"""Connections of fetching clients that are opened at the same time before they are needed."""
SWITCH_INTERVAL_S = 0.0005
"""How long Python lets the calling thread run before the loop's thread gets its turn."""
TURN_NS = 2_000_000
"""When operations are late, the loop serves its sockets after this time."""
JOIN_TIMEOUT_S = 15.0
"""Limit of the time for which the start waits for consumer groups."""
TIMER_S = 0.001
"""The loop's timers count milliseconds. After less, it would look again and again, and take the processor from the brokers."""
CONNECT_TIMEOUT_S = 30.0
"""Limit of the time for which the start waits for connections."""
SHAPES_MAX = 500
"""Batches of so many sizes are built once before the start."""
FINISHED_AT_ONCE = 500
"""Finished operations that are turned into rows at once, in the loop: half a millisecond. A thread that did it for a whole file would
hold back the loop, because only one thread runs Python at a time."""
ROWS_OF_A_FILE = 20_000
FILE_S = 5.0
"""A file of results is written after this time, or earlier with about ROWS_OF_A_FILE rows."""
SWEEP_S = 1.0
"""Time between two looks for operations and connections that wait for too long."""
UNANSWERED_MAX = 200_000
"""With this number of unanswered operations, a task waits: an unreachable cluster must not fill its memory."""
UNANSWERED_MAX_AT_ONCE = 2_000
"""The same number for a replay as fast as possible."""


class Row(NamedTuple):
    """What a task needs of a row of the trace."""

    due: int | None
    """In ns since the start; None: as soon as possible."""
    time_ns: int
    request: int
    op: str
    client: str
    topic: str
    """Of the cluster."""
    partition: int
    """Never -1."""
    records: int
    bytes: int
    compression: str
    acks: int
    transactional_id: str | None
    key_bytes: int | None
    keys: Sequence[int]
    min_bytes: int
    max_wait_ms: int
    max_bytes: int
    offset: int | None
    behind: int | None
    read_committed: bool | None
    group: str | None


COLUMNS = list(Row._fields[1:])
"""Of a trace."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What a task must know."""

    run: int
    """The number of the replay, 32 bits, which the stamp of each record has."""
    bootstrap: tuple[Address, ...]
    topics: tuple[str, ...]
    pace: Pace | None
    """None: as fast as possible."""
    answer_timeout_s: float
    group_names: str | None = None
    """Put before each consumer group's name. None: clients join no groups."""
    group_protocol: str = CLASSIC
    transactional_ids: str = ""
    """Put before each transactional id, and each group that offsets are committed for in a transaction."""
    start_offsets: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Topic -> where the replay begins in each partition."""
    compacted: Collection[str] = ()
    """Topics that compaction may remove records from."""
    security: Security = PLAINTEXT


@dataclass(slots=True)
class Progress:
    """Running totals of a task. They count operations, unless they say otherwise."""

    sent: int = 0
    acknowledged: int = 0
    """Produces that succeeded."""
    failed: int = 0
    received: int = 0
    """Records that fetches returned."""
    unanswered: int = 0
    late_ns: int = 0
    """How late the last operation left."""
    bytes: int = 0
    """Size of the record batches that were acknowledged or received."""
    started_ns: int = 0
    """The replay's start, in nanoseconds since 1970 UTC; 0: it has not started."""


@dataclass(slots=True)
class _Client:
    number: int
    producing: dict[tuple[int, str | None], ProducingClient | TransactionalProducer] = field(default_factory=dict)
    """By acks and transactional id: a Kafka producer has one of each. A client id with several is several processes, each with an order of
    its own."""
    fetching: dict[tuple[str | None, bool], FetchingClient] = field(default_factory=dict)
    """By the group, or None, and by `read_committed`. Several processes may have one client id."""

    @property
    def parts(self) -> list[ProducingClient | TransactionalProducer | FetchingClient]:
        return [*self.fetching.values(), *self.producing.values()]


Reader = tuple[str, str | None, bool]
"""Client, group, and whether it reads committed records only."""


class LoadError(Exception):
    """A task that cannot go on. The text says why in one line."""


class LoadTask:
    """Call `open`, `prepare`, `start`, `feed` for all rows, `finish`.

    `now_ns`: the replay's common clock. `keep(kind, content)` keeps a file of `results.KINDS`; a thread of its own calls it.
    """

    def __init__(
        self, plan: LoadPlan, task: int, now_ns: Callable[[], int], keep: Callable[[str, bytes], None]
    ) -> None:
        self.progress = Progress()
        self._plan = plan
        self._task = task
        self._now = now_ns
        self._view = ClusterView(Client(CLIENT, plan.security), plan.bootstrap, plan.topics)
        self._clients: dict[str, _Client] = {}
        self._names: list[str] = []
        self._finished: list[Operation] = []
        self._tables: list[pyarrow.Table] = []
        """The rows of the next file, FINISHED_AT_ONCE in each."""
        self._written_at = time.monotonic()
        self._keep = keep
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="results")
        self._writes: list[Future[None]] = []
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="load", daemon=True)
        self._rows: asyncio.Queue[list[Row] | None] = asyncio.Queue()
        self._room = threading.Semaphore(BATCHES_AHEAD)
        self._is_below = asyncio.Event()
        self._start_ns = 0
        self._awaited = 0
        self._unanswered = 0
        self._unanswered_max = UNANSWERED_MAX if plan.pace is not None else UNANSWERED_MAX_AT_ONCE
        self._stopping = False
        self._running: Future[None] | None = None
        self._groups: Groups | None = None
        self._meter = LoopMeter(now_ns)
        self._lanes: set[tuple[Any, ...]] = set()
        """Those whose connections were opened ahead, as `lanes_of` has them."""

    def open(self) -> None:
        """Connects to the cluster. Raises Unreachable."""
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._warm_up(), self._loop).result()

    def prepare(self, first: pyarrow.RecordBatch) -> None:
        """Waits until the clients of these first rows have connections and producer ids and are members of their groups, and runs the code
        that they will run."""
        asyncio.run_coroutine_threadsafe(self._prepare(first), self._loop).result()

    def start(self, start_ns: int) -> None:
        """The replay's time 0, in ns since 1970 by the common clock."""
        self._start_ns = start_ns
        gc.collect()
        gc.freeze()
        gc.disable()  # a collection of the oldest generation takes longer than an operation may be late
        self._running = asyncio.run_coroutine_threadsafe(self._run(start_ns), self._loop)

    def feed(self, batch: pyarrow.RecordBatch) -> bool:
        """Takes rows with `COLUMNS`, in the order of their times. Waits while too many rows are ahead.

        The clients learn at once which fetches are in `batch`, because a fetch must know when the next one is due.
        Returns False if the task takes no more rows. Raises what went wrong in the loop.
        """
        coming = self._coming_fetches(batch)
        if coming:
            self._loop.call_soon_threadsafe(self._expect, coming)
        if new := set(lanes_of(batch)) - self._lanes:
            self._lanes |= new
            self._loop.call_soon_threadsafe(self._connect_ahead, new)
        for at in range(0, batch.num_rows, ROWS_AT_ONCE):
            part = batch.slice(at, ROWS_AT_ONCE)
            columns = [part.column(name).to_pylist() for name in COLUMNS]
            while not self._room.acquire(timeout=0.5):
                if self._running is not None and self._running.done():
                    self._running.result()
                if self._stopping:
                    return False
            if self._stopping:
                return False
            rows = list(map(Row, self._due_ns(part), *columns))
            self._loop.call_soon_threadsafe(self._rows.put_nowait, rows)
        return True

    def _due_ns(self, rows: pyarrow.RecordBatch) -> list[int | None]:
        """When each row is due, since the start; None: as soon as possible."""
        if self._plan.pace is None:
            return [None] * rows.num_rows
        due: list[int | None] = self._plan.pace.due_ns(rows.column("time_ns").to_numpy()).tolist()
        return due

    def _coming_fetches(self, batch: pyarrow.RecordBatch) -> dict[Reader, list[ComingFetch]]:
        """The fetches of each reader, in their order."""
        rows = batch.filter(pyarrow.compute.equal(batch.column("op"), FETCH))
        coming: dict[Reader, list[ComingFetch]] = {}
        columns = (
            rows.column(name).to_pylist() for name in ("client", "group", "read_committed", "topic", "partition")
        )
        for due, client, group, is_committed, topic, partition in zip(self._due_ns(rows), *columns, strict=True):
            due_ns, reader = 0 if due is None else self._start_ns + due, (client, group, bool(is_committed))
            coming.setdefault(reader, []).append(ComingFetch(due_ns, TopicPartition(topic, partition)))
        return coming

    def stop(self) -> None:
        """Sends nothing more. Can be called from any thread, also after `finish`."""
        self._stopping = True
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._is_below.set)
            self._loop.call_soon_threadsafe(self._rows.put_nowait, None)

    def finish(self) -> Progress:
        """Waits for the answers, and until the last rows are kept. Raises what went wrong."""
        self._loop.call_soon_threadsafe(self._rows.put_nowait, None)
        try:
            if self._running is not None:
                self._running.result()
            for write in self._writes:
                write.result()
        finally:
            gc.enable()
            gc.unfreeze()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._writer.shutdown()
        return self.progress

    async def _warm_up(self) -> None:
        """Asks each question once that clients ask at their start, so that the code for it is loaded when the first operation is due."""
        self._background = Background()
        self._connecting = asyncio.Semaphore(CONNECTING_AHEAD_MAX)
        if self._plan.group_names is not None:
            names, protocol = self._plan.group_names, self._plan.group_protocol
            self._groups = Groups(self._view, self._background, names, self._plan.run, self._now, protocol)
        await self._view.start()
        await new_producer_id(self._view)
        topic = self._plan.topics[0]
        address = self._view.address(self._view.leader(TopicPartition(topic, 0)))
        if address is not None:
            with contextlib.suppress(OSError, MalformedRequest):
                await offsets_at(self._view.client, address, [TopicPartition(topic, 0)])

    async def _prepare(self, first: pyarrow.RecordBatch) -> None:
        self._lanes = set(lanes_of(first))
        opening = self._connect_ahead(self._lanes)
        for (client, group, is_committed), fetches in self._coming_fetches(first).items():
            fetching = self._fetching(client, group, is_committed)
            for topic in {fetch.partition.topic for fetch in fetches}:
                fetching.join(topic)
            if self._groups is None or group is None:
                for partition in {fetch.partition for fetch in fetches}:
                    opening += fetching.connect_ahead(partition)
        for records, size, compression in distinct(first, PRODUCE, "records", "bytes", "compression")[:SHAPES_MAX]:
            code = COMPRESSION_CODES[compression]
            stamps.build(records, size, run=0, producer=0, first_sequence=0, timestamp_ms=0, compression=code)
        table_of([Operation("fetch", 0, 0, "", 0, 0, 0, 0, reads=[("", 0, 0, 0)])], [""], 0)
        if opening:
            await asyncio.wait(opening, timeout=CONNECT_TIMEOUT_S)
        if self._groups is not None:
            await self._groups.until_settled(JOIN_TIMEOUT_S)

    # -- in the loop ----------------------------------------------------------------------------------------------------

    async def _run(self, start_ns: int) -> None:
        self.progress.started_ns = start_ns
        self._background.start(self._sweep())
        self._background.start(self._meter.run())
        work = asyncio.ensure_future(self._send_and_wait(start_ns))
        try:
            await asyncio.wait([work, self._background.failed], return_when=asyncio.FIRST_COMPLETED)
            if self._background.failed.done():
                self._background.failed.result()
            await work
        finally:
            work.cancel()
            self._background.cancel()
            for client in self._clients.values():
                for each in client.parts:
                    each.give_up()
            self._view.close()
            self._write()
            if self._groups is not None and (figures := self._groups.to_json()) is not None:
                self._writes.append(self._writer.submit(self._keep, GROUPS, figures))
            self._writes.append(self._writer.submit(self._keep, GENERATOR, self._meter.to_json()))

    async def _send_and_wait(self, start_ns: int) -> None:
        await self._send_all(start_ns)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._plan.answer_timeout_s):
                await self._until_unanswered_below(1)
        producers = [each for client in self._clients.values() for each in client.producing.values()]
        await asyncio.gather(*(each.abort() for each in producers if isinstance(each, TransactionalProducer)))
        self._write()
        if self._groups is not None:
            await self._groups.leave()

    def _expect(self, coming: Mapping[Reader, list[ComingFetch]]) -> None:
        for reader, fetches in coming.items():
            self._fetching(*reader).expect(fetches)

    def _connect_ahead(self, lanes: Iterable[tuple[Any, ...]]) -> list[asyncio.Task[None]]:
        return [
            task
            for client, topic, partition, acks, transactional_id in lanes
            for task in self._producing(client, acks, transactional_id).connect_ahead(
                TopicPartition(topic, partition), acks, self._connecting
            )
        ]

    async def _send_all(self, start_ns: int) -> None:
        turn_began = self._now()
        request: list[Row] = []
        while (rows := await self._rows.get()) is not None and not self._stopping:
            self._room.release()
            for row in rows:
                # Rows of one request follow each other; they leave together.
                if request and (row.request != request[0].request or row.client != request[0].client):
                    if not await self._send_when_due(request, start_ns):
                        return
                    request = []
                    if self._now() - turn_began > TURN_NS:
                        await asyncio.sleep(0)
                        turn_began = self._now()
                request.append(row)
        if request:
            await self._send_when_due(request, start_ns)

    async def _send_when_due(self, rows: Sequence[Row], start_ns: int) -> bool:
        """Returns False if nothing more is to be sent."""
        first = rows[0]
        scheduled = 0 if first.due is None else start_ns + first.due
        while True:
            await self._until_unanswered_below(self._unanswered_max)
            if self._stopping:
                return False
            ready = self._now()
            if ready >= scheduled:
                break
            await asyncio.sleep(min(max((scheduled - ready) / 1e9, TIMER_S), 0.2))
        scheduled = scheduled or ready
        operations = [self._operation(row, scheduled) for row in rows]
        client = self._client(first.client)
        self._unanswered += len(operations)
        self.progress.sent += len(operations)
        self.progress.unanswered = self._unanswered
        self.progress.late_ns = ready - scheduled
        for operation in operations:
            operation.ready = ready
        if first.op != FETCH:
            producing = self._producing(first.client, first.acks, first.transactional_id)
            for operation in operations:
                operation.client = producing.number
                producing.add(operation)
            producing.flush()
        else:
            for operation in operations:
                operation.client = client.number
            self._fetching(first.client, first.group, bool(first.read_committed)).add(operations)
        return True

    async def _until_unanswered_below(self, limit: int) -> None:
        while self._unanswered >= limit and not (self._stopping and limit > 1):
            self._awaited = limit
            self._is_below.clear()
            await self._is_below.wait()

    def _operation(self, row: Row, scheduled: int) -> Operation:
        operation = Operation(row.op, row.request, 0, row.topic, row.partition, row.records, row.bytes, scheduled)
        if row.op == PRODUCE:
            operation.acks = row.acks
            operation.compression = COMPRESSION_CODES[row.compression]
            if row.key_bytes is not None:
                operation.key_size, operation.keys = row.key_bytes, row.keys
                operation.is_compacted = row.topic in self._plan.compacted
        elif row.op == OFFSETS:
            operation.group = f"{self._plan.transactional_ids}{row.group}"
        elif row.op == FETCH:
            operation.min_bytes, operation.max_wait_ms, operation.max_bytes = (
                row.min_bytes,
                row.max_wait_ms,
                row.max_bytes,
            )
            operation.recorded_offset, operation.behind = row.offset, row.behind
            operation.read_committed = row.read_committed
        return operation

    def _client(self, name: str) -> _Client:
        client = self._clients.get(name)
        if client is None:
            client = self._clients[name] = _Client(self._new_number(name))
        return client

    def _new_number(self, name: str) -> int:
        """Of a client, or of one of its producers, which the stamps name."""
        if len(self._names) >> CLIENT_BITS:
            raise LoadError(f"a task has more than {1 << CLIENT_BITS:,} clients; use more --tasks, or fewer --clients")
        self._names.append(name)
        return self._task << CLIENT_BITS | len(self._names) - 1

    def _producing(self, name: str, acks: int, transactional_id: str | None) -> ProducingClient | TransactionalProducer:
        client, key = self._client(name), (acks, transactional_id)
        if key not in client.producing:
            plan, number = self._plan, self._new_number(name)
            timeout_ns = int(plan.answer_timeout_s * 1e9)
            common = (name, number, plan.run, self._view, self._background, self._now, timeout_ns)
            if transactional_id is None:
                client.producing[key] = ProducingClient(*common, self._done)
            else:
                own_id = f"{plan.transactional_ids}{plan.run:08x}-{number}-{transactional_id}"
                client.producing[key] = TransactionalProducer(*common, self._done, own_id, plan.start_offsets)
        return client.producing[key]

    def _fetching(self, name: str, group: str | None, is_committed: bool) -> FetchingClient:
        client, key = self._client(name), (group, is_committed)
        if key not in client.fetching:
            plan = self._plan
            timeout_ns = int(plan.answer_timeout_s * 1e9)
            client.fetching[key] = FetchingClient(
                name,
                self._view,
                self._background,
                self._now,
                timeout_ns,
                self._done,
                self._connecting,
                self._groups,
                group,
                merges=plan.pace is not None,
                read_committed=is_committed,
            )
        return client.fetching[key]

    def _done(self, operation: Operation) -> None:
        operation.ready = self._meter.ready_since(operation.ready, operation.sent or self._now())
        if operation.answered:
            operation.unheard = self._meter.unheard_since(operation.sent, operation.answered)
        if self._plan.pace is None and operation.sent:
            operation.scheduled = operation.sent  # a closed loop has no schedule
        self._unanswered -= 1
        progress = self.progress
        progress.unanswered = self._unanswered
        if operation.error is not None:
            progress.failed += 1
        elif operation.op == PRODUCE:
            progress.acknowledged += 1
            progress.bytes += operation.bytes
        else:
            progress.received += operation.records
            progress.bytes += operation.bytes
        self._finished.append(operation)
        if len(self._finished) >= FINISHED_AT_ONCE:
            self._collect()
        if len(self._tables) * FINISHED_AT_ONCE >= ROWS_OF_A_FILE or time.monotonic() - self._written_at > FILE_S:
            self._write()
        if self._unanswered < self._awaited:
            self._is_below.set()

    def _collect(self) -> None:
        if self._finished:
            self._tables.append(table_of(self._finished, self._names, self._task))
            self._finished = []

    def _write(self) -> None:
        self._collect()
        tables, self._tables = self._tables, []
        self._written_at = time.monotonic()
        self._writes = [write for write in self._writes if not write.done() or write.exception() is not None]
        if tables:
            self._writes.append(self._writer.submit(lambda: self._keep(OPERATIONS, parquet_of(tables))))

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            for client in self._clients.values():
                for each in client.parts:
                    each.expire()


def lanes_of(batch: pyarrow.RecordBatch) -> list[tuple[Any, ...]]:
    """Client, topic, partition, acks and transactional id of the batch's produces, each once."""
    return distinct(batch, PRODUCE, "client", "topic", "partition", "acks", "transactional_id")


def distinct(batch: pyarrow.RecordBatch, op: str, *columns: str) -> list[tuple[Any, ...]]:
    rows = pyarrow.Table.from_batches([batch.filter(pyarrow.compute.equal(batch["op"], op))]).select(columns)
    return list(zip(*rows.group_by(list(columns)).aggregate([]).to_pydict().values(), strict=True))
