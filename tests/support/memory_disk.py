"""A file system in memory that can lose power, fail and be cold; for the storage layer's tests."""

from __future__ import annotations

import asyncio
import errno
import os
import posixpath
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

from broker.storage.filesystem import Buffer, FileSystem

T = TypeVar("T")


@dataclass
class Inode:
    """A file: what programs see, what is on the disk, and the writes in between as (position, bytes or None: cut there)."""

    content: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)


class PowerLost(BaseException):
    """The machine stops in the middle of what it did."""


class MemoryDisk(FileSystem):
    """Names change in one order, as in a journal: a crash keeps a prefix of the changes. Data is kept independently.

    `syncing` a file or directory makes the journal durable up to then, as ext4 and xfs do.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[str, Inode | None] = {"/": None}  # None: a directory
        self.journal: list[dict[str, Inode | None]] = [dict(self.names)]
        self.is_cold = False
        self.failures: dict[str, OSError] = {}
        self.calls_left: int | None = None
        self.calls = 0
        self._open: dict[int, Inode] = {}
        self._next_fd = 100

    # -- faults -------------------------------------------------------------------------------------------------------

    def fail(self, operation: str, number: int = errno.EIO) -> None:
        """From now on that method raises."""
        self.failures[operation] = OSError(number, os.strerror(number))

    def _call(self, operation: str) -> None:
        self.calls += 1
        if self.calls_left is not None:
            if self.calls_left == 0:
                raise PowerLost
            self.calls_left -= 1
        if operation in self.failures:
            raise self.failures[operation]

    def after_power_loss(self, random: Random) -> MemoryDisk:
        """What a machine finds that lost power now: unsynced writes are there, are not, or are torn, in any mixture."""
        survivor = MemoryDisk()
        names = random.choice(self.journal)
        kept: dict[int, Inode] = {}
        for path, inode in names.items():
            survivor.names[path] = inode if inode is None else kept.setdefault(id(inode), _survived(inode, random))
        survivor.journal = [dict(survivor.names)]
        return survivor

    def after_kill(self) -> MemoryDisk:
        """What the next process finds when only the process died: everything that was written."""
        survivor = MemoryDisk()
        for path, inode in self.names.items():
            survivor.names[path] = None if inode is None else Inode(bytearray(inode.content), bytes(inode.content))
        survivor.journal = [dict(survivor.names)]
        return survivor

    def corrupt(self, path: str, position: int, mask: int) -> None:
        """Flips bits of one byte."""
        inode = self._file(path)
        inode.content[position] ^= mask
        inode.durable = bytes(inode.content)

    def cut(self, path: str, size: int) -> None:
        inode = self._file(path)
        del inode.content[size:]
        inode.durable = bytes(inode.content)

    def content(self, path: str) -> bytes:
        return bytes(self._file(path).content)

    def open_files(self) -> int:
        return len(self._open)

    # -- FileSystem ---------------------------------------------------------------------------------------------------

    def open(self, path: str) -> int:
        self._call("open")
        if posixpath.dirname(path) not in self.names:
            raise FileNotFoundError(errno.ENOENT, path)
        if path not in self.names:
            self._change(path, Inode())
        self._next_fd += 1
        self._open[self._next_fd] = self._file(path)
        return self._next_fd

    def close(self, fd: int) -> None:
        del self._open[fd]

    def lock(self, path: str) -> int:
        fd = self.open(path)
        if sum(inode is self._open[fd] for inode in self._open.values()) > 1:
            self.close(fd)
            raise BlockingIOError(errno.EAGAIN, path)
        return fd

    def size(self, fd: int) -> int:
        return len(self._open[fd].content)

    def write(self, fd: int, parts: Sequence[Buffer], position: int) -> None:
        self._call("write")
        inode = self._open[fd]
        data = b"".join(parts)
        _apply(inode.content, position, data)
        inode.pending.append((position, data))

    def read(self, fd: int, size: int, position: int) -> bytes:
        self._call("read")
        self.is_cold = False
        return bytes(self._open[fd].content[position : position + size])

    def read_cached(self, fd: int, size: int, position: int) -> Buffer | None:
        return None if self.is_cold else self.read(fd, size, position)

    def truncate(self, fd: int, size: int) -> None:
        self._call("truncate")
        inode = self._open[fd]
        _apply(inode.content, size, None)
        inode.pending.append((size, None))

    def sync(self, fd: int) -> None:
        self._call("sync")
        inode = self._open[fd]
        inode.durable = bytes(inode.content)
        inode.pending.clear()
        self._commit()

    def sync_path(self, path: str) -> None:
        if self.names.get(path) is not None:
            fd = self.open(path)
            self.sync(fd)
            self.close(fd)

    def sync_directory(self, path: str) -> None:
        self._call("sync_directory")
        self._commit()

    def rename(self, old: str, new: str) -> None:
        self._call("rename")
        moved = {new + path[len(old) :]: path for path in self.names if path == old or path.startswith(old + "/")}
        inodes = {target: self.names[path] for target, path in moved.items()}
        for path in moved.values():
            del self.names[path]
        self.names.update(inodes)
        self.journal.append(dict(self.names))

    def remove(self, path: str) -> None:
        self._call("remove")
        if path in self.names:
            self._change(path, None, gone=True)

    def remove_tree(self, path: str) -> None:
        for name in [name for name in self.names if name == path or name.startswith(path + "/")]:
            self._change(name, None, gone=True)

    def make_directory(self, path: str) -> None:
        if path not in self.names:
            self.make_directory(posixpath.dirname(path))
            self._change(path, None)

    def list(self, path: str) -> list[str]:
        self._call("list")
        return [posixpath.basename(name) for name in self.names if posixpath.dirname(name) == path and name != "/"]

    def is_directory(self, path: str) -> bool:
        return path in self.names and self.names[path] is None

    def exists(self, path: str) -> bool:
        return path in self.names

    def read_file(self, path: str) -> bytes | None:
        self._call("read_file")
        inode = self.names.get(path)
        return None if inode is None else bytes(inode.content)

    def _file(self, path: str) -> Inode:
        inode = self.names[path]
        assert inode is not None, f"{path} is a directory"
        return inode

    def _change(self, path: str, inode: Inode | None, *, gone: bool = False) -> None:
        if gone:
            del self.names[path]
        else:
            self.names[path] = inode
        self.journal.append(dict(self.names))

    def _commit(self) -> None:
        self.journal = [dict(self.names)]


def _apply(content: bytearray, position: int, data: bytes | None) -> None:
    if data is None:
        del content[position:]
    else:
        content.extend(bytes(max(position - len(content), 0)))
        content[position : position + len(data)] = data


def _survived(inode: Inode, random: Random) -> Inode:
    content = bytearray(inode.durable)
    how = random.choice(("none", "all", "first", "any"))
    last = random.randrange(len(inode.pending) + 1)
    for number, (position, data) in enumerate(inode.pending):
        if how == "none" or (how == "first" and number > last) or (how == "any" and random.random() < 0.5):
            continue
        if data and number == last and how != "all":
            data = data[: random.randrange(len(data) + 1)]
        _apply(content, position, data)
    return Inode(content, bytes(content))


def run(work: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` with threads' work done in place: nothing happens by chance."""
    loop = asyncio.new_event_loop()

    def run_in_place(executor: object, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        done: asyncio.Future[T] = loop.create_future()
        try:
            done.set_result(function(*args))
        except Exception as error:  # noqa: BLE001 - handed over, as an executor does
            done.set_exception(error)
        return done

    loop.run_in_executor = run_in_place  # type: ignore[assignment, method-assign]
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()
