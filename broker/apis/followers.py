"""Is a connection a follower's? Told by its first request: a fetcher asks as a replica, and nothing else before (BAD-34, BAD-28)."""

from __future__ import annotations

import struct

from broker.metadata_cache import MetadataCache
from protocol.kafka import fetch_codec
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.framing import MalformedRequest, RequestHeader
from protocol.types import NO_EPOCH

OFFSET_REQUESTS = (ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FOR_LEADER_EPOCH)
EPOCH_WITH_REPLICA_SINCE = 3


def is_of_follower(metadata: MetadataCache, own_id: int, header: RequestHeader, frame: memoryview) -> bool:
    """True for a Fetch, ListOffsets or OffsetForLeaderEpoch of another live broker; of a Fetch its epoch counts too."""
    try:
        replica, epoch = _asker(header, frame)
    except (MalformedRequest, struct.error):
        return False
    live = metadata.broker(replica) if replica >= 0 and replica != own_id else None
    return live is not None and epoch in (NO_EPOCH, live.epoch)


def _asker(header: RequestHeader, frame: memoryview) -> tuple[int, int]:
    """Replica id and broker epoch (-1: not said)."""
    if header.api_key == ApiKey.FETCH:
        return fetch_codec.asker(header.api_version, frame, header.body_offset)
    is_old = header.api_key == ApiKey.OFFSET_FOR_LEADER_EPOCH and header.api_version < EPOCH_WITH_REPLICA_SINCE
    if header.api_key not in OFFSET_REQUESTS or is_old:
        return -1, NO_EPOCH
    (replica,) = struct.unpack_from(">i", frame, header.body_offset)
    return replica, NO_EPOCH
