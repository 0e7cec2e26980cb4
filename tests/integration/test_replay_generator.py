"""A replay whose generator stands still beside a healthy cluster: the run says so, and blames the cluster for nothing (RPL-3)."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pyarrow
import pyarrow.parquet
import pytest

from tests.integration.test_replay_run import command, write_trace
from tests.support.invariants import eventually
from tools.cluster.local_cluster import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.thorough, pytest.mark.timeout(600)]
STILL_S = 3.0
OPERATIONS = 4000
APART_MS = 4.0


def workers(job: psutil.Process) -> list[psutil.Process]:
    """Spark's Python workers, and the process from which they are forked."""
    children = [child for child in job.children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE]
    return [child for child in children if "pyspark.daemon" in " ".join(child.cmdline())]


def test_stopped_workers_are_no_outage_of_the_cluster(shared_cluster: LocalCluster, tmp_path: Path) -> None:
    """The workers are stopped for 3 s. Nothing is lost, no partition was out, and a latency gate is not verified."""
    out, topic = tmp_path / "out", "stands-still"
    trace = write_trace(tmp_path / "trace", OPERATIONS, APART_MS, topic, acks=(-1, -1, -1, -1))
    options = ("--dir", shared_cluster.directory, "--out", out, "--create-topics", "--assert", "produce.p99 < 60s")
    with (tmp_path / "log").open("w") as log:
        replay = subprocess.Popen(command(trace, *options), stdout=log, stderr=log)
    try:
        eventually(lambda: any((out / "operations").glob("*.parquet")), "the first rows are written", timeout_s=120)
        stopped = workers(psutil.Process(replay.pid))
        assert len(stopped) >= 2
        for worker in stopped:
            worker.send_signal(signal.SIGSTOP)
        time.sleep(STILL_S)
        for worker in stopped:
            worker.send_signal(signal.SIGCONT)
        assert replay.wait(200) == 2, (tmp_path / "log").read_text()
    finally:
        replay.kill()
        replay.wait()
    said = (tmp_path / "log").read_text()
    measured = said.split("Reading everything back ...")[-1].strip().splitlines()
    assert measured[0].strip().startswith("generator limited: "), said
    assert "NOT VERIFIED  produce.p99 < 60s: produce.p99 is" in said
    assert "PASSED" not in said

    analysis = json.loads((out / "analysis.json").read_text())
    assert [row for row in analysis["outages"] if row["seconds"] > STILL_S / 3] == []
    assert [row for row in analysis["outages"] if row["from_second"] < 0.5] == [], "an outage at the start"
    assert sum(row["limited"] for row in analysis["over_time"]) >= STILL_S - 1
    assert analysis["generator"]["is_limited"]
    assert max(task["longest_still_ms"] for task in analysis["tasks"]) >= STILL_S * 900
    assert all(task["clock_drift_ms"] is not None and task["cores"] > 0 for task in analysis["tasks"])
    assert None not in analysis["generator"]["cpu"].values()
    assert analysis["end_to_end"]["records"] > OPERATIONS
    assert analysis["latency_ms"]["fetch"]["scheduled"]["p50"] < 1000

    rows = pyarrow.parquet.read_table(out / "operations").to_pylist()
    assert len(rows) == OPERATIONS
    for row in rows:
        assert row["error"] is None
        assert row["scheduled"] <= row["ready"] <= row["sent"] <= row["answered"], row
