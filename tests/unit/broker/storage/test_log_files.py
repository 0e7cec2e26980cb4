"""Who gets an error of a log's disk, and as what (LOG-6)."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable

import pytest

from broker.storage.disk.filesystem import FileSystem
from broker.storage.failures import LogDirFailed, failure_of
from broker.storage.log_files import LogFiles

CALLS: dict[str, Callable[[FileSystem], object]] = {
    "write": lambda files: files.write(-1, (b"x",), 0),
    "read what is cached": lambda files: files.read_cached(-1, 1, 0),
    "read": lambda files: files.read(-1, 1, 0),
    "replace": lambda files: files.write_atomically("/nowhere/x", b"", sync=False),
    "find damage": lambda files: files.refuse("/nowhere/x", "it is torn"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_the_loop_gets_a_failure_and_a_thread_an_error(call: Callable[[FileSystem], object]) -> None:
    files = LogFiles(FileSystem())
    reported: list[OSError] = []

    def on_error(error: OSError) -> LogDirFailed:
        reported.append(error)
        return failure_of("/data", error)

    with pytest.raises(OSError):  # the log is being opened
        call(files)
    files.in_use.belong_to_this_thread()
    files.on_error = on_error
    with pytest.raises(OSError):  # whoever waits for the thread reports it
        await asyncio.to_thread(call, files)
    assert reported == []
    with pytest.raises(LogDirFailed) as failed:
        call(files)
    assert [failed.value.error] == reported
    assert reported[0].errno in (errno.EBADF, errno.ENOENT, errno.EIO)
