"""`ottla group ...` against ottla, and the same against a real Kafka, whose own command sees the same (CLI-2).

Resets, files and refusals: tests/unit/tools/groups.
"""

from __future__ import annotations

import csv
import io
import uuid
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition

from tests.support.cli import OURS_AND_KAFKAS, Cli
from tests.support.group_members import commit_from_outside, joined_consumer
from tests.support.kafka_tools import KafkaTools

pytestmark = pytest.mark.integration

RECORDS = 10
"""In each partition."""

KAFKA_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"


class GroupCli(Cli):
    """`ottla group ...`."""

    def command(self, *arguments: str) -> list[str]:
        return super().command("group", *arguments)

    def lines(self, *arguments: str) -> list[list[str]]:
        """The words of each line that a successful command prints to stdout."""
        done = self.run(*arguments)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return [line.split() for line in done.stdout.splitlines()]

    def offsets(self, group: str) -> dict[int, int | None]:
        """Partition -> the committed offset."""
        return {row["partition"]: row["current_offset"] for row in self.described(group)["offsets"]}

    def described(self, group: str, *arguments: str) -> dict[str, Any]:
        (described,) = self.json("describe", group, *arguments)
        return dict(described)

    def reset(self, group: str, *arguments: str) -> list[int]:
        """Executes a reset, and returns the new offsets of the partitions, in order."""
        done = self.json("reset-offsets", group, *arguments, "--execute")
        assert done["executed"]
        return [row["new_offset"] for row in done["offsets"]]


@pytest.fixture
def cli(cli: Cli) -> GroupCli:
    return GroupCli(cli.bootstrap_servers, cli.broker_ids)


@pytest.fixture
def topic(cli: GroupCli) -> str:
    """Two partitions with RECORDS records each, at 1,000 ms, 2,000 ms, ... since 1970."""
    name = f"groups-{uuid.uuid4().hex[:8]}"
    topics = Cli(cli.bootstrap_servers, cli.broker_ids)
    topics.output("topic", "create", name, "--partitions", "2", "--replication-factor", "1")
    topics.output(
        "config", "alter", "--entity-type", "topics", "--entity-name", name, "--add-config", "retention.ms=-1"
    )
    producer = Producer({"bootstrap.servers": cli.bootstrap_servers})
    for number in range(RECORDS * 2):
        producer.produce(name, b"v", partition=number % 2, timestamp=(number // 2 + 1) * 1000)
    assert producer.flush(20) == 0
    return name


def commit(cli: GroupCli, group: str, topic: str, offsets: dict[int, int]) -> None:
    commit_from_outside(cli.bootstrap_servers, group, topic, offsets)


def new_group() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


@OURS_AND_KAFKAS
def test_list_and_describe_a_live_group(cli: GroupCli, topic: str) -> None:
    group = new_group()
    with joined_consumer(
        cli.bootstrap_servers, group, topic, **{"client.id": "till", "group.instance.id": "till-1"}
    ) as consumer:
        consumer.commit(offsets=[TopicPartition(topic, 0, 4)], asynchronous=False)
        assert group in cli.output("list").splitlines()
        (listed,) = [found for found in cli.json("list", "--state") if found["group"] == group]
        assert listed == {"group": group, "type": "Classic", "state": "Stable", "is_simple": False}
        assert [group, "Stable"] in cli.lines("list", "--state", "stable,empty")
        assert [group, "Classic", "Stable"] in cli.lines("list", "--state", "--type", "classic")
        assert group not in cli.output("list", "--state", "empty")

        header, *rows = cli.lines("describe", group)
        columns = "GROUP TOPIC PARTITION CURRENT-OFFSET LOG-END-OFFSET LAG CONSUMER-ID HOST CLIENT-ID"
        assert header == columns.split()
        assert [row[:6] for row in rows] == [
            [group, topic, "0", "4", "10", "6"],
            [group, topic, "1", "-", "10", "-"],
        ]
        assert {row[6].startswith("till-1-") for row in rows} == {True}
        assert {row[8] for row in rows} == {"till"}

        header, row = cli.lines("describe", "--group", group, "--members", "--verbose")
        assert header == ["GROUP", "CONSUMER-ID", "GROUP-INSTANCE-ID", "HOST", "CLIENT-ID", "#PARTITIONS", "ASSIGNMENT"]
        assert row[2] == "till-1"
        assert row[4:] == ["till", "2", f"{topic}(0,1)"]

        described = cli.described(group, "--state")
        assert (described["state"], described["assignment_strategy"]) == ("Stable", "range")
        assert described["coordinator"] in cli.broker_ids

        assert f"group '{group}' is inactive, but the current state is Stable" in cli.failure(
            "reset-offsets", group, "--topic", topic, "--to-earliest", "--execute"
        )
        assert "stop its consumers first" in cli.failure("delete", group)
        done = cli.run("delete-offsets", group, "--topic", topic)
        assert done.returncode == 1
        assert "while the consumer group is actively subscribed" in done.stderr
        assert cli.offsets(group) == {0: 4, 1: None}


@OURS_AND_KAFKAS
def test_an_empty_group_is_described_and_deleted(cli: GroupCli, topic: str) -> None:
    group = new_group()
    commit(cli, group, topic, {0: 3, 1: 10})
    done = cli.run("describe", group)
    assert done.stderr == f"Consumer group '{group}' has no active members.\n"
    assert [line.split() for line in done.stdout.splitlines()[1:]] == [
        [group, topic, "0", "3", "10", "7", "-", "-", "-"],
        [group, topic, "1", "10", "10", "0", "-", "-", "-"],
    ]
    header, row = cli.lines("delete-offsets", group, "--topic", f"{topic}:1")
    assert (header, row) == (["TOPIC", "PARTITION", "STATUS"], [topic, "1", "Successful"])
    assert cli.offsets(group) == {0: 3}
    assert cli.output("delete", group) == f"Deletion of requested consumer groups ('{group}') was successful.\n"
    assert f"Consumer group '{group}' does not exist" in cli.failure("describe", group)
    assert "`ottla group list` shows the groups" in cli.failure("delete", group)
    assert group not in cli.output("list").splitlines()


@OURS_AND_KAFKAS
def test_reset_by_file_and_beyond_the_log(cli: GroupCli, topic: str, tmp_path: Path) -> None:
    group = new_group()
    exported = cli.run("reset-offsets", group, "--topic", f"{topic}:1", "--to-offset", "99", "--export")
    assert exported.stdout == f"{topic},1,10\n"
    assert "New offset (99) is higher than latest offset" in exported.stderr
    assert "does not exist" in cli.failure("describe", group)
    plan = tmp_path / "plan.csv"
    plan.write_text(f"{topic},0,2\n{topic},1,6\n")
    assert cli.reset(group, "--from-file", str(plan)) == [2, 6]
    assert cli.offsets(group) == {0: 2, 1: 6}
    assert "line 1: partition and offset must be numbers" in cli.failure(
        "reset-offsets", group, "--from-file", "-", stdin=f"{topic},0,x\n"
    )


def test_a_cluster_that_does_not_answer_is_reported() -> None:
    assert "no broker answers at 127.0.0.1:1" in GroupCli("127.0.0.1:1", []).failure("list")


@OURS_AND_KAFKAS
@pytest.mark.kafka
def test_kafkas_own_command_sees_the_same(cli: GroupCli, topic: str, kafka_tools: KafkaTools) -> None:
    group = new_group()
    commit(cli, group, topic, {0: 3, 1: 10})

    def kafkas(*arguments: str) -> str:
        return kafka_tools.run(KAFKA_GROUPS, "--bootstrap-server", cli.bootstrap_servers, *arguments)

    def words(said: str) -> list[list[str]]:
        """The words of the lines about the group. Without a value, 3.9 prints nothing and 4 a `-`."""
        lines = (line for line in said.splitlines() if group in line or line.startswith("GROUP "))
        return sorted([word for word in line.split() if word != "-"] for line in lines)

    for part in ("--offsets", "--state", "--members"):
        ours = cli.run("describe", group, part)
        assert words(ours.stderr + ours.stdout) == words(kafkas("--describe", "--group", group, part))
    plan = ["--to-datetime", "1970-01-01T00:00:04.500", "--topic", topic, "--dry-run", "--export"]
    ours = cli.run("reset-offsets", group, *plan)
    said = kafkas("--reset-offsets", "--group", group, *plan)
    assert list(csv.reader(io.StringIO(ours.stdout))) == [
        line.split(",") for line in sorted(said.splitlines()) if line.startswith(f"{topic},")
    ]
