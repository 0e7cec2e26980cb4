"""Configs of topics, brokers, groups and client metrics as plain values, with Kafka's text form for them and for changes. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

TOPICS = "topics"
BROKERS = "brokers"
GROUPS = "groups"
CLIENT_METRICS = "client-metrics"
KINDS = (TOPICS, BROKERS, GROUPS, CLIENT_METRICS)
TOPIC_SOURCE, DEFAULT_SOURCE = "DYNAMIC_TOPIC_CONFIG", "DEFAULT_CONFIG"
"""Kafka's names of two sources of a value: set on the topic itself; not set anywhere."""
OWN_SOURCES: Mapping[str, str] = {
    TOPICS: TOPIC_SOURCE,
    GROUPS: "DYNAMIC_GROUP_CONFIG",
    CLIENT_METRICS: "DYNAMIC_CLIENT_METRICS_CONFIG",
}
ENTITY_DEFAULT = ""
"""The entity name of configs that apply to all brokers."""


class Entity(NamedTuple):
    """Something that has configs.

    `kind`: one of KINDS. `name`: a topic, a broker id, "" for all brokers, a group, or the name of a subscription to clients' metrics.
    """

    kind: str
    name: str

    def __str__(self) -> str:
        if self.kind == BROKERS and self.name == ENTITY_DEFAULT:
            return "all brokers (default)"
        return f"{self.kind.removesuffix('s')} {self.name}"

    @property
    def own_source(self) -> str:
        """The source of a config that is set on this entity itself."""
        if self.kind != BROKERS:
            return OWN_SOURCES[self.kind]
        return "DYNAMIC_BROKER_CONFIG" if self.name else "DYNAMIC_DEFAULT_BROKER_CONFIG"


class ConfigSynonym(NamedTuple):
    """One source of a value: the one in use, or one that it overrides."""

    name: str
    value: str | None
    source: str


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """An effective value (None: not set, or sensitive) and its source."""

    value: str | None
    source: str
    is_read_only: bool = False
    is_sensitive: bool = False
    synonyms: tuple[ConfigSynonym, ...] = ()


class ChangeError(ValueError):
    """A change that cannot be parsed; the message says how to write it."""


def parse_additions(texts: Iterable[str]) -> dict[str, str]:
    """Parses repeated `k=v,k2=[a,b]`; commas inside [..] belong to the value. Raises ChangeError."""
    additions = {}
    for text in texts:
        for pair in _split_outside_brackets(text):
            key, separator, value = pair.partition("=")
            key, value = key.strip(), value.strip()
            if not separator or not key:
                raise ChangeError(f"{pair.strip()!r}: expected KEY=VALUE, or KEY=[A,B] for a value with commas")
            if value.startswith("[") and value.endswith("]"):
                value = value[1:-1]
            if key in additions:
                raise ChangeError(f"{key} is given twice")
            additions[key] = value
    return additions


def _split_outside_brackets(text: str) -> Iterator[str]:
    """Raises ChangeError for brackets that do not match or are nested."""
    depth = start = 0
    for index, character in enumerate(text):
        depth += (character == "[") - (character == "]")
        if depth < 0 or depth > 1:
            break
        if character == "," and depth == 0:
            yield text[start:index]
            start = index + 1
    if depth != 0:
        raise ChangeError(f"{text!r}: the brackets [ ] do not match")
    if text[start:].strip() or start == 0:
        yield text[start:]


def parse_removals(texts: Iterable[str]) -> list[str]:
    """Parses repeated `k1,k2`; each key once."""
    keys = (key.strip() for text in texts for key in text.split(","))
    return list(dict.fromkeys(key for key in keys if key))


def merge_changes(additions: Mapping[str, str], removals: Iterable[str]) -> dict[str, str | None]:
    """Key -> new value, or None to remove it. Raises ChangeError for a key that is both set and removed."""
    changes: dict[str, str | None] = dict(additions)
    for key in parse_removals(removals):
        if key in additions:
            raise ChangeError(f"{key} is both set and deleted")
        changes[key] = None
    return changes


def own_configs(entity: Entity, configs: Mapping[str, ConfigValue]) -> dict[str, ConfigValue]:
    """The configs that are set on the entity itself."""
    return {key: config for key, config in configs.items() if config.source == entity.own_source}


def is_sensitive(key: str, configs: Mapping[str, ConfigValue]) -> bool:
    """Whether the value is a secret: as one of the configs of the entity, or as one of them with the prefix of a listener."""
    return any(config.is_sensitive and (key == name or key.endswith(f".{name}")) for name, config in configs.items())


def entity_lines(entity: Entity, configs: Mapping[str, ConfigValue], *, everything: bool) -> Iterator[str]:
    """The lines of Kafka's ConfigCommand: a heading, then one per config."""
    if entity.kind == BROKERS and not entity.name:
        yield "Default configs for brokers in the cluster are:"
    else:
        yield f"{'All' if everything else 'Dynamic'} configs for {entity} are:"
    for key, config in configs.items():
        value = "null" if config.value is None else config.value
        synonyms = ", ".join(
            f"{synonym.source}:{synonym.name}={'null' if synonym.value is None else synonym.value}"
            for synonym in config.synonyms
        )
        sensitive = str(config.is_sensitive).lower()
        yield f"  {key}={value} sensitive={sensitive} synonyms={{{synonyms}}}"


def entity_json(entity: Entity, configs: Mapping[str, ConfigValue]) -> dict[str, Any]:
    """`{entity_type, entity_name, configs: {key: {value, source, read_only, sensitive, synonyms}}}`; the name is null for all brokers."""
    return {
        "entity_type": entity.kind,
        "entity_name": entity.name or None,
        "configs": {
            key: {
                "value": config.value,
                "source": config.source,
                "read_only": config.is_read_only,
                "sensitive": config.is_sensitive,
                "synonyms": [synonym._asdict() for synonym in config.synonyms],
            }
            for key, config in configs.items()
        },
    }


def nearest(key: str, known: Collection[str]) -> str:
    """`; did you mean retention.ms?` if the key resembles a known one, else ""."""
    if key in known:
        return ""
    matches: Sequence[str] = difflib.get_close_matches(key, list(known), n=1, cutoff=0.75)
    return f"; did you mean {matches[0]}?" if matches else ""
