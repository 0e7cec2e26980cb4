"""Who leads which partition, as the cluster says, for all clients of one task."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Sequence
from typing import Any

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.framing import MalformedRequest
from protocol.types import Address
from tools.failures import ExpectedError
from tools.wire import frames
from tools.wire.connection import AccessRefused, BrokerConnection, connect
from tools.wire.sasl import authenticate
from tools.wire.security import PLAINTEXT, Security

METADATA_VERSION = 7
TIMEOUT_S = 5.0
"""How long to wait for a connection, and for the answer to a request of the view."""
RETRY_S = 0.03
"""Pause before the metadata is asked for again while somebody waits for a leader."""
CLIENT = "ottla-replay"
LOGIN_TIMEOUT_S = 30.0
"""The same for a login on a connection in use: earlier requests, such as a fetch that waits for records, are answered first."""
LOGIN_AFTER = 0.85
"""The part of a login's lifetime after which a connection logs in again, as Kafka's clients do."""
LOGIN_AFTER_S_MIN = 1.0
"""Kafka ends a connection that logs in twice within a second."""

TopicPartition = tuple[str, int]


class LoadError(ExpectedError):
    """A replay that cannot go on. The text says why in one line."""


class ClusterView:
    """The cluster's metadata. While clients wait for a change, the view asks for it again and again."""

    def __init__(self, bootstrap: Sequence[Address], topics: Sequence[str], security: Security = PLAINTEXT) -> None:
        self._security = security
        self._tls = security.tls_context()
        self._bootstrap = list(bootstrap)
        self._topics = list(topics)
        self._addresses: dict[int, Address] = {}
        self._leaders: dict[TopicPartition, int] = {}
        self._waiting: dict[Callable[[], None], None] = {}
        self._refreshing: asyncio.Task[None] | None = None
        self._next_asked = 0

    def leader(self, partition: TopicPartition) -> int:
        """The id of the leader's broker, or -1."""
        return self._leaders.get(partition, -1)

    def address(self, broker: int) -> Address | None:
        return self._addresses.get(broker)

    def partitions(self, topic: str) -> int:
        """The number of partitions of the topic; 0 if it does not exist."""
        return sum(1 for name, _ in self._leaders if name == topic)

    def ask_again(self, then: Callable[[], None]) -> None:
        """Asks for the metadata and calls `then` once, after the answer."""
        self._waiting[then] = None
        if self._refreshing is None:
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh_while_waited_for())

    async def start(self) -> None:
        """Asks for the metadata once. Raises LoadError if no address answers, or if one refuses TLS or SASL."""
        problem = "there is none"
        for address in self._bootstrap:
            try:
                self._apply(await self.ask(address, ApiKey.METADATA, METADATA_VERSION, self._metadata_body()))
                return
            except AccessRefused as error:
                raise LoadError(f"{_words([address])}: {error}") from None
            except (OSError, MalformedRequest) as error:
                problem = f"{_words([address])}: {str(error) or type(error).__name__}"
                if isinstance(error, ConnectionResetError) and self._security == PLAINTEXT:
                    problem += "; if this port is for TLS or SASL, use --command-config"
        raise LoadError(f"no broker of {_words(self._bootstrap)} answers ({problem})")

    async def ask(self, address: Address, api_key: ApiKey, version: int, body: dict[str, Any]) -> Any:
        """One request over a connection of its own. Raises OSError, MalformedRequest."""
        connection = await self._connect(address, lambda _: None)
        try:
            frame = await connection.ask(frames.request_frame(api_key, version, CLIENT, body), TIMEOUT_S)
        finally:
            connection.close()
        return frames.answer(api_key, version, frame)

    async def ask_any(self, api_key: ApiKey, version: int, body: dict[str, Any]) -> Any:
        """One request to any broker that answers. Raises LoadError if none does."""
        for _ in range(3 * len(self._known())):
            with contextlib.suppress(OSError, MalformedRequest):
                return await self.ask(self._next_address(), api_key, version, body)
            await asyncio.sleep(RETRY_S)
        raise LoadError(f"no broker of {_words(self._known())} answers")

    async def connect(self, broker: int, on_end: Callable[[BrokerConnection], None]) -> BrokerConnection:
        """Raises OSError."""
        address = self._addresses.get(broker)
        if address is None:
            raise ConnectionError(f"broker {broker} has no address")
        return await self._connect(address, on_end)

    def close(self) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()

    async def _connect(self, address: Address, on_end: Callable[[BrokerConnection], None]) -> BrokerConnection:
        """A connection that is logged in. Raises OSError."""
        return await open_connection(address, on_end, self._security, self._tls, TIMEOUT_S)

    async def _refresh_while_waited_for(self) -> None:
        try:
            while self._waiting:
                # A client that starts to wait during the request may know more than its answer, so it waits for the next one.
                waiting, self._waiting = self._waiting, {}
                with contextlib.suppress(OSError, MalformedRequest):
                    self._apply(
                        await self.ask(self._next_address(), ApiKey.METADATA, METADATA_VERSION, self._metadata_body())
                    )
                for then in waiting:
                    then()
                if self._waiting:
                    await asyncio.sleep(RETRY_S)
        finally:
            self._refreshing = None

    def _metadata_body(self) -> dict[str, Any]:
        return {"topics": [{"name": topic} for topic in self._topics], "allow_auto_topic_creation": False}

    def _apply(self, metadata: Any) -> None:
        addresses = {int(broker.node_id): (str(broker.host), int(broker.port)) for broker in metadata.brokers}
        if addresses:
            self._addresses = addresses
        for topic in metadata.topics:
            for partition in topic.partitions:
                self._leaders[topic.name, int(partition.partition_index)] = int(partition.leader_id)

    def _known(self) -> list[Address]:
        return list(dict.fromkeys([*self._addresses.values(), *self._bootstrap]))

    def _next_address(self) -> Address:
        known = self._known()
        self._next_asked += 1
        return known[self._next_asked % len(known)]


async def open_connection(
    address: Address,
    on_end: Callable[[BrokerConnection], None],
    security: Security,
    tls: ssl.SSLContext | None,
    timeout_s: float,
) -> BrokerConnection:
    """A connection that is logged in, and logs in again in time. `tls`: the context of `security`. Raises OSError."""
    connection = await connect(*address, on_end, timeout_s, tls)
    if not security.uses_sasl:
        return connection

    async def log_in(timeout_s: float = LOGIN_TIMEOUT_S) -> float:
        lifetime_s = await authenticate(connection, security, timeout_s)
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


def _words(addresses: Sequence[Address]) -> str:
    return ", ".join(f"{host}:{port}" for host, port in addresses)
