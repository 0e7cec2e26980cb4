"""Walks a frame along its schema before kio reads it: checks every announced length, drops unknown tagged fields. Pure.

kio's native reader reserves memory for as many elements as an array announces, and aborts the process when there is not
that much: four bytes from anyone would end a broker (BAD-11). So each frame is walked first. It also bounds the number
of elements, since reading tens of millions of them would hold the event loop past a ZooKeeper session. And kio refuses
tagged fields that it does not know, which the protocol wants to be ignored (KIP-482): they are cut out.

A schema is a dataclass as kio generates them: fields in wire order, with `kafka_type` and, for tagged ones, `tag` in
their metadata; arrays are `tuple[X, ...]`.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, NamedTuple

from protocol.kafka.framing import MalformedRequest, read_tag, read_tag_count, read_unsigned_varint, unsigned_varint
from protocol.kafka.wire import ELEMENTS_MAX, read_array_length

UNKNOWN_TAGS_MAX = 1_000
"""Tagged fields of one frame that its schema does not have. Each is cut out; a client that is newer than this broker sends a few."""


class _Edit(NamedTuple):
    """Bytes of the frame to be replaced."""

    begin: int
    end: int
    replacement: bytes


class _State:
    """What one walk has found: how many elements are still allowed, and what to cut out, in order."""

    def __init__(self) -> None:
        self.elements_left = ELEMENTS_MAX
        self.unknown_tags_left = UNKNOWN_TAGS_MAX
        self.edits: list[_Edit] = []


Walk = Callable[[bytes, int, _State], int]
"""(frame, offset, state) -> the offset after it."""

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


def checked(schema: Any, frame: bytes, offset: int) -> bytes:
    """The frame, without the tagged fields that `schema` does not have.

    Raises MalformedRequest unless an entity of `schema` can lie between `offset` and the frame's end. Bytes after it
    are no error, as in Kafka: librdkafka 2.16 sends three too many with Metadata v12.
    """
    walk, _ = _entity_walk(schema)
    state = _State()
    end = walk(frame, offset, state)
    if end > len(frame):
        raise MalformedRequest(f"{len(frame)} bytes in the frame, {end} in what it announces")
    return _edited(frame, 0, end, state.edits) if state.edits else frame


def _edited(frame: bytes, begin: int, end: int, edits: Sequence[_Edit]) -> bytes:
    pieces = []
    for edit in edits:
        pieces += [frame[begin : edit.begin], edit.replacement]
        begin = edit.end
    return b"".join((*pieces, frame[begin:end]))


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

    def walk(frame: bytes, at: int, state: _State) -> int:
        for step in steps:
            at = at + step if isinstance(step, int) else step(frame, at, state)
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
        return _array_walk(step, max(least, 1), flexible, nullable), 1 if flexible else 4
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
        return lambda frame, at, state: at + size
    return step


def _array_walk(step: Walk | int, size_min: int, flexible: bool, nullable: bool) -> Walk:
    """kio reads a null array also where there must be one, and whoever goes through it gets a TypeError."""

    def walk(frame: bytes, at: int, state: _State) -> int:
        begin = at
        count, at = read_array_length(frame, at, flexible, size_min)
        if not (count or nullable) and _is_null(frame, begin, flexible):
            raise MalformedRequest("null where an array is needed")
        state.elements_left -= count
        if state.elements_left < 0:
            raise MalformedRequest(f"more than {ELEMENTS_MAX} elements in one frame")
        if isinstance(step, int):
            return at + count * step
        for _ in range(count):
            at = step(frame, at, state)
        return at

    return walk


def _is_null(frame: bytes, at: int, flexible: bool) -> bool:
    """Of an array without elements that begins at `at`."""
    return read_unsigned_varint(frame, at)[0] == 0 if flexible else frame[at] != 0


def _nullable_walk(inner: Walk) -> Walk:
    """An entity that a byte before it tells present (1) or null (-1)."""

    def walk(frame: bytes, at: int, state: _State) -> int:
        if at >= len(frame):
            raise MalformedRequest("the frame ends before an entity")
        return at + 1 if frame[at] == 0xFF else inner(frame, at + 1, state)

    return walk


def _sized_walk(width: int) -> Walk:
    """A string or bytes with its length in `width` bytes, or (0) as a varint that is one too large; null has no bytes."""

    def walk(frame: bytes, at: int, state: _State) -> int:
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
    def walk(frame: bytes, at: int, state: _State) -> int:
        if at < len(frame) and frame[at] == 0:
            return at + 1
        begin = at
        kept: dict[int, bytes] = {}
        is_changed = False
        count, at = read_tag_count(frame, begin)
        tag = -1
        for _ in range(count):
            tag, at, end = read_tag(frame, at, tag)
            if tag in tagged:
                edits_before = len(state.edits)
                if tagged[tag](frame, at, state) != end:
                    raise MalformedRequest(f"tagged field {tag} is not as long as it announces")
                edits = state.edits[edits_before:]
                kept[tag] = _edited(frame, at, end, edits)
                del state.edits[edits_before:]
                is_changed = is_changed or bool(edits)
            else:
                state.unknown_tags_left -= 1
                if state.unknown_tags_left < 0:
                    raise MalformedRequest(f"more than {UNKNOWN_TAGS_MAX} unknown tagged fields in one frame")
            at = end
        if is_changed or len(kept) != count:
            state.edits.append(_Edit(begin, at, _tags(kept)))
        return at

    return walk


def _tags(kept: dict[int, bytes]) -> bytes:
    fields_written = (unsigned_varint(tag) + unsigned_varint(len(data)) + data for tag, data in kept.items())
    return unsigned_varint(len(kept)) + b"".join(fields_written)
