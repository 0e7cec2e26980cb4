"""SASL on a listener of real brokers: unmodified clients log in, users change while brokers run, wrong peers are told why (CLI-5)."""

from __future__ import annotations

import struct
import time
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from protocol.errors import ErrorCode
from protocol.kafka.api_keys import ApiKey
from protocol.scram import ScramClient
from tests.conftest import CALM, ClusterFactory
from tests.support.invariants import eventually
from tests.support.kafka_tools import KafkaTools
from tests.support.secured import more_listeners
from tests.support.wire import Wire
from tools.cluster.local_cluster import LocalCluster
from tools.cluster.ports import free_ports

pytestmark = pytest.mark.integration

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SECRET = "the-secret-of-alice"
SCRAM_SECRET = "the-secret,of=bob"
AT_ONCE_S = 10.0
REAUTH_MS = 1500


class Secured(NamedTuple):
    """A broker with a listener in the clear, and one with SASL_PLAINTEXT for clients."""

    cluster: LocalCluster
    port: int
    clear_port: int

    @property
    def clear(self) -> str:
        return f"127.0.0.1:{self.clear_port}"

    def client(self, mechanism: str = "PLAIN", user: str = "alice", password: str = SECRET) -> dict[str, Any]:
        """Settings of librdkafka."""
        return {
            "bootstrap.servers": f"127.0.0.1:{self.port}",
            "security.protocol": "sasl_plaintext",
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
            "log_level": 0,
        }

    def log(self) -> str:
        return (self.cluster.broker_directory(1) / "server.log").read_text()


def set_password(clear: str, user: str, mechanism: ScramMechanism, password: str, iterations: int = 4096) -> None:
    admin = AdminClient({"bootstrap.servers": clear, "log_level": 0})
    change = UserScramCredentialUpsertion(user, ScramCredentialInfo(mechanism, iterations), password.encode())
    for result in admin.alter_user_scram_credentials([change]).values():
        result.result(30)


@pytest.fixture(scope="module")
def secured(new_module_cluster: ClusterFactory) -> Secured:
    (port,) = free_ports(1)

    settings = {
        **CALM,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
        "listener.name.clients.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.clients.plain.sasl.jaas.config": f'{PLAIN} user_alice="{SECRET}" user_carol="c";',
        "listener.name.clients.scram-sha-512.connections.max.reauth.ms": str(REAUTH_MS),
    }
    cluster = new_module_cluster(brokers=1, overrides=settings, own_properties=more_listeners({"CLIENTS": {1: port}}))
    lines = (cluster.broker_directory(1) / "server.properties").read_text().splitlines()
    (clear,) = {
        part
        for line in lines
        if line.startswith("listeners=")
        for part in line[10:].split(",")
        if part[:9] == "PLAINTEXT"
    }
    secured = Secured(cluster, port, int(clear.rpartition(":")[2]))
    set_password(secured.clear, "bob", ScramMechanism.SCRAM_SHA_256, SCRAM_SECRET, 8192)
    set_password(secured.clear, "bob", ScramMechanism.SCRAM_SHA_512, SCRAM_SECRET)
    return secured


def create(secured: Secured, topic: str) -> str:
    admin = AdminClient(secured.client())
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    return topic


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_librdkafka(secured: Secured, mechanism: str) -> None:
    """With SCRAM-SHA-512, the client logs in again while it sends."""
    topic = create(secured, f"by-librdkafka-{mechanism}")
    who = ("alice", SECRET) if mechanism == "PLAIN" else ("bob", SCRAM_SECRET)
    client = secured.client(mechanism, *who)
    producer = Producer({**client, "linger.ms": 0})
    failed: list[object] = []
    ends = time.monotonic() + (3 * REAUTH_MS / 1000 if mechanism == "SCRAM-SHA-512" else 0)
    count = 0
    while not count or time.monotonic() < ends:
        producer.produce(topic, b"x", on_delivery=lambda error, _: failed.append(error) if error else None)
        assert producer.flush(30) == 0
        count += 1
    assert not failed
    with closing(Consumer({**client, "group.id": mechanism, "auto.offset.reset": "earliest"})) as consumer:
        consumer.subscribe([topic])
        read = consumer.consume(count, 30)
    assert [message.value() for message in read] == [b"x"] * count
    assert "has not logged in again in time" not in secured.log()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_kafka_python(secured: Secured, mechanism: str) -> None:
    from kafka import KafkaConsumer, KafkaProducer

    topic = create(secured, f"by-kafka-python-{mechanism}")
    user, password = ("alice", SECRET) if mechanism == "PLAIN" else ("bob", SCRAM_SECRET)
    given = {
        "bootstrap_servers": f"127.0.0.1:{secured.port}",
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": user,
        "sasl_plain_password": password,
    }
    with closing(KafkaProducer(**given)) as producer:
        producer.send(topic, b"hello").get(30)
    with closing(KafkaConsumer(topic, **given, auto_offset_reset="earliest", consumer_timeout_ms=30_000)) as consumer:
        assert next(iter(consumer)).value == b"hello"


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_aiokafka(secured: Secured, mechanism: str) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    topic = create(secured, f"by-aiokafka-{mechanism}")
    user, password = ("alice", SECRET) if mechanism == "PLAIN" else ("bob", SCRAM_SECRET)
    given: dict[str, Any] = {
        "bootstrap_servers": f"127.0.0.1:{secured.port}",
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": user,
        "sasl_plain_password": password,
    }
    async with AIOKafkaProducer(**given, acks="all") as producer:
        await producer.send_and_wait(topic, b"x" * 900_000)
    async with AIOKafkaConsumer(topic, **given, auto_offset_reset="earliest") as consumer:
        assert (await consumer.getone()).value == b"x" * 900_000


def handshake(wire: Wire, mechanism: str = "PLAIN") -> None:
    answer = wire.call(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": mechanism})
    assert (answer.error_code, answer.mechanisms) == (0, ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"))


def plain(user: str, password: str) -> dict[str, bytes]:
    return {"auth_bytes": f"\0{user}\0{password}".encode()}


REFUSED = "Authentication failed: Invalid username or password"


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("nobody", SECRET)])
def test_a_wrong_login_is_refused_after_a_delay(secured: Secured, version: int, user: str, password: str) -> None:
    with Wire(secured.port) as wire:
        handshake(wire)
        began = time.monotonic()
        answer = wire.call(ApiKey.SASL_AUTHENTICATE, version, plain(user, password))
        assert time.monotonic() - began >= 0.1
        assert (answer.error_code, answer.error_message) == (ErrorCode.SASL_AUTHENTICATION_FAILED, REFUSED)
        assert wire.is_closed_by_peer()


def test_who_has_logged_in_is_known(secured: Secured) -> None:
    """`CreateDelegationToken` says that there are no tokens, and to whom."""
    with Wire(secured.port) as wire:
        handshake(wire)
        assert wire.call(ApiKey.SASL_AUTHENTICATE, 2, plain("alice", SECRET)).error_code == 0
        owner = {"owner_principal_type": None, "owner_principal_name": None}
        answer = wire.call(ApiKey.CREATE_DELEGATION_TOKEN, 3, {**owner, "renewers": (), "max_lifetime": -1})
        assert answer.error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
        assert (answer.token_requester_principal_type, answer.token_requester_principal_name) == ("User", "alice")
        assert wire.call(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"}).error_code == ErrorCode.ILLEGAL_SASL_STATE


def test_bare_tokens_follow_an_old_handshake(secured: Secured) -> None:
    with Wire(secured.port) as wire:
        assert wire.call(ApiKey.SASL_HANDSHAKE, 0, {"mechanism": "PLAIN"}).error_code == 0
        token = plain("alice", SECRET)["auth_bytes"]
        wire.send_raw(struct.pack(">i", len(token)) + token)
        assert wire.receive_frame() == b""
        assert wire.call(ApiKey.METADATA, 1, {"topics": ()}).brokers
    with Wire(secured.port) as wire:
        assert wire.call(ApiKey.SASL_HANDSHAKE, 0, {"mechanism": "PLAIN"}).error_code == 0
        wire.send_raw(struct.pack(">i", 3) + b"\0a\0")
        assert wire.is_closed_by_peer()


def test_another_mechanism_gets_the_list(secured: Secured) -> None:
    with Wire(secured.port) as wire:
        answer = wire.call(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "GSSAPI"})
        assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert answer.mechanisms == ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
        assert wire.is_closed_by_peer()


def test_nothing_but_versions_comes_before_the_login(secured: Secured) -> None:
    with Wire(secured.port) as wire:
        assert wire.call(ApiKey.API_VERSIONS, 0, {}).error_code == 0
        wire.send(ApiKey.METADATA, 1, {"topics": None})
        assert wire.is_closed_by_peer()
    with Wire(secured.port) as wire:
        wire.send_raw(struct.pack(">i", 16 * 1024 + 1))
        assert wire.is_closed_by_peer()
    said = "allowed are 1 to 16384 (sasl.server.max.receive.size)"
    eventually(lambda: said in secured.log(), said, AT_ONCE_S)
    with Wire(secured.port) as wire:
        wire.send_raw(bytes.fromhex("160301020001000100"))
        assert wire.is_closed_by_peer()


def test_a_login_that_is_not_renewed_ends_at_the_next_request(secured: Secured) -> None:
    with Wire(secured.port) as wire:
        handshake(wire, "SCRAM-SHA-512")
        scram = ScramClient("SCRAM-SHA-512", "bob", SCRAM_SECRET, "nonce")
        first = wire.call(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": scram.first()})
        last = wire.call(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": scram.final(first.auth_bytes)})
        scram.check(last.auth_bytes)
        assert last.session_lifetime.total_seconds() == REAUTH_MS / 1000
        assert wire.call(ApiKey.METADATA, 1, {"topics": ()}).brokers
        time.sleep(REAUTH_MS / 1000)  # nothing happens at the end of this time: the broker looks at the next request
        wire.send(ApiKey.METADATA, 1, {"topics": ()})
        assert wire.is_closed_by_peer()
    said = "User:bob has not logged in again in time (connections.max.reauth.ms, or"
    eventually(lambda: said in secured.log(), said, AT_ONCE_S)


def test_users_change_while_brokers_run(secured: Secured) -> None:
    def logs_in(password: str, mechanism: str = "SCRAM-SHA-256") -> bool:
        try:
            AdminClient(secured.client(mechanism, "dora", password)).list_topics(timeout=3)
        except KafkaException:
            return False
        return True

    assert not logs_in("first")
    set_password(secured.clear, "dora", ScramMechanism.SCRAM_SHA_256, "first")
    assert logs_in("first")
    assert not logs_in("first", "SCRAM-SHA-512")
    set_password(secured.clear, "dora", ScramMechanism.SCRAM_SHA_256, "second")
    assert logs_in("second")
    assert not logs_in("first")
    admin = AdminClient({"bootstrap.servers": secured.clear, "log_level": 0})
    described = admin.describe_user_scram_credentials(["dora"])["dora"].result(30)
    assert [(str(one.mechanism), one.iterations) for one in described.scram_credential_infos] == [
        (str(ScramMechanism.SCRAM_SHA_256), 4096)
    ]
    gone = admin.alter_user_scram_credentials([UserScramCredentialDeletion("dora", ScramMechanism.SCRAM_SHA_256)])
    gone["dora"].result(30)
    assert not logs_in("second")


def test_a_removed_user_cannot_renew_its_login(secured: Secured) -> None:
    set_password(secured.clear, "gina", ScramMechanism.SCRAM_SHA_512, "of-gina")

    def login(wire: Wire) -> int:
        handshake(wire, "SCRAM-SHA-512")
        scram = ScramClient("SCRAM-SHA-512", "gina", "of-gina", "nonce")
        first = wire.call(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": scram.first()})
        return int(wire.call(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": scram.final(first.auth_bytes)}).error_code)

    with Wire(secured.port) as wire:
        assert login(wire) == 0
        admin = AdminClient({"bootstrap.servers": secured.clear, "log_level": 0})
        gone = admin.alter_user_scram_credentials([UserScramCredentialDeletion("gina", ScramMechanism.SCRAM_SHA_512)])
        gone["gina"].result(30)

        def is_refused() -> bool:
            with Wire(secured.port) as new:
                return login(new) == ErrorCode.SASL_AUTHENTICATION_FAILED

        eventually(is_refused, "a new login is refused", AT_ONCE_S)
        time.sleep(1)  # a connection may log in again once in this time
        assert login(wire) == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert wire.is_closed_by_peer()


def test_what_is_wrong_is_in_the_log_and_passwords_are_nowhere(secured: Secured) -> None:
    with Wire(secured.port) as wire:
        handshake(wire)
        wire.call(ApiKey.SASL_AUTHENTICATE, 2, plain("mallory", "guess-of-mallory"))
    said = "SASL login of 127.0.0.1 on CLIENTS failed: user 'mallory' by PLAIN: there is no such user"
    eventually(lambda: said in secured.log() or "earlier logins" in secured.log(), said, AT_ONCE_S)
    resource = {"resource_type": 4, "resource_name": "1", "configuration_keys": None}
    with Wire(secured.clear_port) as wire:
        body = {"resources": [resource], "include_synonyms": True, "include_documentation": True}
        answer = wire.call(ApiKey.DESCRIBE_CONFIGS, 4, body)
    assert SECRET not in repr(answer)
    directory = secured.cluster.broker_directory(1)
    left = [path for path in directory.rglob("*") if path.is_file() and path.name != "server.properties"]
    assert directory / "server.log" in left
    for path in left:
        content = path.read_bytes()
        for secret in (SECRET, SCRAM_SECRET, "guess-of-mallory"):
            assert secret.encode() not in content, path


@pytest.mark.kafka
def test_kafkas_own_tools(secured: Secured, kafka_tools: KafkaTools, tmp_path: Path) -> None:
    """`kafka-configs` makes a user by our API, and another one in ZooKeeper; Kafka's Java client logs in as each."""
    alter = ("--alter", "--entity-type", "users", "--entity-name")
    kafka_tools.configs(
        secured.clear, *alter, "erin", "--add-config", "SCRAM-SHA-256=[iterations=8192,password=of-erin]"
    )
    where = ("--zookeeper", secured.cluster.zookeeper_connect)
    user = "CN=frank, O=x"
    kafka_tools.run(
        "kafka.admin.ConfigCommand", *where, *alter, user, "--add-config", "SCRAM-SHA-512=[password=of-frank]"
    )
    for mechanism, module, user, password in (
        ("SCRAM-SHA-256", "scram.Scram", "erin", "of-erin"),
        ("SCRAM-SHA-512", "scram.Scram", "CN=frank, O=x", "of-frank"),
        ("PLAIN", "plain.Plain", "alice", SECRET),
    ):
        file = tmp_path / "client.properties"
        file.write_text(
            f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\n"
            f"sasl.jaas.config=org.apache.kafka.common.security.{module}LoginModule required "
            f'username="{user}" password="{password}";\n'
        )
        kafka_tools.topics(f"127.0.0.1:{secured.port}", "--list", "--command-config", str(file))
