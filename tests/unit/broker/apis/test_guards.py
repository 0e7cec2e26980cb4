"""Each API asks for the rights that its row of the table names, and answers without them as Kafka does.

An authorizer that notes what it is asked about serves every array of every request, first to a client that may do nothing, then to one
that may do everything, then to those that lack one right.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.apis.table import HANDLERS, NOTHING, ROUTES, Right
from broker.authorization.acl_index import EVERYTHING
from broker.authorization.authorizer import Authorizer
from broker.groups.group.messages import Protocol
from broker.network.request_channel import Request
from broker.request_handler import RequestHandler
from broker.settings.config import ACL_AUTHORIZER, BrokerConfig
from protocol.acls import RESOURCE_TYPES, Operation, ResourceType
from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import SUPPORTED, ApiKey, ApiLevel
from protocol.kafka.framing import parse_request_header
from protocol.types import Principal
from tests.support.api_world import FakeConnection, level_of
from tests.support.every_api import context_of
from tests.support.filled_requests import all_filled, plain
from tests.support.group_cluster import GroupCluster
from tests.support.memory_zookeeper import MemorySession, MemoryZooKeeper

TURNS_MAX = 20_000
PUBLIC = {
    ApiKey.API_VERSIONS,
    ApiKey.SASL_HANDSHAKE,
    ApiKey.SASL_AUTHENTICATE,
    ApiKey.RENEW_DELEGATION_TOKEN,
    ApiKey.EXPIRE_DELEGATION_TOKEN,
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
    ApiKey.PUSH_TELEMETRY,
}
"""The connection itself, the client's own metrics, and what only the owner of a token may do."""
NEEDS_MORE = {
    ApiKey.CREATE_DELEGATION_TOKEN: {(Operation.CREATE_TOKENS, ResourceType.USER)},
    ApiKey.DESCRIBE_DELEGATION_TOKEN: {
        (Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN),
        (Operation.DESCRIBE_TOKENS, ResourceType.USER),
    },
    ApiKey.DESCRIBE_TRANSACTIONS: {(Operation.DESCRIBE, ResourceType.TOPIC)},
    ApiKey.DELETE_TOPICS: {(Operation.DESCRIBE, ResourceType.TOPIC)},
    ApiKey.CREATE_TOPICS: {(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC)},
    ApiKey.LIST_TRANSACTIONS: {(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID)},
    ApiKey.PRODUCE: {(Operation.WRITE, ResourceType.TRANSACTIONAL_ID)},
}
"""Rights that are only asked for if there is something to show, such as a transaction, or of clients that have logged in. Tests of their
own look at these."""


class Asked(Authorizer):
    """Notes the rights that it is asked for. `lacks`: what the client may not do, of any resource."""

    def __init__(self) -> None:
        super().__init__(frozenset(), allow_if_none=False)
        self.rights_asked: set[Right] = set()
        self.lacks: Callable[[Right], bool] = lambda right: False

    def allows(self, principal: Principal, address: str, operation: Operation, kind: ResourceType, name: str) -> bool:
        self.rights_asked.add((operation, kind))
        return not self.lacks((operation, kind))

    def allows_with_any(self, principal: Principal, address: str, operation: Operation, kind: ResourceType) -> bool:
        return self.allows(principal, address, operation, kind, "")

    def rights(self, principal: Principal, address: str, kind: ResourceType, name: str) -> int:
        return EVERYTHING


class GuardedApis:
    """One broker with every API, as `EveryApi`, and an authorizer."""

    def __init__(self, directory: Path) -> None:
        self.cluster = GroupCluster(directory, {"authorizer_class_name": ACL_AUTHORIZER})
        self.authorizer = Asked()

    async def start(self) -> None:
        cluster = self.cluster
        await cluster.start(1)
        await cluster.serve(1, 0, (1,))
        cluster.join(1, protocols=(Protocol("range", b"m"),))
        cluster.pass_time(3.1)
        cluster.sync(1, "m", 1, {"m": b"mine"})
        await cluster.settle()
        zk = MemoryZooKeeper()
        for path in ("/brokers/topics/t", "/admin/delete_topics", "/config/topics", "/config/changes"):
            zk.ensure(path)
        config = BrokerConfig(broker_id=1, broker_api_level=ApiLevel.KAFKA_4.value)
        context = context_of(cluster, MemorySession(zk), config, lambda: 0.0, self.authorizer)
        self.handler = RequestHandler(context)

    async def ask(self, frame: bytes, lacks: Callable[[Right], bool]) -> FakeConnection:
        """The connection after the answer."""
        self.authorizer.lacks = lacks
        connection: Any = FakeConnection()
        data = memoryview(frame)
        header = parse_request_header(data)
        self.handler.serve(level_of(header.api_key, header.api_version))
        self.handler.handle(Request(connection, 0, header, data, 0.0))
        self.handler.end_turn()
        for _ in range(TURNS_MAX):
            if connection.sent or connection.reasons:
                return connection
            self.cluster.time.turn()
            await asyncio.sleep(0)
        raise AssertionError("no answer")


@pytest.fixture(scope="module")
def apis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[GuardedApis, asyncio.Runner]]:
    with asyncio.Runner() as runner:
        world = GuardedApis(tmp_path_factory.mktemp("guards"))
        runner.run(world.start())
        yield world, runner
        world.cluster.close()


def test_each_row_has_a_guard_or_says_that_it_needs_none() -> None:
    assert set(ROUTES) == set(HANDLERS) == set(SUPPORTED)
    assert {key for key, route in ROUTES.items() if route.rights is NOTHING} == PUBLIC
    for key, route in ROUTES.items():
        assert len(set(route.rights)) == len(route.rights), key
        assert all(kind in RESOURCE_TYPES for _, kind in route.rights), key


def frames(api_key: ApiKey) -> Iterator[tuple[int, bytes]]:
    """(version, frame) of requests that name something of every kind."""
    served = SUPPORTED[api_key]
    for version in sorted({served.min, min(3, served.max), served.max}):
        if version >= served.min:
            for filled in all_filled(api_key, version):
                yield version, filled.frame(3)
                yield version, filled.frame(3, **OTHERWISE.get(api_key, {}))
        yield served.max, plain(api_key, served.max, **OTHERWISE.get(api_key, {}))
    if api_key is ApiKey.METADATA:
        yield 8, plain(api_key, 8, topics=None, include_cluster_authorized_operations=True)
        yield 8, plain(api_key, 8, topics=[{"name": "new"}], allow_auto_topic_creation=True)
    if api_key is ApiKey.INIT_PRODUCER_ID:
        yield 0, plain(api_key, 0, transactional_id=None)
    if api_key in (ApiKey.DESCRIBE_CONFIGS, ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS):
        for kind in (4, 32):  # a broker, a group
            resource = {"resource_type": kind, "resource_name": "1", "configs": [], "configuration_keys": None}
            yield served.max, plain(api_key, served.max, resources=[resource])


OTHERWISE: dict[ApiKey, dict[str, Any]] = {
    ApiKey.FETCH: {"replica_id": 2},
    ApiKey.FIND_COORDINATOR: {"key_type": 1},
    ApiKey.DESCRIBE_CLUSTER: {"include_cluster_authorized_operations": True},
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: {"cursor": None},
    ApiKey.INIT_PRODUCER_ID: {"transactional_id": "x", "producer_id": -1, "producer_epoch": -1},
    ApiKey.ADD_OFFSETS_TO_TXN: {"transactional_id": "x"},
    ApiKey.END_TXN: {"transactional_id": "x"},
}
"""Values of fields by which a request asks for other rights."""


@pytest.mark.parametrize("api_key", list(SUPPORTED))
def test_each_api_asks_for_what_its_row_names(apis: tuple[GuardedApis, asyncio.Runner], api_key: ApiKey) -> None:
    world, runner = apis
    rights = ROUTES[api_key].rights
    world.authorizer.rights_asked.clear()
    ways = [lambda right: True, lambda right: False, *(lambda right, one=one: right == one for one in rights)]
    for _, frame in frames(api_key):
        for lacks in ways:
            runner.run(world.ask(frame, lacks))
    asked = world.authorizer.rights_asked
    assert asked <= set(rights), "the row lacks what the handler asks"
    assert set(rights) - asked <= NEEDS_MORE.get(api_key, set()), "the handler does not ask for what the row has"


def errors_in(value: Any) -> set[int]:
    """All error codes anywhere in an answer."""
    names = getattr(value, "_fields", None)
    if names is None:
        return set().union(*map(errors_in, value)) if isinstance(value, list | tuple) and value else set()
    found: set[int] = set()
    for name in names:
        inner = getattr(value, name)
        if name.endswith("error_code"):
            found.add(int(inner))
        else:
            found |= errors_in(inner)
    return found


SILENT = {ApiKey.LIST_GROUPS, ApiKey.LIST_TRANSACTIONS, ApiKey.DESCRIBE_CLUSTER}
"""They leave out what the client may not see, instead of an error."""
AUTHORIZATION = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
}
CHECKED_FIRST = {
    ErrorCode.INVALID_REQUEST,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INVALID_TOPIC_EXCEPTION,
    ErrorCode.UNSUPPORTED_VERSION,
    ErrorCode.NOT_CONTROLLER,
}
"""Errors of the request itself."""


@pytest.mark.parametrize("api_key", [key for key in SUPPORTED if key not in PUBLIC | SILENT])
def test_who_may_do_nothing_is_told_so(apis: tuple[GuardedApis, asyncio.Runner], api_key: ApiKey) -> None:
    """Nothing else is told: whether what the request names exists, or is valid, is not the client's business."""
    world, runner = apis
    found: set[int] = set()
    for version, frame in frames(api_key):
        connection = runner.run(world.ask(frame, lambda right: True))
        if connection.sent and (api_key is not ApiKey.FETCH or version >= 4):
            found |= errors_in(messages.decode_response(api_key, version, connection.sent[4:])[1])
    assert found & AUTHORIZATION
    assert found <= AUTHORIZATION | CHECKED_FIRST | {ErrorCode.NONE}
