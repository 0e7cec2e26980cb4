"""What a leader makes sure of before it appends a producer's batch, and what it changes in it. Pure.

Always, after the header and the CRC (`record_batch.validate_produced`):

- a compressed payload unpacks (BAD-21), to at most 64 MiB (BAD-22);
- the first 8 records are whole, in order, and fill the batch exactly if there are no more (BAD-12, 13, 18). The length of
  a longer batch is only compared with the least that so many records need: 0.45 us for each record of each batch would
  halve what a broker takes of small records. What is wrong there, its CRC being right, a client made on purpose or by a
  bug in its encoder, which shows in small batches too; brokers do not stumble over it.

The largest timestamp in the header is what time look-ups, retention and compaction go by, so it becomes right, whatever the
client wrote (Kafka's LogValidator does the same, from all records). It stays as it is when it is the largest of the first 8
records' and the last one's; all records of up to 8 are looked at. Otherwise (some clients write -1, or the first record's
time) all are walked, and where the header was wrong the batch gets another one, with a CRC of its own. What is left is a
batch of more than 8 records, out of order in time, whose client left out records in the middle: its header is too low, but
never below its first 8 records and its last one, so retention keeps it as long as those ask for. It is never too high.

Where a topic's settings ask for it, each record is decoded, and the refusal names those that are wrong:

- `cleanup.policy=compact`: each has a key;
- `message.timestamp.before.max.ms`, `after.max.ms`: its time is not too far from the broker's (CreateTime only).

With a `compression.type` other than `producer` the batch is compressed anew when it came in another; then all its records
are checked.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.config import LONG_MAX, TopicConfig
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.record_batch import (
    COMPRESSION_MASK,
    HEADER_SIZE,
    BatchHeader,
    Buffer,
    decode_records,
    parse_header,
    unpacked,
    with_compression,
    with_max_timestamp,
)
from protocol.kafka.record_checks import check_records, last_timestamp_delta

RECORDS_CHECKED = 8
UNPACKED_BYTES_MAX = 64 * 1024 * 1024
RECORD_ERRORS_MAX = 100
"""How many wrong records an answer names."""
NO_TIMESTAMP = -1

LOG_APPEND_TIME = "LogAppendTime"
PRODUCERS_OWN = "producer"
_COMPRESSION_OF = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}

Accepted = tuple[Buffer, BatchHeader]


def accept(batch: Buffer, header: BatchHeader, config: TopicConfig, wall_ms: Callable[[], int]) -> Accepted:
    """The batch as it is to be appended, but for its offsets, and its header. `wall_ms` is the wall clock.

    Raises KafkaError as the module says; what is refused is not changed.
    """
    compression = header.attributes & COMPRESSION_MASK
    data, at = batch, HEADER_SIZE
    if compression:
        data = unpacked(batch, 0, header, size_max=UNPACKED_BYTES_MAX, too_large=ErrorCode.MESSAGE_TOO_LARGE)
        at = 0
    count = header.record_count
    newest = header.base_timestamp + check_records(data, at, count, RECORDS_CHECKED)
    if count > RECORDS_CHECKED and (last := last_timestamp_delta(data, count)) is not None:
        newest = max(newest, header.base_timestamp + last)
    if config.looks_at_each_record:
        _check_each(batch, config, wall_ms())
    if newest != header.max_timestamp and config.message_timestamp_type != LOG_APPEND_TIME:
        batch, header = _with_right_timestamp(batch, header, data, at)
    if config.compression_type == PRODUCERS_OWN:
        return batch, header
    target = _COMPRESSION_OF[config.compression_type]
    if target == compression:
        return batch, header
    check_records(data, at, count, count)
    return _compressed_anew(header, bytes(data[at:]), target, config)


def _with_right_timestamp(batch: Buffer, header: BatchHeader, data: Buffer, at: int) -> Accepted:
    """All records are walked: the header's largest timestamp is theirs, NO_TIMESTAMP if none has one."""
    newest = header.base_timestamp + check_records(data, at, header.record_count, header.record_count)
    if newest > LONG_MAX:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"a record's timestamp, {newest}, is no number of 64 bits")
    newest = max(newest, NO_TIMESTAMP)
    if newest == header.max_timestamp:
        return batch, header
    changed = with_max_timestamp(batch, newest)
    return changed, parse_header(changed)


def _compressed_anew(header: BatchHeader, data: bytes, compression: int, config: TopicConfig) -> Accepted:
    levels = (None, config.compression_gzip_level, None, config.compression_lz4_level, config.compression_zstd_level)
    batch = with_compression(header, data, compression, levels[compression])
    if len(batch) > config.max_message_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {len(batch)} bytes in the topic's compression, max.message.bytes is {config.max_message_bytes}",
        )
    return batch, parse_header(batch)


def _check_each(batch: Buffer, config: TopicConfig, now_ms: int) -> None:
    """As LogValidator.validateRecord: the key first, then the time."""
    needs_key = "compact" in config.cleanup_policy
    earliest, latest = -LONG_MAX, LONG_MAX
    if config.message_timestamp_type == "CreateTime":
        earliest, latest = now_ms - config.timestamp_before_max_ms, now_ms + config.message_timestamp_after_max_ms
    errors: list[tuple[int, str]] = []
    code = ErrorCode.INVALID_RECORD
    for index, record in enumerate(decode_records(batch)):
        if needs_key and record.key is None:
            errors.append((index, "a record without a key in a compacted topic"))
        elif record.timestamp != NO_TIMESTAMP and not earliest <= record.timestamp <= latest:
            code = ErrorCode.INVALID_TIMESTAMP
            errors.append((index, f"timestamp {record.timestamp} is not within {earliest}..{latest}"))
    if errors:
        raise KafkaError(
            code,
            f"{len(errors)} records of the batch are refused, the first: {errors[0][1]}",
            errors[:RECORD_ERRORS_MAX],
        )
