"""A replay on a Spark cluster: masters, what the executors get, lost tasks, the command for spark-submit (RPL-4)."""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.invariants import eventually
from tools.replay.load.task import Progress
from tools.replay.run.control import ControlClient, ControlServer
from tools.replay.run.job import reason
from tools.replay.run.masters import address_towards, check_master, is_local
from tools.replay.run.outcome import read_verdict, undone_lines
from tools.replay.run.packages import write_packages
from tools.replay.run.plan import OutputDirectory, Plan, ReplayError, write_json
from tools.replay.run.spark_process import SparkSettings
from tools.replay.run.stage import check_directory
from tools.replay.run.submission import Submission, arguments

CLEAN = {"acknowledged": 5, "found": 5, "lost": 0, "duplicated": 0, "reordered": 0, "corrupted": 0, "unseen": 0}
PLAN: dict[str, Any] = {
    "run": 7,
    "trace": "/trace",
    "bootstrap_servers": "a:1",
    "topics": {},
    "partitions": {},
    "start_offsets": {},
    "tasks": 2,
    "speeds": [1.0],
    "step_s": 0.0,
    "clients": 1,
    "bytes": 1.0,
    "answer_timeout_s": 60.0,
    "control": "",
    "trace_rows": 1,
    "trace_seconds": 1.0,
}


@pytest.mark.parametrize(
    ("master", "local"), [("local", True), ("local[4]", True), ("local[*]", True), ("spark://h:1,i:2", False)]
)
def test_masters(master: str, local: bool) -> None:
    check_master(master)
    assert is_local(master) == local


@pytest.mark.parametrize("master", ["", "local[x]", "spark://h", "spark://h:0", "spark://h:1,", "yarn", "h:1"])
def test_other_masters_are_refused(master: str) -> None:
    with pytest.raises(ValueError, match=r"neither local\[N\] nor spark://HOST:PORT"):
        check_master(master)


def test_this_machine_is_addressed_as_the_master_sees_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert address_towards(f"spark://127.0.0.1:{port}") == "127.0.0.1"
    with pytest.raises(ReplayError, match=r"no connection \(.*\); is the Spark master running there\?"):
        address_towards(f"spark://127.0.0.1:{port}")


def test_a_cluster_gets_the_code_and_the_drivers_address_and_a_local_master_does_not(tmp_path: Path) -> None:
    settings = SparkSettings("spark://m:7077", "10.0.0.1", tmp_path / "log", ("spark.executor.memory=2g",))
    words = settings.arguments(tmp_path)
    assert words[words.index("--master") + 1] == "spark://m:7077"
    assert words[words.index("--py-files") + 1] == str(tmp_path / "ottla.zip")
    conf = [words[at + 1] for at, word in enumerate(words) if word == "--conf"]
    assert {
        "spark.driver.host=10.0.0.1",
        "spark.executor.memory=2g",
        f"spark.eventLog.dir=file://{tmp_path}/log",
    } <= set(conf)
    assert not {"--master", "--py-files"} & set(SparkSettings().arguments(tmp_path))


def test_the_code_runs_from_its_zip(tmp_path: Path) -> None:
    """What a task needs can be imported from the zip alone, together with the installed libraries."""
    archive = tmp_path / "ottla.zip"
    write_packages(archive)
    again = tmp_path / "again.zip"
    write_packages(again)
    assert archive.read_bytes() == again.read_bytes()
    assert {Path(name).suffix for name in zipfile.ZipFile(archive).namelist()} == {".py", ".sql"}
    code = "import tools.replay.run.stage as it; from tools.replay.run.queries import query; query('lag'); print(it.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(archive)!r}); {code}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == f"{archive}/tools/replay/run/stage.py"


def test_a_task_must_see_the_replays_directory(tmp_path: Path) -> None:
    output = OutputDirectory(tmp_path)
    with pytest.raises(ReplayError, match="all executors must see the replay's directory"):
        check_directory(output, 7)
    output.write_plan(Plan(directory=str(tmp_path), **PLAN))
    output.operations.mkdir()
    check_directory(output, 7)
    assert not list(output.operations.iterdir())
    with pytest.raises(ReplayError, match=r"plan.json is another replay's"):
        check_directory(output, 8)


def test_a_lost_task_stops_the_others() -> None:
    stopped: list[int] = []
    with ControlServer() as server:
        ended, lost, other = (ControlClient(server.address, number) for number in range(3))
        for number, client in enumerate((ended, lost, other)):
            client.watch(Progress, lambda number=number: stopped.append(number))  # type: ignore[misc]
        eventually(lambda: len(server.progress) == 3, "all have reported")
        ended.close(Progress(sent=4))
        eventually(lambda: server.progress[0].sent == 4, "the last totals are there")
        assert not server.lost
        lost.close(None)
        eventually(lambda: 2 in stopped, "the other task stops")
        assert list(server.lost) == [1]
        other.close(Progress())
    assert 0 not in stopped


def test_the_drift_of_a_clock_is_measured_at_the_end() -> None:
    with ControlServer() as server:
        client = ControlClient(server.address, 0)
        client.watch(Progress, lambda: None)
        drift, uncertainty = client.drift_ns() or (0, 0)
        assert abs(drift) <= uncertainty
        server.clock = server.clock.shifted(5_000_000_000)
        drift, uncertainty = client.drift_ns() or (0, 0)
        assert abs(drift - 5_000_000_000) <= uncertainty
        assert not server.lost
        client.close(Progress())
    assert client.drift_ns() is None


def test_the_reason_is_one_line() -> None:
    own = "Job aborted ...\n  File x\ntools.wire.cluster_view.Unreachable: no broker of a:1 answers\n\tat org.apache"
    lost = "Job aborted due to stage failure: ...\nReason: Stage failed\nExecutorLostFailure (executor 0 exited) Reason: gone"
    assert reason(own) == "no broker of a:1 answers"
    assert reason(lost) == "ExecutorLostFailure (executor 0 exited) Reason: gone"
    assert reason("\n first\nsecond") == "first"
    assert reason("") == "no reason"


def test_a_verdict_on_a_part_says_what_is_undone(tmp_path: Path) -> None:
    output = OutputDirectory(tmp_path)
    tasks = [
        {"task": 0, "expected": 3000, "undone": 0, "first_ns": None},
        {"task": 1, "expected": 2000, "undone": 1500, "first_ns": 2_500_000_000},
    ]
    write_json(output.tasks, {"tasks": [], "problem": "an executor is gone", "undone": tasks})
    with pytest.raises(ReplayError, match="nothing was measured: an executor is gone"):
        read_verdict(output)
    write_json(output.verdict, CLEAN)
    assert read_verdict(output)["problem"] == "an executor is gone"
    (line,) = undone_lines(output)
    assert line.startswith(
        "  task 1: 1,500 of 2,000 operations have no result, the first 2.500 s after the trace's start"
    )


def test_the_command_for_spark_submit(tmp_path: Path) -> None:
    submission = Submission("k8s://https://h:6443", "cluster", tmp_path / "env.tar.gz", "hdfs:///logs")
    words = arguments(OutputDirectory(tmp_path / "out dir"), submission, ["spark.executor.memory=2g"], 3)
    assert shlex.split(shlex.join(words)) == words
    text = json.dumps(words)
    for part in ("k8s://https://h:6443", "cluster", f"{tmp_path}/env.tar.gz#environment", "spark.eventLog.dir=hdfs:///logs",
                 "spark.pyspark.python=./environment/bin/python", "spark.executor.memory=2g", "ottla.zip"):  # fmt: skip
        assert part in text
    assert words[-2].endswith("/tools/replay/run/job.py")
    assert words[-1] == str(tmp_path / "out dir")
    assert "driver.python" not in text
    client = arguments(OutputDirectory(tmp_path), Submission("yarn", "client", tmp_path / "e", None), [], 2)
    assert f"spark.pyspark.driver.python={sys.executable}" in client
