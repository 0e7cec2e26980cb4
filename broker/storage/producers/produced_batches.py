"""The leader's checks of a producer's batch, and its changes to the batch before the append. Pure.

Every batch is checked as Kafka's LogValidator does, after its header and CRC (`record_batch.validate_produced`):

- a compressed payload unpacks (BAD-21), to at most 64 MiB (BAD-22);
- each record is whole, the offset deltas count up from 0, and the batch ends after the last record (BAD-12, 13, 18). This takes
  about 0.3 us for each record.

Time look-ups, retention and compaction use the largest timestamp in the header. If a client has written another one there (some
write -1, or the first record's time), the leader replaces it by the records' largest, with a new CRC.

Some topic settings need more of each record. The error then names the invalid records:

- `cleanup.policy=compact`: each record has a key;
- `message.timestamp.before.max.ms`, `after.max.ms`: each timestamp is near enough to the broker's clock (CreateTime only).

With a `compression.type` other than `producer`, a batch in another compression is compressed again.

If the work is too long for a loop turn, `accept` raises TakesLong and `accepting` does it: it unpacks and packs in a thread,
and pauses between records. 2 KB of zstd may unpack to 64 MiB or millions of records, so both are limited for each batch, and for
all batches of one request together (`Allowance`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Final, NamedTuple

from fastcrc.crc32 import iscsi
from librt.strings import read_i16_be, read_i32_be, read_i64_be

from broker.settings.config import LONG_MAX, TopicConfig
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.record_batch import (
    COMPRESSION_MASK,
    CRC_START,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    BatchHeader,
    parse_header,
    unpacked,
    unpacked_large,
    with_compression,
    with_max_timestamp,
)
from protocol.kafka.record_checks import (
    STEP,
    TakesLong,
    check_records,
    check_room,
    checking_records,
    times_and_keys,
)
from protocol.types import Buffer

crc32c: Final = iscsi

RECORDS_AT_ONCE: Final = 5_000
"""Records of a batch that are checked on the loop without a pause: 2 ms."""
UNPACKED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Limit for all batches of one request together."""
RECORDS_MAX: Final = 1_000_000
"""Limit for one batch, and for all compressed batches of one request together."""
UNPACKED_AT_ONCE: Final = 1024 * 1024
"""Bytes that are unpacked on the loop: 1 to 4 ms."""
PAYLOAD_AT_ONCE: Final = 64 * 1024
"""Bytes of a compressed batch that are unpacked on the loop. The worst case, all empty gzip members, takes 20 ms."""
COMPRESSED_AT_ONCE: Final = 64 * 1024
"""Bytes that are packed on the loop: gzip takes 1 ms for 20 KB at its highest level."""
RECORD_ERRORS_MAX: Final = 100
"""How many wrong records an answer names."""
NO_TIMESTAMP: Final = -1
TOO_LARGE: Final = ErrorCode.MESSAGE_TOO_LARGE
"""A Java producer that gets this error splits the batch."""

LOG_APPEND_TIME: Final = "LogAppendTime"
PRODUCERS_OWN: Final = "producer"
_COMPRESSION_OF: Final = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}

Accepted = tuple[Buffer, BatchHeader]
Steps = Generator[Callable[[], Any] | None, Any, Accepted]
"""Yields None to let other work run, or a function for a thread, whose result is sent back."""


Sequenced = tuple[int, int, int]
"""Producer id, its epoch, the sequence of the batch's first record."""
PlainBatch = tuple[bytes | memoryview, int, int, int, Sequenced | None]
"""A batch that is appended as it is: its bytes from the attributes on, the CRC of these, the last offset delta, the largest timestamp (ms),
and whose it is if the producer is idempotent."""
COPIED_MAX: Final = 4096
"""Bytes of a batch that are copied out of its frame: less work than a view of them."""


class AcceptedBefore(NamedTuple):
    """A batch that was accepted for a log of that `config`."""

    config: TopicConfig
    batch: Accepted


class Allowance:
    """The bytes and records that the compressed batches of one request may still unpack to."""

    __slots__ = ("bytes", "records")

    def __init__(self) -> None:
        self.bytes = UNPACKED_BYTES_MAX
        self.records = RECORDS_MAX


def plain_size_max(config: TopicConfig) -> int:
    """The largest batch, in bytes, that can be `plain` for this config."""
    return config.max_message_bytes if config.takes_plain_batches else 0


def plain(head: bytes, frame: bytes | memoryview, begin: int, end: int) -> PlainBatch | None:
    """The batch of a client at [begin, end) of the frame if it is valid, not compressed and not transactional, and is appended as it is.

    `head` is the start of the frame (`framing.head_of`). The caller has compared the size with `plain_size_max`. None: the batch is not
    of this most common kind, or is invalid: `validate_produced` and `accept` look at it.
    """
    size = end - begin
    if size < HEADER_SIZE or begin + HEADER_SIZE > len(head) or head[begin + 16] != MAGIC:
        return None
    delta: int = read_i32_be(head, begin + 23)
    count = delta + 1
    if not 0 < count <= RECORDS_AT_ONCE or read_i32_be(head, begin + 57) != count:
        return None
    if read_i64_be(head, begin) or read_i32_be(head, begin + 8) + LOG_OVERHEAD != size or read_i16_be(head, begin + 21):
        return None
    producer = None
    producer_id: int = read_i64_be(head, begin + 43)
    if producer_id >= 0:
        epoch: int = read_i16_be(head, begin + 51)
        sequence: int = read_i32_be(head, begin + 53)
        if epoch < 0 or sequence < 0:
            return None
        producer = (producer_id, epoch, sequence)
    begin_of_crc = begin + CRC_START
    body = frame[begin_of_crc:end] if size < COPIED_MAX else memoryview(frame)[begin_of_crc:end]
    crc: int = crc32c(body)
    signed: int = read_i32_be(head, begin + 17)
    if (crc ^ signed) & 0xFFFFFFFF:
        return None
    try:
        found = check_records(body, HEADER_SIZE - CRC_START, count)
    except (KafkaError, TakesLong):
        return None
    newest: int = read_i64_be(head, begin + 35)
    return (body, crc, delta, newest, producer) if read_i64_be(head, begin + 27) + found == newest else None


def accept(
    batch: Buffer,
    header: BatchHeader,
    config: TopicConfig,
    wall_ms: Callable[[], int],
    allowance: Allowance | None = None,
) -> Accepted:
    """The batch to append, without its final offsets, and its header. `wall_ms` is the wall clock.

    Raises KafkaError by the module's rules, and TakesLong when `accepting` must do the work.
    """
    compression = header.attributes & COMPRESSION_MASK
    count = header.record_count
    if count > RECORDS_AT_ONCE:
        raise TakesLong
    data, at = batch, HEADER_SIZE
    if compression:
        data, at = _unpacked_at_once(batch, header, allowance), 0
    newest = header.base_timestamp + check_records(data, at, count)
    if compression and allowance is not None:
        if count > allowance.records:
            raise _too_many(count)
        allowance.records -= count
    if config.looks_at_each_record:
        _end(_checking_each(data, at, header, config, wall_ms()))
    if newest != header.max_timestamp and config.message_timestamp_type != LOG_APPEND_TIME:
        batch, header = _with_timestamp(batch, header, newest)
    if config.compression_type == PRODUCERS_OWN or _keeps_compression(header, config):
        return batch, header
    if len(data) > COMPRESSED_AT_ONCE:
        raise TakesLong
    return _compressed_anew(header, data, at, config)


def accepting(
    batch: Buffer, header: BatchHeader, config: TopicConfig, wall_ms: Callable[[], int], allowance: Allowance
) -> Steps:
    """As `accept`, in steps, for a batch that takes long. Uses the memory of the unpacked batch, and twice as much to compress it again."""
    compression = header.attributes & COMPRESSION_MASK
    count = header.record_count
    data, at = batch, HEADER_SIZE
    if compression:
        _check_allowance(allowance)
        data, at = (yield partial(unpacked_large, batch, 0, header, size_max=allowance.bytes, too_large=TOO_LARGE)), 0
        allowance.bytes -= len(data)
    check_room(data, at, count)
    if count > (allowance.records if compression else RECORDS_MAX):
        raise _too_many(count)
    if compression:
        allowance.records -= count
    newest = header.base_timestamp + (yield from checking_records(data, at, count))
    if config.looks_at_each_record:
        yield from _checking_each(data, at, header, config, wall_ms())
    if newest != header.max_timestamp and config.message_timestamp_type != LOG_APPEND_TIME:
        batch, header = _with_timestamp(batch, header, newest)
    if config.compression_type == PRODUCERS_OWN or _keeps_compression(header, config):
        return batch, header
    packed: Accepted = yield partial(_compressed_anew, header, data, at, config)
    return packed


def at_once(steps: Steps) -> Accepted:
    """The result, without pauses: for a broker's own batches."""
    try:
        work = next(steps)
        while True:
            work = steps.send(work() if work is not None else None)
    except StopIteration as end:
        accepted: Accepted = end.value
        return accepted


def _end(steps: Generator[None, None, Any]) -> Any:
    """The result, if the steps pause at most once. Raises TakesLong."""
    try:
        next(steps)
        next(steps)
    except StopIteration as end:
        return end.value
    raise TakesLong


def _unpacked_at_once(batch: Buffer, header: BatchHeader, allowance: Allowance | None) -> Buffer:
    if allowance is not None:
        _check_allowance(allowance)
    if len(batch) > PAYLOAD_AT_ONCE:
        raise TakesLong
    try:
        data = unpacked(batch, 0, header, size_max=UNPACKED_AT_ONCE, too_large=TOO_LARGE)
    except KafkaError as error:
        if error.code is TOO_LARGE:
            raise TakesLong from None
        raise
    if allowance is not None:
        allowance.bytes -= len(data)
    return data


def _check_allowance(allowance: Allowance) -> None:
    if allowance.bytes <= 0:
        raise KafkaError(TOO_LARGE, f"the batches of one request unpack to more than {UNPACKED_BYTES_MAX} bytes")


def _too_many(count: int) -> KafkaError:
    return KafkaError(
        TOO_LARGE, f"{count} records: a batch, and all compressed batches of a request, may have {RECORDS_MAX}"
    )


def _keeps_compression(header: BatchHeader, config: TopicConfig) -> bool:
    """Whether the batch has the topic's compression. A marker is never compressed (Kafka's LogValidator)."""
    return header.is_control or _COMPRESSION_OF[config.compression_type] == header.compression


def _with_timestamp(batch: Buffer, header: BatchHeader, newest: int) -> Accepted:
    """Sets the header's largest timestamp to the records', NO_TIMESTAMP if none has one."""
    if newest > LONG_MAX:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"a record's timestamp, {newest}, does not fit into 64 bits")
    newest = max(newest, NO_TIMESTAMP)
    if newest == header.max_timestamp:
        return batch, header
    changed = with_max_timestamp(batch, newest)
    return changed, parse_header(changed)


def _compressed_anew(header: BatchHeader, data: Buffer, at: int, config: TopicConfig) -> Accepted:
    compression = _COMPRESSION_OF[config.compression_type]
    if not compression and len(data) - at + HEADER_SIZE > config.max_message_bytes:
        raise _too_large(len(data) - at + HEADER_SIZE, config)
    levels = (None, config.compression_gzip_level, None, config.compression_lz4_level, config.compression_zstd_level)
    batch = with_compression(header, bytes(data[at:]), compression, levels[compression])
    if len(batch) > config.max_message_bytes:
        raise _too_large(len(batch), config)
    return batch, parse_header(batch)


def _too_large(size: int, config: TopicConfig) -> KafkaError:
    return KafkaError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"with the topic's compression the batch has {size} bytes, more than max.message.bytes={config.max_message_bytes}",
    )


def _checking_each(
    data: Buffer, at: int, header: BatchHeader, config: TopicConfig, now_ms: int
) -> Generator[None, None, None]:
    """Checks the key, then the timestamp of each record (LogValidator.validateRecord). The records are whole."""
    needs_key = "compact" in config.cleanup_policy
    earliest, latest = -LONG_MAX, LONG_MAX
    if config.message_timestamp_type == "CreateTime":
        earliest, latest = now_ms - config.timestamp_before_max_ms, now_ms + config.timestamp_after_max_ms
    errors: list[tuple[int, str]] = []
    count = 0
    code = ErrorCode.INVALID_RECORD
    base = header.base_timestamp
    for delta, time, has_key in times_and_keys(data, at, header.record_count):
        if needs_key and not has_key:
            why = "a record without a key in a compacted topic"
        elif base + time != NO_TIMESTAMP and not earliest <= base + time <= latest:
            code = ErrorCode.INVALID_TIMESTAMP
            why = f"timestamp {base + time} is not within {earliest}..{latest}"
        else:
            why = ""
        if why:
            count += 1
            if len(errors) < RECORD_ERRORS_MAX:
                errors.append((delta, why))
        if delta % STEP == STEP - 1:
            yield
    if errors:
        raise KafkaError(code, f"{count} records of the batch are invalid, the first: {errors[0][1]}", errors)
