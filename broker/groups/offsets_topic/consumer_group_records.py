"""The records of consumer groups of the new kind in `__consumer_offsets`, byte for byte as Kafka 4.1's (KIP-848). Pure.

    key    v3    a group                          group
           v4    its topics, by Kafka 4.0         group; read as nothing, since v3 has a hash of them (KIP-1101)
           v5    what a member subscribes to      group, member
           v6    the target's epoch               group
           v7    a member's target                group, member
           v8    a member's assignment            group, member
           v16   a resolved regular expression    group, expression
    value  of v3    epoch (int32); tag 0: hash of the topics (int64)
           of v5    instance and rack id (nullable), client id, client host, topics, regular expression (nullable),
                    rebalance time-out (int32, ms), assignor (nullable); tag 0, of a member that uses the classic protocol: session
                    time-out (int32, ms), protocols: name, metadata
           of v6    epoch (int32)
           of v7    partitions
           of v8    epoch, previous epoch (int32), state (int8), assigned partitions, partitions to give up
           of v16   topics, version of the metadata (int64), time (int64, ms)

All values have version 0, compact strings and tagged fields. Partitions are an array of topic id and numbers. A record without a value
is a tombstone.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import Final, NamedTuple

from broker.groups.consumer_group.assignors.problem import IdPartition, Owned
from broker.groups.consumer_group.member import ClassicProtocols, ConsumerMember, MemberState
from broker.groups.consumer_group.messages import (
    AssignmentChanged,
    Change,
    EpochChanged,
    MemberChanged,
    RegexResolved,
    TargetChanged,
    TargetEpochChanged,
)
from broker.groups.group.messages import Protocol
from protocol.kafka import wire
from protocol.kafka.framing import MalformedRequest, read_unsigned_varint, skip_tagged_fields, unsigned_varint
from protocol.kafka.id_partitions import encoded_set

VALUE_VERSION: Final = 0
HASH_TAG: Final = 0
CLASSIC_TAG: Final = 0
NOT_KNOWN: Final = -1

_SHORT: Final = struct.Struct(">h")
_INT: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")
_EPOCHS_AND_STATE: Final = struct.Struct(">iib")
_TWO_LONGS: Final = struct.Struct(">qq")
_NO_TAGS: Final = b"\x00"
_VERSION: Final = _SHORT.pack(VALUE_VERSION)

Record = tuple[bytes, bytes | None]


class ConsumerKeyKind(IntEnum):
    """The versions of the keys."""

    GROUP = 3
    TOPICS = 4
    MEMBER = 5
    TARGET_EPOCH = 6
    TARGET = 7
    ASSIGNMENT = 8
    REGEX = 16


_WITH_NAME: Final = frozenset(
    (ConsumerKeyKind.MEMBER, ConsumerKeyKind.TARGET, ConsumerKeyKind.ASSIGNMENT, ConsumerKeyKind.REGEX)
)
KEY_VERSIONS: Final = frozenset(map(int, ConsumerKeyKind))


class ConsumerKey(NamedTuple):
    """`name`: the member id, or the regular expression; "" for the others."""

    kind: ConsumerKeyKind
    group_id: str
    name: str = ""


# -- encoding -----------------------------------------------------------------------------------------------------


def encode(group_id: str, change: Change, now_ms: int) -> Record:
    """`now_ms`: wall clock time, for a regular expression."""
    match change:
        case EpochChanged(epoch, topics_hash):
            return _key(ConsumerKeyKind.GROUP, group_id), None if epoch is None else _epoch(epoch, topics_hash)
        case TargetEpochChanged(epoch):
            value = None if epoch is None else _VERSION + _INT.pack(epoch) + _NO_TAGS
            return _key(ConsumerKeyKind.TARGET_EPOCH, group_id), value
        case MemberChanged(member_id, member):
            return _key(ConsumerKeyKind.MEMBER, group_id, member_id), None if member is None else _subscription(member)
        case TargetChanged(member_id, target):
            value = None if target is None else _VERSION + encoded_set(target) + _NO_TAGS
            return _key(ConsumerKeyKind.TARGET, group_id, member_id), value
        case AssignmentChanged(member_id, member):
            key = _key(ConsumerKeyKind.ASSIGNMENT, group_id, member_id)
            return key, None if member is None else _assignment(member)
        case RegexResolved(regex, topics):
            key = _key(ConsumerKeyKind.REGEX, group_id, regex)
            if topics is None:
                return key, None
            return key, _VERSION + _strings(sorted(topics)) + _TWO_LONGS.pack(NOT_KNOWN, now_ms) + _NO_TAGS


def _key(kind: ConsumerKeyKind, group_id: str, name: str | None = None) -> bytes:
    head = _SHORT.pack(kind) + wire.string(group_id, flexible=False)
    return head if name is None else head + wire.string(name, flexible=False)


def _epoch(epoch: int, topics_hash: int) -> bytes:
    tags = b"\x01\x00\x08" + _LONG.pack(topics_hash) if topics_hash else _NO_TAGS
    return _VERSION + _INT.pack(epoch) + tags


def _subscription(member: ConsumerMember) -> bytes:
    return b"".join(
        (
            _VERSION,
            wire.nullable_string(member.instance_id, flexible=True),
            wire.nullable_string(member.rack_id, flexible=True),
            wire.string(member.client_id, flexible=True),
            wire.string(member.client_host, flexible=True),
            _strings(sorted(member.topics)),
            wire.nullable_string(member.regex, flexible=True),
            _INT.pack(member.rebalance_timeout_ms),
            wire.nullable_string(member.assignor, flexible=True),
            _NO_TAGS if member.classic is None else _classic(member.classic),
        )
    )


def _classic(classic: ClassicProtocols) -> bytes:
    """As the only tagged field."""
    parts = [b"\x01", _INT.pack(classic.session_timeout_ms), unsigned_varint(len(classic.protocols) + 1)]
    for protocol in classic.protocols:
        parts.append(wire.string(protocol.name, flexible=True) + unsigned_varint(len(protocol.metadata) + 1))
        parts += (protocol.metadata, _NO_TAGS)
    parts.append(_NO_TAGS)
    data = b"".join(parts)
    return b"\x01" + unsigned_varint(CLASSIC_TAG) + unsigned_varint(len(data)) + data


def _assignment(member: ConsumerMember) -> bytes:
    head = _EPOCHS_AND_STATE.pack(member.epoch, member.previous_epoch, member.state.value)
    return _VERSION + head + encoded_set(member.assigned) + encoded_set(member.revoking) + _NO_TAGS


def _strings(texts: Iterable[str]) -> bytes:
    parts = [wire.string(text, flexible=True) for text in texts]
    return unsigned_varint(len(parts) + 1) + b"".join(parts)


# -- decoding -----------------------------------------------------------------------------------------------------


def decode_key(key: bytes, version: int) -> ConsumerKey:
    """`version`: one of KEY_VERSIONS. Raises MalformedRequest."""
    kind = ConsumerKeyKind(version)
    group_id, at = wire.read_string(key, _SHORT.size, False)
    name = ""
    if kind in _WITH_NAME:
        name, at = wire.read_string(key, at, False)
    if at != len(key):
        raise MalformedRequest(f"{len(key) - at} bytes after its last field")
    return ConsumerKey(kind, group_id, name)


def decode(key: ConsumerKey, value: bytes) -> Change | None:
    """What a value of version 0 says. A member's subscription and its assignment are two ConsumerMembers, each with its own part of the
    fields. None: it says nothing that is needed. Raises MalformedRequest, struct.error, ValueError."""
    at = _SHORT.size
    match key.kind:
        case ConsumerKeyKind.GROUP:
            (epoch,) = _INT.unpack_from(value, at)
            return EpochChanged(epoch, _hash_of(value, at + 4))
        case ConsumerKeyKind.TARGET_EPOCH:
            return TargetEpochChanged(_INT.unpack_from(value, at)[0])
        case ConsumerKeyKind.MEMBER:
            return MemberChanged(key.name, _read_subscription(key.name, value, at))
        case ConsumerKeyKind.TARGET:
            return TargetChanged(key.name, _read_partitions(value, at)[0])
        case ConsumerKeyKind.ASSIGNMENT:
            return AssignmentChanged(key.name, _read_assignment(key.name, value, at))
        case ConsumerKeyKind.REGEX:
            return RegexResolved(key.name, frozenset(_read_strings(value, at)[0]))
        case ConsumerKeyKind.TOPICS:
            return None


def _hash_of(value: bytes, at: int) -> int:
    tagged = _tagged_field(value, at, HASH_TAG)
    return 0 if tagged is None else int(_LONG.unpack_from(value, tagged)[0])


def _tagged_field(value: bytes, at: int, wanted: int) -> int | None:
    """Where the tagged field begins; None: it is not there."""
    count, at = read_unsigned_varint(value, at)
    for _ in range(count):
        tag, at = read_unsigned_varint(value, at)
        size, at = read_unsigned_varint(value, at)
        if tag == wanted:
            return at
        at += size
    return None


def _read_subscription(member_id: str, value: bytes, at: int) -> ConsumerMember:
    instance_id, at = wire.read_nullable_string(value, at, True)
    rack_id, at = wire.read_nullable_string(value, at, True)
    client_id, at = wire.read_string(value, at, True)
    client_host, at = wire.read_string(value, at, True)
    topics, at = _read_strings(value, at)
    regex, at = wire.read_nullable_string(value, at, True)
    (rebalance_timeout_ms,) = _INT.unpack_from(value, at)
    assignor, at = wire.read_nullable_string(value, at + 4, True)
    tagged = _tagged_field(value, at, CLASSIC_TAG)
    return ConsumerMember(
        member_id,
        instance_id,
        rack_id,
        client_id,
        client_host,
        frozenset(topics),
        regex,
        assignor,
        rebalance_timeout_ms,
        classic=None if tagged is None else _read_classic(value, tagged),
    )


def _read_classic(value: bytes, at: int) -> ClassicProtocols | None:
    if value[at : at + 1] != b"\x01":
        return None
    (session_timeout_ms,) = _INT.unpack_from(value, at + 1)
    count, at = wire.read_array_length(value, at + 5, True, element_size_min=3)
    protocols = []
    for _ in range(count):
        name, at = wire.read_string(value, at, True)
        metadata, at = wire.read_bytes(memoryview(value), at, True)
        at = skip_tagged_fields(value, at)
        protocols.append(Protocol(name, bytes(metadata or b"")))
    return ClassicProtocols(session_timeout_ms, tuple(protocols))


def _read_assignment(member_id: str, value: bytes, at: int) -> ConsumerMember:
    epoch, previous_epoch, state = _EPOCHS_AND_STATE.unpack_from(value, at)
    assigned, at = _read_partitions(value, at + _EPOCHS_AND_STATE.size)
    revoking, at = _read_partitions(value, at)
    skip_tagged_fields(value, at)
    return ConsumerMember(
        member_id,
        epoch=epoch,
        previous_epoch=previous_epoch,
        state=MemberState(state),
        assigned=assigned,
        revoking=revoking,
    )


def _read_strings(value: bytes, at: int) -> tuple[list[str], int]:
    count, at = wire.read_array_length(value, at, True, element_size_min=1)
    texts = []
    for _ in range(count):
        text, at = wire.read_string(value, at, True)
        texts.append(text)
    return texts, at


def _read_partitions(value: bytes, at: int) -> tuple[Owned, int]:
    count, at = wire.read_array_length(value, at, True, element_size_min=18)
    found: list[IdPartition] = []
    for _ in range(count):
        topic_id = bytes(value[at : at + 16])
        numbers, at = wire.read_array_length(value, at + 16, True, element_size_min=4)
        found += (IdPartition(topic_id, number) for number in struct.unpack_from(f">{numbers}i", value, at))
        at = skip_tagged_fields(value, at + 4 * numbers)
    return frozenset(found), at
