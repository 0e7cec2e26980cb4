"""The requests of the matrix: requests.yaml has a well-formed one of each API, and explains its rows. Pure but for that file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from protocol.kafka import by_schema, messages
from protocol.kafka.api_keys import ApiKey
from tools.inspect.conformance.odd_batches import odd_batches
from tools.inspect.conformance.scene import Scene, Where, batch

REQUESTS = Path(__file__).with_name("requests.yaml")
API_KEYS = range(100)
_NAME = re.compile(r"\$([\w-]+)")
_NAME_WITHIN = re.compile(r"\$\{(\w+)\}")

Body = dict[str, Any]
Names = Callable[[str], Any]


class Request(NamedTuple):
    """A row of requests.yaml that is sent."""

    where: Where
    template: Mapping[str, Any]
    special: Mapping[str, Mapping[str, Any]]
    reads: bool
    """The API changes nothing, whatever the request says."""

    def body(self, scene: Scene) -> Body:
        """The well-formed body. The caller may change it."""
        made: Body = filled(self.template, names_of(scene))
        return made

    def special_body(self, name: str, scene: Scene) -> Body:
        body = self.body(scene)
        for path, value in self.special[name].items():
            *arrays, field = path.removeprefix("+").split(".")
            place: Any = body
            for array in arrays:
                place = place[array][0]
            value = filled(value, names_of(scene))
            if path.startswith("+"):
                place[field].append({**place[field][0], **value})
            else:
                place[field] = value
        return body


@cache
def requests() -> Mapping[int, Request]:
    """API key -> its request, for the APIs of which requests are sent."""
    found = {
        key: Request(Where(row["to"]), row["body"], row.get("special", {}), row.get("reads", False))
        for key, row in _rows().items()
        if "never" not in row
    }
    batches = {name: {"topic_data.partition_data.records": data} for name, data in odd_batches().items()}
    produce = found[ApiKey.PRODUCE]
    return found | {ApiKey.PRODUCE: produce._replace(special={**produce.special, **batches})}


def never_sent() -> Mapping[int, str]:
    """API key -> why no request of it is sent."""
    return {key: row["never"] for key, row in _rows().items() if "never" in row}


@cache
def _rows() -> Mapping[int, Mapping[str, Any]]:
    keys = {messages.api_name(key): key for key in API_KEYS}
    rows = yaml.load(REQUESTS.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return {keys[name]: row for name, row in sorted(rows.items(), key=lambda item: keys[item[0]])}


def changes_nothing(api_key: int) -> bool:
    return api_key in requests() and requests()[api_key].reads


def names_of(scene: Scene) -> Names:
    """What `$name` stands for in requests.yaml."""
    found = {
        "topic-id": scene.topic_ids.get(scene.topic),
        "scratch-id": scene.topic_ids.get(scene.scratch),
        "dotted-topic": scene.topic.replace("-", ".", 1),
        "long": (scene.fresh + "x" * 249)[:249],
        "batch": batch(1),
    }
    return lambda name: found[name] if name in found else getattr(scene, name)


def filled(value: Any, named: Names) -> Any:
    """A copy of `value` with what `named` says in the place of `$name` and `${name}`, and 12 times x in that of `$12x`."""
    if isinstance(value, dict):
        return {key: filled(inner, named) for key, inner in value.items()}
    if isinstance(value, list):
        return [filled(inner, named) for inner in value]
    if not isinstance(value, str):
        return value
    if name := _NAME.fullmatch(value):
        return "x" * int(name[1][:-1]) if name[1][:-1].isdigit() else named(name[1])
    return _NAME_WITHIN.sub(lambda within: str(named(within[1])), value)


def commit_row(offset: int, epoch: int = -1) -> Body:
    """Partition 0, in OffsetCommit and TxnOffsetCommit."""
    return {
        "partition_index": 0,
        "committed_offset": offset,
        "committed_leader_epoch": epoch,
        "committed_metadata": "m",
    }


def complete(schema: Any, given: Mapping[str, Any]) -> Body:
    """A body with every field of `schema`: from `given`, else its default, else zero or nothing. Raises no error for more fields.

    A text for a field of bytes stands for its UTF-8.
    """
    body: Body = {}
    for field in by_schema.fields_of(schema):
        if field.name in given:
            value = given[field.name]
            if field.element is not None and value is not None:
                rows = [complete(field.element, row) for row in (value if field.is_array else [value])]
                value = rows if field.is_array else rows[0]
            elif value is None and not field.is_nullable and field.kafka_type == "string":
                value = ""  # an earlier version, which has no null here
            elif isinstance(value, str) and field.kafka_type == "bytes":
                value = value.encode()
            body[field.name] = value
        elif field.tag is None:
            body[field.name] = _nothing(field)
    return body


def _nothing(field: Any) -> Any:
    if field.default is not MISSING:
        return field.default
    if field.is_array:
        return None if field.is_nullable else []
    if field.element is not None:
        return None if field.is_nullable else complete(field.element, {})
    if field.kafka_type == "string":
        return None if field.is_nullable else ""
    if field.kafka_type in ("bytes", "records"):
        return None if field.is_nullable else b""
    return None if field.kafka_type == "uuid" else 0
