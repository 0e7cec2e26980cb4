"""Walks a frame along its schema and checks every announced length, before anything is made of it. Pure.

kio's native reader reserves memory for as many elements as an array announces, and aborts the process when there is not
that much: four bytes from anyone would end a broker (BAD-11). So each frame is walked first. It also bounds the number
of elements, since reading tens of millions of them would hold the event loop past a ZooKeeper session.

A schema is a dataclass as kio generates them: fields in wire order, with `kafka_type` and, for tagged ones, `tag` in
their metadata; arrays are `tuple[X, ...]`.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from protocol.kafka.framing import Buffer, MalformedRequest, read_unsigned_varint, skip_tagged_fields
from protocol.kafka.wire import ELEMENTS_MAX, read_array_length

Walk = Callable[[Buffer, int, list[int]], int]
"""(frame, offset, [elements still allowed]) -> the offset after it."""

_FIXED_SIZES = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "uint16": 2,
    "error_code": 2,
    "int32": 4,
    "uint32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "uuid": 16,
}


def check_lengths(schema: Any, frame: Buffer, offset: int) -> None:
    """Raises MalformedRequest unless an entity of `schema` can lie from `offset` exactly to the frame's end."""
    walk, _ = _entity_walk(schema)
    end = walk(frame, offset, [ELEMENTS_MAX])
    if end != len(frame):
        raise MalformedRequest(f"{len(frame)} bytes in the frame, {end} in what it announces")


@cache
def _entity_walk(schema: Any) -> tuple[Walk, int]:
    """How to walk an entity, and the least number of bytes that it has. Fields of fixed size are skipped together."""
    flexible: bool = schema.__flexible__
    hints = typing.get_type_hints(schema)
    steps: list[Walk | int] = []
    tagged: dict[int, Walk] = {}
    size_min = 1 if flexible else 0
    for field in fields(schema):
        step, least = _field_walk(hints[field.name], field.metadata.get("kafka_type"), flexible)
        if "tag" in field.metadata:
            tagged[field.metadata["tag"]] = _as_walk(step)
            continue
        size_min += least
        if isinstance(step, int) and steps and isinstance(steps[-1], int):
            steps[-1] += step
        else:
            steps.append(step)
    if flexible:
        steps.append(_tags_walk(tagged))

    def walk(frame: Buffer, at: int, budget: list[int]) -> int:
        for step in steps:
            at = at + step if isinstance(step, int) else step(frame, at, budget)
        if at > len(frame):
            raise MalformedRequest("the frame ends inside a field")
        return at

    return walk, size_min


def _field_walk(hint: Any, kafka_type: str | None, flexible: bool) -> tuple[Walk | int, int]:
    """(a walk, or a fixed number of bytes; the least number of bytes)."""
    nullable = False
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        nullable = True
        hint = next(a for a in typing.get_args(hint) if a is not type(None))
    if typing.get_origin(hint) is tuple:
        step, least = _field_walk(typing.get_args(hint)[0], kafka_type, flexible)
        return _array_walk(step, max(least, 1), flexible), 1 if flexible else 4
    if is_dataclass(hint):
        entity: Any = hint
        walk, least = _entity_walk(entity)
        return (_nullable_walk(walk), 1) if nullable else (walk, least)
    if kafka_type in _FIXED_SIZES:
        return _FIXED_SIZES[kafka_type], _FIXED_SIZES[kafka_type]
    if kafka_type in ("string", "bytes", "records"):
        width = 0 if flexible else 2 if kafka_type == "string" else 4
        return _sized_walk(width), max(width, 1)
    raise TypeError(f"unknown type {kafka_type} in a schema")


def _as_walk(step: Walk | int) -> Walk:
    if isinstance(step, int):
        size = step
        return lambda frame, at, budget: at + size
    return step


def _array_walk(step: Walk | int, size_min: int, flexible: bool) -> Walk:
    def walk(frame: Buffer, at: int, budget: list[int]) -> int:
        count, at = read_array_length(frame, at, flexible, size_min)
        budget[0] -= count
        if budget[0] < 0:
            raise MalformedRequest(f"more than {ELEMENTS_MAX} elements in one frame")
        if isinstance(step, int):
            return at + count * step
        for _ in range(count):
            at = step(frame, at, budget)
        return at

    return walk


def _nullable_walk(inner: Walk) -> Walk:
    """An entity that a byte before it tells present (1) or null (-1)."""

    def walk(frame: Buffer, at: int, budget: list[int]) -> int:
        if at >= len(frame):
            raise MalformedRequest("the frame ends before an entity")
        return at + 1 if frame[at] == 0xFF else inner(frame, at + 1, budget)

    return walk


def _sized_walk(width: int) -> Walk:
    """A string or bytes with its length in `width` bytes, or (0) as a varint that is one too large; null has no bytes."""

    def walk(frame: Buffer, at: int, budget: list[int]) -> int:
        if width == 0:
            size, at = read_unsigned_varint(frame, at)
            size -= 1
        else:
            if at + width > len(frame):
                raise MalformedRequest("the frame ends inside a length")
            size = int.from_bytes(frame[at : at + width], "big", signed=True)
            at += width
        if size < -1 or at + size > len(frame):
            raise MalformedRequest(f"{size} bytes announced where {len(frame) - at} are left")
        return at + max(size, 0)

    return walk


def _tags_walk(tagged: dict[int, Walk]) -> Walk:
    def walk(frame: Buffer, at: int, budget: list[int]) -> int:
        end = skip_tagged_fields(frame, at)
        if end == at + 1:
            return end
        count, at = read_unsigned_varint(frame, at)
        for _ in range(count):
            tag, at = read_unsigned_varint(frame, at)
            size, at = read_unsigned_varint(frame, at)
            if tag in tagged and tagged[tag](frame, at, budget) != at + size:
                raise MalformedRequest(f"the tagged field {tag} is not as long as it announces")
            at += size
        return end

    return walk
