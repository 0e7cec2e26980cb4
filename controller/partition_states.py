"""The partition's states and the allowed transitions (CTL-4, Kafka's PartitionStateMachine). Pure.

NonExistent -> New -> Online <-> Offline -> NonExistent
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType


class PartitionState(Enum):
    """NonExistent: never created, or deleted. New: has replicas, no leader yet. Online: has a leader. Offline: lost its leader."""

    NON_EXISTENT = "NonExistentPartition"
    NEW = "NewPartition"
    ONLINE = "OnlinePartition"
    OFFLINE = "OfflinePartition"


ALLOWED_FROM: Mapping[PartitionState, frozenset[PartitionState]] = MappingProxyType(
    {
        PartitionState.NON_EXISTENT: frozenset({PartitionState.OFFLINE}),
        PartitionState.NEW: frozenset({PartitionState.NON_EXISTENT}),
        PartitionState.ONLINE: frozenset({PartitionState.NEW, PartitionState.ONLINE, PartitionState.OFFLINE}),
        PartitionState.OFFLINE: frozenset({PartitionState.NEW, PartitionState.ONLINE, PartitionState.OFFLINE}),
    }
)
"""target -> the states from which it may be reached."""


def may_become(current: PartitionState, target: PartitionState) -> bool:
    return current in ALLOWED_FROM[target]
