"""Records of an answer leave from their file, and the client gets the same bytes as if they were read."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from broker.network.connection import ClientConnection, Limits
from broker.network.processor import Processor
from broker.network.request_channel import Request, RequestChannel
from broker.process.clock import SystemClock
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.framing import Part, StoredBytes, in_memory
from protocol.types import Buffer

MIB = 1024 * 1024
LIMITS = Limits(frame_bytes_max=MIB, in_flight_max=100, frame_timeout_s=60.0, idle_timeout_s=None)
CONTENT = os.urandom(16 * MIB)


class Slice(StoredBytes):
    """A part of the file with CONTENT."""

    was_read = False

    def __init__(self, descriptor: int, position: int, size: int) -> None:
        super().__init__(position, size)
        self.file = descriptor

    def descriptor(self) -> int:
        return self.file

    def read(self, start: int = 0) -> Buffer:
        self.was_read = True
        return os.pread(self.file, self.size - start, self.position + start)


class Lost(Slice):
    """The disk fails when it is read."""

    def read(self, start: int = 0) -> Buffer:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)


@pytest.fixture
def descriptor(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "records").write_bytes(CONTENT)
    opened = os.open(tmp_path / "records", os.O_RDONLY)
    yield opened
    os.close(opened)


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=request.param) as found:
        yield found


class Client:
    """A connected client, and its requests as the broker has them."""

    async def connect(self, requests: int) -> None:
        """Sends so many requests. They are answered by the test, which can then read."""
        self.handled: list[Request] = []
        all_are_here = asyncio.Event()

        def handle(request: Request) -> None:
            self.handled.append(request)
            if len(self.handled) == requests:
                all_are_here.set()

        loop = asyncio.get_running_loop()
        channel = RequestChannel(loop, handle, max_requests=500, max_large_bytes=-1)
        processor = Processor(channel, LIMITS, SystemClock(), lambda _: True, lambda _: None)
        self.server = await loop.create_server(lambda: ClientConnection(processor, "PLAINTEXT"), "127.0.0.1", 0)
        self.reader, self.writer = await asyncio.open_connection(*self.server.sockets[0].getsockname())
        for number in range(requests):
            self.writer.write(struct.pack(">ihhih", 10, 3, 1, number, -1))
        await all_are_here.wait()

    def answer(self, number: int, *parts: Part) -> None:
        self.handled[number].connection.answer_records(number, parts)

    async def close(self) -> None:
        self.writer.close()
        self.server.close()
        await self.server.wait_closed()


def test_the_client_gets_the_same_bytes_in_order(runner: asyncio.Runner, descriptor: int) -> None:
    """An answer before its turn, one that the socket takes at once, and several that it cannot take while the client does not read."""

    async def run() -> None:
        client = Client()
        await client.connect(5)
        early, small = Slice(descriptor, 7, 1000), Slice(descriptor, 0, 100_000)
        client.answer(1, b"early", early, b"end")
        client.answer(0, b"head", small, b"between", Slice(descriptor, 5, 50), b"tail")
        assert (early.was_read, small.was_read) == (True, False)
        await asyncio.sleep(0)  # the early answer leaves the transport before the next is written
        large = Slice(descriptor, MIB, 12 * MIB)
        client.answer(2, b"large", large, b"end")
        assert large.was_read, "the socket does not take 12 MiB that nobody reads"
        later = Slice(descriptor, 3, 200_000)
        client.answer(3, later)
        client.answer(4, b"last")
        expected = b"".join(
            (b"head", CONTENT[:100_000], b"between", CONTENT[5:55], b"tail", b"early", CONTENT[7:1007], b"end", b"large",
             CONTENT[MIB : 13 * MIB], b"end", CONTENT[3:200_003], b"last")
        )  # fmt: skip
        assert await client.reader.readexactly(len(expected)) == expected
        assert later.was_read
        await client.close()

    runner.run(run())


def test_a_disk_that_fails_within_an_answer_ends_the_connection(runner: asyncio.Runner, descriptor: int) -> None:
    async def run() -> None:
        client = Client()
        await client.connect(2)
        client.answer(0, b"head", Lost(descriptor, 0, 16 * MIB), b"tail")
        client.answer(1, b"never")
        got = await client.reader.read()
        assert 4 < len(got) < 16 * MIB
        assert got == b"head" + CONTENT[: len(got) - 4]
        await client.close()

    runner.run(run())


@given(st.lists(st.tuples(st.binary(max_size=9), st.booleans())), st.integers(0, 60))
def test_the_rest_of_an_answer(parts: list[tuple[bytes, bool]], start: int) -> None:
    class Kept(StoredBytes):
        def __init__(self, data: bytes) -> None:
            super().__init__(0, len(data))
            self.data = data

        def read(self, start: int = 0) -> Buffer:
            return self.data[start:]

    made: list[Part] = [Kept(data) if is_stored else data for data, is_stored in parts]
    assert b"".join(in_memory(made, start)) == b"".join(data for data, _ in parts)[start:]
