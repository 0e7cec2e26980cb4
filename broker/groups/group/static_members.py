"""A static member that rejoins after a restart (KIP-345) gets a new member id, usually without a rebalance. Pure.

A restarted instance does not know its member id. It joins without one, and the old id is fenced at once. In a Stable group its
JoinGroup waits until the new id is stored. If the store fails, the old id is restored.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from broker.groups.group.generations import Generations, Moment
from broker.groups.group.members import Member, Members
from broker.groups.group.messages import NO_MEMBER, JoinAnswer, JoinRequest
from broker.groups.group.outbox import Outbox
from broker.groups.group.states import Cause, GroupState
from protocol.errors import ErrorCode


@dataclass(slots=True)
class _Replacement:
    """`before`: the member to restore if the store fails. `leader_before`: the leader's id before the replacement."""

    member_id: str
    ticket: int
    before: Member
    leader_before: str | None
    can_skip_assignment: bool


class StaticReplacements:
    """New ids of static members, while they are being stored."""

    def __init__(self, generations: Generations, members: Members, outbox: Outbox, at: Moment) -> None:
        self._generations = generations
        self._members = members
        self._outbox = outbox
        self._at = at
        self._by_store: dict[int, _Replacement] = {}

    def replace(self, member: Member, request: JoinRequest, ticket: int) -> None:
        generations = self._generations
        leader_before = self._members.leader
        generations.stop_waiting(member, ErrorCode.FENCED_INSTANCE_ID)
        before = replace(member)
        self._members.rename(member, request.new_member_id)
        member.client_id, member.client_host = request.client_id, request.client_host
        member.sync_due = False
        generations.rejoin(member, request, ticket)
        if generations.state is GroupState.COMPLETING_REBALANCE:
            # The leader may know the old id already, and would assign partitions to it.
            generations.start_rebalance(Cause.MEMBER_CHANGED)
        elif generations.state is GroupState.STABLE:
            if self._members.select_protocol() != generations.protocol_name:
                generations.start_rebalance(Cause.MEMBER_CHANGED)
            else:
                self._by_store[generations.store({})] = _Replacement(
                    member.member_id, ticket, before, leader_before, request.can_skip_assignment
                )

    def stored(self, number: int, error: ErrorCode) -> bool:
        """The outcome of a store. False: no replacement waits for it."""
        replacement = self._by_store.pop(number, None)
        if replacement is None:
            return False
        if error is not ErrorCode.NONE:
            for later in self._by_store.values():
                if later.before.member_id == replacement.member_id:
                    # The member was replaced again. If that fails too, the last stored id is restored.
                    later.before, later.leader_before = replacement.before, replacement.leader_before
        member = self._members.by_id.get(replacement.member_id)
        waits = member is not None and member.join_ticket == replacement.ticket
        if member is None or not waits or self._generations.state is not GroupState.STABLE:
            # The JoinGroup is answered already, or waits in a rebalance that will answer it.
            return True
        self._members.stop_joining(member)
        self._members.touch(member, self._at.now_s)
        if error is ErrorCode.NONE:
            self._outbox.answer_join(replacement.ticket, self._joined_again(member, replacement))
        else:
            self._undo(member, replacement.before)
            self._outbox.refuse_join(replacement.ticket, error)
        return True

    def _joined_again(self, member: Member, replacement: _Replacement) -> JoinAnswer:
        """The generation continues. A leader that rejoins must not assign again: no member would receive its assignment."""
        answer = self._generations.joined(member)
        if replacement.can_skip_assignment:
            return replace(answer, skip_assignment=member.member_id == self._members.leader)
        # Before KIP-814 the answer has the leader's old id, so that the member does not act as leader.
        return replace(answer, leader=replacement.leader_before or NO_MEMBER, members=())

    def _undo(self, member: Member, before: Member) -> None:
        self._members.rename(member, before.member_id)
        self._members.change_protocols(member, before.protocols)
        member.client_id, member.client_host = before.client_id, before.client_host
        member.session_timeout_ms = before.session_timeout_ms
        member.rebalance_timeout_ms = before.rebalance_timeout_ms
        member.sync_due = before.sync_due
        self._members.touch(member, self._at.now_s)
