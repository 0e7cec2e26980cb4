"""One consumer group of the new kind (KIP-848; Kafka's GroupMetadataManager and ConsumerGroup). Pure.

    heartbeat -> the member and what it subscribes to     changed: the group's epoch rises
              -> a target for every member                made anew for the group's epoch
              -> the member's next step to its target     `reconciliation.next_step`
              -> an answer, and changes to store

Three epochs say how far everybody is: the group's (of what is wanted), the target's (of what the assignor made of it), and each member's.

INV-24, each partition has one owner: a partition is in `held` of one member at most, a member gets only what nobody holds, and no answer
leaves before the changes behind it are below the high watermark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import NamedTuple

from broker.groups.consumer_group.assignors.problem import NOTHING, Assignor, IdPartition, Owned, Problem, Subscriber
from broker.groups.consumer_group.assignors.range_assignor import RangeAssignor
from broker.groups.consumer_group.assignors.uniform_assignor import UniformAssignor
from broker.groups.consumer_group.member import JOINING, LEAVING, LEAVING_FOR_A_WHILE, ConsumerMember, MemberState
from broker.groups.consumer_group.members import ConsumerMembers
from broker.groups.consumer_group.messages import (
    AssignmentChanged,
    Change,
    ConsumerGroupDescription,
    ConsumerGroupSettings,
    ConsumerHeartbeat,
    DescribedConsumer,
    EpochChanged,
    HeartbeatAnswer,
    MemberChanged,
    RegexResolved,
    TargetChanged,
    TargetEpochChanged,
    Topics,
    Waiting,
)
from broker.groups.consumer_group.pace import Pace
from broker.groups.consumer_group.reconciliation import next_step
from broker.groups.consumer_group.subscriptions import State, Subscriptions
from broker.groups.group.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from protocol.errors import ErrorCode, KafkaError

REMOVED_AT_ONCE = 500
"""Members that one event removes. Their tombstones are one batch of the log."""

ASSIGNORS: Mapping[str, Assignor] = {assignor.name: assignor for assignor in (UniformAssignor(), RangeAssignor())}


class ConsumerGroupState(Enum):
    """The values are Kafka's names, as ConsumerGroupDescribe has them."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    """The target is behind the group's epoch."""
    RECONCILING = "Reconciling"
    """Some member has not reached its target."""
    STABLE = "Stable"


class _Before(NamedTuple):
    """What `undo` puts back besides the members."""

    epoch: int
    target_epoch: int
    subscriptions: State
    work: Iterator[None] | None


class ConsumerGroup:
    """Changes take effect here at once. If they cannot be stored, `undo` takes back the last event."""

    def __init__(self, group_id: str, settings: ConsumerGroupSettings) -> None:
        self.group_id = group_id
        self.settings = settings
        self.epoch = 0
        self.target_epoch = 0
        self.must_store_all = False
        """The log may lack a part of what was stored last."""
        self._members = ConsumerMembers()
        self.subscriptions = Subscriptions(self._members)
        self._work: Iterator[None] | None = None
        """On the way to a new target. Until it is complete, members follow the one before."""
        self._sessions: dict[str, float] = {}
        self._rebalances: dict[str, tuple[float, int]] = {}
        """Of members that must give up partitions: until when, and their epoch then."""
        self._awaited: dict[str, float] = {}
        """Of classic members that must send a JoinGroup or a SyncGroup: until when."""
        self._changes: list[Change] = []
        self._before = self._snapshot()

    @staticmethod
    def restored(
        group_id: str,
        settings: ConsumerGroupSettings,
        stored: Iterable[Change],
        now_s: float,
    ) -> ConsumerGroup:
        """The group as its records say. Every member's session starts again."""
        group = ConsumerGroup(group_id, settings)
        members = group._members
        resolved: dict[str, frozenset[str]] = {}
        for change in stored:
            match change:
                case EpochChanged(epoch, topics_hash) if epoch is not None:
                    group.epoch, group.subscriptions.hash = epoch, topics_hash
                case TargetEpochChanged(epoch) if epoch is not None:
                    group.target_epoch = epoch
                case RegexResolved(regex, topics) if topics is not None:
                    resolved[regex] = topics
                case AssignmentChanged(_, member) if member is not None:
                    # No broker stores a partition of two members. If an unreadable record makes it so, the first one counts.
                    taken = members.holders.keys() & member.held
                    if taken:
                        member = replace(member, assigned=member.assigned - taken, revoking=member.revoking - taken)
                    members.put(member)
                case TargetChanged(member_id, target):
                    members.set_target(member_id, target)
        group.subscriptions.resolved = resolved
        for member in members.by_id.values():
            group.touch(member, now_s)
            group._await_revocation(member, now_s)
        members.begin()
        return group

    # -- what it is ---------------------------------------------------------------------------------------------------

    @property
    def state(self) -> ConsumerGroupState:
        if not self._members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerGroupState.ASSIGNING
        is_there = self._members.are_at(self.target_epoch)
        return ConsumerGroupState.STABLE if is_there else ConsumerGroupState.RECONCILING

    @property
    def is_empty(self) -> bool:
        return not self._members

    @property
    def has_only_classic_members(self) -> bool:
        """Whether it has members, and none of them uses the new protocol."""
        return self._members.classic == len(self._members) > 0

    @property
    def protocol_type(self) -> str:
        return CONSUMER_PROTOCOL_TYPE

    @property
    def state_since_ms(self) -> int:
        """Not known: the offsets of a group of this kind expire from their commits on."""
        return -1

    @property
    def is_stored(self) -> bool:
        """Whether the log has records of the group itself."""
        return self.epoch > 0

    @property
    def member_count(self) -> int:
        return len(self._members)

    @property
    def members(self) -> Mapping[str, ConsumerMember]:
        return self._members.by_id

    @property
    def memory_bytes(self) -> int:
        """Approximate bytes of the members in memory, and of what their regular expressions match."""
        return self._members.bytes + self.subscriptions.bytes

    @property
    def assignor(self) -> str:
        """That of most members that ask for one."""
        known = self.settings.assignors
        wanted = [(count, name) for name, count in self._members.assignors.items() if name in known]
        return min(wanted, key=lambda row: (-row[0], known.index(row[1])))[1] if wanted else known[0]

    def target_of(self, member_id: str) -> Owned:
        return self._members.target_of(member_id)

    def holder_of(self, partition: IdPartition) -> str | None:
        return self._members.holders.get(partition)

    def subscribed_topics(self) -> frozenset[str]:
        return self.subscriptions.names()

    def is_subscribed(self, topic: str) -> bool:
        return self.subscriptions.has(topic)

    @property
    def is_working(self) -> bool:
        """Whether a new target is on its way: `go_on` is to be called."""
        return self._work is not None

    def describe(self) -> ConsumerGroupDescription:
        return ConsumerGroupDescription(
            ErrorCode.NONE,
            "",
            self.state.value,
            self.epoch,
            self.target_epoch,
            self.assignor,
            tuple(DescribedConsumer(member, self.target_of(member_id)) for member_id, member in self.members.items()),
        )

    def next_deadline(self) -> float | None:
        times = [*self._sessions.values(), *self._awaited.values(), *(at for at, _ in self._rebalances.values())]
        return min(times, default=None)

    def everything(self) -> Iterator[Change]:
        """All that is stored of the group."""
        for member in self.members.values():
            yield MemberChanged(member.member_id, member)
        yield from (RegexResolved(regex, topics) for regex, topics in self.subscriptions.resolved.items())
        yield EpochChanged(self.epoch, self.subscriptions.hash)
        for member in self.members.values():
            if self._members.has_target(member.member_id):
                yield TargetChanged(member.member_id, self.target_of(member.member_id))
        yield TargetEpochChanged(self.target_epoch)
        for member in self.members.values():
            yield AssignmentChanged(member.member_id, member)

    def removal(self) -> Iterator[Change]:
        """What takes everything stored of the group out of the log."""
        for member_id in self.members:
            yield AssignmentChanged(member_id, None)
            yield TargetChanged(member_id, None)
            yield MemberChanged(member_id, None)
        yield from (RegexResolved(regex, None) for regex in self.subscriptions.resolved)
        yield TargetEpochChanged(None)
        yield EpochChanged(None)

    # -- events -------------------------------------------------------------------------------------------------------

    def keep_alive(self, member_id: str, epoch: int, client_id: str, client_host: str, now_s: float) -> bool:
        """For a heartbeat that says nothing besides these: whether it is only a sign of life, as nearly all are. The member has its target,
        and the target is the group's."""
        member = self._members.by_id.get(member_id)
        if (
            member is None
            or not epoch == member.epoch == self.target_epoch == self.epoch
            or member.state is not MemberState.STABLE
            or self.subscriptions.is_stale
            or self.subscriptions.is_due(member.regex, now_s)
            or client_id != member.client_id
            or client_host != member.client_host
        ):
            return False
        self.touch(member, now_s)
        return True

    def heartbeat(
        self, request: ConsumerHeartbeat, topics: Topics, now_s: float
    ) -> tuple[HeartbeatAnswer | Waiting, Sequence[Change]]:
        says_nothing = request.instance_id is None and not request.says_more
        if says_nothing and self.keep_alive(
            request.member_id, request.epoch, request.client_id, request.client_host, now_s
        ):
            interval_ms = self.settings.heartbeat_interval_ms
            return HeartbeatAnswer(ErrorCode.NONE, "", request.member_id, request.epoch, interval_ms), ()
        self.begin()
        answer: HeartbeatAnswer | Waiting
        try:
            if request.epoch in (LEAVING, LEAVING_FOR_A_WHILE):
                answer = self._leave(request)
            else:
                answer = self._beat(request, topics, now_s)
        except KafkaError as refusal:
            self.undo(now_s)
            return HeartbeatAnswer(refusal.code, refusal.message), []
        return answer, self.taken()

    def advance(self, now_s: float) -> list[Change]:
        """Removes members that were not heard of, or that did not give up their partitions in time: some of them, if they are many."""
        self.begin()
        silent = [member_id for member_id, at in self._sessions.items() if at <= now_s]
        slow = [
            member_id
            for member_id, (at, epoch) in self._rebalances.items()
            if at <= now_s and self.members[member_id].epoch == epoch
        ]
        absent = [member_id for member_id, at in self._awaited.items() if at <= now_s]
        due = list(dict.fromkeys((*silent, *slow, *absent)))
        for member_id in due[:REMOVED_AT_ONCE]:
            self.remove(self.members[member_id])
        if due:
            self.raise_epoch()
        return self.taken()

    def answer(self, waiting: Waiting, now_s: float) -> tuple[HeartbeatAnswer, Sequence[Change]]:
        """To a heartbeat that has waited."""
        self.begin()
        try:
            return self._answer(waiting, now_s), self.taken()
        except KafkaError as refusal:
            return HeartbeatAnswer(refusal.code, refusal.message), ()

    def look_again(self, topics: Topics) -> Sequence[Change]:
        """For a heartbeat of the classic protocol: takes the topics as they are now, if they may be others."""
        if not self.subscriptions.is_stale:
            return ()
        self.begin()
        self.make_target(topics)
        return self.taken()

    def go_on(self) -> Sequence[Change]:
        """The next step to the new target. What it has by then may be stored: the target counts when its epoch is in the log."""
        self.begin()
        self._step_of_work()
        return self.taken()

    def give_up_work(self) -> None:
        """The next heartbeat begins it again."""
        self._work = None
        self.subscriptions.is_stale = True

    def configure(self, settings: ConsumerGroupSettings, now_s: float) -> None:
        """Other settings. A shorter session time-out counts from now on, a longer one from the next heartbeat of each member."""
        self.settings = settings
        for member_id, at in self._sessions.items():
            self._sessions[member_id] = min(at, now_s + self._session_ms(self.members[member_id]) / 1000)

    def undo(self, now_s: float) -> None:
        """As if the last event had not happened, which had changes. Sessions go on."""
        self._changes = []
        self._members.undo()
        before = self._before
        self.epoch, self.target_epoch, self._work = before.epoch, before.target_epoch, before.work
        self.subscriptions.restore(before.subscriptions)
        for member in self.members.values():
            if member.member_id not in self._sessions:
                self.touch(member, now_s)
        self._sessions = {member_id: at for member_id, at in self._sessions.items() if member_id in self.members}
        self._awaited = {member_id: at for member_id, at in self._awaited.items() if member_id in self.members}
        self._rebalances = {member_id: at for member_id, at in self._rebalances.items() if member_id in self.members}
        for member in self.members.values():
            _, epoch = self._rebalances.get(member.member_id, (0.0, None))
            if epoch != (member.epoch if member.state is MemberState.UNREVOKED_PARTITIONS else None):
                self._await_revocation(member, now_s)

    def check_commit(self, member_id: str, epoch: int, *, knows_epochs: bool = True) -> ErrorCode:
        """Whether a member may commit or fetch offsets. STALE_MEMBER_EPOCH makes it take its newest epoch. `knows_epochs`: the request has
        a version that knows of member epochs, as a member of the new protocol needs (OffsetCommit v9)."""
        if epoch < 0 and self.is_empty:
            return ErrorCode.NONE  # an admin, or a consumer without a group, commits for a group without members
        member = self.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if member.classic is None and not knows_epochs:
            return ErrorCode.UNSUPPORTED_VERSION
        if epoch == member.epoch:
            return ErrorCode.NONE
        return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION

    # -- a heartbeat --------------------------------------------------------------------------------------------------

    def _beat(self, request: ConsumerHeartbeat, topics: Topics, now_s: float) -> HeartbeatAnswer | Waiting:
        """Raises KafkaError."""
        if request.assignor is not None and request.assignor not in self.settings.assignors:
            known = ", ".join(self.settings.assignors)
            raise KafkaError(ErrorCode.UNSUPPORTED_ASSIGNOR, f"{request.assignor!r} is no assignor; there are {known}")
        before = self._member_of(request)
        member = _updated(before, request)
        is_other = self.subscribe(before, member, topics, now_s)
        member = self.members[member.member_id]
        is_joining = request.epoch == JOINING
        epoch = self.epoch if is_other or is_joining else self.target_epoch
        waiting = Waiting(epoch, before, member, request.owned, is_joining or request.is_full)
        if epoch > self.target_epoch:
            self.touch(member, now_s)
            return waiting
        return self._answer(waiting, now_s)

    def _answer(self, waiting: Waiting, now_s: float) -> HeartbeatAnswer:
        """Raises KafkaError."""
        member = self.step(waiting, now_s)
        must_tell = waiting.must_tell or member.assigned != waiting.before.assigned
        return HeartbeatAnswer(
            ErrorCode.NONE,
            "",
            member.member_id,
            member.epoch,
            self.settings.heartbeat_interval_ms,
            member.assigned if must_tell else None,
        )

    def subscribe(self, before: ConsumerMember, member: ConsumerMember, topics: Topics, now_s: float) -> bool:
        """Takes what the member subscribes to: whether it is something else than before. A new target follows, perhaps at once.

        Raises KafkaError for what nobody can subscribe to.
        """
        is_new = before.member_id not in self.members
        if is_new or (member is not before and member.subscription != before.subscription):
            self._members.put(member)
            self._changes.append(MemberChanged(member.member_id, member))
        is_other = is_new or (member.topics, member.regex, member.assignor) != (
            before.topics,
            before.regex,
            before.assignor,
        )
        if is_other:
            self.subscriptions.check()
            self._changes += self.subscriptions.forget_unused(before.regex)
            self.raise_epoch()
        self.subscriptions.ask(member, topics, self.settings, now_s)
        self.make_target(topics)
        return is_other

    def touch(self, member: ConsumerMember, now_s: float) -> None:
        """The member is alive: its session starts again."""
        self._sessions[member.member_id] = now_s + self._session_ms(member) / 1000

    def _session_ms(self, member: ConsumerMember) -> int:
        return member.classic.session_timeout_ms if member.classic is not None else self.settings.session_timeout_ms

    def await_request(self, member: ConsumerMember, now_s: float) -> None:
        """A classic member must send its next JoinGroup or SyncGroup within its rebalance time-out, or it is removed."""
        self._awaited.setdefault(member.member_id, now_s + member.rebalance_timeout_ms / 1000)

    def has_come(self, member_id: str) -> None:
        self._awaited.pop(member_id, None)

    def is_waiting(self, member: ConsumerMember) -> bool:
        """Whether some partition of its target is still held by another member."""
        holders, member_id = self._members.holders, member.member_id
        return any(holders.get(partition, member_id) != member_id for partition in self.target_of(member_id))

    def supports(self, protocols: Iterable[str]) -> bool:
        """Whether all classic members know one of these assignors. There need not be any."""
        known, count = self._members.classic_protocols, self._members.classic
        return any(known[name] == count for name in protocols)

    def instance(self, instance_id: str) -> ConsumerMember | None:
        """The static member with this id."""
        return self.members.get(self._members.instances.get(instance_id, ""))

    def _member_of(self, request: ConsumerHeartbeat) -> ConsumerMember:
        """The member as it was before: for a new one, what it takes over from the static member whose place it has. Raises KafkaError."""
        if request.instance_id is not None:
            return self._static_member_of(request, request.instance_id)
        member = self.members.get(request.member_id)
        if request.epoch == JOINING:
            return member if member is not None else self.new_member(request.member_id, request.instance_id)
        return _checked(member, request)

    def _static_member_of(self, request: ConsumerHeartbeat, instance_id: str) -> ConsumerMember:
        """Raises KafkaError."""
        holder = self.members.get(self._members.instances.get(instance_id, ""))
        if request.epoch != JOINING:
            if holder is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"no member has the instance id {instance_id!r}")
            if holder.member_id != request.member_id:
                raise KafkaError(
                    ErrorCode.FENCED_INSTANCE_ID, f"another member has the instance id {instance_id!r} by now"
                )
            return _checked(holder, request)
        if holder is None:
            return self.members.get(request.member_id) or self.new_member(request.member_id, request.instance_id)
        if holder.member_id == request.member_id:
            return holder
        if not holder.is_away and holder.classic is None:
            raise KafkaError(
                ErrorCode.UNRELEASED_INSTANCE_ID, f"a member with the instance id {instance_id!r} has not left"
            )
        return self.replace_static(holder, request.member_id)

    def new_member(self, member_id: str, instance_id: str | None) -> ConsumerMember:
        """Raises KafkaError."""
        if len(self._members) >= self.settings.max_size:
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, f"the group has {len(self._members)} members already")
        return ConsumerMember(member_id, instance_id)

    def replace_static(self, holder: ConsumerMember, member_id: str) -> ConsumerMember:
        """A static member comes back under a new member id: it has the partitions and the target of the old one."""
        target = self.target_of(holder.member_id)
        self.remove(holder)
        member = replace(holder, member_id=member_id, epoch=JOINING, previous_epoch=JOINING, classic=None)
        self._members.put(member)
        self._members.set_target(member_id, target)
        self._changes += (
            MemberChanged(member_id, member),
            TargetChanged(member_id, target),
            AssignmentChanged(member_id, member),
        )
        return member

    def raise_epoch(self) -> None:
        self.epoch += 1
        self._changes.append(EpochChanged(self.epoch, self.subscriptions.hash))

    def step(self, waiting: Waiting, now_s: float) -> ConsumerMember:
        """The member's next step to its target, for a request of it. Raises KafkaError(UNKNOWN_MEMBER_ID) if it has left meanwhile."""
        member_id = waiting.member.member_id
        member = self.members.get(member_id)
        if member is None or member.is_away:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id!r} is no member of the group")
        owned = waiting.owned if member is waiting.member else None  # it may read more by now
        stepped = next_step(member, self.target_epoch, self.target_of(member_id), self._members.holders, owned)
        if stepped != member:
            self._members.put(stepped)
            self._changes.append(AssignmentChanged(member_id, stepped))
            self._await_revocation(stepped, now_s)
        self.touch(stepped, now_s)
        return stepped

    def _await_revocation(self, member: ConsumerMember, now_s: float) -> None:
        if member.state is MemberState.UNREVOKED_PARTITIONS:
            until = now_s + member.rebalance_timeout_ms / 1000
            self._rebalances[member.member_id] = (until, member.epoch)
        else:
            self._rebalances.pop(member.member_id, None)

    # -- a new target -------------------------------------------------------------------------------------------------

    def make_target(self, topics: Topics) -> None:
        """Begins to make one, if it is needed. That of a small group is complete after one step: in the event that needs it."""
        is_needed = self.subscriptions.must_look or self.epoch > self.target_epoch
        if self._work is not None or not is_needed or self.is_empty:
            return
        self._work = self._working(topics)
        self._step_of_work()

    def _step_of_work(self) -> None:
        try:
            if self._work is not None:
                next(self._work)
        except StopIteration:
            self._work = None

    def _working(self, topics: Topics) -> Iterator[None]:
        """Until the target is that of the group's epoch. Members that come meanwhile are in the next one."""
        while not self.is_empty:
            if self.subscriptions.must_look:
                changes, is_other = yield from self.subscriptions.look(topics)
                self._changes += changes
                if is_other and self.epoch > self.target_epoch:
                    self._changes.append(EpochChanged(self.epoch, self.subscriptions.hash))
                elif is_other:
                    self.raise_epoch()
            if self.epoch > self.target_epoch:
                yield from self._assigning()
            if not self.subscriptions.must_look and self.epoch == self.target_epoch:
                break
            yield

    def _assigning(self) -> Iterator[None]:
        """Any part of the new targets may be stored without the rest: whatever they are, a partition has one holder."""
        pace, epoch, assignor = Pace(), self.epoch, ASSIGNORS[self.assignor]
        members = [(member, self.target_of(member_id)) for member_id, member in self.members.items()]
        found = {name: topic for name, topic in self.subscriptions.topics.items() if topic is not None}
        of_names: dict[tuple[frozenset[str], frozenset[str]], frozenset[bytes]] = {}
        resolved = self.subscriptions.resolved
        subscribers = []
        for member, target in members:
            names = member.topics, resolved.get(member.regex or "", frozenset())
            topics = of_names.get(names)
            if topics is None:
                topics = of_names[names] = frozenset(found[name][0] for name in names[0] | names[1] if name in found)
            subscribers.append(Subscriber(member.member_id, member.order, topics, target))
            if pace.has_done(1 + len(topics)):
                yield
        targets = yield from assignor.assign(Problem(subscribers, dict(found.values())))
        for subscriber in subscribers:
            target = targets[subscriber.member_id]
            self._set_target(subscriber, target)
            if pace.has_done(1 + len(target)):
                yield
        self.target_epoch = epoch
        self._changes.append(TargetEpochChanged(epoch))

    def _set_target(self, subscriber: Subscriber, target: Owned) -> None:
        """For the static member that has taken the place of another one meanwhile, too."""
        member = self.members.get(subscriber.member_id) or self.instance(subscriber.order)
        if member is None:
            return
        if not self._members.has_target(member.member_id) or target != self.target_of(member.member_id):
            self._members.set_target(member.member_id, target)
            self._changes.append(TargetChanged(member.member_id, target))

    # -- leaving ------------------------------------------------------------------------------------------------------

    def _leave(self, request: ConsumerHeartbeat) -> HeartbeatAnswer:
        """Raises KafkaError."""
        member = self._leaving_member(request)
        if request.epoch == LEAVING_FOR_A_WHILE:
            away = replace(member, epoch=LEAVING_FOR_A_WHILE, previous_epoch=member.epoch)
            if away.revoking:  # it is not there to read them
                away = replace(away, state=MemberState.STABLE, revoking=NOTHING)
            self._members.put(away)
            self._rebalances.pop(member.member_id, None)
            self._changes.append(AssignmentChanged(member.member_id, away))
        else:
            self.remove(member)
            self.raise_epoch()
        return HeartbeatAnswer(ErrorCode.NONE, "", member.member_id, request.epoch)

    def _leaving_member(self, request: ConsumerHeartbeat) -> ConsumerMember:
        """Raises KafkaError."""
        member_id = request.member_id
        if request.instance_id is not None:
            holder = self._members.instances.get(request.instance_id)
            if holder is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"no member has the instance id {request.instance_id!r}")
            if holder != member_id:
                raise KafkaError(
                    ErrorCode.FENCED_INSTANCE_ID, f"another member has the instance id {request.instance_id!r} by now"
                )
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id!r} is no member of the group")
        return member

    def remove(self, member: ConsumerMember) -> None:
        """Takes the member out, with all that it held."""
        member_id = member.member_id
        self._members.remove(member_id)
        self._changes += self.subscriptions.forget_unused(member.regex)
        self._sessions.pop(member_id, None)
        self._rebalances.pop(member_id, None)
        self._awaited.pop(member_id, None)
        self._changes += (
            AssignmentChanged(member_id, None),
            TargetChanged(member_id, None),
            MemberChanged(member_id, None),
        )

    # -- an event's changes -------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self._members.begin()
        self._before = self._snapshot()

    def _snapshot(self) -> _Before:
        return _Before(self.epoch, self.target_epoch, self.subscriptions.state(), self._work)

    def taken(self) -> list[Change]:
        changes, self._changes = self._changes, []
        return changes


def _checked(member: ConsumerMember | None, request: ConsumerHeartbeat) -> ConsumerMember:
    """The member, if its epoch is the right one. Raises KafkaError.

    A member whose last answer was lost has the epoch before. It may go on if it reads nothing that it must not.
    """
    if member is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{request.member_id!r} is no member of the group")
    if request.epoch == member.epoch:
        return member
    is_behind = request.epoch == member.previous_epoch and request.owned is not None
    if is_behind and request.owned is not None and request.owned <= member.assigned:
        return member
    raise KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"{request.member_id!r} has the epoch {member.epoch}, and not {request.epoch}: "
        "it must give up all partitions and join again",
    )


def _updated(member: ConsumerMember, request: ConsumerHeartbeat) -> ConsumerMember:
    """With what the heartbeat says of it. One that joins says all: a static member that comes back may subscribe to something else."""
    if not request.says_more and request.client_id == member.client_id and request.client_host == member.client_host:
        return member
    if request.epoch == JOINING:
        member = replace(member, topics=frozenset(), regex=None, assignor=None)
    timeout_ms = request.rebalance_timeout_ms
    return replace(
        member,
        instance_id=request.instance_id if request.instance_id is not None else member.instance_id,
        rack_id=request.rack_id if request.rack_id is not None else member.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        classic=None,
        topics=request.topics if request.topics is not None else member.topics,
        regex=request.regex if request.regex is not None else member.regex,
        assignor=request.assignor if request.assignor is not None else member.assignor,
        rebalance_timeout_ms=timeout_ms if timeout_ms is not None else member.rebalance_timeout_ms,
    )
