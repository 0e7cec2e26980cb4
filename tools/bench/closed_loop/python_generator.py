"""The load generator in asyncio: for a machine without a C compiler, and for brokers that want TLS or SASL.

It does with a plan what `generator.c` does, and takes several times as much of the machine.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections import deque
from collections.abc import Sequence
from functools import partial

import uvloop

from protocol.errors import KafkaError
from protocol.kafka import messages, produce_codec
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.framing import MalformedRequest, read_unsigned_varint, skip_tagged_fields
from protocol.kafka.record_batch import iter_batches
from protocol.types import Buffer
from tools.bench.closed_loop.api_versions import PRODUCE_VERSION
from tools.bench.closed_loop.measurement import FIRST_ANSWER_S, Measurement, OnProgress, Progress, measurement, silent
from tools.bench.closed_loop.request_plan import CLIENT_ID, Frame, LoadFailed, Plan, PlannedConnection
from tools.wire import frames
from tools.wire.client import Client
from tools.wire.connection import BrokerConnection
from tools.wire.security import PLAINTEXT, Security


def run(plan: Plan, security: Security = PLAINTEXT, on_progress: OnProgress = silent) -> Measurement:
    """Runs the plan in this process. Raises LoadFailed."""
    return uvloop.run(_Run(plan, security, on_progress).run())


class _Run:
    """All connections of a plan, and what was measured since the warm-up."""

    def __init__(self, plan: Plan, security: Security, on_progress: OnProgress) -> None:
        self.plan = plan
        self.failed: asyncio.Future[None]
        self._client = Client(CLIENT_ID, security)
        self._on_progress = on_progress
        self._counts = False
        self._answered: asyncio.Future[None]
        self._latencies: list[float] = []
        self._records = self._bytes = 0
        self.sources: list[_Source] = []

    async def run(self) -> Measurement:
        self.failed = asyncio.get_running_loop().create_future()
        self._answered = asyncio.get_running_loop().create_future()
        opened: list[BrokerConnection] = []
        try:
            for number, planned in enumerate(self.plan.connections):
                ended = partial(self._connection_ended, number)
                try:
                    connection = await self._client.connect(planned.address, ended)
                except OSError as problem:
                    raise LoadFailed("connect", number, problem.errno or 0) from None
                opened.append(connection)
                self.sources.append(_Source(self, number, planned, connection))
            for source in self.sources:
                source.send()
            return await self._measured()
        finally:
            self._counts = False
            self.failed.cancel()
            for connection in opened:
                connection.close()

    def fail(self, what: str, connection: int, number: int) -> None:
        if not self.failed.done():
            self.failed.set_exception(LoadFailed(what, connection, number))

    def add(self, sent_at: float, records: int, size: int) -> None:
        if self._counts:
            self._latencies.append(time.perf_counter() - sent_at)
            self._records += records
            self._bytes += size
            if not self._answered.done():
                self._answered.set_result(None)

    async def _measured(self) -> Measurement:
        await self._passes(self.plan.warm_up_s)
        self._counts = True
        began, cpu = time.perf_counter(), time.process_time()
        for second in range(1, int(self.plan.seconds) + 1):
            await self._passes(began + second - time.perf_counter())
            self._on_progress(Progress(second, len(self._latencies), self._records, self._bytes))
        await self._passes(began + self.plan.seconds - time.perf_counter())
        await self._passes(FIRST_ANSWER_S, self._answered)
        elapsed = time.perf_counter() - began
        count = len(self._latencies)
        return measurement(count, self._records, self._bytes, elapsed, self._latencies, time.process_time() - cpu)

    async def _passes(self, seconds: float, *unless: asyncio.Future[None]) -> None:
        """Returns after the time, or when one of `unless` is done. Raises LoadFailed at once if the load fails."""
        done, _ = await asyncio.wait(
            [self.failed, *unless], timeout=max(seconds, 0), return_when=asyncio.FIRST_COMPLETED
        )
        for future in done:
            future.result()

    def _connection_ended(self, number: int, _: BrokerConnection) -> None:
        self.fail("closed", number, 0)


class _Source:
    """One connection and its requests."""

    def __init__(self, run: _Run, number: int, planned: PlannedConnection, connection: BrokerConnection) -> None:
        self._run = run
        self._number = number
        self._planned = planned
        self._connection = connection
        self._next_frame = self._unanswered = 0
        self._offsets = deque([planned.start] * planned.in_flight)
        """Where the next fetches continue."""
        self._unfetched: deque[float] = deque()
        """When the batches of a paired producer were sent that were not fetched yet."""
        self._next_batch = planned.start

    def send(self) -> None:
        planned = self._planned
        while self._unanswered < planned.in_flight and len(self._unfetched) < planned.in_flight:
            frame = self._run.plan.frames[planned.first_frame + self._next_frame]
            self._next_frame = (self._next_frame + 1) % planned.frames
            now = time.perf_counter()
            data: bytes | bytearray = frame.data
            if planned.kind == "fetch":
                offset = self._offsets.popleft()
                if 0 <= planned.end <= offset:
                    offset = planned.start
                data = bytearray(data)
                struct.pack_into(">q", data, frame.offset_at, offset)
                self._connection.send(data, partial(self._fetched, now, offset, frame.version))
            else:
                if planned.kind == "paired":
                    self._unfetched.append(now)
                self._connection.send(data, partial(self._produced, now, frame))
            self._unanswered += 1

    def _produced(self, sent_at: float, frame: Frame, answer: memoryview | None) -> None:
        if answer is None:
            return
        self._unanswered -= 1
        try:
            code = produced_error(answer, frame.version)
        except (MalformedRequest, struct.error, IndexError):
            self._run.fail("malformed", self._number, 0)
            return
        if code:
            self._run.fail("code", self._number, code)
            return
        if self._planned.kind == "produce":
            self._run.add(sent_at, frame.records, frame.payload)
        self.send()

    def _fetched(self, sent_at: float, offset: int, version: int, answer: memoryview | None) -> None:
        if answer is None:
            return
        self._unanswered -= 1
        records = size = 0
        try:
            code, buffers = fetched(answer, version)
            for buffer in buffers:
                for _, header in iter_batches(buffer):
                    records += header.record_count
                    size += header.size_in_bytes
                    offset = header.next_offset
                    if self._planned.peer >= 0:
                        self._run.sources[self._planned.peer].batch_came(
                            self._number, header.base_offset, header.record_count, header.size_in_bytes
                        )
        except (MalformedRequest, KafkaError, struct.error, IndexError):
            self._run.fail("malformed", self._number, 0)
            return
        if code:
            self._run.fail("code", self._number, code)
            return
        if self._planned.peer >= 0:
            self._run.sources[self._planned.peer].send()
        elif records:
            self._run.add(sent_at, records, size)
        self._offsets.append(offset)
        self.send()

    def batch_came(self, consumer: int, base_offset: int, records: int, size: int) -> None:
        """The batch that a paired producer sent first of those that were not fetched."""
        if base_offset != self._next_batch or not self._unfetched:
            self._run.fail("foreign batch", consumer, 0)
            return
        self._next_batch += records
        self._run.add(self._unfetched.popleft(), records, size)


def produced_error(answer: memoryview, version: int = PRODUCE_VERSION) -> int:
    """The first error code in an answer, or 0. Raises MalformedRequest, struct.error, IndexError if it is cut off."""
    if version < produce_codec.FLEXIBLE_SINCE:
        _, found = messages.decode_response(ApiKey.PRODUCE, version, answer)
        codes = (
            int(of_partition.error_code) for topic in found.responses for of_partition in topic.partition_responses
        )
        return next((code for code in codes if code), 0)
    topics, at = read_unsigned_varint(answer, skip_tagged_fields(answer, 4))
    for _ in range(topics - 1):
        size, at = read_unsigned_varint(answer, at)
        partitions, at = read_unsigned_varint(answer, at + size - 1)
        for _ in range(partitions - 1):
            code = int(struct.unpack_from(">h", answer, at + 4)[0])
            if code:
                return code
            at += 30
            _, at = read_unsigned_varint(answer, at)  # no record errors without an error
            message, at = read_unsigned_varint(answer, at)
            at = skip_tagged_fields(answer, at + max(message - 1, 0))
        at = skip_tagged_fields(answer, at)
    return 0


def fetched(answer: memoryview, version: int) -> tuple[int, Sequence[Buffer]]:
    """The first error code in an answer for one partition, and its records. Raises MalformedRequest."""
    if version == frames.FETCH_VERSION:
        response = frames.fetched(answer)
        data = response.topics[0][1][0] if response.topics else None
        code = response.error or (data.error if data else 0)
        return code, data.records if data and not code else ()
    _, found = messages.decode_response(ApiKey.FETCH, version, answer)
    code = int(getattr(found, "error_code", 0))
    if code or not found.responses:
        return code, ()
    of_partition = found.responses[0].partitions[0]
    code = int(of_partition.error_code)
    return code, [of_partition.records] if of_partition.records and not code else ()
