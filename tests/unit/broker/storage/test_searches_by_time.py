"""ListOffsets by time in logs and batches that take long to look through: in slices, and unpacked in a thread."""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from broker.storage import timestamps
from broker.storage.log import Log
from broker.storage.sparse_index import SparseIndex
from protocol.errors import ErrorCode
from protocol.kafka.record_batch import build_batch, parse_header
from protocol.kafka.record_checks import STEP
from tests.support.logs import SMALL, batch, fill, open_at
from tests.support.refusals import refused
from tests.support.replica_cluster import TP, Cluster, play
from tools.sim.world.disk import MemoryDisk

COUNT = 5 * STEP


def stops(batch: bytes, timestamp_ms: int) -> tuple[int, int, timestamps.Found | None]:
    """(how often it stops, how often for a thread, what it finds)"""
    search = timestamps.searching(batch, parse_header(batch), timestamp_ms, 0)
    count = threads = 0
    done = None
    while True:
        try:
            work = search.send(done)
        except StopIteration as end:
            return count, threads, end.value
        count += 1
        threads += work is not None
        done = work() if work is not None else None


@pytest.mark.parametrize("compression", [0, 1, 2, 3, 4])
def test_many_records_are_searched_in_steps(compression: int) -> None:
    batch = build_batch([(None, None, (), number) for number in range(COUNT)], compression=compression)
    assert stops(batch, COUNT - 1)[0] >= COUNT // STEP - 1
    assert stops(batch, COUNT - 1)[2] == (COUNT - 1, COUNT - 1, -1)
    assert stops(batch, COUNT) == (COUNT // STEP, 0, None)


@pytest.mark.parametrize("compression", [1, 2, 3, 4])
@pytest.mark.parametrize("value", [bytes(2 * 1024 * 1024), os.urandom(100_000)], ids=["unpacks to much", "is large"])
def test_a_large_batch_is_unpacked_in_a_thread(compression: int, value: bytes) -> None:
    batch = build_batch([(None, value, (), 7)], compression=compression)
    assert stops(batch, 5) == (1, 1, (7, 0, -1))


@pytest.mark.usefixtures("fetchers_are_driven_by_hand")
def test_a_broker_that_stopped_leading_during_the_search_does_not_answer_with_the_offset(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.start(1, 2)
        cluster.lead(1, 0, (1,), replicas=(1, 2))
        cluster.produce(1, *("value",) * COUNT, acks=1)
        listing = cluster.nodes[1].manager.offsets.listing_offset(TP, 1001, -1, 0, -1)
        with pytest.raises(StopIteration):
            next(listing)  # later than all
        listing = cluster.nodes[1].manager.offsets.listing_offset(TP, -3, -1, 0, -1)
        with pytest.raises(StopIteration) as found:
            next(listing)
        assert found.value.value[:2] == (1000, 0)
        batch = build_batch([(None, None, (), 2000 + number) for number in range(COUNT)])
        cluster.nodes[1].manager.appends.append(1, 5000, [(TP, memoryview(batch))], lambda _: None)
        listing = cluster.nodes[1].manager.offsets.listing_offset(TP, 2000 + COUNT - 1, -1, 0, -1)
        next(listing)
        cluster.lead(2, 1, (1, 2), replicas=(1, 2))
        with refused(ErrorCode.NOT_LEADER_OR_FOLLOWER):
            deque(listing, maxlen=0)

    play(tmp_path, scenario)


# -- many segments, and large ones --------------------------------------------------------------------------------------


def steps_of(search: Iterator[object], in_a_pause: Callable[[int], object] = lambda number: None) -> tuple[int, object]:
    """(how often it pauses, what it finds); calls `in_a_pause` with the number of each pause, from 1."""
    for number in itertools.count(1):
        try:
            next(search)
        except StopIteration as end:
            return number - 1, end.value
        in_a_pause(number)
    raise AssertionError


@pytest.fixture
def reopened() -> Log:
    """A log of many segments after a clean stop: no index is loaded."""
    disk = MemoryDisk()
    log = open_at(disk)
    fill(log, 200)
    log.sync_to_close()
    return open_at(disk.after_kill(), was_clean=True, recovery_point=log.log_end_offset)


SEARCHES: dict[str, Callable[[Log], Iterator[object]]] = {
    "by time": lambda log: log.searching(10**9, log.log_end_offset),
    "the newest": lambda log: log.searching_newest(),
}


@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
def test_a_few_segments_are_looked_at_in_a_step(
    reopened: Log, search: Callable[[Log], Iterator[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = [0]
    read = SparseIndex.last_in_file

    def counted(index: SparseIndex) -> tuple[int, int] | None:
        reads[-1] += 1
        return read(index)

    monkeypatch.setattr(SparseIndex, "last_in_file", counted)
    pauses, _ = steps_of(search(reopened), lambda number: reads.append(0))
    assert pauses >= len(reopened.segments) // timestamps.SEGMENTS_AT_ONCE - 1 > 2
    assert 0 < max(reads) <= 2 * timestamps.SEGMENTS_AT_ONCE, "two indexes of each segment"


def test_a_few_batches_of_a_segment_are_looked_at_in_a_step() -> None:
    """The newest record is before the log start, in the same segment: the headers of all batches after it are read."""
    log = open_at(MemoryDisk(), replace(SMALL, segment_bytes=10**6))
    log.append_as_leader(batch(1, timestamp=90_000), 0)
    fill(log, 3 * timestamps.HEADERS_AT_ONCE)
    log.increment_log_start(2)
    fill(log, 3, timestamp=500)
    newest = 1_000 + 10 * (3 * timestamps.HEADERS_AT_ONCE - 1) + 1
    for timestamp, found in ((newest, (newest, log.log_end_offset - 7, 0)), (90_000, None)):
        pauses, value = steps_of(log.searching(timestamp, log.log_end_offset))
        assert (pauses >= 3, value) == (timestamp == 90_000, found)
    pauses, value = steps_of(log.searching_newest())
    assert (pauses >= 3, value) == (True, (newest, log.log_end_offset - 7, 0))


CHANGES: dict[str, Callable[[Log], object]] = {
    "cut": lambda log: log.truncate_to(31),
    "emptied": lambda log: log.truncate_fully_and_start_at(7),
    "continued": lambda log: fill(log, 20, timestamp=5_000),
    "records deleted": lambda log: log.increment_log_start(log.log_end_offset - 5),
    "segments deleted": lambda log: log.delete_old_segments(log.log_end_offset, 10**12, 20),
}


def test_the_log_is_deleted_in_a_pause(reopened: Log) -> None:
    for search in SEARCHES.values():
        with refused(ErrorCode.NOT_LEADER_OR_FOLLOWER):
            steps_of(search(reopened), lambda number: reopened.mark_deleted() if number == 3 else None)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", SEARCHES)
def test_the_log_changes_in_a_pause(name: str, change: str) -> None:
    for at in itertools.count(1):
        log = open_at(MemoryDisk(), replace(SMALL, retention_ms=1))
        fill(log, 150)
        pauses, found = steps_of(
            SEARCHES[name](log), lambda number, log=log, at=at: CHANGES[change](log) if number == at else None
        )
        assert found is None or log.log_start_offset <= found[1] < log.log_end_offset  # type: ignore[index]
        if pauses < at:
            break
    assert at > 3


@pytest.mark.parametrize("log_start", range(9))
def test_the_newest_record_is_one_that_is_left(log_start: int) -> None:
    """KIP-734. The batches have the newest record in the middle, and later ones are older."""
    times = [20, 70, 90, 80, 60, 50, 75, 10]
    log = open_at(MemoryDisk())
    for first, end in ((0, 4), (4, 7), (7, 8)):
        records = [(b"k", b"v", (), time) for time in times[first:end]]
        log.append_as_leader(build_batch(records), 0)
    log.increment_log_start(log_start)
    left = [(time, offset, 0) for offset, time in enumerate(times) if offset >= log_start]
    assert log.max_timestamp_offset() == max(left, default=None)
