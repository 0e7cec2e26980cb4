"""A real Kafka 3.9 and ottla open each other's directories, after a clean and an unclean stop: FMT-3, LOG-2, LOG-4, LOG-5, FLT-26.

The directory has segments of every compression, idempotent batches, several leader epochs, producer snapshots and a
compacted topic. What one wrote the other serves: the same records, offsets and epochs, to the byte, and the producers
go on where they were.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.record_batch import BatchHeader, build_batch, iter_batches
from tests.support.background_load import BackgroundProducer, read_everything
from tests.support.invariants import eventually
from tests.support.kafka_tools import KafkaTools
from tests.support.swappable_broker import Kind, SwappableBroker
from tests.support.thorough import release
from tests.support.topics import init_producer_id, new_topic, produce_batch
from tests.support.wire import Wire

pytestmark = [pytest.mark.integration, pytest.mark.kafka]

COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
SMALL_SEGMENTS = {"segment.bytes": "20000", "index.interval.bytes": "500"}
COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
PARTITIONS = 2
KEYS = 10
VERSIONS = 200
OVERRIDES = {"log.cleaner.backoff.ms": "200", "auto.leader.rebalance.enable": "false"}
TORN_BYTES = 7
LOG_TIMESTAMP = re.compile(r"Index timestamp: [0-9]+, log timestamp: (-?[0-9]+)")
OTHER: dict[Kind, Kind] = {"Kafka": "ottla", "ottla": "Kafka"}


@dataclass
class Sequences:
    """An idempotent producer that sends its batches one by one to partition 0 of a topic."""

    broker: SwappableBroker
    topic: str
    producer_id: int = -1
    next_sequence: int = 0

    def begin(self) -> None:
        with Wire(self.broker.cluster.port(1)) as wire:
            self.producer_id = init_producer_id(wire).producer_id

    def send(self, sequence: int | None = None) -> tuple[ErrorCode, int]:
        """A batch of two records: the next one, or the one at `sequence`. Returns error and base offset."""
        first = self.next_sequence if sequence is None else sequence
        # Of today: Kafka forgets producers of records of the past in a restart.
        now_ms = int(time.time() * 1000)
        records = [(b"key", b"sequence-%d" % number, (), now_ms) for number in (first, first + 1)]
        batch = build_batch(records, producer_id=self.producer_id, producer_epoch=0, base_sequence=first)
        with Wire(self.broker.cluster.port(1)) as wire:
            answer = produce_batch(wire, self.topic, batch)
        if sequence is None and answer.error_code == 0:
            self.next_sequence += 2
        return ErrorCode(answer.error_code), answer.base_offset


def make_topics(broker: SwappableBroker) -> dict[str, int]:
    """Name -> partitions: a plain and a compacted topic."""
    settings = (SMALL_SEGMENTS, SMALL_SEGMENTS | COMPACTED)
    return {new_topic(broker.bootstrap_servers, PARTITIONS, **config): PARTITIONS for config in settings}


def write(broker: SwappableBroker, plain: str, compacted: str) -> None:
    """Idempotent producers write some segments in each compression: many values of few keys, and a tombstone for one key."""
    for compression in COMPRESSIONS:
        with BackgroundProducer(
            broker.bootstrap_servers,
            plain,
            PARTITIONS,
            bytes(40),
            idempotent=True,
            compression_type=compression,
            linger_ms=10,
            batch_num_messages=50,
        ) as producer:
            producer.wait_for_acks(400)
        assert producer.failed == []
        settings = {"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True}
        keyed = Producer(settings | {"compression.type": compression, "batch.num.messages": 50, "linger.ms": 5})
        for number, partition in itertools.product(range(VERSIONS), range(PARTITIONS)):
            value = b"version %d, %s" % (number, os.urandom(60)) if number != VERSIONS - 1 else None
            keyed.produce(compacted, value, b"key-%d" % (number % KEYS), partition=partition)
        assert keyed.flush(30) == 0


def headers_of(files: Iterator[Path]) -> list[BatchHeader]:
    """The headers of all whole batches. Bytes after the last batch of a file are ignored."""
    found: list[BatchHeader] = []
    for path in files:
        with suppress(KafkaError):
            found += [header for _, header in iter_batches(memoryview(path.read_bytes()))]
    return found


def wait_for_compaction(broker: SwappableBroker, topic: str) -> None:
    def is_compacted() -> bool:
        try:
            return sum(h.record_count for h in headers_of(broker.files(topic, ".log"))) < PARTITIONS * VERSIONS * 3
        except FileNotFoundError:  # it is at it
            return False

    eventually(is_compacted, "the log is compacted")


def contents(broker: SwappableBroker, topics: dict[str, int]) -> dict[str, list[tuple[Any, ...]]]:
    """Topic -> (partition, offset, timestamp, key, value, leader epoch) of each record."""
    return {
        topic: sorted(
            (m.partition(), m.offset(), m.timestamp(), m.key(), m.value() or b"", m.value() is None, m.leader_epoch())
            for m in read_everything(broker.bootstrap_servers, topic, count)
        )
        for topic, count in topics.items()
    }


def assert_holds(broker: SwappableBroker, topics: dict[str, int], written: dict[str, list[tuple[Any, ...]]]) -> None:
    """The broker serves what was written. Compaction continues: of the compacted topic each key keeps its last value."""
    plain, compacted = topics
    found = contents(broker, topics)
    assert found[plain] == written[plain]
    assert set(found[compacted]) <= set(written[compacted])
    assert last_values(found[compacted]) == last_values(written[compacted])


def last_values(rows: list[tuple[Any, ...]]) -> dict[tuple[int, bytes], tuple[Any, ...]]:
    """(partition, key) -> its last row; without keys whose last row is a tombstone, which compaction removes in the end."""
    last = {(row[0], row[3]): row for row in sorted(rows, key=lambda row: row[:2])}
    return {key: row for key, row in last.items() if not row[5]}


def epoch_ends(broker: SwappableBroker, topics: dict[str, int], epochs: int) -> list[tuple[Any, ...]]:
    """(topic, partition, asked epoch, epoch, end offset) as OffsetForLeaderEpoch answers."""
    asked = list(itertools.product(topics, range(PARTITIONS), range(epochs)))
    answers = []
    with Wire(broker.cluster.port(1)) as wire:
        for topic, partition, epoch in asked:
            partitions = [{"partition": partition, "current_leader_epoch": -1, "leader_epoch": epoch}]
            body = {"replica_id": -1, "topics": [{"topic": topic, "partitions": partitions}]}
            answer = wire.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, 3, body).topics[0].partitions[0]
            assert answer.error_code == 0
            answers.append((topic, partition, epoch, answer.leader_epoch, answer.end_offset))
    return answers


def tear_last_batch(broker: SwappableBroker, topic: str) -> BatchHeader:
    """Cuts into the last batch of partition 0, as a lost page would (FLT-26). Returns its header."""
    last = [path for path in broker.files(topic, ".log") if path.parent.name == f"{topic}-0"][-1]
    headers = headers_of(iter([last]))
    end = sum(header.size_in_bytes for header in headers)
    os.truncate(last, end - TORN_BYTES)
    return headers[-1]


def dump_everything(broker: SwappableBroker, kafka_tools: KafkaTools, plain: str, compacted: str) -> None:
    """DumpLogSegments finds nothing wrong in logs, indexes and producer snapshots."""
    decoders = [f"--{kind}-decoder-class=org.apache.kafka.tools.api.StringDecoder" for kind in ("key", "value")]
    for topic in (plain, compacted):
        kafka_tools.dump(list(broker.files(topic, ".log")), "--deep-iteration", "--print-data-log", *decoders)
        indexes, time_indexes = (list(broker.files(topic, suffix)) for suffix in (".index", ".timeindex"))
        kafka_tools.dump([*indexes, *time_indexes], "--index-sanity-check")
        kafka_tools.dump(indexes, "--verify-index-only")
        # Of a batch that compaction emptied the tool sees no time, in what Kafka itself compacted as well.
        found = kafka_tools.dump(
            time_indexes, "--verify-index-only", allowed=("mismatch",) if topic == compacted else ()
        )
        assert set(LOG_TIMESTAMP.findall(found)) <= {"-1"}
        assert "producerId: " in kafka_tools.dump(list(broker.files(topic, ".snapshot")))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "stop", [release(signal.SIGTERM), signal.SIGKILL], ids=["stopped cleanly", "killed, last batch torn"]
)
@pytest.mark.parametrize("writer", ["Kafka", "ottla"])
def test_each_serves_the_directory_of_the_other(
    kafka_tools: KafkaTools, tmp_path: Path, writer: Kind, stop: signal.Signals
) -> None:
    """Then the writer takes its directory back, with what the other added."""
    reader = OTHER[writer]
    with SwappableBroker(tmp_path, kafka_tools, OVERRIDES) as broker:
        broker.start(writer)
        topics = make_topics(broker)
        plain, compacted = topics
        write(broker, plain, compacted)
        broker.stop(stop)
        broker.start(writer, topics)
        write(broker, plain, compacted)
        sequences = Sequences(broker, plain)
        sequences.begin()
        bases = [sequences.send() for _ in range(7)]
        wait_for_compaction(broker, compacted)
        written = contents(broker, topics)
        epochs = broker.zk.state(plain, 0).leader_epoch + 1
        ends = epoch_ends(broker, topics, epochs)
        assert len({end for *_, end in ends}) > 2, "there are several epochs"
        broker.stop(stop)
        if stop == signal.SIGKILL:
            lost = tear_last_batch(broker, plain)
            assert lost.base_offset == bases.pop()[1]
            sequences.next_sequence -= 2
            written[plain] = [row for row in written[plain] if row[:2] < (0, lost.base_offset) or row[0] > 0]
            ends = [(*row[:4], lost.base_offset if row[:3] == (plain, 0, epochs - 1) else row[4]) for row in ends]

        broker.start(reader, topics)
        assert epoch_ends(broker, topics, epochs) == ends
        assert_holds(broker, topics, written)
        # INV-20: after Kafka's clean stop only the last batch of each producer is known, as after Kafka's own restart.
        assert sequences.send(sequences.next_sequence - 2) == bases[-1]
        gap = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER if reader == "Kafka" else ErrorCode.NOT_ENOUGH_REPLICAS
        assert sequences.send(sequences.next_sequence + 4)[0] == gap
        error, added = sequences.send()
        assert (error, added) == (ErrorCode.NONE, bases[-1][1] + 2)
        write(broker, plain, compacted)
        error, last = sequences.send()
        assert error == ErrorCode.NONE
        written = contents(broker, topics)
        broker.stop(stop)

        broker.start(writer, topics)
        assert_holds(broker, topics, written)
        assert sequences.send(sequences.next_sequence - 2) == (ErrorCode.NONE, last)
        assert sequences.send()[0] == ErrorCode.NONE
        broker.stop(signal.SIGTERM)
        dump_everything(broker, kafka_tools, plain, compacted)
