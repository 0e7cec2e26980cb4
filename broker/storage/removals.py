"""Removing what a log does not need any more, in threads: unlinking large files takes long."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence

from broker.storage.filesystem import FileSystem

log = logging.getLogger(__name__)


class Removals:
    """Those under way. One that fails leaves a file that the next start removes."""

    def __init__(self, filesystem: FileSystem) -> None:
        self._filesystem = filesystem
        self._under_way: set[asyncio.Future[None]] = set()

    def begin_files(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._begin(self._filesystem.remove, path)

    def begin_renamed_tree(self, path: str) -> None:
        """Its new name comes to the disk first: under the old one half of the log would count after a power loss."""
        self._begin(self._remove_renamed_tree, path)

    def _remove_renamed_tree(self, path: str) -> None:
        self._filesystem.sync_directory(os.path.dirname(path))
        self._filesystem.remove_tree(path)

    def _begin(self, remove: Callable[[str], None], path: str) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # at start, and in tools: there is no loop to wait
            remove(path)
            return
        removal = loop.run_in_executor(None, remove, path)
        self._under_way.add(removal)
        removal.add_done_callback(self._ended)

    async def wait(self) -> None:
        await asyncio.gather(*self._under_way, return_exceptions=True)

    def _ended(self, removal: asyncio.Future[None]) -> None:
        self._under_way.discard(removal)
        if not removal.cancelled() and (error := removal.exception()) is not None:
            log.warning("a removed file stays on the disk until the next start: %s", error)
