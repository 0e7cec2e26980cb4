"""What the links do to real connections: a cut is silent and late, not lossy; resets, halves, delays, rates; bad input is survived."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from protocol.json_lines import LINE_MAX, short_path
from tools.cluster.links import control_server
from tools.cluster.links.control import LinksControl, NoLinks
from tools.cluster.links.proxy import Proxy
from tools.cluster.links.rules import SESSIONS, ZOOKEEPER, Effect, Rule
from tools.cluster.links.wiring import Port
from tools.cluster.ports import LOCAL_HOST, free_ports

CUT = Effect(is_cut=True)
SILENCE_S = 0.15
WAIT_S = 10.0


class Target:
    """A server that answers each line with the same line, and remembers what it heard."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.heard = b""
        self.ended = asyncio.Event()
        self.connections = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, LOCAL_HOST, self.port)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(OSError):
            while chunk := await reader.read(1 << 20):
                self.heard += chunk
                writer.write(chunk)
                await writer.drain()
        self.ended.set()
        writer.close()


class World:
    """Broker 1 connects to `port`; behind it is the target, as ZooKeeper."""

    def __init__(self, proxy: Proxy, target: Target, port: int) -> None:
        self.proxy = proxy
        self.target = target
        self.port = port

    def break_link(self, effect: Effect, direction: str = "both") -> None:
        self.proxy.add([Rule("r", "1", frozenset({ZOOKEEPER}), effect, direction)])

    def heal(self) -> None:
        self.proxy.remove(None)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                return await asyncio.open_connection(LOCAL_HOST, self.port)
            except ConnectionRefusedError:
                assert time.monotonic() < deadline, "the port listens soon after its target does"
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def a_world() -> AsyncIterator[World]:
    port, behind = free_ports(2)
    target = Target(behind)
    proxy = Proxy(Path("/nonexistent"), [Port(port, ZOOKEEPER, SESSIONS, (f"{LOCAL_HOST}:{behind}",), source="1")])
    running = asyncio.create_task(proxy.run())
    await target.start()
    try:
        yield World(proxy, target, port)
    finally:
        await target.stop()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


@pytest.fixture
def world() -> contextlib.AbstractAsyncContextManager[World]:
    return a_world()


async def answered(reader: asyncio.StreamReader, size: int) -> bytes:
    async with asyncio.timeout(WAIT_S):
        return await reader.readexactly(size)


async def until(check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not check():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def is_silent(reader: asyncio.StreamReader) -> bool:
    try:
        async with asyncio.timeout(SILENCE_S):
            return not await reader.read(1) and False
    except TimeoutError:
        return True


async def test_bytes_and_ends_pass(world: World) -> None:
    reader, writer = await world.connect()
    sent = bytes(range(256)) * 20_000
    writer.write(sent)
    writer.write_eof()
    assert await answered(reader, len(sent)) == sent
    assert await reader.read() == b""
    await asyncio.wait_for(world.target.ended.wait(), WAIT_S)


@pytest.mark.parametrize("direction", ["both", "in", "out"])
async def test_a_cut_is_silent_and_what_was_said_arrives_after_the_heal(world: World, direction: str) -> None:
    """FLT-10, FLT-12, FLT-19: nothing is lost or doubled, and in one direction only with a one-way cut."""
    reader, writer = await world.connect()
    writer.write(b"before")
    assert await answered(reader, 6) == b"before"
    world.break_link(CUT, direction)
    writer.write(b"during")
    writer.write_eof()
    assert await is_silent(reader)
    arrived = world.target.heard == b"beforeduring"
    assert arrived is (direction == "in"), "deaf: it is heard, and hears nothing"
    assert world.target.ended.is_set() is arrived, "its end is as silent as its words"
    world.heal()
    assert await answered(reader, 6) == b"during"
    assert await reader.read() == b""
    assert world.target.heard == b"beforeduring"


@pytest.mark.parametrize("direction", ["both", "in", "out"])
async def test_a_connection_made_during_a_cut_gets_no_further(world: World, direction: str) -> None:
    """As with a SYN, or its answer, that is lost. After the heal it goes on, unless the client has given up."""
    world.break_link(CUT, direction)
    patient_reader, patient = await world.connect()
    patient.write(b"patient")
    _, impatient = await world.connect()
    impatient.write(b"impatient")
    impatient.close()
    assert await is_silent(patient_reader)
    assert world.target.connections == 0
    world.heal()
    assert await answered(patient_reader, 7) == b"patient"
    await until(lambda: world.proxy.connection_count == 1)
    assert world.target.heard == b"patient"


async def test_a_dead_target_refuses_and_a_cut_one_does_not(world: World) -> None:
    """CTL-16: a refusal proves a death, so a link that is cut must not refuse."""
    reader, writer = await world.connect()
    writer.write(b"x")
    assert await answered(reader, 1) == b"x"
    await world.target.stop()
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                _, late = await asyncio.open_connection(LOCAL_HOST, world.port)
                late.close()
            except ConnectionRefusedError:
                break
            await asyncio.sleep(0.01)
    world.break_link(CUT)
    held_reader, held = await world.connect()
    assert await is_silent(held_reader)
    assert await is_silent(reader)
    held.close()
    writer.close()
    await world.target.start()


async def test_resets_hit_open_and_new_connections(world: World) -> None:
    """FLT-15."""
    reader, writer = await world.connect()
    writer.write(b"x")
    await answered(reader, 1)
    world.break_link(Effect(resets=True), "in")
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(reader.read(1), WAIT_S)
    again, _ = await world.connect()
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(again.read(1), WAIT_S)
    world.heal()
    reader, writer = await world.connect()
    writer.write(b"x")
    assert await answered(reader, 1) == b"x"


@pytest.mark.parametrize(("direction", "heard"), [("out", b"half"), ("in", b"halfhalf")])
async def test_half_of_a_message_arrives_and_then_a_reset(world: World, direction: str, heard: bytes) -> None:
    """FLT-18."""
    reader, writer = await world.connect()
    world.break_link(Effect(halves=True), direction)
    writer.write(b"halfhalf")
    got = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := await asyncio.wait_for(reader.read(100), WAIT_S):
            got += chunk
    await asyncio.wait_for(world.target.ended.wait(), WAIT_S)
    assert world.target.heard == heard
    assert got in ((b"",) if direction == "out" else (b"half", b""))  # a reset may overtake what was not read yet


async def test_a_delay_is_a_delay_and_not_a_rate(world: World) -> None:
    """FLT-17: many messages under way at once are late, but not each later than the one before."""
    reader, writer = await world.connect()
    world.break_link(Effect(delay_s=0.2), "out")
    began = time.monotonic()
    for _ in range(20):
        writer.write(b"x")
        await asyncio.sleep(0.005)
    await answered(reader, 20)
    assert time.monotonic() - began >= 0.2


async def test_a_rate_is_shared_by_the_connections_of_a_link(world: World) -> None:
    connections = [await world.connect() for _ in range(2)]
    world.break_link(Effect(bits_per_s=8 * 100_000.0), "out")
    began = time.monotonic()
    for _, writer in connections:
        writer.write(bytes(25_000))
    for reader, _ in connections:
        await answered(reader, 25_000)
    assert time.monotonic() - began >= 0.4, "50,000 bytes at 100,000 bytes per second, less one chunk"


async def test_bad_requests_are_answered_and_change_nothing(tmp_path: Path) -> None:
    """Also with a path that is too long for the address of a Unix socket."""
    directory = tmp_path / ("deep" * 30)
    directory.mkdir()
    path = directory / "control"

    def talk(links: LinksControl) -> list[str]:
        rule = Rule("r", "1", frozenset({ZOOKEEPER}), CUT)
        links.add([rule])
        said = []
        for line in (
            b"",
            b"[",
            b"[]",
            b"{}",
            b'{"add": [{}]}',
            b'{"remove": [1]}',
            b'{"show": true, "add": []}',
            b"\xff",
            b"[" * 5000,
        ):
            with short_path(path) as short, socket.socket(socket.AF_UNIX) as connection:
                connection.connect(short)
                connection.sendall(line + b"\n")
                said.append(json.loads(connection.makefile("rb").readline()).get("error", "no error"))
        with short_path(path) as short, socket.socket(socket.AF_UNIX) as connection:
            connection.connect(short)
            with contextlib.suppress(OSError):
                connection.sendall(b"x" * (LINE_MAX + 10))
                connection.recv(1)
        assert links.rules() == [rule]
        links.remove(["other"])
        assert links.rules() == [rule]
        links.remove(None)
        assert links.rules() == []
        with pytest.raises(NoLinks, match="the links refuse that: delay_s"):
            links.add([Rule("r", "1", frozenset({"2"}), Effect(delay_s=1e9))])
        return said

    server = await control_server.serve(Proxy(tmp_path, []), path)
    assert path.stat().st_mode & 0o777 == 0o600
    said = await asyncio.to_thread(talk, LinksControl(path))
    assert "no error" not in said
    server.close()
    with pytest.raises(NoLinks, match="do not answer"):
        LinksControl(tmp_path / "nobody").rules()
