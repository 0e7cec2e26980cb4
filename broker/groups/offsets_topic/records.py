"""The records of `__consumer_offsets`: keys and values of committed offsets and of groups, byte for byte as Kafka's. Pure.

    key    v0, v1   a committed offset   group, topic (strings), partition (int32); v1 is written
           v2       a group              group
           others   a group of the new kind: `consumer_group_records`
    value  of a committed offset
           v0       offset (int64), metadata (string), commit timestamp (int64, ms)
           v1       as v0, then the timestamp when it expires; written when the commit has its own retention time
           v2       as v0
           v3       offset, leader epoch (int32), metadata, commit timestamp; written otherwise
           v4       as v3, in compact strings and with tagged fields; read, not written
    value  of a group
           v0       protocol type, generation (int32), protocol and leader (both nullable), members
           v1       each member has a rebalance time-out
           v2       the time of the last change of state (int64, ms) is before the members
           v3       each member has its instance id (nullable); written
           v4       as v3, in compact strings and with tagged fields; read, not written
    member          member id, instance id, client id, client host, rebalance and session time-out (int32, ms),
                    subscription, assignment (bytes)

Each key and value starts with a version (int16). A string has its length in UTF-8 bytes (int16) before it, bytes have an int32 length.
A record without a value is a tombstone: it removes what its key names. Records of other versions are skipped, and stay in the log.

A committed offset has one header that Kafka's does not have, `topic.id`: the 16 bytes of the id that its topic had at the commit. Offsets
of a deleted topic may outlive it; without the id they would be those of the next topic of that name. Kafka's readers ignore headers.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple

from broker.groups.group.messages import CommittedOffset, GroupMetadata, MemberMetadata
from broker.groups.offsets_topic import consumer_group_records
from broker.groups.offsets_topic.consumer_group_records import ConsumerKey
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka import wire
from protocol.kafka.framing import MalformedRequest, skip_tagged_fields
from protocol.kafka.record_batch import varint
from protocol.types import TopicPartition

OFFSET_KEY_VERSION = 1
GROUP_KEY_VERSION = 2
OFFSET_VALUE_VERSION = 3
OFFSET_VALUE_VERSION_EXPIRING = 1
GROUP_VALUE_VERSION = 3
VALUE_VERSION_MAX = 4
"""The newest version that is read, for both kinds of values."""
STRING_BYTES_MAX = 2**15 - 1
"""The longest string in a record. Requests of flexible versions can have longer strings."""
NO_TIMESTAMP = -1
TOPIC_ID_HEADER = "topic.id"
TOPIC_ID_BYTES = 16

_KEY_VERSIONS = frozenset((0, OFFSET_KEY_VERSION, GROUP_KEY_VERSION)) | consumer_group_records.KEY_VERSIONS
_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_OFFSET_V0_HEAD = struct.Struct(">hqh")
_OFFSET_V3_HEAD = struct.Struct(">hqih")
_TWO_LONGS = struct.Struct(">qq")
_TOPIC_ID_PREFIX = (
    varint(1) + varint(len(TOPIC_ID_HEADER)) + TOPIC_ID_HEADER.encode() + varint(TOPIC_ID_BYTES)
)  # one header, its name and the size of its value


class OffsetKey(NamedTuple):
    group_id: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    group_id: str


class UnknownKey(NamedTuple):
    """A key of an unknown version. -1: there is no key, or it is too short for a version."""

    version: int


class UnknownValueVersion(Exception):
    """Another version of the broker has written the value."""

    def __init__(self, version: int) -> None:
        super().__init__(f"version {version}")
        self.version = version


class UnreadableRecord(Exception):
    """A key or value whose fields do not fit its bytes."""


# -- keys ---------------------------------------------------------------------------------------------------------


def encode_offset_key(group_id: str, tp: TopicPartition) -> bytes:
    """Raises KafkaError(INVALID_REQUEST) for a string of more than 32,767 bytes."""
    return _offset_key_of_topic(group_id, tp.topic) + _INT.pack(tp.partition)


@lru_cache(maxsize=64)
def _offset_key_of_topic(group_id: str, topic: str) -> bytes:
    """The key without the partition: a commit may name thousands of partitions."""
    return _SHORT.pack(OFFSET_KEY_VERSION) + _string(group_id) + _string(topic)


def encode_group_key(group_id: str) -> bytes:
    """Raises KafkaError(INVALID_REQUEST) for a string of more than 32,767 bytes."""
    return _SHORT.pack(GROUP_KEY_VERSION) + _string(group_id)


def decode_key(key: bytes | None) -> OffsetKey | GroupKey | ConsumerKey | UnknownKey:
    """Raises UnreadableRecord."""
    if key is None or len(key) < _SHORT.size:
        return UnknownKey(-1)
    (version,) = _SHORT.unpack_from(key)
    if version not in _KEY_VERSIONS:
        return UnknownKey(version)
    try:
        if version in consumer_group_records.KEY_VERSIONS:
            return consumer_group_records.decode_key(key, version)
        group_id, at = wire.read_string(key, _SHORT.size, False)
        if version == GROUP_KEY_VERSION:
            _check_end(key, at)
            return GroupKey(group_id)
        topic, at = wire.read_string(key, at, False)
        (partition,) = _INT.unpack_from(key, at)
        _check_end(key, at + _INT.size)
    except (MalformedRequest, struct.error) as error:
        raise UnreadableRecord(f"a key of version {version}: {error}") from None
    return OffsetKey(group_id, topic, partition)


# -- committed offsets --------------------------------------------------------------------------------------------


def encode_offset_value(committed: CommittedOffset) -> bytes:
    """Raises KafkaError(INVALID_REQUEST) for metadata of more than 32,767 bytes."""
    metadata = committed.metadata.encode()
    size = _checked_size(metadata)
    if committed.expire_timestamp_ms is not None:
        head = _OFFSET_V0_HEAD.pack(OFFSET_VALUE_VERSION_EXPIRING, committed.offset, size)
        return head + metadata + _TWO_LONGS.pack(committed.commit_timestamp_ms, committed.expire_timestamp_ms)
    head = _OFFSET_V3_HEAD.pack(OFFSET_VALUE_VERSION, committed.offset, committed.leader_epoch, size)
    return head + metadata + _LONG.pack(committed.commit_timestamp_ms)


def topic_id_headers(topic_id: bytes | None) -> tuple[tuple[str, bytes], ...]:
    """The headers of a committed offset."""
    return ((TOPIC_ID_HEADER, topic_id),) if topic_id is not None else ()


def topic_id_of(headers: bytes) -> bytes | None:
    """The topic id in the headers of a record, as `keyed_records_with_headers` yields them."""
    is_known = len(headers) == len(_TOPIC_ID_PREFIX) + TOPIC_ID_BYTES and headers.startswith(_TOPIC_ID_PREFIX)
    return headers[len(_TOPIC_ID_PREFIX) :] if is_known else None


def decode_offset_value(value: bytes) -> CommittedOffset:
    """Raises UnknownValueVersion, UnreadableRecord. At most 1 us: a load may read a million of them."""
    return CommittedOffset(*offset_fields(value))


def offset_fields(value: bytes) -> tuple[int, int, str, int, int | None]:
    """The fields of a CommittedOffset, as a plain tuple. Raises as `decode_offset_value`."""
    try:
        if value[:2] == b"\x00\x03":
            _, offset, epoch, size = _OFFSET_V3_HEAD.unpack_from(value)
            end = 16 + size
            (timestamp,) = _LONG.unpack_from(value, end)
            if len(value) == end + 8 and size >= 0:
                return offset, epoch, str(value[16:end], "utf-8") if size else "", timestamp, None
        return _offset_of_other_version(value)
    except (MalformedRequest, struct.error, UnicodeDecodeError) as error:
        raise UnreadableRecord(f"the value of a committed offset: {error}") from None


def _offset_of_other_version(value: bytes) -> tuple[int, int, str, int, int | None]:
    (version,) = _SHORT.unpack_from(value)
    if not 0 <= version <= VALUE_VERSION_MAX:
        raise UnknownValueVersion(version)
    is_flexible = version == VALUE_VERSION_MAX
    (offset,) = _LONG.unpack_from(value, 2)
    at = 10
    epoch = -1
    if version >= 3:
        (epoch,) = _INT.unpack_from(value, at)
        at += 4
    metadata, at = wire.read_string(value, at, is_flexible)
    (timestamp,) = _LONG.unpack_from(value, at)
    at += 8
    expires = None
    if version == OFFSET_VALUE_VERSION_EXPIRING:
        (expire_timestamp,) = _LONG.unpack_from(value, at)
        expires = None if expire_timestamp == NO_TIMESTAMP else expire_timestamp
        at += 8
    _check_end(value, skip_tagged_fields(value, at) if is_flexible else at)
    return offset, epoch, metadata, timestamp, expires


# -- groups -------------------------------------------------------------------------------------------------------


def encode_group_value(group: GroupMetadata) -> bytes:
    """Raises KafkaError(INVALID_REQUEST) for a string of more than 32,767 bytes."""
    parts = [
        _SHORT.pack(GROUP_VALUE_VERSION),
        _string(group.protocol_type),
        _INT.pack(group.generation),
        _nullable_string(group.protocol_name),
        _nullable_string(group.leader),
        _LONG.pack(group.state_since_ms),
        _INT.pack(len(group.members)),
    ]
    for member in group.members:
        parts += (
            _string(member.member_id),
            _nullable_string(member.instance_id),
            _string(member.client_id),
            _string(member.client_host),
            _INT.pack(member.rebalance_timeout_ms),
            _INT.pack(member.session_timeout_ms),
            _INT.pack(len(member.subscription)),
            member.subscription,
            _INT.pack(len(member.assignment)),
            member.assignment,
        )
    return b"".join(parts)


def decode_group_value(value: bytes) -> GroupMetadata:
    """Raises UnknownValueVersion, UnreadableRecord. A member of v0 has its session time-out as rebalance time-out."""
    try:
        (version,) = _SHORT.unpack_from(value)
        if not 0 <= version <= VALUE_VERSION_MAX:
            raise UnknownValueVersion(version)
        return _decode_group(memoryview(value), version)
    except (MalformedRequest, struct.error) as error:
        raise UnreadableRecord(f"the value of a group: {error}") from None


def _decode_group(value: memoryview, version: int) -> GroupMetadata:
    is_flexible = version == VALUE_VERSION_MAX
    protocol_type, at = wire.read_string(value, 2, is_flexible)
    (generation,) = _INT.unpack_from(value, at)
    protocol_name, at = wire.read_nullable_string(value, at + 4, is_flexible)
    leader, at = wire.read_nullable_string(value, at, is_flexible)
    state_since_ms = NO_TIMESTAMP
    if version >= 2:
        (state_since_ms,) = _LONG.unpack_from(value, at)
        at += 8
    count, at = wire.read_array_length(value, at, is_flexible, element_size_min=12)
    members = []
    for _ in range(count):
        member, at = _decode_member(value, at, version)
        members.append(member)
    _check_end(value, skip_tagged_fields(value, at) if is_flexible else at)
    return GroupMetadata(protocol_type, generation, protocol_name, leader, state_since_ms, tuple(members))


def _decode_member(value: memoryview, at: int, version: int) -> tuple[MemberMetadata, int]:
    is_flexible = version == VALUE_VERSION_MAX
    member_id, at = wire.read_string(value, at, is_flexible)
    instance_id = None
    if version >= 3:
        instance_id, at = wire.read_nullable_string(value, at, is_flexible)
    client_id, at = wire.read_string(value, at, is_flexible)
    client_host, at = wire.read_string(value, at, is_flexible)
    rebalance_timeout_ms = None
    if version >= 1:
        (rebalance_timeout_ms,) = _INT.unpack_from(value, at)
        at += 4
    (session_timeout_ms,) = _INT.unpack_from(value, at)
    subscription, at = wire.read_bytes(value, at + 4, is_flexible)
    assignment, at = wire.read_bytes(value, at, is_flexible)
    if subscription is None or assignment is None:
        raise MalformedRequest("null where bytes are needed")
    member = MemberMetadata(
        member_id,
        instance_id,
        client_id,
        client_host,
        session_timeout_ms if rebalance_timeout_ms is None else rebalance_timeout_ms,
        session_timeout_ms,
        bytes(subscription),
        bytes(assignment),
    )
    return member, skip_tagged_fields(value, at) if is_flexible else at


# -- parts --------------------------------------------------------------------------------------------------------


def _checked_size(text: bytes) -> int:
    if len(text) > STRING_BYTES_MAX:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"a string of {len(text)} bytes cannot be stored: the limit is {STRING_BYTES_MAX}",
        )
    return len(text)


def _string(value: str) -> bytes:
    data = value.encode()
    return _SHORT.pack(_checked_size(data)) + data


def _nullable_string(value: str | None) -> bytes:
    return b"\xff\xff" if value is None else _string(value)


def _check_end(data: bytes | memoryview, at: int) -> None:
    if at != len(data):
        raise MalformedRequest(f"{len(data) - at} bytes after its last field")
