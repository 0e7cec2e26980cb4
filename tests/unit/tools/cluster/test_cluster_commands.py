"""How `ottla cluster` reads its arguments."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import click
import pytest

from tests.support.cli import ottla
from tools.cli import SUBCOMMANDS
from tools.cluster.cluster_commands import parse_overrides, parse_signal
from tools.cluster.local_cluster import LocalCluster


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
    listing = ottla("--help").output
    for name in SUBCOMMANDS:
        assert name in listing
        assert ottla(f"{name} --help").exit_code == 0


@pytest.fixture
def stopped(tmp_path: Path) -> LocalCluster:
    """A cluster that has never run."""
    cluster = LocalCluster(tmp_path / "run")
    cluster.create(brokers=2, zookeeper="127.0.0.1:1")
    return cluster


def test_status_of_a_stopped_cluster(stopped: LocalCluster) -> None:
    result = ottla(f"cluster status --dir {stopped.directory}")
    assert result.exit_code == 1
    assert f"bootstrap servers: {stopped.bootstrap_servers}" in result.output
    assert result.output.count("  stopped  ") == 2
    result = ottla(f"cluster status --dir {stopped.directory} --format json")
    view = json.loads(result.output)
    assert view["bootstrap_servers"] == stopped.bootstrap_servers
    assert [(node["id"], node["state"], node["pid"]) for node in view["nodes"]] == [
        (1, "stopped", None),
        (2, "stopped", None),
    ]


def test_start_refuses_options_for_an_existing_cluster(stopped: LocalCluster) -> None:
    for options in ("--brokers 2", "--override a=b", "--zookeeper 127.0.0.1:1"):
        result = ottla(f"cluster start --dir {stopped.directory} {options}")
        assert result.exit_code == 1
        assert "starts unchanged" in result.output
    assert stopped.exists()


def test_destroy_asks_for_confirmation(stopped: LocalCluster) -> None:
    destroy = f"cluster destroy --dir {stopped.directory}"
    assert ottla(destroy, "n\n").exit_code == 1
    assert stopped.exists()
    assert ottla(destroy, "y\n").exit_code == 0
    assert not stopped.directory.exists()
