"""Which replica a consumer should read from (KIP-392): Kafka's RackAwareReplicaSelector.

With `replica.selector.class`, the leader answers a consumer that names its rack with the id of a replica in that rack, and without
records. The consumer fetches there, and asks the leader again when its metadata is five minutes old or when that replica fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from broker.cluster.metadata_cache import MetadataCache
from broker.replication.partition import Partition

NO_REPLICA = -1
"""The consumer reads from the leader."""


class ReplicaView(NamedTuple):
    """A replica as the leader knows it. `rack` is None if the broker has none; `behind_s`: seconds since it last had everything."""

    broker_id: int
    rack: str | None
    log_end_offset: int
    behind_s: float


def rack_aware(rack: str, leader: ReplicaView, followers: Iterable[ReplicaView]) -> ReplicaView:
    """The replica for a consumer in that rack: the leader if it is there, else the most caught-up follower there, else the leader.

    Of followers with the same log end, the one that had everything last is chosen, and then the one with the highest id.
    """
    if not rack or leader.rack == rack:
        return leader
    there = [follower for follower in followers if follower.rack == rack]
    return max(there, key=_how_caught_up, default=leader)


def _how_caught_up(replica: ReplicaView) -> tuple[int, float, int]:
    return replica.log_end_offset, -replica.behind_s, replica.broker_id


class ClosestReplica:
    """What a leader knows of its followers, for `rack_aware` (Kafka's ReplicaManager.findPreferredReadReplica)."""

    def __init__(self, metadata: MetadataCache, own_id: int, monotonic: Callable[[], float]) -> None:
        self._metadata = metadata
        self._own_id = own_id
        self._monotonic = monotonic

    def of(self, partition: Partition, offset: int, rack: str, listener: str) -> int:
        """The follower from which a consumer in that rack should read `offset`; NO_REPLICA: the leader, which is this broker.

        A follower counts if it is in the ISR, its log contains the offset or ends there, and its broker is live on the listener.
        """
        own = self._metadata.broker(self._own_id)
        assert partition.log is not None
        leader = ReplicaView(self._own_id, own.rack if own is not None else None, partition.log.log_end_offset, 0.0)
        if leader.rack == rack:
            return NO_REPLICA
        now = self._monotonic()
        views = []
        for replica, state in partition.followers.items():
            if replica in partition.isr and state.log_start_offset <= offset <= state.log_end_offset:
                broker = self._metadata.broker(replica)
                if broker is not None and broker.endpoint(listener) is not None:
                    views.append(ReplicaView(replica, broker.rack, state.log_end_offset, now - state.had_all_at))
        chosen = rack_aware(rack, leader, views)
        return NO_REPLICA if chosen is leader else chosen.broker_id
