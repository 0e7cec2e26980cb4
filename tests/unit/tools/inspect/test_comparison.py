"""ZooKeeper's view beside the brokers': what is a difference and what is not, by tables."""

from __future__ import annotations

import dataclasses

import pytest

from protocol.types import Assignment, BrokerInfo, Endpoint, LeaderAndIsr, TopicPartition
from tools.admin.config_values import Entity
from tools.cluster.zookeeper_view import ZooKeeperView, client_address
from tools.inspect.broker_view import BrokerView, PartitionFacts
from tools.inspect.comparison import compare, comparison_json, comparison_lines

ORDERS_0 = TopicPartition("orders", 0)
ORDERS = Entity("topics", "orders")
MOVE = Assignment((3, 1, 2), (3,), (2,))
ADDRESSES = {1: ("host", 9001), 2: ("host", 9002)}


def znodes() -> ZooKeeperView:
    return ZooKeeperView(
        controller=1,
        controller_epoch=4,
        brokers={broker: BrokerInfo(broker, 10, ()) for broker in ADDRESSES},
        topic_ids={"orders": "id"},
        assignment={ORDERS_0: Assignment((1, 2))},
        states={ORDERS_0: LeaderAndIsr(1, 7, (1, 2), 4)},
        configs={ORDERS: {"retention.ms": "5"}},
    )


def broker(**changes: object) -> BrokerView:
    view = BrokerView(
        1,
        dict(ADDRESSES),
        {"orders": "id"},
        {ORDERS_0: PartitionFacts(1, 7, (2, 1), (1, 2))},
        {ORDERS: {"retention.ms": "5"}},
        {},
    )
    return dataclasses.replace(view, **changes)  # type: ignore[arg-type]


def partition(**changes: object) -> dict[str, object]:
    facts = PartitionFacts(1, 7, (1, 2), (1, 2))
    return {"partitions": {ORDERS_0: dataclasses.replace(facts, **changes)}}  # type: ignore[arg-type]


def differences(zookeeper: ZooKeeperView, *brokers: BrokerView | None) -> list[tuple[str, str, str, str | None]]:
    """(subject, fact, ZooKeeper's value, the second broker's value)."""
    rows = compare(zookeeper, dict(enumerate(brokers, start=1)))
    return [(row.subject, row.fact, row.zookeeper, row.brokers[len(brokers)]) for row in rows if row.is_different]


def test_the_same_on_all_sides() -> None:
    assert differences(znodes(), broker(), broker(reassignments=None, configs=None)) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"controller": 2}, ("cluster", "controller", "1", "2")),
        ({"controller": None}, ("cluster", "controller", "1", "none")),
        ({"brokers": {1: ("host", 9001)}}, ("cluster", "brokers", "1,2", "1")),
        ({"topic_ids": {"orders": "older"}}, ("orders", "topic id", "id", "older")),
        (partition(leader=-1), ("orders-0", "leader", "1", "none")),
        (partition(leader_epoch=6), ("orders-0", "leader epoch", "7", "6")),
        (partition(isr=(1,)), ("orders-0", "isr", "1,2", "1")),
        (partition(replicas=(2, 1)), ("orders-0", "replicas", "1,2", "2,1")),
        ({"configs": {ORDERS: {}}}, ("topic orders", "retention.ms", "5", "none")),
        ({"configs": {ORDERS: {"retention.ms": "5", "x": "1"}}}, ("topic orders", "x", "none", "1")),
        ({"reassignments": {ORDERS_0: MOVE}}, ("orders-0", "reassignment", "none", "adding 3, removing 2")),
    ],
)
def test_one_difference(changes: dict[str, object], expected: tuple[str, str, str, str | None]) -> None:
    assert differences(znodes(), broker(), broker(**changes)) == [expected]


def test_a_broker_that_does_not_answer_is_one_difference() -> None:
    assert differences(znodes(), broker(), None) == [("cluster", "brokers", "1,2", "no answer")]


def test_a_topic_that_one_side_lacks() -> None:
    missing = differences(znodes(), broker(), broker(topic_ids={}, partitions={}, configs=None))
    assert {row[3] for row in missing} == {"missing"}
    assert [row[1] for row in missing] == ["topic id", "leader", "leader epoch", "isr", "replicas"]
    without_state = dataclasses.replace(znodes(), states={})
    assert ("orders-0", "leader", "missing", "1") in differences(without_state, broker())


def test_a_topic_that_is_to_be_deleted_is_pending_and_no_difference() -> None:
    zookeeper = znodes()
    zookeeper.pending["/admin/delete_topics/orders"] = "to be deleted"
    assert differences(zookeeper, broker(topic_ids={}, partitions={}, configs=None)) == []


@pytest.mark.parametrize(
    "key",
    [
        "listener.name.x.ssl.key.password",
        "listener.name.x.plain.sasl.jaas.config",
        "ssl.keystore.key",
        "ssl.keystore.certificate.chain",
        "ssl.truststore.certificates",
    ],
)
def test_secrets_are_not_shown(key: str) -> None:
    """Kafka's dynamic configs of type PASSWORD."""
    entity = Entity("brokers", "1")
    zookeeper = dataclasses.replace(znodes(), configs={entity: {key: "hidden"}})
    rows = compare(zookeeper, {1: broker(configs={entity: {}})})
    assert not any(row.is_different for row in rows)
    assert "hidden" not in "\n".join(comparison_lines(rows, zookeeper))


def test_lines() -> None:
    zookeeper = znodes()
    zookeeper.pending["/admin/delete_topics/old"] = "to be deleted"
    zookeeper.unreadable["/brokers/topics/bad"] = "no JSON"
    zookeeper.topic_ids |= {"unnamed": None, "old": None}
    rows = compare(zookeeper, {1: broker(), 2: broker(controller=2)})
    *_, pending, unreadable, without_id, last = comparison_lines(rows, zookeeper, differences_only=True)
    assert pending == "pending: /admin/delete_topics/old to be deleted"
    assert unreadable == "unreadable: /brokers/topics/bad: no JSON"
    assert without_id.startswith("without an id: /brokers/topics/unnamed: ")
    assert last == "1 difference"
    said = comparison_json(rows, zookeeper, differences_only=True)
    brokers = {"1": "1", "2": "2"}
    assert said["rows"] == [
        {"subject": "cluster", "fact": "controller", "zookeeper": "1", "brokers": brokers, "differs": [2]}
    ]
    assert said["differences"] == 1
    assert said["without_id"] == ["unnamed"]


def test_no_id_is_missing_where_no_topic_has_one() -> None:
    """A Kafka before 2.8."""
    assert dataclasses.replace(znodes(), topic_ids={"orders": None, "old": None}).topics_without_id == ()


def test_client_address_is_not_the_control_planes() -> None:
    control = Endpoint("CONTROLLER", "host", 1)
    client = Endpoint("PLAINTEXT", "host", 2)
    tls = Endpoint("TLS", "host", 3, "SSL")
    assert client_address(BrokerInfo(1, 1, (control, tls, client)), "CONTROLLER") == ("host", 2)
    assert client_address(BrokerInfo(1, 1, (tls,)), "CONTROLLER") is None
