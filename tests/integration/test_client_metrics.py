"""Metrics of clients (KIP-714): a subscription that an admin makes, a client that pushes, and the metrics page."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from protocol.errors import ErrorCode
from protocol.kafka.api_keys import ApiKey
from tests.conftest import ClusterFactory
from tests.support.invariants import eventually
from tests.support.metrics_page import Page, documented, pages
from tests.support.topics import new_topic
from tests.support.wire import Wire
from tools.cluster.local_cluster import LocalCluster

pytestmark = pytest.mark.integration

CLIENT_METRICS = 16
SET, DELETE = 0, 1
NAMES = ("interval.ms", "metrics", "match")


@pytest.fixture(scope="module")
def cluster(new_module_cluster: ClusterFactory) -> LocalCluster:
    return new_module_cluster(brokers=2, overrides={"broker.api.level": "4", "telemetry.max.bytes": "100000"})


@pytest.fixture
def wire(cluster: LocalCluster) -> Iterator[Wire]:
    """A connection to broker 1."""
    with Wire(cluster.port(1)) as connection:
        yield connection


def alter(wire: Wire, name: str, *values: str | None) -> ErrorCode:
    """Changes the settings in the order of NAMES; None resets one."""
    changes = [
        {"name": key, "config_operation": DELETE if value is None else SET, "value": value}
        for key, value in zip(NAMES, values, strict=False)
    ]
    resource = {"resource_type": CLIENT_METRICS, "resource_name": name, "configs": changes}
    answer = wire.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource], "validate_only": False})
    return ErrorCode(answer.responses[0].error_code)


def listed(wire: Wire, version: int = 0) -> list[str]:
    body = {"resource_types": [CLIENT_METRICS]} if version else {}
    answer = wire.call(ApiKey.LIST_CONFIG_RESOURCES, version, body)
    return [row.resource_name for row in answer.config_resources]


def described(wire: Wire, name: str) -> dict[str, tuple[Any, int]]:
    resource = {"resource_type": CLIENT_METRICS, "resource_name": name, "configuration_keys": None}
    answer = wire.call(ApiKey.DESCRIBE_CONFIGS, 4, {"resources": [resource], "include_synonyms": True})
    return {row.name: (row.value, row.config_source) for row in answer.results[0].configs}


def test_subscriptions_are_configs(cluster: LocalCluster, wire: Wire) -> None:
    assert alter(wire, "a b/c", "2000", "org.apache.,x", "client_id=app.*") is ErrorCode.NONE
    assert described(wire, "a b/c") == {
        "interval.ms": ("2000", 7),
        "metrics": ("org.apache.,x", 7),
        "match": ("client_id=app.*", 7),
    }
    assert described(wire, "none")["interval.ms"] == ("300000", 5)
    for wrong in (("99",), ("1000", "x", "client=a"), ("1000", "x", "client_id=(")):
        assert alter(wire, "a b/c", *wrong) is ErrorCode.INVALID_CONFIG
    with Wire(cluster.port(2)) as other:
        eventually(lambda: listed(other) == listed(other, 1) == ["a b/c"], "the other broker follows")
    assert alter(wire, "a b/c", None, None, None) is ErrorCode.NONE
    assert listed(wire) == []


def test_what_a_client_pushes_is_on_the_page(cluster: LocalCluster, wire: Wire) -> None:
    topic = new_topic(cluster.bootstrap_servers, partitions=1)
    assert alter(wire, "fast", "100", "*", "client_id=pia") is ErrorCode.NONE
    with Wire(cluster.port(2)) as other:
        eventually(lambda: listed(other) == ["fast"], "the other broker follows")
    producers = [
        Producer({"bootstrap.servers": cluster.bootstrap_servers, "client.id": name, "log_level": 0})
        for name in ("pia", "paul")
    ]

    def pushing() -> Page | None:
        for producer in producers:
            producer.produce(topic, b"x")
            producer.poll(0)
        found = (page for page in pages(cluster).values() if page.samples.get("ottla_client_metric"))
        return next(found, None)

    page: Page = eventually(pushing, "a number of a client is on a page")
    clients = {of["client_id"] for of, _ in page.samples["ottla_client_metric"]}
    assert clients == {"pia"}
    assert page.families["ottla_client_metric"] == documented()["ottla_client_metric"]
    assert page.sum("ottla_client_metrics_pushes_total") > 0
    producers.clear()
    eventually(
        lambda: not any(each.sum("kafka_server_client_metrics_instance_count") for each in pages(cluster).values()),
        "clients that are gone are forgotten",
    )
    assert alter(wire, "fast", None, None, None) is ErrorCode.NONE


@pytest.mark.parametrize(
    ("metrics", "compression", "error"),
    [
        (b"", 0, ErrorCode.NONE),
        (b"\x0a\x05", 0, ErrorCode.INVALID_RECORD),
        (b"no zstd", 4, ErrorCode.INVALID_RECORD),
        (bytes(100_001), 0, ErrorCode.TELEMETRY_TOO_LARGE),
        (b"", 7, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    ],
)
def test_a_push(wire: Wire, metrics: bytes, compression: int, error: ErrorCode) -> None:
    found = wire.call(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0, {"client_instance_id": None})
    assert (int(found.error_code), found.accepted_compression_types, found.requested_metrics) == (0, (4, 3, 1, 2), ())
    push = {"subscription_id": found.subscription_id, "terminating": False, "compression_type": compression}
    body = {"client_instance_id": found.client_instance_id, "metrics": metrics, **push}
    assert ErrorCode(wire.call(ApiKey.PUSH_TELEMETRY, 0, body).error_code) is error
    unknown = {**body, "client_instance_id": uuid.uuid4(), "metrics": b"", "compression_type": 0}
    answer = wire.call(ApiKey.PUSH_TELEMETRY, 0, unknown)
    assert ErrorCode(answer.error_code) is ErrorCode.UNKNOWN_SUBSCRIPTION_ID
