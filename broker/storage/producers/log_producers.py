"""The producer state of one log with its snapshots on the disk: what the Log calls (LOG-5, INV-20, INV-21, BUG-24).

    a batch is in the log          note       the state follows; nothing is noted before it is written
    a segment is rolled            roll       snapshot at its base offset
    the log is closed cleanly      snapshot   at the LEO, so that the next start reads one small file
    the end moves back             cut        snapshots beyond it are removed; the state is rebuilt if a producer's batch was cut
    segments went or were merged   drop_strays
    all is dropped                 restart_at

A snapshot is written to the page cache; the log's next flush syncs it, before the recovery point moves over it. So after a
crash those up to the recovery point are what was written, and those beyond it are not believed. With many producers it
takes too long to encode on the loop (4 us for each producer); then only a frozen state is kept, and the flush's thread encodes
and writes it.

A cut must not read a whole segment of small batches on the loop (4 us each, a million of them in 200 MB): every thousand
batches a copy of the state is kept in memory, the older the sparser, so what is read again is about as much as was cut.

The batches of segments that were deleted are in no log any more, but their producers are in the snapshot at the first
segment's start. Kafka 3.9 forgets them in a restart when that offset is not above the log start; here it is used, or the
last batch could be written twice after its records were deleted.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from broker.storage.disk.filesystem import FileSystem
from broker.storage.producers import producer_snapshots
from broker.storage.producers.producer_state import Duplicate, ProducerState
from broker.storage.segment import Segment
from protocol.kafka.record_batch import BatchHeader

log = logging.getLogger(__name__)


class ProducerExpiration(NamedTuple):
    """`producer.id.expiration.ms`, and how often it is looked whose time is over."""

    after_ms: int
    check_s: float


COPY_BATCHES = 1024
COPY_BATCHES_PER_PRODUCER = 8
"""A copy costs as much as there are producers: with many it is made less often."""
COPIES_MAX = 16

WRITTEN_AT_ONCE = 256
"""Producers: with more the next flush writes the snapshot."""

ALL_PRODUCERS_MAX = 500_000
"""Producers of all logs of a broker, and of the copies of their states: a kilobyte each at the most."""

DEFAULT_EXPIRATION = ProducerExpiration(86_400_000, 600.0)


class SnapshotWrites(NamedTuple):
    """Frozen states of snapshots by their offsets, and where they belong."""

    directory: str
    states: Mapping[int, ProducerState]

    def write(self, filesystem: FileSystem) -> None:
        """For a thread. In a directory that was renamed meanwhile nothing is written. Raises OSError."""
        for offset, state in self.states.items():
            path = f"{self.directory}/{producer_snapshots.file_name(offset)}"
            with contextlib.suppress(FileNotFoundError):
                filesystem.write_atomically(path, producer_snapshots.encode(state), sync=False)


def to_shrink(logs: Sequence[LogProducers]) -> Iterator[tuple[LogProducers, int]]:
    """When all of them together have more than ALL_PRODUCERS_MAX: which are to keep how many. The largest shrink first."""
    sizes = sorted(((found.size, at) for at, found in enumerate(logs)), reverse=True)
    total = sum(size for size, _ in sizes)
    for size, at in sizes:
        if total <= ALL_PRODUCERS_MAX:
            return
        left = len(logs[at].state.producers) // 2
        total -= size - left
        yield logs[at], left


class LogProducers:
    """Of one Log, which owns the order of calls. All methods that touch the disk raise OSError."""

    __slots__ = (
        "_copies",
        "_filesystem",
        "_names_changed",
        "_since_copy",
        "_snapshots",
        "_unsynced",
        "_unwritten",
        "directory",
        "state",
    )

    def __init__(
        self, filesystem: FileSystem, directory: str, state: ProducerState, snapshots: Iterable[int] = ()
    ) -> None:
        self.directory = directory
        self.state = state
        self._filesystem = filesystem
        self._snapshots = set(snapshots)
        self._unsynced: set[int] = set()
        self._unwritten: dict[int, ProducerState] = {}
        self._names_changed = False
        self._copies: list[ProducerState] = []  # frozen, oldest first
        self._since_copy = 0

    @property
    def snapshots(self) -> list[int]:
        """Offsets of the snapshots on the disk, in order."""
        return sorted(self._snapshots)

    def check(self, header: BatchHeader) -> Duplicate | None:
        """`ProducerState.check`: whether a client's batch may be appended (None), or is here already. Raises KafkaError."""
        return self.state.check(header)

    def note(self, headers: Sequence[BatchHeader]) -> None:
        """These batches are in the log."""
        append = self.state.append
        for header in headers:
            append(header, header[0])
        self._since_copy += len(headers)
        if self._since_copy >= COPY_BATCHES:
            self._copy()

    def _copy(self) -> None:
        """Remembers the state at the LEO. Those that are kept are the farther apart the older they are."""
        if self._since_copy < COPY_BATCHES_PER_PRODUCER * len(self.state.producers):
            return
        self._since_copy = 0
        if self.state.producers:
            if len(self._copies) >= COPIES_MAX:
                del self._copies[: COPIES_MAX // 2 : 2]
            self._copies.append(self.state.freeze())

    def roll(self, base_offset: int) -> None:
        """A segment starts at `base_offset`, which is the LEO or beyond it."""
        self.state.skip_to(base_offset)
        self.snapshot()

    def snapshot(self) -> None:
        """Writes the state at the LEO, or has the next flush write it, unless it is there."""
        offset = self.state.end_offset
        if offset > 0 and offset not in self._snapshots:
            if len(self.state.producers) > WRITTEN_AT_ONCE:
                self._unwritten[offset] = self.state.freeze()
            else:
                self._filesystem.write_atomically(self._path(offset), producer_snapshots.encode(self.state), sync=False)
            self._snapshots.add(offset)
            self._unsynced.add(offset)
            self._names_changed = True

    def cut(self, segments: Sequence[Segment], end_offset: int) -> None:
        """The log ends at `end_offset` now, these segments are left."""
        self._remove(offset for offset in self._snapshots if offset > end_offset)
        self._copies = [copy for copy in self._copies if copy.end_offset <= end_offset]
        if not self.state.truncate(end_offset):
            self._rebuild(segments, end_offset)

    def restart_at(self, offset: int) -> None:
        """The log was emptied and continues at `offset`."""
        self._remove(self._snapshots)
        self._copies.clear()
        self.state.restart_at(offset)

    def drop_strays(self, segment_bases: Collection[int]) -> None:
        """Only these segments are left: snapshots that are not of the start of one are removed, except the one of a clean stop."""
        self._remove(producer_snapshots.strays(self._snapshots, segment_bases))

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forgets producers that were not heard of for `expiration_ms`."""
        gone = self.state.expire(now_ms, expiration_ms)
        if gone:
            log.info("%s: %d producers were not heard of for %d ms: forgotten", self.directory, gone, expiration_ms)

    @property
    def size(self) -> int:
        """Producers that it keeps in memory, in its state and in the copies."""
        return len(self.state.producers) + sum(len(copy.producers) for copy in self._copies)

    def shrink(self, count: int) -> None:
        """There are too many in all logs: keeps those `count` producers that wrote last."""
        self._copies.clear()
        gone = self.state.keep(count) if len(self.state.producers) > count else 0
        if gone:
            log.warning(
                "%s: %d producers are forgotten, those that wrote last are kept: all logs have more than %d",
                self.directory,
                gone,
                ALL_PRODUCERS_MAX,
            )

    def take_unsynced(self) -> tuple[bool, list[str], SnapshotWrites]:
        """(do the directory's names have to be synced, paths of the snapshots that do, what a thread writes before that).

        They count as synced from now on; `written` gets the writes.
        """
        changed, self._names_changed = self._names_changed, False
        paths = [self._path(offset) for offset in sorted(self._unsynced)]
        self._unsynced.clear()
        return changed, paths, SnapshotWrites(self.directory, dict(self._unwritten))

    def written(self, writes: SnapshotWrites) -> None:
        """The thread is done. A snapshot that was removed meanwhile is removed again; one that has moved is still to be written."""
        for offset, state in writes.states.items():
            if offset not in self._snapshots:
                self._filesystem.remove(f"{writes.directory}/{producer_snapshots.file_name(offset)}")
                self._names_changed = True
            elif self._unwritten.get(offset) is state and writes.directory == self.directory:
                del self._unwritten[offset]
            else:
                self._unsynced.add(offset)
                self._names_changed = True

    def all_is_unsynced(self) -> None:
        """What `take_unsynced` gave was not synced."""
        self._unsynced |= self._snapshots
        self._names_changed = True

    def _path(self, offset: int) -> str:
        return f"{self.directory}/{producer_snapshots.file_name(offset)}"

    def _remove(self, offsets: Iterable[int]) -> None:
        for offset in list(offsets):
            self._filesystem.remove(self._path(offset))
            self._snapshots.discard(offset)
            self._unsynced.discard(offset)
            self._unwritten.pop(offset, None)
            self._names_changed = True

    def _rebuild(self, segments: Sequence[Segment], end_offset: int) -> None:
        """The state from the newest snapshot that can be read, and the batches after it."""
        first = segments[0].base_offset
        self.state = ProducerState(first)
        if self._copies and self._copies[-1].end_offset >= max(first, *self._snapshots, 0):
            self.state = self._copies[-1].freeze()
            if self._replay_end(segments):
                self.state.skip_to(end_offset)
                return
            self.state = ProducerState(first)
        for offset in producer_snapshots.newest_first(self._snapshots, first_offset=first, log_end_offset=end_offset):
            if offset in self._unwritten:
                self.state = self._unwritten[offset].freeze()
                break
            try:
                self.state = producer_snapshots.decode(self._filesystem.read_file(self._path(offset)) or b"", offset)
                break
            except ValueError as error:
                log.warning("%s: %s: removed, the state comes from what is before it", self._path(offset), error)
                self._remove((offset,))
        for segment in segments:
            if segment.base_offset >= self.state.end_offset:
                # One that was not believed, or broken: without it those of deleted segments would be forgotten in a cut.
                self.roll(segment.base_offset)
            if segment.next_offset > self.state.end_offset:
                self._replay(segment)
        self.state.skip_to(end_offset)

    def _replay_end(self, segments: Sequence[Segment]) -> bool:
        """What comes after the state, found by the index. False: the index does not lead there."""
        for segment in segments:
            if segment.next_offset > self.state.end_offset:
                segment.load_indexes()
                entry = segment.index.entry_before(self.state.end_offset)
                self._replay(segment, entry[1] if entry else 0)
                if self.state.end_offset != segment.next_offset:
                    return False
        return True

    def _replay(self, segment: Segment, position: int = 0) -> None:
        """From the start of the file, without a position: then the index is not believed."""
        state = self.state
        for _, header in segment.headers(position):
            if header.base_offset >= state.end_offset:
                state.append(header, header.base_offset)


def load(
    filesystem: FileSystem,
    directory: str,
    segments: Sequence[Segment],
    snapshots: Collection[int],
    *,
    end_offset: int,
    believed_up_to: int,
) -> LogProducers:
    """The state of a log that is opened; of its `snapshots` (offsets) those beyond `believed_up_to` are not used.

    Snapshots that nothing needs any more are removed. Raises OSError.
    """
    producers = LogProducers(filesystem, directory, ProducerState(), snapshots)
    end = min(end_offset, believed_up_to)
    first = segments[0].base_offset
    producers._remove(producer_snapshots.out_of_range(snapshots, first_offset=first, log_end_offset=end))
    producers.drop_strays([segment.base_offset for segment in segments])
    producers._rebuild(segments, end_offset)
    return producers
