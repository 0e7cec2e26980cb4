"""Durations and points in time as people and Kafka write them. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)

ISO_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?(?P<time>T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:[.,]\d+)?)S)?)?",
    re.ASCII | re.IGNORECASE,
)
SHORT_DURATION = re.compile(
    r"(?:(?P<days>\d+)d)?(?:(?P<hours>\d+)h)?(?:(?P<minutes>\d+)m)?(?:(?P<seconds>\d+(?:\.\d+)?)s)?", re.ASCII
)
DAYS_MAX = 1_000_000


class NoTime(ValueError):
    """A text that is no duration or no point in time; the message says how to write one."""


def parse_duration_ms(text: str) -> int:
    """`P1DT2H30M`, as Java's Duration has it, or `1d2h30m`: whole milliseconds, not negative. Raises NoTime."""
    match = ISO_DURATION.fullmatch(text) or SHORT_DURATION.fullmatch(text)
    parts = {} if match is None else match.groupdict()
    amounts = {name: parts.get(name) for name in ("days", "hours", "minutes", "seconds")}
    is_bare_t = len(parts.get("time") or "") == 1
    if is_bare_t or not any(amounts.values()):
        raise NoTime(f"{text!r} is no duration: write P1DT2H30M or 1d2h30m for one day, two hours and a half")
    try:
        seconds = float((amounts["seconds"] or "0").replace(",", "."))
        duration = timedelta(
            days=int(amounts["days"] or 0),
            hours=int(amounts["hours"] or 0),
            minutes=int(amounts["minutes"] or 0),
            seconds=seconds,
        )
    except OverflowError:
        duration = timedelta.max
    except ValueError:
        # Python reads no integer of more than some thousand digits.
        duration = timedelta.max
    if duration.days > DAYS_MAX:
        raise NoTime(f"{text[:40]!r} is too long a duration: at most {DAYS_MAX} days")
    return duration // MILLISECOND


def parse_datetime_ms(text: str) -> int:
    """`2026-11-21T10:15:00.000`, also shorter or with `Z` or `+01:00`; without a zone it is UTC, as Kafka takes it.

    Milliseconds since 1970. Raises NoTime, also for what lies before.
    """
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise NoTime(
            f"{text!r} is no point in time: write 2026-11-21T10:15:00.000, with Z or +01:00 after it unless it is UTC"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    milliseconds = (moment - EPOCH) // MILLISECOND
    if milliseconds < 0:
        # The protocol has meanings of its own for negative times.
        raise NoTime(f"{text!r} lies before 1970: no record is that old; --to-earliest says what you mean")
    return milliseconds
