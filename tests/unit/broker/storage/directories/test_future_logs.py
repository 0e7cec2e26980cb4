"""Moves between log directories on the disk: copies, their taking the place of a log, and what a crash leaves (LOG-6, INV-21)."""

from __future__ import annotations

import errno
from random import Random

import pytest

from broker.storage.directories.future_logs import REPLACES_CURRENT, new_suffix
from broker.storage.log import LogDirFailed
from broker.storage.log_manager import LogManager
from protocol.types import TopicPartition
from tests.support.fake_time import FakeTime
from tests.support.logs import SMALL, check, everything, fill
from tests.support.memory_disk import Loss, MemoryDisk, PowerLost, run

TP = TopicPartition("orders", 0)
TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAWA"
A, B = "/a", "/b"


def started(disk: MemoryDisk) -> LogManager:
    manager = LogManager([A, B], SMALL, disk, FakeTime())
    run(manager.start())
    return manager


def with_a_copy(disk: MemoryDisk, batches: int = 12) -> LogManager:
    """The log in /a, synced, and a complete copy in /b."""
    manager = started(disk)
    current = manager.get_or_create(TP, TOPIC_ID, {})
    assert current.log_dir == A
    fill(current, batches)
    run(current.flush())
    future = manager.make_future(TP, B)
    future.append_as_follower(memoryview(everything(current)))
    return manager


def take_place(manager: LogManager) -> None:
    """As `ReplicaMoves` does."""
    future = manager.futures.get(TP)
    assert future is not None
    run(future.flush())
    manager.futures.declare_complete(future)
    manager.futures.finish(*manager.swap(TP))


def plain(disk: MemoryDisk) -> list[str]:
    return [path for path in (f"{A}/{TP}", f"{B}/{TP}") if disk.is_directory(path)]


def test_a_copy_takes_the_place_of_the_log() -> None:
    disk = MemoryDisk()
    manager = with_a_copy(disk)
    before = manager.get(TP)
    assert before is not None
    data = everything(before)
    before.leader_epochs.assign(7, before.log_end_offset)
    take_place(manager)
    swapped = manager.get(TP)
    assert swapped is not None
    assert swapped.log_dir == B
    assert swapped.directory == f"{B}/{TP}"
    assert swapped.leader_epochs.latest_epoch() == 7, "BUG-15: an epoch without a record"
    assert everything(swapped) == data
    fill(swapped, 5, epoch=7)  # rolls: new files get the new name
    check(swapped)
    assert not [name for name in disk.list(A) if name.startswith("orders")]
    assert [name for name in disk.list(B) if name.startswith("orders")] == [str(TP)]
    assert not disk.exists(f"{B}/{TP}/{REPLACES_CURRENT}")
    data = everything(swapped)
    run(manager.shutdown())
    again = started(disk)
    found = again.get(TP)
    assert found is not None
    assert everything(found) == data
    assert len(again.futures) == 0


def test_power_loss_at_every_call_of_the_exchange() -> None:
    """INV-21: the log is there, once, with all that was synced; a copy that did not make it goes on."""
    calls = 0
    for calls_left in range(1000):
        disk = MemoryDisk()
        manager = with_a_copy(disk)
        current = manager.get(TP)
        assert current is not None
        data = everything(current)
        disk.calls_left = calls_left
        try:
            take_place(manager)
            break
        except PowerLost:
            calls += 1
        for seed in range(6):
            survivor = disk.after_power_loss(Random(calls_left * 10 + seed))
            again = started(survivor)
            found = again.get(TP)
            assert found is not None, (calls_left, seed)
            assert everything(found) == data, (calls_left, seed)
            assert found.topic_id == TOPIC_ID
            assert len(plain(survivor)) == 1
            check(found)
            future = again.futures.get(TP)
            assert future is None or data.startswith(everything(future))
    assert calls > 10
    print(f"{calls} crash points, 6 outcomes each")


@pytest.mark.parametrize("b_is_complete", [True, False])
def test_names_of_two_file_systems_may_come_back_in_any_mixture(b_is_complete: bool) -> None:
    """Both at their name: with the file the second is the newer one; without it a person must say."""
    disk = MemoryDisk()
    manager = with_a_copy(disk)
    log = manager.get(TP)
    future = manager.futures.get(TP)
    assert log is not None
    assert future is not None
    data = everything(log)
    run(future.flush())
    if b_is_complete:
        manager.futures.declare_complete(future)
    disk.rename(future.directory, f"{B}/{TP}")
    survivor = disk.after_kill()
    if not b_is_complete:
        with pytest.raises(Exception, match="move one of them away by hand"):
            started(survivor)
        return
    found = started(survivor).get(TP)
    assert found is not None
    assert found.log_dir == B
    assert everything(found) == data
    assert plain(survivor) == [f"{B}/{TP}"]


def test_nothing_is_decided_or_removed_while_a_directory_is_offline() -> None:
    """The log is `-delete`, the complete copy on a disk that does not come back: then the log is still there."""
    disk = MemoryDisk()
    manager = with_a_copy(disk)
    future = manager.futures.get(TP)
    assert future is not None
    run(future.flush())
    manager.futures.declare_complete(future)
    disk.rename(f"{A}/{TP}", f"{A}/{TP}.0123456789abcdef0123456789abcdef-delete")
    survivor = disk.after_kill()
    lock = survivor.lock

    def broken(path: str) -> int:
        if path.startswith(B):
            raise OSError(errno.EIO, path)
        return lock(path)

    survivor.lock = broken  # type: ignore[method-assign]
    again = started(survivor)
    assert again.offline_dirs == (B,)
    assert again.get(TP) is None
    assert [name for name in survivor.list(A) if name.endswith("-delete")]


def test_what_cuts_the_log_cuts_the_copy() -> None:
    disk = MemoryDisk()
    manager = with_a_copy(disk)
    log, future = manager.get(TP), manager.futures.get(TP)
    assert log is not None
    assert future is not None
    log.truncate_to(9)
    assert future.log_end_offset == log.log_end_offset
    assert everything(future) == everything(log)
    log.truncate_fully_and_start_at(4)
    assert future.log_end_offset <= 4


def test_a_copy_that_has_more_than_the_log_after_a_crash_is_cut() -> None:
    disk = MemoryDisk()
    manager = with_a_copy(disk)
    log, future = manager.get(TP), manager.futures.get(TP)
    assert log is not None
    assert future is not None
    run(future.flush())
    survivor = disk.after_kill()
    survivor.cut(log.segments[-1].path, 10)
    again = started(survivor)
    found, copy = again.get(TP), again.futures.get(TP)
    assert found is not None
    assert copy is not None
    assert copy.log_end_offset == found.log_end_offset < future.log_end_offset


def test_deletion_takes_the_copy_too_and_old_checkpoints_are_not_believed() -> None:
    disk = MemoryDisk()
    manager = with_a_copy(disk)
    run(manager.checkpoints.write_recovery_points())
    manager.delete(TP)
    assert manager.futures.get(TP) is None
    assert not [name for name in disk.list(B) if name.startswith("orders")]
    log = manager.get_or_create(TP, TOPIC_ID, {})
    assert log.log_end_offset == 0
    assert b"orders" not in disk.content(f"{B}/recovery-point-offset-checkpoint")


def test_a_log_that_moves_back_does_not_find_its_old_recovery_point() -> None:
    """BUG-24: the copy is new, and nothing of it is synced."""
    disk = MemoryDisk()
    manager = with_a_copy(disk)
    run(manager.checkpoints.write_recovery_points())
    assert b"orders 0 24" in disk.content(f"{A}/recovery-point-offset-checkpoint")
    take_place(manager)
    manager.make_future(TP, A)
    assert b"orders" not in disk.content(f"{A}/recovery-point-offset-checkpoint")


def test_placement_on_the_emptiest_and_where_it_was_wanted() -> None:
    """LOG-6, KIP-113."""
    disk = MemoryDisk()
    manager = started(disk)
    logs = [manager.get_or_create(TopicPartition("t", number), TOPIC_ID, {}) for number in range(5)]
    assert [log.log_dir for log in logs] == [A, B, A, B, A]
    wanted = TopicPartition("t", 9)
    manager.futures.preferred[wanted] = A
    assert manager.get_or_create(wanted, TOPIC_ID, {}).log_dir == A
    assert wanted not in manager.futures.preferred


def test_a_directory_that_is_gone_is_not_made_anew() -> None:
    disk = MemoryDisk()
    manager = started(disk)
    disk.remove_tree(A)
    with pytest.raises(LogDirFailed) as failed:
        manager.get_or_create(TP, TOPIC_ID, {})
    assert failed.value.directory == A
    assert not disk.is_directory(A)


def test_a_failing_rename_of_the_copy_leaves_the_log() -> None:
    disk = MemoryDisk()
    manager = with_a_copy(disk)
    future = manager.futures.get(TP)
    assert future is not None
    run(future.flush())
    rename = disk.rename

    def broken(old: str, new: str) -> None:
        if new == f"{B}/{TP}":
            raise OSError(errno.EIO, new)
        rename(old, new)

    disk.rename = broken  # type: ignore[method-assign]
    with pytest.raises(LogDirFailed):
        manager.swap(TP)
    assert plain(disk) == [f"{A}/{TP}"]


def test_the_name_of_a_copy_is_kafkas() -> None:
    name = f"{TP}{new_suffix()}"
    assert name.startswith("orders-0.")
    assert name.endswith("-future")
    assert len(name) == len("orders-0.") + 32 + 7


def test_a_copy_that_a_crash_left_with_an_earlier_epochs_records_is_cut_to_where_it_agrees() -> None:
    """REP-6: the log was cut, and filled in a later epoch; of its copy, on the other disk, the cut was lost."""
    disk = MemoryDisk()
    manager = with_a_copy(disk)
    log, future = manager.get(TP), manager.futures.get(TP)
    assert log is not None
    assert future is not None
    run(future.flush())
    path = future.segments[-1].path
    manager.futures.remove(TP)  # as if the cut below had not come to its disk
    agreed = future.segments[-1].base_offset + 2
    log.truncate_to(agreed)
    fill(log, 8, epoch=9)
    run(log.flush())
    again = started(disk.after_kill())
    found, copy = again.get(TP), again.futures.get(TP)
    assert found is not None
    assert copy is not None
    assert copy.segments[-1].path == path
    assert copy.log_end_offset == agreed
    assert everything(found).startswith(everything(copy))


def test_a_copy_that_shares_no_epoch_with_the_log_begins_anew() -> None:
    disk = MemoryDisk()
    manager = with_a_copy(disk)
    log, future = manager.get(TP), manager.futures.get(TP)
    assert log is not None
    assert future is not None
    run(future.flush())
    manager.futures.remove(TP)
    log.truncate_fully_and_start_at(0)
    fill(log, 8, epoch=9)
    copy = started(disk.after_kill()).futures.get(TP)
    assert copy is not None
    assert copy.log_end_offset == 0


def test_the_file_that_says_complete_does_not_come_back() -> None:
    """After the next move two logs would be complete, and none the newer one."""
    disk = MemoryDisk()
    manager = with_a_copy(disk)
    take_place(manager)
    survivor = disk.after_power_loss(Random(1), Loss("none", "all"))
    assert survivor.is_directory(f"{B}/{TP}")
    assert not survivor.exists(f"{B}/{TP}/{REPLACES_CURRENT}")
