"""One entry of `log.dirs`: its lock, `meta.properties`, checkpoints and clean-shutdown marker (LOG-3, LOG-6)."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
import uuid
from collections.abc import Callable, Mapping

from broker.storage import checkpoints, closed_logs
from broker.storage.closed_logs import ClosedLog, ClosedLogs
from broker.storage.disk.filesystem import FileSystem
from protocol.errors import ErrorCode, KafkaError
from protocol.topic_names import is_partition_number, is_valid_topic_name, number_of, shown
from protocol.types import TopicPartition

log = logging.getLogger(__name__)

LOCK = ".lock"
META = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
DELETED_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
FUTURE_SUFFIX = "-future"
RENAMED_TOPIC_MAX = 150
"""Characters of the topic name in the name of a deleted or set-aside directory. A file name has at most 255."""


class LogDirectoryError(Exception):
    """The directory cannot be used; the message says why and what to do."""


class LogDirectory:
    """A log directory, used by one process at a time. `is_loaded`: this process has the lock and opened every log."""

    def __init__(self, filesystem: FileSystem, path: str) -> None:
        self.path = os.path.abspath(path)
        self.is_online = True
        self.was_clean = False
        self.is_loaded = False
        self._filesystem = filesystem
        self._lock_fd: int | None = None
        self._writing = threading.Lock()
        # By file name: the newest turn, and the hash of the content.
        self._turns: dict[str, int] = {}
        self._hashes: dict[str, int] = {}

    def acquire(self) -> None:
        """Creates the directory and locks it. Raises OSError, and LogDirectoryError when another process has the lock."""
        self._make()
        try:
            self._lock_fd = self._filesystem.lock(f"{self.path}/{LOCK}")
        except BlockingIOError:
            raise LogDirectoryError(
                f"log directory {self.path} is in use by a running broker: stop that broker, or set log.dirs to another directory"
            ) from None

    def _make(self) -> None:
        """Creates the directory and syncs its name: otherwise a power loss could remove it, with all data synced in it."""
        made_in = []
        path = self.path
        while not self._filesystem.exists(path):
            path = os.path.dirname(path)
            made_in.append(path)
        self._filesystem.make_directory(self.path)
        for parent in made_in:
            self._filesystem.sync_directory(parent)

    def check_is_there(self) -> None:
        """Raises FileNotFoundError if the directory was unmounted or removed: it must not be created again, empty."""
        if not self._filesystem.is_directory(self.path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path)

    def release(self) -> None:
        """Releases the lock: another process may use the directory now."""
        self.is_loaded = False
        if self._lock_fd is not None:
            fd, self._lock_fd = self._lock_fd, None
            with contextlib.suppress(OSError):  # it is closed all the same
                self._filesystem.close(fd)

    def ensure_meta(self, broker_id: int, cluster_id: str) -> None:
        """Checks `meta.properties`, or writes it. Raises LogDirectoryError for another broker's or cluster's directory."""
        if not self.check_meta(broker_id, cluster_id):
            text = f"#\nbroker.id={broker_id}\ncluster.id={cluster_id}\nversion=0\n"
            self._filesystem.write_atomically(f"{self.path}/{META}", text.encode())

    def check_meta(self, broker_id: int, cluster_id: str) -> bool:
        """Checks `meta.properties`. False when there is none yet. Raises OSError, and LogDirectoryError as `ensure_meta`."""
        path = f"{self.path}/{META}"
        wanted = {"broker.id": str(broker_id), "cluster.id": cluster_id}
        data = self._filesystem.read_file(path)
        if data is None:
            return False
        lines = (line.partition("=") for line in data.decode(errors="replace").splitlines() if not line.startswith("#"))
        found = {key.strip(): value.strip() for key, _, value in lines}
        if found.get("version", "0") != "0":
            raise LogDirectoryError(
                f"{path}: version is {found['version']}, only 0 (Kafka's ZooKeeper mode) is known; set log.dirs to another"
                " directory"
            )
        for key, value in wanted.items():
            if found.get(key, value) != value:
                raise LogDirectoryError(
                    f"{path}: {key} is {found[key]}, this broker's is {value}: the directory belongs to another"
                    f" {'cluster' if key == 'cluster.id' else 'broker'}; set log.dirs to another directory"
                )
        return True

    def take_clean_marker(self) -> ClosedLogs:
        """Notes whether the last stop was clean, and removes the marker before anything is loaded (BUG-18). Returns the logs that the
        stop described: only this start may believe that. Raises OSError.
        """
        filesystem, path = self._filesystem, f"{self.path}/{CLEAN_SHUTDOWN}"
        closed_path = f"{self.path}/{closed_logs.FILE}"
        self.was_clean = filesystem.exists(path)
        found = closed_logs.NO_CLOSED_LOGS
        data = filesystem.read_file(closed_path)
        if data is not None:
            if self.was_clean:
                found = closed_logs.decode(data, filesystem.stamp_of(path), closed_path)
            filesystem.remove(closed_path)  # before the marker, after whose removal the directory is synced
        if self.was_clean:
            filesystem.remove(path)
        # Also what the last process has renamed or removed: a log of the same name may soon be made in another directory.
        filesystem.sync_directory(self.path)
        return found

    def write_clean_marker(self, closed: Callable[[], Mapping[str, ClosedLog]]) -> None:
        """Makes the stop a clean one. Before the marker gets its name, `closed` is written, which names the marker. Raises OSError.

        If `closed` cannot be written, as on a full disk, there is none, and the next start reads the logs.
        """
        filesystem, path = self._filesystem, f"{self.path}/{CLEAN_SHUTDOWN}"
        closed_path = f"{self.path}/{closed_logs.FILE}"
        unnamed = f"{path}.tmp"
        fd = filesystem.create(unnamed)
        try:
            filesystem.write(fd, (b'{"version":0}',), 0)
            filesystem.sync(fd)
        finally:
            filesystem.close(fd)
        try:
            filesystem.write_atomically(closed_path, closed_logs.encode(closed(), filesystem.stamp_of(unnamed)))
        except OSError as error:
            log.warning("%s is not written, the next start will read the logs: %s", closed_path, error)
            filesystem.remove(f"{closed_path}.tmp")
            filesystem.remove(closed_path)
        filesystem.rename(unnamed, path)
        filesystem.sync_directory(self.path)

    def space(self) -> tuple[int, int] | None:
        """(bytes of its volume, bytes free), or None if the file system returns an error."""
        try:
            return self._filesystem.space(self.path)
        except OSError as error:
            log.warning("%s: the free space is unknown: %s", self.path, error)
            return None

    def read_offsets(self, name: str) -> dict[TopicPartition, int]:
        return checkpoints.read_offsets(self._filesystem, f"{self.path}/{name}")

    def write_offsets(self, name: str, offsets: Mapping[TopicPartition, int], turn: int) -> bool:
        """Writes and syncs a checkpoint. For a thread. False, without a write, after a write with a later `turn`."""
        with self._writing:
            if turn < self._turns.get(name, 0):
                return False
            self._turns[name] = turn
            self._write(name, offsets)
            return True

    def _write(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Writes the file, unless it has this content: an idle cluster would write the same offsets every five seconds."""
        data = checkpoints.encode_offsets(offsets)
        content = hash(data)
        if self._hashes.get(name) != content:
            self._hashes.pop(name, None)
            self._filesystem.write_atomically(f"{self.path}/{name}", data)
            self._hashes[name] = content

    def overwrite_offsets(self, name: str, offsets: Mapping[TopicPartition, int], turn: int) -> None:
        """As `write_offsets`, but on the loop, so it is called rarely. `turn` is the latest.

        The file is synced here, too: a power loss could leave an empty file, and without a recovery point, recovery would treat
        the holes of a compacted log as damage.
        """
        with self._writing:
            self._turns[name] = turn
            self._write(name, offsets)

    def partitions(self, *, keeps_deleted: bool = False) -> list[tuple[TopicPartition, str]]:
        """(partition, path) of each log in the directory, including future copies (`-future`).

        Removes half-deleted logs unless `keeps_deleted`. Other directories are left alone.
        """
        found = []
        for name in self._filesystem.list(self.path):
            directory = f"{self.path}/{name}"
            if not self._filesystem.is_directory(directory):
                continue
            if name.endswith(DELETED_SUFFIX):
                if not keeps_deleted:
                    self._filesystem.remove_tree(directory)
                continue
            plain = name.rpartition(".")[0] if name.endswith(FUTURE_SUFFIX) else name
            topic, dash, digits = plain.rpartition("-")
            number = number_of(digits)
            if dash and number is not None and is_valid_topic_name(topic):
                found.append((TopicPartition(topic, number), directory))
        return found


def path_of(log_dir: str, tp: TopicPartition, suffix: str = "") -> str:
    """The path of a partition's directory, never outside of `log_dir`.

    Raises KafkaError(INVALID_TOPIC_EXCEPTION) for a topic or partition that cannot be part of a path.
    """
    if not (is_valid_topic_name(tp.topic) and is_partition_number(tp.partition)):
        name = f"topic {shown(tp.topic)}, partition {shown(tp.partition)}"
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name}: no directory can have such a name")
    return f"{log_dir}/{tp.topic}-{tp.partition}{suffix}"


def path_of_renamed(log_dir: str, tp: TopicPartition, suffix: str) -> str:
    """The new, unique path of a directory that is deleted or set aside. Raises KafkaError as `path_of`."""
    path_of(log_dir, tp)
    return f"{log_dir}/{tp.topic[:RENAMED_TOPIC_MAX]}-{tp.partition}.{uuid.uuid4().hex}{suffix}"
