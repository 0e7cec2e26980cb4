"""Unmodified admin clients: they add partitions, move replicas, elect leaders, read sizes, delete records and topics (CLI-3, CTL-8..12)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import ElectionType, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from confluent_kafka.error import KafkaError
from kafka import KafkaAdminClient
from kafka import TopicPartition as PythonTopicPartition
from kafka.errors import InvalidPartitionsError, NoReassignmentInProgressError, UnknownTopicOrPartitionError

from tests.support.invariants import eventually
from tests.support.topics import new_topic
from tools.cluster.local_cluster import LocalCluster

pytestmark = pytest.mark.integration

TIMEOUT_S = 30.0


@pytest.fixture
def confluent(shared_cluster: LocalCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": shared_cluster.bootstrap_servers})


@pytest.fixture
def python(shared_cluster: LocalCluster) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=shared_cluster.bootstrap_servers.split(","))
    yield client
    client.close()


@pytest.fixture
def topic(shared_cluster: LocalCluster) -> str:
    """Two partitions, on brokers 1, 2 and 2, 3, with ten records in partition 0."""
    name = new_topic(shared_cluster.bootstrap_servers, assignment=[[1, 2], [2, 3]])
    producer = Producer({"bootstrap.servers": shared_cluster.bootstrap_servers, "acks": "all"})
    for number in range(10):
        producer.produce(name, b"record %d" % number, partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    return name


def replicas(confluent: AdminClient, topic: str) -> dict[int, list[int]]:
    found = confluent.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
    return {number: partition.replicas for number, partition in found.items()}


def leader(confluent: AdminClient, topic: str) -> int:
    return int(confluent.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions[0].leader)


def test_confluent(confluent: AdminClient, topic: str) -> None:
    grown = confluent.create_partitions([NewPartitions(topic, 4, replica_assignment=[[3, 1], [1, 3]])])
    grown[topic].result(TIMEOUT_S)
    eventually(lambda: replicas(confluent, topic) == {0: [1, 2], 1: [2, 3], 2: [3, 1], 3: [1, 3]}, "four partitions")
    with pytest.raises(KafkaException) as raised:
        confluent.create_partitions([NewPartitions(topic, 2)])[topic].result(TIMEOUT_S)
    error = raised.value.args[0]
    assert error.code() == KafkaError.INVALID_PARTITIONS
    assert error.str() == "Topic currently has 4 partitions, which is higher than the requested 2."

    elected = confluent.elect_leaders(ElectionType.PREFERRED, [TopicPartition(topic, 0)]).result(TIMEOUT_S)
    (not_needed,) = elected.values()
    assert not_needed.code() == KafkaError.ELECTION_NOT_NEEDED
    confluent.elect_leaders(ElectionType.UNCLEAN).result(TIMEOUT_S)

    deleted = confluent.delete_records([TopicPartition(topic, 0, 4)])
    assert [future.result(TIMEOUT_S).low_watermark for future in deleted.values()] == [4]

    confluent.delete_topics([topic])[topic].result(TIMEOUT_S)
    eventually(lambda: topic not in confluent.list_topics(timeout=TIMEOUT_S).topics, "it is gone")
    with pytest.raises(KafkaException) as raised:
        confluent.delete_topics([topic])[topic].result(TIMEOUT_S)
    assert raised.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_kafka_python(python: KafkaAdminClient, confluent: AdminClient, topic: str) -> None:
    first = PythonTopicPartition(topic, 0)
    python.create_partitions({topic: 3})
    eventually(lambda: sorted(replicas(confluent, topic)) == [0, 1, 2], "three partitions")
    with pytest.raises(InvalidPartitionsError):
        python.create_partitions({topic: 3})

    assert python.alter_partition_reassignments({first: [2, 3]}) == {first: None}
    eventually(lambda: first not in python.list_partition_reassignments(), "moved")
    assert python.list_partition_reassignments([first]) == {}
    eventually(lambda: replicas(confluent, topic)[0] == [2, 3], "as it was wanted")
    assert python.alter_partition_reassignments({first: None}) == {first: NoReassignmentInProgressError}

    assert python.alter_partition_reassignments({first: [3, 2]}) == {first: None}
    eventually(lambda: replicas(confluent, topic)[0] == [3, 2], "in the other order")
    python.elect_leaders(0, {topic: [0]})
    eventually(lambda: leader(confluent, topic) == 3, "led by the first")

    told = python.describe_log_dirs()
    sizes = {
        (row["broker"], partition["partition_index"]): partition["partition_size"]
        for row in told
        for directory in row["log_dirs"]
        for found in directory["topics"]
        if found["name"] == topic
        for partition in found["partitions"]
    }
    assert sizes[(2, 0)] == sizes[(3, 0)] > 0
    assert (1, 0) not in sizes

    deleted = python.delete_records({first: 4})
    assert deleted[first]["low_watermark"] == 4
    python.delete_topics([topic])
    eventually(lambda: topic not in confluent.list_topics(timeout=TIMEOUT_S).topics, "it is gone")
    with pytest.raises(UnknownTopicOrPartitionError):
        python.delete_topics([topic])
