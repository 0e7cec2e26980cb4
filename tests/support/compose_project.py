"""docker-compose.yml as a project of its own, for the tests of containers."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SERVICES = ("zookeeper", "kafka1", "kafka2", "kafka3")
BOOTSTRAP_SERVERS = "localhost:9092,localhost:9093,localhost:9094"
PUBLISHED_PORTS = (2181, 9092, 9093, 9094)
BUILD_TIMEOUT_S = 900.0
COMMAND_TIMEOUT_S = 120.0


class ComposeProject:
    """docker-compose.yml under a project name of its own: no other project's containers or volumes are touched."""

    def __init__(self, compose: Sequence[str]) -> None:
        self.name = f"ottla-test-{uuid.uuid4().hex[:8]}"
        self._compose = [*compose, "--file", str(REPOSITORY / "docker-compose.yml"), "--project-name", self.name]

    def compose(self, *arguments: str, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
        return run([*self._compose, *arguments], timeout_s)

    def container(self, service: str) -> str:
        """The id of the service's container, also of one that does not run."""
        project = f"label=com.docker.compose.project={self.name}"
        role = f"label=com.docker.compose.service={service}"
        return run(["docker", "ps", "--all", "--quiet", "--filter", project, "--filter", role]).strip()

    def health(self, service: str) -> str:
        (state,) = json.loads(run(["docker", "inspect", self.container(service)]))
        return str(state["State"].get("Health", {}).get("Status"))

    def is_healthy(self) -> bool:
        return all(self.health(service) == "healthy" for service in SERVICES)


def run(command: Sequence[str], timeout_s: float = COMMAND_TIMEOUT_S) -> str:
    """Standard output; a command that fails fails the test with what it printed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False, cwd=REPOSITORY)
    assert done.returncode == 0, (
        f"{' '.join(command)} -> {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    )
    return done.stdout


def succeeds(command: Sequence[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=30, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def find_compose() -> list[str]:
    """The command of Compose v2 or v1; skips the test, with the reason, where the stack cannot be run."""
    if shutil.which("docker") is None or not succeeds(["docker", "info"]):
        pytest.skip("NOT TESTED: no Docker engine answers, so the containers' failover was not tried")
    for compose in (["docker", "compose"], ["docker-compose"]):
        if succeeds([*compose, "version"]):
            break
    else:
        pytest.skip("NOT TESTED: neither `docker compose` nor `docker-compose` is there")
    taken = [port for port in PUBLISHED_PORTS if not is_free(port)]
    if taken:
        pytest.skip(f"NOT TESTED: ports {taken} of docker-compose.yml are in use on this machine")
    return compose


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
