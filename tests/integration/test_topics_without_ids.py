"""Topics whose node has no id, as tools before Kafka 2.8 write it, with real processes and a real ZooKeeper (KIP-516, CTL-6).

All of them have their id back, or a new one, on every broker: acks=all waits for all replicas, and moves and deletions end.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient
from kafka import TopicPartition as KafkaTopicPartition

from broker.storage.directories import topic_ids
from protocol.kafka.api_keys import ApiKey
from protocol.topic_ids import topic_id_text
from protocol.types import TopicPartition
from protocol.zk.znodes import ConfigZNode, PartitionStateZNode, TopicZNode
from tests.conftest import ClusterFactory
from tests.integration.conftest import cli_of
from tests.support.background_load import read_everything
from tests.support.cli import Cli
from tests.support.invariants import ZooKeeperView, assert_healed, eventually, replica_directory, wait_known_everywhere
from tests.support.thorough import thorough
from tests.support.topics import fill
from tests.support.wire import Wire
from tools.cluster.local_cluster import LocalCluster

pytestmark = pytest.mark.integration

PARTITIONS = 2


@pytest.fixture(scope="module")
def cluster(new_module_cluster: ClusterFactory) -> LocalCluster:
    return new_module_cluster(brokers=3)


@pytest.fixture
def topic(cluster: LocalCluster, zk: ZooKeeperView) -> str:
    """Created as `kafka-topics.sh --zookeeper` of Kafka 2.7 does: the settings, then the assignment, without an id."""
    name = f"old-{uuid.uuid4().hex[:8]}"
    zk.client.create(ConfigZNode.path("topics", name), ConfigZNode.encode({"min.insync.replicas": "3"}))
    zk.client.create(TopicZNode.path(name), as_kafka_2_7({0: (1, 2, 3), 1: (2, 3, 1)}))
    wait_known_everywhere(cluster, name, PARTITIONS)
    return name


def as_kafka_2_7(assignment: Mapping[int, Sequence[int]]) -> bytes:
    partitions = {str(partition): list(replicas) for partition, replicas in assignment.items()}
    return json.dumps({"version": 2, "partitions": partitions, "adding_replicas": {}, "removing_replicas": {}}).encode()


def rewrite(zk: ZooKeeperView, topic: str, added: Mapping[int, Sequence[int]] | None = None) -> None:
    """As `kafka-topics.sh --zookeeper --alter --partitions` of Kafka 2.7 does."""
    assignment = {partition: found.replicas for partition, found in zk.assignment(topic).items()} | dict(added or {})
    zk.client.set(TopicZNode.path(topic), as_kafka_2_7(assignment))


def produce(cluster: LocalCluster, topic: str, value: str, partitions: int = PARTITIONS) -> None:
    """With acks=all, and so with all three replicas."""
    fill(cluster.bootstrap_servers, topic, [value] * partitions, partitions)


def id_in_zookeeper(zk: ZooKeeperView, topic: str) -> str | None:
    return TopicZNode.decode(zk.client.get(TopicZNode.path(topic))[0])[0]


def id_at(cluster: LocalCluster, topic: str, broker: int) -> str | None:
    """The id in that broker's Metadata."""
    host, _, port = cluster.address(broker).rpartition(":")
    with Wire(int(port), host) as wire:
        answer = wire.call(ApiKey.METADATA, 12, {"topics": [{"topic_id": None, "name": topic}]})
    found: uuid.UUID | None = answer.topics[0].topic_id
    return topic_id_text(found) if found is not None and found.int else None


def assert_has_id(cluster: LocalCluster, zk: ZooKeeperView, topic: str) -> str:
    """One id in ZooKeeper, in every broker's metadata, and beside every log. Returns it."""
    assert_healed(cluster, zk, topic)
    eventually(lambda: id_in_zookeeper(zk, topic), f"an id of {topic} in ZooKeeper")
    topic_id = id_in_zookeeper(zk, topic)
    assert topic_id is not None
    for broker in cluster.broker_ids:
        eventually(lambda b=broker: id_at(cluster, topic, b) == topic_id, f"broker {broker} knows the id of {topic}")
        for partition, assigned in zk.assignment(topic).items():
            if broker in assigned.replicas:
                written = metadata_file(cluster, topic, broker, partition).read_bytes()
                assert topic_ids.decode(written) == topic_id, (broker, partition)
    return topic_id


def metadata_file(cluster: LocalCluster, topic: str, broker: int, partition: int) -> Path:
    return replica_directory(cluster, broker, topic, partition) / "partition.metadata"


def values(cluster: LocalCluster, topic: str, partitions: int = PARTITIONS) -> list[str]:
    return sorted(record.value().decode() for record in read_everything(cluster.bootstrap_servers, topic, partitions))


def move(cluster: LocalCluster, topic: str, replicas: Sequence[int]) -> None:
    """Moves partition 0 there and waits for the end."""
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers.split(","))
    partition = KafkaTopicPartition(topic, 0)
    try:
        assert set(admin.alter_partition_reassignments({partition: list(replicas)}).values()) == {None}
        eventually(lambda: not admin.list_partition_reassignments([partition]), f"{partition} moved")
    finally:
        admin.close()


def delete(cluster: LocalCluster, zk: ZooKeeperView, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.delete_topics([topic], operation_timeout=30)[topic].result(40)
    eventually(lambda: not zk.client.exists(TopicZNode.path(topic)), f"{topic} deleted")
    for broker in cluster.broker_ids:
        eventually(
            lambda b=broker: not replica_directory(cluster, b, topic, 0).exists(), f"{topic} deleted on {broker}"
        )


def test_a_topic_of_an_old_tool_is_replicated(cluster: LocalCluster, zk: ZooKeeperView, topic: str) -> None:
    produce(cluster, topic, "before")
    topic_id = assert_has_id(cluster, zk, topic)
    rewrite(zk, topic, {2: (3, 1, 2)})
    wait_known_everywhere(cluster, topic, 3)
    produce(cluster, topic, "after", 3)
    cluster.restart_broker(1)
    assert assert_has_id(cluster, zk, topic) == topic_id
    assert values(cluster, topic, 3) == ["after"] * 3 + ["before"] * 2
    rewrite(zk, topic)
    move(cluster, topic, (3, 2, 1))
    rewrite(zk, topic)
    delete(cluster, zk, topic)


@pytest.mark.thorough
def test_health_and_znodes_name_what_only_zookeeper_shows(cluster: LocalCluster, zk: ZooKeeperView, topic: str) -> None:
    """The next controller leaves a partition out of the metadata if its state cannot be read."""
    cli = cli_of(cluster)
    assert_has_id(cluster, zk, topic)
    path = PartitionStateZNode.path(TopicPartition(topic, 0))
    state = zk.client.get(path)[0]
    zk.client.set(path, b"rubbish")
    cluster.restart_broker(cluster.controller_id())
    eventually(lambda: leaderless(cli) == [f"{topic}-0"], "the partition is left out of the metadata")
    assert leaderless(cli, "--zookeeper", cli.zookeeper) == [f"{topic}-0"]
    said = cli.run("cluster", "health", "--zookeeper", cli.zookeeper).stdout
    assert f"{topic}-0: {path} is not readable: " in said
    assert path in cli.run("inspect", "znodes", "--zookeeper", cli.zookeeper).stdout
    zk.client.set(path, state)
    cluster.restart_broker(cluster.controller_id())
    assert_healed(cluster, zk, topic)
    delete(cluster, zk, topic)
    assert cli.run("cluster", "health", "--zookeeper", cli.zookeeper).returncode == 0


def leaderless(cli: Cli, *options: str) -> list[str]:
    said = cli.run("cluster", "health", "--format", "json", *options).stdout
    found: list[str] = json.loads(said)["leaderless_partitions"]
    return found


@pytest.mark.parametrize("logs_have_ids", [thorough(True), False])
def test_an_id_lost_while_no_broker_runs(
    cluster: LocalCluster, zk: ZooKeeperView, topic: str, logs_have_ids: bool
) -> None:
    """The logs have it. If they have none either, as after an upgrade from Kafka 2.7, the topic gets a new id."""
    produce(cluster, topic, "before")
    topic_id = assert_has_id(cluster, zk, topic)
    for broker in cluster.broker_ids:
        cluster.stop_broker(broker)
    rewrite(zk, topic)
    if not logs_have_ids:
        for broker in cluster.broker_ids:
            for partition in range(PARTITIONS):
                metadata_file(cluster, topic, broker, partition).unlink()
    for broker in cluster.broker_ids:
        cluster.start_broker(broker)
    cluster.wait_ready()
    assert (assert_has_id(cluster, zk, topic) == topic_id) == logs_have_ids
    produce(cluster, topic, "after")
    assert values(cluster, topic) == ["after"] * 2 + ["before"] * 2
    move(cluster, topic, (3, 1, 2))
    delete(cluster, zk, topic)
