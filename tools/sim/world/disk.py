"""A file system in memory that can lose power, fail and be cold; for the storage layer's tests.

Files and directories are nodes of a tree. Each knows what of it is on the disk, and what was changed since.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import os
import posixpath
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple, TypeVar

from broker.storage.disk import disk_errors
from broker.storage.disk.filesystem import FileStamp, FileSystem, HeldDirectory
from broker.storage.disk.open_files import OpenFiles
from protocol.types import Buffer

T = TypeVar("T")


@dataclass(eq=False)
class Inode:
    """A file: what programs see, what is on the disk, and the writes in between.

    A write is (position, bytes, its number among all changes) or, for a new size, (size, None, number).
    """

    content: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes | None, int]] = field(default_factory=list)
    number: int = 0
    """The inode: it stays when the file gets another name."""
    has_dropped: bool = False
    """The cache has what the disk has not, and nobody will write it."""

    def drop_unsynced(self) -> None:
        """As Linux does when a sync fails: what was not written counts as written, and the next sync does not try it again."""
        self.pending.clear()
        self.has_dropped = True

    def evict(self) -> None:
        """What counts as written leaves the cache: also what a failed sync has dropped, which the disk does not have."""
        if self.has_dropped:
            self.content = bytearray(self.durable)
            for position, data, _ in self.pending:
                _apply(self.content, position, data)
            self.has_dropped = False

    def settle(self) -> None:
        """All that was written is on the disk."""
        for position, data, _ in self.pending:
            _apply(self.durable, position, data)
        self.pending.clear()

    def settle_as_it_is(self) -> None:
        """Whatever was written or not: the content is on the disk."""
        self.durable = bytearray(self.content)
        self.pending.clear()


@dataclass(eq=False)
class Directory:
    """Names: those that programs see, those that are on the disk, and the changes in between.

    A change is (its number among all of the disk, name -> what is there from now on, None: nothing); one rename is one.
    """

    entries: dict[str, Node] = field(default_factory=dict)
    durable: dict[str, Node] = field(default_factory=dict)
    pending: list[tuple[int, dict[str, Node | None]]] = field(default_factory=list)


Node = Inode | Directory


class PowerLost(BaseException):
    """The machine loses power in the middle of its work."""


class Loss(NamedTuple):
    """What a power loss does to changes that were not synced: to `names` of files and directories, and to `data` in files.

    names   none     only what `sync_directory` of that directory made durable
            all      everything
            journal  a prefix of the changes, all directories in one order, and any sync keeps all before (ext4, xfs)
            each     a prefix of the changes of each directory
            volumes  as journal, but each directory in the root is a volume with a journal of its own
    data    none, all
            zeros    the files have their new sizes, and zeros where no data was synced
            first    the first writes, and the last of them torn
            any      any of them, some torn, with zeros after the tear or not
            mixed    one of these for each file

    A cut of a file is kept or lost with the names of its directory, in their order, as journals do it. With a cut that is lost
    all that was written after it is lost.
    """

    names: str
    data: str


ANY_LOSS = Loss("journal", "mixed")
LOSSES = (
    Loss("all", "all"),
    Loss("all", "none"),
    Loss("all", "zeros"),
    Loss("none", "none"),
    Loss("none", "all"),
    Loss("journal", "first"),
    Loss("each", "mixed"),
)


IS_IN_THREAD: ContextVar[bool] = ContextVar("is in thread", default=False)
"""`run` does a thread's work now."""


class MemoryFiles(OpenFiles):
    @property
    def are_of_another_thread(self) -> bool:
        return IS_IN_THREAD.get() or super().are_of_another_thread

    def close_one_at_rest(self) -> bool:
        return not self.are_of_another_thread and super().close_one_at_rest()


class MemoryDisk(FileSystem):
    """`on_change` is called after every call that changed what is on the disk or in its caches."""

    def __init__(self) -> None:
        super().__init__()
        self.in_use = MemoryFiles()
        self.root = Directory()
        self.is_cold = False
        self.files_are_of_ms = 0
        self.failures: dict[str, OSError] = {}
        self.failed_calls = 0
        self.tears: Random | None = None
        """If set, a write that fails has written as many of its bytes as this says."""
        self.open_max: int | None = None
        """How many files may be open: above that, some are closed for the next, if they can be."""
        self.logs_max: int | None = None
        """How many logs may have open files: before another one opens its file, some are closed, if they can be."""
        self.calls_left: int | None = None
        self.calls = 0
        self.on_change: Callable[[], None] = lambda: None
        self.before_cut: Callable[[str, bytearray, int], None] = lambda _path, _content, _size: None
        """Told of a file that is about to get shorter: its path, its content, and what is kept of it."""
        self.may_lose: Callable[[str], bool] = lambda _path: True
        """Whether a failed sync loses what it has not written of the file with that path."""
        self.before_rename: Callable[[str], None] = lambda _path: None
        self._changes = 0
        self._inodes = 0
        self._journaled = 0
        self._journaled_in: dict[str, int] = {}
        self._files: dict[int, Inode] = {}
        self._opened_as: dict[int, str] = {}
        self._locked: set[int] = set()
        self._free_fds: list[int] = []
        """Numbers below `_next_fd` that nobody has: the next file gets the lowest, as Linux gives it."""
        self._next_fd = 100
        self._held: dict[str, tuple[Directory, str]] = {}
        self._holds = 0
        self._found: dict[str, Node | None] = {}
        """What `_find` has found since names last changed."""

    def is_beyond_limit(self, fd: int) -> bool:
        return False

    # -- faults -------------------------------------------------------------------------------------------------------

    def fail(self, operation: str, number: int = errno.EIO, *, below: str = "/") -> None:
        """From now on that method raises for files below that path."""
        self.failures[operation] = OSError(number, os.strerror(number), below)

    def _call(self, operation: str, path: str) -> None:
        self.calls += 1
        if self.calls_left is not None:
            if self.calls_left == 0:
                raise PowerLost
            self.calls_left -= 1
        self._check(operation, path)

    def _check(self, operation: str, path: str) -> None:
        failure = self.failures.get(operation)
        if failure is not None and (shown := self._shown(path)).startswith(failure.filename):
            self.failed_calls += 1
            raise OSError(failure.errno, failure.strerror, shown)

    def after_power_loss(self, random: Random, loss: Loss = ANY_LOSS) -> MemoryDisk:
        """The disk that a machine would find if power were lost now."""
        survivor = MemoryDisk()
        fixed_end = {"all": self._changes, "none": 0, "journal": random.randint(self._journaled, self._changes)}

        def volume_end(name: str) -> dict[str, int]:
            if loss.names != "volumes":
                return fixed_end
            return {"volumes": random.randint(self._journaled_in.get(name, 0), self._changes)}

        def copied(directory: Directory, fixed_end: dict[str, int]) -> Directory:
            numbers = [number + 1 for number, _ in directory.pending]
            end = fixed_end[loss.names] if loss.names in fixed_end else random.choice([0, *numbers, self._changes])
            entries: dict[str, Node] = {
                name: _survived(node, loss.data, end, random)
                if isinstance(node, Inode)
                else copied(node, volume_end(name) if directory is self.root else fixed_end)
                for name, node in _names_left(directory, end).items()
            }
            return Directory(entries, dict(entries))

        survivor.root = copied(self.root, volume_end(""))
        survivor._inodes = self._inodes
        return survivor

    def after_kill(self) -> MemoryDisk:
        """The disk that the next process finds if only the process died: everything that was written."""
        return self.after_power_loss(Random(0), Loss("all", "all"))

    def for_next_process(self) -> MemoryDisk:
        """The same disk, with its caches, without what the last process had open. It may be used no more."""
        successor = MemoryDisk()
        successor.spare = self.spare
        successor.root = self.root
        successor._changes, successor._journaled, successor._inodes = self._changes, self._journaled, self._inodes
        successor._journaled_in = dict(self._journaled_in)
        return successor

    def corrupt(self, path: str, position: int, mask: int) -> None:
        """Flips bits of one byte."""
        inode = self.file(path)
        inode.content[position] ^= mask
        inode.settle_as_it_is()

    def cut(self, path: str, size: int) -> None:
        inode = self.file(path)
        del inode.content[size:]
        inode.settle_as_it_is()

    def content(self, path: str) -> bytes:
        return bytes(self.file(path).content)

    def open_files(self) -> int:
        return len(self._files) + len(self._held)

    @property
    def names(self) -> dict[str, Inode | None]:
        """Path -> file, None for a directory; parents first."""
        found: dict[str, Inode | None] = {}

        def walk(path: str, directory: Directory) -> None:
            found[path or "/"] = None
            for name, node in directory.entries.items():
                if isinstance(node, Inode):
                    found[f"{path}/{name}"] = node
                else:
                    walk(f"{path}/{name}", node)

        walk("", self.root)
        return found

    # -- FileSystem ---------------------------------------------------------------------------------------------------

    def open(self, path: str) -> int:
        self._call("open", path)
        directory, name = self._parent(path)
        if name not in directory.entries:
            self._check("create_file", path)
            self._inodes += 1
            self._change(directory, {name: Inode(number=self._inodes)})
        fd = self._new_fd()
        self._files[fd] = self.file(path)
        self._opened_as[fd] = path
        return fd

    def _new_fd(self) -> int:
        while self.open_max is not None and len(self._files) >= self.open_max:
            if not self.in_use.close_one_at_rest():
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        if self._free_fds:
            return heapq.heappop(self._free_fds)
        self._next_fd += 1
        return self._next_fd

    def check_spare(self) -> None:
        """Descriptors are the process's: a lack of them in any directory is one here."""
        failure = self.failures.get("open_to_keep")
        if failure is not None and disk_errors.lacks_descriptor(failure):
            raise OSError(failure.errno, failure.strerror)
        self._call("open_to_keep", "/")
        heapq.heappush(self._free_fds, self._new_fd())

    def _close_others(self) -> None:
        while self.logs_max is not None and len(self.in_use) >= self.logs_max and self.in_use.close_one_at_rest():
            pass

    def open_to_keep(self, path: str) -> int:
        self._call("open_to_keep", path)
        self._close_others()
        return self.open(path)

    def reopen_to_keep(self, path: str) -> int:
        self._close_others()
        self._call("open_to_keep", path)
        return self.reopen(path)

    def create(self, path: str) -> int:
        directory, name = self._parent(path)
        if name in directory.entries:
            self.file(path)
            self._change(directory, {name: None})
        return self.open(path)

    def reopen(self, path: str) -> int:
        self.file(path)
        return self.open(path)

    def close(self, fd: int) -> None:
        del self._files[fd], self._opened_as[fd]
        self._locked.discard(fd)
        heapq.heappush(self._free_fds, fd)

    def lock(self, path: str) -> int:
        fd = self.open(path)
        if any(self._files[other] is self._files[fd] for other in self._locked):
            self.close(fd)
            raise BlockingIOError(errno.EAGAIN, path)
        self._locked.add(fd)
        return fd

    def size(self, fd: int) -> int:
        return len(self._files[fd].content)

    def size_of(self, path: str) -> int:
        return len(self.file(path).content)

    def modified_ms(self, path: str) -> int:
        """All files are as old as this says."""
        self.file(path)
        return self.files_are_of_ms

    def stamp_of(self, path: str) -> FileStamp:
        """A write changes no time here: who relies on more than the order of writes and syncs is found out."""
        inode = self.file(path)
        return FileStamp(len(inode.content), self.files_are_of_ms * 1_000_000, inode.number)

    def write(self, fd: int, parts: Sequence[Buffer], position: int) -> None:
        data = b"".join(parts)
        try:
            self._call("write", self._opened_as[fd])
        except OSError:
            if self.tears is not None:
                self._write(fd, data[: self.tears.randrange(len(data) + 1)], position)
            raise
        self._write(fd, data, position)

    def _write(self, fd: int, data: bytes, position: int) -> None:
        inode = self._files[fd]
        _apply(inode.content, position, data)
        inode.pending.append((position, data, self._changes))
        self.on_change()

    def read(self, fd: int, size: int, position: int) -> bytes:
        self._call("read", self._opened_as[fd])
        self.is_cold = False
        return bytes(self._files[fd].content[position : position + size])

    def read_cached(self, fd: int, size: int, position: int) -> Buffer | None:
        return None if self.is_cold else self.read(fd, size, position)

    def sent(self, fd: int, size: int, position: int) -> bytes:
        """What `sendfile` finds."""
        if fd not in self._files:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return bytes(self._files[fd].content[position : position + size])

    def drop_cached(self, fd: int) -> None:
        self._files[fd].evict()

    def is_cached(self, fd: int, size: int, position: int) -> bool:
        return not self.is_cold

    def truncate(self, fd: int, size: int) -> None:
        self._call("truncate", self._opened_as[fd])
        inode = self._files[fd]
        if size < len(inode.content):
            self.before_cut(self._opened_as[fd], inode.content, size)
        _apply(inode.content, size, None)
        inode.pending.append((size, None, self._changes))
        self._changes += 1
        self.on_change()

    def truncate_path(self, path: str, size: int) -> None:
        fd = self.reopen(path)
        try:
            self.truncate(fd, size)
        finally:
            self.close(fd)

    def sync(self, fd: int) -> None:
        inode = self._files[fd]
        try:
            self._call("sync", self._opened_as[fd])
        except OSError:
            if self.may_lose(self._opened_as[fd]):
                inode.drop_unsynced()
            raise
        inode.settle()
        self._has_synced(self._opened_as[fd])
        self.on_change()

    def sync_path(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            fd = self.reopen(path)
            try:
                self.sync(fd)
            finally:
                self.close(fd)

    def sync_directory(self, path: str) -> None:
        self._call("sync_directory", path)
        with contextlib.suppress(FileNotFoundError):
            directory = self._directory(path)
            directory.durable = dict(directory.entries)
            directory.pending.clear()
            self._has_synced(path)
            self.on_change()

    def rename(self, old: str, new: str) -> None:
        self._call("rename", old)
        directory, name = self._parent(old)
        target, new_name = self._parent(new)
        assert directory is target, "a rename to another directory is two changes"
        if name not in directory.entries:
            raise FileNotFoundError(errno.ENOENT, old)
        moved = directory.entries[name]
        over = directory.entries.get(new_name)
        if over is moved:
            return
        if isinstance(over, Directory) != isinstance(moved, Directory) and over is not None:
            raise OSError(errno.EISDIR if isinstance(over, Directory) else errno.ENOTDIR, new)
        if isinstance(over, Directory) and over.entries:
            raise OSError(errno.ENOTEMPTY, new)
        self.before_rename(old)
        self._change(directory, {name: None, new_name: moved})
        if isinstance(moved, Directory):
            for fd, path in self._opened_as.items():
                if path.startswith(f"{old}/"):
                    self._opened_as[fd] = new + path.removeprefix(old)

    def remove(self, path: str) -> None:
        self._call("remove", path)
        with contextlib.suppress(FileNotFoundError):
            self.file(path)
            directory, name = self._parent(path)
            self._change(directory, {name: None})

    def remove_tree(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._directory(path)
            self._remove_all(path)

    def _remove_all(self, path: str) -> None:
        node = self._find(path)
        if isinstance(node, Directory):
            for name in list(node.entries):
                self._remove_all(f"{path}/{name}")
        self._call("remove_tree", path)
        directory, name = self._parent(path)
        self._change(directory, {name: None})

    def make_directory(self, path: str) -> None:
        node = self._find(path)
        if isinstance(node, Inode):
            raise FileExistsError(errno.EEXIST, path)
        if node is None:
            self.make_directory(posixpath.dirname(path))
            self._call("make_directory", path)
            directory, name = self._parent(path)
            self._change(directory, {name: Directory()})

    def make_new_directory(self, path: str) -> bool:
        if self._find(path) is not None:
            return False
        self._parent(path)
        self.make_directory(path)
        return True

    def list(self, path: str) -> list[str]:
        self._call("list", path)
        return list(self._directory(path).entries)

    def space(self, path: str) -> tuple[int, int]:
        return 2**40, 2**39

    def is_directory(self, path: str) -> bool:
        return isinstance(self._find(path), Directory)

    def exists(self, path: str) -> bool:
        return self._find(path) is not None

    def read_file(self, path: str) -> bytes | None:
        self._call("read_file", path)
        try:
            return bytes(self.file(path).content)
        except FileNotFoundError:
            return None

    def read_end(self, path: str, size: int) -> tuple[bytes, int] | None:
        self._call("read", path)
        data = self.read_file(path)
        return None if data is None else (data[max(len(data) - size, 0) :], len(data))

    def hold(self, path: str) -> HeldDirectory:
        self._call("open_to_keep", path)
        directory = self._directory(path)
        self._holds += 1
        held = f"/#{self._holds}"
        self._held[held] = directory, path
        return MemoryHeldDirectory(self, held)

    def _shown(self, path: str) -> str:
        """The path, with the name that a held directory had."""
        held, slash, name = path.partition("/")[2].partition("/")
        _, shown = self._held.get(f"/{held}", (None, f"/{held}"))
        return f"{shown}{slash}{name}"

    def _find(self, path: str) -> Node | None:
        if path in self._found:
            return self._found[path]
        node: Node | None = self.root
        for name in path.split("/"):
            if name.startswith("#"):
                node = self._held[f"/{name}"][0]
            elif name:
                node = node.entries.get(name) if isinstance(node, Directory) else None
        self._found[path] = node
        return node

    def file(self, path: str) -> Inode:
        node = self._find(path)
        if isinstance(node, Directory):
            raise IsADirectoryError(errno.EISDIR, path)
        if node is None:
            self._parent(path)
            raise FileNotFoundError(errno.ENOENT, path)
        return node

    def _directory(self, path: str) -> Directory:
        node = self._find(path)
        if isinstance(node, Directory):
            return node
        if node is None:
            self._parent(path)
            raise FileNotFoundError(errno.ENOENT, path)
        raise NotADirectoryError(errno.ENOTDIR, path)

    def _parent(self, path: str) -> tuple[Directory, str]:
        return self._directory(posixpath.dirname(path)), posixpath.basename(path)

    def _has_synced(self, path: str) -> None:
        self._journaled = self._journaled_in[self._shown(path).split("/")[1]] = self._changes

    def _change(self, directory: Directory, names: dict[str, Node | None]) -> None:
        directory.pending.append((self._changes, names))
        self._changes += 1
        _rename(directory.entries, names)
        self._found.clear()
        self.on_change()


def _rename(entries: dict[str, Node], names: dict[str, Node | None]) -> None:
    for name, node in names.items():
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


def _names_left(directory: Directory, end: int) -> dict[str, Node]:
    """The changes before the one with that number are kept."""
    entries = dict(directory.durable)
    for number, change in directory.pending:
        if number < end:
            _rename(entries, change)
    return entries


def _apply(content: bytearray, position: int, data: bytes | None) -> None:
    if data != b"":
        content.extend(bytes(max(position - len(content), 0)))
    if data is None:
        del content[position:]
    else:
        content[position : position + len(data)] = data


def _survived(inode: Inode, how: str, end: int, random: Random) -> Inode:
    """What is left of a file, of which the cuts with smaller numbers than `end` are kept."""
    if how == "mixed":
        how = random.choice(("none", "all", "zeros", "first", "any"))
    content = bytearray(inode.durable)
    last = random.randrange(len(inode.pending) + 1)
    for at, (position, data, number) in enumerate(inode.pending):
        if data is None:
            if number >= end:
                break
        elif how == "zeros":
            size = position + len(data)
            content.extend(bytes(max(size - len(content), 0)))
            continue
        elif how == "none" or (how == "first" and at > last) or (how == "any" and random.random() < 0.5):
            continue
        elif data and at == last and how != "all":
            kept = data[: random.randrange(len(data) + 1)]
            data = kept + bytes(len(data) - len(kept)) if random.random() < 0.5 else kept
        _apply(content, position, data)
    return Inode(content, bytearray(content), number=inode.number)


class MemoryHeldDirectory(HeldDirectory):
    """Its path begins with a name that no other path has."""

    def __init__(self, disk: MemoryDisk, held: str) -> None:
        self._disk = disk
        self._held = held

    def write(self, name: str, data: bytes) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._disk.write_atomically(f"{self._held}/{name}", data, sync=False)

    def sync_file(self, name: str) -> None:
        self._disk.sync_path(f"{self._held}/{name}")

    def sync(self) -> None:
        self._disk.sync_directory(self._held)

    def release(self) -> None:
        del self._disk._held[self._held]
        self._disk._found.clear()
