"""`ottla topic create|list|describe` against ottla, and the same against a real Kafka."""

from __future__ import annotations

import json
import uuid
from functools import partial

import pytest
from confluent_kafka.admin import AdminClient

from protocol.errors import ErrorCode
from protocol.kafka.api_keys import ApiKey
from tests.support.cli import OURS_AND_KAFKAS, Cli
from tests.support.invariants import eventually
from tests.support.wire import Wire
from tools.cluster.local_cluster import LocalCluster

pytestmark = pytest.mark.integration


class TopicCli(Cli):
    """`ottla topic ...`."""

    def command(self, *arguments: str) -> list[str]:
        return super().command("topic", *arguments)

    def create(self, name: str, *arguments: str) -> str:
        """Creates the topic and waits until every broker knows it: they hear of it some milliseconds later."""
        said = self.output("create", name, *arguments)
        brokers = AdminClient({"bootstrap.servers": self.bootstrap_servers}).list_topics(timeout=20).brokers
        for broker in brokers.values():
            eventually(partial(knows, broker.port, name), f"topic {name} known to broker {broker.id}")
        return said


def knows(port: int, topic: str) -> bool:
    """True when the broker there names a leader for every partition of the topic."""
    with Wire(port) as wire:
        answer = wire.call(ApiKey.METADATA, 9, {"topics": [{"name": topic}], "allow_auto_topic_creation": False})
    (found,) = answer.topics
    return found.error_code == ErrorCode.NONE and all(p.leader_id >= 0 for p in found.partitions)


@pytest.fixture
def ottla(shared_cluster: LocalCluster) -> TopicCli:
    return TopicCli(shared_cluster.bootstrap_servers, list(shared_cluster.broker_ids))


@pytest.fixture
def kafka(shared_kafka: Cli) -> TopicCli:
    return TopicCli(shared_kafka.bootstrap_servers, shared_kafka.broker_ids)


@pytest.fixture
def cli(request: pytest.FixtureRequest) -> TopicCli:
    found: TopicCli = request.getfixturevalue(getattr(request, "param", "ottla"))
    return found


def new_name() -> str:
    return f"cli-{uuid.uuid4().hex[:8]}"


@OURS_AND_KAFKAS
def test_create_list_describe(cli: TopicCli) -> None:
    name = new_name()
    created = cli.create(name, "--partitions", "4", "--replication-factor", "3", "--config", "retention.ms=60000")
    assert created == f"Created topic {name}.\n"

    assert name in cli.output("list").splitlines()
    (listed,) = json.loads(cli.output("list", "--topic", name, "--format", "json"))
    assert listed == {"topic": name, "partition_count": 4}

    header, *partitions = cli.output("describe", name).splitlines()
    assert header.startswith(f"Topic: {name}\tTopicId: ")
    assert "\tPartitionCount: 4\tReplicationFactor: 3\tConfigs: " in header
    assert [line.split("\t")[:3] for line in partitions] == [
        ["", f"Topic: {name}", f"Partition: {n}"] for n in range(4)
    ]

    (described,) = json.loads(cli.output("describe", "--topic", name, "--format", "json"))
    assert len(described["topic_id"]) == 22
    if described["configs"] is not None:  # None: this cluster does not serve DescribeConfigs
        assert described["configs"]["retention.ms"] == "60000"
    for partition in described["partitions"]:
        assert sorted(partition["replicas"]) == cli.broker_ids
        assert partition["leader"] == partition["replicas"][0]


def test_replica_assignment(cli: TopicCli) -> None:
    name = new_name()
    first, second, third = cli.broker_ids
    cli.create(name, "--replica-assignment", f"{second}:{first},{third}:{second}")
    (described,) = json.loads(cli.output("describe", name, "--format", "json"))
    assert [partition["replicas"] for partition in described["partitions"]] == [[second, first], [third, second]]


def test_defaults_and_if_not_exists(cli: TopicCli) -> None:
    name = new_name()
    cli.create(name)
    assert "already exists" in cli.failure("create", name)
    assert json.loads(cli.output("create", name, "--if-not-exists", "--format", "json")) == {
        "topic": name,
        "created": False,
    }


def nothing_is_printed(cli: TopicCli, name: str, option: str) -> bool:
    return cli.output("describe", name, option) == ""


def test_filters_of_a_healthy_topic(cli: TopicCli) -> None:
    name = new_name()
    cli.create(name, "--replication-factor", "3")
    for option in ("--under-replicated-partitions", "--unavailable-partitions"):
        eventually(partial(nothing_is_printed, cli, name, option), f"nothing for {option}")
        assert json.loads(cli.output("describe", name, option, "--format", "json")) == []
    under_min_isr = cli.run("describe", name, "--under-min-isr-partitions")
    if under_min_isr.returncode:
        assert "does not serve" in under_min_isr.stderr
    else:
        assert under_min_isr.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["create", "cli-refused", "--replication-factor", "9"], "use --replication-factor 1 to 3"),
        (["create", "cli-refused", "--config", "no.such.config=1"], "no.such.config"),
        (["create", "cli-refused", "--config", "retention.ms=soon"], "retention.ms"),
        (["create", "cli refused"], "choose another name"),
        (["describe", "cli-unknown"], "does not exist"),
    ],
)
def test_refusals_are_one_line(cli: TopicCli, arguments: list[str], says: str) -> None:
    assert says in cli.failure(*arguments)
    assert "cli-refused" not in cli.output("list").splitlines()


def test_nothing_answers() -> None:
    line = TopicCli("127.0.0.1:1", []).failure("list")
    assert "no broker answers at 127.0.0.1:1" in line
