"""Requests of every API with one of their arrays filled."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any

from protocol.kafka import by_schema, messages
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.framing import is_flexible, request_header

TOPIC = "t"
"""The only topic that the requests name and that exists, with partitions 0 to 9. So does the group `g`."""

SENSIBLE: dict[str, Any] = {
    "acks": 1,
    "allow_auto_topic_creation": False,
    "election_type": 0,
    "endpoint_type": 1,
    "generation_id": -1,
    "generation_id_or_member_epoch": -1,
    "group_id": "g",
    "include_synonyms": True,
    "key_type": 0,
    "max_bytes": 1000,
    "name": TOPIC,
    "num_partitions": -1,
    "protocol_type": "consumer",
    "rebalance_timeout": 10_000,
    "replica_id": -1,
    "replication_factor": -1,
    "resource_name": TOPIC,
    "resource_type": 2,
    "session_epoch": -1,
    "session_timeout": 10_000,
    "timeout": 1,
    "timestamp": -1,
    "topic": TOPIC,
    "validate_only": True,
}
"""What a field is, by its name, where it is not the element's number; else 0, nothing, or null."""
NUMBERED = ("partition", "partition_index", "partition_indexes", "partitions", "index", "broker_ids", "replicas")
NUMBERED_ARRAYS = ("partition_indexes", "partitions")
NAMED = (
    "name",
    "topic",
    "resource_name",
    "member_id",
    "groups",
    "groups_names",
    "coordinator_keys",
    "topic_names",
    "group_id",
)


class Kind(Enum):
    """What the elements of the array are."""

    SAME = "same"
    DIFFERENT = "different"
    SPREAD = "spread"
    """Different, each in an element of its own of the array around it, and those are the same."""


@dataclass(frozen=True)
class Filled:
    """`path` leads to the array: names of fields."""

    api_key: ApiKey
    version: int
    path: tuple[str, ...]
    kind: Kind

    def __str__(self) -> str:
        return f"{self.api_key.name} v{self.version} {'.'.join(self.path)} {self.kind.value}"

    @property
    def is_read_at_once(self) -> bool:
        """Numbers: a thousand are read in 10 us, and nothing is done for each where they are the same, or are brokers."""
        of_nothing = self.path[-1] in ("broker_ids", "replicas") or self.api_key in (
            ApiKey.LIST_PARTITION_REASSIGNMENTS,
            ApiKey.CONSUMER_GROUP_HEARTBEAT,
        )
        return of_nothing or (self.path[-1] in NUMBERED_ARRAYS and self.kind is Kind.SAME)

    def frame(self, count: int, **changed: Any) -> bytes:
        """`changed`: other values of fields of the request itself."""
        schema = messages.request_schema(self.api_key, self.version)
        body = _entity(schema, 0)
        _fill(schema, body, self.path, count, self.kind)
        body.update({name: value for name, value in changed.items() if name in body})
        header = request_header(self.api_key, self.version, 1, "test", flexible=is_flexible(self.api_key, self.version))
        return header + _written(schema, body)


def plain(api_key: ApiKey, version: int, **changed: Any) -> bytes:
    """The request with empty arrays. `changed`: other values of its fields."""
    schema = messages.request_schema(api_key, version)
    body = _entity(schema, 0) | changed
    header = request_header(api_key, version, 1, "test", flexible=is_flexible(api_key, version))
    return header + _written(schema, body)


def all_filled(api_key: ApiKey, version: int) -> Iterator[Filled]:
    """For each array of the request."""
    schema = messages.request_schema(api_key, version)
    for path in _arrays(schema):
        for kind in Kind:
            if kind is not Kind.SPREAD or len(path) > 1:
                yield Filled(api_key, version, path, kind)


@cache
def _arrays(schema: Any) -> tuple[tuple[str, ...], ...]:
    found: list[tuple[str, ...]] = []
    for field in by_schema.fields_of(schema):
        if field.is_array:
            found.append((field.name,))
        if field.element is not None and field.tag is None:
            found += [(field.name, *inner) for inner in _arrays(field.element)]
    return tuple(found)


def _entity(schema: Any, number: int) -> dict[str, Any]:
    return {field.name: _value(field, number) for field in by_schema.fields_of(schema) if field.tag is None}


def _value(field: Any, number: int) -> Any:
    if field.is_array:
        return []
    if field.element is not None:
        return _entity(field.element, number)
    if number and field.name in NUMBERED:
        return number
    if number and field.kafka_type == "string" and field.name in NAMED:
        return f"x{number}"
    if field.kafka_type == "string" and field.name not in SENSIBLE:
        return None if field.is_nullable else ""
    if field.kafka_type in ("bytes", "records"):
        return None if field.is_nullable else b""
    return None if field.kafka_type == "uuid" else SENSIBLE.get(field.name, 0)


def _fill(schema: Any, body: dict[str, Any], path: tuple[str, ...], count: int, kind: Kind) -> None:
    """The arrays on the way have one element each, but for the last of them if the elements are to be spread over it."""
    field = next(field for field in by_schema.fields_of(schema) if field.name == path[0])
    if len(path) == 1:
        body[path[0]] = _elements(field, [0] * count if kind is Kind.SAME else range(1, count + 1))
        return
    if kind is Kind.SPREAD and len(path) == 2:
        last = next(last for last in by_schema.fields_of(field.element) if last.name == path[1])
        body[path[0]] = [
            _entity(field.element, 0) | {path[1]: _elements(last, [number])} for number in range(1, count + 1)
        ]
        return
    inner = _entity(field.element, 0)
    _fill(field.element, inner, path[1:], count, kind)
    body[path[0]] = [inner]


def _elements(field: Any, numbers: Sequence[int]) -> list[Any]:
    if field.element is not None:
        return [_entity(field.element, number) for number in numbers]
    if field.kafka_type == "string":
        return [f"x{number}" if number else "g" for number in numbers]
    if field.kafka_type == "int8":
        return [number % 128 for number in numbers]
    return list(numbers)


def _written(schema: Any, body: dict[str, Any]) -> bytes:
    steps: typing.Generator[None, None, list[bytes]] = by_schema.writing(schema, body, 2**30)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return b"".join(end.value)
