"""All disk calls of the storage layer. Tests replace FileSystem by one that loses power, tears writes or fails.

Writes go to the page cache. `sync` and `sync_directory` wait for the disk, so they are called in a thread.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import shutil
import stat
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, NoReturn, TypeVar

from broker.storage.disk.disk_errors import is_passing, lacks_descriptor
from broker.storage.disk.open_files import OpenFiles
from broker.storage.disk.page_cache import PageCache
from broker.storage.disk.spare_descriptors import SpareDescriptors
from protocol.types import Buffer

Result = TypeVar("Result")

_UNSUPPORTED = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
_WHOLE_FILE = struct.Struct("hhqqi")
"""Linux' struct flock: type, whence, start, length (0: to the end), pid."""


class FileStamp(NamedTuple):
    """What changes when a file is written or replaced: size, time of the last write in ns, inode."""

    size: int
    modified_ns: int
    inode: int


class FileSystem:
    """The real file system. Open files are identified by their descriptors. All errors are OSError."""

    def __init__(self) -> None:
        self.in_use = OpenFiles()
        self.spare = SpareDescriptors()
        self._knows_nowait = hasattr(os, "RWF_NOWAIT")
        self._page_cache = PageCache()

    def open(self, path: str) -> int:
        """Opens a file for reading and writing, and creates it if it does not exist. Raises OSError (ELOOP) for a symbolic link."""
        return self._open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)

    def create(self, path: str) -> int:
        """Like `open`, but the file is always new and empty: an existing file, or a symbolic link itself, is removed first."""
        return self._create(path, None)

    def _create(self, path: str, directory: int | None) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        try:
            return self._open(path, flags, directory=directory)
        except FileExistsError:
            os.unlink(path, dir_fd=directory)
            return self._open(path, flags, directory=directory)

    def reopen(self, path: str) -> int:
        """Opens an existing file for reading and writing. Raises FileNotFoundError."""
        return self._open(path, os.O_RDWR)

    def open_to_keep(self, path: str) -> int:
        """Opens a file that stays open, and creates a missing one. It may use only half of the spare descriptors, else raises OSError."""
        return self._open(path, os.O_RDWR | os.O_CREAT, is_kept=True)

    def reopen_to_keep(self, path: str) -> int:
        """Like `reopen`, with the limit of `open_to_keep`."""
        return self._open(path, os.O_RDWR, is_kept=True)

    def check_spare(self) -> None:
        """Call it before work that must not stop half-way. Raises OSError if descriptors are too scarce to finish it."""
        self.close(self._open(os.devnull, os.O_RDONLY, is_kept=True))

    def hold(self, path: str) -> HeldDirectory:
        """The directory that has this path now. It takes a descriptor, with the limit of `open_to_keep`, until it is released."""
        return HeldDirectory(self, self._open(path, os.O_RDONLY | os.O_DIRECTORY, is_kept=True))

    def _open(self, path: str, flags: int, *, is_kept: bool = False, directory: int | None = None) -> int:
        """`directory`: the descriptor of the directory that the path is in."""
        flags |= os.O_CLOEXEC
        try:
            return os.open(path, flags, 0o644, dir_fd=directory)
        except OSError as error:
            if not lacks_descriptor(error):
                raise
        return self._with_spare(lambda: os.open(path, flags, 0o644, dir_fd=directory), is_kept=is_kept)

    def _with_spare(self, work: Callable[[], Result], *, is_kept: bool = False) -> Result:
        """Repeats `work`, which found no free descriptor, each time after closing an idle log file or a spare descriptor."""
        while True:
            if not self.in_use.close_one_at_rest() and not self.spare.give_up_one(is_kept=is_kept):
                return work()
            try:
                return work()
            except OSError as error:  # another thread may have taken the descriptor
                if not lacks_descriptor(error):
                    raise

    def is_beyond_limit(self, fd: int) -> bool:
        """True if the limit of open files was lowered below `fd` (`prlimit`). Closing it would not allow another file to be opened."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return soft != resource.RLIM_INFINITY and fd >= soft

    def close(self, fd: int) -> None:
        if not self.spare.take_back(fd):
            os.close(fd)

    def lock(self, path: str) -> int:
        """Locks the file until the returned descriptor is closed. Raises BlockingIOError if another process holds the lock.

        It takes two locks: flock for ottla, and an fcntl lock, which is the kind that Kafka (Java) takes and sees.
        """
        fd = self.open(path)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _lock_for_java(fd)
        except OSError:
            self.close(fd)
            raise
        return fd

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def size_of(self, path: str) -> int:
        """The size of a file that is not open. Raises FileNotFoundError."""
        return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        """The time of the last write to the file, by the wall clock. Raises FileNotFoundError."""
        return os.stat(path).st_mtime_ns // 1_000_000

    def stamp_of(self, path: str) -> FileStamp:
        """Raises FileNotFoundError."""
        found = os.stat(path)
        return FileStamp(found.st_size, found.st_mtime_ns, found.st_ino)

    def write(self, fd: int, parts: Sequence[Buffer], position: int) -> None:
        """Writes all parts one after the other, starting at `position`, in one system call if the kernel accepts them."""
        wanted = sum(map(len, parts))
        written = os.pwritev(fd, parts, position)
        if written != wanted:
            rest = memoryview(b"".join(parts))
            while written < wanted:
                count = os.pwrite(fd, rest[written:], position + written)
                if count == 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                written += count

    def read(self, fd: int, size: int, position: int) -> bytes:
        """Reads up to `size` bytes, fewer at the end of the file. May wait for the disk."""
        data = os.pread(fd, size, position)
        if len(data) < size:
            parts = [data]
            missing = size - len(data)
            while missing and parts[-1]:
                parts.append(os.pread(fd, missing, position + size - missing))
                missing -= len(parts[-1])
            data = b"".join(parts)
        return data

    def read_cached(self, fd: int, size: int, position: int) -> Buffer | None:
        """Reads up to `size` bytes from the page cache. Returns None if some of them are only on the disk."""
        if not self._knows_nowait:
            return self.read(fd, size, position)
        buffer = bytearray(size)
        try:
            count = os.preadv(fd, (buffer,), position, os.RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            self._knows_nowait = False  # this file system does not support it
            return self.read(fd, size, position)
        if count == size:
            return buffer
        if position + count < self.size(fd):
            return None
        return memoryview(buffer)[:count]

    def drop_cached(self, fd: int) -> None:
        """Drops what counts as written from the page cache, so that the next read sees what is on the disk.

        They differ after a failed sync: Linux then keeps what it could not write, and takes it for written. What is still to be written
        stays.
        """
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    @property
    def knows_the_page_cache(self) -> bool:
        """Whether `is_cached` can be True."""
        return self._knows_nowait and self._page_cache.is_known

    def is_cached(self, fd: int, size: int, position: int) -> bool:
        """Whether the page cache surely has these bytes. False where the kernel cannot say it without a copy."""
        # What is just read ahead counts as cached, but then the last byte cannot be read yet.
        return (
            self.knows_the_page_cache
            and self._page_cache.has(fd, size, position)
            and bool(self.read_cached(fd, 1, position + size - 1))
        )

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def truncate_path(self, path: str, size: int) -> None:
        """Like `truncate`, for a path. Raises FileNotFoundError."""
        os.truncate(path, size)

    def refuse(self, path: str, why: str) -> NoReturn:
        """Raises OSError (EIO): the disk no longer has what was in the file."""
        raise OSError(errno.EIO, why, path)

    def sync(self, fd: int) -> None:
        """Waits until the file's data and size are on the disk. A failure always counts as a failure of the disk (see `_of_the_disk`)."""
        with _of_the_disk():
            os.fdatasync(fd)

    def sync_path(self, path: str) -> None:
        """Like `sync`, for a path. Does nothing if the file was removed meanwhile."""
        self._sync_named(path, None)

    def _sync_named(self, path: str, directory: int | None) -> None:
        with contextlib.suppress(FileNotFoundError):
            fd = self._open(path, os.O_RDWR, directory=directory)
            try:
                self.sync(fd)
            finally:
                self.close(fd)

    def sync_directory(self, path: str) -> None:
        """Waits until creations, renames and removals in the directory are on the disk. Does nothing if it no longer exists."""
        with contextlib.suppress(FileNotFoundError):
            fd = self._open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                self._sync_opened(fd)
            finally:
                self.close(fd)

    def _sync_opened(self, directory: int) -> None:
        with _of_the_disk():
            os.fsync(directory)

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def remove(self, path: str) -> None:
        """Removes a file. Does nothing if it does not exist."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def remove_tree(self, path: str) -> None:
        """Removes a directory and its content. Does nothing if it does not exist."""
        with contextlib.suppress(FileNotFoundError):
            try:
                shutil.rmtree(path)
            except OSError as error:
                if not lacks_descriptor(error):
                    raise
                self._with_spare(lambda: shutil.rmtree(path))
                self.spare.fill()

    def make_directory(self, path: str) -> None:
        """Creates a directory and its parents. Does nothing if it exists."""
        os.makedirs(path, exist_ok=True)

    def make_new_directory(self, path: str) -> bool:
        """Creates a directory in an existing one. Returns False if it exists already."""
        try:
            os.mkdir(path)
        except FileExistsError:
            return False
        return True

    def list(self, path: str) -> list[str]:
        try:
            return os.listdir(path)
        except OSError as error:
            if not lacks_descriptor(error):
                raise
        names = self._with_spare(lambda: os.listdir(path))
        self.spare.fill()
        return names

    def space(self, path: str) -> tuple[int, int]:
        """(total bytes, free bytes) of the volume that holds the path."""
        volume = os.statvfs(path)
        return volume.f_blocks * volume.f_frsize, volume.f_bavail * volume.f_frsize

    def is_directory(self, path: str) -> bool:
        """Raises OSError if the disk does not answer: a log that cannot be read is not the same as a log that does not exist."""
        try:
            return stat.S_ISDIR(os.stat(path).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def exists(self, path: str) -> bool:
        """Raises OSError like `is_directory`."""
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def read_file(self, path: str) -> bytes | None:
        """The whole content, or None if the file does not exist."""
        try:
            fd = self._open(path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            size = os.fstat(fd).st_size
            return self.read(fd, size, 0) if size else b""
        finally:
            self.close(fd)

    def read_end(self, path: str, size: int) -> tuple[bytes, int] | None:
        """(the last `size` bytes, or fewer; the size of the file). None if the file does not exist."""
        try:
            fd = self._open(path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            length = os.fstat(fd).st_size
            start = max(length - size, 0)
            return (self.read(fd, length - start, start) if length else b""), length
        finally:
            self.close(fd)

    def write_new(self, path: str, data: bytes) -> None:
        """Writes a new file. It replaces an existing one, and is not synced."""
        fd = self.create(path)
        try:
            self.write(fd, (data,), 0)
        finally:
            self.close(fd)

    def write_atomically(self, path: str, data: bytes | bytearray, *, sync: bool = True) -> None:
        """Replaces the file: after a crash it has the old content or the new one (LOG-3). Temporary file, fsync, rename, fsync."""
        temporary = path + ".tmp"
        fd = self.create(temporary)
        try:
            self.write(fd, (data,), 0)
            if sync:
                self.sync(fd)
        finally:
            self.close(fd)
        self.rename(temporary, path)
        if sync:
            self.sync_directory(os.path.dirname(path))


class HeldDirectory:
    """A log's directory for a thread (`FileSystem.hold`), by its identity and not by its path.

    The log may be renamed, or deleted and made again under the same name, while the thread works. All methods raise OSError.
    """

    def __init__(self, filesystem: FileSystem, fd: int) -> None:
        self._filesystem = filesystem
        self._fd = fd

    def write(self, name: str, data: bytes) -> None:
        """Replaces the file, or makes it, without a sync. Does nothing if the directory was removed."""
        filesystem, temporary = self._filesystem, name + ".tmp"
        with contextlib.suppress(FileNotFoundError):
            fd = filesystem._create(temporary, self._fd)
            try:
                filesystem.write(fd, (data,), 0)
            finally:
                filesystem.close(fd)
            os.replace(temporary, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def sync_file(self, name: str) -> None:
        """Like `FileSystem.sync_path`."""
        self._filesystem._sync_named(name, self._fd)

    def sync(self) -> None:
        """Like `FileSystem.sync_directory`."""
        self._filesystem._sync_opened(self._fd)

    def release(self) -> None:
        self._filesystem.close(self._fd)


@contextlib.contextmanager
def _of_the_disk() -> Iterator[None]:
    """Turns a temporary error of a sync (no memory) into EIO: the unwritten data may be lost (FLT-29)."""
    try:
        yield
    except OSError as error:
        if is_passing(error):
            raise OSError(errno.EIO, f"sync: {error.strerror}") from error
        raise


def _lock_for_java(fd: int) -> None:
    """Takes an fcntl lock on the whole file if the system has open file description locks.

    The older kind would be released when any other descriptor of the file is closed.
    """
    if not hasattr(fcntl, "F_OFD_SETLK"):
        return
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _WHOLE_FILE.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
