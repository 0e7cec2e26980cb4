"""Power lost after every call to the disk while replicas move between log directories (LOG-6, INV-21, FLT-24; KIP-113).

The workload runs the real `ReplicaMoves`. The directories are two volumes: after a power loss, each may have its old or its new
file names. After each power loss every replica exists exactly once, with all records that were synced in either place. A copy
continues from where it agrees with its log.
OTTLA_CRASH_SEEDS=n tries n seeds.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.process.event_log import EventLog
from broker.replication.fetching.replication_throttle import ReplicationThrottle
from broker.replication.log_dirs import replica_moves
from broker.replication.log_dirs.replica_moves import ReplicaMoves
from broker.settings.config import TopicConfig
from broker.storage import log
from broker.storage.log import Log
from protocol.types import TopicPartition
from tests.support.crash_points import Crash, Workload, survive
from tests.support.thorough import exhaustive
from tools.sim.world.disk import Loss, MemoryDisk

A, B = "/a", "/b"
LED = TopicPartition("led", 0)
FOLLOWED = TopicPartition("followed", 3)
KEYED = TopicPartition("keyed", 0)
GONE = TopicPartition("gone", 1)
SMALL = TopicConfig(segment_bytes=480, index_interval_bytes=150, retention_ms=60_000, retention_bytes=1500)
LOSSES = (Loss("all", "none"), Loss("none", "all"), Loss("volumes", "mixed"))
SEEDS = int(os.environ.get("OTTLA_CRASH_SEEDS", "1"))
AGAIN_SHARE = 0.1
"""The share of crashes after which the recovery is interrupted too."""

Step = Callable[["Moving"], Awaitable[None]]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_moves, "COPY_BYTES", 300)
    monkeypatch.setattr(replica_moves, "LAST_BYTES_MAX", 600)
    monkeypatch.setattr(log, "SEGMENTS_CUT_AT_ONCE", 1)


class Moving(Workload):
    """With two directories, and the moves of the replica manager."""

    def __init__(self, seed: int, one_in: int) -> None:
        super().__init__(seed, SMALL, LOSSES, (A, B), one_in)
        self.moves = self._new_moves()
        self.targets: dict[TopicPartition, str] = {}

    def _new_moves(self) -> ReplicaMoves:
        throttle = ReplicationThrottle(1, lambda config: "", self.time.monotonic)
        parts = (self.manager, self, throttle, EventLog(None, self.time), self.write_marks)
        return ReplicaMoves(*cast(Any, parts))

    # What `HostedPartitions` is for it:

    def get(self, tp: TopicPartition) -> object:
        log = self.manager.get(tp)
        return None if log is None else SimpleNamespace(log=log, role=None, replace_log=lambda swapped: None)

    # Deeds:

    def move(self, tp: TopicPartition) -> None:
        """To the other directory. Each step has a loop of its own."""
        if not len(self.manager.futures):
            self.moves = self._new_moves()
        (self.targets[tp],) = {A, B} - {self.log(tp).log_dir}
        self.moves.move(tp, self.targets[tp])
        self.life(tp).has_moved = True

    async def is_half_copied(self, tp: TopicPartition) -> None:
        """Waits until the copy has something, and not all."""
        copy = self.manager.futures.get(tp)
        assert copy is not None
        for _ in range(9):
            if copy.log_end_offset == copy.log_start_offset:
                await turns(1)
        assert copy.log_start_offset < copy.log_end_offset < self.log(tp).log_end_offset

    async def moved(self, tp: TopicPartition) -> None:
        await self.moves.done()
        assert self.log(tp).log_dir == self.targets[tp]

    async def bounce(self) -> None:
        await self.moves.close()
        await super().bounce()
        self.moves = self._new_moves()

    def flush_between(self, tp: TopicPartition) -> None:
        """Once, after the copy was synced: appends a batch and syncs it in the current place of the log."""
        futures = self.manager.futures
        declare = futures.declare_complete
        left = [1]

        def declare_complete(future: Log) -> None:
            declare(future)
            if left and left.pop():
                self.append(tp, 1, epoch=self.log(tp).leader_epochs.latest_epoch())
                flushing = self.flush(tp)
                with pytest.raises(StopIteration):
                    flushing.send(None)

        futures.declare_complete = declare_complete  # type: ignore[method-assign]


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def start(w: Moving) -> None:
    await w.manager.start()
    for number, tp in enumerate((LED, FOLLOWED, GONE)):
        await w.create(tp, "AAAAAAAAAAAAAAAAAAAA" + "ABC"[number] + "A")
    w.lead(LED, 1)
    w.append(LED, 8, epoch=1)
    w.append(FOLLOWED, 8, epoch=2, as_follower=True)
    w.append(GONE, 6, epoch=0)
    for tp in (LED, FOLLOWED):
        await w.flush(tp)
    await w.checkpoint()
    await w.write_marks()


async def move_a_leader(w: Moving) -> None:
    """The log is written during the move, and synced in the old place after its copy was synced."""
    w.move(LED)
    w.flush_between(LED)
    for _ in range(6):
        await turns(1)
        w.append(LED, 1, epoch=1)
        await w.flush(LED)
    w.lead(LED, 3)
    await w.moved(LED)
    w.append(LED, 2, epoch=3)


async def flush_in_the_new_place(w: Moving) -> None:
    await w.flush(LED)
    await w.checkpoint()
    await w.write_marks()
    w.append(LED, 1, epoch=3)


async def truncate_what_moves(w: Moving) -> None:
    """Copied records are cut, other batches replace them in a later epoch, and a crash may undo either cut."""
    w.move(FOLLOWED)
    await w.is_half_copied(FOLLOWED)
    copy = w.manager.futures.get(FOLLOWED)
    assert copy is not None
    w.truncate(FOLLOWED, copy.log_end_offset - 2)
    w.append(FOLLOWED, 6, epoch=4, as_follower=True)
    await turns(2)
    w.truncate(FOLLOWED, w.log(FOLLOWED).log_end_offset - 3)
    w.append(FOLLOWED, 3, epoch=6, as_follower=True)
    await w.flush(FOLLOWED)
    await w.moved(FOLLOWED)
    w.append(FOLLOWED, 1, epoch=6, as_follower=True)


async def truncate_what_has_moved(w: Moving) -> None:
    await w.flush(FOLLOWED)
    w.truncate(FOLLOWED, w.log(FOLLOWED).segments[1].base_offset + 1)
    w.append(FOLLOWED, 6, epoch=7, as_follower=True)
    await w.flush(FOLLOWED)


async def move_back_while_records_go(w: Moving) -> None:
    w.append(LED, 8, epoch=3)
    w.move(LED)
    await w.is_half_copied(LED)
    w.delete_records(LED, w.log(LED).segments[1].base_offset + 1)
    await turns(2)
    await w.retain()
    await w.moved(LED)
    await w.checkpoint()


async def call_off(w: Moving) -> None:
    w.append(FOLLOWED, 6, epoch=7, as_follower=True)
    source = w.log(FOLLOWED).log_dir
    w.move(FOLLOWED)
    await w.is_half_copied(FOLLOWED)
    w.moves.move(FOLLOWED, source)
    await w.moves.done()
    assert w.log(FOLLOWED).log_dir == source


async def stop_within_a_move(w: Moving) -> None:
    w.move(FOLLOWED)
    await w.is_half_copied(FOLLOWED)
    await w.bounce()
    assert w.manager.futures.get(FOLLOWED) is not None
    w.append(FOLLOWED, 2, epoch=8, as_follower=True)
    w.moves.wake()
    await w.moved(FOLLOWED)


async def move_a_compacted_log(w: Moving) -> None:
    await w.create(KEYED, "AAAAAAAAAAAAAAAAAAAADA", {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"})
    w.append(KEYED, 16, epoch=0)
    await w.flush(KEYED)
    await w.compact()
    w.append(KEYED, 3, epoch=0)
    w.move(KEYED)
    await w.is_half_copied(KEYED)
    w.append(KEYED, 3, epoch=1)
    await w.moved(KEYED)
    await w.flush(KEYED)
    await w.compact()


async def delete_within_a_move(w: Moving) -> None:
    w.move(GONE)
    await w.is_half_copied(GONE)
    w.delete(GONE)
    await w.moves.done()
    await w.create(GONE, "AAAAAAAAAAAAAAAAAAAAEA")
    w.append(GONE, 7, epoch=1)
    await w.flush(GONE)


async def move_two_at_once(w: Moving) -> None:
    for tp in (LED, KEYED):
        w.move(tp)
    await turns(5)
    w.append(LED, 2, epoch=4)
    w.append(KEYED, 2, epoch=2)
    await w.moves.done()
    await w.checkpoint()


async def bounce(w: Moving) -> None:
    await w.bounce()


STEPS: list[Step] = [
    start,
    move_a_leader,
    flush_in_the_new_place,
    truncate_what_moves,
    truncate_what_has_moved,
    move_back_while_records_go,
    call_off,
    stop_within_a_move,
    move_a_compacted_log,
    delete_within_a_move,
    move_two_at_once,
    bounce,
]


@pytest.mark.timeout(900)
@exhaustive
@pytest.mark.parametrize("seed", range(SEEDS))
def test_power_loss_after_every_call_of_a_move(
    seed: int, one_in: int, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    workload = Moving(seed, one_in)
    random = Random(seed)
    tried = 0
    for step in STEPS:
        for crash in workload.crashes_of(step.__name__, cast(Any, step)):
            tried += 1
            again = random.random() < AGAIN_SHARE
            try:
                _is_there_once(workload, crash, survive(workload, crash, random, crash_again=again))
            except Exception as error:
                where = (
                    f"seed {seed}, {crash.step}, after change {crash.point} of the disk, {crash.loss}, again {again}"
                )
                raise AssertionError(f"{where}: {error}") from error
    with capsys.disabled():
        print(f"\n{workload.points} crash points of moves, {len(LOSSES)} ways each: {tried} recoveries (seed {seed})")
    assert tried == workload.losses // one_in - workload.alike
    assert workload.losses == workload.points * len(LOSSES) > 2000


def _is_there_once(workload: Workload, crash: Crash, disk: MemoryDisk) -> None:
    """At its name, after the start that settled what the crash had left."""
    for tp in crash.promises:
        places = [path for path in workload.log_dirs if disk.is_directory(f"{path}/{tp}")]
        assert len(places) <= 1, places
