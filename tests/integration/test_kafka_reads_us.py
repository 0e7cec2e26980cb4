"""A real Kafka 3.9 reads what we write: its tools our segments and indexes, its broker our ZooKeeper (FMT-2, FMT-3)."""

from __future__ import annotations

import json
import re
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ErrorCode
from protocol.kafka.record_batch import build_batch, iter_batches, parse_header
from tests.conftest import ClusterFactory
from tests.support import topics
from tests.support.background_load import BackgroundProducer, assert_all_read_back, read_everything
from tests.support.invariants import ZooKeeperView, assert_healed, batches_on_disk, eventually, replica_directory
from tests.support.kafka_tools import KafkaTools
from tests.support.swappable_broker import SwappableBroker
from tests.support.wire import Wire
from tools.cluster.local_cluster import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.kafka]

PARTITIONS = 2
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
RECORDS = 1500
"""For each compression, at least."""
TOPIC_SETTINGS = {"segment.bytes": "20000", "index.interval.bytes": "500"}
CUT = b"only the old leader has this"
STRING_DECODERS = tuple(f"--{of}-decoder-class=org.apache.kafka.tools.api.StringDecoder" for of in ("key", "value"))
PRODUCER = re.compile(
    r"producerId: (\d+) producerEpoch: (\d+) .*firstSequence: -?\d+ lastSequence: (-?\d+) lastOffset: (-?\d+)"
)
OFFSET = re.compile(r"^\| offset: (\d+)", re.MULTILINE)


@pytest.fixture(scope="module")
def cluster(kafka_tools: KafkaTools, new_module_cluster: ClusterFactory) -> LocalCluster:
    return new_module_cluster(brokers=3, overrides={"auto.leader.rebalance.enable": "false"})


def new_topic(bootstrap_servers: str, replicas: int) -> str:
    settings = {**TOPIC_SETTINGS, "min.insync.replicas": str(min(2, replicas))}
    return topics.new_topic(bootstrap_servers, PARTITIONS, replicas, **settings)


def produce(bootstrap_servers: str, topic: str, compression: str) -> BackgroundProducer:
    """A producer that runs until it is stopped. Its batches fit in the small segments, and compress well."""
    return BackgroundProducer(
        bootstrap_servers,
        topic,
        PARTITIONS,
        idempotent=True,
        compression_type=compression,
        linger_ms=20,
        batch_num_messages=50,
        padding=bytes(40),
        name=compression,
    )


def happens(event: str, cluster: LocalCluster, topic: str, leader: int) -> None:
    """The event between the two halves of the load."""
    if event == "SIGKILL":
        cluster.kill(leader)
    elif event == "SIGTERM":
        cluster.stop_broker(leader)
    elif event == "truncation":
        write_what_will_be_cut(cluster, topic, leader)


def write_what_will_be_cut(cluster: LocalCluster, topic: str, leader: int) -> None:
    """Batches of partition 0 that only the leader has, which then dies: it has to cut them off when it is back."""
    others = [broker for broker in cluster.broker_ids if broker != leader]
    for broker in others:
        cluster.pause(broker)
    with Wire(cluster.port(leader)) as wire:
        # The first one may still be on its way to a follower that waits for records.
        for number in range(20):
            batch = build_batch(
                [(None, CUT, (), int(time.time() * 1000))], producer_id=900_000, producer_epoch=0, base_sequence=number
            )
            answer = topics.produce_batch(wire, topic, batch, acks=1)
            assert answer.error_code == ErrorCode.NONE
    cluster.kill(leader)
    for broker in others:
        cluster.resume(broker)


@pytest.mark.parametrize("event", ["nothing", "SIGKILL", "SIGTERM", "truncation"])
def test_segments_and_indexes_of_a_cluster(
    cluster: LocalCluster, zk: ZooKeeperView, kafka_tools: KafkaTools, event: str
) -> None:
    """Also after a leader was killed or handed over and came back, while records of every compression were produced."""
    topic = new_topic(cluster.bootstrap_servers, 3)
    assert_healed(cluster, zk, topic)
    first = zk.state(topic, 0)
    written: list[BackgroundProducer] = []
    for compression in COMPRESSIONS:
        with produce(cluster.bootstrap_servers, topic, compression) as producer:
            producer.wait_for_acks(RECORDS // 2)
            if compression == "gzip":
                happens(event, cluster, topic, first.leader)
            producer.wait_for_acks(RECORDS // 2)
        written.append(producer)
    if event != "nothing":
        cluster.start_broker(first.leader)
        cluster.wait_ready()
        assert zk.state(topic, 0).leader_epoch > first.leader_epoch
    assert_healed(cluster, zk, topic)
    for producer in written:
        assert_all_read_back(producer)
    found = read_everything(cluster.bootstrap_servers, topic, PARTITIONS)
    assert sum(message.value() == CUT for message in found) < 10, "what only the old leader had was cut off"
    counts = Counter(message.partition() for message in found)
    for partition in range(PARTITIONS):
        look_at(cluster, kafka_tools, topic, partition, counts[partition])


def look_at(cluster: LocalCluster, kafka_tools: KafkaTools, topic: str, partition: int, count: int) -> None:
    """Dumps every replica of a partition, which has `count` records."""
    replicas = [replica_directory(cluster, broker, topic, partition) for broker in cluster.broker_ids]
    logs = [path for replica in replicas for path in sorted(replica.glob("*.log"))]
    assert len(logs) > 3 * len(replicas), "the segments rolled"
    dumped = kafka_tools.dump(logs, "--deep-iteration", "--print-data-log", *STRING_DECODERS)
    payloads = sum(dumped.count(f" payload: {compression}-") for compression in COMPRESSIONS)
    assert payloads >= count * len(replicas) - 10 * len(replicas)
    offsets = [int(offset) for offset in OFFSET.findall(dumped)]
    assert offsets == list(range(count)) * len(replicas)
    batches = batches_on_disk(replicas[0])
    headers = [
        parse_header(replica_bytes(replicas[0]), sum(size for *_, size in batches[:n])) for n in range(len(batches))
    ]
    # librdkafka leaves a batch uncompressed that LZ4 would not make smaller.
    assert {header.compression for header in headers} >= {0, 1, 2, 4}
    assert [header.base_offset for header in headers] == [0, *(header.next_offset for header in headers[:-1])]

    # The files of the segment that is appended to are made with its first entries, or at the stop. The flush that follows
    # a recovery replaces the others, one by one.
    full = [path for replica in replicas for path in sorted(replica.glob("*.log"))[:-1]]
    expected = [path.with_suffix(suffix) for path in full for suffix in (".index", ".timeindex")]
    eventually(lambda: all(path.exists() for path in expected), "each full segment has both indexes")
    indexes = [path for replica in replicas for path in sorted(replica.glob("*.index"))]
    time_indexes = [path for replica in replicas for path in sorted(replica.glob("*.timeindex"))]
    sane = kafka_tools.dump([*indexes, *time_indexes], "--index-sanity-check")
    assert sane.count("passed sanity check") + sane.count("is empty") == len(indexes) + len(time_indexes)
    kafka_tools.dump([*indexes, *time_indexes], "--verify-index-only")
    assert kafka_tools.dump(indexes).count("offset: ") >= len(logs) - len(replicas), (
        "each full segment has an index entry"
    )
    look_at_producers(kafka_tools, replicas)


def look_at_producers(kafka_tools: KafkaTools, replicas: list[Path]) -> None:
    """Kafka sees in each snapshot what the batches below its offset say: the last of each producer (LOG-5, BUG-24)."""
    for replica in replicas:
        snapshots = sorted(replica.glob("*.snapshot"))
        assert snapshots, "one for each roll"
        headers = [header for _, header in iter_batches(replica_bytes(replica))]
        for snapshot in snapshots[-2:]:
            last = {h.producer_id: h for h in headers if h.base_offset < int(snapshot.stem)}
            found = {
                int(row[1]): tuple(map(int, row.groups()[1:]))
                for row in PRODUCER.finditer(kafka_tools.dump([snapshot]))
            }
            assert found == {
                producer: (h.producer_epoch, h.base_sequence + h.last_offset_delta, h.last_offset)
                for producer, h in last.items()
            }


def replica_bytes(replica: Path) -> bytes:
    return b"".join(segment.read_bytes() for segment in sorted(replica.glob("*.log")))


def shape(value: Any) -> Any:
    """JSON without what two clusters may differ in: numbers and texts become their types."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [shape(inner) for inner in value[:1]]
    return "number" if isinstance(value, str) and value.isdigit() else type(value).__name__


def shapes(zk: ZooKeeperView, topic: str) -> dict[str, Any]:
    """Kind of znode -> the shape of its content, and whether it is ephemeral."""
    paths = {
        "broker": "/brokers/ids/1",
        "topic": f"/brokers/topics/{topic}",
        "state": f"/brokers/topics/{topic}/partitions/0/state",
        "controller": "/controller",
        "controller epoch": "/controller_epoch",
        "topic config": f"/config/topics/{topic}",
        "cluster id": "/cluster/id",
    }
    found = {}
    for kind, path in paths.items():
        data, stat = zk.client.get(path)
        found[kind] = (shape(json.loads(data)), stat.ephemeralOwner != 0)
    return found


def test_znodes_are_kafkas(kafka_tools: KafkaTools, tmp_path: Path) -> None:
    """Kafka describes our topic, and what it writes itself has the same form. test_kafka_and_our_directories.py has the records."""
    with SwappableBroker(tmp_path, kafka_tools) as broker:
        broker.start("ottla")
        ours = new_topic(broker.bootstrap_servers, 1)
        our_shapes = shapes(broker.zk, ours)
        topic_id = json.loads(broker.zk.client.get(f"/brokers/topics/{ours}")[0])["topic_id"]
        broker.stop(signal.SIGTERM)

        broker.start("Kafka", {ours: PARTITIONS})
        heading, *partitions = kafka_tools.topics(broker.bootstrap_servers, "--describe", "--topic", ours).splitlines()
        assert f"TopicId: {topic_id}\tPartitionCount: {PARTITIONS}\tReplicationFactor: 1" in heading
        assert all(f"{key}={value}" in heading for key, value in TOPIC_SETTINGS.items())
        assert [line.split("\t")[1:6] for line in partitions] == [
            [f"Topic: {ours}", f"Partition: {n}", "Leader: 1", "Replicas: 1", "Isr: 1"] for n in range(PARTITIONS)
        ]
        kafkas_shapes = shapes(broker.zk, new_topic(broker.bootstrap_servers, 1))
        # For the migration to KRaft, since 3.4. We write the form of before, which Kafka reads as well.
        del kafkas_shapes["controller"][0]["kraftControllerEpoch"]
        assert our_shapes == kafkas_shapes
