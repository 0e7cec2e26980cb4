"""A Compose project as a cluster: which containers are its brokers, where they answer, and why a project is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tools.cluster.processes import ClusterError
from tools.faults import containers, docker_command
from tools.faults.cluster import State
from tools.faults.containers import BROKER_ID, ComposeCluster, Container, cluster_among, docker, find_cluster
from tools.faults.rounds import why_not
from tools.faults.schedule import all_kinds


def container(project: str, service: str, *, directory: str = "/home/me/ottla", **changed: Any) -> dict[str, Any]:
    """What `docker inspect` says. `changed`: env, ports (container's port -> (host's address, host's port)), running, oneoff."""
    labels = {containers.PROJECT: project, containers.SERVICE: service, containers.DIRECTORY: directory}
    ports = {port: [{"HostIp": host, "HostPort": number}] for port, (host, number) in changed.get("ports", {}).items()}
    return {
        "Name": f"/{project}-{service}-1",
        "State": {"Running": changed.get("running", True), "Paused": False},
        "Config": {"Labels": labels | changed.get("labels", {}), "Env": changed.get("env")},
        "HostConfig": {"PortBindings": ports},
    }


def broker(project: str, number: int, **changed: Any) -> dict[str, Any]:
    """Broker `number`, as in the project's docker-compose.yml."""
    env = [
        "PATH=/bin",
        f"{BROKER_ID}={number}",
        f"KAFKA_LISTENERS=INTERNAL://0.0.0.0:1909{number},HOST://0.0.0.0:9092,CONTROLLER://0.0.0.0:1809{number}",
        "KAFKA_ZOOKEEPER_CONNECT=zookeeper:2181",
    ]
    ports = {"8080/tcp": ("", "8080"), "9092/tcp": ("127.0.0.1", f"{9091 + number}")}
    return container(project, f"kafka{number}", **({"env": env, "ports": ports} | changed))


def project_of(name: str, **changed: Any) -> list[dict[str, Any]]:
    return [container(name, "zookeeper", **changed), *(broker(name, number, **changed) for number in (2, 1))]


def test_the_brokers_and_zookeeper_of_a_project() -> None:
    one_off = broker("ottla", 1, labels={containers.ONE_OFF: "True"})
    cluster = cluster_among([*project_of("other"), one_off, *project_of("ottla")], "ottla")
    assert cluster.broker_ids == (1, 2)
    assert cluster.bootstrap_servers == "127.0.0.1:9092,127.0.0.1:9093"
    assert cluster.address(2) == ("127.0.0.1", 9093)
    assert cluster.broker(2) == Container("ottla-kafka2-1", 2)
    assert cluster.zookeeper() == Container("ottla-zookeeper-1", None)
    assert set(cluster.impossible) - {"from", "cut"} == {"expire-session", "requests", "delay", "throttle", "half"}


def test_random_schedules_leave_out_what_containers_cannot_have() -> None:
    cluster = ComposeCluster("ottla", project_of("ottla"))
    left_out = {name for name, kind in all_kinds(6.0).items() if why_not(kind, cluster, ["t-0"], ["g"]) is not None}
    assert left_out >= {"slow links", "halved messages", "halved answers of ZooKeeper", "expire a session"}
    assert not left_out & {"isolate briefly", "bounce", "restart ZooKeeper"}


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::"])
def test_a_port_at_all_addresses_is_asked_at_localhost(host: str) -> None:
    cluster = ComposeCluster("p", [broker("p", 1, ports={"9092/tcp": (host, "19092")})])
    assert cluster.bootstrap_servers == "localhost:19092"
    assert cluster.zookeeper() is None


@pytest.mark.parametrize("by", ["my-project", "{directory}", "{directory}/../here"])
def test_a_project_is_found_by_its_name_or_directory(by: str, tmp_path: Path) -> None:
    directory = tmp_path / "here"
    ended = project_of("ended", directory=str(directory), running=False)
    found = [*project_of("other"), *ended, *project_of("my-project", directory=str(directory))]
    assert cluster_among(found, by.format(directory=directory)).broker(1).name == "my-project-kafka1-1"


def with_env(*env: str) -> list[dict[str, Any]]:
    return [broker("p", 1, env=list(env))]


@pytest.mark.parametrize(
    ("found", "project", "reason"),
    [
        ([], "p", "no Compose project has the name or the directory 'p'; `docker-compose up --detach` starts one"),
        (project_of("b") + project_of("a"), "p", "'p'; there are a, b; `docker-compose"),
        (project_of("b") + project_of("a"), "/home/me/ottla", "has several Compose projects: a, b; give the name"),
        (project_of("p", running=False), "p", "no container of the Compose project p runs; `docker-compose up"),
        ([container("p", "web")], "p", "the Compose project p has no broker: no container with KAFKA_BROKER_ID"),
        (with_env(f"{BROKER_ID}=one"), "p", "container p-kafka1-1: KAFKA_BROKER_ID=one is not a broker id"),
        ([*project_of("p"), broker("p", 1)], "p", "p-kafka1-1 and p-kafka1-1 are both broker 1"),
        (with_env(f"{BROKER_ID}=1"), "p", "container p-kafka1-1 publishes none of its KAFKA_LISTENERS"),
        ([broker("p", 1, ports={"9092/tcp": ("", "")})], "p", "at a fixed port, so its broker cannot be asked"),
    ],
)
def test_projects_that_are_refused(found: list[dict[str, Any]], project: str, reason: str) -> None:
    with pytest.raises(ClusterError, match=re.escape(reason)) as refused:
        cluster_among(found, project)
    assert "\n" not in str(refused.value)


STATES = {
    '{"Running": true, "Paused": false}': State.RUNNING,
    '{"Running": true, "Paused": true}': State.PAUSED,
    '{"Running": false, "Paused": false}': State.ENDED,
}


@pytest.mark.parametrize("printed", STATES)
def test_the_state_of_a_container(printed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker_command, "docker", lambda *_: f'[{{"State": {printed}}}]')
    assert Container("c", 1).state() is STATES[printed]


def fake_docker(directory: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    command = directory / "docker"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:/bin:/usr/bin")


def test_each_action_is_a_command_of_docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    fake_docker(tmp_path, f'echo "$@" >> {log}', monkeypatch)
    victim = Container("ottla-kafka2-1", 2)
    for act in (victim.kill, victim.start, victim.stop, victim.pause, victim.resume):
        act()
    commands = ("kill", "start", "stop -t 30", "pause", "unpause")
    assert log.read_text().splitlines() == [f"{command} ottla-kafka2-1" for command in commands]
    with pytest.raises(ClusterError, match="use --dir"):
        victim.expire_session()


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'see help' >&2; echo 'Cannot connect to the Docker daemon' >&2; exit 1", "docker ps: Cannot connect"),
        ("exit 3", "docker ps: it failed with exit code 3"),
    ],
)
def test_no_engine_is_one_line(script: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_docker(tmp_path, script, monkeypatch)
    with pytest.raises(ClusterError, match=f"^{reason}.*$"):
        find_cluster("p")


def test_no_docker_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match="the command docker was not found: install Docker"):
        docker("ps")
