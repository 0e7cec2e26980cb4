"""When a segment is full (LOG-1)."""

from __future__ import annotations

import zlib
from collections.abc import Callable

from broker.settings.config import TopicConfig
from broker.storage.segment import Segment
from broker.storage.sparse_index import RELATIVE_OFFSET_MAX
from protocol.kafka.record_batch import BatchHeader
from protocol.types import TopicPartition

INDEX_ENTRY_BYTES_MAX = 12


def must_roll(
    segment: Segment,
    last: BatchHeader,
    size: int,
    config: TopicConfig,
    wall_ms: Callable[[], int],
    of: TopicPartition,
) -> bool:
    """Kafka's LogSegment.shouldRoll: by size, by relative offset, by index size, by time of the records.

    `last` is the header of the last batch which comes, `size` the bytes of all.
    """
    if segment.size + size > config.segment_bytes or last.last_offset - segment.base_offset > RELATIVE_OFFSET_MAX:
        return True
    if segment.bytes_since_index > segment.index_interval_bytes:  # an entry comes
        entries = max(segment.index.count, segment.time_index.count)
        if entries and (entries + 1) * INDEX_ENTRY_BYTES_MAX > config.segment_index_bytes:
            return True
    if segment.first_timestamp >= 0 and last.max_timestamp >= 0:
        waited = last.max_timestamp - segment.first_timestamp
    else:
        waited = wall_ms() - segment.created_ms
    if config.segment_jitter_ms:
        # Logs of one age should not all roll at once: each has its own, constant share of the jitter.
        waited += zlib.crc32(str(of).encode()) % config.segment_jitter_ms
    limit = config.segment_ms
    if "compact" in config.cleanup_policy:
        limit = min(limit, config.max_compaction_lag_ms)  # only what is rolled can be compacted
    return waited > limit
