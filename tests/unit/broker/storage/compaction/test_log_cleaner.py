"""Compaction of logs: what stays, where it ends, and what it survives (LOG-4)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.storage.compaction.log_cleaner import CleanerSettings
from protocol.errors import KafkaError
from protocol.kafka.record_batch import DELETE_HORIZON_BIT
from tests.support.compaction import (
    COMPACTED,
    CompactedLog,
    everything_with_holes,
    headers_of,
    records_of,
    table_of,
)
from tests.support.logs import DIRECTORY, LOG_DIR, check, failures_of
from tests.support.memory_disk import MemoryDisk, run


async def new(**options: Any) -> CompactedLog:
    return await CompactedLog(MemoryDisk(), **options).start()


def brief(log: CompactedLog) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in records_of(log.log)]


def test_the_last_record_of_each_key_stays_at_its_offset() -> None:
    async def scenario() -> None:
        it = await new()
        for number in range(20):
            it.append((b"k%d" % (number % 3), b"v%d" % number), (b"x", b"%d" % number))
        it.roll()
        it.append((b"k0", b"active"))
        assert await it.clean() == 1
        assert brief(it) == [
            (34, b"k2", b"v17"),
            (36, b"k0", b"v18"),
            (38, b"k1", b"v19"),
            (39, b"x", b"19"),
            (40, b"k0", b"active"),
        ]
        assert it.log.cleaned_up_to == 40
        assert await it.clean() == 0

    run(scenario())


def test_nothing_at_or_above_the_high_watermark_is_touched() -> None:
    async def scenario() -> None:
        it = await new()
        for number in range(30):
            it.append((b"k", b"%d" % number))
        it.roll()
        it.high_watermark = 17
        before = {record.offset: record for record in records_of(it.log)}
        await it.clean()
        base_of_the_hw = max(s.base_offset for s in it.log.segments if s.base_offset <= 17)
        found = records_of(it.log)
        assert [r for r in found if r.offset >= base_of_the_hw] == [
            before[offset] for offset in range(base_of_the_hw, 30)
        ]
        assert [r.offset for r in found if r.offset < base_of_the_hw] == [base_of_the_hw - 1]

    run(scenario())


def test_a_tombstone_goes_delete_retention_after_it_was_first_cleaned() -> None:
    """KIP-534: the time runs from the first cleaning, which writes its end into the batch."""

    async def scenario() -> None:
        it = await new()
        it.append((b"a", b"1"), (b"b", b"1"))
        it.append((b"a", None), (b"c", b"1"))
        it.roll()
        assert await it.clean() == 1
        assert brief(it) == [(1, b"b", b"1"), (2, b"a", None), (3, b"c", b"1")]
        marked = headers_of(it.log)[-1]
        assert marked.attributes & DELETE_HORIZON_BIT
        assert marked.delete_horizon_ms == it.time.wall_ms() + COMPACTED.delete_retention_ms
        timestamps = [record.timestamp for record in records_of(it.log)]
        assert timestamps == [1_000_001, 1_000_000, 1_000_001]

        it.time.now += 0.999
        it.append((b"d", b"1"))
        it.roll()
        assert await it.clean() == 1
        assert (2, b"a", None) in brief(it), "one millisecond is left"
        it.time.now += 0.001
        it.append((b"d", b"2"))
        it.roll()
        assert await it.clean() == 1
        assert brief(it) == [(1, b"b", b"1"), (3, b"c", b"1"), (5, b"d", b"2")]

    run(scenario())


def test_the_last_batch_of_a_producer_keeps_its_header() -> None:
    """LOG-5: its sequence must not be forgotten, or the next batch would be out of order."""

    async def scenario() -> None:
        it = await new()
        for sequence in range(3):
            it.append((b"k", b"%d" % sequence), producer_id=7, producer_epoch=2, base_sequence=sequence)
        it.append((b"k", b"other"))
        it.roll()
        await it.clean()
        emptied, last = headers_of(it.log)
        assert (emptied.base_offset, emptied.record_count, emptied.last_offset_delta) == (2, 0, 0)
        assert (emptied.producer_id, emptied.producer_epoch, emptied.base_sequence) == (7, 2, 2)
        assert emptied.base_timestamp == -1
        assert last.base_offset == 3
        again = await CompactedLog(it.disk.after_kill(), it.time).start()
        assert again.log.producers.state.producers[7].last_sequence == 2
        check(again.log, is_gapless=False)

    run(scenario())


@pytest.mark.parametrize("lag_ms", [0, 5_000])
def test_min_compaction_lag(lag_ms: int) -> None:
    async def scenario() -> None:
        it = await new()
        it.configure(min_compaction_lag_ms=lag_ms)
        it.append((b"k", b"1"))
        it.append((b"k", b"2"))
        it.roll()
        it.time.now += 4
        assert await it.clean() == (0 if lag_ms else 1)
        it.time.now += 1.001
        assert await it.clean() == (1 if lag_ms else 0)

    run(scenario())


def test_max_compaction_lag_overrules_the_dirty_ratio() -> None:
    async def scenario() -> None:
        it = await new()
        it.configure(min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=10_000)
        it.append((b"k", b"1"))
        it.roll()
        it.time.now += 9
        assert await it.clean() == 0
        it.time.now += 1.001
        assert await it.clean() == 1

    run(scenario())


def test_max_compaction_lag_rolls_the_active_segment() -> None:
    async def scenario() -> None:
        it = await new()
        it.configure(max_compaction_lag_ms=10_000)
        it.append((b"k", b"1"))
        it.time.now += 10.001
        it.append((b"k", b"2"))
        assert [segment.base_offset for segment in it.log.segments] == [0, 1]

    run(scenario())


def test_more_keys_than_the_memory_takes_several_passes() -> None:
    async def scenario() -> None:
        it = await new(settings=CleanerSettings(dedupe_bytes=1200))  # five keys
        for turn in range(3):
            for key in range(20):
                it.append((b"k%d" % key, b"%d" % turn), (b"all", b"%d" % key))
        it.roll()
        expected = table_of(records_of(it.log))
        assert await it.clean() > 3
        found = records_of(it.log)
        assert len(found) == len({record.key for record in found}) == 21
        assert table_of(found) == expected

    run(scenario())


def test_small_segments_become_one_again() -> None:
    async def scenario() -> None:
        it = await new()
        for number in range(200):
            it.append((b"k%d" % (number % 5), b"%d" % number))
        it.roll()
        before = len(it.log.segments)
        await it.clean()
        assert before > 20
        sizes = [segment.size for segment in it.log.segments]
        assert max(sizes) <= COMPACTED.segment_bytes
        it.append((b"new", b""))
        it.roll()
        await it.clean()
        assert len(it.log.segments) <= 4
        names = {name.partition(".")[0] for name in it.disk.list(DIRECTORY) if name[0].isdigit()}
        assert names == {f"{segment.base_offset:020d}" for segment in it.log.segments}

    run(scenario())


def test_a_broken_log_is_left_alone_and_told() -> None:
    async def scenario() -> None:
        it = await new()
        for number in range(20):
            it.append((b"k", b"%d" % number))
        it.roll()
        it.disk.corrupt(it.log.segments[0].path, 100, 1)
        before = everything_with_holes(it.log)
        assert await it.clean() == 0
        assert await it.clean() == 0
        assert [(kind, fields["topic_partition"]) for kind, fields in it.events] == [("log_uncleanable", "orders-0")]
        assert everything_with_holes(it.log) == before
        assert not [name for name in it.disk.list(DIRECTORY) if name.endswith(".cleaned")]

    run(scenario())


@pytest.mark.parametrize("change", ["cut", "delete", "policy", "retention"])
def test_what_changed_meanwhile_is_not_overwritten(change: str) -> None:
    """At any slice of the cleaning."""
    for slice_number in range(1, 200):

        async def scenario(number: int) -> bool:
            it = await new()
            for record in range(40):
                it.append((b"k%d" % (record % 2), b"%d" % record))
            it.roll()
            before = {record.offset: record for record in records_of(it.log)}
            count = 0
            look_again = it.manager.get

            def get(tp: Any) -> Any:
                nonlocal count
                count += 1
                if count == number:
                    if change == "cut":
                        it.log.truncate_to(21)
                        for again in range(60):
                            it.append((b"k%d" % (again % 2), b"again"))
                    elif change == "delete":
                        it.manager.delete(tp)
                    elif change == "policy":
                        it.configure(cleanup_policy="delete")
                    else:
                        it.configure(cleanup_policy="compact,delete", retention_bytes=1000)
                        it.log.delete_old_segments(it.log.log_end_offset, it.time.wall_ms())
                return look_again(tp)

            it.manager.get = get  # type: ignore[method-assign]
            await it.clean()
            if count < number:
                return False
            if change == "delete":
                assert not it.disk.exists(DIRECTORY)
                return True
            found = records_of(it.log)
            if change == "cut":
                it.manager.get = look_again  # type: ignore[method-assign]
                assert it.log.cleaned_up_to in (0, 21) or it.log.cleaned_up_to > 21
                assert table_of(found) == {b"k0": b"again", b"k1": b"again"}
                it.roll()
                await it.clean()
                assert [record.value for record in records_of(it.log)] == [b"again", b"again"]
            else:
                assert {(r.offset, r) for r in found} <= set(before.items())
            check(it.log, is_gapless=False)
            return True

        if not run(scenario(slice_number)):
            break
    else:
        pytest.fail("there are more slices")


@pytest.mark.parametrize("waits", [False, True])
def test_the_checkpoint_is_lowered_before_the_next_append(waits: bool) -> None:
    async def scenario() -> None:
        it = await new()
        for number in range(40):
            it.append((b"k%d" % (number % 3), b"%d" % number))
        it.roll()
        await it.clean()
        path = f"{LOG_DIR}/cleaner-offset-checkpoint"
        assert it.disk.content(path) == b"0\n1\norders 0 40\n"
        it.log.truncate_to(38)
        if waits:
            await it.log.appendable()
        else:
            it.append((b"k", b"v"))
        assert it.disk.content(path) == b"0\n1\norders 0 38\n"
        it.manager.delete(it.log.topic_partition)
        it.manager.get_or_create(it.log.topic_partition, None, {})
        assert it.disk.content(path) == b"0\n0\n"

    run(scenario())


def test_a_disk_that_fails_takes_its_directory_offline() -> None:
    async def scenario() -> None:
        it = await new()
        failed = failures_of(it.manager)
        for number in range(40):
            it.append((b"k%d" % (number % 3), b"%d" % number))
        it.roll()
        await it.log.flush()
        it.disk.fail("sync")
        assert await it.clean() == 0
        assert failed == [LOG_DIR]

    run(scenario())


def test_a_record_without_a_key_is_refused() -> None:
    async def scenario() -> None:
        it = await new()
        with pytest.raises(KafkaError, match="key"):
            it.append((None, b"x"))  # type: ignore[arg-type]

    run(scenario())


def test_it_runs_until_it_is_cancelled() -> None:
    async def scenario() -> None:
        it = await new(settings=CleanerSettings(backoff_s=0.001))
        it.append((b"k", b"1"))
        it.append((b"k", b"2"))
        it.roll()
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
