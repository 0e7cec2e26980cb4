"""What the files of a log directory say of compaction (LOG-4, INV-21).

    cleaner-offset-checkpoint   up to where each compacted log is clean
    ottla.holes                 up to where compaction made the holes in its offsets (Kafka ignores the file)

A `cleaner-offset-checkpoint` that is too high is dangerous. The cleaner does not collect the keys of records below it, so it could remove a
tombstone there and keep an earlier record of the key. An entry is therefore lowered on the disk after a cut, before anything is appended
(`LoweredPoints`), and after a deletion, before a log of the same name is created. At a start, nothing above the recovery point
counts as clean. An entry that is too low only costs time.

Recovery takes a hole for damage: a power loss may have lost what was there. A hole below the recovery point is compaction's, but a cut
lowers the recovery point to the start of a segment, which may have holes before the cut, and the recovery point may be lost. So
`ottla.holes` has the end of the part that compaction is going to change, and the end of what was synced and not cut: a hole there is not
damage. An entry that is too low loses records behind a hole, so it is written before a compaction changes anything, and
before a recovery point is lowered. One that is too high hides damage; it is lowered as the other.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping

from broker.storage.checkpoints import CLEANED, HOLES
from broker.storage.directories.log_directory import LogDirectory
from broker.storage.log import Log
from protocol.types import TopicPartition

Offsets = Mapping[TopicPartition, int]


def stored(directory: LogDirectory) -> tuple[Offsets, Offsets]:
    """(up to where the logs are clean, up to where they may have holes), as the files say. Raises OSError.

    A directory of Kafka, or of an earlier version, has only the first file.
    """
    cleaned, holes = directory.read_offsets(CLEANED), directory.read_offsets(HOLES)
    return cleaned, {tp: max(cleaned.get(tp, 0), holes.get(tp, 0)) for tp in cleaned.keys() | holes.keys()}


class CleanerCheckpoint:
    """`Log.cleaned_up_to` and `Log.holes_up_to` on the disk."""

    def __init__(self, directories: Iterable[LogDirectory], logs: Callable[[], Iterable[Log]]) -> None:
        self._directories = directories
        self._logs = logs
        self._turns = itertools.count(1)

    def restore(self, directory: LogDirectory, opened: Iterable[Log]) -> None:
        """Sets the offsets of all logs of a directory, at a start. Raises OSError."""
        cleaned, holes = stored(directory)
        is_beyond = False
        for found in opened:
            if found.directory == f"{directory.path}/{found.topic_partition}":  # not a future copy
                mark = holes.get(found.topic_partition, 0)
                found.cleaned_up_to = min(cleaned.get(found.topic_partition, 0), found.recovery_point)
                found.holes_up_to = min(mark, found.log_end_offset)
                is_beyond |= mark > found.log_end_offset
        if is_beyond:  # lowered before anything is appended there
            for name, offsets in self._contents(directory, opened):
                directory.overwrite_offsets(name, offsets, next(self._turns))

    def lower_now(self, log_dir: str) -> None:
        """As `lower`, but on the loop. Afterwards the files have only entries of existing logs. Raises OSError."""
        for directory in self._online(log_dir):
            for name, offsets in self._contents(directory, self._logs()):
                if offsets or directory.read_offsets(name):
                    directory.overwrite_offsets(name, offsets, next(self._turns))

    async def lower(self, log_dir: str) -> None:
        """After a cut: waits until the offsets of the directory's logs are on the disk, if there are any. Raises OSError."""
        for directory in self._online(log_dir):
            for name, offsets in self._contents(directory, self._logs()):
                if offsets or directory.read_offsets(name):
                    await self._write(directory, name, offsets)

    async def write(self, log_dir: str) -> None:
        """Waits until the offsets of a directory's logs are on the disk. Raises OSError."""
        for directory in self._online(log_dir):
            for name, offsets in self._contents(directory, self._logs()):
                await self._write(directory, name, offsets)

    async def _write(self, directory: LogDirectory, name: str, offsets: Offsets) -> None:
        turn = next(self._turns)
        await asyncio.get_running_loop().run_in_executor(None, directory.write_offsets, name, offsets, turn)

    def _online(self, path: str) -> list[LogDirectory]:
        return [directory for directory in self._directories if directory.path == path and directory.is_online]

    def _contents(self, directory: LogDirectory, logs: Iterable[Log]) -> Iterator[tuple[str, Offsets]]:
        """The name and the content of each file, when it is asked for. The holes come first: the other file may stand for them."""
        yield HOLES, self._offsets(directory, logs, lambda found: found.holes_up_to)
        yield CLEANED, self._offsets(directory, logs, lambda found: found.cleaned_up_to)

    def _offsets(self, directory: LogDirectory, logs: Iterable[Log], of: Callable[[Log], int]) -> Offsets:
        return {
            found.topic_partition: offset
            for found in logs
            if found.log_dir == directory.path and (offset := of(found)) > 0
        }
