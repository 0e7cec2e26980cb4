"""Durations and points in time: Java's and people's spellings, and what is refused. Any other text: the fuzzer's decoder `time`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.points_in_time import NoTime, parse_datetime_ms, parse_duration_ms

SECOND = 1000
HOUR = 3600 * SECOND
DAY = 24 * HOUR


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("PT0S", 0),
        ("P1D", DAY),
        ("P2DT3H4M5.006S", 2 * DAY + 3 * HOUR + 4 * 60 * SECOND + 5006),
        ("pt1h", HOUR),
        ("PT90M", 90 * 60 * SECOND),
        ("PT0,5S", 500),
        ("1d", DAY),
        ("2h30m", 2 * HOUR + 30 * 60 * SECOND),
        ("1.5s", 1500),
        ("250ms", 250),
        ("2m1s5ms", 121_005),
    ],
)
def test_durations(text: str, milliseconds: int) -> None:
    assert parse_duration_ms(text) == milliseconds


@pytest.mark.parametrize(
    "text", ["", "an hour", " 1d", *["P", "PT", "P1DT", "5", "-1d", "PT-6H", "P1W", "1h1d", "P1H", "1D", "٣h"]]
)
def test_bad_durations(text: str) -> None:
    with pytest.raises(NoTime, match="expected for example 20s, 1d2h30m or P1DT2H30M"):
        parse_duration_ms(text)


@pytest.mark.parametrize("text", ["P9999999999D", "99999999999999h", "P" + "9" * 5000 + "D"])
def test_too_long_durations(text: str) -> None:
    with pytest.raises(NoTime, match="is too long: at most"):
        parse_duration_ms(text)


@given(st.integers(0, 9999), st.integers(0, 99), st.integers(0, 99), st.integers(0, 99_999))
def test_durations_are_read_back(days: int, hours: int, minutes: int, milliseconds: int) -> None:
    meant = timedelta(days=days, hours=hours, minutes=minutes, milliseconds=milliseconds) // timedelta(milliseconds=1)
    seconds = f"{milliseconds // 1000}.{milliseconds % 1000:03}"
    assert parse_duration_ms(f"P{days}DT{hours}H{minutes}M{seconds}S") == meant
    assert parse_duration_ms(f"{days}d{hours}h{minutes}m{seconds}s") == meant


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1970-01-01T00:00:00.000", 0),
        ("2026-11-21T10:15:00.000", 1795256100000),
        ("2026-11-21T10:15:00.123", 1795256100123),
        ("2026-11-21T10:15:00Z", 1795256100000),
        ("2026-11-21T11:15:00.000+01:00", 1795256100000),
        ("2026-11-21 10:15", 1795256100000),
        ("2026-11-21", 1795219200000),
    ],
)
def test_points_in_time(text: str, milliseconds: int) -> None:
    assert parse_datetime_ms(text) == milliseconds


@pytest.mark.parametrize("text", ["", "gestern", "10:15", "2026-13-01T00:00", "2026-02-30", "1700000000000"])
def test_bad_points_in_time(text: str) -> None:
    with pytest.raises(NoTime, match="expected for example 2026-11-21T10"):
        parse_datetime_ms(text)


@pytest.mark.parametrize("text", ["1969-12-31T23:59:59.999Z", "1970-01-01T00:00:00+01:00"])
def test_times_before_1970_are_refused(text: str) -> None:
    with pytest.raises(NoTime, match="before 1970"):
        parse_datetime_ms(text)


ZONES = st.none() | st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(st.datetimes(min_value=datetime(1971, 1, 1), timezones=st.none()), ZONES)
def test_points_in_time_are_read_back(moment: datetime, zone: timezone | None) -> None:
    meant = moment.replace(microsecond=moment.microsecond // 1000 * 1000, tzinfo=zone)
    if zone is None:
        text, meant = meant.isoformat(timespec="milliseconds"), meant.replace(tzinfo=UTC)
    else:
        text = meant.isoformat(timespec="milliseconds")
    milliseconds = parse_datetime_ms(text)
    assert milliseconds == (meant - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
