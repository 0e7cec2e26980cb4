"""The parts of a log that are not on the disk yet (LOG-3, FLT-24, FLT-29)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from broker.storage.checkpoints import LEADER_EPOCHS
from broker.storage.disk.filesystem import FileSystem, HeldDirectory
from broker.storage.producers.log_producers import write_snapshots
from broker.storage.producers.producer_state import ProducerState
from broker.storage.segment import Segment


@dataclass(frozen=True, slots=True)
class Unsynced:
    """What a part of a flush writes and syncs. The loop collects it; a thread syncs files first, then the directories that name them.

    `names` and `epochs` are files in the log's directory: their names, and the content of the leader epoch checkpoint. `log_dir`: the
    directory that names the log's, if names in either have changed. `end_offset`: the log is on the disk up to there afterwards, if it was
    up to the start of this part.
    """

    segments: Sequence[Segment]
    names: Sequence[str]
    snapshots: Mapping[int, ProducerState]
    epochs: bytes | None
    log_dir: str
    end_offset: int

    def __bool__(self) -> bool:
        return bool(self.segments or self.is_in_directory)

    @property
    def is_in_directory(self) -> bool:
        """Whether `sync` needs the log's directory."""
        return bool(self.names or self.snapshots or self.epochs is not None or self.log_dir)

    def sync(self, filesystem: FileSystem, directory: HeldDirectory | None, *, with_log_dir: bool = True) -> None:
        """Waits for the disk. Raises OSError."""
        if directory is not None:
            write_snapshots(directory, self.snapshots)
            if self.epochs is not None:
                directory.write(LEADER_EPOCHS, self.epochs)
        for segment in self.segments:
            segment.sync()
        if directory is not None:
            for name in self.names:
                directory.sync_file(name)
            if self.log_dir:
                directory.sync()
        if self.log_dir and with_log_dir:
            filesystem.sync_directory(self.log_dir)


async def in_thread(
    segments: Sequence[Segment],
    work: Callable[[], object],
    threads: ThreadPoolExecutor | None = None,
    *,
    directory: HeldDirectory | None = None,
) -> None:
    """Runs `work` in one of `threads`, by default the loop's executor.

    The segments' files stay open, and the directory is held, until `work` ends, even if the caller is cancelled before. Raises OSError.
    """

    def unpin(done: asyncio.Future[object]) -> None:
        for segment in segments:
            segment.unpin()
        if directory is not None:
            directory.release()

    pinned: list[Segment] = []
    try:
        for segment in segments:
            segment.pin()
            pinned.append(segment)
    except BaseException:
        for segment in pinned:
            segment.unpin()
        if directory is not None:
            directory.release()
        raise
    running: asyncio.Future[object] = asyncio.get_running_loop().run_in_executor(threads, work)
    running.add_done_callback(unpin)
    await asyncio.shield(running)
