"""All counts, sums and percentiles of a replay from one pass over its operations (RPL-3).

Each *slice* groups the operations by some columns and, if it has a time, by the bucket of that time (`histograms`). The slices are
grouping sets of one query, because Spark takes 0.3 s to prepare a query. A second aggregation turns buckets into percentiles. The
result has at most some rows for each interval, partition, broker and step, however many operations there are.

Columns of an operation that a slice can group by: `op`, `topic`, `partition`, `leader`, `client` (null if it is not one of the largest),
`main_topic` (the same), `error`, `task`; the intervals `due`, `left` and `came` in which it was scheduled, sent and answered without an
error; the step of a ramp `step` in which it was due, and `came_step` in which it was answered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from tools.replay.run.histograms import bucket_sql, milliseconds

FROM_DUE, FROM_SENT, LATE = "from_due", "from_sent", "late"
TIMES = {
    FROM_DUE: "IF(error IS NULL, answered - scheduled, NULL)",
    FROM_SENT: "IF(error IS NULL, answered - sent, NULL)",
    LATE: "sent - scheduled",
}
"""The times with histograms, in nanoseconds: the latency from the scheduled and from the sent time, and the lateness."""
POINTS = [
    *(0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.92, 0.94, 0.95, 0.96, 0.97, 0.98, 0.985),
    *(0.99, 0.992, 0.994, 0.996, 0.998, 0.999, 0.9995, 0.9999, 1.0),
]
"""The quantiles that each slice has."""
SLICES: dict[str, tuple[str, ...]] = {
    "all": ("op", FROM_DUE),
    "all_sent": ("op", FROM_SENT),
    "all_late": ("op", LATE),
    "due": ("op", "due", FROM_DUE),
    "due_late": ("op", "due", LATE),
    "left": ("op", "left"),
    "came_topic": ("op", "came", "main_topic"),
    "came_broker": ("op", "came", "leader"),
    "came_client": ("op", "came", "client"),
    "topic": ("op", "topic", FROM_DUE),
    "partition": ("op", "topic", "partition", FROM_DUE),
    "broker": ("op", "leader", FROM_DUE),
    "client": ("op", "client", FROM_DUE),
    "error": ("op", "error"),
    "task": ("task",),
}
RAMP_SLICES: dict[str, tuple[str, ...]] = {
    "step": ("op", "step", FROM_DUE),
    "step_late": ("op", "step", LATE),
    "came_step": ("op", "came_step"),
}
WITH_HISTOGRAM = "due"
"""The slice whose histograms are kept."""
KEYS = ("op", "topic", "partition", "leader", "client", "main_topic", "error", "task", "due", "left", "came")
RAMP_KEYS = ("step", "came_step")


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

    A row has the slice's columns, `operations`, `failed`, `records`, `bytes` (of those that succeeded), `sent_records` (of those that
    left), `first` and `last` (scheduled, ns) and, if the slice has a time, `points` (ms at POINTS, or None). The rows of
    WITH_HISTOGRAM also have `histogram`, a list of (bucket, operations).
    """
    slices = SLICES | (RAMP_SLICES if grid.step else {})
    keys = (*KEYS, *(RAMP_KEYS if grid.step else ()), *TIMES)
    number = {slice_number(keys, columns): name for name, columns in slices.items()}
    within = f"IF(error IS NULL AND answered <= {grid.last_due}L, answered, NULL)"
    steps = f", {grid.step_sql('scheduled')} AS step, {grid.step_sql(within)} AS came_step"
    sets = ", ".join(f"({', '.join(columns)})" for columns in slices.values())
    others = [key for key in keys if key not in TIMES]
    kept = next(value for value, name in number.items() if name == WITH_HISTOGRAM)
    bucket = f"coalesce({', '.join(TIMES)})"
    points = ", ".join(f"{point!r}D" for point in POINTS)
    query = f"""
        WITH timed AS (
            SELECT op, topic, partition, leader, {one_of("client", clients)} AS client,
                {one_of("topic", topics)} AS main_topic, error, task, {grid.interval_sql("scheduled")} AS due,
                {grid.interval_sql("sent")} AS left,
                IF(error IS NULL, {grid.interval_sql("answered")}, NULL) AS came{steps if grid.step else ""},
                {", ".join(f"{time} AS {name}_ns" for name, time in TIMES.items())},
                records, bytes, scheduled, sent
            FROM operations
        ), placed AS (
            SELECT *, {", ".join(f"{bucket_sql(f'{name}_ns')} AS {name}" for name in TIMES)} FROM timed
        ), counted AS (
            SELECT grouping_id() AS slice, {", ".join(keys)},
                count(*) AS operations, count(error_) AS failed,
                sum(done_records) AS records, sum(done_bytes) AS bytes, sum(sent_records) AS sent_records,
                min(scheduled) AS first, max(scheduled) AS last,
                {", ".join(f"max({name}_ns) AS {name}_max" for name in TIMES)}
            FROM (
                SELECT *, error AS error_, IF(error IS NULL, records, 0) AS done_records,
                    IF(error IS NULL, bytes, 0) AS done_bytes, IF(sent IS NULL, 0, records) AS sent_records
                FROM placed
            )
            GROUP BY {", ".join(keys)} GROUPING SETS ({sets})
        )
        SELECT slice, {", ".join(others)}, sum(operations) AS operations, sum(failed) AS failed, sum(records) AS records,
            sum(bytes) AS bytes, sum(sent_records) AS sent_records, min(first) AS first, max(last) AS last,
            percentile({bucket}, array({points}), operations) AS buckets,
            {", ".join(f"max({name}_max) AS {name}_max" for name in TIMES)},
            collect_list(IF(slice = {kept} AND {bucket} IS NOT NULL, struct({bucket} AS bucket, operations), NULL))
                AS histogram
        FROM counted GROUP BY slice, {", ".join(others)}
    """
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in slices}
    for batch in session.sql(query).toArrow().to_batches(1024):
        for row in batch.to_pylist():
            name = number[row["slice"]]
            found[name].append(row_of(row, slices[name]))
    return found


def row_of(row: dict[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    """The row of a slice from that of the query."""
    sums = ("operations", "failed", "records", "bytes", "sent_records", "first", "last")
    kept = {key: row[key] for key in (*columns, *sums) if key not in TIMES}
    time = next((column for column in columns if column in TIMES), None)
    if time is not None:
        kept["points"] = milliseconds_of(row["buckets"], row[f"{time}_max"])
        kept["histogram"] = [(each["bucket"], each["operations"]) for each in row["histogram"]]
    return kept


def milliseconds_of(buckets: Sequence[float] | None, largest_ns: int | None) -> list[float] | None:
    """The times at POINTS; the last is the exact maximum, which no other exceeds."""
    if buckets is None or largest_ns is None:
        return None
    largest = largest_ns / 1e6
    return [*(min(float(milliseconds(bucket)), largest) for bucket in buckets[:-1]), largest]


def slice_number(keys: Sequence[str], columns: Sequence[str]) -> int:
    """What Spark's `grouping_id` of `keys` is where it groups by `columns`: a bit for each key that is left out."""
    bits = "".join("0" if key in columns else "1" for key in keys)
    return int(bits, 2)
