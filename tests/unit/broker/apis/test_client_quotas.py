"""DescribeClientQuotas and AlterClientQuotas: their rights, in all versions, and what is too much for one request (CLI-6)."""

from __future__ import annotations

from typing import Any

import pytest

from broker.admin.quota_admin import QuotaAdmin, resolves
from broker.authorization.authorizer import Authorizer
from broker.process.event_log import EventLog
from broker.settings.config import BrokerConfig
from broker.settings.dynamic_configs import DynamicConfigs
from protocol.errors import ErrorCode
from protocol.kafka.api_keys import ApiKey
from protocol.zk.znodes import ConfigChangeZNode
from tests.support.api_world import World
from tests.support.fake_time import FakeTime

EVERYTHING = {"components": (), "strict": False}


def world() -> World:
    here = World()
    here.zk.ensure(ConfigChangeZNode.PARENT)
    session: Any = here.session
    configs = DynamicConfigs(BrokerConfig(broker_id=1), session, FakeTime(), EventLog(None, FakeTime()))
    configs.of_clients.followers.append(here.context.quotas)
    here.context.quota_admin = QuotaAdmin(session, configs, resolves)
    return here


def entry(changes: int = 1, parts: int = 1, user: str = "alice") -> dict[str, Any]:
    kinds = ["user", *(f"kind-{number}" for number in range(parts - 1))]
    return {
        "entity": [{"entity_type": kind, "entity_name": user} for kind in kinds],
        "ops": [{"key": "producer_byte_rate", "value": 1024.0, "remove": False}] * changes,
    }


async def alter(here: World, *entries: dict[str, Any], version: int = 1) -> list[tuple[int, str | None]]:
    answer = await here.call(ApiKey.ALTER_CLIENT_QUOTAS, version, {"entries": entries, "validate_only": False})
    return [(int(row.error_code), row.error_message) for row in answer.entries]


@pytest.mark.parametrize("version", [0, 1])
async def test_a_change_is_described(version: int) -> None:
    here = world()
    assert await alter(here, entry(), entry(parts=2), version=version) == [
        (0, None),
        (ErrorCode.INVALID_REQUEST, "Unhandled client quota entity type: kind-0"),
    ]
    answer = await here.call(ApiKey.DESCRIBE_CLIENT_QUOTAS, version, EVERYTHING)
    (row,) = answer.entries
    assert [(part.entity_type, part.entity_name) for part in row.entity] == [("user", "alice")]
    assert [(one.key, one.value) for one in row.values] == [("producer_byte_rate", 1024.0)]
    assert here.context.quotas.is_on


async def test_rights() -> None:
    here = world()
    here.context.authorizer = Authorizer(frozenset(), allow_if_none=False)
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert await alter(here, entry(), entry(user="b")) == [(code, "Cluster authorization failed.")] * 2
    answer = await here.call(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, EVERYTHING)
    assert (answer.error_code, answer.error_message, answer.entries) == (code, "Cluster authorization failed.", None)


@pytest.mark.parametrize("entries", [[entry()] * 1001, [entry(changes=101)], [entry(parts=101)]])
async def test_too_much_for_one_request(entries: list[dict[str, Any]]) -> None:
    here = world()
    answered = await alter(here, *entries)
    assert {code for code, _ in answered} == {ErrorCode.INVALID_REQUEST}
    assert len(answered) == len(entries)
    assert not here.context.quotas.is_on


async def test_the_answer_to_an_entity_of_very_many_parts_is_short() -> None:
    answer = await world().call(
        ApiKey.ALTER_CLIENT_QUOTAS, 1, {"entries": [entry(parts=50_000)], "validate_only": False}
    )
    assert [len(row.entity) for row in answer.entries] == [100]


async def test_a_filter_of_very_many_components() -> None:
    components = [{"entity_type": "user", "match_type": 2, "match": None}] * 50_000
    answer = await world().call(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, {"components": components, "strict": False})
    assert answer.error_message == "Duplicate user filter component entity type"


async def test_an_entity_that_is_named_twice_is_answered_once() -> None:
    here = world()
    assert await alter(here, entry(), entry(user="b"), entry()) == [(0, None), (0, None)]


async def test_the_name_of_an_exact_match_is_missing() -> None:
    components = [{"entity_type": "user", "match_type": 0, "match": None}]
    answer = await world().call(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, {"components": components, "strict": False})
    assert (answer.error_code, answer.error_message) == (ErrorCode.UNKNOWN_SERVER_ERROR, None)
