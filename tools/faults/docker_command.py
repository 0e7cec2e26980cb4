"""The command `docker`, and commands inside the network of a container."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.cluster.local_cluster import STOP_TIMEOUT_S
from tools.cluster.processes import ClusterError
from tools.private_files import write_anew

ANSWER_TIMEOUT_S = 60.0 + STOP_TIMEOUT_S
"""How long a command of docker may take, a clean stop included."""


def docker(*arguments: str) -> str:
    """Returns what the command prints. Raises ClusterError with the last line of its stderr."""
    return run(["docker", *arguments], f"docker {arguments[0]}", "the command docker was not found: install Docker")


def inspect(container: str) -> dict[str, Any]:
    """What `docker inspect` says of a container. Raises ClusterError."""
    found: dict[str, Any] = json.loads(docker("inspect", "--type", "container", container))[0]
    return found


def environment_of(found: Mapping[str, Any]) -> dict[str, str]:
    """The variables of a container that was inspected."""
    return {name: value for name, _, value in (entry.partition("=") for entry in found["Config"]["Env"] or ())}


def save(path: Path, text: str) -> None:
    """Writes down what the undo of a fault needs. Raises ClusterError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_anew(path, text)
    except OSError as problem:
        raise ClusterError(f"{path} cannot be written: {problem.strerror}") from None


def run(command: Sequence[str], name: str, not_found: str) -> str:
    """Returns what a command prints. Raises ClusterError with `name` and the last line of its stderr."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ANSWER_TIMEOUT_S,
            check=False,
            start_new_session=True,  # a Ctrl-C in the terminal is not for it
        )
    except FileNotFoundError:
        raise ClusterError(not_found) from None
    except OSError as problem:
        raise ClusterError(f"{name}: {problem}") from None
    except subprocess.TimeoutExpired:
        raise ClusterError(f"{name} did not end within {ANSWER_TIMEOUT_S:.0f} s") from None
    if done.returncode != 0:
        complaint = done.stderr.strip().splitlines() or [f"it failed with exit code {done.returncode}"]
        raise ClusterError(f"{name}: {complaint[-1]}")
    return done.stdout
