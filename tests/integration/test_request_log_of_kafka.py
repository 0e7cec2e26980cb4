"""RPL-5: the request log of a real Kafka under a known load imports to the batches that are in its partitions' logs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from protocol.kafka.record_batch import LOG_OVERHEAD, iter_batches
from tests.support.kafka_tools import KafkaTools
from tests.support.real_kafka import skip_without_kafka
from tests.support.spark_session import running_session
from tools.bench.real_kafka import running
from tools.group_protocols import CLASSIC, CONSUMER
from tools.replay.traces.request_log import ImportOptions, import_request_log
from tools.replay.traces.schema import Trace

pytestmark = [pytest.mark.integration, pytest.mark.kafka, pytest.mark.timeout(600)]

TOPIC, PARTITIONS, BROKERS = "loaded", 4, 2
ROUNDS, PER_ROUND = 40, 25
RECORDS = 2 * ROUNDS * PER_ROUND
PROMPT = {"fetch.wait.max.ms": 100, "auto.offset.reset": "earliest", "enable.auto.commit": False}


@pytest.fixture(params=[CLASSIC, CONSUMER], ids=["Kafka 3.9", "Kafka 4"])
def kafka(request: pytest.FixtureRequest, kafka_tools: KafkaTools, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The address of one that logs its requests, in `tmp_path`; and the protocol of the groups."""
    jars = skip_without_kafka(kraft=request.param == CONSUMER)
    with running.running_kafka(tmp_path, jars, BROKERS) as kafka:
        for broker in range(BROKERS):
            logger = ("--entity-type", "broker-loggers", "--entity-name", str(broker))
            options = ("--alter", "--add-config", "kafka.request.logger=DEBUG", *logger)
            kafka_tools.configs(kafka.bootstrap_servers, *options)
        yield kafka.bootstrap_servers, request.param


def produce(servers: str, client: str, acks: str) -> None:
    producer = Producer({"bootstrap.servers": servers, "client.id": client, "acks": acks, "linger.ms": 2})
    for number in range(ROUNDS):
        for record in range(PER_ROUND):
            producer.produce(TOPIC, b"v" * (50 + number), partition=(number + record // 10) % PARTITIONS)
        assert producer.flush(60) == 0


def read_all(consumer: Consumer) -> None:
    """Reads everything, and on until a fetch has returned nothing: it tells where the one before ended."""
    read = 0
    while read < RECORDS:
        for message in consumer.consume(500, 30):
            assert message.error() is None
            read += 1
    for _ in range(3):
        assert consumer.poll(0.3) is None
    consumer.close()


def batches_on_disk(directory: Path) -> Counter[tuple[int, int, int]]:
    """(partition, records, bytes) -> how many batches. Every broker has every partition."""
    return Counter(
        (partition, header.record_count, header.batch_length + LOG_OVERHEAD)
        for partition in range(PARTITIONS)
        for file in (directory / "broker-0" / "data" / f"{TOPIC}-{partition}").glob("*.log")
        for _, header in iter_batches(file.read_bytes())
    )


def test_a_known_load_imports_to_the_same_counts(kafka: tuple[str, str], tmp_path: Path) -> None:
    (servers, protocol), home = kafka, tmp_path
    topic = NewTopic(TOPIC, PARTITIONS, replication_factor=BROKERS)
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([topic])[TOPIC].result(60)
    produce(servers, "careful", "all")
    produce(servers, "quick", "1")
    named = {"client.id": "member", "group.id": "readers", "group.protocol": protocol}
    member = Consumer({"bootstrap.servers": servers, **named, **PROMPT})
    member.subscribe([TOPIC])
    read_all(member)
    late = Consumer({"bootstrap.servers": servers, "client.id": "late", "group.id": "unused", **PROMPT})
    late.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
    read_all(late)

    logs = [home / f"broker-{broker}" / "server.log" for broker in range(BROKERS)]
    with running_session(home / "spark"):
        found = import_request_log(logs, home / "trace", ImportOptions(topics=frozenset({TOPIC})))
    trace = Trace(home / "trace")
    rows = [row for batch in trace.batches() for row in batch.to_pylist()]

    produced = [row for row in rows if row["op"] == "produce"]
    assert Counter((row["partition"], row["records"], row["bytes"]) for row in produced) == batches_on_disk(home)
    assert sum(row["records"] for row in produced) == RECORDS
    assert Counter(row["client"] for row in produced).keys() == {"careful", "quick"}
    assert {(row["client"], row["acks"]) for row in produced} == {("careful", -1), ("quick", 1)}
    for client, group in (("member", "readers"), ("late", None)):
        fetched = [row for row in rows if row["client"] == client]
        assert sum(row["records"] for row in fetched) == RECORDS
        assert {row["group"] for row in fetched} == {group}
        assert {row["topic"] for row in fetched} == {TOPIC}, "the log has its id only"
    assert (found.records_estimated, found.bad_lines, trace.info.topics) == (0, 0, {TOPIC: PARTITIONS})
    assert found.skipped["FETCH of a follower"] > 0
