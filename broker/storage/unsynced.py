"""The parts of a log that are not on the disk yet (LOG-3, FLT-24, FLT-29)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

from broker.storage.checkpoints import LEADER_EPOCHS
from broker.storage.disk.filesystem import FileSystem
from broker.storage.producers.log_producers import SnapshotWrites
from broker.storage.segment import Segment


class EpochsWrite(NamedTuple):
    """The content of a log's leader epoch checkpoint, and where it belongs."""

    directory: str
    data: bytes

    def write(self, filesystem: FileSystem) -> None:
        """For a thread. If the directory was renamed meanwhile, the next flush writes the file. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            filesystem.write_atomically(f"{self.directory}/{LEADER_EPOCHS}", self.data, sync=False)


@dataclass(frozen=True, slots=True)
class Unsynced:
    """What one flush writes and syncs. The loop collects it; a thread syncs files first, then the directories that name them."""

    segments: Sequence[Segment]
    paths: Sequence[str]
    directories: Sequence[str]
    snapshots: SnapshotWrites
    epochs: EpochsWrite | None

    def __bool__(self) -> bool:
        return bool(self.segments or self.paths or self.directories or self.epochs)

    def sync(self, filesystem: FileSystem, *, skipped_directory: str = "") -> None:
        """Waits for the disk. Raises OSError."""
        self.snapshots.write(filesystem)
        if self.epochs is not None:
            self.epochs.write(filesystem)
        for segment in self.segments:
            segment.sync()
        for path in self.paths:
            filesystem.sync_path(path)
        for directory in self.directories:
            if directory != skipped_directory:
                filesystem.sync_directory(directory)


async def in_thread(
    segments: Sequence[Segment], work: Callable[[], object], threads: ThreadPoolExecutor | None = None
) -> None:
    """Runs `work` in one of `threads`, by default the loop's executor.

    The segments' files stay open until `work` ends, even if the caller is cancelled before. Raises OSError.
    """

    def unpin(done: asyncio.Future[object]) -> None:
        for segment in segments:
            segment.unpin()

    pinned: list[Segment] = []
    try:
        for segment in segments:
            segment.pin()
            pinned.append(segment)
    except OSError:
        for segment in pinned:
            segment.unpin()
        raise
    running: asyncio.Future[object] = asyncio.get_running_loop().run_in_executor(threads, work)
    running.add_done_callback(unpin)
    await asyncio.shield(running)
