"""What a leader makes sure of before it appends a producer's batch, and what it changes in it. Pure.

Always, after the header and the CRC (`record_batch.validate_produced`):

- a compressed payload unpacks (BAD-21), to at most 64 MiB (BAD-22);
- the first 8 records are whole, in order, and fill the batch exactly if there are no more (BAD-12, 13, 18). The length of
  a longer batch is only compared with the least that so many records need: 0.45 us for each record of each batch would
  halve what a broker takes of small records. What is wrong there, its CRC being right, a client made on purpose or by a
  bug in its encoder, which shows in small batches too; brokers do not stumble over it.

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
)
from protocol.kafka.record_checks import check_records

RECORDS_CHECKED = 8
UNPACKED_BYTES_MAX = 64 * 1024 * 1024
RECORD_ERRORS_MAX = 100
"""How many wrong records an answer names."""
NO_TIMESTAMP = -1

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
    check_records(data, at, header.record_count, RECORDS_CHECKED)
    if config.looks_at_each_record:
        _check_each(batch, config, wall_ms())
    if config.compression_type == PRODUCERS_OWN:
        return batch, header
    target = _COMPRESSION_OF[config.compression_type]
    if target == compression:
        return batch, header
    check_records(data, at, header.record_count, header.record_count)
    return _compressed_anew(header, bytes(data[at:]), target, config.max_message_bytes)


def _compressed_anew(header: BatchHeader, data: bytes, compression: int, max_message_bytes: int) -> Accepted:
    batch = with_compression(header, data, compression)
    if len(batch) > max_message_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {len(batch)} bytes in the topic's compression, max.message.bytes is {max_message_bytes}",
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
