"""Future logs: copies that will replace a log in another directory (LOG-6, KIP-113).

    <topic>-<p>                        the log that is served
    <topic>-<p>.<32 hex>-future        a copy that grows, in another log directory
    <topic>-<p>.<32 hex>-delete        what is being removed

The copy replaces the log in these steps:

1. The copy is synced, then a file `replaces-current` in its directory. From here on the copy counts as complete.
2. On the loop, without a wait in between: new appends are copied, the log is renamed to `-delete`, the copy gets the log's name.
3. Both log directories are synced, then the file and the `-delete` directory are removed.

After a crash the names show which step was reached. After a power loss, the names in two file systems may be of different steps:

    log      copy                           at the start
    exists   future                         before 2: the file is removed, the copying continues
    missing  future                         the log was deleted: the copy goes when the controller does not name it
    missing  future, with the file          in 2: the copy gets the log's name now
    exists   final name, with the file      in 3: the log is older, and is removed
    missing  final name, with the file      the file is removed

While a directory is offline, none of this is done and no `-delete` directory is removed: the log may be in either directory.
"""

from __future__ import annotations

import contextlib
import logging
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from broker.storage.directories.log_directory import (
    DELETED_SUFFIX,
    FUTURE_SUFFIX,
    LogDirectory,
    path_of,
    path_of_renamed,
)
from broker.storage.disk.filesystem import FileSystem
from broker.storage.failures import LogDirFailed, failure_of
from broker.storage.log import Log
from protocol.topic_names import is_valid_topic_name, number_of
from protocol.types import TopicPartition

log = logging.getLogger(__name__)

REPLACES_CURRENT = "replaces-current"
TOPIC_NAME_MAX = 255 - 43
"""A longer topic name leaves no room for the suffix in a file name (Kafka has the same rule)."""

_PLAIN = re.compile(r"(.+)-(0|[1-9][0-9]*)")
_FUTURE = re.compile(rf"(.+)-(0|[1-9][0-9]*)\.[0-9a-f]{{32}}{FUTURE_SUFFIX}")


class _Found(NamedTuple):
    directory: LogDirectory
    path: str
    is_complete: bool


EVERYTHING = -1
PREFERRED_MAX = 20_000
"""Maximum number of replicas that are not here yet, and for which an admin chose a directory."""


class FutureLogs:
    """The copies of this broker. `preferred`: the directories that an admin chose for replicas that are not here yet."""

    def __init__(self, filesystem: FileSystem) -> None:
        self.preferred: dict[TopicPartition, str] = {}
        self._filesystem = filesystem
        self._futures: dict[TopicPartition, Log] = {}
        # Copies that are still to be cut, and where.
        self._uncut: dict[TopicPartition, int] = {}

    def prefer(self, tp: TopicPartition, directory: str) -> None:
        """Notes the directory for a new replica. Clients may send any name, so only the newest PREFERRED_MAX are kept."""
        self.preferred.pop(tp, None)
        if len(self.preferred) >= PREFERRED_MAX:
            del self.preferred[next(iter(self.preferred))]
        self.preferred[tp] = directory

    def __len__(self) -> int:
        return len(self._futures)

    def get(self, tp: TopicPartition) -> Log | None:
        return self._futures.get(tp)

    def logs(self) -> Iterable[Log]:
        return self._futures.values()

    def partitions(self) -> list[TopicPartition]:
        return list(self._futures)

    def add(self, future: Log) -> bool:
        """False when the partition has another copy already."""
        return self._futures.setdefault(future.topic_partition, future) is future

    def remove(self, tp: TopicPartition) -> Log | None:
        """Forgets the copy. Changes nothing on the disk."""
        self._uncut.pop(tp, None)
        return self._futures.pop(tp, None)

    def follow(self, current: Log) -> None:
        """Cuts the copy to the end of the log, which was cut or has just been created, and whatever it was to be cut to before. A copy that
        ends before the log's start becomes empty.

        A cut that takes long is only noted (`uncut`): it must be made before anything is copied. Raises LogDirFailed. The next call then
        cuts as far, even if the log has grown again.
        """
        tp = current.topic_partition
        future = self._futures.get(tp)
        if future is None or future is current:
            return
        end = min(current.log_end_offset, self._uncut.get(tp, current.log_end_offset))
        if min(end, future.log_end_offset) < current.log_start_offset:
            end = EVERYTHING
        self._uncut[tp] = end
        if not future.is_long_cut(end):
            self.cut(current)

    def uncut(self, tp: TopicPartition) -> int | None:
        """Where the copy is still to be cut, EVERYTHING: all of it is to be dropped. None: it has only records that the log has."""
        return self._uncut.get(tp)

    def cut(self, current: Log) -> None:
        """Makes the cut that is noted, however long it takes. Raises LogDirFailed."""
        tp = current.topic_partition
        future, end = self._futures[tp], self._uncut[tp]
        if end == EVERYTHING:
            future.truncate_fully_and_start_at(current.log_start_offset)
        else:
            future.truncate_to(end)
        del self._uncut[tp]

    def align(self, current: Log) -> None:
        """At a start: cuts records of the copy that the log does not have, as `follow`. A crash may leave such records."""
        future = self._futures.get(current.topic_partition)
        if future is not None:
            self._uncut[current.topic_partition] = _agreed_end(current, future)
            self.follow(current)

    # -- taking the place of the log ------------------------------------------------------------------------------

    def declare_complete(self, future: Log) -> None:
        """Step 1, after the flush. Blocks: for a thread. Raises OSError."""
        self._filesystem.write_atomically(f"{future.directory}/{REPLACES_CURRENT}", b"")

    def swap(self, current: Log) -> tuple[Log, str]:
        """Step 2. The copy and the log have the same LEO. Returns the copy, and the path to remove. Raises LogDirFailed.

        The log is closed before the renames, so no failure is temporary.
        """
        tp = current.topic_partition
        future = self._futures.pop(tp)
        assert future.log_end_offset == current.log_end_offset, f"{future.directory} is not complete"
        future.increment_log_start(current.log_start_offset)
        for epoch, start in current.leader_epochs.entries:
            future.leader_epochs.assign(epoch, start)  # includes an epoch without records (BUG-15)
        removed = path_of_renamed(current.log_dir, tp, DELETED_SUFFIX)
        path = path_of(future.log_dir, tp)
        current.mark_deleted()
        try:
            self._filesystem.rename(current.directory, removed)
        except OSError as error:
            raise failure_of(current.log_dir, error, is_lasting=True) from error
        try:
            self._filesystem.rename(future.directory, path)
        except OSError as error:
            self._rename_back(removed, current.directory)
            raise failure_of(future.log_dir, error, is_lasting=True) from error
        future.moved_to(path)
        return future, removed

    def _rename_back(self, removed: str, path: str) -> None:
        """Undoes the log's rename, as the copy's disk failed. The log is closed, and opened at the next start."""
        try:
            self._filesystem.rename(removed, path)
        except OSError as error:
            log.error("%s cannot be renamed back to %s: %s", removed, path, error)

    def finish(self, swapped: Log, removed: str) -> None:
        """Step 3. Blocks: for a thread. Raises OSError."""
        self._filesystem.sync_directory(swapped.log_dir)
        self._filesystem.sync_directory(removed.rpartition("/")[0])
        _unmark(self._filesystem, swapped.directory)
        self._filesystem.remove_tree(removed)


def _agreed_end(current: Log, future: Log) -> int:
    """The offset up to which the copy has the log's records: the lower end of the newest epoch that both have (REP-6)."""
    ends = dict(_epoch_ends(current))
    for epoch, end in reversed(_epoch_ends(future)):
        if epoch in ends:
            return min(end, ends[epoch])
    return future.log_start_offset


def _epoch_ends(log: Log) -> list[tuple[int, int]]:
    """(epoch, the offset after its last record), in order."""
    entries = log.leader_epochs.entries
    ends = [*(start for _, start in entries[1:]), log.log_end_offset]
    return [(epoch, end) for (epoch, _), end in zip(entries, ends, strict=False)]


def new_suffix() -> str:
    """The suffix of a new copy's directory, after the partition's name."""
    return f".{uuid.uuid4().hex}{FUTURE_SUFFIX}"


def settle(filesystem: FileSystem, directories: Sequence[LogDirectory]) -> None:
    """Completes interrupted replacements, see the module. Raises LogDirFailed.

    Call at a start, before logs are opened, and only if no directory failed.
    """
    plain: dict[TopicPartition, list[_Found]] = {}
    for tp, found in _scan(filesystem, directories, _PLAIN):
        plain.setdefault(tp, []).append(found)
    for tp, found in _scan(filesystem, directories, _FUTURE):
        with _failures_in(found.directory):
            if found.is_complete and tp not in plain:
                target = path_of(found.directory.path, tp)
                log.warning("%s is complete, and is renamed to %s", found.path, target)
                filesystem.rename(found.path, target)
                filesystem.sync_directory(found.directory.path)
                plain[tp] = [found._replace(path=target)]
            elif found.is_complete:
                _unmark(filesystem, found.path)
    for tp, places in plain.items():
        complete = [found for found in places if found.is_complete]
        if len(complete) == 1:
            _keep(filesystem, tp, complete[0], places)


def _keep(filesystem: FileSystem, tp: TopicPartition, complete: _Found, places: Sequence[_Found]) -> None:
    for found in places:
        if found is not complete:
            log.warning("%s is older than %s: removed", found.path, complete.path)
            with _failures_in(found.directory):
                filesystem.rename(found.path, path_of_renamed(found.directory.path, tp, DELETED_SUFFIX))
                filesystem.sync_directory(found.directory.path)
    with _failures_in(complete.directory):
        filesystem.sync_directory(complete.directory.path)
        _unmark(filesystem, complete.path)


def _scan(
    filesystem: FileSystem, directories: Sequence[LogDirectory], pattern: re.Pattern[str]
) -> Iterator[tuple[TopicPartition, _Found]]:
    for directory in directories:
        with _failures_in(directory):
            names = filesystem.list(directory.path)
        for name in names:
            match = pattern.fullmatch(name)
            path = f"{directory.path}/{name}"
            number = number_of(match[2]) if match is not None else None
            if match is None or number is None or not is_valid_topic_name(match[1]):
                continue
            with _failures_in(directory):
                is_log = filesystem.is_directory(path)
                is_complete = is_log and filesystem.exists(f"{path}/{REPLACES_CURRENT}")
            if is_log:
                yield TopicPartition(match[1], number), _Found(directory, path, is_complete)


def _unmark(filesystem: FileSystem, path: str) -> None:
    """Removes `replaces-current`, synced: if it came back after the next move, two logs would be complete. Raises OSError."""
    filesystem.remove(f"{path}/{REPLACES_CURRENT}")
    filesystem.sync_directory(path)


@contextlib.contextmanager
def _failures_in(directory: LogDirectory) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LogDirFailed(directory.path, error) from error
