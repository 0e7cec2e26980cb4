"""The process of the links: forwards bytes between brokers, and to ZooKeeper, as the rules allow.

    broker 1 --connects--> the links' port of broker 2 --connects--> broker 2

A port listens only while its target does, so that a connection to a dead process is refused, as it is without links (CTL-16). While a
rule touches the target, its port listens in any case: silence must not turn into a refusal.

A connection that was open when its link was cut stays open. Its bytes, and its end, wait and arrive after the heal, as TCP would send
them again. A connection that is made during a cut, in either direction, is accepted, but forwards nothing. The client times out, as
after a lost SYN. After the heal the connection continues, unless the client has given up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

from tools.cluster.links.rules import Effect, Link, Rule, effect_on
from tools.cluster.links.sources import source_of
from tools.cluster.links.wiring import Port
from tools.cluster.ports import LOCAL_HOST, is_free

CHUNK = 64 * 1024
SLOW_CHUNK = 4 * 1024
"""Bytes forwarded at once on a link with a limited rate."""
CHUNKS_UNDER_WAY = 16
"""Chunks of one direction of a connection that wait for their time. More are not read: the sender waits."""
CONNECTIONS_MAX = 4096
LISTEN_CHECK_S = 0.05
GIVEN_UP_CHECK_S = 0.5
"""How often a connection that waits for a heal is checked for a client that has given up."""
SOURCE_TRIES, SOURCE_PAUSE_S = 5, 0.05
CONNECT_TIMEOUT_S = 10.0
TCP_ESTABLISHED = 1
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: close sends a reset."""

log = logging.getLogger("links")


class LinkState:
    """What is wrong with one link now. All connections over the link share it."""

    def __init__(self, effect: Effect) -> None:
        self.effect = effect
        self._is_open = asyncio.Event()
        self._free_at = 0.0
        self.set(effect)

    def set(self, effect: Effect) -> None:
        self.effect = effect
        if effect.is_cut:
            self._is_open.clear()
        else:
            self._is_open.set()

    async def wait_open(self) -> None:
        while self.effect.is_cut:
            await self._is_open.wait()

    async def wait_turn(self, size: int) -> None:
        """Waits until `size` more bytes fit into the rate of the link."""
        rate = self.effect.bits_per_s
        if rate is None:
            return
        now = asyncio.get_running_loop().time()
        self._free_at = max(self._free_at, now) + 8 * size / rate
        await asyncio.sleep(self._free_at - now)


class Proxy:
    """All ports, links and connections. `directory`: the run directory, in which the brokers' pids are found."""

    def __init__(self, directory: Path, ports: Iterable[Port]) -> None:
        self._directory = directory
        self._ports = [_Listener(port, self._accepted) for port in ports]
        self._links: dict[Link, LinkState] = {}
        self._rules: dict[str, Rule] = {}
        self._connections: set[_Connection] = set()

    @property
    def rules(self) -> list[Rule]:
        return list(self._rules.values())

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def add(self, rules: Iterable[Rule]) -> None:
        """Takes effect at once. A rule with a known id replaces the earlier one."""
        self._rules |= {rule.id: rule for rule in rules}
        self._apply()

    def remove(self, ids: Iterable[str] | None) -> None:
        """None: all rules."""
        for rule in list(self._rules) if ids is None else ids:
            self._rules.pop(rule, None)
        self._apply()

    async def run(self) -> None:
        """Until it is cancelled."""
        try:
            while True:
                await self._follow_targets()
                await asyncio.sleep(LISTEN_CHECK_S)
        finally:
            for listener in self._ports:
                listener.close()
            for connection in list(self._connections):
                connection.reset()

    async def _follow_targets(self) -> None:
        for listener in self._ports:
            await listener.follow(is_touched=self._is_touched(listener.port))

    def _is_touched(self, port: Port) -> bool:
        return any(port.target == rule.of or port.target in rule.others for rule in self._rules.values())

    def _apply(self) -> None:
        for link, state in self._links.items():
            state.set(effect_on(link, self._rules.values()))
        for connection in list(self._connections):
            if connection.is_to_be_reset():
                connection.reset()

    def _state(self, link: Link) -> LinkState:
        if link not in self._links:
            self._links[link] = LinkState(effect_on(link, self._rules.values()))
        return self._links[link]

    async def _accepted(self, port: Port, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= CONNECTIONS_MAX:
            log.warning("more than %d connections: one to %s is reset", CONNECTIONS_MAX, port.target)
            _reset(writer)
            return
        source = port.source or await self._find_source(port, writer)
        if source is None:
            log.info("a connection to %s (%s) is reset: no broker of this cluster made it", port.target, port.plane)
            _reset(writer)
            return
        there = Link(source, port.target, port.plane)
        connection = _Connection(reader, writer, self._state(there), self._state(there.back))
        self._connections.add(connection)
        try:
            await connection.run(port.addresses)
        except OSError as problem:
            log.info("%s -> %s (%s): %s", source, port.target, port.plane, problem or type(problem).__name__)
        finally:
            connection.reset_unless_closed()
            self._connections.discard(connection)
        await self._follow_targets()

    async def _find_source(self, port: Port, writer: asyncio.StreamWriter) -> str | None:
        client_port = writer.get_extra_info("peername")[1]
        for _ in range(SOURCE_TRIES):
            source = await asyncio.to_thread(source_of, self._directory, client_port, port.port)
            if source is not None or _has_given_up(writer):
                return source
            await asyncio.sleep(SOURCE_PAUSE_S)
        return None


class _Listener:
    """A port, which listens while its target does."""

    def __init__(
        self,
        port: Port,
        accepted: Callable[[Port, asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]],
    ) -> None:
        self.port = port
        self._accepted = accepted
        self._server: asyncio.Server | None = None
        self._is_changing = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def follow(self, *, is_touched: bool) -> None:
        if self._is_changing:
            return
        is_wanted = is_touched or any(_listens(address) for address in self.port.addresses)
        if is_wanted and self._server is None:
            self._is_changing = True
            try:
                self._server = await asyncio.start_server(self._accept, LOCAL_HOST, self.port.port, limit=CHUNK)
            except OSError as problem:
                log.error("port %d cannot be used: %s", self.port.port, problem)
            finally:
                self._is_changing = False
        elif not is_wanted:
            self.close()

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._accepted(self.port, reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Connection:
    """A client's connection, and the one to the target that continues it."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, there: LinkState, back: LinkState
    ) -> None:
        self._reader = reader
        self._client = writer
        self._there = there
        self._back = back
        self._target: asyncio.StreamWriter | None = None

    def is_to_be_reset(self) -> bool:
        return self._there.effect.resets or self._back.effect.resets

    def reset_unless_closed(self) -> None:
        for writer in (self._client, self._target):
            if writer is not None and not writer.transport.is_closing():
                _reset(writer)

    def reset(self) -> None:
        _reset(self._client)
        if self._target is not None:
            _reset(self._target)

    async def run(self, addresses: Iterable[str]) -> None:
        """Returns at the end of the connection. Raises OSError if the target refuses."""
        if self.is_to_be_reset() or not await self._wait_for_a_way():
            return
        reader, self._target = await _connect(addresses)
        if self.is_to_be_reset():
            return
        for writer in (self._client, self._target):
            writer.transport.set_write_buffer_limits(0)  # `drain` returns when the kernel has all
        # The end of one direction, a half-close, leaves the other one open.
        async with asyncio.TaskGroup() as group:
            group.create_task(_Pump(self._reader, self._target, self._there, self.reset).run())
            group.create_task(_Pump(reader, self._client, self._back, self.reset).run())
        self._client.close()
        self._target.close()

    async def _wait_for_a_way(self) -> bool:
        """Waits until both directions are open. False: the client has given up."""
        while self._there.effect.is_cut or self._back.effect.is_cut:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GIVEN_UP_CHECK_S):
                    await self._there.wait_open()
                    await self._back.wait_open()
            if _has_given_up(self._client) or self.is_to_be_reset():
                return False
        return True


class _Pump:
    """One direction of a connection: a reader, and a writer that waits until bytes are due.

    The end of the sender's connection travels like its bytes, so it is late on a slow link, and waits on a cut one. If the receiver's
    connection ends, the sender learns that from the other direction.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        link: LinkState,
        reset_both: Callable[[], None],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._link = link
        self._reset_both = reset_both
        self._under_way: asyncio.Queue[tuple[float, bytes | None]] = asyncio.Queue(CHUNKS_UNDER_WAY)

    async def run(self) -> None:
        """Until the end of the direction."""
        reading = asyncio.create_task(self._read())
        try:
            await self._write()
        except OSError:
            return  # the receiver is gone
        finally:
            reading.cancel()

    async def _read(self) -> None:
        """Queues chunks with the time at which they are due; at the end b"", or None after a reset."""
        now = asyncio.get_running_loop().time
        chunk: bytes | None = b"first"
        while chunk:
            await self._link.wait_open()
            try:
                chunk = await self._reader.read(SLOW_CHUNK if self._link.effect.bits_per_s is not None else CHUNK)
            except OSError:
                chunk = None
            await self._under_way.put((now() + self._link.effect.delay_s, chunk))

    async def _write(self) -> None:
        now = asyncio.get_running_loop().time
        while True:
            due, chunk = await self._under_way.get()
            if due > now():
                await asyncio.sleep(due - now())
            await self._link.wait_turn(len(chunk or b""))
            await self._link.wait_open()
            if chunk is None:
                _reset(self._writer)
                return
            if not chunk:
                with contextlib.suppress(OSError, RuntimeError):
                    self._writer.write_eof()
                return
            halves = self._link.effect.halves
            self._writer.write(chunk[: len(chunk) // 2] if halves else chunk)
            await self._writer.drain()
            if halves:
                self._reset_both()
                return


async def _connect(addresses: Iterable[str]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """The first address that answers. Raises OSError."""
    problem: OSError = ConnectionRefusedError("no address")
    for address in addresses:
        host, _, port = address.rpartition(":")
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                return await asyncio.open_connection(host.strip("[]"), int(port), limit=CHUNK)
        except OSError as error:
            problem = error
    raise problem


def _listens(address: str) -> bool:
    """Whether somebody listens there. Other machines are not asked: their addresses count as listening."""
    host, _, port = address.rpartition(":")
    return host != LOCAL_HOST or not is_free(host, int(port))


def _has_given_up(writer: asyncio.StreamWriter) -> bool:
    """Whether the client has closed its end. Unread bytes hide that from `read`; the kernel knows."""
    if writer.transport.is_closing():
        return True
    tcp_socket = writer.get_extra_info("socket")
    if not hasattr(socket, "TCP_INFO"):
        return False
    try:
        state: int = tcp_socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    except OSError:
        return True
    return state != TCP_ESTABLISHED


def _reset(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, AttributeError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.transport.abort()
