"""EIO on read: the log directory has failed, the other one goes on, and nothing is taken for gone or torn (LOG-6, FLT-29)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from broker.settings.config import TopicConfig
from broker.storage import closed_logs
from broker.storage.log import Log, LogDirFailed
from broker.storage.log_manager import LogManager
from broker.storage.upkeep import LogSchedule
from protocol.errors import KafkaError
from protocol.kafka.framing import StoredBytes
from protocol.types import TopicPartition
from tests.support import logs
from tests.support.busy_disk import run
from tests.support.logs import SMALL, batch, everything, failures_of, fill, log_of
from tools.sim.world.disk import MemoryDisk

TOPIC_ID = "qK2jlmhTQcuDVtQ7zJ_nNw"
A, B = "/a", "/b"
IN_A, IN_B, LATE = (TopicPartition("orders", number) for number in range(3))
OLD = 10**9
"""ms; retention is about to look at the segments' times."""


def started(disk: MemoryDisk, config: TopicConfig = SMALL) -> LogManager:
    manager = logs.started(disk, A, B, config=config, schedule=LogSchedule(retention_s=0))
    failures_of(manager)
    return manager


def filled(*, is_clean: bool = False) -> tuple[MemoryDisk, dict[TopicPartition, bytes]]:
    """A log in each directory, several segments, and what is in them."""
    disk = MemoryDisk()
    manager = started(disk)
    data = {}
    for tp, directory in ((IN_A, A), (IN_B, B)):
        log = manager.get_or_create(tp, TOPIC_ID, {})
        assert log.log_dir == directory
        fill(log, 20)
        run(log.flush())
        data[tp] = everything(log)
    run(manager.checkpoints.write_high_watermarks({IN_A: 40, IN_B: 40}.get))
    if is_clean:
        run(manager.shutdown())
    return disk.after_kill(), data


def retain(log: Log) -> None:
    log.config = replace(log.config, retention_ms=OLD)
    log.delete_old_segments(log.log_end_offset, OLD)


USES: dict[str, Callable[[Log], object]] = {
    "read": lambda log: run(log.read_cold(0, 1000, log.log_end_offset, True)),
    "find a time": lambda log: log.offset_for_timestamp(1_020, log.log_end_offset),
    "find the newest": lambda log: log.max_timestamp_offset(),
    "truncate": lambda log: log.truncate_to(3),
    "retain": retain,
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("is_cold", [False, True])
def test_every_method_that_reads_reports_a_failed_disk(use: Callable[[Log], object], is_cold: bool) -> None:
    """And the disk is not asked again, though it is well again: a log with a hole in time is none."""
    disk, data = filled(is_clean=True)
    manager = started(disk)
    disk.fail("read", below=A)
    disk.is_cold = is_cold
    log = log_of(manager, IN_A)
    with pytest.raises(LogDirFailed) as failed:
        use(log)
    assert failed.value.directory == A
    disk.failures.clear()
    disk.is_cold = False
    with pytest.raises(LogDirFailed):
        log.append_as_leader(batch(), 1)
    assert everything(log_of(manager, IN_B)) == data[IN_B]


def test_records_that_were_to_be_sent_from_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client does not take all of them, and the rest is read."""
    monkeypatch.setattr("broker.storage.segment.SENT_FROM_FILE", 1)
    disk, _ = filled(is_clean=True)
    manager = started(disk)
    log = log_of(manager, IN_A)
    everything(log)

    async def read() -> StoredBytes | None:
        return log.read(0, 1000, log.log_end_offset, True, may_be_stored=True).stored

    stored = run(read())
    assert stored is not None
    rest = stored.read(10)
    assert len(rest) == stored.size - 10
    disk.truncate_path(log.segments[0].path, stored.size - 1)
    with pytest.raises(KafkaError, match="ends before"):
        stored.read(10)  # an answer with fewer bytes than it says would confuse the client
    assert manager.offline_dirs == ()
    disk.fail("read", below=A)
    with pytest.raises(LogDirFailed):
        stored.read(10)
    assert manager.offline_dirs == (A,)


@pytest.mark.parametrize("operation", ["read", "read_file", "list"])
@pytest.mark.parametrize("is_clean", [False, True])
def test_a_start_does_not_change_a_directory_that_cannot_be_read(operation: str, is_clean: bool) -> None:
    """Nothing in the directory is removed or written, its logs are not created elsewhere, and its open files are closed."""
    disk, data = filled(is_clean=is_clean)
    if operation == "read":
        disk.remove(f"{A}/{closed_logs.FILE}")  # with it, a start reads no log
    before = {path: bytes(inode.content) for path, inode in disk.names.items() if inode is not None}
    disk.fail(operation, below=f"{A}/{IN_A}" if operation == "read" else A)
    manager = started(disk)
    assert manager.offline_dirs == (A,)
    assert manager.get(IN_A) is None
    assert everything(log_of(manager, IN_B)) == data[IN_B]
    logs = {path: content for path, content in before.items() if path.startswith(A) and path.endswith(".log")}
    assert {path: disk.content(path) for path in logs} == logs
    assert not [path for path in disk._opened_as.values() if path.startswith(A)]
    run(manager.shutdown())
    again = started(disk.after_kill())
    assert everything(log_of(again, IN_A)) == data[IN_A]


@pytest.mark.parametrize("is_clean", [False, True])
def test_each_read_of_a_recovery_that_fails(is_clean: bool) -> None:
    """An unreadable batch is not a torn tail: when the disk works again, nothing is missing."""
    intact, data = filled(is_clean=is_clean)
    intact.remove(f"{A}/{closed_logs.FILE}")  # if that cannot be read, the logs are
    for number in range(1000):
        disk = intact.after_kill()
        left = [number]
        for name in ("read", "read_file"):
            _fail_once(disk, name, left)
        manager = started(disk)
        if left[0] >= 0:
            break
        assert manager.offline_dirs == (A,), number
        again = started(disk.after_kill())
        assert everything(log_of(again, IN_A)) == data[IN_A], number
        assert log_of(again, IN_A).topic_id == TOPIC_ID
        assert again.checkpoints.read_high_watermarks() == {IN_A: 40, IN_B: 40}
    assert number > 5


def _fail_once(disk: MemoryDisk, name: str, left: list[int]) -> None:
    """The call below A with that number (counted in `left`, for several kinds of calls) fails."""
    real = disk._call

    def call(operation: str, path: str) -> None:
        if operation == name and path.startswith(A):
            left[0] -= 1
            if left[0] == -1:
                raise OSError(5, "Input/output error", path)
        real(operation, path)

    disk._call = call  # type: ignore[method-assign]


def test_high_watermarks_that_cannot_be_read_fail_only_their_directory() -> None:
    disk, _ = filled()
    manager = started(disk)
    disk.fail("read_file", below=A)
    assert manager.checkpoints.read_high_watermarks() == {IN_B: 40}
    assert manager.offline_dirs == (A,)


def test_a_log_is_created_in_the_directory_that_works() -> None:
    """An earlier log of that name has left its offsets in the checkpoints of one that cannot be read (BUG-24)."""
    disk, _ = filled()
    manager = started(disk)
    manager.delete(IN_A)
    disk.fail("read_file", below=f"{A}/replication-offset")
    assert manager.get_or_create(IN_A, TOPIC_ID, {}).log_dir == B
    assert manager.offline_dirs == (A,)
    assert log_of(manager, IN_A).log_end_offset == 0
    assert manager.get_or_create(LATE, TOPIC_ID, {}).log_dir == B
