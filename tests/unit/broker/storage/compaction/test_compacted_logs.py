"""Compacted logs over time: holes, followers, random histories, and power lost at every call of a cleaning (LOG-4, INV-21)."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.storage.compaction.log_cleaner import CleanerSettings
from protocol.kafka.record_batch import Record, iter_batches
from tests.support.compaction import (
    CompactedLog,
    everything_with_holes,
    headers_of,
    records_of,
    table_of,
)
from tests.support.fake_time import FakeTime
from tests.support.logs import DIRECTORY, check
from tests.support.memory_disk import MemoryDisk, PowerLost, run
from tests.support.thorough import exhaustive


async def new(**options: Any) -> CompactedLog:
    return await CompactedLog(MemoryDisk(), **options).start()


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
            await it.manager.checkpoints.write_recovery_points()
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


@exhaustive
def test_power_lost_at_every_call_of_a_cleaning(one_in: int) -> None:
    """INV-21, FLT-24: what was unsynced is dropped, kept or torn; the last value of each key is there, and no older one."""
    tried = 0
    calls = 0
    while True:
        calls += one_in
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
    assert tried > 300 // one_in


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
        await it.manager.checkpoints.write_recovery_points()
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
