"""The flights as events: clocks past midnight, time zones, daylight saving time, cancelled and diverted flights."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.replay.traces.flight_events import (
    Flight,
    arrival_moment,
    departure_moment,
    events_of,
    minutes_of_clock,
    zone_of_airport,
)

ZONES = ["America/New_York", "America/Los_Angeles", "America/Phoenix", "America/Puerto_Rico", "Pacific/Honolulu"]


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(("reading", "minutes"), [(0, 0), (5, 5), (517, 317), (1200, 720), (2359, 1439), (2400, 1440)])
def test_clock_readings(reading: int, minutes: int) -> None:
    assert minutes_of_clock(reading) == minutes


@pytest.mark.parametrize("reading", [-1, 60, 1275, 2401, 2500])
def test_impossible_clock_readings_are_refused(reading: int) -> None:
    with pytest.raises(ValueError, match="clock"):
        minutes_of_clock(reading)


@pytest.mark.parametrize(
    ("day", "scheduled", "delay", "expected"),
    [
        # the table's first row: UA1545 left at 05:17 EST
        (date(2013, 1, 1), 515, 2, "2013-01-01T10:17"),
        # early, and early across midnight
        (date(2013, 1, 1), 600, -6, "2013-01-01T10:54"),
        (date(2013, 1, 2), 5, -10, "2013-01-02T04:55"),
        # late past midnight: 23:59 + 14 h 20 min (dep_time 1419 of the next day)
        (date(2013, 7, 4), 2359, 860, "2013-07-05T18:19"),
        # dep_time 2400: 23:59 and one minute more
        (date(2013, 7, 4), 2359, 1, "2013-07-05T04:00"),
        # the longest delay of the table, 1301 minutes
        (date(2013, 1, 9), 900, 1301, "2013-01-10T11:41"),
        # summer time begins on March 10 at 02:00: the schedule of 06:00 is one hour less after midnight
        (date(2013, 3, 9), 2359, 0, "2013-03-10T04:59"),
        (date(2013, 3, 10), 600, 0, "2013-03-10T10:00"),
        # a delay is elapsed time: 23:59 EST + 3 h is 03:59 EDT
        (date(2013, 3, 9), 2359, 180, "2013-03-10T07:59"),
        # and it ends on November 3 at 02:00
        (date(2013, 11, 2), 2359, 0, "2013-11-03T03:59"),
        (date(2013, 11, 3), 600, 0, "2013-11-03T11:00"),
    ],
)
def test_departures(day: date, scheduled: int, delay: int, expected: str) -> None:
    assert departure_moment(day, scheduled, delay) == utc(expected)


@pytest.mark.parametrize(
    ("departed", "air", "clock", "zone", "expected"),
    [
        # UA1545 to Houston: 08:30 CST
        ("2013-01-01T10:17", 227, 830, "America/Chicago", "2013-01-01T14:30"),
        # to Los Angeles and Honolulu, three and five hours behind
        ("2013-01-01T10:58", 345, 924, "America/Los_Angeles", "2013-01-01T17:24"),
        ("2013-01-01T14:00", 659, 1516, "Pacific/Honolulu", "2013-01-02T01:16"),
        # no summer time in Phoenix and Puerto Rico
        ("2013-07-01T12:00", 280, 1005, "America/Phoenix", "2013-07-01T17:05"),
        ("2013-07-01T12:00", 190, 1135, "America/Puerto_Rico", "2013-07-01T15:35"),
        # past midnight, and at midnight exactly, written 2400
        ("2013-01-02T03:30", 60, 3, "America/New_York", "2013-01-02T05:03"),
        ("2013-01-02T03:30", 60, 2400, "America/New_York", "2013-01-02T05:00"),
        # through the night in which an hour is missing, and the one in which it comes twice
        ("2013-03-10T06:30", 45, 345, "America/New_York", "2013-03-10T07:45"),
        ("2013-11-03T04:50", 45, 145, "America/New_York", "2013-11-03T05:45"),
        ("2013-11-03T05:20", 45, 115, "America/New_York", "2013-11-03T06:15"),
    ],
)
def test_arrivals(departed: str, air: int, clock: int, zone: str, expected: str) -> None:
    assert arrival_moment(utc(departed), air, clock, ZoneInfo(zone)) == utc(expected)


@given(
    departed=st.datetimes(datetime(2013, 1, 1), datetime(2013, 12, 31)),
    air=st.integers(20, 700),
    taxi=st.integers(0, 1000),
    zone=st.sampled_from(ZONES),
)
def test_an_arrival_is_found_again_from_its_clock_reading(departed: datetime, air: int, taxi: int, zone: str) -> None:
    left = departed.replace(second=0, microsecond=0, tzinfo=UTC)
    landed = left + timedelta(minutes=air + taxi)
    shown = landed.astimezone(ZoneInfo(zone))
    found = arrival_moment(left, air, shown.hour * 100 + shown.minute, ZoneInfo(zone))
    # The hour that is shown twice cannot be told apart; the first pass not before departure + air time is taken.
    assert landed - found in (timedelta(0), timedelta(hours=1))
    assert found >= left + timedelta(minutes=air)
    assert found.astimezone(ZoneInfo(zone)).strftime("%H%M") == shown.strftime("%H%M")


def test_zones_of_airports() -> None:
    summer = datetime(2013, 7, 1, tzinfo=UTC)

    def offset_hours(*airport: object) -> float:
        offset = zone_of_airport(*airport).utcoffset(summer)  # type: ignore[arg-type]
        assert offset is not None
        return offset.total_seconds() / 3600

    assert offset_hours("IAH", "America/Chicago", -6) == -5
    assert [offset_hours(code, None, None) for code in ("BQN", "PSE", "SJU", "STT")] == [-4] * 4
    assert offset_hours("XXX", None, -3.5) == -3.5
    with pytest.raises(ValueError, match="YYY"):
        zone_of_airport("YYY", None, None)


def flight(**changes: object) -> Flight:
    row: dict[str, object] = {
        "day": date(2013, 1, 1),
        "scheduled_departure": 515,
        "departure_clock": 517,
        "departure_delay_minutes": 2,
        "arrival_clock": 830,
        "air_minutes": 227,
        "carrier": "UA",
        "number": 1545,
        "tail_number": "N14228",
        "origin": "EWR",
        "destination": "IAH",
    }
    return Flight(**(row | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ({}, ["departure", "arrival"]),
        ({"departure_clock": None, "departure_delay_minutes": None, "arrival_clock": None, "air_minutes": None}, []),
        ({"arrival_clock": None, "air_minutes": None}, ["departure"]),
        ({"air_minutes": None}, ["departure"]),
    ],
    ids=["landed", "cancelled", "diverted", "diverted, landed somewhere"],
)
def test_events_of_a_flight(changes: dict[str, object], kinds: list[str]) -> None:
    events = list(events_of(flight(**changes), ZoneInfo("America/Chicago")))
    assert [event.kind for event in events] == kinds
    assert [event.at for event in events] == sorted(event.at for event in events)
    assert all(event.key == "UA" for event in events)


def test_the_value_tells_the_event() -> None:
    departure = next(events_of(flight(), ZoneInfo("America/Chicago")))
    assert json.loads(departure.value()) == {
        "event": "departure",
        "at": "2013-01-01T10:17:00Z",
        "flight": "UA1545",
        "tail": "N14228",
        "from": "EWR",
        "to": "IAH",
        "departure_delay_min": 2,
    }
