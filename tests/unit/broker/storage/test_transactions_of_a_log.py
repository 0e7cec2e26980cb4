"""Transactions in one log: last stable offset, `.txnindex`, and what a reader of committed records gets (LOG-7, INV-21)."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from random import Random
from typing import NamedTuple
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.storage.aborted_transactions import AbortedTransaction, decode
from broker.storage.log import Log, WouldBlock
from broker.storage.log_types import AppendOrigin
from broker.storage.producers import log_producers
from broker.storage.producers.producer_state import ProducerState
from protocol.errors import ErrorCode
from protocol.kafka.control_records import Marker, marker_batch, parse_marker
from protocol.kafka.record_batch import TRANSACTIONAL_BIT, BatchHeader, build_batch, decode_records, iter_batches, patch
from tests.support.busy_disk import run
from tests.support.logs import DIRECTORY, LOG_DIR, SMALL, batch, check, everything, open_at, split
from tests.support.refusals import refused
from tools.sim.world.disk import LOSSES, Loss, MemoryDisk

P, Q, R = 7, 8, 9
ONE_SEGMENT = replace(SMALL, segment_bytes=2**20)


def transactional(producer: int, sequence: int, count: int = 1, *, epoch: int = 0, mark: int = 0) -> bytes:
    records = [(b"k", mark.to_bytes(8, "big"), (), 1_000 + at) for at in range(count)]
    return build_batch(
        records, producer_id=producer, producer_epoch=epoch, base_sequence=sequence, attributes=TRANSACTIONAL_BIT
    )


def send(log: Log, producer: int, count: int = 1, *, mark: int = 0) -> int:
    """The producer's next batch of its transaction. Returns its offset."""
    entry = log.producers.state.producers.get(producer)
    sequence = entry.last_sequence + 1 if entry else 0
    return log.append_as_leader(transactional(producer, sequence, count, mark=mark), 0).first_offset


def end(log: Log, producer: int, *, is_commit: bool, epoch: int = 0, coordinator_epoch: int = 0) -> int:
    """The marker, as its coordinator has it written. Returns its offset."""
    data = marker_batch(producer, epoch, Marker(is_commit, coordinator_epoch), 2_000)
    return log.append_as_leader(memoryview(data), 0, origin=AppendOrigin.COORDINATOR).first_offset


def aborted_in(log: Log) -> list[AbortedTransaction]:
    """All entries of the log's lists, as they are in memory."""
    entries = []
    for segment in log.segments:
        if segment.aborted is not None:
            segment.aborted.load()
            entries += segment.aborted.entries()
    return entries


class Got(NamedTuple):
    """A batch that a consumer gave to its user."""

    offset: int
    marks: tuple[int, ...]


def read_committed(log: Log, high_watermark: int, *, max_bytes: int = 2**20, start: int | None = None) -> list[Got]:
    """What the consumer of isolation level read_committed sees; it leaves records out as Kafka's Fetcher does."""
    offset = log.log_start_offset if start is None else start
    stable = log.last_stable_offset(high_watermark)
    assert stable <= high_watermark
    found = []
    while offset < stable:
        result = run(log.read_cold(offset, max_bytes, stable, True, True))
        data = b"".join(map(bytes, result.records))
        coming = deque(sorted(result.aborted, key=lambda entry: entry[1]))
        aborted: set[int] = set()
        for position, header in iter_batches(data):
            while coming and coming[0][1] <= header.last_offset:
                aborted.add(coming.popleft()[0])
            offset = header.next_offset
            if header.is_control:
                marker = parse_marker(data, position)
                if marker is not None and not marker.is_commit:
                    aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborted):
                marks = tuple(
                    int.from_bytes((record.value or b"")[:8], "big") for record in decode_records(data, position)
                )
                found.append(Got(header.base_offset, marks))
        if not data:
            break
    return found


def test_a_reader_of_committed_records_stops_at_an_open_transaction(disk: MemoryDisk) -> None:
    log = open_at(disk)
    log.append_as_leader(batch(1), 0)
    assert send(log, P, mark=1) == 1
    send(log, Q, mark=2)
    assert end(log, Q, is_commit=True) == 3
    assert [log.last_stable_offset(high_watermark) for high_watermark in (0, 1, 4)] == [0, 1, 1]
    assert [got.offset for got in read_committed(log, 4)] == [0]
    end(log, P, is_commit=False)
    assert [got.offset for got in read_committed(log, 5)] == [0, 2]
    assert aborted_in(log) == [(P, 1, 4, 5)]
    assert log.read(0, 2**20, 5, True, True).aborted == [(P, 1)]
    assert log.read(0, 2**20, 1, True, True).aborted == []
    assert log.read(0, 2**20, 5, True).aborted == ()


def test_a_read_may_end_inside_any_batch(disk: MemoryDisk) -> None:
    """The list of aborted transactions is the same as for the whole batches before that."""
    log = open_at(disk, replace(SMALL, segment_bytes=2**20))
    for producer in (P, Q, R):
        send(log, producer)
        end(log, producer, is_commit=False)
    size = log.size
    for is_recent in (True, False):
        if not is_recent:
            log.segments[0].rest()
            run(log.read_cold(1, 1, 6, True, True))
        for max_bytes in range(61, size + 1):
            result = log.read(0, max_bytes, 6, True, True)
            data = b"".join(map(bytes, result.records))
            whole = [header.producer_id for _, header in iter_batches(data)]
            assert set(whole) <= {producer for producer, _ in result.aborted}


def test_coordinators_are_fenced(disk: MemoryDisk) -> None:
    log = open_at(disk)
    send(log, P)
    end(log, P, is_commit=True, coordinator_epoch=4)
    with refused(ErrorCode.TRANSACTION_COORDINATOR_FENCED):
        end(log, P, is_commit=True, coordinator_epoch=3)
    end(log, P, is_commit=False, epoch=5, coordinator_epoch=4)
    with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
        end(log, P, is_commit=True, epoch=4, coordinator_epoch=9)
    with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
        log.append_as_leader(transactional(P, 1), 0)
    with refused(ErrorCode.INVALID_RECORD):
        log.append_as_leader(marker_batch(P, 6, Marker(True, 9), 0), 0)  # a client's
    offsets = memoryview(transactional(P, -1, 2, epoch=5))
    assert log.append_as_leader(offsets, 0, origin=AppendOrigin.COORDINATOR).first_offset == 3
    assert log.last_stable_offset(5) == 3


def test_a_marker_is_not_compressed_by_the_topics_compression(disk: MemoryDisk) -> None:
    log = open_at(disk, replace(SMALL, compression_type="gzip"))
    send(log, P)
    end(log, P, is_commit=False)
    headers = [header for _, header in log.segments[-1].headers()]
    assert [header.compression for header in headers] == [1, 0]


def test_the_file_is_kafkas(disk: MemoryDisk) -> None:
    """It exists only beside a segment with abort markers, is written by the flush, and goes with its segment."""
    log = open_at(disk)
    send(log, P)
    end(log, P, is_commit=True)
    run(log.flush())
    assert not [name for name in disk.list(DIRECTORY) if name.endswith("txnindex")]
    send(log, P)
    end(log, P, is_commit=False)
    path = f"{DIRECTORY}/{0:020d}.txnindex"
    run(log.flush())
    assert bytes(disk.content(path)) == bytes.fromhex(f"0000 {P:016x} {2:016x} {3:016x} {4:016x}")
    lost = disk.after_power_loss(Random(1))
    assert aborted_in(open_at(lost, recovery_point=4)) == [(P, 2, 3, 4)]
    log.truncate_fully_and_start_at(9)
    assert not disk.exists(path)


def test_a_list_that_was_cut_before_it_had_a_file(disk: MemoryDisk) -> None:
    log = open_at(disk)
    send(log, P)
    end(log, P, is_commit=False)
    log.truncate_to(1)
    end(log, P, is_commit=True)
    for _ in range(8):
        log.append_as_leader(batch(), 0)
    log.delete_old_segments(log.log_end_offset, 0)
    assert run(log.read_cold(0, 2**20, log.log_end_offset, True, True)).aborted == []


@pytest.mark.parametrize("damage", [b"", b"\1", bytes(34), b"\0\7" + bytes(32)])
@pytest.mark.parametrize("was_clean", [True, False])
def test_a_damaged_file_is_made_again(disk: MemoryDisk, damage: bytes, was_clean: bool) -> None:
    """FLT-27. An empty file below the recovery point cannot be told from a right one, as in Kafka."""
    log = open_at(disk)
    for _ in range(6):
        send(log, P, 3)
        end(log, P, is_commit=False)
    expected = aborted_in(log)
    assert len(log.segments) > 2
    run(log.flush())
    log._segments[-1].write_indexes()
    log.close()
    again = disk.after_kill()
    base = log.segments[0].base_offset
    again.write_atomically(f"{DIRECTORY}/{base:020d}.txnindex", damage)
    log = open_at(again, was_clean=was_clean, recovery_point=log.log_end_offset)
    log = open_at(
        again.after_kill(), was_clean=was_clean, recovery_point=log.log_end_offset
    )  # nothing was flushed in between
    missing = {entry for entry in expected if entry.last_offset < log.segments[1].base_offset} if not damage else set()
    assert aborted_in(log) == [entry for entry in expected if entry not in missing]
    run(log.flush())
    for segment in log.segments[:-1]:
        segment.forget_indexes()
    assert aborted_in(log) == [entry for entry in expected if entry not in missing]


@pytest.mark.parametrize("is_leader", [True, False], ids=["leader", "follower"])
@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO])
def test_an_abort_marker_needs_no_file_but_the_log(disk: MemoryDisk, is_leader: bool, number: int) -> None:
    """After a restart the list was read when a marker was written already. If that failed, the next batch got the marker's offset."""
    log = open_at(disk, ONE_SEGMENT)
    for _ in range(2):
        send(log, P)
        end(log, P, is_commit=False)
    send(log, P)
    run(log.flush())
    log.sync_to_close()
    source = open_at(disk.after_kill(), ONE_SEGMENT)
    marker = end(source, P, is_commit=False)
    last = send(source, Q)
    data = everything(source)

    disk = disk.after_kill()
    log = open_at(disk, ONE_SEGMENT, was_clean=True, recovery_point=log.recovery_point)
    for call in ("open", "open_to_keep", "read_file"):
        disk.fail(call, number, below=f"{DIRECTORY}/{0:020d}.txnindex")
    if is_leader:
        assert end(log, P, is_commit=False) == marker
        assert send(log, Q) == last
    else:
        log.append_as_follower(memoryview(data[data.index(split(data)[marker]) :]))
    disk.failures.clear()
    assert log.log_end_offset == source.log_end_offset
    assert [header.base_offset for header in check(log)] == list(range(source.log_end_offset))
    assert [entry.last_offset for entry in aborted_in(log)] == [1, 3, marker]
    run(log.flush())
    assert aborted_in(open_at(disk.after_kill(), ONE_SEGMENT)) == aborted_in(log)


def test_lists_of_far_segments_are_read_in_a_thread(disk: MemoryDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The marker of the first record is in the last of twelve segments, and no list is in memory."""
    log = open_at(disk, replace(SMALL, segment_bytes=200))
    send(log, P, mark=1)
    for number in range(12):
        send(log, Q, mark=10 + number)
        end(log, Q, is_commit=False)
    end(log, P, is_commit=False)
    log.append_as_leader(batch(), 0)
    log._roll(log.log_end_offset)
    run(log.flush())
    log.forget_indexes(0, len(log.segments))
    for segment in log.segments:
        segment.load_indexes()
    assert len(log.segments) > 12
    readers = []
    read_file = disk.read_file

    def noted(path: str) -> bytes | None:
        if path.endswith(".txnindex"):
            readers.append(threading.current_thread() is threading.main_thread())
        return read_file(path)

    monkeypatch.setattr(disk, "read_file", noted)
    with pytest.raises(WouldBlock):
        log.read(0, 100, log.log_end_offset, True, True)
    found = asyncio.run(log.read_cold(0, 100, log.log_end_offset, True, True))
    assert (P, 0) in found.aborted
    assert len(readers) >= 12
    assert not any(readers)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: f"names {loss.names}, data {loss.data}")
def test_the_lists_are_right_after_a_power_loss_at_any_moment(disk: MemoryDisk, loss: Loss) -> None:
    """INV-21, FLT-24: while transactions end, segments roll, the log is flushed and cut."""
    log = open_at(disk)
    moments: list[tuple[MemoryDisk, int]] = []
    disk.on_change = lambda: moments.append((disk.after_power_loss(Random(len(moments)), loss), log.recovery_point))
    for turn in range(8):
        send(log, P, 2)
        send(log, Q)
        end(log, P, is_commit=False)
        send(log, R)
        end(log, Q, is_commit=turn % 2 == 0)
        if turn % 2:
            end(log, R, is_commit=False)
        if turn in (1, 4):
            run(log.flush())
        if turn in (2, 5):
            log.truncate_to(log.log_end_offset - 4)
    disk.on_change = lambda: None
    assert len(moments) > 50
    for lost, recovery_point in moments:
        found = open_at(lost, recovery_point=recovery_point)
        state = ProducerState()
        ends = [state.append(header, header.base_offset, marker) for header, marker in batches_of(found)]
        expected = [AbortedTransaction(*one[:4]) for one in ends if one is not None and not one.is_commit]
        assert aborted_in(found) == expected
        assert found.producers.state.ongoing == state.ongoing


# -- a function of the log ----------------------------------------------------------------------------------------------


def batches_of(log: Log) -> list[tuple[BatchHeader, Marker | None]]:
    """All batches in the segments, with their markers."""
    found = []
    for segment in log.segments:
        for at, header in segment.headers():
            data = segment.read(at, header.size_in_bytes, may_block=True)
            found.append((header, parse_marker(data) if header.is_control else None))
    return found


def known_of(state: ProducerState) -> dict[int, tuple[object, ...]]:
    """Without the times of batches: a snapshot has only that of the producer's last batch or marker."""
    return {
        producer: (
            entry.epoch,
            entry.coordinator_epoch,
            entry.last_timestamp,
            entry.transaction_first_offset,
            [one[:3] for one in entry.batches],
        )
        for producer, entry in state.producers.items()
    }


class Story:
    """A log and its leader's or follower's deeds; what was aborted is noted apart."""

    def __init__(self, seed: int) -> None:
        self.disk = MemoryDisk()
        self.random = Random(seed)
        self.log = open_at(self.disk)
        self.high_watermark = 0
        self.known: list[tuple[BatchHeader, Marker | None]] = []
        self.mark = 0

    def do(self, deed: str, amount: int) -> None:
        getattr(self, deed)(amount)
        self.look()

    def look(self) -> None:
        log = self.log
        told = ProducerState()
        entries, outcome = [], {}
        began: dict[int, list[int]] = {}
        unstable = []
        for header, marker in self.known:
            ended = told.append(header, header.base_offset, marker)
            if header.is_transactional and marker is None:
                began.setdefault(header.producer_id, []).append(header.base_offset)
            elif marker is not None:
                outcome.update(dict.fromkeys(began.pop(header.producer_id, ()), marker.is_commit))
            if ended is not None and not ended.is_commit:
                entries.append(AbortedTransaction(*ended[:4]))
            if ended is not None and ended.last_offset >= self.high_watermark:
                unstable.append(ended.first_offset)
        assert known_of(log.producers.state) == known_of(told)
        assert log.producers.state.ongoing == told.ongoing
        first = log.segments[0].base_offset
        assert aborted_in(log) == [entry for entry in entries if entry.last_offset >= first]
        unstable += told.ongoing
        stable = min([self.high_watermark, *(max(offset, log.log_start_offset) for offset in unstable)])
        assert log.last_stable_offset(self.high_watermark) == stable
        committed = [
            header.base_offset
            for header, marker in self.known
            if log.log_start_offset <= header.last_offset
            and header.last_offset < stable
            and header.base_offset >= first
            and marker is None
            and (not header.is_transactional or outcome[header.base_offset])
        ]
        for max_bytes in (1, 250, 2**20):
            assert [got.offset for got in read_committed(log, self.high_watermark, max_bytes=max_bytes)] == committed
        check(log)

    def note_from(self, offset: int) -> None:
        self.known += [found for found in batches_of(self.log) if found[0].base_offset >= offset]

    def append(self, amount: int) -> None:
        for _ in range(amount):
            start, producer = self.log.log_end_offset, self.random.choice([-1, P, Q, R])
            self.mark += 1
            if producer < 0:
                self.log.append_as_leader(batch(mark=self.mark), 0)
            else:
                send(self.log, producer, self.random.randint(1, 3), mark=self.mark)
            self.note_from(start)

    def end(self, amount: int) -> None:
        start = self.log.log_end_offset
        end(self.log, self.random.choice([P, Q, R]), is_commit=amount > 5)
        self.note_from(start)

    def copy(self, amount: int) -> None:
        """Several batches in one append, markers among them."""
        start = offset = self.log.log_end_offset
        parts = []
        for number in range(amount):
            producer = self.random.choice([P, Q])
            if self.random.random() < 0.5:
                data = bytearray(marker_batch(producer, 0, Marker(self.random.random() < 0.5, 0), 2_000))
            else:
                data = bytearray(transactional(producer, 1000 * start + number))
            patch(data, 0, offset, 0)
            parts.append(bytes(data))
            offset += 1
        self.log.append_as_follower(memoryview(b"".join(parts)))
        self.note_from(start)

    def replicate(self, amount: int) -> None:
        ends = [
            header.next_offset for header, _ in self.known if header.next_offset <= self.log.log_end_offset - amount
        ]
        self.high_watermark = max([self.high_watermark, *ends])
        self.log.last_stable_offset(self.high_watermark)

    def truncate(self, amount: int) -> None:
        """What is rebuilt may take transactions for replicated whose markers are not, as in Kafka: the mark follows at once."""
        offset = max(self.log.log_end_offset - 2 * amount, 0)
        is_emptied = offset < self.log.segments[0].base_offset
        self.log.truncate_to(offset)
        self.high_watermark = end = self.log.log_end_offset
        self.known = [found for found in self.known if found[0].last_offset < end and not is_emptied]

    def empty(self, amount: int) -> None:
        self.high_watermark = self.log.log_end_offset + amount
        self.log.truncate_fully_and_start_at(self.high_watermark)
        self.known = []

    def retention(self, amount: int) -> None:
        self.log.config = replace(SMALL, retention_bytes=200 * amount)
        self.log.delete_old_segments(self.high_watermark, 2_000)

    def delete_records(self, amount: int) -> None:
        self.log.increment_log_start(min(self.log.log_start_offset + amount, self.high_watermark))

    def flush(self, amount: int) -> None:
        run(self.log.flush())

    def stop(self, amount: int) -> None:
        self.log.sync_to_close()
        self.log.close()
        self.reopen(self.disk.after_kill(), was_clean=True)

    def kill(self, amount: int) -> None:
        self.reopen(self.disk.after_kill(), was_clean=False)

    def lose_power(self, amount: int) -> None:
        """What was cut since the last flush may be there again, so the batches say what is right."""
        below = [entry for entry in aborted_in(self.log) if entry.last_offset < self.log.recovery_point]
        disk = self.disk.after_power_loss(self.random)
        log = open_at(disk, recovery_point=self.log.recovery_point, log_start=self.log.log_start_offset)
        entries = aborted_in(log)
        assert [entry for entry in entries if entry.last_offset < log.recovery_point] == below
        markers = {header.base_offset: header for header, marker in batches_of(log) if marker and not marker.is_commit}
        assert all(markers[entry.last_offset].producer_id == entry.producer_id for entry in entries)
        assert log.producers.state.ongoing == sorted(
            entry.transaction_first_offset
            for entry in log.producers.state.producers.values()
            if entry.transaction_first_offset >= 0
        )
        self.__init__(self.random.getrandbits(32))  # type: ignore[misc]

    def reopen(self, disk: MemoryDisk, *, was_clean: bool) -> None:
        point, start = self.log.recovery_point, self.log.log_start_offset
        self.disk = disk
        before = {int(name[:20]) for name in disk.list(DIRECTORY) if name.endswith(".snapshot")}
        below = [entry for entry in aborted_in(self.log) if entry.last_offset < point]
        self.log = open_at(disk, was_clean=was_clean, recovery_point=point, log_start=start)
        self.high_watermark = end = self.log.log_end_offset
        first = self.log.segments[0].base_offset
        self.known = [found for found in self.known if found[0].last_offset < end]
        if not was_clean and not any(first <= offset <= min(point, end) for offset in before):
            # No snapshot that is believed: what is known of deleted segments is forgotten. A new story.
            assert [entry for entry in aborted_in(self.log) if entry.last_offset < point] == below
            self.__init__(self.random.getrandbits(32))  # type: ignore[misc]


OFTEN = ["append"] * 3 + ["end"] * 4 + ["flush"] * 2 + ["replicate"] * 2
SELDOM = ["copy", "truncate", "retention", "delete_records", "stop", "kill", "lose_power", "empty"]
deeds = st.tuples(st.sampled_from(OFTEN + SELDOM), st.integers(1, 9))


@given(st.lists(deeds, max_size=25), st.integers(0, 2**32), st.sampled_from([2, 5, 1024]))
@settings(max_examples=50)
def test_committed_readers_see_exactly_what_was_committed(
    deeds: list[tuple[str, int]], seed: int, copy_batches: int
) -> None:
    """INV-21, BUG-24: after any history the lists and the last stable offset follow from the batches."""
    with mock.patch.multiple(log_producers, COPY_BATCHES=copy_batches, COPY_BATCHES_PER_PRODUCER=0):
        story = Story(seed)
        for deed, amount in deeds:
            story.do(deed, amount)


def entries_of(rows: Iterable[tuple[int, int, int, int]]) -> list[AbortedTransaction]:
    return [AbortedTransaction(*row) for row in rows]


def test_a_stable_offset_that_goes_back_only_makes_a_search_longer(disk: MemoryDisk) -> None:
    """As a Kafka follower may write it."""
    rows = entries_of([(P, 0, 10, 20), (Q, 11, 30, 11), (R, 31, 40, 41)])
    log = open_at(disk)
    for row in rows:
        log.segments[-1].note_aborted(row)
    log.segments[-1].write_indexes()
    index = log.segments[-1].aborted
    assert index is not None
    index.unload()
    index.load()
    found: list[tuple[int, int]] = []
    assert index.collect(0, 20, found)
    assert found == [(P, 0), (Q, 11)]
    assert decode(disk.read_file(index.path) or b"", 0) == rows
    assert disk.exists(f"{LOG_DIR}")
