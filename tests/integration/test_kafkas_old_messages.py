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
from tests.support.thorough import release
from tests.support.topics import create_topics

pytestmark = [pytest.mark.integration, pytest.mark.kafka]
TOPICS = {"of-v0": ("0.9.0", "none"), "of-v1": ("0.10.2", "gzip")}
"""Topic -> message.format.version, compression."""
MAGIC_AT = 16
RECORDS = 50


@pytest.mark.timeout(240)
@pytest.mark.parametrize("ending", [release(signal.SIGTERM), signal.SIGKILL])
def test_ottla_refuses_a_directory_with_old_messages(
    kafka_tools: KafkaTools, tmp_path: Path, ending: signal.Signals
) -> None:
    """Of each format by itself: the other topic's directory is elsewhere meanwhile."""
    overrides = {"inter.broker.protocol.version": "2.8"}  # above it, Kafka ignores message.format.version
    with SwappableBroker(tmp_path / "cluster", kafka_tools, overrides) as broker:
        broker.start("Kafka")
        for topic, (release, compression) in TOPICS.items():
            create_topics(broker.bootstrap_servers, NewTopic(topic, 1, 1, config={"message.format.version": release}))
            settings = {"bootstrap.servers": broker.bootstrap_servers, "compression.type": compression, "log_level": 2}
            producer = Producer(settings)
            for number in range(RECORDS):
                producer.produce(topic, str(number), b"key", partition=0)
            assert producer.flush(30) == 0
        broker.stop(ending)
        files = {topic: {path: path.read_bytes() for path in broker.files(topic, ".log")} for topic in TOPICS}
        for magic, topic in enumerate(TOPICS):
            (other,) = TOPICS.keys() - {topic}
            aside = (broker.data / f"{other}-0").rename(tmp_path / other)
            assert [data[MAGIC_AT] for data in files[topic].values()] == [magic]
            broker.cluster.start_broker(BROKER)
            eventually(lambda: broker.cluster.pid(BROKER) is None, "ottla has ended")
            said = (broker.cluster.broker_directory(BROKER) / "server.log").read_text(encoding="utf-8")
            assert f"0.log has a message of format v{magic} at byte 0. ottla reads format v2 only" in said
            aside.rename(broker.data / f"{other}-0")
        assert files == {topic: {path: path.read_bytes() for path in broker.files(topic, ".log")} for topic in TOPICS}
        broker.start("Kafka", dict.fromkeys(TOPICS, 1))
        for topic in TOPICS:
            values = [message.value() for message in read_everything(broker.bootstrap_servers, topic, 1)]
            assert values == [str(number).encode() for number in range(RECORDS)]
