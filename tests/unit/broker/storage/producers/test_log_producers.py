"""The producer state of a log and its snapshots: LOG-5, INV-20, INV-21, BUG-24, FLT-27."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.storage.disk.filesystem import FileSystem
from broker.storage.log import Log, LogDirFailed
from broker.storage.producers import log_producers, producer_snapshots
from broker.storage.producers.log_producers import LogProducers, SnapshotWrites
from broker.storage.producers.producer_snapshots import file_name
from broker.storage.producers.producer_state import ProducerState
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.record_batch import BatchHeader, patch
from tests.support.logs import DIRECTORY, SMALL, batch, batches_of, check, everything, open_at, produced
from tests.support.memory_disk import MemoryDisk, run
from tests.support.thorough import thorough

P, Q = 7, 8


def send(log: Log, producer: int, sequence: int, count: int = 2, *, epoch: int = 0) -> int:
    """Appends as leader; returns the answer's first offset."""
    return log.append_as_leader(produced(producer, sequence, count, epoch=epoch), 0).first_offset


def refusal(log: Log, producer: int, sequence: int, *, epoch: int = 0) -> ErrorCode:
    end = log.log_end_offset
    with pytest.raises(KafkaError) as raised:
        send(log, producer, sequence, epoch=epoch)
    assert log.log_end_offset == end
    return raised.value.code


def snapshots(disk: MemoryDisk) -> list[str]:
    return sorted(name for name in disk.list(DIRECTORY) if name.endswith(".snapshot"))


def closed(log: Log) -> None:
    """A clean stop, as the LogManager does it."""
    log.sync_to_close()
    log.close()


# -- many producers ---------------------------------------------------------------------------------------------------


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """One producer is too many to be encoded on the loop."""
    monkeypatch.setattr(log_producers, "WRITTEN_AT_ONCE", 0)


@pytest.mark.usefixtures("many")
def test_a_snapshot_of_many_producers_is_encoded_by_the_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was when the segment began, whatever its producers have written since."""
    disk = MemoryDisk()
    log = open_at(disk)
    encoded: list[int] = []
    encode = producer_snapshots.encode
    monkeypatch.setattr(
        producer_snapshots, "encode", lambda state: (encoded.append(state.end_offset), encode(state))[1]
    )
    for number in range(30):
        send(log, P, 2 * number)
        send(log, Q, 2 * number)
    bases = [segment.base_offset for segment in log.segments[1:]]
    assert (encoded, snapshots(disk), log.producers.snapshots) == ([], [], bases)
    run(log.flush())
    assert (encoded, snapshots(disk)) == (bases, [file_name(base) for base in bases])
    for base in bases:
        found = producer_snapshots.decode(disk.content(f"{DIRECTORY}/{file_name(base)}"), base)
        told = ProducerState()
        for header in check(log):
            if header.base_offset < base:
                told.append(header, header.base_offset)
        assert found.producers == told.producers
    run(log.flush())
    assert encoded == bases


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("goes_on", [False, True])
def test_a_cut_while_the_snapshots_are_written(goes_on: bool) -> None:
    """What the thread wrote of records that are gone must not count: also when the log grows to the same offset again."""
    disk = MemoryDisk()
    log = open_at(disk)
    for number in range(30):
        send(log, P, 2 * number)
    sync = disk.sync_directory

    def cut_meanwhile(path: str) -> None:
        disk.sync_directory = sync  # type: ignore[method-assign]
        log.truncate_to(4)
        for number in range(30 if goes_on else 0):
            send(log, Q, 2 * number)
        sync(path)

    disk.sync_directory = cut_meanwhile  # type: ignore[method-assign]
    run(log.flush())
    run(log.flush())
    assert snapshots(disk) == [file_name(offset) for offset in log.producers.snapshots]
    assert bool(snapshots(disk)) == goes_on
    again = open_at(disk.after_kill(), recovery_point=log.recovery_point)
    assert again.producers.state.producers == log.producers.state.producers
    check(again)


@pytest.mark.usefixtures("many")
def test_a_cut_uses_a_snapshot_that_is_not_written_yet() -> None:
    log = open_at(MemoryDisk())
    for number in range(30):
        send(log, P, 2 * number)
    log.truncate_to(log.segments[-1].base_offset + 1)
    assert send(log, P, 2 * (log.segments[-1].base_offset // 2)) == log.segments[-1].base_offset
    check(log)


@pytest.mark.usefixtures("many")
def test_a_log_that_is_renamed_while_its_snapshots_are_written() -> None:
    """The disk is well: only the name is another. The next flush writes them there."""
    disk = MemoryDisk()
    log = open_at(disk)
    for number in range(30):
        send(log, P, 2 * number)
    write = SnapshotWrites.write

    def renamed_before(writes: SnapshotWrites, filesystem: FileSystem) -> None:
        if log.directory == DIRECTORY:
            disk.rename(DIRECTORY, "/data/orders-1")
            log.moved_to("/data/orders-1")
        write(writes, filesystem)

    with mock.patch.object(SnapshotWrites, "write", renamed_before):
        run(log.flush())
        run(log.flush())
    names = [name for name in disk.list("/data/orders-1") if name.endswith(".snapshot")]
    assert names == [file_name(offset) for offset in log.producers.snapshots]


@pytest.mark.usefixtures("many")
def test_a_log_that_is_deleted_while_its_snapshots_are_written() -> None:
    """Nothing is wrong then."""
    disk = MemoryDisk()
    log = open_at(disk)
    for number in range(30):
        send(log, P, 2 * number)
    sync = disk.sync_directory

    def deleted_meanwhile(path: str) -> None:
        if not log.is_deleted:
            log.mark_deleted()
            disk.rename(DIRECTORY, f"{DIRECTORY}-delete")
        sync(path)

    disk.sync_directory = deleted_meanwhile  # type: ignore[method-assign]
    run(log.flush())
    assert log.is_deleted


# -- what a producer is told ------------------------------------------------------------------------------------------


def test_one_of_the_last_five_batches_is_answered_and_not_written_again() -> None:
    """INV-20."""
    log = open_at(MemoryDisk())
    send(log, Q, 0)
    for number in range(7):
        send(log, P, 2 * number)
    size = log.size
    for number in range(2, 7):
        info = log.append_as_leader(produced(P, 2 * number), 0)
        assert (info.first_offset, info.last_offset) == (2 + 2 * number, 3 + 2 * number)
        assert (info.log_append_time_ms, info.is_duplicate) == (1_001, True)  # Kafka: the kept batch's timestamp
    assert refusal(log, P, 2) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER  # the sixth last
    assert (log.size, log.log_end_offset) == (size, 16)
    check(log)


def test_gaps_and_old_epochs_are_refused_and_nothing_is_written() -> None:
    log = open_at(MemoryDisk())
    send(log, P, 0, epoch=3)
    assert refusal(log, P, 3, epoch=3) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(log, P, 2, epoch=4) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(log, P, 2, epoch=2) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert send(log, P, 2, epoch=3) == 2
    assert send(log, P, 0, epoch=4) == 4
    check(log)


def test_a_follower_takes_the_leaders_batches_as_they_are() -> None:
    """The leader has checked them; it may know of more, or have forgotten the producer."""
    leader, follower = open_at(MemoryDisk()), open_at(MemoryDisk())
    for sequence in (10, 12):
        send(leader, P, sequence)
    follower.append_as_follower(memoryview(everything(leader)))
    assert follower.producers.state.producers == leader.producers.state.producers
    gap = bytearray(produced(P, 90))
    patch(gap, 0, 4, 0)
    follower.append_as_follower(memoryview(gap))
    assert follower.append_as_leader(produced(P, 90), 1).is_duplicate
    check(follower)


# -- BUG-24 -----------------------------------------------------------------------------------------------------------


def test_bug_24_an_append_that_failed_is_not_known() -> None:
    """The state changes after the write: else the retry is answered as a duplicate of what was never written."""
    disk = MemoryDisk()
    log = open_at(disk)
    send(log, P, 0)
    disk.fail("write")
    with pytest.raises(LogDirFailed):
        send(log, P, 2)
    assert log.producers.state.producers[P].last_sequence == 1
    disk.failures.clear()
    again = open_at(disk.after_kill())
    assert send(again, P, 2) == 2
    check(again)


def test_bug_24_what_was_cut_is_written_again() -> None:
    """A new leader did not have it; the producer repeats it, and must not be told that it is there."""
    log = open_at(MemoryDisk())
    for number in range(4):
        send(log, P, 2 * number)
    log.truncate_to(4)
    assert refusal(log, P, 6) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.append_as_leader(produced(P, 2), 1).is_duplicate
    info = log.append_as_leader(produced(P, 4), 1)
    assert (info.first_offset, info.is_duplicate) == (4, False)
    check(log)


def test_bug_24_after_a_cut_all_five_batches_before_it_are_known() -> None:
    """Undoing the last batch would leave four: the state is built anew."""
    log = open_at(MemoryDisk(), replace(SMALL, segment_bytes=100_000))
    for number in range(8):
        send(log, P, 2 * number)
    log.truncate_to(14)
    assert [batch.last_sequence for batch in log.producers.state.producers[P].batches] == [5, 7, 9, 11, 13]


def test_an_emptied_log_knows_nobody() -> None:
    disk = MemoryDisk()
    log = open_at(disk)
    for number in range(9):
        send(log, P, 2 * number)
    assert snapshots(disk)
    log.truncate_fully_and_start_at(100)
    assert (log.producers.state.producers, snapshots(disk)) == ({}, [])
    assert send(log, P, 55) == 100


# -- snapshots --------------------------------------------------------------------------------------------------------


def test_a_roll_leaves_a_snapshot_at_the_segments_begin() -> None:
    disk = MemoryDisk()
    log = open_at(disk)
    for number in range(20):
        send(log, P, 2 * number)
    bases = [segment.base_offset for segment in log.segments]
    assert len(bases) > 3
    assert snapshots(disk) == [file_name(base) for base in bases[1:]]
    log.truncate_to(bases[2] + 1)
    assert snapshots(disk) == [file_name(base) for base in bases[1:3]]
    assert log.delete_old_segments(log.log_end_offset, 10**12) == 0
    log.config = replace(SMALL, retention_ms=0)
    assert log.delete_old_segments(log.log_end_offset, 10**12) == 2
    assert snapshots(disk) == [file_name(bases[2])]


def test_after_a_clean_stop_no_batch_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    log = open_at(disk)
    for number in range(9):
        send(log, P, 2 * number)
    closed(log)
    assert snapshots(disk)[-1] == file_name(18)
    monkeypatch.setattr(LogProducers, "_replay", None)
    again = open_at(disk.after_kill(), was_clean=True, recovery_point=18)
    assert again.producers.state.producers == log.producers.state.producers
    assert again.append_as_leader(produced(P, 8), 0).is_duplicate


def test_the_snapshot_of_a_clean_stop_goes_when_the_next_one_comes() -> None:
    disk = MemoryDisk()
    names = []
    for number in range(3):
        log = open_at(disk, replace(SMALL, segment_bytes=10_000), was_clean=True, recovery_point=2 * number)
        send(log, P, 2 * number)
        closed(log)
        names.append(snapshots(disk))
    assert names == [
        [file_name(2)],
        [file_name(2), file_name(4)],  # as in Kafka, the earlier one goes in the next start
        [file_name(4), file_name(6)],
    ]


def test_a_stop_without_news_writes_nothing() -> None:
    disk = MemoryDisk()
    log = open_at(disk)
    send(log, P, 0)
    closed(log)
    again = open_at(disk, was_clean=True, recovery_point=2)
    before = dict(disk.names)
    closed(again)
    assert disk.names == before


def test_producers_of_deleted_records_are_known_after_a_restart() -> None:
    """Retention and DeleteRecords up to the LEO: Kafka 3.9 forgets them then, and takes a repeated batch as new."""
    disk = MemoryDisk()
    log = open_at(disk)
    for number in range(20):
        send(log, P, 2 * number)
    log.config = replace(SMALL, retention_ms=0)
    log.increment_log_start(40)
    log.delete_old_segments(40, 10**12)
    closed(log)
    again = open_at(disk, was_clean=True, recovery_point=40, log_start=40)
    assert (again.log_start_offset, again.log_end_offset) == (40, 40)
    assert again.append_as_leader(produced(P, 38), 0).is_duplicate


@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_a_broken_snapshot_is_passed_over(damage: str) -> None:
    """FLT-27: the one before it and the batches say the same."""
    disk = MemoryDisk()
    log = open_at(disk)
    for number in range(20):
        send(log, P + number % 2, number - number % 2)
    closed(log)
    path = f"{DIRECTORY}/{snapshots(disk)[-1]}"
    match damage:
        case "flip":
            disk.corrupt(path, 20, 1)
        case "cut":
            disk.cut(path, 30)
        case "gone":
            disk.remove(path)
    again = open_at(disk, was_clean=True, recovery_point=40)
    assert again.producers.state.producers == log.producers.state.producers
    assert path.rpartition("/")[2] not in snapshots(disk)
    check(again)


def test_a_snapshot_beyond_the_recovery_point_is_not_believed() -> None:
    """It can be of what lay there before a cut: a removed file may come back when the power goes."""
    disk = MemoryDisk()
    log = open_at(disk, replace(SMALL, segment_bytes=10_000))
    send(log, P, 0)
    run(log.flush())
    for number in range(1, 4):
        send(log, P, 2 * number)
    log.producers.snapshot()
    wrong = disk.content(f"{DIRECTORY}/{file_name(8)}")
    log.truncate_to(2)
    for number in range(3):
        send(log, Q, 2 * number)
    disk.write_atomically(f"{DIRECTORY}/{file_name(8)}", wrong)
    again = open_at(disk.after_kill(), recovery_point=2)
    assert again.log_end_offset == 8
    assert {p: e.last_sequence for p, e in again.producers.state.producers.items()} == {P: 1, Q: 5}
    check(again)


# -- a function of the log ----------------------------------------------------------------------------------------------


class Story:
    """A log, and all batches that it should know of: those that were deleted by retention among them."""

    def __init__(self, seed: int) -> None:
        self.disk = MemoryDisk()
        self.random = Random(seed)
        self.log = open_at(self.disk)
        self.known: list[BatchHeader] = []
        self.next: dict[int, tuple[int, int]] = {}

    def do(self, deed: str, amount: int) -> None:
        getattr(self, deed)(amount)
        told = ProducerState()
        for header in self.known:
            told.append(header, header.base_offset)
        assert self.log.producers.state.producers == told.producers
        assert self.log.producers.state.end_offset == self.log.log_end_offset
        check(self.log)

    def append(self, amount: int) -> None:
        for _ in range(amount):
            producer = self.random.choice([-1, 1, 2, 3])
            start = self.log.log_end_offset
            if producer < 0:
                self.log.append_as_leader(batch(), 0)
            else:
                entry = self.log.producers.state.producers.get(producer)
                epoch, sequence = (entry.epoch, entry.last_sequence + 1) if entry else (0, 0)
                if self.random.random() < 0.1:
                    epoch, sequence = epoch + 1, 0
                send(self.log, producer, sequence, self.random.randint(1, 3), epoch=epoch)
            result = self.log.read(start, 10_000, self.log.log_end_offset, True)
            self.known += batches_of(b"".join(bytes(part) for part in result.records))

    def repeat(self, amount: int) -> None:
        """A client's retry changes nothing."""
        for producer, entry in self.log.producers.state.producers.items():
            one = entry.batches[amount % len(entry.batches)]
            data = produced(producer, one.first_sequence, one.offset_delta + 1, epoch=entry.epoch)
            assert self.log.append_as_leader(data, 0).first_offset == one.first_offset

    def truncate(self, amount: int) -> None:
        offset = max(self.log.log_end_offset - 2 * amount, 0)
        is_emptied = offset < self.log.segments[0].base_offset
        self.log.truncate_to(offset)
        end = self.log.log_end_offset
        self.known = [header for header in self.known if header.last_offset < end and not is_emptied]

    def empty(self, amount: int) -> None:
        self.log.truncate_fully_and_start_at(self.log.log_end_offset + amount)
        self.known = []

    def retention(self, amount: int) -> None:
        self.log.config = replace(SMALL, retention_bytes=200 * amount)
        self.log.delete_old_segments(self.log.log_end_offset, 2_000)

    def delete_records(self, amount: int) -> None:
        self.log.increment_log_start(self.log.log_start_offset + amount)

    def flush(self, amount: int) -> None:
        run(self.log.flush())

    def stop(self, amount: int) -> None:
        closed(self.log)
        self.reopen(self.disk.after_kill(), was_clean=True)

    def kill(self, amount: int) -> None:
        self.reopen(self.disk.after_kill(), was_clean=False)

    def lose_power(self, amount: int) -> None:
        """What was cut since the last flush may be there again: the state is then that of these batches. A new story."""
        disk = self.disk.after_power_loss(self.random)
        point, start = self.log.recovery_point, self.log.log_start_offset
        check(open_at(disk, recovery_point=point, log_start=start))
        self.__init__(self.random.getrandbits(32))  # type: ignore[misc]

    def reopen(self, disk: MemoryDisk, *, was_clean: bool) -> None:
        point, start = self.log.recovery_point, self.log.log_start_offset
        self.disk = disk
        before = {int(name[:20]) for name in snapshots(disk)}
        self.log = open_at(disk, was_clean=was_clean, recovery_point=point, log_start=start)
        end, first = self.log.log_end_offset, self.log.segments[0].base_offset
        self.known = [header for header in self.known if header.last_offset < end]
        if not was_clean and not any(first <= offset <= min(point, end) for offset in before):
            # No snapshot that is believed: the producers of deleted segments are forgotten.
            self.known = [header for header in self.known if header.base_offset >= first]


WAYS = (
    ["append"] * 4 + ["flush"] * 2 + ["repeat", "truncate", "retention", "delete_records", "stop", "kill", "lose_power"]
)
deeds = st.tuples(st.sampled_from([*WAYS, "empty"]), st.integers(1, 9))


@given(st.lists(deeds, max_size=25), st.integers(0, 2**32), st.sampled_from([2, 5, 1024]))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_state_is_a_function_of_the_log(deeds: list[tuple[str, int]], seed: int, copy_batches: int) -> None:
    """BUG-24, INV-21: whatever happened, it is what the batches tell, those of deleted segments included."""
    with mock.patch.multiple(log_producers, COPY_BATCHES=copy_batches, COPY_BATCHES_PER_PRODUCER=0):
        story = Story(seed)
        for deed, amount in deeds:
            story.do(deed, amount)


@pytest.mark.parametrize("cut", [1, 1030, 19_000, *map(thorough, (3, 700, 2500, 4000, 9000))])
def test_a_cut_reads_about_as_much_as_it_cuts(cut: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the loop would stand still for seconds in a segment of a million small batches."""
    log = open_at(MemoryDisk(), replace(SMALL, segment_bytes=2**30))
    count = 20_000
    for start in range(0, count, 100):
        some = range(start, start + 100)
        log.append_as_follower(memoryview(b"".join(replicated(P + n % 2, n // 2, n) for n in some)))
    seen = 0
    append = ProducerState.append

    def counted(state: ProducerState, header: BatchHeader, base_offset: int) -> None:
        nonlocal seen
        seen += 1
        append(state, header, base_offset)

    monkeypatch.setattr(ProducerState, "append", counted)
    log.truncate_to(count - cut)
    assert seen <= 2 * cut + 2048
    newest = {producer: entry.batches[-1].last_offset for producer, entry in log.producers.state.producers.items()}
    assert sorted(newest.values()) == [count - cut - 2, count - cut - 1]
    assert all(len(entry.batches) == 5 for entry in log.producers.state.producers.values())
    check(log)


def replicated(producer: int, sequence: int, offset: int) -> bytes:
    """A batch of one record as a follower gets it."""
    data = bytearray(produced(producer, sequence, 1))
    patch(data, 0, offset, 0)
    return bytes(data)
