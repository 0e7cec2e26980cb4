"""Who leads which partition, as the cluster says. Several clients may share a view."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.framing import MalformedRequest
from protocol.types import Address, TopicPartition
from tools.failures import ExpectedError
from tools.wire.client import Client
from tools.wire.connection import AccessRefused, BrokerConnection
from tools.wire.security import PLAINTEXT

METADATA_VERSION = 7
RETRY_S = 0.03
"""Pause before the metadata is asked for again while somebody waits for a leader."""


class Unreachable(ExpectedError):
    """No broker answers, or one refuses TLS or SASL. The text says why in one line."""


class ClusterView:
    """The cluster's metadata. While clients wait for a change, the view asks for it again and again."""

    def __init__(self, client: Client, bootstrap: Sequence[Address], topics: Sequence[str]) -> None:
        self.client = client
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
        """Asks for the metadata once. Raises Unreachable if no address answers, or if one refuses TLS or SASL."""
        problem = "there is none"
        for address in self._bootstrap:
            try:
                self._apply(await self._metadata(address))
                return
            except AccessRefused as error:
                raise Unreachable(f"{_words([address])}: {error}") from None
            except (OSError, MalformedRequest) as error:
                problem = f"{_words([address])}: {_reason(error)}"
                if isinstance(error, ConnectionResetError) and self.client.security == PLAINTEXT:
                    problem += "; if this port is for TLS or SASL, use --command-config"
        raise Unreachable(f"no broker of {_words(self._bootstrap)} answers ({problem})")

    async def ask_any(self, api_key: ApiKey, version: int, body: dict[str, Any]) -> Any:
        """One request to any broker that answers. Raises Unreachable if none does."""
        problem = "there is none"
        for _ in range(3 * len(self._known())):
            address = self._next_address()
            try:
                return await self.client.ask(address, api_key, version, body)
            except (OSError, MalformedRequest) as error:
                problem = f"{_words([address])}: {_reason(error)}"
            await asyncio.sleep(RETRY_S)
        raise Unreachable(f"no broker of {_words(self._known())} answers ({problem})")

    async def connect(self, broker: int, on_end: Callable[[BrokerConnection], None]) -> BrokerConnection:
        """Raises OSError."""
        address = self._addresses.get(broker)
        if address is None:
            raise ConnectionError(f"broker {broker} has no address")
        return await self.client.connect(address, on_end)

    def close(self) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()

    async def _refresh_while_waited_for(self) -> None:
        try:
            while self._waiting:
                # A client that starts to wait during the request may know more than its answer, so it waits for the next one.
                waiting, self._waiting = self._waiting, {}
                with contextlib.suppress(OSError, MalformedRequest):
                    self._apply(await self._metadata(self._next_address()))
                for then in waiting:
                    then()
                if self._waiting:
                    await asyncio.sleep(RETRY_S)
        finally:
            self._refreshing = None

    async def _metadata(self, address: Address) -> Any:
        body = {"topics": [{"name": topic} for topic in self._topics], "allow_auto_topic_creation": False}
        return await self.client.ask(address, ApiKey.METADATA, METADATA_VERSION, body)

    def _apply(self, metadata: Any) -> None:
        addresses = {int(broker.node_id): (str(broker.host), int(broker.port)) for broker in metadata.brokers}
        if addresses:
            self._addresses = addresses
        for topic in metadata.topics:
            for partition in topic.partitions:
                self._leaders[TopicPartition(topic.name, int(partition.partition_index))] = int(partition.leader_id)

    def _known(self) -> list[Address]:
        return list(dict.fromkeys([*self._addresses.values(), *self._bootstrap]))

    def _next_address(self) -> Address:
        known = self._known()
        self._next_asked += 1
        return known[self._next_asked % len(known)]


def _reason(error: Exception) -> str:
    if isinstance(error, socket.gaierror):
        return "the host name does not resolve"
    number = getattr(error, "errno", None)
    return os.strerror(number) if number else str(error) or type(error).__name__


def _words(addresses: Sequence[Address]) -> str:
    return ", ".join(f"{host}:{port}" for host, port in addresses)
