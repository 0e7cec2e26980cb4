"""The producer state of one log, and its snapshots on the disk (LOG-5, INV-20, INV-21, BUG-24). The Log calls:

    a batch is in the log          note       updates the state; a batch is never noted before it is written
    a segment is rolled            roll       snapshot at its base offset
    the log is closed cleanly      snapshot   at the LEO, so that the next start reads one small file
    the end moves back             cut        snapshots beyond it are removed; the state is rebuilt if a producer's batch was cut
    old segments are removed       drop_before
    segments are merged            drop_strays
    the log is emptied             restart_at

A snapshot is written to the page cache. The log's next flush syncs it before the recovery point moves past it. After a crash,
snapshots up to the recovery point are intact, and later ones are not believed. With many producers, encoding a snapshot on the
loop takes too long (4 us for each producer); then only a frozen state is kept, and the flush's thread encodes and writes it.

A cut must not read a whole segment of small batches on the loop (4 us each, a million of them in 200 MB). Every thousand
batches, a copy of the state is therefore kept in memory, with fewer copies of older states. The rebuild then reads about as much
as was cut. Where that is still much, as after a start, a thread reads the state before the cut (`reading`).

The batches of deleted segments are in no log any more, but their producers are in the snapshot at the first segment's start.
Kafka 3.9 ignores that snapshot in a restart unless its offset is above the log start. Here it is used: else a producer's last
batch could be written twice after its records were deleted.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Final, NamedTuple

from broker.storage.aborted_transactions import AbortedTransaction
from broker.storage.disk.filesystem import FileSystem, HeldDirectory
from broker.storage.producers import producer_snapshots
from broker.storage.producers.produced_batches import PlainBatch
from broker.storage.producers.producer_state import LAST_OFFSET_MAX, Duplicate, EndedTransaction, ProducerState
from broker.storage.producers.state_reading import Start, StateReading
from broker.storage.producers.verified_transactions import VerifiedTransactions
from broker.storage.segment import REMOVED_SUFFIX, Segment
from protocol.kafka.control_records import Marker, marker_in
from protocol.kafka.record_batch import CONTROL_BIT, BatchHeader

log = logging.getLogger(__name__)


class ProducerExpiration(NamedTuple):
    """`producer.id.expiration.ms`, and the interval of the checks in seconds."""

    after_ms: int
    check_s: float


COPY_BATCHES: Final = 1024
COPY_BATCHES_PER_PRODUCER: Final = 8
"""The cost of a copy grows with the number of producers: with many, copies are made less often."""
COPIES_MAX: Final = 16

WRITTEN_AT_ONCE: Final = 256
"""Producers in a snapshot that is written at once. With more, the next flush writes it."""

READ_AT_ONCE: Final = 2 * COPY_BATCHES
"""Offsets whose batches a cut may read on the loop, in less than ten milliseconds. Before a longer one a thread reads (`state_reading`)."""
NOWHERE: Final = -1

ALL_PRODUCERS_MAX: Final = 500_000
"""Producers in the states of all logs of a broker, and in the copies of the states. Each takes at most a kilobyte."""

DEFAULT_EXPIRATION: Final = ProducerExpiration(86_400_000, 600.0)


def write_snapshots(directory: HeldDirectory, states: Mapping[int, ProducerState]) -> None:
    """Writes these frozen states, by offset, to the log's directory. For a thread. Raises OSError."""
    for offset, state in states.items():
        directory.write(producer_snapshots.file_name(offset), producer_snapshots.encode(state))


def _content(filesystem: FileSystem, path: str) -> bytes:
    return filesystem.read_file(path) or b""


def to_shrink(logs: Sequence[LogProducers]) -> Iterator[tuple[LogProducers, int]]:
    """The logs to shrink, largest first, and how many producers each keeps, so that all together have at most ALL_PRODUCERS_MAX."""
    total = sum([found.size for found in logs])
    if total <= ALL_PRODUCERS_MAX:
        return
    sizes = sorted(((found.size, at) for at, found in enumerate(logs)), reverse=True)
    for size, at in sizes:
        if total <= ALL_PRODUCERS_MAX:
            return
        kept = len(logs[at].state.producers) // 2
        total -= size - kept
        yield logs[at], kept


class LogProducers:
    """The producers of one Log, which is responsible for the order of calls. Methods that use the disk raise OSError."""

    __slots__ = (
        "_copies",
        "_filesystem",
        "_maybe_written",
        "_names_changed",
        "_read_up_to",
        "_since_copy",
        "_snapshots",
        "_unsynced",
        "_unwritten",
        "directory",
        "discard",
        "state",
        "verified",
    )

    def __init__(
        self, filesystem: FileSystem, directory: str, state: ProducerState, snapshots: Iterable[int] = ()
    ) -> None:
        self.directory = directory
        self.discard: Callable[[Sequence[str]], None] | None = None
        """Removes files in a thread: an unlink may take milliseconds."""
        self.state = state
        self.verified = VerifiedTransactions()
        self._filesystem = filesystem
        self._snapshots = set(snapshots)
        self._unsynced: set[int] = set()
        self._unwritten: dict[int, ProducerState] = {}
        # Those that a thread was given to write since `written` was called last. A flush may fail after it has written them.
        self._maybe_written: set[int] = set()
        self._names_changed = False
        self._copies: list[ProducerState] = []  # frozen, oldest first
        self._since_copy = 0
        self._read_up_to = NOWHERE

    @property
    def snapshots(self) -> list[int]:
        """Offsets of the snapshots on the disk, in order."""
        return sorted(self._snapshots)

    def check(self, header: BatchHeader) -> Duplicate | None:
        """`ProducerState.check`: None when a client's batch may be appended, else its duplicate. Raises KafkaError."""
        return self.state.check(header)

    def knows(self, producer_id: int) -> bool:
        """Whether the log has a batch or a marker of the producer, and it was not forgotten."""
        return producer_id in self.state.producers

    def is_in_transaction(self, producer_id: int, epoch: int) -> bool:
        """Whether the producer's next transactional batch belongs to a transaction that its coordinator will end."""
        return self.state.is_ongoing(producer_id, epoch) or self.verified.epochs.get(producer_id) == epoch

    def is_fenced(self, producer_id: int, epoch: int) -> bool:
        """Whether the log has a later epoch of the producer."""
        entry = self.state.producers.get(producer_id)
        return entry is not None and epoch < entry.epoch

    def note(
        self,
        headers: Sequence[BatchHeader],
        markers: Mapping[int, Marker] | None = None,
        *,
        is_epoch_raised: bool = False,
    ) -> Sequence[EndedTransaction]:
        """Updates the state: these batches are in the log. Returns the transactions that they end.

        `markers`: those in the control batches, by the batch's index in `headers`; None if there is no control batch. `is_epoch_raised`:
        there is only a marker, in the epoch after that of its transaction.
        """
        append = self.state.append
        ended: Sequence[EndedTransaction] = ()
        if markers is None:
            for header in headers:
                append(header, header[0])
        else:
            ends = (append(header, header[0], markers.get(at)) for at, header in enumerate(headers))
            ended = [end for end in ends if end is not None]
        if self.verified.guards or self.verified.epochs:
            self.verified.note(headers, is_epoch_raised=is_epoch_raised)
        self._noted(len(headers))
        return ended

    def note_plain(self, batches: Sequence[PlainBatch], offsets: Sequence[int], end_offset: int) -> None:
        """As `note`, for batches that `produced_batches.plain` accepted, with their base offsets. They end at `end_offset`."""
        state = self.state
        for at, offset in enumerate(offsets):
            producer = batches[at][4]
            if producer is not None:
                _, _, delta, newest, _ = batches[at]
                state.append_plain(producer, offset + delta, delta, newest)
        state.end_offset = end_offset
        self._noted(len(offsets))

    def _noted(self, count: int) -> None:
        self._since_copy += count
        if self._since_copy >= COPY_BATCHES:
            self._copy()

    def _copy(self) -> None:
        """Keeps a copy of the state at the LEO. Older copies are thinned out."""
        if self._since_copy < COPY_BATCHES_PER_PRODUCER * len(self.state.producers):
            return
        self._since_copy = 0
        if self.state.producers:
            if len(self._copies) >= COPIES_MAX:
                del self._copies[: COPIES_MAX // 2 : 2]
            self._copies.append(self.state.freeze())

    def roll(self, base_offset: int) -> None:
        """A segment starts at `base_offset`, at or above the LEO."""
        self.state.skip_to(base_offset)
        self.snapshot()

    def snapshot(self) -> None:
        """Writes a snapshot at the LEO, or has the next flush write it, unless it exists."""
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
        """The log was cut to `end_offset`. `segments` are those that are left."""
        self._remove(offset for offset in self._snapshots if offset > end_offset)
        self._copies = self._copies_up_to(end_offset)
        self._read_up_to = NOWHERE
        if not self.state.truncate(end_offset):
            self._rebuild(segments, end_offset)

    def must_read(self, bases: Sequence[int], end_offset: int) -> bool:
        """Whether a cut to `end_offset` would read for long, unless a thread has read before (`reading`). `bases`: of the segments."""
        if end_offset <= bases[0] or not self.state.changes_below(end_offset) or self._read_up_to == end_offset:
            return False
        base = bases[max(bisect_right(bases, end_offset) - 1, 0)]
        start = max(
            [
                base if base in self._snapshots else bases[0],
                *(copy.end_offset for copy in self._copies_up_to(end_offset)),
            ]
        )
        return len(self.state.producers) > WRITTEN_AT_ONCE or end_offset - start > READ_AT_ONCE

    def reading(self, first_offset: int, end_offset: int) -> StateReading:
        """Reads the state below `end_offset` for a cut there. `first_offset`: where the first segment starts."""
        starts: list[tuple[int, Start]] = [(copy.end_offset, copy) for copy in self._copies_up_to(end_offset)]
        offsets = producer_snapshots.newest_first(self._snapshots, first_offset=first_offset, log_end_offset=end_offset)
        starts += [
            (at, self._unwritten.get(at) or partial(_content, self._filesystem, self._path(at))) for at in offsets
        ]
        starts.sort(key=itemgetter(0), reverse=True)
        return StateReading(end_offset, first_offset, starts)

    def was_read(self, reading: StateReading) -> None:
        """Keeps what was read, for the cut. Nothing was cut meanwhile."""
        self._read_up_to = reading.end_offset
        self._copies = [*self._copies_up_to(reading.end_offset), reading.state.freeze()]

    def _copies_up_to(self, end_offset: int) -> list[ProducerState]:
        return [copy for copy in self._copies if copy.end_offset <= end_offset]

    def restart_at(self, offset: int) -> None:
        """The log was emptied and continues at `offset`."""
        self._remove(self._snapshots)
        self._copies.clear()
        self._read_up_to = NOWHERE
        self.state.restart_at(offset)
        self.verified = VerifiedTransactions()  # their markers may be among what this log never had

    def drop_before(self, offset: int) -> None:
        """The oldest segments were removed, up to `offset`: removes their snapshots."""
        self._remove([snapshot for snapshot in self._snapshots if snapshot < offset])

    def drop_strays(self, segment_bases: Collection[int]) -> None:
        """Removes snapshots that are not at the start of one of these segments, except the one of a clean stop."""
        self._remove(producer_snapshots.strays(self._snapshots, segment_bases))

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forgets producers that wrote nothing for `expiration_ms`."""
        count = self.state.expire(now_ms, expiration_ms)
        if count:
            log.info("%s: forgot %d producers that wrote nothing for %d ms", self.directory, count, expiration_ms)

    @property
    def size(self) -> int:
        """Producers in memory, in the state and its copies."""
        count = len(self.state.producers)
        if self._copies:  # most logs have none, and all logs are asked every few seconds
            count += sum(len(copy.producers) for copy in self._copies)
        return count

    def shrink(self, count: int) -> None:
        """Keeps the `count` producers that wrote last, as all logs together have too many."""
        self._copies.clear()
        dropped = self.state.keep(count) if len(self.state.producers) > count else 0
        if dropped:
            log.warning(
                "%s: forgot the %d producers that wrote longest ago, as all logs together have more than %d",
                self.directory,
                dropped,
                ALL_PRODUCERS_MAX,
            )

    def take_unsynced(self) -> tuple[bool, list[str], Mapping[int, ProducerState]]:
        """(whether the directory must be synced, names of snapshots to sync, those that a thread writes before the syncs).

        These count as synced from now on. Pass the last to `written` when they are written.
        """
        changed, self._names_changed = self._names_changed, False
        names = [producer_snapshots.file_name(offset) for offset in sorted(self._unsynced)]
        self._unsynced.clear()
        self._maybe_written.update(self._unwritten)
        return changed, names, dict(self._unwritten)

    def written(self, states: Mapping[int, ProducerState]) -> None:
        """The snapshots are written. Those that were dropped meanwhile are removed, also if an earlier flush wrote them and then failed.

        Called before the recovery point moves: a start believes any snapshot below it.
        """
        self._remove(self._maybe_written - self._snapshots)
        self._maybe_written.clear()
        for offset, state in states.items():
            if self._unwritten.get(offset) is state:
                del self._unwritten[offset]
            elif offset in self._snapshots:
                self._unsynced.add(offset)
                self._names_changed = True

    def all_is_unsynced(self) -> None:
        """Undoes `take_unsynced` after a failed sync."""
        self._unsynced |= self._snapshots
        self._names_changed = True

    def _path(self, offset: int) -> str:
        return f"{self.directory}/{producer_snapshots.file_name(offset)}"

    def _remove(self, offsets: Iterable[int]) -> None:
        """A file gets another name first: a later snapshot may have the same offset."""
        renamed: list[str] = []
        for offset in list(offsets):
            path = self._path(offset)
            if self._filesystem.exists(path):  # it may not be written yet
                self._filesystem.rename(path, path + REMOVED_SUFFIX)
                renamed.append(path + REMOVED_SUFFIX)
            self._snapshots.discard(offset)
            self._unsynced.discard(offset)
            self._unwritten.pop(offset, None)
            self._names_changed = True
        if renamed and self.discard is not None:
            self.discard(renamed)
        else:
            for path in renamed:
                self._filesystem.remove(path)

    def _rebuild(
        self, segments: Sequence[Segment], end_offset: int, aborted_from: Mapping[int, int] | None = None
    ) -> None:
        """Rebuilds the state from the newest copy or readable snapshot, and the batches after it.

        `aborted_from`: base offset of a segment -> the first offset of the markers that its list of aborted transactions lacks. The
        snapshots used are not newer.
        """
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
                log.warning("%s: %s: removed, the state is rebuilt from an earlier one", self._path(offset), error)
                self._remove((offset,))
        for segment in segments:
            if segment.base_offset >= self.state.end_offset:
                # The snapshot at this offset is missing, or was broken. Without a new one, a later cut would forget the
                # producers of deleted segments.
                self.roll(segment.base_offset)
            if segment.next_offset > self.state.end_offset:
                self._replay(segment, aborted_from=(aborted_from or {}).get(segment.base_offset, LAST_OFFSET_MAX))
        self.state.skip_to(end_offset)

    def _replay_end(self, segments: Sequence[Segment]) -> bool:
        """Replays the batches after the state, found by the index. False when the index is wrong."""
        for segment in segments:
            if segment.next_offset > self.state.end_offset:
                segment.load_indexes()
                entry = segment.index.entry_before(self.state.end_offset)
                self._replay(segment, entry[1] if entry else 0)
                if self.state.end_offset != segment.next_offset:
                    return False
        return True

    def _replay(self, segment: Segment, position: int = 0, aborted_from: int = LAST_OFFSET_MAX) -> None:
        """Replays from `position`; without one from the start of the file, which does not depend on the index.

        Adds the aborted transactions whose markers are at `aborted_from` or above to the segment's list.
        """
        state = self.state
        for at, header in segment.headers(position):
            if header.base_offset < state.end_offset:
                continue
            marker = None
            if header.attributes & CONTROL_BIT:
                marker = marker_in(segment.read(at, header.size_in_bytes, may_block=True))
            ended = state.append(header, header.base_offset, marker)
            if ended is not None and not ended.is_commit and ended.last_offset >= aborted_from:
                segment.note_aborted(AbortedTransaction(*ended[:4]))


def load(
    filesystem: FileSystem,
    directory: str,
    segments: Sequence[Segment],
    snapshots: Collection[int],
    *,
    end_offset: int,
    believed_up_to: int,
    aborted_from: Mapping[int, int] | None = None,
) -> LogProducers:
    """The producers of a log that is opened. `snapshots`: the offsets of its snapshots.

    Removes snapshots beyond `believed_up_to`, which may be broken, and those that are no longer needed. Completes the segments' lists
    of aborted transactions (`aborted_from`: base offset -> first offset of the markers that the list lacks, not below
    `believed_up_to`). Raises OSError.
    """
    producers = LogProducers(filesystem, directory, ProducerState(), snapshots)
    end = min(end_offset, believed_up_to)
    first = segments[0].base_offset
    producers._remove(producer_snapshots.out_of_range(snapshots, first_offset=first, log_end_offset=end))
    producers.drop_strays([segment.base_offset for segment in segments])
    producers._rebuild(segments, end_offset, aborted_from)
    return producers
