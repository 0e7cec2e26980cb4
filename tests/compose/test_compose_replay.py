"""A replay on the cluster of docker-compose.yml: a leader's container dies, and Spark runs in containers (FAU-1, RPL-4)."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import uuid
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.cli import COMMAND, ottla
from tests.support.compose_project import (
    BUILD_TIMEOUT_S,
    REPOSITORY,
    ComposeProject,
    run,
)
from tests.support.invariants import eventually
from tests.support.small_traces import produce, written
from tools.faults.cluster import State
from tools.faults.containers import find_cluster
from tools.faults.faults import heal

# The images are built in the time of the fixture, and Spark's image in its test.
pytestmark = [pytest.mark.compose, pytest.mark.timeout(2400)]
REPLAY_TIMEOUT_S = 900.0
PARTITIONS = 2
WITH_SPARK = "OTTLA_TEST_SPARK_CONTAINERS"


def write_trace(path: Path, topic: str, operations: int, apart_ms: int = 10) -> Path:
    rows = [
        produce(apart_ms * at, at, client=f"writer-{at % 4}", topic=topic, partition=at % PARTITIONS)
        for at in range(operations)
    ]
    return written(path, rows, **{topic: PARTITIONS})


def new_topic(project: ComposeProject) -> str:
    topic = f"replayed-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": project.bootstrap_servers, "log_level": "2"})
    admin.create_topics([NewTopic(topic, PARTITIONS, 3, config={"min.insync.replicas": "2"})])[topic].result(30)
    return topic


def replay(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, "replay", "run", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=REPLAY_TIMEOUT_S, check=False)


@pytest.mark.release
def test_a_leaders_container_is_killed_and_nothing_is_lost(project: ComposeProject, tmp_path: Path) -> None:
    """The container that `it` does not start again is started at the end."""
    topic = new_topic(project)
    trace, out = write_trace(tmp_path / "trace", topic, 800), tmp_path / "out"
    faults = ("--fault", f"kill leader of {topic}-0 at 1s", "--fault", "restart it at 3s")
    last = ("--fault", f"kill leader of {topic}-1 at 7s")
    done = replay(str(trace), "--compose", project.name, "--out", str(out), *faults, *last)
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = json.loads((out / "verdict.json").read_text())
    assert verdict["acknowledged"] == verdict["found"] == 800
    assert [verdict[name] for name in ("lost", "duplicated", "reordered", "corrupted", "unseen")] == [0] * 5
    carried_out = json.loads((out / "faults.json").read_text())
    assert [(row["verb"], row["error"]) for row in carried_out] == [("kill", ""), ("restart", ""), ("kill", "")]
    assert [topic, 0] in carried_out[0]["partitions"]
    assert carried_out[0]["broker"] == carried_out[1]["broker"]
    cluster = find_cluster(project.name)
    assert {cluster.broker(number).state() for number in cluster.broker_ids} == {State.RUNNING}
    eventually(project.is_healthy, "all four containers healthy again", timeout_s=120)


def test_containers_are_paused_stopped_and_healed(project: ComposeProject) -> None:
    cluster = find_cluster(str(REPOSITORY))
    assert cluster.broker(3).name == find_cluster(project.name).broker(3).name
    zookeeper, broker = cluster.zookeeper(), cluster.broker(3)
    assert zookeeper is not None
    broker.pause()
    assert broker.state() is State.PAUSED
    broker.resume()
    broker.stop()
    zookeeper.pause()
    assert [broker.state(), zookeeper.state()] == [State.ENDED, State.PAUSED]
    heal(cluster)
    assert [broker.state(), zookeeper.state()] == [State.RUNNING, State.RUNNING]
    eventually(project.is_healthy, "all four containers healthy again", timeout_s=120)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("kill broker 7 at 1s", "the cluster has no broker 7; its brokers are 1, 2, 3"),
        ("expire-session controller at 1s", "expire-session needs the brokers' own ZooKeeper on this machine"),
    ],
)
def test_what_cannot_be_is_refused_before_the_replay(
    fault: str, reason: str, project: ComposeProject, tmp_path: Path
) -> None:
    trace, out = write_trace(tmp_path / "trace", "none", 1), tmp_path / "out"
    command = ["replay", "run", str(trace), "--compose", project.name, "--out", str(out), "--fault", fault]
    done = ottla(shlex.join(command))
    assert done.exit_code == 2
    assert reason in re.sub(r"\s+", " ", done.stderr)
    assert not out.exists()


def test_spark_in_containers_replays(project: ComposeProject, tmp_path: Path) -> None:
    """`docker-compose --profile spark up` and a driver in a container; the trace and the results are in the volume."""
    if not os.environ.get(WITH_SPARK):
        pytest.skip(
            f"NOT TESTED: Spark's image takes minutes and half a GB of downloads to build; {WITH_SPARK}=1 tests it"
        )
    topic = new_topic(project)
    trace = write_trace(tmp_path / "trace.parquet", topic, 200)
    project.compose("--profile", "spark", "build", "spark-master", timeout_s=BUILD_TIMEOUT_S)
    project.compose("--profile", "spark", "up", "--detach", timeout_s=300)
    run(["docker", "cp", str(trace), f"{project.container('spark-master')}:/replays/trace.parquet"])
    options = ("--master", "spark://spark-master:7077", "--out", "out")
    driver = ("run", "--rm", "-T", "driver", "replay", "run", "trace.parquet", *options)
    printed = project.compose(*driver, timeout_s=REPLAY_TIMEOUT_S)
    run(["docker", "cp", f"{project.container('spark-master')}:/replays/out", str(tmp_path / "out")])
    verdict = json.loads((tmp_path / "out" / "verdict.json").read_text())
    assert verdict["acknowledged"] == verdict["found"] == 200, printed
    assert verdict["lost"] == verdict["duplicated"] == 0
    tasks = json.loads((tmp_path / "out" / "tasks.json").read_text())
    assert [task["sent"] for task in tasks["tasks"]] == [100, 100]
    project.compose("--profile", "spark", "stop", "spark-worker1", "spark-worker2", "spark-master", timeout_s=300)
