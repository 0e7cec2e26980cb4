"""The disk, as one log and its parts use it: an error is reported, and raised as LogDirFailed (LOG-6)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from broker.storage.disk.filesystem import FileSystem
from broker.storage.failures import LogDirFailed
from protocol.types import Buffer


class LogFiles(FileSystem):
    """A log, its segments, their indexes and its producers use the disk through this object only. So no OSError leaves a log, whatever
    calls it: neither a request, nor background work, nor an event.

    Two exceptions. While the log is not served (it is being opened, or it is closed) its opener or closer handles OSError. In a thread
    nothing can be reported: whoever waits for the thread reports it.
    """

    def __init__(self, disk: FileSystem) -> None:
        self.disk = disk
        self.in_use = disk.in_use
        self.spare = disk.spare
        self.on_error: Callable[[OSError], LogDirFailed] | None = None
        """Reports an error, and returns the exception to raise. None: the log is not served."""

    def _failed(self, error: OSError) -> NoReturn:
        if self.on_error is None or self.in_use.are_of_another_thread:
            raise error
        raise self.on_error(error) from error

    @property
    def knows_the_page_cache(self) -> bool:
        return self.disk.knows_the_page_cache

    # These two are called for each request. The others are all alike, and a little slower.

    def write(self, fd: int, parts: Sequence[Buffer], position: int) -> None:
        try:
            self.disk.write(fd, parts, position)
        except OSError as error:
            self._failed(error)

    def read_cached(self, fd: int, size: int, position: int) -> Buffer | None:
        try:
            return self.disk.read_cached(fd, size, position)
        except OSError as error:
            self._failed(error)


def _guarded(name: str) -> Callable[..., Any]:
    def call(files: LogFiles, *arguments: Any, **settings: Any) -> Any:
        try:
            return getattr(files.disk, name)(*arguments, **settings)
        except OSError as error:
            files._failed(error)

    return call


for _name, _member in list(vars(FileSystem).items()):
    if inspect.isfunction(_member) and not _name.startswith("_") and _name not in vars(LogFiles):
        setattr(LogFiles, _name, _guarded(_name))
