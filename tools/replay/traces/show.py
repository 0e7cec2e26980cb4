"""`ottla replay trace show`: what is in a trace, in figures."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy
import pyarrow
from numpy.typing import NDArray

from tools.replay.traces.ordering import in_whole_times
from tools.replay.traces.schema import FETCH, PRODUCE, Trace

SECOND_NS = 1_000_000_000
HOT_SHARE = 1.5
"""Of the share of a task: a client with more keeps the other tasks waiting."""
BARS = "▁▂▃▄▅▆▇█"
BARS_WIDE = 60
COLUMNS = [
    *("time_ns", "request", "op", "client", "topic", "partition", "records", "bytes"),
    *("compression", "acks", "transactional", "group"),
]


HEADINGS = "TOPIC OP REQUESTS /S RECORDS /S MB MB/S CLIENTS PARTITIONS GROUPS COMPRESSION ACKS"
KEYS = ["topic", "op"]
COUNTED = ("records", "bytes", "transactional")
RATED = ("requests", "records", "bytes")
SUMS = (*RATED, "transactional_rows")
VALUES = ("client", "partition", "group", "compression", "acks")


def overview(path: Path) -> dict[str, Any]:
    """What `show --json` prints. Reads the whole trace. Rates are over the time from the first to the last row; None if that is 0.

    Raises TraceError.
    """
    trace = Trace(path)
    info, last_ns = trace.info, trace.last_time_ns()
    first_ns: int | None = None
    requests = 0
    loads: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    values: dict[str, defaultdict[tuple[str, str], Counter[Any]]] = {name: defaultdict(Counter) for name in VALUES}
    over_time = {op: numpy.zeros(BARS_WIDE, numpy.int64) for op in (PRODUCE, FETCH)}
    in_seconds: Counter[int] = Counter()
    for table in in_whole_times(trace.batches(COLUMNS)):
        first_ns = int(table["time_ns"][0].as_py()) if first_ns is None else first_ns
        for topic, op, *sums in _rows(
            table.group_by(KEYS).aggregate([("request", "count_distinct"), *((name, "sum") for name in COUNTED)])
        ):
            loads[topic, op].update({name: number or 0 for name, number in zip(SUMS, sums, strict=True)})
        for topic, op, *found, rows in _rows(table.group_by([*KEYS, *VALUES]).aggregate([("request", "count")])):
            for name, value in zip(VALUES, found, strict=True):
                if value is not None:
                    values[name][topic, op][value] += rows
        times, ops = _first_rows(table)
        requests += len(times)
        for op, counts in over_time.items():
            counts += _in_parts(times[ops == op], first_ns, last_ns)
        seconds, counts = numpy.unique(times // SECOND_NS, return_counts=True)
        in_seconds.update(dict(zip(seconds.tolist(), counts.tolist(), strict=True)))
        (busiest,) = in_seconds.most_common(1)
        in_seconds = Counter(dict([busiest, (int(seconds[-1]), in_seconds[int(seconds[-1])])]))
    duration_s = (last_ns - (first_ns or 0)) / SECOND_NS
    clients: Counter[str] = Counter()
    for of_load in values["client"].values():
        clients.update(of_load)
    (hottest,) = clients.most_common(1)
    return {
        "path": str(path),
        "source": info.source,
        "start": wall_time(info.start),
        "first_ns": first_ns,
        "last_ns": last_ns,
        "duration_s": duration_s,
        "rows": trace.rows,
        "requests": requests,
        "dropped": info.dropped,
        "partitions": dict(info.topics),
        "loads": [
            {
                **dict(zip(KEYS, place, strict=True)),
                **{name: sums[name] for name in SUMS},
                **{f"{name}_per_s": sums[name] / duration_s if duration_s else None for name in RATED},
                "clients": len(values["client"][place]),
                "partitions": sum(partition >= 0 for partition in values["partition"][place]),
                "groups": sorted(values["group"][place]),
                "compression": dict(values["compression"][place]),
                "acks": {str(acks): rows for acks, rows in values["acks"][place].items()},
            }
            for place, sums in sorted(loads.items())
        ],
        "busiest_second": {"second": busiest[0], "requests": busiest[1]},
        "busiest_client": {"client": hottest[0], "share": hottest[1] / trace.rows},
        "requests_over_time": {op: counts.tolist() for op, counts in over_time.items()},
    }


def _rows(table: pyarrow.Table) -> Iterable[tuple[Any, ...]]:
    return zip(*(column.to_pylist() for column in table.columns), strict=True)


def _first_rows(table: pyarrow.Table) -> tuple[NDArray[numpy.int64], NDArray[numpy.object_]]:
    """The time and the operation of each request, in the order of time."""
    _, places = numpy.unique(table["request"].to_numpy(), return_index=True)
    places.sort()
    return table["time_ns"].to_numpy()[places], table["op"].to_numpy()[places]


def _in_parts(times: NDArray[numpy.int64], first_ns: int, last_ns: int) -> NDArray[numpy.int64]:
    width = max(1, -(-(last_ns - first_ns + 1) // BARS_WIDE))
    parts = numpy.clip((times - first_ns) // width, 0, BARS_WIDE - 1)
    return numpy.bincount(parts, minlength=BARS_WIDE)


def lines(seen: Mapping[str, Any]) -> list[str]:
    """The overview for people."""
    from tools.cluster.tables import aligned

    busiest, hottest = seen["busiest_second"], seen["busiest_client"]
    useful = max(int(HOT_SHARE / hottest["share"]), 1)
    too_hot = f": more than {useful:,} --tasks would wait for it"
    found = [
        f"{seen['path']}: {seen['source']}",
        f"start     {seen['start']}",
        f"duration  {duration(seen['duration_s'])}, from {duration(seen['first_ns'] / SECOND_NS)} after the start",
        f"rows      {seen['rows']:,}, of {_requests(seen['requests'])}",
        f"busiest   {_requests(busiest['requests'])} in the second at {duration(busiest['second'])} after the start",
        f"          client {hottest['client']}: {hottest['share']:.0%} of the rows. A client is in one task of a replay{too_hot}",
    ]
    if seen["dropped"]:
        found.append(f"dropped   {_requests(seen['dropped'])}, which the recorder had no room for")
    rows = [HEADINGS.split()]
    for load in seen["loads"]:
        of_topic = f" of {seen['partitions'][load['topic']]}" if load["topic"] in seen["partitions"] else ""
        rows.append(
            [
                *(load["topic"] or "-", load["op"]),
                *(f"{load['requests']:,}", _rate(load["requests_per_s"])),
                *(f"{load['records']:,}", _rate(load["records_per_s"])),
                *(f"{load['bytes'] / 1e6:,.1f}", _rate(load["bytes_per_s"], 1e6)),
                f"{load['clients']:,}",
                f"{load['partitions'] or 'by key'}{of_topic}" if load["topic"] else "-",
                f"{len(load['groups']):,}",
                ", ".join(sorted(load["compression"], key=lambda name: -load["compression"][name])) or "-",
                ", ".join(sorted(load["acks"], key=lambda acks: -load["acks"][acks])).replace("-1", "all") or "-",
            ]
        )
    found += ["", *aligned(rows), ""]
    for op, counts in seen["requests_over_time"].items():
        if any(counts):
            bar = duration(seen["duration_s"] / BARS_WIDE)
            found.append(f"{op:8}{bars(counts)}  one bar: {bar}, at most {_requests(max(counts))}")
    return found


def _requests(count: int) -> str:
    return f"{count:,} request{'' if count == 1 else 's'}"


def _rate(rate: float | None, unit: float = 1.0) -> str:
    return "-" if rate is None else f"{rate / unit:,.2f}" if rate / unit < 10 else f"{rate / unit:,.0f}"


def bars(amounts: Sequence[float]) -> str:
    """A bar for each amount, the highest for the largest one; a space for 0."""
    top = max(amounts, default=0)
    return "".join(" " if not amount else BARS[min(7, int(8 * amount / top))] for amount in amounts)


def wall_time(ns: int) -> str:
    """ISO 8601 in UTC, to the microsecond."""
    try:
        return f"{datetime.fromtimestamp(ns // SECOND_NS, UTC):%Y-%m-%dT%H:%M:%S}.{ns % SECOND_NS // 1000:06}Z"
    except (OverflowError, OSError, ValueError):
        return f"{ns} ns since 1970"


def duration(seconds: float) -> str:
    """For people, as the options take it: `1d2h30m`, `2m5s`, `1.5s`, `250ms`."""
    if seconds < 1:
        return f"{seconds * 1000:.4g}ms" if seconds else "0s"
    if seconds < 60:
        return f"{seconds:.4g}s"
    shown = [f"{amount}{unit}" for amount, unit in _whole_units(round(seconds)) if amount]
    return "".join(shown[:3])


def _whole_units(seconds: int) -> Iterable[tuple[int, str]]:
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return (days, "d"), (hours, "h"), (minutes, "m"), (rest, "s")
