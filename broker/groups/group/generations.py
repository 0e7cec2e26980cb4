"""The generations of one group: its state, and the steps from one generation to the next (CLI-2, INV-24). Pure.

`states` has the transition table. A rebalance has two halves: members gather (`Gathering`), then the leader's assignment is stored
(`Assignment`). Nothing waits in here: a request that must wait is a ticket in its member, and `advance` checks the deadlines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from broker.groups.group.consumer_protocol import CONSUMER_PROTOCOL_TYPE, topics_of_all
from broker.groups.group.members import EXPIRY_LOOK_S, NEVER, NEW_MEMBER_TIMEOUT_S, Member, Members
from broker.groups.group.messages import (
    NO_MEMBER,
    GroupMetadata,
    GroupSettings,
    JoinAnswer,
    JoinedMember,
    JoinRequest,
    SyncAnswer,
)
from broker.groups.group.outbox import Outbox
from broker.groups.group.states import Cause, GroupState, next_state
from protocol.errors import ErrorCode

ABSENT_MEMBERS_RETRY_S = 1.0
"""Minimum time to wait again when only static members are left, and none has rejoined."""

TransitionListener = Callable[[GroupState, Cause, GroupState], None]
"""Called after each transition: from, why, to."""


@dataclass(slots=True)
class Gathering:
    """The first half of a rebalance, until `ends_s` at the latest. If it is `delayed`, because the group was Empty, it never ends earlier.

    The delay (`group.initial.rebalance.delay.ms`) is repeated while new members join, until `remaining_s` is used up.
    """

    ends_s: float = NEVER
    delayed: bool = False
    remaining_s: float = 0.0
    member_came: bool = False


@dataclass(slots=True)
class Assignment:
    """The leader's assignment, while it is being stored under `number`."""

    number: int
    by_member: Mapping[str, bytes]


@dataclass(slots=True)
class Moment:
    """The time of the event that is being handled: monotonic seconds, and wall clock milliseconds."""

    now_s: float = 0.0
    wall_ms: int = -1

    def set(self, now_s: float, wall_ms: int) -> None:
        self.now_s, self.wall_ms = now_s, wall_ms


class Generations:
    """`number` is the current generation. `state_since_ms`: by the wall clock; -1 before the first transition, or if not known."""

    def __init__(
        self,
        settings: GroupSettings,
        members: Members,
        outbox: Outbox,
        at: Moment,
        on_transition: TransitionListener | None,
    ) -> None:
        self.state = GroupState.EMPTY
        self.number = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.state_since_ms = -1
        self.subscribed_topics: frozenset[str] | None = None
        """The topics of the current generation. None: not consumers, no generation yet, or a subscription that cannot be read."""
        self._settings = settings
        self._members = members
        self._outbox = outbox
        self._at = at
        self._on_transition = on_transition
        self._gathering = Gathering()
        self._assignment: Assignment | None = None
        self._syncs_due_s = NEVER

    def restore(self, metadata: GroupMetadata) -> None:
        """Called after the stored members were added. The state becomes Stable, or stays Empty without members."""
        self.number = metadata.generation
        self.protocol_type = metadata.protocol_type or None
        self.protocol_name = metadata.protocol_name
        self.state_since_ms = metadata.state_since_ms
        if len(self._members):
            self.protocol_name = metadata.protocol_name or ""
            self.state = GroupState.STABLE
        self.subscribed_topics = self._topics_of_members()
        if len(self._members) > self._settings.max_size:
            self.start_rebalance(Cause.OVER_CAPACITY)

    # -- the first half: members gather -------------------------------------------------------------------------------

    def add_member(self, request: JoinRequest, member_id: str, ticket: int) -> None:
        """Adds a new member. Its JoinGroup waits for the next generation."""
        member = Member.joining(request, member_id)
        member.session_ends_s = self._at.now_s + NEW_MEMBER_TIMEOUT_S
        members = self._members
        members.next_expiry_s = min(members.next_expiry_s, member.session_ends_s)
        if not len(members):
            self.protocol_type = request.protocol_type
        members.add(member)
        members.start_joining(member, ticket)
        if self.state is not GroupState.PREPARING_REBALANCE:
            self.start_rebalance(Cause.MEMBER_JOINED)
        elif self.number == 0:
            self._gathering.member_came = True

    def rejoin(self, member: Member, request: JoinRequest, ticket: int) -> None:
        """The member's new JoinGroup waits. The member gets its protocols and time-outs."""
        self._members.change_protocols(member, request.protocols)
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        earlier = self._members.start_joining(member, ticket)
        if earlier is not None:
            # The client has sent another JoinGroup and does not read this answer (Kafka drops it). A client that reads it retries.
            self._outbox.refuse_join(earlier, ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)

    def start_rebalance(self, cause: Cause) -> None:
        """All members must join again. Waiting SyncGroups are answered; heartbeats inform the other members."""
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

    def settle(self) -> None:
        """Called at the end of each event. Starts the next generation if all members have joined, or the time is up."""
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
        """The next generation has the members that joined, and all static members, which may be away for a while."""
        for member in list(self._members.by_id.values()):
            if member.join_ticket is None and member.instance_id is None:
                self._members.remove(member.member_id)
        if not len(self._members):
            self._become_empty()
        elif not self._members.elect_joined_leader():
            retry_s = max(self._members.rebalance_timeout_s(), ABSENT_MEMBERS_RETRY_S)
            self._gathering = Gathering(self._at.now_s + retry_s)
            self._move(Cause.NOBODY_JOINED)
        else:
            self._start_generation(cause)

    def _become_empty(self) -> None:
        self.number += 1
        self.protocol_name = None
        self.subscribed_topics = self._topics_of_members()
        self._members.find_next_expiry()
        self._move(Cause.NOBODY_LEFT)
        # A failure is harmless: after a load the members of the earlier generation would expire.
        self.store({})

    # -- the second half: the leader assigns --------------------------------------------------------------------------

    def _start_generation(self, cause: Cause) -> None:
        members = self._members
        self.number += 1
        self.protocol_name = members.select_protocol()
        self.subscribed_topics = self._topics_of_members()
        self._move(cause)
        self._syncs_due_s = self._at.now_s + members.rebalance_timeout_s()
        for member in members.by_id.values():
            member.is_new = False
            member.sync_due = True
            members.assign(member, b"")
            ticket = members.stop_joining(member)
            if ticket is not None:
                self._outbox.answer_join(ticket, self.joined(member))
            members.touch(member, self._at.now_s)

    def sync(self, member: Member, assignments: Mapping[str, bytes], ticket: int) -> None:
        """A member requests its assignment. The leader's request contains the assignments of all members."""
        member.sync_due = False
        if self.state is GroupState.STABLE:
            self._outbox.answer_sync(ticket, self._assigned(member))
            self._members.touch(member, self._at.now_s)
            return
        if member.sync_ticket is not None:
            self._outbox.answer_sync(member.sync_ticket, SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS))
        member.sync_ticket = ticket
        if member.member_id == self._members.leader and self._assignment is None:
            # A second assignment is ignored while the first is being stored: members could follow different ones.
            by_member = {member_id: assignments.get(member_id, b"") for member_id in self._members.by_id}
            self._assignment = Assignment(self.store(by_member), by_member)

    def stored(self, number: int, error: ErrorCode) -> None:
        """The outcome of a store. Irrelevant unless the group still waits for exactly this store."""
        assignment = self._assignment
        if assignment is None or assignment.number != number:
            return
        if error is not ErrorCode.NONE:
            self._answer_syncs(error)
            self.start_rebalance(Cause.ASSIGNMENT_NOT_STORED)
            return
        self._assignment = None
        for member in self._members.by_id.values():
            self._members.assign(member, assignment.by_member[member.member_id])
        self._move(Cause.ASSIGNMENT_STORED)
        self._answer_syncs(ErrorCode.NONE)

    def _answer_syncs(self, error: ErrorCode) -> None:
        """Answers waiting SyncGroups. Their members' sessions start again; the other sessions continue."""
        for member in self._members.by_id.values():
            if error is not ErrorCode.NONE:
                self._members.assign(member, b"")
            if member.sync_ticket is not None:
                answer = self._assigned(member) if error is ErrorCode.NONE else SyncAnswer(error)
                self._outbox.answer_sync(member.sync_ticket, answer)
                member.sync_ticket = None
                self._members.touch(member, self._at.now_s)

    # -- time ---------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When `advance` next has something to do, in monotonic seconds; None: never."""
        deadline_s = min(self._members.next_expiry_s, self._syncs_due_s)
        if self.state is GroupState.PREPARING_REBALANCE:
            deadline_s = min(deadline_s, self._gathering.ends_s)
        return None if deadline_s == NEVER else deadline_s

    def advance(self) -> None:
        """Removes pending ids, members whose sessions have ended, and members whose SyncGroups are overdue."""
        now_s = self._at.now_s
        if now_s >= self._members.next_expiry_s:
            self._expire_sessions(now_s)
        if now_s >= self._syncs_due_s:
            self._expire_syncs()

    def _expire_sessions(self, now_s: float) -> None:
        self._members.expire_pending(now_s)
        for member in self._members.expired(now_s):
            # The removal of an earlier member may have started a rebalance, which answers this member and restarts its session.
            if member.expires_s() <= now_s:
                self.remove_member(member, Cause.SESSION_ENDED)
        self._members.find_next_expiry(now_s + EXPIRY_LOOK_S)

    def _expire_syncs(self) -> None:
        """Removes members that joined and sent no SyncGroup (KAFKA-9752), in Stable too."""
        self._syncs_due_s = NEVER
        for member in [member for member in self._members.by_id.values() if member.sync_due]:
            self.remove_member(member, Cause.SYNC_TIMED_OUT)

    # -- members that leave, and the end ------------------------------------------------------------------------------

    def remove_member(self, member: Member, cause: Cause) -> None:
        self.stop_waiting(member, ErrorCode.UNKNOWN_MEMBER_ID)
        self._members.remove(member.member_id)
        if self.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self.start_rebalance(cause)

    def stop_waiting(self, member: Member, error: ErrorCode) -> None:
        """Answers the member's waiting requests."""
        ticket = self._members.stop_joining(member)
        if ticket is not None:
            member_id = NO_MEMBER if error is ErrorCode.UNKNOWN_MEMBER_ID else member.member_id
            self._outbox.refuse_join(ticket, error, member_id)
        if member.sync_ticket is not None:
            self._outbox.answer_sync(member.sync_ticket, SyncAnswer(error))
            member.sync_ticket = None

    def end(self, cause: Cause, error: ErrorCode) -> None:
        """Answers all waiting members with `error`. The group is then Dead and does nothing any more."""
        if self.state is not GroupState.DEAD:
            for member in self._members.by_id.values():
                self.stop_waiting(member, error)
            self._members.clear()
            self._assignment = None
            self._syncs_due_s = NEVER
            self._move(cause)

    # -- parts --------------------------------------------------------------------------------------------------------

    def joined(self, member: Member) -> JoinAnswer:
        """The member's JoinGroup answer for the current generation."""
        leader = self._members.leader or NO_MEMBER
        roster = self._members.by_id.values() if member.member_id == leader else ()
        return JoinAnswer(
            ErrorCode.NONE,
            member.member_id,
            self.number,
            self.protocol_type,
            self.protocol_name,
            leader,
            members=tuple(
                JoinedMember(other.member_id, other.instance_id, other.metadata(self.protocol_name)) for other in roster
            ),
        )

    def store(self, assignments: Mapping[str, bytes]) -> int:
        """Stores the group with these assignments; other members keep theirs. Returns the number of the store."""
        return self._outbox.store(self.metadata(assignments, self.state_since_ms))

    def metadata(self, assignments: Mapping[str, bytes], since_ms: int) -> GroupMetadata:
        return GroupMetadata(
            self.protocol_type or "",
            self.number,
            self.protocol_name,
            self._members.leader,
            since_ms,
            tuple(
                member.stored(self.protocol_name, assignments.get(member.member_id, member.assignment))
                for member in self._members.by_id.values()
            ),
        )

    def _assigned(self, member: Member) -> SyncAnswer:
        return SyncAnswer(ErrorCode.NONE, member.assignment, self.protocol_type, self.protocol_name)

    def _move(self, cause: Cause) -> None:
        before, self.state = self.state, next_state(self.state, cause)
        if self.state is not before:
            self.state_since_ms = self._at.wall_ms
        if self._on_transition is not None:
            self._on_transition(before, cause, self.state)

    def _topics_of_members(self) -> frozenset[str] | None:
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return None
        return topics_of_all(member.metadata(self.protocol_name) for member in self._members.by_id.values())
