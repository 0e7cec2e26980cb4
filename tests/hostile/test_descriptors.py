"""FLT-30, BAD-34 on real processes: clients take all descriptors that they get, and topics are made meanwhile.

The canary goes on, no log directory goes offline, no process ends; what could not be opened is opened once a descriptor is free.
The limit is set from outside with `prlimit`, so that no test needs to be root; a broker looks at it each second.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import socket
import uuid
from collections.abc import Iterator
from contextlib import closing

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from protocol.errors import ErrorCode
from protocol.kafka.api_keys import ApiKey
from protocol.topic_ids import new_topic_id
from protocol.types import Assignment
from protocol.zk.znodes import TopicZNode
from tests.conftest import ClusterFactory
from tests.support.background_load import UNPRODUCED, BackgroundProducer, assert_all_read_back
from tests.support.invariants import ZooKeeperView, eventually
from tests.support.topics import new_topic
from tests.support.wire import Wire
from tools.cluster.local_cluster import LocalCluster

pytestmark = pytest.mark.integration

LIMIT = 256
CONNECTIONS = 200
CANARY_ACKS = 100
MANY = 20
"""Partitions."""


@pytest.fixture(scope="module")
def cluster(new_module_cluster: ClusterFactory) -> LocalCluster:
    return new_module_cluster(brokers=2, overrides={"min.insync.replicas": "2", "default.replication.factor": "2"})


@pytest.fixture
def canary(cluster: LocalCluster) -> Iterator[BackgroundProducer]:
    """Replicated records all the time; in the end all that were acknowledged are there."""
    topic = new_topic(cluster.bootstrap_servers, 2, 2)
    producer = BackgroundProducer(cluster.bootstrap_servers, topic, 2, records_per_s=200)
    pids = [cluster.pid(broker) for broker in cluster.broker_ids]
    with producer:
        producer.wait_for_acks(CANARY_ACKS)
        yield producer
        producer.wait_for_acks(CANARY_ACKS)
    assert [cluster.pid(broker) for broker in cluster.broker_ids] == pids, "a process ended"
    assert_all_read_back(producer, allowed=UNPRODUCED)
    for broker in cluster.broker_ids:
        assert offline_directories(cluster, broker) == []


@pytest.fixture(autouse=True)
def limits(cluster: LocalCluster) -> Iterator[None]:
    """Restores the limits, whatever a test does."""
    before = {pid: resource.prlimit(pid, resource.RLIMIT_NOFILE) for pid in pids_of(cluster)}
    yield
    for pid, limit in before.items():
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limit)


def pids_of(cluster: LocalCluster) -> list[int]:
    return [pid for broker in cluster.broker_ids if (pid := cluster.pid(broker)) is not None]


def limit_descriptors(cluster: LocalCluster, soft: int) -> None:
    for pid in pids_of(cluster):
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


def log_of(cluster: LocalCluster, broker: int) -> str:
    return (cluster.broker_directory(broker) / "server.log").read_text()


def make_topic_in_zookeeper(cluster: LocalCluster, partitions: int) -> str:
    """As an admin tool does that needs no connection to a broker."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    with closing(ZooKeeperView(cluster.zookeeper_connect)) as view:
        view.client.create(f"/brokers/topics/{name}", assignment_of(partitions))
    return name


def assignment_of(partitions: int) -> bytes:
    """Led by one broker and the other in turn; with an id, as followers want it."""
    replicas = {number: Assignment((1, 2) if number % 2 else (2, 1)) for number in range(partitions)}
    return TopicZNode.encode(new_topic_id(os.urandom(16)), replicas)


def offline_directories(cluster: LocalCluster, broker: int) -> list[str]:
    with Wire(cluster.port(broker)) as wire:
        answer = wire.call(ApiKey.DESCRIBE_LOG_DIRS, 4, {"topics": None})
    return [row.log_dir for row in answer.results if row.error_code != ErrorCode.NONE]


def is_served(cluster: LocalCluster, topic: str, partitions: int) -> bool:
    with closing(ZooKeeperView(cluster.zookeeper_connect)) as view:
        try:
            states = view.states(topic)
        except NoNodeError:
            return False  # the controller has not come to all of them yet
    return len(states) == partitions and all(len(state.isr) == 2 for state in states.values())


@contextlib.contextmanager
def connections(port: int, count: int) -> Iterator[list[socket.socket]]:
    """As many as the broker lets stay; those that it ends are counted as ended, and stay open here."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(socket.create_connection(("127.0.0.1", port), 5)) for _ in range(count)]


def ended(taken: list[socket.socket]) -> int:
    """How many of them the broker has closed."""
    poll = select.poll()
    for one in taken:
        poll.register(one, select.POLLIN)
    return len(poll.poll(0))


def test_clients_take_all_that_they_get_while_topics_are_made(
    cluster: LocalCluster, canary: BackgroundProducer
) -> None:
    limit_descriptors(cluster, LIMIT)
    for broker in cluster.broker_ids:
        eventually(lambda b=broker: f"the limit of open files is {LIMIT}" in log_of(cluster, b), "the limit is seen")
    with contextlib.ExitStack() as stack:
        taken = [stack.enter_context(connections(cluster.port(b), CONNECTIONS)) for b in cluster.broker_ids]
        for sockets in taken:
            eventually(lambda s=sockets: ended(s) >= CONNECTIONS - LIMIT // 2, "those beyond the share are closed")
        canary.wait_for_acks(CANARY_ACKS)
        topic = make_topic_in_zookeeper(cluster, 20)
        eventually(lambda: is_served(cluster, topic, 20), "a new topic is served by both")
        canary.wait_for_acks(CANARY_ACKS)
        for pid in pids_of(cluster):
            assert len(os.listdir(f"/proc/{pid}/fd")) < LIMIT
    for broker in cluster.broker_ids:
        words = log_of(cluster, broker)
        assert "is offline" not in words
        assert "Traceback" not in words
        assert words.count("refused a connection") < 20, "not a line for each"
    new_topic(cluster.bootstrap_servers, 1, 2)


def test_logs_that_cannot_be_opened_now_are_opened_later(cluster: LocalCluster, canary: BackgroundProducer) -> None:
    """The limit is below all open files: no descriptor can be had, not even in the place of one that is closed."""
    told = "no descriptor left for a file"
    before = [log_of(cluster, broker).count(told) for broker in cluster.broker_ids]
    limit_descriptors(cluster, 3)
    try:
        topic = make_topic_in_zookeeper(cluster, MANY)
        eventually(lambda: all(told in log_of(cluster, b) for b in cluster.broker_ids), "the operator is informed", 20)
        canary.wait_for_acks(CANARY_ACKS, 20)
        assert not is_served(cluster, topic, MANY) or not has_logs(cluster, topic)
    finally:
        limit_descriptors(cluster, 1000)
    for broker, count in zip(cluster.broker_ids, before, strict=True):
        assert log_of(cluster, broker).count(told) <= count + 1, "once, and not for each partition"
        assert "is offline" not in log_of(cluster, broker)
    eventually(lambda: has_logs(cluster, topic), "all are made once a descriptor is free, without a restart", 20)
    producer = BackgroundProducer(cluster.bootstrap_servers, topic, MANY)
    with producer:
        producer.wait_for_acks(2 * MANY, 20)
    assert_all_read_back(producer, allowed=UNPRODUCED)


def has_logs(cluster: LocalCluster, topic: str) -> bool:
    """Every broker has a log file of every partition."""
    return all(
        len(list((cluster.broker_directory(broker) / "data").glob(f"{topic}-*/*.log"))) == MANY
        for broker in cluster.broker_ids
    )


def test_rubbish_in_zookeeper_beside_a_canary(cluster: LocalCluster, canary: BackgroundProducer) -> None:
    """One topic znode with a long name stopped every broker, again after each restart."""
    names = ["x" * 300, "x" * 250, "a b", "\u00fc"]
    rubbish = {
        **{f"/brokers/topics/{name}": assignment_of(1) for name in names},
        "/brokers/topics/bad": b'{"version":2,"partitions":{"01":[1],"4294967296":[1]}}',
        "/brokers/ids/\u00b2": b"{}",
        "/config/changes/config_change_9999999999": b"{}",
        "/config/changes/" + "9" * 5000: b"{}",
        "/isr_change_notification/x/below": b"",
        "/log_dir_event_notification/x/below": b"",
        "/admin/delete_topics/nobody/below": b"",
        "/admin/preferred_replica_election/below": b"",
    }
    zk = KazooClient(cluster.zookeeper_connect)
    zk.start()
    try:
        for path, data in rubbish.items():
            zk.create(path, data, makepath=True)
        canary.wait_for_acks(CANARY_ACKS)
        epoch = zk.get("/controller_epoch")[0]
        topic = new_topic(cluster.bootstrap_servers, 1, 2)
        assert is_served(cluster, topic, 1)
        assert zk.get("/controller_epoch")[0] == epoch, "the controller's term went on"
        for path in ("/admin/delete_topics/nobody", "/isr_change_notification/x", "/log_dir_event_notification/x"):
            eventually(lambda p=path: zk.exists(p) is None, f"{path} is removed with what is below it")
    finally:
        for path in rubbish:
            zk.delete(path, recursive=True)
        zk.stop()
        zk.close()
    for broker in cluster.broker_ids:
        directory = cluster.broker_directory(broker) / "data"
        assert not [path.name for path in directory.iterdir() if path.name.startswith(("x", "bad", "a b"))]
        assert "Traceback" not in log_of(cluster, broker)
