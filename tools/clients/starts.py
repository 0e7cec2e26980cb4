"""Where reading starts: the values of `--offset`. Pure."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from protocol.numbers import is_plain_number
from tools.points_in_time import NoTime, parse_datetime_ms

OFFSET_MAX = 2**63 - 1


class StartKind(Enum):
    """What the number of a start means."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    LAST = "last"
    """This many records before the end."""
    TIME = "time"
    """The first record at or after this time, in milliseconds since 1970."""


class Start(NamedTuple):
    kind: StartKind
    number: int = 0


EARLIEST = Start(StartKind.EARLIEST)
LATEST = Start(StartKind.LATEST)
WORDS = {"earliest": EARLIEST, "beginning": EARLIEST, "latest": LATEST, "end": LATEST}


class NoStart(ValueError):
    """Not a valid start; the message says how to write one."""


def parse_start(text: str) -> Start:
    """`17`, `-5` (the last five), `earliest`, `latest`, `@1763719200000` or `@2026-11-21T10:00`. Raises NoStart."""
    if text in WORDS:
        return WORDS[text]
    if text.startswith("@"):
        return Start(StartKind.TIME, _time(text.removeprefix("@")))
    digits = text.removeprefix("-")
    if not is_plain_number(digits) or len(digits) > 19 or int(digits) > OFFSET_MAX:
        raise NoStart(
            f"{text!r}: expected an offset, -N for the last N records, earliest, latest, or @TIME "
            "(milliseconds since 1970, or 2026-11-21T10:00)"
        )
    return Start(StartKind.LAST if text.startswith("-") else StartKind.OFFSET, int(digits))


def _time(text: str) -> int:
    # Eight digits are a date, for example 20261121.
    if is_plain_number(text) and 10 <= len(text) <= 15:
        return int(text)
    try:
        return parse_datetime_ms(text)
    except NoTime as problem:
        raise NoStart(str(problem)) from None


def first_offset(start: Start, low: int, high: int) -> int | None:
    """The offset for EARLIEST, LATEST, OFFSET and LAST in a log of [low, high); None if the offset is outside it."""
    match start.kind:
        case StartKind.EARLIEST:
            return low
        case StartKind.LATEST:
            return high
        case StartKind.LAST:
            return max(low, high - start.number)
        case StartKind.OFFSET:
            return start.number if low <= start.number <= high else None
        case StartKind.TIME:
            raise AssertionError("only a leader knows its records' times")
