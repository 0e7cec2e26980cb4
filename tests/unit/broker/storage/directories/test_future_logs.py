"""Moves between log directories on the disk: copies, how they replace a log, and what a crash leaves (LOG-6, INV-21).

Power lost at every call of a move: `test_move_crash_points.py`.
"""

from __future__ import annotations

import errno
from random import Random

import pytest

from broker.storage.directories import future_logs
from broker.storage.directories.future_logs import REPLACES_CURRENT
from broker.storage.directories.log_directory import LogDirectoryError
from broker.storage.failures import is_passing
from broker.storage.log import Log, LogDirFailed
from broker.storage.log_manager import LogManager
from protocol.types import TopicPartition
from tests.support.busy_disk import run
from tests.support.logs import Failures, check, everything, fill, log_of, once_before, started
from tools.sim.world.disk import Loss, MemoryDisk

TP = TopicPartition("orders", 0)
TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAWA"
A, B = "/a", "/b"


class Copied:
    """The log in /a and a complete copy in /b, both synced."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.manager = started(self.disk, A, B)
        self.log = self.manager.get_or_create(TP, TOPIC_ID, {})
        assert self.log.log_dir == A
        fill(self.log, 12)
        run(self.log.flush())
        self.data = everything(self.log)
        self.copy = self.manager.make_future(TP, B)
        self.copy.append_as_follower(memoryview(self.data))
        run(self.copy.flush())

    def take_place(self) -> None:
        """As `ReplicaMoves` does."""
        self.manager.futures.declare_complete(self.copy)
        self.manager.futures.finish(*self.manager.swap(TP))


@pytest.fixture
def it() -> Copied:
    return Copied()


def plain(disk: MemoryDisk) -> list[str]:
    return [path for path in (f"{A}/{TP}", f"{B}/{TP}") if disk.is_directory(path)]


def copy_of(manager: LogManager) -> Log:
    found = manager.futures.get(TP)
    assert found is not None
    return found


def refuse(disk: MemoryDisk, name: str, path: str, number: int = errno.EIO) -> None:
    """That method fails for that path."""
    original = getattr(disk, name)

    def broken(*paths: str) -> object:
        if paths[-1].startswith(path):
            raise OSError(number, path)
        return original(*paths)

    setattr(disk, name, broken)


def test_a_copy_takes_the_place_of_the_log(it: Copied) -> None:
    it.log.leader_epochs.assign(7, it.log.log_end_offset)
    it.take_place()
    swapped = log_of(it.manager)
    assert (swapped.log_dir, swapped.directory) == (B, f"{B}/{TP}")
    assert swapped.leader_epochs.latest_epoch() == 7, "BUG-15: an epoch without a record"
    assert everything(swapped) == it.data
    fill(swapped, 5, epoch=7)  # rolls: new files get the new name
    check(swapped)
    assert not [name for name in it.disk.list(A) if name.startswith("orders")]
    assert [name for name in it.disk.list(B) if name.startswith("orders")] == [str(TP)]
    assert not it.disk.exists(f"{B}/{TP}/{REPLACES_CURRENT}")
    data = everything(swapped)
    run(it.manager.shutdown())
    again = started(it.disk, A, B)
    assert everything(log_of(again)) == data
    assert len(again.futures) == 0


def test_a_copy_that_cannot_be_cut_now_is_cut_before_it_continues(it: Copied) -> None:
    """The log is cut all the same: a caller that is told otherwise keeps a high watermark beyond the end."""
    once_before(it.disk, "truncate", lambda: it.disk.fail("open_to_keep", errno.EMFILE))
    it.log.truncate_to(7)
    assert (it.log.log_end_offset, it.copy.log_end_offset) == (6, 24)
    it.disk.failures.clear()
    fill(it.log, 12, epoch=9)
    it.manager.futures.follow(it.log)
    assert everything(it.log).startswith(everything(it.copy))
    assert it.copy.log_end_offset == 6
    it.manager.futures.follow(it.log)
    assert it.copy.log_end_offset == 6


def test_a_copy_whose_disk_fails_does_not_fail_its_log(it: Copied) -> None:
    it.disk.fail("truncate", below=B)
    it.log.truncate_to(7)
    assert it.manager.offline_dirs == (B,)
    fill(it.log, 1, epoch=9)
    check(it.log)


@pytest.mark.parametrize("b_is_complete", [True, False])
def test_a_power_loss_may_keep_the_names_of_two_file_systems_from_different_steps(
    it: Copied, b_is_complete: bool
) -> None:
    """Both at their name: with the file the second is the newer one; without it a person must say."""
    if b_is_complete:
        it.manager.futures.declare_complete(it.copy)
    it.disk.rename(it.copy.directory, f"{B}/{TP}")
    survivor = it.disk.after_kill()
    if not b_is_complete:
        with pytest.raises(LogDirectoryError, match="move one of them away by hand"):
            started(survivor, A, B)
        return
    found = log_of(started(survivor, A, B))
    assert found.log_dir == B
    assert everything(found) == it.data
    assert plain(survivor) == [f"{B}/{TP}"]


def test_a_copy_whose_removal_a_power_loss_has_undone_does_not_stop_a_start(it: Copied) -> None:
    """The move to /b was called off for one to /c, and only the volume of /c has kept that."""
    other = f"/c/{TP}.{'0a' * 16}-future"
    it.disk.make_directory(other)
    it.disk.write_new(f"{other}/{0:020d}.log", b"")
    again = started(it.disk.after_kill(), A, B, "/c")
    assert everything(log_of(again)) == it.data
    assert copy_of(again).log_dir == B
    assert not [name for name in again._filesystem.list("/c") if name.startswith("orders")]


def test_nothing_is_decided_or_removed_while_a_directory_is_offline(it: Copied) -> None:
    """The log is renamed to `-delete`, and the disk with the complete copy does not come back. The log must still exist."""
    it.manager.futures.declare_complete(it.copy)
    it.disk.rename(f"{A}/{TP}", f"{A}/{TP}.0123456789abcdef0123456789abcdef-delete")
    survivor = it.disk.after_kill()
    refuse(survivor, "lock", B)
    again = started(survivor, A, B)
    assert again.offline_dirs == (B,)
    assert again.get(TP) is None
    assert [name for name in survivor.list(A) if name.endswith("-delete")]


def test_what_cuts_the_log_cuts_the_copy(it: Copied) -> None:
    it.log.truncate_to(9)
    assert it.copy.log_end_offset == it.log.log_end_offset
    assert everything(it.copy) == everything(it.log)
    it.log.truncate_fully_and_start_at(4)
    assert it.copy.log_end_offset <= 4


def test_deletion_removes_the_copy_too_and_old_checkpoints_are_not_used(it: Copied) -> None:
    run(it.manager.checkpoints.write_recovery_points())
    it.manager.delete(TP)
    assert it.manager.futures.get(TP) is None
    assert not [name for name in it.disk.list(B) if name.startswith("orders")]
    assert it.manager.get_or_create(TP, TOPIC_ID, {}).log_end_offset == 0
    assert b"orders" not in it.disk.content(f"{B}/recovery-point-offset-checkpoint")


def test_a_log_that_moves_back_does_not_find_its_old_recovery_point(it: Copied) -> None:
    """BUG-24: the copy is new, and nothing in it is synced."""
    run(it.manager.checkpoints.write_recovery_points())
    assert b"orders 0 24" in it.disk.content(f"{A}/recovery-point-offset-checkpoint")
    it.take_place()
    it.manager.make_future(TP, A)
    assert b"orders" not in it.disk.content(f"{A}/recovery-point-offset-checkpoint")


def test_a_new_log_is_placed_where_an_admin_chose_or_where_the_fewest_logs_are() -> None:
    """LOG-6, KIP-113."""
    manager = started(MemoryDisk(), A, B)
    logs = [manager.get_or_create(TopicPartition("t", number), TOPIC_ID, {}) for number in range(5)]
    assert [log.log_dir for log in logs] == [A, B, A, B, A]
    assert manager.get_or_create(TopicPartition("t", 0), TOPIC_ID, {}) is logs[0]
    wanted = TopicPartition("t", 9)
    manager.futures.preferred[wanted] = A
    assert manager.get_or_create(wanted, TOPIC_ID, {}).log_dir == A
    assert wanted not in manager.futures.preferred


def test_only_the_newest_chosen_directories_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client may choose directories for replicas of any name."""
    monkeypatch.setattr(future_logs, "PREFERRED_MAX", 3)
    futures = started(MemoryDisk(), A, B).futures
    for number in (0, 1, 2, 0, 3):
        futures.prefer(TopicPartition("t", number), f"/disk-{number}")
    assert [tp.partition for tp in futures.preferred] == [2, 0, 3]


def test_a_directory_that_was_removed_is_not_made_again(disk: MemoryDisk) -> None:
    manager = started(disk, A, B)
    disk.remove_tree(A)
    with pytest.raises(LogDirFailed) as failed:
        manager.get_or_create(TP, TOPIC_ID, {})
    assert failed.value.directory == A
    assert not disk.is_directory(A)


def test_a_failing_rename_of_the_copy_leaves_the_log(it: Copied) -> None:
    refuse(it.disk, "rename", f"{B}/{TP}")
    with pytest.raises(LogDirFailed):
        it.manager.swap(TP)
    assert plain(it.disk) == [f"{A}/{TP}"]


@pytest.mark.parametrize("place", [f"{A}/{TP}.", f"{B}/{TP}"], ids=["of the log", "of the copy"])
def test_a_rename_for_which_there_is_no_memory_takes_the_replica_offline(it: Copied, place: str) -> None:
    """The log was closed before, so it cannot be used again, and nobody else tells those who use it (FLT-31)."""
    failures = Failures()
    it.manager.serve(failures, lambda tp: 0)
    refuse(it.disk, "rename", place, errno.ENOMEM)
    with pytest.raises(LogDirFailed) as raised:
        it.manager.swap(TP)
    assert not is_passing(raised.value)
    assert (failures.replicas, failures.directories) == ([TP], [])
    assert plain(it.disk) == [f"{A}/{TP}"]
    with pytest.raises(LogDirFailed):
        it.manager.get_or_create(TP, None, {})


def test_a_copy_that_could_not_be_renamed_is_removed_by_the_next_try(it: Copied) -> None:
    it.disk.fail("rename", errno.ENOMEM)
    with pytest.raises(LogDirFailed):
        it.manager.delete(TP)
    it.disk.failures.clear()
    assert (copy_of(it.manager), log_of(it.manager)) == (it.copy, it.log)
    it.manager.delete(TP)
    assert not [name for place in (A, B) for name in it.disk.list(place) if name.startswith("orders")]


@pytest.mark.parametrize("agreed", [0, 18])
def test_a_copy_that_a_crash_left_with_an_earlier_epochs_records_is_cut_to_where_it_agrees(
    it: Copied, agreed: int
) -> None:
    """REP-6: the log was cut and filled in a later epoch. A crash undid the cut of its copy on the other disk."""
    it.manager.futures.remove(TP)  # as if the cut below had not come to its disk
    it.log.truncate_to(agreed)
    fill(it.log, 8, epoch=9)
    run(it.log.flush())
    again = started(it.disk.after_kill(), A, B)
    copy = copy_of(again)
    assert copy.log_end_offset == agreed
    assert everything(log_of(again)).startswith(everything(copy))


def test_replaces_current_does_not_come_back_after_a_power_loss(it: Copied) -> None:
    """Otherwise two logs would count as complete after the next move."""
    it.take_place()
    survivor = it.disk.after_power_loss(Random(1), Loss("none", "all"))
    assert survivor.is_directory(f"{B}/{TP}")
    assert not survivor.exists(f"{B}/{TP}/{REPLACES_CURRENT}")
