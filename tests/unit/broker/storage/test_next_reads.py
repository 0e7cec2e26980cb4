"""A read continues where one before it ended, without a search; and finds what a search finds, whatever happened in between."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.storage.log import Log
from broker.storage.next_reads import BATCHES_WALKED_MAX, REMEMBERED_MAX, NextReads
from broker.storage.segment import Segment
from protocol.kafka.record_batch import BatchHeader, iter_batches, patch
from tests.support.busy_disk import run
from tests.support.logs import SMALL, batch, fill, open_at
from tools.sim.world.disk import MemoryDisk

CONFIG = replace(SMALL, segment_bytes=1500, index_interval_bytes=400)


class Append(NamedTuple):
    batches: int


class Read(NamedTuple):
    reader: int
    max_bytes: int


class Cut(NamedTuple):
    records: int


class Drop(NamedTuple):
    records: int


Step = Append | Read | Cut | Drop


def batches(*counts: int, base: int = 0) -> bytes:
    """Batches of so many records, at the offsets that follow `base`."""
    data = b""
    for count in counts:
        one = bytearray(batch(count))
        patch(one, 0, base, 0)
        data += one
        base += count
    return data


def test_the_next_offset_is_that_after_the_last_whole_batch() -> None:
    first, second, cut = batches(3), batches(2, base=3), batches(4, base=5)[:-1]
    reads = NextReads()
    reads.note(1000, first + second + cut)
    assert reads.get(5) == 1000 + len(first + second)
    assert len(reads) == 1


def test_a_read_without_a_whole_batch_is_not_noted() -> None:
    reads = NextReads()
    reads.note(0, batches(3)[:-1])
    reads.note(0, batches(3)[:20])
    reads.note(0, b"")
    assert len(reads) == 0


def test_a_read_of_bytes_that_are_no_batch_is_not_noted() -> None:
    reads = NextReads()
    whole = batches(3, 2)
    first = len(batches(3))
    for at, broken in (
        (first + 8, struct.pack(">i", 3)),
        (first + 16, b"\x01"),
        (first, bytes(8)),
        (first + 23, b"\xff" * 4),
    ):
        data = bytearray(whole)
        data[at : at + len(broken)] = broken
        reads.note(0, data)
        assert len(reads) == 0, at


def test_very_many_small_batches_are_not_walked() -> None:
    reads = NextReads()
    reads.note(0, batches(*[1] * (BATCHES_WALKED_MAX + 1)))
    assert len(reads) == 0


def test_the_oldest_read_is_forgotten() -> None:
    reads = NextReads()
    for base in range(REMEMBERED_MAX + 1):
        reads.note(base, batches(1, base=base))
    assert len(reads) == REMEMBERED_MAX
    assert reads.get(1) is None
    assert reads.get(2) is not None


@pytest.mark.parametrize("is_sent", [False, True], ids=["read", "sent from the file"])
async def test_a_sequential_reader_searches_once(monkeypatch: pytest.MonkeyPatch, is_sent: bool) -> None:
    monkeypatch.setattr("broker.storage.segment.SENT_FROM_FILE", 1)
    log = open_at(MemoryDisk(), CONFIG)
    fill(log, 40)
    searches: list[int] = []
    search = Segment.headers

    def headers(segment: Segment, position: int = 0, *, may_block: bool = True) -> Iterator[tuple[int, BatchHeader]]:
        searches.append(position)
        return search(segment, position, may_block=may_block)

    monkeypatch.setattr(Segment, "headers", headers)
    offset = 2
    for _ in range(3):
        found = log.read(offset, 3 * len(batch()) + 20, log.log_end_offset, True, may_be_stored=is_sent)
        assert (found.stored is not None) is is_sent
        data = found.records[0] if found.stored is None else found.stored.read()
        offset = [header for _, header in iter_batches(data)][-1].next_offset
    assert offset == 20
    # A read notes where it ended, which takes a look at the last headers if it is sent from the file.
    assert len(searches) == (4 if is_sent else 1)


places = st.integers(0, 2)
steps = st.one_of(
    st.builds(Append, st.integers(1, 12)),
    st.builds(Read, places, st.integers(61, 700)),
    st.builds(Read, places, st.integers(61, 700)),
    st.builds(Cut, st.integers(0, 40)),
    st.builds(Drop, st.integers(0, 40)),
)


@given(st.lists(steps, max_size=60))
@settings(max_examples=150)
def test_reads_find_the_same_as_a_search_after_appends_cuts_and_deletions(script: list[Step]) -> None:
    run(play(script))


async def play(script: list[Step]) -> None:
    log = open_at(MemoryDisk(), CONFIG)
    offsets = [0, 0, 0]
    marks = itertools.count()
    for step in script:
        match step:
            case Append(count):
                for _ in range(count):
                    mark = next(marks)
                    # Sizes differ, so that a batch is seldom where the one was that it replaces.
                    log.append_as_leader(batch(mark=mark, size=10 + mark * 7 % 40), 0)
            case Cut(records):
                # Other records take the place of those that are cut off.
                log.truncate_to(max(log.log_end_offset - records, log.log_start_offset))
            case Drop(records):
                log.increment_log_start(min(log.log_start_offset + records, log.log_end_offset))
                log.delete_old_segments(log.log_start_offset, 1_000)
                for segment in log.segments:
                    segment.load_indexes()
            case Read(reader, max_bytes):
                offset = min(max(offsets[reader], log.log_start_offset), log.log_end_offset)
                found = read(log, offset, max_bytes)
                assert found == searched(log, offset, max_bytes) == sent(log, offset, max_bytes)
                assert sent(log, offset, max_bytes, False) == read(log, offset, max_bytes, False)
                whole = [header for _, header in iter_batches(found)]
                offsets[reader] = whole[-1].next_offset if whole else offset


def read(log: Log, offset: int, max_bytes: int, min_one_batch: bool = True) -> bytes:
    return b"".join(bytes(part) for part in log.read(offset, max_bytes, log.log_end_offset, min_one_batch).records)


def sent(log: Log, offset: int, max_bytes: int, min_one_batch: bool = True) -> bytes:
    """The same read, sent from the file unless it has very few bytes."""
    with mock.patch("broker.storage.segment.SENT_FROM_FILE", 150):
        found = log.read(offset, max_bytes, log.log_end_offset, min_one_batch, may_be_stored=True)
    return b"".join(bytes(part) for part in found.records) if found.stored is None else bytes(found.stored.read())


def searched(log: Log, offset: int, max_bytes: int) -> bytes:
    """The same read, of segments that remember no read."""
    remembered = [segment._next_reads for segment in log.segments]
    for segment in log.segments:
        segment._next_reads = None
    found = read(log, offset, max_bytes)
    for segment, reads in zip(log.segments, remembered, strict=True):
        segment._next_reads = reads
    return found
