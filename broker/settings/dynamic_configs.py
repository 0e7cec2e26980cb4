"""Settings that change while the broker runs: of topics, of this broker, of all brokers, and of clients (`/config`).

A change is written to `/config/...` and then announced by a child of `/config/changes`. Every broker follows those announcements
(`broker/process/announcements.py`), and reads the named settings again. Invalid settings are logged, and the earlier values stay.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from types import MappingProxyType

from broker.process.announcements import Announcements
from broker.process.clock import Clock
from broker.process.event_log import EventLog
from broker.settings.config import BrokerConfig
from broker.settings.config_layers import ConfigLayers, believable, is_of_one_broker
from broker.settings.entity_configs import EntityConfigs, decoded, is_entity
from broker.settings.stored_secrets import StoredSecrets, without_secrets
from protocol.topic_names import is_valid_topic_name, shown
from protocol.zk.entity_names import DEFAULT
from protocol.zk.session import (
    BadVersion,
    ConnectionLoss,
    NoNode,
    SessionExpired,
    ZkError,
    ZooKeeperSession,
)
from protocol.zk.znodes import ConfigChangeZNode, ConfigZNode

log = logging.getLogger(__name__)

TOPICS = "topics"
BROKERS = "brokers"
WRITE_ATTEMPTS = 20
NOTHING_GIVEN: Mapping[str, str] = MappingProxyType({})

TopicOverrides = Mapping[str, str]


class DynamicConfigs:
    """Call `start` before this broker leads anything, then `run` as a task. The `on_` callbacks apply changes on the loop."""

    def __init__(
        self,
        static: BrokerConfig,
        zk: ZooKeeperSession,
        clock: Clock,
        events: EventLog,
        given: Mapping[str, str] = NOTHING_GIVEN,
    ) -> None:
        """`given`: the texts from which `static` was read."""
        self.layers = ConfigLayers(static, given=given)
        self.on_broker_config: Callable[[BrokerConfig], None] = lambda config: None
        self.on_tls: Callable[[BrokerConfig], Awaitable[None]] | None = None
        """Takes the settings of TLS whenever those of brokers were read, also if none has changed: a file may have."""
        self.secrets = StoredSecrets(static)
        self.on_topic_configs: Callable[[Mapping[str, TopicOverrides]], None] = lambda overrides: None
        self.of_clients = EntityConfigs(zk)
        """The settings of users, client ids and addresses."""
        self.broker_epoch: Callable[[], int] = lambda: 0
        """The zxid of the registration of this broker."""
        self._changed_zxid = 0
        self.topics_here: Callable[[], Collection[str]] = lambda: ()
        self._zk = zk
        self._events = events
        self._own_name = str(static.broker_id)
        decoders = {ConfigChangeZNode.PARENT: ConfigChangeZNode.decode}
        self._announcements = Announcements(zk, clock, self, decoders, "settings")
        self._changed_during_load: list[set[str]] = []
        self._reading_layers = asyncio.Lock()

    @property
    def features_epoch(self) -> int:
        """Rises when `broker.api.level` may change: the zxid of the last change of brokers' settings, or of this broker's start."""
        return max(self._changed_zxid, self.broker_epoch())

    # -- following the changes ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Reads all settings, and watches for changes. Raises ZkError; may then be called again."""
        await self._announcements.start()

    async def run(self) -> None:
        """Follows the changes until cancelled."""
        await self._announcements.run()

    async def read_changed(self, entities: Sequence[str]) -> None:
        """As a `Follower`."""
        await self.read_again(*entities)

    async def read_all(self) -> None:
        """As a `Follower`."""
        await self._read_broker_layers()
        await self._refresh_topics(sorted(self.topics_here()))
        await self.of_clients.read_all()

    async def read_again(self, *entities: str) -> None:
        """Reads entities that may have changed: `topics/<name>`, `brokers/<id>`, `brokers/<default>`, and those of EntityConfigs.

        Others are only logged. Raises ZkError.
        """
        topics, clients = [], []
        for entity in entities:
            kind, _, name = entity.partition("/")
            # Other names cannot be topics, and some are not even paths: reading them from ZooKeeper would always fail.
            if kind == TOPICS and is_valid_topic_name(name):
                topics.append(name)
            elif kind == BROKERS and name in (DEFAULT, self._own_name):
                await self._read_broker_layers()
            elif is_entity(entity):
                clients.append(entity)
            else:
                log.info("a change of the settings of %s does not concern this broker", shown(entity))
        if clients:
            await self.of_clients.read(clients)
        await self._refresh_topics(topics)

    async def _refresh_topics(self, topics: Sequence[str]) -> None:
        """Reads the topics' settings and applies them. Loads in progress read these topics again (`load_topics`)."""
        for topic in topics:
            self._note_change(topic)
        if not topics:
            return
        try:
            self.on_topic_configs(await self.load_topics(topics))
        except (ConnectionLoss, SessionExpired):
            raise
        except ZkError as error:
            if len(topics) == 1:
                log.warning("the settings of topic %s cannot be read, the earlier ones stay: %s", topics[0], error)
                return
            middle = len(topics) // 2
            await self._refresh_topics(topics[:middle])
            await self._refresh_topics(topics[middle:])

    # -- topics ---------------------------------------------------------------------------------------------------

    async def load_topics(self, topics: Sequence[str]) -> dict[str, TopicOverrides]:
        """The settings of topics whose logs are about to be opened. Raises ZkError.

        A topic whose settings change meanwhile is read again: no log may start with old settings.
        """
        loaded: dict[str, TopicOverrides] = {}
        pending = list(topics)
        while pending:
            changed: set[str] = set()
            self._changed_during_load.append(changed)
            try:
                loaded.update(await self._read_topics(pending))
            finally:
                self._changed_during_load.remove(changed)
            pending = [topic for topic in pending if topic in changed]
        return loaded

    def _note_change(self, topic: str) -> None:
        for changed in self._changed_during_load:
            changed.add(topic)

    async def _read_topics(self, topics: Sequence[str]) -> dict[str, TopicOverrides]:
        """The settings of the topics that can be read; empty for a topic without settings."""
        found = await self._zk.get_many([ConfigZNode.path(TOPICS, topic) for topic in topics])
        readable: dict[str, TopicOverrides] = {}
        for topic, node in zip(topics, found, strict=True):
            overrides = decoded(f"topic {topic}", node[0] if node is not None else None)
            if overrides is not None:
                readable[topic] = overrides
        return readable

    # -- brokers --------------------------------------------------------------------------------------------------

    async def encode_secrets_anew(self) -> None:
        """Encrypts what `password.encoder.old.secret` still reads by the present secret (`maybeReEncodePasswords`), before `start`.

        Raises ZkError, and ConfigError without a present secret. After a lost answer it may be called again.
        """
        if not self.secrets.has_old_one:
            return
        path = ConfigZNode.path(BROKERS, self._own_name)
        for _ in range(WRITE_ATTEMPTS):
            try:
                data, stat = await self._zk.get(path)
            except NoNode:
                return
            found = decoded(f"broker {self._own_name}", data)
            changed = await self.secrets.encoded_anew(found or {})
            if found is None or not changed:
                return
            try:
                # Not announced: the settings are the same, and only this broker can read them.
                await self._zk.set(path, ConfigZNode.encode({**found, **changed}), stat.version)
            except (BadVersion, NoNode):
                continue
            log.info("encrypted by password.encoder.secret, no longer by the old one: %s", ", ".join(sorted(changed)))
            return
        raise ZkError(f"{path} keeps changing")

    async def effective_with(self, own: Mapping[str, str]) -> BrokerConfig:
        """The settings that would count if this broker's node had those of `own`."""
        readable, _ = await self.secrets.decoded(own)
        layers = self.layers
        usable, _ = believable(BrokerConfig, readable, {}, f"broker {self._own_name}")
        return ConfigLayers(layers.static, layers.cluster, usable, layers.given).effective

    async def _read_broker_layers(self) -> None:
        # One after the other: what is read later is taken later, although secrets are decrypted in between.
        async with self._reading_layers:
            paths = [ConfigZNode.path(BROKERS, name) for name in (DEFAULT, self._own_name)]
            nodes = await self._zk.get_many(paths)
            of_all, of_this = (node[0] if node is not None else None for node in nodes)
            before = self.layers
            cluster = _usable("all brokers", _of_all_brokers(of_all), before.cluster)
            own = await self._usable_own(of_this, before.own)
            # With the settings, and not before: a client believes a level of the same epoch never again.
            self._changed_zxid = max([self._changed_zxid, *(node[1].mzxid for node in nodes if node is not None)])
            if (cluster, own) != (before.cluster, before.own):
                self.layers = ConfigLayers(before.static, cluster, own, before.given)
                shown = without_secrets(own)
                self._events.write("broker_config", own=shown, cluster=cluster)
                log.info("settings of all brokers are now %s, those of this one %s", cluster, shown)
                self.on_broker_config(self.layers.effective)
            if self.on_tls is not None:
                await self.on_tls(self.layers.effective)

    async def _usable_own(self, data: bytes | None, earlier: Mapping[str, str]) -> dict[str, str]:
        entity = f"broker {self._own_name}"
        found = decoded(entity, data)
        if found is None:
            return dict(earlier)
        readable, complaints = await self.secrets.decoded(found)
        for complaint in complaints:
            log.error("%s: %s, and is ignored", entity, complaint)
        return _usable(entity, readable, earlier)


def _of_all_brokers(data: bytes | None) -> dict[str, str] | None:
    found = decoded("all brokers", data)
    if found is None:
        return None
    for key in [key for key in found if is_of_one_broker(key)]:
        del found[key]
        log.warning("all brokers: %s can be set for one broker only, and is ignored", key)
    return found


def _usable(entity: str, found: Mapping[str, str] | None, earlier: Mapping[str, str]) -> dict[str, str]:
    if found is None:
        return dict(earlier)
    usable, complaints = believable(BrokerConfig, found, earlier, entity)
    for complaint in complaints:
        log.warning("%s", complaint)
    return usable
