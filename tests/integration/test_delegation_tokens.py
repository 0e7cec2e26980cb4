"""Delegation tokens of real brokers: Kafka's own tool makes, renews and ends them, and clients log in by them (CLI-5, KIP-48)."""

from __future__ import annotations

import re
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from protocol.errors import ErrorCode
from protocol.kafka.api_keys import ApiKey
from protocol.scram import ScramClient
from tests.conftest import CALM, ClusterFactory
from tests.support.invariants import eventually
from tests.support.kafka_tools import KafkaTools
from tests.support.wire import Wire
from tools.cluster.local_cluster import LocalCluster
from tools.cluster.run_directory import BrokerDirectory

pytestmark = pytest.mark.integration

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
KEY = "the-secret-of-tokens"
TOOL = "org.apache.kafka.tools.DelegationTokenCommand"
NO_ANSWER_S = 20.0


@pytest.fixture(scope="module")
def cluster(new_module_cluster: ClusterFactory) -> LocalCluster:
    users = " ".join(f'user_{user}="{user}-secret"' for user in ("broker", "alice", "bob", "eve"))
    settings = {
        **CALM,
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "plain.sasl.jaas.config": f'{PLAIN} username="broker" password="broker-secret" {users};',
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:broker",
        "delegation.token.secret.key": KEY,
        "delegation.token.expiry.check.interval.ms": "500",
    }
    cluster = new_module_cluster(brokers=2, overrides=settings)
    admin = AdminClient(client(cluster, "broker"))
    admin.create_topics([NewTopic("orders", 1, 2)])["orders"].result(30)
    acls = [
        AclBinding(
            ResourceType.TOPIC,
            "orders",
            ResourcePatternType.LITERAL,
            "User:alice",
            "*",
            AclOperation.READ,
            AclPermissionType.ALLOW,
        )
    ]
    for result in admin.create_acls(acls).values():
        result.result(30)
    return cluster


def client(cluster: LocalCluster, user: str, broker: int = 0) -> dict[str, Any]:
    return {
        "bootstrap.servers": f"127.0.0.1:{cluster.port(broker)}" if broker else cluster.bootstrap_servers,
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": f"{user}-secret",
        "log_level": 0,
    }


def connect(cluster: LocalCluster, user: str) -> Wire:
    """A connection of a user of PLAIN."""
    wire = Wire(cluster.port(1))
    wire.call(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
    token = f"\0{user}\0{user}-secret".encode()
    assert wire.call(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": token}).error_code == 0
    return wire


def connect_by_token(cluster: LocalCluster, created: Any, mechanism: str = "SCRAM-SHA-512") -> tuple[Wire, int, int]:
    """The connection, the error of the login, and for how many ms it counts."""
    wire = Wire(cluster.port(2))
    wire.call(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": mechanism})
    password = b64encode(created.hmac).decode()
    scram = ScramClient(mechanism, created.token_id, password, "a-nonce", tokenauth=True)
    first = wire.call(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": scram.first()})
    last = wire.call(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": scram.final(first.auth_bytes)})
    return wire, last.error_code, int(last.session_lifetime.total_seconds() * 1000)


def create(wire: Wire, lifetime_ms: int = -1, owner: str | None = None, renewers: tuple[str, ...] = ()) -> Any:
    rows = [{"principal_type": "User", "principal_name": name} for name in renewers]
    named = {"owner_principal_type": owner and "User", "owner_principal_name": owner}
    return wire.call(ApiKey.CREATE_DELEGATION_TOKEN, 3, {**named, "renewers": rows, "max_lifetime": lifetime_ms})


def topics(wire: Wire) -> set[str]:
    return {row.name for row in wire.call(ApiKey.METADATA, 9, {"topics": None}).topics}


def test_whoever_has_a_token_is_its_owner_and_makes_no_further_one(cluster: LocalCluster) -> None:
    with connect(cluster, "alice") as alice:
        created = create(alice, renewers=("bob",))
        assert created.error_code == ErrorCode.NONE
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            eventually(
                lambda m=mechanism: connect_by_token(cluster, created, m)[1] == 0, "the other broker knows it", 10
            )
        wire, _, lifetime_ms = connect_by_token(cluster, created)
        with wire:
            assert 0 < lifetime_ms <= 24 * 3600 * 1000
            assert topics(wire) == {"orders"}, "the rights of alice"
            assert create(wire).error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
            described = wire.call(ApiKey.DESCRIBE_DELEGATION_TOKEN, 3, {"owners": None})
            assert described.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        ended = alice.call(ApiKey.EXPIRE_DELEGATION_TOKEN, 2, {"hmac": created.hmac, "expiry_time_period": -1})
        assert ended.error_code == ErrorCode.NONE
        eventually(lambda: connect_by_token(cluster, created)[1] != 0, "the other broker refuses it", 10)
    log = (cluster.broker_directory(2) / "server.log").read_text()
    assert KEY not in log
    assert b64encode(created.hmac).decode() not in log


def test_who_sees_which_token(cluster: LocalCluster) -> None:
    def seen(user: str) -> set[str]:
        with connect(cluster, user) as wire:
            found = wire.call(ApiKey.DESCRIBE_DELEGATION_TOKEN, 3, {"owners": None})
            assert all(len(row.hmac) == 64 for row in found.tokens)
            return {row.token_id for row in found.tokens}

    with connect(cluster, "alice") as alice, connect(cluster, "eve") as eve:
        created = create(alice, renewers=("bob",))
        assert [created.token_id in seen(user) for user in ("alice", "bob", "eve", "broker")] == [
            True,
            True,
            False,
            True,
        ]
        assert create(eve, owner="alice").error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
        stolen = eve.call(ApiKey.RENEW_DELEGATION_TOKEN, 2, {"hmac": created.hmac, "renew_period": -1})
        assert stolen.error_code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    with connect(cluster, "broker") as broker:
        other = create(broker, owner="alice")
        assert (other.principal_name, other.token_requester_principal_name) == ("alice", "broker")
        assert other.token_id in seen("alice")


def test_expired_tokens_are_removed(cluster: LocalCluster) -> None:
    with connect(cluster, "alice") as alice:
        created = create(alice, lifetime_ms=500)

        def is_gone() -> bool:
            found = alice.call(ApiKey.DESCRIBE_DELEGATION_TOKEN, 3, {"owners": None})
            return created.token_id not in {row.token_id for row in found.tokens}

        assert not is_gone()
        eventually(is_gone, "the controller removes it", 10)


def test_a_token_in_the_name_of_the_brokers_makes_no_broker(cluster: LocalCluster) -> None:
    with connect(cluster, "broker") as broker:
        created = create(broker, owner="broker")
    eventually(lambda: connect_by_token(cluster, created)[1] == 0, "the other broker knows it", 10)
    addresses = BrokerDirectory(2, cluster.broker_directory(2)).listener_addresses()
    (control,) = (port for _, port in addresses if port != cluster.port(2))
    with Wire(control) as wire:
        wire.call(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "SCRAM-SHA-512"})
        password = b64encode(created.hmac).decode()
        scram = ScramClient("SCRAM-SHA-512", created.token_id, password, "a-nonce", tokenauth=True)
        refused = wire.call(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": scram.first()})
    assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


@pytest.mark.kafka
def test_kafkas_own_tool(cluster: LocalCluster, kafka_tools: KafkaTools, tmp_path: Path) -> None:
    """Makes, describes, renews and ends a token, by which Kafka's Java client logs in meanwhile."""
    config = tmp_path / "alice.properties"
    access = "security.protocol=SASL_PLAINTEXT\n"
    config.write_text(
        f'{access}sasl.mechanism=PLAIN\nsasl.jaas.config={PLAIN} username="alice" password="alice-secret";\n'
    )

    def tool(*arguments: str) -> str:
        where = ("--bootstrap-server", cluster.bootstrap_servers, "--command-config", str(config))
        return kafka_tools.run(TOOL, *where, *arguments)

    created = tool("--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob")
    row = re.search(r"^(\S+)\s+(\S{60,})\s", created, re.MULTILINE)
    assert row is not None, created
    token_id, password = row.groups()
    assert token_id in tool("--describe", "--owner-principal", "User:alice")
    tool("--renew", "--renew-time-period", "-1", "--hmac", password)
    by_token = tmp_path / "token.properties"
    by_token.write_text(
        f"{access}sasl.mechanism=SCRAM-SHA-256\n"
        f'sasl.jaas.config={SCRAM} username="{token_id}" password="{password}" tokenauth="true";\n'
    )
    assert "orders" in kafka_tools.topics(cluster.bootstrap_servers, "--list", "--command-config", str(by_token))
    tool("--expire", "--expiry-time-period", "-1", "--hmac", password)
    assert token_id not in tool("--describe", "--owner-principal", "User:alice")
