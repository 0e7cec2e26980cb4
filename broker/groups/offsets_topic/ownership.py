"""Which partitions of `__consumer_offsets` this broker leads, and so which groups are its own (LAI-5).

    gained -> loading (`loading.py`) -> served -> lost

A loss takes effect at once, in whatever state; a partition that is gained again is another `OwnedPartition`, and what was under
way for the earlier one comes to nothing. A leader that goes on in a new epoch keeps its groups: nobody else has led meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple

from broker.cluster.lease import LeadershipLease
from broker.cluster.metadata_cache import MetadataCache
from broker.groups.held_groups import HeldGroup, HeldGroups, OwnedPartition
from broker.groups.offsets_topic.loading import GroupLoading, StoredGroup
from broker.groups.offsets_topic.topic import OffsetsTopic, partition_for
from broker.groups.time_slices import Slices
from broker.process.clock import Clock
from broker.purgatory import Timers
from broker.replication.partition import Role
from broker.replication.replica_manager import ReplicaManager
from broker.settings.config import BrokerConfig
from protocol.topic_names import OFFSETS_TOPIC
from protocol.types import TopicPartition

log = logging.getLogger(__name__)

FOLLOWERS_SILENCE_S_MAX = 2.0
"""Followers fetch once a second at the least, whatever replica.fetch.wait.max.ms says (`leader_endpoint.WAIT_MS_MAX`)."""


class Surroundings(NamedTuple):
    """What the coordinator works with."""

    config: BrokerConfig
    clock: Clock
    timers: Timers
    metadata: MetadataCache
    replicas: ReplicaManager
    lease: LeadershipLease


class GroupEvents(NamedTuple):
    """Whom to tell: `take` of each group that was stored, `loaded` after the last one, `unloaded` of those that are lost."""

    take: Callable[[OwnedPartition, StoredGroup], None]
    loaded: Callable[[OwnedPartition], None]
    unloaded: Callable[[list[HeldGroup]], None]


class GroupOwnership:
    """Iterates over the partitions that are owned, loaded or not."""

    def __init__(
        self, world: Surroundings, topic: OffsetsTopic, groups: HeldGroups, slices: Slices, events: GroupEvents
    ) -> None:
        self._world = world
        self._groups = groups
        self._events = events
        self._owned: dict[int, OwnedPartition] = {}
        self._is_closed = False
        self._loading = GroupLoading(
            topic, world.replicas, world.timers, slices, self._is_current, events.take, events.loaded
        )

    def __iter__(self) -> Iterator[OwnedPartition]:
        return iter(list(self._owned.values()))

    def partition_of(self, group_id: str) -> int:
        """The partition whose leader coordinates the group."""
        held = self._groups.get(group_id)
        if held is not None:
            return held.owner.number
        partitions = self._world.metadata.partition_count(OFFSETS_TOPIC)
        return partition_for(group_id, partitions or self._world.config.offsets_topic_num_partitions)

    def owner_of(self, group_id: str) -> OwnedPartition | None:
        """None: another broker's. Also while it is not known how many partitions there are, and so not which is the group's."""
        held = self._groups.get(group_id)
        if held is not None:
            return held.owner
        if not self._world.metadata.partition_count(OFFSETS_TOPIC):
            return None
        return self._owned.get(self.partition_of(group_id))

    def may_have_a_successor(self, owned: OwnedPartition) -> bool:
        """Cut off: neither ZooKeeper nor all replicas in sync were heard of lately. Its successor may have newer offsets."""
        if self._world.lease.is_proven():
            return False
        partition = self._world.replicas.partitions.get(TopicPartition(OFFSETS_TOPIC, owned.number))
        since = self._world.clock.monotonic() - FOLLOWERS_SILENCE_S_MAX
        return partition is None or not partition.is_followed_since(since)

    # -- gained and lost ----------------------------------------------------------------------------------------------

    def leadership_changed(self, tp: TopicPartition) -> None:
        if tp.topic != OFFSETS_TOPIC:
            return
        partition = self._world.replicas.partitions.get(tp)
        if partition is not None and partition.role is Role.LEADER:
            self._gained(tp.partition, partition.leader_epoch)
        else:
            self._lost(tp.partition)

    async def close(self) -> None:
        """All are lost, and nothing is gained any more."""
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
            self._loading.begin(owned)

    def _lost(self, number: int) -> None:
        owned = self._owned.pop(number, None)
        if owned is None:
            return
        groups = list(owned.groups.values())
        for held in groups:
            self._groups.remove(held)
        log.info("%s-%d, epoch %d: %d groups given up", OFFSETS_TOPIC, number, owned.leader_epoch, len(groups))
        self._events.unloaded(groups)

    def _is_current(self, owned: OwnedPartition) -> bool:
        return self._owned.get(owned.number) is owned
