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
        """Runs in a thread. A directory that was renamed meanwhile gets it with the next flush. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            filesystem.write_atomically(f"{self.directory}/{LEADER_EPOCHS}", self.data, sync=False)


@dataclass(frozen=True, slots=True)
class Unsynced:
    """What one flush syncs. The loop collects it; a thread syncs it, files before the directories that name them."""

    segments: Sequence[Segment]
    paths: Sequence[str]
    directories: Sequence[str]
    snapshots: SnapshotWrites
    epochs: EpochsWrite | None

    def __bool__(self) -> bool:
        return bool(self.segments or self.paths or self.directories or self.epochs)

    def sync(self, filesystem: FileSystem, *, but: str = "") -> None:
        """Waits for the disk; skips the directory `but`. Raises OSError."""
        self.snapshots.write(filesystem)
        if self.epochs is not None:
            self.epochs.write(filesystem)
        for segment in self.segments:
            segment.sync()
        for path in self.paths:
            filesystem.sync_path(path)
        for directory in self.directories:
            if directory != but:
                filesystem.sync_directory(directory)


async def in_thread(
    segments: Sequence[Segment], work: Callable[[], object], threads: ThreadPoolExecutor | None = None
) -> None:
    """Runs `work` in a thread, one of the loop's executor or of `threads`.

    The segments' files stay open until it ends, even if this wait is cancelled before. Raises OSError.
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
