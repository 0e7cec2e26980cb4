"""A Kafka client that speaks every version that is served, pipelines, and checks that answers come in the order of its requests."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from random import Random
from typing import Any, NamedTuple, cast

from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import SERVED, ApiKey, ApiLevel
from protocol.kafka.framing import MalformedRequest
from protocol.types import Address, TopicPartition
from tools.sim.clients.history import History

ANSWER_S = 30.0
"""A request without an answer for so long ends its connection."""
CONNECT_S = 3.0
PATIENCE_S = 2.0
"""After that time, clients look whether another broker answers."""
PRODUCE_TIMEOUT = timedelta(seconds=10)
OLDEST = {ApiKey.METADATA: 1}
"""Versions below cannot say what the client needs."""
BY_ID_SINCE = {ApiKey.PRODUCE: 13, ApiKey.OFFSET_COMMIT: 10, ApiKey.OFFSET_FETCH: 10}
"""Versions that name topics by their ids."""
IDS_IN_METADATA_SINCE = 10
SHARE_BY_ID = 0.5
"""How many clients of level 4 name topics by their ids, where a version can."""
VERSION_MAX = 32_767


class NoAnswer(ConnectionError):
    """The connection ended, or was not there. What became of the request is not known."""


class _Waiting(NamedTuple):
    correlation_id: int
    api: ApiKey
    version: int
    answer: asyncio.Future[Any]
    deadline: asyncio.TimerHandle


class WireConnection(asyncio.Protocol):
    """One connection. `ask` sends at once, however many answers are missing."""

    def __init__(self, client: str, history: History) -> None:
        self.is_open = False
        self._client = client
        self._history = history
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[_Waiting] = deque()
        self._received = bytearray()
        self._next_id = 1

    def ask(self, api: ApiKey, version: int, body: Mapping[str, Any]) -> asyncio.Future[Any]:
        """The answer's entity. Fails with NoAnswer."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if not self.is_open or self._transport is None:
            answer.set_exception(NoAnswer("the connection has ended"))
            return answer
        correlation_id, self._next_id = self._next_id, self._next_id + 1
        payload = messages.encode_request(api, version, correlation_id, self._client, body)
        deadline = asyncio.get_running_loop().call_later(ANSWER_S, self.close)
        self._waiting.append(_Waiting(correlation_id, api, version, answer, deadline))
        self._transport.write(len(payload).to_bytes(4, "big") + payload)
        return answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        waiting, self._waiting = self._waiting, deque()
        for one in waiting:
            one.deadline.cancel()
            if not one.answer.done():
                one.answer.set_exception(NoAnswer(f"the connection ended: {exc}"))
                one.answer.exception()  # a pipeline may have given up before it comes to this one

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        while len(received) >= 4:
            size = int.from_bytes(received[:4], "big")
            if len(received) < 4 + size:
                return
            frame = bytes(received[4 : 4 + size])
            del received[: 4 + size]
            self._answered(frame)

    def _answered(self, frame: bytes) -> None:
        correlation_id = int.from_bytes(frame[:4], "big")
        if not self._waiting:
            self._history.break_promise(f"{self._client} got an answer {correlation_id} to nothing")
            self.close()
            return
        one = self._waiting.popleft()
        one.deadline.cancel()
        if one.correlation_id != correlation_id:
            self._history.break_promise(
                f"{self._client} got answer {correlation_id} where that to {one.correlation_id} ({one.api.name}) was next"
            )
            self.close()
            return
        if one.answer.done():
            return
        try:
            one.answer.set_result(messages.decode_response(one.api, one.version, frame)[1])
        except MalformedRequest as error:
            self._history.break_promise(
                f"{self._client} cannot read an answer to {one.api.name} v{one.version}: {error}"
            )
            one.answer.set_exception(NoAnswer("unreadable"))


class WireClient:
    """The cluster as one client knows it. Each request has a version that the seed chooses, as of a client of that age."""

    def __init__(self, name: str, bootstrap: Sequence[Address], random: Random, history: History) -> None:
        self.name = name
        self.random = random
        self.history = history
        self.leaders: dict[TopicPartition, int] = {}
        self.topic_ids: dict[str, Any] = {}
        self.names: dict[Any, str] = {}
        self.controller = -1
        self._bootstrap = list(bootstrap)
        self._addresses: dict[int, Address] = {}
        self._connections: dict[Address, WireConnection] = {}
        self._age = random.random()
        self.knows_ids = history.level is ApiLevel.KAFKA_4 and random.random() < SHARE_BY_ID
        """It asks for the ids of topics, too, and may name topics by them."""

    def version(self, api: ApiKey, oldest: int = 0, newest: int = VERSION_MAX) -> int:
        """A version near the age of this client: 0 is the oldest, 1 the newest."""
        served = SERVED[self.history.level][api]
        least = max(served.min, OLDEST.get(api, 0), oldest)
        by_id_since = BY_ID_SINCE.get(api, VERSION_MAX)
        most = min(served.max, newest, VERSION_MAX if self.knows_ids else by_id_since - 1)
        middle = least + self._age * (most - least)
        return min(most, max(least, round(self.random.gauss(middle, 1.5))))

    def name_of(self, topic: Any) -> str:
        """Of a topic in an answer, which has its name or its id."""
        name: str | None = getattr(topic, "name", None)
        return name if name is not None else self.names[topic.topic_id]

    def address_of(self, broker: int) -> Address | None:
        return self._addresses.get(broker)

    async def connection(self, address: Address) -> WireConnection:
        """Raises NoAnswer."""
        known = self._connections.get(address)
        if known is not None and known.is_open:
            return known
        connection = WireConnection(self.name, self.history)
        try:
            async with asyncio.timeout(CONNECT_S):
                await asyncio.get_running_loop().create_connection(lambda: connection, *address)
        except OSError as error:
            raise NoAnswer(str(error)) from None
        self._connections[address] = connection
        return connection

    async def ask(self, address: Address, api: ApiKey, body: Mapping[str, Any], oldest: int = 0) -> Any:
        """Raises NoAnswer."""
        connection = await self.connection(address)
        return await connection.ask(api, self.version(api, oldest), body)

    async def ask_any(self, api: ApiKey, body: Mapping[str, Any], oldest: int = 0) -> Any:
        """Asks brokers in turn until one answers. Raises NoAnswer if none does."""
        addresses = list(dict.fromkeys([*self._addresses.values(), *self._bootstrap]))
        self.random.shuffle(addresses)
        for address in addresses:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    return await self.ask(address, api, body, oldest)
            except (NoAnswer, TimeoutError):
                continue
        raise NoAnswer("no broker answers")

    async def refresh(self, topics: Sequence[str]) -> None:
        """Asks for the leaders of these topics. Keeps what it knows if no broker answers."""
        try:
            oldest = IDS_IN_METADATA_SINCE if self.knows_ids else 0
            answer = await self.ask_any(ApiKey.METADATA, metadata_body(topics), oldest)
        except NoAnswer:
            return
        self.controller = answer.controller_id
        for broker in answer.brokers:
            self._addresses[broker.node_id] = (broker.host, broker.port)
        for topic in answer.topics:
            if topic.error_code != ErrorCode.NONE:
                continue
            topic_id = getattr(topic, "topic_id", None)
            if topic_id is not None:
                self.topic_ids[topic.name] = topic_id
                self.names[topic_id] = topic.name
            for partition in topic.partitions:
                self.leaders[TopicPartition(topic.name, partition.partition_index)] = partition.leader_id

    async def coordinator(self, key: str, kind: int) -> Address:
        """Of a group (kind 0) or a transactional id (1). Raises NoAnswer."""
        body = {"key": key, "key_type": kind, "coordinator_keys": (key,)}
        answer = await self.ask_any(ApiKey.FIND_COORDINATOR, body, oldest=1)
        found = answer.coordinators[0] if hasattr(answer, "coordinators") else answer
        if found.error_code != ErrorCode.NONE:
            raise NoAnswer(f"no coordinator: {found.error_code}")
        return found.host, found.port

    def by_leader(self, partitions: Iterable[TopicPartition]) -> dict[Address, list[TopicPartition]]:
        """The partitions whose leader is known."""
        found: dict[Address, list[TopicPartition]] = {}
        for tp in partitions:
            leader = self._addresses.get(self.leaders.get(tp, -1))
            if leader is not None:
                found.setdefault(leader, []).append(tp)
        return found

    async def back_off(self) -> None:
        await asyncio.sleep(0.02 + self.random.random() * 0.2)

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()


def metadata_body(topics: Sequence[str]) -> dict[str, Any]:
    """A Metadata request for these topics, none of which is created."""
    return {
        "topics": tuple({"name": topic, "topic_id": None} for topic in topics),
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }


def produce_body(
    batches: Mapping[TopicPartition, bytes], topic_ids: Mapping[str, Any], transactional_id: str | None = None
) -> dict[str, Any]:
    """A Produce request with acks=all."""
    return {
        "transactional_id": transactional_id,
        "acks": -1,
        "timeout": PRODUCE_TIMEOUT,
        "topic_data": tuple(
            {
                "name": topic,
                "topic_id": topic_ids.get(topic),
                "partition_data": tuple(
                    {"index": tp.partition, "records": data} for tp, data in batches.items() if tp.topic == topic
                ),
            }
            for topic in dict.fromkeys(tp.topic for tp in batches)
        ),
    }
