"""The members of one group: who they are, until when they count as alive, which assignors they share, who leads. Pure.

A member *waits* while its JoinGroup or SyncGroup is unanswered; that keeps it alive without heartbeats. A new member that does
not know a generation yet cannot send heartbeats: it has `NEW_MEMBER_TIMEOUT_S` until its first generation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from sys import getsizeof
from typing import NamedTuple

from broker.groups.group.limits import MEMBER_BYTES, PENDING_BYTES, protocols_bytes
from broker.groups.group.messages import JoinRequest, MemberMetadata, Protocol
from protocol.errors import ErrorCode

NEVER = float("inf")

NEW_MEMBER_TIMEOUT_S = 300.0
"""A client gives up a JoinGroup that is not answered and sends another, as another new member. The earlier one must expire."""

EXPIRY_LOOK_S = 0.05
"""The least time between two looks at all members' sessions, so that sessions that end one after the other need few looks."""

EXPIRED_AT_ONCE = 500
"""Members that one look expires at most. The next look expires the others."""


@dataclass(slots=True, eq=False)
class Member:
    """`session_ends_s`: monotonic seconds. `join_ticket`, `sync_ticket`: of the request that waits, None if none does.

    `sync_due`: it knows the current generation, and has not asked for its assignment yet.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    protocols: tuple[Protocol, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    assignment: bytes = b""
    is_new: bool = False
    session_ends_s: float = NEVER
    join_ticket: int | None = None
    sync_ticket: int | None = None
    sync_due: bool = False
    counted_bytes: int = 0

    @staticmethod
    def joining(request: JoinRequest, member_id: str) -> Member:
        return Member(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.protocols,
            request.session_timeout_ms,
            request.rebalance_timeout_ms,
            is_new=True,
        )

    @staticmethod
    def restored(stored: MemberMetadata, protocol_name: str) -> Member:
        """The log has its subscription for the chosen protocol only."""
        return Member(
            stored.member_id,
            stored.instance_id,
            stored.client_id,
            stored.client_host,
            (Protocol(protocol_name, stored.subscription),),
            stored.session_timeout_ms,
            stored.rebalance_timeout_ms,
            stored.assignment,
        )

    def size(self) -> int:
        """Its bytes in memory, roughly."""
        names = (self.member_id, self.client_id, self.client_host, self.instance_id or "")
        return MEMBER_BYTES + sum(map(getsizeof, names)) + protocols_bytes(self.protocols) + len(self.assignment)

    def touch(self, now_s: float) -> float:
        """It is alive: its session starts again. Returns when the session ends."""
        ends_s = now_s + self.session_timeout_ms / 1000
        # A new member has longer at first. Nothing that it sends may shorten that.
        self.session_ends_s = max(ends_s, self.session_ends_s) if self.is_new else ends_s
        return self.session_ends_s

    def expires_s(self) -> float:
        """When it counts as dead unless it is heard of; NEVER while it waits for an answer."""
        waits = self.join_ticket is not None or self.sync_ticket is not None
        return NEVER if waits and not self.is_new else self.session_ends_s

    def metadata(self, protocol_name: str | None) -> bytes:
        """Its metadata for that assignor; empty if it does not know the assignor."""
        return next((protocol.metadata for protocol in self.protocols if protocol.name == protocol_name), b"")

    def stored(self, protocol_name: str | None, assignment: bytes) -> MemberMetadata:
        return MemberMetadata(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.session_timeout_ms,
            self.metadata(protocol_name),
            assignment,
        )


class PendingId(NamedTuple):
    """When a member id was given out, and when it expires unless its member joins; monotonic seconds."""

    since_s: float
    until_s: float


def protocol_names(protocols: Iterable[Protocol]) -> frozenset[str]:
    return frozenset(protocol.name for protocol in protocols)


class Members:
    """Members by id in the order in which they joined, and the ids that were given out but not used yet (KIP-394)."""

    def __init__(self) -> None:
        self.by_id: dict[str, Member] = {}
        self.pending: dict[str, PendingId] = {}
        """By member id, the oldest first."""
        self.leader: str | None = None
        self.joining = 0
        """How many wait for the answer to their JoinGroup."""
        self.bytes = 0
        """Their bytes in memory, roughly, with the pending ids."""
        self.next_expiry_s = NEVER
        """No session and no pending id ends before this time. A heartbeat leaves it as it is: it may be earlier than needed."""
        self._instances: dict[str, str] = {}
        self._supporters: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self.by_id)

    def of_instance(self, instance_id: str | None) -> str | None:
        """The member id that a static member has now."""
        return None if instance_id is None else self._instances.get(instance_id)

    def check(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Is it a member, and, if static, the one that has the instance id now (KIP-345)?"""
        if instance_id is not None:
            current = self._instances.get(instance_id)
            if current is not None and current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if member_id in self.by_id else ErrorCode.UNKNOWN_MEMBER_ID

    # -- ids that were given out

    def await_member(self, member_id: str, since_s: float, until_s: float) -> None:
        """The id is given out."""
        self.forget_pending(member_id)
        self.pending[member_id] = PendingId(since_s, until_s)
        self.bytes += PENDING_BYTES + getsizeof(member_id)
        self.next_expiry_s = min(self.next_expiry_s, until_s)

    def forget_pending(self, member_id: str) -> None:
        """The id is used, or will not be."""
        if self.pending.pop(member_id, None) is not None:
            self.bytes -= PENDING_BYTES + getsizeof(member_id)

    def give_up_pending(self, member_id: str) -> None:
        """The id will not be used. Without members and pending ids nothing expires."""
        self.forget_pending(member_id)
        if not self.by_id and not self.pending:
            self.next_expiry_s = NEVER

    def give_up_oldest_pending(self, given_before_s: float) -> bool:
        """Forgets the oldest pending id. False: there is none, or it was given out after `given_before_s`."""
        oldest = next(iter(self.pending), None)
        if oldest is None or self.pending[oldest].since_s > given_before_s:
            return False
        self.forget_pending(oldest)
        return True

    # -- sessions

    def touch(self, member: Member, now_s: float) -> None:
        """The member is alive."""
        ends_s = member.touch(now_s)
        if ends_s < self.next_expiry_s:
            self.next_expiry_s = ends_s

    def expire_pending(self, now_s: float) -> None:
        for member_id in [name for name, pending in self.pending.items() if pending.until_s <= now_s]:
            self.remove(member_id)

    def expired(self, now_s: float) -> list[Member]:
        """Whose sessions have ended, at most EXPIRED_AT_ONCE of them."""
        return [member for member in self.by_id.values() if member.expires_s() <= now_s][:EXPIRED_AT_ONCE]

    def find_next_expiry(self, earliest_s: float = -NEVER) -> None:
        sessions_s = min((member.expires_s() for member in self.by_id.values()), default=NEVER)
        pending_s = min((pending.until_s for pending in self.pending.values()), default=NEVER)
        self.next_expiry_s = max(min(sessions_s, pending_s), earliest_s)

    # -- who is in it

    def add(self, member: Member) -> None:
        """The first member becomes the leader. Its id is not pending any more."""
        self.forget_pending(member.member_id)
        self.by_id[member.member_id] = member
        self.count(member)
        if member.instance_id is not None:
            self._instances[member.instance_id] = member.member_id
        self._supporters.update(protocol_names(member.protocols))
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member_id: str) -> None:
        """Also a pending id. The caller answers what the member waits for. If the leader is removed, the oldest member leads."""
        self.forget_pending(member_id)
        member = self.by_id.pop(member_id, None)
        if member is None:
            return
        self.bytes -= member.counted_bytes
        self.stop_joining(member)
        if member.instance_id is not None and self._instances.get(member.instance_id) == member_id:
            del self._instances[member.instance_id]
        self._lose_supporter(member)
        if self.leader == member_id:
            self.leader = next(iter(self.by_id), None)

    def rename(self, member: Member, new_id: str) -> None:
        """A static member gets another member id; it keeps everything else, also the leadership."""
        if self.leader == member.member_id:
            self.leader = new_id
        del self.by_id[member.member_id]
        member.member_id = new_id
        self.by_id[new_id] = member
        if member.instance_id is not None:
            self._instances[member.instance_id] = new_id
        self.count(member)

    def change_protocols(self, member: Member, protocols: tuple[Protocol, ...]) -> None:
        self._lose_supporter(member)
        self._supporters.update(protocol_names(protocols))
        member.protocols = protocols
        self.count(member)

    def assign(self, member: Member, assignment: bytes) -> None:
        change = len(assignment) - len(member.assignment)
        member.assignment = assignment
        member.counted_bytes += change
        self.bytes += change

    def count(self, member: Member) -> None:
        """Its size has changed."""
        size = member.size()
        self.bytes += size - member.counted_bytes
        member.counted_bytes = size

    def _lose_supporter(self, member: Member) -> None:
        """Names that no member knows any more are removed: clients can send very many of them."""
        supporters = self._supporters
        for name in protocol_names(member.protocols):
            supporters[name] -= 1
            if supporters[name] <= 0:
                del supporters[name]

    # -- who waits

    def start_joining(self, member: Member, ticket: int) -> int | None:
        """Its JoinGroup waits. Returns the ticket of an earlier JoinGroup that this one replaces."""
        earlier = self.stop_joining(member)
        member.join_ticket = ticket
        self.joining += 1
        return earlier

    def stop_joining(self, member: Member) -> int | None:
        """Its JoinGroup is about to be answered. Returns the ticket, None if it did not wait."""
        ticket, member.join_ticket = member.join_ticket, None
        if ticket is not None:
            self.joining -= 1
        return ticket

    def all_joined(self) -> bool:
        return self.joining == len(self.by_id) and not self.pending

    def elect_joined_leader(self) -> bool:
        """The leader stays if it has rejoined; else the oldest that has. False: nobody has."""
        if self.leader is None or self.by_id[self.leader].join_ticket is None:
            joined = (member.member_id for member in self.by_id.values() if member.join_ticket is not None)
            elected = next(joined, None)
            if elected is None:
                return False
            self.leader = elected
        return True

    def clear(self) -> None:
        """The group ends."""
        self.by_id.clear()
        self.pending.clear()
        self._instances.clear()
        self._supporters.clear()
        self.leader = None
        self.joining = self.bytes = 0
        self.next_expiry_s = NEVER

    # -- what they have in common

    def rebalance_timeout_s(self) -> float:
        return max((member.rebalance_timeout_ms for member in self.by_id.values()), default=0) / 1000

    def support_any(self, protocols: Iterable[Protocol]) -> bool:
        """Is one of the protocols known to all members?"""
        return any(self._supporters[name] == len(self.by_id) for name in protocol_names(protocols))

    def select_protocol(self) -> str:
        """Each member votes for the first of its protocols that all members know; the most votes win, then the oldest member's.

        There is always such a protocol: a JoinGroup that would leave none is refused.
        """
        candidates = {name for name, supporters in self._supporters.items() if supporters == len(self.by_id)}
        votes = Counter(
            next(protocol.name for protocol in member.protocols if protocol.name in candidates)
            for member in self.by_id.values()
        )
        return votes.most_common(1)[0][0]
