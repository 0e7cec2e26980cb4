"""Metadata responses by hand against kio, every version."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.kafka import messages, metadata_codec
from protocol.kafka.api_keys import SUPPORTED, ApiKey
from protocol.kafka.metadata_codec import MetadataBroker, MetadataPartition, MetadataTopic
from tests.support.kafka_values import durations_ms, error_codes, int32s, names, uuids

VERSIONS = range(SUPPORTED[ApiKey.METADATA].min, SUPPORTED[ApiKey.METADATA].max + 1)

ids = st.lists(int32s, max_size=4).map(tuple)
brokers = st.lists(st.builds(MetadataBroker, int32s, names, int32s, st.none() | names), max_size=3)
partitions = st.builds(MetadataPartition, error_codes, int32s, int32s, int32s, ids, ids, ids)
topics = st.builds(
    MetadataTopic,
    error=error_codes,
    name=names,
    topic_id=st.none() | uuids,
    is_internal=st.booleans(),
    partitions=st.lists(partitions, max_size=3),
    authorized_operations=int32s,
)


def kio_bytes(
    version: int,
    brokers: list[MetadataBroker],
    cluster_id: str | None,
    controller_id: int,
    topics: list[MetadataTopic],
    throttle_ms: int = 0,
    cluster_operations: int = metadata_codec.OPERATIONS_NOT_ASKED,
) -> bytes:
    body = {
        "throttle_time": throttle_ms,
        "brokers": [broker._asdict() for broker in brokers],
        "cluster_id": cluster_id,
        "controller_id": controller_id,
        "topics": [
            {
                "error_code": topic.error,
                "name": topic.name,
                "topic_id": topic.topic_id,
                "is_internal": topic.is_internal,
                "partitions": [
                    {
                        "error_code": partition.error,
                        "partition_index": partition.partition,
                        "leader_id": partition.leader_id,
                        "leader_epoch": partition.leader_epoch,
                        "replica_nodes": partition.replicas,
                        "isr_nodes": partition.isr,
                        "offline_replicas": partition.offline_replicas,
                    }
                    for partition in topic.partitions
                ],
                "topic_authorized_operations": topic.authorized_operations,
            }
            for topic in topics
        ],
        "cluster_authorized_operations": cluster_operations,
    }
    return messages.encode_response(ApiKey.METADATA, version, body)


@pytest.mark.parametrize("version", VERSIONS)
@given(
    brokers=brokers,
    cluster_id=st.none() | names,
    controller_id=int32s,
    topics=st.lists(topics, max_size=3),
    throttle_ms=durations_ms,
    operations=int32s,
)
@settings(max_examples=20, deadline=None)
def test_responses_are_kios_byte_for_byte(
    version: int,
    brokers: list[MetadataBroker],
    cluster_id: str | None,
    controller_id: int,
    topics: list[MetadataTopic],
    throttle_ms: int,
    operations: int,
) -> None:
    written = metadata_codec.encode_response(
        version,
        brokers,
        cluster_id,
        controller_id,
        topics,
        throttle_ms=throttle_ms,
        cluster_authorized_operations=operations,
    )
    assert written == kio_bytes(version, brokers, cluster_id, controller_id, topics, throttle_ms, operations)


@pytest.mark.parametrize("count", [126, 127, 128, 300])
@pytest.mark.parametrize("version", [8, 9, 12])
def test_any_number_of_replicas_and_partitions(version: int, count: int) -> None:
    replicas = tuple(range(count))
    partition = MetadataPartition(0, 0, 1, 2, replicas, replicas[:3], replicas[1:])
    topic = MetadataTopic(0, "t", None, False, [partition] * count)
    written = metadata_codec.encode_response(version, [], None, -1, [topic])
    assert written == kio_bytes(version, [], None, -1, [topic])


def test_a_topic_without_name() -> None:
    """Asked for by an id that nobody knows, v12."""
    topic = MetadataTopic(100, None, None, False, [])
    assert metadata_codec.encode_response(12, [], "c", 1, [topic]) == kio_bytes(12, [], "c", 1, [topic])
