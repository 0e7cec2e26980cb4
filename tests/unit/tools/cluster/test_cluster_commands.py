"""What `ottla cluster` makes of its arguments."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tools.cli import SUBCOMMANDS, main
from tools.cluster.commands import parse_overrides, parse_signal
from tools.cluster.local_cluster import LocalCluster
from tools.cluster.views import node_table


@pytest.mark.parametrize("text", ["KILL", "SIGKILL", "kill", "9"])
def test_signals(text: str) -> None:
    assert parse_signal(text) is signal.SIGKILL


@pytest.mark.parametrize("text", ["", "NOPE", "999"])
def test_bad_signals(text: str) -> None:
    with pytest.raises(click.UsageError, match="unknown signal"):
        parse_signal(text)


def test_overrides() -> None:
    assert parse_overrides(["a=1", " b = x=y ", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    for text in ("a", "=1", ""):
        with pytest.raises(click.ClickException, match="KEY=VALUE"):
            parse_overrides([text])


def test_every_subcommand_is_listed_and_loads() -> None:
    listing = CliRunner().invoke(main, ["--help"]).output
    for name in SUBCOMMANDS:
        assert name in listing
        assert CliRunner().invoke(main, [name, "--help"]).exit_code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["status"],
        ["stop"],
        ["destroy", "--yes"],
        ["kill", "1"],
        ["pause", "1"],
        ["resume", "1"],
        ["restart-broker", "1"],
    ],
)
def test_without_a_cluster(arguments: list[str], tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["cluster", *arguments, "--dir", str(tmp_path)])
    assert result.exit_code == 1
    assert result.output.startswith("Error: there is no cluster in")
    assert result.output.count("\n") == 1


@pytest.fixture
def stopped(tmp_path: Path) -> LocalCluster:
    """A cluster that has never run."""
    cluster = LocalCluster(tmp_path / "run")
    cluster.create(brokers=2, zookeeper="127.0.0.1:1")
    return cluster


def test_status_of_a_stopped_cluster(stopped: LocalCluster) -> None:
    result = CliRunner().invoke(main, ["cluster", "status", "--dir", str(stopped.directory)])
    assert result.exit_code == 1
    assert f"bootstrap servers: {stopped.bootstrap_servers}" in result.output
    assert result.output.count("  stopped  ") == 2
    result = CliRunner().invoke(main, ["cluster", "status", "--dir", str(stopped.directory), "--format", "json"])
    view = json.loads(result.output)
    assert view["bootstrap_servers"] == stopped.bootstrap_servers
    assert [(node["id"], node["state"], node["pid"]) for node in view["nodes"]] == [
        (1, "stopped", None),
        (2, "stopped", None),
    ]


def test_a_cluster_that_is_there_takes_no_options(stopped: LocalCluster) -> None:
    for options in (["--brokers", "2"], ["--override", "a=b"], ["--zookeeper", "127.0.0.1:1"]):
        result = CliRunner().invoke(main, ["cluster", "start", "--dir", str(stopped.directory), *options])
        assert result.exit_code == 1
        assert "starts unchanged" in result.output
    assert stopped.exists()


def test_destroy_asks(stopped: LocalCluster) -> None:
    arguments = ["cluster", "destroy", "--dir", str(stopped.directory)]
    assert CliRunner().invoke(main, arguments, input="n\n").exit_code == 1
    assert stopped.exists()
    assert CliRunner().invoke(main, arguments, input="y\n").exit_code == 0
    assert not stopped.directory.exists()


def test_a_first_start_that_fails_leaves_nothing(tmp_path: Path) -> None:
    arguments = ["cluster", "start", "--dir", str(tmp_path / "run"), "--zookeeper", "127.0.0.1:1/x"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 1
    assert result.output.startswith("Error: no ZooKeeper answers at 127.0.0.1:1:")
    assert result.output.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_the_node_table() -> None:
    def node(broker_id: int | None, state: str, pid: int | None, reason: str | None = None) -> dict[str, Any]:
        name = "zookeeper" if broker_id is None else f"broker {broker_id}"
        return {
            "name": name,
            "id": broker_id,
            "address": "h:1",
            "pid": pid,
            "state": state,
            "reason": reason,
            "directory": "d",
        }

    view = {
        "controller": 1,
        "nodes": [
            node(None, "running", 5),
            node(1, "running", 6),
            node(2, "stopped", None),
            node(3, "not ready", 7, "does not answer"),
        ],
    }
    assert node_table(view, with_state=True) == [
        "NODE       ADDRESS  PID  STATE                       DIRECTORY",
        "zookeeper  h:1      5    running                     d",
        "broker 1   h:1      6    running, controller         d",
        "broker 2   h:1      -    stopped                     d",
        "broker 3   h:1      7    not ready: does not answer  d",
    ]
    assert node_table(view, with_state=False)[1] == "zookeeper  h:1      5    d"
