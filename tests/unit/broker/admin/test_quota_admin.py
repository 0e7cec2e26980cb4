"""Quotas are described and changed by Kafka's checks; passwords beside them stay, and znodes do not pile up (KIP-546)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from broker.admin.quota_admin import ANY, EXACT, OF_DEFAULT, Alteration, Component, EntityNames, QuotaAdmin
from broker.process.event_log import EventLog
from broker.quotas.client_quotas import Quotas
from broker.security.scram_users import ScramUsers
from broker.settings.config import BrokerConfig
from broker.settings.dynamic_configs import DynamicConfigs
from protocol.errors import ErrorCode, KafkaError
from protocol.topic_names import INT_MAX
from protocol.zk.znodes import ConfigChangeZNode, ConfigZNode
from tests.support.fake_time import FakeTime
from tests.support.killed_writers import Killed, killed_at_each_write
from tests.support.memory_zookeeper import MemorySession, MemoryZooKeeper

PASSWORD = "salt=c2FsdA==,stored_key=a2V5,server_key=a2V5,iterations=4096"


class World:
    """A broker that follows quotas and passwords."""

    def __init__(self, server: MemoryZooKeeper | None = None) -> None:
        self.server = server or MemoryZooKeeper()
        if server is None:
            for path in (
                ConfigChangeZNode.PARENT,
                "/config/topics",
                "/config/brokers",
                "/config/users",
                "/config/clients",
            ):
                self.server.ensure(path)
        session = self.session = MemorySession(self.server)
        time = FakeTime()
        self.quotas = Quotas(BrokerConfig(), time.monotonic)
        self.users = ScramUsers()
        self.configs = DynamicConfigs(BrokerConfig(broker_id=1), session, time, EventLog(None, time))  # type: ignore[arg-type]
        self.configs.of_clients.followers.append(self.quotas)
        self.configs.of_clients.users = self.users
        self.admin = QuotaAdmin(session, self.configs, resolves)  # type: ignore[arg-type]

    async def alter(self, entity: EntityNames, **changes: float | None) -> KafkaError | None:
        (result,) = await self.admin.alter([Alteration(entity, list(changes.items()))], validate_only=False)
        return result

    async def describe(self, *components: Component, is_strict: bool = False) -> list[tuple[EntityNames, object]]:
        return [*await self.admin.describe(components, is_strict=is_strict)]

    def nodes(self) -> list[str]:
        return sorted(
            path.removeprefix("/config/")
            for path in self.server.nodes
            if path.startswith(("/config/users/", "/config/clients/", "/config/ips/"))
        )


async def resolves(host: str) -> bool:
    return host in ("10.0.0.7", "known")


async def test_quotas_are_set_described_and_removed() -> None:
    world = World()
    await world.configs.start()
    both: EntityNames = {"user": "CN=a, b", "client-id": None}
    assert await world.alter({"user": None}, producer_byte_rate=1024) is None
    assert await world.alter(both, request_percentage=12.5, consumer_byte_rate=5) is None
    assert await world.alter({"client-id": "app"}, controller_mutation_rate=0.5) is None
    assert await world.alter({"ip": "10.0.0.7"}, connection_creation_rate=10) is None
    assert world.quotas.produce.in_window("alice", "app", 0) == 10_240, "at once"
    assert await world.describe() == [
        ({"user": None}, {"producer_byte_rate": 1024.0}),
        ({"client-id": "app"}, {"controller_mutation_rate": 0.5}),
        ({"ip": "10.0.0.7"}, {"connection_creation_rate": 10.0}),
        (both, {"request_percentage": 12.5, "consumer_byte_rate": 5.0}),
    ]
    assert "users/CN%3Da%2C%20b/clients/<default>" in world.nodes()
    other = World(world.server)
    await other.configs.start()
    assert other.quotas.fetch.in_window("CN=a, b", "x", 0) == 50
    for entity, quotas in (
        (both, ("request_percentage", "consumer_byte_rate")),
        ({"user": None}, ("producer_byte_rate",)),
    ):
        assert await world.alter(entity, **dict.fromkeys(quotas)) is None
    assert world.nodes() == ["clients/app", "ips/10.0.0.7"], "nodes without settings are removed, with their parents"


async def test_passwords_stay() -> None:
    world = World()
    world.server.ensure("/config/users/alice", ConfigZNode.encode({"SCRAM-SHA-256": PASSWORD}))
    await world.configs.start()
    assert await world.alter({"user": "alice"}, producer_byte_rate=1) is None
    assert await world.alter({"user": "alice"}, producer_byte_rate=None, **{"SCRAM-SHA-256": None}) is None
    assert await world.alter({"user": "alice", "client-id": "a"}, producer_byte_rate=1) is None
    assert await world.alter({"user": "alice", "client-id": "a"}, producer_byte_rate=None) is None
    assert world.nodes() == ["users/alice"]
    assert world.users.credential("SCRAM-SHA-256", "alice") is not None
    error = await world.alter({"user": "alice"}, **{"SCRAM-SHA-256": 1.0})
    assert error is not None
    assert (error.code, error.message) == (ErrorCode.INVALID_REQUEST, "Invalid configuration key SCRAM-SHA-256")


async def test_a_node_with_others_below_it_stays() -> None:
    world = World()
    await world.configs.start()
    await world.alter({"user": "alice", "client-id": "a"}, producer_byte_rate=1)
    assert await world.describe() == [({"user": "alice", "client-id": "a"}, {"producer_byte_rate": 1.0})]
    await world.alter({"user": "alice"}, producer_byte_rate=2)
    await world.alter({"user": "alice"}, producer_byte_rate=None)
    assert world.nodes() == ["users/alice", "users/alice/clients", "users/alice/clients/a"]
    assert world.quotas.produce.in_window("alice", "a", 0) == 10


@pytest.mark.parametrize(
    ("entity", "changes", "text"),
    [
        ({}, {}, "Invalid empty client quota entity"),
        ({"group": "g"}, {}, "Unhandled client quota entity type: group"),
        ({"user": ""}, {}, "Empty user not supported"),
        ({"client-id": ""}, {}, "Empty client-id not supported"),
        (
            {"user": "a", "ip": "10.0.0.7"},
            {},
            "Invalid quota entity combination, IP entity should not be used with user/client ID entity.",
        ),
        ({"ip": "nowhere"}, {}, "nowhere is not a valid IP or resolvable host."),
        ({"user": "a"}, {"connection_creation_rate": 1}, "Invalid configuration key connection_creation_rate"),
        ({"ip": "known"}, {"producer_byte_rate": 1}, "Invalid configuration key producer_byte_rate"),
        ({"user": "a"}, {"producer_byte_rate": 1.5}, "Configuration producer_byte_rate must be a LONG value"),
        ({"ip": None}, {"connection_creation_rate": -1}, "Configuration connection_creation_rate must be a INT value"),
        ({"user": ".."}, {"producer_byte_rate": 1}, "ZooKeeper has no node of the name users/.."),
    ],
)
async def test_wrong_changes(entity: EntityNames, changes: dict[str, float], text: str) -> None:
    """Kafka's texts (ZkAdminManager.alterClientQuotas)."""
    world = World()
    error = await world.alter(entity, **changes)
    assert error is not None
    assert (error.code, error.message) == (ErrorCode.INVALID_REQUEST, text)
    assert world.nodes() == []


async def test_a_change_that_is_only_checked() -> None:
    world = World()
    alteration = Alteration({"user": "a"}, [("producer_byte_rate", 1.0)])
    assert await world.admin.alter([alteration], validate_only=True) == [None]
    assert world.nodes() == []


@pytest.mark.parametrize("change", ["first", "another", "none", "none, others below", "nothing there"])
async def test_a_change_by_a_broker_that_dies_is_known_to_all_or_not_made(change: str) -> None:
    async def attempt(arm: Callable[[MemorySession], None]) -> None:
        world = World()
        other = World(world.server)
        for broker in (world, other):
            await broker.configs.start()
        both: EntityNames = {"user": "alice", "client-id": "app"}
        entity: EntityNames = {"user": "alice"} if change == "none, others below" else both
        if "below" in change:
            await world.alter(both, consumer_byte_rate=1)
        if change not in ("first", "nothing there"):
            await world.alter(entity, producer_byte_rate=1)
        arm(world.session)
        with contextlib.suppress(Killed):
            await world.alter(entity, producer_byte_rate=None if change.startswith("no") else 2)
        await other.configs.start()  # reads what was announced
        stored = {names["user"]: quotas for names, quotas in await other.describe() if names == entity}
        expected = 10 * stored["alice"]["producer_byte_rate"] if stored else INT_MAX  # type: ignore[index]
        assert other.quotas.produce.in_window("alice", "app", 0) == expected

    # Two empty parents are removed, too; a node with others below it cannot be removed, and is written.
    writes = {"none": 3, "none, others below": 2}.get(change, 1)
    assert await killed_at_each_write(attempt) == 2 * writes


U, C, IP = "user", "client-id", "ip"


@pytest.mark.parametrize(
    ("components", "is_strict", "found"),
    [
        ((), False, "u uc ud U c D i I"),
        ((), True, ""),
        ((Component(U, ANY, None),), False, "u uc ud U"),
        ((Component(U, ANY, None),), True, "u U"),
        ((Component(U, EXACT, "u"),), False, "u uc ud"),
        ((Component(U, EXACT, "u"),), True, "u"),
        ((Component(U, OF_DEFAULT, None),), False, "U"),
        ((Component(C, ANY, None),), True, "c D"),
        ((Component(C, EXACT, "c"),), False, "uc c"),
        ((Component(U, EXACT, "u"), Component(C, OF_DEFAULT, None)), False, "ud"),
        ((Component(U, EXACT, "u"), Component(C, ANY, None)), True, "uc ud"),
        ((Component(IP, ANY, None),), True, "i I"),
        ((Component(IP, EXACT, "known"),), False, "i"),
        ((Component(IP, OF_DEFAULT, None),), False, "I"),
        ((Component(U, EXACT, "nobody"),), False, ""),
    ],
)
async def test_filters(components: tuple[Component, ...], is_strict: bool, found: str) -> None:
    world = World()
    entities: dict[str, EntityNames] = {
        "u": {U: "u"},
        "uc": {U: "u", C: "c"},
        "ud": {U: "u", C: None},
        "U": {U: None},
        "c": {C: "c"},
        "D": {C: None},
        "i": {IP: "known"},
        "I": {IP: None},
    }
    for entity in entities.values():
        quota = "connection_creation_rate" if IP in entity else "producer_byte_rate"
        assert await world.alter(entity, **{quota: 1}) is None
    described = [entity for entity, _ in await world.describe(*components, is_strict=is_strict)]
    assert {name for name, entity in entities.items() if entity in described} == set(found.split())
    assert len(described) == len(found.split())


COMBINED = (
    "Invalid entity filter component combination, IP filter component should not be used with user or clientId filter "
    "component."
)


@pytest.mark.parametrize(
    ("components", "code", "text"),
    [
        ((Component(U, ANY, None),) * 2, ErrorCode.INVALID_REQUEST, "Duplicate user filter component entity type"),
        ((Component(C, ANY, None),) * 2, ErrorCode.INVALID_REQUEST, "Duplicate client filter component entity type"),
        ((Component("", ANY, None),), ErrorCode.INVALID_REQUEST, "Unexpected empty filter component entity type"),
        ((Component("x", ANY, None),), ErrorCode.UNSUPPORTED_VERSION, "Custom entity type 'x' not supported"),
        (
            (Component(U, ANY, None), Component(IP, ANY, None)),
            ErrorCode.INVALID_REQUEST,
            COMBINED,
        ),
    ],
)
async def test_wrong_filters(components: tuple[Component, ...], code: ErrorCode, text: str) -> None:
    with pytest.raises(KafkaError) as refused:
        await World().describe(*components)
    assert (refused.value.code, refused.value.message) == (code, text)
