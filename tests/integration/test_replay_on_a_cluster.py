"""`ottla replay run --master`: on a Spark standalone cluster of two workers with one core each (RPL-4)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from tests.support.cli import COMMAND
from tests.support.invariants import eventually
from tests.support.small_traces import produce, written
from tests.support.standalone_spark import StandaloneSpark
from tools.cluster.local_cluster import LocalCluster
from tools.replay.traces.check import check

pytestmark = [pytest.mark.integration, pytest.mark.thorough, pytest.mark.timeout(900)]
TOPIC = "spread"
CLIENTS = 4
QUICK = ("--spark-setting", "spark.executor.extraJavaOptions=-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
"""Executors that live for seconds need no optimizing compiler."""


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneSpark]:
    with StandaloneSpark(tmp_path_factory.mktemp("spark"), workers=2) as spark:
        yield spark


def write_trace(path: Path, operations: int, apart_ms: int) -> Path:
    rows = [
        produce(apart_ms * at, at, client=f"writer-{at % CLIENTS}", topic=TOPIC, partition=at % 2, records=1 + at % 3)
        for at in range(operations)
    ]
    return written(path, rows, **{TOPIC: 2})


def rows_of(directory: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(directory).to_pylist()
    return rows


def test_two_workers_do_what_the_trace_says(
    spark: StandaloneSpark, shared_cluster: LocalCluster, tmp_path: Path
) -> None:
    """As the local master does: test_replay_run.py."""
    operations = 600
    trace, out = write_trace(tmp_path / "trace", operations, 2), tmp_path / "out"
    servers = ("--bootstrap-server", shared_cluster.bootstrap_servers, "--create-topics", "--out", str(out))
    options = ("--master", spark.url, *QUICK, "--event-log", str(tmp_path / "events"))
    command = [*COMMAND, "replay", "run", str(trace), *servers, *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = json.loads((out / "verdict.json").read_text())
    assert verdict["acknowledged"] == verdict["found"] == 2 * operations
    assert [verdict[name] for name in ("lost", "duplicated", "reordered", "elsewhere")] == [0] * 4
    columns = ("request", "client", "partition", "records", "error")
    assert Counter(tuple(row[name] for name in columns) for row in rows_of(out / "operations")) == Counter(
        (at, f"writer-{at % CLIENTS}", at % 2, 1 + at % 3, None) for at in range(operations)
    )
    tasks = json.loads((out / "tasks.json").read_text())
    assert [(task["expected"], task["sent"]) for task in tasks["tasks"]] == [(operations // 2, operations // 2)] * 2
    assert any((tmp_path / "events").iterdir())


def test_an_executor_is_killed(spark: StandaloneSpark, shared_cluster: LocalCluster, tmp_path: Path) -> None:
    """What was done is judged, what was not is named, and the survivor has written everything that it sent."""
    operations = 6000
    trace = write_trace(tmp_path / "trace", operations, 10)
    out = tmp_path / "out"
    servers = ("--bootstrap-server", shared_cluster.bootstrap_servers, "--create-topics", "--out", str(out))
    command = [*COMMAND, "replay", "run", str(trace), *servers, "--master", spark.url, *QUICK]
    with (tmp_path / "log").open("w") as log:
        replay = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        eventually(lambda: len(list((out / "operations").glob("*.parquet"))) > 1, "both tasks write", timeout_s=300)
        os.kill(spark.executors()[0], signal.SIGKILL)
        assert replay.wait(300) == 1, (tmp_path / "log").read_text()
    finally:
        replay.send_signal(signal.SIGTERM)
        replay.wait()
    printed = (tmp_path / "log").read_text()
    assert "operations because a task was lost: ExecutorLostFailure" in printed
    assert "operations have no result" in printed
    done = rows_of(out / "operations")
    undone = rows_of(out / "undone")
    assert sorted(row["request"] for row in done + undone) == list(range(operations))
    tasks = json.loads((out / "tasks.json").read_text())
    assert tasks["problem"].startswith("ExecutorLostFailure")
    assert sum(task["undone"] for task in tasks["undone"]) == len(undone)
    assert undone[0]["time_ns"] == 0
    assert check(out / "undone").count == 0  # a trace, for another replay
    verdict = json.loads((out / "verdict.json").read_text())
    assert verdict["acknowledged"] == sum(row["records"] for row in done if row["error"] is None)
    assert verdict["lost"] == verdict["duplicated"] == verdict["corrupted"] == 0
