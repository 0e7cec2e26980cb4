"""Records since when a broker's disks have been present, to tell a lost log from one that was never created (FLT-33, INV-1).

A replica without a log is normal if the broker died between the creation of the topic and its first LeaderAndIsr. If the disk was
emptied or replaced, the log is lost. The two cases look alike, so each log directory has a file `ottla.disk` (Kafka ignores it):

    since.broker.epoch=4294967310     the broker epoch of the first life of the broker that had this disk
    log.dirs=/data/a,/data/b          all directories of that broker when the file was written
    version=0

A broker epoch and the creation of a partition's state are both ZooKeeper zxids, which increase. A partition that is older than
one of the broker's disks may have had its log on an earlier disk.

`since` is set to the current broker epoch

1. for a directory without `meta.properties`: the disk is empty;
2. for all directories, when one was removed from `log.dirs`: logs may have been lost with it;
3. for all directories, when a high watermark checkpoint names a log that does not exist: somebody removed it by hand. A topic
   that was deleted in the last seconds before a crash looks the same; this only adds caution;
4. for a directory whose file is damaged.

A directory that has `meta.properties` but not this file, for example Kafka's, counts as always present.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

from broker.storage import checkpoints
from broker.storage.directories.log_directory import META, LogDirectory
from broker.storage.disk.filesystem import FileSystem
from broker.storage.log import LogDirFailed
from protocol.types import TopicPartition

log = logging.getLogger(__name__)

Result = TypeVar("Result")

FILE = "ottla.disk"
NAMED_MAX = 10
ALWAYS = 0
"""Older than every partition."""


@dataclass(frozen=True, slots=True)
class DiskHistory:
    """The content of the file."""

    since: int
    directories: tuple[str, ...]

    def encode(self) -> bytes:
        return f"#\nsince.broker.epoch={self.since}\nlog.dirs={','.join(self.directories)}\nversion=0\n".encode()


def decode(data: bytes) -> DiskHistory | None:
    """None: the file is damaged."""
    lines = (line.partition("=") for line in data.decode(errors="replace").splitlines() if not line.startswith("#"))
    found = {key.strip(): value.strip() for key, _, value in lines}
    since = found.get("since.broker.epoch", "")
    if not (since.isascii() and since.isdigit() and found.get("version") == "0"):
        return None
    return DiskHistory(int(since), tuple(filter(None, found.get("log.dirs", "").split(","))))


class DiskHistories:
    """The files of all directories. `report` is called for a directory that fails."""

    def __init__(
        self, filesystem: FileSystem, directories: Sequence[LogDirectory], report: Callable[[LogDirFailed], None]
    ) -> None:
        self._filesystem = filesystem
        self._directories = directories
        self._report = report

    def update(self, present: Collection[TopicPartition], broker_epoch: int) -> int:
        """Writes the files that changed. Returns the broker epoch since which all disks have been present.

        Call once in each life of the broker, before `meta.properties` is written. `present`: the partitions that have a log.
        """
        found = self._of_each(lambda directory: self._read(directory, broker_epoch))
        lost = {tp for missing in self._of_each(lambda d: _lost(d, present)).values() for tp in missing}
        configured = tuple(directory.path for directory in self._directories)
        removed = {path for history in found.values() for path in history.directories} - set(configured)
        if removed:
            log.warning("%s: removed from log.dirs, logs may be lost", ", ".join(sorted(removed)))
        if lost:
            names = ", ".join(map(str, sorted(lost)[:NAMED_MAX]))
            log.warning("%d logs of the high watermark checkpoints do not exist any more, first %s", len(lost), names)
        is_incomplete = bool(removed or lost)
        since = {path: broker_epoch if is_incomplete else history.since for path, history in found.items()}
        self._of_each(lambda d: self._write(d, DiskHistory(since[d.path], configured)) if d.path in since else None)
        return max(since.values(), default=ALWAYS)

    def _of_each(self, look: Callable[[LogDirectory], Result]) -> dict[str, Result]:
        results: dict[str, Result] = {}
        for directory in self._directories:
            if directory.is_online:
                try:
                    results[directory.path] = look(directory)
                except OSError as error:
                    self._report(LogDirFailed(directory.path, error))
        return results

    def _read(self, directory: LogDirectory, broker_epoch: int) -> DiskHistory:
        data = self._filesystem.read_file(f"{directory.path}/{FILE}")
        is_empty = not self._filesystem.exists(f"{directory.path}/{META}")
        history = decode(data) if data is not None else DiskHistory(ALWAYS, ())
        if history is None:
            log.warning("%s/%s is damaged", directory.path, FILE)
            return DiskHistory(broker_epoch, ())
        return DiskHistory(broker_epoch, history.directories) if is_empty else history

    def _write(self, directory: LogDirectory, history: DiskHistory) -> None:
        path = f"{directory.path}/{FILE}"
        if self._filesystem.read_file(path) != history.encode():
            self._filesystem.write_atomically(path, history.encode())


def _lost(directory: LogDirectory, present: Collection[TopicPartition]) -> list[TopicPartition]:
    marks = directory.read_offsets(checkpoints.HIGH_WATERMARKS)
    return [tp for tp, mark in marks.items() if mark > 0 and tp not in present]
