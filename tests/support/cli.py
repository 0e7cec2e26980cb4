"""`ottla ...` as a process of its own, against one cluster, and a real Kafka for it to talk to."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.kafka_tools import QUICK_START
from tools.cluster.ports import free_ports, is_free

TIMEOUT_S = 60.0
COMMAND = (sys.executable, "-c", "from tools.cli import main; main()")
OURS_AND_KAFKAS = pytest.mark.parametrize(
    "cli", ["ottla", pytest.param("kafka", marks=pytest.mark.peer)], indirect=True
)
"""For one test of each command at least: what it expects is what Kafka does. The fixture `cli` is ours for the other tests."""


class Cli:
    """Commands with `--bootstrap-server` of one cluster; `zookeeper` is where its znodes are."""

    def __init__(self, bootstrap_servers: str, broker_ids: list[int], zookeeper: str = "") -> None:
        self.bootstrap_servers = bootstrap_servers
        self.broker_ids = broker_ids
        self.zookeeper = zookeeper

    def run(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments), input=stdin, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )

    def command(self, *arguments: str) -> list[str]:
        return [*COMMAND, *arguments, "--bootstrap-server", self.bootstrap_servers]

    def output(self, *arguments: str, stdin: str | None = None) -> str:
        """What a command that succeeds says."""
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        assert done.stderr == ""
        return done.stdout

    def json(self, *arguments: str, stdin: str | None = None) -> Any:
        return json.loads(self.output(*arguments, "--format", "json", stdin=stdin))

    def failure(self, *arguments: str, stdin: str | None = None) -> str:
        """The one line of a refusal."""
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 1, (arguments, done.stdout, done.stderr)
        (line,) = done.stderr.splitlines()
        return line


@contextlib.contextmanager
def running_kafka(
    peer_kafka: Path, directory: Path, brokers: int = 3, overrides: Mapping[str, str] | None = None
) -> Iterator[Cli]:
    """A real Kafka whose brokers have the ids from 0; `overrides` are settings of all of them.

    It is killed at the end: in a clean stop, the brokers would look for the ZooKeeper that is stopped with them.
    """
    first_port = first_of_free_ports(brokers)
    settings = " ".join(f"{key}={value}" for key, value in (overrides or {}).items())
    command = [
        "env",
        f"KAFKA_HEAP=-Xms256m -Xmx400m {QUICK_START}",
        f"PEER_KAFKA_OVERRIDES={settings}",
        "bash",
        str(peer_kafka),
    ]
    try:
        # Its output would keep the pipe open as long as the brokers run: it goes to a file.
        with (directory / "up.log").open("w") as log:
            subprocess.run(
                [*command, "up", str(directory), str(brokers), str(first_port)],
                stdout=log,
                stderr=log,
                timeout=170,
                check=True,
            )
        yield Cli(f"127.0.0.1:{first_port}", list(range(brokers)), f"127.0.0.1:{first_port - 1}")
    finally:
        for file in directory.glob("*/pid"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(file.read_text()), signal.SIGKILL)
        subprocess.run([*command, "down", str(directory)], timeout=60, check=False)


def first_of_free_ports(count: int) -> int:
    """The second of `count` + 1 free ports in a row: peer-kafka puts its ZooKeeper on the one before."""
    while True:
        (port,) = free_ports(1)
        if all(is_free("127.0.0.1", port + n) for n in range(count + 1)):
            return port + 1
