"""`ottla topic` as its user sees the command."""

from __future__ import annotations

import json

import click
import pytest

from protocol.types import TopicPartition
from tests.support.cli import ottla
from tests.support.fake_admin import FakeCluster
from tools.admin.topic_commands import parse_configs, parse_replica_assignment


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


def test_alter_adds_partitions_and_changes_configs(fake: FakeCluster) -> None:
    result = ottla("topic alter orders --replica-assignment 1:2,2:3,3:1 --config retention.ms=5")
    assert (result.exit_code, result.output) == (0, "Altered topic orders.\n")
    assert fake.calls == [
        ("configs", "topic orders", {"retention.ms": "5"}),
        ("partitions", "orders", 3, [[3, 1]]),  # the replicas of the first two partitions stay
    ]


def test_alter_if_exists(fake: FakeCluster) -> None:
    result = ottla("topic alter nope --partitions 2 --if-exists --format json")
    assert json.loads(result.output) == {"topic": "nope", "altered": False, "partition_count": None}


def test_delete_several(fake: FakeCluster) -> None:
    result = ottla("topic delete orders --topic nope,orders")
    assert result.exit_code == 1
    assert result.stdout == "Deleted topic orders.\n"
    assert result.stderr == "Error: topic nope does not exist; `ottla topic list` shows the topics\n"
    assert fake.calls == [("delete", "orders"), ("delete", "nope")]
    again = ottla("topic delete orders --if-exists --format json")
    assert again.exit_code == 0
    assert json.loads(again.output) == {"deleted": [], "missing": ["orders"], "failures": []}


def test_describe_shows_moves(fake: FakeCluster) -> None:
    fake.alter_reassignments({TopicPartition("orders", 0): (3, 1)})
    result = ottla("topic describe orders")
    assert "Replicas: 3,1,2\tIsr: 1,2\tAdding Replicas: 3\tRemoving Replicas: 2\n" in result.output
    assert result.output.count("Adding Replicas") == 1
