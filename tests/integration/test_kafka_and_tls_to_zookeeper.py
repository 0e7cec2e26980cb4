"""One `server.properties` for ottla and a real Kafka: TLS to ZooKeeper, a login by SASL, and nodes that belong to both (CLI-5, FMT-2)."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from tests.support.kafka_tools import KafkaTools
from tests.support.secure_zookeeper import SASL_LOGIN, SASL_MODULE, SecureZooKeeper
from tests.support.swappable_broker import Kind, SwappableBroker

pytestmark = [pytest.mark.integration, pytest.mark.kafka]


def admin_of(broker: SwappableBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 2})


def changes(broker: SwappableBroker, topic: str, retention_ms: int) -> None:
    """Sets the topic's retention, and appends a record."""
    entry = ConfigEntry("retention.ms", str(retention_ms), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = admin_of(broker)
    for answer in admin.incremental_alter_configs([resource]).values():
        answer.result(30)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 2})
    failed: list[object] = []
    producer.produce(topic, b"x", on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(30) == 0
    assert not failed


@pytest.mark.parametrize("has_sasl", [False, True])
def test_either_continues_with_the_nodes_of_the_other(
    tmp_path: Path, kafka_tools: KafkaTools, monkeypatch: pytest.MonkeyPatch, has_sasl: bool
) -> None:
    with SecureZooKeeper(tmp_path / "zookeeper") as zookeeper:
        settings = {**zookeeper.settings(), "zookeeper.set.acl": "true"}
        owners = {("x509", "CN=broker")}
        if has_sasl:
            login = f'{SASL_MODULE} required username="{SASL_LOGIN.user}" password="{SASL_LOGIN.password}";'
            settings["zookeeper.sasl.jaas.config"] = login
            of_kafka = tmp_path / "client.conf"
            of_kafka.write_text(f"Client {{ {login} }};\n")
            monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Djava.security.auth.login.config={of_kafka}")
            owners.add(("sasl", SASL_LOGIN.user))
        with SwappableBroker(tmp_path / "cluster", kafka_tools, settings, zookeeper) as broker:
            turns: list[tuple[Kind, str]] = [("ottla", "ours"), ("Kafka", "theirs"), ("ottla", "again")]
            topics: dict[str, int] = {}
            for kind, name in turns:
                broker.start(kind, topics)
                admin = admin_of(broker)
                admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
                topics[name] = 1
                for number, topic in enumerate(topics):
                    changes(broker, topic, 1_000_000 + number)
                    acl, _ = broker.zk.client.get_acls(f"/brokers/topics/{topic}")
                    assert {(entry.id.scheme, entry.id.id) for entry in acl} == owners | {("world", "anyone")}
                broker.stop(signal.SIGTERM)
