"""`ottla topic` as its user sees it: what is refused before a broker is asked, and the exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from protocol.types import TopicPartition
from tests.support.fake_admin import three_brokers
from tools.admin.topic_commands import parse_configs, parse_replica_assignment, topic

USAGE = 2
FAILURE = 1


@pytest.mark.parametrize(
    ("text", "assignment"), [("1", [[1]]), ("1:2:3,2:3:1", [[1, 2, 3], [2, 3, 1]]), ("0,1,2", [[0], [1], [2]])]
)
def test_parse_replica_assignment(text: str, assignment: list[list[int]]) -> None:
    assert parse_replica_assignment(text) == assignment


@pytest.mark.parametrize("text", ["", "a", "1:", "1:1", "1:2,3", "1;2"])
def test_parse_replica_assignment_refuses(text: str) -> None:
    with pytest.raises(click.UsageError):
        parse_replica_assignment(text)


def test_parse_configs() -> None:
    assert parse_configs(["a=b", "c = d=e", "empty="]) == {"a": "b", "c": "d=e", "empty": ""}
    for pair in ("a", "=b"):
        with pytest.raises(click.UsageError):
            parse_configs([pair])


@pytest.mark.parametrize(
    ("arguments", "exit_code", "says"),
    [
        (["create"], USAGE, "missing topic name"),
        (["create", "t", "--topic", "t"], USAGE, "give the topic once"),
        (["create", "t", "--partitions", "0"], USAGE, "--partitions"),
        (["create", "t", "--replication-factor", "x"], USAGE, "--replication-factor"),
        (["create", "t", "--replica-assignment", "1:2", "--partitions", "1"], USAGE, "cannot be combined"),
        (["create", "t", "--config", "x"], USAGE, "KEY=VALUE"),
        (
            ["describe", "--under-replicated-partitions", "--unavailable-partitions"],
            USAGE,
            "use only one of --under-replicated-partitions, ",
        ),
        (
            ["describe", "--at-min-isr-partitions", "--topics-with-overrides"],
            USAGE,
            "use only one of --under-replicated-partitions, ",
        ),
        (["describe", "["], USAGE, "not a regular expression"),
        (["list", "--format", "xml"], USAGE, "--format"),
        (["alter", "--partitions", "3"], USAGE, "missing topic name"),
        (["alter", "t"], USAGE, "nothing to change"),
        (["alter", "t", "--partitions", "0"], USAGE, "--partitions"),
        (["alter", "t", "--partitions", "3", "--replica-assignment", "1,2"], USAGE, "has 2 partitions"),
        (["alter", "t", "--config", "a=1", "--delete-config", "a"], USAGE, "a is both set and deleted"),
        (["delete"], USAGE, "missing topic names"),
        (["list"], FAILURE, "Error: no cluster given: use --bootstrap-server"),
        (["list", "--bootstrap-server", "h:1", "--command-config", "missing"], FAILURE, "No such file"),
        (["list", "--bootstrap-server", "h:1", "--command-config", "bad"], FAILURE, "bad: No such configuration"),
    ],
)
def test_refusals(
    arguments: list[str], exit_code: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OTTLA_BOOTSTRAP_SERVER", raising=False)
    Path("bad").write_text("no.such.key=1\n")
    result = CliRunner().invoke(topic, arguments)
    assert result.exit_code == exit_code
    assert says in result.output
    if exit_code == FAILURE:
        assert len(result.output.splitlines()) == 1


def test_alter_adds_partitions_and_changes_configs(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = three_brokers().install(monkeypatch)
    arguments = ["alter", "orders", "--replica-assignment", "1:2,2:3,3:1", "--config", "retention.ms=5"]
    result = CliRunner().invoke(topic, arguments)
    assert (result.exit_code, result.output) == (0, "Altered topic orders.\n")
    assert fake.calls == [
        ("configs", "topic orders", {"retention.ms": "5"}),
        ("partitions", "orders", 3, [[3, 1]]),  # those that are there already are not sent
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["orders", "--partitions", "1"], "has 2 partitions and cannot get fewer: use --partitions of at least 3"),
        (["orders", "--partitions", "2"], "already has 2 partitions"),
        (["nope", "--partitions", "2"], "topic 'nope' does not exist"),
        (["orders", "--partitions", "9", "--config", "x.y=1"], "Unknown topic config name: x.y"),
    ],
)
def test_alter_refuses_and_changes_nothing(arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = three_brokers().install(monkeypatch)
    result = CliRunner().invoke(topic, ["alter", *arguments])
    assert result.exit_code == FAILURE
    assert says in result.output
    assert fake.calls == []


def test_alter_if_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    three_brokers().install(monkeypatch)
    result = CliRunner().invoke(topic, ["alter", "nope", "--partitions", "2", "--if-exists", "--format", "json"])
    assert json.loads(result.output) == {"topic": "nope", "altered": False, "partition_count": None}


def test_delete_several(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = three_brokers().install(monkeypatch)
    result = CliRunner().invoke(topic, ["delete", "orders", "--topic", "nope,orders"])
    assert result.exit_code == FAILURE
    assert result.stdout == "Deleted topic orders.\n"
    assert result.stderr == "Error: topic nope does not exist; `ottla topic list` shows the topics\n"
    assert fake.calls == [("delete", "orders"), ("delete", "nope")]
    again = CliRunner().invoke(topic, ["delete", "orders", "--if-exists", "--format", "json"])
    assert again.exit_code == 0
    assert json.loads(again.output) == {"deleted": [], "missing": ["orders"], "failures": []}


def test_describe_shows_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = three_brokers().install(monkeypatch)
    fake.alter_reassignments({TopicPartition("orders", 0): (3, 1)})
    result = CliRunner().invoke(topic, ["describe", "orders"])
    assert "Replicas: 3,1,2\tIsr: 1,2\tAdding Replicas: 3\tRemoving Replicas: 2\n" in result.output
    assert result.output.count("Adding Replicas") == 1
