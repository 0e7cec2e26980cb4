"""SASL OAUTHBEARER on every listener of real brokers: signed tokens of an issuer, unsecured ones for tests, unmodified clients (CLI-5)."""

from __future__ import annotations

import re
import time
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conftest import CALM, ClusterFactory
from tests.support.cli import Cli
from tests.support.invariants import eventually
from tests.support.kafka_tools import KafkaTools
from tests.support.secured import more_listeners
from tests.support.tokens import LIFETIME_S, Issuer
from tools.cluster.local_cluster import LocalCluster
from tools.cluster.ports import free_ports

pytestmark = pytest.mark.integration

HANDLERS = "org.apache.kafka.common.security.oauthbearer"
MODULE = f"{HANDLERS}.OAuthBearerLoginModule required"
SHORT_S = 3


class Issued(NamedTuple):
    """Two brokers that take signed tokens, also among themselves, and a listener for each that takes unsecured ones."""

    cluster: LocalCluster
    issuer: Issuer
    ports: list[int]

    def client(self, user: str, seconds: float = LIFETIME_S, **claims: Any) -> dict[str, Any]:
        """Settings of librdkafka. Each login has a new token."""
        return {
            "bootstrap.servers": self.signed,
            "security.protocol": "sasl_plaintext",
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": lambda _: (self.issuer.token(user, seconds, **claims), time.time() + seconds),
            "log_level": 0,
        }

    @property
    def signed(self) -> str:
        """The addresses of the listeners that take signed tokens."""
        files = (self.cluster.broker_directory(broker) / "server.properties" for broker in self.cluster.broker_ids)
        found = (
            re.search(r"^listeners=.*PLAINTEXT://(127.0.0.1:\d+)", file.read_text(), re.MULTILINE) for file in files
        )
        return ",".join(one[1] for one in found if one is not None)

    @property
    def unsecured(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def lines(self, name: str) -> str:
        files = (self.cluster.broker_directory(broker) / name for broker in self.cluster.broker_ids)
        return "".join(file.read_text() for file in files if file.exists())


@pytest.fixture(scope="module")
def issued(new_module_cluster: ClusterFactory, tmp_path_factory: pytest.TempPathFactory) -> Issued:
    issuer = Issuer(tmp_path_factory.mktemp("issuer"))
    of_brokers = issuer.token_file("token", issuer.token("node"))
    ports = free_ports(2)
    settings = {
        **CALM,
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT,OPEN:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        "inter.broker.listener.name": "PLAINTEXT",
        **issuer.settings(),
        "sasl.oauthbearer.token.endpoint.url": of_brokers.as_uri(),
        "sasl.oauthbearer.clock.skew.seconds": "0",
        "listener.name.open.oauthbearer.sasl.server.callback.handler.class": (
            f"{HANDLERS}.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
        ),
        "listener.name.open.oauthbearer.sasl.jaas.config": (
            f'{MODULE} unsecuredLoginStringClaim_sub="node" unsecuredValidatorAllowableClockSkewMs="3000";'
        ),
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:node;User:alice",
    }
    cluster = new_module_cluster(
        brokers=2, overrides=settings, own_properties=more_listeners({"OPEN": dict(enumerate(ports, 1))})
    )
    issued = Issued(cluster, issuer, ports)
    admin = AdminClient(issued.client("alice"))
    admin.create_topics([NewTopic("orders", 2, 2)])["orders"].result(30)
    return issued


def produce(settings: dict[str, Any], *values: bytes) -> None:
    failed: list[object] = []
    producer = Producer({**settings, "acks": "all"})
    for value in values:
        producer.produce("orders", value, on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(30) == 0
    assert not failed


def test_librdkafka_with_signed_tokens(issued: Issued) -> None:
    """Brokers replicate with a token of their own (acks=all); a user without rights has none."""
    produce(issued.client("alice"), *(b"%d" % number for number in range(10)))
    with closing(Consumer({**issued.client("alice"), "group.id": "g", "auto.offset.reset": "earliest"})) as consumer:
        consumer.subscribe(["orders"])
        read = consumer.consume(10, 30)
    assert sorted(message.value() for message in read) == [b"%d" % number for number in range(10)]
    assert AdminClient(issued.client("bob")).list_topics(timeout=20).topics == {}


def test_tokens_that_end_while_a_producer_sends(issued: Issued) -> None:
    """KIP-368: librdkafka logs in again, with a new token."""
    client = issued.client("alice", SHORT_S)
    producer = Producer({**client, "linger.ms": 0})
    failed: list[object] = []
    ends = time.monotonic() + 2.5 * SHORT_S
    while time.monotonic() < ends:
        producer.produce("orders", b"x", on_delivery=lambda error, _: failed.append(error) if error else None)
        assert producer.flush(30) == 0
    assert not failed


@pytest.mark.parametrize("claims", [{"aud": "others"}, {"iss": "https://them"}, {"exp": 1}], ids=str)
def test_wrong_tokens(issued: Issued, claims: dict[str, Any]) -> None:
    errors: list[KafkaError] = []
    client = AdminClient({**issued.client("alice", **claims), "error_cb": errors.append})

    def is_refused() -> bool:
        client.poll(0.1)
        return any(error.code() == KafkaError._AUTHENTICATION for error in errors)

    eventually(is_refused, "the login fails", 20)
    assert any("invalid_token" in error.str() for error in errors)
    said = '"mechanism":"OAUTHBEARER","reason":"the token'
    eventually(lambda: said in issued.lines("audit.jsonl"), said, 20)
    assert "eyJ" not in issued.lines("audit.jsonl") + issued.lines("server.log"), "a token is a secret"


def test_librdkafka_with_unsecured_tokens(issued: Issued) -> None:
    settings = {
        "bootstrap.servers": issued.unsecured,
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "OAUTHBEARER",
        "enable.sasl.oauthbearer.unsecure.jwt": True,
        "sasl.oauthbearer.config": "principal=alice",
        "log_level": 0,
    }
    produce(settings, b"unsecured")
    errors: list[KafkaError] = []
    client = AdminClient({**settings, "bootstrap.servers": issued.signed, "error_cb": errors.append})

    def is_refused() -> bool:
        client.poll(0.1)
        return any("invalid_token" in error.str() for error in errors)

    eventually(is_refused, "a listener for signed tokens refuses it", 20)


def test_kafka_python(issued: Issued) -> None:
    from kafka import KafkaConsumer, KafkaProducer
    from kafka.net.sasl.oauth import AbstractTokenProvider

    class Provider(AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            return issued.issuer.token("alice")

    given = {
        "bootstrap_servers": issued.signed,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": Provider(),
    }
    with closing(KafkaProducer(**given)) as producer:
        sent = producer.send("orders", b"hello", partition=0).get(30)
    with closing(KafkaConsumer(**given, consumer_timeout_ms=30_000)) as consumer:
        from kafka import TopicPartition

        consumer.assign([TopicPartition("orders", 0)])
        consumer.seek(TopicPartition("orders", 0), sent.offset)
        assert next(iter(consumer)).value == b"hello"


async def test_aiokafka(issued: Issued) -> None:
    from aiokafka import AIOKafkaProducer
    from aiokafka.abc import AbstractTokenProvider

    class Provider(AbstractTokenProvider):  # type: ignore[misc]
        async def token(self) -> str:
            return issued.issuer.token("alice")

    producer = AIOKafkaProducer(
        bootstrap_servers=issued.signed,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=Provider(),
    )
    await producer.start()
    try:
        await producer.send_and_wait("orders", b"hello")
    finally:
        await producer.stop()


def test_commands(issued: Issued, tmp_path: Path) -> None:
    """`ottla` reads its token from a file, and librdkafka gets it from there."""
    (tmp_path / "token").write_text(issued.issuer.token("alice"))
    config = tmp_path / "client.properties"
    config.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n"
        f"sasl.oauthbearer.token.endpoint.url={(tmp_path / 'token').as_uri()}\n"
    )
    cli = Cli(issued.signed, list(issued.cluster.broker_ids))
    access = ("--command-config", str(config))
    cli.output("topic", "create", "by-command", *access)
    assert cli.run("produce", "by-command", *access, stdin="hello\n").returncode == 0
    assert "hello" in cli.run("consume", "by-command", "--from-beginning", "--exit-at-end", *access).stdout
    (tmp_path / "token").write_text(issued.issuer.token("alice", aud="others"))
    assert 'it refuses the token: {"status":"invalid_token"}' in cli.failure("topic", "list", *access)


@pytest.mark.kafka
def test_kafkas_own_tools(issued: Issued, kafka_tools: KafkaTools, tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n"
        f'sasl.jaas.config={MODULE} unsecuredLoginStringClaim_sub="alice";\n'
    )
    listed = kafka_tools.run(
        "org.apache.kafka.tools.TopicCommand",
        "--bootstrap-server",
        issued.unsecured,
        "--list",
        "--command-config",
        str(config),
    )
    assert "orders" in listed
