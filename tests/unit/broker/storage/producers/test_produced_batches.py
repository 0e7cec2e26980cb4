"""What a leader refuses or changes in a producer's batch: BAD-12, 13, 18, 21, 22, timestamps, keys, `compression.type`."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.settings.config import BrokerConfig, TopicConfig
from broker.storage.producers import produced_batches
from broker.storage.producers.produced_batches import (
    PAYLOAD_AT_ONCE,
    RECORDS_AT_ONCE,
    UNPACKED_AT_ONCE,
    Accepted,
    Allowance,
    accept,
    accepting,
)
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.compression import COMPRESSIONS, compress
from protocol.kafka.framing import HEAD_SIZE, head_of
from protocol.kafka.record_batch import (
    HEADER_SIZE,
    build_batch,
    crc32c,
    crc_is_valid,
    decode_records,
    parse_header,
    validate_produced,
    with_max_timestamp,
)
from protocol.kafka.record_checks import HEADERS_MAX, STEP, TakesLong
from tests.support.logs import SMALL, open_at
from tests.support.refusals import refused
from tools.sim.world.disk import MemoryDisk

NOW = 1_700_000_000_000
HOUR = 3_600_000
CONFIG = TopicConfig()
BROKEN = {ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD}


def however_long(batch: bytes, config: TopicConfig) -> Accepted:
    view, header = memoryview(batch), parse_header(batch)
    try:
        return accept(view, header, config, lambda: NOW)
    except TakesLong:
        return produced_batches.at_once(accepting(view, header, config, lambda: NOW, Allowance()))


def taken(batch: bytes, config: TopicConfig = CONFIG) -> bytes:
    accepted, header = however_long(batch, config)
    assert parse_header(accepted) == header
    return bytes(accepted)


def refusal(batch: bytes, config: TopicConfig = CONFIG) -> KafkaError:
    with pytest.raises(KafkaError) as caught:
        however_long(batch, config)
    return caught.value


def with_payload(batch: bytes, payload: bytes) -> bytes:
    """The batch with other bytes after its header, and a CRC that fits them."""
    changed = bytearray(batch[:HEADER_SIZE] + payload)
    struct.pack_into(">i", changed, 8, len(changed) - 12)
    struct.pack_into(">I", changed, 17, crc32c(bytes(changed[21:])))
    return bytes(changed)


def records(count: int = 3, **fields: Any) -> list[tuple[bytes | None, bytes | None, Any, int]]:
    record = {"key": b"key", "value": b"value" * 20, "headers": [("h", b"1")], "timestamp": NOW} | fields
    return [(record["key"], record["value"], record["headers"], record["timestamp"])] * count


@pytest.mark.parametrize("compression", range(5), ids=COMPRESSIONS)
@pytest.mark.parametrize("count", [1, 9, 500, RECORDS_AT_ONCE, RECORDS_AT_ONCE + 1])
def test_a_valid_batch_is_accepted_unchanged(compression: int, count: int) -> None:
    batch = build_batch(records(count), compression=compression)
    assert taken(batch) == batch


@pytest.mark.parametrize("compression", range(1, 5), ids=COMPRESSIONS[1:])
@pytest.mark.parametrize(
    ("payload_of", "codes"),
    [
        (lambda whole: b"", BROKEN),
        (lambda whole: bytes(100), BROKEN),
        (lambda whole: b"rubbish", {ErrorCode.CORRUPT_MESSAGE}),
        (lambda whole: whole[:-9], {ErrorCode.CORRUPT_MESSAGE}),
    ],
    ids=["nothing", "zeros", "text", "cut short"],
)
def test_a_broken_compressed_payload(
    compression: int, payload_of: Callable[[bytes], bytes], codes: set[ErrorCode]
) -> None:
    """BAD-21: CORRUPT_MESSAGE, also for a payload that unpacks to nothing."""
    whole = build_batch(records(50), compression=compression)
    assert refusal(with_payload(whole, payload_of(whole[HEADER_SIZE:]))).code in codes


SMALL_BLOCKS = [struct.pack(">i", len(block)) + block for block in (b"\x00", b"\x01\x00a")]


@pytest.mark.parametrize(
    "payload",
    [
        *(b"\x82SNAPPY\x00" + bytes(8) + block * 1000 for block in SMALL_BLOCKS),
        b"\xff\xff\xff\x0f" + bytes(20),  # 32 MiB
    ],
    ids=["empty blocks", "blocks of one byte", "a block that says it is larger than it could be"],
)
def test_snappy_of_very_many_very_small_blocks(payload: bytes) -> None:
    """Each block costs a call: a megabyte has two hundred thousand."""
    batch = with_payload(build_batch(records(), compression=2), payload)
    assert refusal(batch).code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("compression", range(1, 5), ids=COMPRESSIONS[1:])
def test_a_payload_that_unpacks_to_too_much_is_refused(compression: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """BAD-22: MESSAGE_TOO_LARGE, so that a Java producer splits the batch."""
    monkeypatch.setattr(produced_batches, "UNPACKED_BYTES_MAX", 100_000)
    monkeypatch.setattr(produced_batches, "UNPACKED_AT_ONCE", 50_000)
    fits = build_batch(records(1, value=bytes(90_000)), compression=compression)
    assert taken(fits) == fits
    bomb = build_batch(records(1, value=bytes(110_000)), compression=compression)
    assert refusal(bomb).code == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("compression", range(5), ids=COMPRESSIONS)
@pytest.mark.parametrize("count", [3, 10**9])
def test_records_that_do_not_fit_the_header_are_refused(compression: int, count: int) -> None:
    """BAD-12, 13, 18: also if the header counts a billion records in few bytes."""
    batch = bytearray(build_batch(records(2), compression=compression))
    struct.pack_into(">i", batch, 23, count - 1)
    struct.pack_into(">i", batch, 57, count)
    sealed = with_payload(batch, bytes(batch[HEADER_SIZE:]))
    assert refusal(sealed).code == ErrorCode.INVALID_RECORD


def test_a_compacted_topic_needs_keys() -> None:
    batch = build_batch([*records(2), *records(1, key=None), *records(1, key=b"")])
    error = refusal(batch, replace(CONFIG, cleanup_policy="compact,delete"))
    assert error.code == ErrorCode.INVALID_RECORD
    assert [index for index, _ in error.record_errors] == [2]


@pytest.mark.parametrize(
    ("settings", "timestamp", "is_taken"),
    [
        ({}, 0, True),
        ({}, NOW + 10**15, True),
        ({"message_timestamp_before_max_ms": HOUR}, NOW - HOUR, True),
        ({"message_timestamp_before_max_ms": HOUR}, NOW - HOUR - 1, False),
        ({"message_timestamp_before_max_ms": HOUR}, NOW + 10**15, True),
        ({"message_timestamp_before_max_ms": HOUR}, -1, True),
        ({"message_timestamp_after_max_ms": HOUR}, NOW + HOUR, True),
        ({"message_timestamp_after_max_ms": HOUR}, NOW + HOUR + 1, False),
        ({"message_timestamp_after_max_ms": HOUR}, 0, True),
        ({"message_timestamp_difference_max_ms": HOUR}, NOW - HOUR - 1, False),
        ({"message_timestamp_difference_max_ms": HOUR}, NOW + HOUR + 1, False),
        (
            {"message_timestamp_difference_max_ms": HOUR, "message_timestamp_after_max_ms": 2 * HOUR},
            NOW + HOUR + 1,
            True,
        ),
        (
            {"message_timestamp_difference_max_ms": HOUR, "message_timestamp_before_max_ms": 2 * HOUR},
            NOW - HOUR - 1,
            True,
        ),
        ({"message_timestamp_after_max_ms": HOUR, "message_timestamp_type": "LogAppendTime"}, NOW + 10**15, True),
    ],
)
def test_limits_of_timestamps(settings: dict[str, Any], timestamp: int, is_taken: bool) -> None:
    batch = build_batch([*records(1), *records(1, timestamp=timestamp)])
    config = replace(CONFIG, **settings)
    if is_taken:
        assert taken(batch, config) == batch
        return
    error = refusal(batch, config)
    assert error.code == ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in error.record_errors] == [1]


def test_an_answer_names_a_bounded_number_of_records() -> None:
    error = refusal(build_batch(records(5000, key=None)), replace(CONFIG, cleanup_policy="compact"))
    assert len(error.record_errors) == produced_batches.RECORD_ERRORS_MAX
    assert "5000 records" in error.message


def test_the_defaults_of_a_topic_come_from_the_broker() -> None:
    defaults = BrokerConfig(
        log_message_timestamp_after_max_ms=5, log_message_timestamp_before_max_ms=6
    ).topic_defaults()
    assert (defaults.message_timestamp_after_max_ms, defaults.timestamp_before_max_ms) == (5, 6)


@pytest.mark.parametrize(("codec", "fast", "slow"), [("gzip", 1, 9), ("lz4", 1, 12), ("zstd", -100, 19)])
def test_a_topic_has_its_own_compression_level(codec: str, fast: int, slow: int) -> None:
    """KIP-390."""
    words = [f"{n * 7919 % 1000}".encode() for n in range(5000)]
    batch = build_batch([(b"key", b" ".join(words), [], NOW)])
    level = f"compression_{codec}_level"
    sizes = [len(taken(batch, replace(CONFIG, compression_type=codec, **{level: n}))) for n in (fast, slow)]  # type: ignore[arg-type]
    assert sizes[0] > sizes[1]


@pytest.mark.parametrize("came", range(5), ids=COMPRESSIONS)
@pytest.mark.parametrize(("name", "number"), [("uncompressed", 0), ("gzip", 1), ("snappy", 2), ("lz4", 3), ("zstd", 4)])
def test_a_topic_has_a_compression_of_its_own(came: int, name: str, number: int) -> None:
    batch = build_batch(records(30), compression=came, producer_id=7, producer_epoch=1, base_sequence=5)
    stored = taken(batch, replace(CONFIG, compression_type=name))
    header = parse_header(stored)
    assert header.compression == number
    assert crc_is_valid(stored, 0, header)
    assert decode_records(stored) == decode_records(batch)
    assert header[6:] == parse_header(batch)[6:]
    if came == number:
        assert stored == batch


@pytest.mark.parametrize("compression", range(5), ids=COMPRESSIONS)
@pytest.mark.parametrize(("count", "topics"), [(50, "producer"), (50, "lz4"), (RECORDS_AT_ONCE + 50, "producer")])
@pytest.mark.parametrize(
    "break_one",
    [
        lambda whole, at: whole + b"\x00",
        lambda whole, at: whole[:-1],
        lambda whole, at: whole[:at] + b"\xff" + whole[at + 1 :],
        lambda whole, at: whole[:at] + whole[at + 1 :],
    ],
    ids=["a byte more", "a byte less", "another length", "a byte missing in the middle"],
)
def test_all_records_are_checked(
    break_one: Callable[[bytes, int], bytes], count: int, topics: str, compression: int
) -> None:
    """BAD-12, 13, 18: also the last ones, whatever the compression, and if it takes steps."""
    whole = build_batch(records(count))
    middle = whole.rindex(b"key", 0, len(whole) // 2 + 200) - 6
    payload = break_one(whole[HEADER_SIZE:], middle - HEADER_SIZE)
    broken = bytearray(with_payload(whole, compress(payload, compression)))
    struct.pack_into(">h", broken, 21, compression)
    sealed = with_payload(bytes(broken), bytes(broken[HEADER_SIZE:]))
    assert refusal(sealed, replace(CONFIG, compression_type=topics)).code == ErrorCode.INVALID_RECORD


def test_a_batch_that_is_too_large_when_it_is_stored_in_another_compression() -> None:
    batch = build_batch(records(1, value=bytes(5000)), compression=4)
    config = replace(CONFIG, compression_type="uncompressed", max_message_bytes=1000)
    assert refusal(batch, config).code == ErrorCode.MESSAGE_TOO_LARGE


def test_a_log_stores_the_topics_compression_and_time() -> None:
    log = open_at(MemoryDisk(), replace(SMALL, compression_type="zstd", message_timestamp_type="LogAppendTime"))
    info = log.append_as_leader(build_batch(records(5)), 3)
    stored = memoryview(b"".join(map(bytes, log.read(0, 10_000, log.log_end_offset, True).records)))
    header = parse_header(stored)
    assert header.compression == 4
    assert header.is_log_append_time
    assert header.max_timestamp == info.log_append_time_ms >= 0
    assert crc_is_valid(stored, 0, header)
    assert header.size_in_bytes == info.size_bytes
    assert {record.timestamp for record in decode_records(stored)} == {info.log_append_time_ms}


def _timed(timestamps: Sequence[int], compression: int = 0) -> bytes:
    return build_batch(
        [(b"key", bytes(20 + n % 90), (), at) for n, at in enumerate(timestamps)], compression=compression
    )


LIES = {
    "-1": lambda times: -1,
    "0": lambda times: 0,
    "the first": lambda times: times[0],
    "the last": lambda times: times[-1],
    "the eighth": lambda times: times[min(7, len(times) - 1)],
    "a year ahead": lambda times: max(times) + 365 * 24 * HOUR,
    "one ms less": lambda times: max(times) - 1,
    "one ms more": lambda times: max(times) + 1,
    "the least": lambda times: -(2**63),
    "the most": lambda times: 2**63 - 1,
}
TIMES = {
    "one": [NOW],
    "few": [NOW, NOW + 5, NOW + 2],
    "eight": [NOW + n for n in range(8)],
    "many in order": [NOW + n // 3 for n in range(150)],
    "many at once": [NOW] * 150,
    "many, the newest in the middle": [NOW + (n if n < 75 else 0) for n in range(150)],
    "many back in time": [NOW - n * 70 for n in range(150)],
    "long ones apart": [NOW + n * 10_000_000 for n in range(20)],
}


@pytest.mark.parametrize("compression", range(5), ids=COMPRESSIONS)
@pytest.mark.parametrize("times", TIMES.values(), ids=TIMES)
@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_the_leader_corrects_the_largest_timestamp(
    lie: Callable[[Sequence[int]], int], times: Sequence[int], compression: int
) -> None:
    """Whatever timestamp the client wrote, as in Kafka. Nothing else changes."""
    right = _timed(times, compression)
    sent = bytes(with_max_timestamp(right, lie(times)))
    found = taken(sent)
    assert found == right
    assert crc_is_valid(found, 0, parse_header(found))


@given(
    st.lists(st.tuples(st.integers(NOW - 10**9, NOW + 10**9), st.binary(max_size=300)), min_size=1, max_size=40),
    st.integers(NOW - 10**10, NOW + 10**10),
)
@settings(max_examples=100)
def test_the_largest_timestamp_is_that_of_the_newest_record(records: Sequence[tuple[int, bytes]], lie: int) -> None:
    """Whatever the client says, it is that of the newest record."""
    right = build_batch([(None, value, (), at) for at, value in records])
    newest = parse_header(taken(bytes(with_max_timestamp(right, lie)))).max_timestamp
    times = [at for at, _ in records]
    assert newest == max(times)
    assert taken(right) == right


def test_records_without_timestamps() -> None:
    batch = _timed([-1] * 20)
    assert taken(bytes(with_max_timestamp(batch, NOW))) == batch
    assert taken(batch) == batch


def test_a_timestamp_that_does_not_fit_in_64_bits_is_refused() -> None:
    batch = bytearray(_timed([NOW, NOW + 5]))
    struct.pack_into(">q", batch, 27, 2**63 - 3)
    assert refusal(bytes(with_max_timestamp(batch, NOW))).code == ErrorCode.INVALID_RECORD


def test_a_search_by_time_finds_batches_sent_without_a_largest_timestamp() -> None:
    log = open_at(MemoryDisk(), replace(SMALL, retention_ms=1_000))
    for number in range(20):
        sent = with_max_timestamp(_timed([1_000 + number, 1_001 + number]), -1 if number % 2 else 2**62)
        log.append_as_leader(bytes(sent), 0)
    assert log.offset_for_timestamp(1_011, 40) == (1_011, 21, 0)
    assert log.max_timestamp_offset() == (1_020, 39, 0)
    assert log.delete_old_segments(40, 2_000) == 0
    sealed = len(log.segments) - 1
    assert log.delete_old_segments(40, 9_000) == sealed > 0


def test_long_work_is_not_done_on_the_loop() -> None:
    """Each of these batches takes more than some milliseconds."""
    large = records(1, value=bytes(UNPACKED_AT_ONCE))
    many_headers = [("h", None)] * (HEADERS_MAX // 2)
    for batch, config in [
        *((build_batch(large, compression=number), CONFIG) for number in range(1, 5)),
        (build_batch(records(1, value=os.urandom(PAYLOAD_AT_ONCE)), compression=4), CONFIG),
        (build_batch(records(RECORDS_AT_ONCE + 1)), CONFIG),
        (build_batch(records(2 * STEP)), replace(CONFIG, cleanup_policy="compact")),
        (build_batch(records(2, headers=many_headers)), CONFIG),
        (build_batch(records(1, value=bytes(100_000))), replace(CONFIG, compression_type="gzip")),
    ]:
        with pytest.raises(TakesLong):
            accept(memoryview(batch), parse_header(batch), config, lambda: NOW)
        accepted = however_long(batch, config)[0]
        assert decode_records(bytes(accepted)) == decode_records(batch)


@pytest.mark.parametrize("compression", [0, 4], ids=["none", "zstd"])
def test_many_records_are_checked_in_steps(compression: int) -> None:
    batch = bytes(with_max_timestamp(build_batch(records(10 * STEP), compression=compression), NOW + 1))
    steps = accepting(memoryview(batch), parse_header(batch), CONFIG, lambda: NOW, Allowance())
    stops, threaded, done = 0, 0, None
    while True:
        try:
            work = steps.send(done)
        except StopIteration:
            break
        stops += 1
        threaded += work is not None
        done = work() if work is not None else None
    assert stops >= 10
    assert threaded == (compression > 0)


@pytest.mark.parametrize(
    ("limit", "value", "batch"),
    [
        ("UNPACKED_BYTES_MAX", 1000, build_batch(records(1, value=bytes(600)), compression=4)),
        ("RECORDS_MAX", 25, build_batch(records(10), compression=1)),
    ],
    ids=["bytes", "records"],
)
def test_the_batches_of_a_request_share_a_limit(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: int, batch: bytes
) -> None:
    monkeypatch.setattr(produced_batches, limit, value)
    allowance = Allowance()
    for _ in range(2):
        accept(memoryview(batch), parse_header(batch), CONFIG, lambda: NOW, allowance)
    with refused(ErrorCode.MESSAGE_TOO_LARGE):
        accept(memoryview(batch), parse_header(batch), CONFIG, lambda: NOW, allowance)


def test_a_record_with_too_many_headers_is_refused() -> None:
    fits = build_batch(records(1, headers=[("h", None)] * HEADERS_MAX))
    assert taken(fits) == fits
    assert refusal(build_batch(records(1, headers=[("h", None)] * (HEADERS_MAX + 1)))).code is ErrorCode.INVALID_RECORD


@given(
    st.sampled_from((b"", bytes(5), bytes(600))),
    st.integers(0, 3),
    st.sampled_from((10, 5000)),
    st.sampled_from((-1, 7)),
    st.lists(st.tuples(st.integers(0, HEADER_SIZE + 9), st.integers(0, 255)), max_size=2),
    st.booleans(),
)
def test_a_plain_batch_is_one_that_is_accepted_as_it_is(
    before: bytes, extra: int, size: int, producer: int, changes: list[tuple[int, int]], is_view: bool
) -> None:
    """BAD-12..20, for batches with some wrong bytes, whose CRC is right or wrong."""
    of_producer = {"producer_id": producer, "producer_epoch": 0, "base_sequence": 3} if producer >= 0 else {}
    batch = bytearray(build_batch([(None, bytes(size), (), 1000 + at) for at in range(1 + extra)], **of_producer))
    for at, value in changes:
        batch[at] = value
    if extra % 2:
        batch[17:21] = crc32c(memoryview(batch)[21:]).to_bytes(4, "big")
    frame: bytes | memoryview = before + batch + b"after"
    frame = memoryview(frame) if is_view else frame
    found = produced_batches.plain(head_of(frame), frame, len(before), len(before) + len(batch))
    try:
        ((_, header),) = validate_produced(batch, max_message_bytes=100_000)
        is_accepted = accept(batch, header, CONFIG, lambda: NOW)[0] is batch
    except KafkaError:
        is_accepted = False
    if found is None:
        assert not is_accepted or header.attributes or (is_view and len(before) > HEAD_SIZE - HEADER_SIZE)
        return
    assert is_accepted
    body, crc, delta, newest, of_idempotent = found
    assert (body, crc, delta, newest) == (batch[21:], header.crc, header.last_offset_delta, header.max_timestamp)
    named = header.producer_id, header.producer_epoch, header.base_sequence
    assert of_idempotent == (named if header.producer_id >= 0 else None)
