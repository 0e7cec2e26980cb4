"""`broker.api.level`: whose APIs and versions clients get, and that it changes while brokers run (BAD-6 to BAD-8)."""

from __future__ import annotations

import subprocess
import time
from typing import Any

import pytest

from protocol.errors import ErrorCode
from protocol.kafka.api_keys import ADVERTISED, ApiKey, ApiLevel
from protocol.kafka.record_batch import build_batch
from tests.conftest import ClusterFactory
from tests.support.invariants import eventually
from tests.support.real_kafka import PROGRAMS, skip_without_kafka
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


def change(wire: Wire, broker: str, value: str | None, key: str = KEY) -> Any:
    """Changes the setting of one broker, or of all (""): the answer's row. The broker that is asked applies it before it answers."""
    entry = {"name": key, "config_operation": SET if value is not None else DELETE, "value": value}
    resource = {"resource_type": BROKER, "resource_name": broker, "configs": [entry]}
    return wire.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource], "validate_only": False}).responses[
        0
    ]


def changed(cluster: LocalCluster, broker: str, level: str | None) -> None:
    """By a connection of its own, which may end with the answer. Only a broker itself changes its settings."""
    with Wire(cluster.port(int(broker or 1))) as wire:
        assert int(change(wire, broker, level).error_code) == ErrorCode.NONE


def of_level(wire: Wire) -> tuple[ApiLevel, int]:
    """The level whose versions the broker names, and the epoch of its features."""
    answer = wire.call(ApiKey.API_VERSIONS, 4, CLIENT)
    found = {int(row.api_key): (row.min_version, row.max_version) for row in answer.api_keys}
    (level,) = (level for level in ApiLevel if dict(ADVERTISED[level]) == found)
    return level, answer.finalized_features_epoch


def levels(cluster: LocalCluster) -> list[ApiLevel]:
    """Those of broker 1 and of broker 2."""
    found = []
    for broker in (1, 2):
        with Wire(cluster.port(broker)) as wire:
            found.append(of_level(wire)[0])
    return found


def follow(cluster: LocalCluster, level: ApiLevel) -> None:
    eventually(lambda: levels(cluster) == [level, level], f"both brokers have level {level.value}")


OLD, NEW = ApiLevel


def test_the_level_changes_while_brokers_run(cluster: LocalCluster) -> None:
    assert levels(cluster) == [NEW, NEW]
    changed(cluster, "1", OLD.value)
    assert levels(cluster) == [OLD, NEW]
    with Wire(cluster.port(1)) as wire:
        assert wire.call(ApiKey.CREATE_TOPICS, 0, OLDER).topics == ()
    changed(cluster, "1", None)
    changed(cluster, "", OLD.value)
    follow(cluster, OLD)
    changed(cluster, "", NEW.value)
    follow(cluster, NEW)
    with Wire(cluster.port(1)) as wire:
        wire.send(ApiKey.CREATE_TOPICS, 0, OLDER)
        assert wire.is_closed_by_peer()


def test_clients_ask_for_the_versions_again_when_the_level_changes(cluster: LocalCluster) -> None:
    """A client believes the features with the highest epoch, so that a producer knows both changes of `transaction.version`."""
    epochs = []
    for level in (OLD, NEW):
        with Wire(cluster.port(1)) as first, Wire(cluster.port(2)) as second:
            epochs.append(of_level(first)[1])
            assert int(change(first, "", "2", "log.cleaner.threads").error_code) == ErrorCode.NONE
            assert of_level(first)[0] is of_level(second)[0], "another change ends no connection"
            change(first, "", level.value)
            assert first.is_closed_by_peer()
            assert second.is_closed_by_peer()
        follow(cluster, level)
    assert epochs == sorted(set(epochs))


@pytest.mark.kafka
def test_a_producer_in_the_middle_of_a_transaction_goes_on(cluster: LocalCluster) -> None:
    """Java's, which takes transaction version 2 while brokers have it (KIP-890). It writes to one partition before the change, to another
    one after it. Level 3.9 refuses the second, which the producer has not added; its abort, and its next transactions, succeed.

    If it only commits after the change, it learns of it too late for its next transaction, which may be refused as a whole."""
    topic = new_topic(cluster.bootstrap_servers, assignment=[[1, 2], [2, 1]])
    jars = skip_without_kafka(kraft=True)
    command = jars.command(str(PROGRAMS / "LevelChanges.java"), cluster.bootstrap_servers, topic, logs="silent")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as program:
        assert program.stdin is not None
        assert program.stdout is not None

        def does(word: str) -> str:
            program.stdin.write(f"{word}\n")  # type: ignore[union-attr]
            return program.stdout.readline().strip()  # type: ignore[union-attr]

        for level, end in ((OLD, "aborted"), (NEW, "committed")) * 2:
            assert does("begin") == "begun"
            changed(cluster, "", level.value)
            follow(cluster, level)
            assert (level, does("end")) == (level, end)
            assert [does("begin"), does("end")] == ["begun", "committed"]
        for level in (OLD, NEW, OLD):
            assert does("begin") == "begun"
            changed(cluster, "", level.value)
            follow(cluster, level)
            assert does("commit") == "committed"
            assert [does("begin"), does("end") in ("aborted", "committed")] == ["begun", True]
            assert [does("begin"), does("end")] == ["begun", "committed"]
        program.stdin.close()
        assert program.wait(30) == 0


def test_a_wrong_level_is_refused(cluster: LocalCluster) -> None:
    with Wire(cluster.port(1)) as wire:
        row = change(wire, "", "4.0")
    assert int(row.error_code) == ErrorCode.INVALID_REQUEST
    assert row.error_message == "broker.api.level='4.0': expected one of 3.9, 4"


def test_brokers_of_different_levels_replicate(cluster: LocalCluster) -> None:
    """Only the face to clients has a level."""
    changed(cluster, "2", OLD.value)
    for leader, follower in ((1, 2), (2, 1)):
        topic = new_topic(cluster.bootstrap_servers, assignment=[[leader, follower]])
        with Wire(cluster.port(leader)) as connection:
            answer = produce_batch(connection, topic, build_batch([(None, b"one", [], int(time.time() * 1000))]))
        assert int(answer.error_code) == ErrorCode.NONE, "acks=all"
    changed(cluster, "2", None)
