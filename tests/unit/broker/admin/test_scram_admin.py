"""The SCRAM credentials of users are described and changed by Kafka's checks, and brokers follow (KIP-554)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from broker.admin.scram_admin import Deletion, ScramAdmin, Upsertion, illegal
from broker.process.event_log import EventLog
from broker.security.scram_users import ScramUsers
from broker.settings.config import BrokerConfig
from broker.settings.dynamic_configs import DynamicConfigs
from protocol.errors import ErrorCode, KafkaError
from protocol.zk.znodes import ConfigChangeZNode, ConfigZNode
from tests.support.fake_time import FakeTime
from tests.support.killed_writers import Killed, killed_at_each_write
from tests.support.memory_zookeeper import MemorySession, MemoryZooKeeper

S256, S512 = 1, 2


def upsertion(user: str, mechanism: int = S256, iterations: int = 4096, salt: bytes = b"salt") -> Upsertion:
    return Upsertion(user, mechanism, iterations, salt, b"salted")


@pytest.mark.parametrize(
    ("upsertions", "deletions", "user", "code", "text"),
    [
        ([upsertion("")], [], "", ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"),
        ([], [Deletion("", S256)], "", ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"),
        ([upsertion("a", 3)], [], "a", ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"),
        ([], [Deletion("a", 0)], "a", ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"),
        ([upsertion("a", iterations=4095)], [], "a", ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations"),
        ([upsertion("a", iterations=16385)], [], "a", ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations"),
        ([upsertion("a", salt=b"")], [], "a", ErrorCode.UNACCEPTABLE_CREDENTIAL, "The salt or the password is empty"),
        ([upsertion("..")], [], "..", ErrorCode.UNACCEPTABLE_CREDENTIAL, "ZooKeeper has no node of the name .."),
        (
            [upsertion("a")],
            [Deletion("a", S256)],
            "a",
            ErrorCode.DUPLICATE_RESOURCE,
            "A user credential cannot be altered twice in the same request",
        ),
    ],
)
def test_wrong_changes(
    upsertions: list[Upsertion], deletions: list[Deletion], user: str, code: ErrorCode, text: str
) -> None:
    """Kafka's codes and texts (ZkAdminManager.alterUserScramCredentials)."""
    found = illegal([*upsertions, upsertion("other")], deletions)
    assert {name: (error.code, error.message) for name, error in found.items()} == {user: (code, text)}


def test_both_mechanisms_of_a_user_may_change_in_one_request() -> None:
    assert not illegal([upsertion("a"), upsertion("a", S512, 16384)], [Deletion("b", S256), Deletion("b", S512)])


class World:
    """A broker that follows users."""

    def __init__(self, server: MemoryZooKeeper | None = None) -> None:
        self.server = server or MemoryZooKeeper()
        for path in (ConfigChangeZNode.PARENT, "/config/topics", "/config/brokers", "/config/users"):
            self.server.ensure(path)
        self.session = MemorySession(self.server)
        self.users = ScramUsers()
        time = FakeTime()
        self.configs = DynamicConfigs(BrokerConfig(broker_id=1), self.session, time, EventLog(None, time))  # type: ignore[arg-type]
        self.configs.of_clients.users = self.users
        self.admin = ScramAdmin(self.session, self.configs)  # type: ignore[arg-type]

    def announce(self, entity: str) -> None:
        self.server.create(ConfigChangeZNode.PATH_PREFIX, ConfigChangeZNode.encode(entity), is_sequential=True)

    def can_log_in(self, user: str) -> bool:
        return self.users.credential("SCRAM-SHA-256", user) is not None


async def test_a_user_is_made_described_and_removed() -> None:
    world = World()
    await world.configs.start()
    user = "CN=a, b"
    assert await world.admin.alter([upsertion(user), upsertion(user, S512, 8192)], []) == {user: None}
    assert world.can_log_in(user), "at once"
    assert await world.admin.describe([]) == {user: [(S256, 4096), (S512, 8192)]}
    path = ConfigZNode.path("users", "CN%3Da%2C%20b")
    config = ConfigZNode.decode((await world.session.get(path))[0])
    await world.session.set(path, ConfigZNode.encode({**config, "producer_byte_rate": "1"}))
    assert await world.admin.alter([], [Deletion(user, S256), Deletion(user, S512)]) == {user: None}
    assert not world.can_log_in(user)
    assert ConfigZNode.decode((await world.session.get(path))[0]) == {"producer_byte_rate": "1"}
    (error,) = (await world.admin.alter([], [Deletion(user, S256)])).values()
    assert error is not None
    assert error.code == ErrorCode.RESOURCE_NOT_FOUND


async def test_who_cannot_be_described() -> None:
    world = World()
    found = await world.admin.describe(["nobody", "twice", "twice", "", ".."])
    codes = {user: one.code for user, one in found.items() if isinstance(one, KafkaError)}
    missing, twice = ErrorCode.RESOURCE_NOT_FOUND, ErrorCode.DUPLICATE_RESOURCE
    assert codes == {"nobody": missing, "twice": twice, "": missing, "..": missing}


async def test_another_brokers_users_are_followed_and_odd_announcements_do_no_harm() -> None:
    world = World()
    other = World(world.server)
    await world.admin.alter([upsertion("before")], [])
    await other.configs.start()
    assert other.can_log_in("before")
    for entity in ("users/", "users/..", "users/\0", "users/a/clients/b", "users/<default>", "users/%ff"):
        world.announce(entity)
    await world.admin.alter([upsertion("after")], [])
    await other.configs.start()
    assert other.can_log_in("after")


@pytest.mark.parametrize("change", ["first", "another", "fewer"])
async def test_a_change_by_a_broker_that_dies_is_known_to_all_or_not_made(change: str) -> None:
    """Else a user who was removed could still log in elsewhere."""

    async def attempt(arm: Callable[[MemorySession], None]) -> None:
        world = World()
        other = World(world.server)
        for broker in (world, other):
            await broker.configs.start()
        if change != "first":
            await world.admin.alter([upsertion("alice")], [])
        arm(world.session)
        with contextlib.suppress(Killed):
            if change == "fewer":
                await world.admin.alter([], [Deletion("alice", S256)])
            else:
                await world.admin.alter([upsertion("alice", iterations=5000)], [])
        await other.configs.start()  # reads what was announced
        ((_, described),) = (await other.admin.describe(["alice"])).items()
        known = other.users.credential("SCRAM-SHA-256", "alice")
        stored = None if isinstance(described, KafkaError) else described[0][1]
        assert (None if known is None else known.iterations) == stored

    assert await killed_at_each_write(attempt) == 2, "before and after the only write"
