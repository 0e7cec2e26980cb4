"""Parses durations and points in time as people and Kafka write them. Pure."""

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
    r"(?:(?P<days>\d+)d)?(?:(?P<hours>\d+)h)?(?:(?P<minutes>\d+)m)?(?:(?P<seconds>\d+(?:\.\d+)?)s)?"
    r"(?:(?P<milliseconds>\d+)ms)?",
    re.ASCII,
)
DAYS_MAX = 1_000_000


class NoTime(ValueError):
    """Not a duration or point in time; the message says how to write one."""


def parse_duration_ms(text: str) -> int:
    """Parses `P1DT2H30M`, as in Java's Duration, or `1d2h30m` or `250ms`: whole milliseconds, not negative. Raises NoTime."""
    match = ISO_DURATION.fullmatch(text) or SHORT_DURATION.fullmatch(text)
    parts = {} if match is None else match.groupdict()
    amounts = {name: parts.get(name) for name in ("days", "hours", "minutes", "seconds", "milliseconds")}
    is_bare_t = len(parts.get("time") or "") == 1
    if is_bare_t or not any(amounts.values()):
        raise NoTime(f"{text!r} is not a duration: expected for example 20s, 1d2h30m or P1DT2H30M")
    try:
        seconds = float((amounts["seconds"] or "0").replace(",", "."))
        duration = timedelta(
            days=int(amounts["days"] or 0),
            hours=int(amounts["hours"] or 0),
            minutes=int(amounts["minutes"] or 0),
            seconds=seconds,
            milliseconds=int(amounts["milliseconds"] or 0),
        )
    except OverflowError:
        duration = timedelta.max
    except ValueError:
        # Python refuses to parse integers of more than a few thousand digits.
        duration = timedelta.max
    if duration.days > DAYS_MAX:
        raise NoTime(f"{text[:40]!r} is too long: at most {DAYS_MAX} days are allowed")
    return duration // MILLISECOND


def parse_datetime_ms(text: str) -> int:
    """Parses `2026-11-21T10:15:00.000` or a shorter form; `Z` or `+01:00` may follow. The default is UTC, as in Kafka.

    Returns milliseconds since 1970. Raises NoTime, also for earlier times.
    """
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise NoTime(
            f"{text!r} is not a point in time: expected for example 2026-11-21T10:15:00.000, with +01:00 unless it is UTC"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    milliseconds = (moment - EPOCH) // MILLISECOND
    if milliseconds < 0:
        # The protocol uses negative times for other meanings.
        raise NoTime(f"{text!r} is before 1970")
    return milliseconds
