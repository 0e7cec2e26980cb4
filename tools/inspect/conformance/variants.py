"""Odd and broken variants of a well-formed request: each differs from it in one place, or in two that a seed draws. Pure but for that.

An odd request can be read; a broken one cannot, or announces what is not there. Values that would harm the cluster are left out: see
`_harms`.
"""

from __future__ import annotations

import copy
import random
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from protocol.kafka import by_schema, messages
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.framing import unsigned_varint
from tools.inspect.conformance.requests import Body, changes_nothing
from tools.inspect.conformance.scene import Scene

Path = tuple[str, ...]
"""Names of fields. An array on the way means its first element."""


class Variant(NamedTuple):
    """`name` says what is odd. `body` copies the well-formed body, so it is called only for a variant that is sent."""

    name: str
    body: Callable[[], Body]


STRANGER = uuid.UUID("11111111-2222-4333-8444-555555555555")
NAME_MAX = 249
UNKNOWN_TAG = 9_999
UNKNOWN_NUMBER = 99
MANY_PARTITIONS = 9
"""As telling as 99, and made and deleted in a tenth of the time."""
LARGEST = {"int8": 2**7 - 1, "int16": 2**15 - 1, "int32": 2**31 - 1, "int64": 2**63 - 1}


def odd_bodies(api_key: int, schema: Any, body: Body, scene: Scene) -> Iterator[Variant]:
    """A variant for every odd value of every field of `schema` that `body` reaches."""
    for path, field in _places(schema, body):
        if _harms(api_key, path):
            continue
        for name, value in _odd_values(field, _get(body, path), scene):
            if path[-1] == "num_partitions" and value == UNKNOWN_NUMBER:
                name, value = f"= {MANY_PARTITIONS}", MANY_PARTITIONS
            if not _is_harmful(api_key, path, value):
                yield Variant(f"{_shown(path)} {name}", partial(_with, body, (path, value)))


def mixed_bodies(api_key: int, schema: Any, body: Body, scene: Scene, seed: int, count: int) -> Iterator[Variant]:
    """Variants that are odd in two places. `seed` chooses them: the same for the same API, version and names."""
    if not changes_nothing(api_key):
        return
    chosen = random.Random(f"{seed} {api_key} {schema.__version__}")
    places = [(path, field) for path, field in _places(schema, body) if not _harms(api_key, path)]
    for _ in range(count if len(places) > 1 else 0):
        (first, one), (second, other) = chosen.sample(places, 2)
        if first == second[: len(first)] or second == first[: len(second)]:
            continue
        values = [list(_odd_values(field, _get(body, path), scene)) for path, field in ((first, one), (second, other))]
        if not all(values):
            continue
        (name, value), (other_name, other_value) = (chosen.choice(found) for found in values)
        if not (_is_harmful(api_key, first, value) or _is_harmful(api_key, second, other_value)):
            shown = f"{_shown(first)} {name}, {_shown(second)} {other_name}"
            yield Variant(shown, partial(_with, body, (first, value), (second, other_value)))


def broken_frames(api_key: int, version: int, schema: Any, frame: bytes) -> Iterator[tuple[str, bytes]]:
    """(what is broken, the bytes for the socket). `frame` is header and body of a well-formed request with a client id.

    Every one announces its true length, except those whose name says otherwise.
    """
    client_id_size = int.from_bytes(frame[8:10], "big")
    head_end = 10 + client_id_size
    tags_end = head_end + (1 if schema.__flexible__ else 0)
    head, tail, body = frame[:head_end], frame[head_end:], frame[tags_end:]
    yield "without its body", sized(frame[:tags_end])
    if len(body) > 1:
        yield "cut in the middle of the body", sized(frame[: tags_end + len(body) // 2])
        yield "cut by a byte", sized(frame[:-1])
    yield "three more bytes at the end", sized(frame + b"abc")
    yield "null client id", sized(frame[:8] + b"\xff\xff" + tail)
    yield "empty client id", sized(frame[:8] + b"\x00\x00" + tail)
    yield "client id longer than the frame", sized(frame[:8] + b"\x7f\xff" + tail)
    yield "client id that is not UTF-8", sized(frame[:8] + b"\x00\x02\xff\xfe" + tail)
    yield "body of large lengths", sized(frame[:tags_end] + b"\x7f\xff\xff\xff" * 8)
    if schema.__flexible__:
        yield "unknown tag in the header", sized(head + _unknown_tags(1) + body)
        yield "tag of the header longer than the frame", sized(head + b"\x01\x00\xff\x7f" + body)
        if body.endswith(b"\x00"):
            yield "unknown tag in the body", sized(frame[:-1] + _unknown_tags(1))
            yield "eight unknown tags in the body", sized(frame[:-1] + _unknown_tags(8))
            yield "tag of the body longer than the frame", sized(frame[:-1] + b"\x01\x63\xff\x7f")


def strange_frames(frame: bytes) -> Iterator[tuple[str, bytes]]:
    """(what is strange, the bytes for the socket) for frames that belong to no API and version. `frame` is any request."""
    yield "negative length", b"\xff\xff\xff\xff"
    yield "length 0", b"\x00\x00\x00\x00"
    yield "length 2^31-1", b"\x7f\xff\xff\xff" + frame
    yield "length of a header that is cut", sized(frame[:6])
    yield "text instead of a frame", b"GET / HTTP/1.1\r\n\r\n"
    for api_key in (-1, 93, 999, 32_767):
        yield f"API key {api_key}", sized(api_key.to_bytes(2, "big", signed=True) + frame[2:])


def other_version(frame: bytes, version: int) -> bytes:
    """`frame` with another version in its header, for the socket."""
    return sized(frame[:2] + version.to_bytes(2, "big", signed=True) + frame[4:])


def sized(frame: bytes) -> bytes:
    """The frame with its length."""
    return len(frame).to_bytes(4, "big") + frame


def _unknown_tags(count: int) -> bytes:
    tags = b"".join(unsigned_varint(UNKNOWN_TAG + n) + b"\x03abc" for n in range(count))
    return unsigned_varint(count) + tags


def _places(schema: Any, body: Body, before: Path = ()) -> Iterator[tuple[Path, Any]]:
    for field in by_schema.fields_of(schema):
        if field.name not in body:
            continue
        path = (*before, field.name)
        yield path, field
        value = body[field.name]
        if field.element is not None and value:
            yield from _places(field.element, value[0] if field.is_array else value, path)


def _odd_values(field: Any, value: Any, scene: Scene) -> Iterator[tuple[str, Any]]:
    """(what is odd, value) of a field."""
    if field.is_nullable and value is not None:
        yield "= null", None
    if field.is_array:
        if value:
            yield "= []", []
            yield "has its first element twice", [value[0], *value]
        return
    if field.element is not None:
        return
    kind = field.kafka_type
    if kind == "string":
        yield from _odd_texts(value, scene)
    elif kind in ("bytes", "records"):
        if value:
            yield "is empty", b""
            yield "is cut by a byte", value[:-1]
        yield "is junk", b"\x01" * 70
    elif kind == "bool":
        yield f"= {not value}", not value
    elif kind == "uuid":
        yield "= unknown", STRANGER
        if value is not None:
            yield "= zero", None
    elif kind == "float64":
        yield "= -1", -1.0
        yield "= nan", float("nan")
    else:
        yield from _odd_numbers(
            "int64" if kind.endswith("i64") else "int32" if kind.startswith("time") else kind, value
        )


def _odd_texts(value: str | None, scene: Scene) -> Iterator[tuple[str, Any]]:
    if value != "":
        yield '= ""', ""
    yield "= unknown", scene.unknown
    yield "is illegal as a topic", f"{scene.prefix}/x"
    yield "is not ASCII", f"{scene.prefix}-ä"
    yield "is long", (f"{scene.prefix}-" + "x" * NAME_MAX)[: NAME_MAX + 1]


def _odd_numbers(kind: str, value: int) -> Iterator[tuple[str, Any]]:
    numbers = [-1, -2, 0, UNKNOWN_NUMBER, LARGEST.get(kind, UNKNOWN_NUMBER)]
    if kind == "int64":
        numbers.append(-(2**63))
    for number in dict.fromkeys(numbers):
        if number != value:
            yield f"= {number}", number


def _harms(api_key: int, path: Path) -> bool:
    """Whether a changed value of this field can reach beyond the scene's topics and groups, or keep the broker busy for long."""
    return (
        (api_key == ApiKey.ALTER_CLIENT_QUOTAS and path == ("validate_only",))
        or path[-1] in ("max_wait", "max_wait_ms")
        or (api_key == ApiKey.ELECT_LEADERS and path == ("topic_partitions",))
    )


def _is_harmful(api_key: int, path: Path, value: Any) -> bool:
    """Whether this value is harmful: a broker would make millions of partitions; or says nothing: a short time-out may pass or not."""
    if path[-1] == "timeout":
        return bool(value == UNKNOWN_NUMBER)
    return path[-1] in ("num_partitions", "count") and isinstance(value, int) and value > UNKNOWN_NUMBER


def _get(body: Body, path: Path) -> Any:
    value: Any = body
    for number, name in enumerate(path):
        value = value[name]
        if isinstance(value, list) and number + 1 < len(path):
            value = value[0]
    return value


def _with(body: Body, *changes: tuple[Path, Any]) -> Body:
    changed = copy.deepcopy(body)
    for path, value in changes:
        place: Any = changed
        for name in path[:-1]:
            place = place[name]
            if isinstance(place, list):
                place = place[0]
        place[path[-1]] = value
    return changed


def _shown(path: Path) -> str:
    return ".".join(path)


def encoded(api_key: int, version: int, correlation_id: int, client_id: str, body: Body) -> bytes:
    """Header and body. Raises TypeError, ValueError or struct.error for what the schema cannot say."""
    return messages.encode_request(api_key, version, correlation_id, client_id, body)
