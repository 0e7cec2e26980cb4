"""A group, its coordinator's log, and clients that behave as real ones do: what random schedules are played on.

The world keeps to what a log with a high watermark does: a store that succeeded is in every later coordinator's log; one that
failed, or is under way, may be. Clients forget an answer that takes too long and ask again; an answer may be lost.

It checks INV-24 by itself, whatever happens and over coordinators: in one generation no partition is assigned to two members, an
assignment that was told makes every earlier generation stale, and every earlier holder of its instance id.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.groups.group.group import Group
from broker.groups.group.members import EXPIRY_LOOK_S, NEVER
from broker.groups.group.messages import (
    NO_GENERATION,
    AnswerJoin,
    AnswerSync,
    Effect,
    GroupMetadata,
    GroupSettings,
    JoinAnswer,
    JoinRequest,
    LeavingMember,
    Protocol,
    Store,
    SyncAnswer,
    SyncRequest,
)
from broker.groups.group.states import Cause, GroupState
from protocol.errors import ErrorCode

PARTITIONS = 6
SESSION_MS = 10_000


@dataclass(eq=False)
class Client:
    """`phase`: out (has to join), joining, joined (has to sync), syncing, member, gone."""

    instance: str | None
    needs_id: bool
    can_skip: bool
    subscription: int = 0
    member_id: str = ""
    generation: int = NO_GENERATION
    phase: str = "out"
    ticket: int | None = None
    asked_s: float = 0.0
    roster: tuple[str, ...] = ()
    partitions: frozenset[int] = frozenset()

    @property
    def lives(self) -> bool:
        return self.phase != "gone"

    def protocols(self) -> tuple[Protocol, ...]:
        return (Protocol("range", b"%d" % self.subscription), Protocol("sticky", b""))


@dataclass(slots=True)
class Record:
    """`failed` ones may be in the log all the same."""

    number: int
    metadata: GroupMetadata
    failed: bool = False
    done: bool = False


class GroupWorld:
    def __init__(self, settings: GroupSettings, rebalance_ms: int = 20_000) -> None:
        self.settings = settings
        self.rebalance_ms = rebalance_ms
        self.rows: set[tuple[GroupState, Cause]] = set()
        self.now_s = 1000.0
        self.clients: list[Client] = []
        self.sent: list[JoinRequest | SyncRequest] = []
        self.log: list[Record] = []
        self.durable = 0
        self.group = Group("g", settings, on_transition=self._note_transition)
        self._asked: dict[int, tuple[Client | None, JoinRequest | SyncRequest]] = {}
        self._tickets = 0
        self._ids = 0
        self._owners: dict[tuple[int, int], str] = {}
        self._told_generation = NO_GENERATION
        self._told_ids: dict[str, int] = {}

    def _note_transition(self, before: GroupState, cause: Cause, after: GroupState) -> None:
        self.rows.add((before, cause))

    @property
    def wall_ms(self) -> int:
        return int(self.now_s * 1000)

    def live_clients(self) -> list[Client]:
        return [client for client in self.clients if client.lives]

    # -- what clients do

    def act(self, client: Client) -> None:
        """Whatever comes next for it."""
        if client.ticket is not None:
            if self.now_s - client.asked_s < self.rebalance_ms / 1000 + 5.0:
                return
            client.phase = "out"
        if client.phase == "out":
            self._join(client)
        elif client.phase == "joined":
            self._sync(client)
        elif client.phase == "member":
            self.beat(client)

    def _join(self, client: Client) -> None:
        client.phase = "joining"
        request = JoinRequest(
            "g",
            client.member_id,
            "" if client.member_id else self._new_id(),
            client.instance,
            "client",
            "/host",
            "consumer",
            client.protocols(),
            SESSION_MS,
            self.rebalance_ms,
            needs_member_id=client.needs_id,
            can_skip_assignment=client.can_skip,
        )
        self.send(request, client)

    def _sync(self, client: Client) -> None:
        """A leader deals the partitions out, differently each time."""
        client.phase = "syncing"
        hands: dict[str, list[str]] = {member_id: [] for member_id in client.roster}
        for partition in range(PARTITIONS if hands else 0):
            hands[client.roster[(partition + self._tickets) % len(hands)]].append(str(partition))
        assignments = {member_id: ",".join(hand).encode() for member_id, hand in hands.items()}
        self.send(SyncRequest("g", client.member_id, client.instance, client.generation, assignments), client)

    def beat(self, client: Client) -> None:
        error = self.group.heartbeat(client.member_id, client.instance, client.generation, self.now_s)
        if error is ErrorCode.NONE:
            self._check_not_stale(client.member_id, client.instance, client.generation)
        else:
            self._told_error(client, error)

    def commit(self, client: Client) -> None:
        if client.generation < 0:
            return
        error = self.group.check_commit(client.member_id, client.instance, client.generation, self.now_s)
        if error is ErrorCode.NONE:
            self._check_not_stale(client.member_id, client.instance, client.generation)

    def leave(self, client: Client) -> None:
        self.take(self.group.leave([LeavingMember(client.member_id, client.instance)], self.now_s, self.wall_ms)[1])
        client.phase = "gone"

    def remove_instance(self, instance: str) -> None:
        self.take(self.group.leave([LeavingMember("", instance)], self.now_s, self.wall_ms)[1])

    def send(self, request: JoinRequest | SyncRequest, client: Client | None) -> None:
        """None: a duplicate, or a late one, whose answer nobody reads."""
        self._tickets += 1
        ticket = self._tickets
        self._asked[ticket] = (client, request)
        self.sent.append(request)
        if client is not None:
            client.ticket, client.asked_s = ticket, self.now_s
        if isinstance(request, JoinRequest):
            self.take(self.group.join(request, ticket, self.now_s, self.wall_ms))
        else:
            self.take(self.group.sync(request, ticket, self.now_s, self.wall_ms))

    def send_again(self, request: JoinRequest | SyncRequest) -> None:
        """The coordinator gives a new member of a repeated request another id."""
        if isinstance(request, JoinRequest) and not request.member_id:
            values = {name: getattr(request, name) for name in request.__dataclass_fields__}
            request = JoinRequest(**{**values, "new_member_id": self._new_id()})
        self.send(request, None)

    def _new_id(self) -> str:
        self._ids += 1
        return f"m-{self._ids}"

    # -- what they are answered

    def take(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Store):
                self.log.append(Record(effect.number, effect.metadata))
                continue
            client, request = self._asked.pop(effect.ticket)
            if isinstance(effect, AnswerSync) and effect.answer.error is ErrorCode.NONE:
                assert isinstance(request, SyncRequest)
                self._check_owner(request, effect.answer)
            if client is None or client.ticket != effect.ticket or not client.lives:
                continue
            client.ticket = None
            if effect.answer.error is not ErrorCode.NONE:
                if isinstance(effect, AnswerJoin) and effect.answer.error is ErrorCode.MEMBER_ID_REQUIRED:
                    client.member_id = effect.answer.member_id
                self._told_error(client, effect.answer.error)
            elif isinstance(effect, AnswerJoin):
                self._told_generation_begins(client, effect.answer)
            elif isinstance(effect, AnswerSync):
                client.phase = "member"
                client.partitions = held(effect.answer)

    def _told_generation_begins(self, client: Client, answer: JoinAnswer) -> None:
        assert answer.generation == self.group.generation
        assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")
        client.member_id, client.generation, client.phase = answer.member_id, answer.generation, "joined"
        leads = answer.leader == answer.member_id and not answer.skip_assignment
        assert not answer.members or answer.leader == answer.member_id
        client.roster = tuple(member.member_id for member in answer.members) if leads else ()

    def _told_error(self, client: Client, error: ErrorCode) -> None:
        client.phase = "out"
        client.partitions = frozenset()
        if error is ErrorCode.UNKNOWN_MEMBER_ID:
            client.member_id = ""
        elif error in (ErrorCode.FENCED_INSTANCE_ID, ErrorCode.GROUP_MAX_SIZE_REACHED):
            client.phase = "gone"

    # -- INV-24

    def _check_owner(self, request: SyncRequest, answer: SyncAnswer) -> None:
        self._check_not_stale(request.member_id, request.instance_id, request.generation)
        self._told_generation = max(self._told_generation, request.generation)
        if request.instance_id is not None:
            self._told_ids[request.instance_id] = number_of(request.member_id)
        owner = request.instance_id or request.member_id
        for partition in held(answer):
            first = self._owners.setdefault((request.generation, partition), owner)
            assert first == owner, f"generation {request.generation}: {partition} is {first}'s and {owner}'s"

    def _check_not_stale(self, member_id: str, instance: str | None, generation: int) -> None:
        assert generation >= self._told_generation, "a stale generation was accepted"
        if instance is not None:
            assert number_of(member_id) >= self._told_ids.get(instance, 0), "a fenced member was accepted"

    def check_group(self) -> None:
        """What always holds between two events."""
        group, members = self.group, self.group._members
        waiting = {member.join_ticket for member in group.members.values()}
        assert len(waiting - {None}) == members.joining
        waiting |= {member.sync_ticket for member in group.members.values()}
        assert waiting - {None} == set(self._asked), "a request that waits nowhere, or is answered already"
        assert (group.leader is None) == (not group.members)
        assert group.leader is None or group.leader in group.members
        if group.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            assert group.members
        if group.state in (GroupState.EMPTY, GroupState.DEAD):
            assert not group.members
        first_s = min((member.expires_s() for member in group.members.values()), default=NEVER)
        deadline_s = group.next_deadline()
        assert first_s == NEVER or (deadline_s is not None and deadline_s <= max(first_s, self.now_s + EXPIRY_LOOK_S))
        assert group.snapshot(0).generation == group.generation
        assert len(group.describe().members) == len(group.members)

    # -- the log

    def stores_under_way(self) -> list[Record]:
        return [record for record in self.log if not record.done]

    def finish_store(self, record: Record, error: ErrorCode) -> None:
        record.done, record.failed = True, error is not ErrorCode.NONE
        if not record.failed:
            self.durable = max(self.durable, self.log.index(record) + 1)
        self.take(self.group.stored(record.number, error, self.now_s, self.wall_ms))

    def fail_over(self, kept: int, settings: GroupSettings | None = None) -> None:
        """Another coordinator loads what is durable, and up to `kept` records more."""
        self.take(self.group.unload(ErrorCode.NOT_COORDINATOR))
        assert not self._asked, "all waiting requests are answered when the partition is lost"
        self.log = self.log[: max(self.durable, min(len(self.log), self.durable + kept))]
        self.durable = len(self.log)
        self.settings = settings or self.settings
        if self.log:
            stored = self.log[-1].metadata
            self.group = Group.restored("g", stored, self.settings, self.now_s, on_transition=self._note_transition)
        else:
            self.group = Group("g", self.settings, on_transition=self._note_transition)
        for record in self.log:
            record.done = True

    def delete(self) -> None:
        """An Empty group; its next life begins with generation 1 again."""
        self.take(self.group.kill())
        self.log, self.durable = [], 0
        self._owners, self._told_generation, self._told_ids = {}, NO_GENERATION, {}
        self.group = Group("g", self.settings, on_transition=self._note_transition)

    # -- time

    def pass_time(self, seconds: float, *, acting: bool) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            deadline_s = self.group.next_deadline()
            step_s = min(end_s, self.now_s + 1.0) if acting else end_s
            self.now_s = min(step_s, max(deadline_s or step_s, self.now_s))
            self.take(self.group.advance(self.now_s, self.wall_ms))
            later_s = self.group.next_deadline()
            assert later_s is None or later_s > self.now_s, "what is due is done"
            if acting:
                for client in self.live_clients():
                    self.act(client)

    def is_settled(self) -> bool:
        clients = self.live_clients()
        if not clients:
            return not self.group.members
        return (
            self.group.state is GroupState.STABLE
            and set(self.group.members) == {client.member_id for client in clients}
            and all(client.phase == "member" and client.generation == self.group.generation for client in clients)
        )

    def settle(self) -> None:
        """Left alone, with a log that works, the live clients end in one Stable generation that covers all partitions."""
        for _ in range(900):
            for record in self.stores_under_way():
                self.finish_store(record, ErrorCode.NONE)
            self.pass_time(1.0, acting=True)
            if self.is_settled():
                break
        assert self.is_settled(), self.group.describe()
        hands = [client.partitions for client in self.live_clients()]
        assert sum(map(len, hands)) == (PARTITIONS if hands else 0)
        assert len(frozenset().union(*hands)) == (PARTITIONS if hands else 0)


def held(answer: SyncAnswer) -> frozenset[int]:
    return frozenset(int(partition) for partition in answer.assignment.decode().split(",") if partition)


def number_of(member_id: str) -> int:
    return int(member_id.removeprefix("m-"))
