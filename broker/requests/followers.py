"""Recognizes requests of replicas, and decides whether they are allowed (BAD-28, BAD-34).

Fetch, ListOffsets and OffsetForLeaderEpoch have a replica id. A request of a replica moves high watermarks and shows uncommitted
records, so only brokers may send it. (Kafka demands ClusterAction on the cluster.) If brokers have their own listener
(`inter.broker.listener.name`), every other listener refuses it with CLUSTER_AUTHORIZATION_FAILED. On a listener that brokers share
with clients, anyone can send it: there a Fetch counts only with the current broker epoch of a live, assigned replica
(`Partition.check_follower`), which clients do not know.

A fetcher sends its replica id in its first request, so the first request shows whether a connection is a follower's.
"""

from __future__ import annotations

import struct

from broker.cluster.metadata_cache import MetadataCache
from broker.network.acceptor import Claim
from broker.network.request_channel import Request
from broker.requests.context import ApiContext
from protocol.kafka import fetch_codec
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.framing import MalformedRequest, RequestHeader
from protocol.types import NO_EPOCH, Buffer

OFFSET_REQUESTS = (ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FOR_LEADER_EPOCH)
EPOCH_REPLICA_ID_SINCE = 3
"""The first version of OffsetForLeaderEpoch with a replica id."""


def may_ask_as_replica(context: ApiContext, request: Request) -> bool:
    """True if a request with a replica id (not negative) is allowed on this listener."""
    return context.replica_listener in (None, request.connection.listener)


def is_of_follower(metadata: MetadataCache, own_id: int, header: RequestHeader, frame: Buffer) -> Claim:
    """The claim of a request to come from another live broker. Only a Fetch can prove it, by its broker epoch."""
    try:
        replica, epoch = _asker(header, frame)
    except (MalformedRequest, struct.error):
        return Claim.NONE
    live = metadata.broker(replica) if replica >= 0 and replica != own_id else None
    if live is None:
        return Claim.NONE
    if header.api_key != ApiKey.FETCH:
        return Claim.MADE
    return Claim.PROVEN if epoch == live.epoch else Claim.NONE


def _asker(header: RequestHeader, frame: Buffer) -> tuple[int, int]:
    """The request's replica id and broker epoch; -1 if the request has none."""
    if header.api_key == ApiKey.FETCH:
        return fetch_codec.asker(header.api_version, frame, header.body_offset)
    has_no_id = header.api_key == ApiKey.OFFSET_FOR_LEADER_EPOCH and header.api_version < EPOCH_REPLICA_ID_SINCE
    if header.api_key not in OFFSET_REQUESTS or has_no_id:
        return -1, NO_EPOCH
    (replica,) = struct.unpack_from(">i", frame, header.body_offset)
    return replica, NO_EPOCH
