"""ACLs as in production: everybody logs in, nobody may do what no ACL allows, brokers and an admin are super users (CLI-5)."""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from broker.process.clock import SystemClock
from protocol.network_client import Disconnected, NetworkClient
from protocol.sasl_login import ClientLogin
from tests.conftest import CALM, ClusterFactory
from tests.support.cli import Cli
from tests.support.invariants import ZooKeeperView, eventually
from tools.cluster.local_cluster import LocalCluster
from tools.properties_file import read_properties

pytestmark = pytest.mark.integration

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
USERS = ("broker", "admin", "alice", "bob")
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
SOON_S = 20.0


def password(user: str) -> str:
    return f"the-secret-of-{user}"


@pytest.fixture(scope="module")
def cluster(new_module_cluster: ClusterFactory) -> LocalCluster:
    users = " ".join(f'user_{user}="{password(user)}"' for user in USERS)
    settings = {
        **CALM,
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "plain.sasl.jaas.config": f'{PLAIN} username="broker" password="{password("broker")}" {users};',
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:broker;User:admin",
        "min.insync.replicas": "2",
        "group.initial.rebalance.delay.ms": "0",
    }
    return new_module_cluster(brokers=3, overrides=settings)


def client(cluster: LocalCluster, user: str, **settings: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": cluster.bootstrap_servers,
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": password(user),
        "log_level": 0,
        **settings,
    }


@pytest.fixture(scope="module")
def admin(cluster: LocalCluster) -> AdminClient:
    return AdminClient(client(cluster, "admin"))


def allow(admin: AdminClient, user: str, kind: ResourceType, name: str, *operations: AclOperation) -> None:
    acls = [
        AclBinding(kind, name, ResourcePatternType.PREFIXED, f"User:{user}", "*", operation, AclPermissionType.ALLOW)
        for operation in operations
    ]
    for result in admin.create_acls(acls).values():
        result.result(30)


def test_each_user_may_do_what_its_acls_allow(cluster: LocalCluster, zk: ZooKeeperView, admin: AdminClient) -> None:
    admin.create_topics([NewTopic("of-alice", 1, 3)])["of-alice"].result(30)
    for user in ("alice", "bob"):
        assert AdminClient(client(cluster, user)).list_topics(timeout=20).topics == {}
    allow(admin, "alice", TOPIC, "of-", AclOperation.WRITE)
    allow(admin, "bob", TOPIC, "of-", AclOperation.READ)
    allow(admin, "bob", GROUP, "of-", AclOperation.READ)
    writer = Producer(client(cluster, "alice", **{"enable.idempotence": True}))
    errors: list[Any] = []
    eventually(
        lambda: "of-alice" in AdminClient(client(cluster, "alice")).list_topics(timeout=20).topics, "known", SOON_S
    )
    for number in range(100):
        writer.produce("of-alice", str(number).encode(), on_delivery=lambda error, _: errors.append(error))
    assert writer.flush(30) == 0
    assert set(errors) == {None}, "idempotent, by Write on some topic"
    assert len(zk.state("of-alice", 0).isr) == 3, "brokers replicate as super users"
    with closing(Consumer(client(cluster, "bob", **{"group.id": "of-bob"}))) as reader:
        reader.assign([TopicPartition("of-alice", 0, OFFSET_BEGINNING)])
        assert [message.value() for message in reader.consume(100, 30)] == [str(n).encode() for n in range(100)]
        reader.commit(offsets=[TopicPartition("of-alice", 0, 100)], asynchronous=False)
    errors.clear()
    reader_only = Producer(client(cluster, "bob"))
    reader_only.produce("of-alice", b"x", on_delivery=lambda error, _: errors.append(error))
    assert reader_only.flush(30) == 0
    assert errors[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    of_alice = AdminClient(client(cluster, "alice"))
    more = AclBinding(
        TOPIC, "of-", ResourcePatternType.PREFIXED, "User:alice", "*", AclOperation.ALL, AclPermissionType.ALLOW
    )
    with pytest.raises(KafkaException) as denied:
        of_alice.create_acls([more])[more].result(30)
    assert denied.value.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED
    logs = "".join((cluster.broker_directory(b) / "server.log").read_text() for b in cluster.broker_ids)
    assert "'User:bob' from 127.0.0.1 may not Write on Topic 'of-alice': " in logs
    assert "the-secret" not in logs


def test_the_control_plane_takes_brokers_by_acl(cluster: LocalCluster, admin: AdminClient) -> None:
    """Alice may do nothing there, and then everything; the audit log has both."""
    found = read_properties((cluster.broker_directory(1) / "server.properties").read_text())
    (listeners,) = (one.value for one in found if one.key == "listeners")
    (address,) = (part for part in listeners.split(",") if part.startswith("CONTROLLER:"))
    port = int(address.rpartition(":")[2])

    audit = cluster.broker_directory(1) / "audit.jsonl"

    def refused() -> list[dict[str, Any]]:
        lines = map(json.loads, audit.read_text().splitlines() if audit.exists() else ())
        return [line for line in lines if line["kind"] == "login_refused"]

    async def attempt() -> None:
        login = ClientLogin("PLAIN", "alice", password("alice"))
        client = NetworkClient(SystemClock(), request_timeout_ms=10_000, random=lambda: 0.5, login=login)
        try:
            with pytest.raises(Disconnected):  # what it sends is no request of the control plane
                await client.send(("127.0.0.1", port), lambda number: (number.to_bytes(4, "big"), b"hello"))
        finally:
            client.close()

    def is_let_in() -> bool:
        before = len(refused())
        asyncio.run(attempt())
        return len(refused()) == before

    asyncio.run(attempt())
    (line,) = eventually(refused, "the refused login is in the audit log", SOON_S)
    assert (line["address"], line["listener"], line["user"]) == ("127.0.0.1", "CONTROLLER", "alice")
    assert "it is no broker" in line["reason"]
    node = AclBinding(
        ResourceType.BROKER,
        "kafka-cluster",
        ResourcePatternType.LITERAL,
        "User:alice",
        "*",
        AclOperation.CLUSTER_ACTION,
        AclPermissionType.ALLOW,
    )
    admin.create_acls([node])[node].result(30)
    eventually(is_let_in, "alice is let in", SOON_S)
    files = [cluster.broker_directory(broker) / "audit.jsonl" for broker in cluster.broker_ids]
    line = '"principal":"User:bob","operation":"Write","resource":"Topic:of-alice","api":"Produce"}'

    def audited() -> str:
        denied = "".join(file.read_text() for file in files if file.exists())
        return denied if line in denied else ""

    denied = eventually(audited, line, SOON_S)
    assert "the-secret" not in denied


def test_rights_outlive_a_broker(cluster: LocalCluster, zk: ZooKeeperView, admin: AdminClient) -> None:
    """A broker that starts again reads the ACLs, also those that were made while it was away."""
    admin.create_topics([NewTopic("kept", 1, 3)])["kept"].result(30)
    victim = zk.controller()
    cluster.signal(victim, signal.SIGKILL)
    eventually(lambda: zk.controller() not in (victim, None), "another broker controls", SOON_S)

    def another_controls() -> bool:
        """librdkafka sends ACLs to the controller that its last metadata names, and asks for no newer ones."""
        return admin.list_topics(timeout=20).controller_id not in (victim, -1)

    eventually(another_controls, "the admin client knows a controller that lives", SOON_S)
    allow(admin, "alice", TOPIC, "kept", AclOperation.WRITE)
    cluster.start_broker(victim)
    eventually(lambda: len(zk.state("kept", 0).isr) == 3, "it is in sync again", 40)
    assert victim in zk.assignment("kept")[0].replicas
    address = f"127.0.0.1:{cluster.port(victim)}"
    of_alice = AdminClient({**client(cluster, "alice"), "bootstrap.servers": address})
    eventually(lambda: "kept" in of_alice.list_topics(timeout=20).topics, "it knows what was allowed meanwhile", SOON_S)


def test_ottla_acl_with_a_login(cluster: LocalCluster, tmp_path: Path) -> None:
    def config(user: str) -> str:
        file = tmp_path / f"{user}.properties"
        file.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
            f'sasl.jaas.config={PLAIN} username="{user}" password="{password(user)}";\n'
        )
        return str(file)

    cli = Cli(cluster.bootstrap_servers, list(cluster.broker_ids))
    add = ("acl", "add", "--allow-principal", "User:bob", "--consumer", "--topic", "cli", "--group", "cli")
    refused = cli.failure(*add, "--command-config", config("alice"))
    assert "Cluster authorization failed" in refused
    assert "Cluster authorization failed" in cli.failure("acl", "list", "--command-config", config("alice"))
    cli.output(*add, "--command-config", config("admin"))
    listed = cli.json("acl", "list", "--topic", "cli", "--group", "cli", "--command-config", config("admin"))
    assert {(row["resourceType"], row["operation"]) for row in listed} == {
        ("TOPIC", "READ"),
        ("TOPIC", "DESCRIBE"),
        ("GROUP", "READ"),
    }
