"""Applies IncrementalAlterConfigs and AlterConfigs to the settings of a topic or a broker. Pure.

Only settings in the request are checked: an invalid value that was written by hand does not block later changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from broker.settings.client_metrics import ClientMetricsConfig
from broker.settings.config import (
    LIMITS_OF_LISTENERS,
    TLS_OF_LISTENERS,
    BrokerConfig,
    ConfigError,
    TopicConfig,
    attribute,
    key_of_all,
    parse_broker_value,
    parse_value,
    settings_of,
)
from broker.settings.config_layers import (
    THREAD_KEYS,
    believable,
    config_text,
    is_dynamic,
    is_list,
    is_of_one_broker,
)
from broker.settings.config_sources import ACCEPTED_WITHOUT_EFFECT, SYNONYMS
from broker.settings.group_configs import GroupConfig
from protocol.errors import ErrorCode, KafkaError

NEVER_ZERO = LIMITS_OF_LISTENERS
"""As `ListenerConnectionQuota.validateReconfiguration`."""
PER_IP_OVERRIDES = "max.connections.per.ip.overrides"
LAG_KEYS = ("max.compaction.lag.ms", "min.compaction.lag.ms")


class Operation(IntEnum):
    """Kafka's AlterConfigOp.OpType."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Change(NamedTuple):
    """One change of a request; `operation` is a number of `Operation`, or an unknown number."""

    key: str
    operation: int
    value: str | None


Effective = TopicConfig | BrokerConfig | ClientMetricsConfig | GroupConfig


def changed(
    config: type,
    current: Mapping[str, str],
    changes: Sequence[Change],
    effective: Effective,
) -> dict[str, str]:
    """The settings after the changes, for one of the classes of `Effective`.

    `effective`: the values in effect without this topic's overrides, or those of the running broker. Changes of an unset list, the
    lag check and the limits of thread counts start from these values. Raises KafkaError.
    """
    check_request(changes)
    result = dict(current)
    for key, operation, value in changes:
        if operation == Operation.DELETE:
            result.pop(key, None)
            continue
        assert value is not None
        check_key(config, key)
        if operation != Operation.SET:
            value = _with_items(config, key, operation, value, result.get(key), effective)
        result[key] = _checked(config, key, value)
        if config is BrokerConfig:
            if key in THREAD_KEYS:
                _check_threads(key, int(result[key]), getattr(effective, attribute(key)))
            elif key_of_all(key) in NEVER_ZERO and not int(result[key]):
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"{key}=0: while a broker runs, it can only be set above 0")
    if isinstance(effective, BrokerConfig):
        _check_addresses(result, effective)
    if any(change.key in LAG_KEYS for change in changes):
        _check_lags(result, effective)
    return result


def _check_threads(key: str, wanted: int, current: int) -> None:
    """As DynamicThreadPool.validateReconfiguration. Raises KafkaError."""
    if not max(1, current // 2) <= wanted <= current * 2:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"{key}={wanted}: it is {current} now, so {max(1, current // 2)} to {current * 2} are allowed",
        )


def _check_addresses(settings: Mapping[str, str], effective: BrokerConfig) -> None:
    """As `KafkaConfig.validateValues`. Raises KafkaError."""
    if settings.get("max.connections.per.ip") == "0" and not settings.get(
        PER_IP_OVERRIDES, effective.max_connections_per_ip_overrides
    ):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"max.connections.per.ip=0: no client could connect; set {PER_IP_OVERRIDES}, too"
        )


def _check_lags(overrides: Mapping[str, str], effective: Effective) -> None:
    """Checks a topic's lags together. Raises KafkaError."""
    if not isinstance(effective, TopicConfig):
        return
    lags, _ = believable(TopicConfig, {key: overrides[key] for key in LAG_KEYS if key in overrides}, {}, "")
    try:
        effective.with_overrides(lags).check_together()
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None


def check_request(changes: Sequence[Change]) -> None:
    """Checks the request itself. Raises KafkaError."""
    twice = sorted(key for key, count in Counter(change.key for change in changes).items() if count > 1)
    if twice:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"given twice in one request: {', '.join(twice)}")
    for key, operation, value in changes:
        if operation not in Operation.__members__.values():
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{key}: unknown operation {operation}")
        if value is None and operation != Operation.DELETE:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{key}: missing value; use DELETE to reset it")


def check_for_all_brokers(changes: Sequence[Change]) -> None:
    """Raises KafkaError for a setting that only a single broker can have."""
    for key, operation, _ in changes:
        if operation != Operation.DELETE and is_of_one_broker(key):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{key} cannot be set for all brokers: name the broker's id")


def check_key(config: type, key: str) -> None:
    """Raises KafkaError for an unknown key, or a key that cannot change while a broker runs."""
    if config is BrokerConfig:
        if is_dynamic(key):
            return
        if key in TLS_OF_LISTENERS:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"{key} can change for one listener only, while a broker runs: listener.name.<listener>.{key}",
            )
        if key_of_all(key) in settings_of(config) or key in SYNONYMS or key in ACCEPTED_WITHOUT_EFFECT:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"{key} cannot change while a broker runs: set it in server.properties"
            )
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"unknown broker config {key!r}")
    if key not in settings_of(config):
        if config is ClientMetricsConfig:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"unknown client metrics config {key!r}")
        if config is GroupConfig:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"unknown group config {key!r}")
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"unknown topic config {key!r}")


def _checked(config: type, key: str, value: str) -> str:
    try:
        return config_text(
            parse_broker_value(key, value) if config is BrokerConfig else parse_value(config, key, value)
        )
    except ConfigError as error:
        # As in Kafka, a bad value has another code for a broker than for a topic.
        code = ErrorCode.INVALID_REQUEST if config is BrokerConfig else ErrorCode.INVALID_CONFIG
        raise KafkaError(code, str(error)) from None


def _with_items(
    config: type,
    key: str,
    operation: int,
    value: str,
    current: str | None,
    effective: Effective,
) -> str:
    """The list with the given items appended, without duplicates, or with them removed."""
    if not is_list(config, key):
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{key} is not a list: items cannot be appended or subtracted")
    items = _items(getattr(effective, attribute(key)) if current is None else current)
    given = _items(value)
    if operation == Operation.APPEND:
        return ",".join(dict.fromkeys(items + given))
    return ",".join(item for item in items if item not in given)


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]
