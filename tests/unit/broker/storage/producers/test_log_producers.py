"""The producer state of a log and its snapshots: LOG-5, INV-20, INV-21, BUG-24, FLT-27."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from random import Random
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.settings.config import TopicConfig
from broker.storage.log import Log, LogDirFailed, LogUnavailable
from broker.storage.producers import log_producers, producer_snapshots, state_reading
from broker.storage.producers.log_producers import LogProducers
from broker.storage.producers.producer_snapshots import file_name
from broker.storage.producers.producer_state import SEQUENCE_MAX, ProducerState
from protocol.errors import ErrorCode
from protocol.kafka.record_batch import BatchHeader, patch
from tests.support.busy_disk import run
from tests.support.logs import (
    DIRECTORY,
    SMALL,
    batch,
    batches_of,
    check,
    fill,
    once_before,
    open_at,
    produced,
)
from tests.support.refusals import refused
from tests.support.thorough import thorough
from tools.sim.world.disk import MemoryDisk

P, Q = 7, 8


def send(log: Log, producer: int, sequence: int, count: int = 2, *, epoch: int = 0) -> int:
    """Appends as leader; returns the answer's first offset."""
    return log.append_as_leader(produced(producer, sequence, count, epoch=epoch), 0).first_offset


def send_batches(log: Log, count: int, producer: int = P) -> None:
    for number in range(count):
        send(log, producer, 2 * number)


def refuse(log: Log, producer: int, sequence: int, code: ErrorCode, *, epoch: int = 0) -> None:
    end = log.log_end_offset
    with refused(code):
        send(log, producer, sequence, epoch=epoch)
    assert log.log_end_offset == end


def snapshots(disk: MemoryDisk) -> list[str]:
    return sorted(name for name in disk.list(DIRECTORY) if name.endswith(".snapshot"))


def names_of(offsets: list[int]) -> list[str]:
    return [file_name(offset) for offset in offsets]


def closed(log: Log) -> None:
    """A clean stop, as the LogManager does it."""
    log.sync_to_close()
    log.close()


# -- many producers ---------------------------------------------------------------------------------------------------


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots of even one producer are encoded by the flush."""
    monkeypatch.setattr(log_producers, "WRITTEN_AT_ONCE", 0)


@pytest.mark.usefixtures("many")
def test_a_snapshot_of_many_producers_is_encoded_by_the_flush(disk: MemoryDisk, log: Log) -> None:
    """The snapshot has the state at the start of the segment, whatever its producers have written since then."""
    for number in range(30):
        send(log, P, 2 * number)
        send(log, Q, 2 * number)
    bases = [segment.base_offset for segment in log.segments[1:]]
    with mock.patch.object(producer_snapshots, "encode", wraps=producer_snapshots.encode) as encode:
        assert (snapshots(disk), log.producers.snapshots) == ([], bases)
        run(log.flush())
        run(log.flush())
    assert [call.args[0].end_offset for call in encode.call_args_list] == bases
    assert snapshots(disk) == names_of(bases)
    for base in bases:
        found = producer_snapshots.decode(disk.content(f"{DIRECTORY}/{file_name(base)}"), base)
        told = ProducerState()
        for header in check(log):
            if header.base_offset < base:
                told.append(header, header.base_offset)
        assert found.producers == told.producers


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("call", ["write_atomically", "sync_directory"])
def test_a_cut_while_the_snapshots_are_written(disk: MemoryDisk, log: Log, call: str, goes_on: bool) -> None:
    """A snapshot of records that were cut must not count, even when the log grows to the same offset again."""
    send_batches(log, 30)

    def cut() -> None:
        log.truncate_to(4)
        send_batches(log, 30 if goes_on else 0, Q)

    once_before(disk, call, cut)
    run(log.flush())
    run(log.flush())
    assert snapshots(disk) == names_of(log.producers.snapshots)
    assert bool(snapshots(disk)) == goes_on
    again = open_at(disk.after_kill(), recovery_point=log.recovery_point)
    assert again.producers.state.producers == log.producers.state.producers
    check(again)


@pytest.mark.usefixtures("many")
def test_a_cut_while_a_flush_writes_snapshots_and_then_fails(disk: MemoryDisk) -> None:
    """For want of a descriptor. The snapshot is of records that were cut, and the next start must not find it."""
    config = TopicConfig(retention_ms=-1)
    log = open_at(disk, config)
    send_batches(log, 4)
    run(log.flush())
    send(log, P, 8)
    log._roll(log.log_end_offset)
    log.leader_epochs.assign(1, log.log_end_offset)

    def cut() -> None:
        log.truncate_to(6)
        once_before(disk, "write_atomically", lambda: disk.fail("open", errno.EMFILE))

    once_before(disk, "write_atomically", cut)
    with pytest.raises(LogUnavailable):
        run(log.flush())
    disk.failures.clear()
    for _ in range(5):
        fill(log, 1, epoch=2)
    run(log.flush())
    assert (log.recovery_point, len(log.segments)) == (16, 1)
    again = open_at(disk.after_kill(), config, recovery_point=log.recovery_point)
    assert again.producers.state.producers == log.producers.state.producers


@pytest.mark.usefixtures("many")
def test_a_cut_uses_a_snapshot_that_is_not_written_yet(log: Log) -> None:
    send_batches(log, 30)
    base = log.segments[-1].base_offset
    log.truncate_to(base + 1)
    assert send(log, P, base) == base
    check(log)


@pytest.mark.usefixtures("many")
def test_a_log_that_is_renamed_while_its_snapshots_are_written(disk: MemoryDisk, log: Log) -> None:
    """The thread writes to the directory, whatever its name is."""
    send_batches(log, 30)

    def rename() -> None:
        disk.rename(DIRECTORY, "/data/orders-1")
        log.moved_to("/data/orders-1")

    once_before(disk, "write_atomically", rename)
    run(log.flush())
    names = [name for name in disk.list("/data/orders-1") if name.endswith(".snapshot")]
    assert names == names_of(log.producers.snapshots)


# -- what a producer is told ------------------------------------------------------------------------------------------


def test_bug_24_a_failed_append_does_not_change_the_state(disk: MemoryDisk, log: Log) -> None:
    """The state changes after the write. Otherwise the retry would count as a duplicate of a batch that was never written."""
    send(log, P, 0)
    disk.fail("write")
    with pytest.raises(LogDirFailed):
        send(log, P, 2)
    assert log.producers.state.producers[P].last_sequence == 1
    disk.failures.clear()
    again = open_at(disk.after_kill())
    assert send(again, P, 2) == 2
    check(again)


def test_bug_24_a_batch_that_was_cut_is_not_a_duplicate(log: Log) -> None:
    """The new leader did not have the batch. The producer's retry must not count as a duplicate."""
    send_batches(log, 4)
    log.truncate_to(4)
    refuse(log, P, 6, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert log.append_as_leader(produced(P, 2), 1).is_duplicate
    info = log.append_as_leader(produced(P, 4), 1)
    assert (info.first_offset, info.is_duplicate) == (4, False)
    check(log)


# -- snapshots --------------------------------------------------------------------------------------------------------


def test_a_roll_leaves_a_snapshot_at_the_segments_base(disk: MemoryDisk, log: Log) -> None:
    send_batches(log, 20)
    bases = [segment.base_offset for segment in log.segments]
    assert len(bases) > 3
    assert snapshots(disk) == names_of(bases[1:])
    log.truncate_to(bases[2] + 1)
    assert snapshots(disk) == names_of(bases[1:3])
    log.config = replace(SMALL, retention_ms=0)
    assert log.delete_old_segments(log.log_end_offset, 10**12) == 2
    assert snapshots(disk) == [file_name(bases[2])]


def test_after_a_clean_stop_no_batch_is_read(disk: MemoryDisk, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    send_batches(log, 9)
    closed(log)
    assert snapshots(disk)[-1] == file_name(18)
    monkeypatch.setattr(LogProducers, "_replay", None)
    again = open_at(disk.after_kill(), was_clean=True, recovery_point=18)
    assert again.producers.state.producers == log.producers.state.producers
    before = dict(disk.names)
    closed(again)
    assert disk.names == before, "a stop without news writes nothing"


@pytest.mark.parametrize(
    "damage",
    [
        lambda disk, path: disk.corrupt(path, 20, 1),
        lambda disk, path: disk.cut(path, 30),
        lambda disk, path: disk.remove(path),
    ],
    ids=["flip", "cut", "gone"],
)
def test_a_broken_snapshot_is_skipped(disk: MemoryDisk, log: Log, damage: Callable[[MemoryDisk, str], None]) -> None:
    """FLT-27: the earlier snapshot and the batches give the same state."""
    for number in range(20):
        send(log, P + number % 2, number - number % 2)
    closed(log)
    broken = snapshots(disk)[-1]
    damage(disk, f"{DIRECTORY}/{broken}")
    again = open_at(disk, was_clean=True, recovery_point=40)
    assert again.producers.state.producers == log.producers.state.producers
    assert broken not in snapshots(disk)
    check(again)


def test_a_snapshot_beyond_the_recovery_point_is_not_used(disk: MemoryDisk) -> None:
    """It may be from before a cut, as a removed file may come back after a power loss."""
    log = open_at(disk, replace(SMALL, segment_bytes=10_000))
    send(log, P, 0)
    run(log.flush())
    for number in range(1, 4):
        send(log, P, 2 * number)
    log.producers.snapshot()
    wrong = disk.content(f"{DIRECTORY}/{file_name(8)}")
    log.truncate_to(2)
    send_batches(log, 3, Q)
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
                first = self.random.choice([0, 5, SEQUENCE_MAX - 2])
                epoch, last = (entry.epoch, entry.last_sequence) if entry else (0, first - 1)
                sequence = (last + 1) % (SEQUENCE_MAX + 1)
                if self.random.random() < 0.1:
                    epoch, sequence = epoch + 1, 0
                send(self.log, producer, sequence, self.random.randint(1, 3), epoch=epoch)
            self.note_from(start)

    def note_from(self, offset: int) -> None:
        result = self.log.read(offset, 10_000, self.log.log_end_offset, True)
        self.known += batches_of(b"".join(bytes(part) for part in result.records))

    def copy(self, amount: int) -> None:
        """A leader knows more, or has forgotten the producer: a gap, and an epoch that goes back, are taken as they are."""
        end = self.log.log_end_offset
        entry = self.log.producers.state.producers.get(1)
        last = entry.last_sequence if entry else 0
        sequence = (last + 50 * amount) % (SEQUENCE_MAX + 1)  # no leader has a batch twice
        self.log.append_as_follower(memoryview(replicated(1, sequence, end, epoch=self.random.randrange(3))))
        self.note_from(end)

    def repeat(self, amount: int) -> None:
        """A client's retry changes nothing."""
        for producer, entry in self.log.producers.state.producers.items():
            one = entry.batches[amount % len(entry.batches)]
            data = produced(producer, one.first_sequence, one.offset_delta + 1, epoch=entry.epoch)
            assert self.log.append_as_leader(data, 0).first_offset == one.first_offset

    def truncate(self, amount: int) -> None:
        offset = max(self.log.log_end_offset - 2 * amount, 0)
        if amount % 2:
            run(self.log.read_for_cut(offset))
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


OFTEN = ["append"] * 4 + ["flush"] * 2
SELDOM = ["copy", "repeat", "truncate", "retention", "delete_records", "stop", "kill", "lose_power", "empty"]
deeds = st.tuples(st.sampled_from(OFTEN + SELDOM), st.integers(1, 9))


@given(st.lists(deeds, max_size=25), st.integers(0, 2**32), st.sampled_from([2, 5, 1024]))
@settings(max_examples=150)
def test_the_state_is_a_function_of_the_log(deeds: list[tuple[str, int]], seed: int, copy_batches: int) -> None:
    """BUG-24, INV-21: after any history, the state follows from the batches, including those of deleted segments."""
    with (
        mock.patch.multiple(log_producers, COPY_BATCHES=copy_batches, COPY_BATCHES_PER_PRODUCER=0, READ_AT_ONCE=-1),
        mock.patch.object(state_reading, "BATCHES_READ_AT_ONCE", 2),
    ):
        story = Story(seed)
        for deed, amount in deeds:
            story.do(deed, amount)


@pytest.mark.parametrize("cut", [1, 1030, 19_000, *map(thorough, (3, 700, 2500, 4000, 9000))])
def test_a_cut_reads_about_as_much_as_it_cuts(cut: int) -> None:
    """Otherwise a segment of a million small batches would stop the loop for seconds."""
    log = open_at(MemoryDisk(), replace(SMALL, segment_bytes=2**30))
    count = 20_000
    for start in range(0, count, 100):
        some = range(start, start + 100)
        log.append_as_follower(memoryview(b"".join(replicated(P + n % 2, n // 2, n) for n in some)))
    with mock.patch.object(ProducerState, "append", autospec=True, side_effect=ProducerState.append) as append:
        log.truncate_to(count - cut)
    assert append.call_count <= 2 * cut + 2048
    newest = {producer: entry.batches[-1].last_offset for producer, entry in log.producers.state.producers.items()}
    assert sorted(newest.values()) == [count - cut - 2, count - cut - 1]
    assert all(len(entry.batches) == 5 for entry in log.producers.state.producers.values())
    check(log)


def replicated(producer: int, sequence: int, offset: int, *, epoch: int = 0) -> bytes:
    """A batch of one record as a follower gets it."""
    data = bytearray(produced(producer, sequence, 1, epoch=epoch))
    patch(data, 0, offset, 0)
    return bytes(data)
