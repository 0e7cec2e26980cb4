"""Record batches of which every record can be recognised when it is read back (RPL-6).

A trace has no values, so the replay makes them: a stamp of STAMP_SIZE bytes, then filler that does not compress.

    offset  size  field
         0     4  run: the replay
         4     4  producer: a client of the replay
         8     8  sequence: counts the records of the producer, from 0
        16     4  checksum of all other bytes of the value
        20        filler

A record has a key if the trace says so: the hash of the recorded key, and zeros up to its size.

All integers are unsigned, big-endian. A batch has the size that the trace says, but each of its records has room for a stamp. The values of
a batch have the same size, one of a few, so that their bytes are made once; the last value has the bytes that are left.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy

from protocol.errors import ErrorCode
from protocol.kafka.record_batch import (
    HEADER_SIZE,
    BatchHeader,
    batch_of,
    decode_records,
    read_varint,
    unpacked,
    varint,
)
from protocol.types import Buffer

STAMP = struct.Struct(">IIQI")
STAMP_SIZE = STAMP.size
KEY_HASH_SIZE = 8
FEW_RECORDS = 12
"""Up to this number of records, a loop is faster than numpy."""
UNPACKED_MAX = 256 * 1024 * 1024

_STAMPS = numpy.dtype([("run", ">u4"), ("producer", ">u4"), ("sequence", ">u8"), ("checksum", ">u4")])
_FILLER_SIZE = 1024 * 1024
_FILLER = numpy.random.Generator(numpy.random.PCG64(1)).bytes(_FILLER_SIZE)
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


@dataclass(slots=True)
class Template:
    """Records with values of one size, as bytes in which only the stamps are missing. It grows to the longest batch that needs it."""

    value_size: int
    key_size: int
    payload: bytearray = field(default_factory=bytearray)
    ends: list[int] = field(default_factory=lambda: [0])
    """Where the first n records end in the payload."""
    positions: list[int] = field(default_factory=list)
    """Of each record's stamp in the payload."""
    fillers: list[int] = field(default_factory=list)
    """The CRC-32 of each record's filler."""
    indexes: Any = None
    """(records, STAMP_SIZE) positions of the stamps' bytes, for numpy."""
    key_indexes: Any = None
    """(records, KEY_HASH_SIZE at most) positions of the keys' first bytes."""
    filler_array: Any = None

    @property
    def bytes_used(self) -> int:
        """About: the payload, and what is kept of each record."""
        return len(self.payload) + 250 * len(self.positions)

    def grow(self, records: int) -> None:
        """Makes room for so many records, and for more, so that the next ones need not grow it again."""
        for number in range(len(self.positions), records + records // 4):
            filler = _filler(number * self.value_size, self.value_size - STAMP_SIZE)
            head = _head(number, self.value_size, self.key_size)
            self.positions.append(len(self.payload) + len(head))
            self.payload += head + bytes(STAMP_SIZE) + filler + b"\x00"
            self.ends.append(len(self.payload))
            self.fillers.append(zlib.crc32(filler))
        positions = numpy.array(self.positions, numpy.int32)[:, None]
        self.indexes = positions + numpy.arange(STAMP_SIZE, dtype=numpy.int32)
        if self.key_size > 0:
            keys_at = positions - len(varint(self.value_size)) - self.key_size
            self.key_indexes = keys_at + numpy.arange(min(self.key_size, KEY_HASH_SIZE), dtype=numpy.int32)
        self.filler_array = numpy.array(self.fillers, numpy.uint64)


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
    key_size: int = -1,
    keys: Sequence[int] = (),
) -> bytes:
    """A batch of `records` stamped records, of `size` bytes if they have room in it, else as small as possible.

    `producer_id`, `producer_epoch`, `base_sequence` are Kafka's; `run`, `producer`, `first_sequence` are the stamps'. Each record has a key
    of `key_size` bytes (-1: none). `keys` are the hashes of the records' keys, or one for all: records with equal hashes have equal keys.
    """
    layout = _layout(records, size - HEADER_SIZE, key_size)
    payload, before = bytearray(), records - 1
    if before:
        template = _template(layout.value_size, key_size, before)
        payload += memoryview(template.payload)[: template.ends[before]]
        if key_size > 0:
            hashes = keys[:before] if len(keys) > 1 else numpy.repeat(keys[0], before)
            numpy.frombuffer(payload, numpy.uint8)[template.key_indexes[:before]] = _key_bytes(hashes, key_size)
        if records <= FEW_RECORDS:
            for number in range(before):
                sequence = first_sequence + number
                check = checksum(run, producer, sequence, template.fillers[number])
                STAMP.pack_into(payload, template.positions[number], run, producer, sequence, check)
        else:
            stamps = numpy.empty(before, _STAMPS)
            sequences = numpy.arange(first_sequence, first_sequence + before, dtype=numpy.uint64)
            stamps["run"], stamps["producer"], stamps["sequence"] = run, producer, sequences
            stamps["checksum"] = checksums(run, producer, sequences, template.filler_array[:before])
            stamp_bytes = stamps.view(numpy.uint8).reshape(before, STAMP_SIZE)
            numpy.frombuffer(payload, numpy.uint8)[template.indexes[:before]] = stamp_bytes
    sequence = first_sequence + before
    payload += layout.last_head
    if key_size > 0:
        key_at = len(payload) - len(varint(layout.last_size)) - key_size
        start = _key_bytes(keys[-1:], key_size).tobytes()
        payload[key_at : key_at + len(start)] = start
    payload += STAMP.pack(run, producer, sequence, checksum(run, producer, sequence, layout.last_filler_crc))
    payload += layout.last_filler(records)
    payload.append(0)
    return batch_of(
        bytes(payload),
        records,
        timestamp_ms,
        timestamp_ms,
        compression=compression,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        attributes=attributes,
    )


def read(batch: Buffer, position: int, header: BatchHeader, run: int) -> Stamps:
    """The stamps in the batch at `position`. Raises KafkaError or IndexError if its records cannot be read."""
    payload = unpacked(batch, position, header, size_max=UNPACKED_MAX, too_large=ErrorCode.CORRUPT_MESSAGE)
    return _read_intact(payload, header.record_count, run) or _read_each(batch, position, header, run)


def newest_of_keys(batch: Buffer, position: int) -> dict[tuple[int, int], int]:
    """(Size, first 8 bytes) of each key in the batch -> the offset of its last record. Other keys than `build` makes are left out.

    Raises KafkaError.
    """
    newest = {}
    for record in decode_records(batch, position):
        key = record.key or b""
        if not any(key[KEY_HASH_SIZE:]):
            start = int.from_bytes(key[:KEY_HASH_SIZE], "big", signed=len(key) >= KEY_HASH_SIZE)
            newest[len(key), start] = record.offset
    return newest


def _read_intact(payload: bytes, records: int, run: int) -> Stamps | None:
    """The stamps, if the payload is as `build` made it, apart from them and from the keys; else None."""
    key_size = _first_key_size(payload)
    layout, before = _layout(records, len(payload), key_size), records - 1
    data = numpy.frombuffer(bytearray(payload), numpy.uint8)
    stamps = numpy.empty(records, _STAMPS)
    fillers = numpy.empty(records, numpy.uint64)
    begin = 0
    if before:
        template = _template(layout.value_size, key_size, before)
        begin = template.ends[before]
        if begin > len(payload):
            return None
        indexes = template.indexes[:before]
        stamps[:-1] = data[indexes].view(_STAMPS).reshape(before)
        fillers[:-1] = template.filler_array[:before]
        data[indexes] = 0
        if key_size > 0:
            data[template.key_indexes[:before]] = 0
        if data[:begin].tobytes() != template.payload[:begin]:
            return None
    at = begin + len(layout.last_head)
    stamps[-1:] = numpy.frombuffer(payload[at : at + STAMP_SIZE].ljust(STAMP_SIZE), _STAMPS)
    fillers[-1] = layout.last_filler_crc
    key_at = at - len(varint(layout.last_size)) - max(key_size, 0)
    data[key_at : key_at + min(max(key_size, 0), KEY_HASH_SIZE)] = 0
    if data[begin:at].tobytes() != layout.last_head:
        return None
    if payload[at + STAMP_SIZE :] != layout.last_filler(records) + b"\x00" or not (stamps["run"] == run).all():
        return None
    producers, sequences = stamps["producer"].astype(numpy.uint64), stamps["sequence"].astype(numpy.uint64)
    if not (checksums(run, producers, sequences, fillers) == stamps["checksum"]).all():
        return None
    return Stamps(numpy.arange(records), producers, sequences, 0, [])


def _first_key_size(payload: bytes) -> int:
    """Of a batch that `build` made; -1: no key. Of any other bytes, some number in the range of sizes."""
    try:
        _, at = read_varint(payload, 0)
        _, at = read_varint(payload, at + 2)  # the attributes and the timestamp are zeros
        size, _ = read_varint(payload, at)
    except IndexError:
        return -1
    return size if -1 <= size <= len(payload) else -1


def _read_each(batch: Buffer, position: int, header: BatchHeader, run: int) -> Stamps:
    """Reads record by record."""
    intact: list[tuple[int, int, int]] = []
    corrupt: list[int] = []
    for record in decode_records(batch, position):
        value, delta = record.value or b"", record.offset - header.base_offset
        if len(value) < STAMP_SIZE:
            continue
        of_run, producer, sequence, check = STAMP.unpack_from(value)
        if of_run != run:
            continue
        if checksum(run, producer, sequence, zlib.crc32(value[STAMP_SIZE:])) == check:
            intact.append((delta, producer, sequence))
        else:
            corrupt.append(delta)
    columns = list(zip(*intact, strict=True)) or [()] * 3
    producers, sequences = (numpy.array(columns[at], numpy.uint64) for at in (1, 2))
    foreign = header.record_count - len(intact) - len(corrupt)
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


_SIZES = sorted({round(STAMP_SIZE * 1.08**step) for step in range(200)})
"""The sizes of values that templates have: each 8 % above the one before, up to 90 MB."""
_templates: OrderedDict[tuple[int, int], Template] = OrderedDict()
"""By the size of the values and of the keys; the one that was used last is the last."""
TEMPLATES_BYTES_MAX = 96 * 1024 * 1024


def _template(value_size: int, key_size: int, records: int) -> Template:
    sizes = value_size, key_size
    template = _templates.pop(sizes, None) or Template(*sizes)
    _templates[sizes] = template
    if len(template.positions) < records:
        template.grow(records)
        while len(_templates) > 1 and sum(each.bytes_used for each in _templates.values()) > TEMPLATES_BYTES_MAX:
            _templates.popitem(last=False)
    return template


class Layout(NamedTuple):
    """How the records of a batch divide its bytes: all but the last have values of one size, and the last has what is left."""

    value_size: int
    last_size: int
    """Of the last record's value."""
    last_head: bytes
    last_filler_crc: int

    def last_filler(self, records: int) -> bytes:
        return _filler(records * self.last_size, self.last_size - STAMP_SIZE)


@lru_cache(maxsize=16384)
def _layout(records: int, payload_size: int, key_size: int) -> Layout:
    """The largest layout with at most `payload_size` bytes; if the records have no room, the smallest one."""
    share = payload_size // records - len(_head(records, payload_size // records, key_size)) - 1
    value_size = _SIZES[max(bisect_right(_SIZES, share) - 1, 0)]
    left = payload_size - (_template(value_size, key_size, records).ends[records - 1] if records > 1 else 0)
    last_size = max(left - 6 - max(key_size, 0), STAMP_SIZE)
    while last_size > STAMP_SIZE and len(_head(records - 1, last_size, key_size)) + last_size + 1 > left:
        last_size -= 1
    filler = _filler(records * last_size, last_size - STAMP_SIZE)
    return Layout(value_size, last_size, _head(records - 1, last_size, key_size), zlib.crc32(filler))


def _head(number: int, value_size: int, key_size: int) -> bytes:
    """What stands before the value of a record: length, attributes, timestamp, offset delta, a key of zeros, length of the value."""
    body = b"\x00\x00" + varint(number) + varint(key_size) + bytes(max(key_size, 0)) + varint(value_size)
    return varint(len(body) + value_size + 1) + body


def _key_bytes(hashes: Any, key_size: int) -> Any:
    """The first bytes of keys: (keys, KEY_HASH_SIZE at most). What is cut off of a hash are its high bytes."""
    whole = numpy.array(hashes, ">i8").view(numpy.uint8).reshape(-1, KEY_HASH_SIZE)
    return whole[:, max(KEY_HASH_SIZE - key_size, 0) :]


def _filler(at: int, size: int) -> bytes:
    """Bytes of the filler, from a place of its own for each record of a batch, so that they do not compress."""
    at %= _FILLER_SIZE
    if at + size <= _FILLER_SIZE:
        return _FILLER[at : at + size]
    return (_FILLER * ((at + size) // _FILLER_SIZE + 1))[at : at + size]
