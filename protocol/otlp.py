"""Reads the numbers in OpenTelemetry's metrics (opentelemetry/proto/metrics/v1, the message MetricsData), as clients push them. Pure.

Gauges and sums have numbers; histograms and summaries are skipped. A push may be hostile: what is read has limits.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator
from typing import NamedTuple

ATTRIBUTES_MAX = 16
"""Attributes of a number that are kept."""
TEXT_MAX = 200
"""Characters of a name, or of an attribute's key or value, that are kept."""
FIELDS_IN_A_STEP = 200

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DOUBLE = struct.Struct("<d")
_SIGNED = struct.Struct("<q")
_DELTA = 1

Field = tuple[int, int, int, memoryview]
"""(number, wire type, the value of a varint, the bytes of another one)"""


class Number(NamedTuple):
    """A metric's number with these attributes. `is_delta`: what was added since the number before."""

    metric: str
    attributes: tuple[tuple[str, str], ...]
    value: float
    is_delta: bool


def numbers_in(data: memoryview) -> Generator[None, None, list[Number]]:
    """All numbers of a MetricsData, with pauses. Raises ValueError if the bytes are no such message."""
    found: list[Number] = []
    count = 0
    for resource in _messages(data, 1):
        for scope in _messages(resource, 2):
            for metric in _messages(scope, 2):
                count += _read_metric(metric, found)
                if count >= FIELDS_IN_A_STEP:
                    count = 0
                    yield
    return found


def _read_metric(data: memoryview, found: list[Number]) -> int:
    """Appends the metric's numbers. Returns how many fields it had."""
    name = ""
    points: list[memoryview] = []
    is_delta = False
    count = 0
    for number, kind, _, value in _fields(data):
        count += 1
        if kind != _BYTES:
            continue
        if number == 1:
            name = _text(value)
        elif number in (5, 7):
            for inner, _, setting, part in _fields(value):
                count += 1
                if inner == 1:
                    points.append(part)
                elif inner == 2 and number == 7:
                    is_delta = setting == _DELTA
    for point in points:
        attributes: list[tuple[str, str]] = []
        amount: float | None = None
        for number, kind, _, value in _fields(point):
            count += 1
            if number == 7 and kind == _BYTES and len(attributes) < ATTRIBUTES_MAX:
                attributes.append(_attribute(value))
            elif number == 4 and kind == _FIXED64:
                (amount,) = _DOUBLE.unpack(value)
            elif number == 6 and kind == _FIXED64:
                amount = float(_SIGNED.unpack(value)[0])
        if amount is not None:
            found.append(Number(name, tuple(sorted(attributes)), amount, is_delta))
    return count


def _attribute(data: memoryview) -> tuple[str, str]:
    key = text = ""
    for number, kind, _, value in _fields(data):
        if number == 1 and kind == _BYTES:
            key = _text(value)
        elif number == 2 and kind == _BYTES:
            for inner, inner_kind, varint, part in _fields(value):
                if inner == 1 and inner_kind == _BYTES:
                    text = _text(part)
                elif inner == 2:
                    text = "true" if varint else "false"
                elif inner == 3:
                    text = str(varint - (1 << 64) if varint >> 63 else varint)
                elif inner == 4 and inner_kind == _FIXED64:
                    text = repr(_DOUBLE.unpack(part)[0])
    return key, text


def _messages(data: memoryview, wanted: int) -> Iterator[memoryview]:
    for number, kind, _, value in _fields(data):
        if number == wanted and kind == _BYTES:
            yield value


def _fields(data: memoryview) -> Iterator[Field]:
    """The fields of a protobuf message. Raises ValueError."""
    at, end = 0, len(data)
    nothing = data[:0]
    while at < end:
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            varint, at = _varint(data, at)
            yield number, kind, varint, nothing
            continue
        if kind == _BYTES:
            size, at = _varint(data, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"a field of the unknown kind {kind}")
        if size > end - at:
            raise ValueError(f"a field of {size} bytes in {end - at}")
        yield number, kind, 0, data[at : at + size]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("a number that does not end")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
        shift += 7


def _text(data: memoryview) -> str:
    return bytes(data[: 4 * TEXT_MAX]).decode("utf-8", "replace")[:TEXT_MAX]
