"""One of the two clusters: connections to its brokers, requests to the right one, the topics of its scene."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from types import TracebackType
from typing import Any

from protocol.errors import ErrorCode, is_retriable
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey, VersionRange
from protocol.kafka.framing import MalformedRequest
from protocol.types import Address
from tools.failures import AdminError
from tools.inspect.conformance.normalising import Normaliser, field_names
from tools.inspect.conformance.requests import complete, requests
from tools.inspect.conformance.scene import Scene, Where, batch
from tools.inspect.conformance.variants import sized
from tools.wire.client import Client
from tools.wire.connection import BrokerConnection

CLIENT_ID = "ottla-inspect"
CONNECT_TIMEOUT_S = 20.0
ANSWER_TIMEOUT_S = 30.0
SILENCE_S = 2.0
"""How long the answer to bytes that are no request may take. Most brokers close the connection at once."""
SETTLE_TIMEOUT_S = 60.0
PROBE_ID = -1_234_567
"""Correlation id of the request behind one that may have no answer."""
RETRY_S = 0.05
CLOSED = "<connection closed>"
SILENT = "<no answer>"
ANSWERED = "<an answer>"

Line = tuple[Address, str]
"""A broker, and a name: requests that wait for each other, such as those of two members, have connections of their own."""


PASSING = frozenset(
    (
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.REQUEST_TIMED_OUT,
    )
)
"""Fewer than the retriable errors: the others, such as that of an unknown topic, are answers to compare."""


class Cluster:
    """`name` is what the user calls it: "reference" or "subject". `run` is the prefix of everything that is made in it.

    Methods raise AdminError if the broker cannot be reached, or refuses what the tool needs.
    """

    def __init__(self, name: str, address: Address, run: str) -> None:
        self.name = name
        self.run = run
        self.home_address = address
        self._client = Client(CLIENT_ID)
        self._connections: dict[Line, BrokerConnection] = {}
        self._turns: defaultdict[Line, asyncio.Lock] = defaultdict(asyncio.Lock)
        """Requests on the same line take turns: the comparisons of a matrix run side by side."""
        self._correlation_ids = itertools.count(1)
        self._addresses: dict[int, Address] = {}
        self._coordinators: dict[tuple[int, str], Address] = {}
        self._controller: Address = address
        self.controller = -1
        self.home = -1
        self.versions: dict[int, VersionRange] = {}

    async def __aenter__(self) -> Cluster:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for line in list(self._connections):
            self._drop(line)

    @property
    def brokers(self) -> Collection[int]:
        return self._addresses.keys()

    def addresses(self) -> Collection[Address]:
        return self._addresses.values()

    def address_of(self, broker: int) -> Address:
        return self._addresses[broker]

    # -- the scene ----------------------------------------------------------------------------------------------------

    async def set_up(self) -> tuple[Scene, Normaliser]:
        """Reads versions and brokers, and makes the topics and the group of the scene."""
        answer = await self.call(
            ApiKey.API_VERSIONS, 3, {"client_software_name": CLIENT_ID, "client_software_version": "1"}
        )
        self.versions = {int(row.api_key): VersionRange(row.min_version, row.max_version) for row in answer.api_keys}
        await self._find_brokers()
        scene = Scene(self.run, self.home)
        for name in (scene.topic, scene.scratch):
            await self.make_topic(scene, name)
        commit = requests()[ApiKey.OFFSET_COMMIT].body(scene)
        await self._until_done(ApiKey.OFFSET_COMMIT, commit, Where.GROUP, scene.group)
        if ApiKey.ADD_PARTITIONS_TO_TXN in self.versions:
            body = {"key": scene.transactional_id, "key_type": 1}
            await self._until_done(ApiKey.FIND_COORDINATOR, body, Where.HOME, "", version=1)
        return scene, Normaliser(self.run, self.home, self._addresses, scene.topic_ids)

    async def make_topic(self, scene: Scene, name: str) -> None:
        """A topic of the scene, with its records."""
        await self.create_topic(name)
        scene.topic_ids.update(await self._topic_id(name))
        await self._until_served(scene, name)

    async def _find_brokers(self) -> None:
        """Waits until the broker knows the controller: a broker that has just started does not."""
        answer: Any = None

        async def knows_controller() -> bool:
            nonlocal answer
            answer = await self.call(ApiKey.METADATA, 1, {"topics": []})
            self._addresses = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
            return answer.controller_id in self._addresses

        await self.until("the broker knows the controller", knows_controller)
        self.controller = int(answer.controller_id)
        self._controller = self._addresses[self.controller]
        by_address = {address: node for node, address in self._addresses.items()}
        named = self.home_address
        if len(by_address) == 1:
            self.home = next(iter(self._addresses))
        elif named in by_address:
            self.home = by_address[named]
        else:
            # Another name of the host: the port tells, unless brokers share it.
            same_port = [node for node, (_, port) in self._addresses.items() if port == named[1]]
            if len(same_port) != 1:
                shown = ", ".join(f"{host}:{port}" for host, port in by_address)
                raise AdminError(f"{named[0]}:{named[1]} is none of the {self.name}'s brokers, which are {shown}")
            self.home = same_port[0]
        self._addresses[self.home] = named
        if self.controller == self.home:
            self._controller = named

    async def create_topic(self, name: str, replicas: Sequence[Sequence[int]] | None = None) -> None:
        """`replicas`: of each partition; None: two partitions, each with one replica, on the home broker."""
        assigned = [[self.home], [self.home]] if replicas is None else replicas
        rows = [{"partition_index": n, "broker_ids": [*ids]} for n, ids in enumerate(assigned)]
        topic = {
            "name": name,
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": rows,
            "configs": [{"name": "retention.ms", "value": "-1"}],
        }
        body = {"topics": [topic], "timeout": 10_000, "validate_only": False}
        await self._until_done(ApiKey.CREATE_TOPICS, body, Where.CONTROLLER, "")

    async def until_known(self, name: str) -> None:
        """Waits until the home broker's metadata has the topic with its leaders."""

        async def is_known() -> bool:
            body = {"topics": [{"name": name}], "allow_auto_topic_creation": False}
            rows = (await self.call(ApiKey.METADATA, 4, body)).topics[0].partitions
            return bool(rows) and all(row.leader_id >= 0 for row in rows)

        await self.until(f"{name} has leaders", is_known)

    async def until(self, what: str, is_true: Callable[[], Awaitable[bool]]) -> None:
        """Raises AdminError after SETTLE_TIMEOUT_S."""
        deadline = _now() + SETTLE_TIMEOUT_S
        while not await is_true():
            if _now() > deadline:
                raise AdminError(f"{self.name}: not within {SETTLE_TIMEOUT_S:.0f} s: {what}")
            await asyncio.sleep(RETRY_S)

    async def delete_topics(self, *names: str) -> None:
        """Nothing happens to a topic that is not there."""
        with contextlib.suppress(AdminError):
            body = {"topic_names": [*names], "timeout": 10_000}
            await self.call(ApiKey.DELETE_TOPICS, 1, body, Where.CONTROLLER)

    async def clean_up(self) -> None:
        """Deletes the topics and groups whose name has the run's prefix. Members of groups leave by their time-out."""
        answer = await self.call(ApiKey.METADATA, 1, {"topics": None})
        await self.delete_topics(*(row.name for row in answer.topics if self.run in row.name.replace(".", "-")))
        for address in [self.home_address, *self._addresses.values()]:
            groups = await self._call_at(address, ApiKey.LIST_GROUPS, 0, {})
            names = [group.group_id for group in groups.groups if self.run in group.group_id]
            if names:
                await self._call_at(address, ApiKey.DELETE_GROUPS, 0, {"groups_names": names})

    async def _topic_id(self, name: str) -> dict[str, uuid.UUID]:
        await self.until_known(name)
        if self.versions[ApiKey.METADATA].max < 10:
            return {}
        answer = await self.call(ApiKey.METADATA, 10, {"topics": [{"name": name, "topic_id": None}]})
        found = answer.topics[0].topic_id
        return {} if found is None else {name: found}

    async def _until_served(self, scene: Scene, name: str) -> None:
        body = requests()[ApiKey.PRODUCE].body(scene)
        body["topic_data"][0].update(name=name)
        body["topic_data"][0]["partition_data"][0].update(records=batch())
        await self._until_done(ApiKey.PRODUCE, body, Where.HOME, "", version=7)

    async def _until_done(
        self, api_key: int, body: Mapping[str, Any], where: Where, of: str, version: int | None = None
    ) -> None:
        version = version if version is not None else self.versions[api_key].min
        version = max(version, messages.versions_with_schemas(api_key).start)

        async def is_done() -> bool:
            answer = await self.call(api_key, version, body, where, of)
            # A topic of this name is one that an earlier try has made.
            errors = set(_errors(answer)) - {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}
            # A cluster whose brokers have not all registered yet refuses the replication factor.
            if not all(is_retriable(error) or error is ErrorCode.INVALID_REPLICATION_FACTOR for error in errors):
                shown = ", ".join(sorted(error.name for error in errors))
                raise AdminError(f"the {self.name} answers {messages.api_name(api_key)} with {shown}")
            if errors:
                self._coordinators.clear()
            return not errors

        await self.until(f"{messages.api_name(api_key)} succeeds", is_done)

    # -- requests -----------------------------------------------------------------------------------------------------

    async def call(
        self, api_key: int, version: int, body: Mapping[str, Any], where: Where = Where.HOME, of: str = ""
    ) -> Any:
        """The answer, as kio reads it. `of`: the group or the transactional id whose coordinator is asked."""
        return await self._call_at(await self.address(where, of), api_key, version, body)

    async def ping(self, address: Address) -> None:
        """Returns when the broker has answered on a line that nothing else uses."""
        await self._call_at(address, ApiKey.API_VERSIONS, 0, {}, "ping")

    async def _call_at(
        self, address: Address, api_key: int, version: int, body: Mapping[str, Any], line: str = ""
    ) -> Any:
        schema = messages.request_schema(api_key, version)
        frame = messages.encode_request(
            api_key, version, next(self._correlation_ids), CLIENT_ID, complete(schema, body)
        )
        found = await self._exchange((address, line), sized(frame), ANSWER_TIMEOUT_S)
        if isinstance(found, str):
            raise AdminError(
                f"the {self.name} at {address[0]}:{address[1]} answers {messages.api_name(api_key)} v{version} "
                f"with {found}"
            )
        return messages.decode_response(api_key, version, found)[1]

    async def outcome(
        self,
        line: Line,
        api_key: int,
        version: int,
        data: bytes,
        timeout_s: float = ANSWER_TIMEOUT_S,
        *,
        may_be_silent: bool = False,
    ) -> Any:
        """What becomes of a request: kio's entity, or a text: CLOSED, SILENT, or that the answer cannot be read.

        Behind a request that `may_be_silent` goes another one. Its answer shows that the first has none.
        """
        probe = sized(messages.encode_request(ApiKey.API_VERSIONS, 0, PROBE_ID, CLIENT_ID, {}))
        found = await self._exchange(line, data + probe if may_be_silent else data, timeout_s)
        if isinstance(found, str):
            return found
        if may_be_silent:
            self._drop(line)
            if int.from_bytes(found[:4], "big", signed=True) == PROBE_ID:
                return SILENT
        if version not in messages.versions_with_schemas(api_key):
            return ANSWERED
        try:
            return messages.decode_response(api_key, version, found)[1]
        except MalformedRequest as error:
            if api_key == ApiKey.API_VERSIONS and len(found) > 6:
                # A refused version is answered in version 0 (KIP-511).
                return messages.decode_response(api_key, 0, found)[1]
            return f"<unreadable answer: {error}>"

    async def address(self, where: Where, of: str = "") -> Address:
        """Of the broker that serves such a request; the home broker for what has no coordinator.

        The coordinator is asked for even in a cluster of one broker: brokers make their internal topics then.
        """
        if where is Where.CONTROLLER:
            return self._controller
        if where is Where.HOME:
            return self.home_address
        kind = 1 if where is Where.TRANSACTION else 0
        found = self._coordinators.get((kind, of))
        if found is None:
            answer = await self._call_at(self.home_address, ApiKey.FIND_COORDINATOR, 1, {"key": of, "key_type": kind})
            found = self._addresses.get(int(answer.node_id), self.home_address)
            if answer.error_code == 0:
                self._coordinators[(kind, of)] = found
        return found

    async def _exchange(self, line: Line, data: bytes, timeout_s: float) -> bytes | str:
        """The response to `data` without its length, or CLOSED or SILENT."""
        async with self._turns[line]:
            connection = await self._connection(line)
            try:
                return bytes(await connection.ask(data, timeout_s))
            except TimeoutError:
                self._drop(line)
                return SILENT
            except OSError:
                self._drop(line)
                return CLOSED
            except asyncio.CancelledError:
                self._drop(line)  # the answer would be read as that of the next request
                raise

    async def _connection(self, line: Line) -> BrokerConnection:
        address, _ = line
        if line not in self._connections or not self._connections[line].is_open:
            try:
                self._connections[line] = await self._client.connect(address, timeout_s=CONNECT_TIMEOUT_S)
            except OSError:
                raise AdminError(
                    f"no broker answers at {address[0]}:{address[1]} ({self.name}); check the address and that it runs"
                ) from None
        return self._connections[line]

    def _drop(self, line: Line) -> None:
        self._connections.pop(line).close()


def is_elsewhere(answer: Any) -> bool:
    """Whether another broker is the coordinator."""
    return ErrorCode.NOT_COORDINATOR in _errors(answer)


def is_passing(answer: Any) -> bool:
    """Whether the broker only asks for patience: it loads, or it does not know at the moment whether it still leads."""
    return not PASSING.isdisjoint(_errors(answer))


def _errors(answer: Any) -> list[ErrorCode]:
    """All error codes in an answer."""
    if isinstance(answer, tuple) and not hasattr(answer, "_fields"):
        return [error for row in answer for error in _errors(row)]
    found = []
    for name in field_names(answer):
        value = getattr(answer, name)
        found += [ErrorCode(int(value))] if name.endswith("error_code") else _errors(value)
    return found


def _now() -> float:
    return asyncio.get_running_loop().time()
