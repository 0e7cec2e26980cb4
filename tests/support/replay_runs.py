"""Runs of a replay made by hand, for its analysis, its verdict and its comparison: a directory with all that a replay leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow
import pyarrow.parquet

from tools.replay.load.results import SCHEMA
from tools.replay.run.plan import OutputDirectory, Plan, write_json

START_NS = 1_700_000_000_000_000_000
SECOND = 1_000_000_000


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
        "ready": ns(due_s),
        "sent": ns(due_s),
        "answered": None if answered_s is None else ns(answered_s),
        "unheard": None,
        "records": 1,
        "bytes": 100,
        "acks": -1,
        "error": "not answered in time" if answered_s is None else None,
        "leader": 1,
        "offset": None,
        "first_sequence": None,
        "retries": 0,
        "reads": None,
    }
    return row | changed


def fetched(due_s: float, answered_s: float | None, partition: int = 0, **changed: Any) -> dict[str, Any]:
    """A row of a fetch of one record of 100 bytes, or of `records` from `offset` on."""
    row = produced(due_s, answered_s, partition, **({"op": "fetch", "client": "c", "task": 1, "acks": None} | changed))
    if answered_s is not None and row["offset"] is not None:
        place = {"topic": "t", "partition": partition}
        row["reads"] = [place | {"begin": row["offset"], "stop": row["offset"] + row["records"]}]
    return row


def ns(seconds: float) -> int:
    return START_NS + round(seconds * SECOND)


def write_run(
    directory: Path,
    operations: Sequence[dict[str, Any]],
    plan: Plan | None = None,
    faults: Sequence[dict[str, Any]] = (),
    tasks: dict[str, Any] | None = None,
    meters: Mapping[int, dict[str, Any]] = MappingProxyType({}),
) -> OutputDirectory:
    """The files that a replay leaves for its analysis. `meters`: what the tasks' loops measured."""
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
    for task, meter in meters.items():
        write_json(output.generator / f"task-{task:04}.json", meter)
    write_json(output.tasks, tasks or {"tasks": by_task, "problem": ""})
    return output
