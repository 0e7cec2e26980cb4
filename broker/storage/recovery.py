"""Opening a partition's directory: after a clean stop nothing is read, after a crash what may be torn is verified (LOG-2).

1. Leftovers are removed: `.deleted`, `.cleaned`, `.tmp` files, indexes without a log.
2. After a clean stop, only the last segment's end is looked up, from its last index entry on.
3. Otherwise every segment that reaches past the recovery point is re-read: CRC, order and form of each batch. At the
   first that is not valid the file is cut, and all later segments are removed: what follows a hole is no log.
4. The leader epochs are those of the checkpoint up to the end, joined with those that the verified batches carry
   (INV-21): an epoch of records that were lost must not stay, one of records that are there must not be missing.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Callable

from broker.config import TopicConfig
from broker.storage import checkpoints
from broker.storage.filesystem import FileSystem
from broker.storage.leader_epochs import LeaderEpochCache
from broker.storage.log import LogParts
from broker.storage.segment import Segment
from protocol.kafka.record_batch import BatchHeader

log = logging.getLogger(__name__)

PARTITION_METADATA = "partition.metadata"
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
) -> LogParts:
    """The segments and what belongs to them; makes what is missing in a new directory. Raises OSError."""
    bases = _tidy(filesystem, directory)

    def segment_at(base: int) -> Segment:
        return Segment(
            filesystem,
            directory,
            base,
            index_interval_bytes=config.index_interval_bytes,
            created_ms=wall_ms(),
        )

    is_new = not bases
    segments = [segment_at(base) for base in bases or [log_start_offset]]
    if is_new:
        segments[0].index.reset()
        segments[0].time_index.reset()
    for segment, following in itertools.pairwise(segments):
        segment.next_offset = following.base_offset
    stored = checkpoints.read_epochs(filesystem, f"{directory}/{checkpoints.LEADER_EPOCHS}")
    epochs = LeaderEpochCache(stored or [])
    if was_clean and stored is not None:
        segments[-1].load_end()
    elif not is_new:
        segments = _recover(filesystem, directory, segments, 0 if stored is None else recovery_point, epochs)
    end = segments[-1].next_offset
    # An epoch that begins at the very end got no record, and counts all the same (BUG-15).
    epochs.truncate_from_end(end + 1)
    start = min(max(log_start_offset, segments[0].base_offset), end)
    if epochs.entries != (stored or []):
        data = checkpoints.encode_epochs(epochs.entries)
        filesystem.write_atomically(f"{directory}/{checkpoints.LEADER_EPOCHS}", data)
    return LogParts(
        segments,
        start,
        min(recovery_point, end),
        epochs.entries,
        read_topic_id(filesystem, directory),
    )


def _tidy(filesystem: FileSystem, directory: str) -> list[int]:
    """Removes leftovers. Returns the base offsets of the segments, in order."""
    names = filesystem.list(directory)
    found = {m[1]: m for name in names if (m := _SEGMENT_FILE.fullmatch(name)) and m[2] == "log"}
    for name in names:
        match = _SEGMENT_FILE.fullmatch(name)
        is_orphan = match is not None and match[2] in ("index", "timeindex") and match[1] not in found
        if is_orphan or _LEFTOVER.fullmatch(name):
            log.info("%s: leftover %s removed", directory, name)
            filesystem.remove(f"{directory}/{name}")
    return sorted(int(base) for base in found)


def _recover(
    filesystem: FileSystem, directory: str, segments: list[Segment], recovery_point: int, epochs: LeaderEpochCache
) -> list[Segment]:
    """Step 3 and 4. Returns the segments that are kept."""
    kept: list[Segment] = []
    for number, segment in enumerate(segments):
        is_last = number == len(segments) - 1
        if not is_last and segment.next_offset <= recovery_point:
            kept.append(segment)
            continue
        expected = segment.next_offset
        before = segment.size
        for header in segment.verify():
            if _disagrees(epochs, header):
                epochs.truncate_from_end(header.base_offset)
            if header.partition_leader_epoch > epochs.latest_epoch():
                epochs.assign(header.partition_leader_epoch, header.base_offset)
        kept.append(segment)
        if segment.size != before:
            log.warning("%s: cut from %d to %d bytes, LEO %d", segment.path, before, segment.size, segment.next_offset)
        if not is_last and (segment.size != before or segment.next_offset > expected):
            for later in segments[number + 1 :]:
                log.warning("%s: removed, it follows a hole", later.path)
                later.remove()
            break
    return kept


def _disagrees(epochs: LeaderEpochCache, header: BatchHeader) -> bool:
    """True when the checkpoint says another epoch for this batch than the batch itself: the batch is right."""
    return epochs.epoch_for_offset(header.base_offset) != header.partition_leader_epoch


def read_topic_id(filesystem: FileSystem, directory: str) -> str | None:
    """The id in `partition.metadata` (KIP-516); None when there is none."""
    data = filesystem.read_file(f"{directory}/{PARTITION_METADATA}")
    for line in (data or b"").decode(errors="replace").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "topic_id" and value.strip():
            return value.strip()
    return None


def write_topic_id(filesystem: FileSystem, directory: str, topic_id: str) -> None:
    filesystem.write_atomically(f"{directory}/{PARTITION_METADATA}", f"version: 0\ntopic_id: {topic_id}".encode())
