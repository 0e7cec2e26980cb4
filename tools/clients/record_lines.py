"""Parses a line of text, or a line with a JSON object, into a record. Pure."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tools.clients.records import Header, Record

HEADERS_END = b"\t"
HEADER_SEPARATOR = b","
HEADER_KEY_SEPARATOR = b":"
"""The form of Kafka's console producer: `name:value,name:value` and a tab, before the key."""

TIMESTAMP_MAX = 2**63 - 1
FIELDS = frozenset({"topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers"})
"""The fields that `ottla consume --format json` prints, so that `ottla produce` accepts them. Key, value and a header's value may
have `_base64` after their name. Topic, offset and timestamp_type are ignored."""


class BadLine(ValueError):
    """A line that is not a valid record; the message says why."""


@dataclass(frozen=True, slots=True)
class LineRules:
    """How to parse a line. The key is the text before `key_separator`; without a separator, `fixed_key`.

    A key or value that equals `null_text` is null.
    """

    key_separator: bytes | None = None
    fixed_key: bytes | None = None
    fixed_headers: tuple[Header, ...] = ()
    with_headers: bool = False
    null_text: bytes | None = None
    partition: int | None = None


def line_parser(rules: LineRules) -> Callable[[bytes], Record]:
    """Returns a function from a line, without its newline, to its record; it raises BadLine."""

    def parse(line: bytes) -> Record:
        headers = rules.fixed_headers
        if rules.with_headers:
            text, tab, line = line.partition(HEADERS_END)
            if not tab:
                raise BadLine("no tab after the headers")
            headers += parse_headers(text)
        key: bytes | None = rules.fixed_key
        value = line
        if rules.key_separator is not None:
            key, separator, value = line.partition(rules.key_separator)
            if not separator:
                raise BadLine(f"no key separator {rules.key_separator.decode(errors='replace')!r}")
        return Record(_or_null(key, rules), _or_null(value, rules), headers, rules.partition)

    return parse


def _or_null(field: bytes | None, rules: LineRules) -> bytes | None:
    return None if rules.null_text is not None and field == rules.null_text else field


def parse_headers(text: bytes) -> tuple[Header, ...]:
    """Parses `name:value,name:value`; an empty text has no headers. Raises BadLine."""
    if not text:
        return ()
    headers = []
    for pair in text.split(HEADER_SEPARATOR):
        name, separator, value = pair.partition(HEADER_KEY_SEPARATOR)
        if not separator or not name:
            raise BadLine(f"header {pair.decode(errors='replace')!r}: expected NAME:VALUE")
        headers.append((_text(name, "a header's name"), value))
    return tuple(headers)


def _text(name: bytes, what: str) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise BadLine(f"{what} is not UTF-8") from None


def json_parser(rules: LineRules) -> Callable[[bytes], Record]:
    """Returns a function from a line with a JSON object (see FIELDS) to its record; it raises BadLine."""

    def parse(line: bytes) -> Record:
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as problem:
            raise BadLine(f"not JSON: {problem}") from None
        if not isinstance(found, dict):
            raise BadLine('expected a JSON object like {"key": "k", "value": "v"}')
        unknown = {name.removesuffix("_base64") for name in found} - FIELDS
        if unknown:
            raise BadLine(f"unknown field {sorted(unknown)[0]!r}: the fields are {', '.join(sorted(FIELDS))}")
        key = _json_bytes(found, "key")
        partition = _json_number(found, "partition", 2**31 - 1)
        return Record(
            key=rules.fixed_key if key is None else key,
            value=_json_bytes(found, "value"),
            headers=rules.fixed_headers + _json_headers(found.get("headers")),
            partition=rules.partition if rules.partition is not None else partition,
            timestamp=_json_number(found, "timestamp", TIMESTAMP_MAX),
        )

    return parse


def _json_bytes(fields: Mapping[str, Any], name: str) -> bytes | None:
    """The field as bytes, from its text or its `_base64`; None if both are missing, or if it is null."""
    text, encoded = fields.get(name), fields.get(f"{name}_base64")
    if encoded is None:
        if text is not None and not isinstance(text, str):
            raise BadLine(f"{name} is not a string")
        return _utf8(text, name)
    if text is not None:
        raise BadLine(f"{name} and {name}_base64 are both given")
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise BadLine(f"{name}_base64 is not base64") from None


def _utf8(text: str | None, name: str) -> bytes | None:
    try:
        return None if text is None else text.encode()
    except UnicodeEncodeError:
        # JSON can contain half of a surrogate pair.
        raise BadLine(f"{name} cannot be written in UTF-8") from None


def _json_number(fields: Mapping[str, Any], name: str, greatest: int) -> int | None:
    number = fields.get(name)
    if number is None:
        return None
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= greatest:
        raise BadLine(f"{name} is not a number from 0 to {greatest}")
    return number


def _json_headers(headers: Any) -> tuple[Header, ...]:
    """Parses `{name: value}`, or `[{"key": name, "value": value}]` for repeated names."""
    if headers is None:
        return ()
    if isinstance(headers, dict):
        headers = [{"key": name, "value": value} for name, value in headers.items()]
    if not isinstance(headers, list):
        raise BadLine("headers must be an object or a list")
    found: list[Header] = []
    for header in headers:
        if not isinstance(header, dict) or not isinstance(header.get("key"), str):
            raise BadLine('a header must be an object like {"key": "name", "value": "v"}')
        _utf8(header["key"], "a header's key")
        found.append((header["key"], _json_bytes(header, "value")))
    return tuple(found)
