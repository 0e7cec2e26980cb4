"""Compacted logs over time: holes, followers, random histories, and power lost at every call of a cleaning (LOG-4, INV-21)."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.storage.compaction.log_cleaner import CleanerSettings
from protocol.kafka.record_batch import Record, iter_batches
from tests.support.busy_disk import run
from tests.support.compaction import CompactedLog, everything_with_holes, headers_of, records_of, table_of
from tests.support.logs import DIRECTORY, check
from tests.support.thorough import exhaustive
from tools.sim.world.disk import MemoryDisk, PowerLost


def test_fetches_skip_holes() -> None:
    it = CompactedLog()
    for number in range(60):
        it.append((b"k%d" % (number % 3), b"%d" % number))
    it.roll()
    it.append((b"z", b""))
    it.clean()
    offsets = [header.base_offset for header in headers_of(it.log)]
    assert offsets == [57, 58, 59, 60]
    for wanted in range(61):
        data = b"".join(bytes(part) for part in it.log.read(wanted, 2**20, 61, True).records)
        assert next(iter_batches(data))[1].base_offset == next(base for base in offsets if base >= wanted)
    assert it.log.offset_for_timestamp(records_of(it.log)[1].timestamp, 61) is not None


def copied(leader: CompactedLog) -> CompactedLog:
    """A follower with the same bytes."""
    follower = CompactedLog()
    data = everything_with_holes(leader.log)
    follower.log.append_as_follower(memoryview(data))
    assert everything_with_holes(follower.log) == data
    assert follower.log.log_end_offset == leader.log.log_end_offset
    check(follower.log, is_gapless=False)
    return follower


@pytest.mark.parametrize("cut_at", range(0, 62))
def test_a_follower_copies_holes_and_truncates_in_them(cut_at: int) -> None:
    """The log then ends at the requested offset, because the offsets in the hole were assigned once."""
    leader = CompactedLog()
    for number in range(60):
        leader.append((b"k%d" % (number % 7), b"%d" % number), epoch=number // 20)
    leader.roll()
    leader.append((b"z", b""), (b"y", b""), epoch=3)
    leader.clean()
    headers = headers_of(leader.log)
    for it in (leader, copied(leader)):
        it.log.truncate_to(cut_at)
        inside = [h.base_offset for h in headers if h.base_offset < cut_at <= h.last_offset]
        assert it.log.log_end_offset == (inside[0] if inside else cut_at)
        assert it.log.cleaned_up_to <= it.log.log_end_offset
        kept = [h.base_offset for h in headers if h.last_offset < cut_at and h.record_count]
        assert [r.offset for r in records_of(it.log)] == kept
        run(it.log.flush())
        run(it.manager.checkpoints.write_recovery_points())
        again = it.reopened()
        assert again.log.log_end_offset == it.log.log_end_offset
        assert again.log.leader_epochs.entries == it.log.leader_epochs.entries
        assert again.log.cleaned_up_to == it.log.cleaned_up_to
        again.append((b"on", b""), epoch=4)
        again.append((b"on", b""), epoch=4)
        check(again.log, is_gapless=False)


keys = st.sampled_from([b"a", b"b", b"c", b"d", b"a key of more than sixteen bytes", b""])
written = st.tuples(keys, st.none() | st.binary(max_size=12))
batches = st.tuples(st.lists(written, min_size=1, max_size=4), st.integers(0, 4), st.integers(-1, 2))
steps = st.one_of(
    batches,
    st.sampled_from(["clean", "roll", "restart", "kill"]),
    st.tuples(st.just("wait"), st.integers(0, 2000)),
    st.tuples(st.just("mark"), st.integers(0, 100)),
)


@settings(max_examples=75)
@given(st.lists(steps, max_size=40), st.sampled_from([200 * 3, 1024**2]))
def test_the_last_value_of_each_key_survives(plan: list[Any], dedupe_bytes: int) -> None:
    """INV-21 and LOG-4: random writes, rolls, cleanings, restarts, and a clock that moves."""
    cleaner = CleanerSettings(dedupe_bytes=dedupe_bytes)
    it = CompactedLog(settings=cleaner)
    history: list[Record] = []
    sequences: dict[int, int] = {}
    for step in plan:
        match step:
            case "roll":
                it.roll()
            case "clean":
                it.clean()
            case "restart" | "kill":
                if step == "restart":
                    run(it.manager.shutdown())
                mark = it.high_watermark
                it = CompactedLog(it.disk.after_kill(), it.time, cleaner)
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
                history += [Record(offset + n, timestamp + n, *record, ()) for n, record in enumerate(records)]
        look(it, history)
    it.high_watermark = None
    it.roll()
    it.append((b"end", b""))
    history.append(records_of(it.log)[-1])
    it.clean()
    look(it, history)
    assert_each_key_once(it)
    it.log.cleaned_up_to = (
        0  # a log with nothing dirty is not cleaned, though the time of its tombstones may have passed
    )
    it.clean()
    look(it, history)
    before = everything_with_holes(it.log)
    it.log.cleaned_up_to = 0
    it.clean()
    assert everything_with_holes(it.log) == before, "a second cleaning at the same time changes nothing"
    for producer, following in sequences.items():
        assert it.log.producers.state.producers[producer].last_sequence == following - 1


def look(it: CompactedLog, history: list[Record]) -> None:
    check(it.log, is_gapless=False)
    found = records_of(it.log)
    assert table_of(found) == table_of(history)
    assert set(found) <= set(history)
    mark = it.log.log_end_offset if it.high_watermark is None else it.high_watermark
    untouched = min(mark, it.log.segments[-1].base_offset)
    assert {record for record in history if record.offset >= untouched} <= set(found)


def assert_each_key_once(it: CompactedLog) -> None:
    cleaned = [record.key for record in records_of(it.log) if record.offset < it.log.cleaned_up_to]
    assert len(set(cleaned)) == len(cleaned)


@exhaustive
def test_power_lost_at_every_call_of_a_cleaning(one_in: int) -> None:
    """INV-21, FLT-24: unsynced data is dropped, kept or torn. The last value of each key survives, and no older one."""
    tried = calls = 0
    is_over = False
    while not is_over:
        calls += one_in
        for seed in range(4):
            random = Random(calls * 1000 + seed)
            disk, expected, is_over = _cleaning_that_stops(random, calls)
            if is_over:
                break
            tried += 1
            _look_after_the_crash(disk.after_kill() if seed == 0 else disk.after_power_loss(random), expected)
    assert tried > 300 // one_in


def _cleaning_that_stops(random: Random, calls: int) -> tuple[MemoryDisk, dict[bytes, bytes], bool]:
    """The disk at the power loss, the records of its log, and whether the cleaning had ended before."""
    it = CompactedLog()
    for number in range(60):
        it.append((b"k%d" % random.randrange(6), None if random.random() < 0.2 else b"%d" % number))
        if number == 40:
            it.roll()
            it.clean()
            it.time.now += 2
    it.roll()
    run(it.log.flush())
    run(it.manager.checkpoints.write_recovery_points())
    expected = table_of(records_of(it.log))
    it.disk.calls_left = calls
    try:
        it.clean()
    except PowerLost:
        return it.disk, expected, False
    return it.disk, expected, True


def _look_after_the_crash(disk: MemoryDisk, expected: dict[bytes, bytes]) -> None:
    it = CompactedLog(disk)
    assert it.log.log_end_offset == 60
    assert table_of(records_of(it.log)) == expected
    check(it.log, is_gapless=False)
    assert not [name for name in disk.list(DIRECTORY) if name.endswith((".swap", ".cleaned", ".deleted"))]
    it.clean()
    assert table_of(records_of(it.log)) == expected
    assert_each_key_once(it)
