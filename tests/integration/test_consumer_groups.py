"""Consumer groups of unmodified clients, and Kafka's own tool for them (CLI-2, INV-23, INV-24)."""

from __future__ import annotations

import contextlib
import re
import threading
import uuid
from collections.abc import Callable, Sequence
from functools import partial

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.conftest import CALM, ClusterFactory
from tests.support.group_members import CLIENTS, HEARTBEAT_MS, Client, Member, new_consumer
from tests.support.invariants import eventually, wait_known_everywhere
from tests.support.kafka_tools import KafkaTools
from tests.support.topics import fill, new_topic
from tools.clients.leave_group import leave_group
from tools.cluster.local_cluster import LocalCluster

pytestmark = pytest.mark.integration

PARTITIONS = 6
ALL = frozenset(range(PARTITIONS))
RECORDS = 20
"""In each partition, each time."""
SETTINGS = {
    "group.initial.rebalance.delay.ms": "100",
    "offsets.topic.num.partitions": "5",
}
CAN_BE_STATIC: tuple[Client, ...] = ("confluent", "confluent cooperative", "kafka-python")


@pytest.fixture(scope="module")
def cluster(new_module_cluster: ClusterFactory) -> LocalCluster:
    return new_module_cluster(brokers=3, overrides=SETTINGS | CALM)


@pytest.fixture
def topic(cluster: LocalCluster) -> str:
    name = new_topic(cluster.bootstrap_servers, PARTITIONS, 3)
    wait_known_everywhere(cluster, name, PARTITIONS)
    return name


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


def produce(cluster: LocalCluster, topic: str, first: int = 0) -> set[tuple[int, int]]:
    """(partition, offset) of RECORDS new records in each partition; `first` is the offset of the first."""
    fill(cluster.bootstrap_servers, topic, [b"value"] * RECORDS * PARTITIONS, PARTITIONS)
    return {(partition, offset) for partition in range(PARTITIONS) for offset in range(first, first + RECORDS)}


def are_split(members: Sequence[Member]) -> bool:
    """INV-24: each partition has one owner, and each member its share."""
    for member in members:
        member.check()
    sizes = sorted(len(member.owned) for member in members)
    is_whole = frozenset().union(*(member.owned for member in members)) == ALL and sum(sizes) == PARTITIONS
    return is_whole and sizes[-1] - sizes[0] <= 1


def seen(members: Sequence[Member]) -> set[tuple[int, int]]:
    return {place for member in members for place in member.seen}


def committed(admin: AdminClient, group: str) -> dict[int, int]:
    """Partition -> offset."""
    (future,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    return {row.partition: row.offset for row in future.result(20).topic_partitions}


def commit_all(members: Sequence[Member]) -> None:
    for member in members:
        member.commit()
    eventually(lambda: all(member.has_committed for member in members), "all have committed")


@pytest.mark.parametrize("client", CLIENTS)
def test_members_join_share_leave_and_rejoin(
    cluster: LocalCluster, admin: AdminClient, topic: str, group: str, client: Client
) -> None:
    with contextlib.ExitStack() as stack:

        def join() -> Member:
            return stack.enter_context(Member(client, cluster.bootstrap_servers, group, topic))

        sent = produce(cluster, topic)
        first = join()
        eventually(lambda: are_split([first]), "the first has all partitions")
        eventually(lambda: seen([first]) == sent, "the first has read all")
        commit_all([first])
        assert committed(admin, group) == dict.fromkeys(range(PARTITIONS), RECORDS)

        members = [first, join(), join()]
        eventually(lambda: are_split(members), "three have their shares")
        sent |= produce(cluster, topic, RECORDS)
        eventually(lambda: seen(members) == sent, "three have read all")
        commit_all(members)
        assert committed(admin, group) == dict.fromkeys(range(PARTITIONS), 2 * RECORDS)
        assert seen(members[1:]) <= {place for place in sent if place[1] >= RECORDS}, "they start at what was committed"

        members.pop().close()
        eventually(lambda: are_split(members), "two have the shares of the third")
        members += [join(), join(), join()]
        eventually(lambda: are_split(members), "five have their shares")
        sent |= produce(cluster, topic, 2 * RECORDS)
        eventually(lambda: seen(members) >= {place for place in sent if place[1] >= 2 * RECORDS}, "all is read")
        commit_all(members)
    assert committed(admin, group) == dict.fromkeys(range(PARTITIONS), 3 * RECORDS)
    with Member(client, cluster.bootstrap_servers, group, topic) as last:
        eventually(lambda: are_split([last]), "the last has all partitions")
        sent = produce(cluster, topic, 3 * RECORDS)
        eventually(lambda: seen([last]) >= sent, "the last has read what is new")
        assert seen([last]) == sent


@pytest.mark.parametrize("client", CAN_BE_STATIC)
def test_a_static_member_rejoins(cluster: LocalCluster, topic: str, group: str, client: Client) -> None:
    """KIP-345: it keeps its partitions, and the other members see no rebalance."""

    def join(instance_id: str) -> Member:
        return Member(client, cluster.bootstrap_servers, group, topic, instance_id)

    with join("a") as first:
        with join("b") as second:
            eventually(
                lambda: are_split([first, second]) and first.generation == second.generation, "two have their shares"
            )
            owned, told = second.owned, first.assignments
        with join("b") as second:
            eventually(lambda: second.owned == owned, "the second has what it had")
            sent = produce(cluster, topic)
            eventually(lambda: seen([first, second]) == sent, "all is read")
            assert (first.assignments, second.owned) == (told, owned)


def test_members_of_different_clients(cluster: LocalCluster, topic: str, group: str) -> None:
    """librdkafka and kafka-python share a group: both support `range`."""
    clients: tuple[Client, ...] = ("confluent", "kafka-python")
    with contextlib.ExitStack() as stack:
        members = [stack.enter_context(Member(client, cluster.bootstrap_servers, group, topic)) for client in clients]
        eventually(lambda: are_split(members), "two have their shares")
        sent = produce(cluster, topic)
        eventually(lambda: seen(members) == sent, "all is read")


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_member_leaves_during_a_rebalance_that_it_has_not_seen(
    cluster: LocalCluster, topic: str, group: str, strategy: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """With `close` alone, librdkafka hangs in about one of three hundred such cases (see `leave_group`)."""
    settings = {"partition.assignment.strategy": strategy}
    quick = settings | {"heartbeat.interval.ms": HEARTBEAT_MS, "debug": "cgrp"}
    consumer = new_consumer(cluster.bootstrap_servers, group, **quick)
    told: list[int] = []

    def revoked(_: Consumer, gone: list[TopicPartition]) -> None:
        told.append(-len(gone))
        with contextlib.suppress(KafkaException):  # it is no member any more
            consumer.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)

    consumer.subscribe([topic], on_assign=lambda _, given: told.append(len(given)), on_revoke=revoked)
    eventually(lambda: consumer.poll(0.05) is None and told == [PARTITIONS], "it has all partitions")
    other = new_consumer(cluster.bootstrap_servers, group, **settings)
    other.subscribe([topic])
    said = ""

    def is_announced() -> bool:
        nonlocal said
        said += capfd.readouterr().err
        return "is rebalancing" in said

    eventually(is_announced, "its client knows of the rebalance")
    ended = threading.Thread(target=leave_group, args=(consumer,), daemon=True)
    ended.start()
    ended.join(30)
    assert not ended.is_alive()
    assert sum(told) == 0, "what it was given is taken back"
    leave_group(other)


# -- Kafka's tool ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def tool(kafka_tools: KafkaTools, cluster: LocalCluster) -> Callable[..., str]:
    """ConsumerGroupCommand."""
    return partial(kafka_tools.groups, cluster.bootstrap_servers)


@pytest.mark.kafka
def test_consumer_group_command_changes(
    cluster: LocalCluster, admin: AdminClient, topic: str, group: str, tool: Callable[..., str]
) -> None:
    """Resets, deletes offsets, deletes the group."""
    produce(cluster, topic)
    with Member("confluent", cluster.bootstrap_servers, group, topic) as member:
        eventually(lambda: len(member.seen) == PARTITIONS * RECORDS, "all is read")
        commit_all([member])
    reset = ("--group", group, "--topic", topic, "--reset-offsets")
    planned = re.findall(rf"{group}\s+{topic}\s+(\d+)\s+(\d+)", tool(*reset, "--to-earliest", "--dry-run"))
    assert sorted(planned) == [(str(n), "0") for n in range(PARTITIONS)]
    assert committed(admin, group) == dict.fromkeys(ALL, RECORDS)
    tool(*reset, "--to-offset", "7", "--execute")
    assert committed(admin, group) == dict.fromkeys(ALL, 7)
    with Member("confluent", cluster.bootstrap_servers, group, topic) as member:
        eventually(lambda: len(member.seen) >= PARTITIONS * (RECORDS - 7), "all is read from there")
        assert min(offset for _, offset in member.seen) == 7
    tool("--delete-offsets", "--group", group, "--topic", f"{topic}:0,1")
    assert committed(admin, group) == dict.fromkeys(ALL - {0, 1}, 7)
    assert "successful" in tool("--delete", "--group", group)
    assert committed(admin, group) == {}
