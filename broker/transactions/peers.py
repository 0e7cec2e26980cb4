"""Requests of the transaction coordinator and of partition leaders to other brokers, over Kafka's protocol.

`Peers` sends one request to a broker at the listener for brokers. `BrokerQueues` keeps what is to be sent: one queue and one request in
flight for each broker. What is added meanwhile goes with the next request.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from broker.cluster.metadata_cache import MetadataCache
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.framing import MalformedRequest
from protocol.network_client import Disconnected, NetworkClient, RequestTimedOut
from protocol.types import Address, TopicPartition

log = logging.getLogger(__name__)

CLIENT_ID = "ottla-transactions"

Item = TypeVar("Item")


class PeerUnavailable(Exception):
    """There is no answer, or it cannot be read. The request may have been carried out."""


class PeerRequests(Protocol):
    """Requests to other brokers; in tests, to brokers in the same process."""

    async def ask(self, broker_id: int, api_key: ApiKey, version: int, body: Mapping[str, Any]) -> Any:
        """The answer, as kio's entity. Raises PeerUnavailable."""
        ...

    def close(self) -> None: ...


class Peers:
    """Sends over the network. A request to a broker that is no longer live fails at once, and not only at its time-out."""

    def __init__(self, metadata: MetadataCache, listener: str, network: NetworkClient) -> None:
        self._metadata = metadata
        self._listener = listener
        self._network = network
        self._connected: dict[int, Address] = {}
        self._brokers_version = -1
        self._forget_listener = metadata.on_change(self._metadata_changed)

    async def ask(self, broker_id: int, api_key: ApiKey, version: int, body: Mapping[str, Any]) -> Any:
        broker = self._metadata.broker(broker_id)
        endpoint = broker.endpoint(self._listener) if broker is not None else None
        if endpoint is None:
            raise PeerUnavailable(f"broker {broker_id} is not live")
        address = self._connected[broker_id] = endpoint.host, endpoint.port
        try:
            frame = await self._network.send(
                address,
                lambda correlation_id: [messages.encode_request(api_key, version, correlation_id, CLIENT_ID, body)],
            )
            return messages.decode_response(api_key, version, frame)[1]
        except (Disconnected, RequestTimedOut, MalformedRequest) as error:
            raise PeerUnavailable(f"{api_key.name} to broker {broker_id}: {error}") from error

    def close(self) -> None:
        self._forget_listener()
        self._network.close()

    def _metadata_changed(self, changed: list[TopicPartition]) -> None:
        if self._brokers_version == self._metadata.brokers_version:
            return
        self._brokers_version = self._metadata.brokers_version
        for broker_id, address in list(self._connected.items()):
            broker = self._metadata.broker(broker_id)
            endpoint = broker.endpoint(self._listener) if broker is not None else None
            if endpoint is None or (endpoint.host, endpoint.port) != address:
                del self._connected[broker_id]
                self._network.disconnect(address)


class BrokerQueues(Generic[Item]):
    """`send(broker, queue)` takes at least one item from the queue, and returns when the items that it took are dealt with."""

    def __init__(self, send: Callable[[int, deque[Item]], Awaitable[None]]) -> None:
        self._send = send
        self._queues: dict[int, deque[Item]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._is_closed = False

    def __len__(self) -> int:
        """Items that are not sent yet."""
        return sum(map(len, self._queues.values()))

    def add(self, broker_id: int, item: Item) -> None:
        """Has no effect after `close`."""
        if self._is_closed:
            return
        self._queues.setdefault(broker_id, deque()).append(item)
        if broker_id not in self._tasks:
            self._tasks[broker_id] = asyncio.get_running_loop().create_task(self._run(broker_id))

    async def close(self) -> None:
        """What is in the queues is dropped."""
        self._is_closed = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._queues.clear()

    async def _run(self, broker_id: int) -> None:
        queue = self._queues[broker_id]
        try:
            while queue:
                try:
                    await self._send(broker_id, queue)
                except Exception:
                    # A bug must not stop the queue.
                    log.exception("an error while requests were sent to broker %d", broker_id)
        finally:
            del self._tasks[broker_id]
            if not queue:
                del self._queues[broker_id]
