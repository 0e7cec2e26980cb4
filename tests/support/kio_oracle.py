"""kio's own reader and writer: the oracle for `protocol.kafka.by_schema`."""

from __future__ import annotations

import datetime
import io
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError

from protocol.kafka import messages

_EPOCH = datetime.datetime.fromtimestamp(0, tz=datetime.UTC)


class Refused(Exception):
    """kio cannot read the bytes."""


def read(schema: Any, data: bytes, offset: int) -> Any:
    """kio's entity. Raises Refused.

    The array lengths in `data` must be true, because the reader reserves memory for as many elements as they announce, and aborts the
    process if there is not enough.
    """
    try:
        entity, _ = _reader(schema)(data, offset)
    except (SerialError, ValueError, OverflowError, LookupError, TypeError) as error:
        raise Refused(repr(error)) from None
    return entity


def written(entity: Any) -> bytes:
    """The body of a message, as kio writes it."""
    out = io.BytesIO()
    _writer(type(entity))(out, entity)
    return out.getvalue()


def as_body(value: Any) -> Any:
    """An entity of kio or of `by_schema` in the form that `protocol.kafka.messages` writes."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: as_body(inner) for name, inner in value._asdict().items()}
    if is_dataclass(value):
        return {field.name: as_body(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [as_body(element) for element in value]
    if isinstance(value, datetime.datetime):  # kio makes it of a float: in the year 5716 it is a microsecond too low
        return round((value - _EPOCH) / datetime.timedelta(milliseconds=1))
    if isinstance(value, datetime.timedelta):
        return messages.milliseconds(value)
    return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else value


@cache
def _reader(schema: Any) -> Any:
    return entity_reader(schema)


@cache
def _writer(schema: Any) -> Any:
    return entity_writer(schema)
