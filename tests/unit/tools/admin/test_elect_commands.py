"""`ottla elect`: what is asked, Kafka's sentences, what is refused (CTL-12)."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from protocol.types import TopicPartition
from tests.support.fake_admin import FakeCluster, three_brokers
from tools.admin.elect_commands import elect

USAGE = 2
FAILURE = 1
ORDERS_0, ORDERS_1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
PREFERRED = ["--election-type", "preferred"]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    return three_brokers(elections={ORDERS_1: ("ELECTION_NOT_NEEDED", "not needed"), ORDERS_0: None}).install(
        monkeypatch
    )


def test_all(fake: FakeCluster) -> None:
    result = CliRunner().invoke(elect, [*PREFERRED, "--all-topic-partitions"])
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        "Successfully completed leader election (PREFERRED) for partitions orders-0",
        "Valid replica already elected for partitions orders-1",
    ]
    assert fake.calls == [("elect", False, None)]


def test_nothing_needed(fake: FakeCluster) -> None:
    fake.elections = {}
    assert (
        CliRunner().invoke(elect, [*PREFERRED, "--all-topic-partitions"]).output
        == "No partition needs this election.\n"
    )


def test_one_and_a_file(fake: FakeCluster) -> None:
    CliRunner().invoke(elect, ["--election-type", "UNCLEAN", "--topic", "orders", "--partition", "0"])
    file = '{"partitions":[{"topic":"orders","partition":1}]}'
    result = CliRunner().invoke(elect, [*PREFERRED, "--path-to-json-file", "-", "--format", "json"], input=file)
    assert fake.calls == [("elect", True, ["orders-0"]), ("elect", False, ["orders-1"])]
    assert json.loads(result.output) == {
        "elected": [],
        "not_needed": [{"topic": "orders", "partition": 1}],
        "failed": [],
    }


def test_no_replica_lives(fake: FakeCluster) -> None:
    fake.elections = {ORDERS_0: ("ELIGIBLE_LEADERS_NOT_AVAILABLE", "none lives."), ORDERS_1: None}
    result = CliRunner().invoke(elect, ["--election-type", "unclean", "--all-topic-partitions", "--format", "json"])
    assert result.exit_code == FAILURE
    assert json.loads(result.stdout)["failed"] == [
        {"topic": "orders", "partition": 0, "error": "ELIGIBLE_LEADERS_NOT_AVAILABLE", "reason": "none lives."}
    ]
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: no leader could be elected for 1 partitions: orders-0: none lives; start a broker")


@pytest.mark.parametrize(
    ("arguments", "exit_code", "says"),
    [
        (["--all-topic-partitions"], USAGE, "--election-type"),
        (["--election-type", "best", "--all-topic-partitions"], USAGE, "--election-type"),
        (PREFERRED, USAGE, "use one of"),
        ([*PREFERRED, "--all-topic-partitions", "--path-to-json-file", "-"], USAGE, "use one of"),
        ([*PREFERRED, "--topic", "orders"], USAGE, "--topic and --partition must be used together"),
        ([*PREFERRED, "--partition", "0"], USAGE, "--topic and --partition must be used together"),
        ([*PREFERRED, "--topic", "orders", "--partition", "9"], FAILURE, "partition orders-9 does not exist"),
        ([*PREFERRED, "--path-to-json-file", "-"], FAILURE, "standard input: line 1, column 1: not JSON"),
        ([*PREFERRED, "--path-to-json-file", "/no/such"], FAILURE, "/no/such: No such file or directory"),
    ],
)
def test_refusals(fake: FakeCluster, arguments: list[str], exit_code: int, says: str) -> None:
    result = CliRunner().invoke(elect, arguments)
    assert (result.exit_code, says in result.output) == (exit_code, True), result.output
    assert fake.calls == []
