"""Keys and values of `__consumer_offsets`: written byte for byte as by Kafka, and read in every version of Kafka."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.groups.group.messages import CommittedOffset, GroupMetadata, MemberMetadata
from broker.groups.offsets_topic import records
from broker.groups.offsets_topic.consumer_group_records import ConsumerKey, ConsumerKeyKind
from broker.groups.offsets_topic.records import (
    GroupKey,
    OffsetKey,
    UnknownKey,
    UnknownValueVersion,
    UnreadableRecord,
    decode_group_value,
    decode_key,
    decode_offset_value,
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
    topic_id_headers,
    topic_id_of,
)
from protocol.errors import ErrorCode
from protocol.kafka.keyed_records import keyed_records_with_headers
from protocol.kafka.record_batch import HEADER_SIZE, build_batch
from protocol.types import TopicPartition
from tests.support.refusals import refused

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(max_size=20)
NULLABLE = st.one_of(st.none(), TEXT)
OFFSETS = st.builds(CommittedOffset, INT64, INT32, TEXT, INT64, st.none(), st.none())
MEMBERS = st.builds(
    MemberMetadata, TEXT, NULLABLE, TEXT, TEXT, INT32, INT32, st.binary(max_size=20), st.binary(max_size=20)
)
GROUPS = st.builds(GroupMetadata, TEXT, INT32, NULLABLE, NULLABLE, INT64, st.lists(MEMBERS, max_size=4).map(tuple))


def short(number: int) -> bytes:
    return struct.pack(">h", number)


def string(text: str) -> bytes:
    return short(len(text)) + text.encode()


def compact(text: str) -> bytes:
    return bytes((len(text) + 1,)) + text.encode()


def long(number: int) -> bytes:
    return struct.pack(">q", number)


def integer(number: int) -> bytes:
    return struct.pack(">i", number)


@pytest.mark.parametrize(
    ("key", "decoded"),
    [
        (short(0) + string("g") + string("t") + integer(7), OffsetKey("g", "t", 7)),
        (short(1) + string("g") + string("t") + integer(7), OffsetKey("g", "t", 7)),
        (short(2) + string("g"), GroupKey("g")),
        (short(2) + string(""), GroupKey("")),
        (short(3) + string("g"), ConsumerKey(ConsumerKeyKind.GROUP, "g")),
        (short(5) + string("g") + string("m"), ConsumerKey(ConsumerKeyKind.MEMBER, "g", "m")),
        (short(16) + string("g") + string("o.*"), ConsumerKey(ConsumerKeyKind.REGEX, "g", "o.*")),
        (short(15) + string("of a later Kafka"), UnknownKey(15)),
        (short(-5) + b"anything", UnknownKey(-5)),
        (b"\x00", UnknownKey(-1)),
        (b"", UnknownKey(-1)),
        (None, UnknownKey(-1)),
    ],
)
def test_keys(key: bytes | None, decoded: object) -> None:
    assert decode_key(key) == decoded


def test_the_keys_that_are_written() -> None:
    assert encode_offset_key("g", TopicPartition("t", 7)) == short(1) + string("g") + string("t") + integer(7)
    assert encode_group_key("g") == short(2) + string("g")


@settings(deadline=None)
@given(TEXT, TEXT, INT32)
def test_keys_survive_encoding_and_decoding(group_id: str, topic: str, partition: int) -> None:
    assert decode_key(encode_offset_key(group_id, TopicPartition(topic, partition))) == (group_id, topic, partition)
    assert decode_key(encode_group_key(group_id)) == GroupKey(group_id)


OFFSET_VALUES = [
    (short(0) + long(5) + string("m") + long(9), CommittedOffset(5, -1, "m", 9)),
    (short(1) + long(5) + string("m") + long(9) + long(11), CommittedOffset(5, -1, "m", 9, 11)),
    (short(1) + long(5) + string("m") + long(9) + long(-1), CommittedOffset(5, -1, "m", 9)),
    (short(2) + long(5) + string("m") + long(9), CommittedOffset(5, -1, "m", 9)),
    (short(3) + long(5) + integer(3) + string("m") + long(9), CommittedOffset(5, 3, "m", 9)),
    (short(4) + long(5) + integer(3) + compact("m") + long(9) + b"\x00", CommittedOffset(5, 3, "m", 9)),
    # A tagged field that a later version of Kafka may add (KIP-915).
    (short(4) + long(5) + integer(3) + compact("") + long(9) + b"\x01\x00\x02xy", CommittedOffset(5, 3, "", 9)),
]


@pytest.mark.parametrize(("value", "decoded"), OFFSET_VALUES)
def test_offsets_of_every_version(value: bytes, decoded: CommittedOffset) -> None:
    assert decode_offset_value(value) == decoded


def test_the_offsets_that_are_written() -> None:
    """v3; or v1, without the leader epoch, if the commit has its own retention time (OffsetCommit v2 to v4)."""
    assert encode_offset_value(CommittedOffset(5, 3, "m", 9)) == OFFSET_VALUES[4][0]
    assert encode_offset_value(CommittedOffset(5, 3, "m", 9, 11)) == OFFSET_VALUES[1][0]


@settings(deadline=None)
@given(OFFSETS)
def test_offsets_survive_encoding_and_decoding(committed: CommittedOffset) -> None:
    assert decode_offset_value(encode_offset_value(committed)) == committed


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        (topic_id_headers(b"t" * 16), b"t" * 16),
        (topic_id_headers(None), None),
        ((("topic.id", b"short"),), None),
        ((("topic.id", None),), None),
        ((("another", b"t" * 16),), None),
        ((*topic_id_headers(b"t" * 16), ("another", b"")), None),
    ],
)
def test_the_topic_id_of_an_offset(headers: Sequence[tuple[str, bytes | None]], found: bytes | None) -> None:
    """Other headers are not ours: the offset counts for each topic of its name, as one that Kafka has written."""
    batch = build_batch([(b"k", b"v", headers, 5)])
    [(_, _, read)] = keyed_records_with_headers(batch[HEADER_SIZE:], 1)
    assert topic_id_of(read) == found


def member_bytes(version: int) -> bytes:
    text = compact if version == 4 else string
    fields = [text("m"), text("i") if version >= 3 else b"", text("client"), text("/host")]
    fields += [integer(60_000) if version >= 1 else b"", integer(10_000)]
    fields += [data(b"sub", version), data(b"asgn", version), end(version)]
    return b"".join(fields)


def data(value: bytes, version: int) -> bytes:
    return (bytes((len(value) + 1,)) if version == 4 else integer(len(value))) + value


def end(version: int) -> bytes:
    """No tagged fields."""
    return b"\x00" if version == 4 else b""


@pytest.mark.parametrize("version", range(5))
def test_groups_of_every_version(version: int) -> None:
    text = compact if version == 4 else string
    fields = [short(version), text("consumer"), integer(4), text("range"), text("m"), long(99) if version >= 2 else b""]
    fields += [bytes((2,)) if version == 4 else integer(1), member_bytes(version), end(version)]
    value = b"".join(fields)
    instance = "i" if version >= 3 else None
    rebalance_ms = 60_000 if version >= 1 else 10_000
    member = MemberMetadata("m", instance, "client", "/host", rebalance_ms, 10_000, b"sub", b"asgn")
    decoded = GroupMetadata("consumer", 4, "range", "m", 99 if version >= 2 else -1, (member,))
    assert decode_group_value(value) == decoded
    if version == 3:
        assert encode_group_value(decoded) == value


@settings(deadline=None)
@given(GROUPS)
def test_groups_survive_encoding_and_decoding(group: GroupMetadata) -> None:
    assert decode_group_value(encode_group_value(group)) == group


@pytest.mark.parametrize("version", [-1, 5, 300])
def test_values_of_unknown_versions_raise_an_error(version: int) -> None:
    """They are not taken for a known version."""
    for decode in (decode_offset_value, decode_group_value):
        with pytest.raises(UnknownValueVersion) as told:
            decode(short(version) + bytes(40))
        assert told.value.version == version


@pytest.mark.parametrize(
    ("decode", "whole"),
    [
        (decode_key, encode_offset_key("group", TopicPartition("topic", 7))),
        (decode_key, encode_group_key("group")),
        *((decode_offset_value, value) for value, _ in OFFSET_VALUES),
        (decode_group_value, encode_group_value(GroupMetadata("consumer", 4, "range", "m", 9, ()))),
        (
            decode_group_value,
            short(3) + string("c") + integer(4) + short(-1) * 2 + long(9) + integer(1) + member_bytes(3),
        ),
        (
            decode_group_value,
            short(4) + compact("c") + integer(4) + b"\0\0" + long(9) + b"\2" + member_bytes(4) + b"\0",
        ),
    ],
)
def test_a_record_that_is_cut_or_too_long_raises_an_error(decode: object, whole: bytes) -> None:
    decode(whole)
    for size in range(2, len(whole)):
        with pytest.raises(UnreadableRecord):
            decode(whole[:size])
    with pytest.raises(UnreadableRecord):
        decode(whole + b"\x00")


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_decoded_or_raise_a_known_error(data: bytes) -> None:
    """Decoding raises only the two exceptions, whatever a disk or another program wrote."""
    for version in (*range(5), None):
        prefixed = data if version is None else short(version) + data
        for decode in (decode_key, decode_offset_value, decode_group_value):
            try:
                decode(prefixed)
            except (UnknownValueVersion, UnreadableRecord):
                continue


def test_strings_that_are_too_long_for_a_record_are_refused() -> None:
    """A flexible request may have them. 10,000 characters are fine."""
    long_id = "g" * 10_000
    assert decode_key(encode_group_key(long_id)) == GroupKey(long_id)
    too_long = "ü" * 16_384
    for encode in (
        lambda: encode_group_key(too_long),
        lambda: encode_offset_key(too_long, TopicPartition("t", 0)),
        lambda: encode_offset_value(CommittedOffset(1, -1, too_long, 0)),
        lambda: encode_offset_value(CommittedOffset(1, -1, too_long, 0, 5)),
        lambda: encode_group_value(GroupMetadata("consumer", 1, too_long, None, 0, ())),
    ):
        with refused(ErrorCode.INVALID_REQUEST):
            encode()
    assert len(too_long.encode()) == records.STRING_BYTES_MAX + 1
