"""Requests about delegation tokens with very many names do not keep the broker busy (NET-4)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from broker.apis import delegation_tokens
from broker.requests.context import ApiContext
from broker.security.delegation_tokens import DelegationTokens
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.api_keys import ApiKey
from protocol.types import Principal
from protocol.zk.token_znodes import DelegationToken
from tests.support.api_world import FakeConnection, World

ALICE, BOB = Principal("User", "alice"), Principal("User", "bob")


class Store:
    """Notes the renewers of a token that is asked for."""

    def __init__(self) -> None:
        self.tokens = DelegationTokens("secret")
        self.renewers: list[Principal] = []

    async def create(self, owner: Principal, requester: Principal, renewers: list[Principal], _: int) -> Any:
        self.renewers = renewers
        raise KafkaError(ErrorCode.INVALID_REQUEST, "too large")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(FakeConnection, "principal", ALICE)
    here = World()
    here.context.tokens = Store()
    return here


def rows(count: int, name: str = "User") -> list[Any]:
    return [SimpleNamespace(principal_type=name, principal_name=str(number)) for number in range(count)]


async def test_very_many_renewers_are_not_looked_at(world: World) -> None:
    renewers = [vars(row) for row in rows(50_000)]
    body = {"owner_principal_type": None, "owner_principal_name": None, "renewers": renewers, "max_lifetime": -1}
    answer = await world.call(ApiKey.CREATE_DELEGATION_TOKEN, 3, body)
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert len(world.context.tokens.renewers) == delegation_tokens.RENEWERS_MAX


def test_tokens_of_very_many_owners_are_looked_for_in_steps(world: World) -> None:
    store = world.context.tokens
    for number in range(10):
        store.tokens.put(DelegationToken(f"id-{number}", ALICE, ALICE, (BOB,), 1, 3, 2))
    store.tokens.put(DelegationToken("another", BOB, BOB, (), 1, 3, 2))
    request: Any = SimpleNamespace(connection=FakeConnection())
    owners = [*rows(50_000), SimpleNamespace(principal_type="User", principal_name="alice")]
    context: ApiContext = world.context
    steps = delegation_tokens._described(context, request, store, owners)
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found = end.value
            break
        count += 1
    assert count >= 100
    assert [row["token_id"] for row in found] == [f"id-{number}" for number in range(10)]
