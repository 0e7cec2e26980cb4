"""`flush.messages=1` with real brokers, whose disks take long to sync: what is not synced is neither acknowledged nor shown (REP-4)."""

from __future__ import annotations

import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.record_batch import build_batch
from tests.support.faulty_disks import FailingCalls
from tests.support.invariants import eventually, wait_known_everywhere
from tests.support.topics import end_offset, new_topic, produce_body
from tests.support.wire import Wire
from tools.cluster.local_cluster import LocalCluster

pytestmark = pytest.mark.integration

LEADER, FOLLOWER = 1, 2


@pytest.fixture
def faults(tmp_path: Path) -> FailingCalls:
    return FailingCalls(tmp_path)


@pytest.fixture
def cluster(tmp_path: Path, faults: FailingCalls, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    reason = faults.why_not()
    if reason is not None:
        pytest.skip(reason)
    for name, value in faults.environment.items():
        monkeypatch.setenv(name, value)
    running = LocalCluster(tmp_path / "cluster")
    running.create(brokers=2, overrides={"auto.leader.rebalance.enable": "false"})
    try:
        running.start()
        running.wait_ready()
        yield running
    finally:
        faults.end()
        running.destroy()


class Producer:
    """A connection to the leader for each request."""

    def __init__(self, cluster: LocalCluster, topic: str) -> None:
        self.cluster = cluster
        self.topic = topic

    def send(self, acks: int) -> Wire:
        wire = Wire(self.cluster.port(LEADER))
        wire.send(ApiKey.PRODUCE, 9, produce_body(self.topic, build_batch([(None, b"x" * 100, (), 1000)]), acks))
        return wire

    def stored(self, broker: int) -> int:
        """Bytes of the log."""
        with Wire(self.cluster.port(broker)) as wire:
            body = {"topics": [{"topic": self.topic, "partitions": [0]}]}
            answer = wire.call(ApiKey.DESCRIBE_LOG_DIRS, 4, body)
        return sum(p.partition_size for row in answer.results for topic in row.topics for p in topic.partitions)

    def shown(self) -> int:
        """The high watermark, as a consumer is told of it."""
        with Wire(self.cluster.port(LEADER)) as wire:
            return end_offset(wire, self.topic)

    def is_answered(self, wire: Wire) -> bool:
        return bool(select.select([wire.socket], [], [], 0)[0])

    def acknowledged(self, wire: Wire) -> None:
        with wire:
            _, answer = messages.decode_response(ApiKey.PRODUCE, 9, wire.receive_frame())
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE


def test_nothing_is_acknowledged_or_shown_before_it_is_synced(cluster: LocalCluster, faults: FailingCalls) -> None:
    topic = new_topic(cluster.bootstrap_servers, assignment=[[LEADER, FOLLOWER]], flush_messages="1")
    wait_known_everywhere(cluster, topic, 1)
    producer = Producer(cluster, topic)
    for acks in (1, -1):
        producer.acknowledged(producer.send(acks))
    assert producer.shown() == 2

    whole = 2 * producer.stored(LEADER)
    faults.begin("hold", cluster.broker_directory(LEADER))
    waiting = [producer.send(acks) for acks in (1, -1)]
    eventually(lambda: producer.stored(FOLLOWER) == whole, "the follower has both records")
    assert not any(map(producer.is_answered, waiting))
    assert producer.shown() == 2
    faults.end()
    for wire in waiting:
        producer.acknowledged(wire)
    assert producer.shown() == 4

    faults.begin("hold", cluster.broker_directory(FOLLOWER))
    waits = producer.send(-1)
    producer.acknowledged(producer.send(1))
    eventually(lambda: producer.stored(FOLLOWER) > whole, "the follower has written the record")
    assert not producer.is_answered(waits)
    assert producer.shown() == 4
    faults.end()
    producer.acknowledged(waits)
    eventually(lambda: producer.shown() == 6, "all are shown")
