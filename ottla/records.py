"""Where a record has its id: in its key, its value or a header."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

IdOf = Callable[[Any], str]
"""Finds the id of a message that has the methods of confluent-kafka's: `key`, `value`, `headers`."""

ID_HEADER = "ottla-id"
"""The header by which `Verdict.watch` gives each record an id of its own."""
ID_PLACES = (f"header:{ID_HEADER}", "key")
"""Where a verdict of a test looks for ids, if nothing else is said."""


class BadId(ValueError):
    """The place of an id is none of the forms that are known."""


def id_finder(where: str) -> IdOf:
    """The function that finds a record's id: in its `key`, its `value`, `header:NAME`, or `value:FIELD` (JSON). Raises BadId."""
    kind, _, name = where.partition(":")
    if where == "key":
        return lambda message: _text(message.key())
    if where == "value":
        return lambda message: _text(message.value())
    if kind == "header" and name:
        return lambda message: next((_text(value) for key, value in message.headers() or () if key == name), "")
    if kind == "value" and name:
        return lambda message: _field(message.value(), name)
    raise BadId(f"{where!r} is not key, value, header:NAME or value:FIELD")


def first_id(places: Sequence[str]) -> IdOf:
    """The function that looks in several places, and finds the first id that is not empty. Raises BadId."""
    finders = [id_finder(where) for where in places]
    return lambda message: next(filter(None, (find(message) for find in finders)), "")


def _text(value: bytes | str | None) -> str:
    return (value.decode(errors="backslashreplace") if isinstance(value, bytes) else value or "").strip()


def _field(value: bytes | str | None, name: str) -> str:
    try:
        found = json.loads(value or b"null")
    except ValueError:
        return ""
    return "" if not isinstance(found, dict) or found.get(name) is None else str(found[name]).strip()
