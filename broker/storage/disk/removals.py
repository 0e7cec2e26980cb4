"""Removes files that logs do not need any more, in a separate thread: unlinking large files takes long."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence

from broker.storage.disk.disk_errors import is_passing
from broker.storage.disk.disk_threads import REMOVALS
from broker.storage.disk.filesystem import FileSystem

log = logging.getLogger(__name__)


class Removals:
    """A queue of removals. One thread at a time removes what is queued. What cannot be removed stays until the next start.

    If a directory tree fails only for lack of a descriptor or memory, `retry`, called each second, tries again.
    """

    def __init__(self, filesystem: FileSystem) -> None:
        self._filesystem = filesystem
        self._files: list[str] = []
        self._trees: list[str] = []
        self._postponed: list[str] = []
        self._running: asyncio.Future[None] | None = None

    def begin_files(self, paths: Sequence[str]) -> None:
        self._files += paths
        self._begin()

    def begin_renamed_tree(self, path: str) -> None:
        """Removes a renamed log. Its new name is synced first, or a power loss could leave half a log under its old name."""
        self._trees.append(path)
        self._begin()

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
            return
        running = self._running = loop.run_in_executor(REMOVALS, self._remove, files, trees)
        running.add_done_callback(self._ended)
        if running.done():
            self._ended(running)

    def _ended(self, running: asyncio.Future[None]) -> None:
        if self._running is running:
            self._running = None
            self._begin()

    def _remove(self, files: Sequence[str], trees: Sequence[str]) -> None:
        """Removes files, then trees. One sync covers the new names of all trees in a directory."""
        for path in files:
            self._try(self._filesystem.remove, path, ())
        trees_in: dict[str, list[str]] = {}
        for path in trees:
            trees_in.setdefault(os.path.dirname(path), []).append(path)
        for directory, paths in trees_in.items():
            if self._try(self._filesystem.sync_directory, directory, paths):
                for path in paths:
                    self._try(self._filesystem.remove_tree, path, (path,))

    def _try(self, work: Callable[[str], None], path: str, postponed: Sequence[str]) -> bool:
        """False on an error. After a temporary one, the trees `postponed` are removed later."""
        try:
            work(path)
        except OSError as error:
            if is_passing(error):
                self._postponed += postponed
            else:
                log.warning("a file that is no longer needed stays on the disk until the next start: %s", error)
            return False
        return True
