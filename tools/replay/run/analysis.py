"""Analyses the operations of a replay with Spark SQL and writes `analysis.json` (RPL-3).

Latency counts from when an operation was due, in a closed loop from when it was sent, and of operations that succeeded. Percentiles come
from histograms (`histograms`): they are exact to 0.5 %, maxima are exact. Records and bytes are those of operations that succeeded. Seconds
count from the start of the replay.

The lateness is that of produce operations, or of fetches if the trace has no others: a fetch also waits for the one before it. How much
of it the generator caused (`generator`) is that of all operations of that kind until they were ready.

A step of a ramp **holds** if the rate achieved in its time is at least HELD_SHARE of the offered rate, and the p99 of its lateness is at
most LATE_FACTOR times that of the first step, or LATE_FLOOR_MS if that is more. The **knee** is the last step before the first one that
does not hold; a ramp whose first step does not hold, or in which all hold, has none.
"""

from __future__ import annotations

import json
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow
import pyarrow.parquet
from pyspark.sql import SparkSession

from tools.replay.load.results import SCHEMA
from tools.replay.run import outage_windows
from tools.replay.run.cube import POINTS, Grid, cube
from tools.replay.run.end_to_end import end_to_end
from tools.replay.run.generator import (
    Measured,
    cpu_of,
    generator_of,
    is_limited,
    longest_still_ms,
    read_meters,
    still_shares,
)
from tools.replay.run.groups import groups_of
from tools.replay.run.lag import lags
from tools.replay.run.plan import OutputDirectory, Plan, write_json
from tools.replay.run.session import read_parquet
from tools.replay.traces.schema import ENDS, OFFSETS

SECOND = 1_000_000_000
INTERVALS_MAX = 600
ROUND_SECONDS = (1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1800, 3600)
CLIENTS_SHOWN = 50
ROWS_SHOWN = 1000
"""Limit of topics, brokers and partitions, by bytes."""
SERIES_SHOWN = 10
TOP_TOPICS = 10
HELD_SHARE = 0.95
LATE_FACTOR = 10.0
LATE_FLOOR_MS = 5.0
NAMED_POINTS = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999, "p9999": 0.9999, "max": 1.0}
OPS = ("produce", "fetch")
CLOCK = ("clock_offset", "clock_uncertainty", "clock_drift", "clock_drift_uncertainty")
LATENCIES = pyarrow.schema(
    [
        ("op", pyarrow.string()),
        ("interval", pyarrow.int32()),
        ("bucket", pyarrow.int32()),
        ("operations", pyarrow.int64()),
    ]
)
"""The file of the latencies: how many operations that were due in an interval have a latency of that bucket (`histograms`)."""

Rows = list[dict[str, Any]]


def analyse(session: SparkSession, plan: Plan, output: OutputDirectory) -> dict[str, Any]:
    """Reads the operations, tasks and faults; writes the latencies, then `analysis.json`, and returns its content."""
    operations = read_parquet(session, output.place_of(output.operations), SCHEMA)
    operations.createOrReplaceTempView("operations")
    tasks = json.loads(output.tasks.read_text())
    faults = json.loads(output.faults.read_text()) if output.faults.exists() else []
    facts = Facts(session, plan, tasks["tasks"])
    grid = facts.grid
    slices = cube(session, grid, facts.topics, facts.clients)
    write_latencies(output, slices["due"])
    outage_windows.find_windows(session, facts.ended)
    longest = outage_windows.longest(session)
    spans = outage_windows.fault_spans(faults, facts.ended)
    of_faults = outage_windows.longest_of_faults(session, spans)
    outage_windows.add_delayed(session, [*longest, *(row for rows in of_faults for row in rows)])
    meters = read_meters(output)
    still = still_shares(meters, facts.began, facts.grid.interval, facts.intervals)
    over = over_time(slices, facts, still)
    ramp = ramp_of(slices, facts, plan)
    has_both = {row["op"] for row in slices["all"]} >= set(OPS)
    lag = lags(session, grid, facts.intervals, facts.topics, plan.start_offsets) if has_both else []
    analysis = {
        "loop": "open" if plan.speeds else "closed",
        "began_ns": facts.began,
        "seconds": facts.seconds,
        "interval_s": facts.interval_s,
        "totals": totals(slices["all"], facts, not_done(plan, tasks["tasks"], slices["task"])),
        "latency_ms": {
            op: {"scheduled": named_points(slices["all"], op), "sent": named_points(slices["all_sent"], op)}
            for op in OPS
        },
        "transactions": transactions(slices["all"]),
        "lateness_ms": named_points(slices["all_late"], facts.main_op),
        "generator": generator_of(
            over,
            len({row["due"] for row in slices["due"]}),
            named_points(slices["all_ready"], facts.main_op),
            cpu_of(output, meters),
        ),
        "end_to_end": end_to_end(session, (facts.of_op.get("produce") or {"done": None})["done"] or 0, NAMED_POINTS)
        if has_both
        else None,
        "distribution": distribution(slices),
        "over_time": over,
        "by_topic": by(slices["topic"], "topic", limit=ROWS_SHOWN),
        "by_broker": by(slices["broker"], "broker", limit=ROWS_SHOWN),
        "by_client": by([row for row in slices["client"] if row["client"] is not None], "client"),
        "by_partition": by(slices["partition"], "topic", "partition", limit=ROWS_SHOWN),
        "series": series(slices, facts.intervals),
        "errors": errors(slices["error"], facts),
        "outages": [shown_outage(row, facts) for row in longest],
        "faults": fault_costs(faults, spans, of_faults, over, facts),
        "lag": [
            {"second": row["at"] * facts.interval_s, "topic": row["topic"], "records": int(row["records"])}
            for row in lag
        ],
        "groups": groups_of(output),
        "skew": skew(slices, plan),
        "ramp": ramp,
        "knee": knee_of(ramp),
        "tasks": shown_tasks(tasks["tasks"], slices["task"], facts, meters),
        "problem": tasks["problem"],
        "changes": plan.changes,
        "asked": {"max_failed": plan.max_failed, "assert": plan.gates, "forbid": plan.forbid},
    }
    session.catalog.uncacheTable("windows")
    write_json(output.analysis, analysis)
    return analysis


class Facts:
    """What the other queries need to know first. Times in ns since 1970 UTC."""

    def __init__(self, session: SparkSession, plan: Plan, tasks: Rows) -> None:
        names = session.sql(
            f"""
            WITH flows AS (
                SELECT op, client, topic, sum(bytes) AS bytes, min(scheduled) AS first, max(scheduled) AS last,
                    max(greatest(scheduled, coalesce(answered, scheduled))) AS ended,
                    max(IF(error IS NULL, answered, NULL)) AS done
                FROM operations GROUP BY op, client, topic
            ), names AS (
                SELECT op, client, topic, sum(bytes) AS bytes, min(first) AS first, max(last) AS last,
                    max(ended) AS ended, max(done) AS done, grouping_id() AS slice
                FROM flows GROUP BY op, client, topic GROUPING SETS ((op), (client), (topic))
            )
            SELECT * FROM (
                SELECT *, row_number() OVER (PARTITION BY slice ORDER BY bytes DESC, client, topic) AS place FROM names
            )
            WHERE place <= {CLIENTS_SHOWN} ORDER BY slice, place
            """
        ).collect()
        self.clients = [row["client"] for row in names if row["client"] is not None]
        self.topics = [row["topic"] for row in names if row["topic"]][:TOP_TOPICS]
        self.of_op = {row["op"]: row for row in names if row["op"] is not None}
        self.main_op = "produce" if "produce" in self.of_op else "fetch"
        first = min(row["first"] for row in self.of_op.values())
        self.last_due = max(row["last"] for row in self.of_op.values())
        self.ended = max(row["ended"] for row in self.of_op.values())
        self.began = min([first, *(task["started_ns"] for task in tasks if task.get("started_ns"))])
        self.seconds = (self.ended - self.began) / SECOND
        self.interval_s = interval_of(self.seconds)
        self.intervals = (self.ended - self.began) // (self.interval_s * SECOND) + 1
        has_ramp = len(plan.speeds) > 1 and plan.step_s > 0
        step = round(plan.step_s * SECOND) if has_ramp else 0
        self.grid = Grid(self.began, self.interval_s * SECOND, step, len(plan.speeds), self.last_due)

    def second(self, time: int) -> float:
        return float(time - self.began) / SECOND


def interval_of(seconds: float) -> int:
    """The length of an interval for a run of that length: a round number, so that there are at most INTERVALS_MAX or so."""
    needed = seconds / INTERVALS_MAX
    rounded_up = math.ceil(needed / 3600) * 3600
    return next((length for length in ROUND_SECONDS if length >= needed), rounded_up)


def not_done(plan: Plan, tasks: Rows, done: Rows) -> int:
    """Operations that were planned and have no row."""
    expected: int = sum(task["expected"] for task in tasks) if tasks else plan.operations
    rows: int = sum(row["operations"] for row in done)
    return max(expected - rows, 0)


def totals(rows: Rows, facts: Facts, left_out: int) -> dict[str, Any]:
    """Rates are over the time from the first operation that was due to the last answer."""
    found: dict[str, Any] = {"operations": sum(row["operations"] for row in rows), "not_done": left_out}
    for op, done_name in (("produce", "acknowledged"), ("fetch", "answered")):
        mine = [row for row in rows if row["op"] == op]
        sums = {name: sum(row[name] for row in mine) for name in ("operations", "failed", "records", "bytes")}
        done = sums["operations"] - sums["failed"]
        times = facts.of_op.get(op)
        seconds = (times["done"] - times["first"]) / SECOND if times is not None and times["done"] is not None else 0.0
        found[op] = {
            "operations": sums["operations"],
            done_name: done,
            "failed": sums["failed"],
            "records": sums["records"],
            "bytes": sums["bytes"],
            "sent_records": sum(row["sent_records"] for row in mine),
            "seconds": seconds,
            "per_second": rate(done, seconds),
            "records_per_second": rate(sums["records"], seconds),
            "bytes_per_second": rate(sums["bytes"], seconds),
        }
    return found


def transactions(rows: Rows) -> dict[str, dict[str, Any]]:
    """`commit`, `abort` and `offsets` (of a partition) -> how many the trace had, how many of them failed, and the latency of the others.
    Empty without any."""
    return {
        op: {"operations": row["operations"], "failed": row["failed"], "ms": named_points(rows, op)}
        for op in (*ENDS, OFFSETS)
        for row in rows
        if row["op"] == op
    }


def rate(count: float, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


def points_of(rows: Iterable[dict[str, Any]], **key: Any) -> dict[float, float] | None:
    """Quantile -> ms of the row with these values that has a time; None if there is none."""
    return next((row["points"] for row in rows if row["points"] and key.items() <= row.items()), None)


def at_point(row: dict[str, Any], point: float) -> float | None:
    """The quantile of a row in ms; None if it has no time."""
    points: dict[float, float] | None = row["points"]
    return None if points is None else points[point]


def named_points(rows: Rows, op: str) -> dict[str, float | None]:
    found = points_of(rows, op=op)
    return {name: None if found is None else found[point] for name, point in NAMED_POINTS.items()}


def distribution(slices: dict[str, Rows]) -> Rows:
    columns = {
        "produce_scheduled_ms": points_of(slices["all"], op="produce"),
        "produce_sent_ms": points_of(slices["all_sent"], op="produce"),
        "fetch_scheduled_ms": points_of(slices["all"], op="fetch"),
    }
    return [
        {"quantile": point} | {name: None if found is None else found[point] for name, found in columns.items()}
        for point in POINTS
    ]


def over_time(slices: dict[str, Rows], facts: Facts, still: Sequence[float]) -> Rows:
    """A row for each interval. Due and failed count by the scheduled time, the rest by the answer.

    `still`: the share of each interval in which the loop of a task stood still.
    """
    rows: Rows = [
        {"second": number * facts.interval_s}
        | dict.fromkeys(("due", "acknowledged", "failed", "records", "bytes", "fetched_records", "fetched_bytes"), 0)
        | dict.fromkeys(("p50_ms", "p99_ms", "max_ms", "late_p99_ms", "ready_p99_ms"))
        for number in range(facts.intervals)
    ]

    def at(number: int | None) -> dict[str, Any]:
        return {} if number is None or not 0 <= number < len(rows) else rows[number]

    for row in slices["due"]:
        if row["op"] == "produce":
            mine = at(row["due"])
            mine["due"] += row["operations"]
            mine["failed"] += row["failed"]
            mine |= {"p50_ms": at_point(row, 0.5), "p99_ms": at_point(row, 0.99), "max_ms": at_point(row, 1.0)}
    for name, slice_name in (("late_p99_ms", "due_late"), ("ready_p99_ms", "due_ready")):
        for row in slices[slice_name]:
            if row["op"] == facts.main_op:
                at(row["due"])[name] = at_point(row, 0.99)
    for row in slices["came_topic"]:
        if row["came"] is None or row["op"] not in OPS:
            continue
        mine = at(row["came"])
        if row["op"] == "produce":
            mine["acknowledged"] += row["operations"]
            mine["records"] += row["records"]
            mine["bytes"] += row["bytes"]
        else:
            mine["fetched_records"] += row["records"]
            mine["fetched_bytes"] += row["bytes"]
    for row, share in zip(rows, still, strict=True):
        row["limited"] = is_limited(row["ready_p99_ms"], share)
    return rows


def by(rows: Rows, *columns: str, limit: int = CLIENTS_SHOWN) -> Rows:
    """The rows of a slice for people, the most bytes first."""
    keys = {"broker": "leader"}
    shown = [
        {column: row[keys.get(column, column)] for column in columns}
        | {name: row[name] for name in ("op", "operations", "failed", "records", "bytes")}
        | {"p50_ms": at_point(row, 0.5), "p99_ms": at_point(row, 0.99)}
        for row in rows
        if row["op"] in OPS
    ]
    shown.sort(key=lambda row: (-row["bytes"], *(str(row[column]) for column in columns), row["op"]))
    return shown[: limit * len(OPS)]


def series(slices: dict[str, Rows], intervals: int) -> dict[str, dict[str, list[int]]]:
    """Bytes of each interval, by the time of the answer; the largest SERIES_SHOWN, the rest as `others`."""
    found = {}
    for name, slice_name, column in (
        ("topic", "came_topic", "main_topic"),
        ("broker", "came_broker", "leader"),
        ("client", "came_client", "client"),
        ("op", "came_topic", "op"),
    ):
        sums: dict[str, list[int]] = defaultdict(lambda: [0] * intervals)
        for row in slices[slice_name]:
            if row["op"] in OPS and row["came"] is not None and 0 <= row["came"] < intervals:
                sums["others" if row[column] is None else str(row[column])][row["came"]] += row["bytes"]
        named = sorted((key for key in sums if key != "others"), key=lambda key: (-sum(sums[key]), key))
        shown = {key: sums[key] for key in named[:SERIES_SHOWN]}
        rest = [sums[key] for key in [*named[SERIES_SHOWN:], *(["others"] if "others" in sums else [])]]
        if rest:
            shown["others"] = [sum(column) for column in zip(*rest, strict=True)]
        found[name] = shown
    return found


def errors(rows: Rows, facts: Facts) -> Rows:
    shown = [
        {
            "op": row["op"],
            "error": row["error"],
            "operations": row["operations"],
            "first_second": facts.second(row["first"]),
            "last_second": facts.second(row["last"]),
        }
        for row in rows
        if row["error"] is not None
    ]
    return sorted(shown, key=lambda row: (-row["operations"], row["op"], row["error"]))


def shown_outage(row: dict[str, Any], facts: Facts) -> dict[str, Any]:
    return {
        **{name: row[name] for name in ("topic", "partition")},
        "from_second": facts.second(row["began"]),
        "to_second": facts.second(row["ended"]),
        "seconds": (row["ended"] - row["began"]) / SECOND,
        "delayed": row["operations"],
    }


def fault_costs(
    faults: Rows, spans: Sequence[tuple[int, int]], windows: Sequence[Rows], over: Rows, facts: Facts
) -> Rows:
    """`delayed`: records that were due in the fault's outages, of partitions with one of SHOWN_NS at least."""
    costs = []
    p99_ms = [row["p99_ms"] for row in over]
    for fault, (begin, until), found in zip(faults, spans, windows, strict=True):
        led = {(topic, partition) for topic, partition in fault["partitions"]}
        of_led = [row for row in found if (row["topic"], row["partition"]) in led]
        long = [row for row in found if row["ended"] - row["began"] >= outage_windows.SHOWN_NS]
        others = [row for row in long if row not in of_led]
        unseen = sorted(led - {(row["topic"], row["partition"]) for row in of_led})
        shown = [
            {
                "topic": row["topic"],
                "partition": row["partition"],
                "led": (row["topic"], row["partition"]) in led,
                "seconds": (row["ended"] - row["began"]) / SECOND,
            }
            for row in [*of_led, *others[: outage_windows.OTHERS_SHOWN]]
        ]
        shown += [{"topic": topic, "partition": number, "led": True, "seconds": 0.0} for topic, number in unseen]
        costs.append(
            {
                "verb": fault["verb"],
                "role": fault["role"],
                "broker": fault["broker"],
                "second": facts.second(fault["at_ns"]),
                "error": fault["error"],
                "outages": shown,
                "outage_s": max((row["seconds"] for row in shown), default=0.0),
                "delayed": sum(row["records"] for row in long),
                "normal_after_s": outage_windows.normal_after_s(
                    p99_ms, facts.interval_s, facts.second(begin), facts.second(until)
                ),
            }
        )
    return costs


def skew(slices: dict[str, Rows], plan: Plan) -> dict[str, Any]:
    """How much more than the mean the largest broker and partition have, in bytes. A partition without traffic counts."""
    brokers: dict[str, int] = defaultdict(int)
    for row in slices["broker"]:
        if row["leader"] is not None:
            brokers[str(row["leader"])] += row["bytes"]
    partitions: dict[str, int] = {
        f"{topic}-{number}": 0 for topic, count in plan.partitions.items() for number in range(count)
    }
    for row in slices["partition"]:
        name = f"{row['topic']}-{row['partition']}"
        partitions[name] = partitions.get(name, 0) + row["bytes"]
    return {"brokers": skew_of(brokers), "partitions": skew_of(partitions)}


def skew_of(sizes: dict[str, int]) -> dict[str, Any]:
    total = sum(sizes.values())
    if not total:
        return {"max_over_mean": None, "largest": None}
    largest = max(sizes, key=lambda name: sizes[name])
    return {"max_over_mean": sizes[largest] * len(sizes) / total, "largest": largest}


def ramp_of(slices: dict[str, Rows], facts: Facts, plan: Plan) -> Rows:
    """A row for each step that began. A last step shorter than half of the others is not judged: `holds` is None."""
    if not facts.grid.step:
        return []
    op, rows = facts.main_op, []
    due = {row["step"]: 0 for row in slices["step"]}
    for row in slices["step"]:
        due[row["step"]] += row["operations"] if row["op"] == op else 0
    came = {row["came_step"]: row["operations"] for row in slices["came_step"] if row["op"] == op}
    first_late_ms = 0.0
    for number in sorted(due):
        begin = number * plan.step_s
        seconds = min(plan.step_s, facts.second(facts.last_due) - begin)
        if number == len(plan.speeds) - 1:
            seconds = facts.second(facts.last_due) - begin
        latency = points_of(slices["step"], op=op, step=number)
        late = points_of(slices["step_late"], op=op, step=number)
        late_ms = None if late is None else late[0.99]
        first_late_ms = first_late_ms or late_ms or 0.0
        offered, achieved = rate(due[number], seconds), rate(came.get(number, 0), seconds)
        holds = achieved >= HELD_SHARE * offered and (late_ms or 0.0) <= max(LATE_FACTOR * first_late_ms, LATE_FLOOR_MS)
        rows.append(
            {
                "step": number,
                "speed": plan.speeds[number],
                "offered_per_second": offered,
                "achieved_per_second": achieved,
                "p99_ms": None if latency is None else latency[0.99],
                "late_p99_ms": late_ms,
                "holds": holds if seconds >= plan.step_s / 2 else None,
            }
        )
    return rows


def knee_of(ramp: Rows) -> dict[str, float] | None:
    """The speed and the offered rate of the last step before the first one that does not hold."""
    broken = next((at for at, row in enumerate(ramp) if row["holds"] is False), 0)
    return (
        {"speed": ramp[broken - 1]["speed"], "per_second": ramp[broken - 1]["offered_per_second"]} if broken else None
    )


def shown_tasks(tasks: Rows, done: Rows, facts: Facts, meters: Measured) -> Rows:
    """Each task that said something at its end or wrote rows; `expected` is None for one that was lost."""
    said = {task["task"]: task for task in tasks}
    wrote = {row["task"]: row for row in done}

    def ms(number: int, name: str) -> float | None:
        value = said.get(number, {}).get(name)
        return None if value is None else value / 1e6

    return [
        {
            "task": number,
            "expected": said[number]["expected"] if number in said else None,
            "done": wrote[number]["operations"] if number in wrote else 0,
            "last_second": facts.second(wrote[number]["last"]) if number in wrote else None,
            **{f"{name}_ms": ms(number, f"{name}_ns") for name in CLOCK},
            "cores": meters[number]["cores"] if number in meters else None,
            "longest_still_ms": longest_still_ms(meters[number]) if number in meters else None,
        }
        for number in sorted(said.keys() | wrote.keys())
    ]


def write_latencies(output: OutputDirectory, rows: Rows) -> None:
    """Writes the histograms of each interval, for the comparison of runs."""
    columns: dict[str, list[Any]] = {name: [] for name in LATENCIES.names}
    for row in rows:
        for bucket, operations in row["histogram"]:
            for name, value in zip(LATENCIES.names, (row["op"], row["due"], bucket, operations), strict=True):
                columns[name].append(value)
    partial = output.latencies.with_name(f".{output.latencies.name}.partial")
    pyarrow.parquet.write_table(pyarrow.table(columns, schema=LATENCIES), partial, compression="zstd")
    os.replace(partial, output.latencies)
