"""Kafka's `<offset>.snapshot`: the producer state of all records below the offset (FMT-3, LOG-5). Pure.

    offset  size  field                          each entry, 46 bytes:
         0     2  version (1)                        0     8  producer id
         2     4  CRC-32C of all from 6              8     2  producer epoch
         6     4  number of entries                 10     4  last sequence (-1: no batch)
        10        entries                           14     8  last offset (-1: no batch)
                                                    22     4  offset delta: records of the batch, less one
                                                    26     8  timestamp (ms) of the producer's last batch or marker
                                                    34     4  coordinator epoch
                                                    38     8  first offset of its open transaction, -1 without one

Kafka writes one entry for each producer, with its last batch, and so forgets the four batches before it in every restart. A
producer that retries one of those then gets OUT_OF_ORDER_SEQUENCE_NUMBER. Here each kept batch is an entry, oldest first. Kafka
keeps only the last entry of a producer, which is the one that it would have written itself.

Snapshots are taken when a segment is rolled (at the new segment's base offset), and at a clean stop. When a log is opened or cut:

1. Snapshots that are outside of the log (`out_of_range`), or that no segment needs (`strays`), are removed.
2. The others are tried, `newest_first`. One that `decode` refuses is removed. If none can be read, the state starts empty at
   the first segment.
3. The batches from the state's `end_offset` on are appended to the state.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Iterable, Iterator

from fastcrc.crc32 import iscsi as crc32c

from broker.storage.producers.producer_state import (
    NO_TRANSACTION,
    BatchMetadata,
    ProducerEntry,
    ProducerState,
)

SUFFIX = ".snapshot"
VERSION = 1

_HEADER = struct.Struct(">hIi")
_ENTRY = struct.Struct(">qhiqiqiq")
_CRC_START = 6
_NAME = re.compile(r"([0-9]{20})\.snapshot")


def file_name(offset: int) -> str:
    return f"{offset:020d}{SUFFIX}"


def offset_of(name: str) -> int | None:
    """The offset in a snapshot's file name; None for any other file."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else None


def encode(state: ProducerState) -> bytes:
    """The bytes of the snapshot at `state.end_offset`."""
    entries = [row for producer_id, entry in state.producers.items() for row in _rows(producer_id, entry)]
    body = struct.pack(">i", len(entries)) + b"".join(entries)
    return struct.pack(">hI", VERSION, crc32c(body)) + body


def _rows(producer_id: int, entry: ProducerEntry) -> Iterator[bytes]:
    """The producer's entries. Kafka keeps only the last one, so only that one has the transaction."""
    for batch in entry.batches[:-1]:
        yield _ENTRY.pack(producer_id, entry.epoch, *batch, entry.coordinator_epoch, NO_TRANSACTION)
    last = entry.batches[-1] if entry.batches else BatchMetadata(-1, -1, 0, -1)
    newest = last._replace(timestamp=entry.last_timestamp)
    yield _ENTRY.pack(producer_id, entry.epoch, *newest, entry.coordinator_epoch, entry.transaction_first_offset)


def decode(data: bytes, end_offset: int) -> ProducerState:
    """The state in the snapshot named `end_offset`. Raises ValueError for broken bytes (FLT-27)."""
    if len(data) < _HEADER.size:
        raise ValueError(f"{len(data)} bytes are not a producer snapshot")
    version, crc, count = _HEADER.unpack_from(data)
    if version != VERSION:
        raise ValueError(f"a producer snapshot of version {version}, expected {VERSION}")
    if crc != crc32c(memoryview(data)[_CRC_START:]):
        raise ValueError("the producer snapshot's CRC does not match")
    if count < 0 or len(data) != _HEADER.size + count * _ENTRY.size:
        raise ValueError(f"{len(data)} bytes do not fit {count} entries")
    producers: dict[int, ProducerEntry] = {}
    for row in _ENTRY.iter_unpack(memoryview(data)[_HEADER.size :]):
        producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, transaction = row
        if offset >= end_offset or transaction >= end_offset:
            raise ValueError(f"producer {producer_id} at offset {offset}, beyond the snapshot's {end_offset}")
        entry = producers.setdefault(producer_id, ProducerEntry(epoch))
        entry.begin_epoch(epoch)
        entry.coordinator_epoch = coordinator_epoch
        entry.last_timestamp = timestamp
        entry.transaction_first_offset = transaction if transaction >= 0 else NO_TRANSACTION
        if offset >= 0:
            entry.add(BatchMetadata(sequence, offset, delta, timestamp))
    state = ProducerState(end_offset, producers)
    state.ongoing = sorted(
        entry.transaction_first_offset
        for entry in producers.values()
        if entry.transaction_first_offset != NO_TRANSACTION
    )
    return state


def out_of_range(offsets: Iterable[int], *, first_offset: int, log_end_offset: int) -> list[int]:
    """Snapshots beyond the log's end, or before its first segment."""
    return [offset for offset in offsets if not first_offset <= offset <= log_end_offset]


def newest_first(offsets: Iterable[int], *, first_offset: int, log_end_offset: int) -> list[int]:
    """The snapshots to try when the state is rebuilt, newest first."""
    return sorted((offset for offset in offsets if first_offset <= offset <= log_end_offset), reverse=True)


def strays(offsets: Iterable[int], segment_bases: Collection[int]) -> list[int]:
    """Snapshots that are not at the start of a segment, except the newest if it is beyond all starts: a clean stop made it."""
    bases = frozenset(segment_bases)
    newest_base = max(bases, default=-1)
    unneeded = sorted(offset for offset in offsets if offset not in bases)
    if unneeded and unneeded[-1] > newest_base:
        unneeded.pop()
    return unneeded
