"""`ottla replay trace flights`: the flights that left New York in 2013 (`flights.parquet`, public domain) as a trace (RPL-5).

Each departure and each arrival is a produce of one record by its carrier, with the carrier as the key. Each record is fetched at the same
time, by a long poll of the reader of its partition: `reader-0` to `reader-5`, which are in no group but in the demo. A reader may also
fetch less often, several records at a time. `make_flights.py` makes the table, and says what is in it.
"""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import numpy
import pyarrow
import pyarrow.compute
import pyarrow.parquet

from tools.replay.traces.batch_sizes import body_sizes, single_batch_sizes
from tools.replay.traces.key_hashes import key_hashes
from tools.replay.traces.produced import produce_rows, with_fetches
from tools.replay.traces.schema import TraceError, TraceInfo, TraceWriter

TOPIC = "departures"
PARTITIONS = 6
TABLE = Path(__file__).with_name("flights.parquet")
FIRST_DAY = date(2013, 1, 1)
DAYS_IN_TABLE = 365
EVENTS_AT_ONCE = 64 * 1024


def write_flights_trace(path: Path, start_day: date, days: int, fetch_gap_ns: int = 0, group: str | None = None) -> int:
    """Writes the trace of the flights scheduled on `days` days from `start_day` and returns its number of events.

    With a `fetch_gap_ns`, a reader fetches once in each such time of the trace. `group`: that of the readers, if they are in one. Raises
    TraceError for days outside 2013.
    """
    events = events_on(start_day, days)
    times = events["at"].cast(pyarrow.timestamp("ns", "UTC")).cast("int64").to_numpy()
    clients = events["carrier"].combine_chunks()
    key_sizes, value_sizes = pyarrow.compute.binary_length(clients), events["bytes"]
    sizes = single_batch_sizes(body_sizes(*(column.cast("int64").to_numpy() for column in (key_sizes, value_sizes))))
    hashes = key_hashes(clients, "crc32")
    count = len(times)
    source = f"flights of 2013 from New York, {days} day(s) from {start_day}"
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


def events_on(start_day: date, days: int) -> pyarrow.Table:
    """The events of the flights scheduled to leave on `days` days from `start_day`, in the order of time. Raises TraceError."""
    last_day = start_day + timedelta(days=days - 1)
    if days < 1 or start_day < FIRST_DAY or last_day >= FIRST_DAY + timedelta(days=DAYS_IN_TABLE):
        raise TraceError(f"{days} day(s) from {start_day} are not all in 2013, the year of the table")
    chosen = [("scheduled", ">=", start_day), ("scheduled", "<=", last_day)]
    return pyarrow.parquet.read_table(TABLE, filters=chosen)
