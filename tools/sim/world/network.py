"""Hosts and the TCP connections between them.

A connection is two byte streams. Bytes arrive in order, some time after they were sent, in pieces that the seed cuts anywhere. What the
receiver does not read fills its buffer, and then the sender's: flow control as of a kernel. The network shows what a kernel shows:

    a process ends               its connections end (reset, if it had not read everything), new ones are refused
    a host loses power           nothing comes from it; when it is up again, it resets connections that it does not know
    a link is cut                nothing passes in that direction; when it is healed, what was sent arrives: for some links soon, for others
                                 when the sender's kernel sends it again, which it does ever less often (as TCP), while a new connection
                                 comes through
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from protocol.errors import KafkaError
from protocol.kafka.framing import Part, StoredBytes
from protocol.types import Address
from tools.sim.world.scheduler import Scheduler

if TYPE_CHECKING:
    from tools.sim.world.event_loop import ProcessLoop

LATENCY_S = 0.000_2
"""Mean time of a piece on its way, beside LATENCY_S_MIN."""
LATENCY_S_MIN = 0.000_05
CAPACITY = 64 * 1024
"""Bytes of one direction that a sender's kernel takes before the receiver has read them."""
FIRST_PORT = 32_768
RETRANSMISSION_S = 1.0
REPEATED_AFTER_S = 0.2
"""After that time, what has not arrived is sent again; then after twice as long, and so on."""
CUT_ONE_OF = 8
"""One of so many reads gets only a part of what is there."""
HIGH_WATER = 64 * 1024


class _Held(NamedTuple):
    """Something that waits on a link that is cut, since it was sent. `not_before`: when what was sent before it arrives."""

    call: Callable[..., None]
    args: tuple[Any, ...]
    since: float
    not_before: float


def repeated_at(sent_at: float, now: float) -> float:
    """When a kernel sends again what it has sent at that time and what has not arrived: the first of its repetitions from `now` on."""
    pause_s = REPEATED_AFTER_S
    while sent_at + pause_s < now:
        sent_at += pause_s
        pause_s *= 2
    return sent_at + pause_s


class Network:
    """All hosts. `record(what, *details)` is told of everything that arrives."""

    def __init__(self, scheduler: Scheduler, record: Callable[..., None]) -> None:
        self.scheduler = scheduler
        self.record = record
        self.hosts: dict[str, Host] = {}
        self._cuts: dict[tuple[str, str], int] = {}
        self._slow: list[tuple[str, float, Collection[str]]] = []
        self._held: dict[tuple[str, str], list[_Held]] = {}
        self._floors: dict[tuple[tuple[str, str], object], float] = {}
        """(link, connection) -> when the last of what a cut had held arrives: what is sent later arrives later."""
        self._numbers = itertools.count(1)

    def host(self, name: str) -> Host:
        if name not in self.hosts:
            self.hosts[name] = Host(self, name)
        return self.hosts[name]

    def cut(self, source: str, target: str) -> None:
        """Nothing passes from one host to the other until `heal`. Cuts count: each needs its own `heal`."""
        self._cuts[source, target] = self._cuts.get((source, target), 0) + 1

    def heal(self, source: str, target: str) -> None:
        link = (source, target)
        self._cuts[link] -= 1
        if not self._cuts[link]:
            del self._cuts[link]
            self._release(link, self._held.pop(link, []))

    def _release(self, link: tuple[str, str], held: Sequence[_Held]) -> None:
        """What waited arrives, each connection's in its order. Some connections are quiet until their next repetition."""
        now, are_quiet = self.scheduler.now, self.scheduler.random.random() < 0.5
        for one in held:
            to = getattr(one.call, "__self__", None)
            floor = self._floors.get((link, to))
            if floor is None:
                floor = repeated_at(one.since, now) if are_quiet and isinstance(to, SimulatedTransport) else now
            arrival = self._floors[link, to] = max(floor, now, one.not_before) + self.delay()
            self.scheduler.call_at(arrival, one.call, *one.args)

    def slow_down(self, host: str, mean_s: float, spared: Collection[str] = ()) -> Callable[[], None]:
        """Everything from and to that host takes so much longer, except from and to some, until the result is called."""
        slow = (host, mean_s, spared)
        self._slow.append(slow)
        return partial(self._slow.remove, slow)

    def delay(self) -> float:
        return LATENCY_S_MIN + self.scheduler.soon(LATENCY_S)

    def carry(self, source: Host, target: Host, not_before: float, call: Callable[..., None], *args: Any) -> float:
        """Calls `call` when something that leaves now arrives; returns that time. On a link that is cut it waits."""
        link = (source.name, target.name)
        if link in self._cuts or self._held.get(link):
            self._held.setdefault(link, []).append(_Held(call, args, self.scheduler.now, not_before))
            return not_before
        if self._floors:
            not_before = max(not_before, self._floors.get((link, getattr(call, "__self__", None)), 0.0))
        delay = self.delay()
        for host, mean_s, spared in self._slow:
            if (host == source.name and target.name not in spared) or (
                host == target.name and source.name not in spared
            ):
                delay += self.scheduler.soon(mean_s)
        arrival = max(self.scheduler.now + delay, not_before)
        self.scheduler.call_at(arrival, call, *args)
        return arrival

    def new_number(self) -> int:
        return next(self._numbers)


class Host:
    """One machine: its ports, its wall clock, and whether it has power."""

    def __init__(self, network: Network, name: str) -> None:
        self.network = network
        self.name = name
        self.is_up = True
        self.lacks_descriptors = 0
        """Above 0, its processes get no descriptor for a connection."""
        self.read_open_file: Callable[[int, int, int], bytes] | None = None
        """(descriptor, size, position) -> bytes of the file that has this descriptor now. Raises OSError."""
        self._wall_ahead_s = self._wall_drift = 0.0
        self._wall_set_at = 0.0
        self._listeners: dict[int, Server] = {}
        self._connections: dict[int, SimulatedTransport] = {}
        self._ports = itertools.count(FIRST_PORT)

    def listen(
        self, loop: ProcessLoop, factory: Callable[[], asyncio.BaseProtocol], port: int, *, is_serving: bool
    ) -> Server:
        """Raises OSError if the port is taken."""
        port = port or next(self._ports)
        if port in self._listeners:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        server = self._listeners[port] = Server(self, loop, factory, port)
        server.is_listening = is_serving
        return server

    def set_wall_clock(self, ahead_s: float, drift: float = 0.0) -> None:
        """The wall clock jumps: from now on it is so far ahead of the world's, and gains `drift` seconds each second."""
        self._wall_ahead_s, self._wall_drift, self._wall_set_at = ahead_s, drift, self.network.scheduler.now

    def wall_ahead_s(self) -> float:
        return self._wall_ahead_s + self._wall_drift * (self.network.scheduler.now - self._wall_set_at)

    def forget(self, port: int, server: Server) -> None:
        if self._listeners.get(port) is server:
            del self._listeners[port]

    async def connect(
        self, loop: ProcessLoop, factory: Callable[[], asyncio.BaseProtocol], name: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Raises ConnectionRefusedError if nobody listens there, and OSError if no descriptor is left.

        While there is no way to the host and back, it waits.
        """
        if self.lacks_descriptors:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        target = self.network.host(name)
        attempt = _Attempt(self, target, port, loop, factory)
        attempt.send_syn()
        try:
            await attempt.done
        except asyncio.CancelledError:
            attempt.is_given_up = True
            raise
        return attempt.result()

    def accept(self, attempt: _Attempt) -> None:
        """A SYN has come in. Without power nothing answers, and it is sent again."""
        if not self.is_up:
            if not attempt.is_given_up:
                self.network.scheduler.call_after(RETRANSMISSION_S, self.accept, attempt)
            return
        server = self._listeners.get(attempt.port)
        if server is None or not server.is_listening or server.loop.is_dead:
            self.network.carry(self, attempt.source, 0.0, attempt.refused)
            return
        number = self.network.new_number()
        addresses: tuple[Address, Address] = ((self.name, attempt.port), (attempt.source.name, attempt.own_port))
        theirs = SimulatedTransport(attempt.loop, self.network, number, addresses[::-1])
        ours = SimulatedTransport(server.loop, self.network, number, addresses)
        theirs.peer, ours.peer = ours, theirs
        self._connections[number] = ours
        self.network.carry(self, attempt.source, 0.0, attempt.accepted, theirs)
        if self.lacks_descriptors:
            ours.abort()  # as libuv does: it takes the connection by a spare descriptor, and closes it
        else:
            server.loop.put(ours.begin, server.factory)

    def add(self, transport: SimulatedTransport) -> None:
        self._connections[transport.number] = transport

    def remove(self, transport: SimulatedTransport) -> None:
        self._connections.pop(transport.number, None)

    def reset_connections(self) -> None:
        """Something on the way resets all connections, at both ends."""
        for transport in list(self._connections.values()):
            transport.reset_peer()
            transport.was_reset()

    def process_ended(self, loops: Iterable[ProcessLoop], *, has_power: bool = True) -> None:
        """The kernel closes what the processes had open. Without power it does not get to that."""
        ended = list(loops)
        for port, server in list(self._listeners.items()):
            if server.loop in ended:
                del self._listeners[port]
        for transport in [transport for transport in self._connections.values() if transport.loop in ended]:
            transport.process_ended(says_so=has_power)

    def next_port(self) -> int:
        return next(self._ports)


class _Attempt:
    """A connection that is being opened."""

    def __init__(
        self, source: Host, target: Host, port: int, loop: ProcessLoop, factory: Callable[[], asyncio.BaseProtocol]
    ) -> None:
        self.source = source
        self.port = port
        self.loop = loop
        self.own_port = source.next_port()
        self.done = loop.create_future()
        self.is_given_up = False
        self._target = target
        self._factory = factory
        self._transport: SimulatedTransport | None = None
        self._protocol: asyncio.BaseProtocol | None = None

    def send_syn(self) -> None:
        self.source.network.carry(self.source, self._target, 0.0, self._target.accept, self)

    def refused(self) -> None:
        self.loop.put(self._refuse)

    def _refuse(self) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED)))

    def accepted(self, transport: SimulatedTransport) -> None:
        self._transport = transport
        if self.loop.is_dead:
            transport.reset_peer()
            return
        self.source.add(transport)
        self.loop.put(self._connected)

    def _connected(self) -> None:
        assert self._transport is not None
        if self.is_given_up or self.done.done():
            self._transport.abort()
            return
        if self._transport.has_ended:
            self.done.set_exception(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))
            return
        self._transport.begin(self._factory)
        self._protocol = self._transport.get_protocol()  # the connection may end before anybody asks for it
        self.done.set_result(None)

    def result(self) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        assert self._transport is not None
        assert self._protocol is not None
        return self._transport, self._protocol


class Server:
    """A bound port."""

    def __init__(self, host: Host, loop: ProcessLoop, factory: Callable[[], asyncio.BaseProtocol], port: int) -> None:
        self.loop = loop
        self.factory = factory
        self.is_listening = False
        self._host = host
        self._port = port
        self.sockets = [_BoundSocket((host.name, port))]

    async def start_serving(self) -> None:
        self.is_listening = True

    def is_serving(self) -> bool:
        return self.is_listening

    def close(self) -> None:
        self.is_listening = False
        self._host.forget(self._port, self)

    async def wait_closed(self) -> None:
        return None


class _BoundSocket:
    def __init__(self, address: Address) -> None:
        self._address = address

    def getsockname(self) -> Address:
        return self._address

    def dup(self) -> Any:
        raise OSError(errno.EMFILE, "one socket of a port is enough")


class _Options:
    """A socket of which only options are set. No kernel knows it."""

    def fileno(self) -> int:
        return -1

    def setsockopt(self, *_: Any) -> None:
        """All options are taken, and change nothing."""


class SimulatedSender:
    """`sendfile` of the simulated kernel: what the descriptor means at that moment is sent, as far as there is room."""

    def __init__(self, transport: SimulatedTransport, read_open_file: Callable[[int, int, int], bytes]) -> None:
        self._transport = transport
        self._read_open_file = read_open_file

    def end(self) -> None:
        """The transport closes the socket."""

    def send(self, parts: Sequence[Part]) -> int:
        total = 0
        try:
            for part in parts:
                if isinstance(part, StoredBytes):
                    data = self._read_open_file(part.descriptor(), len(part), part.position)
                else:
                    data = bytes(part)
                sent = self._transport.write_past_the_buffer(data)
                total += sent
                if sent < len(part):
                    break
        except (OSError, KafkaError):
            pass
        return total


class SimulatedTransport(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, loop: ProcessLoop, network: Network, number: int, addresses: tuple[Address, Address]) -> None:
        super().__init__({"sockname": addresses[0], "peername": addresses[1]})
        self.loop = loop
        self.number = number
        self.peer: SimulatedTransport
        self._network = network
        self._protocol: asyncio.BaseProtocol | None = None
        self._unsent = bytearray()
        self._on_the_way = 0
        """Bytes that the peer has not told to have read."""
        self._received = bytearray()
        self._read_untold = 0
        """Bytes that were read since the peer was told: it is told after a quarter of its buffer."""
        self._last_arrival = 0.0
        self._is_reading = True
        self._has_read_planned = False
        self._is_closing = False
        self.has_ended = False
        """The connection no longer exists at this end."""
        self._peer_has_ended = False
        self._high, self._low = HIGH_WATER, HIGH_WATER // 4
        self._is_over_high = False

    # -- the life of a connection -------------------------------------------------------------------------------------

    def begin(self, factory: Callable[[], asyncio.BaseProtocol]) -> None:
        if self.has_ended:
            return
        self._protocol = factory()
        self._protocol.connection_made(self)
        self._plan_read()

    def process_ended(self, *, says_so: bool) -> None:
        if self.has_ended:
            return
        had_unread = bool(self._received)
        self._leave()
        if says_so and had_unread:
            self.reset_peer()
        elif says_so:
            self._send_end()

    def reset_peer(self) -> None:
        self._carry(self.peer.was_reset)

    def was_reset(self) -> None:
        """A reset has come in."""
        if not self.has_ended:
            self._received.clear()
            self._leave()
            self.loop.put(self._lost, ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))

    def _leave(self) -> None:
        self.has_ended = self._is_closing = True
        self._unsent.clear()
        self.loop.host.remove(self)

    def _lost(self, error: Exception | None) -> None:
        if self._protocol is not None:
            protocol, self._protocol = self._protocol, None
            protocol.connection_lost(error)

    def _carry(self, call: Callable[..., None], *args: Any) -> None:
        self._last_arrival = self._network.carry(self.loop.host, self.peer.loop.host, self._last_arrival, call, *args)

    def _send_end(self) -> None:
        self._carry(self.peer.end_arrived)

    # -- writing ------------------------------------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        if self._is_closing or not data:
            return
        self._unsent += data
        self._send()

    def write_past_the_buffer(self, data: bytes) -> int:
        """Gives the kernel as much as it takes now. Nothing may wait to be written."""
        assert not self._unsent
        random = self._network.scheduler.random
        size = min(len(data), CAPACITY - self._on_the_way)
        if random.randrange(CUT_ONE_OF) == 0:
            size = random.randint(0, size)
        if size:
            self._on_the_way += size
            self._carry(self.peer.arrived, data[:size])
        return size

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        self._send_end()

    def can_write_eof(self) -> bool:
        return True

    def _send(self) -> None:
        size = min(len(self._unsent), CAPACITY - self._on_the_way)
        if size > 0:
            data = bytes(memoryview(self._unsent)[:size])
            del self._unsent[:size]
            self._on_the_way += size
            self._carry(self.peer.arrived, data)
        if len(self._unsent) > self._high and not self._is_over_high:
            self._is_over_high = True
            cast(asyncio.Protocol, self._protocol).pause_writing()
        elif len(self._unsent) <= self._low and self._is_over_high:
            self._is_over_high = False
            if self._protocol is not None:
                cast(asyncio.Protocol, self._protocol).resume_writing()
        if self._is_closing and not self._unsent and not self.has_ended:
            had_unread = bool(self._received)
            self._leave()
            self.reset_peer() if had_unread else self._send_end()
            self.loop.put(self._lost, None)

    def was_read(self, size: int) -> None:
        """The peer has read so much. The news has come in."""
        self._on_the_way -= size
        if self._unsent and not self.has_ended:
            self.loop.put(self._send)

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH_WATER if high is None else high
        self._low = self._high // 4 if low is None else low

    # -- reading ------------------------------------------------------------------------------------------------------

    def arrived(self, data: bytes) -> None:
        if not self.loop.host.is_up:
            self._network.scheduler.call_after(RETRANSMISSION_S, self.arrived, data)  # the sender sends it again
            return
        if self.has_ended:
            self.reset_peer()
            return
        self._network.record("bytes", self.number, self.loop.name, data)
        self._received += data
        self._plan_read()

    def end_arrived(self) -> None:
        if self.loop.host.is_up and not self.has_ended:
            self._peer_has_ended = True
            self._plan_read()

    def _plan_read(self) -> None:
        if self._is_reading and not self._has_read_planned and (self._received or self._peer_has_ended):
            self._has_read_planned = True
            self.loop.put(self._read)

    def _read(self) -> None:
        self._has_read_planned = False
        protocol = self._protocol
        if protocol is None or not self._is_reading or self._is_closing:
            return
        if not self._received:
            self._read_end(protocol)
            return
        random = self._network.scheduler.random
        size = len(self._received)
        if random.randrange(CUT_ONE_OF) == 0:
            size = random.randint(1, size)
        if isinstance(protocol, asyncio.BufferedProtocol):
            buffer = memoryview(cast(Any, protocol.get_buffer(-1)))
            size = min(size, len(buffer))
            buffer[:size] = memoryview(self._received)[:size]
            del self._received[:size]
            self._took(size)
            protocol.buffer_updated(size)
        else:
            data = bytes(memoryview(self._received)[:size])
            del self._received[:size]
            self._took(size)
            cast(asyncio.Protocol, protocol).data_received(data)
        self._plan_read()

    def _took(self, size: int) -> None:
        self._read_untold += size
        if self._read_untold >= CAPACITY // 4:
            self._network.carry(self.loop.host, self.peer.loop.host, 0.0, self.peer.was_read, self._read_untold)
            self._read_untold = 0

    def _read_end(self, protocol: asyncio.BaseProtocol) -> None:
        self._peer_has_ended = False
        if not cast(asyncio.Protocol, protocol).eof_received():
            self.close()

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self._plan_read()

    def is_reading(self) -> bool:
        return self._is_reading

    # -- closing ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._send()

    def abort(self) -> None:
        if self.has_ended:
            return
        had_unread = bool(self._received)
        self._leave()
        if had_unread:
            self.reset_peer()
        else:
            self._send_end()
        self.loop.put(self._lost, None)

    def is_closing(self) -> bool:
        return self._is_closing

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "socket":
            return _Options()
        if name == "file_sender" and self.loop.host.read_open_file is not None:
            return SimulatedSender(self, self.loop.host.read_open_file)
        return super().get_extra_info(name, default)
