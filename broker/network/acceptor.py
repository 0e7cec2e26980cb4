"""One listener: accepts connections and assigns them to processors, round robin (NET-1, BAD-34)."""

from __future__ import annotations

import asyncio
import logging
import ssl
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple

from broker.network.connection import ClientConnection, Limits
from broker.network.login_gate import LoginGate
from broker.network.paced_transport import PacedTransport
from broker.network.processor import SWEEP_S, Processor
from broker.network.request_channel import RequestChannel
from broker.network.tls_server import TlsServer
from broker.network.turnstile import Turnstile
from broker.process.clock import Clock
from broker.process.descriptors import DescriptorShares
from broker.process.rare_lines import RareLine
from broker.quotas.by_host import ByHost, host_of
from broker.quotas.connection_rates import LINGERING_MAX
from broker.quotas.quota_configs import CONNECTION_CREATION_RATE
from broker.security.certificate_subject import BadSubject
from broker.security.login import Logins
from broker.settings.config import MAX_CONNECTIONS, key_of_listener
from protocol.kafka.framing import MalformedRequest, RequestHeader, parse_request_header
from protocol.types import USER, Buffer, Principal

log = logging.getLogger(__name__)

BACKLOG = 1024
ACCEPTED_IN_A_TURN = 8
"""How often a socket is listened to. libuv accepts one connection per handle in a turn of the loop: with one handle, a client would
wait as many turns as others connect before it, such as all clients and followers that reconnect after a failover."""
UNPROVEN_MAX = 16
CLAIMED_MAX = 500
"""Limit of connections that claim to be a follower's without proof. A follower has one for each of its fetchers."""
ENDED_AT_ONCE = 200
"""How many connections `end_clients` looks at in a turn of the loop."""
REFUSALS_LOGGED_EVERY_S = 1.0
PER_IP_OVERRIDES = "max.connections.per.ip.overrides"
NO_OVERRIDES: Mapping[str, int] = MappingProxyType({})


class ConnectionCounts:
    """Counts the connections of all listeners, for `max.connections`, `max.connections.per.ip` and the shares of descriptors.

    `max.connections` counts for all listeners together, and with the prefix of a listener for this one.

    Client connections above the limit are refused. Connections of brokers have their own share. When it is used up, a new one
    replaces the one that has been silent for the longest time: followers fetch all the time, and must always get through (BAD-34).
    """

    def __init__(
        self,
        max_connections: int,
        max_per_address: int,
        shares: DescriptorShares | None = None,
        max_of: Mapping[str, int] = NO_OVERRIDES,
        max_at: Mapping[str, int] = NO_OVERRIDES,
        look_ups: asyncio.Semaphore | None = None,
    ) -> None:
        """`max_of`: host -> its number in place of `max_per_address`. Names of hosts need a running loop.

        `max_at`: listener -> its number. `look_ups`: the turn of who looks for the addresses of a host.
        """
        self._overrides: Mapping[str, int] = NO_OVERRIDES
        self._of_hosts = ByHost(PER_IP_OVERRIDES, look_ups)
        self.limit(max_connections, max_per_address, max_of, max_at)
        self._clients_share = shares.clients if shares is not None else sys.maxsize
        self._brokers_share = shares.brokers if shares is not None else sys.maxsize
        self._total = 0
        self._by_address: Counter[str] = Counter()
        self._at: Counter[str] = Counter()
        self._of_brokers: dict[ClientConnection, None] = {}

    def limit(
        self,
        max_connections: int,
        max_per_address: int,
        max_of: Mapping[str, int] = NO_OVERRIDES,
        max_at: Mapping[str, int] = NO_OVERRIDES,
    ) -> None:
        """Sets new limits for new connections; existing connections stay."""
        self._max_at = max_at
        self._max_connections = max_connections
        self._max_per_address = max_per_address
        hosts = {host_of(host): number for host, number in max_of.items()}
        if hosts != self._overrides:
            self._overrides = hosts
            self._of_hosts.keep(hosts)
            for host, number in hosts.items():
                self._of_hosts.set(host, number)

    def share(self, shares: DescriptorShares) -> None:
        """Sets new shares of descriptors for new connections."""
        self._clients_share, self._brokers_share = shares.clients, shares.brokers

    @property
    def clients_max(self) -> int:
        """The limit of client connections."""
        return min(self._max_connections, self._clients_share)

    @property
    def claims_max(self) -> int:
        """The limit of connections that claim to be a follower's without proof: half of the brokers' share, at most CLAIMED_MAX."""
        return min(CLAIMED_MAX, max(self._brokers_share // 2, 1))

    def room_for_handshakes(self) -> int:
        """How many connections may be in their TLS handshakes: they have what is left of the clients' share, and count for nothing else."""
        return self._clients_share - self._total

    def take(self, address: str, listener: str) -> str:
        """Counts one more connection; returns the reason if it is refused, else ""."""
        own_max = self._max_at.get(listener)
        if own_max is not None and self._at[listener] >= own_max:
            return f"{key_of_listener(listener, MAX_CONNECTIONS)}={own_max} is reached"
        if self._total >= self._max_connections:
            return f"max.connections={self._max_connections} is reached"
        if self._total >= self._clients_share:
            return f"the limit of open files allows only {self._clients_share} connections"
        own = self._of_hosts.get(address)
        if own is not None and self._by_address[address] >= own:
            return f"{PER_IP_OVERRIDES} has {own:g} for {address}, which is reached"
        if own is None and self._by_address[address] >= self._max_per_address:
            return f"max.connections.per.ip={self._max_per_address} is reached for {address}"
        self._total += 1
        self._at[listener] += 1
        self._by_address[address] += 1
        return ""

    def give_back(self, address: str, listener: str) -> None:
        self._total -= 1
        self._at[listener] -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def take_broker(self, connection: ClientConnection) -> None:
        """Counts a connection of a broker, or any connection on the brokers' own listener."""
        while len(self._of_brokers) >= max(self._brokers_share, 1):
            silent = min(self._of_brokers, key=lambda one: one.last_heard)
            del self._of_brokers[silent]
            silent.abort()
        self._of_brokers[connection] = None

    def is_of_broker(self, connection: ClientConnection) -> bool:
        return connection in self._of_brokers

    def give_back_broker(self, connection: ClientConnection) -> None:
        """No longer counts the connection, if it was counted as a broker's."""
        self._of_brokers.pop(connection, None)


class Claim(IntEnum):
    """Whether the first request of a connection claims to come from a follower. PROVEN: it has the follower's broker epoch."""

    NONE = 0
    MADE = 1
    PROVEN = 2


class AcceptorSettings(NamedTuple):
    """`is_limited` is False for a listener that only brokers use: they must always get through.

    If brokers and clients share a listener, `is_of_follower` recognizes a follower's connection by its first request. Anyone can claim
    to be a follower: at most `claims_max` connections without proof are kept, and a new one replaces the oldest.

    `tls_context`: that of the next handshake; None: the listener is in the clear. `name_of` makes a client's name of its certificate; None:
    the clients' certificates name nobody. `logins`: None: clients do not log in by SASL. `wait_ms` counts a connection; above 0, it waits
    for so many milliseconds, and others behind it. Then `throttle_ms` counts it for its address; above 0, it is closed after so many
    milliseconds. `tls_refused(address, reason)`: a handshake has failed, or the name in the certificate is none. `connection`: the class of
    its connections.
    """

    listener: str
    processors: int
    limits: Limits
    is_limited: bool = True
    is_of_follower: Callable[[RequestHeader, Buffer], Claim] | None = None
    tls_context: Callable[[], ssl.SSLContext] | None = None
    name_of: Callable[[bytes], str] | None = None
    logins: Logins | None = None
    failure_delay_s: float = 0.1
    wait_ms: Callable[[], int] = lambda: 0
    throttle_ms: Callable[[str], int] = lambda address: 0
    tls_refused: Callable[[str, str], None] = lambda address, reason: None
    connection: type[ClientConnection] = ClientConnection


class Acceptor:
    """Binds first, serves later: no connection is accepted before the broker can answer.

    Followers are never refused because of the number of connections, and do not count as clients (BAD-34). On a listener that they share
    with clients, a connection above the limit is accepted *unproven*: it is closed unless its first request is a follower's. There are
    at most UNPROVEN_MAX such connections; a new one replaces the oldest.
    """

    def __init__(
        self, settings: AcceptorSettings, channel: RequestChannel, clock: Clock, counts: ConnectionCounts
    ) -> None:
        self._settings = settings
        self._counts = counts
        self._refusals = RareLine(REFUSALS_LOGGED_EVERY_S, clock.monotonic)
        judge = self._first_request if settings.is_of_follower is not None else None
        self._gate: LoginGate | None = None
        if settings.logins is not None:
            self._gate = LoginGate(
                settings.logins,
                settings.failure_delay_s,
                clock.monotonic,
                lambda: counts.room_for_handshakes() // 2,
                self._admit,
                judge,
            )
        self._turnstile = Turnstile(
            settings.listener, settings.wait_ms, lambda: counts.room_for_handshakes() // 2, clock.monotonic
        )
        has_tls = settings.tls_context is not None
        self._processors = [
            Processor(
                channel,
                settings.limits,
                clock,
                self._arrived,
                self._gone,
                self._gate.take if self._gate is not None else judge,
                self._turnstile if not has_tls else None,  # with TLS, they wait before their handshake
            )
            for _ in range(max(1, settings.processors))
        ]
        self._tls: TlsServer | None = None
        if settings.tls_context is not None:
            self._tls = TlsServer(
                settings.listener,
                settings.tls_context,
                lambda: PacedTransport(self._new_connection()),
                clock.monotonic,
                counts.room_for_handshakes,
                settings.throttle_ms,
                self._turnstile,
                settings.tls_refused,
            )
        self._next = 0
        self._lingering: dict[ClientConnection, None] = {}
        self._unproven: dict[ClientConnection, str] = {}
        self._uncounted: set[ClientConnection] = set()
        self._claimed: dict[ClientConnection, None] = {}
        self._servers: list[asyncio.Server] = []
        self._sweeper: asyncio.Task[None] | None = None

    async def bind(self, host: str, port: int) -> int:
        """Binds the port (0: a free one) and returns the bound port. Raises OSError if the port is not available."""
        if self._tls is not None:
            return await self._tls.bind(host, port)
        loop = asyncio.get_running_loop()
        bound = await loop.create_server(self._new_connection, host or None, port, backlog=BACKLOG, start_serving=False)
        self._servers.append(bound)
        for one in bound.sockets * (ACCEPTED_IN_A_TURN - 1):
            try:
                same = one.dup()
            except OSError:  # descriptors are scarce
                break
            self._servers.append(
                await loop.create_server(self._new_connection, sock=same, backlog=BACKLOG, start_serving=False)
            )
        return int(bound.sockets[0].getsockname()[1])

    async def serve(self) -> None:
        """Accepts connections from now on."""
        if self._tls is not None:
            self._tls.serve(BACKLOG)
        for server in self._servers:
            await server.start_serving()
        self._sweeper = asyncio.get_running_loop().create_task(self._sweep_regularly())

    def stop_accepting(self) -> None:
        if self._tls is not None:
            self._tls.stop_accepting()
        for server in self._servers:
            server.close()
        self._servers.clear()
        self._turnstile.close()

    def close(self) -> None:
        """Stops accepting and ends every connection."""
        self.stop_accepting()
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._tls is not None:
            self._tls.close()
        for processor in self._processors:
            processor.abort_all()
        for connection in list(self._lingering):
            connection.abort()

    @property
    def processors(self) -> Sequence[Processor]:
        return self._processors

    @property
    def connections(self) -> int:
        return sum(len(processor.connections) for processor in self._processors)

    def end_clients(self, reason: str) -> None:
        """Ends each connection that is not known as a broker's, when the requests that are here are answered. The clients connect again."""
        self._end_some([connection for each in self._processors for connection in each.connections], reason)

    def _end_some(self, connections: list[ClientConnection], reason: str) -> None:
        """Ends them in the order in which they came, ENDED_AT_ONCE in a turn."""
        for connection in connections[:ENDED_AT_ONCE]:
            if not self._counts.is_of_broker(connection):
                connection.end_when_answered(reason)
        if len(connections) > ENDED_AT_ONCE:
            asyncio.get_running_loop().call_soon(self._end_some, connections[ENDED_AT_ONCE:], reason)

    def _new_connection(self) -> ClientConnection:
        processor = self._processors[self._next]
        self._next = (self._next + 1) % len(self._processors)
        return self._settings.connection(processor, self._settings.listener)

    def _arrived(self, connection: ClientConnection) -> bool:
        """Returns False for a connection that is refused."""
        if self._tls is None and (throttle_ms := self._settings.throttle_ms(connection.remote_address)):
            self._refused(connection, f"{CONNECTION_CREATION_RATE} is reached")
            self._linger(connection, throttle_ms)
            return False
        if self._settings.name_of is not None and (certificate := connection.certificate()) is not None:
            try:
                connection.principal = Principal(USER, self._settings.name_of(certificate))
            except BadSubject as problem:
                self._refused(connection, str(problem))
                self._settings.tls_refused(connection.remote_address, str(problem))
                return False
        if self._gate is not None:
            self._gate.arrived(connection)
            return True
        return self._admit(connection)

    def _linger(self, connection: ClientConnection, milliseconds: int) -> None:
        """The connection is closed after this time, or at once if there are too many of them."""
        if len(self._lingering) < LINGERING_MAX:
            self._lingering[connection] = None
            connection.when_ended(lambda: self._lingering.pop(connection, None))
            connection.closes_in_ms = milliseconds

    def _gone(self, connection: ClientConnection) -> None:
        if self._gate is None or self._gate.gone(connection):
            self._released(connection)

    def _admit(self, connection: ClientConnection) -> bool:
        if not self._settings.is_limited:
            self._counts.take_broker(connection)
            return True
        reason = self._counts.take(connection.remote_address, self._settings.listener)
        if reason and self._settings.is_of_follower is not None:
            if len(self._unproven) >= UNPROVEN_MAX:
                oldest = next(iter(self._unproven))
                del self._unproven[oldest]
                self._uncounted.add(oldest)
                oldest.abort()
            self._unproven[connection] = reason
            return True
        if reason:
            self._refused(connection, reason)
        return not reason

    def _refused(self, connection: ClientConnection, reason: str) -> None:
        """Logs refusals, at most one line a second: a refused client may retry thousands of times."""
        if (earlier := self._refusals.happened()) is not None:
            others = f" (and {earlier} earlier connections)" if earlier else ""
            log.warning("refused a connection of %s: %s%s", connection.peer, reason, others)

    def _first_request(self, connection: ClientConnection, frame: Buffer) -> bool:
        """The gate of a connection until its first request. Returns False if it closes the connection."""
        connection.gate = None
        is_of_follower = self._settings.is_of_follower
        assert is_of_follower is not None
        try:
            header = parse_request_header(frame)
        except MalformedRequest:
            return True  # the connection says what is wrong
        claim = is_of_follower(header, frame)
        if claim is Claim.MADE:
            if len(self._claimed) >= self._counts.claims_max:
                oldest = next(iter(self._claimed))
                del self._claimed[oldest]
                self._counts.give_back_broker(oldest)
                oldest.abort()
            self._claimed[connection] = None
        if claim is not Claim.NONE:
            self._uncounted.add(connection)
            self._counts.take_broker(connection)
            if self._unproven.pop(connection, None) is None:
                self._counts.give_back(connection.remote_address, self._settings.listener)
        refusal = self._unproven.get(connection, "")
        if refusal:
            connection.refuse(refusal)
        return not refusal

    def _released(self, connection: ClientConnection) -> None:
        is_counted = self._unproven.pop(connection, None) is None and connection not in self._uncounted
        self._uncounted.discard(connection)
        self._claimed.pop(connection, None)
        self._counts.give_back_broker(connection)
        if self._settings.is_limited and is_counted:
            self._counts.give_back(connection.remote_address, self._settings.listener)

    async def _sweep_regularly(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            if self._gate is not None:
                self._gate.sweep()
            for processor in self._processors:
                processor.sweep()
