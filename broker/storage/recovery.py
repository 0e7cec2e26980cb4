"""Opens a partition's directory. After a clean stop it reads only the end of the last segment, after a crash more (LOG-2).

A log that is as a clean stop of ottla has described it (`closed_logs`) is not read at all: `reopen_log`. Every other log, `open_log`:

1. A swap of compacted segments is finished (`segment_swap`). Leftovers are removed: `.deleted`, `.cleaned`, `.swap` and `.tmp`
   files, and indexes without a log.
2. After a clean stop, the last segment is read from its last index entry on. If it does not end with a whole batch, the stop was
   not clean: step 3 verifies that segment. A checkpoint that lacks the newest epoch does not count.
3. Otherwise every segment that reaches past the recovery point is verified: CRC, order and form of each batch. The file is cut
   before the first invalid batch, and all later segments are removed. It is read from the disk, not from the page cache: that may have
   records which a failed sync has not written, and nothing will.
4. In the verified part, the batches say which leader epochs there are; before it, the checkpoint does (INV-21). So no epoch of
   lost records stays, and no epoch of existing records is missing. Without a checkpoint, the headers of all batches are read.
5. The producer state is read from the newest snapshot that can be trusted, and from the batches after it (`log_producers`).
6. Lists of aborted transactions lose their entries from the recovery point on; step 5 adds those of the batches. A damaged list is made
   again as a whole. The last segment's list stays in memory, for the appends.

Kafka's logs may have messages of format v0 or v1, from before 0.11. Such a log is refused: this broker cannot read them, and must not
lose them. They are looked for where a segment starts that has no leader epoch in the checkpoint, and where step 3 would cut.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Callable, Collection, Sequence

from broker.settings.config import TopicConfig
from broker.storage import aborted_transactions, checkpoints
from broker.storage.aborted_transactions import AbortedIndexCorrupt
from broker.storage.closed_logs import ClosedLog
from broker.storage.compaction.segment_swap import finish_swaps
from broker.storage.directories import topic_ids
from broker.storage.directories.log_directory import LogDirectoryError
from broker.storage.disk.filesystem import FileSystem
from broker.storage.leader_epochs import LeaderEpochCache
from broker.storage.log_files import LogFiles
from broker.storage.log_types import LogParts
from broker.storage.producers import log_producers, producer_snapshots
from broker.storage.producers.producer_state import ProducerState
from broker.storage.recovery_rules import NEW_EPOCHS_MAX, EpochEntry, Judge, rebuilt_epochs, rising
from broker.storage.segment import OldMessages, Segment, segment_name
from protocol.kafka.record_batch import BatchHeader

log = logging.getLogger(__name__)

_SEGMENT_FILE = re.compile(r"(\d{20})\.(log|index|timeindex|snapshot|txnindex)")
_LEFTOVER = re.compile(r".*\.(deleted|cleaned|swap|tmp)")


def open_log(
    filesystem: FileSystem,
    directory: str,
    config: TopicConfig,
    *,
    was_clean: bool,
    recovery_point: int,
    log_start_offset: int,
    wall_ms: Callable[[], int],
    holes_up_to: int = 0,
) -> LogParts:
    """The parts of a log. An empty directory gets a first segment. Raises OSError, and LogDirectoryError for a log with messages of
    an older format; after any exception, no file stays open.

    Compaction made the holes below `holes_up_to`, even if the recovery point is lower, or was lost (FLT-27).
    """
    opened: list[Segment] = []
    names: Collection[str] = ()
    files = LogFiles(filesystem)

    def segment_at(base: int, is_new: bool) -> Segment:
        opened.append(
            Segment(
                files,
                directory,
                base,
                index_interval_bytes=config.index_interval_bytes,
                created_ms=wall_ms(),
                is_new=is_new,
                has_aborted=not is_new and segment_name(base) + aborted_transactions.SUFFIX in names,
            )
        )
        return opened[-1]

    try:
        names = frozenset(finish_swaps(files, directory, config.index_interval_bytes))
        return _open_parts(
            files, directory, names, segment_at, was_clean, recovery_point, log_start_offset, holes_up_to
        )
    except BaseException as error:
        for segment in opened:
            segment.close()
        if isinstance(error, OldMessages):
            raise LogDirectoryError(
                f"{error}. ottla reads format v2 only, and has not changed the records: copy the topic to a new one with Kafka, "
                "or move the directory away"
            ) from None
        raise


def reopen_log(
    filesystem: FileSystem,
    directory: str,
    config: TopicConfig,
    closed: ClosedLog,
    *,
    recovery_point: int,
    log_start_offset: int,
    wall_ms: Callable[[], int],
) -> LogParts | None:
    """The parts of a log that is as a clean stop has closed it. Opens no file. None: it is not, so `open_log` it. Raises OSError."""
    files = LogFiles(filesystem)
    if set(files.list(directory)) != closed.names():
        return None
    for base, size, modified_ns in closed.segments:
        stamp = files.stamp_of(f"{directory}/{segment_name(base)}.log")
        if (stamp.size, stamp.modified_ns) != (size, modified_ns):
            return None
    end = closed.end.next_offset
    start = max(log_start_offset, closed.segments[0].base_offset)
    if start > end:
        return None
    try:
        state = producer_snapshots.decode(closed.producers, end) if closed.producers else ProducerState(end)
    except ValueError:
        return None
    created_ms = wall_ms()
    segments = [
        Segment(
            files,
            directory,
            base,
            index_interval_bytes=config.index_interval_bytes,
            created_ms=created_ms,
            size=size,
        )
        for base, size, _ in closed.segments
    ]
    for segment, following in itertools.pairwise(segments):
        segment.next_offset = following.base_offset
    segments[-1].reopen_end(closed.end)
    producers = log_producers.LogProducers(files, directory, state, closed.snapshots)
    if closed.snapshots:
        producers.drop_strays([segment.base_offset for segment in segments])
    epochs = LeaderEpochCache(closed.epochs)
    point = min(recovery_point, end)
    return LogParts(segments, start, point, epochs, closed.topic_id, is_synced=True, producers=producers, files=files)


def new_log(
    filesystem: FileSystem, directory: str, config: TopicConfig, *, topic_id: str | None, wall_ms: Callable[[], int]
) -> LogParts:
    """The parts of a log in a directory that was just created. Raises OSError; no file stays open then."""
    if topic_id is not None:
        topic_ids.write_new(filesystem, directory, topic_id)
    files = LogFiles(filesystem)
    segment = Segment(
        files,
        directory,
        0,
        index_interval_bytes=config.index_interval_bytes,
        created_ms=wall_ms(),
        is_new=True,
    )
    producers = log_producers.LogProducers(files, directory, ProducerState())
    return LogParts([segment], 0, 0, LeaderEpochCache(), topic_id, is_synced=False, producers=producers, files=files)


def _open_parts(
    files: LogFiles,
    directory: str,
    names: Collection[str],
    segment_at: Callable[[int, bool], Segment],
    was_clean: bool,
    recovery_point: int,
    log_start_offset: int,
    holes_up_to: int,
) -> LogParts:
    bases, snapshots = _tidy(files, directory, names)
    segments = [segment_at(base, False) for base in bases] or [segment_at(log_start_offset, True)]
    for segment, following in itertools.pairwise(segments):
        segment.next_offset = following.base_offset
    stored = checkpoints.read_epochs(files, f"{directory}/{checkpoints.LEADER_EPOCHS}")
    for segment in segments:
        # Kafka has leader epochs for messages of format v2 only. So usually nothing is read here.
        if stored and segment.next_offset > stored[0][1] and max(segment.base_offset, log_start_offset) >= stored[0][1]:
            break
        segment.refuse_old_messages()
    is_clean = False
    if was_clean and stored is not None:
        is_clean, last_batch = segments[-1].load_end()
        if last_batch is not None and last_batch.last_offset >= log_start_offset and _is_newer(last_batch, stored):
            log.warning("%s: the leader epoch of the last batch is not in the checkpoint: it is rebuilt", directory)
            is_clean, stored = False, None
    if is_clean and stored is not None:
        epochs = [entry for entry in stored if entry[1] <= segments[-1].next_offset]
    else:
        if was_clean and stored is not None:
            log.warning(
                "%s: the last stop was clean, but %s does not end with a whole batch", directory, segments[-1].path
            )
            recovery_point = min(recovery_point, segments[-1].base_offset)
        segments, epochs = _recover(files, segments, recovery_point, log_start_offset, holes_up_to, stored)
    end = segments[-1].next_offset
    start = max(log_start_offset, segments[0].base_offset)
    if start > end:
        if was_clean:
            log.warning("%s: log start %d is beyond the log end %d, and is ignored", directory, start, end)
            start = segments[0].base_offset
        else:
            # DeleteRecords moved the log start, and a crash lost some of the deleted records. Their offsets must not be
            # assigned again.
            log.warning("%s: the log ended at %d, and continues at its start %d", directory, end, start)
            segments.append(segment_at(start, True))
            end = start
    leader_epochs = LeaderEpochCache(epochs)
    leader_epochs.is_changed = epochs != (stored or [])
    recovery_point = min(recovery_point, end)
    aborted_from = _incomplete_aborted(segments, end if is_clean else recovery_point)
    producers = log_producers.load(
        files,
        directory,
        segments,
        snapshots,
        end_offset=end,
        believed_up_to=min([end if is_clean else recovery_point, *aborted_from.values()]),
        aborted_from=aborted_from,
    )
    segments[-1].load_aborted()  # an append must not have to read it
    topic_id = topic_ids.read(files, directory)
    return LogParts(
        segments, start, recovery_point, leader_epochs, topic_id, is_synced=is_clean, producers=producers, files=files
    )


def _is_newer(batch: BatchHeader, stored: Sequence[EpochEntry]) -> bool:
    """Whether the log's last batch has an epoch that the checkpoint lacks. Every clean stop writes it, but the directory may have been
    elsewhere meanwhile: it was moved away and back, or is a copy of a log in use. An epoch that is much higher is a damaged one.
    Not to be asked of a batch before the log start: a cut there drops its epoch.
    """
    return 0 < batch.partition_leader_epoch - (stored[-1][0] if stored else -1) <= NEW_EPOCHS_MAX


def _tidy(filesystem: FileSystem, directory: str, names: Collection[str]) -> tuple[list[int], list[int]]:
    """Removes leftovers. Returns the base offsets of the segments, in order, and the offsets of producer snapshots."""
    segments, snapshots, others = [], [], []
    for name in names:
        match = _SEGMENT_FILE.fullmatch(name)
        if match is None:
            if _LEFTOVER.fullmatch(name):
                others.append(name)
        elif match[2] == "log":
            segments.append(match[1])
        elif match[2] == "snapshot":
            snapshots.append(int(match[1]))
        else:
            others.append(name)
    known = frozenset(segments)
    for name in others:
        if name.partition(".")[0] not in known or _LEFTOVER.fullmatch(name):
            log.info("%s: leftover %s removed", directory, name)
            filesystem.remove(f"{directory}/{name}")
    return sorted(map(int, segments)), snapshots


def _recover(
    filesystem: FileSystem,
    segments: list[Segment],
    recovery_point: int,
    log_start_offset: int,
    holes_up_to: int,
    stored: Sequence[EpochEntry] | None,
) -> tuple[list[Segment], list[EpochEntry]]:
    """Steps 3 and 4. Returns the segments that are kept, and the epochs."""
    first = 0
    while first < len(segments) - 1 and segments[first].next_offset <= recovery_point:
        first += 1
    for segment in segments[first:]:
        segment.drop_cached()
    judge = Judge(stored or (), recovery_point, holes_up_to)
    # Compaction made the synced holes. A hole up to the log start comes from deleted records.
    gap_to = max(recovery_point, log_start_offset, holes_up_to)
    epochs = list(stored or ())
    if not epochs or epochs[0][1] > log_start_offset:
        # There is no checkpoint, or it no longer has the epochs of deleted records, whose deletion did not reach the disk.
        without_epochs = [segment for segment in segments[:first] if not epochs or segment.base_offset < epochs[0][1]]
        epochs = rising([*_epochs_of(without_epochs), *epochs])
    kept = segments[:first]
    for segment, following in itertools.zip_longest(segments[first:], segments[first + 1 :]):
        before = segment.size
        if following is None:
            judge.begin_segment(segment.base_offset, None, None)
        else:
            first_of_next = next((header for _, header in following.headers()), None)
            judge.begin_segment(segment.base_offset, following.base_offset, first_of_next)
        segment.verify(judge.is_believed)
        kept.append(segment)
        if segment.size != before:
            log.warning("%s: cut from %d to %d bytes, LEO %d", segment.path, before, segment.size, segment.next_offset)
            break
        if following is not None and segment.next_offset < following.base_offset and following.base_offset > gap_to:
            log.warning("%s: ends at %d, before the next segment starts", segment.path, segment.next_offset)
            break
    for segment in reversed(segments[len(kept) :]):
        log.warning("%s: removed, it follows a hole", segment.path)
        for path in segment.remove():
            filesystem.remove(path)
    return kept, rebuilt_epochs(
        epochs, judge.epochs, read_from=segments[first].base_offset, end_offset=kept[-1].next_offset
    )


def _incomplete_aborted(segments: Sequence[Segment], synced_up_to: int) -> dict[int, int]:
    """Cuts the segments' lists of aborted transactions to what is sure to be on the disk (step 6).

    Returns base offset -> the first offset of the markers that the list may lack.
    """
    incomplete = {}
    for segment in segments:
        index = segment.aborted
        since = max(min(synced_up_to, segment.next_offset), segment.base_offset)
        if since < segment.next_offset:
            incomplete[segment.base_offset] = since
        if index is None:
            continue
        try:
            index.load()
            index.truncate_to(since)
            index.unload()  # a torn entry that was cut may have changed what is in memory of the one before it
        except AbortedIndexCorrupt as error:
            log.warning("%s: the list of aborted transactions is made again", error)
            index.reset()
            incomplete[segment.base_offset] = segment.base_offset
    return incomplete


def _epochs_of(segments: Sequence[Segment]) -> list[EpochEntry]:
    headers = (header for segment in segments for _, header in segment.headers())
    return rising((header.partition_leader_epoch, header.base_offset) for header in headers)
