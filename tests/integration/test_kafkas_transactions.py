"""A real Kafka writes transactions; ottla opens its directory, and serves exactly what Kafka served (FMT-3, LOG-7)."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from tests.support.background_load import read_everything
from tests.support.kafka_tools import KafkaTools
from tests.support.swappable_broker import SwappableBroker
from tests.support.thorough import release
from tests.support.topics import create_topics

pytestmark = pytest.mark.kafka
TOPIC = "transactions"
CONFIG = {"segment.bytes": "2000", "index.interval.bytes": "500"}
TURNS = 20
LONG = {"transaction.timeout.ms": 600_000}
LEVELS = {"read_committed": IsolationLevel.READ_COMMITTED, "read_uncommitted": IsolationLevel.READ_UNCOMMITTED}


class Seen(NamedTuple):
    """For each isolation level: the records, and the latest offset."""

    records: Mapping[str, list[tuple[int, bytes]]]
    latest: Mapping[str, int]


def producer(broker: SwappableBroker, name: str) -> Producer:
    settings = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": name, "log_level": 2, **LONG}
    found = Producer(settings | {"batch.num.messages": 3, "linger.ms": 1})
    found.init_transactions(30)
    return found


def write(broker: SwappableBroker) -> Producer:
    """Short transactions, within long ones that end in both ways; the returned producer's is open."""
    slow, quick = producer(broker, "slow"), producer(broker, "quick")
    slow.begin_transaction()
    for turn in range(TURNS):
        quick.begin_transaction()
        for writer, name in ((slow, "slow"), (quick, "quick")):
            for number in range(4):
                writer.produce(TOPIC, f"{name} {turn} {number}".encode() + bytes(40), partition=0)
            writer.flush(30)
        quick.abort_transaction(30) if turn % 3 == 0 else quick.commit_transaction(30)
        if turn in (TURNS // 3, TURNS // 2):
            slow.abort_transaction(30) if turn == TURNS // 3 else slow.commit_transaction(30)
            slow.begin_transaction()
    slow.abort_transaction(30)
    slow.begin_transaction()
    slow.produce(TOPIC, b"not decided", partition=0)
    slow.flush(30)
    quick.begin_transaction()
    quick.produce(TOPIC, b"decided behind it", partition=0)
    quick.commit_transaction(30)
    producer(broker, "quick")  # begins when the commit is complete: its answer comes before its marker
    return slow


def read(broker: SwappableBroker, level: str, fetch_bytes: int) -> list[tuple[int, bytes]]:
    found = read_everything(broker.bootstrap_servers, TOPIC, 1, level, fetch_message_max_bytes=fetch_bytes)
    return [(message.offset(), message.value()) for message in found]


def look(broker: SwappableBroker, *, fetch_bytes: int = 2000) -> Seen:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    wanted = TopicPartition(TOPIC, 0)
    latest = {
        name: admin.list_offsets({wanted: OffsetSpec.latest()}, isolation_level=level)[wanted].result(30).offset
        for name, level in LEVELS.items()
    }
    return Seen({level: read(broker, level, fetch_bytes) for level in LEVELS}, latest)


def lists(broker: SwappableBroker) -> dict[str, bytes]:
    return {path.name: data for path in broker.files(TOPIC, ".txnindex") if (data := path.read_bytes())}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("ending", [release(signal.SIGTERM), signal.SIGKILL])
def test_ottla_serves_kafkas_transactions(kafka_tools: KafkaTools, tmp_path: Path, ending: signal.Signals) -> None:
    with SwappableBroker(tmp_path / "cluster", kafka_tools) as broker:
        broker.start("Kafka")
        create_topics(broker.bootstrap_servers, NewTopic(TOPIC, 1, 1, config=CONFIG))
        still_open = write(broker)
        kafkas = look(broker)
        assert kafkas.latest["read_committed"] < kafkas.latest["read_uncommitted"]
        broker.stop(ending)
        files = lists(broker)
        assert len(files) > 3
        for number in (signal.SIGKILL, signal.SIGTERM):
            broker.start("ottla", {TOPIC: 1})
            assert look(broker) == kafkas
            assert look(broker, fetch_bytes=1_000_000) == kafkas
            broker.stop(number)
        assert lists(broker) == files, "made again from the batches, or kept"
        dumped = kafka_tools.dump([path for path in broker.files(TOPIC, ".txnindex") if path.stat().st_size])
        assert dumped.count("lastStableOffset: ") == sum(map(len, files.values())) // 34
        broker.start("Kafka", {TOPIC: 1})
        assert look(broker) == kafkas
        del still_open
