"""Watches an address with an idle connection, and detects when nobody listens there any more (CTL-16).

    connecting --accepted--> connected --closed or reset--> connecting; suspected, if the connection lasted STABLE_S
    connecting --refused REFUSALS_NEEDED times in a row--> found dead; later connecting again
    connecting --any other failure--> not suspected; later connecting again

This module only asks the network. The listeners decide what a result means, and for whom.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import Callable
from typing import Any, Protocol, cast

from protocol import self_connection
from protocol.failure_detection.evidence import SPACING_S, Answer, Evidence, Liveness, answer_of
from protocol.kafka.framing import MalformedRequest, frame
from protocol.sasl_login import ClientLogin, next_step, read_answer, request
from protocol.tls import ClientTls
from protocol.types import Address

CONNECT_TIMEOUT_S = 1.0
WAIT_S = 0.25
"""Pause before the next attempt after an inconclusive one."""
AGAIN_S = 1.0
"""Pause before a dead process is checked again, if the watch has not been closed."""
STABLE_S = 1.0
"""How long a connection must last for its end to be suspicious."""
SHORT_LIVED_S, SHORT_LIVED_S_MAX = 0.05, 1.0
"""First and longest pause after a connection that ended before STABLE_S: a peer that accepts and closes must not be flooded."""
TRUST_S = 0.05
"""How long a connection must last to end the suspicion: a process that is being killed may still accept a connection."""
LENGTH_BYTES = 4
LOGIN_ANSWER_MAX = 64 * 1024
KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}
"""Seconds, seconds, number of probes. A host that is back after a power failure answers a probe with a reset."""


class Closable(Protocol):
    """A running watch."""

    def close(self) -> None: ...


WatchConnection = Callable[[Address, Callable[[], None]], Closable]
"""Starts to watch an address. The watch calls the function, on the loop, each time it finds that nobody listens there."""


def _ignore(is_suspected: bool) -> None:
    """The default listener, for callers that do not need suspicions."""


class _IdleConnection(asyncio.Protocol):
    """Sends nothing after its login, and detects its own end."""

    def __init__(self, ended: asyncio.Future[None], at_end: Callable[[], None]) -> None:
        """Calls `at_end` in the loop turn that reads the end. A task that awaits `ended` resumes in a later turn."""
        self.transport: asyncio.Transport | None = None
        self._ended = ended
        self._at_end = at_end
        self._is_given_up = False
        self._answer: asyncio.Future[memoryview] | None = None  # that of a login's request
        self._received = bytearray()

    async def log_in(self, login: ClientLogin) -> None:
        """Raises OSError, LoginError, MalformedRequest."""
        steps = login.steps()
        answer: Any = None
        for number in itertools.count():
            asked, _ = await asyncio.to_thread(next_step, steps, answer)
            if asked is None:
                break
            if self.transport is None or self._ended.done():
                raise ConnectionResetError("it ended during the login")
            self._answer = asyncio.get_running_loop().create_future()
            self.transport.write(b"".join(frame(request(asked, number))))
            answer = read_answer(asked, await self._answer)
        self._answer = None

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            return
        self._received += data
        size = int.from_bytes(self._received[:LENGTH_BYTES], "big")
        if len(self._received) >= LENGTH_BYTES and size > LOGIN_ANSWER_MAX:
            self._answer.set_exception(ConnectionResetError(f"it answers the login with {size} bytes"))
        elif len(self._received) >= LENGTH_BYTES + size:
            whole = memoryview(bytes(self._received[LENGTH_BYTES : LENGTH_BYTES + size]))
            self._received.clear()
            self._answer.set_result(whole)

    def give_up(self) -> None:
        self._is_given_up = True
        if self.transport is not None:
            self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self._is_given_up:
            self.transport.abort()
            return
        tcp_socket = transport.get_extra_info("socket")
        with contextlib.suppress(OSError):
            tcp_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in KEEPALIVE.items():
                if hasattr(socket, name):
                    tcp_socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    @property
    def has_ended(self) -> bool:
        return self._ended.done()

    def eof_received(self) -> None:
        self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    def _end(self) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionResetError("it ended during the login"))
        # A connection that was given up shares `ended` with the next attempt, which must not end with it.
        if not self._is_given_up and not self._ended.done():
            self._ended.set_result(None)
            self._at_end()


class ConnectionWatch:
    """Watches from its creation until `close`. It can find a process dead without having been connected to it before."""

    def __init__(
        self,
        address: Address,
        found_dead: Callable[[], None],
        suspected: Callable[[bool], None] = _ignore,
        *,
        tls: ClientTls | None = None,
        login: ClientLogin | None = None,
    ) -> None:
        """Calls `suspected(True)` when a connection that lasted STABLE_S ends, and always `suspected(False)` soon after."""
        self._address = address
        self._tls = tls
        self._login = login
        self._found_dead = found_dead
        self._suspected = suspected
        self._peer: Address | None = None
        self._connection: _IdleConnection | None = None
        self._connected_at = 0.0
        self._task = asyncio.get_running_loop().create_task(
            self._run(), name=f"watch of {self._address[0]}:{self._address[1]}"
        )

    def close(self) -> None:
        """Stops all calls to the listeners."""
        self._task.cancel()
        if self._connection is not None:
            self._connection.give_up()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        evidence = Evidence()
        short_lived = 0
        while True:
            ended: asyncio.Future[None] = loop.create_future()
            match evidence.note(await self._connect(ended)):
                case Liveness.LIVES:
                    await asyncio.wait([ended], timeout=TRUST_S)
                    if not ended.done() or short_lived:
                        self._suspected(False)
                    await ended
                    if self._was_stable():
                        short_lived = 0
                    else:
                        await asyncio.sleep(min(SHORT_LIVED_S * 2**short_lived, SHORT_LIVED_S_MAX))
                        short_lived = min(short_lived + 1, 10)
                case Liveness.SUSPECTED:
                    await asyncio.sleep(SPACING_S)
                case Liveness.DEAD:
                    self._found_dead()
                    await asyncio.sleep(AGAIN_S)
                    self._suspected(False)
                case Liveness.UNKNOWN:
                    self._suspected(False)
                    self._peer = None  # the name may have another address by now
                    await asyncio.sleep(WAIT_S)

    async def _connect(self, ended: asyncio.Future[None]) -> Answer:
        """Tries the address of the last connection, or all addresses of the name if there was no connection.

        Only a refusal at the same address counts: the name may have moved to another host.
        """
        errors: list[OSError] = []
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                for address in [self._peer] if self._peer is not None else await self._resolved():
                    try:
                        await self._connect_to(address, ended)
                    except OSError as error:  # includes the system's own timeout
                        errors.append(error)
                    else:
                        return Answer.ACCEPTED
        except (TimeoutError, OSError):
            return Answer.UNCLEAR
        return answer_of(errors)

    async def _resolved(self) -> list[Address]:
        host, port = self._address
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys((str(address[0]), port) for *_, address in found))

    async def _connect_to(self, address: Address, ended: asyncio.Future[None]) -> None:
        self._connected_at = asyncio.get_running_loop().time()
        connection = _IdleConnection(ended, self._at_end)
        try:
            transport, _ = await asyncio.get_running_loop().create_connection(lambda: connection, *address)
            if self_connection.is_to_itself(transport):
                raise self_connection.refused(address)
            if self._tls is not None:
                await self._encrypt(connection, transport, self._tls)
            if self._login is not None and not connection.has_ended:
                await self._log_in(connection, self._login)
        except BaseException:
            connection.give_up()
            raise
        self._connection = connection
        self._peer = address

    async def _encrypt(self, connection: _IdleConnection, transport: asyncio.Transport, tls: ClientTls) -> None:
        """A listener with TLS ends a connection without a handshake.

        A handshake that fails is the end of a short connection: that the peer has accepted it says as much as in the clear.
        """
        try:
            encrypted = await asyncio.get_running_loop().start_tls(
                transport, connection, tls.client_context, server_hostname=self._address[0]
            )
        except OSError:
            encrypted = None
        if encrypted is None or encrypted.is_closing():
            transport.abort()
            connection.connection_lost(None)
        else:
            connection.transport = encrypted

    async def _log_in(self, connection: _IdleConnection, login: ClientLogin) -> None:
        """A listener with SASL ends a connection without a login. A login that fails is the end of a short connection, as a handshake."""
        try:
            await connection.log_in(login)
        except (OSError, MalformedRequest):  # LoginError is one of the first
            if connection.transport is not None:
                connection.transport.abort()
            connection.connection_lost(None)

    def _at_end(self) -> None:
        if self._was_stable():
            self._suspected(True)

    def _was_stable(self) -> bool:
        """Whether the connection lasted STABLE_S. A peer that accepts and closes at once must not cause endless suspicions."""
        return asyncio.get_running_loop().time() - self._connected_at >= STABLE_S
