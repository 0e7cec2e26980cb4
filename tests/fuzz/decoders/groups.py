"""`__consumer_offsets`: keys, values, a whole partition of it; and what consumers tell their leader."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace

from broker.groups.group.consumer_protocol import subscribed_topics, topics_of_all
from broker.groups.group.messages import CommittedOffset, GroupMetadata, MemberMetadata
from broker.groups.offsets_topic import records
from broker.groups.offsets_topic.image import OffsetsImage
from broker.groups.offsets_topic.records import GroupKey, OffsetKey, UnknownValueVersion, UnreadableRecord
from protocol.errors import KafkaError
from protocol.kafka.record_batch import build_batch
from protocol.types import TopicPartition
from tests.fuzz.decoder import Decoder
from tests.fuzz.sealing import Row, packed, partition_of

TP = TopicPartition("orders", 3)
SUBSCRIPTION = b"\0\0\0\0\0\2\0\1t\0\6orders\xff\xff\xff\xff"
MEMBER = MemberMetadata("m-1", None, "c", "/10.0.0.1", 60_000, 10_000, SUBSCRIPTION, b"assigned")
GROUP = GroupMetadata("consumer", 7, "range", "m-1", 1_700_000_000_000, (MEMBER, replace(MEMBER, instance_id="i")))


def decoders() -> list[Decoder]:
    unreadable = (UnreadableRecord, UnknownValueVersion)
    return [
        Decoder("group-key", _key, lambda: KEYS, (UnreadableRecord,), bytes_max=200),
        Decoder("offset-value", _offset, lambda: OFFSETS, unreadable, bytes_max=200),
        Decoder("group-value", _group, lambda: GROUPS, unreadable),
        Decoder("subscription", _subscription, lambda: [SUBSCRIPTION, SUBSCRIPTION * 2, b"\0\3" + SUBSCRIPTION[2:]]),
        Decoder("offsets-partition", _partition, _partitions, (KafkaError,), cpu_ms=30),
    ]


KEYS = [
    records.encode_offset_key("g", TP),
    b"\0\0" + records.encode_offset_key("g", TP)[2:],
    records.encode_group_key("group-ä"),
    b"\0\7\0\1g",
]


def _key(data: bytes) -> object:
    found = records.decode_key(data)
    if isinstance(found, OffsetKey):
        again = records.encode_offset_key(found.group_id, TopicPartition(found.topic, found.partition))
        assert again[2:] == data[2:]
    elif isinstance(found, GroupKey):
        assert records.encode_group_key(found.group_id) == data
    return found


COMMITTED = CommittedOffset(42, 3, "mine", 1_700_000_000_000)


def _offset_values() -> Iterator[bytes]:
    plain = records.encode_offset_value(COMMITTED)
    yield plain
    yield records.encode_offset_value(COMMITTED._replace(metadata=""))
    yield records.encode_offset_value(COMMITTED._replace(expire_timestamp_ms=5))
    for version in (0, 2):
        yield struct.pack(">hqh", version, 42, 1) + b"m" + struct.pack(">q", 7)
    yield struct.pack(">hqi", 4, 42, 3) + b"\x05mine" + struct.pack(">q", 7) + b"\0"


OFFSETS = list(_offset_values())


def _offset(data: bytes) -> object:
    found = records.decode_offset_value(data)
    if len(found.metadata.encode()) <= records.STRING_BYTES_MAX:
        again = records.decode_offset_value(records.encode_offset_value(found))
        # What expires has no leader epoch there.
        assert again == (found if found.expire_timestamp_ms is None else found._replace(leader_epoch=-1))
    return found


def _group_values() -> Iterator[bytes]:
    yield records.encode_group_value(GROUP)
    yield records.encode_group_value(GroupMetadata("consumer", 0, None, None, -1, ()))
    text = struct.pack(">h", 8) + b"consumer"
    for version in (0, 1, 2):
        head = struct.pack(">h", version) + text + struct.pack(">i", 7) + b"\0\5range\0\1m"
        member = b"\0\1m\0\1c\0\1h" + (struct.pack(">i", 9) if version else b"") + struct.pack(">i", 8)
        rows = member + struct.pack(">i", 1) + b"s" + struct.pack(">i", 1) + b"a"
        yield head + (struct.pack(">q", 1) if version == 2 else b"") + struct.pack(">i", 1) + rows
    member = b"\2m\2i\2c\2h" + struct.pack(">ii", 9, 8) + b"\2s\2a\0"
    yield (
        struct.pack(">h", 4)
        + b"\x09consumer"
        + struct.pack(">i", 7)
        + b"\6range\2m"
        + struct.pack(">q", 1)
        + b"\2"
        + member
        + b"\0"
    )


GROUPS = list(_group_values())


def _group(data: bytes) -> object:
    found = records.decode_group_value(data)
    assert records.decode_group_value(records.encode_group_value(found)) == found
    return found


def _subscription(data: bytes) -> object:
    found = subscribed_topics(data)
    both = topics_of_all([data, SUBSCRIPTION])
    assert (both is None) == (found is None)
    return found


def _partition(data: bytes) -> object:
    def made(rows: Sequence[Row]) -> bytes:
        flags = 0x10 if data[0] & 2 else 0
        batch = build_batch(rows, producer_id=7, producer_epoch=0, base_sequence=0, attributes=flags)
        if data[0] & 4:
            batch += build_batch([(struct.pack(">hh", 0, 1), bytes(6), (), 5)], producer_id=7, attributes=0x30)
        return batch

    image = OffsetsImage()
    for _ in image.steps(memoryview(partition_of(data, made))):
        pass
    return [(name, metadata, offsets.is_empty) for name, metadata, offsets in image.groups()]


def _partitions() -> Iterator[bytes]:
    pairs = [part for key in KEYS for value in (*OFFSETS[:3], GROUPS[0], b"") for part in (key, value)]
    for flag in (1, 3, 7):
        yield bytes((flag,)) + packed(pairs[:20])
        yield bytes((flag,)) + packed(pairs[20:])
    for compression in range(5):
        rows = [(KEYS[0], OFFSETS[0], (), 1), (KEYS[2], GROUPS[0], (), 1), (KEYS[0], None, (), 1)]
        yield b"\0" + packed([build_batch(rows, compression=compression)])
