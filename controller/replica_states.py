"""The replica's states and the transitions that are allowed (CTL-4, Kafka's ReplicaStateMachine). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType


class ReplicaState(Enum):
    """New: made, not told yet. Online: told to lead or follow. Offline: its broker is gone or told to stop. The rest: deletion."""

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
"""target -> the states it may be reached from."""


def may_become(current: ReplicaState, target: ReplicaState) -> bool:
    return current in ALLOWED_FROM[target]
