"""A replay on a Spark cluster: masters, what the executors get, lost tasks, the command for spark-submit (RPL-4)."""

from __future__ import annotations

import contextlib
import json
import shlex
import socket
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.invariants import eventually
from tools.replay.load.task import LoadError, Progress
from tools.replay.run.control import ControlClient, ControlServer, wait_for_tasks
from tools.replay.run.job import reason
from tools.replay.run.masters import checked_master, host_towards, is_local
from tools.replay.run.outcome import read_verdict, undone_lines
from tools.replay.run.packages import write_packages
from tools.replay.run.plan import OutputDirectory, ReplayError, write_json
from tools.replay.run.spark_process import SparkSettings
from tools.replay.run.submission import Submission, arguments

CLEAN = {"acknowledged": 5, "found": 5, "lost": 0, "duplicated": 0, "reordered": 0, "corrupted": 0, "unseen": 0}


@pytest.mark.parametrize(
    ("master", "local"), [("local", True), ("local[4]", True), ("local[*]", True), ("spark://h:1,i:2", False)]
)
def test_masters(master: str, local: bool) -> None:
    checked_master(master)
    assert is_local(master) == local


@pytest.mark.parametrize("master", ["", "local[x]", "spark://h", "spark://h:0", "spark://h:1,", "yarn", "h:1"])
def test_other_masters_are_refused(master: str) -> None:
    with pytest.raises(ValueError, match=r"neither local\[N\] nor spark://HOST:PORT"):
        checked_master(master)


def test_this_machine_is_addressed_as_the_master_sees_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert host_towards(f"spark://127.0.0.1:{port}") == "127.0.0.1"
    with pytest.raises(ReplayError, match=r"no connection \(.*\); is the Spark master running there\?"):
        host_towards(f"spark://127.0.0.1:{port}")


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


def test_a_job_has_memory_for_its_rows_unless_a_person_says_how_much(tmp_path: Path) -> None:
    few, many = SparkSettings(rows=100_000), SparkSettings(rows=20_000_000)
    assert few.heap_mb == 512 < 1024 < many.heap_mb
    chosen = SparkSettings(configuration=("spark.driver.memory=7g",)).arguments(tmp_path)
    assert [word for word in chosen if word.startswith("spark.driver.memory")][-1] == "spark.driver.memory=7g"


@pytest.mark.parametrize(("rows", "is_interpreted"), [(0, False), (200, True), (100_000, False)])
def test_queries_of_few_rows_are_not_compiled_unless_a_person_wants_it(
    tmp_path: Path, rows: int, is_interpreted: bool
) -> None:
    chosen = "spark.sql.codegen.wholeStage=true"
    words = SparkSettings(rows=rows, configuration=(chosen,)).arguments(tmp_path)
    assert ("spark.sql.codegen.factoryMode=NO_CODEGEN" in words) == is_interpreted
    assert [word for word in words if word.startswith("spark.sql.codegen.wholeStage")][-1] == chosen


def test_the_code_runs_from_its_zip(tmp_path: Path) -> None:
    """What a job needs can be imported from the zip alone, together with the installed libraries, also the report."""
    archive = tmp_path / "ottla.zip"
    write_packages(archive)
    again = tmp_path / "again.zip"
    write_packages(again)
    assert archive.read_bytes() == again.read_bytes()
    assert {Path(name).suffix for name in zipfile.ZipFile(archive).namelist()} == {
        ".py",
        ".sql",
        ".js",
        ".css",
        ".html",
    }
    code = "import tools.replay.run.stage as it; from tools.replay.run.queries import query; query('lag'); print(it.__file__)"
    code += "; from tools.pages.markup import page; page('', '', [], [])"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(archive)!r}); {code}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == f"{archive}/tools/replay/run/stage.py"


def names_in(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def watching(server: ControlServer, task: int) -> ControlClient:
    client = ControlClient(server.address, task)
    client.watch(Progress, lambda: None)
    return client


def test_the_driver_writes_what_tasks_send(tmp_path: Path) -> None:
    """Also that of a task which is lost then. Nobody needs to see the driver's disk."""
    with ControlServer(tmp_path) as server:
        one, other = watching(server, 0), watching(server, 11)
        large = bytes(range(256)) * 20_000
        for content in (large, b"more"):
            one.keep("operations", content)
        other.keep("operations", b"of another")
        other.keep("generator", b"{}")
        assert names_in(tmp_path) == [
            "generator/task-0011.json",
            *(f"operations/task-{name}.parquet" for name in ("0000-000000", "0000-000001", "0011-000000")),
        ]
        assert (tmp_path / "operations" / "task-0000-000000.parquet").read_bytes() == large
        waiting = threading.Thread(target=wait_for_tasks, args=(server.address,))
        waiting.start()
        other.close(Progress())
        waiting.join(0.3)
        assert waiting.is_alive()
        one.close(None)
        waiting.join()
        assert not server.lost.keys() - {0}


def test_a_task_hears_that_its_results_are_not_kept(tmp_path: Path) -> None:
    (tmp_path / "operations").write_text("in the way")
    with ControlServer(tmp_path) as server:
        client = watching(server, 0)
        with pytest.raises(LoadError, match=r"the driver does not keep the results: .*File exists"):
            client.keep("operations", b"rows")
        client.keep("groups", b"{}")
        server.stop()
        (handler,) = server._tasks
        handler.request.shutdown(socket.SHUT_RDWR)
        for _ in range(2):
            with pytest.raises(LoadError, match="it has ended"):
                client.keep("operations", b"rows")


@pytest.mark.parametrize(
    "line",
    [
        {"task": 0, "kind": "../operations", "bytes": 1},
        {"task": 0, "kind": "found", "bytes": 1},
        {"task": "../0", "kind": "operations", "bytes": 1},
        {"task": -1, "kind": "operations", "bytes": 1},
        {"task": 4096, "kind": "operations", "bytes": 1},
        {"task": 0, "kind": "operations", "bytes": 1 << 30},
        {"task": 0, "kind": "operations", "bytes": 0},
    ],
)
def test_a_stranger_writes_no_file(line: dict[str, Any], tmp_path: Path) -> None:
    with ControlServer(tmp_path / "out") as server:
        host, port = server.address.split(":")
        with socket.create_connection((host, int(port))) as stranger:
            stranger.sendall(json.dumps(line).encode() + b"\nx")
            stranger.settimeout(10)
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(100) == b""
    assert not names_in(tmp_path)


def test_a_lost_task_stops_the_others(tmp_path: Path) -> None:
    stopped: list[int] = []
    with ControlServer(tmp_path) as server:
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


def test_the_drift_of_a_clock_is_measured_at_the_end(tmp_path: Path) -> None:
    with ControlServer(tmp_path) as server:
        client = watching(server, 0)
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
    dead = "An error occurred while calling o510.collectToPython.\nSparkException: Python worker exited unexpectedly (crashed)."
    assert reason(own) == "no broker of a:1 answers"
    assert reason(lost) == "ExecutorLostFailure (executor 0 exited) Reason: gone"
    assert reason(dead) == "a Python worker of Spark has died: it was killed, or its machine had no memory left"
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
