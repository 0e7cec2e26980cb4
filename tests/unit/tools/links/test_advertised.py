"""Answers through the links name no address but theirs, in every version, and stay the same otherwise."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from protocol.conversation.asked import plain
from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.framing import MalformedRequest, response_header
from tools.links import advertised
from tools.links.frames import framed

BROKERS = {1: ("kafka-1", 9092), 2: ("10.0.0.2", 9093)}
MOVED = {1: ("proxy", 20001), 2: ("proxy", 20002)}
CORRELATION_ID = 77
NODES: list[dict[str, Any]] = [
    {"node_id": 1, "host": "kafka-1", "port": 9092, "rack": None},
    {"node_id": 2, "host": "10.0.0.2", "port": 9093, "rack": "a"},
]
ERROR = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
PARTITION = {
    "error_code": 0,
    "partition_index": 0,
    "leader_id": 1,
    "leader_epoch": 5,
    "replica_nodes": [1, 2],
    "isr_nodes": [1, 2],
    "offline_replicas": [],
}
METADATA = {
    "throttle_time": 3,
    "error_code": 0,
    "brokers": NODES,
    "cluster_id": "c",
    "controller_id": 2,
    "topics": [
        {
            "error_code": 0,
            "name": "orders",
            "topic_id": uuid.UUID(int=7),
            "is_internal": False,
            "partitions": [PARTITION],
            "topic_authorized_operations": 1,
        }
    ],
    "cluster_authorized_operations": 1,
}
COORDINATORS = {
    "throttle_time": 0,
    "error_code": 0,
    "error_message": None,
    "node_id": 2,
    "host": "10.0.0.2",
    "port": 9093,
    "coordinators": [
        {"key": "g", "node_id": 2, "host": "10.0.0.2", "port": 9093, "error_code": 0, "error_message": None},
        {"key": "h", "node_id": -1, "host": "", "port": -1, "error_code": 15, "error_message": "none"},
    ],
}
CLUSTER = {
    "throttle_time": 0,
    "error_code": 0,
    "error_message": None,
    "endpoint_type": 1,
    "cluster_id": "c",
    "controller_id": 1,
    "brokers": [{**row, "broker_id": row["node_id"], "is_fenced": False} for row in NODES],
    "cluster_authorized_operations": 1,
}
PRODUCED = {
    "responses": [
        {
            "name": "orders",
            "topic_id": uuid.UUID(int=7),
            "partition_responses": [
                {
                    "index": 0,
                    "error_code": ERROR,
                    "base_offset": -1,
                    "log_append_time": -1,
                    "log_start_offset": -1,
                    "record_errors": [],
                    "error_message": None,
                    "current_leader": {"leader_id": 2, "leader_epoch": 6},
                }
            ],
        }
    ],
    "throttle_time": 0,
    "node_endpoints": NODES,
}
FETCHED = {
    "throttle_time": 0,
    "error_code": 0,
    "session_id": 9,
    "responses": [
        {
            "topic_id": uuid.UUID(int=7),
            "partitions": [
                {
                    "partition_index": 0,
                    "error_code": ERROR,
                    "high_watermark": -1,
                    "last_stable_offset": -1,
                    "log_start_offset": -1,
                    "current_leader": {"leader_id": 2, "leader_epoch": 6},
                    "aborted_transactions": None,
                    "preferred_read_replica": -1,
                    "records": b"",
                }
            ],
        }
    ],
    "node_endpoints": NODES,
}
EACH = [
    *((ApiKey.METADATA, version, METADATA) for version in messages.versions_with_schemas(ApiKey.METADATA)),
    *((ApiKey.FIND_COORDINATOR, version, COORDINATORS) for version in messages.versions_with_schemas(ApiKey.FIND_COORDINATOR)),
    *((ApiKey.DESCRIBE_CLUSTER, version, CLUSTER) for version in messages.versions_with_schemas(ApiKey.DESCRIBE_CLUSTER)),
    *((ApiKey.PRODUCE, version, PRODUCED) for version in range(10, messages.versions_with_schemas(ApiKey.PRODUCE).stop)),
    *((ApiKey.FETCH, version, FETCHED) for version in range(16, messages.versions_with_schemas(ApiKey.FETCH).stop)),
]  # fmt: skip


def moved(broker: int, host: str, port: int) -> tuple[str, int]:
    assert BROKERS[broker] == (host, port)
    return MOVED[broker]


def answer(key: int, version: int, body: Any) -> bytes:
    return framed(response_header(key, version, CORRELATION_ID), messages.encode_response(key, version, body))


def read(key: int, version: int, frame: bytes) -> tuple[int, Any]:
    correlation_id, entity = messages.decode_response(key, version, frame[4:])
    return correlation_id, plain(entity)


def with_moved(found: Any) -> Any:
    """The message with the addresses of MOVED."""
    if isinstance(found, list):
        return [with_moved(each) for each in found]
    if not isinstance(found, dict):
        return found
    changed = {name: with_moved(value) for name, value in found.items()}
    broker = found.get("broker_id", found.get("node_id", -1))
    if "host" in found and broker in MOVED:
        changed["host"], changed["port"] = MOVED[broker]
    return changed


@pytest.mark.parametrize(
    ("key", "version", "body"), EACH, ids=lambda value: "" if isinstance(value, dict) else str(value)
)
def test_all_addresses_are_those_of_the_links(key: ApiKey, version: int, body: Any) -> None:
    assert advertised.names_brokers(key, version)
    assert advertised.is_readable(key, version)
    frame = answer(key, version, body)
    changed = advertised.rewritten(key, version, frame, moved)
    assert int.from_bytes(changed[:4], "big") == len(changed) - 4
    before = read(key, version, frame)
    assert read(key, version, changed) == (CORRELATION_ID, with_moved(before[1]))
    assert b"proxy" in changed
    assert b"kafka-1" not in changed


def test_metadata_of_a_version_that_nobody_knows_yet_is_rewritten() -> None:
    frame = answer(ApiKey.METADATA, 13, METADATA)
    assert advertised.rewritten(ApiKey.METADATA, 14, frame, moved) == advertised.rewritten(
        ApiKey.METADATA, 13, frame, moved
    )


@pytest.mark.parametrize(
    ("key", "version", "body"),
    [
        (ApiKey.DESCRIBE_CLUSTER, 1, {**CLUSTER, "endpoint_type": 2}),
        (ApiKey.PRODUCE, 11, {**PRODUCED, "node_endpoints": []}),
        (ApiKey.FETCH, 17, {**FETCHED, "node_endpoints": []}),
        (ApiKey.FIND_COORDINATOR, 3, {**COORDINATORS, "node_id": -1, "host": "", "port": -1, "error_code": 15}),
    ],
    ids=["controllers", "produce", "fetch", "no coordinator"],
)
def test_without_addresses_of_brokers_an_answer_stays_as_it_is(key: ApiKey, version: int, body: Any) -> None:
    frame = answer(key, version, body)
    assert advertised.rewritten(key, version, frame, moved) is frame


@pytest.mark.parametrize(("key", "version"), [(ApiKey.PRODUCE, 9), (ApiKey.FETCH, 15), (ApiKey.HEARTBEAT, 4), (999, 1)])
def test_other_answers_are_not_looked_at(key: int, version: int) -> None:
    assert not advertised.names_brokers(key, version)


@pytest.mark.parametrize("version", messages.versions_with_schemas(ApiKey.API_VERSIONS))
def test_clients_learn_of_no_version_that_cannot_be_rewritten(version: int) -> None:
    rows = [
        {"api_key": key, "min_version": 0, "max_version": 99}
        for key in (ApiKey.METADATA, ApiKey.HEARTBEAT, ApiKey.FETCH)
    ]
    rows += [{"api_key": 999, "min_version": 2, "max_version": 3}]
    body = {"error_code": 0, "api_keys": rows, "throttle_time": 5}
    body |= {
        "supported_features": [{"name": "f", "min_version": 1, "max_version": 2}],
        "finalized_features_epoch": 3,
        "finalized_features": [{"name": "f", "min_version_level": 1, "max_version_level": 2}],
        "zk_migration_ready": False,
    }
    frame = answer(ApiKey.API_VERSIONS, version, body)
    before = read(ApiKey.API_VERSIONS, version, frame)[1]
    after = read(ApiKey.API_VERSIONS, version, advertised.rewritten(ApiKey.API_VERSIONS, version, frame, moved))[1]
    newest = {row["api_key"]: row["max_version"] for row in after["api_keys"]}
    assert newest == {
        ApiKey.METADATA: messages.versions_with_schemas(ApiKey.METADATA)[-1],
        ApiKey.HEARTBEAT: 99,
        ApiKey.FETCH: messages.versions_with_schemas(ApiKey.FETCH)[-1],
        999: 3,
    }
    assert {**after, "api_keys": 0} == {**before, "api_keys": 0}


def test_a_broker_that_does_not_know_the_version_of_api_versions_answers_in_v0() -> None:
    rows = [{"api_key": ApiKey.METADATA, "min_version": 0, "max_version": 99}]
    frame = answer(ApiKey.API_VERSIONS, 0, {"error_code": int(ErrorCode.UNSUPPORTED_VERSION), "api_keys": rows})
    changed = read(ApiKey.API_VERSIONS, 0, advertised.rewritten(ApiKey.API_VERSIONS, 4, frame, moved))[1]
    assert changed["api_keys"][0]["max_version"] < 99


@pytest.mark.parametrize("key_version", [(ApiKey.METADATA, 12), (ApiKey.FIND_COORDINATOR, 4), (ApiKey.API_VERSIONS, 3)])
@pytest.mark.parametrize("size", range(8, 30, 3))
def test_an_answer_that_is_cut_off_is_an_error(key_version: tuple[ApiKey, int], size: int) -> None:
    bodies: dict[int, Any] = {
        ApiKey.METADATA: METADATA,
        ApiKey.FIND_COORDINATOR: COORDINATORS,
        ApiKey.API_VERSIONS: {
            "error_code": 0,
            "api_keys": [{"api_key": number, "min_version": 0, "max_version": 9} for number in range(9)],
            "throttle_time": 0,
        },
    }
    key, version = key_version
    frame = answer(key, version, bodies[key])
    assert len(frame) > size
    with pytest.raises(MalformedRequest):
        advertised.rewritten(key, version, frame[:size], moved)


@pytest.mark.parametrize("version", [0, 99])
def test_share_fetches_of_versions_without_schemas_are_not_read(version: int) -> None:
    """Kafka 4.0 had v0, before the format was final."""
    assert not advertised.is_readable(advertised.SHARE_FETCH, version)
