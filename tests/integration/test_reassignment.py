"""Partitions with data move to other brokers under acks=all load (CTL-10, CTL-11, INV-1, INV-25, FLT-35).

Moves are requested by kafka-python's admin client and by `/admin/reassign_partitions`, and cancelled. The leader moves; the controller
or a broker of the move is killed or stopped meanwhile. A follower throttle slows a move down for this. Nothing acknowledged is lost,
and a removed replica's log is deleted from its disk.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ResourceType
from kafka import KafkaAdminClient, TopicPartition

from protocol import types
from protocol.errors import ErrorCode
from protocol.kafka.api_keys import ApiKey
from protocol.types import Assignment
from protocol.zk.znodes import ReassignPartitionsZNode
from tests.conftest import ClusterFactory
from tests.support.background_load import BackgroundProducer, assert_all_read_back
from tests.support.invariants import ZooKeeperView, assert_healed, eventually, replica_directory
from tests.support.thorough import thorough
from tests.support.topics import new_topic, set_configs
from tests.support.wire import Wire
from tools.cluster.local_cluster import LocalCluster

pytestmark = pytest.mark.integration

PARTITIONS = 2
PADDING = b"x" * 2000
ACCEPTED = [ErrorCode.NONE] * PARTITIONS
SLOW = "20000"
"""Bytes per second: copying the records that were produced before the move takes minutes."""
RATE = "follower.replication.throttled.rate"


@pytest.fixture(scope="module")
def cluster(new_module_cluster: ClusterFactory) -> LocalCluster:
    return new_module_cluster(brokers=4, overrides={"auto.leader.rebalance.enable": "false"})


def _code(error: Any) -> ErrorCode:
    """The code of kafka-python's error."""
    return ErrorCode.NONE if error is None else ErrorCode(error.errno)


def kafka_python_admin(cluster: LocalCluster) -> closing[KafkaAdminClient]:
    return closing(KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers.split(",")))


@dataclass
class Move:
    """A topic of two partitions with the leader `leaving` and the follower `staying`. `coming` has no replica yet."""

    cluster: LocalCluster
    zk: ZooKeeperView
    topic: str
    controller: int
    leaving: int
    staying: int
    coming: int

    @property
    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self.topic, partition) for partition in range(PARTITIONS)]

    def alter(self, replicas: Sequence[int] | None) -> list[ErrorCode]:
        """Alters the reassignments through the API. Returns the error code of each partition."""
        with kafka_python_admin(self.cluster) as admin:
            answers = admin.alter_partition_reassignments(dict.fromkeys(self.partitions, replicas))
        return [_code(answers[tp]) for tp in self.partitions]

    def listed(self) -> list[dict[str, list[int]]]:
        with kafka_python_admin(self.cluster) as admin:
            return list(admin.list_partition_reassignments(self.partitions).values())

    def listed_brokers(self) -> set[int]:
        """The brokers in the metadata that librdkafka gets: it asks another broker if one does not answer."""
        return set(AdminClient({"bootstrap.servers": self.cluster.bootstrap_servers}).list_topics(timeout=30).brokers)

    def throttle(self, rate: str | None) -> None:
        """Limits copying on every broker to `rate` bytes per second; None removes the limit."""
        # A librdkafka admin asks a broker that its metadata do not have yet only when it happens to refresh them.
        self.cluster.wait_ready()
        for broker in self.cluster.broker_ids:
            set_configs(self.cluster.bootstrap_servers, ResourceType.BROKER, str(broker), {RATE: rate})

    def assert_at(self, replicas: tuple[int, ...]) -> None:
        """The partitions have these replicas, all in sync, and no others, and nothing remains of the move."""
        eventually(
            lambda: all(found == Assignment(replicas) for found in self.zk.assignment(self.topic).values()),
            f"{self.topic} assigned to {replicas}",
        )
        assert_healed(self.cluster, self.zk, self.topic)
        for partition in range(PARTITIONS):
            assert set(self.zk.state(self.topic, partition).isr) == set(replicas)
        eventually(lambda: self.holders() == set(replicas), f"{self.topic} on the disks of {replicas} only")
        eventually(lambda: self.listed() == [], "nothing under way")
        eventually(lambda: self.zk.client.exists(ReassignPartitionsZNode.PATH) is None, "no request in ZooKeeper")

    def holders(self) -> set[int]:
        """The brokers with any log of the topic on disk, including logs that are being deleted."""
        return {
            broker
            for broker in self.cluster.broker_ids
            if list(replica_directory(self.cluster, broker, self.topic, 0).parent.glob(f"{self.topic}-*"))
        }


@pytest.fixture
def move(cluster: LocalCluster, zk: ZooKeeperView) -> Iterator[Move]:
    eventually(lambda: zk.live_brokers() == sorted(cluster.broker_ids), "all brokers live before the test")
    controller = eventually(zk.controller, "a controller")
    leaving, staying, coming = (broker for broker in cluster.broker_ids if broker != controller)
    throttled = {"min.insync.replicas": "1", "follower.replication.throttled.replicas": "*"}
    topic = new_topic(cluster.bootstrap_servers, assignment=[[leaving, staying]] * PARTITIONS, **throttled)
    made = Move(cluster, zk, topic, controller, leaving, staying, coming)
    eventually(lambda: all(len(s.isr) == 2 for s in zk.states(topic).values()), "both replicas in sync")
    yield made
    made.throttle(None)


def finish(move: Move, producer: BackgroundProducer, replicas: tuple[int, ...]) -> None:
    """Waits for the end of the move, and checks that no acknowledged record is lost."""
    producer.wait_for_acks(200)
    move.assert_at(replicas)
    assert_all_read_back(producer)


def loaded(move: Move) -> BackgroundProducer:
    return BackgroundProducer(move.cluster.bootstrap_servers, move.topic, PARTITIONS, PADDING)


@pytest.mark.parametrize("way", ["API", thorough("znode")])
def test_a_move_of_the_leader_under_load(move: Move, way: str) -> None:
    target = (move.coming, move.staying)
    with loaded(move) as producer:
        producer.wait_for_acks(3000)
        if way == "API":
            assert move.alter(target) == ACCEPTED
        else:
            rows = {types.TopicPartition(move.topic, partition): target for partition in range(PARTITIONS)}
            move.zk.client.create(ReassignPartitionsZNode.PATH, ReassignPartitionsZNode.encode(rows))
        finish(move, producer, target)
    assert {state.leader for state in move.zk.states(move.topic).values()} == {move.coming}


def test_a_move_to_entirely_different_brokers(move: Move) -> None:
    target = (move.coming, move.controller)
    with loaded(move) as producer:
        producer.wait_for_acks(3000)
        assert move.alter(target) == ACCEPTED
        finish(move, producer, target)


def test_a_move_is_cancelled_before_its_end(move: Move) -> None:
    """The original replicas are restored. A second cancellation is refused."""
    with loaded(move) as producer:
        producer.wait_for_acks(3000)
        move.throttle(SLOW)
        assert move.alter([move.coming, move.leaving]) == ACCEPTED
        moving = {
            "replicas": [move.coming, move.leaving, move.staying],
            "adding_replicas": [move.coming],
            "removing_replicas": [move.staying],
        }
        assert move.listed() == [moving, moving]
        eventually(lambda: move.coming in move.holders(), "copying has begun")
        producer.wait_for_acks(500)
        assert move.alter(None) == ACCEPTED
        assert move.alter(None) == [ErrorCode.NO_REASSIGNMENT_IN_PROGRESS] * 2
        finish(move, producer, (move.leaving, move.staying))


def test_a_deletion_waits_for_the_move(move: Move) -> None:
    """CTL-9: a reassignment delays the deletion, which is resumed afterwards.

    Kafka means the same, but marks the topic ineligible before it is queued, which has no effect: it deletes at once.
    """
    with loaded(move) as producer:
        producer.wait_for_acks(3000)
        producer.stop()
    move.throttle(SLOW)
    assert move.alter([move.coming, move.staying]) == ACCEPTED
    with Wire(move.cluster.port(move.controller)) as wire:
        row = {"name": move.topic, "topic_id": None}
        more = {"name": move.topic, "count": PARTITIONS + 1, "assignments": None}
        added = {"topics": [more], "timeout": 20_000, "validate_only": False}
        (answer,) = wire.call(ApiKey.CREATE_PARTITIONS, 3, added).results
        assert answer.error_code == ErrorCode.REASSIGNMENT_IN_PROGRESS
        (deleted,) = wire.call(ApiKey.DELETE_TOPICS, 6, {"topics": [row], "timeout": 500}).responses
        assert deleted.error_code == ErrorCode.REQUEST_TIMED_OUT
        (answer,) = wire.call(ApiKey.CREATE_PARTITIONS, 3, added).results
        assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    move.throttle(None)
    eventually(lambda: move.holders() == set(), "moved, then deleted")


def test_invalid_requests_are_refused(move: Move) -> None:
    assert move.alter([move.leaving, 99]) == [ErrorCode.INVALID_REPLICA_ASSIGNMENT] * 2
    assert move.alter([move.leaving, move.leaving]) == [ErrorCode.INVALID_REPLICA_ASSIGNMENT] * 2
    admin = KafkaAdminClient(bootstrap_servers=move.cluster.bootstrap_servers.split(","))
    nosuch = TopicPartition("nosuch", 0)
    answers = admin.alter_partition_reassignments({nosuch: [move.leaving]})
    assert _code(answers[nosuch]) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    admin.close()
    move.zk.client.create(ReassignPartitionsZNode.PATH, b"rubbish")
    eventually(lambda: move.zk.client.exists(ReassignPartitionsZNode.PATH) is None, "the next admin is not blocked")
    move.assert_at((move.leaving, move.staying))


@pytest.mark.parametrize("role", ["controller", thorough("coming"), thorough("leaving"), thorough("staying")])
@pytest.mark.parametrize("how", [signal.SIGKILL, thorough(signal.SIGTERM)], ids=["SIGKILL", "SIGTERM"])
def test_a_broker_bounces_during_the_move(move: Move, role: str, how: signal.Signals) -> None:
    """FLT-35, CTL-2: it is killed or stopped, stays away until the cluster notices it, and returns."""
    victim = getattr(move, role)
    target = (move.coming, move.staying)
    with loaded(move) as producer:
        producer.wait_for_acks(3000)
        move.throttle(SLOW)
        assert move.alter(target) == ACCEPTED
        eventually(lambda: move.coming in move.holders(), "copying has begun")
        assert len(move.listed()) == PARTITIONS

        move.cluster.signal(victim, how)

        eventually(lambda: move.cluster.pid(victim) is None, "its process ended")
        eventually(lambda: victim not in move.zk.live_brokers(), "its node is gone")
        if role == "controller":
            eventually(lambda: move.zk.controller() not in (None, victim), "another controller")
        assert all(found.adding == (move.coming,) for found in move.zk.assignment(move.topic).values())
        move.cluster.start_broker(victim)
        eventually(lambda: victim in move.zk.live_brokers(), "it is back")
        move.throttle(None)
        finish(move, producer, target)


@pytest.mark.parametrize("how", [thorough(signal.SIGKILL), signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
def test_a_move_ends_while_the_removed_broker_is_dead(move: Move, how: signal.Signals) -> None:
    """CTL-10 step 9: the move does not wait for a dead broker, which deletes its log when it is back (LAI-6)."""
    target = (move.coming, move.staying)
    with loaded(move) as producer:
        producer.wait_for_acks(1000)
        move.cluster.signal(move.leaving, how)
        # kafka-python asks any broker that Metadata lists, which one that is gone is for three seconds more.
        eventually(lambda: move.leaving not in move.listed_brokers(), "it is gone for clients")
        assert move.alter(target) == ACCEPTED
        eventually(
            lambda: all(found == Assignment(target) for found in move.zk.assignment(move.topic).values()), "moved"
        )
        assert move.leaving in move.holders()
        eventually(lambda: move.cluster.pid(move.leaving) is None, "its process ended")
        move.cluster.start_broker(move.leaving)
        eventually(lambda: move.leaving in move.zk.live_brokers(), "it is back")
        finish(move, producer, target)
