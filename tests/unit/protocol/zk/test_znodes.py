"""Znodes byte for byte as Kafka 3.9.1 wrote them, and decoders that refuse invalid content with a ValueError."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.topic_ids import new_topic_id, topic_id_text, topic_id_uuid
from protocol.types import Assignment, BrokerInfo, Endpoint, LeaderAndIsr, TopicPartition
from protocol.zk.znodes import (
    BrokerIdZNode,
    ClusterIdZNode,
    ConfigChangeZNode,
    ConfigZNode,
    ControllerEpochZNode,
    ControllerZNode,
    IsrChangeZNode,
    PartitionStateZNode,
    PreferredElectionZNode,
    ProducerIdBlockZNode,
    ReassignPartitionsZNode,
    TopicZNode,
)

TP = TopicPartition("orders", 1)

# What `get` showed in the ZooKeeper of a real Kafka 3.9.1 cluster.
KAFKAS_BROKER = (
    b'{"features":{},"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},"endpoints":["PLAINTEXT://127.0.0.1:47092"],'
    b'"jmx_port":-1,"port":47092,"host":"127.0.0.1","version":5,"timestamp":"1795239635961"}'
)
KAFKAS_TOPIC = (
    b'{"partitions":{"0":[0,1],"1":[1,0],"2":[0,1]},"topic_id":"1rFcP54aQjqV4bLapKQHXQ","adding_replicas":{},'
    b'"removing_replicas":{},"version":3}'
)
KAFKAS_STATE = b'{"controller_epoch":1,"leader":1,"version":1,"leader_epoch":0,"isr":[1,0]}'
KAFKAS_CONFIG = b'{"version":1,"config":{"retention.ms":"1000"}}'
KAFKAS_CONTROLLER = b'{"version":2,"brokerid":0,"timestamp":"1795239636073","kraftControllerEpoch":-1}'
KAFKAS_CLUSTER_ID = b'{"version":"1","id":"L0We6e1dQZGI5APqeQHGzQ"}'

BROKER = BrokerInfo(7, 42, (Endpoint("PLAINTEXT", "127.0.0.1", 47092),))
ASSIGNMENT = {0: Assignment((0, 1)), 1: Assignment((1, 0)), 2: Assignment((0, 1))}


TOPIC_ID = "1rFcP54aQjqV4bLapKQHXQ"
CLUSTER_ID = "L0We6e1dQZGI5APqeQHGzQ"
STATE = LeaderAndIsr(1, 0, (1, 0), 1, 5)
BLOCK = b'{"version":1,"broker":1,"block_start":"1000","block_end":"1999"}'


@pytest.mark.parametrize(
    ("written", "kafkas"),
    [
        (BrokerIdZNode.encode(BROKER, 1795239635961), KAFKAS_BROKER),
        (TopicZNode.encode(TOPIC_ID, ASSIGNMENT), KAFKAS_TOPIC),
        (PartitionStateZNode.encode(STATE), KAFKAS_STATE),
        (ConfigZNode.encode({"retention.ms": "1000"}), KAFKAS_CONFIG),
        (ClusterIdZNode.encode(CLUSTER_ID), KAFKAS_CLUSTER_ID),
        (ControllerEpochZNode.encode(1), b"1"),
        (ProducerIdBlockZNode.encode(1, 1000, 1999), BLOCK),
        (IsrChangeZNode.encode([TP]), b'{"version":1,"partitions":[{"topic":"orders","partition":1}]}'),
        (ConfigChangeZNode.encode("topics/orders"), b'{"version":2,"entity_path":"topics/orders"}'),
        (
            ReassignPartitionsZNode.encode({TP: (1, 2)}),
            b'{"version":1,"partitions":[{"topic":"orders","partition":1,"replicas":[1,2]}]}',
        ),
    ],
)
def test_contents_are_kafkas(written: bytes, kafkas: bytes) -> None:
    assert written == kafkas


@pytest.mark.parametrize(
    ("read", "meant"),
    [
        (BrokerIdZNode.decode(7, KAFKAS_BROKER, 42), BROKER),
        (TopicZNode.decode(KAFKAS_TOPIC), (TOPIC_ID, ASSIGNMENT)),
        (TopicZNode.decode(b'{"version":1,"partitions":{"0":[3]}}'), (None, {0: Assignment((3,))})),
        (PartitionStateZNode.decode(KAFKAS_STATE, 5), STATE),
        (ConfigZNode.decode(KAFKAS_CONFIG), {"retention.ms": "1000"}),
        (ControllerZNode.decode(KAFKAS_CONTROLLER), 0),
        (ControllerZNode.decode(ControllerZNode.encode(3, 1)), 3),
        (ClusterIdZNode.decode(KAFKAS_CLUSTER_ID), CLUSTER_ID),
        (ProducerIdBlockZNode.decode(BLOCK), 1999),
        (ProducerIdBlockZNode.decode(b""), -1),
    ],
)
def test_kafkas_contents_are_understood(read: object, meant: object) -> None:
    assert read == meant


def test_a_broker_with_rack_and_several_listeners() -> None:
    broker = BrokerInfo(
        1, 9, (Endpoint("IN", "::1", 19091, "SSL"), Endpoint("OUT", "host", 9092), Endpoint("CONTROLLER", "h", 1)), "r1"
    )
    data = BrokerIdZNode.encode(broker, 1)
    assert BrokerIdZNode.decode(1, data, 9) == broker
    assert b'"port":9092,"host":"host"' in data, "the old fields name the plaintext listener"


numbers = st.integers(0, 2**31 - 1)
replicas = st.lists(numbers, min_size=1, max_size=5, unique=True).map(tuple)


@given(
    st.dictionaries(
        numbers, st.builds(Assignment, replicas, replicas | st.just(()), replicas | st.just(())), max_size=5
    )
)
def test_an_assignment_is_read_as_it_was_written(assignment: dict[int, Assignment]) -> None:
    topic_id = topic_id_text(uuid.UUID(int=5))
    assert TopicZNode.decode(TopicZNode.encode(topic_id, assignment)) == (topic_id, assignment)


@given(st.lists(st.builds(TopicPartition, st.from_regex(r"[a-zA-Z0-9_-]{1,9}", fullmatch=True), numbers), max_size=5))
def test_partition_lists_are_read_as_they_were_written(partitions: list[TopicPartition]) -> None:
    assert IsrChangeZNode.decode(IsrChangeZNode.encode(partitions)) == tuple(partitions)
    assert PreferredElectionZNode.decode(PreferredElectionZNode.encode(partitions)) == tuple(partitions)


@given(st.uuids())
def test_topic_ids(value: uuid.UUID) -> None:
    text = topic_id_text(value)
    assert len(text) == 22
    assert topic_id_uuid(text) == value


@pytest.mark.parametrize(
    "text", ["", "x", "1rFcP54aQjqV4bLapKQHX", "1rFcP54aQjqV4bLapKQHXQ==", "1rFcP54aQjqV4bLapKQH/Q", "é" * 22]
)
def test_bad_topic_ids(text: str) -> None:
    with pytest.raises(ValueError, match="topic id"):
        topic_id_uuid(text)


@given(st.binary(min_size=16, max_size=16))
def test_new_topic_ids_are_random_uuids_that_do_not_look_like_an_option(random_bytes: bytes) -> None:
    text = new_topic_id(random_bytes)
    assert not text.startswith("-")
    assert topic_id_uuid(text).version == 4


DECODERS: list[Callable[[bytes], Any]] = [
    lambda data: BrokerIdZNode.decode(1, data, 1),
    TopicZNode.decode,
    lambda data: PartitionStateZNode.decode(data, 1),
    ControllerZNode.decode,
    ControllerEpochZNode.decode,
    ConfigZNode.decode,
    ConfigChangeZNode.decode,
    IsrChangeZNode.decode,
    ReassignPartitionsZNode.decode,
    PreferredElectionZNode.decode,
    ClusterIdZNode.decode,
]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
FIELDS = [
    *("partitions", "replicas", "adding_replicas", "removing_replicas", "topic_id", "topic", "partition"),
    *("leader", "leader_epoch", "isr", "controller_epoch", "brokerid", "id", "rack"),
    *("config", "entity_path", "endpoints", "listener_security_protocol_map"),
]


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"{", b"[]", b"null", b"1.5", b'"x"', b"\xff\xfe", b"[" * 100_000),
        b'{"partitions":5,"isr":5,"config":5,"id":""}',
    ],
)
def test_invalid_content_is_a_value_error(decode: Callable[[bytes], Any], data: bytes) -> None:
    with pytest.raises(ValueError):
        decode(data)


@given(st.sampled_from(DECODERS), st.dictionaries(st.sampled_from(FIELDS), json_values))
def test_json_of_another_shape_is_decoded_or_a_value_error(
    decode: Callable[[bytes], Any], value: dict[str, Any]
) -> None:
    with contextlib.suppress(ValueError):
        decode(json.dumps(value).encode())
