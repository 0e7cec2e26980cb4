"""The trace of the flights: from the real table to Parquet and back, and files that are no trace."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from tools.replay import trace
from tools.replay.flights import ORIGIN_ZONE, events_of, minutes_of_clock
from tools.replay.schedule import partition_of


@pytest.fixture(scope="module")
def one_day(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "day.parquet"
    trace.write_flights_trace(path, date(2013, 11, 3), 1)
    return path


def test_a_day_as_a_trace(one_day: Path) -> None:
    flights = list(trace.read_flights(date(2013, 11, 3), 1))
    departures = sum(flight.departure_clock is not None for flight in flights)
    landings = sum(flight.arrival_clock is not None and flight.air_minutes is not None for flight in flights)
    summary = trace.summarize(one_day)
    assert len(flights) == 902
    assert summary.produces == summary.fetches == departures + landings
    assert sum(summary.produces_by_client.values()) == summary.produces
    table = trace.read(one_day)
    assert table.schema == trace.SCHEMA
    times = table["time"].to_pylist()
    assert times == sorted(times)
    assert summary.duration_s(3600) == pytest.approx((times[-1] - times[0]).total_seconds() / 3600)


def test_departures_leave_when_the_clock_shows_it() -> None:
    """`dep_time`, which the computation does not use, agrees with it in every row around a clock change."""
    zone_of = trace.zones_of_airports()
    checked = 0
    for flight in trace.read_flights(date(2013, 3, 8), 5):
        for event in events_of(flight, zone_of(flight.destination)):
            zone = ORIGIN_ZONE if event.kind == "departure" else zone_of(flight.destination)
            reading = flight.departure_clock if event.kind == "departure" else flight.arrival_clock
            assert reading is not None
            local = event.at.astimezone(zone)
            # B6 35 landed at 02:03 by the table, in the hour that was skipped that night: 03:03 by a right clock.
            expected = 303 if (flight.carrier, flight.number, reading) == ("B6", 35, 203) else reading
            assert local.hour * 60 + local.minute == minutes_of_clock(expected) % 1440
            checked += 1
    assert checked > 7000


def test_every_partition_of_the_demo_gets_events(one_day: Path) -> None:
    keys = trace.summarize(one_day).produces_by_key
    assert {partition_of(key, 0, 6) for key in keys} == set(range(6))


@pytest.mark.parametrize(("start", "days"), [(date(2012, 12, 31), 2), (date(2013, 12, 31), 2), (date(2013, 1, 1), 366)])
def test_days_outside_the_table(start: date, days: int) -> None:
    with pytest.raises(trace.TraceError, match="2013"):
        list(trace.read_flights(start, days))


def test_a_file_that_is_no_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(trace.TraceError, match="no such file"):
        trace.summarize(tmp_path / "absent.parquet")
    text = tmp_path / "text.parquet"
    text.write_text("hello")
    with pytest.raises(trace.TraceError, match="Parquet"):
        trace.summarize(text)
    other = tmp_path / "other.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"time": [1]}), other)
    with pytest.raises(trace.TraceError, match="no column op"):
        trace.summarize(other)
    empty = tmp_path / "empty.parquet"
    trace.write(empty, trace.SCHEMA.empty_table())
    with pytest.raises(trace.TraceError, match="no produce"):
        trace.summarize(empty)
