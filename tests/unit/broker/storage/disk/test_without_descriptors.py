"""No descriptor is left (FLT-30): what must be written is written, nothing acknowledged is lost, and no disk is taken for broken."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import random
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from broker.process.descriptors import shares_of
from broker.storage.disk import disk_errors
from broker.storage.disk.filesystem import FileSystem
from broker.storage.disk.spare_descriptors import SpareDescriptors
from broker.storage.failures import failure_of
from broker.storage.log import Log, LogDirFailed, LogUnavailable
from broker.storage.log_manager import LogManager
from protocol.types import TopicPartition
from tests.support.busy_disk import run
from tests.support.fake_time import FakeTime
from tests.support.logs import SMALL, batch, check, everything, failures_of, open_at
from tools.sim.world.disk import MemoryDisk

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAWA"
OPENING = {"open", "open_to_keep", "read_file", "read_end", "list", "sync_directory"}
SEEDS = 60
STEPS = 60


class ScarceDisk(MemoryDisk):
    """Of the calls that need a descriptor, a share fails with EMFILE, ENFILE or ENOMEM."""

    def __init__(self, luck: random.Random) -> None:
        super().__init__()
        self.luck = luck
        self.scarcity = 0.0

    def _call(self, operation: str, path: str) -> None:
        if operation in OPENING and self.luck.random() < self.scarcity:
            number = self.luck.choice((errno.EMFILE, errno.ENFILE, errno.ENOMEM))
            raise OSError(number, os.strerror(number), path)
        super()._call(operation, path)


def step(log: Log, luck: random.Random, records: dict[int, int]) -> None:
    """One thing that happens to a log. `records`: offset -> mark of each batch that was acknowledged and not cut."""
    end = log.log_end_offset
    some_offset = luck.randint(log.log_start_offset, end)
    match luck.choice(("append",) * 4 + ("cut", "restart", "read", "time", "flush", "rest", "retention")):
        case "append":
            mark = luck.getrandbits(40)
            info = log.append_as_leader(batch(1, mark=mark, timestamp=1000 + len(records)), 0)
            records[info.first_offset] = mark
        case "cut" if luck.random() < 0.3:
            log.truncate_to(some_offset)
            for offset in range(some_offset, end):
                records.pop(offset, None)
        case "restart" if luck.random() < 0.1:
            log.truncate_fully_and_start_at(end + 5)
            records.clear()
        case "read":
            log.read(some_offset, 1000, end, True)
        case "time":
            log.offset_for_timestamp(luck.randint(1000, 1000 + len(records)), end)
        case "flush":
            run(log.flush())
        case "rest":
            for segment in log.segments:
                segment.rest()
            for segment in log.segments[:-1]:
                segment.forget_indexes()
        case "retention":
            log.roll_if_old(end, 10_000)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_cannot_be_opened_nothing_acknowledged_is_lost(seed: int) -> None:
    """Each call either does all that it should or changes nothing; only a cut may leave the log unusable, and then it says so."""
    luck = random.Random(seed)
    disk = ScarceDisk(luck)
    log = open_at(disk)
    records: dict[int, int] = {}
    refusals = 0
    for _ in range(STEPS):
        disk.scarcity = luck.choice((0.0, 0.3, 1.0))
        try:
            step(log, luck, records)
        except LogUnavailable as error:
            refusals += 1
            if not error.is_passing:
                return  # a cut that was half done: the log is read again by the next start
        disk.scarcity = 0.0
        assert log.log_end_offset == max(records, default=log.log_start_offset - 1) + 1 or not records
        found = everything(log)
        for mark in records.values():
            assert mark.to_bytes(8, "big") in found
    check(log)
    recovered = open_at(disk.after_kill(), log_start=log.log_start_offset)
    assert everything(recovered) == everything(log)
    assert refusals or seed


def test_a_cut_that_has_begun_may_take_any_spare_descriptor(disk: MemoryDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other threads take those for files that stay open, right after the cut has looked for one."""
    log = open_at(disk)
    log.append_as_leader(batch(), 0)
    monkeypatch.setattr(disk, "check_spare", lambda: disk.fail("open_to_keep", errno.EMFILE))
    log.truncate_fully_and_start_at(9)
    disk.failures.clear()
    log.append_as_leader(batch(), 0)
    check(log)
    assert log.log_end_offset == 11


@pytest.mark.parametrize("scarcity", ["its own limit", "a fault of one directory"])
def test_a_cut_without_descriptors_leaves_the_log_as_it_was(disk: MemoryDisk, scarcity: str) -> None:
    log = open_at(disk)
    log.append_as_leader(batch(), 0)
    if scarcity == "its own limit":
        disk.open_max = 0
    else:
        disk.fail("open_to_keep", errno.EMFILE, below="/data")
    with pytest.raises(LogUnavailable) as refused:
        log.truncate_fully_and_start_at(9)
    assert refused.value.is_passing
    disk.open_max = None
    disk.failures.clear()
    assert log.log_end_offset == 2
    log.truncate_fully_and_start_at(9)
    assert log.log_end_offset == 9


THE_DISKS = {errno.EIO, errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EACCES, errno.ENOENT}


@pytest.mark.parametrize("number", sorted(THE_DISKS | disk_errors.PASSING | disk_errors.OF_ONE_PATH))
def test_which_errors_count_as_errors_of_the_disk(number: int) -> None:
    failure = failure_of("/data", OSError(number, os.strerror(number)))
    assert isinstance(failure, LogUnavailable) == (number not in THE_DISKS)


@contextmanager
def opened(filesystem: FileSystem, path: str | Path = "/data") -> Iterator[LogManager]:
    """A manager that stops in order at the end: no directory has failed."""
    manager = LogManager((str(path),), SMALL, filesystem, FakeTime())
    failed = failures_of(manager)
    run(manager.start())
    yield manager
    run(manager.shutdown())
    assert (failed, manager.offline_dirs) == ([], ())
    assert filesystem.exists(f"{path}/.kafka_cleanshutdown")


def filled(manager: LogManager, topic: str, count: int) -> list[Log]:
    """New logs of one batch each."""
    logs = [manager.get_or_create(TopicPartition(topic, number), TOPIC_ID, {}) for number in range(count)]
    for log in logs:
        assert log.topic_id == TOPIC_ID
        log.append_as_leader(batch(mark=log.topic_partition.partition), 0)
    return logs


@pytest.mark.parametrize("number", sorted(disk_errors.PASSING | disk_errors.OF_ONE_PATH))
@pytest.mark.parametrize("operation", ["open", "open_to_keep", "make_directory", "rename"])
def test_a_log_that_cannot_be_created_takes_no_directory_offline(disk: MemoryDisk, operation: str, number: int) -> None:
    """The log is created once there are descriptors again."""
    with opened(disk) as manager:
        (first,) = filled(manager, "orders", 1)
        disk.fail(operation, number, below="/data/other-0" if number in disk_errors.OF_ONE_PATH else "/")
        if operation != "rename":
            with pytest.raises(LogUnavailable):
                filled(manager, "other", 1)
        run(_duties(manager))
        disk.failures.clear()
        filled(manager, "other", 1)
        first.append_as_leader(batch(), 0)


async def _duties(manager: LogManager) -> None:
    """Does all background work now."""
    upkeep = manager.upkeep
    for found in list(manager.logs()):
        found.leader_epochs.assign(found.leader_epochs.latest_epoch() + 1, found.log_end_offset)
        upkeep._flushes.rolled(found)
    manager.checkpoints.are_behind = True
    for duty in (upkeep._flush_due, upkeep._epochs_due, upkeep._checkpoint_due, upkeep._retention_due):
        with contextlib.suppress(LogDirFailed):
            await duty(1e9)


def test_background_work_that_lacked_descriptors_is_retried(disk: MemoryDisk) -> None:
    with opened(disk) as manager:
        filled(manager, "orders", 1)
        for operation in ("open", "open_to_keep", "sync_directory", "list"):
            disk.fail(operation, errno.EMFILE)
        run(_duties(manager))
        manager.delete(TopicPartition("orders", 0))
        disk.failures.clear()
        run(_retried(manager))
        assert [name for name in disk.list("/data") if name.endswith("-delete")] == []
        (log,) = filled(manager, "orders", 1)
        run(_duties(manager))
        assert log.recovery_point == log.log_end_offset
        assert disk.content("/data/recovery-point-offset-checkpoint") == b"0\n1\norders 0 2\n"
        assert disk.exists("/data/orders-0/leader-epoch-checkpoint")


async def _retried(manager: LogManager) -> None:
    await manager.upkeep.removals.wait()
    manager.upkeep.removals.retry()
    await manager.upkeep.removals.wait()


# -- the real file system ---------------------------------------------------------------------------------------------


@contextmanager
def limited_descriptors(count: int) -> Iterator[None]:
    """This process may open so many more: of the numbers below the limit so many are free."""
    taken = {int(name) for name in os.listdir("/proc/self/fd")}
    free = (number for number in itertools.count() if number not in taken)
    with the_limit(next(itertools.islice(free, count, None))):
        yield


@contextmanager
def the_limit(limit: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def all_descriptors_taken() -> Iterator[None]:
    """Of a limit that is lowered for it."""
    with limited_descriptors(20), contextlib.ExitStack() as taken:
        with contextlib.suppress(OSError):
            while True:
                taken.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        yield


def test_spare_descriptors_open_what_is_closed_again(tmp_path: Path) -> None:
    disk = FileSystem()
    disk.spare.keep(4)
    (tmp_path / "tree" / "below").mkdir(parents=True)
    (tmp_path / "tree" / "file").write_text("x")
    with contextlib.closing(disk.spare), all_descriptors_taken():
        for number in range(20):
            disk.write_atomically(f"{tmp_path}/checkpoint", str(number).encode())
            disk.sync_path(f"{tmp_path}/checkpoint")
            assert disk.read_file(f"{tmp_path}/checkpoint") == str(number).encode()
            assert sorted(disk.list(str(tmp_path)))[0] == "checkpoint"
        assert len(disk.spare) == 4, "each was given back"
        disk.remove_tree(f"{tmp_path}/tree")
        assert not (tmp_path / "tree").exists()
        kept = [disk.open_to_keep(f"{tmp_path}/{name}") for name in "ab"]
        with pytest.raises(OSError, match="Too many open files"):
            disk.open_to_keep(f"{tmp_path}/c")
        disk.write_atomically(f"{tmp_path}/checkpoint", b"last")
        for fd in kept:
            disk.close(fd)
        disk.spare.fill()
        assert len(disk.spare) == 4


def test_an_idle_log_file_is_closed_to_open_another(tmp_path: Path) -> None:
    disk = FileSystem()
    with opened(disk, tmp_path) as manager:
        logs = [manager.get_or_create(TopicPartition("orders", number), None, {}) for number in range(3)]
        with all_descriptors_taken():
            assert everything(filled(manager, "late", 3)[2])
            assert logs[0].segments[-1]._fd is None
            assert len(disk.in_use) == 3
        logs[0].append_as_leader(batch(), 0)


def test_a_file_is_not_closed_if_that_allows_no_other_to_be_opened(tmp_path: Path) -> None:
    """The limit is lowered below the files that are open. A log that was synced at that moment was closed, and unavailable.

    With a spare descriptor in use, closing a file raised EBADF, and the log directory went offline.
    """
    disk = FileSystem()
    disk.spare.keep(2)
    with opened(disk, tmp_path) as manager:
        disk.in_use.belong_to_this_thread()
        (first,) = filled(manager, "orders", 1)
        run(first.flush())
        fd = disk.open(str(tmp_path / "other"))
        with the_limit(3):
            with pytest.raises(LogUnavailable):
                filled(manager, "late", 1)
            assert not first.segments[-1].rest()
            first.append_as_leader(batch(), 0)
            assert disk.spare.are_missing
            disk.close(fd)


def test_a_start_after_a_kill_with_more_logs_than_descriptors(tmp_path: Path) -> None:
    """A recovered log is unsynced, and would stay open. If too many files are open, it is synced at once."""
    with opened(FileSystem(), tmp_path / "killed") as manager:
        filled(manager, "orders", 60)
        shutil.copytree(tmp_path / "killed", tmp_path / "data")
    disk = FileSystem()
    disk.in_use.share = 10
    with contextlib.ExitStack() as stack, limited_descriptors(40):
        again = stack.enter_context(opened(disk, tmp_path / "data"))
        assert [log.log_end_offset for log in again.logs()] == [2] * 60
        assert all(everything(log) for log in again.logs())


def test_logs_that_are_not_synced_are_synced_to_close_their_files(tmp_path: Path) -> None:
    """A client that writes to very many partitions must not take the descriptors of all others."""
    disk = FileSystem()
    disk.in_use.share = 10
    with opened(disk, tmp_path) as manager:
        logs = filled(manager, "orders", 30)
        assert len(disk.in_use) == 30
        run(manager.upkeep._files_due(manager._clock.monotonic()))
        assert len(disk.in_use) <= 10
        assert sum(log.recovery_point == 2 for log in logs) >= 20
        for log in logs:
            log.append_as_leader(batch(), 0)


def test_a_log_whose_path_is_refused_does_not_prevent_the_start(tmp_path: Path) -> None:
    with opened(FileSystem(), tmp_path) as manager:
        filled(manager, "orders", 1)
    (tmp_path / "loop-0").mkdir()
    (tmp_path / "loop-0" / f"{0:020d}.log").symlink_to(f"{0:020d}.log")
    with opened(FileSystem(), tmp_path) as again:
        assert [log.topic_partition for log in again.logs()] == [TopicPartition("orders", 0)]


def test_spare_descriptors_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    spare = SpareDescriptors()
    spare.keep(2)
    assert [spare.give_up_one(is_kept=is_kept) for is_kept in (True, True, False, False)] == [True, False, True, False]
    spare.close()
    assert len(caplog.records) == 1
    assert "ulimit -n" in caplog.text


@pytest.mark.parametrize("limit", [16, 64, 256, 1024, 4096, 20_000, 65_536, 524_288, 1_048_576])
def test_the_shares_fit_into_the_limit(limit: int) -> None:
    shares = shares_of(limit)
    assert shares.clients >= 1
    if limit >= 256:
        assert shares.clients >= limit // 4
        assert shares.clients + shares.brokers + shares.control + shares.files + shares.spare + 58 <= limit
        assert shares.spare >= 16
        assert shares.brokers >= 32
