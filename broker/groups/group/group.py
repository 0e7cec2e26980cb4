"""One classic consumer group: what its members ask goes in, what they and the log are told comes out (CLI-2, INV-24). Pure.

The table of states is in `group_transitions`, the way from one generation to the next in `group_generations`; here is what
each request may do. Every ticket is answered exactly once.

INV-24, each partition has one owner in a generation: an assignment is told to nobody before it is stored below the high
watermark, only the leader's first one of a generation is taken, and whoever names another generation, or a member id that is
not, or no longer, a member's, is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from broker.groups.group.limits import (
    GROUP_BYTES_MAX,
    MEMBERS_MAX,
    PENDING_IS_OLD_S,
    PENDING_OF_A_GROUP,
    complaint,
    protocols_bytes,
)
from broker.groups.group.members import NEVER, NEW_MEMBER_TIMEOUT_S, Member
from broker.groups.group.messages import (
    NO_MEMBER,
    AnswerJoin,
    AnswerSync,
    Effect,
    GroupMetadata,
    GroupSettings,
    JoinAnswer,
    JoinRequest,
    LeavingMember,
    SyncAnswer,
    SyncRequest,
)
from broker.groups.group.rebalance import Assignment, Generations, Moment, Watch
from broker.groups.group.states import Cause, GroupState
from protocol.errors import ErrorCode


@dataclass(slots=True)
class _Replacement:
    """A static member that came back with a new id while the group was Stable; its JoinGroup waits for that to be stored."""

    member_id: str
    ticket: int
    before: Member
    leader_before: str | None
    can_skip_assignment: bool


def is_first_sent_back(request: JoinRequest) -> bool:
    """It will get an id, and is to join with that (KIP-394)."""
    return request.member_id == NO_MEMBER and request.instance_id is None and request.needs_member_id


class Group(Generations):
    """A group in memory; see `docs/GROUPS.md`."""

    def __init__(self, group_id: str, settings: GroupSettings, *, watch: Watch | None = None) -> None:
        super().__init__(group_id, settings, watch=watch)
        self._replacements: dict[int, _Replacement] = {}
        """By the number of the store that each waits for."""

    @staticmethod
    def restored(
        group_id: str, metadata: GroupMetadata, settings: GroupSettings, now_s: float, *, watch: Watch | None = None
    ) -> Group:
        """As it was stored: Stable, or Empty without members. Every member's session begins anew."""
        group = Group(group_id, settings, watch=watch)
        group.generation = metadata.generation
        group.protocol_type = metadata.protocol_type or None
        group.protocol_name = metadata.protocol_name
        group.state_since_ms = metadata.state_since_ms
        group._at = Moment(now_s, metadata.state_since_ms)
        members = group._members
        for stored in metadata.members:
            # Two holders of an instance id are not written by any broker; of such, the later one has it.
            members.remove(members.of_instance(stored.instance_id) or stored.member_id)
            member = Member.restored(stored, metadata.protocol_name or "")
            members.add(member)
            group._touch(member)
        if metadata.leader in members.by_id:
            members.leader = metadata.leader
        if len(members):
            group.protocol_name = metadata.protocol_name or ""
            group.state = GroupState.STABLE
        group._topics = group._topics_of_members()
        if len(members) > settings.max_size:
            group._prepare(Cause.OVER_CAPACITY)
        return group

    # -- joining

    def join(self, request: JoinRequest, ticket: int, now_s: float, wall_ms: int) -> list[Effect]:
        self._at = Moment(now_s, wall_ms)
        error = self._join_error(request)
        if error is ErrorCode.GROUP_MAX_SIZE_REACHED:
            # Whoever rejoins last when there are too many goes.
            self._members.remove(request.member_id)
            self._refuse_join(ticket, error)
        elif error is not ErrorCode.NONE:
            self._refuse_join(ticket, error, request.member_id)
        elif request.member_id == NO_MEMBER:
            self._join_new(request, ticket)
        elif request.member_id in self._members.pending and request.instance_id is None:
            self._add_member(request, request.member_id, ticket)
        else:
            self._join_again(request, ticket)
        return self._settled()

    def _join_error(self, request: JoinRequest) -> ErrorCode:
        """What is the same for new and old members (BAD-32)."""
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
        """`group.max.size`. While members gather, those that have joined count: the last to rejoin are too many, if any.

        A static member that comes back takes its own place (Kafka refuses it in a full group). Of ids that were given out and not
        used there are as many at the most as of members (in Kafka they are not counted), or PENDING_OF_A_GROUP if that is
        more; one that was not used in PENDING_IS_OLD_S gives way.
        """
        members = self._members
        size_max = min(self._settings.max_size, MEMBERS_MAX)
        member = self.members.get(request.member_id or members.of_instance(request.instance_id) or NO_MEMBER)
        growth = self.growth(request)
        if growth > 0 and members.bytes + growth > GROUP_BYTES_MAX:
            return False
        if self.state is GroupState.PREPARING_REBALANCE:
            if member is not None and member.join_ticket is not None:
                return True
            size = members.joining
            if member is None and len(members) >= 2 * size_max:
                return False  # static members that are away, and others in their places
        elif member is not None:
            return True
        else:
            size = len(members)
        if is_first_sent_back(request):
            pending_max = max(size_max, PENDING_OF_A_GROUP)
            while len(members.pending) >= pending_max and self._forget_old_pending():
                pass
            if len(members.pending) >= pending_max:
                return False
        return size < size_max

    def growth(self, request: JoinRequest) -> int:
        """By how many bytes it would make the group larger, roughly."""
        if is_first_sent_back(request):
            return 0
        member = self.members.get(request.member_id or self._members.of_instance(request.instance_id) or NO_MEMBER)
        size = Member.joining(request, request.new_member_id).size()
        return size if member is None else protocols_bytes(request.protocols) - protocols_bytes(member.protocols)

    def _forget_old_pending(self) -> bool:
        """The oldest id that was given out and is not used, unless it is still fresh."""
        pending = self._members.pending
        oldest = next(iter(pending), None)
        if oldest is None or self._at.now_s - pending[oldest].since_s < PENDING_IS_OLD_S:
            return False
        self._members.forget_pending(oldest)
        return True

    def forget_pending(self, member_id: str, now_s: float, wall_ms: int) -> list[Effect]:
        """An id that was given out is not worth anything any more: there are too many."""
        self._at = Moment(now_s, wall_ms)
        self._members.forget_pending(member_id)
        self._look_whether_empty()
        return self._settled()

    def _look_whether_empty(self) -> None:
        """Without members and pending ids nothing expires."""
        if not self.members and not self._members.pending:
            self._expiry_s = NEVER

    def _join_new(self, request: JoinRequest, ticket: int) -> None:
        old_id = self._members.of_instance(request.instance_id)
        if old_id is not None:
            self._replace_static(self.members[old_id], request, ticket)
        elif is_first_sent_back(request):
            # It may be gone before the answer reaches it; as long as it has no id, nobody waits for its heartbeats.
            forgotten_s = self._at.now_s + request.session_timeout_ms / 1000
            self._members.await_member(request.new_member_id, self._at.now_s, forgotten_s)
            self._expiry_s = min(self._expiry_s, forgotten_s)
            self._refuse_join(ticket, ErrorCode.MEMBER_ID_REQUIRED, request.new_member_id)
        else:
            self._add_member(request, request.new_member_id, ticket)

    def _add_member(self, request: JoinRequest, member_id: str, ticket: int) -> None:
        member = Member.joining(request, member_id)
        member.session_ends_s = self._at.now_s + NEW_MEMBER_TIMEOUT_S
        self._expiry_s = min(self._expiry_s, member.session_ends_s)
        if not len(self._members):
            self.protocol_type = request.protocol_type
        self._members.add(member)
        self._members.start_joining(member, ticket)
        if self.state is not GroupState.PREPARING_REBALANCE:
            self._prepare(Cause.MEMBER_JOINED)
        elif self.generation == 0:
            self._gathering.member_came = True

    def _join_again(self, request: JoinRequest, ticket: int) -> None:
        error = self._members.check(request.member_id, request.instance_id)
        if error is not ErrorCode.NONE:
            self._refuse_join(ticket, error, request.member_id)
            return
        member = self.members[request.member_id]
        is_leader = member.member_id == self.leader
        if self.state is GroupState.PREPARING_REBALANCE:
            self._update(member, request, ticket)
        elif member.protocols != request.protocols:
            self._update(member, request, ticket)
            self._prepare(Cause.MEMBER_CHANGED)
        elif self.state is GroupState.STABLE and is_leader:
            # So it asks for another assignment: of topics that have more partitions now, for instance.
            self._update(member, request, ticket)
            self._prepare(Cause.LEADER_REJOINED)
        else:
            # Most likely the answer to its first JoinGroup was lost.
            self._effects.append(AnswerJoin(ticket, self._joined(member)))

    def _update(self, member: Member, request: JoinRequest, ticket: int) -> None:
        self._members.change_protocols(member, request.protocols)
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        earlier = self._members.start_joining(member, ticket)
        if earlier is not None:
            # It has sent another: nobody reads this answer (Kafka drops it). Should anyone, it is told to try again.
            self._refuse_join(earlier, ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)

    # -- a static member that comes back (KIP-345)

    def _replace_static(self, member: Member, request: JoinRequest, ticket: int) -> None:
        """The same instance, started again, does not know its member id: it gets a new one, and the old one is fenced."""
        leader_before = self.leader
        self._stop_waiting(member, ErrorCode.FENCED_INSTANCE_ID)
        before = replace(member)
        self._members.rename(member, request.new_member_id)
        member.client_id, member.client_host = request.client_id, request.client_host
        member.sync_due = False
        self._update(member, request, ticket)
        if self.state is GroupState.COMPLETING_REBALANCE:
            # The leader may know the old id already, and would assign to that.
            self._prepare(Cause.MEMBER_CHANGED)
        elif self.state is GroupState.STABLE:
            if self._members.select_protocol() != self.protocol_name:
                self._prepare(Cause.MEMBER_CHANGED)
            else:
                number = self._store({})
                self._replacements[number] = _Replacement(
                    member.member_id, ticket, before, leader_before, request.can_skip_assignment
                )

    def _replacement_stored(self, replacement: _Replacement, error: ErrorCode) -> None:
        member = self.members.get(replacement.member_id)
        waits = member is not None and member.join_ticket == replacement.ticket
        if error is not ErrorCode.NONE:
            for later in self._replacements.values():
                if later.before.member_id == replacement.member_id:
                    # Replaced in its turn; should that fail too, the last one that is stored comes back.
                    later.before, later.leader_before = replacement.before, replacement.leader_before
        if member is None or not waits or self.state is not GroupState.STABLE:
            # Answered already, or part of a rebalance, whose outcome will be stored and then answers it.
            return
        self._members.stop_joining(member)
        self._touch(member)
        if error is ErrorCode.NONE:
            answer = self._joined_again(member, replacement)
            self._effects.append(AnswerJoin(replacement.ticket, answer))
        else:
            self._undo_replacement(member, replacement.before)
            self._refuse_join(replacement.ticket, error)

    def _joined_again(self, member: Member, replacement: _Replacement) -> JoinAnswer:
        """The generation goes on. A leader that came back must not assign anew: nobody would be told of it."""
        if replacement.can_skip_assignment:
            answer = self._joined(member)
            return replace(answer, skip_assignment=member.member_id == self.leader)
        # Before KIP-814 that is had by naming it a leader that it is not.
        leader = replacement.leader_before or NO_MEMBER
        return replace(self._joined(member), leader=leader, members=())

    def _undo_replacement(self, member: Member, before: Member) -> None:
        self._members.rename(member, before.member_id)
        self._members.change_protocols(member, before.protocols)
        member.client_id, member.client_host = before.client_id, before.client_host
        member.session_timeout_ms = before.session_timeout_ms
        member.rebalance_timeout_ms = before.rebalance_timeout_ms
        member.sync_due = before.sync_due
        self._touch(member)

    # -- assignments

    def sync(self, request: SyncRequest, ticket: int, now_s: float, wall_ms: int) -> list[Effect]:
        self._at = Moment(now_s, wall_ms)
        error = self._sync_error(request)
        if error is not ErrorCode.NONE:
            self._effects.append(AnswerSync(ticket, SyncAnswer(error)))
            return self._settled()
        member = self.members[request.member_id]
        member.sync_due = False
        if self.state is GroupState.STABLE:
            self._effects.append(AnswerSync(ticket, self._assigned(member)))
            self._touch(member)
            return self._settled()
        if member.sync_ticket is not None:
            self._effects.append(AnswerSync(member.sync_ticket, SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS)))
        member.sync_ticket = ticket
        if member.member_id == self.leader and self._assignment is None:
            # A second one while the first is being stored must not count: which of the two would the members be told?
            by_member = {member_id: request.assignments.get(member_id, b"") for member_id in self.members}
            self._assignment = Assignment(self._store(by_member), by_member)
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

    def stored(self, number: int, error: ErrorCode, now_s: float, wall_ms: int) -> list[Effect]:
        """The outcome of `Store(number)`; of no weight if the group has gone on since."""
        self._at = Moment(now_s, wall_ms)
        replacement = self._replacements.pop(number, None)
        if replacement is not None:
            self._replacement_stored(replacement, error)
        elif self._assignment is not None and self._assignment.number == number:
            self._assignment_stored(self._assignment, error)
        return self._settled()

    # -- members that stay, members that go

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now_s: float) -> ErrorCode:
        error = self._member_error(member_id, instance_id, generation)
        if error is ErrorCode.NONE:
            self._at.now_s = now_s
            self._touch(self.members[member_id])
            if self.state is GroupState.PREPARING_REBALANCE:
                error = ErrorCode.REBALANCE_IN_PROGRESS
        return error

    def check_commit(self, member_id: str, instance_id: str | None, generation: int, now_s: float) -> ErrorCode:
        """May these offsets be committed? Outsiders may only while there are no members. A member's counts as a heartbeat."""
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
            # It knows of the new generation but not what it has in it: it cannot have read anything yet.
            return ErrorCode.REBALANCE_IN_PROGRESS
        self._at.now_s = now_s
        self._touch(self.members[member_id])
        return ErrorCode.NONE

    def leave(
        self, members: Sequence[LeavingMember], now_s: float, wall_ms: int
    ) -> tuple[list[ErrorCode], list[Effect]]:
        """One error for each, in their order."""
        self._at = Moment(now_s, wall_ms)
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
            self._members.forget_pending(member_id)
            self._look_whether_empty()
            return ErrorCode.NONE
        error = self._members.check(member_id, leaving.instance_id)
        if error is ErrorCode.NONE:
            self._remove_member(self.members[member_id], Cause.MEMBER_LEFT)
        return error

    def _member_error(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Is it a member of this generation (INV-24)?"""
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = self._members.check(member_id, instance_id)
        if error is ErrorCode.NONE and generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return error
