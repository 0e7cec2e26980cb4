"""Power lost after every call to the disk, in every way (INV-21, FLT-24, BUG-18).

OTTLA_CRASH_SEEDS=n tries n seeds (other torn writes, other crashes during recovery); the default is 1.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from broker.settings.config import TopicConfig
from broker.storage import closed_logs
from broker.storage.directories.log_directory import CLEAN_SHUTDOWN
from broker.storage.producers import log_producers
from protocol.types import TopicPartition
from tests.support.crash_points import Workload, survive
from tests.support.logs import LOG_DIR
from tests.support.thorough import exhaustive
from tools.sim.world.disk import LOSSES

LED = TopicPartition("led", 0)
FOLLOWED = TopicPartition("followed", 3)
KEYED = TopicPartition("keyed", 0)
GONE = TopicPartition("gone", 1)
SMALL = TopicConfig(segment_bytes=480, index_interval_bytes=150, retention_ms=60_000, retention_bytes=1500)
SEEDS = int(os.environ.get("OTTLA_CRASH_SEEDS", "1"))
AGAIN_SHARE = 0.1
"""Share of the crashes after which the recovery is interrupted, too."""

Step = Callable[[Workload], Awaitable[None]]


async def start(w: Workload) -> None:
    await w.manager.start()
    for number, tp in enumerate((LED, FOLLOWED, GONE)):
        await w.create(tp, topic_id(number))


def topic_id(number: int) -> str:
    return "AAAAAAAAAAAAAAAAAAAA" + "ABCDE"[number] + "A"


async def lead(w: Workload) -> None:
    w.lead(LED, 1)
    w.append(LED, 9, epoch=1)


async def follow(w: Workload) -> None:
    w.append(FOLLOWED, 5, epoch=2, as_follower=True)
    w.append(FOLLOWED, 6, epoch=4, as_follower=True)
    w.append(GONE, 6, epoch=0)


async def flush(w: Workload) -> None:
    for found in list(w.manager.logs()):
        await w.flush(found.topic_partition)


async def checkpoint(w: Workload) -> None:
    await w.checkpoint()
    await w.write_marks()


async def more_epochs(w: Workload) -> None:
    w.lead(LED, 3)
    w.lead(LED, 4)
    w.append(LED, 4, epoch=4)
    w.append(FOLLOWED, 3, epoch=5, as_follower=True)


async def truncate_in_a_segment(w: Workload) -> None:
    """Other batches are then appended at the same offsets, in a later epoch."""
    w.truncate(FOLLOWED, w.log(FOLLOWED).log_end_offset - 2)
    w.append(FOLLOWED, 2, epoch=6, as_follower=True)


async def truncate_below_the_recovery_point(w: Workload) -> None:
    w.truncate(FOLLOWED, w.log(FOLLOWED).segments[1].base_offset + 1)
    w.append(FOLLOWED, 9, epoch=7, as_follower=True)


async def delete_records(w: Workload) -> None:
    w.delete_records(LED, w.log(LED).segments[1].base_offset + 1)
    w.append(LED, 1, epoch=4)


async def retain_by_size(w: Workload) -> None:
    w.append(LED, 12, epoch=4)
    await w.retain()


async def retain_by_time(w: Workload) -> None:
    w.time.now += 90
    w.append(LED, 2, epoch=4)
    await w.retain()


async def retain_nothing(w: Workload) -> None:
    """All records are old: the log becomes empty, and continues where it ended."""
    w.time.now += 900
    await w.retain()
    assert w.log(LED).log_start_offset == w.log(LED).log_end_offset
    w.append(LED, 3, epoch=4)


async def fill_keys(w: Workload) -> None:
    await w.create(KEYED, topic_id(4), {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"})
    w.append(KEYED, 16, epoch=0)
    await w.flush(KEYED)


async def compact(w: Workload) -> None:
    epoch = w.log(KEYED).leader_epochs.latest_epoch()
    w.append(KEYED, 5, epoch=epoch)
    await w.compact()
    w.append(KEYED, 3, epoch=epoch + 1)


async def delete_and_make_again(w: Workload) -> None:
    w.delete(GONE)
    await w.create(GONE, topic_id(3))
    w.append(GONE, 7, epoch=1)


async def restart_elsewhere(w: Workload) -> None:
    """The leader has deleted the follower's records, so the follower starts again at the leader's log start."""
    w.restart_at(FOLLOWED, w.log(FOLLOWED).log_end_offset + 5)
    w.append(FOLLOWED, 4, epoch=8, as_follower=True)


STEPS: list[tuple[str, Step]] = [
    ("start", start),
    ("lead", lead),
    ("follow", follow),
    ("flush", flush),
    ("checkpoint", checkpoint),
    ("more epochs", more_epochs),
    ("truncate in a segment", truncate_in_a_segment),
    ("flush again", flush),
    ("checkpoint again", checkpoint),
    ("truncate below the recovery point", truncate_below_the_recovery_point),
    ("delete records", delete_records),
    ("retention by size", retain_by_size),
    ("clean stop and start", Workload.bounce),
    ("keys", fill_keys),
    ("compaction", compact),
    ("flush for compaction", flush),
    ("compaction again", compact),
    ("delete a topic and make it again", delete_and_make_again),
    ("flush after that", flush),
    ("retention by time", retain_by_time),
    ("restart at the leader's start", restart_elsewhere),
    ("retention of everything", retain_nothing),
    ("checkpoint at the end", checkpoint),
    ("clean stop and start at the end", Workload.bounce),
]
"""The steps of the mixed workload, by name. Each continues with the state that the steps before it left."""


@exhaustive
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("written_at_once", [log_producers.WRITTEN_AT_ONCE, -1], ids=["", "snapshots by the flush"])
def test_power_loss_after_every_call(
    seed: int,
    written_at_once: int,
    one_in: int,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.CRITICAL)
    monkeypatch.setattr(log_producers, "WRITTEN_AT_ONCE", written_at_once)
    workload = Workload(seed, SMALL, one_in=one_in)
    random = Random(seed)
    tried = 0
    for name, step in STEPS:
        for crash in workload.crashes_of(name, step):
            tried += 1
            again = random.random() < AGAIN_SHARE
            try:
                survive(workload, crash, random, crash_again=again)
            except AssertionError as error:
                where = (
                    f"seed {seed}, step {name!r}, after change {crash.point} of the disk, {crash.loss}, again {again}"
                )
                raise AssertionError(f"{where}: {error}") from error
    with capsys.disabled():
        print(f"\n{workload.points} crash points, {len(LOSSES)} ways each: {tried} recoveries (seed {seed})")
    assert tried == workload.losses // one_in - workload.alike
    assert workload.losses == workload.points * len(LOSSES) > 3000


def test_bug_18_the_clean_shutdown_marker_never_outlives_the_start_that_saw_it() -> None:
    """A start after a clean stop is killed while it loads. For the next start, the directory must not count as clean."""
    workload = Workload(0, SMALL)
    for name, step in STEPS[:4]:
        for _ in workload.crashes_of(name, step):
            pass
    marker = f"{LOG_DIR}/{CLEAN_SHUTDOWN}"

    async def stop(w: Workload) -> None:
        await w.manager.shutdown()

    after_stop = list(workload.crashes_of("stop", stop))
    assert after_stop[-1].disk.exists(marker)
    assert all(not crash.disk.exists(marker) or crash.point >= workload.points - 1 for crash in after_stop), (
        "before all is on the disk"
    )

    async def load(w: Workload) -> None:
        w.manager = w.new_manager(w.disk)
        await w.manager.start()
        w.append(LED, 4, epoch=1)

    during_load = list(workload.crashes_of("load", load))
    removed = next(crash.point for crash in during_load if not crash.disk.exists(marker))
    # What belongs to the marker is removed, then the marker, its directory is synced, and only then something else is written.
    assert removed == during_load[0].point + 1
    assert not any(crash.disk.exists(f"{LOG_DIR}/{closed_logs.FILE}") for crash in during_load if crash.point > removed)
    assert all(not crash.disk.exists(marker) for crash in during_load if crash.point > removed)
