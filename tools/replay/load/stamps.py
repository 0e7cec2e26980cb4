"""Record batches of which every record can be recognised when it is read back (RPL-6).

A trace has no values, so the replay makes them: a stamp of STAMP_SIZE bytes, then filler that does not compress.

    offset  size  field
         0     4  run: the replay
         4     4  producer: a client of the replay
         8     8  sequence: counts the records of the producer, from 0
        16     4  checksum of all other bytes of the value
        20        filler

All integers are unsigned, big-endian. A batch has the size that the trace says, but each of its records has room for a stamp.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy
from fastcrc.crc32 import iscsi as crc32c

from protocol.errors import ErrorCode
from protocol.kafka.compression import compress
from protocol.kafka.record_batch import (
    CRC_START,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    BatchHeader,
    read_varint,
    unpacked,
    varint,
)
from protocol.types import Buffer

STAMP = struct.Struct(">IIQI")
STAMP_SIZE = STAMP.size
FEW_RECORDS = 12
"""Up to this number of records, a loop is faster than numpy."""
UNPACKED_MAX = 256 * 1024 * 1024

_STAMPS = numpy.dtype([("run", ">u4"), ("producer", ">u4"), ("sequence", ">u8"), ("checksum", ">u4")])
_FILLER_SIZE = 1024 * 1024
_FILLER = numpy.random.Generator(numpy.random.PCG64(1)).bytes(_FILLER_SIZE)
_HEADER = struct.Struct(">qiibIhiqqqhii")
_CRC = struct.Struct(">I")
_DELTA_SIZES = [(1, 1 << 6), (2, 1 << 13), (3, 1 << 20), (4, 1 << 27)]
"""(bytes of an offset delta, the first delta that needs more)."""
_MASK = 0xFFFF_FFFF_FFFF_FFFF
_MIX = (0xBF58_476D_1CE4_E5B9, 0x94D0_49BB_1331_11EB)


class Stamps(NamedTuple):
    """What was found in one batch. `producers`, `sequences`: of the records of this run, in order of their offsets.

    `foreign` records have no stamp of this run, `corrupt` ones have one whose checksum does not fit.
    """

    offset_deltas: Any
    producers: Any
    sequences: Any
    foreign: int
    corrupt: list[int]
    """Offset deltas of the corrupt records."""


@dataclass(frozen=True, slots=True)
class Template:
    """The records of a batch, as bytes in which only the stamps are missing."""

    payload: bytes
    positions: list[int]
    """Of each record's stamp in the payload."""
    fillers: list[int]
    """The CRC-32 of each record's filler."""
    indexes: Any
    """(records, STAMP_SIZE) positions of the stamps' bytes, for numpy."""
    filler_array: Any


def build(
    records: int,
    size: int,
    *,
    run: int,
    producer: int,
    first_sequence: int,
    timestamp_ms: int,
    compression: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    attributes: int = 0,
) -> bytes:
    """A batch of `records` stamped records, of `size` bytes if they have room in it, else as small as possible.

    `producer_id`, `producer_epoch`, `base_sequence` are Kafka's; `run`, `producer`, `first_sequence` are the stamps'.
    """
    template = _template(records, _values_size(records, size - HEADER_SIZE))
    payload = bytearray(template.payload)
    if records <= FEW_RECORDS:
        for number in range(records):
            sequence = first_sequence + number
            check = checksum(run, producer, sequence, template.fillers[number])
            STAMP.pack_into(payload, template.positions[number], run, producer, sequence, check)
    else:
        stamps = numpy.empty(records, _STAMPS)
        sequences = numpy.arange(first_sequence, first_sequence + records, dtype=numpy.uint64)
        stamps["run"], stamps["producer"], stamps["sequence"] = run, producer, sequences
        stamps["checksum"] = checksums(run, producer, sequences, template.filler_array)
        numpy.frombuffer(payload, numpy.uint8)[template.indexes] = stamps.view(numpy.uint8).reshape(records, STAMP_SIZE)
    packed = compress(bytes(payload), compression) if compression else payload
    batch = bytearray(HEADER_SIZE)
    batch += packed
    _HEADER.pack_into(
        batch,
        0,
        0,
        len(batch) - LOG_OVERHEAD,
        -1,
        MAGIC,
        0,
        attributes | compression,
        records - 1,
        timestamp_ms,
        timestamp_ms,
        producer_id,
        producer_epoch,
        base_sequence,
        records,
    )
    _CRC.pack_into(batch, 17, crc32c(memoryview(batch)[CRC_START:]))
    return bytes(batch)


def read(batch: Buffer, position: int, header: BatchHeader, run: int) -> Stamps:
    """The stamps in the batch at `position`. Raises KafkaError, IndexError or struct.error if its records cannot be read."""
    payload = unpacked(batch, position, header, size_max=UNPACKED_MAX, too_large=ErrorCode.CORRUPT_MESSAGE)
    return _read_intact(payload, header.record_count, run) or _read_each(payload, header.record_count, run)


def _read_intact(payload: bytes, records: int, run: int) -> Stamps | None:
    """The stamps, if the payload is as `build` made it, apart from them; else None."""
    template = _template(records, _values_size(records, len(payload)))
    if len(payload) != len(template.payload):
        return None
    data = numpy.frombuffer(bytearray(payload), numpy.uint8)
    stamps = data[template.indexes].view(_STAMPS).reshape(records)
    data[template.indexes] = 0
    if data.tobytes() != template.payload or not (stamps["run"] == run).all():
        return None
    producers, sequences = stamps["producer"].astype(numpy.uint64), stamps["sequence"].astype(numpy.uint64)
    if not (checksums(run, producers, sequences, template.filler_array) == stamps["checksum"]).all():
        return None
    return Stamps(numpy.arange(records), producers, sequences, 0, [])


def _read_each(payload: bytes, records: int, run: int) -> Stamps:
    """Reads record by record."""
    found: list[tuple[int, int, int, int, int]] = []
    foreign = at = 0
    for _ in range(records):
        size, begin = read_varint(payload, at)
        at = begin + size
        _, place = read_varint(payload, begin + 1)
        delta, place = read_varint(payload, place)
        key_size, place = read_varint(payload, place)
        value_size, place = read_varint(payload, place + max(key_size, 0))
        if key_size >= 0 or value_size < STAMP_SIZE:
            foreign += 1
            continue
        of_run, producer, sequence, check = STAMP.unpack_from(payload, place)
        if of_run != run:
            foreign += 1
            continue
        filler = zlib.crc32(memoryview(payload)[place + STAMP_SIZE : place + value_size])
        found.append((delta, producer, sequence, check, filler))
    intact = [row for row in found if checksum(run, row[1], row[2], row[4]) == row[3]]
    corrupt = [row[0] for row in found if checksum(run, row[1], row[2], row[4]) != row[3]]
    columns = list(zip(*intact, strict=True)) or [()] * 5
    producers, sequences = (numpy.array(columns[at], numpy.uint64) for at in (1, 2))
    return Stamps(numpy.array(columns[0], numpy.int64), producers, sequences, foreign, corrupt)


def checksum(run: int, producer: int, sequence: int, filler: int) -> int:
    """32 bits in which every bit of the arguments counts (the finaliser of splitmix64)."""
    value = _mixed(sequence ^ (filler << 32))
    return _mixed(value ^ (run << 32 | producer)) >> 32


def checksums(run: int, producer: Any, sequences: Any, fillers: Any) -> Any:
    """`checksum` for arrays of uint64; `producer` may be one number."""
    owner = numpy.uint64(run << 32) | numpy.asarray(producer, numpy.uint64)
    value = _mixed_array(sequences ^ (numpy.asarray(fillers, numpy.uint64) << numpy.uint64(32)))
    return _mixed_array(value ^ owner) >> numpy.uint64(32)


def _mixed(value: int) -> int:
    value = ((value ^ (value >> 30)) * _MIX[0]) & _MASK
    value = ((value ^ (value >> 27)) * _MIX[1]) & _MASK
    return value ^ (value >> 31)


def _mixed_array(value: Any) -> Any:
    value = (value ^ (value >> numpy.uint64(30))) * numpy.uint64(_MIX[0])
    value = (value ^ (value >> numpy.uint64(27))) * numpy.uint64(_MIX[1])
    return value ^ (value >> numpy.uint64(31))


@lru_cache(maxsize=512)
def _template(records: int, values_size: int) -> Template:
    """`values_size`: of all values together. The first records get one byte more each if it does not divide evenly."""
    share, rest = divmod(values_size, records)
    payload, positions, fillers = bytearray(), [], []
    filler_at = 0
    for number in range(records):
        value_size = share + (number < rest)
        filler = _filler(filler_at, value_size - STAMP_SIZE)
        filler_at += len(filler)
        body = b"\x00\x00" + varint(number) + b"\x01" + varint(value_size)
        payload += varint(len(body) + value_size + 1) + body
        positions.append(len(payload))
        payload += bytes(STAMP_SIZE) + filler + b"\x00"
        fillers.append(zlib.crc32(filler))
    indexes = numpy.array(positions)[:, None] + numpy.arange(STAMP_SIZE)
    return Template(bytes(payload), positions, fillers, indexes, numpy.array(fillers, numpy.uint64))


@lru_cache(maxsize=16384)
def _values_size(records: int, payload_size: int) -> int:
    """The largest size of all values together with which the records have at most `payload_size` bytes; each has a stamp."""
    least = records * STAMP_SIZE
    size = max(payload_size - _payload_size(records, least) + least, least)
    while size > least and (excess := _payload_size(records, size) - payload_size) > 0:
        size = max(size - max(excess // 2, 1), least)
    while _payload_size(records, size + 1) <= payload_size:
        size += 1
    return size


def _payload_size(records: int, values_size: int) -> int:
    """Bytes of `records` records whose values have `values_size` bytes together. It grows with `values_size`."""
    share, rest = divmod(values_size, records)
    total = begin = 0
    for delta_size, end in _DELTA_SIZES:
        for value_size, first, last in ((share + 1, 0, rest), (share, rest, records)):
            count = min(end, last) - max(begin, first)
            if count > 0:
                body = 4 + delta_size + len(varint(value_size)) + value_size
                total += count * (len(varint(body)) + body)
        begin = end
    return total


def _filler(at: int, size: int) -> bytes:
    """Bytes of the filler, from a place of its own for each record of a batch, so that they do not compress."""
    at %= _FILLER_SIZE
    if at + size <= _FILLER_SIZE:
        return _FILLER[at : at + size]
    return (_FILLER * ((at + size) // _FILLER_SIZE + 1))[at : at + size]
