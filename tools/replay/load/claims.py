"""Who reads which partition in a replayed consumer group. Pure.

A member's **claims** are the partitions that it reads, each with the scheduled time of its first fetch since it last lost the
partition. The group's leader assigns each partition to the member with the latest claim, because the trace has the fetches of the
member that took the partition over.

Members send their claims as the user data of Kafka's `ConsumerProtocolSubscription`, version 0, so tools show the group as any other:

    subscription: version INT16 | topics: count INT32, then each: name STRING | user data BYTES
    user data:    version INT16 | topics: count INT32, then each: name STRING,
                                  partitions: count INT32, then each: partition INT32, time INT64 (nanoseconds since 1970 UTC)
    assignment:   version INT16 | topics: count INT32, then each: name STRING,
                                  partitions: count INT32, then each: partition INT32 | user data BYTES
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping

from protocol.kafka.framing import MalformedRequest
from protocol.kafka.wire import read_array_length, read_string
from protocol.types import Buffer

TopicPartition = tuple[str, int]
Claims = Mapping[TopicPartition, int]
"""Partition -> nanoseconds since 1970 UTC."""

PROTOCOL_TYPE = "consumer"
PROTOCOL = "ottla-replay"
"""The assignor's name. Consumers with other assignors cannot join the group."""
VERSION = 0

_SHORT = struct.Struct(">h")
_COUNT = struct.Struct(">i")
_CLAIM = struct.Struct(">iq")
_STRING_SIZE_MIN = 2
_TOPIC_SIZE_MIN = 6
_NO_USER_DATA = b"\xff\xff\xff\xff"


def subscription(topics: Collection[str], claims: Claims) -> bytes:
    """The metadata of a member that reads these topics."""
    data = [_SHORT.pack(VERSION)]
    by_topic: dict[str, list[tuple[int, int]]] = {}
    for (topic, partition), time in claims.items():
        by_topic.setdefault(topic, []).append((partition, time))
    data.append(_COUNT.pack(len(by_topic)))
    for topic, of_topic in by_topic.items():
        data += [_string(topic), _COUNT.pack(len(of_topic)), *(_CLAIM.pack(*claim) for claim in of_topic)]
    user_data = b"".join(data)
    names = b"".join(map(_string, sorted(topics)))
    return b"".join([_SHORT.pack(VERSION), _COUNT.pack(len(topics)), names, _COUNT.pack(len(user_data)), user_data])


def claims_of(metadata: Buffer) -> dict[TopicPartition, int]:
    """The claims in a member's subscription. Raises MalformedRequest."""
    at = _after_version(metadata, 0)
    count, at = read_array_length(metadata, at, False, _STRING_SIZE_MIN)
    for _ in range(count):
        _, at = read_string(metadata, at, False)
    found: dict[TopicPartition, int] = {}
    at = _after_version(metadata, at + _COUNT.size)
    count, at = read_array_length(metadata, at, False, _TOPIC_SIZE_MIN)
    for _ in range(count):
        topic, at = read_string(metadata, at, False)
        partitions, at = read_array_length(metadata, at, False, _CLAIM.size)
        for partition, time in _CLAIM.iter_unpack(metadata[at : at + partitions * _CLAIM.size]):
            found[topic, partition] = time
        at += partitions * _CLAIM.size
    return found


def assigned_by_claims(claims: Mapping[str, Claims]) -> dict[str, list[TopicPartition]]:
    """Member -> its partitions. Each partition goes to the latest claim; of equal ones, to the greatest member id."""
    owners: dict[TopicPartition, tuple[int, str]] = {}
    for member, of_member in claims.items():
        for partition, time in of_member.items():
            owners[partition] = max(owners.get(partition, (time, member)), (time, member))
    assigned: dict[str, list[TopicPartition]] = {member: [] for member in claims}
    for partition in sorted(owners):
        assigned[owners[partition][1]].append(partition)
    return assigned


def assignment(partitions: Collection[TopicPartition]) -> bytes:
    """What SyncGroup gives to a member."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    data = [_SHORT.pack(VERSION), _COUNT.pack(len(by_topic))]
    for topic, of_topic in by_topic.items():
        data += [_string(topic), _COUNT.pack(len(of_topic)), *map(_COUNT.pack, of_topic)]
    return b"".join([*data, _NO_USER_DATA])


def partitions_of(assigned: Buffer) -> set[TopicPartition]:
    """The partitions in a member's assignment. Raises MalformedRequest."""
    at = _after_version(assigned, 0)
    count, at = read_array_length(assigned, at, False, _TOPIC_SIZE_MIN)
    found = set()
    for _ in range(count):
        topic, at = read_string(assigned, at, False)
        partitions, at = read_array_length(assigned, at, False, _COUNT.size)
        found |= {(topic, number) for (number,) in _COUNT.iter_unpack(assigned[at : at + partitions * _COUNT.size])}
        at += partitions * _COUNT.size
    return found


def _after_version(data: Buffer, at: int) -> int:
    """Raises MalformedRequest if no version is there, or another one."""
    try:
        (version,) = _SHORT.unpack_from(data, at)
    except struct.error:
        raise MalformedRequest("the data ends before a version") from None
    if version != VERSION:
        raise MalformedRequest(f"version {version} instead of {VERSION}")
    return at + _SHORT.size


def _string(text: str) -> bytes:
    data = text.encode()
    return _SHORT.pack(len(data)) + data
