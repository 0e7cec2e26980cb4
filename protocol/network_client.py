"""Sends requests of brokers and controller to other nodes (NET-3), for Kafka frames and control RPC.

In both protocols a frame starts with an int32 length, and a response with an int32 correlation id. Each node has at most one
connection, which is opened when there is something to send. Connecting includes a TLS handshake and a login by SASL, if the node asks for
them; a connection whose login counts for some time only logs in again before, when none of its requests is in flight:

  no connection --send--> back-off wait --> connecting --> connected --request timed out, reset, garbage--> no connection

The answers on a connection arrive in the order of its requests. A request without an answer fails when its connection ends. Nothing is
retried automatically, because only the caller knows whether a retry is safe (CTL-15, BUG-4).
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

from protocol import self_connection
from protocol.kafka.framing import MalformedRequest, frame
from protocol.sasl_login import ClientLogin, LoginError, next_step, read_answer, request
from protocol.tls import ClientTls, client_reason
from protocol.types import Address, Buffer

Encode = Callable[[int], Sequence[Buffer]]
"""correlation id -> the request with this id, as buffers without the length."""

RECEIVE_BUFFER_SIZE = 64 * 1024
"""Bytes. A frame that is not received whole at once gets a buffer of its own."""

LOGIN_USED = 0.85
"""The part of a login's time after which a connection logs in again."""

JITTER = 0.2
"""Back-off times vary by this share in both directions, so that brokers that lost the same node do not reconnect all at once."""

_LENGTH_SIZE = 4
_CORRELATION_ID_SIZE = 4
_CORRELATION_IDS = 0x7FFF_FFFF
_BACKOFF_DOUBLINGS_MAX = 30


class Disconnected(ConnectionError):
    """The connection could not be opened or has ended: refused, reset, closed by either side. The request may have been processed."""


class RequestTimedOut(TimeoutError):
    """This or an earlier request on the connection got no answer in time, so the connection was closed. It may have been processed."""


class MonotonicClock(Protocol):
    """The part of the injected clock that the network client needs."""

    def monotonic(self) -> float:
        """Seconds that only go forward."""
        ...


class _InFlight(NamedTuple):
    """`is_login`: the request holds no slot."""

    correlation_id: int
    answer: asyncio.Future[memoryview]
    deadline: float
    is_login: bool


class _Connection(asyncio.BufferedProtocol):
    """One connection: writes requests, splits the input into frames, and gives each to the oldest request in flight."""

    def __init__(self, client: NetworkClient, address: Address, loop: asyncio.AbstractEventLoop) -> None:
        self.slots = asyncio.Semaphore(client.max_in_flight)
        self.is_open = False
        self.has_answered = False
        self._has_ended = False
        self._client = client
        self._address = address
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._in_flight: deque[_InFlight] = deque()
        self._correlation_id = 0
        self._timer: asyncio.TimerHandle | None = None
        self._next_login: asyncio.TimerHandle | None = None
        self._login: asyncio.Task[None] | None = None
        self._buffer = memoryview(bytearray(RECEIVE_BUFFER_SIZE))
        self._held = 0  # bytes of an incomplete frame length at the buffer's start
        self._frame: memoryview | None = None  # the frame whose rest is being received
        self._filled = 0

    def __str__(self) -> str:
        return f"{self._address[0]}:{self._address[1]}"

    def request(self, encode: Encode, *, is_login: bool = False) -> asyncio.Future[memoryview]:
        """Writes a request. The caller must hold one of `slots`, which is released with the answer or the end of the connection; for a
        request of a login it holds all of them, and they are not released.
        """
        assert self._transport is not None
        correlation_id = self._correlation_id
        self._transport.write(b"".join(frame(encode(correlation_id))))
        self._correlation_id = (correlation_id + 1) & _CORRELATION_IDS
        answer: asyncio.Future[memoryview] = self._loop.create_future()
        deadline = self._client.clock.monotonic() + self._client.request_timeout
        self._in_flight.append(_InFlight(correlation_id, answer, deadline, is_login))
        if self._timer is None:
            self._timer = self._loop.call_later(self._client.request_timeout, self._check_deadline)
        return answer

    async def log_in(self, login: ClientLogin) -> None:
        """Logs in, when no other request is in flight. Raises LoginError, MalformedRequest, Disconnected, RequestTimedOut."""
        steps = login.steps()
        answer: Any = None
        while True:
            # In a thread, because the first login computes for some milliseconds.
            asked, lifetime_ms = await asyncio.to_thread(next_step, steps, answer)
            if asked is None:
                break
            if not self.is_open:
                raise Disconnected(f"{self} closed the connection during the login")
            answer = read_answer(asked, await self.request(partial(request, asked), is_login=True))
        if lifetime_ms and self.is_open:
            self._next_login = self._loop.call_later(lifetime_ms / 1000 * LOGIN_USED, self._begin_login, login)

    def _begin_login(self, login: ClientLogin) -> None:
        self._login = self._loop.create_task(self._log_in_again(login))

    async def _log_in_again(self, login: ClientLogin) -> None:
        held = 0
        try:
            while held < self._client.max_in_flight:
                await self.slots.acquire()
                held += 1
            if self.is_open:
                await self.log_in(login)
        except (LoginError, MalformedRequest, Disconnected, RequestTimedOut) as problem:
            self.end(Disconnected(f"{self} ended the login: {problem}"))
        finally:
            for _ in range(held):
                self.slots.release()

    def end(self, error: Exception) -> None:
        """Closes the connection: all requests in flight fail with `error`. Has no effect if it is already closed."""
        self.is_open = False
        self._has_ended = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._next_login is not None:
            self._next_login.cancel()
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
            self._client.connection_ended(self._address, self)
        while self._in_flight:
            self._settle(self._in_flight.popleft(), error)

    def _settle(self, settled: _InFlight, outcome: memoryview | Exception) -> None:
        answer = settled.answer
        if not settled.is_login:
            self.slots.release()
        if answer.done():
            return  # The caller was cancelled; the request kept its place in the order until now.
        if isinstance(outcome, Exception):
            answer.set_exception(outcome)
        else:
            answer.set_result(outcome)

    def _check_deadline(self) -> None:
        """Ends the connection if the oldest request is late. One timer is enough: later requests have later deadlines."""
        self._timer = None
        if not self._in_flight:
            return
        left = self._in_flight[0].deadline - self._client.clock.monotonic()
        if left > 0:
            self._timer = self._loop.call_later(left, self._check_deadline)
        else:
            seconds = self._client.request_timeout
            self.end(RequestTimedOut(f"{self} did not answer a request within {seconds:g} s"))

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._has_ended:  # Cancelled while it was connecting.
            cast(asyncio.Transport, transport).abort()
            return
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport does not inherit from it.
        self.is_open = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.end(Disconnected(f"{self} closed the connection{f': {exc}' if exc else ''}"))

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is not None:
            return self._frame[self._filled :]
        return self._buffer[self._held :]

    def buffer_updated(self, nbytes: int) -> None:
        if not self.is_open:
            return
        if self._frame is None:
            self._cut_frames(self._held + nbytes)
            return
        self._filled += nbytes
        if self._filled == len(self._frame):
            whole, self._frame = self._frame, None
            self._answered(whole)

    def _cut_frames(self, end: int) -> None:
        """Delivers each whole frame in the buffer's first `end` bytes. The rest waits for more input."""
        at = 0
        while end - at >= _LENGTH_SIZE and self.is_open:
            size = int.from_bytes(self._buffer[at : at + _LENGTH_SIZE], "big", signed=True)
            if not _CORRELATION_ID_SIZE <= size <= self._client.response_bytes_max:
                self.end(Disconnected(f"{self} sent a frame of {size} bytes"))
                return
            begin = at + _LENGTH_SIZE
            at = begin + size
            if at > end:
                self._frame = memoryview(bytearray(size))
                self._filled = end - begin
                self._frame[: self._filled] = self._buffer[begin:end]
                at = end
                break
            self._answered(memoryview(bytes(self._buffer[begin:at])))
        self._held = end - at
        if at and self._held:
            self._buffer[: self._held] = bytes(self._buffer[at:end])

    def _answered(self, answer: memoryview) -> None:
        correlation_id = int.from_bytes(answer[:_CORRELATION_ID_SIZE], "big", signed=True)
        expected = self._in_flight[0].correlation_id if self._in_flight else None
        if correlation_id != expected:
            self.end(Disconnected(f"{self} answered request {correlation_id} where {expected} was next"))
            return
        self.has_answered = True
        self._settle(self._in_flight.popleft(), answer)


class _Node:
    """The state of one address. `ready` exists while connecting; its result is None, or the reason for the failure."""

    def __init__(self) -> None:
        self.connection: _Connection | None = None
        self.ready: asyncio.Future[Exception | None] | None = None
        self.task: asyncio.Task[None] | None = None
        self.failures = 0
        self.retry_at = 0.0


class NetworkClient:
    """Sends requests to nodes, over one connection to each. Must be used from one event loop only.

    `random` returns numbers in [0, 1) for the jitter. `connect_timeout_ms` is short, so that a node that was unreachable is found again
    soon: the system retries a connection at intervals that grow to seconds; it includes a TLS handshake, but not a login. An answer with
    a length above `response_bytes_max` closes the connection, because its buffer would be allocated at once.
    """

    def __init__(
        self,
        clock: MonotonicClock,
        *,
        request_timeout_ms: int,
        random: Callable[[], float],
        max_in_flight: int = 5,
        backoff_ms: int = 50,
        backoff_max_ms: int = 1000,
        connect_timeout_ms: int = 1000,
        response_bytes_max: int = 256 * 1024 * 1024,
        tls: ClientTls | None = None,
        login: ClientLogin | None = None,
    ) -> None:
        self.clock = clock
        self.request_timeout = request_timeout_ms / 1000
        self.max_in_flight = max_in_flight
        self.response_bytes_max = response_bytes_max
        self._tls = tls
        self._login = login
        self._random = random
        self._backoff = backoff_ms / 1000
        self._backoff_max = backoff_max_ms / 1000
        self._connect_timeout = connect_timeout_ms / 1000
        self._nodes: dict[Address, _Node] = {}
        self._is_closed = False

    async def send(self, node: Address, encode: Encode) -> memoryview:
        """The response frame without its length. It starts with the correlation id, which is already checked.

        Waits for a connection (and its back-off), then for a place among `max_in_flight`, then for the answer. Raises Disconnected or
        RequestTimedOut; only the wait for the answer counts towards the request's timeout.
        """
        known = self._nodes.get(node)
        connection = known.connection if known is not None else None
        if connection is None:
            connection = await self._connected(node)
        await connection.slots.acquire()
        if not connection.is_open:
            connection.slots.release()
            raise Disconnected(f"{connection} closed the connection before the request was sent")
        try:
            answer = connection.request(encode)
        except BaseException:
            connection.slots.release()
            raise
        return await answer

    def is_connected(self, node: Address) -> bool:
        """Whether there is an open connection."""
        known = self._nodes.get(node)
        return known is not None and known.connection is not None

    def disconnect(self, node: Address) -> None:
        """Closes the connection, if there is one, and forgets the node and its back-off."""
        known = self._nodes.pop(node, None)
        if known is None:
            return
        error = Disconnected(f"the connection to {node[0]}:{node[1]} was closed on this side")
        if known.connection is not None:
            known.connection.end(error)
        if known.task is not None:
            known.task.cancel()
        if known.ready is not None and not known.ready.done():
            known.ready.set_result(error)

    def close(self) -> None:
        """Closes all connections. Waiting and later sends fail with Disconnected."""
        self._is_closed = True
        for node in list(self._nodes):
            self.disconnect(node)

    def connection_ended(self, address: Address, connection: _Connection) -> None:
        """Called by a connection when it ends. The next connection to that node waits for a back-off."""
        node = self._nodes.get(address)
        if node is not None and node.connection is connection:
            node.connection = None
            if connection.has_answered:
                node.failures = 0
            self._back_off(node)

    def _back_off(self, node: _Node) -> None:
        doublings = min(node.failures, _BACKOFF_DOUBLINGS_MAX)
        node.failures += 1
        delay = min(self._backoff * 2**doublings, self._backoff_max) * (1 + JITTER * (2 * self._random() - 1))
        node.retry_at = self.clock.monotonic() + delay

    async def _connected(self, address: Address) -> _Connection:
        """The connection to the node, opened if there is none. All callers share one attempt. Raises Disconnected if it fails."""
        if self._is_closed:
            raise Disconnected("this network client is closed")
        node = self._nodes.setdefault(address, _Node())
        if node.ready is None:
            loop = asyncio.get_running_loop()
            node.ready = loop.create_future()
            node.task = loop.create_task(self._connect(address, node, node.ready))
        # Shielded: cancelling one caller must not cancel the attempt of the others.
        error = await asyncio.shield(node.ready)
        if error is not None:
            raise Disconnected(str(error)) from error
        if node.connection is None:
            raise Disconnected(f"{address[0]}:{address[1]} closed the connection at once")
        return node.connection

    async def _connect(self, address: Address, node: _Node, ready: asyncio.Future[Exception | None]) -> None:
        """Waits for the back-off, connects, and resolves `ready`."""
        host, port = address
        loop = asyncio.get_running_loop()
        connection = _Connection(self, address, loop)
        delay = node.retry_at - self.clock.monotonic()
        if delay > 0:
            await asyncio.sleep(delay)
        error: Exception | None = None
        try:
            async with asyncio.timeout(self._connect_timeout):
                if self._tls is None:
                    transport, _ = await loop.create_connection(lambda: connection, host, port)
                else:
                    context = self._tls.client_context
                    transport, _ = await loop.create_connection(
                        lambda: connection, host, port, ssl=context, server_hostname=host
                    )
            if self_connection.is_to_itself(transport):
                raise self_connection.refused(address)
            if self._login is not None:
                await connection.log_in(self._login)
        except asyncio.CancelledError:
            connection.end(Disconnected(f"the attempt to connect to {host}:{port} was cancelled"))
            raise
        except (LoginError, MalformedRequest, RequestTimedOut) as failure:
            error = Disconnected(f"cannot log in at {host}:{port}: {failure}")
            error.__cause__ = failure
        except TimeoutError:
            error = Disconnected(f"connecting to {host}:{port} took more than {self._connect_timeout:g} s")
        except ssl.SSLError as failure:
            error = Disconnected(f"cannot connect to {host}:{port} by TLS: {client_reason(failure)}")
            error.__cause__ = failure
        except OSError as failure:
            error = Disconnected(f"cannot connect to {host}:{port}: {failure}")
            error.__cause__ = failure
        if error is not None:
            # The connection may be open: established at the moment of the timeout, and closed silently by the loop.
            connection.end(error)
        if connection.is_open:
            node.connection = connection
        else:
            self._back_off(node)
        node.ready = node.task = None
        if not ready.done():
            ready.set_result(error)
