"""Reads requests and writes responses along kio's schemas, in steps: a message may have hundreds of thousands of elements. Pure.

kio reads and writes a message in one turn of the loop, which for a megabyte of small elements is half a second; and its native
reader reserves memory for as many elements as an array announces (BAD-11). So what comes from outside is read here: every length is
checked against what is there, the elements of a request are counted, and the work stops after each `ELEMENTS_IN_A_STEP` of them.
Tagged fields that a schema does not have are passed over (KIP-482).

A schema is a dataclass as kio generates them: fields in wire order, with `kafka_type` and, for tagged ones, `tag` in their
metadata; arrays are `tuple[X, ...]`. An entity that was read is a named tuple with the schema's field names and kio's values
(durations are timedeltas, the uuid of zeros is None). A response is a nested dict of the same names; its arrays may be iterators,
which are asked for the next element only when the one before is written.
"""

from __future__ import annotations

import datetime
import struct
import types
import typing
import uuid
from collections import namedtuple
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any

from protocol.kafka.framing import (
    MalformedRequest,
    read_tag,
    read_tag_count,
    read_unsigned_varint,
    skip_tagged_fields,
    unsigned_varint,
)
from protocol.kafka.wire import INT, NO_UUID, REQUEST_ELEMENTS_MAX, array_length, nullable_string, read_nullable_string

ELEMENTS_IN_A_STEP = 100
"""Reading or writing one takes 0.5 to 3 us."""
LONG_ELEMENT = 256
"""Bytes that count as another element: names can be long, and looking them up takes longer then."""
NUMBERS_IN_A_STEP = 5_000
PIECE_SIZE = 64 * 1024
"""Bytes: a response is made of pieces of about that size, since to join megabytes takes milliseconds."""
MESSAGE_CHARACTERS_MAX = 2_000
"""Of an `error_message`, which may name what the request had; the rest is cut off."""

Steps = Generator[None, None, Any]
Read = Callable[[bytes, int], tuple[Any, int]]
"""(frame, offset) -> (value, offset after it)."""
Encode = Callable[[Any], bytes]

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

_FIXED = {
    "bool": "?",
    "int8": "b",
    "uint8": "B",
    "int16": "h",
    "uint16": "H",
    "error_code": "h",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "uint64": "Q",
    "float64": "d",
    "timedelta_i32": "i",
    "timedelta_i64": "q",
    "datetime_i64": "q",
}


class AnswerTooLarge(Exception):
    """A response beyond the bytes that one may have."""


def prepare(request: Any, response: Any) -> None:
    """Works out how these schemas are read and written, which is done once for each."""
    _entity_steps(request)
    _entity_writer(response)


# -- requests -------------------------------------------------------------------------------------------------------------


def reading(schema: Any, frame: bytes, at: int) -> Steps:
    """The entity that begins at `at`. Bytes after it are no error, as in Kafka: librdkafka 2.16 sends three too many with
    Metadata v12. Raises MalformedRequest."""
    try:
        entity, at = yield from _entity_steps(schema)(frame, at, _Count())
    except (struct.error, OverflowError) as error:
        raise MalformedRequest(f"{schema.__name__} v{schema.__version__}: {error}") from None
    if at > len(frame):
        raise MalformedRequest("the frame ends inside a field")
    return entity


class _Count:
    """Of one request: how many more elements it may have, and how many were read since the last stop."""

    __slots__ = ("left", "since_stop")

    def __init__(self) -> None:
        self.left = REQUEST_ELEMENTS_MAX
        self.since_stop = 0

    def announced(self, frame: bytes, at: int, count: int) -> None:
        if count > len(frame) - at:
            raise MalformedRequest(f"an array of {count} elements in {len(frame) - at} bytes")
        self.left -= count
        if self.left < 0:
            raise MalformedRequest(f"more than {REQUEST_ELEMENTS_MAX} elements in one request")


ReadSteps = Callable[[bytes, int, _Count], Steps]
"""(frame, offset, count) -> steps that return (value, offset after it)."""


class _Field(typing.NamedTuple):
    """What a schema says of a field. `element`: the schema of an entity, None of a primitive."""

    name: str
    kafka_type: str
    element: Any
    is_array: bool
    is_nullable: bool
    tag: int | None
    default: Any


@cache
def fields_of(schema: Any) -> tuple[_Field, ...]:
    """Those without a tag in wire order, then the tagged ones."""
    hints = typing.get_type_hints(schema)
    found = []
    for field in fields(schema):
        hint = hints[field.name]
        is_nullable = typing.get_origin(hint) in (typing.Union, types.UnionType)
        if is_nullable:
            hint = next(a for a in typing.get_args(hint) if a is not type(None))
        is_array = typing.get_origin(hint) is tuple
        if is_array:
            hint = typing.get_args(hint)[0]
        default = field.default if field.default_factory is MISSING else field.default_factory()
        kafka_type = field.metadata.get("kafka_type", "")
        if kafka_type == "bool" and default is MISSING:
            default = False  # Kafka's schemas leave that out.
        found.append(
            _Field(
                field.name,
                kafka_type,
                hint if is_dataclass(hint) else None,
                is_array,
                is_nullable,
                field.metadata.get("tag"),
                default,
            )
        )
    return tuple(sorted(found, key=lambda field: field.tag is not None))


def _has_array(schema: Any) -> bool:
    return any(
        field.is_array or (field.element is not None and _has_array(field.element)) for field in fields_of(schema)
    )


@cache
def _entity_type(schema: Any) -> Any:
    return namedtuple(schema.__name__, [field.name for field in fields_of(schema)])


@cache
def _leaf(schema: Any) -> Read:
    """An entity without arrays."""
    flexible: bool = schema.__flexible__
    plain = [field for field in fields_of(schema) if field.tag is None]
    tagged = _tag_readers(schema)
    make = _entity_type(schema)._make
    groups: list[tuple[struct.Struct | None, Read | None]] = []
    layout = ""
    for field in plain:
        if field.element is None and field.kafka_type in _FIXED and field.kafka_type not in _CONVERTED:
            layout += _FIXED[field.kafka_type]
            continue
        if layout:
            groups.append((struct.Struct(">" + layout), None))
            layout = ""
        groups.append((None, _value_reader(field, flexible)))
    if layout:
        groups.append((struct.Struct(">" + layout), None))
    steps = [(group, group.size if group is not None else 0, read) for group, read in groups]

    def read_leaf(frame: bytes, at: int) -> tuple[Any, int]:
        values: list[Any] = []
        for group, size, read in steps:
            if group is not None:
                values += group.unpack_from(frame, at)
                at += size
            elif read is not None:
                value, at = read(frame, at)
                values.append(value)
        if flexible:
            at = _read_tags(frame, at, tagged, values)
        return make(values), at

    return read_leaf


@cache
def _entity_steps(schema: Any) -> ReadSteps:
    """Any entity; where it has arrays, with stops."""
    flexible: bool = schema.__flexible__
    if not _has_array(schema):
        leaf = _leaf(schema)

        def read_leaf(frame: bytes, at: int, count: _Count) -> Steps:
            return leaf(frame, at)
            yield

        return read_leaf
    steps: list[tuple[Read | None, ReadSteps | None]] = []
    for field in fields_of(schema):
        if field.tag is not None:
            continue
        if field.is_array:
            steps.append((None, _array_steps(field, flexible)))
        elif field.element is not None and _has_array(field.element):
            steps.append((None, _entity_steps(field.element)))
        else:
            steps.append((_value_reader(field, flexible), None))
    tagged = _tag_readers(schema)
    make = _entity_type(schema)._make

    def read_entity(frame: bytes, at: int, count: _Count) -> Steps:
        values: list[Any] = []
        for read, read_steps in steps:
            if read is not None:
                value, at = read(frame, at)
            elif read_steps is not None:
                value, at = yield from read_steps(frame, at, count)
            values.append(value)
        if flexible:
            at = _read_tags(frame, at, tagged, values)
        return make(values), at

    return read_entity


def _array_steps(field: _Field, flexible: bool) -> ReadSteps:
    if field.element is None and field.kafka_type == "int32":
        return _numbers_steps(field, flexible)
    if field.element is not None and _has_array(field.element):
        return _entities_steps(field, flexible)
    read = (
        _leaf(field.element)
        if field.element is not None
        else _value_reader(field._replace(is_nullable=False), flexible)
    )

    def read_array(frame: bytes, at: int, count: _Count) -> Steps:
        size, at = _read_length(frame, at, flexible, field)
        if size < 0:
            return None, at
        count.announced(frame, at, size)
        values: list[Any] = []
        append = values.append
        while size:
            now = min(size, ELEMENTS_IN_A_STEP)
            for _ in range(now):
                value, at = read(frame, at)
                append(value)
            size -= now
            count.since_stop += now
            if count.since_stop >= ELEMENTS_IN_A_STEP:
                count.since_stop = 0
                yield
        return tuple(values), at

    return read_array


def _entities_steps(field: _Field, flexible: bool) -> ReadSteps:
    read_steps = _entity_steps(field.element)

    def read_array(frame: bytes, at: int, count: _Count) -> Steps:
        size, at = _read_length(frame, at, flexible, field)
        if size < 0:
            return None, at
        count.announced(frame, at, size)
        values = []
        for _ in range(size):
            value, at = yield from read_steps(frame, at, count)
            values.append(value)
            count.since_stop += 1
            if count.since_stop >= ELEMENTS_IN_A_STEP:
                count.since_stop = 0
                yield
        return tuple(values), at

    return read_array


def _numbers_steps(field: _Field, flexible: bool) -> ReadSteps:
    def read_array(frame: bytes, at: int, count: _Count) -> Steps:
        size, at = _read_length(frame, at, flexible, field)
        if size < 0:
            return None, at
        count.announced(frame, at, size)
        if size <= NUMBERS_IN_A_STEP:
            return struct.unpack_from(f">{size}i", frame, at), at + INT.size * size
        values: list[int] = []
        while size:
            now = min(size, NUMBERS_IN_A_STEP)
            values += struct.unpack_from(f">{now}i", frame, at)
            at += INT.size * now
            size -= now
            yield
        return tuple(values), at

    return read_array


def _read_length(frame: bytes, at: int, flexible: bool, field: _Field) -> tuple[int, int]:
    """The number of elements, -1 for null. The sign is checked here, the size by `_Count`."""
    if flexible:
        size, at = read_unsigned_varint(frame, at)
        size -= 1
    else:
        (size,) = INT.unpack_from(frame, at)
        at += INT.size
    if size < -1 or (size == -1 and not field.is_nullable):
        raise MalformedRequest(f"{field.name}: an array of {size} elements")
    return size, at


def _value_reader(field: _Field, flexible: bool) -> Read:
    """A primitive, or an entity without arrays."""
    if field.element is not None:
        leaf = _leaf(field.element)
        return _nullable(leaf) if field.is_nullable and field.tag is None else leaf
    kafka_type = field.kafka_type
    if kafka_type == "string":
        return _string_reader(field, flexible)
    if kafka_type in ("bytes", "records"):
        return _bytes_reader(field, flexible)
    if kafka_type == "uuid":
        return _read_uuid
    layout = struct.Struct(">" + _FIXED[kafka_type])
    convert = _CONVERTED.get(kafka_type)

    def read_fixed(frame: bytes, at: int) -> tuple[Any, int]:
        (value,) = layout.unpack_from(frame, at)
        return (value if convert is None else convert(value)), at + layout.size

    return read_fixed


def _nullable(read: Read) -> Read:
    """An entity that a byte before it tells present (1) or null (-1) (KIP-893)."""

    def read_nullable(frame: bytes, at: int) -> tuple[Any, int]:
        if at >= len(frame):
            raise MalformedRequest("the frame ends before an entity")
        return (None, at + 1) if frame[at] == 0xFF else read(frame, at + 1)

    return read_nullable


def _string_reader(field: _Field, flexible: bool) -> Read:
    if field.is_nullable:
        return lambda frame, at: read_nullable_string(frame, at, flexible)

    def read(frame: bytes, at: int) -> tuple[str, int]:
        value, at = read_nullable_string(frame, at, flexible)
        if value is None:
            raise MalformedRequest(f"{field.name} is null")
        return value, at

    return read


def _bytes_reader(field: _Field, flexible: bool) -> Read:
    def read(frame: bytes, at: int) -> tuple[bytes | None, int]:
        if flexible:
            size, at = read_unsigned_varint(frame, at)
            size -= 1
        else:
            (size,) = INT.unpack_from(frame, at)
            at += INT.size
        if size == -1 and field.is_nullable:
            return None, at
        end = at + size
        if size < 0 or end > len(frame):
            raise MalformedRequest(f"{field.name}: {size} bytes where {len(frame) - at} are left")
        return frame[at:end], end

    return read


def _read_uuid(frame: bytes, at: int) -> tuple[uuid.UUID | None, int]:
    end = at + 16
    if end > len(frame):
        raise MalformedRequest("the frame ends inside a uuid")
    data = frame[at:end]
    return (None if data == NO_UUID.bytes else uuid.UUID(bytes=data)), end


def _duration(milliseconds: int) -> datetime.timedelta:
    return datetime.timedelta(milliseconds=milliseconds)


def _time(milliseconds: int) -> datetime.datetime | None:
    return None if milliseconds == -1 else _EPOCH + datetime.timedelta(milliseconds=milliseconds)


_CONVERTED: Mapping[str, Callable[[int], Any]] = {
    "timedelta_i32": _duration,
    "timedelta_i64": _duration,
    "datetime_i64": _time,
}


def _tag_readers(schema: Any) -> list[tuple[int, Read, Any]]:
    """(tag, how to read it, its value where it is not there). Arrays have no tag in any request that is served."""
    tagged = [field for field in fields_of(schema) if field.tag is not None]
    return [(field.tag, _value_reader(field, True), field.default) for field in tagged if field.tag is not None]


def _read_tags(frame: bytes, at: int, tagged: list[tuple[int, Read, Any]], values: list[Any]) -> int:
    """Appends the values of the tagged fields; returns the offset after all of them."""
    if not tagged:
        return skip_tagged_fields(frame, at)
    given: dict[int, tuple[int, int]] = {}
    count, end = read_tag_count(frame, at)
    tag = -1
    for _ in range(count):
        tag, start, end = read_tag(frame, end, tag)
        given[tag] = (start, end)
    for tag, read, default in tagged:
        value = default
        if tag in given:
            start, stop = given[tag]
            value, after = read(frame, start)
            if after != stop:
                raise MalformedRequest(f"tagged field {tag} is not as long as it announces")
        values.append(value)
    return end


# -- responses ------------------------------------------------------------------------------------------------------------


def writing(schema: Any, body: Mapping[str, Any], size_max: int) -> Steps:
    """The response's body as a list of pieces of at least `PIECE_SIZE` bytes, but for the last.

    Raises AnswerTooLarge beyond `size_max` bytes; KeyError where `body` lacks what the schema needs: our bug.
    """
    out = _Out(size_max)
    yield from _entity_writer(schema)(body, out)
    pieces: list[bytes] = []
    begin = size = 0
    for at, part in enumerate(out.parts, 1):
        size += len(part)
        if size >= PIECE_SIZE:
            pieces.append(b"".join(out.parts[begin:at]))
            begin, size = at, 0
            yield
    pieces.append(b"".join(out.parts[begin:]))
    return pieces


class _Out:
    """What was written. `parts` are small."""

    __slots__ = ("parts", "since_stop", "size_left")

    def __init__(self, size_max: int) -> None:
        self.parts: list[bytes] = []
        self.size_left = size_max
        self.since_stop = 0

    def add(self, part: bytes) -> None:
        self.parts.append(part)
        self.size_left -= len(part)
        if self.size_left < 0:
            raise AnswerTooLarge


WriteSteps = Callable[[Any, _Out], Generator[None, None, None]]


@cache
def _leaf_encoder(schema: Any) -> Encode:
    """An entity without arrays."""
    flexible: bool = schema.__flexible__
    encoders = [_field_encoder(field, flexible) for field in fields_of(schema) if field.tag is None]
    tagged = _tag_encoder(schema) if flexible else None

    def encode(body: Mapping[str, Any]) -> bytes:
        data = b"".join([encode_field(body) for encode_field in encoders])
        return data + tagged(body) if tagged is not None else data

    return encode


def _field_encoder(field: _Field, flexible: bool) -> Callable[[Mapping[str, Any]], bytes]:
    """Of a dict: its field's bytes."""
    encode = _value_encoder(field, flexible)
    name, default = field.name, field.default
    if default is MISSING:
        return lambda body: encode(body[name])
    return lambda body: encode(body.get(name, default))


@cache
def _entity_writer(schema: Any) -> WriteSteps:
    flexible: bool = schema.__flexible__
    steps: list[tuple[Callable[[Mapping[str, Any]], bytes] | None, _Field, WriteSteps | None]] = []
    for field in fields_of(schema):
        if field.tag is not None:
            continue
        if field.is_array:
            steps.append((None, field, _array_writer(field, flexible)))
        else:
            steps.append((_field_encoder(field, flexible), field, None))
    tagged = _tag_encoder(schema) if flexible else None

    def write(body: Mapping[str, Any], out: _Out) -> Generator[None, None, None]:
        for encode, field, write_steps in steps:
            if encode is not None:
                out.add(encode(body))
            elif write_steps is not None:
                has_default = field.default is not MISSING
                yield from write_steps(body.get(field.name, field.default) if has_default else body[field.name], out)
        if tagged is not None:
            out.add(tagged(body))

    return write


def _array_writer(field: _Field, flexible: bool) -> WriteSteps:
    is_deep = field.element is not None and _has_array(field.element)
    write_steps = _entity_writer(field.element) if is_deep else None
    if field.element is None:
        encode = _value_encoder(field._replace(is_nullable=False), flexible)
    else:
        encode = _leaf_encoder(field.element) if not is_deep else _no_encoder

    def write(elements: Iterable[Any] | None, out: _Out) -> Generator[None, None, None]:
        if elements is None:
            if not field.is_nullable:
                raise TypeError(f"{field.name} is None")
            out.add(array_length(-1, flexible))
            return
        place, count = len(out.parts), 0
        out.add(b"")
        for count, element in enumerate(elements, 1):  # noqa: B007
            if write_steps is not None:
                yield from write_steps(element, out)
            else:
                part = encode(element)
                out.add(part)
                out.since_stop += len(part) // LONG_ELEMENT
            out.since_stop += 1
            if out.since_stop >= ELEMENTS_IN_A_STEP:
                out.since_stop = 0
                yield
        out.parts[place] = array_length(count, flexible)

    return write


def _no_encoder(_: Any) -> bytes:
    raise AssertionError("an entity with arrays is written in steps")


def _value_encoder(field: _Field, flexible: bool) -> Encode:
    if field.element is not None:
        encode_entity = _leaf_encoder(field.element)
        if field.is_nullable:
            return lambda body: b"\xff" if body is None else b"\x01" + encode_entity(body)
        return encode_entity
    kafka_type = field.kafka_type
    if kafka_type == "string":
        return _string_encoder(field, flexible)
    if kafka_type in ("bytes", "records"):
        return _bytes_encoder(field, flexible)
    if kafka_type == "uuid":
        return lambda value: (value or NO_UUID).bytes
    pack = struct.Struct(">" + _FIXED[kafka_type]).pack
    if kafka_type == "datetime_i64":
        return lambda value: pack(-1 if value is None else value)
    if kafka_type.startswith("timedelta"):
        return lambda value: pack(value if isinstance(value, int) else value // datetime.timedelta(milliseconds=1))
    return pack


def _string_encoder(field: _Field, flexible: bool) -> Encode:
    def encode(value: str | None) -> bytes:
        if value is None and not field.is_nullable:
            raise TypeError(f"{field.name} is None")
        return nullable_string(value, flexible)

    if field.name == "error_message":
        return lambda value: encode(value if value is None else value[:MESSAGE_CHARACTERS_MAX])
    return encode


def _bytes_encoder(field: _Field, flexible: bool) -> Encode:
    def encode(value: bytes | None) -> bytes:
        if value is None:
            if not field.is_nullable:
                raise TypeError(f"{field.name} is None")
            return b"\x00" if flexible else INT.pack(-1)
        return (unsigned_varint(len(value) + 1) if flexible else INT.pack(len(value))) + value

    return encode


def _tag_encoder(schema: Any) -> Callable[[Mapping[str, Any]], bytes]:
    """Those that are given and are not as they are where they are left out."""
    tagged = sorted((field for field in fields_of(schema) if field.tag is not None), key=lambda field: field.tag or 0)
    if not tagged:
        return lambda body: b"\x00"
    encoders = [(field, _tagged_value_encoder(field)) for field in tagged]

    def encode(body: Mapping[str, Any]) -> bytes:
        found = [(field.tag or 0, value(body[field.name])) for field, value in encoders if _is_said(field, body)]
        parts = [unsigned_varint(tag) + unsigned_varint(len(data)) + data for tag, data in found]
        return unsigned_varint(len(found)) + b"".join(parts)

    return encode


def _is_said(field: _Field, body: Mapping[str, Any]) -> bool:
    value = body.get(field.name, field.default)
    if field.is_array:
        return bool(value)
    if field.element is not None and isinstance(value, Mapping):
        return any(value.get(inner.name, inner.default) != inner.default for inner in fields_of(field.element))
    return bool(value != field.default) and value is not None


def _tagged_value_encoder(field: _Field) -> Encode:
    if not field.is_array:
        return _value_encoder(field._replace(is_nullable=False), True)
    encode = _leaf_encoder(field.element)
    return lambda rows: array_length(len(rows), True) + b"".join(map(encode, rows))
