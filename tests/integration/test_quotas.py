"""Quotas on real brokers with unmodified clients: they wait, and nothing is lost (CLI-6). Kafka's tool changes and shows them."""

from __future__ import annotations

import time
from contextlib import closing

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, KafkaProducer

from tests.conftest import ClusterFactory
from tests.integration.conftest import cli_of
from tests.support.invariants import ZooKeeperView
from tests.support.kafka_tools import KafkaTools
from tests.support.quotas import CLIENT_ID, USER, Side
from tests.support.secured import replaces_a_killed_leader
from tools.admin.bootstrap import addresses_of
from tools.cluster.local_cluster import LocalCluster

pytestmark = pytest.mark.integration

RATE = 400_000
RECORDS, SIZE = 3000, 1000
WINDOW_S = 2
"""Of full samples: so much may be used at once."""


@pytest.fixture(scope="module")
def cluster(new_module_cluster: ClusterFactory) -> LocalCluster:
    settings = {
        "quota.window.num": str(WINDOW_S + 1),
        "min.insync.replicas": "2",
        "zookeeper.session.timeout.ms": "30000",
    }
    return new_module_cluster(brokers=3, overrides=settings)


@pytest.fixture(scope="module")
def side(cluster: LocalCluster) -> Side:
    return Side(addresses_of(cluster.bootstrap_servers)[0][1])


@pytest.fixture(scope="module")
def filled(cluster: LocalCluster) -> str:
    """A topic of one partition with RECORDS records."""
    topic = "filled"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 1, 3)])[topic].result(30)
    with closing(KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, client_id="filler")) as producer:
        for number in range(RECORDS):
            producer.send(topic, str(number).encode().ljust(SIZE))
        producer.flush(60)
    return topic


def seconds_for(count: int) -> float:
    """How long it takes at least to produce or fetch so many records within the quota."""
    return max(0.0, count * SIZE / RATE - WINDOW_S) * 0.8


def test_a_throttled_producer_loses_nothing_when_its_leader_is_killed(
    cluster: LocalCluster, side: Side, zk: ZooKeeperView
) -> None:
    side.set({CLIENT_ID: "slow"}, producer_byte_rate=RATE)
    began = time.monotonic()
    replaces_a_killed_leader(cluster, zk, {"bootstrap.servers": cluster.bootstrap_servers, "client.id": "slow"})
    assert time.monotonic() - began > seconds_for(2000), "one of three leaders has a third of the 6,000 records"


def test_a_throttled_consumer_reads_everything(cluster: LocalCluster, side: Side, filled: str) -> None:
    """librdkafka, which has no fetch sessions."""
    side.set({CLIENT_ID: "reader"}, consumer_byte_rate=RATE)
    began = time.monotonic()
    settings = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "client.id": "reader",
        "group.id": "r",
        "enable.auto.commit": False,
        "fetch.message.max.bytes": 200_000,
    }
    with closing(Consumer(settings)) as consumer:
        consumer.assign([TopicPartition(filled, 0, OFFSET_BEGINNING)])
        read = [message.value() for _ in range(RECORDS) if (message := consumer.poll(30)) and not message.error()]
    assert [int(value) for value in read] == list(range(RECORDS))
    assert time.monotonic() - began > seconds_for(RECORDS)


def test_a_throttled_member_of_a_group_stays_in_it(cluster: LocalCluster, side: Side, filled: str) -> None:
    """kafka-python, with sessions of fetches and of its group."""
    side.set({CLIENT_ID: "member"}, consumer_byte_rate=RATE)
    began = time.monotonic()
    consumer = KafkaConsumer(
        filled,
        bootstrap_servers=cluster.bootstrap_servers,
        client_id="member",
        group_id="g",
        auto_offset_reset="earliest",
        consumer_timeout_ms=20_000,
        max_partition_fetch_bytes=200_000,
        session_timeout_ms=6000,
        heartbeat_interval_ms=1000,
    )
    with closing(consumer):
        read = [int(next(consumer).value) for _ in range(RECORDS)]
    assert read == list(range(RECORDS))
    assert time.monotonic() - began > seconds_for(RECORDS)


def test_kafka_configs_changes_and_shows_quotas(cluster: LocalCluster, side: Side, kafka_tools: KafkaTools) -> None:
    servers = cluster.bootstrap_servers
    quotas = "producer_byte_rate=1024,consumer_byte_rate=2048"
    scram = "SCRAM-SHA-256=[iterations=8192,password=alice-secret]"
    alice = ("--entity-type", "users", "--entity-name", "alice")
    kafka_tools.configs(servers, "--alter", *alice, "--add-config", scram)
    kafka_tools.configs(servers, "--alter", *alice, "--add-config", quotas)
    kafka_tools.configs(
        servers,
        "--alter",
        *alice,
        "--entity-type",
        "clients",
        "--entity-default",
        "--add-config",
        "request_percentage=50",
    )
    kafka_tools.configs(servers, "--alter", "--entity-type", "clients", "--entity-name", "app", "--add-config", quotas)
    kafka_tools.configs(
        servers, "--alter", "--entity-type", "ips", "--entity-default", "--add-config", "connection_creation_rate=1000"
    )
    users = kafka_tools.configs(servers, "--describe", "--entity-type", "users")
    assert "Quota configs for user-principal 'alice' are consumer_byte_rate=2048.0, producer_byte_rate=1024.0" in users
    assert "SCRAM credential configs for user-principal 'alice' are SCRAM-SHA-256=iterations=8192" in users
    both = kafka_tools.configs(servers, "--describe", *alice, "--entity-type", "clients")
    assert "Quota configs for user-principal 'alice', the default client-id are request_percentage=50.0" in both
    assert "client-id 'app'" in kafka_tools.configs(servers, "--describe", "--entity-type", "clients")
    ips = kafka_tools.configs(servers, "--describe", "--entity-type", "ips")
    assert "Quota configs for the default ip are connection_creation_rate=1000.0" in ips
    kafka_tools.configs(servers, "--alter", *alice, "--delete-config", "producer_byte_rate,consumer_byte_rate")
    left = kafka_tools.configs(servers, "--describe", "--entity-type", "users", "--entity-name", "alice")
    assert "Quota" not in left
    assert "SCRAM-SHA-256=iterations=8192" in left
    for entity in ({USER: "alice", CLIENT_ID: None}, {CLIENT_ID: "app"}):
        side.alter(entity, request_percentage=None, producer_byte_rate=None, consumer_byte_rate=None)
    side.alter({"ip": None}, connection_creation_rate=None)


def test_the_command(cluster: LocalCluster) -> None:
    cli = cli_of(cluster)
    cli.output("quota", "set", "--client-id", "commanded", "producer_byte_rate=1048576")
    cli.output("quota", "set", "--user", "bob", "--client-defaults", "request_percentage=12.5")
    assert "client-id 'commanded': producer_byte_rate=1048576\n" in cli.output("quota", "list")
    assert cli.output("quota", "list", "--user", "bob", "--client-defaults") == (
        "user 'bob' with every other client-id: request_percentage=12.5\n"
    )
    assert "no number" not in cli.failure("quota", "set", "--client-id", "commanded", "producer_byte_rate=1.5")
    for entity in (("--client-id", "commanded"), ("--user", "bob", "--client-defaults")):
        cli.output("quota", "remove", *entity)
        assert cli.output("quota", "list", *entity) == "No quotas.\n"
