"""What of a log is not on the disk yet, and files that a thread uses (LOG-3, FLT-24, FLT-29)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from broker.storage.filesystem import FileSystem
from broker.storage.segment import Segment


@dataclass(frozen=True, slots=True)
class Unsynced:
    """Taken on the loop, synced in a thread: files before the directories that name them."""

    segments: Sequence[Segment]
    paths: Sequence[str]
    directories: Sequence[str]

    def __bool__(self) -> bool:
        return bool(self.segments or self.paths or self.directories)

    def sync(self, filesystem: FileSystem) -> None:
        """Waits for the disk. Raises OSError."""
        for segment in self.segments:
            segment.sync()
        for path in self.paths:
            filesystem.sync_path(path)
        for directory in self.directories:
            filesystem.sync_directory(directory)


async def in_thread(segments: Sequence[Segment], work: Callable[[], object]) -> None:
    """Runs `work` in a thread; the segments' files stay open until it ends, even if this wait is cancelled before."""

    def unpin(done: asyncio.Future[object]) -> None:
        for segment in segments:
            segment.unpin()

    for segment in segments:
        segment.pin()
    running: asyncio.Future[object] = asyncio.get_running_loop().run_in_executor(None, work)
    running.add_done_callback(unpin)
    await asyncio.shield(running)
