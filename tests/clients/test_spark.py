"""Spark's own Kafka source and sink, `spark-sql-kafka-0-10`: a row of the frameworks in docs/CLIENTS.md.

What Spark promises: a batch reads exactly the records between its offsets. Structured Streaming processes each record at
least once at a Kafka sink: a micro-batch that was not finished when the driver died is written again, and a finished one is not.
"""

from __future__ import annotations

import functools
import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from tests.clients import results
from tests.clients.conftest import is_in_sync
from tests.clients.peers import COMMITTED, UNCOMMITTED, ConfluentPeer, Outgoing, Record
from tests.clients.program import LIMIT_S, Program
from tests.clients.spark.spark import SPARK
from tests.support.invariants import eventually, wait_known_everywhere
from tests.support.topics import create_topics, new_topic
from tools.cluster.local_cluster import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1800)]  # the first test may fetch Spark

COUNT = 100
FIRST_TIMESTAMP_MS = 1_700_000_000_000
FOREVER = {"retention_ms": "-1"}
"""The timestamps of the tests are old."""
SPARK_LIMIT_S = 600.0
"""A Spark starts in ten seconds, and in minutes on a machine that is busy with other things."""
LEADER = 1
RECORDS_PER_BATCH = 60
BATCHES_BEFORE_KILL = 2

Test = Callable[..., None]


def column(name: str) -> Callable[[Test], Test]:
    """The test is the cell of this column; what becomes of it is recorded."""

    def recorded(test: Test) -> Test:
        @functools.wraps(test)
        def run(*arguments: Any, **named: Any) -> None:
            with results.recording_framework(SPARK, name):
                test(*arguments, **named)

        return run

    return recorded


class Batches:
    """A Spark that carries out one read or write after another."""

    def __init__(self, cluster: LocalCluster, directory: Path) -> None:
        self._cluster = cluster
        self._log = directory / "batches.log"
        self._program: Program | None = None

    def _ask(self, request: Mapping[str, Any]) -> Any:
        if self._program is None:  # the test may have been skipped before
            self._program = Program(SPARK, "serve", {}, self._log, until_stdin_closes=True, limit_s=SPARK_LIMIT_S)
        answer = self._program.ask(dict(request))
        assert "error" not in answer, answer["error"]
        return answer

    def read(self, **options: str) -> Any:
        """-> {"rows", "tasks"}; "." is "_" in the name of an option."""
        given = {name.replace("_", "."): value for name, value in options.items()}
        return self._ask({"read": {"kafka.bootstrap.servers": self._cluster.bootstrap_servers, **given}})

    def write(self, rows: list[dict[str, Any]], **options: str) -> None:
        given = {name.replace("_", "."): value for name, value in options.items()}
        written = self._ask(
            {"write": rows, "options": {"kafka.bootstrap.servers": self._cluster.bootstrap_servers, **given}}
        )
        assert written == {"written": len(rows)}

    def close(self) -> None:
        if self._program is not None:
            try:
                self._program.end()
            finally:
                self._program.kill()


@pytest.fixture(scope="module")
def batches(clients_cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Batches]:
    found = Batches(clients_cluster, tmp_path_factory.mktemp("spark"))
    yield found
    found.close()


def known_topic(cluster: LocalCluster, partitions: int, **settings: Any) -> str:
    """A topic that every broker knows, so that Spark finds it, whichever broker it asks."""
    topic = new_topic(cluster.bootstrap_servers, partitions, 3, **settings)
    wait_known_everywhere(cluster, topic, partitions)
    return topic


def written_topic(cluster: LocalCluster) -> tuple[str, list[Record]]:
    """Two partitions with COUNT records each, which are a second apart."""
    topic = known_topic(cluster, 2, **FOREVER)
    records = [
        Record(number % 2, number // 2, f"key {number}", f"value {number}", FIRST_TIMESTAMP_MS + 500 * number)
        for number in range(2 * COUNT)
    ]
    outgoing = [Outgoing(record.value, record.partition, record.key, record.timestamp_ms) for record in records]
    ConfluentPeer().write(cluster.bootstrap_servers, topic, outgoing)
    return topic, sorted(records)


def records_of(answer: Any) -> list[Record]:
    return sorted(
        Record(row["partition"], row["offset"], row["key"], row["value"], row["timestamp_ms"]) for row in answer["rows"]
    )


@column("batch read: earliest, latest")
def test_a_batch_reads_everything(clients_cluster: LocalCluster, batches: Batches) -> None:
    topic, records = written_topic(clients_cluster)
    answer = batches.read(subscribe=topic)  # of a batch, these are the defaults
    assert records_of(answer) == records
    assert {row["topic"] for row in answer["rows"]} == {topic}


@column("batch read: offsets")
def test_a_batch_reads_between_offsets(clients_cluster: LocalCluster, batches: Batches) -> None:
    """-2 is earliest, -1 is latest."""
    topic, records = written_topic(clients_cluster)
    answer = batches.read(
        subscribe=topic,
        startingOffsets=json.dumps({topic: {"0": 40, "1": -2}}),
        endingOffsets=json.dumps({topic: {"0": -1, "1": 60}}),
    )
    assert records_of(answer) == [r for r in records if (r.offset >= 40 if r.partition == 0 else r.offset < 60)]


@column("batch read: timestamps")
def test_a_batch_reads_between_times(clients_cluster: LocalCluster, batches: Batches) -> None:
    topic, records = written_topic(clients_cluster)
    start, end = FIRST_TIMESTAMP_MS + 20_001, FIRST_TIMESTAMP_MS + 70_000
    expected = [record for record in records if start <= record.timestamp_ms < end]
    assert 0 < len(expected) < len(records)
    answer = batches.read(subscribe=topic, startingTimestamp=str(start), endingTimestamp=str(end))
    assert records_of(answer) == expected
    in_partition_1 = FIRST_TIMESTAMP_MS + 90_000
    by_partition = json.dumps({topic: {"0": start, "1": in_partition_1}})
    answer = batches.read(subscribe=topic, startingOffsetsByTimestamp=by_partition)
    starts = {0: start, 1: in_partition_1}
    assert records_of(answer) == [record for record in records if record.timestamp_ms >= starts[record.partition]]


@column("batch write: keys, partitions, headers")
def test_a_batch_writes_keys_partitions_and_headers(clients_cluster: LocalCluster, batches: Batches) -> None:
    """librdkafka and Spark (`includeHeaders`) read what Spark has written. A value may be null, and so may a header's."""
    topic = known_topic(clients_cluster, 3, min_insync_replicas="2")
    rows: list[dict[str, Any]] = [
        {
            "topic": topic,
            "partition": number % 3,
            "key": f"key {number}" if number % 2 else None,
            "value": f"value {number}" if number % 5 else None,
            "headers": [["number", str(number)], ["twice", "a"], ["twice", None]] if number % 4 else [],
        }
        for number in range(COUNT)
    ]
    batches.write(rows, kafka_compression_type="zstd", includeHeaders="true")
    expected = Counter(map(json.dumps, rows))
    assert Counter(map(json.dumps, rows_by_librdkafka(clients_cluster, topic, 3))) == expected
    answer = batches.read(subscribe=topic, includeHeaders="true")
    found = [
        {name: row[name] for name in ("topic", "partition", "key", "value")} | {"headers": row["headers"] or []}
        for row in answer["rows"]
    ]
    assert Counter(map(json.dumps, found)) == expected


def rows_by_librdkafka(cluster: LocalCluster, topic: str, partitions: int) -> list[dict[str, Any]]:
    """COUNT records as Spark's program has rows."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "unused", "log_level": 2})
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(partitions)])
    found = []
    for message in consumer.consume(COUNT, LIMIT_S):
        assert message.error() is None
        key, value = message.key(), message.value()
        found.append(
            {
                "topic": message.topic(),
                "partition": message.partition(),
                "key": key and key.decode(),
                "value": value and value.decode(),
                "headers": [[name, data and data.decode()] for name, data in message.headers() or []],
            }
        )
    consumer.close()
    return found


@column("batch read: minPartitions")
def test_more_tasks_than_partitions(clients_cluster: LocalCluster, batches: Batches) -> None:
    topic, records = written_topic(clients_cluster)
    assert batches.read(subscribe=topic)["tasks"] == 2
    answer = batches.read(subscribe=topic, minPartitions="8")
    assert answer["tasks"] >= 8
    assert records_of(answer) == records


@column("batch read: subscribePattern")
def test_topics_by_a_pattern(clients_cluster: LocalCluster, batches: Batches) -> None:
    prefix = f"pattern-{uuid.uuid4().hex[:8]}"
    for name in ("one", "two", "other"):
        create_topics(clients_cluster.bootstrap_servers, NewTopic(f"{prefix}-{name}", 1, 1))
        ConfluentPeer().write(clients_cluster.bootstrap_servers, f"{prefix}-{name}", [Outgoing(f"in {name}")])
    answer = batches.read(subscribePattern=f"{prefix}-(one|two)")
    found = sorted((row["topic"], row["value"]) for row in answer["rows"])
    assert found == [(f"{prefix}-one", "in one"), (f"{prefix}-two", "in two")]


@column("batch read: read_committed")
def test_a_batch_leaves_out_aborted_and_open_transactions(clients_cluster: LocalCluster, batches: Batches) -> None:
    """TXN: with read_committed, latest is the last stable offset."""
    topic = known_topic(clients_cluster, 1)
    committed, everything = [], []
    for number, is_aborted in enumerate((False, True, False)):
        values = [f"transaction {number}, value {at}" for at in range(20)]
        ConfluentPeer().write(clients_cluster.bootstrap_servers, topic, [Outgoing(v) for v in values], is_aborted)
        everything += values
        committed += [] if is_aborted else values
    settings = {"bootstrap.servers": clients_cluster.bootstrap_servers, "transactional.id": f"open-{topic}"}
    producer = Producer(settings)
    producer.init_transactions(LIMIT_S)
    producer.begin_transaction()
    producer.produce(topic, "open", partition=0)
    assert producer.flush(LIMIT_S) == 0
    read = {
        isolation: [
            record.value for record in records_of(batches.read(subscribe=topic, kafka_isolation_level=isolation))
        ]
        for isolation in (COMMITTED, UNCOMMITTED)
    }
    producer.abort_transaction(LIMIT_S)
    assert read == {COMMITTED: committed, UNCOMMITTED: [*everything, "open"]}


@column("streaming: driver and leader killed")
def test_a_stream_continues_at_its_checkpoint(clients_cluster: LocalCluster, tmp_path: Path) -> None:
    """The driver is killed, then, after its restart, the leader of all partitions: no record is missing in the sink.

    A record of a micro-batch that was reported as finished is there once.
    """
    others = [broker for broker in clients_cluster.broker_ids if broker != LEADER]
    source, sink = (
        known_topic(clients_cluster, partitions, assignment=[[LEADER, *others]] * partitions, min_insync_replicas="2")
        for partitions in (3, 2)
    )
    servers = {"kafka.bootstrap.servers": clients_cluster.bootstrap_servers}
    request = {
        "source": {
            **servers,
            "subscribe": source,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(RECORDS_PER_BATCH),
        },
        "sink": {**servers, "topic": sink},
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    values = write_in_turn(clients_cluster, source, 0, 10 * RECORDS_PER_BATCH)
    first = Program(SPARK, "stream", request, tmp_path / "first.log", until_stdin_closes=True, limit_s=SPARK_LIMIT_S)
    try:
        ends = first.wait_for_count("end", BATCHES_BEFORE_KILL)
    finally:
        first.kill()
    finished = {int(partition): end for partition, end in ends[-1][source].items()}
    values += write_in_turn(clients_cluster, source, len(values), RECORDS_PER_BATCH)
    second = Program(SPARK, "stream", request, tmp_path / "second.log", until_stdin_closes=True, limit_s=SPARK_LIMIT_S)
    try:
        second.wait_for_count("batch", 1)
        clients_cluster.kill(LEADER)
        values += write_in_turn(clients_cluster, source, len(values), 4 * RECORDS_PER_BATCH)
        second.end()
    finally:
        second.kill()
        if clients_cluster.pid(LEADER) is None:
            clients_cluster.restart_broker(LEADER)
    eventually(lambda: is_in_sync(clients_cluster), "all replicas are in sync after the restart")
    assert second.values("batch")[0] > first.values("batch")[-1], "no finished micro-batch is processed again"
    in_source = ConfluentPeer().read(clients_cluster.bootstrap_servers, source, 3)
    assert Counter(record.value for record in in_source) == Counter(values)
    counts = Counter(record.value for record in ConfluentPeer().read(clients_cluster.bootstrap_servers, sink, 2))
    print(f"\n  {counts.total() - len(counts)} of {len(values)} records are in the sink more than once")
    assert set(counts) == {f"processed {value}" for value in values}
    once = [f"processed {record.value}" for record in in_source if record.offset < finished[record.partition]]
    assert len(once) >= BATCHES_BEFORE_KILL * RECORDS_PER_BATCH
    assert {counts[value] for value in once} == {1}


def write_in_turn(cluster: LocalCluster, topic: str, first: int, count: int) -> list[str]:
    """To three partitions in turn. -> the values"""
    values = [f"value {number}" for number in range(first, first + count)]
    outgoing = [Outgoing(value, number % 3, f"key {number}") for number, value in enumerate(values)]
    ConfluentPeer().write(cluster.bootstrap_servers, topic, outgoing)
    return values
