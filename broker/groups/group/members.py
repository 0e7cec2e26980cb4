"""The members of one group: their ids, when their sessions end, which assignors they share, and which of them leads. Pure.

A member *waits* while its JoinGroup or SyncGroup is unanswered. Meanwhile its session does not end. Only a new member, which cannot
send heartbeats before its first generation, is removed if it has waited for `NEW_MEMBER_TIMEOUT_S`.
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
"""A client gives up a JoinGroup that is not answered, and joins as another new member. The earlier member must expire."""

EXPIRY_LOOK_S = 0.05
"""Minimum time between two checks of all sessions, so that sessions that end one after the other need few checks."""

EXPIRED_AT_ONCE = 500
"""Maximum number of members that one check expires. The next check expires the others."""


@dataclass(slots=True, eq=False)
class Member:
    """`session_ends_s`: monotonic seconds. `join_ticket`, `sync_ticket`: the ticket of the waiting request, or None.

    `sync_due`: the member knows the current generation, and has not requested its assignment yet.
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
        """The log has the member's subscription for the chosen protocol only."""
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
        """Approximate bytes in memory."""
        names = (self.member_id, self.client_id, self.client_host, self.instance_id or "")
        return MEMBER_BYTES + sum(map(getsizeof, names)) + protocols_bytes(self.protocols) + len(self.assignment)

    def touch(self, now_s: float) -> float:
        """Starts the session again, since the member is alive. Returns when the session ends."""
        ends_s = now_s + self.session_timeout_ms / 1000
        # A new member starts with a longer session. None of its requests may shorten it.
        self.session_ends_s = max(ends_s, self.session_ends_s) if self.is_new else ends_s
        return self.session_ends_s

    def expires_s(self) -> float:
        """When the session ends. NEVER while the member waits for an answer, unless it is new."""
        waits = self.join_ticket is not None or self.sync_ticket is not None
        return NEVER if waits and not self.is_new else self.session_ends_s

    def metadata(self, protocol_name: str | None) -> bytes:
        """The member's metadata for that assignor; empty if the member does not support the assignor."""
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
    """When a member id was given out, and when it expires unless its member joins. Monotonic seconds."""

    since_s: float
    until_s: float


def protocol_names(protocols: Iterable[Protocol]) -> frozenset[str]:
    return frozenset(protocol.name for protocol in protocols)


class Members:
    """Members by id in the order in which they joined, and the ids that were given out but not used yet (KIP-394)."""

    def __init__(self) -> None:
        self.by_id: dict[str, Member] = {}
        self.pending: dict[str, PendingId] = {}
        """Member id -> times, the oldest id first."""
        self.leader: str | None = None
        self.joining = 0
        """Number of members that wait for the answer to their JoinGroup."""
        self.bytes = 0
        """Approximate bytes in memory of the members and the pending ids."""
        self.next_expiry_s = NEVER
        """No session and no pending id ends before this time. A heartbeat does not move it, so it may be too early."""
        self._instances: dict[str, str] = {}
        self._supporters: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self.by_id)

    def of_instance(self, instance_id: str | None) -> str | None:
        """The current member id of a static member; None if there is none."""
        return None if instance_id is None else self._instances.get(instance_id)

    def check(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """NONE if the id is a member's and, with an instance id, the current member id of that instance (KIP-345)."""
        if instance_id is not None:
            current = self._instances.get(instance_id)
            if current is not None and current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if member_id in self.by_id else ErrorCode.UNKNOWN_MEMBER_ID

    # -- ids that were given out

    def await_member(self, member_id: str, since_s: float, until_s: float) -> None:
        """Adds an id that is given out."""
        self.forget_pending(member_id)
        self.pending[member_id] = PendingId(since_s, until_s)
        self.bytes += PENDING_BYTES + getsizeof(member_id)
        self.next_expiry_s = min(self.next_expiry_s, until_s)

    def forget_pending(self, member_id: str) -> None:
        """Removes an id that is used now or given up."""
        if self.pending.pop(member_id, None) is not None:
            self.bytes -= PENDING_BYTES + getsizeof(member_id)

    def give_up_pending(self, member_id: str) -> None:
        """Removes an id that will not be used, and the next expiry if nothing is left that could expire."""
        self.forget_pending(member_id)
        if not self.by_id and not self.pending:
            self.next_expiry_s = NEVER

    def give_up_oldest_pending(self, given_before_s: float) -> bool:
        """Removes the oldest pending id. False: there is none, or it was given out after `given_before_s`."""
        oldest = next(iter(self.pending), None)
        if oldest is None or self.pending[oldest].since_s > given_before_s:
            return False
        self.forget_pending(oldest)
        return True

    # -- sessions

    def touch(self, member: Member, now_s: float) -> None:
        """Starts the member's session again."""
        ends_s = member.touch(now_s)
        if ends_s < self.next_expiry_s:
            self.next_expiry_s = ends_s

    def expire_pending(self, now_s: float) -> None:
        for member_id in [name for name, pending in self.pending.items() if pending.until_s <= now_s]:
            self.remove(member_id)

    def expired(self, now_s: float) -> list[Member]:
        """At most EXPIRED_AT_ONCE members whose sessions have ended."""
        return [member for member in self.by_id.values() if member.expires_s() <= now_s][:EXPIRED_AT_ONCE]

    def find_next_expiry(self, earliest_s: float = -NEVER) -> None:
        """Sets `next_expiry_s` to the first end of a session or pending id, but not before `earliest_s`."""
        sessions_s = min((member.expires_s() for member in self.by_id.values()), default=NEVER)
        pending_s = min((pending.until_s for pending in self.pending.values()), default=NEVER)
        self.next_expiry_s = max(min(sessions_s, pending_s), earliest_s)

    # -- who is in it

    def add(self, member: Member) -> None:
        """Adds a member, whose id is not pending any more. The first member becomes the leader."""
        self.forget_pending(member.member_id)
        self.by_id[member.member_id] = member
        self.count(member)
        if member.instance_id is not None:
            self._instances[member.instance_id] = member.member_id
        self._supporters.update(protocol_names(member.protocols))
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member_id: str) -> None:
        """Removes a member or a pending id. The caller answers the member's waiting requests. If the leader is removed, the oldest
        member leads."""
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
        """Gives a static member another member id. It keeps everything else, including the leadership."""
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
        """Updates `bytes` after the member's size has changed."""
        size = member.size()
        self.bytes += size - member.counted_bytes
        member.counted_bytes = size

    def _lose_supporter(self, member: Member) -> None:
        """Removes the names that no member supports any more, because clients can send very many names."""
        supporters = self._supporters
        for name in protocol_names(member.protocols):
            supporters[name] -= 1
            if supporters[name] <= 0:
                del supporters[name]

    # -- who waits

    def start_joining(self, member: Member, ticket: int) -> int | None:
        """Notes that the member's JoinGroup waits. Returns the ticket of an earlier JoinGroup that this one replaces, or None."""
        earlier = self.stop_joining(member)
        member.join_ticket = ticket
        self.joining += 1
        return earlier

    def stop_joining(self, member: Member) -> int | None:
        """Notes that the member's JoinGroup is about to be answered. Returns its ticket; None if none was waiting."""
        ticket, member.join_ticket = member.join_ticket, None
        if ticket is not None:
            self.joining -= 1
        return ticket

    def all_joined(self) -> bool:
        return self.joining == len(self.by_id) and not self.pending

    def elect_joined_leader(self) -> bool:
        """Keeps the leader if it has rejoined; otherwise elects the oldest member that has rejoined. False: nobody has."""
        if self.leader is None or self.by_id[self.leader].join_ticket is None:
            joined = (member.member_id for member in self.by_id.values() if member.join_ticket is not None)
            elected = next(joined, None)
            if elected is None:
                return False
            self.leader = elected
        return True

    def clear(self) -> None:
        """Removes everything, at the end of the group."""
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
        """True if all members support one of the protocols."""
        return any(self._supporters[name] == len(self.by_id) for name in protocol_names(protocols))

    def select_protocol(self) -> str:
        """Each member votes for the first of its protocols that all members support. The most votes win; in a tie, the oldest
        member's vote.

        All members always share a protocol: a JoinGroup that would leave none is refused.
        """
        candidates = {name for name, supporters in self._supporters.items() if supporters == len(self.by_id)}
        votes = Counter(
            next(protocol.name for protocol in member.protocols if protocol.name in candidates)
            for member in self.by_id.values()
        )
        return votes.most_common(1)[0][0]
