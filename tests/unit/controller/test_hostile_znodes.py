"""Invalid znodes: each is logged and skipped, and harms no other topic, no broker and no term."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from protocol.types import TopicPartition
from protocol.zk.znodes import (
    BrokerIdZNode,
    ConfigZNode,
    ControllerEpochZNode,
    ControllerZNode,
    DeleteTopicZNode,
    IsrChangeZNode,
    LogDirEventZNode,
    PartitionStateZNode,
    PreferredElectionZNode,
    ReassignPartitionsZNode,
    TopicZNode,
)
from tests.support.memory_cluster import MemoryCluster

T0 = TopicPartition("t", 0)

ILLEGAL_NAMES = ["x" * 300, "x" * 250, "a b", "ü", "‮gpj", "\ud7ff", "a\nb", "*", "a,b", "%2e%2e"]

MANY = ",".join(map(str, range(1, 1026))).encode()
"""One replica more than a control request can repeat."""

BAD_ASSIGNMENTS: dict[str, bytes] = {
    "no JSON": b"{",
    "no UTF-8": b'{"partitions":{"0":[1]},"x":"\xff\xfe"}',
    "a list": b"[]",
    "nothing": b"",
    "partition 01": b'{"version":2,"partitions":{"01":[1]}}',
    "partition -1": b'{"version":2,"partitions":{"-1":[1]}}',
    "partition of other digits": '{"version":2,"partitions":{"²":[1],"٣":[1]}}'.encode(),
    "a huge partition": b'{"version":2,"partitions":{"4294967296":[1]}}',
    "a partition beyond Python's digits": b'{"version":2,"partitions":{"' + b"9" * 5000 + b'":[1]}}',
    "two names of one partition": b'{"version":2,"partitions":{"1":[1],"1":[2],"+1":[1]}}',
    "a text as replica": b'{"version":2,"partitions":{"0":["1"]}}',
    "NaN as replica": b'{"version":2,"partitions":{"0":[NaN]}}',
    "true as replica": b'{"version":2,"partitions":{"0":[true]}}',
    "a negative replica": b'{"version":2,"partitions":{"0":[-1]}}',
    "a huge replica": b'{"version":2,"partitions":{"0":[1267650600228229401496703205376]}}',
    "a replica of 64 bits": b'{"version":2,"partitions":{"0":[9223372036854775807]}}',
    "a replica beyond Python's digits": b'{"version":2,"partitions":{"0":[' + b"9" * 5000 + b"]}}",
    "a huge adding replica": b'{"version":3,"partitions":{"0":[1]},"adding_replicas":{"0":[18446744073709551616]}}',
    "deep": b"[" * 100_000,
    "many replicas": b'{"version":2,"partitions":{"0":[%b]}}' % MANY,
    "many adding replicas": b'{"version":3,"partitions":{"0":[1]},"adding_replicas":{"0":[%b]}}' % MANY,
}

BAD_STATES: dict[str, bytes] = {
    "a long ISR": b'{"controller_epoch":1,"leader":1,"version":1,"leader_epoch":0,"isr":[%b]}' % MANY,
    "no JSON": b"\xff",
    "a NaN epoch": b'{"controller_epoch":1,"leader":1,"version":1,"leader_epoch":NaN,"isr":[1]}',
    "a huge epoch": b'{"controller_epoch":1,"leader":1,"version":1,"leader_epoch":99999999999999999999,"isr":[1]}',
    "an epoch of 64 bits": b'{"controller_epoch":1,"leader":1,"version":1,"leader_epoch":9223372036854775806,"isr":[1]}',
    "the last epoch": b'{"controller_epoch":1,"leader":1,"version":1,"leader_epoch":2147483647,"isr":[1]}',
    "a negative epoch": b'{"controller_epoch":1,"leader":1,"version":1,"leader_epoch":-7,"isr":[1]}',
    "a huge leader": b'{"controller_epoch":1,"leader":99999999999,"version":1,"leader_epoch":1,"isr":[1]}',
    "a huge controller epoch": b'{"controller_epoch":36893488147419103232,"leader":1,"version":1,"leader_epoch":1,"isr":[1]}',
    "a huge member": b'{"controller_epoch":1,"leader":1,"version":1,"leader_epoch":1,"isr":[1,36893488147419103232]}',
    "texts": b'{"controller_epoch":"1","leader":"1","version":1,"leader_epoch":"1","isr":["1"]}',
}


def raw_topic(cluster: MemoryCluster, name: str, data: bytes = b'{"version":2,"partitions":{"0":[1]}}') -> None:
    cluster.server.ensure(TopicZNode.path(name), data)


async def still_works(cluster: MemoryCluster) -> None:
    """Checks that the term did not end, and that the good topic and a new one are served everywhere."""
    await cluster.settle()
    assert cluster.controller_epoch == 1, "the controller's term ended"
    await cluster.create_topic("after", {0: (2, 3)})
    assert cluster.state("after").leader == 2
    for broker in cluster.running.values():
        assert T0 in broker.metadata
        assert TopicPartition("after", 0) in broker.metadata


def told_topics(cluster: MemoryCluster) -> set[str]:
    """Every topic that any request to any broker names."""
    found: set[str] = set()
    for broker in cluster.running.values():
        for request in broker.requests:
            found |= {row.topic for row in getattr(request, "partitions", ())}
            found |= set(getattr(request, "topic_ids", ())) | set(getattr(request, "other_topics", ()))
    return found


async def new_controller(cluster: MemoryCluster) -> None:
    """A new controller, which finds the invalid nodes at the start of its term."""
    old = cluster.controller
    await cluster.kill(old)
    await cluster.settle()
    assert cluster.controller_epoch == 2
    await cluster.start(old)
    await cluster.settle()
    assert cluster.controller_epoch == 2


@pytest.mark.parametrize("name", ILLEGAL_NAMES, ids=ascii)
async def test_a_topic_with_an_illegal_name_is_not_announced(
    cluster: MemoryCluster, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.create_topic("t", {0: (2, 3)})
    raw_topic(cluster, name)
    await still_works(cluster)
    await new_controller(cluster)
    assert told_topics(cluster) == {"t", "after"}
    cluster.server.ensure(DeleteTopicZNode.path(name))
    await cluster.settle()
    assert cluster.server.children(DeleteTopicZNode.PARENT) == [], "the request for it is answered by its removal"
    cluster.server.remove(TopicZNode.path(name))
    await cluster.settle()
    assert cluster.controller_epoch == 2
    lines = [record.getMessage() for record in caplog.records if "name of a topic" in record.getMessage()]
    assert 1 <= len(lines) <= 4
    assert all(line.isprintable() and len(line) < 400 for line in lines)


@pytest.mark.parametrize("data", BAD_ASSIGNMENTS.values(), ids=BAD_ASSIGNMENTS.keys())
async def test_an_invalid_assignment_harms_no_other_topic(cluster: MemoryCluster, data: bytes) -> None:
    await cluster.create_topic("t", {0: (2, 3)})
    raw_topic(cluster, "bad", data)
    await still_works(cluster)
    raw_topic(cluster, "t", data)  # a known one becomes unreadable: it goes on as it was
    await cluster.settle()
    assert cluster.controller_epoch == 1
    assert T0 in cluster.running[1].metadata
    cluster.put_topic("t", {0: (2, 3)})
    await cluster.settle()
    await new_controller(cluster)
    assert not {tp for broker in cluster.running.values() for tp in broker.metadata if tp.topic == "bad"}


@pytest.mark.parametrize("data", BAD_STATES.values(), ids=BAD_STATES.keys())
async def test_an_invalid_state_harms_only_its_partition(cluster: MemoryCluster, data: bytes) -> None:
    await cluster.create_topic("t", {0: (2, 3)})
    await cluster.create_topic("bad", {0: (1, 2), 1: (2, 3)})
    path = PartitionStateZNode.path(TopicPartition("bad", 0))
    good = cluster.server.nodes[path].data
    cluster.server.ensure(path, data)
    cluster.server.ensure(
        f"{IsrChangeZNode.PATH_PREFIX}0000000007", IsrChangeZNode.encode([TopicPartition("bad", 0), T0])
    )
    await still_works(cluster)
    await new_controller(cluster)
    assert TopicPartition("bad", 1) in cluster.running[1].metadata
    assert cluster.server.nodes[path].data == data, "it is left alone"
    cluster.server.ensure(path, good)
    cluster.server.remove(TopicZNode.path("bad"))


def registration(**changes: Any) -> bytes:
    node = {
        "listener_security_protocol_map": {"CONTROLLER": "PLAINTEXT"},
        "endpoints": ["CONTROLLER://broker:9"],
        "version": 5,
    }
    return json.dumps({**node, **changes}).encode()


BAD_REGISTRATIONS = {
    "no JSON": b"\xff{",
    "endpoints are numbers": registration(endpoints=[1]),
    "a port of other digits": registration(endpoints=["CONTROLLER://broker:²"]),
    "a port beyond 65535": registration(endpoints=["CONTROLLER://broker:65536"]),
    "a port beyond Python's digits": registration(endpoints=["CONTROLLER://broker:" + "9" * 5000]),
    "an empty host": registration(endpoints=["CONTROLLER://:9"]),
    "a host with an empty label": registration(endpoints=["CONTROLLER://a..b:9"]),
    "a host with a long label": registration(endpoints=["CONTROLLER://" + "a" * 64 + ":9"]),
    "a host with a new line": registration(endpoints=["CONTROLLER://a\nb:9"]),
    "a host with a NUL": registration(endpoints=["CONTROLLER://a\0b:9"]),
    "a half of a surrogate pair as host": registration(endpoints=["CONTROLLER://\ud800:9"]),
    "a half of a surrogate pair as rack": registration(rack="\ud800"),
    "a rack that no answer has room for": registration(rack="r" * 40_000),
    "a rack that is no text": registration(rack={"a": [1]}),
    "a listener with two endpoints": registration(endpoints=["CONTROLLER://broker:9", "CONTROLLER://broker:10"]),
    "more endpoints than a request has room for": registration(endpoints=[f"L{n}://h:1" for n in range(1000)]),
    "a protocol that is no text": registration(listener_security_protocol_map={"CONTROLLER": [1]}),
}


@pytest.mark.parametrize(
    ("name", "data"),
    [
        *((name, registration()) for name in ("²", "٣", "9" * 5000, "99999999999", "01", "-1", "x", "1 ")),
        *(("9", data) for data in BAD_REGISTRATIONS.values()),
    ],
    ids=[*(f"id {n}" for n in range(8)), *BAD_REGISTRATIONS],
)
async def test_an_invalid_registration_is_not_a_broker(cluster: MemoryCluster, name: str, data: bytes) -> None:
    await cluster.create_topic("t", {0: (2, 3)})
    path = f"{BrokerIdZNode.PARENT}/{name}"
    cluster.server.ensure(path, data)
    await still_works(cluster)
    assert {info.id for info in cluster.running[1].brokers} == {1, 2, 3}
    await new_controller(cluster)
    cluster.server.remove(path)


BAD_PARTITION_LISTS = {
    "no JSON": b"\xff",
    "no list": b'{"version":1,"partitions":{}}',
    "a float": b'{"version":1,"partitions":[{"topic":"t","partition":0.0}]}',
    "NaN": b'{"version":1,"partitions":[{"topic":"t","partition":NaN}]}',
    "a list as topic": b'{"version":1,"partitions":[{"topic":[1],"partition":0,"replicas":[1]}]}',
    "an illegal topic": b'{"version":1,"partitions":[{"topic":"../../x","partition":0,"replicas":[1]}]}',
    "a control character": b'{"version":1,"partitions":[{"topic":"a\\nb","partition":0,"replicas":[1]}]}',
    "a half of a pair": b'{"version":1,"partitions":[{"topic":"\\ud800","partition":0,"replicas":[1]}]}',
    "a huge partition": b'{"version":1,"partitions":[{"topic":"t","partition":99999999999999999999,"replicas":[1]}]}',
    "huge replicas": b'{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[99999999999999999999,-4]}]}',
}


@pytest.mark.parametrize("data", BAD_PARTITION_LISTS.values(), ids=BAD_PARTITION_LISTS.keys())
@pytest.mark.parametrize(
    "path",
    [
        PreferredElectionZNode.PATH,
        ReassignPartitionsZNode.PATH,
        f"{IsrChangeZNode.PATH_PREFIX}0000000001",
        f"{IsrChangeZNode.PARENT}/‮",
        f"{LogDirEventZNode.PATH_PREFIX}0000000001",
    ],
)
async def test_an_invalid_request_or_notification_is_removed(cluster: MemoryCluster, path: str, data: bytes) -> None:
    await cluster.create_topic("t", {0: (2, 3)})
    cluster.server.ensure(path, data)
    await still_works(cluster)
    assert path not in cluster.server.nodes


@pytest.mark.parametrize(
    "parent",
    [
        DeleteTopicZNode.path("nobody"),
        DeleteTopicZNode.path("x" * 300),
        DeleteTopicZNode.path("t"),
        ConfigZNode.path("topics", "t"),
        PreferredElectionZNode.PATH,
        ReassignPartitionsZNode.PATH,
        f"{IsrChangeZNode.PATH_PREFIX}0000000001",
        f"{LogDirEventZNode.PATH_PREFIX}0000000001",
    ],
    ids=lambda path: path[:40],
)
async def test_nodes_below_a_node_to_remove_do_not_end_the_term(cluster: MemoryCluster, parent: str) -> None:
    """A delete fails with NotEmpty if somebody created a node below."""
    await cluster.create_topic("t", {0: (2, 3)})
    await cluster.create_topic("good", {0: (2, 3)})
    cluster.server.ensure(f"{parent}/child/grandchild", b"{}")
    if parent == ConfigZNode.path("topics", "t"):
        cluster.server.ensure(DeleteTopicZNode.path("t"))
    await cluster.settle()
    assert cluster.controller_epoch == 1
    await cluster.create_topic("after", {0: (2, 3)})
    assert cluster.state("after").leader == 2
    if "t" in (parent.rpartition("/")[2],):
        assert T0 not in cluster.running[1].metadata, "deleted all the same"
        assert TopicZNode.path("t") not in cluster.server.nodes
    assert parent not in cluster.server.nodes, "with what is below"


@pytest.mark.parametrize(
    "data", [b"NaN", b"1_0", b"\xff", "٣".encode(), b"-1", b"99999999999", b"2147483647", b"9" * 5000]
)
async def test_an_unreadable_epoch_is_logged_once_and_repaired_by_hand(
    cluster: MemoryCluster, data: bytes, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then nobody can be elected. Each live broker logs this once, without a traceback."""
    monkeypatch.setattr("controller.controller.EPOCH_RETRY_S", 0)
    await cluster.create_topic("t", {0: (2, 3)})
    cluster.server.ensure(ControllerEpochZNode.PATH, data)
    await cluster.kill(cluster.controller)
    for _ in range(50):
        await asyncio.sleep(0)
    cluster.server.ensure(ControllerEpochZNode.PATH, b"7")
    await cluster.settle()
    assert cluster.controller_epoch == 8
    assert ControllerZNode.PATH in cluster.server.nodes
    assert not [record for record in caplog.records if record.exc_info]
    assert len([r for r in caplog.records if r.levelno >= logging.ERROR]) <= 2
