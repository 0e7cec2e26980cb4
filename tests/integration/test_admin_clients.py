"""What the commands of `ottla` do not ask of the admin clients that they use, asked by these clients (CLI-3, CTL-8..12).

The rest, such as reassignments and deletions: test_admin_cli.py, test_reassignment.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import ElectionType, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.error import KafkaError
from kafka import KafkaAdminClient
from kafka import TopicPartition as PythonTopicPartition
from kafka.errors import InvalidPartitionsError, UnknownTopicOrPartitionError

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


def test_confluent(confluent: AdminClient, topic: str) -> None:
    elected = confluent.elect_leaders(ElectionType.PREFERRED, [TopicPartition(topic, 0)]).result(TIMEOUT_S)
    (not_needed,) = elected.values()
    assert not_needed.code() == KafkaError.ELECTION_NOT_NEEDED
    confluent.elect_leaders(ElectionType.UNCLEAN).result(TIMEOUT_S)
    deleted = confluent.delete_records([TopicPartition(topic, 0, 4)])
    assert [future.result(TIMEOUT_S).low_watermark for future in deleted.values()] == [4]


def test_kafka_python(python: KafkaAdminClient, confluent: AdminClient, topic: str) -> None:
    python.create_partitions({topic: 3})
    eventually(lambda: len(confluent.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions) == 3, "grown")
    with pytest.raises(InvalidPartitionsError):
        python.create_partitions({topic: 3})

    sizes = {
        (row["broker"], partition["partition_index"]): partition["partition_size"]
        for row in python.describe_log_dirs()
        for directory in row["log_dirs"]
        for found in directory["topics"]
        if found["name"] == topic
        for partition in found["partitions"]
    }
    assert sizes[(1, 0)] == sizes[(2, 0)] > 0
    assert (3, 0) not in sizes

    first = PythonTopicPartition(topic, 0)
    assert python.delete_records({first: 4})[first]["low_watermark"] == 4
    python.delete_topics([topic])
    eventually(lambda: topic not in confluent.list_topics(timeout=TIMEOUT_S).topics, "it is gone")
    with pytest.raises(UnknownTopicOrPartitionError):
        python.delete_topics([topic])
