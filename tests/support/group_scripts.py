"""A group driven by hand: short names for what clients ask, and the answers by the number of the request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from broker.groups.group.group import Group
from broker.groups.group.messages import (
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

START_MS = 1_700_000_000_000
RANGE = (Protocol("range", b"topics"),)
OTHER_TOPICS = (Protocol("range", b"other topics"),)
BOTH = (Protocol("range", b"r"), Protocol("sticky", b"s"))
STICKY_FIRST = (Protocol("sticky", b"s"), Protocol("range", b"r"))


def subscription(*topics: str, version: int = 0) -> bytes:
    """A consumer's metadata: its topics, and no data of its own."""
    names = b"".join(len(topic.encode()).to_bytes(2, "big") + topic.encode() for topic in topics)
    return version.to_bytes(2, "big") + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff"


class ScriptedGroup:
    """`answers`: ticket -> answer; `stores`: number -> what is to be stored. Time passes only by `wait`."""

    def __init__(self, settings: GroupSettings | None = None, *, delay_ms: int = 0) -> None:
        self.settings = settings or GroupSettings(initial_rebalance_delay_ms=delay_ms)
        self.rows: list[tuple[GroupState, Cause]] = []
        self.group = Group("g", self.settings, on_transition=self._note_transition)
        self.now_s = 1000.0
        self.answers: dict[int, JoinAnswer | SyncAnswer] = {}
        self.stores: dict[int, GroupMetadata] = {}
        self._tickets = 0
        self._ids = 0

    def _note_transition(self, before: GroupState, cause: Cause, after: GroupState) -> None:
        self.rows.append((before, cause))

    @property
    def wall_ms(self) -> int:
        return START_MS + int(self.now_s * 1000)

    def take(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Store):
                self.stores[effect.number] = effect.metadata
            else:
                assert isinstance(effect, AnswerJoin | AnswerSync)
                assert effect.ticket not in self.answers, "answered twice"
                self.answers[effect.ticket] = effect.answer

    # -- requests

    def join(
        self,
        member_id: str = "",
        *,
        instance: str | None = None,
        protocols: tuple[Protocol, ...] = RANGE,
        protocol_type: str = "consumer",
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        needs_id: bool = False,
        skip: bool = False,
        host: str = "/10.0.0.1",
    ) -> int:
        """Returns the ticket. New ids are `id-1`, `id-2`, ... in the order of the JoinGroups that are new."""
        self._tickets += 1
        new_id = ""
        if not member_id:
            self._ids += 1
            new_id = f"id-{self._ids}"
        request = JoinRequest(
            "g",
            member_id,
            new_id,
            instance,
            "client",
            host,
            protocol_type,
            protocols,
            session_ms,
            rebalance_ms,
            needs_member_id=needs_id,
            can_skip_assignment=skip,
        )
        ticket = self._tickets
        self.take(self.group.join(request, ticket, self.now_s, self.wall_ms))
        return ticket

    def sync(
        self,
        member_id: str,
        assignments: Mapping[str, bytes] | None = None,
        *,
        generation: int | None = None,
        instance: str | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
    ) -> int:
        self._tickets += 1
        ticket = self._tickets
        named = self.group.generation if generation is None else generation
        request = SyncRequest("g", member_id, instance, named, assignments or {}, protocol_type, protocol_name)
        self.take(self.group.sync(request, ticket, self.now_s, self.wall_ms))
        return ticket

    def heartbeat(self, member_id: str, generation: int | None = None, instance: str | None = None) -> ErrorCode:
        named = self.group.generation if generation is None else generation
        return self.group.heartbeat(member_id, instance, named, self.now_s)

    def commit(self, member_id: str, generation: int, instance: str | None = None) -> ErrorCode:
        return self.group.check_commit(member_id, instance, generation, self.now_s)

    def leave(self, *members: str | LeavingMember) -> list[ErrorCode]:
        leaving = [member if isinstance(member, LeavingMember) else LeavingMember(member, None) for member in members]
        errors, effects = self.group.leave(leaving, self.now_s, self.wall_ms)
        self.take(effects)
        return errors

    def stored(self, error: ErrorCode = ErrorCode.NONE, *, number: int | None = None) -> None:
        """The outcome of a store, of the latest if not said."""
        named = max(self.stores) if number is None else number
        self.take(self.group.stored(named, error, self.now_s, self.wall_ms))

    def wait(self, seconds: float, *, alive: Sequence[str] = ()) -> None:
        """Time passes, in steps no longer than the next deadline; the `alive` members send a heartbeat each second."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            deadline_s = self.group.next_deadline()
            step_s = min(end_s, self.now_s + 1.0, end_s if deadline_s is None else max(deadline_s, self.now_s + 0.001))
            self.now_s = step_s
            for member_id in alive:
                self.heartbeat(member_id)
            self.take(self.group.advance(self.now_s, self.wall_ms))

    # -- shortcuts

    def stable(self, *instances: str | None, rebalance_ms: int = 60_000, session_ms: int = 10_000) -> list[str]:
        """A Stable group of these members (None: a dynamic one), each with its own id as its assignment. Returns their ids."""
        for instance in instances:
            self.join(instance=instance, rebalance_ms=rebalance_ms, session_ms=session_ms)
        for member in list(self.group.members.values()):
            if member.join_ticket is None:
                self.join(
                    member.member_id, instance=member.instance_id, rebalance_ms=rebalance_ms, session_ms=session_ms
                )
        self.wait(self.settings.initial_rebalance_delay_ms / 1000)
        ids = list(self.group.members)
        assert self.group.state is GroupState.COMPLETING_REBALANCE
        self.complete()
        return ids

    def complete(self) -> None:
        """The second half of a rebalance: all members ask for their assignment, and the leader assigns each its own id."""
        for member_id in list(self.group.members):
            given = {other: other.encode() for other in self.group.members} if member_id == self.group.leader else None
            self.sync(member_id, given)
        self.stored()
        assert self.group.state is GroupState.STABLE

    def joined(self, ticket: int) -> JoinAnswer:
        answer = self.answers[ticket]
        assert isinstance(answer, JoinAnswer)
        return answer

    def synced(self, ticket: int) -> SyncAnswer:
        answer = self.answers[ticket]
        assert isinstance(answer, SyncAnswer)
        return answer

    def error(self, ticket: int) -> ErrorCode:
        return self.answers[ticket].error


# -- groups in each state


def completing(*instances: str | None, rebalance_ms: int = 60_000) -> ScriptedGroup:
    script = ScriptedGroup()
    script.stable(*instances, rebalance_ms=rebalance_ms)
    for member in list(script.group.members.values()):
        protocols = (*RANGE, Protocol("new", b""))
        script.join(member.member_id, instance=member.instance_id, protocols=protocols, rebalance_ms=rebalance_ms)
    assert script.group.state is GroupState.COMPLETING_REBALANCE
    return script


def stable(*instances: str | None, rebalance_ms: int = 60_000, session_ms: int = 10_000) -> ScriptedGroup:
    script = ScriptedGroup()
    script.stable(*instances, rebalance_ms=rebalance_ms, session_ms=session_ms)
    return script


def preparing() -> ScriptedGroup:
    """Stable with two members; a third one has joined."""
    script = stable(None, None)
    script.join()
    assert script.group.state is GroupState.PREPARING_REBALANCE
    return script


def restored(script: ScriptedGroup, metadata: GroupMetadata, settings: GroupSettings | None = None) -> None:
    script.group = Group.restored(
        "g", metadata, settings or script.settings, script.now_s, on_transition=script._note_transition
    )


def kill(script: ScriptedGroup) -> None:
    script.take(script.group.kill())


def unload(script: ScriptedGroup) -> None:
    script.take(script.group.unload(ErrorCode.NOT_COORDINATOR))
