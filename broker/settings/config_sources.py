"""Reads settings from a properties file, then `KAFKA_*` environment variables, then `--override k=v`.

A later source overrides an earlier source. An unknown key is a warning that names the nearest known key. An invalid value is an
error that names its source.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from broker.settings.config import (
    HANDLER_KEY,
    JAAS_KEY,
    BrokerConfig,
    ConfigError,
    is_limit_of_listener,
    key_of_all,
    parse_value,
    settings_of,
)
from protocol.numbers import whole_number
from protocol.topic_names import shown

ENVIRONMENT_PREFIX = "KAFKA_"

NOT_OURS = re.compile(
    r"^KAFKA_(HEAP_OPTS|JVM_PERFORMANCE_OPTS|GC_LOG_OPTS|LOG4J_OPTS|LOG4J_LOGGERS|LOG4J_ROOT_LOGLEVEL|LOG4J_.*|JMX_.*|OPTS|"
    r"DEBUG|VERSION|HOME|TOOLS_LOG4J_LOGLEVEL|CLUSTER_ID|USER|REST_.*)$"
)
"""Variables of Kafka's start scripts and images that are not settings."""

SYNONYMS = {
    "log.dir": ("log.dirs", 1),
    "log.flush.scheduler.interval.ms": ("log.flush.interval.ms", 1),
    "log.roll.hours": ("log.roll.ms", 3_600_000),
    "log.roll.jitter.hours": ("log.roll.jitter.ms", 3_600_000),
    "log.retention.hours": ("log.retention.ms", 3_600_000),
    "log.retention.minutes": ("log.retention.ms", 60_000),
}
"""Kafka's older keys: (the current key, the factor for a number). If both are set, the current key wins. If two older keys are set,
the later key in this list wins."""

ACCEPTED_WITHOUT_EFFECT = frozenset(
    {
        "socket.send.buffer.bytes",
        "socket.receive.buffer.bytes",
        "inter.broker.protocol.version",
        "host.name",
        "port",
    }
)
"""Keys of ordinary Kafka files that have no meaning here: accepted silently."""

WITH_CAPITALS = {key.lower(): key for key in settings_of(BrokerConfig) if key != key.lower()}
"""What environment variables cannot say."""

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_LINE_END = re.compile(r"\r\n|\r|\n")
_HEX = re.compile(r"[0-9a-fA-F]{4}")
_KEY_END = re.compile(r"[ \t\f=:]")


class Setting(NamedTuple):
    """`where` is the source, for messages: `server.properties:7`, `environment KAFKA_BROKER_ID`, `--override`."""

    key: str
    value: str
    where: str


class LoadedConfig(NamedTuple):
    """`given` has the text of each known key that a source sets. `warnings` are for the broker's log."""

    config: BrokerConfig
    warnings: tuple[str, ...]
    given: Mapping[str, str]


def load(
    file_text: str | None,
    file_name: str,
    environment: Mapping[str, str],
    overrides: Sequence[str],
) -> LoadedConfig:
    """The settings of all sources. Raises ConfigError; `overrides` are `key=value` texts."""
    settings = list(parse_properties(file_text, file_name)) if file_text is not None else []
    warnings: list[str] = []
    settings += _from_environment(environment)
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--override {override!r}: expected key=value")
        settings.append(Setting(key.strip(), value.strip(), "--override"))
    return _build(settings, warnings)


def parse_properties(text: str, name: str) -> Iterable[Setting]:
    """The settings of a Java properties file, with its comments, separators (`=`, `:`, blank), escapes and continued lines.

    Raises ConfigError for a wrong escape.
    """
    pending, first_line = "", 0
    for number, raw in enumerate(_LINE_END.split(text), 1):
        line = raw.lstrip(" \t\f")
        if not pending:
            if not line or line[0] in "#!":
                continue
            first_line = number
        if _ends_in_escape(line):
            pending += line[:-1]
            continue
        yield _split(pending + line, f"{name}:{first_line}")
        pending = ""
    if pending:
        yield _split(pending, f"{name}:{first_line}")


def _ends_in_escape(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _split(line: str, where: str) -> Setting:
    at = 0
    while at < len(line) and not _KEY_END.match(line[at]):
        at += 2 if line[at] == "\\" else 1
    key, rest = line[:at], line[at:].lstrip(" \t\f")
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(" \t\f")
    return Setting(_unescape(key, where), _unescape(rest, where), where)


def _unescape(text: str, where: str) -> str:
    out, at = [], 0
    while at < len(text):
        char = text[at]
        at += 1
        if char != "\\" or at == len(text):
            out.append(char)
            continue
        char = text[at]
        at += 1
        if char == "u":
            digits = text[at : at + 4]
            if not _HEX.fullmatch(digits):
                raise ConfigError(f"{where}: \\u{digits} is not a Unicode escape")
            out.append(chr(int(digits, 16)))
            at += 4
        else:
            out.append(_ESCAPES.get(char, char))
    # Java's escapes are of UTF-16: two of them may be one character.
    return "".join(out).encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def environment_key(name: str) -> str:
    """`KAFKA_ZOOKEEPER_CONNECT` -> `zookeeper.connect`; `___` is `-`, `__` is `_`, `_` is `.`."""
    text = name[len(ENVIRONMENT_PREFIX) :].lower()
    key = re.sub(r"___|__|_", lambda found: {3: "-", 2: "_", 1: "."}[len(found[0])], text)
    return WITH_CAPITALS.get(key, key)


def _from_environment(environment: Mapping[str, str]) -> list[Setting]:
    return [
        Setting(environment_key(name), value, f"environment {name}")
        for name, value in sorted(environment.items())
        if name.startswith(ENVIRONMENT_PREFIX) and not NOT_OURS.match(name)
    ]


def _build(settings: Iterable[Setting], warnings: list[str]) -> LoadedConfig:
    known = settings_of(BrokerConfig)
    values: dict[str, Any] = {}
    scaled: dict[str, Any] = {}
    given: dict[str, str] = {}
    ssl_of_listeners: dict[str, Any] = {}
    sasl_of_listeners: dict[str, int | str] = {}
    limits_of_listeners: dict[str, int] = {}
    jaas: dict[str, str] = {}
    sasl_handlers: dict[str, str] = {}
    for key, text, where in settings:
        _check_text(key, text, where)
        if key in known:
            values[key] = _parse(key, text, where)
            given[key] = text.strip()
        elif is_limit_of_listener(key):
            limits_of_listeners[key] = _parse(key_of_all(key), text, where, key)
            given[key] = text.strip()
        elif (shared := key_of_all(key)) != key:
            of_listeners: dict[str, Any] = ssl_of_listeners if shared.startswith("ssl.") else sasl_of_listeners
            of_listeners[key] = _parse(shared, text, where, key)
        elif JAAS_KEY.fullmatch(key):
            jaas[key] = text
        elif HANDLER_KEY.fullmatch(key):
            sasl_handlers[key] = text.strip()
        elif key == "sasl.jaas.config":
            warnings.append(f"{where}: {key} is ignored, as in Kafka: put the mechanism before it, as in plain.{key}")
        elif key in SYNONYMS:
            target, factor = SYNONYMS[key]
            scaled[key] = _scaled(key, target, text, factor, where)
            given[key] = text.strip()
        elif key not in ACCEPTED_WITHOUT_EFFECT:
            near = difflib.get_close_matches(key, (*known, *SYNONYMS), n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            warnings.append(f"{where}: unknown setting {key!r} is ignored{hint}")
    from_synonyms = {target: scaled[key] for key, (target, _) in SYNONYMS.items() if key in scaled}
    merged = {**from_synonyms, **values}
    config = BrokerConfig(
        **{key.replace(".", "_"): value for key, value in merged.items()},
        ssl_of_listeners=ssl_of_listeners,
        sasl_of_listeners=sasl_of_listeners,
        limits_of_listeners=limits_of_listeners,
        jaas=jaas,
        sasl_handlers=sasl_handlers,
    )
    _check_together(config)
    return LoadedConfig(config, tuple(warnings), given)


def _check_text(key: str, text: str, where: str) -> None:
    """A name with half of a surrogate pair, or with a byte that is no UTF-8, could neither be sent nor stored. Raises ConfigError."""
    for part in (key, text):
        try:
            part.encode()
        except UnicodeEncodeError:
            raise ConfigError(f"{where}: {shown(key)} is no text in UTF-8") from None


def _parse(key: str, text: str, where: str, given_as: str = "") -> Any:
    try:
        return parse_value(BrokerConfig, key, text)
    except ConfigError as error:
        raise ConfigError(f"{where}: {given_as.removesuffix(key)}{error}") from None


def _scaled(key: str, target: str, text: str, factor: int, where: str) -> Any:
    if factor == 1:
        return _parse(target, text, where)
    try:
        number = whole_number(text)
    except ValueError:
        raise ConfigError(f"{where}: {key}={text!r}: expected a whole number") from None
    try:
        return parse_value(BrokerConfig, target, str(number if number < 0 else number * factor))
    except ConfigError:
        raise ConfigError(f"{where}: {key}={text!r} is out of range") from None


def _check_together(config: BrokerConfig) -> None:
    """Checks required settings, and combinations."""
    if config.broker_id < 0:
        raise ConfigError("broker.id is not set: give every broker a different number of at least 0")
    if not config.zookeeper_connect:
        raise ConfigError("zookeeper.connect is not set: expected host:port[,host:port...][/chroot]")
    if not config.log_directories:
        raise ConfigError(
            "log.dirs is not set: name the directories for this broker's data, for example log.dirs=/var/lib/ottla "
            "(there is no default, because a directory under /tmp could belong to someone else)"
        )
    if config.max_connections_per_ip == 0 and not config.max_connections_per_ip_overrides:
        raise ConfigError(
            "max.connections.per.ip=0: no client could connect; set max.connections.per.ip.overrides, too"
        )
    if config.group_min_session_timeout_ms > config.group_max_session_timeout_ms:
        raise ConfigError(
            f"group.min.session.timeout.ms={config.group_min_session_timeout_ms} is more than "
            f"group.max.session.timeout.ms={config.group_max_session_timeout_ms}: no member could join"
        )
