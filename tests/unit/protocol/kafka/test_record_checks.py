"""The check of records agrees with their decoder, and refuses records that no consumer could read (BAD-12, 13, 18)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import ErrorCode, KafkaError
from protocol.kafka import record_batch
from protocol.kafka.record_batch import HEADER_SIZE, build_batch, decode_records, parse_header
from protocol.kafka.record_checks import check_records, checking_records, delta_and_key
from tests.support.mutations import mutated

TIME = 1_357_000_000_000
some_records = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=20),
        st.none() | st.binary(max_size=20) | st.integers(60, 9000).map(bytes),
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=70)), max_size=3),
        st.integers(TIME - 10**10, TIME + 10**10),
    ),
    min_size=1,
    max_size=10,
)


def payload_of(*records: bytes) -> bytes:
    return b"".join(bytes((len(record) * 2,)) + record for record in records)


def check(data: bytes, count: int) -> None:
    check_records(data, 0, count)


def in_steps(data: bytes, at: int, count: int) -> int:
    steps = checking_records(data, at, count)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return int(end.value)


@given(some_records)
@settings(max_examples=50)
def test_records_of_producers_are_accepted(records: list[tuple[bytes, bytes, list[tuple[str, bytes]], int]]) -> None:
    """The result is the largest timestamp, from the base timestamp on. The keys are found where they are."""
    batch = build_batch(records)
    newest = max(record[3] for record in records) - parse_header(batch).base_timestamp
    assert check_records(memoryview(batch), HEADER_SIZE, len(records)) == newest
    assert in_steps(batch, HEADER_SIZE, len(records)) == newest
    at = HEADER_SIZE
    for number, (key, *_) in enumerate(records):
        delta, begin, end, at = delta_and_key(batch, at)
        assert (delta, batch[begin:end]) == (number, key or b"")
    assert at == len(batch)


@given(st.data())
@settings(max_examples=250)
def test_accepted_records_can_be_decoded(data: st.DataObject) -> None:
    records = [(b"k", b"v" * 70, [("h", b"x"), ("n", None)], TIME + n * 100) for n in range(3)]
    whole = build_batch(records)
    broken = data.draw(mutated(whole[HEADER_SIZE:]))
    try:
        check(broken, len(records))
    except KafkaError:
        return
    batch = bytearray(whole[:HEADER_SIZE] + broken)
    record_batch._INT.pack_into(batch, 8, len(batch) - 12)
    assert [record.offset for record in decode_records(batch)] == [0, 1, 2]


GOOD = b"\x00\x00\x00\x01\x01\x00"
BROKEN = [
    ("header count -1", b"\x00\x00\x00\x01\x01\x01"),
    ("header count 2^31-1", b"\x00\x00\x00\x01\x01\xfe\xff\xff\xff\x0f"),
    ("more headers than bytes", b"\x00\x00\x00\x01\x01\x0a"),
    ("a header without a name", b"\x00\x00\x00\x01\x01\x02\x01\x01"),
    ("a header name beyond the record", b"\x00\x00\x00\x01\x01\x02\x20\x01"),
    ("a header value of length -2", b"\x00\x00\x00\x01\x01\x02\x00\x03"),
    ("a key beyond the record", b"\x00\x00\x00\x50\x01\x00"),
    ("a key of length -2", b"\x00\x00\x00\x03\x01\x00"),
    ("a value of length -2", b"\x00\x00\x00\x01\x03\x00"),
    ("bytes after the headers", GOOD + b"\x00"),
    ("offset delta 1", b"\x00\x00\x02\x01\x01\x00"),
    ("offset delta -1", b"\x00\x00\x01\x01\x01\x00"),
    ("a timestamp delta without end", b"\x00" + b"\xff" * 11 + b"\x00\x01\x01\x00"),
    ("too short", b"\x00\x00\x00\x01"),
]


@pytest.mark.parametrize("record", [case[1] for case in BROKEN], ids=[case[0] for case in BROKEN])
def test_a_broken_record_is_refused(record: bytes) -> None:
    """BAD-12"""
    with pytest.raises(KafkaError) as caught:
        check(payload_of(record), 1)
    assert caught.value.code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("count", [1, 3, 2**31 - 1])
def test_a_number_of_records_other_than_in_the_header_is_refused(count: int) -> None:
    """BAD-13, 18"""
    with pytest.raises(KafkaError) as caught:
        check(payload_of(GOOD, b"\x00\x00\x02\x01\x01\x00"), count)
    assert caught.value.code == ErrorCode.INVALID_RECORD


def test_a_record_that_ends_beyond_the_batch_is_refused() -> None:
    with pytest.raises(KafkaError) as caught:
        check(b"\x0e" + GOOD, 1)
    assert caught.value.code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("place", [0, 2, 62, 63, 64, 99, 100, 150, 199])
@pytest.mark.parametrize("record", [case[1] for case in BROKEN], ids=[case[0] for case in BROKEN])
def test_each_record_of_many_is_checked(place: int, record: bytes) -> None:
    """BAD-12: also where numbers begin to take two bytes."""
    records = [b"\x00\x00" + zigzag(number) + b"\x01\x01\x00" for number in range(200)]
    check(payload_of(*records), 200)
    records[place] = record
    with pytest.raises(KafkaError) as caught:
        check(payload_of(*records), 200)
    assert caught.value.code == ErrorCode.INVALID_RECORD
    with pytest.raises(KafkaError):
        in_steps(payload_of(*records), 0, 200)


def zigzag(number: int) -> bytes:
    low, high = number * 2 & 0x7F, number * 2 >> 7
    return bytes((low | 0x80, high)) if high else bytes((low,))
