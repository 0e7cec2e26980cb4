"""All logs of a broker: start, stop, locks, checkpoints, deletion, failed directories (LOG-2, LOG-3, LOG-6, BUG-18)."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import random
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.storage import recovery
from broker.storage.directories.log_directory import FUTURE_SUFFIX, LogDirectory, LogDirectoryError
from broker.storage.disk.filesystem import FileSystem
from broker.storage.flushing import EpochFiles
from broker.storage.log import Log, LogDirFailed
from broker.storage.log_manager import LogManager
from broker.storage.log_types import LogParts
from broker.storage.producers import log_producers
from broker.storage.upkeep import LogSchedule
from protocol.types import TopicPartition
from tests.support.busy_disk import BusyDisk, run
from tests.support.fake_time import FakeTime
from tests.support.logs import SMALL, Failures, batch, check, everything, failures_of, fill, log_of, produced, started
from tools.sim.world.disk import MemoryDisk

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAWA"
OTHER_ID = "BBBBBBBBBBBBBBBBBBBBBA"
ORDERS = TopicPartition("orders", 0)
MARKER = ".kafka_cleanshutdown"


# -- start and stop ---------------------------------------------------------------------------------------------------


def test_everything_comes_back_after_a_clean_stop_and_after_a_kill(disk: MemoryDisk) -> None:
    manager = started(disk)
    log = manager.get_or_create(ORDERS, TOPIC_ID, {})
    fill(log, 20, epoch=3)
    log.increment_log_start(5)
    data = everything(log)
    run(manager.checkpoints.write_high_watermarks({ORDERS: 17, TopicPartition("not-here", 1): 4}.get))
    killed = disk.after_kill()
    run(manager.shutdown())
    assert disk.open_files() == 0
    assert disk.exists(f"/data/{MARKER}")
    assert disk.content("/data/recovery-point-offset-checkpoint") == b"0\n1\norders 0 40\n"
    assert disk.content("/data/log-start-offset-checkpoint") == b"0\n1\norders 0 5\n"
    for found, log_start in ((disk, 5), (killed, 0)):
        again = started(found)
        if found is disk:
            assert disk.open_files() == 1, "only the lock: ten thousand logs are more than a process may have open"
        log = log_of(again)
        assert (log.topic_id, log.log_start_offset, log.log_end_offset) == (TOPIC_ID, log_start, 40)
        assert everything(log).endswith(data)
        assert again.checkpoints.read_high_watermarks() == {ORDERS: 17}
        assert not found.exists(f"/data/{MARKER}")
        check(log)


def test_the_marker_is_removed_before_anything_is_loaded(disk: MemoryDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """BUG-18: a crash while loading must not look like a clean stop."""
    run(started(disk).shutdown())
    calls: list[tuple[str, str]] = []
    monkeypatch.setattr(disk, "_call", lambda operation, path: calls.append((operation, path)))
    started(disk)
    after_the_lock = [call for call in calls if call[0] not in ("list", "read_file") and ".lock" not in call[1]]
    names = ("/data/ottla.closed", f"/data/{MARKER}")
    assert after_the_lock[:3] == [*(("remove", name) for name in names), ("sync_directory", "/data")]


def _contents(*directories: str) -> dict[str, bytes]:
    """Every file below these directories, but for the locks."""
    files = [path for directory in directories for path in Path(directory).rglob("*") if path.is_file()]
    return {str(path): path.read_bytes() for path in files if path.name != ".lock"}


def test_a_refused_start_leaves_every_directory_as_it_is(tmp_path: Path) -> None:
    """BUG-18: neither the live broker's directory nor the other one gets a clean-shutdown marker or other checkpoints."""
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    for number, path in enumerate((one, two)):
        killed = started(FileSystem(), path)
        fill(killed.get_or_create(TopicPartition("orders", number), None, {}), 3)
        run(killed.checkpoints.write_recovery_points())
        next(iter(killed.log_directories)).release()  # as a kill does
    running = started(FileSystem(), two)
    run(running.checkpoints.write_recovery_points())
    before = _contents(one, two)
    refused = LogManager([one, two], SMALL, FileSystem(), FakeTime())
    with pytest.raises(LogDirectoryError, match=f"{two} is in use by a running broker"):
        run(refused.start())
    run(refused.shutdown())
    assert _contents(one, two) == before
    run(running.shutdown())
    assert not next(iter(started(FileSystem(), one).log_directories)).was_clean
    run(started(FileSystem(), two).shutdown())


@pytest.mark.parametrize("broken", ["/one", "/two"])
@pytest.mark.parametrize("error", [ValueError, MemoryError, OSError])
def test_an_aborted_start_does_not_count_as_a_clean_stop(
    disk: MemoryDisk, monkeypatch: pytest.MonkeyPatch, broken: str, error: type[Exception]
) -> None:
    """After an exception while logs are opened, the next start recovers the whole directory."""
    manager = started(disk, "/one", "/two")
    for number in range(4):
        fill(manager.get_or_create(TopicPartition("t", number), None, {}), 3)
    run(manager.shutdown())
    points = disk.content(f"{broken}/recovery-point-offset-checkpoint")
    opens = recovery.reopen_log
    count = iter(range(9))

    def breaks(filesystem: FileSystem, directory: str, *args: Any, **kwargs: Any) -> LogParts | None:
        if directory.startswith(broken) and next(count) == 1:
            raise error("no")
        return opens(filesystem, directory, *args, **kwargs)

    monkeypatch.setattr(recovery, "reopen_log", breaks)
    failing = LogManager(["/one", "/two"], SMALL, disk, FakeTime())
    with contextlib.suppress(ValueError, MemoryError):
        run(failing.start())
    run(failing.shutdown())
    assert disk.open_files() == 0
    assert not disk.exists(f"{broken}/{MARKER}")
    assert disk.content(f"{broken}/recovery-point-offset-checkpoint") == points
    assert len(list(started(disk, "/one", "/two").logs())) == 4


def test_a_start_cancelled_during_recovery_does_not_count_as_a_clean_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread still writes to the directory. The lock stays until the process ends, and no marker is written."""
    (tmp_path / "orders-0").mkdir()
    repairing, goes_on = threading.Event(), threading.Event()
    whole = recovery.open_log

    def slow(*arguments: Any, **settings: Any) -> LogParts:
        repairing.set()
        assert goes_on.wait(60)
        return whole(*arguments, **settings)

    monkeypatch.setattr(recovery, "open_log", slow)

    async def play() -> None:
        manager = LogManager([str(tmp_path)], SMALL, FileSystem(), FakeTime())
        starting = asyncio.create_task(manager.start())
        assert await asyncio.to_thread(repairing.wait, 60)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await manager.shutdown()
        assert manager.is_loading
        with pytest.raises(BlockingIOError):
            FileSystem().lock(str(tmp_path / ".lock"))
        assert not (tmp_path / MARKER).exists()
        goes_on.set()

    asyncio.run(play())


def test_a_stop_that_cannot_sync_leaves_no_marker(disk: MemoryDisk) -> None:
    manager = started(disk)
    fill(manager.get_or_create(ORDERS, TOPIC_ID, {}), 3)
    disk.fail("sync")
    run(manager.shutdown())
    assert not disk.exists(f"/data/{MARKER}")
    assert disk.open_files() == 0


# -- what is in a directory -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("broker", "cluster", "message"),
    [(1, "c", ""), (2, "c", "broker.id is 1, this broker's is 2"), (1, "d", "cluster.id is c, this broker's is d")],
)
def test_meta_properties(disk: MemoryDisk, broker: int, cluster: str, message: str) -> None:
    directories = started(disk).log_directories
    directories.check_meta(2, "x")
    assert not disk.exists("/data/meta.properties"), "a check writes nothing"
    directories.ensure_meta(1, "c")
    text = disk.content("/data/meta.properties")
    assert {b"version=0", b"broker.id=1", b"cluster.id=c"} <= set(text.splitlines())
    for look in (directories.ensure_meta, directories.check_meta):
        with pytest.raises(LogDirectoryError, match=message) if message else contextlib.nullcontext():
            look(broker, cluster)
    assert disk.content("/data/meta.properties") == text


def test_meta_properties_of_kraft_are_refused(disk: MemoryDisk) -> None:
    manager = started(disk)
    disk.write_atomically("/data/meta.properties", b"version=1\nnode.id=1\ncluster.id=c\n")
    with pytest.raises(LogDirectoryError, match="version is 1"):
        manager.log_directories.ensure_meta(1, "c")


def test_a_start_without_a_usable_directory_is_an_error(disk: MemoryDisk) -> None:
    disk.fail("open", errno.EACCES)
    with pytest.raises(LogDirectoryError, match=r"no log directory can be used: /data: .*set log\.dirs"):
        started(disk)


def test_only_directories_that_are_logs_are_opened(disk: MemoryDisk) -> None:
    for name in ("a-b-3", "x-01", "x-1.0a-delete", "no_number", "-1", "x-²", "lost+found", "x-1.ab-future"):
        disk.make_directory(f"/data/{name}")
    disk.write_atomically("/data/x-7", b"a file")
    manager = started(disk)
    assert [log.topic_partition for log in manager.logs()] == [TopicPartition("a-b", 3)]
    assert not disk.exists("/data/x-1.0a-delete")
    assert disk.exists("/data/x-1.ab-future")


def test_one_partition_in_two_directories_is_refused(disk: MemoryDisk) -> None:
    for path in ("/one/t-0", "/two/t-0"):
        disk.make_directory(path)
    with pytest.raises(LogDirectoryError, match="t-0 is in /one/t-0 and /two/t-0"):
        started(disk, "/one", "/two")


def test_a_log_without_a_topic_id_gets_one(disk: MemoryDisk) -> None:
    manager = started(disk)
    assert manager.get_or_create(ORDERS, None, {}).topic_id is None
    assert manager.get_or_create(ORDERS, TOPIC_ID, {}).topic_id == TOPIC_ID
    assert manager.get_or_create(ORDERS, OTHER_ID, {}).topic_id == TOPIC_ID
    assert disk.content("/data/orders-0/partition.metadata") == f"version: 0\ntopic_id: {TOPIC_ID}".encode()
    disk.cut("/data/orders-0/partition.metadata", 25)
    assert started(disk.after_kill()).get_or_create(ORDERS, None, {}).topic_id is None


@pytest.mark.parametrize("crashes_between", [False, True], ids=["at once", "after a crash"])
def test_a_log_created_again_does_not_use_the_deleted_logs_checkpoints(disk: MemoryDisk, crashes_between: bool) -> None:
    """FLT-36 within one broker: a log is deleted and created again, then the broker crashes before a checkpoint is due."""
    manager = started(disk)
    old = manager.get_or_create(ORDERS, TOPIC_ID, {})
    fill(old, 20)
    old.increment_log_start(30)
    run(old.flush())
    run(manager.checkpoints.write_recovery_points())
    run(manager.checkpoints.write_log_starts())
    run(manager.checkpoints.write_high_watermarks({ORDERS: 40}.get))
    manager.delete(ORDERS)
    assert manager.get(ORDERS) is None
    assert [name for name in disk.list("/data") if name.startswith("orders")] == []
    if crashes_between:
        disk = disk.after_kill()
        manager = started(disk)
    fill(manager.get_or_create(ORDERS, OTHER_ID, {}), 3)
    manager = started(disk.after_kill())
    log = log_of(manager)
    assert (log.topic_id, log.log_start_offset, log.log_end_offset, log.recovery_point) == (OTHER_ID, 0, 6, 0)
    assert manager.checkpoints.read_high_watermarks() == {}


@pytest.mark.parametrize("number", [errno.ENOMEM, errno.ENAMETOOLONG, errno.EIO])
def test_a_log_that_could_not_be_renamed_never_becomes_the_log_of_the_next_topic(disk: MemoryDisk, number: int) -> None:
    """FLT-36, FLT-31: the controller repeats the deletion. For want of memory the log is as before, else it is offline."""
    manager = started(disk)
    failures = Failures()
    manager.serve(failures, lambda tp: 0)
    old = manager.get_or_create(ORDERS, TOPIC_ID, {})
    fill(old, 3)
    disk.fail("rename", number)
    with pytest.raises(LogDirFailed):
        manager.delete(ORDERS)
    disk.failures.clear()
    if number == errno.ENOMEM:
        assert (manager.get(ORDERS), failures.replicas, failures.directories) == (old, [], [])
        fill(old, 1)
        manager.delete(ORDERS)
        assert manager.get_or_create(ORDERS, OTHER_ID, {}).log_end_offset == 0
        return
    assert manager.get(ORDERS) is None
    assert (failures.replicas or failures.directories) == ([ORDERS] if number == errno.ENAMETOOLONG else ["/data"])
    with pytest.raises(LogDirFailed):
        manager.get_or_create(ORDERS, OTHER_ID, {})
    assert disk.open_files() == 0


@pytest.mark.parametrize("writes_epochs_only", [False, True], ids=["a flush", "the leader epochs"])
def test_late_work_for_a_deleted_log_changes_nothing_of_the_log_made_again(
    writes_epochs_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLT-36: a thread still writes for the deleted log, wherever it is. Later the process is killed: what was written is there."""
    monkeypatch.setattr(log_producers, "WRITTEN_AT_ONCE", 0)
    for call in itertools.count(1):
        disk = BusyDisk()
        manager = started(disk)
        failed = failures_of(manager)
        old = manager.get_or_create(ORDERS, TOPIC_ID, {})
        for sequence in range(0, 20, 2):
            old.append_as_leader(produced(7, sequence), leader_epoch=sequence)
        epoch_files = EpochFiles()
        epoch_files.cut(old)

        def make_again(manager: LogManager = manager) -> None:
            manager.delete(ORDERS)
            manager.get_or_create(ORDERS, OTHER_ID, {}).append_as_leader(batch(), leader_epoch=0)

        disk.will_change(make_again, call, below="/data/orders-0")
        run(epoch_files.write_some() if writes_epochs_only else old.flush())
        if not disk.has_changed:
            break
        names = [name for name in disk.list("/data/orders-0") if not name.startswith(f"{0:020d}.")]
        assert (names, failed, disk.open_files()) == (["partition.metadata"], [], 2)
        again = log_of(started(disk.after_kill()))
        assert (again.topic_id, again.log_end_offset, again.producers.state.producers) == (OTHER_ID, 2, {})
    assert call > 3


def test_a_failed_directory_takes_only_its_own_logs_offline(disk: MemoryDisk) -> None:
    manager = started(disk, "/one", "/two")
    logs = [manager.get_or_create(TopicPartition("t", number), None, {}) for number in range(2)]
    manager.fail_directory("/one")
    assert (manager.get(logs[0].topic_partition), manager.get(logs[1].topic_partition)) == (None, logs[1])
    assert manager.offline_dirs == ("/one",)
    with pytest.raises(LogDirFailed):
        # An empty log in the other directory would be taken for the one whose records were acknowledged.
        manager.get_or_create(logs[0].topic_partition, None, {})
    assert manager.get_or_create(TopicPartition("new", 0), None, {}).log_dir == "/two"
    run(manager.shutdown())
    assert not disk.exists(f"/one/{MARKER}")
    assert disk.exists(f"/two/{MARKER}")


def test_topic_configs(disk: MemoryDisk) -> None:
    """A topic's valid settings apply, else its earlier ones, else the defaults; also to logs that are opened later."""
    manager = started(disk)
    log = manager.get_or_create(ORDERS, TOPIC_ID, {"retention.ms": "5", "no.such": "x", "segment.bytes": "-1"})
    plain = manager.get_or_create(TopicPartition("plain", 0), None, {})
    assert log.config == replace(SMALL, retention_ms=5)
    manager.update_topic_configs({"orders": {"retention.ms": "soon", "flush.ms": "8"}, "elsewhere": {"flush.ms": "9"}})
    assert log.config == replace(SMALL, retention_ms=5, flush_ms=8)
    defaults = replace(SMALL, retention_ms=9, flush_ms=10)
    manager.update_defaults(defaults)
    assert log.config == replace(defaults, retention_ms=5, flush_ms=8)
    assert plain.config == defaults
    assert manager.get_or_create(TopicPartition("later", 0), None, {}).config == defaults
    manager.update_topic_configs({"orders": {}})
    assert log.config == defaults


# -- in the background ------------------------------------------------------------------------------------------------


def tick(monkeypatch: pytest.MonkeyPatch, manager: LogManager, clock: FakeTime, ticks: int = 1) -> None:
    """Lets `LogUpkeep.run` do a number of ticks. Before each, the clock moves by a second."""
    left = ticks

    async def sleep(seconds: float) -> None:
        nonlocal left
        if seconds:
            if left == 0:
                raise asyncio.CancelledError
            left -= 1
            clock.advance(seconds)

    async def upkeep() -> None:
        await manager.upkeep.run()

    monkeypatch.setattr(asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        run(upkeep())


def test_retention_rolls_and_deletes_the_last_segment_too(disk: MemoryDisk) -> None:
    """As in Kafka, the last segment is rolled, and deleted once the new segment is on the disk."""
    clock = FakeTime()
    manager = started(disk, config=replace(SMALL, retention_ms=1000), time=clock)
    log = manager.get_or_create(ORDERS, TOPIC_ID, {})
    fill(log, 3)
    clock.now += 2
    for high_watermark, log_start, segments in ((5, 0, 1), (6, 6, 1), (6, 6, 1)):
        manager.high_watermark_of = lambda tp, mark=high_watermark: mark  # type: ignore[misc]
        run(manager.upkeep.delete_old_segments())
        assert (log.log_start_offset, log.log_end_offset, len(log.segments)) == (log_start, 6, segments)
    assert log.size == 0
    assert log_of(started(disk.after_power_loss(random.Random(1)))).log_end_offset == 6


def test_epochs_that_were_cut_are_written_without_a_flush(disk: MemoryDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Soon after the cut. Those of a log that was deleted meanwhile are not written."""
    clock = FakeTime()
    manager = started(disk, time=clock)
    for partition in range(3):
        _cut_epochs(manager.get_or_create(TopicPartition("orders", partition), TOPIC_ID, {}))
    path = "/data/orders-{}/leader-epoch-checkpoint"
    assert not disk.exists(path.format(0))
    manager.delete(TopicPartition("orders", 1))
    tick(monkeypatch, manager, clock)
    assert [disk.exists(path.format(partition)) for partition in range(3)] == [True, False, True]
    assert disk.content(path.format(0)) == b"0\n1\n4 0\n"


def _cut_epochs(log: Log) -> None:
    """The log has epoch 4, and the file may have another one."""
    log.leader_epochs.assign(4, 0)
    log.leader_epochs.assign(5, 2)
    log.leader_epochs.truncate_from_end(2)


def test_a_cancelled_write_of_epochs_is_done_at_the_stop(disk: MemoryDisk) -> None:
    """It is cancelled while it waits for another log's flush."""

    async def cancelled_write(first: Log, second: Log) -> None:
        epoch_files = EpochFiles()
        epoch_files.cut(first)
        epoch_files.cut(second)
        async with second.epochs_write():
            writing = asyncio.create_task(epoch_files.write_some())
            await asyncio.sleep(0)
            writing.cancel()
            await asyncio.wait([writing])

    manager = started(disk)
    logs = [manager.get_or_create(TopicPartition("orders", partition), TOPIC_ID, {}) for partition in range(2)]
    for log in logs:
        _cut_epochs(log)
    run(cancelled_write(*logs))
    run(manager.shutdown())
    assert disk.content("/data/orders-0/leader-epoch-checkpoint") == b"0\n1\n4 0\n"


def test_a_move_that_keeps_its_log_from_flushes_can_flush_the_copy(disk: MemoryDisk) -> None:
    """The epochs of both are written meanwhile: the writing waits for the log, and does not hold the copy."""

    async def flush_copy(current: Log, copy: Log) -> None:
        epoch_files = EpochFiles()
        epoch_files.cut(copy)
        epoch_files.cut(current)
        async with current.without_flushes():
            writing = asyncio.create_task(epoch_files.write_some())
            await asyncio.sleep(0)
            async with asyncio.timeout(1):
                await copy.flush()
        await writing

    manager = started(disk)
    current, copy = (manager.get_or_create(TopicPartition("orders", partition), TOPIC_ID, {}) for partition in range(2))
    for log in (current, copy):
        fill(log, 2)
        log.leader_epochs.cut()
    name = f"/data/orders-0.{'0' * 32}{FUTURE_SUFFIX}"
    disk.rename(copy.directory, name)
    copy.directory = name
    run(flush_copy(current, copy))


def test_background_flushes_checkpoints_and_retention(disk: MemoryDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeTime()
    manager = started(disk, time=clock, schedule=LogSchedule(retention_s=30, recovery_points_s=10))
    manager.high_watermark_of = lambda tp: 20
    log = manager.get_or_create(ORDERS, TOPIC_ID, {})
    fill(log, 2)
    tick(monkeypatch, manager, clock)
    assert log.recovery_point == 0  # nothing asks for a flush
    fill(log, 3)
    tick(monkeypatch, manager, clock)
    assert (len(log.segments), log.recovery_point) == (2, 10)  # a roll does
    manager.update_topic_configs({"orders": {"flush.ms": "2000"}})
    fill(log, 1)
    tick(monkeypatch, manager, clock)
    assert log.recovery_point == 10
    tick(monkeypatch, manager, clock, 2)
    assert log.recovery_point == 12
    points = "/data/recovery-point-offset-checkpoint"
    assert not disk.exists(points)
    tick(monkeypatch, manager, clock, 6)
    assert disk.content(points).endswith(b"orders 0 12\n")
    log.truncate_to(6)
    # Before the cut, and to the base of a segment: what is verified after a crash.
    assert disk.content(points).endswith(b"orders 0 0\n")
    tick(monkeypatch, manager, clock)
    fill(log, 12)
    manager.update_topic_configs({"orders": {"retention.ms": "0"}})
    tick(monkeypatch, manager, clock, 30)
    assert log.log_start_offset == max(base for s in log.segments if (base := s.base_offset) <= 20) > 0


def test_an_older_checkpoint_never_overwrites_a_newer_one(disk: MemoryDisk) -> None:
    directory = LogDirectory(disk, "/data")
    disk.make_directory("/data")
    directory.write_offsets("c", {ORDERS: 2}, 2)
    directory.write_offsets("c", {ORDERS: 1}, 1)
    assert directory.read_offsets("c") == {ORDERS: 2}
