"""A real Kafka 3.9 reads what we write: its tools our segments and indexes, its broker our directories and ZooKeeper (FMT-2, FMT-3)."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from protocol.errors import ErrorCode
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.record_batch import build_batch, iter_batches, parse_header
from tests.conftest import ClusterFactory
from tests.support.invariants import ZooKeeperView, assert_healed, batches_on_disk, eventually, replica_directory
from tests.support.kafka_tools import TOOL_TIMEOUT_S, KafkaTools
from tests.support.load import BackgroundProducer, assert_nothing_lost, read_everything
from tests.support.real_kafka import java_command
from tests.support.wire import Wire
from tools.cluster.local_cluster import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.kafka]

PARTITIONS = 2
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
RECORDS = 1500
"""For each compression, at least."""
TOPIC_SETTINGS = {"segment.bytes": "20000", "index.interval.bytes": "500"}
KAFKA_START_TIMEOUT_S = 60.0
CUT = b"only the old leader has this"
STRING_DECODERS = tuple(f"--{of}-decoder-class=org.apache.kafka.tools.api.StringDecoder" for of in ("key", "value"))
PRODUCER = re.compile(
    r"producerId: (\d+) producerEpoch: (\d+) .*firstSequence: -?\d+ lastSequence: (-?\d+) lastOffset: (-?\d+)"
)
OFFSET = re.compile(r"^\| offset: (\d+)", re.MULTILINE)


@pytest.fixture(scope="module")
def cluster(kafka_tools: KafkaTools, new_module_cluster: ClusterFactory) -> LocalCluster:
    return new_module_cluster(brokers=3, overrides={"auto.leader.rebalance.enable": "false"})


@contextmanager
def zookeeper_of(cluster: LocalCluster) -> Iterator[ZooKeeperView]:
    view = ZooKeeperView(cluster.zookeeper_connect)
    try:
        yield view
    finally:
        view.close()


def new_topic(bootstrap_servers: str, replicas: int) -> str:
    name = f"read-by-kafka-{uuid.uuid4().hex[:8]}"
    settings = {**TOPIC_SETTINGS, "min.insync.replicas": str(min(2, replicas))}
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    for future in admin.create_topics([NewTopic(name, PARTITIONS, replicas, config=settings)]).values():
        future.result(30)
    return name


def produce(bootstrap_servers: str, topic: str, compression: str) -> BackgroundProducer:
    """A producer that runs until it is stopped; its batches fit into the small segments and are worth compressing."""
    return BackgroundProducer(
        bootstrap_servers,
        topic,
        PARTITIONS,
        idempotent=True,
        compression_type=compression,
        linger_ms=20,
        batch_num_messages=50,
        padding=bytes(40),
    )


def happens(event: str, cluster: LocalCluster, topic: str, leader: int) -> None:
    """What comes between two halves of the load."""
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
            body = {
                "transactional_id": None,
                "acks": 1,
                "timeout": 5000,
                "topic_data": [{"name": topic, "partition_data": [{"index": 0, "records": batch}]}],
            }
            answer = wire.call(ApiKey.PRODUCE, 8, body).responses[0].partition_responses[0]
            assert answer.error_code == ErrorCode.NONE
    cluster.kill(leader)
    for broker in others:
        cluster.resume(broker)


@pytest.mark.parametrize("event", ["nothing", "SIGKILL", "SIGTERM", "truncation"])
def test_segments_and_indexes_of_a_cluster(cluster: LocalCluster, kafka_tools: KafkaTools, event: str) -> None:
    """Also after a leader was killed or handed over and came back, while records of every compression were produced."""
    with zookeeper_of(cluster) as zk:
        topic = new_topic(cluster.bootstrap_servers, 3)
        assert_healed(cluster, zk, topic)
        first = zk.state(topic, 0)
        records = {}
        for number, compression in enumerate(COMPRESSIONS):
            with produce(cluster.bootstrap_servers, topic, compression) as producer:
                producer.wait_for_acks(RECORDS // 2)
                if number == 1:
                    happens(event, cluster, topic, first.leader)
                producer.wait_for_acks(RECORDS // 2)
            records[compression] = producer.stop()
            assert records[compression].failed == []
        if event != "nothing":
            cluster.start_broker(first.leader)
            cluster.wait_ready()
            assert zk.state(topic, 0).leader_epoch > first.leader_epoch
        assert_healed(cluster, zk, topic)
    found = read_everything(cluster.bootstrap_servers, topic, PARTITIONS)
    for acknowledged in records.values():
        assert_nothing_lost(
            acknowledged, [m for m in found if (m.partition(), m.offset()) in set(acknowledged.positions.values())]
        )
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
    assert dumped.count(" payload: record-") >= count * len(replicas) - 10 * len(replicas)
    offsets = [int(offset) for offset in OFFSET.findall(dumped)]
    assert offsets == list(range(count)) * len(replicas)
    batches = batches_on_disk(replicas[0])
    headers = [
        parse_header(replica_bytes(replicas[0]), sum(size for *_, size in batches[:n])) for n in range(len(batches))
    ]
    # librdkafka leaves a batch uncompressed that LZ4 would not make smaller.
    assert {header.compression for header in headers} >= {0, 1, 2, 4}
    assert [header.base_offset for header in headers] == [0, *(header.next_offset for header in headers[:-1])]

    indexes = [path for replica in replicas for path in sorted(replica.glob("*.index"))]
    time_indexes = [path for replica in replicas for path in sorted(replica.glob("*.timeindex"))]
    # The files of the segment that is appended to are made with its first entries, or at the stop.
    full = [path for replica in replicas for path in sorted(replica.glob("*.log"))[:-1]]
    assert {path.with_suffix(".index") for path in full} <= set(indexes)
    assert {path.with_suffix(".timeindex") for path in full} <= set(time_indexes)
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


def test_kafkas_topic_command_lists_our_topics(cluster: LocalCluster, kafka_tools: KafkaTools) -> None:
    """It describes them in the test below: while we do not serve DescribeConfigs it refuses, and says why."""
    topic = new_topic(cluster.bootstrap_servers, 3)
    eventually(
        lambda: topic in kafka_tools.topics(cluster.bootstrap_servers, "--list").splitlines(),
        "the broker asked lists it",
    )


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


@contextmanager
def kafka_broker(kafka_tools: KafkaTools, config: Path, bootstrap_servers: str, topic: str) -> Iterator[None]:
    """Kafka itself, started on a broker's configuration; it serves `topic`."""
    with (config.parent / "kafka.log").open("wb") as log:
        process = subprocess.Popen(java_command("kafka.Kafka", str(config)), stdout=log, stderr=log)
    try:
        admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 2})
        eventually(lambda: process.poll() is not None or serves(admin, topic), "Kafka serves", KAFKA_START_TIMEOUT_S)
        yield
        process.send_signal(signal.SIGTERM)
        assert process.wait(TOOL_TIMEOUT_S) in (0, 128 + signal.SIGTERM), (config.parent / "kafka.log").read_text()[
            -2000:
        ]
    finally:
        process.kill()
        process.wait()


def serves(admin: AdminClient, topic: str) -> bool:
    try:
        found = admin.list_topics(topic, timeout=1).topics[topic].partitions
        return len(found) == PARTITIONS and all(partition.leader >= 0 for partition in found.values())
    except KafkaException:
        time.sleep(0.1)
        return False


def contents(bootstrap_servers: str, topic: str) -> list[tuple[int, int, bytes]]:
    return sorted((m.partition(), m.offset(), m.value()) for m in read_everything(bootstrap_servers, topic, PARTITIONS))


def test_kafka_takes_over_and_gives_back(kafka_tools: KafkaTools, tmp_path: Path) -> None:
    """Our broker stops, Kafka serves its directory and its topics from the same ZooKeeper, and then we serve what Kafka left."""
    cluster = LocalCluster(tmp_path)
    try:
        cluster.create(brokers=1)
        cluster.start()
        servers = cluster.bootstrap_servers
        ours = new_topic(servers, 1)
        for compression in COMPRESSIONS:
            with produce(servers, ours, compression) as producer:
                producer.wait_for_acks(200)
        written = contents(servers, ours)
        with zookeeper_of(cluster) as zk:
            our_shapes = shapes(zk, ours)
            topic_id = json.loads(zk.client.get(f"/brokers/topics/{ours}")[0])["topic_id"]
            cluster.stop_broker(1)
            with kafka_broker(kafka_tools, cluster.broker_directory(1) / "server.properties", servers, ours):
                assert contents(servers, ours) == written
                heading, *partitions = kafka_tools.topics(servers, "--describe", "--topic", ours).splitlines()
                assert f"TopicId: {topic_id}\tPartitionCount: {PARTITIONS}\tReplicationFactor: 1" in heading
                assert all(f"{key}={value}" in heading for key, value in TOPIC_SETTINGS.items())
                assert [line.split("\t")[1:6] for line in partitions] == [
                    [f"Topic: {ours}", f"Partition: {n}", "Leader: 1", "Replicas: 1", "Isr: 1"]
                    for n in range(PARTITIONS)
                ]
                kafkas = new_topic(servers, 1)
                with produce(servers, kafkas, "zstd") as producer:
                    producer.wait_for_acks(200)
                written_by_kafka = contents(servers, kafkas)
                kafkas_shapes = shapes(zk, kafkas)
                # For the migration to KRaft, since 3.4. We write the form of before, which Kafka reads as well.
                del kafkas_shapes["controller"][0]["kraftControllerEpoch"]
                assert our_shapes == kafkas_shapes
        cluster.start_broker(1)
        cluster.wait_ready()
        assert contents(servers, ours) == written
        assert contents(servers, kafkas) == written_by_kafka
    finally:
        cluster.destroy()
