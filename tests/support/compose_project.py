"""Compose projects for the tests of containers, each with a name and ports of its own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tools.cluster.processes import ClusterError
from tools.compose import project
from tools.compose.project import FILE

REPOSITORY = Path(__file__).resolve().parents[2]
SECURE = (FILE, "docker-compose.secure.yml")
FIVE = (FILE, "docker-compose.five.yml")
SERVICES = ("zookeeper", "kafka1", "kafka2", "kafka3")
SERVICES_OF_FIVE = (*SERVICES, "zookeeper2", "zookeeper3", "kafka4", "kafka5")
BUILD_TIMEOUT_S = 900.0
COMMAND_TIMEOUT_S = 120.0


class ComposeProject(project.Project):
    """The files of the repository under a project name of its own: no other project's containers or volumes are touched."""

    def __init__(
        self, compose: Sequence[str], files: Sequence[str] = (FILE,), services: Sequence[str] = SERVICES, *more: str
    ) -> None:
        """`more`: further variables that need a free port, such as OTTLA_CONSOLE_PORT."""
        self.services = services
        self._brokers = [service for service in services if service.startswith("kafka")]
        ports = [port_variable(service) for service in ("zookeeper", *self._brokers)]
        super().__init__(compose, "ottla-test", files, [*ports, *more])

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"localhost:{self.ports[port_variable(broker)]}" for broker in self._brokers)

    def compose(self, *arguments: str, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
        return super().compose(*arguments, timeout_s=timeout_s)

    def container(self, service: str) -> str:
        """The id of the service's container, also of one that does not run."""
        mine = f"{project.PROJECT_LABEL}={self.name}"
        role = f"label=com.docker.compose.service={service}"
        once = "label=com.docker.compose.oneoff=False"
        return run(["docker", "ps", "--all", "--quiet", "--filter", mine, "--filter", role, "--filter", once]).strip()

    def health(self, service: str) -> str:
        (state,) = json.loads(run(["docker", "inspect", self.container(service)]))
        return str(state["State"].get("Health", {}).get("Status"))

    def is_healthy(self) -> bool:
        return all(self.health(service) == "healthy" for service in self.services)


def leaders_and_isrs(admin: AdminClient, topic: str) -> dict[int, tuple[int, list[int]]]:
    """Partition -> (leader, sorted ISR) as the brokers' metadata has it; empty while nothing answers."""
    try:
        partitions = admin.list_topics(topic, timeout=5).topics[topic].partitions
    except KafkaException:
        return {}
    return {number: (partition.leader, sorted(partition.isrs)) for number, partition in partitions.items()}


def port_variable(service: str) -> str:
    return f"OTTLA_{service.upper()}_PORT"


def run(command: Sequence[str], timeout_s: float = COMMAND_TIMEOUT_S) -> str:
    """Standard output; a command that fails fails the test with what it printed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False, cwd=REPOSITORY)
    # The summary of a run shows one line of each failure.
    last = (done.stderr.strip() or done.stdout.strip()).rpartition("\n")[2]
    assert done.returncode == 0, (
        f"{' '.join(command)} -> {done.returncode}: {last}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    )
    return done.stdout


def find_compose() -> list[str]:
    """The command of Compose v2 or v1; skips the test, with the reason, where containers cannot be run."""
    try:
        return project.find_compose()
    except ClusterError as problem:
        pytest.skip(f"NOT TESTED: {problem}")
