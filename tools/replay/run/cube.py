"""All counts, sums and percentiles of a replay from one pass over its operations (RPL-3).

Each *slice* groups the operations by some columns and, if it has a time, by the bucket of that time (`histograms`). Slices are made of
*bases*, which group by all columns of their slices: that leaves few rows, of which a second aggregation makes the slices and their
percentiles. All are parts of one query, because Spark takes 0.3 s to prepare a query. The result has at most some rows for each
interval, partition, broker and step, however many operations there are.

Columns of an operation that a slice can group by: `op`, `topic`, `partition`, `leader`, `client` (null if it is not one of the largest),
`main_topic` (the same), `error`, `task`; the intervals `due` and `came` in which it was scheduled and answered without an
error; the step of a ramp `step` in which it was due, and `came_step` in which it was answered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tools.replay.run.histograms import bucket_sql, milliseconds

FROM_DUE, FROM_SENT, LATE, READY_LATE = "from_due", "from_sent", "late", "ready_late"
TIMES = {
    FROM_DUE: "IF(error IS NULL, answered - scheduled, NULL)",
    FROM_SENT: "IF(error IS NULL, answered - sent, NULL)",
    LATE: "sent - scheduled",
    READY_LATE: "IF(ready < scheduled, 0L, ready - scheduled)",
}
"""The times with histograms, in nanoseconds: the latency from the scheduled and from the sent time, the lateness, and how much of it the
generator caused."""
POINTS = [
    *(0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.92, 0.94, 0.95, 0.96, 0.97, 0.98, 0.985),
    *(0.99, 0.992, 0.994, 0.996, 0.998, 0.999, 0.9995, 0.9999, 1.0),
]
"""The quantiles that each slice with a time has."""
SUMS = {
    "operations": ("count(*)", "sum"),
    "failed": ("count_if(has_failed)", "sum"),
    "records": ("sum(IF(has_failed, 0, records))", "sum"),
    "bytes": ("sum(IF(has_failed, 0, bytes))", "sum"),
    "sent_records": ("sum(IF(was_sent, records, 0))", "sum"),
    "first": ("min(scheduled)", "min"),
    "last": ("max(scheduled)", "max"),
}
"""Column -> how it is made of operations, and of rows of a base. `records` and `bytes` are of those that succeeded, `sent_records` of those
that left; `first` and `last` are the scheduled times."""


@dataclass(frozen=True, slots=True)
class Base:
    """A grouping of the operations, and the slices that are made of its rows, each with the columns that it groups by.

    The operations are counted once for each base, so slices share one as long as it has few rows. `time`: the one of TIMES whose
    percentiles the slices have. `sums`: which of SUMS they have besides `operations`.
    """

    slices: dict[str, tuple[str, ...]]
    time: str | None = None
    sums: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns of the slices."""
        return tuple(dict.fromkeys(column for columns in self.slices.values() for column in columns))


BASES = (
    Base(
        {
            "all": ("op",),
            "topic": ("op", "topic"),
            "partition": ("op", "topic", "partition"),
            "broker": ("op", "leader"),
            "error": ("op", "error"),
        },
        FROM_DUE,
        ("failed", "records", "bytes", "sent_records", "first", "last"),
    ),
    Base({"all_sent": ("op",)}, FROM_SENT),
    Base({"due": ("op", "due")}, FROM_DUE, ("failed",)),
    Base({"due_late": ("op", "due"), "all_late": ("op",)}, LATE),
    Base({"due_ready": ("op", "due"), "all_ready": ("op",)}, READY_LATE),
    Base({"client": ("op", "client"), "task": ("task",)}, FROM_DUE, ("failed", "records", "bytes", "last")),
    Base(
        {"came_topic": ("op", "came", "main_topic"), "came_broker": ("op", "came", "leader")},
        None,
        ("records", "bytes"),
    ),
    Base({"came_client": ("op", "came", "client")}, None, ("bytes",)),
)
RAMP_BASES = (
    Base({"step": ("op", "step")}, FROM_DUE),
    Base({"step_late": ("op", "step")}, LATE),
    Base({"came_step": ("op", "came_step")}),
)
WITH_HISTOGRAM = "due"
"""The slice whose histograms are kept."""


@dataclass(frozen=True, slots=True)
class Grid:
    """How operations fall into intervals and steps. Times in ns since 1970 UTC, or a length in ns."""

    began: int
    interval: int
    step: int
    """0: the run has no ramp."""
    steps: int
    last_due: int
    """When the last step ends: when the last operation was due."""

    def interval_sql(self, time: str) -> str:
        return f"CAST(floor(({time} - {self.began}L) / {self.interval}L) AS INT)"

    def step_sql(self, time: str) -> str:
        # Not `least`, which leaves a null out.
        step, last = f"floor(({time} - {self.began}L) / {self.step}L)", self.steps - 1
        return f"CAST(IF({step} > {last}, {last}, {step}) AS INT)"


def one_of(column: str, names: Sequence[str]) -> str:
    """The column, or null if it is none of these."""
    if not names:
        return "CAST(NULL AS STRING)"
    return f"IF({column} IN ({', '.join(map(literal, names))}), {column}, NULL)"


def literal(text: str) -> str:
    """A string in SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def cube(
    session: SparkSession, grid: Grid, topics: Sequence[str], clients: Sequence[str]
) -> dict[str, list[dict[str, Any]]]:
    """Slice -> its rows, from the view `operations`. `topics` and `clients`: the names that are told apart.

    A row has the slice's columns, `operations`, the `sums` of its base and, if that has a time, `points` (of POINTS -> ms, or None). The
    rows of WITH_HISTOGRAM also have `histogram`, a list of (bucket, operations).
    """
    bases = (*BASES, *(RAMP_BASES if grid.step else ()))
    within = f"IF(error IS NULL AND answered <= {grid.last_due}L, answered, NULL)"
    steps = f", {grid.step_sql('scheduled')} AS step, {grid.step_sql(within)} AS came_step"
    session.sql(
        f"""
        SELECT op, topic, partition, leader, {one_of("client", clients)} AS client,
            {one_of("topic", topics)} AS main_topic, error, task, {grid.interval_sql("scheduled")} AS due,
            IF(error IS NULL, {grid.interval_sql("answered")}, NULL) AS came{steps if grid.step else ""},
            {", ".join(f"{time} AS {name}" for name, time in TIMES.items())},
            error IS NOT NULL AS has_failed, sent IS NOT NULL AS was_sent, records, bytes, scheduled
        FROM operations
        """
    ).createOrReplaceTempView("timed")
    counted = [session.sql(base_sql(base)) for base in bases]
    together = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), counted)
    together.createOrReplaceTempView("counted")
    columns = dict.fromkeys(column for base in bases for column in base.columns)
    query = f"""
        SELECT slice, {", ".join(f"{kept_sql(column, bases)} AS {column}" for column in columns)},
            {", ".join(f"{of_rows}({name}) AS {name}" for name, (_, of_rows) in SUMS.items())},
            percentile(bucket, array({", ".join(f"{point!r}D" for point in POINTS)}), operations) AS buckets,
            max(largest) AS largest,
            collect_list(IF(slice = '{WITH_HISTOGRAM}' AND bucket IS NOT NULL, struct(bucket, operations), NULL)) AS histogram
        FROM (SELECT *, explode(slices) AS slice FROM counted)
        GROUP BY slice, {", ".join(kept_sql(column, bases) for column in columns)}
    """
    slices = {name: base for base in bases for name in base.slices}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in slices}
    for row in rows_of(session.sql(query)):
        found[row["slice"]].append(row_of(row, slices[row["slice"]]))
    return found


def rows_of(frame: DataFrame) -> Iterator[dict[str, Any]]:
    """Each row with plain values, as fast as this Spark can: `toArrow` is there from Spark 4.0 on."""
    if hasattr(frame, "toArrow"):
        for batch in frame.toArrow().to_batches(1024):
            yield from batch.to_pylist()
    else:
        for row in frame.collect():
            yield row.asDict(recursive=True)


def base_sql(base: Base) -> str:
    """The query for the rows of a base, from `timed`: how many operations there are for each value of its columns and each bucket."""
    keys = ", ".join(base.columns)
    sums = {name: of_operations for name, (of_operations, _) in SUMS.items() if name in ("operations", *base.sums)}
    bucket = "CAST(NULL AS INT)"
    if base.time is not None:
        bucket, sums["largest"] = bucket_sql(base.time), f"max({base.time})"
    return f"""
        SELECT array({", ".join(map(literal, base.slices))}) AS slices, {keys}, bucket,
            {", ".join(f"{value} AS {name}" for name, value in sums.items())}
        FROM (SELECT *, {bucket} AS bucket FROM timed) GROUP BY {keys}, bucket
    """


def kept_sql(column: str, bases: Sequence[Base]) -> str:
    """The column in the slices that group by it, else null."""
    names = [literal(name) for base in bases for name, columns in base.slices.items() if column in columns]
    return f"IF(slice IN ({', '.join(names)}), {column}, NULL)"


def row_of(row: dict[str, Any], base: Base) -> dict[str, Any]:
    """The row of a slice from that of the query."""
    kept = {key: row[key] for key in (*base.slices[row["slice"]], "operations", *base.sums)}
    if base.time is not None:
        kept["points"] = milliseconds_of(row["buckets"], row["largest"])
        kept["histogram"] = [(each["bucket"], each["operations"]) for each in row["histogram"] or ()]
    return kept


def milliseconds_of(buckets: Sequence[float] | None, largest_ns: int | None) -> dict[float, float] | None:
    """POINTS -> the times; the last is the exact maximum, which no other exceeds."""
    if buckets is None or largest_ns is None:
        return None
    largest = largest_ns / 1e6
    times = [*(min(float(milliseconds(bucket)), largest) for bucket in buckets[:-1]), largest]
    return dict(zip(POINTS, times, strict=True))
