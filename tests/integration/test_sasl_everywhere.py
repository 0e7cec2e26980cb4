"""Three brokers whose listeners all have SASL_SSL: their own requests, the control plane, a killed leader, the commands (CLI-5)."""

from __future__ import annotations

import socket
import ssl
import struct
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from protocol.tls import certificates_in
from tests.conftest import ClusterFactory
from tests.support.certificates import Certificates
from tests.support.cli import Cli
from tests.support.invariants import ZooKeeperView, eventually
from tests.support.secured import hands_leaderships_over, replaces_a_killed_leader
from tools.cluster.local_cluster import LocalCluster

pytestmark = pytest.mark.integration

SECRET = "the-secret-of-brokers"
ALICES = "the-secret-of-alice"
AT_ONCE_S = 10.0
REAUTH_MS = 4000
"""Less than the test: brokers log in again at each other."""
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def cluster(made: Certificates, new_module_cluster: ClusterFactory) -> LocalCluster:
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_SSL,CONTROLLER:SASL_SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(made.broker),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(made.authority),
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "plain.sasl.jaas.config": f'{PLAIN} username="broker" password="{SECRET}" user_broker="{SECRET}" user_eve="e";',
        "connections.max.reauth.ms": str(REAUTH_MS),
        "min.insync.replicas": "2",
        "zookeeper.session.timeout.ms": "30000",
    }
    return new_module_cluster(brokers=3, overrides=settings)


@pytest.fixture(scope="module")
def client(cluster: LocalCluster, made: Certificates) -> dict[str, Any]:
    """Settings of librdkafka, for a user whom the test creates."""
    given = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "security.protocol": "sasl_ssl",
        "ssl.ca.location": str(made.authority),
        "log_level": 0,
    }
    admin = AdminClient({**given, "sasl.mechanism": "PLAIN", "sasl.username": "broker", "sasl.password": SECRET})
    change = UserScramCredentialUpsertion(
        "alice", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), ALICES.encode()
    )
    admin.alter_user_scram_credentials([change])["alice"].result(30)
    return {**given, "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "alice", "sasl.password": ALICES}


def test_a_killed_leader_is_replaced_at_once_and_nothing_is_lost(
    cluster: LocalCluster, zk: ZooKeeperView, client: dict[str, Any]
) -> None:
    """CTL-16, and with it the control plane, the followers' fetches, and the watches of other brokers' processes, all by SASL_SSL."""
    replaces_a_killed_leader(cluster, zk, client)


def test_a_stopped_broker_hands_its_leaderships_over(
    cluster: LocalCluster, zk: ZooKeeperView, client: dict[str, Any]
) -> None:
    """STA-2: ControlledShutdown by SASL_SSL."""
    hands_leaderships_over(cluster, zk, client)


def test_transactions(cluster: LocalCluster, client: dict[str, Any]) -> None:
    """WriteTxnMarkers and the verification of transactions go from broker to broker."""
    topic = "transacted"
    admin = AdminClient(client)
    admin.create_topics([NewTopic(topic, 6, 3)])[topic].result(30)
    producer = Producer({**client, "transactional.id": "one"})
    producer.init_transactions(30)
    producer.begin_transaction()
    for partition in range(6):
        producer.produce(topic, b"committed", partition=partition)
    producer.commit_transaction(30)
    settings = {**client, "group.id": "t", "enable.auto.commit": False, "isolation.level": "read_committed"}
    with closing(Consumer(settings)) as consumer:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(6)])
        assert [message.value() for message in consumer.consume(6, 30)] == [b"committed"] * 6


def test_the_commands(cluster: LocalCluster, client: dict[str, Any], made: Certificates, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        f"security.protocol=SASL_SSL\nssl.truststore.type=PEM\nssl.truststore.location={made.authority}\n"
        f"sasl.mechanism=SCRAM-SHA-512\nsasl.username=alice\nsasl.password={ALICES}\n"
    )
    cli = Cli(cluster.bootstrap_servers, cluster.broker_ids)
    options = ("--command-config", str(file))
    cli.output("topic", "create", "commanded", "--replication-factor", "3", *options)
    assert "commanded" in cli.output("topic", "describe", "commanded", *options)
    settings = cli.output("config", "describe", "--entity-type", "brokers", "--entity-name", "1", *options)
    assert SECRET not in settings
    password = tmp_path / "password"
    password.write_text("of-dora\n")
    cli.output("user", "create", "dora", "--password-file", str(password), *options)
    assert "dora: SCRAM-SHA-512 (4096 iterations)" in cli.output("user", "list", *options)
    doras = tmp_path / "dora.properties"
    doras.write_text(file.read_text().replace("=alice", "=dora").replace(ALICES, "of-dora"))
    assert "commanded" in cli.output("topic", "list", "--command-config", str(doras))
    cli.output("user", "alter", "dora", "--iterations", "8192", "--password-file", str(password), *options)
    cli.output("user", "delete", "dora", *options)
    assert "dora" not in cli.output("user", "list", *options)


def test_only_brokers_get_through_to_the_control_plane(
    cluster: LocalCluster, zk: ZooKeeperView, made: Certificates
) -> None:
    lines = (cluster.broker_directory(1) / "server.properties").read_text().splitlines()
    (address,) = {
        part
        for line in lines
        if line.startswith("listeners=")
        for part in line[10:].split(",")
        if part.startswith("CONTROLLER")
    }
    port = int(address.rpartition(":")[2])
    context = ssl.create_default_context(cadata="".join(certificates_in(made.authority.read_text())))

    def said_to(*frames: bytes) -> list[bytes]:
        answers = []
        with socket.create_connection(("127.0.0.1", port)) as plain:
            plain.settimeout(20)
            with suppress(OSError), context.wrap_socket(plain, server_hostname="127.0.0.1") as wire:
                for frame in frames:
                    wire.sendall(struct.pack(">i", len(frame)) + frame)
                    head = wire.recv(4)
                    if len(head) < 4:
                        break
                    answers.append(wire.recv(int.from_bytes(head, "big")))
        return answers

    handshake = struct.pack(">hhihh", 17, 1, 1, -1, 5) + b"PLAIN"
    token = b"\0eve\0e"
    authenticate = struct.pack(">hhihi", 36, 1, 2, -1, len(token)) + token
    assert len(said_to(handshake, authenticate, b"")) == 1
    assert said_to(b"\0\0\0\1\x80") == []  # a request of the control plane without a login

    def log() -> str:
        return (cluster.broker_directory(1) / "server.log").read_text()

    eventually(lambda: "SASL login of user 'eve' failed: it is no broker" in log(), "the log says why", AT_ONCE_S)
    assert SECRET not in log()
