"""How far a log may be claimed, and the flushes that this waits for (`flush.messages`, FLT-24)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from broker.storage.disk.disk_threads import SYNCS_MAX
from broker.storage.log import Log
from broker.storage.log_manager import LogManager
from protocol.types import TopicPartition
from tests.support.busy_disk import run
from tests.support.fake_time import FakeTime
from tests.support.held_syncs import HeldSyncs, held_syncs, turns
from tests.support.logs import LOG_DIR, SMALL, TP, Failures, everything, fill, open_at
from tools.sim.world.disk import MemoryDisk

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAWA"
EACH = replace(SMALL, flush_messages=1)


def claims(log: Log) -> tuple[int, int, bool]:
    return log.claimable_end, log.log_end_offset, log.owes_flush


@pytest.mark.parametrize("offset", [1, 4, 5, 8, 10, 100])
def test_a_cut_claims_no_more_than_before(offset: int) -> None:
    """Of eight records four are synced. 100: the log restarts there."""
    log = open_at(MemoryDisk(), EACH)
    fill(log, 2)
    run(log.flush())
    fill(log, 3)
    before = log.claimable_end
    if offset == 100:
        log.truncate_fully_and_start_at(100)
        before = 100
    else:
        log.truncate_to(offset)
    assert log.claimable_end == min(before, log.log_end_offset)
    assert log.owes_flush == (log.claimable_end < log.log_end_offset)
    fill(log, 1)
    assert log.owes_flush
    assert log.claimable_end <= min(before, log.log_end_offset - 2)
    run(log.flush())
    assert claims(log) == (log.log_end_offset, log.log_end_offset, False)


class Kept:
    """A log manager whose logs are claimed, as by a replica manager."""

    def __init__(self, disk: MemoryDisk, *directories: str) -> None:
        self.failures = Failures()
        self.moved: list[TopicPartition] = []
        self.manager = LogManager(directories or [LOG_DIR], EACH, disk, FakeTime())

    async def start(self) -> LogManager:
        await self.manager.start()
        self.manager.serve(self.failures, lambda tp: 0, on_more_claimable=self.moved.append)
        return self.manager


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> HeldSyncs:
    return held_syncs(monkeypatch)


async def test_logs_are_flushed_side_by_side_and_each_once_at_a_time(syncs: HeldSyncs) -> None:
    kept = Kept(MemoryDisk())
    manager = await kept.start()
    logs = [manager.get_or_create(TopicPartition("t", number), TOPIC_ID, {}) for number in range(SYNCS_MAX + 3)]
    for _ in range(2):
        for log in logs:
            fill(log, 1)
        await turns()
        assert syncs.count() == SYNCS_MAX
    await syncs.end()
    assert (kept.moved, claims(logs[0])) == ([logs[0].topic_partition], (2, 4, True))
    await syncs.end_all()
    assert [claims(log) for log in logs] == [(4, 4, False)] * len(logs)
    # Those that had to wait for a thread have all records in their first flush.
    assert syncs.ended == 2 * SYNCS_MAX + 3


@pytest.mark.parametrize("count", range(8))
async def test_a_flush_begins_whenever_the_others_end(syncs: HeldSyncs, count: int) -> None:
    """All end together. `count` turns later another log owes a flush: in one of these turns all have just ended."""
    manager = await Kept(MemoryDisk()).start()
    *logs, late = (manager.get_or_create(TopicPartition("t", n), TOPIC_ID, {}) for n in range(SYNCS_MAX + 1))
    for log in logs:
        fill(log, 1)
    await turns()
    syncs.release()
    await turns(count)
    fill(late, 1)
    await turns()
    assert syncs.count() == 1
    await syncs.end()


async def test_a_copy_takes_over_the_flush_that_its_log_owes(syncs: HeldSyncs) -> None:
    """LOG-6: the log moves to another directory before the flush is done. Whoever waits for it waits for the copy's."""
    kept = Kept(MemoryDisk(), "/a", "/b")
    manager = await kept.start()
    log = manager.get_or_create(TP, TOPIC_ID, {"flush.messages": "4"})
    copy = manager.make_future(TP, "/b")
    fill(log, 2)
    copy.append_as_follower(memoryview(everything(log)))
    await copy.flush()
    await turns()
    assert (claims(log), claims(copy), syncs.count()) == ((2, 4, True), (4, 4, False), 1)
    swapped, _ = manager.swap(TP)
    assert claims(swapped) == (2, 4, True)
    await turns()
    await syncs.end_all()
    assert (kept.moved, claims(swapped)) == ([TP], (4, 4, False))


async def test_a_stop_waits_for_the_flush_under_way(disk: MemoryDisk, syncs: HeldSyncs) -> None:
    manager = await Kept(disk).start()
    fill(manager.get_or_create(TP, TOPIC_ID, {}), 1)
    await turns()
    stopping = asyncio.ensure_future(manager.shutdown())
    await turns()
    assert not stopping.done()
    await syncs.end()
    await stopping
    assert disk.open_files() == 0


def test_logs_that_nobody_claims_yet_are_flushed_by_the_next_tick() -> None:
    manager = LogManager([LOG_DIR], EACH, MemoryDisk(), FakeTime())
    run(manager.start())
    log = manager.get_or_create(TP, TOPIC_ID, {})
    fill(log, 1)
    run(manager.upkeep.tick())
    assert claims(log) == (2, 2, False)
