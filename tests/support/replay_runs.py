"""Runs of a replay made by hand, for its analysis, its verdict and its comparison: a directory with all that a replay leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pyarrow.parquet

from tools.replay.load.results import SCHEMA
from tools.replay.run.plan import OutputDirectory, Plan, write_json

START_NS = 1_700_000_000_000_000_000
SECOND = 1_000_000_000
ROWS_OF_A_FILE = 200_000


def a_plan(directory: Path, **changed: Any) -> Plan:
    """Topic t with two partitions, speed 1."""
    plan = Plan(
        run=1,
        trace="none",
        directory=str(directory),
        bootstrap_servers="127.0.0.1:1",
        topics={"t": "t"},
        partitions={"t": 2},
        start_offsets={"t": [0, 0]},
        tasks=2,
        speeds=[1.0],
        step_s=0.0,
        clients=1,
        bytes=1.0,
        answer_timeout_s=60.0,
        control="127.0.0.1:1",
        trace_rows=0,
        trace_seconds=0.0,
    )
    return replace(plan, **changed)


def produced(due_s: float, answered_s: float | None, partition: int = 0, **changed: Any) -> dict[str, Any]:
    """A row of a batch with one record of 100 bytes, sent when it was due; times in seconds since the start."""
    row = {
        "request": 0,
        "op": "produce",
        "client": "p",
        "producer": 0,
        "task": 0,
        "topic": "t",
        "partition": partition,
        "scheduled": ns(due_s),
        "sent": ns(due_s),
        "answered": None if answered_s is None else ns(answered_s),
        "records": 1,
        "bytes": 100,
        "acks": -1,
        "error": "not answered in time" if answered_s is None else None,
        "leader": 1,
        "offset": None,
        "first_sequence": None,
        "retries": 0,
    }
    return row | changed


def fetched(due_s: float, answered_s: float | None, partition: int = 0, **changed: Any) -> dict[str, Any]:
    """A row of a fetch of one record of 100 bytes."""
    return produced(due_s, answered_s, partition, **({"op": "fetch", "client": "c", "task": 1, "acks": None} | changed))


def ns(seconds: float) -> int:
    return START_NS + round(seconds * SECOND)


def write_run(
    directory: Path,
    operations: Sequence[dict[str, Any]],
    plan: Plan | None = None,
    faults: Sequence[dict[str, Any]] = (),
    tasks: dict[str, Any] | None = None,
) -> OutputDirectory:
    """The files that a replay leaves for its analysis."""
    output = OutputDirectory(directory)
    output.operations.mkdir(parents=True, exist_ok=True)
    output.write_plan(plan or a_plan(directory, trace_rows=len(operations)))
    table = pyarrow.Table.from_pylist(list(operations), schema=SCHEMA)
    pyarrow.parquet.write_table(table, output.operations / "task-0000-000000.parquet")
    write_json(output.faults, list(faults))
    by_task = [
        {
            "task": task,
            "expected": sum(row["task"] == task for row in operations),
            "sent": 0,
            "clock_offset_ns": 0,
            "clock_uncertainty_ns": 0,
        }
        for task in sorted({row["task"] for row in operations})
    ]
    write_json(output.tasks, tasks or {"tasks": by_task, "problem": ""})
    return output


def write_large_run(
    directory: Path, rows: int, per_second: int = 20_000, partitions: int = 12, clients: int = 200, seed: int = 1
) -> OutputDirectory:
    """A run of any size in bounded memory: 2/3 produces and 1/3 fetches, with latencies of an exponential distribution, median 2 ms."""
    output = OutputDirectory(directory)
    output.operations.mkdir(parents=True, exist_ok=True)
    output.write_plan(
        a_plan(directory, trace_rows=rows, partitions={"t": partitions}, start_offsets={"t": [0] * partitions})
    )
    random = numpy.random.default_rng(seed)
    ops, names = numpy.array(["produce", "fetch"]), numpy.array([f"client-{number}" for number in range(clients)])
    for number, begin in enumerate(range(0, rows, ROWS_OF_A_FILE)):
        index = numpy.arange(begin, min(begin + ROWS_OF_A_FILE, rows))
        count = len(index)
        is_fetch = (index % 3 == 2).astype(int)
        client, partition = random.integers(0, clients, count), random.integers(0, partitions, count)
        scheduled = START_NS + index * SECOND // per_second
        sent = scheduled + random.integers(0, 300_000, count)
        failed = random.random(count) < 1e-4
        columns = {
            "request": index,
            "op": ops[is_fetch],
            "client": names[client],
            "producer": client,
            "task": client % 2,
            "topic": numpy.full(count, "t"),
            "partition": partition,
            "scheduled": scheduled,
            "sent": sent,
            "answered": sent + (random.exponential(2e6 / numpy.log(2), count)).astype(numpy.int64),
            "records": numpy.full(count, 10),
            "bytes": random.integers(500, 1500, count),
            "acks": numpy.full(count, -1),
            "error": pyarrow.array(numpy.full(count, "REQUEST_TIMED_OUT"), mask=~failed),
            "leader": partition % 3,
            "offset": index * 10 // partitions,
            "first_sequence": index * 10,
            "retries": numpy.zeros(count, dtype=int),
        }
        pyarrow.parquet.write_table(
            pyarrow.table(columns).cast(SCHEMA),
            output.operations / f"task-0000-{number:06}.parquet",
            compression="zstd",
        )
    write_json(output.faults, [])
    write_json(output.tasks, {"tasks": [], "problem": ""})
    return output
