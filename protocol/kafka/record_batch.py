"""Reads and writes record batches of format v2 (KIP-98). Most functions read only the 61-byte header, not the records.

    offset  size  field                      offset  size  field
         0     8  base offset                    27     8  base timestamp (ms)
         8     4  batch length (after this)      35     8  max timestamp (ms)
        12     4  partition leader epoch         43     8  producer id
        16     1  magic (2)                      51     2  producer epoch
        17     4  CRC-32C of all from 21         53     4  base sequence
        21     2  attributes                     57     4  record count
        23     4  last offset delta              61        records

attributes: bits 0-2 compression, bit 3 timestamp type (1: LogAppendTime), bit 4 transactional, bit 5 control, bit 6: the
base timestamp is the time from which the batch's tombstones may be removed (KIP-534).
The CRC does not cover base offset and leader epoch, so a leader assigns both in place.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from fastcrc.crc32 import iscsi as crc32c

from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.compression import COMPRESSIONS, compress, decompress, decompress_large
from protocol.types import Buffer

HEADER_SIZE: Final = 61
LOG_OVERHEAD: Final = 12
"""Bytes that `batch_length` does not count: base offset and the length itself."""
MAGIC: Final = 2
CRC_START: Final = 21

MAGIC_OFFSET: Final = 16
_ATTRIBUTES_OFFSET: Final = 22
"""The position of the low byte of the attributes."""
LENGTH_MIN: Final = 14
"""The minimum batch length of every format (Kafka's LegacyRecord.RECORD_OVERHEAD_V0)."""

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_OFFSET_AND_LENGTH: Final = struct.Struct(">qi")
_LONG: Final = struct.Struct(">q")
_INT: Final = struct.Struct(">i")
_CRC: Final = struct.Struct(">I")
_SHORT: Final = struct.Struct(">h")

COMPRESSION_MASK: Final = 0x07
TIMESTAMP_TYPE_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
DELETE_HORIZON_BIT: Final = 0x40

INT_LIMIT: Final = 2**31
LONG_LIMIT: Final = 2**63

DECOMPRESSED_SIZE_MAX: Final = 256 * 1024 * 1024
"""Limit of the bytes to which `decode_records` unpacks a batch (BAD-22)."""


class BatchHeader(NamedTuple):
    """The decoded header of a batch. Timestamps are in milliseconds."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_in_bytes(self) -> int:
        return self.batch_length + LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> int:
        """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & COMPRESSION_MASK

    @property
    def timestamp_type(self) -> int:
        """0 CreateTime, 1 LogAppendTime."""
        return self.attributes >> 3 & 1

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & TIMESTAMP_TYPE_BIT)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def delete_horizon_ms(self) -> int | None:
        """The time from which the batch's tombstones may be removed; None until the cleaner has seen them once."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_BIT else None


class Record(NamedTuple):
    """One decoded record."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def parse_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`. Raises KafkaError(CORRUPT_MESSAGE) if fewer than 61 bytes are left."""
    if len(buffer) - position < HEADER_SIZE:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"a batch header needs {HEADER_SIZE} bytes")
    return BatchHeader._make(_HEADER.unpack_from(buffer, position))


def first_batch_size(buffer: Buffer) -> int:
    """The size in bytes of the first batch, which may be cut off after its header. Raises KafkaError like `parse_header`."""
    if len(buffer) < HEADER_SIZE:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"a batch header needs {HEADER_SIZE} bytes")
    length: int = _OFFSET_AND_LENGTH.unpack_from(buffer)[1]
    return length + LOG_OVERHEAD


def first_batch_compression(records: Buffer | None) -> int:
    """The compression of the first batch, without parsing the batch. 0 (none) if there is no batch of format v2."""
    return _first_attributes(records) & COMPRESSION_MASK


def first_batch_is_transactional(records: Buffer | None) -> bool:
    """Whether the first batch is transactional. False if there is no batch of format v2."""
    return _first_attributes(records) & TRANSACTIONAL_BIT != 0


def _first_attributes(records: Buffer | None) -> int:
    """The low byte of the first batch's attributes."""
    if records is None or len(records) <= _ATTRIBUTES_OFFSET or records[MAGIC_OFFSET] != MAGIC:
        return 0
    return records[_ATTRIBUTES_OFFSET]


def iter_batches(buffer: Buffer, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each whole batch. A partial batch at the end is skipped, because a fetch may cut off the last batch.

    Raises KafkaError(CORRUPT_MESSAGE) for a length below the header's or a magic other than 2, because the next batch cannot be found.
    """
    end = len(buffer)
    while end - position >= HEADER_SIZE:
        header = BatchHeader._make(_HEADER.unpack_from(buffer, position))
        if header.batch_length < HEADER_SIZE - LOG_OVERHEAD or header.magic != MAGIC:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE, f"batch of length {header.batch_length}, magic {header.magic} at {position}"
            )
        following = position + header.batch_length + LOG_OVERHEAD
        if following > end:
            return
        yield position, header
        position = following


def old_message_format(message: Buffer) -> int | None:
    """0 or 1 for a whole message in a format that Kafka wrote before 0.11, with a right CRC. None for anything else.

    offset (8 bytes), size of the rest (4), CRC-32 of all after it (4), magic (1), attributes (1), in format 1 a timestamp, key, value.
    """
    if len(message) < LOG_OVERHEAD + LENGTH_MIN or not 0 <= message[MAGIC_OFFSET] < MAGIC:
        return None
    if _INT.unpack_from(message, 8)[0] + LOG_OVERHEAD != len(message):
        return None
    if zlib.crc32(memoryview(message)[MAGIC_OFFSET:]) != _CRC.unpack_from(message, LOG_OVERHEAD)[0]:
        return None
    return message[MAGIC_OFFSET]


def in_pieces(records: memoryview, size: int) -> Iterator[memoryview]:
    """Splits the records into pieces of at least `size` bytes (the last may be smaller), without cutting a batch.

    Bytes that are not a whole batch (a partial batch, garbage) are part of the last piece. The reader of the piece must check them.
    """
    end, begin, position = len(records), 0, 0
    while end - position > max(size, HEADER_SIZE):
        length = _OFFSET_AND_LENGTH.unpack_from(records, position)[1]
        following = position + LOG_OVERHEAD + length
        if length <= 0 or following >= end:
            break
        if following - begin >= size:
            yield records[begin:following]
            begin = following
        position = following
    if begin < end or not end:
        yield records[begin:]


def crc_is_valid(buffer: Buffer, position: int, header: BatchHeader) -> bool:
    """Whether the CRC in the header matches the batch's bytes."""
    end = position + header.batch_length + LOG_OVERHEAD
    return bool(crc32c(memoryview(buffer)[position + CRC_START : end]) == header.crc)


def validate_produced(
    records: Buffer, *, max_message_bytes: int, is_of_client: bool = True
) -> list[tuple[int, BatchHeader]]:
    """[(0, header)] of a producer's bytes for one partition: exactly one whole and valid batch of format v2.

    A coordinator, unlike a client, may write control batches, and batches of a producer without a sequence.

    The checks, their order and their error codes are Kafka's (ByteBufferLogInputStream, ProduceRequest.validateRecords,
    UnifiedLog.analyzeAndValidateRecords, LogValidator), BAD-13..20. Raises KafkaError. Unlike Kafka, this function refuses bytes after
    the batch instead of cutting them off, and does not check the records in the batch.
    """
    size = len(records)
    if size < HEADER_SIZE:
        raise _short_batch(records)
    header = BatchHeader._make(_HEADER.unpack_from(records, 0))
    batch_size = header.batch_length + LOG_OVERHEAD
    if header.magic != MAGIC or batch_size != size or header.base_offset != 0:
        raise _wrong_frame(header, records)
    if batch_size > max_message_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE, f"a batch of {batch_size} bytes is above max.message.bytes {max_message_bytes}"
        )
    if not crc_is_valid(records, 0, header):
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the batch's CRC does not match")
    _validate_fields(header, is_of_client)
    return [(0, header)]


def _short_batch(records: Buffer) -> KafkaError:
    """The error for fewer bytes than a v2 header, as Kafka chooses it: by the fields that these bytes contain."""
    size = len(records)
    if size == 0:
        return KafkaError(ErrorCode.INVALID_RECORD, "no records: a produce needs one batch for each partition")
    if size >= LOG_OVERHEAD and _INT.unpack_from(records, 8)[0] < LENGTH_MIN:
        return KafkaError(ErrorCode.CORRUPT_MESSAGE, "a batch length below the smallest record's")
    if size > MAGIC_OFFSET and not 0 <= records[MAGIC_OFFSET] <= MAGIC:
        return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"unknown magic {records[MAGIC_OFFSET]}")
    whole = size >= LOG_OVERHEAD and _INT.unpack_from(records, 8)[0] + LOG_OVERHEAD <= size
    if whole and size > MAGIC_OFFSET and records[MAGIC_OFFSET] == MAGIC:
        return KafkaError(ErrorCode.CORRUPT_MESSAGE, "a batch smaller than its header")
    return KafkaError(ErrorCode.INVALID_RECORD, f"no whole record batch in {size} bytes")


def _wrong_frame(header: BatchHeader, records: Buffer) -> KafkaError:
    """The error for bytes that are not exactly one v2 batch with base offset 0."""
    size = len(records)
    batch_size = header.size_in_bytes
    if header.batch_length < LENGTH_MIN:
        return KafkaError(
            ErrorCode.CORRUPT_MESSAGE, f"batch length {header.batch_length} is below the smallest record's"
        )
    if not 0 <= header.magic <= MAGIC:
        return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"unknown magic {header.magic}")
    if batch_size > size:
        return KafkaError(ErrorCode.INVALID_RECORD, f"a batch of {batch_size} bytes in {size} bytes of records")
    if header.magic != MAGIC:
        return KafkaError(ErrorCode.INVALID_RECORD, f"message format v{header.magic}: only v2 is served")
    if batch_size < HEADER_SIZE:
        return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"batch length {header.batch_length} is below the header's")
    if batch_size < size:
        rest = memoryview(records)[batch_size:]
        if len(rest) >= LOG_OVERHEAD and _INT.unpack_from(rest, 8)[0] < LENGTH_MIN:
            return KafkaError(ErrorCode.CORRUPT_MESSAGE, "a second batch whose length is below the smallest record's")
        if len(rest) > MAGIC_OFFSET and not 0 <= rest[MAGIC_OFFSET] <= MAGIC:
            return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"a second batch with the unknown magic {rest[MAGIC_OFFSET]}")
        return KafkaError(ErrorCode.INVALID_RECORD, f"{len(rest)} bytes after the batch: a partition gets one batch")
    return KafkaError(ErrorCode.INVALID_RECORD, f"base offset {header.base_offset}, but a producer's must be 0")


def _validate_fields(header: BatchHeader, is_of_client: bool) -> None:
    """Refuses values that nobody, or no client, may write (LogValidator.validateBatch). Raises KafkaError."""
    attributes = header.attributes
    if header.record_count <= 0 or header.record_count != header.last_offset_delta + 1:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"{header.record_count} records for a last offset delta of {header.last_offset_delta}",
        )
    if attributes & CONTROL_BIT and is_of_client:
        raise KafkaError(ErrorCode.INVALID_RECORD, "only brokers may write control batches")
    if header.producer_id >= 0 and is_of_client and (header.base_sequence < 0 or header.producer_epoch < 0):
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"producer id {header.producer_id} with sequence {header.base_sequence}, epoch {header.producer_epoch}",
        )
    if attributes & COMPRESSION_MASK >= len(COMPRESSIONS):
        raise KafkaError(ErrorCode.INVALID_RECORD, f"unknown compression {attributes & COMPRESSION_MASK}")
    if attributes & TIMESTAMP_TYPE_BIT:
        raise KafkaError(ErrorCode.INVALID_TIMESTAMP, "only the broker may set LogAppendTime")


def patch(buffer: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int) -> None:
    """Assigns base offset and leader epoch in place; the CRC does not cover them."""
    _LONG.pack_into(buffer, position, base_offset)
    _INT.pack_into(buffer, position + 12, leader_epoch)


def set_log_append_time(buffer: bytearray | memoryview, position: int, timestamp_ms: int) -> None:
    """Sets the batch's timestamp type to LogAppendTime and its max timestamp to this time, in place, and recomputes its CRC."""
    size = _INT.unpack_from(buffer, position + 8)[0] + LOG_OVERHEAD
    attributes = _SHORT.unpack_from(buffer, position + CRC_START)[0] | TIMESTAMP_TYPE_BIT
    _SHORT.pack_into(buffer, position + CRC_START, attributes)
    _LONG.pack_into(buffer, position + 35, timestamp_ms)
    _CRC.pack_into(buffer, position + 17, crc32c(memoryview(buffer)[position + CRC_START : position + size]))


def with_max_timestamp(batch: Buffer, timestamp_ms: int) -> bytearray:
    """A copy of the batch with this max timestamp in its header, and a matching CRC."""
    changed = bytearray(batch)
    _LONG.pack_into(changed, 35, timestamp_ms)
    _CRC.pack_into(changed, 17, crc32c(memoryview(changed)[CRC_START:]))
    return changed


def wrapped(timestamp: int) -> int:
    """The timestamp wrapped to 64 bits, as in Java: deltas of a client may overflow, and stored records must stay readable."""
    return (timestamp + LONG_LIMIT) % (2 * LONG_LIMIT) - LONG_LIMIT


def build_batch(
    records: Sequence[tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes | None]], int]], **fields: int
) -> bytes:
    """A batch of (key, value, headers, timestamp ms) records, for tests, tools and a broker's own records. Takes 2 us per record.

    `fields` of the header: those that `batch_of` names.
    """
    base_timestamp = records[0][3]
    payload = bytearray()
    for delta, (key, value, headers, timestamp) in enumerate(records):
        body = bytearray(b"\x00")
        body += varint(timestamp - base_timestamp) + varint(delta) + _sized(key) + _sized(value)
        body += varint(len(headers))
        for name, content in headers:
            body += _sized(name.encode()) + _sized(content)
        payload += varint(len(body)) + body
    return batch_of(bytes(payload), len(records), base_timestamp, max(r[3] for r in records), **fields)


def batch_of(
    payload: bytes,
    record_count: int,
    base_timestamp: int,
    max_timestamp: int,
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    compression: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    attributes: int = 0,
) -> bytes:
    """A batch of the records in `payload`, which are not compressed yet."""
    batch = bytearray(HEADER_SIZE) + compress(payload, compression)
    _HEADER.pack_into(
        batch,
        0,
        base_offset,
        len(batch) - LOG_OVERHEAD,
        leader_epoch,
        MAGIC,
        0,
        attributes | compression,
        record_count - 1,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )
    _CRC.pack_into(batch, 17, int(crc32c(memoryview(batch)[CRC_START:])))
    return bytes(batch)


def unpacked(batch: Buffer, position: int, header: BatchHeader, *, size_max: int, too_large: ErrorCode) -> bytes:
    """The bytes of the records of the batch at `position`.

    Raises KafkaError: CORRUPT_MESSAGE for a broken payload (BAD-21), `too_large` if it unpacks to more than `size_max`
    bytes (BAD-22).
    """
    payload = bytes(batch[position + HEADER_SIZE : position + header.size_in_bytes])
    return decompress(payload, header.compression, size_max, too_large)


def unpacked_large(
    batch: Buffer, position: int, header: BatchHeader, *, size_max: int, too_large: ErrorCode
) -> memoryview:
    """Like `unpacked`, for a thread."""
    payload = bytes(batch[position + HEADER_SIZE : position + header.size_in_bytes])
    return decompress_large(payload, header.compression, size_max, too_large)


def with_compression(header: BatchHeader, data: bytes, compression: int, level: int | None = None) -> bytes:
    """A batch with the fields of `header` and the uncompressed records `data`, in another compression and with a matching CRC.

    `level` is the compression level; None means Kafka's default.
    """
    payload = compress(data, compression, level)
    attributes = header.attributes & ~COMPRESSION_MASK | compression
    length = HEADER_SIZE - LOG_OVERHEAD + len(payload)
    batch = bytearray(HEADER_SIZE) + payload
    _HEADER.pack_into(batch, 0, header.base_offset, length, *header[2:5], attributes, *header[6:])
    _CRC.pack_into(batch, 17, int(crc32c(memoryview(batch)[CRC_START:])))
    return bytes(batch)


def decode_records(batch: Buffer, position: int = 0) -> list[Record]:
    """The records of the batch at `position`.

    Raises KafkaError(CORRUPT_MESSAGE) for a payload that is broken (BAD-21) or unpacks to more than 256 MiB (BAD-22), and
    KafkaError(INVALID_RECORD) for records that do not fill the payload exactly (BAD-12, 13, 18).
    """
    header = parse_header(batch, position)
    data = unpacked(batch, position, header, size_max=DECOMPRESSED_SIZE_MAX, too_large=ErrorCode.CORRUPT_MESSAGE)
    found: list[Record] = []
    at = 0
    try:
        for _ in range(header.record_count):
            size, at = read_varint(data, at)
            if size < 0 or at + size > len(data):
                raise KafkaError(ErrorCode.INVALID_RECORD, f"a record of {size} bytes does not fit its batch")
            found.append(_decode_record(data, at, at + size, header))
            at += size
    except IndexError:
        raise KafkaError(ErrorCode.INVALID_RECORD, "the batch ends inside a record") from None
    if at != len(data):
        raise KafkaError(ErrorCode.INVALID_RECORD, f"{len(data) - at} bytes after the last record")
    return found


def _decode_record(data: bytes, at: int, end: int, header: BatchHeader) -> Record:
    at += 1  # attributes, unused
    timestamp_delta, at = read_varint(data, at)
    offset_delta, at = read_varint(data, at)
    if not -INT_LIMIT <= offset_delta < INT_LIMIT:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"offset delta {offset_delta} is not a number of 32 bits")
    key, at = _read_sized(data, at, end)
    value, at = _read_sized(data, at, end)
    count, at = read_varint(data, at)
    if count < 0 or count > end - at:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"{count} headers in the remaining {end - at} bytes of a record")
    headers = []
    for _ in range(count):
        name, at = _read_sized(data, at, end)
        if name is None:
            raise KafkaError(ErrorCode.INVALID_RECORD, "a header without a name")
        content, at = _read_sized(data, at, end)
        headers.append((name.decode(errors="replace"), content))
    if at != end:
        raise KafkaError(ErrorCode.INVALID_RECORD, "a record's length does not match its fields")
    timestamp = header.max_timestamp if header.is_log_append_time else header.base_timestamp + timestamp_delta
    if not -LONG_LIMIT <= timestamp < LONG_LIMIT:
        timestamp = wrapped(timestamp)
    return Record(header.base_offset + offset_delta, timestamp, key, value, tuple(headers))


@lru_cache(maxsize=16384)
def varint(number: int) -> bytes:
    """`number` in zigzag, base 128, low digits first. Cached: most numbers are small and occur in every record."""
    rest = (number << 1) ^ (number >> 63)
    out = bytearray()
    while rest & ~0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at `at`, as `varint` writes it, and the place after it. Raises KafkaError, IndexError."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
        if shift > 63:
            raise KafkaError(ErrorCode.INVALID_RECORD, "a number of more than ten bytes")


def _sized(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def _read_sized(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    size, at = read_varint(data, at)
    if size == -1:
        return None, at
    if size < 0 or at + size > end:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"a field of {size} bytes does not fit its record")
    return data[at : at + size], at + size
