"""Compaction of logs: what stays, where it ends, and what it survives (LOG-4)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.storage.log_cleaner import CleanerSettings
from protocol.errors import KafkaError
from protocol.kafka.record_batch import DELETE_HORIZON_BIT, Record, iter_batches
from tests.support.compaction import (
    COMPACTED,
    CompactedLog,
    everything_with_holes,
    headers_of,
    keyed,
    records_of,
    table_of,
)
from tests.support.fake_time import FakeTime
from tests.support.logs import DIRECTORY, LOG_DIR, check
from tests.support.memory_disk import MemoryDisk, PowerLost, run


def made(work: Coroutine[Any, Any, CompactedLog]) -> CompactedLog:
    return run(work)


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
                        it.manager.delete_old_segments()
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


def test_fetching_goes_over_holes() -> None:
    async def scenario() -> None:
        it = await new()
        for number in range(60):
            it.append((b"k%d" % (number % 3), b"%d" % number))
        it.roll()
        it.append((b"z", b""))
        await it.clean()
        offsets = [header.base_offset for header in headers_of(it.log)]
        assert offsets == [57, 58, 59, 60]
        for wanted in range(61):
            data = b"".join(bytes(part) for part in it.log.read(wanted, 2**20, 61, True).records)
            assert next(iter_batches(data))[1].base_offset == next(base for base in offsets if base >= wanted)
        timestamp = records_of(it.log)[1].timestamp
        assert it.log.offset_for_timestamp(timestamp, 61) is not None

    run(scenario())


@pytest.mark.parametrize("cut_at", range(0, 62))
def test_a_follower_copies_holes_and_truncates_in_them(cut_at: int) -> None:
    """The end is then where it was asked for: the offsets in the hole were given out once."""

    async def scenario() -> None:
        leader = await new()
        for number in range(60):
            leader.append((b"k%d" % (number % 7), b"%d" % number), epoch=number // 20)
        leader.roll()
        leader.append((b"z", b""), (b"y", b""), epoch=3)
        await leader.clean()
        follower = await new()
        data = everything_with_holes(leader.log)
        follower.log.append_as_follower(memoryview(data))
        assert everything_with_holes(follower.log) == data
        assert follower.log.log_end_offset == leader.log.log_end_offset == 62
        check(follower.log, is_gapless=False)
        for it in (leader, follower):
            it.log.truncate_to(cut_at)
            inside = [h.base_offset for _, h in iter_batches(data) if h.base_offset < cut_at <= h.last_offset]
            assert it.log.log_end_offset == (inside[0] if inside else cut_at)
            assert it.log.cleaned_up_to <= it.log.log_end_offset
            assert [r.offset for r in records_of(it.log)] == [
                h.base_offset for _, h in iter_batches(data) if h.last_offset < cut_at and h.record_count
            ]
            await it.log.flush()
            await it.manager.checkpoint_recovery_points()
            again = await CompactedLog(it.disk.after_kill(), it.time).start()
            assert again.log.log_end_offset == it.log.log_end_offset
            assert again.log.leader_epochs.entries == it.log.leader_epochs.entries
            assert again.log.cleaned_up_to == it.log.cleaned_up_to
            again.append((b"on", b""), epoch=4)
            again.append((b"on", b""), epoch=4)
            check(again.log, is_gapless=False)

    run(scenario())


def test_a_follower_that_is_killed_keeps_what_has_holes() -> None:
    """Nothing was synced: recovery believes the batches, whose holes are another's compaction; but not a hole before the last."""

    async def scenario() -> None:
        leader = await new()
        for number in range(60):
            leader.append((b"k%d" % (number * number % 17), b"%d" % number))
        leader.roll()
        leader.append((b"y", b""))
        leader.append((b"z", b""))
        await leader.clean()
        data = everything_with_holes(leader.log)
        follower = await new()
        follower.log.append_as_follower(memoryview(data))
        again = await CompactedLog(follower.disk.after_kill(), follower.time).start()
        assert everything_with_holes(again.log) == data

    run(scenario())


def test_the_checkpoint_is_lowered_at_once() -> None:
    async def scenario() -> None:
        it = await new()
        for number in range(40):
            it.append((b"k%d" % (number % 3), b"%d" % number))
        it.roll()
        await it.clean()
        path = f"{LOG_DIR}/cleaner-offset-checkpoint"
        assert it.disk.content(path) == b"0\n1\norders 0 40\n"
        it.log.truncate_to(38)
        assert it.disk.content(path) == b"0\n1\norders 0 38\n"
        it.manager.delete(it.log.topic_partition)
        assert it.disk.content(path) == b"0\n0\n"

    run(scenario())


def test_a_disk_that_fails_takes_its_directory_offline() -> None:
    async def scenario() -> None:
        it = await new()
        failed: list[str] = []
        it.manager.on_log_dir_failure = failed.append
        for number in range(40):
            it.append((b"k%d" % (number % 3), b"%d" % number))
        it.roll()
        await it.log.flush()
        it.disk.fail("sync")
        assert await it.clean() == 0
        assert failed == [LOG_DIR]

    run(scenario())


def test_an_aborted_transaction_replaces_nothing_and_goes_with_its_marker() -> None:
    abort = b"\x00\x00\x00\x00"
    commit = b"\x00\x00\x00\x01"

    async def scenario() -> None:
        it = await new()
        log = it.log

        def write(*records: tuple[bytes, bytes | None], producer: int, control: bool = False) -> None:
            data = keyed(
                *records,
                timestamp=it.time.wall_ms(),
                base_offset=log.log_end_offset,
                leader_epoch=0,
                producer_id=producer,
                producer_epoch=0,
                base_sequence=-1 if control else log.log_end_offset,
                attributes=0x30 if control else 0x10,
            )
            log.append_as_follower(memoryview(data))

        write((b"a", b"good"), producer=1)
        write((commit, b"\x00\x00\x00\x00\x00\x00"), producer=1, control=True)
        write((b"a", b"bad"), (b"b", b"bad"), producer=2)
        write((b"c", b"good"), producer=1)
        write((abort, b"\x00\x00\x00\x00\x00\x00"), producer=2, control=True)
        write((commit, b"\x00\x00\x00\x00\x00\x00"), producer=1, control=True)
        write((b"open", b"1"), producer=3)
        it.roll()
        assert await it.clean() == 0, "the first open transaction begins in the first segment"
        write((commit, b"\x00\x00\x00\x00\x00\x00"), producer=3, control=True)
        it.roll()
        assert await it.clean() == 1
        data = [(h.base_offset, h.record_count) for h in headers_of(log) if not h.is_control]
        assert data == [(0, 1), (2, 0), (4, 1), (7, 1)], "the aborted producer's last batch keeps its header"
        assert [h.base_offset for h in headers_of(log) if h.is_control] == [1, 5, 6, 8]

    run(scenario())


keys = st.sampled_from([b"a", b"b", b"c", b"d", b"a key of more than sixteen bytes", b""])
written = st.tuples(keys, st.none() | st.binary(max_size=12))
batches = st.tuples(st.lists(written, min_size=1, max_size=4), st.integers(0, 4), st.integers(-1, 2))
steps = st.one_of(
    batches,
    st.sampled_from(["clean", "roll", "restart", "kill"]),
    st.tuples(st.just("wait"), st.integers(0, 2000)),
    st.tuples(st.just("mark"), st.integers(0, 100)),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(steps, max_size=40), st.sampled_from([200 * 3, 1024**2]))
def test_the_last_value_of_each_key_survives(plan: list[Any], dedupe_bytes: int) -> None:
    """INV-21 and LOG-4: random writes, rolls, cleanings, restarts, and a clock that moves."""

    async def scenario() -> None:
        options = {"time": FakeTime(), "settings": CleanerSettings(dedupe_bytes=dedupe_bytes)}
        it = await new(**options)
        history: list[Record] = []
        sequences: dict[int, int] = {}
        for step in plan:
            match step:
                case "roll":
                    it.roll()
                case "clean":
                    await it.clean()
                case "restart" | "kill":
                    if step == "restart":
                        await it.manager.shutdown()
                    mark = it.high_watermark
                    it = await CompactedLog(it.disk.after_kill(), **options).start()
                    it.high_watermark = mark
                case ("wait", ms):
                    it.time.now += ms / 1000
                case ("mark", percent):
                    least = max(it.high_watermark or 0, it.log.cleaned_up_to)
                    it.high_watermark = max(least, it.log.log_end_offset * percent // 100)
                case (records, compression, producer):
                    idempotent = {}
                    if producer >= 0:
                        first = sequences.get(producer, 0)
                        sequences[producer] = first + len(records)
                        idempotent = {"producer_id": producer, "producer_epoch": 0, "base_sequence": first}
                    timestamp = it.time.wall_ms()
                    offset = it.append(*records, timestamp=timestamp, compression=compression, **idempotent)
                    history += [
                        Record(offset + n, timestamp + n, key, value, ()) for n, (key, value) in enumerate(records)
                    ]
            look(it, history)
        it.high_watermark = None
        it.roll()
        it.append((b"end", b""))
        history.append(records_of(it.log)[-1])
        await it.clean()
        look(it, history)
        found = records_of(it.log)
        dirty = [record for record in found if record.offset < it.log.cleaned_up_to]
        assert len({record.key for record in dirty}) == len(dirty), "each key once"
        before = everything_with_holes(it.log)
        it.log.cleaned_up_to = 0
        it.configure(min_cleanable_dirty_ratio=0.0)
        await it.clean()
        assert everything_with_holes(it.log) == before, "a second cleaning at the same time changes nothing"
        for producer, following in sequences.items():
            assert it.log.producers.state.producers[producer].last_sequence == following - 1

    run(scenario())


def look(it: CompactedLog, history: list[Record]) -> None:
    check(it.log, is_gapless=False)
    found = records_of(it.log)
    assert table_of(found) == table_of(history)
    written = {record.offset: record for record in history}
    assert all(written[record.offset] == record for record in found)
    offsets = {record.offset for record in found}
    mark = it.log.log_end_offset if it.high_watermark is None else it.high_watermark
    untouched = min(mark, it.log.segments[-1].base_offset)
    assert all(record.offset in offsets for record in history if record.offset >= untouched)


def test_power_lost_at_every_call_of_a_cleaning() -> None:
    """INV-21, FLT-24: what was unsynced is dropped, kept or torn; the last value of each key is there, and no older one."""
    tried = 0
    calls = 0
    while True:
        calls += 1
        for seed in range(4):
            random = Random(calls * 1000 + seed)
            disk, is_over = _cleaning_that_stops(random, calls)
            if is_over:
                break
            tried += 1
            expected = _expected(random=Random(calls * 1000 + seed))
            survivor = disk.after_kill() if seed == 0 else disk.after_power_loss(random)
            _look_after_the_crash(survivor, expected)
        else:
            continue
        break
    print(f"{tried} crash points of a cleaning tried")
    assert tried > 300


def _writes(random: Random) -> list[tuple[bytes, bytes | None]]:
    return [(b"k%d" % random.randrange(6), None if random.random() < 0.2 else b"%d" % number) for number in range(60)]


def _expected(random: Random) -> dict[bytes, bytes]:
    return table_of([Record(n, 0, key, value, ()) for n, (key, value) in enumerate(_writes(random))])


def _cleaning_that_stops(random: Random, calls: int) -> tuple[MemoryDisk, bool]:
    """The disk at the moment when the power goes; True when the cleaning was over before."""
    disk = MemoryDisk()

    async def scenario() -> bool:
        it = await CompactedLog(disk).start()
        writes = _writes(random)
        for number, one in enumerate(writes):
            it.append(one)
            if number == 40:
                it.roll()
                await it.clean()
                it.time.now += 2
        it.roll()
        await it.log.flush()
        await it.manager.checkpoint_recovery_points()
        disk.calls_left = calls
        try:
            await it.clean()
        except PowerLost:
            return False
        return True

    return disk, run(scenario())


def _look_after_the_crash(disk: MemoryDisk, expected: dict[bytes, bytes]) -> None:
    async def scenario() -> None:
        it = await CompactedLog(disk).start()
        assert it.log.log_end_offset == 60
        assert table_of(records_of(it.log)) == expected
        check(it.log, is_gapless=False)
        left = [name for name in disk.list(DIRECTORY) if name.endswith((".swap", ".cleaned", ".deleted"))]
        assert left == []
        await it.clean()
        assert table_of(records_of(it.log)) == expected
        found = [record.key for record in records_of(it.log) if record.offset < it.log.cleaned_up_to]
        assert len(found) == len(set(found))

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
