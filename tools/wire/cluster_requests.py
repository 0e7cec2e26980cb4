"""Requests to the brokers of one cluster, in the versions that each broker serves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Any, NamedTuple

from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.api_keys import ApiKey, VersionRange
from protocol.kafka.framing import MalformedRequest
from protocol.types import Address
from tools.wire.client import Client
from tools.wire.cluster_view import Unreachable
from tools.wire.connection import AccessRefused, BrokerConnection

VERSIONS: Mapping[ApiKey, VersionRange] = MappingProxyType(
    {
        ApiKey.METADATA: VersionRange(4, 12),
        ApiKey.CREATE_TOPICS: VersionRange(2, 7),
        ApiKey.DELETE_TOPICS: VersionRange(1, 5),
        ApiKey.CREATE_PARTITIONS: VersionRange(0, 3),
        ApiKey.DESCRIBE_CONFIGS: VersionRange(1, 4),
        ApiKey.INCREMENTAL_ALTER_CONFIGS: VersionRange(0, 1),
        ApiKey.LIST_CONFIG_RESOURCES: VersionRange(0, 1),
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: VersionRange(0, 0),
        ApiKey.LIST_PARTITION_REASSIGNMENTS: VersionRange(0, 0),
        ApiKey.ELECT_LEADERS: VersionRange(1, 2),
        ApiKey.DESCRIBE_LOG_DIRS: VersionRange(1, 4),
        ApiKey.ALTER_REPLICA_LOG_DIRS: VersionRange(1, 2),
        ApiKey.FIND_COORDINATOR: VersionRange(1, 3),
        ApiKey.LIST_GROUPS: VersionRange(0, 5),
        ApiKey.DESCRIBE_GROUPS: VersionRange(0, 5),
        ApiKey.CONSUMER_GROUP_DESCRIBE: VersionRange(0, 0),
        ApiKey.OFFSET_FETCH: VersionRange(2, 7),
        ApiKey.LIST_OFFSETS: VersionRange(1, 5),
        ApiKey.OFFSET_COMMIT: VersionRange(5, 7),
        ApiKey.DELETE_GROUPS: VersionRange(0, 2),
        ApiKey.OFFSET_DELETE: VersionRange(0, 0),
        ApiKey.LIST_TRANSACTIONS: VersionRange(0, 0),
        ApiKey.DESCRIBE_TRANSACTIONS: VersionRange(0, 0),
        ApiKey.DESCRIBE_ACLS: VersionRange(1, 3),
        ApiKey.CREATE_ACLS: VersionRange(1, 3),
        ApiKey.DELETE_ACLS: VersionRange(1, 3),
        ApiKey.DESCRIBE_CLIENT_QUOTAS: VersionRange(0, 1),
        ApiKey.ALTER_CLIENT_QUOTAS: VersionRange(0, 1),
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: VersionRange(0, 0),
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: VersionRange(0, 0),
    }
)
"""The versions in which the tools can write a request and read its answer. Later ones have other fields in their place."""
NEXT_ADDRESS_S = 0.3
"""When an address does not answer for so long, the next one is asked as well: the first may belong to a broker that hangs."""


ANY_BROKER, CONTROLLER = -2, -1


class Question(NamedTuple):
    """A request. `to`: a broker's id, ANY_BROKER, CONTROLLER, or the name of a group, whose coordinator is asked.

    `version_min`: the first version that has what is asked for.
    """

    to: int | str
    api_key: ApiKey
    body: Mapping[str, Any]
    version_min: int = 0


class Unsupported(Exception):
    """The broker does not serve the API, or not in a version that has what is asked for."""


class ClusterRequests:
    """An async context manager, which closes its connections. It looks the brokers up once: after a failure, use a new one."""

    def __init__(
        self, client: Client, bootstrap: Sequence[Address], connect_timeout_s: float, answer_timeout_s: float
    ) -> None:
        self.bootstrap = list(bootstrap)
        """The address that answered comes first."""
        self._addresses: dict[int, Address] = {}
        self._client = client
        self._controller = -1
        self._connect_timeout_s = connect_timeout_s
        self._answer_timeout_s = answer_timeout_s
        self._connections: dict[Address, asyncio.Task[tuple[BrokerConnection, Mapping[int, VersionRange]]]] = {}

    async def __aenter__(self) -> ClusterRequests:
        """Asks for the brokers. Raises Unreachable, AccessRefused."""
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                answer = await self._first_answer()
        except BaseException as problem:
            await self._close()
            if isinstance(problem, TimeoutError):
                raise Unreachable("no broker answers in time") from None
            raise
        self._addresses = {int(broker.node_id): (str(broker.host), int(broker.port)) for broker in answer.brokers}
        self._controller = int(answer.controller_id)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def ask(self, question: Question) -> Any:
        """The answer, as kio's entity. Raises Unsupported, AccessRefused.

        Raises KafkaError if the broker refuses the whole request (its code), cannot be connected to (BROKER_NOT_AVAILABLE), ends the
        connection (NETWORK_EXCEPTION), or does not answer in time (REQUEST_TIMED_OUT).
        """
        return await self._ask_at(await self._address_of(question.to), question)

    async def _address_of(self, to: int | str) -> Address:
        if to == ANY_BROKER:
            return self.bootstrap[0]
        if isinstance(to, str):
            answer = await self.ask(Question(ANY_BROKER, ApiKey.FIND_COORDINATOR, {"key": to, "key_type": 0}))
            return str(answer.host), int(answer.port)
        broker = self._controller if to == CONTROLLER else to
        if broker not in self._addresses:
            code = ErrorCode.NOT_CONTROLLER if to == CONTROLLER else ErrorCode.BROKER_NOT_AVAILABLE
            raise KafkaError(code, "" if to == CONTROLLER else f"broker {broker} is not live")
        return self._addresses[broker]

    async def _first_answer(self) -> Any:
        """The answer of the first of the addresses that gives one. Raises Unreachable, AccessRefused, Unsupported."""
        question = Question(ANY_BROKER, ApiKey.METADATA, {"topics": [], "allow_auto_topic_creation": False})
        waiting = list(self.bootstrap)
        asked: dict[asyncio.Task[Any], Address] = {}
        problem: Exception = Unreachable("there is no address")
        try:
            while waiting or asked:
                if waiting:
                    address = waiting.pop(0)
                    asked[asyncio.create_task(self._ask_at(address, question))] = address
                pause_s = NEXT_ADDRESS_S if waiting else None
                done, _ = await asyncio.wait(asked, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    address = asked.pop(task)
                    try:
                        answer = task.result()
                    except (KafkaError, AccessRefused, Unsupported) as error:
                        problem = error
                        continue
                    self.bootstrap.remove(address)
                    self.bootstrap.insert(0, address)
                    return answer
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        raise Unreachable(str(problem)) if isinstance(problem, KafkaError) else problem

    async def _ask_at(self, address: Address, question: Question) -> Any:
        name = f"{address[0]}:{address[1]}"
        if address not in self._connections:
            self._connections[address] = asyncio.create_task(self._open(address))
        try:
            connection, served = await asyncio.shield(self._connections[address])
        except AccessRefused:
            raise
        except (OSError, MalformedRequest) as problem:
            words = str(problem) or "no answer in time"
            raise KafkaError(
                ErrorCode.BROKER_NOT_AVAILABLE, f"the broker at {name} does not answer ({words})"
            ) from None
        ours, theirs = VERSIONS[question.api_key], served.get(question.api_key, VersionRange(0, -1))
        version = min(ours.max, theirs.max)
        if version < max(ours.min, theirs.min, question.version_min):
            raise Unsupported
        try:
            answer = await self._client.ask_over(
                connection, question.api_key, version, question.body, self._answer_timeout_s
            )
        except TimeoutError:
            said = f"the broker at {name} does not answer within {self._answer_timeout_s:g} s"
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, said) from None
        except (OSError, MalformedRequest) as problem:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, f"the broker at {name}: {problem}") from None
        check(answer)
        return answer

    async def _open(self, address: Address) -> tuple[BrokerConnection, Mapping[int, VersionRange]]:
        """A connection, and what the broker serves. Raises OSError, MalformedRequest."""
        connection = await self._client.connect(address, timeout_s=self._connect_timeout_s)
        try:
            answer = await self._client.ask_over(connection, ApiKey.API_VERSIONS, 0, {}, self._connect_timeout_s)
        except BaseException:
            connection.close()
            raise
        return connection, {int(row.api_key): VersionRange(row.min_version, row.max_version) for row in answer.api_keys}

    async def _close(self) -> None:
        opening = list(self._connections.values())
        for task in opening:
            task.cancel()
        for opened in await asyncio.gather(*opening, return_exceptions=True):
            if not isinstance(opened, BaseException):
                opened[0].close()


def check(part: Any) -> None:
    """Raises KafkaError for the error code of an answer, or of a part of it."""
    if code := getattr(part, "error_code", 0):
        known = int(code) if int(code) in set(ErrorCode) else ErrorCode.UNKNOWN_SERVER_ERROR
        raise KafkaError(ErrorCode(known), getattr(part, "error_message", None) or "")


def error_codes(answer: Any) -> Iterator[int]:
    """All error codes in an answer."""
    if not isinstance(answer, tuple):
        return
    names = getattr(answer, "_fields", ("",) * len(answer))
    for name, value in zip(names, answer, strict=True):
        if name == "error_code":
            yield int(value)
        else:
            yield from error_codes(value)
