"""How one classic consumer group comes to its next generation: states, times, waiting requests, stores (CLI-2, INV-24). Pure.

`group_transitions` has the table of the states; `group_state.Group` adds the requests. Nothing waits in here: what has to (a
JoinGroup, a SyncGroup, a time-out) is written down in the members, and `advance` looks at the times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from broker.groups.group.consumer_protocol import CONSUMER_PROTOCOL_TYPE, topics_of_all
from broker.groups.group.members import NEVER, Member, Members
from broker.groups.group.messages import (
    NO_MEMBER,
    AnswerJoin,
    AnswerSync,
    DescribedMember,
    Effect,
    GroupDescription,
    GroupMetadata,
    GroupSettings,
    JoinAnswer,
    JoinedMember,
    Store,
    SyncAnswer,
)
from broker.groups.group.states import Cause, GroupState, next_state
from protocol.errors import ErrorCode

ABSENT_MEMBERS_RETRY_S = 1.0
"""The least time between two looks at whether the static members that are away have come back."""

EXPIRY_LOOK_S = 0.05
"""The least time between two looks at all members' sessions, so that many that end one after the other are few looks."""

EXPIRED_AT_ONCE = 500
"""Members whose sessions end in one look; the others at the next."""

Watch = Callable[[GroupState, Cause, GroupState], None]
"""Told of each transition: from, why, to."""


@dataclass(slots=True)
class Gathering:
    """PreparingRebalance ends at `ends_s` at the latest; the first one of an empty group (`delayed`) also at the earliest.

    That delay begins again while new members come, as long as there is time left of `remaining_s`
    (`group.initial.rebalance.delay.ms`).
    """

    ends_s: float = NEVER
    delayed: bool = False
    remaining_s: float = 0.0
    member_came: bool = False


@dataclass(slots=True)
class Assignment:
    """The leader's, while it is being stored."""

    number: int
    by_member: Mapping[str, bytes]


@dataclass(slots=True)
class Moment:
    """The time of the event that is being handled: monotonic seconds, and wall clock milliseconds."""

    now_s: float = 0.0
    wall_ms: int = -1


class Generations:
    """`state_since_ms`: wall clock, -1 before the first transition or if not known."""

    def __init__(self, group_id: str, settings: GroupSettings, *, watch: Watch | None = None) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.state_since_ms = -1
        self._settings = settings
        self._watch = watch
        self._members = Members()
        self._effects: list[Effect] = []
        self._stores = 0
        self._gathering = Gathering()
        self._syncs_due_s = NEVER
        self._expiry_s = NEVER
        """No member's session ends, and no pending id is forgotten, before that."""
        self._assignment: Assignment | None = None
        self._topics: frozenset[str] | None = None
        self._at = Moment()

    # -- what it is

    @property
    def members(self) -> Mapping[str, Member]:
        return self._members.by_id

    @property
    def leader(self) -> str | None:
        return self._members.leader

    @property
    def pending_members(self) -> int:
        """How many ids were given out whose owners have not joined yet (KIP-394)."""
        return len(self._members.pending)

    @property
    def memory_bytes(self) -> int:
        """What its members take in memory, roughly."""
        return self._members.bytes

    def is_pending(self, member_id: str) -> bool:
        """Was it given out, and is not used yet?"""
        return member_id in self._members.pending

    def snapshot(self, wall_ms: int) -> GroupMetadata:
        """As it would be stored now."""
        since_ms = self.state_since_ms if self.state_since_ms >= 0 else wall_ms
        return self._metadata({}, since_ms)

    def subscribed_topics(self) -> frozenset[str] | None:
        """Of the current generation. None: not consumers, no generation yet, or a subscription that cannot be read."""
        return self._topics

    def is_subscribed(self, topic: str) -> bool:
        """True if that is not known, to be on the safe side (KIP-496)."""
        return self._topics is None or topic in self._topics

    def describe(self) -> GroupDescription:
        stable = self.state is GroupState.STABLE
        return GroupDescription(
            ErrorCode.NONE,
            self.group_id,
            self.state.value,
            self.protocol_type or "",
            (self.protocol_name or "") if stable else "",
            tuple(
                DescribedMember(
                    member.member_id,
                    member.instance_id,
                    member.client_id,
                    member.client_host,
                    member.metadata(self.protocol_name) if stable else b"",
                    member.assignment if stable else b"",
                )
                for member in self.members.values()
            ),
        )

    # -- the two halves of a rebalance

    def _prepare(self, cause: Cause) -> None:
        """All have to join again: those that wait for an assignment are told, the others hear it in their heartbeats."""
        timeout_s = self._members.rebalance_timeout_s()
        if self.state is GroupState.COMPLETING_REBALANCE:
            self._answer_syncs(ErrorCode.REBALANCE_IN_PROGRESS)
        self._assignment = None
        self._syncs_due_s = NEVER
        if self.state is GroupState.EMPTY:
            delay_s = self._settings.initial_rebalance_delay_ms / 1000
            remaining_s = max(timeout_s - delay_s, 0.0)
            self._gathering = Gathering(self._at.now_s + delay_s, delayed=True, remaining_s=remaining_s)
        else:
            self._gathering = Gathering(self._at.now_s + timeout_s)
        self._move(cause)

    def _settle(self) -> None:
        """Go on to the next generation if all have joined, or the time is up."""
        gathering = self._gathering
        while self.state is GroupState.PREPARING_REBALANCE:
            if not gathering.delayed and self._members.all_joined():
                self._complete(Cause.ALL_JOINED)
                return
            elif self._at.now_s < gathering.ends_s:
                return
            elif gathering.delayed and gathering.member_came and gathering.remaining_s > 0:
                more_s = min(self._settings.initial_rebalance_delay_ms / 1000, gathering.remaining_s)
                gathering.member_came = False
                gathering.ends_s += more_s
                gathering.remaining_s -= more_s
            else:
                self._complete(Cause.ALL_JOINED if self._members.all_joined() else Cause.JOIN_TIMED_OUT)
                return

    def _complete(self, cause: Cause) -> None:
        """The next generation, of those that have joined, and of the static members, which may be away for a while."""
        for member in list(self.members.values()):
            if member.join_ticket is None and member.instance_id is None:
                self._members.remove(member.member_id)
        if not len(self._members):
            self._become_empty()
        elif not self._members.elect_joined_leader():
            retry_s = max(self._members.rebalance_timeout_s(), ABSENT_MEMBERS_RETRY_S)
            self._gathering = Gathering(self._at.now_s + retry_s)
            self._move(Cause.NOBODY_JOINED)
        else:
            self._begin_generation(cause)

    def _become_empty(self) -> None:
        self.generation += 1
        self.protocol_name = None
        self._topics = self._topics_of_members()
        self._expiry_s = self._first_expiry_s()
        self._move(Cause.NOBODY_LEFT)
        # Whether that succeeds is of no weight: loaded again, the members of before would run into their time-outs.
        self._store({})

    def _begin_generation(self, cause: Cause) -> None:
        self.generation += 1
        self.protocol_name = self._members.select_protocol()
        self._topics = self._topics_of_members()
        self._move(cause)
        self._syncs_due_s = self._at.now_s + self._members.rebalance_timeout_s()
        for member in self.members.values():
            member.is_new = False
            member.sync_due = True
            self._members.assign(member, b"")
            ticket = self._members.stop_joining(member)
            if ticket is not None:
                self._effects.append(AnswerJoin(ticket, self._joined(member)))
            self._touch(member)

    def _assignment_stored(self, assignment: Assignment, error: ErrorCode) -> None:
        if error is not ErrorCode.NONE:
            self._answer_syncs(error)
            self._prepare(Cause.ASSIGNMENT_NOT_STORED)
            return
        self._assignment = None
        for member in self.members.values():
            self._members.assign(member, assignment.by_member[member.member_id])
        self._move(Cause.ASSIGNMENT_STORED)
        self._answer_syncs(ErrorCode.NONE)

    # -- time

    def next_deadline(self) -> float | None:
        """Monotonic seconds: from then on `advance` has something to do. A heartbeat only moves it later, and not at once."""
        deadline_s = min(self._expiry_s, self._syncs_due_s)
        if self.state is GroupState.PREPARING_REBALANCE:
            deadline_s = min(deadline_s, self._gathering.ends_s)
        return None if deadline_s == NEVER else deadline_s

    def advance(self, now_s: float, wall_ms: int) -> list[Effect]:
        """Whatever is due by now."""
        self._at = Moment(now_s, wall_ms)
        if now_s >= self._expiry_s:
            self._expire()
        if now_s >= self._syncs_due_s:
            self._expire_syncs()
        return self._settled()

    def _expire(self) -> None:
        now_s = self._at.now_s
        for member_id in [name for name, pending in self._members.pending.items() if pending.until_s <= now_s]:
            self._members.remove(member_id)
        expired = [member for member in self.members.values() if member.expires_s() <= now_s]
        for member in expired[:EXPIRED_AT_ONCE]:
            # To remove the one before may have begun a rebalance, and answered, and so woken, this one.
            if member.expires_s() <= now_s:
                self._remove_member(member, Cause.SESSION_ENDED)
        self._expiry_s = max(self._first_expiry_s(), now_s + EXPIRY_LOOK_S)

    def _first_expiry_s(self) -> float:
        sessions_s = min((member.expires_s() for member in self.members.values()), default=NEVER)
        return min(sessions_s, min((pending.until_s for pending in self._members.pending.values()), default=NEVER))

    def _expire_syncs(self) -> None:
        """Members that joined and then did not ask for their assignment go (KAFKA-9752), in Stable too."""
        self._syncs_due_s = NEVER
        for member in [member for member in self.members.values() if member.sync_due]:
            self._remove_member(member, Cause.SYNC_TIMED_OUT)

    # -- members that go, and the end

    def _remove_member(self, member: Member, cause: Cause) -> None:
        self._stop_waiting(member, ErrorCode.UNKNOWN_MEMBER_ID)
        self._members.remove(member.member_id)
        if self.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self._prepare(cause)

    def unload(self, error: ErrorCode = ErrorCode.NOT_COORDINATOR) -> list[Effect]:
        """The partition is lost: all who wait are told `error`, and from now on nothing is done."""
        return self._die(Cause.UNLOADED, error)

    def kill(self) -> list[Effect]:
        """The group is deleted."""
        return self._die(Cause.DELETED, ErrorCode.UNKNOWN_MEMBER_ID)

    def _die(self, cause: Cause, error: ErrorCode) -> list[Effect]:
        if self.state is not GroupState.DEAD:
            for member in self.members.values():
                self._stop_waiting(member, error)
            self._members = Members()
            self._assignment = None
            self._expiry_s = self._syncs_due_s = NEVER
            self._move(cause)
        return self._settled()

    # -- small parts

    def _touch(self, member: Member) -> None:
        ends_s = member.touch(self._at.now_s)
        if ends_s < self._expiry_s:
            self._expiry_s = ends_s

    def _move(self, cause: Cause) -> None:
        before, self.state = self.state, next_state(self.state, cause)
        if self.state is not before:
            self.state_since_ms = self._at.wall_ms
        if self._watch is not None:
            self._watch(before, cause, self.state)

    def _settled(self) -> list[Effect]:
        self._settle()
        effects, self._effects = self._effects, []
        return effects

    def _stop_waiting(self, member: Member, error: ErrorCode) -> None:
        ticket = self._members.stop_joining(member)
        if ticket is not None:
            self._refuse_join(ticket, error, NO_MEMBER if error is ErrorCode.UNKNOWN_MEMBER_ID else member.member_id)
        if member.sync_ticket is not None:
            self._effects.append(AnswerSync(member.sync_ticket, SyncAnswer(error)))
            member.sync_ticket = None

    def _answer_syncs(self, error: ErrorCode) -> None:
        """Those who wait, who are alive until now; others have their session's time left."""
        for member in self.members.values():
            if error is not ErrorCode.NONE:
                self._members.assign(member, b"")
            if member.sync_ticket is not None:
                answer = self._assigned(member) if error is ErrorCode.NONE else SyncAnswer(error)
                self._effects.append(AnswerSync(member.sync_ticket, answer))
                member.sync_ticket = None
                self._touch(member)

    def _refuse_join(self, ticket: int, error: ErrorCode, member_id: str = NO_MEMBER) -> None:
        self._effects.append(AnswerJoin(ticket, JoinAnswer(error, member_id)))

    def _joined(self, member: Member) -> JoinAnswer:
        """The current generation, as this member is told of it."""
        leader = self.leader or NO_MEMBER
        roster = self.members.values() if member.member_id == leader else ()
        return JoinAnswer(
            ErrorCode.NONE,
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol_name,
            leader,
            members=tuple(
                JoinedMember(other.member_id, other.instance_id, other.metadata(self.protocol_name)) for other in roster
            ),
        )

    def _assigned(self, member: Member) -> SyncAnswer:
        return SyncAnswer(ErrorCode.NONE, member.assignment, self.protocol_type, self.protocol_name)

    def _store(self, assignments: Mapping[str, bytes]) -> int:
        self._stores += 1
        self._effects.append(Store(self._stores, self._metadata(assignments, self.state_since_ms)))
        return self._stores

    def _metadata(self, assignments: Mapping[str, bytes], since_ms: int) -> GroupMetadata:
        """With the assignments that are given, else those that the members have."""
        return GroupMetadata(
            self.protocol_type or "",
            self.generation,
            self.protocol_name,
            self.leader,
            since_ms,
            tuple(
                member.stored(self.protocol_name, assignments.get(member.member_id, member.assignment))
                for member in self.members.values()
            ),
        )

    def _topics_of_members(self) -> frozenset[str] | None:
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return None
        return topics_of_all(member.metadata(self.protocol_name) for member in self.members.values())
