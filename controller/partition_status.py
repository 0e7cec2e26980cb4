"""The partition's states and the allowed transitions (CTL-4, Kafka's PartitionStateMachine). Pure.

NonExistent -> New -> Online <-> Offline -> NonExistent, and New -> Offline
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType


class PartitionStatus(Enum):
    """NonExistent: never created, or deleted. New: has replicas, no leader yet. Online: has a leader. Offline: lost its leader."""

    NON_EXISTENT = "NonExistentPartition"
    NEW = "NewPartition"
    ONLINE = "OnlinePartition"
    OFFLINE = "OfflinePartition"


ALLOWED_FROM: Mapping[PartitionStatus, frozenset[PartitionStatus]] = MappingProxyType(
    {
        PartitionStatus.NON_EXISTENT: frozenset({PartitionStatus.OFFLINE}),
        PartitionStatus.NEW: frozenset({PartitionStatus.NON_EXISTENT}),
        PartitionStatus.ONLINE: frozenset({PartitionStatus.NEW, PartitionStatus.ONLINE, PartitionStatus.OFFLINE}),
        PartitionStatus.OFFLINE: frozenset({PartitionStatus.NEW, PartitionStatus.ONLINE, PartitionStatus.OFFLINE}),
    }
)
"""target -> the states from which it may be reached."""


def may_become(current: PartitionStatus, target: PartitionStatus) -> bool:
    return current in ALLOWED_FROM[target]
