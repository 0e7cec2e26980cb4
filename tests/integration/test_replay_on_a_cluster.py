"""`ottla replay run --master`: on a Spark standalone cluster of two workers with one core each (RPL-4)."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pyspark
import pytest

from tests.support.cli import COMMAND, ottla
from tests.support.invariants import eventually
from tests.support.small_traces import produce, written
from tests.support.standalone_spark import StandaloneSpark
from tools.cluster.java import find_java
from tools.cluster.local_cluster import LocalCluster
from tools.replay.run.spark_process import write_java_home
from tools.replay.traces.check import check

pytestmark = [pytest.mark.integration, pytest.mark.thorough, pytest.mark.timeout(900)]
TOPIC = "spread"
CLIENTS = 4
SETTINGS = (
    "spark.executor.extraJavaOptions=-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.sql.shuffle.partitions=4",
)
QUICK = [word for setting in SETTINGS for word in ("--spark-setting", setting)]
"""Executors that live for seconds need no optimizing compiler, and two cores no 200 tasks."""


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


class Shared:
    """A directory that is `viewfs://shared/data` for Spark, whose default file system that is."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "shared"
        self.path.mkdir()
        self.settings = {
            "fs.defaultFS": "viewfs://shared/",
            "fs.viewfs.mounttable.shared.link./data": f"file://{self.path}",
        }

    @property
    def options(self) -> list[str]:
        return [
            word for key, value in self.settings.items() for word in ("--spark-setting", f"spark.hadoop.{key}={value}")
        ]

    def write_core_site(self, directory: Path) -> None:
        rows = (
            f"<property><name>{key}</name><value>{value}</value></property>" for key, value in self.settings.items()
        )
        directory.mkdir()
        (directory / "core-site.xml").write_text(f"<configuration>{''.join(rows)}</configuration>")


def unseen(directory: Path, command: list[str]) -> list[str]:
    """The command, with a disk at `directory` that no other process sees. In the end its files are copied there."""
    if os.geteuid() or shutil.which("unshare") is None:
        pytest.skip("NOT TESTED: a mount that others do not see needs root and unshare")
    script = 'mount -t tmpfs none "$0" && cd "$0" && "$@"; code=$?; tar -cf - . | (umount -l "$0" && tar -xf - -C "$0"); exit $code'
    directory.mkdir()
    return ["unshare", "--mount", "sh", "-c", script, str(directory), *command]


def rows_of(directory: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(directory).to_pylist()
    return rows


@pytest.mark.release
def test_two_workers_do_what_the_trace_says(
    spark: StandaloneSpark, shared_cluster: LocalCluster, tmp_path: Path
) -> None:
    """As the local master does: test_replay_run.py. The results are on a disk of the driver that the executors do not see."""
    operations = 600
    trace, out = write_trace(tmp_path / "trace", operations, 2), tmp_path / "own" / "out"
    servers = ("--bootstrap-server", shared_cluster.bootstrap_servers, "--create-topics", "--out", str(out))
    options = ("--master", spark.url, *QUICK, "--event-log", str(tmp_path / "events"))
    command = unseen(tmp_path / "own", [*COMMAND, "replay", "run", str(trace), *servers, *options])
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=800, check=False)
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


@pytest.mark.release
def test_trace_and_results_are_elsewhere(spark: StandaloneSpark, shared_cluster: LocalCluster, tmp_path: Path) -> None:
    """In another file system than this machine's, which is the default one; also of `report`, which reads results."""
    shared, operations = Shared(tmp_path), 300
    write_trace(shared.path / "trace", operations, 2)
    place, out, temporary = "viewfs://shared/data", shared.path / "out", tmp_path / "temporary"
    command = [*COMMAND, "replay", "run", f"{place}/trace", "--bootstrap-server", shared_cluster.bootstrap_servers]
    command += ["--create-topics", "--master", spark.url, *QUICK, *shared.options, "--out", f"{place}/out"]
    temporary.mkdir()
    environment = os.environ | {"TMPDIR": str(temporary)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=800, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not list(temporary.iterdir())
    assert f"Report   {place}/out/report.html" in done.stdout
    verdict = json.loads((out / "verdict.json").read_text())
    assert verdict["acknowledged"] == verdict["found"] == 2 * operations
    assert sorted(row["request"] for row in rows_of(out / "operations")) == list(range(operations))
    assert {"report.html", "summary.json", "generator", "junit.xml"} <= {path.name for path in out.iterdir()}
    (out / "report.html").unlink()
    options = ["--master", spark.url, *QUICK, *shared.options]
    again = ottla(shlex.join(["replay", "report", f"{place}/out", *options]))
    assert again.exit_code == 0, again.output
    assert (out / "report.html").exists()


@pytest.mark.release
def test_spark_submit_runs_the_printed_command(
    spark: StandaloneSpark, shared_cluster: LocalCluster, tmp_path: Path
) -> None:
    """That of the package pyspark, with defaults as EMR has them, which start and stop executors while a job runs."""
    shared, operations = Shared(tmp_path), 300
    write_trace(shared.path / "trace", operations, 2)
    shared.write_core_site(tmp_path / "conf")
    defaults = {
        "dynamicAllocation.enabled": "true",
        "dynamicAllocation.executorIdleTimeout": "1s",
        "speculation": "true",
    }
    defaults |= {f"hadoop.{key}": value for key, value in shared.settings.items()}
    lines = "".join(f"spark.{key} {value}\n" for key, value in defaults.items())
    (tmp_path / "conf" / "spark-defaults.conf").write_text(lines)
    options = ["--master", spark.url, "--bootstrap-server", shared_cluster.bootstrap_servers, "--create-topics"]
    place = "viewfs://shared/data"
    environment = dict(os.environ) | {
        "HADOOP_CONF_DIR": str(tmp_path / "conf"),
        "SPARK_CONF_DIR": str(tmp_path / "conf"),
    }
    printed = subprocess.run(
        [*COMMAND, "replay", "submit-command", f"{place}/trace", "--out", f"{place}/out", *options, *QUICK],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=800, check=False,
    )  # fmt: skip
    assert printed.returncode == 0, printed.stderr
    home = Path(pyspark.__file__).parent
    environment |= {
        "JAVA_HOME": str(write_java_home(tmp_path / "java-home", Path(find_java()))),
        "SPARK_HOME": str(home),
        "PATH": f"{home / 'bin'}:{os.environ['PATH']}",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    done = subprocess.run(
        printed.stdout,
        shell=True,
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"Report   {place}/out/report.html" in done.stdout
    verdict = json.loads((shared.path / "out" / "verdict.json").read_text())
    assert verdict["acknowledged"] == verdict["found"] == 2 * operations
    assert sorted(row["request"] for row in rows_of(shared.path / "out" / "operations")) == list(range(operations))


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
