"""The Spark job for real: its SQL on operations made by hand, and a short replay through a cluster with a killed leader."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from tests.conftest import processes_below
from tests.support.invariants import eventually
from tests.support.thorough import thorough
from tools.cluster.local_cluster import LocalCluster
from tools.replay.plan import Fault, OperationRow, OutputDirectory, Plan
from tools.replay.spark import SparkJob, processes_of_session

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
START = 1_700_000_000.0
OTTLA = [sys.executable, "-c", "from tools.cli import main; main()"]


def a_plan(directory: Path) -> Plan:
    return Plan(
        run="r",
        trace="none",
        directory=str(directory),
        bootstrap_servers="127.0.0.1:1",
        topic="t",
        start_offsets=[0, 0, 0],
        first_time_us=0,
        last_time_us=10_000_000,
        speed=1.0,
        producers=1,
        readers=1,
        answer_timeout_s=1.0,
        read_timeout_s=1.0,
        read_everything=False,
        progress_address=None,
    )


def produced(event: int, partition: int, due: float, answered: float | None, error: str | None = None) -> OperationRow:
    done = None if answered is None else START + answered
    offset = None if error else event
    return OperationRow("produce", "c", 0, event, START + due, START + due, done, 10, error, "t", partition, offset, 1)


def read(event: int, partition: int, at: float, offset: int | None = None) -> OperationRow:
    where = event if offset is None else offset
    return OperationRow("fetch", "c", 1, event, START, START + at, START + at, 10, None, "t", partition, where, 1)


def analysed(directory: Path, operations: list[OperationRow], faults: list[Fault]) -> dict[str, Any]:
    output = OutputDirectory(directory)
    output.write_plan(a_plan(directory))
    output.write_faults(faults)
    table = pyarrow.Table.from_pylist([row._asdict() for row in operations])
    pyarrow.parquet.write_table(table, output.operations)
    job = SparkJob("analyse", output)
    try:
        job.start()
        job.wait(lambda: time.sleep(0.1))
    finally:
        job.stop()
    analysis: dict[str, Any] = json.loads(output.analysis.read_text())
    return analysis


def test_the_analysis_counts_what_was_lost_doubled_and_how_long_partitions_were_away(tmp_path: Path) -> None:
    operations = [
        # Partition 0, led by the killed broker: due each second, nothing acknowledged from 2.1 to 6.0.
        *(produced(number, 0, number, number + 0.1) for number in range(3)),
        produced(3, 0, 3, 6.0),
        produced(4, 0, 4, 6.2),
        produced(5, 0, 5, 6.1),
        produced(6, 0, 9, 9.1),
        # Partition 1, of another leader: a long gap in which nothing was due is no outage.
        produced(10, 1, 0, 0.1),
        produced(11, 1, 8, 8.25),
        # Partition 2: one event was given up, one acknowledged and never read.
        produced(20, 2, 1, 1.5),
        produced(21, 2, 3, 7.0, "Local: Message timed out"),
        produced(22, 2, 9, 9.2),
        *(read(event, 0, 9.5) for event in range(7)),
        read(10, 1, 9.5),
        read(11, 1, 9.5),
        read(20, 2, 9.5),
        # Event 2 lies in the log twice; event 10 was handed out twice from the same place.
        read(2, 0, 9.6, offset=99),
        read(10, 1, 9.6),
    ]
    faults = [Fault("kill", 1, START + 2.5, [0]), Fault("return", 1, START + 7.5, [])]
    analysis = analysed(tmp_path, operations, faults)
    counts = analysis["totals"]
    assert {name: counts[name] for name in ("sent", "acknowledged", "failed", "read", "lost", "duplicated")} == {
        "sent": 12,
        "acknowledged": 11,
        "failed": 1,
        "read": 10,
        "lost": 1,
        "duplicated": 1,
    }
    assert counts["read_again"] == 1
    assert counts["acknowledged_per_second"] == pytest.approx(11 / 9.2)
    kill = analysis["faults"][0]
    assert (kill["kind"], kill["broker"], kill["second"], kill["until_second"]) == ("kill", 1, 2.5, 7.5)
    # Partition 0 from 3 (the oldest waiting event was due) to 6.0; partition 2 from 3 until it was given up at 7.
    assert [(each["seconds"], each["led_by_broker"]) for each in kill["outages"]] == [
        (pytest.approx(3.0), True),
        (0.0, False),
        (pytest.approx(4.0), False),
    ]
    assert [each["due"] for each in kill["outages"]] == [3, 0, 1]
    assert analysis["faults"][1]["outages"][1]["seconds"] == pytest.approx(0.25)
    assert analysis["latency_ms"]["p50"] == pytest.approx(200, abs=101)
    assert analysis["read_latency_ms"]["p50"] == pytest.approx(9500, abs=1)
    assert analysis["errors"] == [{"op": "produce", "error": "Local: Message timed out", "operations": 1}]
    seconds = {each["second"]: each for each in analysis["by_second"]}
    assert (seconds[9]["due"], seconds[9]["acknowledged"], seconds[9]["read"]) == (2, 2, 12)
    assert [each["longest_outage_s"] for each in analysis["partitions"]] == [
        pytest.approx(3.0),
        pytest.approx(0.25),
        pytest.approx(4.0),
    ]


@pytest.mark.timeout(480)
def test_the_demo_loses_nothing_when_a_leader_is_killed(tmp_path: Path) -> None:
    """A day instead of a week, in twenty seconds."""
    out = tmp_path / "out"
    command = [*OTTLA, "demo", "--days", "1", "--speed", "5000", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=420, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((out / "summary.json").read_text())
    counted = {"sent", "acknowledged", "read", "lost", "duplicated", "outages", "throughput", "latency_ms"}
    assert set(summary) == counted | {"group"}
    assert summary["sent"] == summary["acknowledged"] == 1669
    assert summary["read"] == summary["acknowledged"]
    assert summary["lost"] == 0
    assert summary["duplicated"] == 0
    assert summary["outages"]
    assert "SIGKILL to broker" in done.stdout
    group = summary["group"]
    assert (group["members"], group["skipped"], group["lag"]) == (3, 0, 0)
    assert group["read"] - group["read_again"] == 1669
    assert group["commits"] > 0
    assert group["coordinator"]["was_killed"]
    assert group["coordinator"]["after"] not in (None, group["coordinator"]["before"])
    assert f"and the coordinator of group {group['group']}" in done.stdout
    assert f"group describe {group['group']} --bootstrap-server" in done.stdout
    assert (out / "report.html").read_text().count("<svg") == 5
    assert_nothing_runs_on(tmp_path)


MOMENTS = {"cluster starts": "Starting ZooKeeper", "Spark starts": "Starting Spark", "replaying": "20 %"}
"""What the demo says just before the interrupt."""
LAST_MOMENT_IN_QUICK_RUN = [
    thorough(MOMENTS["cluster starts"]),
    thorough(MOMENTS["Spark starts"]),
    MOMENTS["replaying"],
]


@pytest.mark.parametrize("said", LAST_MOMENT_IN_QUICK_RUN, ids=MOMENTS.keys())
@pytest.mark.parametrize("number", [signal.SIGINT, thorough(signal.SIGTERM)], ids=["SIGINT", "SIGTERM"])
def test_an_interrupted_demo_stops_all_it_started(tmp_path: Path, said: str, number: signal.Signals) -> None:
    with running_demo(tmp_path, said) as demo:
        # As a terminal does it: to the whole foreground group.
        os.killpg(demo.pid, number)
        assert demo.wait(timeout=90) == 128 + number, (tmp_path / "log").read_text()
    assert_nothing_runs_on(tmp_path, demo.pid)


@pytest.mark.thorough
@pytest.mark.parametrize("said", MOMENTS.values(), ids=MOMENTS.keys())
def test_nothing_of_a_demo_that_crashed_runs_on(tmp_path: Path, said: str) -> None:
    """By SIGKILL, which leaves no more chance to tidy up than a fault of a library."""
    with running_demo(tmp_path, said) as demo:
        demo.kill()
        assert demo.wait(timeout=10) == -signal.SIGKILL
    assert_nothing_runs_on(tmp_path, demo.pid)


def test_the_demo_leaves_a_cluster_alone_that_runs_already(shared_cluster: LocalCluster, tmp_path: Path) -> None:
    running = [process.pid() for process in shared_cluster.running()]
    command = [*OTTLA, "demo", "--dir", str(shared_cluster.directory), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "is in use by a running cluster" in done.stderr
    assert [process.pid() for process in shared_cluster.running()] == running


@contextmanager
def running_demo(directory: Path, until_it_says: str) -> Iterator[subprocess.Popen[str]]:
    with (directory / "log").open("w") as log:
        demo = subprocess.Popen(
            [*OTTLA, "demo", "--days", "1", "--speed", "5000", "--out", str(directory / "out")],
            stdout=log,
            stderr=log,
            start_new_session=True,
            text=True,
        )

        def says_it() -> bool:
            said = (directory / "log").read_text()
            assert demo.poll() is None, said
            return until_it_says in said

        try:
            eventually(says_it, until_it_says, timeout_s=150)
            yield demo
        finally:
            demo.kill()
            demo.wait()


def assert_nothing_runs_on(directory: Path, session: int = -1) -> None:
    """Whatever names the directory in its command line, or is of the session, ends by itself."""
    eventually(lambda: not processes_below(directory), f"nothing runs that names {directory}")
    assert processes_of_session(session) == []
