"""The recipes of docs/SECURITY.md, word for word, and what else a test can ask of a secured cluster (RUN-4, RUN-5)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from kafka import KafkaProducer

from ottla import OttlaCluster, OttlaError
from tests.unit.docs.pages import ROOT, blocks, text_of

pytestmark = pytest.mark.integration

TIMEOUT_S = 240


def test_the_recipes(tmp_path: Path) -> None:
    (recipes,) = [
        block for block in blocks(text_of(ROOT / "docs/SECURITY.md"), "python") if "test_security.py" in block
    ]
    assert recipes.count("def test_") == 5
    (tmp_path / "test_security.py").write_text(recipes)
    (tmp_path / "pytest.ini").write_text("[pytest]\nottla_secure = true\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "test_security.py",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert "5 passed" in done.stdout, done.stdout + done.stderr


@pytest.fixture(scope="module")
def cluster() -> Iterator[OttlaCluster]:
    with OttlaCluster(1, secure=True) as started:
        yield started


def test_a_user_of_every_library(cluster: OttlaCluster) -> None:
    topic = cluster.create_topic("of-libraries")
    alice = cluster.user("alice")
    assert alice.password not in repr(alice)
    for settings in (alice.kafka_python(), alice.kafka_python("PLAIN"), alice.kafka_python(certificate=True)):
        producer = KafkaProducer(**settings)
        producer.send(topic, b"x").get(30)
        producer.close()

    async def send(certificate: bool) -> None:
        async with AIOKafkaProducer(**alice.aiokafka(certificate=certificate)) as producer:
            await producer.send_and_wait(topic, b"x")

    asyncio.run(send(False))
    asyncio.run(send(True))


def test_a_test_finds_nothing_of_the_one_before(cluster: OttlaCluster) -> None:
    cluster.keep_contents()
    carol = cluster.add_user("carol")
    cluster.allow("carol", "Create", topic="of-*")
    cluster.allow("carol", "Describe", topic="of-*")
    cluster.deny("alice", "All", topic="*")
    cluster.remove_user("bob")
    cluster.expire_certificate("alice")
    assert "of-libraries" in AdminClient(carol.confluent_kafka()).list_topics(timeout=30).topics
    assert AdminClient(cluster.user("alice").confluent_kafka()).list_topics(timeout=30).topics == {}
    with pytest.raises(KafkaException):
        AdminClient(cluster.user("bob").confluent_kafka() | {"log_level": 0}).list_topics(timeout=3)
    assert cluster.clear() == []
    assert "of-libraries" in AdminClient(cluster.user("alice").confluent_kafka()).list_topics(timeout=30).topics
    assert AdminClient(cluster.user("bob").confluent_kafka()).list_topics(timeout=30).topics == {}
    by_certificate = cluster.user("alice").confluent_kafka(certificate=True)
    assert "of-libraries" in AdminClient(by_certificate).list_topics(timeout=30).topics
    with pytest.raises(OttlaError, match="there is no user 'carol': the users are admin, alice, bob"):
        cluster.user("carol")


def test_bad_requests_say_what_is_wrong(cluster: OttlaCluster) -> None:
    with pytest.raises(OttlaError, match="'Wriet' is no operation: Read, Write"):
        cluster.deny("alice", "Wriet", topic="orders")
    with pytest.raises(OttlaError, match="a right is about one of topic, group"):
        cluster.allow("alice", "Read", topic="orders", group="billing")
    with pytest.raises(OttlaError, match="there is a user 'bob' already"):
        cluster.add_user("bob")
    with pytest.raises(OttlaError, match="there is no broker 9"):
        cluster.expire_certificate(9)


def test_an_allowed_reader(cluster: OttlaCluster) -> None:
    topic = cluster.create_topic("for-bob")
    bob = cluster.user("bob").confluent_kafka()
    found = AdminClient(bob).list_topics(topic, timeout=30).topics[topic]
    assert found.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    cluster.allow("bob", "Read", topic=topic)
    assert AdminClient(bob).list_topics(topic, timeout=30).topics[topic].error is None
