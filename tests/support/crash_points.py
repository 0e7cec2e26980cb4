"""A broker's storage under a workload, and what must be there after a power loss at any moment of it (INV-21, FLT-24).

The workload runs once. After each call that changes something the disk is copied as a power loss would leave it, in several
ways (`LOSSES`); each copy is then opened as the next start would, and compared with what was promised at that moment. If two
ways leave the same files, only the first is opened.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from broker.settings.config import TopicConfig
from broker.storage.compaction.log_cleaner import CleanerSettings, LogCleaner
from broker.storage.directories.log_directory import CLEAN_SHUTDOWN
from broker.storage.log import Log
from broker.storage.log_manager import LogManager
from broker.storage.producers.producer_state import ProducerState
from protocol.kafka.record_batch import build_batch, decode_records, parse_header
from protocol.types import TopicPartition
from tests.support.busy_disk import run
from tests.support.compaction import everything_with_holes, records_of
from tests.support.fake_time import FakeTime
from tests.support.logs import LOG_DIR, check, everything, split
from tools.sim.world.disk import LOSSES, Loss, MemoryDisk, PowerLost

CLEANER = CleanerSettings(dedupe_bytes=1024**2)

Batches = Mapping[int, bytes]
"""Base offset -> the batch there"""


@dataclass(eq=False)
class Life:
    """What was done to one log since its topic was made, and what of it must survive.

    `versions`: all batches the log ever had, one after the other; a truncation begins another version. `safe`: those that
    were flushed. What is raised before a call and lowered after it holds at every moment in between.
    """

    topic_id: str
    versions: list[dict[int, bytes]] = field(default_factory=lambda: [{}])
    safe: Batches = field(default_factory=dict)
    start_max: int = 0
    high_watermark_max: int = 0
    epochs: set[int] = field(default_factory=set)
    may_be_gone: bool = True
    is_compacted: bool = False
    has_moved: bool = False

    def may_become(self, base: int, batch: bytes) -> None:
        """Notes a batch before it is appended."""
        self.versions[-1][base] = batch

    def is_cut(self, offset: int) -> None:
        """Notes a truncation to `offset` before it happens."""
        self.safe = {base: one for base, one in self.safe.items() if parse_header(one).next_offset <= offset}

    def was_cut(self, offset: int) -> None:
        kept = {base: one for base, one in self.versions[-1].items() if parse_header(one).next_offset <= offset}
        self.versions.append(kept)

    def is_flushed(self, offset: int) -> None:
        self.safe = {base: one for base, one in self.versions[-1].items() if parse_header(one).next_offset <= offset}


@dataclass(eq=False)
class Crash:
    """The disk that a power loss left during `step`, and what held of each life then."""

    step: str
    point: int
    loss: Loss
    disk: MemoryDisk
    promises: Mapping[TopicPartition, Sequence[Life]]


class Workload:
    """The storage layer with its logs, and what is known of them."""

    def __init__(
        self,
        seed: int,
        defaults: TopicConfig,
        losses: Sequence[Loss] = LOSSES,
        log_dirs: Sequence[str] = (LOG_DIR,),
        one_in: int = 1,
    ) -> None:
        """Makes one in `one_in` of the disks that power losses could leave; `alike` counts those that are not opened."""
        self.random = Random(seed)
        self.time = FakeTime()
        self.disk = MemoryDisk()
        self.lives: dict[TopicPartition, list[Life]] = {}
        self.sequences: dict[tuple[TopicPartition, int], int] = {}
        self.overrides: dict[TopicPartition, Mapping[str, str]] = {}
        self.mark = 0
        self.points = 0
        self.losses = 0
        self.alike = 0
        self.log_dirs = log_dirs
        self._defaults = defaults
        self._losses = losses
        self._one_in = one_in
        self._step = "before the first"
        self._crashes: list[Crash] = []
        self.manager = self.new_manager(self.disk)

    def new_manager(self, disk: MemoryDisk) -> LogManager:
        manager = LogManager(self.log_dirs, self._defaults, disk, self.time)
        manager.high_watermark_of = lambda tp: 0 if (found := manager.get(tp)) is None else found.log_end_offset
        return manager

    def crashes_of(self, name: str, step: Callable[[Workload], Awaitable[None]]) -> Iterator[Crash]:
        """Does the step; then one after the other all that a power loss during it could have left."""
        self._step = name
        self.disk.on_change = self._lose_power

        async def whole() -> None:
            await step(self)
            for _ in range(3):
                await asyncio.sleep(0)  # what was done in threads is taken note of

        run(whole())
        self.disk.on_change = lambda: None
        while self._crashes:
            yield self._crashes.pop(0)

    def _lose_power(self) -> None:
        self.points += 1
        promises = None
        seen: list[dict[str, bytes | None]] = []
        for loss in self._losses:
            self.losses += 1
            if self.losses % self._one_in:
                continue
            if promises is None:
                promises = {tp: [copy(life) for life in lives] for tp, lives in self.lives.items()}
            disk = self.disk.after_power_loss(self.random, loss)
            files = {path: None if inode is None else bytes(inode.content) for path, inode in disk.names.items()}
            if files in seen:
                self.alike += 1
                continue
            seen.append(files)
            self._crashes.append(Crash(self._step, self.points, loss, disk, promises))

    # -- deeds --------------------------------------------------------------------------------------------------------

    def log(self, tp: TopicPartition) -> Log:
        found = self.manager.get(tp)
        assert found is not None
        return found

    def life(self, tp: TopicPartition) -> Life:
        return self.lives[tp][-1]

    async def create(self, tp: TopicPartition, topic_id: str, overrides: Mapping[str, str] = {}) -> None:
        is_compacted = overrides.get("cleanup.policy") == "compact"
        self.lives.setdefault(tp, []).append(Life(topic_id, is_compacted=is_compacted))
        self.manager.get_or_create(tp, topic_id, overrides)
        self.overrides[tp] = overrides

    def lead(self, tp: TopicPartition, epoch: int) -> None:
        self.life(tp).epochs.add(epoch)
        self.log(tp).leader_epochs.assign(epoch, self.log(tp).log_end_offset)

    def batch(self, tp: TopicPartition, count: int, producer_id: int) -> bytes:
        """A batch whose bytes differ from all others."""
        self.mark += 1
        sequence = self.sequences.get((tp, producer_id), 0)
        if producer_id >= 0:
            self.sequences[tp, producer_id] = sequence + count
        value = self.mark.to_bytes(8, "big") + bytes(self.mark % 7)
        now = self.time.wall_ms()
        return build_batch(
            [(b"k%d" % (number % 3), value, (), now + number) for number in range(count)],
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=sequence if producer_id >= 0 else -1,
        )

    def append(self, tp: TopicPartition, batches: int, *, epoch: int, as_follower: bool = False) -> None:
        log = self.log(tp)
        self.life(tp).epochs.add(epoch)
        for _ in range(batches):
            self.time.now += 0.01
            sent = self.batch(tp, 1 + self.mark % 3, producer_id=self.mark % 4 - 1)
            base = log.log_end_offset
            stored = base.to_bytes(8, "big") + sent[8:12] + epoch.to_bytes(4, "big") + sent[16:]
            self.life(tp).may_become(base, stored)
            if as_follower:
                log.append_as_follower(memoryview(stored))
            else:
                log.append_as_leader(sent, epoch)
            assert parse_header(stored).next_offset == log.log_end_offset

    async def flush(self, tp: TopicPartition) -> None:
        await self.log(tp).flush()
        self.life(tp).is_flushed(self.log(tp).recovery_point)
        self.life(tp).may_be_gone = False

    def truncate(self, tp: TopicPartition, offset: int) -> None:
        life, log = self.life(tp), self.log(tp)
        life.is_cut(offset)
        log.truncate_to(offset)
        life.was_cut(log.log_end_offset)

    def restart_at(self, tp: TopicPartition, offset: int) -> None:
        """Empties the log; it continues at `offset`, the leader's log start."""
        life, log = self.life(tp), self.log(tp)
        life.is_cut(0)
        life.start_max = max(life.start_max, offset)
        log.truncate_fully_and_start_at(offset)
        life.was_cut(0)

    def delete_records(self, tp: TopicPartition, offset: int) -> None:
        self.life(tp).start_max = max(self.life(tp).start_max, offset)
        self.log(tp).increment_log_start(offset)

    async def retain(self) -> None:
        """Retention may delete all segments."""
        for tp, lives in self.lives.items():
            if (log := self.manager.get(tp)) is not None:
                lives[-1].start_max = max(lives[-1].start_max, log.log_end_offset)
        await self.manager.upkeep.delete_old_segments()

    async def checkpoint(self) -> None:
        await self.manager.checkpoints.write_recovery_points()
        await self.manager.checkpoints.write_log_starts()

    async def compact(self) -> None:
        """Works until nothing is due."""
        cleaner = LogCleaner(self.manager, self.time, CLEANER, lambda kind, **fields: None)
        assert await cleaner.clean_next()
        while await cleaner.clean_next():
            pass

    async def write_marks(self) -> None:
        """Writes the high watermarks as if all records were replicated."""
        marks = {found.topic_partition: found.log_end_offset for found in self.manager.logs()}
        for tp, mark in marks.items():
            self.life(tp).high_watermark_max = max(self.life(tp).high_watermark_max, mark)
        await self.manager.checkpoints.write_high_watermarks(marks.get)

    def delete(self, tp: TopicPartition) -> None:
        self.life(tp).may_be_gone = True
        self.manager.delete(tp)

    async def bounce(self) -> None:
        """A clean stop and a start."""
        await self.manager.shutdown()
        for tp, lives in self.lives.items():
            lives[-1].is_flushed(2**62)
            if any(self.disk.is_directory(f"{path}/{tp}") for path in self.log_dirs):
                lives[-1].may_be_gone = False
        self.manager = self.new_manager(self.disk)
        await self.manager.start()
        for tp, overrides in self.overrides.items():
            if overrides:
                self.manager.get_or_create(tp, self.life(tp).topic_id, overrides)


# -- after the crash --------------------------------------------------------------------------------------------------


class Recovered(NamedTuple):
    """What a start found, to compare with the next start."""

    batches: tuple[bytes, ...]
    log_start_offset: int
    log_end_offset: int
    epochs: tuple[tuple[int, int], ...]
    producers: Mapping[int, object]


def survive(workload: Workload, crash: Crash, random: Random, *, crash_again: bool) -> MemoryDisk:
    """Opens the disk of the crash several times, and checks that it has all that was promised. Returns the disk after a whole start."""
    disk = crash.disk
    if crash_again:
        # Power is lost in the middle of recovery, too.
        disk.calls_left = random.randrange(150)
        with contextlib.suppress(PowerLost):
            run(workload.new_manager(disk).start())
        disk = disk.after_power_loss(random, random.choice(LOSSES))
    manager = workload.new_manager(disk)
    run(manager.start())
    assert not any(disk.exists(f"{path}/{CLEAN_SHUTDOWN}") for path in workload.log_dirs), "BUG-18"
    for future in manager.futures.logs():
        _look_at_copy(future, manager)
    found = {log.topic_partition: _look(log, manager, crash.promises) for log in manager.logs()}
    for tp, promises in crash.promises.items():
        assert tp in found or promises[-1].may_be_gone, f"{tp} is gone"

    again = workload.new_manager(disk.after_kill())
    run(again.start())
    seen_again = {log.topic_partition: _recovered(log) for log in again.logs()}
    assert seen_again == found, "a second recovery finds something else"
    for log in again.logs():
        _go_on(workload, log)
    return disk


def _look(log: Log, manager: LogManager, promises: Mapping[TopicPartition, Sequence[Life]]) -> Recovered:
    tp = log.topic_partition
    if not promises[tp][-1].is_compacted:
        check(log)
    elif log.segments[-1].size:
        check(log, is_gapless=False)
    problems = []
    for life in promises[tp]:
        try:
            _compare(log, life, manager.checkpoints.read_high_watermarks().get(tp, 0))
        except AssertionError as error:
            problems.append(f"{life.topic_id}: {error}")
        else:
            break
    else:
        raise AssertionError(f"{tp}: {problems}")
    return _recovered(log)


def _look_at_copy(future: Log, manager: LogManager) -> None:
    """LOG-6: the copy contains no records that the log does not, such as those of an earlier epoch. It may still owe a truncation."""
    log = manager.get(future.topic_partition)
    if log is not None and future.log_end_offset > log.log_start_offset:
        of_log = set(split(everything_with_holes(log)))
        uncut = manager.futures.uncut(future.topic_partition)
        end = future.log_end_offset if uncut is None else uncut
        of_copy = [
            one
            for one in split(everything_with_holes(future))
            if log.log_start_offset < parse_header(one).next_offset <= end
        ]
        assert of_log.issuperset(of_copy), f"the copy in {future.directory} contains batches that the log does not"


def _recovered(log: Log) -> Recovered:
    return Recovered(
        tuple(split(everything_with_holes(log))),
        log.log_start_offset,
        log.log_end_offset,
        tuple(log.leader_epochs.entries),
        log.producers.state.producers,
    )


def _compare(log: Log, life: Life, high_watermark: int) -> None:
    assert log.topic_id in (life.topic_id, None), "another topic's"
    assert high_watermark <= life.high_watermark_max, "a high watermark that never was"
    assert {epoch for epoch, _ in log.leader_epochs.entries} <= life.epochs
    if life.is_compacted:
        _compare_keys(log, life)
        return
    found = {parse_header(one).base_offset: one for one in split(everything(log))}
    start, end = log.log_start_offset, log.log_end_offset
    versions = [version for version in life.versions if _part(version, start, end) == found]
    assert versions, f"{sorted(found)} was never in the log like this"
    for base, one in life.safe.items():
        if parse_header(one).next_offset > start:
            assert found.get(base) == one, f"the batch at {base} was synced, the log has {start} to {end}"
    assert start <= life.start_max, f"log start {start}, {life.start_max} was the highest"
    assert log.producers.state.end_offset == end
    is_known = any(_has_its_producers(log, version, has_moved=life.has_moved) for version in versions)
    assert is_known, "the producer state is not that of the log"


def _compare_keys(log: Log, life: Life) -> None:
    """LOG-4: the last record of each key is there, at its offset, and nothing that was never written."""
    assert log.log_end_offset >= max((parse_header(one).next_offset for one in life.safe.values()), default=0)
    (version,) = life.versions
    written = {}
    for base, one in sorted(version.items()):
        if base < log.log_end_offset:
            written |= {record.offset: (record.key, record.value) for record in decode_records(one)}
    last = {key: offset for offset, (key, _) in written.items()}
    found = {record.offset: (record.key, record.value) for record in records_of(log)}
    assert found.items() <= written.items()
    assert {offset: written[offset] for offset in last.values()}.items() <= found.items(), "a key's last value is gone"


def _part(version: Batches, start: int, end: int) -> Batches:
    return {base: one for base, one in version.items() if base < end and parse_header(one).next_offset > start}


def _has_its_producers(log: Log, version: Batches, *, has_moved: bool) -> bool:
    """INV-21. The first segment's snapshot has the producers of deleted records, if it was synced.

    A log that has moved was copied from its start on: it knows no producers whose records were deleted before, as in Kafka.
    """
    whole, left = ProducerState(), ProducerState()
    for base in sorted(version):
        header = parse_header(version[base])
        if header.next_offset <= log.log_end_offset:
            whole.append(header, base)
            if base >= log.segments[0].base_offset:
                left.append(header, base)
    found = log.producers.state
    if has_moved:
        return left.producers.keys() <= found.producers.keys() <= whole.producers.keys()
    if log.segments[0].base_offset <= log.recovery_point or not found.producers.keys() - left.producers.keys():
        expected = whole if log.segments[0].base_offset <= log.recovery_point else left
        return found.producers == expected.producers
    return True


def _go_on(workload: Workload, log: Log) -> None:
    """Appending goes on where the log ends."""
    end = log.log_end_offset
    epoch = max(log.leader_epochs.latest_epoch(), 0) + 1
    sent = workload.batch(log.topic_partition, 2, producer_id=-1)
    log.append_as_leader(sent, epoch)
    assert log.log_end_offset == end + 2
    is_gapless = not workload.life(log.topic_partition).is_compacted
    assert check(log, is_gapless=is_gapless)[-1].base_offset == end
