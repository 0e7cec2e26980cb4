"""`broker.api.level`: whose APIs and versions clients get, and that it changes while brokers run (BAD-6 to BAD-8)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from protocol.errors import ErrorCode
from protocol.kafka.api_keys import ADVERTISED, ApiKey, ApiLevel
from protocol.kafka.record_batch import build_batch
from tests.conftest import ClusterFactory
from tests.support.invariants import eventually
from tests.support.topics import new_topic, produce_batch
from tests.support.wire import Wire
from tools.cluster.local_cluster import LocalCluster

pytestmark = pytest.mark.integration

BROKER = 4
SET, DELETE = 0, 1
KEY = "broker.api.level"
CLIENT = {"client_software_name": "test", "client_software_version": "1"}
OLDER = {"topics": [], "timeout": 1000}
"""The body of a CreateTopics v0, which Kafka 4 does not have."""


@pytest.fixture(scope="module")
def cluster(new_module_cluster: ClusterFactory) -> LocalCluster:
    return new_module_cluster(brokers=2, overrides={KEY: ApiLevel.KAFKA_4.value})


@pytest.fixture
def wire(cluster: LocalCluster) -> Iterator[Wire]:
    """A connection to broker 1."""
    with Wire(cluster.port(1)) as connection:
        yield connection


def change(wire: Wire, broker: str, level: str | None) -> Any:
    """Changes the setting of one broker, or of all (""): the answer's row."""
    entry = {"name": KEY, "config_operation": SET if level is not None else DELETE, "value": level}
    resource = {"resource_type": BROKER, "resource_name": broker, "configs": [entry]}
    return wire.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource], "validate_only": False}).responses[
        0
    ]


def versions(cluster: LocalCluster, broker: int) -> dict[Any, tuple[int, int]]:
    with Wire(cluster.port(broker)) as wire:
        answer = wire.call(ApiKey.API_VERSIONS, 4, CLIENT)
        return {int(row.api_key): (row.min_version, row.max_version) for row in answer.api_keys}


def test_the_level_changes_while_brokers_run(cluster: LocalCluster, wire: Wire) -> None:
    of_3_9, of_4 = (dict(ADVERTISED[level]) for level in ApiLevel)
    assert (versions(cluster, 1), versions(cluster, 2)) == (of_4, of_4)
    change(wire, "1", "3.9")  # the broker that is asked applies a change before it answers
    assert (versions(cluster, 1), versions(cluster, 2)) == (of_3_9, of_4)
    assert wire.call(ApiKey.CREATE_TOPICS, 0, OLDER).topics == ()
    change(wire, "1", None)
    change(wire, "", "3.9")
    eventually(lambda: versions(cluster, 2) == of_3_9, "the other broker follows")
    change(wire, "", "4")
    eventually(lambda: versions(cluster, 1) == versions(cluster, 2) == of_4, "both are back")
    wire.send(ApiKey.CREATE_TOPICS, 0, OLDER)
    assert wire.is_closed_by_peer()


def test_a_wrong_level_is_refused(wire: Wire) -> None:
    row = change(wire, "", "4.0")
    assert int(row.error_code) == ErrorCode.INVALID_REQUEST
    assert row.error_message == "broker.api.level='4.0': expected one of 3.9, 4"


def test_brokers_of_different_levels_replicate(cluster: LocalCluster, wire: Wire) -> None:
    """Only the face to clients has a level."""
    change(wire, "2", "3.9")
    for leader, follower in ((1, 2), (2, 1)):
        topic = new_topic(cluster.bootstrap_servers, assignment=[[leader, follower]])
        with Wire(cluster.port(leader)) as connection:
            answer = produce_batch(connection, topic, build_batch([(None, b"one", [], int(time.time() * 1000))]))
        assert int(answer.error_code) == ErrorCode.NONE, "acks=all"
    change(wire, "2", None)
