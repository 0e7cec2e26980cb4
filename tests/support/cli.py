"""`ottla ...`: as a process of its own against one cluster, and in the process of a test."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.support import forked_commands
from tools.cli import main

TIMEOUT_S = 60.0
COMMAND = (sys.executable, "-c", "from tools.cli import main; main()")
OURS_AND_KAFKAS = pytest.mark.parametrize(
    "cli", ["ottla", pytest.param("kafka", marks=pytest.mark.kafka)], indirect=True
)
"""For one test of each command at least: what it expects is what Kafka does. The fixture `cli` is ours for the other tests."""


class Cli:
    """Commands with `--bootstrap-server` of one cluster; `zookeeper` is where its znodes are."""

    def __init__(self, bootstrap_servers: str, broker_ids: list[int], zookeeper: str = "") -> None:
        self.bootstrap_servers = bootstrap_servers
        self.broker_ids = broker_ids
        self.zookeeper = zookeeper

    def run(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        return forked_commands.run(self.command(*arguments)[len(COMMAND) :], stdin, TIMEOUT_S)

    def command(self, *arguments: str) -> list[str]:
        return [*COMMAND, *arguments, "--bootstrap-server", self.bootstrap_servers]

    def output(self, *arguments: str, stdin: str | None = None) -> str:
        """The output of a command that must succeed."""
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        assert done.stderr == ""
        return done.stdout

    def json(self, *arguments: str, stdin: str | None = None) -> Any:
        return json.loads(self.output(*arguments, "--format", "json", stdin=stdin))

    def failure(self, *arguments: str, stdin: str | None = None) -> str:
        """The one line on stderr of a command that must fail."""
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 1, (arguments, done.stdout, done.stderr)
        (line,) = done.stderr.splitlines()
        return line


def ottla(line: str, stdin: str | None = None) -> Result:
    """`ottla ...` in this process, without a cluster or with a fake one; `line` as it is typed in a shell."""
    return CliRunner().invoke(main, shlex.split(line), input=stdin)
