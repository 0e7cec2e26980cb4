"""Logs for the storage layer's tests: opening one, filling it, and looking whether all in it agrees."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from broker.settings.config import TopicConfig
from broker.storage import checkpoints
from broker.storage.disk.filesystem import FileSystem
from broker.storage.listeners import DirectoryListener, LogListener
from broker.storage.log import Log
from broker.storage.log_manager import LogManager
from broker.storage.producers.producer_state import ProducerState
from broker.storage.recovery import open_log
from broker.storage.segment import WouldBlock
from protocol.kafka.record_batch import BatchHeader, build_batch, crc_is_valid, iter_batches
from protocol.types import TopicPartition
from tests.support.busy_disk import run
from tests.support.fake_time import FakeTime

TP = TopicPartition("orders", 0)
LOG_DIR = "/data"
DIRECTORY = f"{LOG_DIR}/{TP}"
SMALL = TopicConfig(segment_bytes=480, index_interval_bytes=150, retention_ms=-1)
"""A few batches to a segment, an index entry for every second."""


def open_at(
    filesystem: FileSystem,
    config: TopicConfig = SMALL,
    *,
    was_clean: bool = False,
    recovery_point: int = 0,
    log_start: int = 0,
    listener: LogListener | None = None,
) -> Log:
    filesystem.make_directory(DIRECTORY)
    parts = open_log(
        filesystem,
        DIRECTORY,
        config,
        was_clean=was_clean,
        recovery_point=recovery_point,
        log_start_offset=log_start,
        wall_ms=lambda: 1_000,
    )
    return Log(TP, LOG_DIR, DIRECTORY, config, lambda: 1_000, parts, listener or LogListener())


def started(
    disk: FileSystem, *directories: str, config: TopicConfig = SMALL, time: FakeTime | None = None, **options: Any
) -> LogManager:
    """A log manager that has opened all logs in its directories."""
    manager = LogManager(directories or (LOG_DIR,), config, disk, time or FakeTime(), **options)
    run(manager.start())
    return manager


def log_of(manager: LogManager, tp: TopicPartition = TP) -> Log:
    found = manager.get(tp)
    assert found is not None
    return found


def once_before(disk: object, name: str, action: Callable[[], object]) -> None:
    """Before the next call of that method, does `action`."""
    original = getattr(disk, name)

    def call(*arguments: Any, **settings: Any) -> Any:
        setattr(disk, name, original)
        action()
        return original(*arguments, **settings)

    setattr(disk, name, call)


class Failures(DirectoryListener):
    """Notes each failed directory once, and the replicas that failed alone."""

    def __init__(self) -> None:
        self.directories: list[str] = []
        self.replicas: list[TopicPartition] = []

    def directory_failed(self, directory: str, tp: TopicPartition | None = None) -> None:
        if directory not in self.directories:
            self.directories.append(directory)

    def replica_failed(self, tp: TopicPartition) -> None:
        self.replicas.append(tp)


def failures_of(manager: LogManager) -> list[str]:
    """The directories that fail from now on. High watermarks are log ends."""
    failures = Failures()
    manager.serve(failures, lambda tp: 0 if (found := manager.get(tp)) is None else found.log_end_offset)
    return failures.directories


def produced(
    producer: int, sequence: int, count: int = 2, *, epoch: int = 0, timestamp: int = 1_000, size: int = 10
) -> bytes:
    """What an idempotent producer sends."""
    records = [(b"k", bytes(size), (), timestamp + number) for number in range(count)]
    return build_batch(records, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)


def batch(count: int = 2, *, size: int = 10, timestamp: int = 1_000, mark: int = 0) -> bytes:
    """What a producer sends: `count` records of `size` bytes, a millisecond apart; `mark` makes its bytes its own."""
    value = mark.to_bytes(8, "big") + bytes(size)
    return build_batch([(b"k", value, (), timestamp + number) for number in range(count)])


def fill(log: Log, batches: int, *, epoch: int = 0, count: int = 2, timestamp: int = 1_000) -> None:
    """Appends as leader; each batch has later timestamps."""
    for number in range(batches):
        mark = log.log_end_offset
        log.append_as_leader(batch(count, timestamp=timestamp + 10 * number, mark=mark), epoch)


def everything(log: Log) -> bytes:
    """All bytes from the log start to the LEO, read segment by segment as a fetch does."""
    return b"".join(data for _, data in _reads(log))


def _reads(log: Log) -> list[tuple[int, bytes]]:
    found = []
    offset = log.log_start_offset
    for segment in log.segments:
        segment.load_indexes()
    while offset < log.log_end_offset:
        try:
            result = log.read(offset, 2**30, log.log_end_offset, True)
        except WouldBlock as cold:  # the kernel has dropped the page
            cold.warm()
            continue
        data = b"".join(bytes(part) for part in result.records)
        assert data, f"nothing at offset {offset} of {log.log_end_offset}"
        found.append((offset, data))
        offset = batches_of(data)[-1].next_offset
    return found


def batches_of(data: bytes) -> list[BatchHeader]:
    headers = list(iter_batches(data))
    assert all(crc_is_valid(data, position, header) for position, header in headers)
    assert sum(header.size_in_bytes for _, header in headers) == len(data)
    return [header for _, header in headers]


def split(data: bytes) -> list[bytes]:
    """The batches, each its own bytes."""
    return [data[position : position + header.size_in_bytes] for position, header in iter_batches(data)]


def check(log: Log, *, is_gapless: bool = True) -> list[BatchHeader]:
    """INV-5, 19, 21: a valid CRC prefix, indexes and epochs that agree with it. Returns the headers."""
    assert log.recovery_point <= log.log_end_offset
    assert log.log_start_offset <= log.log_end_offset
    headers = [header for _, data in _reads(log) for header in batches_of(data)]
    end = headers[-1].next_offset if headers else log.log_end_offset
    assert end == log.log_end_offset
    for before, header in itertools.pairwise(headers):
        assert header.base_offset == before.next_offset or (not is_gapless and header.base_offset > before.next_offset)
        assert header.partition_leader_epoch >= before.partition_leader_epoch
    _check_epochs(log, headers, is_compacted=not is_gapless)
    _check_producers(log, headers, is_compacted=not is_gapless)
    for segment in log.segments:
        segment.load_indexes()
        placed = dict(segment.headers(0))
        for entry in segment.index.entries():
            assert placed[entry[1]].last_offset == entry[0] + segment.base_offset
        for timestamp, relative in segment.time_index.entries():
            assert segment.has_timestamp(timestamp, relative + segment.base_offset)
            assert all(
                h.max_timestamp <= timestamp for h in placed.values() if h.last_offset <= relative + segment.base_offset
            )
    return headers


def _check_producers(log: Log, headers: Sequence[BatchHeader], *, is_compacted: bool) -> None:
    """INV-20, INV-21: the producers of the batches, and perhaps those of deleted records. Compaction keeps the end of the last batch."""
    told = ProducerState()
    for header in headers:
        told.append(header, header.base_offset)
    state = log.producers.state
    assert state.end_offset == log.log_end_offset
    for producer_id, entry in told.producers.items():
        known = state.producers[producer_id]
        assert known.epoch == entry.epoch
        assert known.batches[-1][:2] == entry.batches[-1][:2]
        if is_compacted:
            continue
        # A snapshot has one time for a producer's last batch and its last marker.
        with_times = 4 if known.coordinator_epoch < 0 else 3
        kept = known.batches[-len(entry.batches) :]
        assert [one[:with_times] for one in kept] == [one[:with_times] for one in entry.batches]
        assert all(batch.last_offset < entry.batches[0].first_offset for batch in known.batches[: -len(entry.batches)])


def _check_epochs(log: Log, headers: Sequence[BatchHeader], *, is_compacted: bool) -> None:
    entries = log.leader_epochs.entries
    assert all(a[0] < b[0] and a[1] <= b[1] for a, b in itertools.pairwise(entries)), entries
    assert all(start <= log.log_end_offset for _, start in entries)
    for header in headers:
        if header.base_offset >= log.log_start_offset:
            assert log.leader_epochs.epoch_for_offset(header.base_offset) == header.partition_leader_epoch, entries
    if is_compacted:
        return
    with_records = {header.partition_leader_epoch for header in headers}
    for (epoch, _), (_, end) in itertools.pairwise([*entries, (-1, log.log_end_offset)]):
        is_empty_at_the_end = epoch == entries[-1][0] and entries[-1][1] == end
        assert epoch in with_records or end <= log.log_start_offset or is_empty_at_the_end, entries


def stored_epochs(filesystem: FileSystem) -> list[tuple[int, int]]:
    return checkpoints.read_epochs(filesystem, f"{DIRECTORY}/{checkpoints.LEADER_EPOCHS}") or []
