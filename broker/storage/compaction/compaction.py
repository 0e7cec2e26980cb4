"""Which log is compacted next, how far, and which segments become one (LOG-4). Pure; the rules are Kafka 3.9's LogCleaner.

    0        log start      first dirty             first uncleanable                 LEO
    |............|--- clean ---|--------- dirty ---------|--- left alone ---|- active -|

Clean: each key is there once. Dirty: what was written since. A cleaning notes the last offset of each key of the dirty part,
as far as its memory reaches, and then copies all segments up to there without the records that a later one has replaced.
Left alone is what is not stable (high watermark, open transactions), not on the disk for sure, or too young.
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

KEY_BYTES_MAX = 16
"""A longer key is noted by a digest, which is longer than this: no key can be taken for another's digest."""
DIGEST_BYTES = 20
ENTRY_BYTES = 200
"""What a key and its offset take in a dict, measured: the key up to 69 bytes, the offset 32, the slot up to 100."""


class SegmentFacts(NamedTuple):
    """A segment as compaction sees it: sizes in bytes, times in ms.

    `first_ms` is the largest timestamp of its first batch, `newest_ms` of all; NO_TIMESTAMP when not known or needed.
    """

    base_offset: int
    size: int
    index_entries: int
    first_ms: int = NO_TIMESTAMP
    newest_ms: int = NO_TIMESTAMP


class Cleanable(NamedTuple):
    """What of a log could be cleaned. `is_overdue`: max.compaction.lag.ms is over for something in it."""

    first_dirty: int
    first_uncleanable: int
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool

    @property
    def ratio(self) -> float:
        """The dirty bytes' share."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    def is_due(self, min_ratio: float) -> bool:
        """Whether `min.cleanable.dirty.ratio` or `max.compaction.lag.ms` asks for a cleaning."""
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
    """Looks at the segments of a log, of which the last is the active one and stays as it is.

    `cleaned_up_to` is from the checkpoint; where that cannot be (beyond the end, before the start), all is dirty.
    `stable_offset`: nothing at or after it is touched; a segment that holds it counts as a whole.
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
    """Splits segments, up to `end_offset`, into runs [first, end) that each fit into one: bytes, indexes, relative offsets."""
    ends = [*(s.base_offset for s in segments[1:]), end_offset]
    runs: list[tuple[int, int]] = []
    first = size = entries = 0
    for at, segment in enumerate(segments):
        size += segment.size
        entries += segment.index_entries
        is_near = segment.size == 0 or ends[at] - 1 - segments[first].base_offset <= RELATIVE_OFFSET_MAX
        if at > first and not (size <= segment_bytes and entries * INDEX_ENTRY_BYTES_MAX <= index_bytes and is_near):
            runs.append((first, at))
            first, size, entries = at, segment.size, segment.index_entries
    if segments:
        runs.append((first, len(segments)))
    return runs


class OffsetMap:
    """The last offset of each key of the dirty part, up to a number of keys that fits `log.cleaner.dedupe.buffer.size`."""

    __slots__ = ("_limit", "_offsets", "latest_offset")

    def __init__(self, memory_bytes: int, load_factor: float = 0.9) -> None:
        self._limit = max(1, int(memory_bytes * load_factor) // ENTRY_BYTES)
        self._offsets: dict[bytes, int] = {}
        self.latest_offset = -1

    def __len__(self) -> int:
        return len(self._offsets)

    def put(self, key: bytes, offset: int) -> bool:
        """Notes that `key` was written at `offset`; False when there is no room for a further key."""
        if len(key) > KEY_BYTES_MAX:
            key = blake2b(key, digest_size=DIGEST_BYTES).digest()
        offsets = self._offsets
        if len(offsets) >= self._limit and key not in offsets:
            return False
        offsets[key] = self.latest_offset = offset
        return True

    def reached(self, offset: int) -> None:
        """All up to `offset` was looked at."""
        self.latest_offset = max(self.latest_offset, offset)

    def is_replaced(self, key: bytes, offset: int) -> bool:
        """True when the key was written again after `offset`."""
        if len(key) > KEY_BYTES_MAX:
            key = blake2b(key, digest_size=DIGEST_BYTES).digest()
        return offset < self._offsets.get(key, -1)
