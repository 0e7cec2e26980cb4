"""TLS on every listener of real brokers: their own requests, unmodified clients, a killed leader, wrong peers (CLI-5)."""

from __future__ import annotations

import re
import socket
import ssl
import struct
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka.admin import AdminClient

from protocol.errors import ErrorCode
from protocol.kafka.api_keys import ApiKey
from tests.conftest import CALM, ClusterFactory
from tests.support.certificates import KEY_PASSWORD, Certificates
from tests.support.cli import Cli
from tests.support.invariants import ZooKeeperView, eventually
from tests.support.secured import create, hands_leaderships_over, more_listeners, replaces_a_killed_leader
from tests.support.wire import Wire
from tools.cluster.local_cluster import LocalCluster
from tools.cluster.log_parts import events_of
from tools.cluster.ports import free_ports
from tools.cluster.processes import ClusterError

pytestmark = pytest.mark.integration

STORE_PASSWORD = "opens-the-store"
AT_ONCE_S = 10.0
SESSION_MS = 30_000


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def everywhere(made: Certificates) -> dict[str, str]:
    """Settings: all listeners have TLS and want a certificate of everybody."""
    return {
        "listener.security.protocol.map": "PLAINTEXT:SSL,CONTROLLER:SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(made.broker),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(made.authority),
        "ssl.client.auth": "required",
    }


@pytest.fixture(scope="module")
def cluster(made: Certificates, new_module_cluster: ClusterFactory) -> LocalCluster:
    settings = {**everywhere(made), "min.insync.replicas": "2", "zookeeper.session.timeout.ms": str(SESSION_MS)}
    return new_module_cluster(brokers=3, overrides=settings)


@pytest.fixture(scope="module")
def client(cluster: LocalCluster, made: Certificates) -> dict[str, Any]:
    """Settings of librdkafka."""
    return {
        "bootstrap.servers": cluster.bootstrap_servers,
        "security.protocol": "ssl",
        "ssl.ca.location": str(made.authority),
        "ssl.certificate.location": str(made.client.with_suffix(".crt")),
        "ssl.key.location": str(made.client),
        "ssl.key.password": KEY_PASSWORD,
        "log_level": 0,
    }


def test_a_killed_leader_is_replaced_at_once_and_nothing_is_lost(
    cluster: LocalCluster, zk: ZooKeeperView, client: dict[str, Any]
) -> None:
    """CTL-16, and with it the control plane, the followers' fetches, and the watches of other brokers' processes, all by TLS."""
    replaces_a_killed_leader(cluster, zk, client)


def test_a_stopped_broker_hands_its_leaderships_over(
    cluster: LocalCluster, zk: ZooKeeperView, client: dict[str, Any]
) -> None:
    """STA-2: ControlledShutdown by TLS."""
    hands_leaderships_over(cluster, zk, client)


async def test_aiokafka(cluster: LocalCluster, client: dict[str, Any], made: Certificates) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka.helpers import create_ssl_context

    context = create_ssl_context(
        cafile=str(made.authority),
        certfile=str(made.client.with_suffix(".crt")),
        keyfile=str(made.client),
        password=KEY_PASSWORD,
    )
    topic = create(client, "aio", 1)
    given: dict[str, Any] = {
        "bootstrap_servers": cluster.bootstrap_servers,
        "security_protocol": "SSL",
        "ssl_context": context,
    }
    async with AIOKafkaProducer(**given, acks="all") as producer:
        await producer.send_and_wait(topic, b"x" * 900_000)
    async with AIOKafkaConsumer(topic, **given, auto_offset_reset="earliest") as consumer:
        assert (await consumer.getone()).value == b"x" * 900_000


def test_kafka_python(cluster: LocalCluster, client: dict[str, Any], made: Certificates) -> None:
    from kafka import KafkaConsumer, KafkaProducer

    topic = create(client, "pure", 1)
    given = {
        "bootstrap_servers": cluster.bootstrap_servers,
        "security_protocol": "SSL",
        "ssl_cafile": str(made.authority),
        "ssl_certfile": str(made.client.with_suffix(".crt")),
        "ssl_keyfile": str(made.client),
        "ssl_password": KEY_PASSWORD,
    }
    with closing(KafkaProducer(**given)) as producer:
        producer.send(topic, b"hello").get(30)
    with closing(KafkaConsumer(topic, **given, auto_offset_reset="earliest", consumer_timeout_ms=30_000)) as consumer:
        assert next(iter(consumer)).value == b"hello"


def test_a_client_is_known_by_the_subject_of_its_certificate(cluster: LocalCluster, made: Certificates) -> None:
    """`CreateDelegationToken` says that there are no tokens, and to whom."""
    host, _, port = cluster.bootstrap_servers.partition(",")[0].partition(":")
    context = ssl.create_default_context(cafile=str(made.authority))
    context.load_cert_chain(made.client.with_suffix(".crt"), made.client, KEY_PASSWORD)
    with Wire(int(port), host) as wire:
        wire.socket = context.wrap_socket(wire.socket, server_hostname=host)
        owner = {"owner_principal_type": None, "owner_principal_name": None}
        answer = wire.call(ApiKey.CREATE_DELEGATION_TOKEN, 3, {**owner, "renewers": (), "max_lifetime": -1})
    assert answer.error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    assert (answer.token_requester_principal_type, answer.token_requester_principal_name) == ("User", "CN=client")


def test_the_commands(cluster: LocalCluster, made: Certificates, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        f"security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location={made.authority}\n"
        f"ssl.keystore.type=PEM\nssl.keystore.location={made.client}\nssl.key.password={KEY_PASSWORD}\n"
    )
    cli = Cli(cluster.bootstrap_servers, cluster.broker_ids)
    options = ("--command-config", str(file))
    cli.output("topic", "create", "commanded", "--replication-factor", "3", *options)
    assert "commanded" in cli.output("topic", "describe", "commanded", *options)
    settings = cli.output("config", "describe", "--entity-type", "brokers", "--entity-name", "1", *options)
    assert KEY_PASSWORD not in settings


def log_of(cluster: LocalCluster) -> str:
    return "".join((cluster.broker_directory(b) / "server.log").read_text() for b in cluster.broker_ids)


class Mixed(NamedTuple):
    """A broker with a listener of each kind."""

    cluster: LocalCluster
    tls_port: int
    clear_port: int


@pytest.fixture
def mixed(made: Certificates, new_cluster: ClusterFactory) -> Mixed:
    """A broker with a second listener, of TLS, with a store of type PKCS12."""
    pytest.importorskip("cryptography")
    from tools.cluster.ports import free_ports

    (port,) = free_ports(1)

    settings = {
        **CALM,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,OUTSIDE:SSL",
        "listener.name.outside.ssl.keystore.type": "PKCS12",
        "listener.name.outside.ssl.keystore.location": str(made.pkcs12("broker", STORE_PASSWORD)),
        "listener.name.outside.ssl.keystore.password": STORE_PASSWORD,
        "ssl.key.password": STORE_PASSWORD,
    }
    cluster = new_cluster(brokers=1, overrides=settings, own_properties=more_listeners({"OUTSIDE": {1: port}}))
    lines = (cluster.broker_directory(1) / "server.properties").read_text().splitlines()
    (clear,) = {
        part
        for line in lines
        if line.startswith("listeners=")
        for part in line[10:].split(",")
        if part[:9] == "PLAINTEXT"
    }
    return Mixed(cluster, port, int(clear.rpartition(":")[2]))


def test_wrong_peers_are_named_and_secrets_are_not(mixed: Mixed, made: Certificates) -> None:
    cluster, port, clear_port = mixed
    settings = {"security.protocol": "ssl", "ssl.ca.location": str(made.authority), "log_level": 0}
    tls = {**settings, "bootstrap.servers": f"127.0.0.1:{port}"}
    assert AdminClient(tls).list_topics(timeout=30).brokers[1].port == port

    with socket.create_connection(("127.0.0.1", port)) as clear:
        clear.sendall(struct.pack(">ihhih", 10, 18, 3, 1, -1))
        clear.settimeout(30)
        with suppress(ConnectionResetError):
            assert len(clear.recv(1000)) < 100
    said = "TLS handshake of 127.0.0.1 on OUTSIDE failed: it sent no TLS: a client of this listener needs security.protocol=SSL"
    eventually(lambda: said in log_of(cluster), said, AT_ONCE_S)
    audited = '"kind":"handshake_refused","address":"127.0.0.1","listener":"OUTSIDE","reason":"it sent no TLS: '
    audit_log = cluster.broker_directory(1) / "audit.jsonl"
    eventually(lambda: audit_log.exists() and audited in audit_log.read_text(), audited, AT_ONCE_S)

    host = "127.0.0.1"
    context = ssl.create_default_context(cafile=str(made.authority))
    with socket.create_connection((host, clear_port)) as plain, pytest.raises(OSError):
        context.wrap_socket(plain, server_hostname=host)
    said = "a TLS handshake, and this listener has no TLS: it needs security.protocol=PLAINTEXT"
    eventually(lambda: said in log_of(cluster), said, AT_ONCE_S)

    with Wire(clear_port) as wire:
        resource = {"resource_type": 4, "resource_name": "1", "configuration_keys": None}
        body = {"resources": [resource], "include_synonyms": True, "include_documentation": False}
        (answer,) = wire.call(ApiKey.DESCRIBE_CONFIGS, 4, body).results
    rows = {row.name: row for row in answer.configs}
    secret = rows["ssl.key.password"]
    assert (secret.value, secret.is_sensitive, secret.config_type) == (None, True, 9)
    assert [synonym.value for synonym in secret.synonyms] == [None]
    assert STORE_PASSWORD not in repr(answer)
    directory = cluster.broker_directory(1)
    left = [path for path in directory.rglob("*") if path.is_file() and path.name != "server.properties"]
    assert directory / "server.log" in left
    for path in left:
        content = path.read_bytes()
        assert STORE_PASSWORD.encode() not in content, path
        assert b"PRIVATE KEY" not in content, path


def test_a_changed_certificate_is_read_again_and_connections_stay(
    made: Certificates, new_cluster: ClusterFactory, tmp_path: Path
) -> None:
    file = tmp_path / "own.pem"
    file.write_bytes(made.broker.read_bytes())
    settings = {**CALM, **everywhere(made), "ssl.keystore.location": str(file), "ssl.client.auth": "none"}
    cluster = new_cluster(brokers=1, overrides=settings)
    host, _, port = cluster.bootstrap_servers.partition(":")

    def certificate_of(trusted: Path) -> Callable[[], bytes | None]:
        context = ssl.create_default_context(cafile=str(trusted))
        context.check_hostname = False

        def get() -> bytes | None:
            plain = socket.create_connection((host, int(port)))
            with plain, suppress(OSError), context.wrap_socket(plain, server_hostname=host) as encrypted:
                return encrypted.getpeercert(binary_form=True)
            return None

        return get

    before = certificate_of(made.authority)()
    assert before is not None
    context = ssl.create_default_context(cafile=str(made.authority))
    with socket.create_connection((host, int(port))) as plain, context.wrap_socket(plain, server_hostname=host) as kept:
        file.write_bytes(made.strange().read_bytes())
        eventually(lambda: certificate_of(made.stranger)() not in (None, before), "the new certificate is shown", 30)
        kept.sendall(struct.pack(">ihhih", 10, 18, 0, 1, -1))
        assert len(kept.recv(4)) == 4
    events = events_of(cluster.broker_directory(1) / "events.jsonl")
    assert {row["listener"] for row in events if row["kind"] == "certificates_changed"} >= {"PLAINTEXT"}


# -- settings that change while the broker runs (KIP-226) -----------------------------------------------------------------


OF_EXTERNAL = "listener.name.external.ssl."


class Dynamic(NamedTuple):
    """A broker with a listener of TLS beside that of brokers."""

    cluster: LocalCluster
    port: int
    clear: int
    """The port of its listener in the clear."""
    made: Certificates

    def alter(self, changes: Mapping[str, str | None], name: str = "1") -> tuple[ErrorCode, str]:
        """The answer to IncrementalAlterConfigs, at the listener in the clear."""
        rows = [
            {"name": f"{OF_EXTERNAL}{key}", "config_operation": int(value is None), "value": value}
            for key, value in changes.items()
        ]
        body = {
            "resources": [{"resource_type": 4, "resource_name": name, "configs": rows}],
            "validate_only": False,
        }
        with Wire(self.clear) as wire:
            (answer,) = wire.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, body).responses
        return ErrorCode(answer.error_code), answer.error_message or ""

    def connect(self) -> ssl.SSLSocket:
        plain = socket.create_connection(("127.0.0.1", self.port))
        return ssl.create_default_context(cafile=str(self.made.authority)).wrap_socket(
            plain, server_hostname="127.0.0.1"
        )

    def serial_number(self) -> str:
        """Of the certificate that a new connection sees."""
        with self.connect() as encrypted:
            found = encrypted.getpeercert()
        assert found is not None
        return str(found["serialNumber"])

    def sees(self, number: str) -> bool:
        try:
            return self.serial_number() == number
        except ConnectionError:
            return False


@pytest.fixture
def dynamic(made: Certificates, new_cluster: ClusterFactory) -> Dynamic:
    (port,) = free_ports(1)
    settings = {
        **CALM,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,EXTERNAL:SSL",
        f"{OF_EXTERNAL}keystore.type": "PEM",
        f"{OF_EXTERNAL}keystore.location": str(made.broker),
        "password.encoder.secret": "the-secret-of-passwords",
    }
    cluster = new_cluster(brokers=1, overrides=settings, own_properties=more_listeners({"EXTERNAL": {1: port}}))
    properties = (cluster.broker_directory(1) / "server.properties").read_text()
    clear = re.findall(r"PLAINTEXT://127\.0\.0\.1:(\d+)", properties)[-1]
    return Dynamic(cluster, port, int(clear), made)


def test_a_new_certificate_by_a_setting_is_shown_at_once_and_connections_stay(dynamic: Dynamic) -> None:
    made, before = dynamic.made, dynamic.serial_number()
    encrypted = made.with_encrypted_key(made.next_of_broker("next"))
    with dynamic.connect() as kept:
        for changes, reason in (
            ({"keystore.location": "/no/such"}, "/no/such: No such file"),
            ({"keystore.location": str(encrypted), "key.password": "WRONG-ONE"}, "ssl.key.password is wrong"),
            (
                {"keystore.location": str(made.next_of_broker("other", "/CN=other"))},
                "the subject of the certificate is CN=other",
            ),
        ):
            code, message = dynamic.alter(changes)
            assert (code, dynamic.serial_number()) == (ErrorCode.INVALID_REQUEST, before)
            assert reason in message
            assert "WRONG-ONE" not in message
        assert dynamic.alter({"keystore.location": str(encrypted), "key.password": KEY_PASSWORD}) == (
            ErrorCode.NONE,
            "",
        )
        after = dynamic.serial_number()
        assert after != before
        kept.sendall(struct.pack(">ihhih", 10, 18, 0, 1, -1))
        assert len(kept.recv(4)) == 4
    cluster = dynamic.cluster
    cluster.stop_broker(1)
    made.broker.rename(made.broker.with_suffix(".away"))
    try:
        cluster.start_broker(1)
        eventually(lambda: dynamic.sees(after), "it serves, and what the static settings name is not read at all", 30)
    finally:
        made.broker.with_suffix(".away").rename(made.broker)
    directory = cluster.broker_directory(1)
    said = "".join(file.read_text() for file in directory.glob("*") if file.suffix in (".log", ".jsonl"))
    assert KEY_PASSWORD not in said
    assert "WRONG-ONE" not in said
    assert {
        row["listener"] for row in events_of(directory / "events.jsonl") if row["kind"] == "certificates_changed"
    } == {"EXTERNAL"}


def test_a_broker_whose_dynamic_certificate_is_gone_does_not_start_and_says_why(dynamic: Dynamic) -> None:
    cluster, file = dynamic.cluster, dynamic.made.next_of_broker("gone")
    assert dynamic.alter({"keystore.location": str(file)})[0] is ErrorCode.NONE
    cluster.stop_broker(1)
    file.unlink()
    cluster.start_broker(1)
    with pytest.raises(
        ClusterError, match=rf"{re.escape(OF_EXTERNAL)}keystore\.location: {re.escape(str(file))}: No such file"
    ):
        cluster.wait_ready()
