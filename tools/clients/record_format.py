"""Formats records as text: kcat's tokens, or a line of JSON. Pure."""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from tools.clients.records import Header, ReadRecord

JSON = "json"
DEFAULT = "%s\\n"

MISSING = -1
"""What kcat prints for a missing timestamp, and for the length of null."""

TOKENS: Mapping[str, tuple[str, Callable[[ReadRecord], bytes]]] = MappingProxyType(
    {
        "s": ("value", lambda record: record.value or b""),
        "S": ("value's length (-1: null)", lambda record: _length(record.value)),
        "R": (
            "value's length, 4 bytes, big-endian",
            lambda record: struct.pack(">i", MISSING if record.value is None else len(record.value)),
        ),
        "k": ("key", lambda record: record.key or b""),
        "K": ("key's length (-1: null)", lambda record: _length(record.key)),
        "T": ("timestamp in ms", lambda record: _digits(MISSING if record.timestamp is None else record.timestamp)),
        "h": ("headers: name=value,...", lambda record: headers_text(record.headers)),
        "t": ("topic", lambda record: record.topic.encode()),
        "p": ("partition", lambda record: _digits(record.partition)),
        "o": ("offset", lambda record: _digits(record.offset)),
        "%": ("a percent sign", lambda record: b"%"),
    }
)
ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "\\": "\\"}
ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|(.?))", re.DOTALL)


class BadFormat(ValueError):
    """A format with an unknown token or escape; the message lists the known ones."""


def record_formatter(template: str) -> Callable[[ReadRecord], bytes]:
    """Returns a function that formats a record: `json`, or tokens and escapes (`\\n \\r \\t \\0 \\xNN`). Raises BadFormat."""
    if template == JSON:
        return json_line
    parts: list[bytes | Callable[[ReadRecord], bytes]] = []
    for index, text in enumerate(_pieces(template)):
        parts.append(TOKENS[text][1] if index % 2 else unescape(text))

    def render(record: ReadRecord) -> bytes:
        return b"".join(part if isinstance(part, bytes) else part(record) for part in parts)

    return render


def _pieces(template: str) -> list[str]:
    """The template as text, token, text, token, ..., text."""
    pieces = re.split(r"%(.?)", template, flags=re.DOTALL)
    for token in pieces[1::2]:
        if token not in TOKENS:
            known = ", ".join(f"%{name}" for name in TOKENS)
            raise BadFormat(f"unknown token '%{token}': the tokens are {known}; `json` prints lines of JSON")
    return pieces


def unescape(text: str) -> bytes:
    """The text with its escapes replaced. Raises BadFormat for an unknown escape."""
    pieces, start = [], 0
    for match in ESCAPE.finditer(text):
        pieces.append(text[start : match.start()].encode())
        start = match.end()
        code, letter = match.groups()
        if code is not None:
            pieces.append(bytes([int(code, 16)]))
        elif letter in ESCAPES:
            pieces.append(ESCAPES[letter].encode())
        else:
            raise BadFormat(f"unknown escape '\\{letter}': the escapes are \\n, \\r, \\t, \\0, \\xNN and \\\\")
    return b"".join([*pieces, text[start:].encode()])


def headers_text(headers: tuple[Header, ...]) -> bytes:
    """`name=value,name=value`; a null value is NULL, as in kcat."""
    return b",".join(name.encode() + b"=" + (b"NULL" if value is None else value) for name, value in headers)


def json_line(record: ReadRecord) -> bytes:
    """One line with the record's fields; bytes that are not UTF-8 are in `key_base64`, `value_base64`."""
    fields: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": record.timestamp_type,
        **_json_field("key", record.key),
        **_json_field("value", record.value),
        "headers": [{"key": name, **_json_field("value", value)} for name, value in record.headers],
    }
    return json.dumps(fields, ensure_ascii=False).encode() + b"\n"


def _json_field(name: str, value: bytes | None) -> dict[str, str | None]:
    try:
        return {name: None if value is None else value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value or b"").decode()}


def _length(value: bytes | None) -> bytes:
    return _digits(MISSING if value is None else len(value))


def _digits(number: int) -> bytes:
    return b"%d" % number
