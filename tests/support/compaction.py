"""A log manager with one compacted log, and a cleaner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from broker.settings.config import TopicConfig
from broker.storage.compaction.log_cleaner import CleanerSettings, LogCleaner
from broker.storage.log import Log
from protocol.kafka.record_batch import BatchHeader, Record, build_batch, decode_records, iter_batches
from tests.support.busy_disk import run
from tests.support.fake_time import FakeTime
from tests.support.logs import TP, everything, started
from tools.sim.world.disk import MemoryDisk

COMPACTED = TopicConfig(
    cleanup_policy="compact",
    segment_bytes=600,
    index_interval_bytes=150,
    delete_retention_ms=1000,
    min_cleanable_dirty_ratio=0.0,
)
SETTINGS = CleanerSettings(dedupe_bytes=1024**2)

Written = tuple[bytes, bytes | None]
"""(key, value); a value of None is a tombstone."""


def keyed(*records: Written, timestamp: int = 1_000, **options: Any) -> bytes:
    """A batch of (key, value), a millisecond apart."""
    return build_batch([(key, value, (), timestamp + number) for number, (key, value) in enumerate(records)], **options)


class CompactedLog:
    """Everything is cleanable up to `high_watermark`, or up to the log end. Tombstones age by the clock's `wall_ms`."""

    def __init__(
        self,
        disk: MemoryDisk | None = None,
        time: FakeTime | None = None,
        settings: CleanerSettings = SETTINGS,
    ) -> None:
        self.disk = disk or MemoryDisk()
        self.time = time or FakeTime()
        self.high_watermark: int | None = None
        self.events: list[tuple[str, Mapping[str, Any]]] = []
        self.manager = started(self.disk, config=COMPACTED, time=self.time)
        self.manager.high_watermark_of = lambda tp: (
            self.log.log_end_offset if self.high_watermark is None else self.high_watermark
        )
        self.cleaner = LogCleaner(
            self.manager, self.time, settings, lambda kind, **fields: self.events.append((kind, fields))
        )
        self.log = self.manager.get_or_create(TP, "AAAAAAAAAAAAAAAAAAAAWA", {})

    def reopened(self) -> CompactedLog:
        """Opens the log as the next process would after a kill."""
        return CompactedLog(self.disk.after_kill(), self.time)

    def configure(self, **changes: Any) -> None:
        self.log.config = replace(self.log.config, **changes)

    def append(self, *records: Written, epoch: int = 0, **options: Any) -> int:
        """The offset of the first record."""
        options.setdefault("timestamp", self.time.wall_ms())
        return self.log.append_as_leader(keyed(*records, **options), epoch).first_offset

    def roll(self) -> None:
        """Rolls a new, empty active segment, so that everything before it can be cleaned."""
        if self.log.segments[-1].size:
            self.log._roll(self.log.log_end_offset)

    def clean(self) -> int:
        """Cleans until nothing is due. Returns how often."""
        count = 0
        while run(self.cleaner.clean_next()):
            count += 1
            assert count < 1000
        return count


def headers_of(log: Log) -> list[BatchHeader]:
    return [header for _, header in iter_batches(everything_with_holes(log))]


def records_of(log: Log) -> list[Record]:
    data = everything_with_holes(log)
    return [record for position, _ in iter_batches(data) for record in decode_records(data, position)]


def everything_with_holes(log: Log) -> bytes:
    """`everything`, also where the log ends with a hole."""
    if log.segments[-1].size:
        return everything(log)
    return b"".join(bytes(segment.read(0, segment.size, may_block=True)) for segment in log.segments)


def table_of(records: list[Record]) -> dict[bytes, bytes]:
    """Key -> last value, as a reader of the whole topic knows it."""
    table: dict[bytes, bytes] = {}
    for record in records:
        assert record.key is not None
        if record.value is None:
            table.pop(record.key, None)
        else:
            table[record.key] = record.value
    return table
