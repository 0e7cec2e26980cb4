"""`ottla topic create|list|describe` against ottla, and the same against a real Kafka. Views, filters, usage: tests/unit/tools/admin."""

from __future__ import annotations

import uuid
from functools import partial

import pytest
from confluent_kafka.admin import AdminClient

from protocol.errors import ErrorCode
from protocol.kafka.api_keys import ApiKey
from tests.support.cli import OURS_AND_KAFKAS, Cli
from tests.support.invariants import eventually
from tests.support.wire import Wire

pytestmark = pytest.mark.integration


def create(cli: Cli, name: str, *arguments: str) -> str:
    """Creates the topic and waits until every broker knows it: they hear of it some milliseconds later."""
    said = cli.output("topic", "create", name, *arguments)
    brokers = AdminClient({"bootstrap.servers": cli.bootstrap_servers}).list_topics(timeout=20).brokers
    for broker in brokers.values():
        eventually(partial(knows, broker.port, name), f"topic {name} known to broker {broker.id}")
    return said


def knows(port: int, topic: str) -> bool:
    """True when the broker there names a leader for every partition of the topic."""
    with Wire(port) as wire:
        answer = wire.call(ApiKey.METADATA, 9, {"topics": [{"name": topic}], "allow_auto_topic_creation": False})
    (found,) = answer.topics
    return found.error_code == ErrorCode.NONE and all(p.leader_id >= 0 for p in found.partitions)


@OURS_AND_KAFKAS
def test_create_list_describe(cli: Cli) -> None:
    name = f"cli-{uuid.uuid4().hex[:8]}"
    created = create(cli, name, "--partitions", "4", "--replication-factor", "3", "--config", "retention.ms=60000")
    assert created == f"Created topic {name}.\n"
    assert cli.json("topic", "list", "--topic", name) == [{"topic": name, "partition_count": 4}]

    header, *lines = cli.output("topic", "describe", name).splitlines()
    assert header.startswith(f"Topic: {name}\tTopicId: ")
    assert "\tPartitionCount: 4\tReplicationFactor: 3\tConfigs: " in header
    assert [line.split("\t")[:3] for line in lines] == [["", f"Topic: {name}", f"Partition: {n}"] for n in range(4)]

    (described,) = cli.json("topic", "describe", "--topic", name)
    assert len(described["topic_id"]) == 22
    assert described["configs"]["retention.ms"] == "60000"
    for partition in described["partitions"]:
        assert sorted(partition["replicas"]) == cli.broker_ids
        assert partition["leader"] == partition["replicas"][0]

    for option in ("--under-replicated-partitions", "--unavailable-partitions", "--under-min-isr-partitions"):
        nothing = partial(cli.json, "topic", "describe", name, option)
        eventually(lambda found=nothing: found() == [], f"nothing for {option}")


def test_replica_assignment_and_if_not_exists(cli: Cli) -> None:
    name = f"cli-{uuid.uuid4().hex[:8]}"
    first, second, third = cli.broker_ids
    create(cli, name, "--replica-assignment", f"{second}:{first},{third}:{second}")
    (described,) = cli.json("topic", "describe", name)
    assert [partition["replicas"] for partition in described["partitions"]] == [[second, first], [third, second]]
    assert "already exists" in cli.failure("topic", "create", name)
    assert cli.json("topic", "create", name, "--if-not-exists") == {"topic": name, "created": False}
