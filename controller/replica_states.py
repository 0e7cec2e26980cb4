"""The replica's states and the allowed transitions (CTL-4, Kafka's ReplicaStateMachine). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType


class ReplicaState(Enum):
    """New: created, not announced yet. Online: told to lead or follow. Offline: its broker is gone or told to stop. Others: deletion."""

    NON_EXISTENT = "NonExistentReplica"
    NEW = "NewReplica"
    ONLINE = "OnlineReplica"
    OFFLINE = "OfflineReplica"
    DELETION_STARTED = "ReplicaDeletionStarted"
    DELETION_SUCCESSFUL = "ReplicaDeletionSuccessful"
    DELETION_INELIGIBLE = "ReplicaDeletionIneligible"


ALLOWED_FROM: Mapping[ReplicaState, frozenset[ReplicaState]] = MappingProxyType(
    {
        ReplicaState.NEW: frozenset({ReplicaState.NON_EXISTENT}),
        ReplicaState.ONLINE: frozenset(
            {ReplicaState.NEW, ReplicaState.ONLINE, ReplicaState.OFFLINE, ReplicaState.DELETION_INELIGIBLE}
        ),
        ReplicaState.OFFLINE: frozenset(
            {ReplicaState.NEW, ReplicaState.ONLINE, ReplicaState.OFFLINE, ReplicaState.DELETION_INELIGIBLE}
        ),
        ReplicaState.DELETION_STARTED: frozenset({ReplicaState.OFFLINE}),
        ReplicaState.DELETION_SUCCESSFUL: frozenset({ReplicaState.DELETION_STARTED}),
        ReplicaState.DELETION_INELIGIBLE: frozenset({ReplicaState.OFFLINE, ReplicaState.DELETION_STARTED}),
        ReplicaState.NON_EXISTENT: frozenset({ReplicaState.DELETION_SUCCESSFUL}),
    }
)
"""target -> the states from which it may be reached."""


def may_become(current: ReplicaState, target: ReplicaState) -> bool:
    return current in ALLOWED_FROM[target]
