"""`ottla elect`: what it requests, and Kafka's sentences (CTL-12)."""

from __future__ import annotations

import json

import pytest

from protocol.types import TopicPartition
from tests.support.cli import ottla
from tests.support.fake_admin import FakeCluster

ORDERS_0, ORDERS_1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


@pytest.fixture(autouse=True)
def elections(fake: FakeCluster) -> None:
    fake.elections = {ORDERS_1: ("ELECTION_NOT_NEEDED", "not needed"), ORDERS_0: None}


def test_elect_for_all_partitions(fake: FakeCluster) -> None:
    result = ottla("elect --election-type preferred --all-topic-partitions")
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        "Successfully completed leader election (PREFERRED) for partitions orders-0",
        "Valid replica already elected for partitions orders-1",
    ]
    assert fake.calls == [("elect", False, None)]
    fake.elections = {}
    nothing = ottla("elect --election-type preferred --all-topic-partitions")
    assert nothing.output == "No partition needs this election.\n"


def test_elect_for_one_partition_and_for_a_file(fake: FakeCluster) -> None:
    ottla("elect --election-type UNCLEAN --topic orders --partition 0")
    file = '{"partitions":[{"topic":"orders","partition":1}]}'
    result = ottla("elect --election-type preferred --path-to-json-file - --format json", file)
    assert fake.calls == [("elect", True, ["orders-0"]), ("elect", False, ["orders-1"])]
    not_needed = [{"topic": "orders", "partition": 1}]
    assert json.loads(result.output) == {"elected": [], "not_needed": not_needed, "failed": []}


def test_an_election_without_a_live_replica_fails(fake: FakeCluster) -> None:
    fake.elections = {ORDERS_0: ("ELIGIBLE_LEADERS_NOT_AVAILABLE", "none lives."), ORDERS_1: None}
    result = ottla("elect --election-type unclean --all-topic-partitions --format json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["failed"] == [
        {"topic": "orders", "partition": 0, "error": "ELIGIBLE_LEADERS_NOT_AVAILABLE", "reason": "none lives."}
    ]
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: no leader could be elected for 1 partitions: orders-0: none lives; start a broker")
