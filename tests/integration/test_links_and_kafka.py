"""`ottla links` before a real Kafka: its clients feel the same rules, and none goes around it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from tests.support.cli import Cli, ottla
from tests.support.invariants import eventually
from tests.support.kafka_tools import KafkaTools
from tests.support.links import links_before
from tests.support.topics import new_topic
from tools.faults.proxied import ProxiedCluster
from tools.faults.request_hits import request_hits

pytestmark = pytest.mark.integration
COUNT = 20
RULES = (
    "answer produce of topic {topic} with NOT_LEADER_OR_FOLLOWER 2 times",
    "answer metadata with the leaders of 1s ago once",
    "lose the answer to produce of topic {topic} once and cut",
    "delay fetch of topic {topic} by 100ms 3 times",
    "cut the connection in the middle of the answer to fetch of topic {topic} once",
    "garble the answer to fetch of topic {topic} once",
    "answer find-coordinator with COORDINATOR_NOT_AVAILABLE once",
    "throttle produce of topic {topic} by 100ms once",
)


@pytest.fixture(scope="module")
def links(shared_kafka: Cli, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with links_before(shared_kafka.bootstrap_servers, tmp_path_factory.mktemp("links") / "dir") as directory:
        yield directory


def test_clients_are_told_of_no_way_around(links: Path, shared_kafka: Cli) -> None:
    cluster = ProxiedCluster(links)
    told = AdminClient({"bootstrap.servers": cluster.bootstrap_servers}).list_topics(timeout=30).brokers
    assert tuple(sorted(told)) == cluster.broker_ids == tuple(shared_kafka.broker_ids)
    assert not {broker.port for broker in told.values()} & {cluster.address(broker)[1] for broker in cluster.broker_ids}


@pytest.mark.parametrize("line", RULES)
def test_a_rule_is_felt_and_nothing_is_lost(links: Path, line: str) -> None:
    servers = ProxiedCluster(links).bootstrap_servers
    topic = new_topic(servers, replicas=3)
    done = ottla(f"fault {line.format(topic=topic)} --links {links}")
    assert done.exit_code == 0, done.output
    before = request_hits(links).total()
    try:
        producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "socket.timeout.ms": 3000})
        for number in range(COUNT):
            producer.produce(topic, f"value {number}")
        assert producer.flush(60) == 0
        consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": f"group-{uuid.uuid4().hex[:8]}",
                "auto.offset.reset": "earliest",
                "check.crcs": True,
            }
        )
        try:
            consumer.subscribe([topic])
            found: set[str] = set()

            def all_are_there() -> bool:
                while (message := consumer.poll(0.2)) is not None:
                    if not message.error():
                        found.add(message.value().decode())
                return len(found) == COUNT

            eventually(all_are_there, "the records are read", timeout_s=60)
        finally:
            consumer.close()
        assert request_hits(links).total() > before
    finally:
        assert ottla(f"fault heal --links {links}").exit_code == 0


def test_kafkas_own_tools_work_through_the_links(links: Path, kafka_tools: KafkaTools) -> None:
    servers = ProxiedCluster(links).bootstrap_servers
    topic = new_topic(servers, partitions=3, replicas=3)
    assert f"Topic: {topic}\tPartition: 2" in kafka_tools.topics(servers, "--describe", "--topic", topic)
    assert "all consumer groups" not in kafka_tools.groups(servers, "--list")
