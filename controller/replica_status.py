"""The replica's states and the allowed transitions (CTL-4, Kafka's ReplicaStateMachine). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType


class ReplicaStatus(Enum):
    """New: to be created. Online: leads or follows. Offline: its broker or disk failed, or it was stopped. The others: deletion.

    A replica that a reassignment adds is New until the whole target is in sync.
    """

    NON_EXISTENT = "NonExistentReplica"
    NEW = "NewReplica"
    ONLINE = "OnlineReplica"
    OFFLINE = "OfflineReplica"
    DELETION_STARTED = "ReplicaDeletionStarted"
    DELETION_SUCCESSFUL = "ReplicaDeletionSuccessful"
    DELETION_INELIGIBLE = "ReplicaDeletionIneligible"


ALLOWED_FROM: Mapping[ReplicaStatus, frozenset[ReplicaStatus]] = MappingProxyType(
    {
        ReplicaStatus.NEW: frozenset({ReplicaStatus.NON_EXISTENT}),
        ReplicaStatus.ONLINE: frozenset(
            {ReplicaStatus.NEW, ReplicaStatus.ONLINE, ReplicaStatus.OFFLINE, ReplicaStatus.DELETION_INELIGIBLE}
        ),
        ReplicaStatus.OFFLINE: frozenset(
            {ReplicaStatus.NEW, ReplicaStatus.ONLINE, ReplicaStatus.OFFLINE, ReplicaStatus.DELETION_INELIGIBLE}
        ),
        ReplicaStatus.DELETION_STARTED: frozenset({ReplicaStatus.OFFLINE}),
        ReplicaStatus.DELETION_SUCCESSFUL: frozenset({ReplicaStatus.DELETION_STARTED}),
        ReplicaStatus.DELETION_INELIGIBLE: frozenset({ReplicaStatus.OFFLINE, ReplicaStatus.DELETION_STARTED}),
        ReplicaStatus.NON_EXISTENT: frozenset({ReplicaStatus.DELETION_SUCCESSFUL}),
    }
)
"""target -> the states from which it may be reached."""


def may_become(current: ReplicaStatus, target: ReplicaStatus) -> bool:
    return current in ALLOWED_FROM[target]
