"""The offset up to which each compacted log is clean: `cleaner-offset-checkpoint` in every log directory (LOG-4).

An entry that is too high is dangerous. The cleaner does not collect the keys of records below it, so it could remove a tombstone
there and keep an earlier record of the key. An entry is therefore lowered on the disk after a cut, before anything is appended
(`LoweredPoints`), and after a deletion, before a log of the same name is created. At a start, nothing above the recovery point
counts as clean. An entry that is too low only costs time.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable

from broker.storage.checkpoints import CLEANED
from broker.storage.directories.log_directory import LogDirectory
from broker.storage.log import Log
from protocol.types import TopicPartition


class CleanerCheckpoint:
    """`Log.cleaned_up_to` on the disk."""

    def __init__(self, directories: Iterable[LogDirectory], logs: Callable[[], Iterable[Log]]) -> None:
        self._directories = directories
        self._logs = logs
        self._turns = itertools.count(1)

    def restore(self, directory: LogDirectory, opened: Iterable[Log]) -> None:
        """Sets `cleaned_up_to` of all logs of a directory, at a start. Raises OSError."""
        offsets = directory.read_offsets(CLEANED)
        for found in opened:
            if found.directory == f"{directory.path}/{found.topic_partition}":  # not a future copy
                found.cleaned_up_to = min(offsets.get(found.topic_partition, 0), found.recovery_point)

    def lower_now(self, log_dir: str) -> None:
        """As `lower`, but on the loop. Afterwards the file has only entries of existing logs. Raises OSError."""
        for directory in self._online(log_dir):
            if directory.read_offsets(CLEANED):
                directory.overwrite_offsets(CLEANED, self._offsets(directory), next(self._turns))

    async def lower(self, log_dir: str) -> None:
        """After a cut: waits until the offsets of the directory's logs are on the disk, if its file has any. Raises OSError."""
        for directory in self._online(log_dir):
            if directory.read_offsets(CLEANED):
                await self.write(log_dir)

    async def write(self, log_dir: str) -> None:
        """Waits until the offsets of a directory's logs are on the disk. Raises OSError."""
        for directory in self._online(log_dir):
            offsets, turn = self._offsets(directory), next(self._turns)
            await asyncio.get_running_loop().run_in_executor(None, directory.write_offsets, CLEANED, offsets, turn)

    def _online(self, path: str) -> list[LogDirectory]:
        return [directory for directory in self._directories if directory.path == path and directory.is_online]

    def _offsets(self, directory: LogDirectory) -> dict[TopicPartition, int]:
        return {
            found.topic_partition: found.cleaned_up_to
            for found in self._logs()
            if found.log_dir == directory.path and found.cleaned_up_to > 0
        }
