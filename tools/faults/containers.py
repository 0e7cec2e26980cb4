"""The containers of a Compose project as victims of faults, through the command `docker`."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protocol.conversation.rule import FAULT_SOCKET, Rule
from protocol.json_lines import NobodyListens, answered
from protocol.numbers import is_plain_number
from tools.admin.bootstrap import parse_properties
from tools.cluster.links.rules import ZOOKEEPER
from tools.cluster.local_cluster import STOP_TIMEOUT_S
from tools.cluster.processes import ClusterError
from tools.faults import networks, volume_disk
from tools.faults.cluster import OF_REQUESTS, State
from tools.faults.docker_command import docker, environment_of, inspect
from tools.faults.packets import DROP_OR_RESET, Host
from tools.faults.record import state_directory
from tools.faults.rule_socket import RuleSocket
from tools.faults.words import Breakage
from tools.wire.client_properties import read_security
from tools.wire.security import PLAINTEXT, Security

PROJECT = "com.docker.compose.project"
DIRECTORY = "com.docker.compose.project.working_dir"
SERVICE = "com.docker.compose.service"
ONE_OFF = "com.docker.compose.oneoff"
"""The label of containers that `docker-compose run` started. They are not part of the cluster."""
BROKER_ID = "KAFKA_BROKER_ID"
LISTENERS = "KAFKA_LISTENERS"
ZOOKEEPER_CONNECT = "KAFKA_ZOOKEEPER_CONNECT"
CONFIG, SECURED = "OTTLA_CONFIG", "/secured/security/"
"""Where the brokers of docker-compose.secure.yml have their settings, beside their certificates and how admin connects."""
ALL_ADDRESSES = {"", "0.0.0.0", "::"}
FAULT_INJECTION = "KAFKA_BROKER_FAULT_INJECTION"
NO_RULES = f"faults in single requests need {FAULT_INJECTION}=true in the environment of the brokers' containers"
RULES_SOCKET = f"/var/lib/ottla/{FAULT_SOCKET}"
"""In a broker's container."""
ASK = ("python3", "-P", "-m", "protocol.json_lines")
NO_SESSIONS = "expire-session needs the brokers' own ZooKeeper on this machine: use --dir"


@dataclass(frozen=True)
class Container:
    """A container as a victim. `name` is Docker's; `cluster` is the one that it is part of. The methods raise ClusterError, FaultError."""

    name: str
    broker_id: int | None
    cluster: ComposeCluster | None = field(default=None, compare=False, repr=False)

    def state(self) -> State:
        state = inspect(self.name)["State"]
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

    def sever(self, breakage: Breakage) -> None:
        """Takes a container that is cut from everybody out of its networks. Other cuts are rules for packets, which need root."""
        if breakage == Breakage():
            networks.disconnect(self.name, self._saved("networks"))
        elif self.cluster is not None:
            networks.add_rules(self.name, breakage.rules(self.broker_id, self.cluster.broker_ids), self.cluster.hosts())

    def join(self, breakage: Breakage | None) -> None:
        if breakage is None or breakage == Breakage():
            networks.reconnect(self.name, self._saved("networks"))
        if breakage is None:
            networks.remove_all_rules(self.name)
        elif breakage != Breakage() and self.cluster is not None:
            rules = breakage.rules(self.broker_id, self.cluster.broker_ids)
            networks.remove_rules(self.name, rules, self.cluster.hosts())

    def add_rule(self, rule: Rule) -> None:
        if self.broker_id is None:
            raise ClusterError("ZooKeeper has no requests of clients")
        self._rules().add(rule)

    def remove_rules(self, ids: Sequence[str] | None) -> None:
        if self.broker_id is not None:
            self._rules().remove(ids)

    def _rules(self) -> RuleSocket:
        return RuleSocket(self._ask, f"broker {self.broker_id} in container {self.name}", NO_RULES)

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Raises NoAnswer, ClusterError."""
        if self.state() is State.ENDED:
            raise NobodyListens(f"{self.name} does not run")
        return answered(docker("exec", self.name, *ASK, RULES_SOCKET, json.dumps(request)))

    def fill_disk(self) -> None:
        volume_disk.fill(self.name, self._saved("disk"))

    def free_disk(self) -> None:
        if volume_disk.empty(self.name, self._saved("disk")):
            if self.state() is not State.ENDED:
                self.stop()
            self.start()

    def _saved(self, what: str) -> Path:
        """Where a fault of this container writes down what its undo needs."""
        return state_directory() / f"{what}-of-{self.name}.json"


class ComposeCluster:
    """The brokers and the ZooKeeper of a Compose project on this machine.

    A broker is a container with KAFKA_BROKER_ID that publishes the port of one of its listeners. ZooKeeper is the service that
    KAFKA_ZOOKEEPER_CONNECT names.
    """

    def __init__(self, project: str, containers: Sequence[Mapping[str, Any]]) -> None:
        """`containers`: what `docker inspect` says of the project's. Raises ClusterError."""
        self._project = project
        self._brokers: dict[int, Container] = {}
        self._addresses: dict[int, tuple[str, int]] = {}
        self._is_secured = False
        self._takes_rules = True
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
            self._brokers[broker_id] = Container(name, broker_id, self)
            self._addresses[broker_id] = published_address(found)
            self._takes_rules &= environment.get(FAULT_INJECTION) == "true"
            self._is_secured |= environment.get(CONFIG, "").startswith(SECURED)
            connects.add(environment.get(ZOOKEEPER_CONNECT, "").partition(":")[0])
        if not self._brokers:
            raise ClusterError(f"the Compose project {project} has no broker: no container with {BROKER_ID}")
        zookeepers = [found for found in containers if labels_of(found).get(SERVICE) in connects]
        self._zookeeper = Container(name_of(zookeepers[0]), None, self) if zookeepers else None

    @property
    def broker_ids(self) -> tuple[int, ...]:
        return tuple(sorted(self._brokers))

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in map(self.address, self.broker_ids))

    @property
    def impossible(self) -> Mapping[str, str]:
        """Also words of links. If a disk cannot be checked now, it is checked when a fault fills it."""
        return {
            "expire-session": NO_SESSIONS,
            **({} if self._takes_rules else {OF_REQUESTS: NO_RULES}),
            **dict.fromkeys(("delay", "throttle", "half"), DROP_OR_RESET),
            **self._impossible,
        }

    @functools.cached_property
    def _impossible(self) -> Mapping[str, str]:
        found = {} if os.geteuid() == 0 else dict.fromkeys(("from", "cut"), networks.NOT_ROOT)
        with contextlib.suppress(ClusterError):
            too_large = [volume_disk.why_not(broker.name) for broker in self._brokers.values()]
            if all(too_large):
                found["fill-disk"] = str(too_large[0])
        return found

    def shared_claims(self) -> str:
        """None: the containers share no directory, so each broker counts the requests that a rule hits."""
        return ""

    def drop_claims(self) -> None:
        """There are none."""

    @property
    def record_file(self) -> Path:
        return state_directory() / f"compose-{self._project}.json"

    def hosts(self) -> dict[str, Host]:
        """Node -> where its packets come from. A container that does not run has no address. Raises ClusterError."""
        nodes = {str(number): container for number, container in self._brokers.items()}
        if self._zookeeper is not None:
            nodes[ZOOKEEPER] = self._zookeeper
        rows = json.loads(docker("inspect", "--type", "container", *(node.name for node in nodes.values())))
        found = {}
        for node, row in zip(nodes, rows, strict=True):
            addresses = [network.get("IPAddress") for network in row["NetworkSettings"]["Networks"].values()]
            if any(addresses):
                found[node] = Host(next(filter(None, addresses)), control_port_of(row))
        return found

    @functools.cached_property
    def security(self) -> Security:
        """As admin, by the files in the containers of a project with docker-compose.secure.yml. Raises ClusterError."""
        return security_in(next(iter(self._brokers.values())).name) if self._is_secured else PLAINTEXT

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


def security_in(container: str) -> Security:
    """How admin connects, by the files in a broker's container. Raises ClusterError."""
    with tempfile.TemporaryDirectory(prefix="ottla-secured-") as copied:  # only its owner can read it
        for file in ("admin/client.properties", "authority.pem"):
            docker("cp", f"{container}:{SECURED}{file}", copied)
        properties = parse_properties((Path(copied) / "client.properties").read_text(encoding="utf-8"))
        trusted = (Path(copied) / "authority.pem").read_text(encoding="utf-8")
    given = {**properties, "ssl.truststore.certificates": trusted}
    del given["ssl.truststore.location"]
    return read_security(None, list(given.items()), ignores_others=True)


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


def control_port_of(found: Mapping[str, Any]) -> int | None:
    """The port of a broker's control-plane listener; None without a fixed one."""
    environment = environment_of(found)
    wanted = environment.get("KAFKA_CONTROL_PLANE_LISTENER_NAME", "CONTROLLER")
    for listener in environment.get(LISTENERS, "").split(","):
        name, _, address = listener.strip().partition("://")
        port = address.rpartition(":")[2]
        if name == wanted and is_plain_number(port) and int(port):
            return int(port)
    return None


def name_of(found: Mapping[str, Any]) -> str:
    return str(found["Name"]).removeprefix("/")


def labels_of(found: Mapping[str, Any]) -> Mapping[str, str]:
    labels: Mapping[str, str] = found["Config"]["Labels"]
    return labels
