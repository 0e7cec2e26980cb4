"""The containers of a Compose project as victims of faults, through the command `docker`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol.numbers import is_plain_number
from tools.cluster.local_cluster import STOP_TIMEOUT_S
from tools.cluster.processes import ClusterError
from tools.faults.cluster import State

ANSWER_TIMEOUT_S = 60.0 + STOP_TIMEOUT_S
"""How long a command of docker may take, a clean stop included."""
PROJECT = "com.docker.compose.project"
DIRECTORY = "com.docker.compose.project.working_dir"
SERVICE = "com.docker.compose.service"
ONE_OFF = "com.docker.compose.oneoff"
"""The label of containers that `docker-compose run` started. They are not part of the cluster."""
BROKER_ID = "KAFKA_BROKER_ID"
LISTENERS = "KAFKA_LISTENERS"
ZOOKEEPER_CONNECT = "KAFKA_ZOOKEEPER_CONNECT"
ALL_ADDRESSES = {"", "0.0.0.0", "::"}
NO_SESSIONS = "expire-session needs the brokers' own ZooKeeper on this machine: use --dir"


@dataclass(frozen=True)
class Container:
    """A container as a victim. `name` is Docker's. The methods raise ClusterError."""

    name: str
    broker_id: int | None

    def state(self) -> State:
        state = json.loads(docker("inspect", "--type", "container", "--format", "{{json .State}}", self.name))
        if not state["Running"]:
            return State.ENDED
        return State.PAUSED if state["Paused"] else State.RUNNING

    def kill(self) -> None:
        docker("kill", self.name)

    def stop(self) -> None:
        """Returns when it has ended. Docker kills it after STOP_TIMEOUT_S."""
        docker("stop", "-t", f"{STOP_TIMEOUT_S:.0f}", self.name)

    def start(self) -> None:
        docker("start", self.name)

    def pause(self) -> None:
        docker("pause", self.name)

    def resume(self) -> None:
        docker("unpause", self.name)

    def expire_session(self) -> None:
        raise ClusterError(NO_SESSIONS)


class ComposeCluster:
    """The brokers and the ZooKeeper of a Compose project on this machine.

    A broker is a container with KAFKA_BROKER_ID that publishes the port of one of its listeners. ZooKeeper is the service that
    KAFKA_ZOOKEEPER_CONNECT names.
    """

    def __init__(self, project: str, containers: Sequence[Mapping[str, Any]]) -> None:
        """`containers`: what `docker inspect` says of the project's. Raises ClusterError."""
        self._brokers: dict[int, Container] = {}
        self._addresses: dict[int, tuple[str, int]] = {}
        connects = set()
        for found in containers:
            name, environment = name_of(found), environment_of(found)
            if BROKER_ID not in environment:
                continue
            if not is_plain_number(environment[BROKER_ID]):
                raise ClusterError(f"container {name}: {BROKER_ID}={environment[BROKER_ID]} is not a broker id")
            broker_id = int(environment[BROKER_ID])
            if broker_id in self._brokers:
                raise ClusterError(f"containers {self._brokers[broker_id].name} and {name} are both broker {broker_id}")
            self._brokers[broker_id] = Container(name, broker_id)
            self._addresses[broker_id] = published_address(found)
            connects.add(environment.get(ZOOKEEPER_CONNECT, "").partition(":")[0])
        if not self._brokers:
            raise ClusterError(f"the Compose project {project} has no broker: no container with {BROKER_ID}")
        zookeepers = [found for found in containers if labels_of(found).get(SERVICE) in connects]
        self._zookeeper = Container(name_of(zookeepers[0]), None) if zookeepers else None

    @property
    def broker_ids(self) -> tuple[int, ...]:
        return tuple(sorted(self._brokers))

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in map(self.address, self.broker_ids))

    @property
    def impossible(self) -> Mapping[str, str]:
        return {"expire-session": NO_SESSIONS}

    def address(self, broker_id: int) -> tuple[str, int]:
        return self._addresses[broker_id]

    def broker(self, broker_id: int) -> Container:
        return self._brokers[broker_id]

    def zookeeper(self) -> Container | None:
        return self._zookeeper


def find_cluster(project: str) -> ComposeCluster:
    """The cluster of a Compose project, given its name or the directory of its file. Raises ClusterError.

    At least one of its containers must run.
    """
    return cluster_among(compose_containers(), project)


def compose_containers() -> list[dict[str, Any]]:
    """What `docker inspect` says of all containers of Compose projects, also of those that have ended. Raises ClusterError."""
    ids = docker("ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={PROJECT}").split()
    found: list[dict[str, Any]] = json.loads(docker("inspect", "--type", "container", *ids)) if ids else []
    return found


def cluster_among(containers: Sequence[Mapping[str, Any]], project: str) -> ComposeCluster:
    """The cluster of the project among the containers of all projects. Raises ClusterError."""
    mine = [found for found in containers if labels_of(found).get(ONE_OFF, "False") != "True"]
    names = {labels_of(found)[PROJECT] for found in mine}
    if project not in names:
        directory = str(Path(project).resolve())
        of_directory = [found for found in mine if labels_of(found).get(DIRECTORY) == directory]
        running = [found for found in of_directory if found["State"]["Running"]]
        there = {labels_of(found)[PROJECT] for found in running or of_directory}
        if len(there) > 1:
            raise ClusterError(
                f"{project} has several Compose projects: {', '.join(sorted(there))}; give the name of one"
            )
        if not there:
            known = f"; there are {', '.join(sorted(names))}" if names else ""
            raise ClusterError(
                f"no Compose project has the name or the directory {project!r}{known}; `docker-compose up --detach` starts one"
            )
        (project,) = there
    mine = [found for found in mine if labels_of(found)[PROJECT] == project]
    if not any(found["State"]["Running"] for found in mine):
        raise ClusterError(
            f"no container of the Compose project {project} runs; `docker-compose up --detach` starts them"
        )
    return ComposeCluster(project, mine)


def published_address(found: Mapping[str, Any]) -> tuple[str, int]:
    """Where this machine reaches a listener of a broker's container. Raises ClusterError."""
    listeners = {
        listener.rpartition(":")[2].strip() for listener in environment_of(found).get(LISTENERS, "").split(",")
    }
    for port, bindings in sorted((found["HostConfig"].get("PortBindings") or {}).items()):
        if port.removesuffix("/tcp") not in listeners:
            continue
        for binding in bindings or ():
            if is_plain_number(binding["HostPort"]):
                host = "localhost" if binding["HostIp"] in ALL_ADDRESSES else binding["HostIp"]
                return host, int(binding["HostPort"])
    raise ClusterError(
        f"container {name_of(found)} publishes none of its {LISTENERS} at a fixed port, so its broker cannot be asked"
    )


def name_of(found: Mapping[str, Any]) -> str:
    return str(found["Name"]).removeprefix("/")


def labels_of(found: Mapping[str, Any]) -> Mapping[str, str]:
    labels: Mapping[str, str] = found["Config"]["Labels"]
    return labels


def environment_of(found: Mapping[str, Any]) -> dict[str, str]:
    """The variables of a container."""
    return {name: value for name, _, value in (entry.partition("=") for entry in found["Config"]["Env"] or ())}


def docker(*arguments: str) -> str:
    """What the command prints. Raises ClusterError with the last line of its complaint."""
    command = f"docker {arguments[0]}"
    try:
        done = subprocess.run(
            ["docker", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ANSWER_TIMEOUT_S,
            check=False,
            start_new_session=True,  # a Ctrl-C in the terminal is not for it
        )
    except FileNotFoundError:
        raise ClusterError("the command docker was not found: install Docker") from None
    except OSError as problem:
        raise ClusterError(f"{command}: {problem}") from None
    except subprocess.TimeoutExpired:
        raise ClusterError(f"{command} did not end within {ANSWER_TIMEOUT_S:.0f} s") from None
    if done.returncode != 0:
        complaint = done.stderr.strip().splitlines() or [f"it failed with exit code {done.returncode}"]
        raise ClusterError(f"{command}: {complaint[-1]}")
    return done.stdout
