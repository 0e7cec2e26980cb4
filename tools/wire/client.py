"""Requests to brokers: over a connection, over one that is opened for them, and for callers without an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from protocol.kafka.framing import MalformedRequest
from protocol.types import Address
from tools.wire import frames
from tools.wire.connection import BrokerConnection, connect
from tools.wire.sasl import authenticate
from tools.wire.security import PLAINTEXT, Security

TIMEOUT_S = 5.0
"""How long to wait for a connection, and for the answer to a request, unless the caller says."""
LOGIN_TIMEOUT_S = 30.0
"""The same for a login on a connection in use: earlier requests, such as a fetch that waits for records, are answered first."""
LOGIN_AFTER = 0.85
"""The part of a login's lifetime after which a connection logs in again, as Kafka's clients do."""
LOGIN_AFTER_S_MIN = 1.0
"""Kafka ends a connection that logs in twice within a second."""


class Client:
    """Connects to brokers. `name` is the client id of its requests."""

    def __init__(self, name: str, security: Security = PLAINTEXT) -> None:
        self.name = name
        self.security = security
        self._tls = security.tls_context()

    async def connect(
        self,
        address: Address,
        on_end: Callable[[BrokerConnection], None] = lambda _: None,
        timeout_s: float = TIMEOUT_S,
    ) -> BrokerConnection:
        """A connection that is logged in, and logs in again in time. Raises OSError."""
        connection = await connect(*address, on_end, timeout_s, self._tls)
        if not self.security.uses_sasl:
            return connection

        async def log_in(timeout_s: float = LOGIN_TIMEOUT_S) -> float:
            lifetime_s = await authenticate(connection, self.name, self.security, timeout_s)
            return max(lifetime_s * LOGIN_AFTER, LOGIN_AFTER_S_MIN) if lifetime_s else 0.0

        try:
            next_s = await log_in(timeout_s)
        except MalformedRequest as problem:
            connection.close()
            raise ConnectionError(str(problem)) from None
        except BaseException:
            connection.close()
            raise
        if next_s:
            connection.log_in_after(next_s, log_in)
        return connection

    async def ask(
        self, address: Address, api_key: int, version: int, body: Mapping[str, Any], timeout_s: float = TIMEOUT_S
    ) -> Any:
        """The answer, as kio's entity, over a connection of its own. Raises OSError, MalformedRequest."""
        connection = await self.connect(address, timeout_s=timeout_s)
        try:
            return await self.ask_over(connection, api_key, version, body, timeout_s)
        finally:
            connection.close()

    async def ask_over(
        self, connection: BrokerConnection, api_key: int, version: int, body: Mapping[str, Any], timeout_s: float
    ) -> Any:
        """The same over an open connection."""
        frame = frames.request_frame(api_key, version, self.name, body)
        return frames.answer(api_key, version, await connection.ask(frame, timeout_s))


def ask(
    address: Address,
    timeout_s: float,
    api_key: int,
    version: int,
    body: Mapping[str, Any],
    client: str = "ottla",
    security: Security | None = None,
) -> Any | None:
    """The broker's answer, as kio's entity; None without a valid answer. Waits for it: not for a thread with an event loop."""

    async def answer() -> Any:
        async with asyncio.timeout(timeout_s):
            return await Client(client, security or PLAINTEXT).ask(address, api_key, version, body, timeout_s)

    try:
        return asyncio.run(answer())
    except (OSError, MalformedRequest):
        return None
