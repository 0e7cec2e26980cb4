"""One connection to one broker: pipelined requests, answers in their order."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import cast

from protocol.kafka.framing import MalformedRequest
from protocol.tls import tls_reason
from protocol.types import Buffer

Answer = memoryview
OnAnswer = Callable[[Answer | None], None]
"""Called with the answer's frame (without its length), or with None if the connection ended before it came."""

ANSWER_BYTES_MAX = 512 * 1024 * 1024


class AccessRefused(ConnectionError):
    """TLS or SASL failed. The text says what the broker refuses, or why it is not trusted; it starts in the middle of a line."""


class BrokerConnection(asyncio.Protocol):
    """Requests of one turn of the loop leave in one write, because a write costs as much as the rest of a small request.

    What the socket does not take is queued in memory. Use `connect`, or `Client.connect` for one that is logged in.
    """

    def __init__(self, on_end: Callable[[BrokerConnection], None]) -> None:
        self.is_open = False
        self._on_end = on_end
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[tuple[OnAnswer, float]] = deque()
        self._unsent: list[Buffer] = []
        self._held: list[tuple[Buffer, OnAnswer | None]] | None = None
        """Requests that wait while the connection logs in again."""
        self._next_login: asyncio.TimerHandle | None = None
        self._login: asyncio.Task[None] | None = None
        self._problem: Exception | None = None
        self._received = bytearray()

    def send(self, frame: Buffer, on_answer: OnAnswer | None, ahead: bool = False) -> None:
        """Sends a frame that starts with its length. `on_answer` is None for a request that has no answer.

        During a login, the frame waits, unless it goes `ahead`.
        """
        if self._held is not None and not ahead:
            self._held.append((frame, on_answer))
            return
        if on_answer is not None:
            self._waiting.append((on_answer, time.monotonic()))
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._write)
        self._unsent.append(frame)

    async def ask(self, frame: Buffer, timeout_s: float, *, ahead: bool = False) -> Answer:
        """Sends a frame and returns its answer. `ahead`: as for `send`. Raises OSError, also TimeoutError."""
        if not self.is_open:
            raise ConnectionResetError("the connection has ended")
        done: asyncio.Future[Answer | None] = asyncio.get_running_loop().create_future()

        def answered(answer: Answer | None) -> None:
            if not done.done():  # it is cancelled after the timeout
                done.set_result(answer)

        self.send(frame, answered, ahead)
        async with asyncio.timeout(timeout_s):
            answer = await done
        if answer is None:
            if isinstance(self._problem, ssl.SSLError) and "ALERT" in (self._problem.reason or ""):
                # With TLS 1.3, a broker refuses the client's certificate after the handshake.
                raise AccessRefused(
                    f"it ended TLS ({tls_reason(self._problem)}); if it wants a client's certificate, set ssl.keystore.location"
                )
            raise ConnectionResetError("the connection ended before the answer")
        return answer

    def log_in_after(self, delay_s: float, log_in: Callable[[], Awaitable[float]]) -> None:
        """Calls `log_in` after this time, while other requests wait. It returns the delay until the next time; 0: never.

        If it fails, the connection ends.
        """
        self._next_login = asyncio.get_running_loop().call_later(delay_s, self._start_login, log_in)

    def close_if_stuck(self, timeout_s: float) -> None:
        """Ends the connection if its oldest request waits for longer than `timeout_s`."""
        if self._waiting and time.monotonic() - self._waiting[0][1] > timeout_s:
            self.close()

    def close(self) -> None:
        """Ends the connection at once; requests in flight get None."""
        if self._transport is not None:
            self._transport.abort()
        self._end()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def connection_lost(self, exc: Exception | None) -> None:
        self._problem = exc
        self._end()

    def data_received(self, data: bytes) -> None:
        received = self._received
        if received:
            received += data
            if len(received) >= 4 and int.from_bytes(received[:4], "big") > ANSWER_BYTES_MAX:
                self.close()  # the peer does not speak Kafka's protocol
                return
            data = bytes(received) if len(received) >= 4 + int.from_bytes(received[:4], "big") else b""
            if not data:
                return
            received.clear()
        at, end = 0, len(data)
        view = memoryview(data)
        while end - at >= 4:
            size = int.from_bytes(data[at : at + 4], "big")
            if size > ANSWER_BYTES_MAX or not self._waiting:
                self.close()  # the peer does not speak Kafka's protocol
                return
            if end - at - 4 < size:
                break
            answer = view[at + 4 : at + 4 + size]
            at += 4 + size
            self._waiting.popleft()[0](answer)
        if at < end:
            received += view[at:]

    def _write(self) -> None:
        unsent, self._unsent = self._unsent, []
        if self.is_open:
            assert self._transport is not None
            self._transport.write(unsent[0] if len(unsent) == 1 else b"".join(unsent))

    def _start_login(self, log_in: Callable[[], Awaitable[float]]) -> None:
        self._login = asyncio.get_running_loop().create_task(self._log_in(log_in))

    async def _log_in(self, log_in: Callable[[], Awaitable[float]]) -> None:
        self._held = []
        try:
            next_s = await log_in()
        except (OSError, MalformedRequest):
            self.close()
            return
        held, self._held = self._held, None
        for frame, on_answer in held or ():
            self.send(frame, on_answer)
        if next_s and self.is_open:
            self.log_in_after(next_s, log_in)

    def _end(self) -> None:
        if not self.is_open:
            return
        self.is_open = False
        if self._next_login is not None:
            self._next_login.cancel()
        waiting, self._waiting = self._waiting, deque()
        held, self._held = self._held or [], None
        for on_answer, _ in waiting:
            on_answer(None)
        for _, on_held_answer in held:
            if on_held_answer is not None:
                on_held_answer(None)
        self._on_end(self)


async def connect(
    host: str,
    port: int,
    on_end: Callable[[BrokerConnection], None],
    timeout_s: float,
    tls: ssl.SSLContext | None = None,
) -> BrokerConnection:
    """Raises OSError (also TimeoutError, and AccessRefused if TLS fails)."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            _, connection = await loop.create_connection(
                lambda: BrokerConnection(on_end), host, port, ssl=tls, server_hostname=host if tls else None
            )
    except (UnicodeError, OverflowError) as problem:
        raise OSError(f"not an address: {problem}") from None
    except ssl.SSLCertVerificationError as problem:
        raise AccessRefused(f"its certificate is refused: {problem.verify_message.rstrip('.')}") from None
    except (ConnectionResetError, ConnectionAbortedError, ssl.SSLEOFError):
        if tls is None:
            raise
        raise ConnectionResetError("it ended the TLS handshake; check that this port is for TLS") from None
    except ssl.SSLError as problem:
        raise AccessRefused(f"TLS failed ({tls_reason(problem)}); check that this port is for TLS") from None
    return connection
