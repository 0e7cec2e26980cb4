"""Which partitions of `__consumer_offsets` this broker leads, and thus which groups it coordinates (LAI-5).

    gained -> loading (`loading.py`) -> served -> lost

A loss takes effect at once, in each state. When a partition is gained again, it is a new `OwnedPartition`, and pending work for the
earlier object is discarded. A leader that continues in a new epoch keeps its groups: no other broker has led in between.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from broker.cluster.lease import LeadershipLease
from broker.cluster.metadata_cache import MetadataCache
from broker.groups.held_groups import HeldGroup, HeldGroups, OwnedPartition
from broker.groups.offsets_topic.loading import GroupLoading
from broker.process.clock import Clock
from broker.replication.partition import Role
from broker.replication.replica_manager import ReplicaManager
from broker.settings.config import BrokerConfig
from protocol.topic_names import OFFSETS_TOPIC
from protocol.types import TopicPartition

log = logging.getLogger(__name__)

FOLLOWERS_SILENCE_S_MAX = 2.0
"""Followers fetch at least once a second, whatever replica.fetch.wait.max.ms says (`leader_endpoint.WAIT_MS_MAX`)."""


def partition_for(group_id: str, partitions: int) -> int:
    """The partition whose leader coordinates the group, as in Kafka: by Java's hash of the group id."""
    units = group_id.encode("utf-16-be", "surrogatepass")
    number = 0
    for at in range(0, len(units), 2):
        number = (31 * number + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    # As Utils.abs: Integer.MIN_VALUE becomes 0, every other negative number is negated.
    if number >= 0x80000000:
        number = 0 if number == 0x80000000 else 0x100000000 - number
    return number % partitions


class GroupOwnership:
    """Iterates over the owned partitions, loaded or not. `groups_lost` is called with the groups of each partition that is lost."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        metadata: MetadataCache,
        replicas: ReplicaManager,
        lease: LeadershipLease,
        groups: HeldGroups,
        loading: GroupLoading,
        groups_lost: Callable[[list[HeldGroup]], None],
    ) -> None:
        self._config = config
        self._clock = clock
        self._metadata = metadata
        self._replicas = replicas
        self._lease = lease
        self._groups = groups
        self._loading = loading
        self._groups_lost = groups_lost
        self._owned: dict[int, OwnedPartition] = {}
        self._is_closed = False

    def __iter__(self) -> Iterator[OwnedPartition]:
        return iter(list(self._owned.values()))

    def partition_of(self, group_id: str) -> int:
        """The partition whose leader coordinates the group."""
        held = self._groups.get(group_id)
        if held is not None:
            return held.owner.number
        partitions = self._metadata.partition_count(OFFSETS_TOPIC)
        return partition_for(group_id, partitions or self._config.offsets_topic_num_partitions)

    def owner_of(self, group_id: str) -> OwnedPartition | None:
        """None: another broker coordinates the group, or the number of partitions is not known yet."""
        held = self._groups.get(group_id)
        if held is not None:
            return held.owner
        if not self._metadata.partition_count(OFFSETS_TOPIC):
            return None
        return self._owned.get(self.partition_of(group_id))

    def may_have_a_successor(self, owned: OwnedPartition) -> bool:
        """True if neither ZooKeeper nor all in-sync replicas have been heard from lately: another leader may have newer offsets."""
        if self._lease.is_proven():
            return False
        partition = self._replicas.partitions.get(TopicPartition(OFFSETS_TOPIC, owned.number))
        since = self._clock.monotonic() - FOLLOWERS_SILENCE_S_MAX
        return partition is None or not partition.is_followed_since(since)

    # -- gained and lost ----------------------------------------------------------------------------------------------

    def leadership_changed(self, tp: TopicPartition) -> None:
        if tp.topic != OFFSETS_TOPIC:
            return
        partition = self._replicas.partitions.get(tp)
        if partition is not None and partition.role is Role.LEADER:
            self._gained(tp.partition, partition.leader_epoch)
        else:
            self._lost(tp.partition)

    async def close(self) -> None:
        """Gives up all partitions. None is gained afterwards."""
        self._is_closed = True
        for number in list(self._owned):
            self._lost(number)
        await self._loading.close()

    def _gained(self, number: int, leader_epoch: int) -> None:
        owned = self._owned.get(number)
        if owned is not None:
            owned.leader_epoch = leader_epoch
        elif not self._is_closed:
            owned = self._owned[number] = OwnedPartition(number, leader_epoch)
            self._loading.start(owned)

    def _lost(self, number: int) -> None:
        owned = self._owned.pop(number, None)
        if owned is None:
            return
        owned.is_owned = False
        groups = list(owned.groups.values())
        for held in groups:
            self._groups.remove(held)
        log.info("%s-%d, epoch %d: %d groups given up", OFFSETS_TOPIC, number, owned.leader_epoch, len(groups))
        self._groups_lost(groups)
