"""The sources of a setting, and which of them applies. Pure.

The first of these that is set applies: the topic's own setting, the dynamic setting of this broker, the dynamic setting of all
brokers, this broker's static setting, the default. DescribeConfigs shows these layers as Kafka's sources and synonyms.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import IntEnum
from types import MappingProxyType
from typing import Any, NamedTuple

from broker.settings.client_metrics import ClientMetricsConfig
from broker.settings.config import (
    BROKER_KEY_OF,
    INT_MAX,
    LONG_MAX,
    SHORT_MAX,
    TLS_OF_LISTENERS,
    BrokerConfig,
    ConfigError,
    TopicConfig,
    attribute,
    is_limit_of_listener,
    is_secret,
    is_tls_of_listener,
    key_of_all,
    parse_broker_value,
    parse_value,
    settings_of,
)

THREAD_KEYS = frozenset(
    {
        "background.threads",
        "log.cleaner.threads",
        "num.io.threads",
        "num.network.threads",
        "num.recovery.threads.per.data.dir",
        "num.replica.fetchers",
    }
)
"""Kafka's thread counts: a change may at most double or halve them."""

DYNAMIC_BROKER_KEYS = (
    frozenset(BROKER_KEY_OF.values()) - {"log.message.format.version"}
    | THREAD_KEYS
    | {
        "broker.api.level",
        "follower.replication.throttled.rate",
        "leader.replication.throttled.rate",
        "log.cleaner.backoff.ms",
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.io.buffer.load.factor",
        "log.cleaner.io.buffer.size",
        "log.cleaner.io.max.bytes.per.second",
        "max.connection.creation.rate",
        "max.connections",
        "max.connections.per.ip",
        "max.connections.per.ip.overrides",
        "producer.id.expiration.ms",
        "recorder.client.salt",
        "recorder.enable",
        "recorder.id",
        "recorder.max.bytes",
        "recorder.topics",
        "replica.alter.log.dirs.io.max.bytes.per.second",
        "transaction.partition.verification.enable",
    }
)
"""Settings that may change while the broker runs. `docs/CONFIGS.md` lists them beside Kafka's, and says which take effect."""

OLDER_KEYS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "log.flush.interval.ms": ("log.flush.scheduler.interval.ms",),
        "log.retention.ms": ("log.retention.minutes", "log.retention.hours"),
        "log.roll.jitter.ms": ("log.roll.jitter.hours",),
        "log.roll.ms": ("log.roll.hours",),
    }
)
"""Key -> Kafka's older keys for the same setting. The first that is set applies if the key is not set. The last has the default."""

DEFAULT_OF_OLDER: Mapping[str, str] = MappingProxyType(
    {
        "log.flush.scheduler.interval.ms": str(LONG_MAX),
        "log.retention.hours": "168",
        "log.roll.hours": "168",
        "log.roll.jitter.hours": "0",
    }
)

ABSENT_UNLESS_SET = frozenset(
    {
        "follower.replication.throttled.rate",
        "leader.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    }
)
"""Throttles, which Kafka describes only while they are set. Tools such as Cruise Control wait until one that they removed is gone."""

NULL_LISTS = frozenset(
    {"sasl.oauthbearer.expected.audience", "zookeeper.ssl.cipher.suites", "zookeeper.ssl.enabled.protocols"}
)
"""Lists that Kafka does not set by default; others are empty."""
EMPTY_TEXTS = frozenset({"max.connections.per.ip.overrides"})
"""Texts that are empty by default in Kafka; others are not set."""
WITHOUT_OWN_DEFAULT = (
    ABSENT_UNLESS_SET
    | NULL_LISTS
    | {
        "log.flush.interval.ms",
        "log.retention.ms",
        "log.roll.jitter.ms",
        "log.roll.ms",
    }
)
"""Kafka lists no default for these: an older key (`log.retention.hours`) has the default, or the setting has none."""

TOPIC_KEY_OF: Mapping[str, str] = MappingProxyType({broker_key: key for key, broker_key in BROKER_KEY_OF.items()})


class Source(IntEnum):
    """Kafka's ConfigSource numbers."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8


class ConfigType(IntEnum):
    """Kafka's ConfigType numbers."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


class Synonym(NamedTuple):
    """One layer of a setting: where the value comes from. None: the value is a secret."""

    name: str
    value: str | None
    source: Source


class DescribedSetting(NamedTuple):
    """A row of DescribeConfigs. `value` None means not set, or a secret."""

    name: str
    value: str | None
    source: Source
    is_read_only: bool
    config_type: ConfigType
    documentation: str
    synonyms: tuple[Synonym, ...]
    is_sensitive: bool = False


@dataclass(frozen=True)
class ConfigLayers:
    """The layers of one broker. `cluster` and `own` are the dynamic settings, already checked by `believable`.

    `given` has the keys that set `static`, with their texts. Only `given` shows older keys, and keys that are set to their default.
    """

    static: BrokerConfig
    cluster: Mapping[str, str] = field(default_factory=dict)
    own: Mapping[str, str] = field(default_factory=dict)
    given: Mapping[str, str] = field(default_factory=dict)
    effective: BrokerConfig = field(init=False)

    def __post_init__(self) -> None:
        dynamic = {**self.cluster, **self.own}
        values = {attribute(key): parse_broker_value(key, text) for key, text in dynamic.items() if key in _KNOWN}
        of_listeners = {key: parse_broker_value(key, text) for key, text in dynamic.items() if key not in _KNOWN}
        limits = {key: value for key, value in of_listeners.items() if is_limit_of_listener(key)}
        tls = {key: value for key, value in of_listeners.items() if is_tls_of_listener(key)}
        values["limits_of_listeners"] = {**self.static.limits_of_listeners, **limits}
        values["ssl_of_listeners"] = {**self.static.ssl_of_listeners, **tls}
        object.__setattr__(self, "effective", replace(self.static, **values))

    def describe_broker(self) -> Iterator[DescribedSetting]:
        """Every setting of this broker, and older keys for some of them; throttles only if they are set."""
        for key, spec in settings_of(BrokerConfig).items():
            synonyms = self._broker_synonyms(key)
            if not synonyms and key in ABSENT_UNLESS_SET:
                continue
            source = synonyms[0].source if synonyms else Source.DEFAULT_CONFIG
            value = config_text(getattr(self.effective, spec.name))
            if key in OLDER_KEYS:
                value = (synonyms[0].value if synonyms else "") or ""
            yield _described(spec, key, value or _unset(spec), source, synonyms)
            for older in OLDER_KEYS.get(key, ()):
                yield self._older_setting(key, older)
        of_listeners: dict[str, Any] = {**self.effective.limits_of_listeners, **self.effective.ssl_of_listeners}
        for key in sorted(of_listeners):
            synonyms = self._layers_of((key, key_of_all(key)), key)
            yield _described(_spec(key), key, config_text(of_listeners[key]), synonyms[0].source, synonyms)

    def _older_setting(self, key: str, older: str) -> DescribedSetting:
        synonyms = self._layers_of((key, *OLDER_KEYS[key]), older)
        value = self.given.get(older, DEFAULT_OF_OLDER.get(older))
        source = synonyms[0].source if synonyms else Source.DEFAULT_CONFIG
        config_type = ConfigType.LONG if older.endswith(".ms") else ConfigType.INT
        return DescribedSetting(older, value, source, True, config_type, f"Applies if {key} is not set.", synonyms)

    def describe_cluster_default(self) -> Iterator[DescribedSetting]:
        """The dynamic settings for all brokers."""
        for key, text in sorted(self.cluster.items()):
            source = Source.DYNAMIC_DEFAULT_BROKER_CONFIG
            names = [name for name in dict.fromkeys((key, key_of_all(key))) if name in self.cluster]
            synonyms = tuple(Synonym(name, self.cluster[name], source) for name in names)
            yield _described(_spec(key), key, text, source, synonyms)

    def describe_topic(self, overrides: Mapping[str, str]) -> Iterator[DescribedSetting]:
        """Every setting of a topic with these overrides."""
        effective = self.effective.topic_defaults().with_overrides(overrides)
        for key, spec in settings_of(TopicConfig).items():
            value = config_text(getattr(effective, spec.name))
            synonyms = self._broker_synonyms(BROKER_KEY_OF[key]) if key in BROKER_KEY_OF else ()
            if key in overrides:
                synonyms = (Synonym(key, value, Source.DYNAMIC_TOPIC_CONFIG), *synonyms)
            source = synonyms[0].source if synonyms else Source.DEFAULT_CONFIG
            yield _described(spec, key, value, source, synonyms)

    def _broker_synonyms(self, key: str) -> tuple[Synonym, ...]:
        """The layers that have this broker setting. The layer that applies is the first."""
        return self._layers_of((key, *OLDER_KEYS.get(key, ())), key)

    def _layers_of(self, names: Sequence[str], key: str) -> tuple[Synonym, ...]:
        """The layers of these names, from the first layer with `key` on. As in Kafka, keys in the layers before it are left out."""
        found = []
        for layer, source in (
            (self.own, Source.DYNAMIC_BROKER_CONFIG),
            (self.cluster, Source.DYNAMIC_DEFAULT_BROKER_CONFIG),
        ):
            found += [Synonym(name, layer[name], source) for name in names if name in layer]
        for name in names:
            text = self._static_text(name)
            if text is not None:
                found.append(Synonym(name, text, Source.STATIC_BROKER_CONFIG))
        for name in names:
            default = _default_text(name)
            if default is not None:
                found.append(Synonym(name, default, Source.DEFAULT_CONFIG))
        first = next((at for at, synonym in enumerate(found) if synonym.name == key), len(found))
        return tuple(found[first:])

    def _static_text(self, key: str) -> str | None:
        spec = settings_of(BrokerConfig).get(key)
        if spec is None:
            own = self.static.ssl_of_listeners.get(key)
            return self.given.get(key) if own is None else config_text(own)
        value = getattr(self.static, spec.name)
        from_older = any(older in self.given for older in OLDER_KEYS.get(key, ()))
        if key in self.given or (value != spec.default and not from_older):
            return config_text(value)
        return None


_KNOWN = settings_of(BrokerConfig)


def _spec(key: str) -> Any:
    """The field of a broker's setting, with or without the prefix of a listener."""
    return _KNOWN[key_of_all(key)]


def describe_client_metrics(configs: Mapping[str, str]) -> Iterator[DescribedSetting]:
    """Every setting of a subscription to metrics of clients that has these."""
    return describe_entity(ClientMetricsConfig, configs, {}, Source.CLIENT_METRICS_CONFIG)


def describe_entity(
    config: type, configs: Mapping[str, str], defaults: Mapping[str, str], own_source: Source
) -> Iterator[DescribedSetting]:
    """Every setting of an entity that has these of its own. `defaults`: where they are not those of `config`."""
    for key, spec in settings_of(config).items():
        own = configs.get(key)
        source = Source.DEFAULT_CONFIG if own is None else own_source
        synonyms = () if own is None else (Synonym(key, own, source),)
        value = defaults.get(key, config_text(spec.default)) if own is None else own
        yield _described(spec, key, value, source, synonyms)


def is_dynamic(key: str) -> bool:
    """Whether this setting of a broker may change while it runs."""
    return key in DYNAMIC_BROKER_KEYS or is_limit_of_listener(key) or is_tls_of_listener(key)


def is_of_one_broker(key: str) -> bool:
    """Whether this setting cannot be one of all brokers (`DynamicBrokerConfig.PerBrokerConfigs`)."""
    return is_tls_of_listener(key)


def _default_text(key: str) -> str | None:
    spec = settings_of(BrokerConfig).get(key)
    if spec is None:
        return DEFAULT_OF_OLDER.get(key)
    has_default = spec.default != "" or spec.metadata["is_list"] or key in EMPTY_TEXTS  # an empty list is a default
    return config_text(spec.default) if has_default and key not in WITHOUT_OWN_DEFAULT else None


def config_text(value: Any) -> str:
    """A value as Kafka writes it."""
    if isinstance(value, float):
        return _double_text(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _double_text(value: float) -> str:
    """Like Java's Double.toString: with an exponent for values of at least 10^7 or below 10^-3."""
    if value == 0 or 1e-3 <= abs(value) < 1e7 or not math.isfinite(value):
        return str(value)
    _, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    first, *rest = map(str, digits)
    sign = "-" if value < 0 else ""
    return f"{sign}{first}.{''.join(rest) or '0'}E{exponent + len(rest)}"


def believable(
    config: type, found: Mapping[str, str], earlier: Mapping[str, str], entity: str
) -> tuple[dict[str, str], Sequence[str]]:
    """The usable settings among those `found` in ZooKeeper, and complaints about the rest.

    An invalid value is replaced by the earlier value, if there is one. An unknown setting is left out.
    """
    known = settings_of(config)
    usable: dict[str, str] = {}
    complaints = []
    for key, text in found.items():
        if key not in known if config is not BrokerConfig else not is_dynamic(key):
            reason = "cannot change while a broker runs" if key in known else "is unknown"
            complaints.append(f"{entity}: {key} {reason}, and is ignored")
            continue
        try:
            parsed = parse_broker_value(key, text) if config is BrokerConfig else parse_value(config, key, text)
            usable[key] = config_text(parsed)
        except ConfigError as error:
            shown = "" if is_secret(key) else f" {earlier.get(key)}"
            remedy = f"the earlier value{shown} stays" if key in earlier else "the setting is ignored"
            complaints.append(f"{entity}: {error}: {remedy}")
            if key in earlier:
                usable[key] = earlier[key]
    return usable, complaints


def is_list(config: type, key: str) -> bool:
    """True if items can be appended to the setting."""
    spec = settings_of(config).get(key)
    return spec is not None and bool(spec.metadata["is_list"])


def _described(
    spec: Any, key: str, value: str | None, source: Source, synonyms: tuple[Synonym, ...]
) -> DescribedSetting:
    is_broker_key = settings_of(BrokerConfig).get(key_of_all(key)) is spec
    documentation = spec.metadata["doc"]
    if is_broker_key and not documentation and key in TOPIC_KEY_OF:
        documentation = settings_of(TopicConfig)[TOPIC_KEY_OF[key]].metadata["doc"]
    is_read_only = is_broker_key and key not in DYNAMIC_BROKER_KEYS | TLS_OF_LISTENERS
    is_secret = bool(spec.metadata["is_secret"])
    if is_secret:
        value, synonyms = None, tuple(synonym._replace(value=None) for synonym in synonyms)
    return DescribedSetting(key, value, source, is_read_only, _config_type(spec), documentation, synonyms, is_secret)


def _config_type(spec: Any) -> ConfigType:
    if spec.metadata["is_list"]:
        return ConfigType.LIST
    if spec.metadata["is_secret"]:
        return ConfigType.PASSWORD
    if spec.type == "int":
        maximum = spec.metadata["maximum"]
        if maximum is None or maximum > INT_MAX:
            return ConfigType.LONG
        return ConfigType.SHORT if maximum == SHORT_MAX else ConfigType.INT
    return {"bool": ConfigType.BOOLEAN, "float": ConfigType.DOUBLE}.get(spec.type, ConfigType.STRING)


def _unset(spec: Any) -> str | None:
    """The meaning of an empty text: an empty list for nearly all lists, an empty text for EMPTY_TEXTS, else not set."""
    key = spec.name.replace("_", ".")
    return "" if (spec.metadata["is_list"] and key not in NULL_LISTS) or key in EMPTY_TEXTS else None
