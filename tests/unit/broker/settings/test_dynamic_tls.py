"""TLS of a listener as dynamic settings, on a ZooKeeper in memory: what is checked, stored, taken, and kept out of logs."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import pytest

from broker.admin.config_admin import ConfigAdmin, Resource, ResourceType
from broker.admin.config_changes import Change, Operation
from broker.cluster.metadata_cache import MetadataCache
from broker.process.event_log import EventLog
from broker.settings.config import BrokerConfig, ConfigError
from broker.settings.dynamic_configs import DynamicConfigs
from broker.settings.stored_secrets import StoredSecrets
from protocol.errors import ErrorCode
from protocol.zk.session import BadVersion, Op, Stat
from protocol.zk.znodes import PERSISTENT_PATHS, ConfigChangeZNode, ConfigZNode
from tests.support.fake_time import FakeTime
from tests.support.memory_zookeeper import MemorySession, MemoryZooKeeper
from tests.support.refusals import refused

NODE, NODE_OF_ALL = "/config/brokers/1", "/config/brokers/<default>"
LOCATION, KEY_PASSWORD = "listener.name.external.ssl.keystore.location", "listener.name.external.ssl.key.password"
PASSWORD = "opens-the-key"
SECRET = {"password_encoder_secret": "the-secret", "password_encoder_iterations": 1024}


class World:
    """Broker 1. `taken`: the settings that its TLS was told; `checked`: those that were checked, with the keys; `problem` refuses."""

    def __init__(self, directory: Path, **settings: str | int) -> None:
        self.server = MemoryZooKeeper()
        for path in PERSISTENT_PATHS:
            self.server.ensure(path)
        time = FakeTime(0.0)
        self.event_file = directory / "events.jsonl"
        self.static = BrokerConfig(broker_id=1, **{**SECRET, **settings})  # type: ignore[arg-type]
        self.session = MemorySession(self.server)
        self.configs = DynamicConfigs(self.static, self.session, time, EventLog(self.event_file, time))  # type: ignore[arg-type]
        self.admin = ConfigAdmin(1, self.session, MetadataCache(), self.configs, self._check)  # type: ignore[arg-type]
        self.taken: list[Mapping[str, str]] = []
        self.checked: list[tuple[Mapping[str, str], set[str]]] = []
        self.problem = ""

    async def start(self) -> None:
        await self.configs.encode_secrets_anew()
        await self.configs.start()
        self.configs.on_tls = self._take

    async def _take(self, config: BrokerConfig) -> None:
        self.taken.append(config.ssl_of_listeners)

    async def _check(self, config: BrokerConfig, keys: Collection[str]) -> None:
        self.checked.append((config.ssl_of_listeners, set(keys)))
        if self.problem:
            raise ConfigError(self.problem)

    async def alter(self, changes: Mapping[str, str | None], name: str = "1", **how: bool) -> None:
        rows = [Change(key, Operation.DELETE if text is None else Operation.SET, text) for key, text in changes.items()]
        how = {"replaces_all": False, "validate_only": False} | how
        await self.admin.alter(Resource(ResourceType.BROKER, name), rows, **how)

    def stored(self) -> dict[str, str]:
        return ConfigZNode.decode(self.server.nodes[NODE].data) if NODE in self.server.nodes else {}

    def announced(self) -> int:
        return len(self.server.children(ConfigChangeZNode.PARENT))


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Its `start` comes first."""
    return World(tmp_path)


async def encrypted(settings: Mapping[str, str], secret: str = "the-secret") -> dict[str, str]:
    config = BrokerConfig(broker_id=1, password_encoder_secret=secret, password_encoder_iterations=1024)
    return await StoredSecrets(config).encoded(settings)


async def test_a_password_is_stored_encrypted_and_is_in_no_log(world: World, caplog: pytest.LogCaptureFixture) -> None:
    await world.start()
    with caplog.at_level(logging.DEBUG):
        await world.alter({LOCATION: "/a.pem", KEY_PASSWORD: PASSWORD})
    assert world.stored()[LOCATION] == "/a.pem"
    assert world.stored()[KEY_PASSWORD].count("PBKDF2WithHmacSHA512") == 1
    assert world.taken == [{LOCATION: "/a.pem", KEY_PASSWORD: PASSWORD}]
    (event,) = [json.loads(line) for line in world.event_file.read_text().splitlines()]
    assert event["own"] == {LOCATION: "/a.pem", KEY_PASSWORD: "[hidden]"}
    everywhere = caplog.text + world.event_file.read_text() + str(world.server.nodes[NODE].data)
    described = world.admin.described(Resource(ResourceType.BROKER, "1"), {}, {})
    assert PASSWORD not in everywhere + repr(described)


async def test_what_is_checked_has_the_passwords_from_before(world: World) -> None:
    await world.start()
    await world.alter({LOCATION: "/a.pem", KEY_PASSWORD: PASSWORD})
    await world.alter({LOCATION: "/b.pem"})
    await world.alter({LOCATION: None})
    await world.alter({"max.connections": "9"})
    await world.alter({"max.connections": "9"}, replaces_all=True)
    assert world.checked == [
        ({LOCATION: "/a.pem", KEY_PASSWORD: PASSWORD}, {LOCATION, KEY_PASSWORD}),
        ({LOCATION: "/b.pem", KEY_PASSWORD: PASSWORD}, {LOCATION}),
        ({KEY_PASSWORD: PASSWORD}, {LOCATION}),
        ({}, {KEY_PASSWORD}),
    ]


async def test_what_cannot_be_used_is_refused_and_nothing_changes(world: World) -> None:
    await world.start()
    world.problem = "the file is missing"
    for how in ({"validate_only": True}, {"validate_only": False}):
        with refused(ErrorCode.INVALID_REQUEST, "the file is missing"):
            await world.alter({LOCATION: "/a.pem"}, **how)
    assert (world.stored(), world.announced(), world.taken) == ({}, 0, [])


async def test_without_a_secret_for_passwords_they_are_refused(tmp_path: Path) -> None:
    world = World(tmp_path, password_encoder_secret="")
    await world.start()
    with refused(ErrorCode.INVALID_CONFIG, "password.encoder.secret is not set"):
        await world.alter({KEY_PASSWORD: PASSWORD})
    await world.alter({LOCATION: "/a.pem"})
    assert world.stored() == {LOCATION: "/a.pem"}


async def test_all_brokers_together_have_no_such_setting(world: World, caplog: pytest.LogCaptureFixture) -> None:
    await world.start()
    with refused(ErrorCode.INVALID_REQUEST, "cannot be set for all brokers"):
        await world.alter({LOCATION: "/a.pem"}, name="")
    world.server.ensure(NODE_OF_ALL, ConfigZNode.encode({LOCATION: "/a.pem", "max.connections": "9"}))
    await world.configs.read_again("brokers/<default>")
    assert world.configs.layers.cluster == {"max.connections": "9"}
    assert f"all brokers: {LOCATION} can be set for one broker only, and is ignored" in caplog.text


async def test_the_same_settings_again_look_at_the_files_again(world: World) -> None:
    """As `reloadUpdatedFilesWithoutConfigChange`."""
    await world.start()
    for _ in range(2):
        await world.alter({LOCATION: "/a.pem"})
    assert world.taken == [{LOCATION: "/a.pem"}] * 2
    assert len(world.checked) == 2


async def test_a_password_that_cannot_be_read_at_the_start_is_ignored_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path)
    of_another = await encrypted({KEY_PASSWORD: PASSWORD}, "another")
    world.server.ensure(NODE, ConfigZNode.encode({LOCATION: "/a.pem", **of_another}))
    await world.start()
    assert world.configs.layers.effective.ssl_of_listeners == {LOCATION: "/a.pem"}
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert line == (
        f"broker 1: {KEY_PASSWORD} cannot be read: password.encoder.secret is not the one by which it is encrypted, and is ignored"
    )


async def test_a_new_secret_is_used_from_the_start_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world = World(tmp_path, password_encoder_old_secret="before")
    world.server.ensure(
        NODE, ConfigZNode.encode({LOCATION: "/a.pem", **await encrypted({KEY_PASSWORD: PASSWORD}, "before")})
    )
    real, raced = world.session.set, []

    async def set_later(path: str, data: bytes, version: int = -1) -> Stat:
        if not raced:
            raced.append(path)
            world.server.ensure(NODE, world.server.nodes[NODE].data)
            raise BadVersion("another admin")
        return await real(path, data, version)

    world.session.set = set_later  # type: ignore[method-assign]
    with caplog.at_level(logging.INFO):
        await world.start()
    assert world.configs.layers.own == {LOCATION: "/a.pem", KEY_PASSWORD: PASSWORD}
    assert raced
    assert f"encrypted by password.encoder.secret, no longer by the old one: {KEY_PASSWORD}" in caplog.text
    alone = World(tmp_path)
    alone.server.ensure(NODE, world.server.nodes[NODE].data)
    await alone.start()
    assert alone.configs.layers.own == {LOCATION: "/a.pem", KEY_PASSWORD: PASSWORD}, "the old secret may go"


async def test_what_is_read_later_is_taken_later(world: World) -> None:
    """Passwords are decrypted in a thread, meanwhile the settings may change again."""
    await world.start()
    first, second = [{LOCATION: place, **await encrypted({KEY_PASSWORD: place})} for place in ("/a.pem", "/b.pem")]
    real, is_open = world.configs.secrets.decoded, asyncio.Event()

    async def slowly(found: Mapping[str, str]) -> tuple[dict[str, str], Sequence[str]]:
        if found[LOCATION] == "/a.pem":
            await is_open.wait()
        return await real(found)

    world.configs.secrets.decoded = slowly  # type: ignore[method-assign]
    world.server.ensure(NODE, ConfigZNode.encode(first))
    reads = [asyncio.create_task(world.configs.read_again("brokers/1"))]
    for _ in range(20):
        await asyncio.sleep(0)
    world.server.ensure(NODE, ConfigZNode.encode(second))
    reads.append(asyncio.create_task(world.configs.read_again("brokers/1")))
    for _ in range(20):
        await asyncio.sleep(0)
    is_open.set()
    await asyncio.gather(*reads)
    assert [taken[LOCATION] for taken in world.taken] == ["/a.pem", "/b.pem"]


async def test_two_admins_at_once_lose_nothing(world: World) -> None:
    """The loser of a race reads again, and checks what it then writes."""
    await world.start()
    other: list[Op] = []

    def overtake(ops: Sequence[Op]) -> None:
        if not other:
            other.extend(ops)
            world.server.ensure(NODE, ConfigZNode.encode({"max.connections": "9"}))

    world.session.before_multi = overtake
    await world.alter({LOCATION: "/a.pem"})
    assert world.stored() == {"max.connections": "9", LOCATION: "/a.pem"}
    assert len(world.checked) == 2
