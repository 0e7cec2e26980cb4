"""Record batch v2: the checks of produced batches (BAD-12..22), the header's arithmetic, and records against aiokafka."""

from __future__ import annotations

import contextlib
import struct

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import ErrorCode, KafkaError
from protocol.kafka import record_batch
from protocol.kafka.record_batch import (
    HEADER_SIZE,
    build_batch,
    crc_is_valid,
    decode_records,
    in_pieces,
    iter_batches,
    parse_header,
    patch,
    set_log_append_time,
    unpacked_large,
    validate_produced,
)
from tests.support.mutations import mutated

TIME = 1_357_000_000_000
GOOD = build_batch([(b"k", b"v" * 20, (("h", b"1"), ("n", None)), TIME), (None, None, (), TIME + 5)])

headers_of_a_record = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=10)), max_size=3)
some_records = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=20),
        st.none() | st.binary(max_size=200),
        headers_of_a_record,
        st.integers(TIME - 10_000, TIME + 10_000),
    ),
    min_size=1,
    max_size=20,
)


@given(st.lists(st.integers(1, 400), max_size=20), st.integers(1, 900), st.binary(max_size=80))
def test_pieces_contain_all_bytes_and_cut_no_batch(sizes: list[int], size: int, rest: bytes) -> None:
    batches = [build_batch([(None, b"v" * length, (), TIME)]) for length in sizes]
    records = b"".join(batches) + rest
    pieces = list(in_pieces(memoryview(records), size))
    assert b"".join(pieces) == records
    ends = {sum(map(len, batches[:n])) for n in range(len(batches) + 1)}
    at = 0
    for piece in pieces[:-1]:
        at += len(piece)
        assert at in ends
        assert size <= len(piece) < size + max(map(len, batches))
    assert not records or all(pieces)


def with_field(batch: bytes, layout: str, at: int, value: int, *, crc: bool = True) -> bytes:
    """The batch with one header field changed, and with a matching CRC unless `crc` is False."""
    data = bytearray(batch)
    struct.pack_into(layout, data, at, value)
    if crc:
        struct.pack_into(">I", data, 17, record_batch.crc32c(bytes(data[21:])))
    return bytes(data)


REFUSED = [
    ("with its header a byte too large", GOOD, ErrorCode.MESSAGE_TOO_LARGE),
    ("nothing", b"", ErrorCode.INVALID_RECORD),
    ("less than a length", GOOD[:11], ErrorCode.INVALID_RECORD),
    ("a header cut short", GOOD[:40], ErrorCode.INVALID_RECORD),
    ("a batch cut short", GOOD[:-1], ErrorCode.INVALID_RECORD),
    ("bytes after the batch", GOOD + b"\x00", ErrorCode.INVALID_RECORD),
    ("two batches", GOOD + GOOD, ErrorCode.INVALID_RECORD),
    ("length below any format's", with_field(GOOD, ">i", 8, 13), ErrorCode.CORRUPT_MESSAGE),
    ("negative length", with_field(GOOD, ">i", 8, -1), ErrorCode.CORRUPT_MESSAGE),
    ("a negative length in few bytes", with_field(GOOD, ">i", 8, -1)[:30], ErrorCode.CORRUPT_MESSAGE),
    ("length below the header's", with_field(GOOD, ">i", 8, 48), ErrorCode.CORRUPT_MESSAGE),
    ("a whole batch smaller than a header", with_field(GOOD, ">i", 8, 20)[:32], ErrorCode.CORRUPT_MESSAGE),
    ("huge length", with_field(GOOD, ">i", 8, 0x7FFFFFFF), ErrorCode.INVALID_RECORD),
    ("magic 3", with_field(GOOD, ">b", 16, 3), ErrorCode.CORRUPT_MESSAGE),
    ("magic -1", with_field(GOOD, ">b", 16, -1), ErrorCode.CORRUPT_MESSAGE),
    ("magic 9 in few bytes", with_field(GOOD, ">b", 16, 9)[:30], ErrorCode.CORRUPT_MESSAGE),
    ("magic 1", with_field(GOOD, ">b", 16, 1), ErrorCode.INVALID_RECORD),
    ("magic 0", with_field(GOOD, ">b", 16, 0), ErrorCode.INVALID_RECORD),
    ("another CRC", with_field(GOOD, ">I", 17, 1, crc=False), ErrorCode.CORRUPT_MESSAGE),
    ("a flipped bit in a record", GOOD[:-1] + b"\x01", ErrorCode.CORRUPT_MESSAGE),
    ("base offset 1", with_field(GOOD, ">q", 0, 1), ErrorCode.INVALID_RECORD),
    ("base offset before the CRC is looked at", with_field(GOOD, ">q", 0, 1)[:-1] + b"\x01", ErrorCode.INVALID_RECORD),
    ("no record", with_field(GOOD, ">i", 57, 0), ErrorCode.INVALID_RECORD),
    ("negative count", with_field(GOOD, ">i", 57, -1), ErrorCode.INVALID_RECORD),
    ("count beyond the offsets", with_field(GOOD, ">i", 57, 3), ErrorCode.INVALID_RECORD),
    ("last offset delta -1", with_field(GOOD, ">i", 23, -1), ErrorCode.INVALID_RECORD),
    ("control batch", with_field(GOOD, ">h", 21, 0x20), ErrorCode.INVALID_RECORD),
    ("producer without sequence", with_field(GOOD, ">q", 43, 7), ErrorCode.INVALID_RECORD),
    ("compression 5", with_field(GOOD, ">h", 21, 5), ErrorCode.INVALID_RECORD),
    ("LogAppendTime from a client", with_field(GOOD, ">h", 21, 8), ErrorCode.INVALID_TIMESTAMP),
]


@pytest.mark.parametrize(("batch", "code"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_a_bad_batch_is_refused_with_kafkas_code(batch: bytes, code: ErrorCode) -> None:
    """BAD-13..20."""
    most = len(GOOD) - 1 if code is ErrorCode.MESSAGE_TOO_LARGE else 10_000
    with pytest.raises(KafkaError) as caught:
        validate_produced(memoryview(batch), max_message_bytes=most)
    assert caught.value.code == code


def test_a_valid_batch_is_accepted() -> None:
    ((position, header),) = validate_produced(memoryview(GOOD), max_message_bytes=len(GOOD))
    assert (position, header.record_count, header.last_offset, header.size_in_bytes) == (0, 2, 1, len(GOOD))
    assert (header.base_timestamp, header.max_timestamp) == (TIME, TIME + 5)
    batch = build_batch([(None, b"v", (), TIME)], producer_id=4, producer_epoch=0, base_sequence=0)
    assert validate_produced(batch, max_message_bytes=1000)[0][1].producer_id == 4


@given(st.data())
@settings(max_examples=150)
def test_nothing_but_a_kafka_error_comes_out_of_a_broken_batch(data: st.DataObject) -> None:
    broken = memoryview(data.draw(mutated(GOOD)))
    try:
        validate_produced(broken, max_message_bytes=10_000)
    except KafkaError:
        return
    # The leader epoch, before the magic, is for the broker to write: whatever a client left there is taken.
    assert bytes(broken[:12]) + bytes(broken[16:]) == GOOD[:12] + GOOD[16:]


def test_patching_keeps_the_crc() -> None:
    data = bytearray(b"before" + GOOD)
    offset = 123_456_789_012
    patch(data, 6, offset, 9)
    header = parse_header(data, 6)
    assert (header.base_offset, header.partition_leader_epoch, header.next_offset) == (offset, 9, offset + 2)
    assert crc_is_valid(data, 6, header)


def test_log_append_time_changes_what_readers_see_and_the_crc() -> None:
    data = bytearray(b"xx" + GOOD)
    set_log_append_time(data, 2, TIME + 77)
    header = parse_header(data, 2)
    assert header.is_log_append_time
    assert header.timestamp_type == 1
    assert crc_is_valid(data, 2, header)
    assert [record.timestamp for record in decode_records(data, 2)] == [TIME + 77, TIME + 77]


def test_iteration_stops_at_a_partial_tail() -> None:
    data = GOOD + GOOD + GOOD[:-1]
    assert [position for position, _ in iter_batches(data)] == [0, len(GOOD)]
    assert list(iter_batches(GOOD[: HEADER_SIZE - 1])) == []


@pytest.mark.parametrize("broken", [with_field(GOOD, ">i", 8, 48), with_field(GOOD, ">b", 16, 1)])
def test_iteration_refuses_bytes_that_are_not_a_batch(broken: bytes) -> None:
    with pytest.raises(KafkaError) as caught:
        list(iter_batches(GOOD + broken))
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE


@given(some_records, st.integers(0, 4), st.integers(0, 2**40))
@settings(max_examples=50)
def test_records_survive(
    records: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]], compression: int, base: int
) -> None:
    batch = build_batch(records, compression=compression, base_offset=base)
    assert crc_is_valid(batch, 0, parse_header(batch))
    found = decode_records(batch)
    assert [(r.key, r.value, list(r.headers), r.timestamp) for r in found] == records
    assert [r.offset for r in found] == list(range(base, base + len(records)))


@given(some_records, st.integers(0, 4))
@settings(max_examples=50)
def test_aiokafka_reads_and_writes_the_same(
    records: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]], compression: int
) -> None:
    theirs = DefaultRecordBatch(bytes(build_batch(records, compression=compression)))
    assert theirs.validate_crc()
    assert [(r.key, r.value, list(r.headers), r.timestamp) for r in theirs] == records
    builder = DefaultRecordBatchBuilder(2, compression, False, -1, -1, -1, 1_000_000)
    for delta, (key, value, headers, timestamp) in enumerate(records):
        assert builder.append(delta, timestamp, key, value, headers)
    written = bytes(builder.build())
    assert [(r.key, r.value, list(r.headers), r.timestamp) for r in decode_records(written)] == records
    if compression == 0:
        assert build_batch(records) == with_field(written, ">i", 12, -1)


@given(st.data(), st.integers(0, 4))
@settings(max_examples=150)
def test_nothing_but_a_kafka_error_comes_out_of_broken_records(data: st.DataObject, compression: int) -> None:
    batch = build_batch([(b"k", b"v" * 50, [("h", b"x")], TIME)] * 3, compression=compression)
    broken = batch[:HEADER_SIZE] + data.draw(mutated(batch[HEADER_SIZE:]))
    with contextlib.suppress(KafkaError):
        decode_records(with_field(broken, ">i", 8, len(broken) - 12))


def test_absurd_header_counts_are_refused() -> None:
    """BAD-12."""
    for count in (b"\x01", b"\xfe\xff\xff\xff\x0f", b"\x0a"):
        body = b"\x00\x00\x00\x01\x01" + count
        batch = bytearray(GOOD[:HEADER_SIZE] + bytes((len(body) * 2,)) + body)
        struct.pack_into(">i", batch, 57, 1)
        with pytest.raises(KafkaError) as caught:
            decode_records(with_field(bytes(batch), ">i", 8, len(batch) - 12))
        assert caught.value.code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("compression", [1, 2, 3, 4])
def test_a_payload_that_unpacks_to_too_much_is_refused(compression: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """BAD-22."""
    monkeypatch.setattr(record_batch, "DECOMPRESSED_SIZE_MAX", 100_000)
    fits = build_batch([(None, b"\x00" * 99_000, (), TIME)], compression=compression)
    assert decode_records(fits)[0].value == b"\x00" * 99_000
    with pytest.raises(KafkaError) as caught:
        decode_records(build_batch([(None, b"\x00" * 1_000_000, (), TIME)], compression=compression))
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("compression", [5, 6, 7])
def test_an_unknown_compression_is_an_error_of_the_batch(compression: int) -> None:
    batch = build_batch([(None, b"v", (), TIME)], attributes=compression)
    with pytest.raises(KafkaError, match=f"unknown compression {compression}"):
        decode_records(batch)
    with pytest.raises(KafkaError, match=f"unknown compression {compression}"):
        unpacked_large(batch, 0, parse_header(batch), size_max=100, too_large=ErrorCode.MESSAGE_TOO_LARGE)
