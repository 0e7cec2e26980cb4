"""The states of a classic consumer group, and all transitions between them (Kafka's `GroupState`). Pure.

A rebalance has two halves. In PreparingRebalance the members gather: their JoinGroups wait until all have joined, or the time is up.
In CompletingRebalance the SyncGroups wait until the leader's assignment has arrived and is stored.

| state               | JoinGroup                                   | SyncGroup       | Heartbeat   | OffsetCommit of a member |
|---------------------|---------------------------------------------|-----------------|-------------|--------------------------|
| Empty               | new member: rebalance; else unknown         | unknown         | unknown     | unknown; see below       |
| PreparingRebalance  | waits                                       | in progress     | in progress | accepted                 |
| CompletingRebalance | same metadata: answered; else rebalance     | waits           | accepted    | in progress              |
| Stable              | the same; the leader: always rebalance      | the assignment  | accepted    | accepted                 |
| Dead                | not available                               | not available   | not available | not available          |

rebalance: starts one, and waits; answered: with the current generation; unknown: UNKNOWN_MEMBER_ID; in progress: REBALANCE_IN_PROGRESS;
not available: COORDINATOR_NOT_AVAILABLE. Only an Empty group accepts OffsetCommits without a generation.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType


class GroupState(Enum):
    """The values are the names that clients see."""

    EMPTY = "Empty"
    """No members. It may hold offsets."""
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"
    """Deleted, or this broker gave up the partition. A Dead group stays Dead."""


class Cause(Enum):
    """Why a group's state changes."""

    MEMBER_JOINED = "a member joined"
    MEMBER_CHANGED = "a member joined again with other metadata, or a static member was replaced"
    LEADER_REJOINED = "the leader joined again"
    MEMBER_LEFT = "a member left"
    SESSION_ENDED = "a member was not heard of"
    ALL_JOINED = "all members have joined"
    JOIN_TIMED_OUT = "the time to join is over"
    NOBODY_JOINED = "the time to join is over, and only static members are left, which are away"
    NOBODY_LEFT = "no members are left"
    ASSIGNMENT_STORED = "the leader's assignment is stored"
    ASSIGNMENT_NOT_STORED = "the leader's assignment could not be stored"
    SYNC_TIMED_OUT = "a member did not ask for its assignment"
    OVER_CAPACITY = "it was loaded with more members than are allowed"
    DELETED = "the group was deleted"
    UNLOADED = "its partition is led elsewhere"


_EMPTY, _PREPARING, _COMPLETING, _STABLE, _DEAD = GroupState

TRANSITIONS: Mapping[tuple[GroupState, Cause], GroupState] = MappingProxyType(
    {
        (_EMPTY, Cause.MEMBER_JOINED): _PREPARING,
        (_EMPTY, Cause.DELETED): _DEAD,
        (_EMPTY, Cause.UNLOADED): _DEAD,
        #
        (_PREPARING, Cause.ALL_JOINED): _COMPLETING,
        (_PREPARING, Cause.JOIN_TIMED_OUT): _COMPLETING,
        (_PREPARING, Cause.NOBODY_JOINED): _PREPARING,
        (_PREPARING, Cause.NOBODY_LEFT): _EMPTY,
        (_PREPARING, Cause.DELETED): _DEAD,
        (_PREPARING, Cause.UNLOADED): _DEAD,
        #
        (_COMPLETING, Cause.ASSIGNMENT_STORED): _STABLE,
        (_COMPLETING, Cause.ASSIGNMENT_NOT_STORED): _PREPARING,
        (_COMPLETING, Cause.MEMBER_JOINED): _PREPARING,
        (_COMPLETING, Cause.MEMBER_CHANGED): _PREPARING,
        (_COMPLETING, Cause.MEMBER_LEFT): _PREPARING,
        (_COMPLETING, Cause.SESSION_ENDED): _PREPARING,
        (_COMPLETING, Cause.SYNC_TIMED_OUT): _PREPARING,
        (_COMPLETING, Cause.DELETED): _DEAD,
        (_COMPLETING, Cause.UNLOADED): _DEAD,
        #
        (_STABLE, Cause.MEMBER_JOINED): _PREPARING,
        (_STABLE, Cause.MEMBER_CHANGED): _PREPARING,
        (_STABLE, Cause.LEADER_REJOINED): _PREPARING,
        (_STABLE, Cause.MEMBER_LEFT): _PREPARING,
        (_STABLE, Cause.SESSION_ENDED): _PREPARING,
        (_STABLE, Cause.SYNC_TIMED_OUT): _PREPARING,
        (_STABLE, Cause.OVER_CAPACITY): _PREPARING,
        (_STABLE, Cause.DELETED): _DEAD,
        (_STABLE, Cause.UNLOADED): _DEAD,
    }
)


class IllegalTransition(AssertionError):
    """A bug: `TRANSITIONS` does not have the transition."""


def next_state(state: GroupState, cause: Cause) -> GroupState:
    try:
        return TRANSITIONS[state, cause]
    except KeyError:
        raise IllegalTransition(f"a group in state {state.value} has no transition for: {cause.value}") from None
