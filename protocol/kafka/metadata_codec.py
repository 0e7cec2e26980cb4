"""Metadata (API 3) responses, v0 to v13, hand-written for speed: after a change of leaders all clients ask at once. Pure.

v1 rack, controller, internal topics, v2 cluster id, v3 throttle time, v5 offline replicas, v7 leader epoch (KIP-320), v8
authorized operations (KIP-430), v9 flexible, v10 topic ids (KIP-516), v11 no authorized operations of the cluster, v12
names may be null for topics requested by id, v13 an error of the whole answer (KIP-1102). `tests/unit/protocol/kafka` compares
the responses with kio byte for byte.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from protocol.kafka.wire import INT, NO_UUID, SHORT, array_length, nullable_string, string

OPERATIONS_NOT_ASKED = -0x8000_0000
"""`authorized_operations` if the request does not ask for them."""

TOPIC_OPERATIONS = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
"""All operations of a topic as Kafka's bit field (KIP-430), because there is no authorization: Read, Write, Create, Delete, Alter,
Describe, DescribeConfigs, AlterConfigs."""
CLUSTER_OPERATIONS = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))
"""All operations of the cluster: Create, Alter, Describe, ClusterAction, DescribeConfigs, AlterConfigs, IdempotentWrite."""

_COUNT_BYTE_MAX = 126
"""The largest count with a compact length of one byte."""


class MetadataBroker(NamedTuple):
    """A live broker, with its address on the listener of the request."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class MetadataPartition(NamedTuple):
    """One partition. `leader_id` is -1 if there is no leader (error LEADER_NOT_AVAILABLE)."""

    error: int
    partition: int
    leader_id: int
    leader_epoch: int
    replicas: Sequence[int]
    isr: Sequence[int]
    offline_replicas: Sequence[int] = ()


class MetadataTopic(NamedTuple):
    """One topic. `name` is None only for an unknown id (v12+); `topic_id` is None for an unknown name."""

    error: int
    name: str | None
    topic_id: uuid.UUID | None
    is_internal: bool
    partitions: Sequence[MetadataPartition]
    authorized_operations: int = OPERATIONS_NOT_ASKED


def encode_response(
    version: int,
    brokers: Sequence[MetadataBroker],
    cluster_id: str | None,
    controller_id: int,
    topics: Sequence[MetadataTopic | bytes],
    *,
    throttle_ms: int = 0,
    cluster_authorized_operations: int = OPERATIONS_NOT_ASKED,
) -> bytes:
    """The response body. `controller_id` is -1 if unknown. Topics may already be encoded for this version."""
    flexible = version >= 9
    parts = [INT.pack(throttle_ms)] if version >= 3 else []
    parts.append(array_length(len(brokers), flexible))
    parts += [_encode_broker(version, broker) for broker in brokers]
    if version >= 2:
        parts.append(nullable_string(cluster_id, flexible))
    if version >= 1:
        parts.append(INT.pack(controller_id))
    parts.append(array_length(len(topics), flexible))
    for topic in topics:
        if isinstance(topic, bytes):
            parts.append(topic)
        else:
            parts.append(encode_topic(version, topic, [encode_partition(version, p) for p in topic.partitions]))
    if 8 <= version <= 10:
        parts.append(INT.pack(cluster_authorized_operations))
    if version >= 13:
        parts.append(SHORT.pack(0))
    if flexible:
        parts.append(b"\x00")
    return b"".join(parts)


def encode_topic(version: int, topic: MetadataTopic, partitions: Sequence[bytes]) -> bytes:
    """A topic with already encoded partitions; `topic.partitions` is ignored."""
    head = _encode_topic_head(version, topic, len(partitions))
    tail = b""
    if version >= 8:
        tail = INT.pack(topic.authorized_operations) + (b"\x00" if version >= 9 else b"")
    return b"".join((head, *partitions, tail))


def with_operations(version: int, topic: bytes, operations: int) -> bytes:
    """An encoded topic (v8+) with these authorized operations."""
    end = len(topic) - (1 if version >= 9 else 0)
    return b"".join((topic[: end - INT.size], INT.pack(operations), topic[end:]))


def _encode_broker(version: int, broker: MetadataBroker) -> bytes:
    flexible = version >= 9
    data = INT.pack(broker.node_id) + string(broker.host, flexible) + INT.pack(broker.port)
    if version >= 1:
        data += nullable_string(broker.rack, flexible)
    return data + b"\x00" if flexible else data


def _encode_topic_head(version: int, topic: MetadataTopic, partitions: int) -> bytes:
    """A topic's bytes before its partitions."""
    flexible = version >= 9
    data = SHORT.pack(topic.error)
    if version >= 12:
        data += nullable_string(topic.name, True)
    else:
        data += string(topic.name or "", flexible)
    if version >= 10:
        data += (topic.topic_id or NO_UUID).bytes
    if version >= 1:
        data += b"\x01" if topic.is_internal else b"\x00"
    return data + array_length(partitions, flexible)


def encode_partition(version: int, partition: MetadataPartition) -> bytes:
    """One partition. From v9 on a single `pack` writes it, with a cached layout for each combination of the three lists' lengths."""
    error, index, leader_id, leader_epoch, replicas, isr, offline = partition
    if version >= 9:
        replica_count, isr_count, offline_count = len(replicas), len(isr), len(offline)
        if max(replica_count, isr_count, offline_count) > _COUNT_BYTE_MAX:
            return _encode_wide_partition(partition)
        return _layout_v9(replica_count, isr_count, offline_count).pack(
            error,
            index,
            leader_id,
            leader_epoch,
            replica_count + 1,
            *replicas,
            isr_count + 1,
            *isr,
            offline_count + 1,
            *offline,
        )
    data = SHORT.pack(error) + INT.pack(index) + INT.pack(leader_id)
    if version >= 7:
        data += INT.pack(leader_epoch)
    data += _encode_ids(replicas, False) + _encode_ids(isr, False)
    return data + _encode_ids(offline, False) if version >= 5 else data


@lru_cache(maxsize=1024)
def _layout_v9(replica_count: int, isr_count: int, offline_count: int) -> struct.Struct:
    return struct.Struct(f">hiiiB{replica_count}iB{isr_count}iB{offline_count}ix")


def _encode_wide_partition(partition: MetadataPartition) -> bytes:
    """v9+ with more than 126 replicas."""
    return b"".join(
        (
            SHORT.pack(partition.error),
            INT.pack(partition.partition),
            INT.pack(partition.leader_id),
            INT.pack(partition.leader_epoch),
            _encode_ids(partition.replicas, True),
            _encode_ids(partition.isr, True),
            _encode_ids(partition.offline_replicas, True),
            b"\x00",
        )
    )


def _encode_ids(ids: Sequence[int], flexible: bool) -> bytes:
    return array_length(len(ids), flexible) + struct.pack(f">{len(ids)}i", *ids)
