"""The admin APIs on the wire, against ottla and against a real Kafka: the same requests, the same answers (CLI-3).

CTL-8..12. What is expected was first seen at Kafka 3.9.1 in ZooKeeper mode.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from confluent_kafka import Producer

from protocol.kafka.api_keys import ApiKey
from tests.support.admin_wire import TIMEOUT_MS, AdminWire, rows_of
from tests.support.cli import Cli
from tests.support.invariants import eventually
from tests.support.wire import Wire
from tools.cluster.local_cluster import LocalCluster

pytestmark = pytest.mark.integration

DELETE = ApiKey.DELETE_TOPICS
ADD = ApiKey.CREATE_PARTITIONS
ELECT = ApiKey.ELECT_LEADERS
MOVE = ApiKey.ALTER_PARTITION_REASSIGNMENTS
MOVES = ApiKey.LIST_PARTITION_REASSIGNMENTS
RECORDS = ApiKey.DELETE_RECORDS
UNKNOWN_ID = uuid.UUID("7623a1bd-9572-413f-afe0-01f060ec7bc7")
TOPIC, BROKER = 2, 4
SET, RESET = 0, 1
RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
THROTTLED = {"leader.replication.throttled.replicas": "*", "follower.replication.throttled.replicas": "*"}


@pytest.fixture
def ottla(shared_cluster: LocalCluster) -> Iterator[AdminWire]:
    with AdminWire(shared_cluster.bootstrap_servers) as wire:
        yield wire


@pytest.fixture
def kafka(shared_kafka: Cli) -> Iterator[AdminWire]:
    with AdminWire(shared_kafka.bootstrap_servers) as wire:
        yield wire


@pytest.fixture(params=["ottla", pytest.param("kafka", marks=pytest.mark.kafka)])
def cluster(request: pytest.FixtureRequest) -> AdminWire:
    found: AdminWire = request.getfixturevalue(request.param)
    return found


# -- refusals -------------------------------------------------------------------------------------------------------------

Body = dict[str, Any]


class Places(list[int]):
    """Positions in the cluster's broker ids; 99 and -1 are no broker."""


def filled(value: Any, cluster: AdminWire) -> Any:
    """A body for this cluster: "A" stands for its topic, `Places` for the ids of its brokers."""
    if isinstance(value, dict):
        return {key: filled(inner, cluster) for key, inner in value.items()}
    if isinstance(value, Places):
        return [cluster.ids[place] if 0 <= place < len(cluster.ids) else place for place in value]
    if isinstance(value, list):
        return [filled(inner, cluster) for inner in value]
    return cluster.topic if value == "A" else value


def deletion(*names: str, timeout: int = TIMEOUT_MS) -> Body:
    rows = [{"name": name, "topic_id": None} for name in names]
    return {"topics": rows, "topic_names": list(names), "timeout": timeout}


def deletion_by_id(name: str | None = None, topic_id: uuid.UUID = UNKNOWN_ID) -> Body:
    return {"topics": [{"name": name, "topic_id": topic_id}], "timeout": TIMEOUT_MS}


def addition(name: str, count: int, *places: Sequence[int], given: bool = False, check: bool = False) -> Body:
    """`places`: one list of replicas for each new partition."""
    rows = [{"broker_ids": Places(replicas)} for replicas in places]
    topic = {"name": name, "count": count, "assignments": rows if rows or given else None}
    return {"topics": [topic], "timeout": TIMEOUT_MS, "validate_only": check}


def twice(body: Body) -> Body:
    return body | {"topics": body["topics"] * 2}


def election(rows: dict[str, list[int]] | None, kind: int = 0) -> Body:
    wanted = rows and [{"topic": topic, "partitions": partitions} for topic, partitions in rows.items()]
    return {"election_type": kind, "topic_partitions": wanted, "timeout": TIMEOUT_MS}


def move(name: str, partition: int, places: Sequence[int] | None) -> Body:
    row = {"partition_index": partition, "replicas": None if places is None else Places(places)}
    return {"timeout": TIMEOUT_MS, "topics": [{"name": name, "partitions": [row]}]}


def moves(rows: dict[str, list[int]] | None) -> Body:
    wanted = rows and [{"name": topic, "partition_indexes": partitions} for topic, partitions in rows.items()]
    return {"timeout": TIMEOUT_MS, "topics": [] if rows == {} else wanted}


def records(name: str, partition: int, offset: int) -> Body:
    row = {"partition_index": partition, "offset": offset}
    return {"timeout": TIMEOUT_MS, "topics": [{"name": name, "partitions": [row]}]}


AT_CONTROLLER = [
    (ADD, 0, addition("A", 2), [("A", 37)]),
    (ADD, 3, addition("A", 2), [("A", 37)]),
    (ADD, 3, addition("A", 1), [("A", 37)]),
    (ADD, 3, addition("A", 0), [("A", 37)]),
    (ADD, 3, addition("A", -1), [("A", 37)]),
    (ADD, 3, addition("nope", 3), [("nope", 3)]),
    (ADD, 3, addition("a/b", 3), [("a/b", 3)]),
    (ADD, 3, addition("A", 3, [99, 0]), [("A", 39)]),
    (ADD, 3, addition("A", 4, [0, 1]), [("A", 39)]),
    (ADD, 3, addition("A", 3, [0, 0]), [("A", 39)]),
    (ADD, 3, addition("A", 3, []), [("A", 39)]),
    (ADD, 3, addition("A", 3, [0]), [("A", 39)]),
    (ADD, 3, addition("A", 4, [0], [0, 1, 2]), [("A", 39)]),
    (ADD, 3, addition("A", 3, given=True), [("A", 39)]),
    (ADD, 3, addition("A", 4, check=True), [("A", 0)]),
    (ADD, 3, twice(addition("A", 3)), [("A", 42)]),
    (ELECT, 0, election({"A": [0]}), [("A", 0, 84)]),
    (ELECT, 2, election({"A": [0, 0, 1]}), [("A", 0, 84), ("A", 1, 84)]),
    (ELECT, 2, election({"A": [0]}, 1), [("A", 0, 84)]),
    (ELECT, 2, election({"A": [99], "nope": [0]}), [("A", 99, 3), ("nope", 0, 3)]),
    (ELECT, 2, election({"nope": [0]}, 1), [("nope", 0, 3)]),
    (ELECT, 2, election({}), []),
    (ELECT, 2, election(None, 1), []),
    (MOVE, 0, move("A", 0, None), [("A", 0, 85)]),
    (MOVE, 0, move("A", 0, []), [("A", 0, 39)]),
    (MOVE, 0, move("A", 0, [0, 0]), [("A", 0, 39)]),
    (MOVE, 0, move("A", 0, [-1]), [("A", 0, 39)]),
    (MOVE, 0, move("A", 0, [99, 0]), [("A", 0, 39)]),
    (MOVE, 0, move("nope", 0, [0]), [("nope", 0, 3)]),
    (MOVE, 0, move("A", 99, [0]), [("A", 99, 3)]),
    (MOVE, 0, move("nope", 0, None), [("nope", 0, 85)]),
    (MOVES, 0, moves({"A": [0, 1], "nope": [0]}), []),
    (MOVES, 0, moves({}), []),
    (DELETE, 1, deletion("nope"), [("nope", 3)]),
    (DELETE, 6, deletion("nope", "a/b", ""), [("", 3), ("a/b", 3), ("nope", 3)]),
    (DELETE, 6, deletion_by_id(), [(None, 100)]),
    (DELETE, 6, deletion_by_id("A"), [("A", 42)]),
    (DELETE, 6, deletion(), []),
    (RECORDS, 2, records("nope", 0, 1), [("nope", 0, 3, -1)]),
    (RECORDS, 2, records("A", 9, 1), [("A", 9, 3, -1)]),
]
ELSEWHERE = [
    (ADD, 3, addition("A", 3), [("A", 41)]),
    (ELECT, 0, election({"A": [0]}), [("A", 0, 41)]),
    (ELECT, 2, election({"A": [0]}), [("A", 0, 41)]),
    (MOVE, 0, move("A", 0, [0]), [(41,)]),
    (MOVES, 0, moves(None), [(41,)]),
    (DELETE, 1, deletion("A"), [("A", 41)]),
    (DELETE, 6, deletion("A"), [("A", 41)]),
    (DELETE, 6, deletion_by_id(), [(None, 41)]),
]


def test_refusals_at_the_controller(cluster: AdminWire) -> None:
    """All in one test, since each takes some milliseconds."""
    for number, (api_key, version, body, expected) in enumerate(AT_CONTROLLER):
        answer = cluster.at_controller(api_key, version, filled(body, cluster))
        assert list(rows_of(answer, cluster)) == expected, (number, api_key, answer)


def test_requests_that_only_the_controller_serves(cluster: AdminWire) -> None:
    for number, (api_key, version, body, expected) in enumerate(ELSEWHERE):
        answer = cluster.elsewhere(api_key, version, filled(body, cluster))
        assert list(rows_of(answer, cluster)) == expected, (number, api_key, answer)


# -- what works -----------------------------------------------------------------------------------------------------------


def asked(cluster: AdminWire, api_key: ApiKey, version: int, body: Body) -> list[tuple[Any, ...]]:
    return list(rows_of(cluster.at_controller(api_key, version, filled(body, cluster)), cluster))


def test_added_partitions(cluster: AdminWire) -> None:
    """CTL-8: with chosen replicas, then with a placement that continues that of the others (CTL-7). Old partitions stay."""
    a, b, c = cluster.ids
    name = cluster.create([[a, b], [b, c]])
    assert asked(cluster, ADD, 3, addition(name, 3, [2, 0])) == [(name, 0)]
    assert asked(cluster, ADD, 3, addition(name, 8)) == [(name, 0)]
    eventually(lambda: cluster.is_known_everywhere(name, 8), "all of them are known everywhere")
    replicas = [row[1] for _, row in sorted(cluster.partitions(name).items())]
    assert replicas == [[a, b], [b, c], [c, a], [a, c], [b, a], [c, b], [a, b], [b, c]]
    assert asked(cluster, ADD, 3, addition(name, 9) | {"timeout": 0}) == [(name, 7)]
    eventually(lambda: cluster.is_known_everywhere(name, 9), "made all the same")


def test_a_topic_is_deleted(cluster: AdminWire) -> None:
    """CTL-9: by name, twice in one request, by id; the name is free again."""
    a, b, _ = cluster.ids
    name = cluster.create([[a, b]])
    assert asked(cluster, DELETE, 6, deletion(name, name)) == [(name, 0), (name, 0)]
    assert cluster.partitions(name, cluster.controller()) == {}
    eventually(lambda: not cluster.is_known_everywhere(name, 1), "forgotten everywhere")
    assert asked(cluster, DELETE, 6, deletion(name, name)) == [(name, 3), (name, 3)]

    name = cluster.create([[a]])
    (found,) = cluster.at_controller(ApiKey.METADATA, 12, {"topics": [{"topic_id": None, "name": name}]}).topics
    answer = cluster.at_controller(DELETE, 6, deletion_by_id(topic_id=found.topic_id))
    assert [(row.name, row.topic_id, row.error_code) for row in answer.responses] == [(name, found.topic_id, 0)]
    eventually(lambda: cluster.sizes(name) == {}, "its logs are removed")


def test_replicas_in_another_order_and_then_an_election(cluster: AdminWire) -> None:
    """CTL-12: the same replicas in another order move no leader; ElectLeaders does, and then is not needed."""
    a, b, _ = cluster.ids
    name = cluster.create([[a, b]])
    assert cluster.reassign(name, {0: [b, a]}) == [(name, 0, 0)]
    eventually(lambda: cluster.partitions(name, cluster.controller())[0] == (a, [b, a], sorted([a, b])), "swapped")
    assert asked(cluster, ELECT, 2, election({name: [0]})) == [(name, 0, 0)]
    assert cluster.partitions(name, cluster.controller())[0][0] == b
    assert asked(cluster, ELECT, 2, election({name: [0]})) == [(name, 0, 84)]
    assert cluster.reassign(name, {0: [a, b]}) == [(name, 0, 0)]
    everything = asked(cluster, ELECT, 2, election(None))
    assert (name, 0, 0) in everything, "without a list, the answer has the partitions that needed an election"


def produce(cluster: AdminWire, topic: str, count: int, size: int) -> None:
    producer = Producer(
        {
            "bootstrap.servers": ",".join(f"127.0.0.1:{port}" for port in cluster.ports.values()),
            "message.max.bytes": 4_000_000,
            "acks": "all",
        }
    )
    for number in range(count):
        producer.produce(topic, number.to_bytes(size, "big"), partition=0)
    assert producer.flush(30) == 0


def alter(wire: Wire, resource_type: int, name: str, values: Mapping[str, str | None]) -> None:
    """Sets settings of a topic (2) or of the broker asked (4); None resets one."""
    configs = [
        {"name": key, "config_operation": SET if value is not None else RESET, "value": value}
        for key, value in values.items()
    ]
    resource = {"resource_type": resource_type, "resource_name": name, "configs": configs}
    answer = wire.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource], "validate_only": False})
    assert [row.error_code for row in answer.responses] == [0], answer


def throttle(cluster: AdminWire, rate: str | None) -> None:
    """Bytes per second of the throttled topics, at every broker."""
    for broker, wire in cluster.wires.items():
        alter(wire, BROKER, str(broker), dict.fromkeys(RATES, rate))


@pytest.fixture
def throttled(cluster: AdminWire) -> Iterator[str]:
    with slow_topic(cluster) as name:
        yield name


@contextlib.contextmanager
def slow_topic(cluster: AdminWire) -> Iterator[str]:
    """A topic on the first two brokers with 6 MB, whose copying takes for ever."""
    a, b, _ = cluster.ids
    name = cluster.create([[a, b]])
    produce(cluster, name, 8, 800_000)
    # Not when it is made: Kafka's brokers go by a changed setting only.
    alter(cluster.wires[a], TOPIC, name, THROTTLED)
    throttle(cluster, "1000")
    time.sleep(0.5)  # Kafka's brokers take settings up some milliseconds after the answer, and do not say when
    yield name
    throttle(cluster, None)


def test_while_a_partition_moves(cluster: AdminWire, throttled: str) -> None:
    """CTL-10: the target's replicas are listed first, other changes are refused meanwhile, and a cancellation restores the old ones."""
    a, b, c = cluster.ids
    name = throttled
    assert cluster.reassign(name, {0: [c, a]}) == [(name, 0, 0)]
    assert cluster.moving()[(name, 0)] == ([c, a, b], [c], [b])
    eventually(lambda: cluster.partitions(name, a).get(0) == (a, [c, a, b], sorted([a, b])), "clients see all three")
    assert asked(cluster, ADD, 3, addition(name, 2)) == [(name, 60)]
    only = cluster.at_controller(MOVES, 0, moves({name: [0, 1]}))
    assert [(t.name, [p.partition_index for p in t.partitions]) for t in only.topics] == [(name, [0])]
    eventually(lambda: (c, 0) in cluster.sizes(name), "the new replica is there")
    sizes = cluster.sizes(name)
    assert sizes[(c, 0)] < sizes[(a, 0)], "the new replica is still smaller"
    assert cluster.reassign(name, {0: None}) == [(name, 0, 0)]
    eventually(lambda: (name, 0) not in cluster.moving(), "cancelled")
    eventually(lambda: cluster.partitions(name, a)[0] == (a, [a, b], sorted([a, b])), "as it was")
    assert cluster.reassign(name, {0: None}) == [(name, 0, 85)]
    eventually(lambda: (c, 0) not in cluster.sizes(name), "the new replica is gone from the disk")


def test_a_deletion_waits_for_the_move(ottla: AdminWire) -> None:
    """CTL-9: a reassignment delays the deletion, which is resumed afterwards.

    Kafka means the same, but marks the topic ineligible before it is queued, which has no effect: it deletes at once.
    """
    _, b, c = ottla.ids
    with slow_topic(ottla) as name:
        assert ottla.reassign(name, {0: [c, b]}) == [(name, 0, 0)]
        assert asked(ottla, DELETE, 6, deletion(name, timeout=500)) == [(name, 7)]
        assert asked(ottla, ADD, 3, addition(name, 2)) == [(name, 17)]
    eventually(lambda: ottla.sizes(name) == {}, "moved, then deleted")


def test_a_reassignment_completes(cluster: AdminWire) -> None:
    """CTL-10: led by the first of the new replicas, off the old disk."""
    a, b, c = cluster.ids
    name = cluster.create([[a, b]])
    produce(cluster, name, 10, 1000)
    assert cluster.reassign(name, {0: [b, c]}) == [(name, 0, 0)]
    eventually(lambda: (name, 0) not in cluster.moving(), "moved")
    eventually(lambda: cluster.partitions(name)[0] == (b, [b, c], sorted([b, c])), "where it was to go")
    eventually(lambda: set(cluster.sizes(name)) == {(b, 0), (c, 0)}, "and nowhere else")
    assert len(set(cluster.sizes(name).values())) == 1


def test_records_are_deleted(cluster: AdminWire) -> None:
    """LOG-1: below the start it succeeds, -1 is the high watermark, above it is refused."""
    a, b, c = cluster.ids
    name = cluster.create([[a, b, c]])
    produce(cluster, name, 10, 100)

    def delete(offset: int, broker: int = a) -> list[tuple[Any, ...]]:
        return list(rows_of(cluster.wires[broker].call(RECORDS, 2, records(name, 0, offset)), cluster))

    assert delete(4) == [(name, 0, 0, 4)]
    assert delete(2) == [(name, 0, 0, 4)]
    assert delete(11) == [(name, 0, 1, -1)]
    assert delete(-2) == [(name, 0, 1, -1)]
    assert delete(5, b) == [(name, 0, 6, -1)]
    partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -2}
    earliest = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": name, "partitions": [partition]}]}
    (topic,) = cluster.wires[a].call(ApiKey.LIST_OFFSETS, 7, earliest).topics
    assert topic.partitions[0].offset == 4
    assert delete(-1) == [(name, 0, 0, 10)]


def test_log_directories(cluster: AdminWire) -> None:
    """In every version. Unknown partitions, and those of other brokers, are left out."""
    a, b, _ = cluster.ids
    name = cluster.create([[a, b]])
    produce(cluster, name, 1, 100)
    eventually(lambda: len(set(cluster.sizes(name).values()) - {0}) == 1, "both replicas have it")
    assert set(cluster.sizes(name)) == {(a, 0), (b, 0)}
    for version in range(1, 5):
        for broker, expected in zip(cluster.ids, ([0], [0], []), strict=True):
            wanted = [{"topic": name, "partitions": [0, 99]}, {"topic": "nope", "partitions": [0]}]
            answer = cluster.wires[broker].call(ApiKey.DESCRIBE_LOG_DIRS, version, {"topics": wanted})
            (directory,) = answer.results
            rows = [p for topic in directory.topics for p in topic.partitions]
            assert [p.partition_index for p in rows] == expected
            assert all((p.offset_lag, p.is_future_key) == (0, False) and p.partition_size > 100 for p in rows)
            assert version < 4 or 0 < directory.usable_bytes < directory.total_bytes
