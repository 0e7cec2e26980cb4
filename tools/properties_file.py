r"""The format of Java's properties files, in which Kafka's tools read `--command-config`. Pure.

A line is `key=value`, `key: value` or `key value`. A backslash at the end of a line continues it on the next one. Escapes are `\n`,
`\t`, `\r`, `\f`, `\uXXXX`, and a backslash before any other character. Lines that start with `#` or `!` are comments.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

BLANKS = " \t\f"
SEPARATORS = "=:"
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


class Property(NamedTuple):
    """`line` counts from 1: where the property starts."""

    key: str
    value: str
    line: int


class BadProperties(ValueError):
    """The text says the line, and what is wrong there. It never has a value, because that may be a password."""


def read_properties(text: str) -> list[Property]:
    """The properties in their order, also if a key occurs twice. Blanks around a value are dropped. Raises BadProperties."""
    return [_property(line, number) for number, line in _logical_lines(text)]


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    start, parts = 0, [""]
    for number, raw in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), 1):
        line = raw.lstrip(BLANKS)
        if not start:
            if not line or line[0] in "#!":
                continue
            start, parts = number, []
        if (len(line) - len(line.rstrip("\\"))) % 2:
            parts.append(line[:-1])
            continue
        parts.append(line)
        yield start, "".join(parts)
        start = 0
    if start:
        yield start, "".join(parts)


def _property(line: str, number: int) -> Property:
    at = 0
    while at < len(line) and line[at] not in BLANKS + SEPARATORS:
        at += 2 if line[at] == "\\" else 1
    key, rest = line[:at], line[at:].lstrip(BLANKS)
    if rest[:1] and rest[0] in SEPARATORS:
        rest = rest[1:]
    return Property(_unescaped(key, number), _unescaped(rest, number).strip(), number)


def _unescaped(text: str, line: int) -> str:
    if "\\" not in text:
        return text
    found, at = [], 0
    while at < len(text):
        if text[at] != "\\":
            found.append(text[at])
            at += 1
            continue
        escape = text[at + 1 : at + 2]
        if escape == "u":
            digits = text[at + 2 : at + 6]
            if len(digits) != 4 or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
                raise BadProperties(f"line {line}: \\u needs four hexadecimal digits; write \\\\ for a backslash")
            found.append(chr(int(digits, 16)))
            at += 6
        else:
            found.append(ESCAPES.get(escape, escape))
            at += 2
    try:
        # Java's characters have 16 bits: two escapes may be one character.
        return "".join(found).encode("utf-16-be", "surrogatepass").decode("utf-16-be")
    except UnicodeDecodeError:
        raise BadProperties(f"line {line}: an escape is half of a surrogate pair, which is no character") from None
