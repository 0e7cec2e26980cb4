"""A record as the shell's user sees it. Pure."""

from __future__ import annotations

from typing import NamedTuple

Header = tuple[str, bytes | None]


class Record(NamedTuple):
    """What is written: partition None lets the key decide, timestamp (milliseconds since 1970) None is now."""

    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()
    partition: int | None = None
    timestamp: int | None = None


class ReadRecord(NamedTuple):
    """What was read; the timestamp in milliseconds since 1970, None where the record has none."""

    topic: str
    partition: int
    offset: int
    timestamp: int | None
    timestamp_type: str
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
