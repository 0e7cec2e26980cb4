"""A log manager with one compacted log, and a cleaner, for the tests of compaction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from broker.settings.config import TopicConfig
from broker.storage.compaction.log_cleaner import CleanerSettings, LogCleaner
from broker.storage.disk.filesystem import FileSystem
from broker.storage.log import Log
from broker.storage.log_manager import LogManager
from protocol.kafka.record_batch import BatchHeader, Record, build_batch, decode_records, iter_batches
from tests.support.fake_time import FakeTime
from tests.support.logs import LOG_DIR, TP, everything

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
    """Starts on a disk; `wall_ms` of the clock is what tombstones age by."""

    def __init__(
        self,
        disk: FileSystem,
        time: FakeTime | None = None,
        config: TopicConfig = COMPACTED,
        settings: CleanerSettings = SETTINGS,
    ) -> None:
        self.disk = disk
        self.time = time or FakeTime()
        self.config = config
        self.high_watermark: int | None = None
        self.events: list[tuple[str, Mapping[str, Any]]] = []
        self.manager = LogManager([LOG_DIR], config, disk, self.time)
        self.manager.high_watermark_of = lambda tp: (
            self.log.log_end_offset if self.high_watermark is None else self.high_watermark
        )
        self.cleaner = LogCleaner(
            self.manager, disk, self.time, settings, lambda kind, **fields: self.events.append((kind, fields))
        )

    async def start(self) -> CompactedLog:
        await self.manager.start()
        self.log: Log = self.manager.get_or_create(TP, "AAAAAAAAAAAAAAAAAAAAWA", {})
        return self

    def configure(self, **changes: Any) -> None:
        self.config = replace(self.config, **changes)
        self.log.config = self.config

    def append(self, *records: Written, epoch: int = 0, **options: Any) -> int:
        """The offset of the first record."""
        options.setdefault("timestamp", self.time.wall_ms())
        return self.log.append_as_leader(keyed(*records, **options), epoch).first_offset

    def roll(self) -> None:
        """A new, empty active segment: all before can be cleaned."""
        if self.log.segments[-1].size:
            self.log._roll(self.log.log_end_offset)

    async def clean(self) -> int:
        """Until nothing is due; how often it cleaned."""
        count = 0
        while await self.cleaner.clean_next():
            count += 1
            assert count < 1000
        return count


def headers_of(log: Log) -> list[BatchHeader]:
    return [header for _, header in iter_batches(everything_with_holes(log))]


def records_of(log: Log) -> list[Record]:
    return list(_records(everything_with_holes(log)))


def everything_with_holes(log: Log) -> bytes:
    """`everything`, also where the log ends with a hole."""
    if log.segments[-1].size:
        return everything(log)
    data = b""
    for segment in log.segments:
        data += bytes(segment.read(0, segment.size, may_block=True))
    return data


def _records(data: bytes) -> Iterator[Record]:
    for position, _ in iter_batches(data):
        yield from decode_records(data, position)


def table_of(records: list[Record]) -> dict[bytes, bytes]:
    """Key -> last value: what a reader of the whole topic knows in the end."""
    table: dict[bytes, bytes] = {}
    for record in records:
        assert record.key is not None
        if record.value is None:
            table.pop(record.key, None)
        else:
            table[record.key] = record.value
    return table
