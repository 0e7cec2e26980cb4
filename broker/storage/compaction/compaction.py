"""Which log is compacted next, how far, and which segments are merged (LOG-4). Pure; the rules are Kafka 3.9's (LogCleaner).

    0        log start      first dirty             first uncleanable                 LEO
    |............|--- clean ---|--------- dirty ---------|--- left alone ---|- active -|

The clean part has each key at most once. The dirty part was written since the last cleaning. A cleaning notes the last offset of
each key in the dirty part, as far as its memory reaches. It then copies all segments that start before that point, without
records that a later one replaced, old tombstones and aborted records (`batch_cleaning`). Only whole inactive segments are cleaned.
A segment is left alone if it reaches beyond the high watermark or an open transaction, or if it is too young.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

LONG_MAX = 2**63 - 1
RELATIVE_OFFSET_MAX = 2**31 - 1
NO_TIMESTAMP = -1
INDEX_ENTRY_BYTES_MAX = 12

SEGMENTS_IN_A_GROUP = 32
"""Limit of segments that become one. The swap renames all their files in one turn of the loop, about 0.2 ms for each segment. Kafka has no
such limit; the next cleaning merges what this one has left apart."""

KEY_BYTES_MAX = 16
"""A longer key is replaced by its digest. The digest is longer than this, so it never equals a short key."""
DIGEST_BYTES = 20
ENTRY_BYTES = 200
"""Memory of a key and its offset in a dict: the key up to 64 bytes, the offset 32, the slot up to 100."""


class SegmentFacts(NamedTuple):
    """The facts about a segment that compaction needs: sizes in bytes, times in ms.

    `first_ms` is the largest timestamp of the first batch, `newest_ms` that of all; NO_TIMESTAMP if unknown or not needed.
    """

    base_offset: int
    size: int
    index_entries: int
    first_ms: int = NO_TIMESTAMP
    newest_ms: int = NO_TIMESTAMP


class Cleanable(NamedTuple):
    """The part of a log that can be cleaned.

    `is_overdue`: a dirty closed segment, cleanable or not, started more than `max.compaction.lag.ms` ago.
    """

    first_dirty: int
    first_uncleanable: int
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool

    @property
    def ratio(self) -> float:
        """The share of dirty bytes."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    def is_due(self, min_ratio: float) -> bool:
        """Whether `min.cleanable.dirty.ratio` or `max.compaction.lag.ms` requires a cleaning."""
        return self.dirty_bytes > 0 and (self.is_overdue or self.ratio > min_ratio)


def cleanable(
    segments: Sequence[SegmentFacts],
    *,
    cleaned_up_to: int,
    log_start_offset: int,
    log_end_offset: int,
    stable_offset: int,
    min_lag_ms: int,
    max_lag_ms: int,
    now_ms: int,
) -> Cleanable:
    """The cleanable part of a log. The last of its `segments` is the active one, and is not cleaned.

    `cleaned_up_to` is from the checkpoint. If it is outside of the log, the whole log is dirty. The segment that holds
    `stable_offset`, and all later ones, are not cleaned.
    """
    first_dirty = cleaned_up_to if log_start_offset <= cleaned_up_to <= log_end_offset else log_start_offset
    limit = min(stable_offset, segments[-1].base_offset)
    dirty = [s for s, following in itertools.pairwise(segments) if following.base_offset > first_dirty]
    if min_lag_ms > 0:
        limit = min([limit, *(s.base_offset for s in dirty if s.newest_ms > now_ms - min_lag_ms)])
    limit = max(first_dirty, limit)
    first_uncleanable = max((s.base_offset for s in segments if s.base_offset <= limit), default=limit)
    dirty_bytes = sum(s.size for s in dirty if s.base_offset < first_uncleanable)
    clean_bytes = sum(s.size for s in segments if s.base_offset < first_uncleanable) - dirty_bytes
    first_times = [s.first_ms for s in dirty if s.first_ms > 0]
    is_overdue = bool(first_times) and min(first_times) < now_ms - max_lag_ms
    return Cleanable(first_dirty, first_uncleanable, clean_bytes, dirty_bytes, is_overdue)


def grouped(
    segments: Sequence[SegmentFacts], *, end_offset: int, segment_bytes: int, index_bytes: int
) -> list[tuple[int, int]]:
    """Groups adjacent segments that fit in one new segment by size, index size, relative offsets and their number.

    Returns the groups as ranges [first, end) of indexes into `segments`. A segment that is too large alone is a group, too.
    `end_offset` is where the last segment ends.
    """
    ends = [*(s.base_offset for s in segments[1:]), end_offset]
    runs: list[tuple[int, int]] = []
    first = size = entries = 0
    for at, segment in enumerate(segments):
        size += segment.size
        entries += segment.index_entries
        is_near = segment.size == 0 or ends[at] - 1 - segments[first].base_offset <= RELATIVE_OFFSET_MAX
        is_small = size <= segment_bytes and entries * INDEX_ENTRY_BYTES_MAX <= index_bytes
        if at > first and not (is_small and is_near and at - first < SEGMENTS_IN_A_GROUP):
            runs.append((first, at))
            first, size, entries = at, segment.size, segment.index_entries
    if segments:
        runs.append((first, len(segments)))
    return runs


class OffsetMap:
    """The last offset of each key of the dirty part. Limited to the keys that fit in `log.cleaner.dedupe.buffer.size`."""

    __slots__ = ("_limit", "_offsets", "latest_offset")

    def __init__(self, memory_bytes: int, load_factor: float = 0.9) -> None:
        self._limit = max(1, int(memory_bytes * load_factor) // ENTRY_BYTES)
        self._offsets: dict[bytes, int] = {}
        self.latest_offset = -1

    def __len__(self) -> int:
        return len(self._offsets)

    def put(self, key: bytes, offset: int) -> bool:
        """Notes that `key` was written at `offset`. False when the map is full and does not have the key."""
        if len(key) > KEY_BYTES_MAX:
            key = blake2b(key, digest_size=DIGEST_BYTES).digest()
        offsets = self._offsets
        if len(offsets) >= self._limit and key not in offsets:
            return False
        offsets[key] = self.latest_offset = offset
        return True

    def reached(self, offset: int) -> None:
        """Everything up to `offset` was read."""
        self.latest_offset = max(self.latest_offset, offset)

    def is_replaced(self, key: bytes, offset: int) -> bool:
        """True when the key was written again after `offset`."""
        if len(key) > KEY_BYTES_MAX:
            key = blake2b(key, digest_size=DIGEST_BYTES).digest()
        return offset < self._offsets.get(key, -1)
