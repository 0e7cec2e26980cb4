"""All commands name a cluster by the same options, in the same order of precedence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.support.cli import ottla
from tests.support.fake_admin import FakeCluster
from tests.unit.tools.admin.test_bootstrap import write_broker
from tools.admin import kafka_admin
from tools.cli import main
from tools.groups import kafka_groups

OF_PROCESSES = {
    "timeline",
    *(
        f"cluster {name}"
        for name in ("certificate", "destroy", "kill", "pause", "restart-broker", "resume", "start", "stop")
    ),
}
"""These need processes, keys or event logs of this machine: an address would not be enough."""


def commands(group: click.Group = main, path: str = "") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, f"{path}{name} ")
        elif command is not None:
            yield f"{path}{name}", command


def options(command: click.Command) -> dict[str, click.Option]:
    return {option.opts[0]: option for option in command.params if isinstance(option, click.Option)}


def test_what_takes_an_address_takes_a_run_directory() -> None:
    one_of_two = set()
    forms = set()
    for path, command in commands():
        found = options(command)
        if ("--bootstrap-server" in found) != ("--dir" in found):
            one_of_two.add(path)
        forms |= {
            (name, option.name, option.metavar)
            for name, option in found.items()
            if name in ("--bootstrap-server", "--dir", "--compose", "--command-config", "--fault-command")
        }
    assert one_of_two == OF_PROCESSES
    assert forms == {
        ("--bootstrap-server", "bootstrap_server", "HOST:PORT[,HOST:PORT...]"),
        ("--dir", "directory", "DIR"),
        ("--compose", "project", "PROJECT"),
        ("--command-config", "command_config", "FILE"),
        ("--fault-command", "fault_command", "PROGRAM"),
    }


@pytest.mark.parametrize(
    ("more", "variable", "asked"),
    [
        ("--bootstrap-server given:1", "variable:1", "given:1"),
        ("--dir there", "variable:1", "there:1"),
        ("", "variable:1", "variable:1"),
        ("", "", "here:1"),
    ],
)
@pytest.mark.parametrize("line", ["topic list", "cluster health", "group list", "config describe --entity-type topics"])
def test_the_order_in_which_a_cluster_is_named(
    line: str, more: str, variable: str, asked: str, tmp_path: Path, fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers: list[str] = []

    def connected(given: str, *_arguments: object, **_options: object) -> FakeCluster:
        servers.append(given)
        return fake

    write_broker(tmp_path / "ottla-cluster", 1, "listeners=PLAINTEXT://here:1\n")
    write_broker(tmp_path / "there", 1, "listeners=PLAINTEXT://there:1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OTTLA_BOOTSTRAP_SERVER", variable)
    monkeypatch.setattr(kafka_admin, "KafkaAdmin", connected)
    monkeypatch.setattr(kafka_groups, "KafkaGroups", connected)
    ottla(f"{line} {more}")
    assert set(servers) == {asked}


def test_two_names_are_refused(tmp_path: Path) -> None:
    refused = ottla(f"topic list --dir {tmp_path} --bootstrap-server h:1")
    assert refused.exit_code == 2
    assert "name a cluster each; give one of them" in refused.output
    missing = ottla(f"topic list --dir {tmp_path / 'none'}")
    assert (missing.exit_code, missing.output.count("\n")) == (1, 1)
    assert "there is no cluster in" in missing.output
