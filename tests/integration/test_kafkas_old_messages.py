"""A real Kafka has written messages of format v0 and v1; ottla refuses the directory and leaves it as it is (FMT-3)."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from tests.support.background_load import read_everything
from tests.support.invariants import eventually
from tests.support.kafka_tools import KafkaTools
from tests.support.swappable_broker import BROKER, SwappableBroker
from tests.support.topics import create_topics

pytestmark = [pytest.mark.integration, pytest.mark.kafka]
TOPIC = "old"
MAGIC_AT = 16
RECORDS = 50


@pytest.mark.timeout(240)
@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize(("release", "magic", "compression"), [("0.9.0", 0, "none"), ("0.10.2", 1, "gzip")])
def test_ottla_refuses_a_directory_with_old_messages(
    kafka_tools: KafkaTools, tmp_path: Path, release: str, magic: int, compression: str, ending: signal.Signals
) -> None:
    overrides = {"inter.broker.protocol.version": "2.8"}  # above it, Kafka ignores message.format.version
    with SwappableBroker(tmp_path / "cluster", kafka_tools, overrides) as broker:
        broker.start("Kafka")
        create_topics(broker.bootstrap_servers, NewTopic(TOPIC, 1, 1, config={"message.format.version": release}))
        producer = Producer(
            {"bootstrap.servers": broker.bootstrap_servers, "compression.type": compression, "log_level": 2}
        )
        for number in range(RECORDS):
            producer.produce(TOPIC, str(number), b"key", partition=0)
        assert producer.flush(30) == 0
        broker.stop(ending)
        files = {path: path.read_bytes() for path in broker.files(TOPIC, ".log")}
        assert [data[MAGIC_AT] for data in files.values()] == [magic]
        broker.cluster.start_broker(BROKER)
        eventually(lambda: broker.cluster.pid(BROKER) is None, "ottla has ended")
        said = (broker.cluster.broker_directory(BROKER) / "server.log").read_text(encoding="utf-8")
        assert f"0.log has a message of format v{magic} at byte 0. ottla reads format v2 only" in said
        assert {path: path.read_bytes() for path in broker.files(TOPIC, ".log")} == files
        broker.start("Kafka", {TOPIC: 1})
        values = [message.value() for message in read_everything(broker.bootstrap_servers, TOPIC, 1)]
        assert values == [str(number).encode() for number in range(RECORDS)]
