"""DescribeAcls, CreateAcls, DeleteAcls on a ZooKeeper in memory (APIs 29 to 31, CLI-5)."""

from __future__ import annotations

from typing import Any

import pytest

from broker.authorization.acl_store import AclStore
from broker.authorization.authorizer import Authorizer
from broker.process.event_log import EventLog
from protocol.acls import CLUSTER_NAME, Operation, PatternType, Permission, ResourceType
from protocol.errors import ErrorCode
from protocol.kafka.api_keys import ApiKey
from tests.support.api_world import World
from tests.support.fake_time import FakeTime

READ_ORDERS = {
    "resource_type": int(ResourceType.TOPIC),
    "resource_name": "orders",
    "resource_pattern_type": int(PatternType.LITERAL),
    "principal": "User:alice",
    "host": "*",
    "operation": int(Operation.READ),
    "permission_type": int(Permission.ALLOW),
}
ALL = {
    "resource_type_filter": int(ResourceType.ANY),
    "resource_name_filter": None,
    "pattern_type_filter": int(PatternType.ANY),
    "principal_filter": None,
    "host_filter": None,
    "operation": int(Operation.ANY),
    "permission_type": int(Permission.ANY),
}


class Secured:
    def __init__(self, *super_users: str) -> None:
        self.world = World()
        time: Any = FakeTime(0.0)
        self.authorizer = Authorizer(frozenset(super_users), allow_if_none=False)
        session: Any = self.world.session
        self.store = AclStore(self.authorizer, session, time, EventLog(None, time))
        self.world.context.authorizer = self.authorizer
        self.world.context.acls = self.store

    async def start(self) -> Secured:
        await self.store.start()
        return self

    async def create(self, *acls: dict[str, Any]) -> list[int]:
        answer = await self.world.call(ApiKey.CREATE_ACLS, 3, {"creations": acls})
        return [int(row.error_code) for row in answer.results]

    async def described(self, **changed: Any) -> list[tuple[str, int]]:
        answer = await self.world.call(ApiKey.DESCRIBE_ACLS, 3, {**ALL, **changed})
        assert answer.error_code == ErrorCode.NONE
        return [(row.resource_name, len(row.acls)) for row in answer.resources]


async def test_what_is_created_is_described_and_deleted() -> None:
    secured = await Secured("User:ANONYMOUS").start()
    write = {**READ_ORDERS, "operation": int(Operation.WRITE)}
    prefixed = {**READ_ORDERS, "resource_name": "or", "resource_pattern_type": int(PatternType.PREFIXED)}
    assert await secured.create(READ_ORDERS, write, prefixed, READ_ORDERS) == [0, 0, 0, 0]
    assert sorted(await secured.described()) == [("or", 1), ("orders", 2)]
    matching = {"resource_name_filter": "orders", "resource_type_filter": 2}
    assert len(await secured.described(**matching, pattern_type_filter=int(PatternType.MATCH))) == 2
    assert await secured.described(operation=int(Operation.WRITE)) == [("orders", 1)]
    filters = [{**ALL, "operation": int(Operation.WRITE)}, ALL, {**ALL, "principal_filter": "User:bob"}]
    answer = await secured.world.call(ApiKey.DELETE_ACLS, 3, {"filters": filters})
    assert [len(row.matching_acls) for row in answer.filter_results] == [1, 2, 0], (
        "each is in the first filter's answer"
    )
    assert await secured.described() == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"resource_type": int(ResourceType.CLUSTER)},
        {"resource_name": ""},
        {"resource_name": "a/b"},
        {"resource_name": ".."},
        {"principal": "alice"},
        {"principal": "User:"},
        {"resource_type": 1},
        {"resource_pattern_type": 1},
        {"operation": 1},
        {"permission_type": 1},
        {"operation": 99},
    ],
    ids=str,
)
async def test_a_wrong_acl_is_refused_alone(wrong: dict[str, Any]) -> None:
    secured = await Secured("User:ANONYMOUS").start()
    of_cluster = {**READ_ORDERS, "resource_type": int(ResourceType.CLUSTER), "resource_name": CLUSTER_NAME}
    errors = await secured.create({**READ_ORDERS, **wrong}, {**of_cluster, "operation": int(Operation.ALTER)})
    assert errors == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE]
    assert await secured.described() == [(CLUSTER_NAME, 1)]


async def test_without_the_right_nothing_is_shown_or_changed() -> None:
    secured = await Secured().start()
    refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert await secured.create(READ_ORDERS, READ_ORDERS) == [refused, refused]
    answer = await secured.world.call(ApiKey.DESCRIBE_ACLS, 3, ALL)
    assert (answer.error_code, list(answer.resources)) == (refused, [])
    deleted = await secured.world.call(ApiKey.DELETE_ACLS, 3, {"filters": [ALL, ALL]})
    assert [row.error_code for row in deleted.filter_results] == [refused, refused]


async def test_without_zookeeper_a_change_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    secured = await Secured("User:ANONYMOUS").start()
    monkeypatch.setattr("broker.apis.acls.CHANGE_TIMEOUT_S", 0.0)
    secured.world.session.lose_answers = 1
    assert await secured.create(READ_ORDERS) == [ErrorCode.REQUEST_TIMED_OUT]
