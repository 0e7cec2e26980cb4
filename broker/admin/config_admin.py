"""Describes and changes settings in ZooKeeper for admins (Kafka's ConfigAdminManager and AdminZkClient).

Any broker may change the settings of a topic or of all brokers; a broker's own settings are changed through that broker. A change
is written conditional on the version that was read, and announced to all brokers by a node below `/config/changes`, in one transaction.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from enum import IntEnum
from functools import partial
from typing import NamedTuple

from broker.admin.config_changes import Change, Effective, changed, check_for_all_brokers
from broker.admin.topic_admin import ZOOKEEPER_WAIT_MAX_S, check_topic_name
from broker.cluster.metadata_cache import MetadataCache
from broker.process.announced_writes import NoGuard, write_announced
from broker.settings.client_metrics import ClientMetricsConfig
from broker.settings.config import BrokerConfig, ConfigError, TopicConfig, is_tls_of_listener
from broker.settings.config_layers import (
    DescribedSetting,
    Source,
    believable,
    describe_client_metrics,
    describe_entity,
)
from broker.settings.dynamic_configs import BROKERS, TOPICS, DynamicConfigs
from broker.settings.entity_configs import CLIENT_METRICS, GROUPS
from broker.settings.group_configs import GroupConfig, GroupConfigs, check, defaults
from broker.telemetry.client_telemetry import ClientTelemetry
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.api_keys import ApiLevel
from protocol.topic_names import is_valid_topic_name
from protocol.zk.entity_names import DEFAULT, sanitized
from protocol.zk.session import (
    BadVersion,
    CreateOp,
    NodeExists,
    NoNode,
    Op,
    SetOp,
    ZkError,
    ZooKeeperSession,
)
from protocol.zk.znodes import ConfigChangeZNode, ConfigZNode, TopicZNode

log = logging.getLogger(__name__)

WRITE_ATTEMPTS = 20
NAMES_IN_A_SLICE = 500
TOPICS_IN_A_SLICE = 50
"""Each slice takes a millisecond or two."""
TOPICS_READ_AT_ONCE = 1_000
UNKNOWN_LOOKED_UP_MAX = 100
"""Limit of topics that a request looks up in ZooKeeper because the metadata cache does not know them: they may be newer than its last
update. Further topics that the cache does not know do not exist for the request. In Kafka this is so for all topics."""
BROKER_ID = re.compile(r"0|[1-9][0-9]{0,9}")
"""A broker id as the broker itself writes it, so that each broker has one resource name."""


SUBSCRIPTIONS_MAX = 1_000
SUBSCRIPTION_NAME_MAX = 249
"""Limits of subscriptions to metrics of clients."""


Overrides = Mapping[str, str] | KafkaError


GROUP_NAME_MAX = 1_000
"""Of a group that has settings: its name is that of a znode."""
GROUPS_MAX = 10_000
"""Groups with settings: each broker keeps them all."""


class ResourceType(IntEnum):
    """Kafka's ConfigResource.Type."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Resource(NamedTuple):
    """A topic, a broker, a subscription to metrics of clients, or a group. A broker resource with an empty name means all brokers."""

    kind: int
    name: str


class _Entity(NamedTuple):
    """A resource in ZooKeeper. `path` has its settings. If the node `guard` does not exist, the resource does not exist."""

    path: str
    entity_path: str
    config: type
    guard: str | None


def _does_not_exist(topic: str) -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic!r} does not exist")


def _needs_level_4(kind: ResourceType, name: str) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_REQUEST, f"resource type {int(kind)} ({name}) has settings with broker.api.level=4 only"
    )


class ConfigAdmin:
    """`own_id` is this broker's id."""

    def __init__(
        self,
        own_id: int,
        zk: ZooKeeperSession,
        metadata: MetadataCache,
        configs: DynamicConfigs,
        check_tls: Callable[[BrokerConfig, Collection[str]], Awaitable[None]] | None = None,
        telemetry: ClientTelemetry | None = None,
        groups: GroupConfigs | None = None,
    ) -> None:
        """`check_tls` raises ConfigError if a broker with these settings could not serve the listeners of these keys as before.

        `telemetry`, `groups` None: metrics of clients, and groups, have no settings here.
        """
        self._check_tls = check_tls
        self._telemetry = telemetry
        self._groups = groups
        self._own_id = own_id
        self._zk = zk
        self._metadata = metadata
        self._configs = configs

    # -- reading --------------------------------------------------------------------------------------------------

    async def topic_overrides(
        self, topics: Collection[str], slice_of_own: Callable[[], Awaitable[None]]
    ) -> dict[str, Overrides]:
        """Topic -> its valid overrides, or the error: an illegal name, an unknown topic, or unreadable settings. Raises ZkError.

        `slice_of_own()` waits until the caller may use some of the loop's time again.
        """
        results: dict[str, Overrides] = {}
        possible = []
        unknown = 0
        for number, topic in enumerate(topics, 1):
            if number % NAMES_IN_A_SLICE == 0:
                await slice_of_own()
            try:
                check_topic_name(topic)
                if not self._metadata.partitions_of(topic):
                    unknown += 1
                    if unknown > UNKNOWN_LOOKED_UP_MAX:
                        raise _does_not_exist(topic)
                possible.append(topic)
            except KafkaError as error:
                results[topic] = error.with_traceback(None)
        left = iter(possible)
        while part := list(itertools.islice(left, TOPICS_READ_AT_ONCE)):
            nodes = await self._zk.get_many([ConfigZNode.path(TOPICS, topic) for topic in part])
            for number, (topic, node) in enumerate(zip(part, nodes, strict=True), 1):
                if number % TOPICS_IN_A_SLICE == 0:
                    await slice_of_own()
                try:
                    await self._check_topic(topic)
                    found = ConfigZNode.decode(node[0]) if node is not None else {}
                    results[topic] = believable(TopicConfig, found, {}, f"topic {topic}")[0]
                except KafkaError as error:
                    results[topic] = error.with_traceback(None)
                except ValueError as error:
                    results[topic] = KafkaError(
                        ErrorCode.INVALID_CONFIG, f"the settings of topic {topic} in ZooKeeper cannot be read: {error}"
                    )
        return results

    def described(
        self,
        resource: Resource,
        topics: Mapping[str, Overrides],
        described: dict[tuple[tuple[str, str], ...], list[DescribedSetting]],
    ) -> list[DescribedSetting] | KafkaError:
        """Every setting of the resource. `topics` is the result of `topic_overrides`. `described` caches the results of topics with
        equal overrides."""
        layers = self._configs.layers
        try:
            if resource.kind == ResourceType.TOPIC:
                overrides = topics[resource.name]
                if isinstance(overrides, KafkaError):
                    return overrides
                key = tuple(sorted(overrides.items()))
                if key not in described:
                    described[key] = list(layers.describe_topic(overrides))
                return described[key]
            if resource.kind == ResourceType.CLIENT_METRICS:
                return list(describe_client_metrics(self._subscriptions(resource.name).configs_of(resource.name)))
            if resource.kind == ResourceType.GROUP:
                configs, own = self._configs_of_groups(resource.name), Source.GROUP_CONFIG
                return list(describe_entity(GroupConfig, configs.of(resource.name), defaults(layers.effective), own))
            self._check_broker(resource)
        except KafkaError as error:
            return error
        return list(layers.describe_broker() if resource.name else layers.describe_cluster_default())

    async def _check_topic(self, topic: str) -> None:
        """Raises KafkaError for a topic that is neither in the metadata cache nor in ZooKeeper."""
        if not self._metadata.partitions_of(topic) and await self._zk.exists(TopicZNode.path(topic)) is None:
            raise _does_not_exist(topic)

    @property
    def _is_at_level_4(self) -> bool:
        return self._configs.layers.effective.broker_api_level != ApiLevel.KAFKA_3_9

    def _subscriptions(self, name: str) -> ClientTelemetry:
        """Raises KafkaError if a subscription cannot have the name, or the level of the brokers does not have them."""
        if self._telemetry is None or not self._is_at_level_4:
            raise _needs_level_4(ResourceType.CLIENT_METRICS, "client metrics")
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a subscription to metrics of clients needs a name")
        if len(name) > SUBSCRIPTION_NAME_MAX:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"a name of more than {SUBSCRIPTION_NAME_MAX} characters")
        return self._telemetry

    def _configs_of_groups(self, group_id: str) -> GroupConfigs:
        """Raises KafkaError if there is no such group, or the level of the brokers does not have settings of groups."""
        if self._groups is None or not self._is_at_level_4:
            raise _needs_level_4(ResourceType.GROUP, "group")
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "there are no settings for all groups: name one")
        if len(group_id) > GROUP_NAME_MAX:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"a group id of more than {GROUP_NAME_MAX} characters")
        return self._groups

    def _check_broker(self, resource: Resource) -> None:
        """Raises KafkaError unless the resource is this broker or all brokers."""
        kind, name = resource
        if kind == ResourceType.BROKER_LOGGER:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "the log levels of a broker cannot be described or changed here"
            )
        if kind != ResourceType.BROKER:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"resource type {kind} has no settings here: use 2 (topic) or 4 (broker)"
            )
        if name and not BROKER_ID.fullmatch(name):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"a broker id must be a whole number, but it is {name[:20]!r}")
        if name and int(name) != self._own_id:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"this is broker {self._own_id}: send the request to broker {name}"
            )

    # -- changing -------------------------------------------------------------------------------------------------

    async def alter(
        self, resource: Resource, changes: Sequence[Change], *, replaces_all: bool, validate_only: bool
    ) -> None:
        """Changes these settings. With `replaces_all`, resets all others. With `validate_only`, only checks. Raises KafkaError, ZkError."""
        entity = self._entity(resource)
        running = self._configs.layers.effective
        effective: Effective = running
        if entity.config is TopicConfig:
            effective = running.topic_defaults()
        elif entity.config is ClientMetricsConfig:
            effective = ClientMetricsConfig()
        elif entity.config is GroupConfig:
            effective = GroupConfig()

        def decide(current: Mapping[str, str]) -> dict[str, str]:
            result = changed(entity.config, {} if replaces_all else current, changes, effective)
            if entity.config is GroupConfig:
                _check_group(result, running)
            return result

        if resource.kind == ResourceType.BROKER and not resource.name:
            check_for_all_brokers(changes)
        plain = decide({})  # reports errors in the request itself even without ZooKeeper
        try:
            encoded = await self._configs.secrets.encoded(plain) if entity.config is BrokerConfig else {}
        except ConfigError as problem:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(problem)) from None
        named = {change.key for change in changes}

        async def vetted(current: Mapping[str, str]) -> dict[str, str]:
            result = decide(current)
            result |= {key: text for key, text in encoded.items() if key in result}
            await self._vet(entity, current, result, named)
            return result

        if entity.guard is not None and await self._zk.exists(entity.guard) is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {resource.name!r} does not exist")
        if validate_only:
            await vetted((await self._read(entity))[0])
            return
        await self._zk.repeated(partial(self._write, entity, vetted), ZOOKEEPER_WAIT_MAX_S)
        await self._zk.repeated(partial(self._configs.read_again, entity.entity_path), ZOOKEEPER_WAIT_MAX_S)

    async def _vet(
        self, entity: _Entity, current: Mapping[str, str], result: Mapping[str, str], named: Collection[str]
    ) -> None:
        """Whether this broker could use the settings of TLS in `result`, if some differ, or the request names some. Raises KafkaError."""
        keys = {key for key in current.keys() | result.keys() if current.get(key) != result.get(key)} | set(named)
        of_tls = set(filter(is_tls_of_listener, keys))
        if entity.entity_path != f"{BROKERS}/{self._own_id}" or self._check_tls is None or not of_tls:
            return
        try:
            await self._check_tls(await self._configs.effective_with(result), of_tls)
        except ConfigError as problem:
            raise KafkaError(ErrorCode.INVALID_REQUEST, str(problem)) from None

    def _entity(self, resource: Resource) -> _Entity:
        kind, name = resource
        if kind == ResourceType.TOPIC:
            if not name:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    "there are no settings for all topics: change the settings of the brokers",
                )
            guard = TopicZNode.path(name)
            if not is_valid_topic_name(name):
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist")
            return _Entity(ConfigZNode.path(TOPICS, name), f"{TOPICS}/{name}", TopicConfig, guard)
        if kind == ResourceType.CLIENT_METRICS:
            known = self._subscriptions(name)
            if not known.configs_of(name) and len(known.names()) >= SUBSCRIPTIONS_MAX:
                raise KafkaError(
                    ErrorCode.POLICY_VIOLATION, f"there are {SUBSCRIPTIONS_MAX} subscriptions to metrics of clients"
                )
            node = sanitized(name)
            path = ConfigZNode.path(CLIENT_METRICS, node)
            return _Entity(path, f"{CLIENT_METRICS}/{node}", ClientMetricsConfig, None)
        if kind == ResourceType.GROUP:
            groups = self._configs_of_groups(name)
            if not groups.of(name) and len(groups.names()) >= GROUPS_MAX:
                raise KafkaError(ErrorCode.POLICY_VIOLATION, f"{GROUPS_MAX} groups have settings of their own")
            node = sanitized(name)
            return _Entity(ConfigZNode.path(GROUPS, node), f"{GROUPS}/{node}", GroupConfig, None)
        self._check_broker(resource)
        entity = str(int(name)) if name else DEFAULT
        return _Entity(ConfigZNode.path(BROKERS, entity), f"{BROKERS}/{entity}", BrokerConfig, None)

    async def _read(self, entity: _Entity) -> tuple[Mapping[str, str], int | None]:
        """The settings and the node's version, which is None if there is no node."""
        try:
            data, stat = await self._zk.get(entity.path)
        except NoNode:
            return {}, None
        try:
            return ConfigZNode.decode(data), stat.version
        except ValueError as error:
            log.warning("%s cannot be read and is overwritten: %s", entity.path, error)
            return {}, stat.version

    async def _write(self, entity: _Entity, decide: Callable[[Mapping[str, str]], Awaitable[dict[str, str]]]) -> None:
        """Writes conditional on the version that was read, and retries. A topic that is deleted meanwhile gets no settings.

        May be called again after a lost answer: the same changes, made twice, give the same settings, and are announced twice.
        """
        announcement = ConfigChangeZNode.announcement(entity.entity_path)
        for _ in range(WRITE_ATTEMPTS):
            current, version = await self._read(entity)
            data = ConfigZNode.encode(await decide(current))
            write: Op = CreateOp(entity.path, data) if version is None else SetOp(entity.path, data, version)
            try:
                await write_announced(self._zk, write, announcement, guard=entity.guard)
                return
            except NoGuard:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the topic was deleted meanwhile") from None
            except (BadVersion, NodeExists, NoNode):
                continue
        raise ZkError(f"{entity.path} keeps changing")


def _check_group(configs: Mapping[str, str], running: BrokerConfig) -> None:
    """Raises KafkaError."""
    try:
        check(configs, running)
    except ConfigError as problem:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(problem)) from None
