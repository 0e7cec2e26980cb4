"""Compacts one batch, with the same bytes as Kafka 3.9 (LogCleaner, MemoryRecords.filterTo). Pure.

a record                is dropped if it has no key, a later record has its key, it is a tombstone whose delete horizon has
                        passed, or its transaction was aborted
a batch, all kept       is copied as it is. If it has tombstones without a delete horizon yet, it gets one:
                        `delete.retention.ms` from now, in its base timestamp, with attribute bit 6 (KIP-534)
a batch, some kept      is rebuilt from the kept records: offsets, producer, sequence and last offset do not change
a batch, none kept      is removed; its header stays if it is its producer's last batch (the sequence must not be lost)
a transaction marker    is removed like a tombstone, once no batch of its transaction is left. The list of aborted transactions loses
                        its entry one pass earlier, when no batch is left that a reader must leave out
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple

from broker.storage.compaction.compaction import OffsetMap
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.compression import decompress
from protocol.kafka.record_batch import (
    COMPRESSION_MASK,
    DECOMPRESSED_SIZE_MAX,
    DELETE_HORIZON_BIT,
    HEADER_SIZE,
    INT_LIMIT,
    BatchHeader,
    crc_is_valid,
    with_compression,
    wrapped,
)
from protocol.types import Buffer

NO_TIMESTAMP = -1
FAR = 2**62
"""Limit below which a sum of two timestamps fits in 64 bits."""
_MARKER_KEY = struct.Struct(">hh")
ABORT, COMMIT = 0, 1


RawRecord = tuple[int, int, int, int, int, bytes | None, bool]
"""A record in unpacked batch bytes: start, end, start of the key's length; timestamp delta, offset delta; key; whether it has a
value. A plain tuple, as there are millions of them."""


def raw_records(data: bytes, count: int) -> list[RawRecord]:
    """The `count` records of unpacked batch bytes. Raises KafkaError(CORRUPT_MESSAGE) when they do not fill `data`.

    Most numbers have one byte, and are read in place: a call for each would double the time.
    """
    found: list[RawRecord] = []
    at = 0
    limit = len(data)
    try:
        for _ in range(count):
            start = at
            size = data[at]
            if size < 0x80:
                size, at = (size >> 1) ^ -(size & 1), at + 1
            else:
                size, at = _varint(data, at)
            end = at + size
            timestamp = data[at + 1]
            if timestamp < 0x80:
                timestamp, at = (timestamp >> 1) ^ -(timestamp & 1), at + 2
            else:
                timestamp, at = _varint(data, at + 1)
            offset = data[at]
            if offset < 0x80:
                offset, at = (offset >> 1) ^ -(offset & 1), at + 1
            else:
                offset, at = _varint(data, at)
                if not -INT_LIMIT <= offset < INT_LIMIT:
                    raise _broken(f"offset delta {offset} does not fit into 32 bits")
            fields = at
            size = data[at]
            if size < 0x80:
                size, at = (size >> 1) ^ -(size & 1), at + 1
            else:
                size, at = _varint(data, at)
            key = None
            if size >= 0:
                key = data[at : at + size]
                at += size
            # The sign of the value's length is its first byte's lowest bit.
            has_value = not data[at] & 1
            if not at <= end <= limit:
                raise _broken(f"the length of the record at byte {start} is wrong")
            found.append((start, end, fields, timestamp, offset, key, has_value))
            at = end
    except IndexError:
        raise _broken("its payload ends inside a record") from None
    if at != limit:
        raise _broken(f"{limit - at} bytes follow the last record")
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    value = byte & 0x7F
    shift = 7
    while True:
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at + 1
        shift += 7
        if shift > 63:
            raise _broken("a number of more than ten bytes")


def _encoded(number: int) -> bytes:
    rest = (number << 1) ^ (number >> 63)
    if rest < 0x80:
        return bytes((rest,))
    out = bytearray()
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _broken(why: str) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"a batch cannot be read: {why}")


def _unpacked(buffer: Buffer, position: int, header: BatchHeader) -> bytes:
    payload = bytes(buffer[position + HEADER_SIZE : position + header.size_in_bytes])
    return decompress(payload, header.compression, DECOMPRESSED_SIZE_MAX, ErrorCode.CORRUPT_MESSAGE)


def checked(buffer: Buffer, position: int, header: BatchHeader) -> BatchHeader:
    """The header, if the batch is intact. Raises KafkaError(CORRUPT_MESSAGE): a rebuilt batch's new CRC must not hide damage."""
    if header.last_offset_delta < 0 or header.record_count < 0 or not crc_is_valid(buffer, position, header):
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"the batch at offset {header.base_offset} is broken")
    return header


class Transactions:
    """Which transactional batches were aborted, and which markers end a transaction that still has batches.

    First, `note` gets every batch of the log up to the high watermark, in order. This includes batches after the part to clean:
    otherwise an aborted batch whose marker is there would count as committed. Then the copying pass calls `saw` for each
    transactional data batch and `is_discardable` for each control batch, in order.
    """

    def __init__(self) -> None:
        self._ends: dict[int, list[tuple[int, bool]]] = {}
        self._open: dict[int, int] = {}
        self._seen: set[int] = set()
        self.still_aborted: set[int] = set()
        """Offsets of the abort markers of this pass whose transactions had a batch before them."""

    def note(self, buffer: Buffer, position: int, header: BatchHeader) -> None:
        """A data batch starts a transaction, a marker ends it."""
        if header.is_control:
            kind = marker_kind(buffer, position, header)
            if kind in (ABORT, COMMIT):
                self._ends.setdefault(header.producer_id, []).append((header.base_offset, kind == ABORT))
                self._open.pop(header.producer_id, None)
        elif header.is_transactional:
            self._open.setdefault(header.producer_id, header.base_offset)

    def first_open(self, end_offset: int) -> int:
        """The start of the first transaction without a marker, or `end_offset` if that is lower."""
        return min([end_offset, *self._open.values()])

    def is_aborted(self, header: BatchHeader) -> bool:
        """True for a data batch whose transaction ends with an abort marker."""
        if not header.is_transactional:
            return False
        ends = self._ends.get(header.producer_id, [])
        at = bisect_right(ends, (header.base_offset, True))
        return at < len(ends) and ends[at][1]

    def saw(self, header: BatchHeader) -> None:
        """Notes a transactional data batch of the copying pass, whether it is kept or not."""
        self._seen.add(header.producer_id)

    def is_discardable(self, buffer: Buffer, position: int, header: BatchHeader) -> bool:
        """True for a control batch that is empty, or whose transaction has no batch before it in this pass."""
        if header.record_count == 0:
            return True
        kind = marker_kind(buffer, position, header)
        if kind not in (ABORT, COMMIT):
            return False
        is_alone = header.producer_id not in self._seen
        self._seen.discard(header.producer_id)
        if kind == ABORT and not is_alone:
            self.still_aborted.add(header.base_offset)
        return is_alone


def marker_kind(buffer: Buffer, position: int, header: BatchHeader) -> int | None:
    """ABORT, COMMIT, or another number; None for an emptied control batch."""
    for *_, key, _ in raw_records(_unpacked(buffer, position, header), header.record_count):
        if key is not None and len(key) >= _MARKER_KEY.size:
            return int(_MARKER_KEY.unpack_from(key)[1])
    return None


def note_keys(offset_map: OffsetMap, buffer: Buffer, position: int, header: BatchHeader, first_dirty: int) -> bool:
    """Adds the keys of a data batch, from `first_dirty` on, to the map. False when the map is full. Raises KafkaError."""
    put = offset_map.put
    base = header.base_offset
    for *_, delta, key, _ in raw_records(_unpacked(buffer, position, header), header.record_count):
        offset = base + delta
        if key is not None and offset >= first_dirty and not put(key, offset):
            return False
    offset_map.reached(header.last_offset)
    return True


class LastOfProducer(NamedTuple):
    """The batch of a producer that must be kept: the one that ends at `last_offset`, or if that is -1, its marker of `epoch`."""

    last_offset: int
    epoch: int


class BatchCleaner:
    """One pass over a log, batch by batch in order."""

    def __init__(
        self,
        offset_map: OffsetMap,
        transactions: Transactions,
        last_of_producer: Callable[[int], LastOfProducer | None],
        *,
        now_ms: int,
        delete_retention_ms: int,
    ) -> None:
        self._map = offset_map
        self._transactions = transactions
        self._last_of_producer = last_of_producer
        self._now_ms = now_ms
        self._delete_retention_ms = delete_retention_ms
        self.records_dropped = 0

    def cleaned(self, buffer: Buffer, position: int, header: BatchHeader) -> Buffer | None:
        """The replacement of the batch at `position`: itself, a rebuilt batch, or None. Raises KafkaError."""
        horizon = header.delete_horizon_ms
        is_over = horizon is not None and horizon <= self._now_ms
        if header.is_control:
            is_discardable = self._transactions.is_discardable(buffer, position, header)
            drops_all = is_discardable and is_over
        else:
            is_discardable = False
            if header.is_transactional:
                self._transactions.saw(header)
            drops_all = self._transactions.is_aborted(header)
        if drops_all and not self._is_last_of_producer(header):
            self.records_dropped += header.record_count
            return None
        data = b""
        kept: list[RawRecord] = []
        needs_horizon = False
        if not drops_all:
            data = _unpacked(buffer, position, header)
            kept, has_tombstones = self._kept(data, header, is_over)
            needs_horizon = horizon is None and (has_tombstones or is_discardable)
        self.records_dropped += header.record_count - len(kept)
        if not kept:
            return _emptied(header) if self._is_last_of_producer(header) else None
        if len(kept) == header.record_count and not needs_horizon:
            return memoryview(buffer)[position : position + header.size_in_bytes]
        if needs_horizon:
            horizon = self._now_ms + self._delete_retention_ms
        return _rebuilt(header, data, kept, horizon)

    def _kept(self, data: bytes, header: BatchHeader, is_over: bool) -> tuple[list[RawRecord], bool]:
        """The records that are kept, and whether a tombstone is among them."""
        records = raw_records(data, header.record_count)
        if header.is_control:
            return records, any(not record[-1] for record in records)
        kept = []
        has_tombstones = False
        base = header.base_offset
        latest = self._map.latest_offset
        is_replaced = self._map.is_replaced
        for record in records:
            _, _, _, _, delta, key, has_value = record
            offset = base + delta
            if offset <= latest and (key is None or is_replaced(key, offset) or (is_over and not has_value)):
                continue
            kept.append(record)
            if not has_value:
                has_tombstones = True
        return kept, has_tombstones

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        last = self._last_of_producer(header.producer_id) if header.producer_id >= 0 else None
        if last is None:
            return False
        if last.last_offset >= 0:
            return header.last_offset == last.last_offset
        return header.is_control and header.producer_epoch == last.epoch


def _emptied(header: BatchHeader) -> bytes:
    """The batch without records: the header keeps its producer, sequence and offsets."""
    attributes = header.attributes & ~(COMPRESSION_MASK | DELETE_HORIZON_BIT)
    return with_compression(header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP, record_count=0), b"", 0)


def _rebuilt(header: BatchHeader, data: bytes, kept: list[RawRecord], horizon: int | None) -> bytes:
    """The batch of the kept records. Its base timestamp is the first record's, or the delete horizon."""
    old_base = header.base_timestamp
    if header.is_log_append_time:
        timestamps = [header.max_timestamp] * len(kept)
    else:
        timestamps = [old_base + record[3] for record in kept]
        if max(timestamps) > FAR or min(timestamps) < -FAR:
            timestamps = [wrapped(timestamp) for timestamp in timestamps]
    new_base = timestamps[0] if horizon is None else horizon
    parts = []
    for (start, end, fields, old_delta, offset_delta, _, _), timestamp in zip(kept, timestamps, strict=True):
        delta = timestamp - new_base
        if not -FAR <= delta <= FAR:
            delta = wrapped(delta)
        if delta == old_delta:
            parts.append(data[start:end])
        else:
            body = b"".join((b"\x00", _encoded(delta), _encoded(offset_delta), data[fields:end]))
            parts += (_encoded(len(body)), body)
    attributes = header.attributes if horizon is None else header.attributes | DELETE_HORIZON_BIT
    changed = header._replace(
        attributes=attributes,
        base_timestamp=new_base,
        max_timestamp=header.max_timestamp if header.is_log_append_time else max(NO_TIMESTAMP, *timestamps),
        record_count=len(kept),
    )
    return with_compression(changed, b"".join(parts), header.compression)
