"""Records as the shell commands use them. Pure."""

from __future__ import annotations

from typing import NamedTuple

Header = tuple[str, bytes | None]


class Record(NamedTuple):
    """A record to write: partition None means chosen by key, timestamp None (milliseconds since 1970) means now."""

    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()
    partition: int | None = None
    timestamp: int | None = None


class ReadRecord(NamedTuple):
    """A record that was read; the timestamp is in milliseconds since 1970, None if the record has none."""

    topic: str
    partition: int
    offset: int
    timestamp: int | None
    timestamp_type: str
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
