"""Settings that change while the broker runs: of topics, of this broker, of all brokers, and of clients (`/config`).

A change is written to `/config/...` and then announced by a child of `/config/changes`. Every broker follows those announcements
(`broker/process/announcements.py`), and reads the named settings again. Invalid settings are logged, and the earlier values stay.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType

from broker.process.announcements import Announcements
from broker.process.clock import Clock
from broker.process.event_log import EventLog
from broker.settings.config import BrokerConfig
from broker.settings.config_layers import ConfigLayers, believable
from broker.settings.entity_configs import EntityConfigs, decoded, is_entity
from protocol.topic_names import is_valid_topic_name, shown
from protocol.zk.entity_names import DEFAULT
from protocol.zk.session import (
    ConnectionLoss,
    SessionExpired,
    ZkError,
    ZooKeeperSession,
)
from protocol.zk.znodes import ConfigChangeZNode, ConfigZNode

log = logging.getLogger(__name__)

TOPICS = "topics"
BROKERS = "brokers"
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
        self.on_topic_configs: Callable[[Mapping[str, TopicOverrides]], None] = lambda overrides: None
        self.of_clients = EntityConfigs(zk)
        """The settings of users, client ids and addresses."""
        self.topics_here: Callable[[], Collection[str]] = lambda: ()
        self._zk = zk
        self._events = events
        self._own_name = str(static.broker_id)
        decoders = {ConfigChangeZNode.PARENT: ConfigChangeZNode.decode}
        self._announcements = Announcements(zk, clock, self, decoders, "settings")
        self._changed_during_load: list[set[str]] = []

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

    async def _read_broker_layers(self) -> None:
        paths = [ConfigZNode.path(BROKERS, name) for name in (DEFAULT, self._own_name)]
        nodes = await self._zk.get_many(paths)
        before = self.layers
        cluster = _usable_layer("all brokers", nodes[0][0] if nodes[0] is not None else None, before.cluster)
        own = _usable_layer(f"broker {self._own_name}", nodes[1][0] if nodes[1] is not None else None, before.own)
        if (cluster, own) == (before.cluster, before.own):
            return
        self.layers = ConfigLayers(before.static, cluster, own, before.given)
        self._events.write("broker_config", own=own, cluster=cluster)
        log.info("settings of all brokers are now %s, those of this one %s", cluster, own)
        self.on_broker_config(self.layers.effective)


def _usable_layer(entity: str, data: bytes | None, earlier: Mapping[str, str]) -> dict[str, str]:
    found = decoded(entity, data)
    if found is None:
        return dict(earlier)
    usable, complaints = believable(BrokerConfig, found, earlier, entity)
    for complaint in complaints:
        log.warning("%s", complaint)
    return usable
