"""The metrics of real brokers: they say what happened, docs/METRICS.md lists them, and the dashboard and the alerts use what is served."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest
import yaml
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from broker.quotas.quota_configs import OF_CLIENTS
from protocol.kafka.api_keys import ApiKey
from tests.conftest import ClusterFactory
from tests.support.background_load import under_load
from tests.support.invariants import ZooKeeperView, assert_healed, eventually
from tests.support.metrics_page import (
    DOCS,
    Page,
    alert_rules,
    dashboard_expressions,
    documented,
    is_served,
    pages,
    selected,
    total,
)
from tests.support.quotas import CLIENT_ID, Side
from tests.support.topics import TIMEOUT_S, fill, new_topic
from tools.admin.bootstrap import addresses_of
from tools.cluster.local_cluster import LocalCluster

pytestmark = pytest.mark.integration

PARTITIONS = 4
RECORDS = 2000
VALUE = b"x" * 100
IN_TOPIC = "kafka_server_brokertopicmetrics_{}_total"
UNDER_REPLICATED = "kafka_server_replicamanager_underreplicatedpartitions"
LEADERS = "kafka_server_replicamanager_leadercount"
CONTROLLERS = "kafka_controller_kafkacontroller_activecontrollercount"
REQUESTS = "kafka_network_requestmetrics_requests_total"


@pytest.fixture(scope="module")
def cluster(new_module_cluster: ClusterFactory) -> LocalCluster:
    return new_module_cluster(
        brokers=3, overrides={"auto.leader.rebalance.enable": "false", "offsets.topic.num.partitions": "3"}
    )


@pytest.fixture(scope="module")
def topic(cluster: LocalCluster) -> str:
    """A topic to which RECORDS records were produced, and from which a group has read them all."""
    name = new_topic(cluster.bootstrap_servers, PARTITIONS, 3, min_insync_replicas="2")
    fill(cluster.bootstrap_servers, name, [VALUE] * RECORDS, PARTITIONS)
    read(cluster, name, "readers", RECORDS)
    return name


def read(cluster: LocalCluster, topic: str, group: str, count: int) -> None:
    """Reads at least `count` records as the only member of the group, commits and leaves."""
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "group.id": group, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    left = count
    while left > 0:
        messages = consumer.consume(count, timeout=TIMEOUT_S)
        assert messages
        left -= len(messages)
    consumer.commit(asynchronous=False)
    consumer.close()


@pytest.fixture
def killed(cluster: LocalCluster, zk: ZooKeeperView, topic: str) -> Iterator[int]:
    """A broker that is not the controller; it is started again after the test."""
    broker = next(broker for broker in cluster.broker_ids if broker != zk.controller())
    yield broker
    if cluster.pid(broker) is None:
        cluster.start_broker(broker)
    eventually(lambda: broker in zk.live_brokers(), "the broker is back")


def test_traffic_is_counted(cluster: LocalCluster, topic: str) -> None:
    def records() -> float:
        return total(pages(cluster), IN_TOPIC.format("messagesin"), topic=topic)

    eventually(lambda: records() >= RECORDS, "the records are counted, within a second")
    found = pages(cluster)

    def of_topic(name: str) -> float:
        return total(found, IN_TOPIC.format(name), topic=topic)

    assert of_topic("messagesin") == RECORDS
    assert of_topic("bytesin") > RECORDS * len(VALUE)
    assert of_topic("bytesout") >= of_topic("bytesin")
    assert of_topic("failedproducerequests") == of_topic("failedfetchrequests") == 0
    for page in found.values():
        in_all = page.value(IN_TOPIC.format("bytesin"))
        by_topic = [value for of, value in page.samples[IN_TOPIC.format("bytesin")] if of]
        assert in_all == sum(by_topic)
    # Each record is copied to two followers.
    copied = total(found, IN_TOPIC.format("replicationbytesin"))
    assert copied >= 2 * of_topic("bytesin")
    assert total(found, IN_TOPIC.format("replicationbytesout")) >= copied

    ends = eventually(
        lambda: {
            (of["partition"], value)
            for page in pages(cluster).values()
            for of, value in page.samples["kafka_log_log_logendoffset"]
            if of["topic"] == topic
        },
        "log ends",
    )
    assert ends == {(str(partition), RECORDS / PARTITIONS) for partition in range(PARTITIONS)}

    produced = total(found, REQUESTS, request="Produce")
    assert 0 < produced <= RECORDS
    for page in found.values():
        for request in ("Produce", "Metadata", "FetchConsumer", "FetchFollower"):
            counted = page.sum(REQUESTS, request=request)
            timed = page.sum("kafka_network_requestmetrics_totaltimems_count", request=request)
            assert counted / 2 - 100 <= timed <= counted
        of_fetches = [page.sum(REQUESTS, request=f"Fetch{kind}") for kind in ("", "Consumer", "Follower")]
        assert of_fetches[0] == of_fetches[1] + of_fetches[2]


def test_groups_and_offsets_are_counted_where_they_are_coordinated(cluster: LocalCluster, topic: str) -> None:
    prefix = "kafka_coordinator_group_groupmetadatamanager_num"
    with_group = [page for page in pages(cluster).values() if page.value(f"{prefix}groups")]
    (page,) = with_group
    assert page.value(f"{prefix}offsets") == PARTITIONS
    assert page.value(f"{prefix}groupsempty") == 1


def test_a_failover(cluster: LocalCluster, zk: ZooKeeperView, topic: str, killed: int) -> None:
    controller = zk.controller()
    assert controller is not None
    before = pages(cluster)
    led = before[killed].value(LEADERS)
    elections = "ottla_controller_leader_elections_total"
    assert total(before, CONTROLLERS) == before[controller].value(CONTROLLERS) == 1
    assert total(before, UNDER_REPLICATED) == 0
    all_led = total(before, LEADERS)
    expands = total(before, "kafka_server_replicamanager_isrexpands_total")

    with under_load(cluster, zk, topic, PARTITIONS) as producer:
        cluster.kill(killed)
        # Each partition has a replica on each broker.
        after = eventually(
            lambda: total(found := pages(cluster), LEADERS) == total(found, UNDER_REPLICATED) == all_led and found,
            "others lead all partitions, and know that a replica is missing",
        )
        producer.wait_for_acks(400)
        assert after[controller].value(elections, reason="broker failure") == led
        assert total(after, "kafka_controller_controllerstats_uncleanleaderelections_total") == 0
        assert total(after, CONTROLLERS) == 1
        assert after[controller].value("kafka_controller_kafkacontroller_activebrokercount") == 2
        cluster.start_broker(killed)
        healed = eventually(
            lambda: total(found := pages(cluster), UNDER_REPLICATED) == 0 and len(found) == 3 and found,
            "all replicas are in sync",
        )
    others = {broker: page for broker, page in healed.items() if broker != killed}
    assert total(others, "kafka_server_replicamanager_isrexpands_total") == expands + all_led
    assert total(healed, CONTROLLERS) == 1
    assert healed[controller].value("kafka_controller_kafkacontroller_activebrokercount") == 3
    assert healed[controller].value("kafka_controller_kafkacontroller_preferredreplicaimbalancecount") == led
    assert_healed(cluster, zk, topic)


def test_a_deleted_topic_has_no_series_and_stays_in_the_total(
    cluster: LocalCluster, admin: AdminClient, topic: str
) -> None:
    scratch = new_topic(cluster.bootstrap_servers, 1, 3)
    fill(cluster.bootstrap_servers, scratch, [VALUE])

    def all_records() -> float:
        return sum(page.value(IN_TOPIC.format("messagesin")) for page in pages(cluster).values())

    def records() -> float:
        return total(pages(cluster), IN_TOPIC.format("messagesin"), topic=scratch)

    eventually(lambda: records() == 1, "the record is counted, within a second")
    before = all_records()
    admin.delete_topics([scratch])[scratch].result(TIMEOUT_S)
    eventually(lambda: not has_series_of(pages(cluster).values(), scratch), "no series of the deleted topic")
    assert all_records() >= before


def has_series_of(found: Iterable[Page], topic: str) -> bool:
    return any(of.get("topic") == topic for page in found for rows in page.samples.values() for of, _ in rows)


@pytest.fixture
def served(cluster: LocalCluster, topic: str) -> list[Page]:
    """The pages after records were written, and read by a group whose coordinator has not restarted since, also by a client with quotas."""
    read(cluster, topic, "later-readers", 1)
    use_quotas(Side(addresses_of(cluster.bootstrap_servers)[0][1]), topic)
    return list(pages(cluster).values())


def use_quotas(side: Side, topic: str) -> None:
    """A client that has all quotas, and uses them."""
    side.set({CLIENT_ID: "measured"}, **dict.fromkeys(OF_CLIENTS, 1e6))
    side.fetch(topic, "measured", 1, 1000)
    produced = {"acks": 1, "timeout": 1000, "topic_data": (), "transactional_id": None}
    side.call(ApiKey.PRODUCE, 9, produced, "measured")
    side.call(ApiKey.DELETE_TOPICS, 4, {"topic_names": (), "timeout": 1000}, "measured")


def test_the_page_lists_what_is_served(served: list[Page]) -> None:
    families: dict[str, tuple[str, frozenset[str]]] = {}
    for page in served:
        for name, (kind, labels) in page.families.items():
            families[name] = (kind, labels | families.get(name, (kind, frozenset()))[1])
    of_clients = "ottla_client_metric"  # `test_client_metrics.py` looks at it
    assert {**families, of_clients: None} == {**documented(), of_clients: None}


def test_the_dashboard_and_the_alerts_use_what_is_served(served: list[Page]) -> None:
    expressions = [*dashboard_expressions(), *(rule["expr"] for rule in alert_rules())]
    assert len(expressions) > 60
    missing = [
        (expression, selector.name)
        for expression in expressions
        for selector in selected(expression)
        if selector.name != "up" and not is_served(selector, served)
    ]
    assert missing == []


def test_every_alert_says_what_to_do() -> None:
    rules = alert_rules()
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["annotations"].keys() == {"summary", "action"}
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
    configuration = yaml.safe_load((DOCS / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    assert configuration["rule_files"] == ["alerts.yml"]
