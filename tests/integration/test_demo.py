"""`ottla demo`: a short replay through a cluster with a killed leader, and interrupts at bad moments."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import processes_below
from tests.support.invariants import eventually
from tests.support.thorough import release
from tools.cluster.local_cluster import LocalCluster
from tools.replay.load.classic_membership import HEARTBEAT_S
from tools.replay.run.spark_process import processes_of_session

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
OTTLA = [sys.executable, "-c", "from tools.cli import main; main()"]


@pytest.mark.thorough
@pytest.mark.timeout(480)
def test_the_demo_loses_nothing_when_a_leader_is_killed(tmp_path: Path) -> None:
    """A day instead of a week, in twenty seconds."""
    out = tmp_path / "out"
    command = [*OTTLA, "demo", "--days", "1", "--speed", "5000", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=420, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((out / "summary.json").read_text())
    counted = {"checks", "sent", "acknowledged", "read", "lost", "duplicated", "outages", "throughput", "latency_ms"}
    assert set(summary) == counted | {"groups", "changes", "end_to_end", "generator", "loop", "without_acks_all"}
    assert summary["sent"] == summary["acknowledged"] == 1669
    assert summary["read"] == summary["acknowledged"]
    assert summary["lost"] == 0
    assert summary["duplicated"] == 0
    assert summary["outages"]
    assert "kill leader of departures-" in done.stdout
    (group,) = summary["groups"]
    assert group["group"] == "ottla-replay-flight-readers"
    assert (group["members"], group["error"]) == (6, "")
    assert group["commits"] > 0
    assert group["skipped"] == 0
    assert group["read"] - group["read_again"] > 1600, (
        "all but what was there before the group, or came after its last fetch"
    )
    assert group["longest_without_heartbeat_s"] > HEARTBEAT_S, "the killed broker coordinated the group"
    assert f"group describe {group['group']} --dir" in done.stdout
    assert (out / "report.html").exists()
    assert_nothing_runs_on(tmp_path)


MOMENTS = {"cluster starts": "Starting ZooKeeper", "Spark starts": "Starting Spark", "replaying": " sent, "}
"""What the demo says just before the interrupt."""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("number", "moment"), [*((signal.SIGINT, moment) for moment in MOMENTS), (signal.SIGTERM, "Spark starts")]
)
def test_an_interrupted_demo_stops_all_it_started(tmp_path: Path, number: signal.Signals, moment: str) -> None:
    with running_demo(tmp_path, MOMENTS[moment]) as demo:
        # As a terminal does it: to the whole foreground group.
        os.killpg(demo.pid, number)
        assert demo.wait(timeout=90) == 128 + number, (tmp_path / "log").read_text()
    assert_nothing_runs_on(tmp_path, demo.pid)


@pytest.mark.thorough
@pytest.mark.parametrize("moment", ["Spark starts", release("replaying")])
def test_nothing_of_a_demo_that_crashed_runs_on(tmp_path: Path, moment: str) -> None:
    """By SIGKILL, which leaves no more chance to tidy up than a fault of a library. ZooKeeper and the brokers run from both moments on."""
    with running_demo(tmp_path, MOMENTS[moment]) as demo:
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
