"""Topics are deleted under load, with a broker down or the controller killed, and created again: no old record comes back.

CTL-9, INV-26, LAI-6, FLT-36, BUG-20 with real processes, a real ZooKeeper and confluent-kafka.
"""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from protocol.errors import ErrorCode
from protocol.kafka.record_batch import build_batch
from protocol.topic_ids import topic_id_text
from protocol.types import TopicPartition
from protocol.zk.znodes import ConfigZNode, DeleteTopicZNode, PartitionStateZNode, TopicZNode
from tests.conftest import ClusterFactory
from tests.support import topics
from tests.support.background_load import BackgroundProducer, read_everything
from tests.support.invariants import ZooKeeperView, assert_healed, eventually
from tests.support.topics import create_topics, produce_batch
from tests.support.wire import Wire
from tools.cluster.local_cluster import LocalCluster

pytestmark = pytest.mark.integration

PARTITIONS = 4
CHECKPOINTS = ("replication-offset-checkpoint", "recovery-point-offset-checkpoint")


@pytest.fixture(scope="module")
def cluster(new_module_cluster: ClusterFactory) -> LocalCluster:
    # What a killed broker had in its checkpoints is in them until they are written the next time.
    often = {"log.flush.offset.checkpoint.interval.ms": "1000"}
    return new_module_cluster(brokers=3, overrides={"auto.create.topics.enable": "false", **often})


@pytest.fixture
def topic(cluster: LocalCluster, zk: ZooKeeperView) -> str:
    """A topic of 4 partitions on all three brokers, with 100 records."""
    eventually(lambda: zk.live_brokers() == sorted(cluster.broker_ids), "all brokers live before the test")
    name = f"gone-{uuid.uuid4().hex[:8]}"
    make(cluster, name)
    assert_healed(cluster, zk, name)
    fill(cluster, name, "old", 100)
    return name


def make(cluster: LocalCluster, topic: str) -> None:
    """Creates the topic; retries while an old topic of that name still exists."""

    def is_made() -> bool:
        wanted = NewTopic(topic, PARTITIONS, 3, config={"min.insync.replicas": "2"})
        try:
            create_topics(cluster.bootstrap_servers, wanted)
        except KafkaException as error:
            if error.args[0].code() == ErrorCode.TOPIC_ALREADY_EXISTS:
                return False
            raise
        return True

    eventually(is_made, f"topic {topic} made")


def delete(admin: AdminClient, topic: str) -> None:
    admin.delete_topics([topic], operation_timeout=20)[topic].result(30)


def fill(cluster: LocalCluster, topic: str, prefix: str, count: int) -> None:
    topics.fill(cluster.bootstrap_servers, topic, (f"{prefix}-{number}" for number in range(count)), PARTITIONS)


def values(cluster: LocalCluster, topic: str) -> set[str]:
    return {record.value().decode() for record in read_everything(cluster.bootstrap_servers, topic, PARTITIONS)}


def directories(cluster: LocalCluster, topic: str, *brokers: int) -> list[str]:
    """The topic's directories on these brokers (default: all), including stray ones and those being deleted."""
    return [
        f"{broker}/{path.name}"
        for broker in brokers or cluster.broker_ids
        for path in (Path(cluster.broker_directory(broker)) / "data").iterdir()
        if path.name.startswith(f"{topic}-")
    ]


def state_path(topic: str, partition: int) -> str:
    return PartitionStateZNode.path(TopicPartition(topic, partition))


def is_removed(zk: ZooKeeperView, topic: str) -> bool:
    paths = (TopicZNode.path(topic), ConfigZNode.path("topics", topic), DeleteTopicZNode.path(topic))
    return not any(zk.client.exists(path) for path in paths)


def assert_gone(cluster: LocalCluster, zk: ZooKeeperView, topic: str) -> None:
    """Checks that nothing of the topic is left in znodes, directories, checkpoints and metadata."""
    eventually(lambda: is_removed(zk, topic), f"the znodes of {topic} removed")
    eventually(lambda: not directories(cluster, topic), f"the directories of {topic} removed")

    def is_in_checkpoints() -> list[str]:
        files = [Path(cluster.broker_directory(b)) / "data" / name for b in cluster.broker_ids for name in CHECKPOINTS]
        return [str(file) for file in files if file.exists() and f"{topic} " in file.read_text()]

    eventually(lambda: not is_in_checkpoints(), f"no checkpoint names {topic}")
    for broker in cluster.broker_ids:
        known = AdminClient({"bootstrap.servers": cluster.address(broker)}).list_topics(timeout=10).topics
        assert topic not in known


def test_delete_under_load(cluster: LocalCluster, zk: ZooKeeperView, admin: AdminClient, topic: str) -> None:
    """LAI-6, BUG-10: producers that wait for an acknowledgement get an error. Then the topic is created again at once."""
    with BackgroundProducer(cluster.bootstrap_servers, topic, PARTITIONS) as producer:
        producer.wait_for_acks(200)
        delete(admin, topic)
        assert_gone(cluster, zk, topic)
        make(cluster, topic)
        assert_healed(cluster, zk, topic)
        producer.wait_for_acks(50)
        producer.stop()
    assert {s.leader_epoch for s in zk.states(topic).values()} == {0}
    assert not any(value.startswith("old-") for value in values(cluster, topic))


def test_a_topic_is_deleted_and_created_again_many_times(
    cluster: LocalCluster, zk: ZooKeeperView, admin: AdminClient, topic: str
) -> None:
    """BUG-20: a late request for an earlier topic of the name never affects the next one."""
    for life in range(5):
        delete(admin, topic)
        make(cluster, topic)
        fill(cluster, topic, f"life-{life}", 20)
        assert values(cluster, topic) == {f"life-{life}-{n}" for n in range(20)}
    assert_healed(cluster, zk, topic)


def test_an_idempotent_producer_goes_on_in_a_topic_that_is_made_again(
    cluster: LocalCluster, zk: ZooKeeperView, admin: AdminClient, topic: str
) -> None:
    """INV-20: it gave up the batches that were refused meanwhile. The new log accepts its next one as it comes, as in Kafka."""

    def send(broker: int, sequence: int) -> int:
        now_ms = int(time.time() * 1000)
        batch = build_batch([(None, b"v", (), now_ms)], producer_id=987_654, producer_epoch=0, base_sequence=sequence)
        with Wire(cluster.port(broker)) as wire:
            return int(produce_batch(wire, topic, batch).error_code)

    leader = zk.state(topic, 0).leader
    assert send(leader, 0) == ErrorCode.NONE
    delete(admin, topic)
    for broker in cluster.broker_ids:
        eventually(lambda at=broker: send(at, 1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{broker} knows no {topic}")
    make(cluster, topic)
    assert_healed(cluster, zk, topic)
    leader = zk.state(topic, 0).leader
    eventually(lambda: send(leader, 2) == ErrorCode.NONE, "the next batch is accepted", timeout_s=20)
    assert send(leader, 3) == ErrorCode.NONE


def test_a_deletion_waits_for_a_dead_broker(
    cluster: LocalCluster, zk: ZooKeeperView, admin: AdminClient, topic: str
) -> None:
    """CTL-9: clients no longer see the topic. ZooKeeper has it until the broker is back and confirms (INV-26, FLT-36)."""
    victim = next(b for b in cluster.broker_ids if b != zk.controller())
    cluster.kill(victim)
    eventually(lambda: victim not in zk.live_brokers(), "the dead broker's node gone")
    delete(admin, topic)
    others = [b for b in cluster.broker_ids if b != victim]
    eventually(lambda: not directories(cluster, topic, *others), "the live brokers' directories removed")
    assert zk.client.exists(TopicZNode.path(topic))
    assert zk.client.exists(DeleteTopicZNode.path(topic))
    assert len(directories(cluster, topic, victim)) == PARTITIONS
    cluster.start_broker(victim)
    cluster.wait_ready()
    assert_gone(cluster, zk, topic)


def test_a_topic_is_created_again_while_a_replica_is_down(
    cluster: LocalCluster, zk: ZooKeeperView, admin: AdminClient, topic: str
) -> None:
    """FLT-36: the nodes are removed and created by hand, so the dead broker gets no StopReplica."""
    victim = next(b for b in cluster.broker_ids if b != zk.controller())
    old_id, assignment = TopicZNode.decode(zk.client.get(TopicZNode.path(topic))[0])
    new_id = topic_id_text(uuid.uuid4())
    assert new_id != old_id
    cluster.kill(victim)
    eventually(lambda: victim not in zk.live_brokers(), "the dead broker's node gone")
    zk.client.delete(TopicZNode.path(topic), recursive=True)
    zk.client.create(TopicZNode.path(topic), TopicZNode.encode(new_id, assignment))
    eventually(lambda: all(zk.client.exists(state_path(topic, p)) for p in assignment), "the new topic led")
    eventually(lambda: topic in admin.list_topics(timeout=10).topics, "the new topic known")
    fill(cluster, topic, "new", 50)
    cluster.start_broker(victim)
    cluster.wait_ready()
    assert_healed(cluster, zk, topic)
    assert values(cluster, topic) == {f"new-{n}" for n in range(50)}


def test_stray_logs_are_kept_aside_and_an_unreadable_topic_loses_no_records(
    cluster: LocalCluster, zk: ZooKeeperView, topic: str
) -> None:
    """If a topic's node was removed, its logs become `-stray` directories. If it is unreadable, the logs stay in place."""
    unreadable = f"kept-{uuid.uuid4().hex[:8]}"
    make(cluster, unreadable)
    assert_healed(cluster, zk, unreadable)
    fill(cluster, unreadable, "kept", 40)
    good, _ = zk.client.get(TopicZNode.path(unreadable))
    victim = next(b for b in cluster.broker_ids if b != zk.controller())
    cluster.stop_broker(victim)
    zk.client.delete(TopicZNode.path(topic), recursive=True)
    zk.client.set(TopicZNode.path(unreadable), b"rubbish")
    controller = zk.controller()
    assert controller is not None
    cluster.stop_broker(controller)
    eventually(lambda: zk.controller() not in (None, controller), "a controller that cannot read it")
    for broker in (controller, victim):
        cluster.start_broker(broker)
    cluster.wait_ready()
    eventually(
        lambda: {name.rpartition("-")[2] for name in directories(cluster, topic, victim)} == {"stray"},
        "what is left of the removed topic set aside",
    )
    assert sorted(directories(cluster, unreadable, victim)) == [f"{victim}/{unreadable}-{p}" for p in range(PARTITIONS)]
    zk.client.set(TopicZNode.path(unreadable), good)
    for broker in cluster.broker_ids:
        cluster.restart_broker(broker)
    assert_healed(cluster, zk, unreadable)
    assert values(cluster, unreadable) == {f"kept-{n}" for n in range(40)}


@pytest.mark.parametrize("moment", ["at once", "when the nodes are being removed"])
def test_the_controller_is_killed(cluster: LocalCluster, zk: ZooKeeperView, topic: str, moment: str) -> None:
    """CTL-9: the next controller continues. The dead broker deletes its replicas when it is back."""
    controller = eventually(lambda: zk.controller(), "a controller")
    zk.client.create(DeleteTopicZNode.path(topic))
    if moment != "at once":
        eventually(lambda: not zk.client.exists(state_path(topic, 0)), "the first state removed")
    cluster.kill(controller)
    eventually(lambda: zk.controller() not in (None, controller), "another controller")
    cluster.start_broker(controller)
    cluster.wait_ready()
    assert_gone(cluster, zk, topic)
    make(cluster, topic)
    assert_healed(cluster, zk, topic)
    assert values(cluster, topic) == set()
