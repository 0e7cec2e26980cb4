"""Removes files that logs do not need any more, in a separate thread: unlinking large files takes long."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from broker.storage.disk.disk_errors import is_passing
from broker.storage.disk.disk_threads import REMOVALS
from broker.storage.disk.filesystem import FileSystem
from protocol.types import TopicPartition

log = logging.getLogger(__name__)


class Renamed(NamedTuple):
    """A log's directory under its new path. `served`: the partition whose log it was, unless it was a copy.

    `is_kept`: only its name is synced. It stays there, or was removed before it was complete.
    """

    path: str
    served: TopicPartition | None = None
    is_kept: bool = False


class Removals:
    """A queue of removals. One thread at a time removes what is queued. What cannot be removed stays until the next start.

    If a directory tree fails only for lack of a descriptor or memory, `retry`, called each second, tries again.

    Until the new name of a log's directory is synced, a power loss gives it the old one again. Meanwhile a new log of that partition may
    only be made in the same log directory (`returns_to`): no start accepts a log in two.
    """

    def __init__(self, filesystem: FileSystem) -> None:
        self._filesystem = filesystem
        self._files: list[str] = []
        self._trees: list[Renamed] = []
        self._postponed: list[Renamed] = []
        self._unsynced: dict[TopicPartition, Renamed] = {}
        self._synced: list[Renamed] = []
        """Filled by the thread, emptied when it has ended."""
        self._running: asyncio.Future[None] | None = None

    def begin_files(self, paths: Sequence[str]) -> None:
        self._files += paths
        self._begin()

    def begin_renamed(self, renamed: Renamed) -> None:
        """Removes a renamed log, unless it is kept. Its new name is synced first, or a power loss could leave half a log under its old
        name."""
        if renamed.served is not None:
            self._unsynced[renamed.served] = renamed
        self._trees.append(renamed)
        self._begin()

    def returns_to(self, tp: TopicPartition) -> str | None:
        """The log directory in which a power loss would bring back the partition's earlier log."""
        renamed = self._unsynced.get(tp)
        return None if renamed is None else os.path.dirname(renamed.path)

    def retry(self) -> None:
        """Retries removals that failed with a temporary error."""
        if self._postponed:
            self._trees += self._postponed
            self._postponed = []
            self._begin()

    async def wait(self) -> None:
        while self._running is not None:
            running = self._running
            await asyncio.wait([running])
            self._ended(running)

    def _begin(self) -> None:
        if self._running is not None or not (self._files or self._trees):
            return
        files, trees = self._files, self._trees
        self._files, self._trees = [], []
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # no loop is running: at a start, and in tools
            self._remove(files, trees)
            self._forget_synced()
            return
        running = self._running = loop.run_in_executor(REMOVALS, self._remove, files, trees)
        running.add_done_callback(self._ended)
        if running.done():
            self._ended(running)

    def _ended(self, running: asyncio.Future[None]) -> None:
        if self._running is running:
            self._running = None
            self._forget_synced()
            self._begin()

    def _forget_synced(self) -> None:
        synced, self._synced = self._synced, []
        for renamed in synced:
            if renamed.served is not None and self._unsynced.get(renamed.served) is renamed:
                del self._unsynced[renamed.served]

    def _remove(self, files: Sequence[str], trees: Sequence[Renamed]) -> None:
        """Removes files, then trees. One sync covers the new names of all trees in a directory."""
        for path in files:
            self._try(self._filesystem.remove, path, ())
        trees_in: dict[str, list[Renamed]] = {}
        for tree in trees:
            trees_in.setdefault(os.path.dirname(tree.path), []).append(tree)
        for directory, renamed in trees_in.items():
            if self._try(self._filesystem.sync_directory, directory, renamed):
                self._synced += renamed
                for tree in renamed:
                    if not tree.is_kept:
                        self._try(self._filesystem.remove_tree, tree.path, (tree,))

    def _try(self, work: Callable[[str], None], path: str, postponed: Sequence[Renamed]) -> bool:
        """False on an error. After a temporary one, the trees `postponed` are removed later."""
        try:
            work(path)
        except OSError as error:
            if is_passing(error):
                self._postponed += postponed
            else:
                log.warning("a removal is left to the next start: %s", error)
            return False
        return True
