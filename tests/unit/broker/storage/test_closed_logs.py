"""A start after a clean stop opens no file of a log, and believes what the stop has written only while nobody has used the logs (LOG-2)."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.settings.config import TopicConfig
from broker.storage import checkpoints, closed_logs, recovery
from broker.storage.closed_logs import ClosedLog, ClosedSegment, decode, encode
from broker.storage.directories.log_directory import CLEAN_SHUTDOWN, LogDirectory, LogDirectoryError
from broker.storage.disk.filesystem import FileStamp, FileSystem
from broker.storage.failures import LogUnavailable
from broker.storage.log import Log
from broker.storage.log_manager import LogManager
from broker.storage.log_types import AppendOrigin
from broker.storage.producers.produced_batches import plain
from broker.storage.segment import SegmentEnd
from protocol.kafka.control_records import Marker, marker_batch
from protocol.kafka.record_batch import TRANSACTIONAL_BIT, build_batch
from protocol.types import TopicPartition
from tests.support.busy_disk import run
from tests.support.crash_points import Workload
from tests.support.logs import LOG_DIR, SMALL, TP, batch, check, everything, fill, log_of, produced, split, started
from tools.sim.world.disk import MemoryDisk

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAWA"
MARKER = f"{LOG_DIR}/{CLEAN_SHUTDOWN}"
CLOSED = f"{LOG_DIR}/{closed_logs.FILE}"
DIRECTORY = f"{LOG_DIR}/{TP}"
BATCHES = 9
STAMP = FileStamp(13, 1_700_000_000_123_456_789, 4711)


# -- the file ---------------------------------------------------------------------------------------------------------

OFFSETS = st.integers(0, 2**62)
LOGS = st.builds(
    ClosedLog,
    st.none() | st.just(TOPIC_ID),
    st.lists(st.tuples(st.integers(0, 2**31 - 1), OFFSETS), max_size=4),
    st.lists(st.builds(ClosedSegment, OFFSETS, OFFSETS, OFFSETS), min_size=1, max_size=4),
    st.builds(SegmentEnd, OFFSETS, st.integers(-1, 2**62), OFFSETS, st.integers(-1, 2**62), st.integers(0, 2**31)),
    st.lists(OFFSETS, max_size=3),
    st.binary(max_size=100),
)
NAMES = st.builds("{}-{}".format, st.sampled_from(("orders", "a.b_c", "x-1")), st.integers(0, 9999))


@given(st.dictionaries(NAMES, LOGS, max_size=4))
def test_the_file_says_what_was_written(logs: dict[str, ClosedLog]) -> None:
    found = decode(encode(logs, STAMP), STAMP, CLOSED)
    assert {name: found.take(name) for name in logs} == logs
    assert [found.take(name) for name in logs] == [None] * len(logs), "once"


@given(st.dictionaries(NAMES, LOGS, min_size=1, max_size=2), st.data())
def test_a_torn_or_damaged_file_says_nothing(logs: dict[str, ClosedLog], data: st.DataObject) -> None:
    whole = encode(logs, STAMP)
    at = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytearray(whole)
    flipped[at] ^= 1 << data.draw(st.integers(0, 7))
    zeros = whole[:at] + bytes(len(whole) - at)
    for broken in (bytes(flipped), whole[:at], zeros, whole + b"\n", b""):
        assert len(decode(broken, STAMP, CLOSED)) == 0


@pytest.mark.parametrize("stamp", [STAMP._replace(**{field: 1}) for field in STAMP._fields], ids=STAMP._fields)
def test_a_file_of_another_stop_says_nothing(stamp: FileStamp) -> None:
    log = ClosedLog(None, [], [ClosedSegment(0, 0, 0)], SegmentEnd(0, -1, 0, -1, 0), [], b"")
    assert len(decode(encode({"orders-0": log}, STAMP), stamp, CLOSED)) == 0


def test_a_line_of_another_form_says_nothing_of_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    log = ClosedLog(None, [], [ClosedSegment(0, 0, 0)], SegmentEnd(0, -1, 0, -1, 0), [], b"")
    monkeypatch.setattr(closed_logs.json, "dumps", lambda row, separators: "[1, 2]")
    found = decode(encode({"orders-0": log}, STAMP), STAMP, CLOSED)
    assert len(found) == 1
    assert found.take("orders-0") is None


# -- which way a log is opened ----------------------------------------------------------------------------------------


class Openings:
    """How logs are opened from now on."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.read: list[str] = []
        self.as_closed: list[str] = []
        open_log, reopen_log = recovery.open_log, recovery.reopen_log

        def opens(filesystem: FileSystem, directory: str, *args: Any, **settings: Any) -> Any:
            self.read.append(directory)
            return open_log(filesystem, directory, *args, **settings)

        def reopens(filesystem: FileSystem, directory: str, *args: Any, **settings: Any) -> Any:
            parts = reopen_log(filesystem, directory, *args, **settings)
            if parts is not None:
                self.as_closed.append(directory)
            return parts

        patch.setattr(recovery, "open_log", opens)
        patch.setattr(recovery, "reopen_log", reopens)


@pytest.fixture
def openings(monkeypatch: pytest.MonkeyPatch) -> Openings:
    return Openings(monkeypatch)


def closed_disk(*, batches: int = 9) -> tuple[MemoryDisk, bytes]:
    """A disk after a clean stop, with one log of several segments, an idempotent producer and two epochs; and the log's bytes."""
    disk = MemoryDisk()
    manager = started(disk)
    log = manager.get_or_create(TP, TOPIC_ID, {})
    fill(log, batches, epoch=2)
    log.append_as_leader(produced(7, 0), 5)
    log.leader_epochs.assign(9, log.log_end_offset)
    data = everything(log)
    run(manager.shutdown())
    return disk, data


def test_a_start_opens_no_file_of_a_log(openings: Openings, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, data = closed_disk()
    calls: list[tuple[str, str]] = []
    original = disk._call
    with monkeypatch.context() as patch:
        patch.setattr(disk, "_call", lambda what, path: (calls.append((what, path)), original(what, path)))
        manager = started(disk)
    assert [what for what, path in calls if path.startswith(DIRECTORY)] == ["list"]
    assert (openings.as_closed, openings.read) == ([DIRECTORY], [])
    assert not disk.exists(CLOSED)
    assert not disk.exists(MARKER)
    log = log_of(manager)
    assert log.topic_id == TOPIC_ID
    assert log.leader_epochs.entries == [(2, 0), (5, 18), (9, 20)]
    assert log.producers.state.producers.keys() == {7}
    assert everything(log) == data
    check(log)


def test_on_a_real_file_system(tmp_path: Path, openings: Openings) -> None:
    """The marker keeps its inode when it gets its name, and a log file its time."""
    path = str(tmp_path / "data")
    manager = started(FileSystem(), path)
    fill(manager.get_or_create(TP, TOPIC_ID, {}), 20)
    data = everything(log_of(manager))
    run(manager.shutdown())
    openings.read.clear()
    again = started(FileSystem(), path)
    assert (openings.as_closed, openings.read) == ([f"{path}/{TP}"], [])
    assert everything(log_of(again)) == data
    check(log_of(again))
    run(again.shutdown())


def test_a_copied_directory_is_read(tmp_path: Path, openings: Openings) -> None:
    """Also when the copy has the times of the original."""
    manager = started(FileSystem(), str(tmp_path / "data"))
    fill(manager.get_or_create(TP, TOPIC_ID, {}), 20)
    data = everything(log_of(manager))
    run(manager.shutdown())
    copied = str(shutil.copytree(tmp_path / "data", tmp_path / "copy"))
    again = started(FileSystem(), copied)
    assert (openings.as_closed, openings.read) == ([], [f"{copied}/{TP}"])
    assert everything(log_of(again)) == data
    run(again.shutdown())


def append_plain(log: Log) -> None:
    """As the small requests of a turn of the loop are appended, in one write that needs several entries of the indexes."""
    sent = [batch(mark=mark, timestamp=5_000 + mark) for mark in range(3)]
    gathered = [plain(one, one, 0, len(one)) for one in sent]
    assert len(log.append_plain([one for one in gathered if one is not None], 9)) == len(sent)


def test_a_log_that_is_used_after_it_was_opened_so(openings: Openings) -> None:
    """Appends, reads, cuts and rolls, before anything else has loaded the indexes."""
    disk, data = closed_disk()
    uses: list[Callable[[Log], object]] = [
        append_plain,
        lambda log: fill(log, 1, epoch=9),
        lambda log: fill(log, 12, epoch=9),
        lambda log: log.truncate_to(log.log_end_offset - 1),
        lambda log: log.truncate_to(log.segments[-1].base_offset),
        lambda log: log.offset_for_timestamp(1_050, log.log_end_offset),
        lambda log: log.max_timestamp_offset(),
        lambda log: run(log.read_cold(log.log_end_offset - 1, 1000, log.log_end_offset, True)),
        lambda log: run(log.flush()),
    ]
    for use in uses:
        for stops in (False, True):
            manager = started(used := disk.after_kill())
            log = log_of(manager)
            use(log)
            found = everything(log)
            assert found.startswith(data[: len(found)])
            check(log)
            if stops:
                run(manager.shutdown())
            else:
                run(log.flush())
                run(manager.checkpoints.write_recovery_points())
            again = log_of(started(used.after_kill()))
            assert everything(again) == found
            check(again)
            assert (DIRECTORY in openings.read) is not stops
            openings.read.clear()


def test_a_few_small_batches_are_appended_without_the_indexes_which_a_stop_completes() -> None:
    config = TopicConfig(index_interval_bytes=1000)
    disk = MemoryDisk()
    manager = started(disk, config=config)
    fill(manager.get_or_create(TP, TOPIC_ID, {}), 3)
    run(manager.shutdown())
    for at in range(2, 30):
        manager = started(disk, config=config)
        log = log_of(manager)
        segment = log.segments[-1]
        since_index = segment.bytes_since_index
        size = log.append_as_leader(batch(timestamp=1000 * at), 0).size_bytes
        assert segment.index.is_loaded == (since_index + size > 1000)
        run(manager.shutdown())
    assert len(segment.index) > 1, "entries go on where they were"
    manager = started(disk, config=config)
    check(log_of(manager))
    assert log_of(manager).segments[-1].newest_timestamp() == 29_001
    assert log_of(manager).segments[-1].time_index.last_in_file() == (29_001, log_of(manager).log_end_offset - 1)


@pytest.mark.parametrize("lacks", ["index", "timeindex", "log", "log of a wrong index"])
def test_an_append_without_a_descriptor_for_the_indexes_is_refused_and_succeeds_later(lacks: str) -> None:
    """Also if one of the two indexes was read already."""
    config = TopicConfig(index_interval_bytes=150)
    disk = MemoryDisk()
    manager = started(disk, config=config)
    fill(manager.get_or_create(TP, TOPIC_ID, {}), 5)
    run(manager.shutdown())
    if lacks == "log of a wrong index":
        disk.cut(f"{DIRECTORY}/{_bases(disk)[-1]}.timeindex", 5)
    manager = started(disk, config=config)
    log = log_of(manager)
    operation = "open_to_keep" if lacks.startswith("log") else "read_file"
    disk.fail(operation, errno.EMFILE, below=f"{DIRECTORY}/{_bases(disk)[-1]}.{lacks.partition(' ')[0]}")
    for _ in range(2):
        with pytest.raises(LogUnavailable):
            fill(log, 1)
    disk.failures.clear()
    fill(log, 5)
    assert log.log_end_offset == 20
    check(log)
    data = everything(log)
    run(manager.shutdown())
    assert everything(log_of(started(disk, config=config))) == data


def test_the_sizes_of_the_indexes_count_for_a_roll_before_they_are_loaded() -> None:
    """`segment.index.bytes`: a full index ends the segment."""
    config = TopicConfig(index_interval_bytes=0, segment_index_bytes=12 * 4, segment_bytes=2**20)
    disk = MemoryDisk()
    manager = started(disk, config=config)
    fill(manager.get_or_create(TP, TOPIC_ID, {}), 1)
    for _ in range(30):
        run(manager.shutdown())
        manager = started(disk, config=config)
        fill(log_of(manager), 1)
    assert len(log_of(manager).segments) > 4
    check(log_of(manager))


DEEDS = ("lead", "follow", "flush", "truncate", "delete records", "retain", "restart at", "compact", "stop")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(DEEDS), min_size=3, max_size=12), st.integers(0, 99))
@example(["lead", "lead", "delete records", "truncate"], 36)
def test_both_ways_find_the_same(deeds: list[str], seed: int) -> None:
    """Whatever was done before the stop. And what is done afterwards has the same result."""
    work = Workload(seed, TopicConfig(segment_bytes=480, index_interval_bytes=150, retention_bytes=1500), losses=())
    random = Random(seed)
    keyed = TopicPartition("keyed", 0)

    async def scenario() -> None:
        await work.manager.start()
        await work.create(TP, TOPIC_ID)
        await work.create(keyed, TOPIC_ID, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"})
        work.append(keyed, 3, epoch=0)
        for epoch, deed in enumerate(deeds):
            log = work.log(TP)
            offset = random.randint(log.log_start_offset, log.log_end_offset)
            match deed:
                case "lead":
                    work.lead(TP, epoch)
                    work.append(
                        TP, random.randrange(8), epoch=epoch, as_follower=True
                    )  # which checks no producer after a cut
                case "follow":
                    work.append(TP, random.randrange(8), epoch=epoch, as_follower=True)
                case "flush":
                    await work.flush(TP)
                case "truncate":
                    work.truncate(TP, offset)
                case "delete records":
                    work.delete_records(TP, offset)
                case "retain":
                    await work.retain()
                case "restart at":
                    work.restart_at(TP, log.log_end_offset + 3)
                case "compact":
                    work.append(keyed, 9, epoch=epoch)
                    await work.compact()
                case "stop":
                    await work.bounce()
        await work.manager.shutdown()

    run(scenario())
    as_closed, read = work.disk.after_kill(), work.disk.after_kill()
    read.remove(CLOSED)
    found = [_opened_and_used(disk) for disk in (as_closed, read)]
    assert found[0] == found[1]


def _opened_and_used(disk: MemoryDisk) -> list[Any]:
    """All that a start finds; then the files of the logs, after some use and another stop."""
    manager = started(disk, config=SMALL)
    found: list[Any] = []
    for log in sorted(manager.logs(), key=lambda log: log.topic_partition):
        state = log.producers.state
        found.append(
            (
                log.topic_partition,
                log.topic_id,
                (log.log_start_offset, log.log_end_offset, log.recovery_point, log.cleaned_up_to, log.holes_up_to),
                log.leader_epochs.entries,
                (state.end_offset, state.producers, state.ongoing, log.producers.snapshots),
                [(segment.base_offset, segment.next_offset, segment.size) for segment in log.segments],
                [(segment.newest_timestamp(), segment.first_batch_timestamp()) for segment in log.segments],
                log.segments[-1].max_timestamp_offset,
            )
        )
        fill(log, 5, epoch=100, timestamp=10**12)
        log.truncate_to(log.log_end_offset - 3)
        log.append_as_leader(produced(7, 0, timestamp=2 * 10**12), 101)
        check(log, is_gapless=False)
    run(manager.shutdown())
    # An opened log counts the bytes since its last index entry from 0 again, or goes on: the indexes may differ.
    kinds = (".log", ".snapshot", checkpoints.LEADER_EPOCHS)
    return [found, {path: disk.content(path) for path in disk.names if path.endswith(kinds)}]


# -- what must not be believed ----------------------------------------------------------------------------------------


def used_by_kafka(disk: MemoryDisk) -> None:
    """Kafka, or an earlier ottla, appends and stops cleanly. It does not know the file, which stays."""
    stale = disk.content(CLOSED)
    manager = started(disk)
    log = log_of(manager)
    fill(log, 2, epoch=20, timestamp=5_000)
    log.append_as_leader(produced(8, 0, timestamp=6_000), 21)
    run(manager.shutdown())
    disk.write_new(CLOSED, stale)


def used_by_kafka_that_only_led(disk: MemoryDisk) -> None:
    """No log file has changed, but an epoch has begun."""
    stale = disk.content(CLOSED)
    manager = started(disk)
    log_of(manager).leader_epochs.assign(30, log_of(manager).log_end_offset)
    run(manager.shutdown())
    disk.write_new(CLOSED, stale)


def used_and_killed(disk: MemoryDisk) -> None:
    """The file that was not to stay has stayed, but there is no marker."""
    stale = disk.content(CLOSED)
    manager = started(disk)
    fill(log_of(manager), 2, epoch=20, timestamp=5_000)
    run(log_of(manager).flush())
    run(manager.checkpoints.write_recovery_points())
    next(iter(manager.log_directories)).release()  # as a kill does
    disk.write_new(CLOSED, stale)


def segment_cut_by_hand(disk: MemoryDisk) -> None:
    path = f"{DIRECTORY}/{_bases(disk)[-1]}.log"
    disk.cut(path, len(disk.content(path)) - 3)


def segment_removed_by_hand(disk: MemoryDisk) -> None:
    for kind in ("log", "index", "timeindex"):
        disk.remove(f"{DIRECTORY}/{_bases(disk)[-1]}.{kind}")


def index_removed_by_hand(disk: MemoryDisk) -> None:
    disk.remove(f"{DIRECTORY}/{_bases(disk)[-1]}.index")


def topic_id_removed_by_hand(disk: MemoryDisk) -> None:
    disk.remove(f"{DIRECTORY}/partition.metadata")


def leftover_put_beside(disk: MemoryDisk) -> None:
    disk.write_new(f"{DIRECTORY}/{_bases(disk)[0]}.log.cleaned", b"x")


def log_start_beyond_the_end(disk: MemoryDisk) -> None:
    disk.write_new(f"{LOG_DIR}/{checkpoints.LOG_STARTS}", b"0\n1\norders 0 1000\n")


def _bases(disk: MemoryDisk) -> list[str]:
    names = (path.rpartition("/")[2] for path in disk.names if path.startswith(f"{DIRECTORY}/"))
    return sorted(name.removesuffix(".log") for name in names if name.endswith(".log"))


CHANGES = [
    used_by_kafka,
    used_by_kafka_that_only_led,
    used_and_killed,
    segment_cut_by_hand,
    segment_removed_by_hand,
    index_removed_by_hand,
    topic_id_removed_by_hand,
    leftover_put_beside,
    log_start_beyond_the_end,
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_directory_that_was_changed_after_the_stop_is_read(
    change: Callable[[MemoryDisk], object], openings: Openings
) -> None:
    disk, _ = closed_disk()
    change(disk)
    without = disk.after_kill()
    without.remove(CLOSED)
    openings.as_closed.clear()
    found, expected = log_of(started(disk)), log_of(started(without))
    assert openings.as_closed == []
    assert everything(found) == everything(expected)
    assert found.log_end_offset == expected.log_end_offset
    assert found.leader_epochs.entries == expected.leader_epochs.entries
    assert found.producers.state.producers == expected.producers.state.producers
    assert found.topic_id == expected.topic_id
    assert not disk.exists(CLOSED)
    check(found)


def test_a_log_file_that_was_written_again_has_another_time(tmp_path: Path, openings: Openings) -> None:
    """The sizes of two replicas may be the same."""
    path = tmp_path / "data"
    manager = started(FileSystem(), str(path))
    fill(manager.get_or_create(TP, TOPIC_ID, {}), 2)
    run(manager.shutdown())
    (segment,) = (path / str(TP)).glob("*.log")
    segment.write_bytes(segment.read_bytes())
    run(started(FileSystem(), str(path)).shutdown())
    assert (openings.as_closed, openings.read) == ([], [f"{path}/{TP}"])


def test_a_log_that_was_moved_to_another_directory_by_hand_is_read(openings: Openings) -> None:
    """Its files are as they were, but the other directory's file does not describe it."""
    disk = MemoryDisk()
    manager = started(disk, "/a", "/b")
    for number in range(2):
        fill(manager.get_or_create(TopicPartition("t", number), TOPIC_ID, {}), 5)
    data = {log.topic_partition: everything(log) for log in manager.logs()}
    run(manager.shutdown())
    disk.root.entries["b"].entries["t-0"] = disk.root.entries["a"].entries.pop("t-0")  # type: ignore[union-attr]
    disk._found.clear()
    again = started(disk, "/a", "/b")
    assert (openings.as_closed, openings.read) == (["/b/t-1"], ["/b/t-0"])
    assert {log.topic_partition: everything(log) for log in again.logs()} == data


def test_a_directory_that_has_failed_has_no_file(openings: Openings) -> None:
    """The next start recovers it."""
    disk = MemoryDisk()
    manager = started(disk, "/a", "/b")
    for number in range(2):
        fill(manager.get_or_create(TopicPartition("t", number), TOPIC_ID, {}), 5)
    run(manager.shutdown())
    manager = started(disk, "/a", "/b")
    manager.fail_directory("/a")
    run(manager.shutdown())
    assert not disk.exists(f"/a/{closed_logs.FILE}")
    openings.as_closed.clear()
    started(disk, "/a", "/b")
    assert (openings.as_closed, openings.read) == (["/b/t-1"], ["/a/t-0"])


@pytest.mark.parametrize("operation", ["open", "create_file", "write", "sync", "rename"])
def test_without_the_file_the_stop_is_clean_all_the_same(operation: str, openings: Openings) -> None:
    """The disk is full while it is written, for example."""
    disk = MemoryDisk()
    manager = started(disk)
    fill(manager.get_or_create(TP, TOPIC_ID, {}), 9)
    data = everything(log_of(manager))
    disk.fail(operation, errno.ENOSPC, below=CLOSED)
    run(manager.shutdown())
    disk.failures.clear()
    assert disk.exists(MARKER)
    assert not any(path.startswith(CLOSED) for path in disk.names)
    again = started(disk)
    assert next(iter(again.log_directories)).was_clean
    assert (openings.as_closed, openings.read) == ([], [DIRECTORY])
    assert everything(log_of(again)) == data


def test_a_file_that_cannot_be_read_is_a_failure_of_the_disk(openings: Openings) -> None:
    disk, data = closed_disk()
    disk.fail("read_file", below=CLOSED)
    with pytest.raises(LogDirectoryError, match="no log directory can be used"):
        started(disk)
    disk.failures.clear()
    assert everything(log_of(started(disk.after_kill()))) == data


def _with_many_producers(log: Log) -> None:
    for producer in range(closed_logs.PRODUCERS_MAX + 1):
        log.append_as_leader(produced(producer, 0), 0)


def _with_an_aborted_transaction(log: Log) -> None:
    records = [(b"k", b"v", (), 1)]
    fields = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "attributes": TRANSACTIONAL_BIT}
    log.append_as_leader(build_batch(records, **fields), 0)
    log.append_as_leader(
        marker_batch(7, 0, Marker(is_commit=False, coordinator_epoch=0), 1_000), 0, origin=AppendOrigin.COORDINATOR
    )
    assert log.segments[-1].aborted is not None


@pytest.mark.parametrize("use", [_with_many_producers, _with_an_aborted_transaction])
def test_logs_that_are_not_described(use: Callable[[Log], object], openings: Openings) -> None:
    disk = MemoryDisk()
    manager = started(disk, config=TopicConfig())
    use(manager.get_or_create(TP, TOPIC_ID, {}))
    data, producers = everything(log_of(manager)), log_of(manager).producers.state.producers.keys()
    run(manager.shutdown())
    again = started(disk, config=TopicConfig())
    assert (openings.as_closed, openings.read) == ([], [DIRECTORY])
    assert everything(log_of(again)) == data
    assert log_of(again).producers.state.producers.keys() == producers


def test_a_future_copy_is_read(openings: Openings) -> None:
    disk = MemoryDisk()
    manager = started(disk, "/a", "/b")
    log = manager.get_or_create(TP, TOPIC_ID, {})
    fill(log, 5)
    future = manager.make_future(TP, "/b" if log.log_dir == "/a" else "/a")
    future.append_as_follower(memoryview(everything(log)))
    run(manager.shutdown())
    again = started(disk, "/a", "/b")
    assert (openings.as_closed, openings.read) == ([log.directory], [future.directory])
    copied = again.futures.get(TP)
    assert copied is not None
    assert copied.log_end_offset == log.log_end_offset


# -- crashes ----------------------------------------------------------------------------------------------------------


def test_after_a_power_loss_no_file_is_believed_that_does_not_describe_the_logs(openings: Openings) -> None:
    """Power is lost after every call of a stop, and of the start after it: the marker has its name after the file is on the disk, and
    before anything changes neither is left.
    """
    work = Workload(3, SMALL)

    async def fill_log(w: Workload) -> None:
        await w.manager.start()
        await w.create(TP, TOPIC_ID)
        w.append(TP, BATCHES, epoch=1)

    async def stop(w: Workload) -> None:
        await w.manager.shutdown()

    async def start_and_append(w: Workload) -> None:
        w.manager = w.new_manager(w.disk)
        await w.manager.start()
        w.append(TP, 1, epoch=1)

    for _ in work.crashes_of("fill", fill_log):
        pass
    seen = {False: 0, True: 0}
    for name, step in (("stop", stop), ("start", start_and_append)):
        for crash in work.crashes_of(name, step):
            is_clean = crash.disk.exists(MARKER)
            if is_clean and crash.disk.exists(CLOSED):
                stamp = crash.disk.stamp_of(MARKER)
                assert len(decode(crash.disk.content(CLOSED), stamp, CLOSED)) == 1
            openings.as_closed.clear()
            log = started(crash.disk).get(TP)
            if openings.as_closed:
                assert is_clean
                assert log is not None
                appended = [one for _, one in sorted(work.life(TP).versions[-1].items())]
                assert split(everything(log)) == appended[:BATCHES]
            seen[bool(openings.as_closed)] += 1
    assert min(seen.values()) > 2, seen


def test_a_start_that_is_refused_or_fails_believes_nothing_afterwards(
    openings: Openings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start is killed while it opens logs: the next one recovers."""
    disk, data = closed_disk()
    with monkeypatch.context() as patch:
        patch.setattr(LogManager, "_new_log", _raise)
        with pytest.raises(MemoryError):
            started(disk)
    openings.as_closed.clear()
    manager = started(disk.after_kill())
    assert openings.as_closed == []
    assert not next(iter(manager.log_directories)).was_clean
    assert everything(log_of(manager)) == data


def _raise(*_: object) -> None:
    raise MemoryError


def test_only_the_marker_that_is_there_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stop names the marker before it is one: a crash in between leaves no clean stop."""
    disk, _ = closed_disk()
    manager = started(disk)
    stop = manager.shutdown()
    with monkeypatch.context() as patch:
        patch.setattr(LogDirectory, "write_clean_marker", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(stop)
    assert not disk.exists(CLOSED)
    assert not disk.exists(MARKER)


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt
