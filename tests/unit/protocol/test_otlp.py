"""Numbers in OpenTelemetry's metrics: those of gauges and sums, whatever else is in the message."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import otlp
from protocol.kafka import by_schema
from protocol.kafka.framing import unsigned_varint
from protocol.otlp import Number


def part(number: int, data: bytes) -> bytes:
    """A field with a text, bytes or a message."""
    return unsigned_varint(number << 3 | 2) + unsigned_varint(len(data)) + data


def varint(number: int, value: int) -> bytes:
    return unsigned_varint(number << 3) + unsigned_varint(value)


def point(value: float | int, **attributes: bytes) -> bytes:
    """A NumberDataPoint; `attributes` are AnyValues."""
    amount = b"\x21" + struct.pack("<d", value) if isinstance(value, float) else b"\x31" + struct.pack("<q", value)
    pairs = (part(7, part(1, key.encode()) + part(2, text)) for key, text in attributes.items())
    return b"\x19" + bytes(8) + amount + b"".join(pairs)  # with a time


def message(*metrics: bytes) -> bytes:
    """A MetricsData with one resource and one scope, each with a name that nobody reads."""
    scope = part(1, part(1, b"scope")) + b"".join(part(2, metric) for metric in metrics)
    return part(1, part(1, part(1, b"resource")) + part(2, scope))


def metric(name: str, kind: int, *points: bytes, temporality: int = 0) -> bytes:
    data = b"".join(part(1, each) for each in points) + (varint(2, temporality) if temporality else b"")
    return part(1, name.encode()) + part(2, b"a description") + part(kind, data)


def read(data: bytes) -> list[Number]:
    found: list[Number] = by_schema.at_once(otlp.numbers_in(memoryview(data)))
    return found


GAUGE, SUM, HISTOGRAM = 5, 7, 9


@pytest.mark.parametrize(
    ("metrics", "numbers"),
    [
        ([], []),
        ([metric("a", GAUGE, point(1.5))], [Number("a", (), 1.5, False)]),
        ([metric("a", GAUGE, point(-7))], [Number("a", (), -7.0, False)]),
        ([metric("a", SUM, point(3), temporality=1)], [Number("a", (), 3.0, True)]),
        ([metric("a", SUM, point(3), temporality=2)], [Number("a", (), 3.0, False)]),
        ([metric("a", HISTOGRAM, b"\x08\x01"), metric("b", GAUGE, point(2))], [Number("b", (), 2.0, False)]),
        (
            [metric("a", GAUGE, point(1, z=part(1, b"text"), b=varint(2, 1)), point(2, z=varint(3, 9)))],
            [Number("a", (("b", "true"), ("z", "text")), 1.0, False), Number("a", (("z", "9"),), 2.0, False)],
        ),
        ([metric("x" * 1000, GAUGE, point(1))], [Number("x" * otlp.TEXT_MAX, (), 1.0, False)]),
        ([metric("a", GAUGE, b"")], []),
    ],
)
def test_numbers(metrics: list[bytes], numbers: list[Number]) -> None:
    assert read(message(*metrics)) == numbers


@pytest.mark.parametrize(
    "data", [b"\x0a", b"\x0a\x05\x01", b"\x0b", b"\xff" * 11, b"\x0a\x03\x12\x05\x01", b"\x09\x01"]
)
def test_broken_bytes(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read(data)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        read(part(1, part(2, part(2, data))))
