"""One classic consumer group: members' requests and times go in, answers and stores come out (CLI-2, INV-24). Pure.

`Group` checks each request and hands it to its parts: `Members`, `Generations` (the state, and the steps to the next generation),
`StaticReplacements` (static members that rejoin). Effects collect in the `Outbox`. Every ticket is answered exactly once.

INV-24, in one generation each partition has one owner:
- nobody receives an assignment before it is stored below the high watermark;
- only the leader's first assignment of a generation counts;
- SyncGroup, Heartbeat and OffsetCommit with another generation, or with an id that no member has now, are refused. Only an Empty
  group accepts commits without a generation: nobody owns its partitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from broker.groups.group.generations import Generations, Moment, TransitionListener
from broker.groups.group.limits import (
    GROUP_BYTES_MAX,
    MEMBERS_MAX,
    PENDING_IS_OLD_S,
    PENDING_OF_A_GROUP,
    complaint,
    protocols_bytes,
)
from broker.groups.group.members import Member, Members
from broker.groups.group.messages import (
    NO_MEMBER,
    DescribedMember,
    Effect,
    GroupDescription,
    GroupMetadata,
    GroupSettings,
    JoinRequest,
    LeavingMember,
    SyncAnswer,
    SyncRequest,
)
from broker.groups.group.outbox import Outbox
from broker.groups.group.states import Cause, GroupState
from broker.groups.group.static_members import StaticReplacements
from protocol.errors import ErrorCode


def gets_only_an_id(request: JoinRequest) -> bool:
    """True for a new dynamic member: the answer has its id, and it joins again with that id (KIP-394)."""
    return request.member_id == NO_MEMBER and request.instance_id is None and request.needs_member_id


class Group:
    """One group; `docs/GROUPS.md` explains the protocol."""

    def __init__(
        self, group_id: str, settings: GroupSettings, *, on_transition: TransitionListener | None = None
    ) -> None:
        self.group_id = group_id
        self._settings = settings
        self._at = Moment()
        self._outbox = Outbox()
        self._members = Members()
        self._generations = Generations(settings, self._members, self._outbox, self._at, on_transition)
        self._replacements = StaticReplacements(self._generations, self._members, self._outbox, self._at)

    @staticmethod
    def restored(
        group_id: str,
        metadata: GroupMetadata,
        settings: GroupSettings,
        now_s: float,
        *,
        on_transition: TransitionListener | None = None,
    ) -> Group:
        """The group as it was stored: Stable, or Empty without members. If it has more than `group.max.size`, a rebalance starts.

        Every member's session starts again.
        """
        group = Group(group_id, settings, on_transition=on_transition)
        group._at.set(now_s, metadata.state_since_ms)
        members = group._members
        for stored in metadata.members:
            # No broker stores two members with the same instance id. If a record has them, the later member counts.
            members.remove(members.of_instance(stored.instance_id) or stored.member_id)
            member = Member.restored(stored, metadata.protocol_name or "")
            members.add(member)
            members.touch(member, now_s)
        if metadata.leader in members.by_id:
            members.leader = metadata.leader
        group._generations.restore(metadata)
        return group

    # -- what it is ---------------------------------------------------------------------------------------------------

    @property
    def state(self) -> GroupState:
        return self._generations.state

    @property
    def is_empty(self) -> bool:
        """Whether it has no members. It may hold offsets."""
        return self.state is GroupState.EMPTY

    @property
    def is_stored(self) -> bool:
        """Whether the log has a record of the group itself: after its first generation."""
        return self.generation > 0

    @property
    def member_count(self) -> int:
        return len(self._members)

    @property
    def state_since_ms(self) -> int:
        """Milliseconds of the wall clock; -1 before the first transition, or if not known."""
        return self._generations.state_since_ms

    @property
    def generation(self) -> int:
        return self._generations.number

    @property
    def protocol_type(self) -> str | None:
        return self._generations.protocol_type

    @property
    def protocol_name(self) -> str | None:
        return self._generations.protocol_name

    @property
    def members(self) -> Mapping[str, Member]:
        return self._members.by_id

    @property
    def leader(self) -> str | None:
        return self._members.leader

    @property
    def pending_members(self) -> int:
        """Number of member ids that were given out and are not used yet (KIP-394)."""
        return len(self._members.pending)

    @property
    def memory_bytes(self) -> int:
        """Approximate bytes of the members in memory."""
        return self._members.bytes

    def is_pending(self, member_id: str) -> bool:
        """True if the id was given out, and is not used yet."""
        return member_id in self._members.pending

    def subscribed_topics(self) -> frozenset[str] | None:
        """The topics of the current generation. None: not consumers, no generation yet, or a subscription that cannot be read."""
        return self._generations.subscribed_topics

    def is_subscribed(self, topic: str) -> bool:
        """True if a member subscribes to the topic, or if the topics are not known (KIP-496)."""
        topics = self._generations.subscribed_topics
        return topics is None or topic in topics

    def snapshot(self, wall_ms: int) -> GroupMetadata:
        """The group as it would be stored now."""
        since_ms = self.state_since_ms if self.state_since_ms >= 0 else wall_ms
        return self._generations.metadata({}, since_ms)

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

    # -- JoinGroup ----------------------------------------------------------------------------------------------------

    def join(self, request: JoinRequest, ticket: int, now_s: float, wall_ms: int) -> list[Effect]:
        self._at.set(now_s, wall_ms)
        error = self.refusal(request)
        if error is ErrorCode.GROUP_MAX_SIZE_REACHED:
            # The group is full: others have taken the place of this member, or its metadata has become too large.
            self._members.forget_pending(request.member_id)
            if request.member_id in self.members:
                self._generations.remove_member(self.members[request.member_id], Cause.MEMBER_LEFT)
            self._outbox.refuse_join(ticket, error)
        elif error is not ErrorCode.NONE:
            self._outbox.refuse_join(ticket, error, request.member_id)
        elif request.member_id == NO_MEMBER:
            self._join_new(request, ticket)
        elif request.member_id in self._members.pending and request.instance_id is None:
            self._generations.add_member(request, request.member_id, ticket)
        else:
            self._join_again(request, ticket)
        return self._settled()

    def refusal(self, request: JoinRequest) -> ErrorCode:
        """Why the group does not take the request; NONE if it does. The checks that new and old members share (BAD-32)."""
        if not self._settings.min_session_ms <= request.session_timeout_ms <= self._settings.max_session_ms:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if complaint(request):
            return ErrorCode.INVALID_REQUEST
        if not self._has_room_for(request):
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        if self.state is GroupState.EMPTY:
            consistent = bool(request.protocol_type) and bool(request.protocols)
        else:
            consistent = request.protocol_type == self.protocol_type and self._members.support_any(request.protocols)
        return ErrorCode.NONE if consistent else ErrorCode.INCONSISTENT_GROUP_PROTOCOL

    def _has_room_for(self, request: JoinRequest) -> bool:
        """Checks `group.max.size`, MEMBERS_MAX and GROUP_BYTES_MAX. In PreparingRebalance only members that have joined count, so
        the last to rejoin are refused.

        A static member that rejoins takes its own place (Kafka refuses it in a full group), unless others have filled the group in
        PreparingRebalance. There are at most as many unused member ids as members are allowed, or PENDING_OF_A_GROUP if that is more
        (Kafka has no limit). At that limit, ids that were given out more than PENDING_IS_OLD_S ago are dropped.
        """
        members = self._members
        size_max = min(self._settings.max_size, MEMBERS_MAX)
        member = self._known_member(request)
        growth = self.growth(request)
        if growth > 0 and members.bytes + growth > GROUP_BYTES_MAX:
            return False
        if self.state is GroupState.PREPARING_REBALANCE:
            if member is not None and member.join_ticket is not None:
                return True
            size = members.joining
            if member is None and len(members) >= 2 * size_max:
                return False  # static members are away, and others have taken their places
        elif member is not None:
            return True
        else:
            size = len(members)
        if gets_only_an_id(request):
            pending_max = max(size_max, PENDING_OF_A_GROUP)
            given_before_s = self._at.now_s - PENDING_IS_OLD_S
            while len(members.pending) >= pending_max:
                if not members.give_up_oldest_pending(given_before_s):
                    return False
        return size < size_max

    def growth(self, request: JoinRequest) -> int:
        """Approximate bytes that the request would add to the group."""
        if gets_only_an_id(request):
            return 0
        member = self._known_member(request)
        size = Member.joining(request, request.new_member_id).size()
        return size if member is None else protocols_bytes(request.protocols) - protocols_bytes(member.protocols)

    def _known_member(self, request: JoinRequest) -> Member | None:
        return self.members.get(request.member_id or self._members.of_instance(request.instance_id) or NO_MEMBER)

    def _join_new(self, request: JoinRequest, ticket: int) -> None:
        old_id = self._members.of_instance(request.instance_id)
        if old_id is not None:
            self._replacements.replace(self.members[old_id], request, ticket)
        elif gets_only_an_id(request):
            # The client may be gone before the answer reaches it, so the id is not a member yet. It expires unless the client joins.
            until_s = self._at.now_s + request.session_timeout_ms / 1000
            self._members.await_member(request.new_member_id, self._at.now_s, until_s)
            self._outbox.refuse_join(ticket, ErrorCode.MEMBER_ID_REQUIRED, request.new_member_id)
        else:
            self._generations.add_member(request, request.new_member_id, ticket)

    def _join_again(self, request: JoinRequest, ticket: int) -> None:
        generations = self._generations
        error = self._members.check(request.member_id, request.instance_id)
        if error is not ErrorCode.NONE:
            self._outbox.refuse_join(ticket, error, request.member_id)
            return
        member = self.members[request.member_id]
        is_leader = member.member_id == self.leader
        if self.state is GroupState.PREPARING_REBALANCE:
            generations.rejoin(member, request, ticket)
        elif member.protocols != request.protocols:
            generations.rejoin(member, request, ticket)
            generations.start_rebalance(Cause.MEMBER_CHANGED)
        elif self.state is GroupState.STABLE and is_leader:
            # The leader wants to assign again, for instance because a topic has more partitions now.
            generations.rejoin(member, request, ticket)
            generations.start_rebalance(Cause.LEADER_REJOINED)
        else:
            # Most likely the answer to the member's earlier JoinGroup was lost.
            self._outbox.answer_join(ticket, generations.joined(member))

    def forget_pending(self, member_id: str, now_s: float, wall_ms: int) -> list[Effect]:
        """Drops an id that was given out, because the broker has given out too many."""
        self._at.set(now_s, wall_ms)
        self._members.give_up_pending(member_id)
        return self._settled()

    # -- SyncGroup ----------------------------------------------------------------------------------------------------

    def sync(self, request: SyncRequest, ticket: int, now_s: float, wall_ms: int) -> list[Effect]:
        self._at.set(now_s, wall_ms)
        error = self._sync_error(request)
        if error is not ErrorCode.NONE:
            self._outbox.answer_sync(ticket, SyncAnswer(error))
        else:
            self._generations.sync(self.members[request.member_id], request.assignments, ticket)
        return self._settled()

    def _sync_error(self, request: SyncRequest) -> ErrorCode:
        error = self._member_error(request.member_id, request.instance_id, request.generation)
        if error is not ErrorCode.NONE:
            return error
        if request.protocol_type is not None and request.protocol_type != self.protocol_type:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if request.protocol_name is not None and request.protocol_name != self.protocol_name:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if self.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    # -- Heartbeat, OffsetCommit, LeaveGroup --------------------------------------------------------------------------

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now_s: float) -> ErrorCode:
        error = self._member_error(member_id, instance_id, generation)
        if error is ErrorCode.NONE:
            self._at.now_s = now_s
            self._members.touch(self._members.by_id[member_id], now_s)
            if self._generations.state is GroupState.PREPARING_REBALANCE:
                error = ErrorCode.REBALANCE_IN_PROGRESS
        return error

    def check_commit(self, member_id: str, instance_id: str | None, generation: int, now_s: float) -> ErrorCode:
        """NONE if the offsets may be committed. Non-members may commit only while there are no members. An accepted commit of a
        member counts as a heartbeat.
        """
        outsider = generation < 0 and member_id == NO_MEMBER and instance_id is None
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if self.state is GroupState.EMPTY and generation < 0:
            return ErrorCode.NONE
        if outsider:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = self._member_error(member_id, instance_id, generation)
        if error is not ErrorCode.NONE:
            return error
        if self.state is GroupState.COMPLETING_REBALANCE:
            # The member knows the new generation but not its assignment, so it may not own the partitions. It retries after SyncGroup.
            return ErrorCode.REBALANCE_IN_PROGRESS
        self._at.now_s = now_s
        self._members.touch(self.members[member_id], now_s)
        return ErrorCode.NONE

    def check_transactional_commit(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """NONE if the offsets may be committed in a transaction. As in Kafka, requests of old clients have neither member nor
        generation and are accepted in every state, and the commit does not count as a heartbeat.
        """
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        is_outsider = member_id == NO_MEMBER and instance_id is None
        if generation < 0 and (is_outsider or self.state is GroupState.EMPTY):
            return ErrorCode.NONE
        return self._member_error(member_id, instance_id, generation)

    def leave(
        self, members: Sequence[LeavingMember], now_s: float, wall_ms: int
    ) -> tuple[list[ErrorCode], list[Effect]]:
        """Returns one error for each member, in order, and the effects."""
        self._at.set(now_s, wall_ms)
        errors = [self._leave(leaving) for leaving in members]
        return errors, self._settled()

    def _leave(self, leaving: LeavingMember) -> ErrorCode:
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        member_id = leaving.member_id
        if member_id == NO_MEMBER:
            # An administrator removes a static member by its instance id.
            member_id = self._members.of_instance(leaving.instance_id) or NO_MEMBER
        elif member_id in self._members.pending:
            self._members.give_up_pending(member_id)
            return ErrorCode.NONE
        error = self._members.check(member_id, leaving.instance_id)
        if error is ErrorCode.NONE:
            self._generations.remove_member(self.members[member_id], Cause.MEMBER_LEFT)
        return error

    def _member_error(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """NONE if the id is a member's and the generation is the current one (INV-24)."""
        if self._generations.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = self._members.check(member_id, instance_id)
        if error is ErrorCode.NONE and generation != self._generations.number:
            return ErrorCode.ILLEGAL_GENERATION
        return error

    # -- outcomes of stores, time, the end ----------------------------------------------------------------------------

    def stored(self, number: int, error: ErrorCode, now_s: float, wall_ms: int) -> list[Effect]:
        """The outcome of `Store(number)`. Irrelevant if the group does not wait for it any more."""
        self._at.set(now_s, wall_ms)
        if not self._replacements.stored(number, error):
            self._generations.stored(number, error)
        return self._settled()

    def next_deadline(self) -> float | None:
        """When `advance` must be called next, in monotonic seconds; None: never. Heartbeats do not postpone it, so it may be too early."""
        return self._generations.next_deadline()

    def advance(self, now_s: float, wall_ms: int) -> list[Effect]:
        """Does what is due by now."""
        self._at.set(now_s, wall_ms)
        self._generations.advance()
        return self._settled()

    def rebalance(self, now_s: float, wall_ms: int) -> list[Effect]:
        """All members must join again: the group was of the new kind, and its last member of that kind is gone (KIP-848)."""
        self._at.set(now_s, wall_ms)
        if self.state is GroupState.STABLE:
            self._generations.start_rebalance(Cause.MEMBER_LEFT)
        return self._settled()

    def unload(self, error: ErrorCode = ErrorCode.NOT_COORDINATOR) -> list[Effect]:
        """The partition is lost: answers all waiting members with `error`. The group does nothing afterwards."""
        self._generations.end(Cause.UNLOADED, error)
        return self._settled()

    def kill(self) -> list[Effect]:
        """The group is deleted: answers all waiting members with UNKNOWN_MEMBER_ID. The group does nothing afterwards."""
        self._generations.end(Cause.DELETED, ErrorCode.UNKNOWN_MEMBER_ID)
        return self._settled()

    def _settled(self) -> list[Effect]:
        """Ends the handling of an event, and returns its effects."""
        self._generations.settle()
        return self._outbox.take()
