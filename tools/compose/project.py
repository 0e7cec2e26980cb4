"""docker-compose.yml as a project of its own: a name and ports that nobody else has, and nothing of it stays."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.cluster.ports import free_ports
from tools.cluster.processes import ClusterError
from tools.faults.docker_command import docker

REPOSITORY = Path(__file__).resolve().parents[2]
FILE = "docker-compose.yml"
PORT_VARIABLES = ("OTTLA_ZOOKEEPER_PORT", "OTTLA_KAFKA1_PORT", "OTTLA_KAFKA2_PORT", "OTTLA_KAFKA3_PORT")
PROJECT_LABEL = "label=com.docker.compose.project"
BUILD_TIMEOUT_S = 1800.0
ANSWER_TIMEOUT_S = 60.0
UP_TIMEOUT_S = 300.0
HEALTHY_TIMEOUT_S = 120.0
DOWN_TIMEOUT_S = 120.0
STOP_S = 5
"""How long a container may take to stop; its data is removed anyway."""
END_S = 10.0
STEP_S = 0.3
SHOWN_LINES = 15


class Project:
    """Containers, volumes and a network under a name of their own. The methods raise ClusterError."""

    def __init__(
        self,
        compose: Sequence[str],
        prefix: str = "ottla-demo",
        files: Sequence[str] = (FILE,),
        port_variables: Sequence[str] = PORT_VARIABLES,
    ) -> None:
        """`compose`: the command of Compose. `port_variables`: those of the files; each gets a free port of this machine."""
        self.name = f"{prefix}-{secrets.token_hex(4)}"
        self.ports = dict(zip(port_variables, free_ports(len(port_variables)), strict=True))
        self._command = [*compose, *(word for file in files for word in ("--file", file)), "--project-name", self.name]
        # The user's own choice of a project does not count.
        own = {name: value for name, value in os.environ.items() if not name.startswith("COMPOSE_")}
        self._environment = {**own, **{name: str(port) for name, port in self.ports.items()}}

    def command(self, *arguments: str) -> list[str]:
        return [*self._command, *arguments]

    def compose(self, *arguments: str, timeout_s: float) -> str:
        """What the command prints."""
        return run(self.command(*arguments), self._environment, timeout_s)

    def containers(self) -> list[str]:
        """The ids of all its containers, also of those that have ended."""
        return docker("ps", "--all", "--quiet", "--filter", f"{PROJECT_LABEL}={self.name}").split()

    def wait_until_healthy(self, timeout_s: float = HEALTHY_TIMEOUT_S) -> None:
        """Every container has a health check, and passes it."""
        deadline = time.monotonic() + timeout_s
        while True:
            rows = json.loads(docker("inspect", "--type", "container", *self.containers()))
            states = {row["Name"].removeprefix("/"): row["State"] for row in rows}
            if all(state.get("Health", {}).get("Status") == "healthy" for state in states.values()):
                return
            ended = [name for name, state in states.items() if not state["Running"]]
            if ended:
                raise ClusterError(f"container {ended[0]} has ended:\n{last_lines(docker('logs', ended[0]))}")
            if time.monotonic() > deadline:
                ill = [name for name, state in states.items() if state.get("Health", {}).get("Status") != "healthy"]
                raise ClusterError(f"not healthy after {timeout_s:g} s: {', '.join(ill)}")
            time.sleep(STEP_S)

    def remove(self) -> None:
        """Removes containers, volumes and networks, also if Compose was interrupted."""
        down = ("down", "--volumes", "--remove-orphans", "--timeout", str(STOP_S))
        with contextlib.suppress(ClusterError):
            self.compose(*down, timeout_s=DOWN_TIMEOUT_S)
        mine = f"{PROJECT_LABEL}={self.name}"
        if containers := self.containers():
            docker("rm", "--force", "--volumes", *containers)
        if volumes := docker("volume", "ls", "--quiet", "--filter", mine).split():
            docker("volume", "rm", "--force", *volumes)
        if networks := docker("network", "ls", "--quiet", "--filter", mine).split():
            docker("network", "rm", *networks)


def find_compose() -> list[str]:
    """The command of Compose, v2 or v1. Raises ClusterError if it, or a Docker engine, is missing."""
    if shutil.which("docker") is None:
        raise ClusterError("the command docker was not found: install Docker; `make demo` needs no containers")
    try:
        docker("info")
    except ClusterError as problem:
        raise ClusterError(f"no Docker engine answers ({problem}); `make demo` needs no containers") from None
    for compose in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(compose[0]) is not None:
            with contextlib.suppress(ClusterError):
                run([*compose, "version"], os.environ, ANSWER_TIMEOUT_S)
                return compose
    raise ClusterError("neither `docker compose` nor `docker-compose` was found: install Docker Compose")


def run(command: Sequence[str], environment: Mapping[str, str], timeout_s: float) -> str:
    """The standard output. The command is in a session of its own: a Ctrl-C in the terminal is ours. Raises ClusterError."""
    process = subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        printed, complaints = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise ClusterError(f"{' '.join(command)} did not end within {timeout_s:g} s") from None
    finally:
        end(process)
    if process.returncode != 0:
        raise ClusterError(f"{' '.join(command)} failed:\n{last_lines(printed + complaints)}")
    return printed


def end(process: subprocess.Popen[str]) -> None:
    """Ends a process with its group, if it still runs. Our commands tidy up after the first SIGINT, and hurry after the second."""
    for number in (signal.SIGINT, signal.SIGINT, signal.SIGKILL):
        if process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)


def last_lines(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.rstrip().splitlines()[-SHOWN_LINES:])
