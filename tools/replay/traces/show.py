"""`ottla replay trace show`: what is in a trace, in figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy
import pyarrow
from numpy.typing import NDArray

from tools.replay.traces.ordering import in_whole_times
from tools.replay.traces.schema import FETCH, PRODUCE, Trace

SECOND_NS = 1_000_000_000
BARS = "▁▂▃▄▅▆▇█"
BARS_WIDE = 60
COLUMNS = [
    *("time_ns", "request", "op", "client", "topic", "partition", "records", "bytes"),
    *("compression", "acks", "transactional", "group"),
]


HEADINGS = "TOPIC OP REQUESTS /S RECORDS /S MB MB/S CLIENTS PARTITIONS GROUPS COMPRESSION ACKS"


@dataclass(slots=True)
class Load:
    """The rows of a topic and an operation. `compression`, `acks`: value -> rows."""

    requests: int = 0
    rows: int = 0
    records: int = 0
    bytes: int = 0
    transactional: int = 0
    clients: set[str] = field(default_factory=set)
    partitions: set[int] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    compression: Counter[str] = field(default_factory=Counter)
    acks: Counter[int] = field(default_factory=Counter)


@dataclass(slots=True)
class Overview:
    """A whole trace. Rates are over the time from the first to the last row; None if that is 0."""

    path: Path
    source: str
    start: int
    first_ns: int
    last_ns: int
    dropped: int
    topics: dict[str, int]
    rows: int = 0
    requests: int = 0
    loads: dict[tuple[str, str], Load] = field(default_factory=dict)
    busiest_second: int = 0
    """Seconds since the start."""
    busiest_requests: int = 0
    over_time: dict[str, NDArray[numpy.int64]] = field(default_factory=dict)
    """Operation -> requests in each of `BARS_WIDE` equal parts of the time."""

    @property
    def duration_s(self) -> float:
        return (self.last_ns - self.first_ns) / SECOND_NS

    def rate(self, amount: int) -> float | None:
        return amount / self.duration_s if self.duration_s else None

    def to_json(self) -> dict[str, Any]:
        return {
            "path": str(self.path),
            "source": self.source,
            "start": wall_time(self.start),
            "first_ns": self.first_ns,
            "last_ns": self.last_ns,
            "duration_s": self.duration_s,
            "rows": self.rows,
            "requests": self.requests,
            "dropped": self.dropped,
            "partitions": self.topics,
            "loads": [
                {
                    "topic": topic,
                    "op": op,
                    "requests": load.requests,
                    "records": load.records,
                    "bytes": load.bytes,
                    "requests_per_s": self.rate(load.requests),
                    "records_per_s": self.rate(load.records),
                    "bytes_per_s": self.rate(load.bytes),
                    "clients": len(load.clients),
                    "partitions": len(load.partitions),
                    "groups": sorted(load.groups),
                    "compression": dict(load.compression),
                    "acks": {str(acks): rows for acks, rows in load.acks.items()},
                    "transactional_rows": load.transactional,
                }
                for (topic, op), load in sorted(self.loads.items())
            ],
            "busiest_second": {"second": self.busiest_second, "requests": self.busiest_requests},
            "requests_over_time": {op: counts.tolist() for op, counts in self.over_time.items()},
        }


def overview(path: Path) -> Overview:
    """Reads the whole trace. Raises TraceError."""
    trace = Trace(path)
    info = trace.info
    seen = Overview(path, info.source, info.start, 0, trace.last_time_ns(), info.dropped, dict(info.topics))
    second, in_second = 0, 0
    for table in in_whole_times(trace.batches(COLUMNS)):
        if not seen.rows:
            seen.first_ns = second_start = int(table["time_ns"][0].as_py())
            second = second_start // SECOND_NS
        seen.rows += table.num_rows
        _add_loads(seen.loads, table)
        times, ops = _first_rows(table)
        seen.requests += len(times)
        for op in (PRODUCE, FETCH):
            counts = _in_parts(times[ops == op], seen.first_ns, seen.last_ns)
            seen.over_time[op] = seen.over_time.get(op, 0) + counts
        seconds, counts = numpy.unique(times // SECOND_NS, return_counts=True)
        for each, count in zip(seconds.tolist(), counts.tolist(), strict=True):
            in_second = count + (in_second if each == second else 0)
            second = each
            if in_second > seen.busiest_requests:
                seen.busiest_second, seen.busiest_requests = second, in_second
    return seen


def _first_rows(table: pyarrow.Table) -> tuple[NDArray[numpy.int64], NDArray[numpy.object_]]:
    """The time and the operation of each request, in the order of time."""
    _, places = numpy.unique(table["request"].to_numpy(), return_index=True)
    places.sort()
    return table["time_ns"].to_numpy()[places], table["op"].to_numpy()[places]


def _in_parts(times: NDArray[numpy.int64], first_ns: int, last_ns: int) -> NDArray[numpy.int64]:
    width = max(1, -(-(last_ns - first_ns + 1) // BARS_WIDE))
    parts = numpy.clip((times - first_ns) // width, 0, BARS_WIDE - 1)
    return numpy.bincount(parts, minlength=BARS_WIDE)


def _add_loads(loads: dict[tuple[str, str], Load], table: pyarrow.Table) -> None:
    """`table` has whole requests."""
    keys = ["topic", "op"]
    sums = table.group_by(keys).aggregate(
        [
            ("request", "count_distinct"),
            ("request", "count"),
            ("records", "sum"),
            ("bytes", "sum"),
            ("transactional", "sum"),
        ]
    )
    for row in sums.to_pylist():
        load = loads.setdefault((row["topic"], row["op"]), Load())
        load.requests += row["request_count_distinct"]
        load.rows += row["request_count"]
        load.records += row["records_sum"]
        load.bytes += row["bytes_sum"]
        load.transactional += row["transactional_sum"] or 0
    for name in ("client", "partition", "group", "compression", "acks"):
        found = table.select([*keys, name, "request"]).group_by([*keys, name]).aggregate([("request", "count")])
        for row in found.to_pylist():
            value = row[name]
            if value is None or (name == "partition" and value < 0):
                continue
            load = loads[row["topic"], row["op"]]
            seen = getattr(load, name if name in ("compression", "acks") else f"{name}s")
            if isinstance(seen, Counter):
                seen[value] += row["request_count"]
            else:
                seen.add(value)


def lines(seen: Overview) -> list[str]:
    """The overview for people."""
    from tools.cluster.tables import aligned

    found = [
        f"{seen.path}: {seen.source}",
        f"start     {wall_time(seen.start)}",
        f"duration  {duration(seen.duration_s)}, from {duration(seen.first_ns / SECOND_NS)} after the start",
        f"rows      {seen.rows:,}, of {_requests(seen.requests)}",
        f"busiest   {_requests(seen.busiest_requests)} in the second at {duration(seen.busiest_second)} after the start",
    ]
    if seen.dropped:
        found.append(f"dropped   {_requests(seen.dropped)}, which the recorder had no room for")
    rows = [HEADINGS.split()]
    for (topic, op), load in sorted(seen.loads.items()):
        of_topic = f" of {seen.topics[topic]}" if topic in seen.topics else ""
        rows.append(
            [
                *(topic or "-", op),
                *(f"{load.requests:,}", _rate(seen.rate(load.requests))),
                *(f"{load.records:,}", _rate(seen.rate(load.records))),
                *(f"{load.bytes / 1e6:,.1f}", _rate(seen.rate(load.bytes), 1e6)),
                *(
                    f"{len(load.clients):,}",
                    f"{len(load.partitions) or 'by key'}{of_topic}" if topic else "-",
                    f"{len(load.groups):,}",
                ),
                ", ".join(name for name, _ in load.compression.most_common()) or "-",
                ", ".join("all" if acks == -1 else str(acks) for acks, _ in load.acks.most_common()) or "-",
            ]
        )
    found += ["", *aligned(rows), ""]
    for op, counts in seen.over_time.items():
        if counts.any():
            bar = duration(seen.duration_s / BARS_WIDE)
            found.append(f"{op:8}{bars(counts.tolist())}  one bar: {bar}, at most {_requests(counts.max())}")
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
