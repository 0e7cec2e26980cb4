"""Changes of settings on a ZooKeeper in memory: they are applied, whatever the znodes contain and whatever happens to the session."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence

import pytest

from broker.admin.config_admin import ConfigAdmin, Resource, ResourceType
from broker.admin.config_changes import Change, Operation
from broker.cluster.metadata_cache import MetadataCache
from broker.process import announcements
from broker.process.event_log import EventLog
from broker.settings.config import BrokerConfig
from broker.settings.dynamic_configs import DynamicConfigs
from protocol.errors import ErrorCode, KafkaError
from protocol.zk.session import Op
from protocol.zk.znodes import PERSISTENT_PATHS, ConfigChangeZNode, ConfigZNode
from tests.support.fake_time import FakeTime
from tests.support.killed_writers import Killed, killed_at_each_write
from tests.support.memory_zookeeper import MemorySession, MemoryZooKeeper
from tests.support.refusals import refused

TURNS = 50
ORDERS = "/config/topics/orders"


class World:
    """Broker 1, which has logs of `orders`. `topics` and `brokers` have the settings that were applied."""

    def __init__(self) -> None:
        self.server = MemoryZooKeeper()
        for path in PERSISTENT_PATHS:
            self.server.ensure(path)
        self.server.ensure("/brokers/topics/orders", b"{}")
        self.session = MemorySession(self.server)
        self.time = FakeTime(0.0)
        self.configs, self.admin = self.broker(self.session)
        self.topics: list[Mapping[str, Mapping[str, str]]] = []
        self.brokers: list[BrokerConfig] = []
        self.configs.on_topic_configs = self.topics.append
        self.configs.on_broker_config = self.brokers.append
        self.configs.topics_here = lambda: ["orders"]
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> World:
        await self.configs.start()
        self._task = asyncio.create_task(self.configs.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def broker(self, session: MemorySession, broker_id: int = 1) -> tuple[DynamicConfigs, ConfigAdmin]:
        static = BrokerConfig(broker_id=broker_id)
        configs = DynamicConfigs(static, session, self.time, EventLog(None, self.time))  # type: ignore[arg-type]
        return configs, ConfigAdmin(broker_id, session, MetadataCache(), configs)  # type: ignore[arg-type]

    def tell(self, entity: str) -> None:
        """As another broker, or an admin tool, does."""
        self.server.create(ConfigChangeZNode.PATH_PREFIX, ConfigChangeZNode.encode(entity), is_sequential=True)

    def write(self, path: str, data: bytes | dict[str, str], entity: str) -> None:
        self.server.ensure(path, ConfigZNode.encode(data) if isinstance(data, dict) else data)
        self.tell(entity)

    async def arrives(self, path: str, data: bytes | dict[str, str], entity: str) -> None:
        self.write(path, data, entity)
        await turns()

    def stored(self, path: str) -> dict[str, str]:
        return ConfigZNode.decode(self.server.nodes[path].data)

    async def alter(self, change: tuple[str, str], name: str = "orders", **more: bool) -> None:
        """As a request that sets one key of a topic, or of a broker."""
        kind = ResourceType.TOPIC if name == "orders" else ResourceType.BROKER
        how = {"replaces_all": False, "validate_only": False} | more
        await self.admin.alter(Resource(kind, name), [Change(change[0], Operation.SET, change[1])], **how)

    def changes(self) -> list[str]:
        return sorted(self.server.children(ConfigChangeZNode.PARENT))


@pytest.fixture
def world() -> World:
    return World()


async def turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


async def test_an_announced_change_is_applied(world: World) -> None:
    world.topics.clear()
    await world.arrives(ORDERS, {"flush.ms": "5"}, "topics/orders")
    assert world.topics == [{"orders": {"flush.ms": "5"}}]
    world.write("/config/brokers/1", {"max.connections": "9"}, "brokers/1")
    await world.arrives(
        "/config/brokers/<default>", {"max.connections": "7", "log.segment.bytes": "777"}, "brokers/<default>"
    )
    assert (world.brokers[-1].max_connections, world.brokers[-1].log_segment_bytes) == (9, 777)
    await world.arrives("/config/brokers/2", {"max.connections": "3"}, "brokers/2")
    assert world.brokers[-1].max_connections == 9, "another broker's"


async def test_settings_from_before_the_start_apply() -> None:
    world = World()
    world.write("/config/brokers/1", {"message.max.bytes": "1234"}, "brokers/1")
    world.write(ORDERS, {"flush.ms": "5"}, "topics/orders")
    await world.configs.start()
    assert world.configs.layers.effective.message_max_bytes == 1234
    assert world.topics == [{"orders": {"flush.ms": "5"}}]


async def test_the_epoch_of_the_features_rises_with_each_change_of_brokers_settings(world: World) -> None:
    """A client believes the answer with the highest one, so brokers of equal settings have the same."""
    other, _ = world.broker(world.session, broker_id=2)
    await other.start()
    assert world.configs.features_epoch == other.features_epoch == 0
    epochs = [0]
    for level in ("3.9", "4"):
        await world.alter(("broker.api.level", level), name="")
        await turns()
        await other.read_all()
        assert world.configs.features_epoch == other.features_epoch
        epochs.append(world.configs.features_epoch)
    assert epochs == sorted(set(epochs))
    world.configs.broker_epoch = lambda: epochs[-1] + 5
    assert world.configs.features_epoch == epochs[-1] + 5, "the file may have another level since the start"


async def test_after_an_expired_session_everything_is_read_again(world: World) -> None:
    """STA-4: a change without a watch is not missed, and the watch is set again."""
    world.session.expire()
    world.write(ORDERS, {"flush.ms": "5"}, "topics/orders")
    world.write("/config/brokers/1", {"max.connections": "9"}, "brokers/1")
    for name in world.changes():
        world.server.remove(f"{ConfigChangeZNode.PARENT}/{name}")  # purged long ago
    await turns()
    world.topics.clear()
    world.session.renew()
    await turns()
    assert world.topics == [{"orders": {"flush.ms": "5"}}]
    assert world.configs.layers.effective.max_connections == 9
    await world.arrives(ORDERS, {"flush.ms": "6"}, "topics/orders")
    assert world.topics[-1] == {"orders": {"flush.ms": "6"}}


async def test_a_read_of_everything_that_fails_is_repeated_with_the_next_change(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcements, "RETRY_S", 0)
    world.session.expire()
    world.server.ensure(ORDERS, ConfigZNode.encode({"flush.ms": "5"}))  # its announcement was purged long ago
    failed: list[object] = []

    def fail(topics: object) -> None:
        failed.append(topics)
        raise ValueError

    world.configs.on_topic_configs = fail
    world.session.renew()
    await turns()
    assert len(failed) == 1
    world.topics.clear()
    world.configs.on_topic_configs = world.topics.append
    world.tell("topics/others")
    await turns()
    assert world.topics == [{"orders": {"flush.ms": "5"}}]


RUBBISH = [b"", b"{", b"\xff\xfe", b"[]", b'"x"', b'{"version":1,"config":[]}', b'{"version":1,"config":7}']


@pytest.mark.parametrize("rubbish", RUBBISH)
async def test_rubbish_in_a_config_znode_is_reported_and_changes_nothing(
    world: World, rubbish: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    world.write("/config/brokers/1", {"max.connections": "9"}, "brokers/1")
    await world.arrives(ORDERS, {"flush.ms": "5"}, "topics/orders")
    world.topics.clear()
    with caplog.at_level(logging.WARNING):
        world.write(ORDERS, rubbish, "topics/orders")
        world.write("/config/brokers/1", rubbish, "brokers/1")
        await turns()
    assert all("orders" not in topics for topics in world.topics)
    assert world.configs.layers.effective.max_connections == 9
    assert "topic orders" in caplog.text
    assert "broker 1" in caplog.text


@pytest.mark.parametrize("rubbish", [*RUBBISH, b'{"version":2}', b'{"version":2,"entity_path":7}'])
async def test_rubbish_in_a_change_node_does_not_hold_up_the_next(world: World, rubbish: bytes) -> None:
    world.server.ensure(f"{ConfigChangeZNode.PARENT}/hand-made", rubbish)
    world.server.create(ConfigChangeZNode.PATH_PREFIX, rubbish, is_sequential=True)
    for entity in (
        "users/alice",
        "topics/",
        "topics/..",
        "topics//a",
        "topics/a\0",
        "brokers/x",
        "",
        "clients/<default>",
    ):
        world.tell(entity)
    await world.arrives(ORDERS, {"flush.ms": "5"}, "topics/orders")
    assert world.topics[-1] == {"orders": {"flush.ms": "5"}}


async def test_an_invalid_value_does_not_replace_the_earlier_one(world: World) -> None:
    await world.arrives("/config/brokers/1", {"max.connections": "9", "log.retention.ms": "5"}, "brokers/1")
    await world.arrives("/config/brokers/1", {"max.connections": "many", "log.dirs": "/x"}, "brokers/1")
    assert world.configs.layers.own == {"max.connections": "9"}


async def test_settings_that_change_while_they_are_loaded_are_loaded_again(world: World) -> None:
    """A log that is about to be opened must not start with older settings than those already announced."""
    await world.arrives(ORDERS, {"flush.ms": "1"}, "topics/orders")
    read_topics = world.configs._read_topics
    reads = 0

    async def slow_read(topics: Sequence[str]) -> dict[str, Mapping[str, str]]:
        nonlocal reads
        found = await read_topics(topics)
        reads += 1
        if reads == 1:
            world.write(ORDERS, {"flush.ms": "2"}, "topics/orders")
            await turns()
        return found

    world.configs._read_topics = slow_read  # type: ignore[method-assign]
    assert await world.configs.load_topics(["orders"]) == {"orders": {"flush.ms": "2"}}


# -- ConfigAdmin ------------------------------------------------------------------------------------------------------


async def test_an_alteration_is_applied_when_it_is_answered(world: World) -> None:
    await world.alter(("flush.ms", "5"))
    assert world.topics[-1] == {"orders": {"flush.ms": "5"}}
    await world.alter(("max.connections", "9"), "1")
    await world.alter(("log.retention.ms", "8"), "")
    assert world.stored("/config/brokers/1") == {"max.connections": "9"}
    assert world.stored("/config/brokers/<default>") == {"log.retention.ms": "8"}
    assert (world.brokers[-1].max_connections, world.brokers[-1].log_retention_ms) == (9, 8)
    assert [
        ConfigChangeZNode.decode(world.server.nodes[f"{ConfigChangeZNode.PARENT}/{name}"].data)
        for name in world.changes()
    ] == ["topics/orders", "brokers/1", "brokers/<default>"]


async def test_two_admins_at_once_lose_nothing(world: World) -> None:
    """A write conditional on the version that was read; the loser reads again (BUG-5's kind)."""
    other = MemorySession(world.server)
    configs, admin = world.broker(other, broker_id=2)
    await configs.start()
    topic, how = Resource(ResourceType.TOPIC, "orders"), {"replaces_all": False, "validate_only": False}
    alterations = [(world.admin, "flush.ms"), (admin, "retention.ms"), (world.admin, "segment.ms")] * 3
    changes = [(one, [Change(key, Operation.SET, f"{n}")]) for n, (one, key) in enumerate(alterations, 1)]
    await asyncio.gather(*(one.alter(topic, change, **how) for one, change in changes))
    assert world.stored(ORDERS).keys() == {"flush.ms", "retention.ms", "segment.ms"}


async def test_a_topic_that_is_deleted_meanwhile_gets_no_settings(world: World) -> None:
    """As FLT-36: no old settings may stay for the next topic of that name."""

    def delete(ops: Sequence[Op]) -> None:
        world.server.remove("/brokers/topics/orders")

    world.session.before_multi = delete
    with refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        await world.alter(("flush.ms", "5"))
    assert ORDERS not in world.server.nodes
    assert world.changes() == []


async def test_a_change_is_made_again_after_a_lost_answer(world: World) -> None:
    """BUG-5: nobody knows whether the write was applied. Made twice, it leads to the same settings, and is announced twice."""
    world.session.lose_answers = 1
    await world.alter(("flush.ms", "5"))
    assert world.stored(ORDERS) == {"flush.ms": "5"}
    assert len(world.changes()) == 2


@pytest.mark.parametrize("name", ["orders", ""])
async def test_a_change_by_a_broker_that_dies_is_known_to_all_or_not_made(name: str) -> None:
    path = ORDERS if name else "/config/brokers/<default>"
    change = ("flush.ms", "5") if name else ("log.flush.interval.ms", "5")

    async def attempt(arm: Callable[[MemorySession], None]) -> None:
        world = World()
        session = MemorySession(world.server)
        _, admin = world.broker(session, 2)
        await world.configs.start()
        world.topics.clear()
        arm(session)
        with contextlib.suppress(Killed):
            kind = ResourceType.TOPIC if name else ResourceType.BROKER
            changes = [Change(change[0], Operation.SET, change[1])]
            await admin.alter(Resource(kind, name), changes, replaces_all=False, validate_only=False)
        await world.configs.start()  # reads what was announced
        stored = world.stored(path) if path in world.server.nodes else {}
        known = world.topics[-1]["orders"] if world.topics else dict(world.configs.layers.cluster)
        assert known == stored

    assert await killed_at_each_write(attempt) == 2, "before and after the only write"


async def test_validate_only_writes_nothing(world: World) -> None:
    await world.alter(("flush.ms", "5"), validate_only=True)
    with pytest.raises(KafkaError):
        await world.alter(("flush.ms", "x"), validate_only=True)
    assert ORDERS not in world.server.nodes
    assert world.changes() == []


@pytest.mark.parametrize("replaces_all", [False, True])
async def test_rubbish_does_not_block_the_next_admin(world: World, replaces_all: bool) -> None:
    await world.arrives(ORDERS, b"rubbish", "topics/orders")
    found = await world.admin.topic_overrides(["orders"], turns)
    found_error = world.admin.described(Resource(ResourceType.TOPIC, "orders"), found, {})
    assert isinstance(found_error, KafkaError)
    assert found_error.code is ErrorCode.INVALID_CONFIG
    await world.alter(("flush.ms", "5"), replaces_all=replaces_all)
    assert world.stored(ORDERS) == {"flush.ms": "5"}


async def test_alter_configs_resets_settings_that_it_does_not_name(world: World) -> None:
    world.write(ORDERS, {"flush.ms": "5", "retention.ms": "rubbish"}, "topics/orders")
    await world.alter(("segment.ms", "7"), replaces_all=True)
    assert world.stored(ORDERS) == {"segment.ms": "7"}
    await world.admin.alter(Resource(ResourceType.TOPIC, "orders"), [], replaces_all=True, validate_only=False)
    assert world.stored(ORDERS) == {}
