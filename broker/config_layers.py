"""Where the value of a setting comes from, and which value counts. Pure.

A topic's own setting, then what was set for this broker while it runs, then for all brokers, then its static
configuration, then the default. DescribeConfigs shows these layers as Kafka's sources and synonyms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from types import MappingProxyType
from typing import Any, NamedTuple

from broker.config import (
    BROKER_KEY_OF,
    INT_MAX,
    BrokerConfig,
    ConfigError,
    TopicConfig,
    attribute,
    parse_value,
    settings_of,
)

DYNAMIC_BROKER_KEYS = frozenset(BROKER_KEY_OF.values()) | {
    "follower.replication.throttled.rate",
    "leader.replication.throttled.rate",
    "log.cleaner.backoff.ms",
    "log.cleaner.dedupe.buffer.size",
    "log.cleaner.io.buffer.load.factor",
    "log.cleaner.io.max.bytes.per.second",
    "max.connections",
    "max.connections.per.ip",
    "replica.alter.log.dirs.io.max.bytes.per.second",
}
"""Broker settings that may change while it runs: those of Kafka's dynamic ones that take effect here at once."""

WITHOUT_OWN_DEFAULT = frozenset(
    {
        "follower.replication.throttled.rate",
        "leader.replication.throttled.rate",
        "log.flush.interval.ms",
        "log.retention.ms",
        "log.roll.jitter.ms",
        "log.roll.ms",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    }
)
"""Kafka lists no default for these: an older key (`log.retention.hours`) has it, or they are dynamic only."""

TOPIC_KEY_OF: Mapping[str, str] = MappingProxyType({broker_key: key for key, broker_key in BROKER_KEY_OF.items()})


class Source(IntEnum):
    """Kafka's numbers."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5


class ConfigType(IntEnum):
    """Kafka's numbers."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class Synonym(NamedTuple):
    """One layer of a setting."""

    name: str
    value: str
    source: Source


class DescribedSetting(NamedTuple):
    """A row of DescribeConfigs. `value` None: not set."""

    name: str
    value: str | None
    source: Source
    is_read_only: bool
    config_type: ConfigType
    documentation: str
    synonyms: tuple[Synonym, ...]


@dataclass(frozen=True)
class ConfigLayers:
    """The layers of one broker. `cluster` and `own` are the dynamic ones, checked before by `believable`."""

    static: BrokerConfig
    cluster: Mapping[str, str] = field(default_factory=dict)
    own: Mapping[str, str] = field(default_factory=dict)
    effective: BrokerConfig = field(init=False)

    def __post_init__(self) -> None:
        values: dict[str, Any] = {
            attribute(key): parse_value(BrokerConfig, key, text) for key, text in {**self.cluster, **self.own}.items()
        }
        object.__setattr__(self, "effective", replace(self.static, **values))

    def describe_broker(self) -> Iterator[DescribedSetting]:
        """Every setting of this broker."""
        for key, spec in settings_of(BrokerConfig).items():
            synonyms = self._broker_synonyms(key)
            source = synonyms[0].source if synonyms else Source.DEFAULT_CONFIG
            value = config_text(getattr(self.effective, spec.name))
            yield _described(spec, key, value or _unset(spec), source, synonyms)

    def describe_cluster_default(self) -> Iterator[DescribedSetting]:
        """What was set for all brokers while they run."""
        for key, text in sorted(self.cluster.items()):
            source = Source.DYNAMIC_DEFAULT_BROKER_CONFIG
            yield _described(settings_of(BrokerConfig)[key], key, text, source, (Synonym(key, text, source),))

    def describe_topic(self, overrides: Mapping[str, str]) -> Iterator[DescribedSetting]:
        """Every setting of a topic that has these overrides."""
        effective = self.effective.topic_defaults().with_overrides(overrides)
        for key, spec in settings_of(TopicConfig).items():
            value = config_text(getattr(effective, spec.name))
            synonyms = self._broker_synonyms(BROKER_KEY_OF[key]) if key in BROKER_KEY_OF else ()
            if key in overrides:
                synonyms = (Synonym(key, value, Source.DYNAMIC_TOPIC_CONFIG), *synonyms)
            source = synonyms[0].source if synonyms else Source.DEFAULT_CONFIG
            yield _described(spec, key, value, source, synonyms)

    def _broker_synonyms(self, key: str) -> tuple[Synonym, ...]:
        """The layers that have this broker setting, the one that counts first."""
        spec = settings_of(BrokerConfig)[key]
        static, default = getattr(self.static, spec.name), spec.default
        found = []
        if key in self.own:
            found.append(Synonym(key, self.own[key], Source.DYNAMIC_BROKER_CONFIG))
        if key in self.cluster:
            found.append(Synonym(key, self.cluster[key], Source.DYNAMIC_DEFAULT_BROKER_CONFIG))
        if static != default:
            found.append(Synonym(key, config_text(static), Source.STATIC_BROKER_CONFIG))
        if default != "" and key not in WITHOUT_OWN_DEFAULT:
            found.append(Synonym(key, config_text(default), Source.DEFAULT_CONFIG))
        return tuple(found)


def config_text(value: Any) -> str:
    """A value as Kafka writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def believable(
    config: type, found: Mapping[str, str], earlier: Mapping[str, str], entity: str
) -> tuple[dict[str, str], Sequence[str]]:
    """What of the settings `found` in ZooKeeper can be used, and complaints about the rest.

    For a value that is not allowed the earlier one stays; a setting that nobody knows is left out.
    """
    known = settings_of(config)
    usable: dict[str, str] = {}
    complaints = []
    for key, text in found.items():
        if key not in known or (config is BrokerConfig and key not in DYNAMIC_BROKER_KEYS):
            reason = "cannot change while a broker runs" if key in known else "is unknown"
            complaints.append(f"{entity}: {key} {reason}: left out")
            continue
        try:
            usable[key] = config_text(parse_value(config, key, text))
        except ConfigError as error:
            stays = f"{earlier[key]} stays" if key in earlier else "left out"
            complaints.append(f"{entity}: {error}: {stays}")
            if key in earlier:
                usable[key] = earlier[key]
    return usable, complaints


def is_list(config: type, key: str) -> bool:
    """True for a setting to which items can be appended."""
    spec = settings_of(config).get(key)
    return spec is not None and bool(spec.metadata["is_list"])


def _described(
    spec: Any, key: str, value: str | None, source: Source, synonyms: tuple[Synonym, ...]
) -> DescribedSetting:
    is_broker_key = settings_of(BrokerConfig).get(key) is spec
    documentation = spec.metadata["doc"]
    if is_broker_key and not documentation and key in TOPIC_KEY_OF:
        documentation = settings_of(TopicConfig)[TOPIC_KEY_OF[key]].metadata["doc"]
    is_read_only = is_broker_key and key not in DYNAMIC_BROKER_KEYS
    return DescribedSetting(key, value, source, is_read_only, _config_type(spec), documentation, synonyms)


def _config_type(spec: Any) -> ConfigType:
    if spec.metadata["is_list"]:
        return ConfigType.LIST
    if spec.type == "int":
        return ConfigType.INT if spec.metadata["maximum"] == INT_MAX else ConfigType.LONG
    return {"bool": ConfigType.BOOLEAN, "float": ConfigType.DOUBLE}.get(spec.type, ConfigType.STRING)


def _unset(spec: Any) -> str | None:
    """What an empty text stands for: an empty list, else nothing."""
    return "" if spec.metadata["is_list"] else None
