"""What compaction keeps, where it ends, and what may happen meanwhile (LOG-4)."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from broker.storage.compaction import log_cleaner
from broker.storage.compaction.log_cleaner import CleanerSettings
from broker.storage.disk.disk_threads import REMOVALS
from broker.storage.log import Log
from protocol.kafka.record_batch import DELETE_HORIZON_BIT, Record
from protocol.types import TopicPartition
from tests.support.busy_disk import BusyDisk, run
from tests.support.compaction import (
    COMPACTED,
    CompactedLog,
    everything_with_holes,
    headers_of,
    keyed,
    records_of,
    table_of,
)
from tests.support.logs import DIRECTORY, LOG_DIR, check, failures_of, once_before

Change = Callable[[CompactedLog], None]


def brief(it: CompactedLog) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in records_of(it.log)]


def filled(records: int = 40, keys: int = 3, **options: Any) -> CompactedLog:
    """A log in which each record is a batch, and whose active segment is empty."""
    it = CompactedLog(**options)
    for number in range(records):
        it.append((b"k%d" % (number % keys), b"%d" % number))
    it.roll()
    return it


def cut(it: CompactedLog) -> None:
    it.log.truncate_to(it.log.log_end_offset // 2 + 1)
    for number in range(60):
        it.append((b"k%d" % (number % 2), b"again"))


def delete(it: CompactedLog) -> None:
    it.manager.delete(it.log.topic_partition)


def switch_off(it: CompactedLog) -> None:
    it.configure(cleanup_policy="delete")


def retain(it: CompactedLog) -> None:
    it.configure(cleanup_policy="compact,delete", retention_bytes=1000)
    it.log.delete_old_segments(it.log.log_end_offset, it.time.wall_ms())


def test_the_last_record_of_each_key_stays_at_its_offset() -> None:
    it = filled(20)
    it.append((b"k0", b"active"))
    assert it.clean() == 1
    assert brief(it) == [
        (17, b"k2", b"17"),
        (18, b"k0", b"18"),
        (19, b"k1", b"19"),
        (20, b"k0", b"active"),
    ]
    assert it.log.cleaned_up_to == 20
    assert it.clean() == 0


def test_a_tombstone_is_removed_delete_retention_ms_after_its_first_cleaning() -> None:
    """KIP-534: the first cleaning writes the delete horizon into the batch."""
    it = CompactedLog()
    it.append((b"a", b"1"), (b"b", b"1"))
    it.append((b"a", None), (b"c", b"1"))
    it.roll()
    assert it.clean() == 1
    assert brief(it) == [(1, b"b", b"1"), (2, b"a", None), (3, b"c", b"1")]
    marked = headers_of(it.log)[-1]
    assert marked.attributes & DELETE_HORIZON_BIT
    assert marked.delete_horizon_ms == it.time.wall_ms() + COMPACTED.delete_retention_ms
    assert [record.timestamp for record in records_of(it.log)] == [1_000_001, 1_000_000, 1_000_001]

    for seconds, is_there in ((0.999, True), (0.001, False)):
        it.time.now += seconds
        it.append((b"d", b"1"))
        it.roll()
        assert it.clean() == 1
        assert ((2, b"a", None) in brief(it)) == is_there
    assert brief(it) == [(1, b"b", b"1"), (3, b"c", b"1"), (5, b"d", b"1")]


class NotWalked(dict[int, Any]):
    def items(self) -> Any:
        raise AssertionError("a log may have 50,000 producers")


def test_the_producers_of_a_log_are_not_walked_on_the_loop() -> None:
    """NET-4."""
    it = filled()
    it.append((b"k", b""), producer_id=7, producer_epoch=0, base_sequence=0)
    it.append((b"k", b""))
    it.roll()
    state = it.log.producers.state
    state.producers = NotWalked(state.producers)
    assert it.clean() == 1
    state.producers = dict(state.producers.copy())
    assert [header.producer_id for header in headers_of(it.log) if header.record_count == 0] == [7]


def test_the_last_batch_of_a_producer_keeps_its_header() -> None:
    """LOG-5: its sequence must not be forgotten, or the next batch would be out of order."""
    it = CompactedLog()
    for sequence in range(3):
        it.append((b"k", b"%d" % sequence), producer_id=7, producer_epoch=2, base_sequence=sequence)
    it.append((b"k", b"other"))
    it.roll()
    it.clean()
    emptied, last = headers_of(it.log)
    assert (emptied.base_offset, emptied.record_count, emptied.last_offset_delta) == (2, 0, 0)
    assert (emptied.producer_id, emptied.producer_epoch, emptied.base_sequence) == (7, 2, 2)
    assert (emptied.base_timestamp, last.base_offset) == (-1, 3)
    again = it.reopened()
    assert again.log.producers.state.producers[7].last_sequence == 2
    check(again.log, is_gapless=False)


def test_the_times_of_many_segments_are_read_a_few_at_a_time() -> None:
    stopped = filled(200, keys=5)
    run(stopped.manager.shutdown())
    it = stopped.reopened()
    it.configure(min_compaction_lag_ms=1, max_compaction_lag_ms=10**12)
    known: list[int] = []

    async def pause() -> None:
        known.append(sum(segment._newest_is_known for segment in it.log.segments[:-1]))

    it.manager.upkeep.pause = pause
    run(it.cleaner._choose())
    steps = [after - before for before, after in itertools.pairwise(known)]
    assert (known[0], known[-1], max(steps)) == (0, len(it.log.segments) - 1, log_cleaner.TIMES_READ_AT_ONCE)


@pytest.mark.parametrize("change", [cut, delete, switch_off, retain])
def test_the_log_changes_while_its_times_are_read(change: Change) -> None:
    """What is chosen is right for the log as it is then."""
    for at in itertools.count(1):
        it = filled(80, keys=5)
        it.configure(min_compaction_lag_ms=1, max_compaction_lag_ms=10**12)
        it.time.now += 1
        pauses = 0

        async def pause(it: CompactedLog = it, at: int = at) -> None:
            nonlocal pauses
            pauses += 1
            if pauses == at:
                change(it)
                it.high_watermark = 20

        it.manager.upkeep.pause = pause
        chosen = run(it.cleaner._choose())
        if pauses < at:
            break
        if change in (delete, switch_off):
            assert chosen is None
        elif chosen is not None:
            assert chosen[1].first_uncleanable <= 20
    assert at > 3


def test_max_compaction_lag_rolls_the_active_segment() -> None:
    it = CompactedLog()
    it.configure(max_compaction_lag_ms=10_000)
    it.append((b"k", b"1"))
    it.time.now += 10.001
    it.append((b"k", b"2"))
    assert [segment.base_offset for segment in it.log.segments] == [0, 1]


def test_small_segments_become_one_again() -> None:
    it = filled(200, keys=5)
    assert len(it.log.segments) > 20
    it.clean()
    assert max(segment.size for segment in it.log.segments) <= COMPACTED.segment_bytes
    it.append((b"new", b""))
    it.roll()
    it.clean()
    assert len(it.log.segments) <= 4
    names = {name.partition(".")[0] for name in it.disk.list(DIRECTORY) if name[0].isdigit()}
    assert names == {f"{segment.base_offset:020d}" for segment in it.log.segments}


def test_no_segment_gets_records_that_are_too_far_from_its_start() -> None:
    """The memory is full within a segment: its later records count, too, when it is decided which segments become one."""
    it = CompactedLog(settings=CleanerSettings(dedupe_bytes=500))  # two keys
    it.append((b"a", b"1"))
    it.append((b"a", b"2"))
    it.roll()
    for offset, key in ((2**31 - 9, b"b"), (2**31, b"c")):
        it.log.append_as_follower(memoryview(keyed((key, b""), base_offset=offset, leader_epoch=0)))
    it.roll()
    it.clean()
    assert [(offset, key) for offset, key, _ in brief(it)] == [(1, b"a"), (2**31 - 9, b"b"), (2**31, b"c")]
    for offset in (1, 2**31 - 9, 2**31):
        assert it.log.read(offset, 100, 2**31 + 1, True).size
    check(it.log, is_gapless=False)


def test_a_broken_log_is_left_alone_and_reported_once() -> None:
    it = filled(20)
    it.disk.corrupt(it.log.segments[0].path, 100, 1)
    before = everything_with_holes(it.log)
    assert (it.clean(), it.clean()) == (0, 0)
    assert [(kind, fields["topic_partition"]) for kind, fields in it.events] == [("log_uncleanable", "orders-0")]
    assert everything_with_holes(it.log) == before
    assert not [name for name in it.disk.list(DIRECTORY) if name.endswith(".cleaned")]


def cleaned_while(it: CompactedLog, change: Change, slice_number: int) -> list[Record] | None:
    """The records right after the change. None when the cleaning has fewer slices, and so nothing was changed."""
    look_again = it.manager.get
    left = slice_number
    found: list[Record] | None = None

    def get(tp: TopicPartition) -> Log | None:
        nonlocal left, found
        left -= 1
        if left == 0:
            change(it)
            found = [] if change is delete else records_of(it.log)
        return look_again(tp)

    it.manager.get = get  # type: ignore[method-assign]
    it.clean()
    it.manager.get = look_again  # type: ignore[method-assign]
    return found


@pytest.mark.parametrize("change", [cut, delete, switch_off, retain])
def test_a_log_that_changes_during_its_cleaning_is_not_overwritten(change: Change) -> None:
    slices = 1
    while (found := cleaned_while(it := filled(keys=2), change, slices)) is not None:
        slices += 1
        if change is delete:
            assert not it.disk.exists(DIRECTORY)
            continue
        if change is cut:
            assert table_of(records_of(it.log)) == {b"k0": b"again", b"k1": b"again"}
            it.roll()
            it.clean()
            assert [record.value for record in records_of(it.log)] == [b"again", b"again"]
        elif change is switch_off:
            assert records_of(it.log) == found
        else:
            assert set(records_of(it.log)) <= set(found)
        check(it.log, is_gapless=False)
    assert slices > 5


def test_a_cleaning_that_gave_up_has_removed_its_files_before_the_next_makes_its_own() -> None:
    """Both attempts give them the same names. Here all removals take until the second attempt renames its first file."""
    it = filled(keys=2)
    failed = failures_of(it.manager)
    may_remove = threading.Event()

    def all_is_removed() -> None:
        may_remove.set()
        REMOVALS.submit(int).result(30)

    async def scenario() -> None:
        REMOVALS.submit(may_remove.wait, 30)
        once_before(it.disk, "open_to_keep", lambda: it.configure(cleanup_policy="delete"))
        assert not await it.cleaner.clean_next()
        it.configure(cleanup_policy="compact")
        once_before(it.disk, "rename", all_is_removed)
        assert await it.cleaner.clean_next()

    asyncio.run(scenario())
    assert failed == []
    assert table_of(records_of(it.log)) == {b"k0": b"38", b"k1": b"39"}
    assert not [name for name in it.disk.list(DIRECTORY) if name.endswith((".cleaned", ".swap"))]


def make_again(it: CompactedLog) -> None:
    delete(it)
    it.manager.get_or_create(it.log.topic_partition, "BBBBBBBBBBBBBBBBBBBBBA", {})


@pytest.mark.parametrize("change", [cut, delete, make_again])
def test_a_log_that_changes_while_the_thread_works_has_not_failed(change: Change) -> None:
    """Whatever its cleaning meets then: it is not the disk that failed, nor is the log uncleanable."""
    for call in itertools.count(1):
        it = filled(12, keys=2, disk=(disk := BusyDisk()))
        failed = failures_of(it.manager)
        disk.will_change(partial(change, it), call, below=DIRECTORY)
        run(it.cleaner.clean_next())
        assert (failed, it.events) == ([], [])
        if change is not delete:
            assert not [name for name in disk.list(DIRECTORY) if name.endswith(".cleaned")]
        if not disk.has_changed:
            break
    assert call > 20


@pytest.mark.parametrize("waits", [False, True])
def test_the_checkpoint_is_lowered_before_the_next_append(waits: bool) -> None:
    it = filled()
    path = f"{LOG_DIR}/cleaner-offset-checkpoint"

    async def scenario() -> None:
        it.log.truncate_to(38)
        if waits:
            await it.log.appendable()
        else:
            it.append((b"k", b"v"))

    it.clean()
    assert it.disk.content(path) == b"0\n1\norders 0 40\n"
    run(scenario())
    assert it.disk.content(path) == b"0\n1\norders 0 38\n"
    delete(it)
    it.manager.get_or_create(it.log.topic_partition, None, {})
    assert it.disk.content(path) == b"0\n0\n"


def test_the_cleaner_runs_until_it_is_cancelled() -> None:
    it = filled(2, keys=1, settings=CleanerSettings(backoff_s=0.001))

    async def scenario() -> None:
        cleaned = asyncio.Event()
        write = it.manager.cleaned.write

        async def written(log_dir: str) -> None:
            await write(log_dir)
            cleaned.set()

        it.manager.cleaned.write = written  # type: ignore[method-assign]
        task = asyncio.ensure_future(it.cleaner.run())
        async with asyncio.timeout(30):
            await cleaned.wait()
        assert it.log.cleaned_up_to == 2
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(scenario())
