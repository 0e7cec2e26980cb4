"""INV-24 of the new groups: no partition is read by two members, whatever gets lost; and all partitions are read in the end."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from kio.schema.consumer_protocol_subscription.v1.data import ConsumerProtocolSubscription

from broker.groups.consumer_group import classic_members, pace
from broker.groups.consumer_group.assignors.problem import NOTHING, IdPartition, Owned
from broker.groups.consumer_group.consumer_group import ConsumerGroup, ConsumerGroupState
from broker.groups.consumer_group.conversion import to_classic, to_new
from broker.groups.consumer_group.member import JOINING, LEAVING, LEAVING_FOR_A_WHILE
from broker.groups.consumer_group.messages import (
    Change,
    ConsumerGroupSettings,
    ConsumerHeartbeat,
    HeartbeatAnswer,
    Waiting,
)
from broker.groups.group.group import Group
from broker.groups.group.messages import (
    GroupSettings,
    JoinAnswer,
    JoinRequest,
    LeavingMember,
    Protocol,
    SyncRequest,
)
from broker.requests.steps import at_once
from protocol.errors import ErrorCode
from protocol.kafka import by_schema, consumer_protocol

SETTINGS = ConsumerGroupSettings(session_timeout_ms=10_000)
NAMES = ("orders", "payments", "clicks")
REBALANCE_S = 60


@dataclass
class Client:
    """A consumer: it reads what the last answer that arrived let it read."""

    member_id: str
    instance_id: str | None
    topics: frozenset[str]
    assignor: str | None
    regex: str | None = None
    epoch: int = JOINING
    reads: Owned = NOTHING
    says_all: bool = True
    is_waiting: bool = False


@dataclass
class ClassicClient:
    """A consumer of the classic protocol. `gives_up_all`: it reads nothing while it joins again (an eager assignor)."""

    member_id: str
    topics: frozenset[str]
    gives_up_all: bool
    generation: int = -1
    must_sync: bool = False
    must_join: bool = False
    reads: Owned = NOTHING
    is_waiting: bool = False

    def protocols(self) -> tuple[Protocol, ...]:
        by_topic: dict[str, list[int]] = {}
        for topic_id, number in sorted(self.reads):
            by_topic.setdefault(topic_id.decode(), []).append(number)
        owned = [{"topic": topic, "partitions": numbers} for topic, numbers in by_topic.items()]
        body = {"topics": sorted(self.topics), "user_data": None, "owned_partitions": owned}
        metadata = b"\0\1" + b"".join(by_schema.at_once(by_schema.writing(ConsumerProtocolSubscription, body, 10_000)))
        return (Protocol("range" if self.gives_up_all else "cooperative-sticky", metadata),)


class Consumers(RuleBasedStateMachine):
    """A new target takes many steps, with other events in between: each step looks at one member, topic or partition."""

    def __init__(self) -> None:
        super().__init__()
        self.step_before, pace.STEP = pace.STEP, 1
        self.waiting: list[tuple[Waiting, Callable[[Waiting | None], None]]] = []
        """What is called with a request that has waited, or with None if it is refused."""
        self.group = ConsumerGroup("billing", SETTINGS)
        self.counts = {"orders": 3, "payments": 1}
        self.clients: dict[str, Client] = {}
        self.classics: dict[str, ClassicClient] = {}
        self.now = 0.0
        self.numbers = 0

    def find(self, name: str) -> tuple[bytes, int] | None:
        return (name.encode(), self.counts[name]) if name in self.counts else None

    def name_of(self, topic_id: bytes) -> str | None:
        return topic_id.decode() if topic_id.decode() in self.counts else None

    def check(self, regex: str) -> None:
        re.compile(regex)

    def matching(self, regex: str) -> Generator[None, None, frozenset[str]]:
        names = frozenset(name for name in self.counts if re.fullmatch(regex, name))
        yield
        return names

    # -- what happens -------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.clients) < 6)
    @rule(topics=st.sets(st.sampled_from(NAMES), min_size=1), assignor=st.sampled_from((None, "range", "uniform")))
    def join(self, topics: set[str], assignor: str | None) -> None:
        self.numbers += 1
        client = Client(f"m{self.numbers}", None, frozenset(topics), assignor)
        self.clients[client.member_id] = client
        self.beat(client)

    @precondition(lambda self: len(self.clients) < 6)
    @rule(number=st.integers(0, 1))
    def join_or_come_back(self, number: int) -> None:
        """A static member."""
        self.numbers += 1
        client = Client(f"m{self.numbers}", f"instance-{number}", frozenset(NAMES[:2]), None)
        self.clients[client.member_id] = client
        self.beat(client)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), is_lost=st.booleans())
    def heartbeat(self, data: st.DataObject, is_lost: bool) -> None:
        self.beat(self.chosen(data), is_lost=is_lost)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), topics=st.sets(st.sampled_from(NAMES), min_size=1))
    def subscribe(self, data: st.DataObject, topics: set[str]) -> None:
        client = self.chosen(data)
        client.topics, client.says_all = frozenset(topics), True
        self.beat(client)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), regex=st.sampled_from(("", "p.*", ".*s")))
    def subscribe_to_a_pattern(self, data: st.DataObject, regex: str) -> None:
        client = self.chosen(data)
        client.regex, client.says_all = regex, True
        self.beat(client)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def heartbeat_that_cannot_be_stored(self, data: st.DataObject) -> None:
        """The client gets an error and goes on; the group is as it was."""
        client = self.chosen(data)
        if client.is_waiting:
            return
        before = stored(self.group)
        answer, changes = self.group.heartbeat(self.request(client), self, self.now)
        if changes:
            self.group.undo(self.now)
        elif isinstance(answer, Waiting):
            client.says_all = True
            self.waiting.append((answer, lambda waiting: waiting and self.group.answer(waiting, self.now)))
        assert stored(self.group) == before

    @precondition(lambda self: self.group.is_working or self.waiting)
    @rule(is_stored=st.booleans())
    def work(self, is_stored: bool) -> None:
        self.step(is_stored=is_stored)

    @precondition(lambda self: self.group.is_working or self.waiting)
    @rule()
    def work_to_the_end(self) -> None:
        while self.group.is_working or self.waiting:
            self.step()

    def step(self, *, is_stored: bool = True) -> None:
        """As the coordinator takes them."""
        if self.waiting and (self.waiting[0][0].epoch <= self.group.target_epoch or not self.group.is_working):
            waiting, answer = self.waiting.pop(0)
            answer(waiting)
        elif self.group.is_working and self.group.go_on() and not is_stored:
            self.group.undo(self.now)
            self.group.give_up_work()
            self.refuse_waiting()

    def refuse_waiting(self) -> None:
        refused, self.waiting = self.waiting, []
        for _, answer in refused:
            answer(None)

    @rule()
    def move_to_another_coordinator(self) -> None:
        self.refuse_waiting()
        before = list(self.group.everything())
        self.group = ConsumerGroup.restored("billing", SETTINGS, before, self.now)
        assert list(self.group.everything()) == before

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), is_for_a_while=st.booleans())
    def leave(self, data: st.DataObject, is_for_a_while: bool) -> None:
        client = self.chosen(data)
        epoch = LEAVING_FOR_A_WHILE if is_for_a_while and client.instance_id else LEAVING
        del self.clients[client.member_id]  # it reads no more before it says so
        request = ConsumerHeartbeat(client.member_id, epoch, client.instance_id)
        self.group.heartbeat(request, self, self.now)

    @rule(name=st.sampled_from(NAMES), count=st.integers(0, 5))
    def change_topic(self, name: str, count: int) -> None:
        if count:
            self.counts[name] = max(count, self.counts.get(name, 0))
        else:
            self.counts.pop(name, None)
            for client in self.classics.values():  # it cannot read what is gone, and cannot say that it has it
                client.reads = frozenset(each for each in client.reads if each.topic_id != name.encode())
        self.group.subscriptions.is_stale = True

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def go_silent(self, data: st.DataObject) -> None:
        """A member dies; the others go on. It reads no longer than its session. No request waits as long."""
        dead = self.chosen(data)
        for _ in range(3):
            self.work_to_the_end()
            self.now += SETTINGS.session_timeout_ms / 1000 / 2
            for client in self.clients.values():
                if client is not dead:
                    self.beat(client)
            for classic in list(self.classics.values()):
                self.beat_classic(classic)
            if self.now >= self.group._sessions.get(dead.member_id, 0):
                self.clients.pop(dead.member_id, None)
            self.group.advance(self.now)

    # -- members of the classic protocol ------------------------------------------------------------------------------

    @precondition(lambda self: len(self.classics) < 3)
    @rule(topics=st.sets(st.sampled_from(NAMES), min_size=1), gives_up_all=st.booleans())
    def join_classic(self, topics: set[str], gives_up_all: bool) -> None:
        self.numbers += 1
        client = ClassicClient(f"k{self.numbers}", frozenset(topics), gives_up_all)
        self.classics[client.member_id] = client
        self.join_again(client)

    @precondition(lambda self: self.classics)
    @rule(data=st.data(), is_lost=st.booleans())
    def classic_heartbeat(self, data: st.DataObject, is_lost: bool) -> None:
        """`is_lost`: the answer to its JoinGroup, so it sends no SyncGroup."""
        client = self.classics[data.draw(st.sampled_from(sorted(self.classics)))]
        self.beat_classic(client, is_lost=is_lost)

    @precondition(lambda self: self.classics)
    @rule(data=st.data())
    def leave_classic(self, data: st.DataObject) -> None:
        client = self.classics.pop(data.draw(st.sampled_from(sorted(self.classics))))
        classic_members.leave(self.group, [LeavingMember(client.member_id, None)])

    @precondition(lambda self: self.group.has_only_classic_members and not self.clients)
    @rule()
    def become_classic_and_new_again(self) -> None:
        """Without a change of generation in between: the members read on. Classic groups know no topics that are deleted."""
        self.refuse_waiting()
        read = {partition.topic_id.decode() for client in self.classics.values() for partition in client.reads}
        metadata = to_classic(self.group, self, 0) if read <= self.counts.keys() else None
        if metadata is not None:
            classic = Group.restored("billing", metadata, GroupSettings(), self.now)
            self.group = to_new(classic, SETTINGS, self, self.now)
            self.group.subscriptions.is_stale = True

    def beat_classic(self, client: ClassicClient, *, is_lost: bool = False) -> None:
        if client.is_waiting:
            return
        if client.must_join:
            self.join_again(client)
            return
        if client.must_sync:
            self.sync(client)
            return
        self.group.look_again(self)
        match classic_members.heartbeat(self.group, client.member_id, None, client.generation, self.now):
            case ErrorCode.NONE:
                pass
            case ErrorCode.REBALANCE_IN_PROGRESS:
                self.join_again(client, is_lost=is_lost)
            case _:
                client.reads = NOTHING
                self.join_again(client, is_lost=is_lost)

    def join_again(self, client: ClassicClient, *, is_lost: bool = False) -> None:
        if client.gives_up_all:
            client.reads = NOTHING
        request = JoinRequest(
            "billing", client.member_id, "", None, "c", "/", "consumer", client.protocols(), 10_000, 60_000, False
        )
        answer, _ = classic_members.join(self.group, request, self, self.now)
        client.must_join = client.must_sync = False
        if isinstance(answer, Waiting):
            client.is_waiting, client.must_join = not is_lost, True
            self.waiting.append((answer, lambda waiting: self.answer_join(client, waiting, is_lost=is_lost)))
        else:
            self.joined(client, answer, is_lost=is_lost)

    def answer_join(self, client: ClassicClient, waiting: Waiting | None, *, is_lost: bool) -> None:
        if waiting is not None:
            answer, _ = classic_members.answer_join(self.group, waiting, self.now)
        if not is_lost:
            client.is_waiting = False
            if waiting is not None and client.member_id in self.classics:
                self.joined(client, answer)

    def joined(self, client: ClassicClient, answer: JoinAnswer, *, is_lost: bool = False) -> None:
        if answer.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
            del self.classics[client.member_id]  # the others give up all, or do not
        elif not is_lost:
            assert answer.error is ErrorCode.NONE
            client.generation, client.must_sync, client.must_join = answer.generation, True, False
            self.sync(client)

    def sync(self, client: ClassicClient) -> None:
        request = SyncRequest("billing", client.member_id, None, client.generation, {})
        answer = classic_members.sync(self.group, request, self, self.now)
        client.must_sync = False
        if answer.error is ErrorCode.NONE:
            given = classic_members.by_id(consumer_protocol.assigned(answer.assignment), self)
            has_given_up = not client.reads <= given
            client.reads = given
            if has_given_up:
                self.join_again(client)  # so that others can have it
        elif answer.error is not ErrorCode.REBALANCE_IN_PROGRESS:
            client.reads = NOTHING
            self.join_again(client)
        else:
            self.join_again(client)

    # -- clients ------------------------------------------------------------------------------------------------------

    def chosen(self, data: st.DataObject) -> Client:
        return self.clients[data.draw(st.sampled_from(sorted(self.clients)))]

    @staticmethod
    def request(client: Client) -> ConsumerHeartbeat:
        says_all = client.says_all or client.epoch == JOINING
        return ConsumerHeartbeat(
            client.member_id,
            client.epoch,
            client.instance_id,
            client_id="c",
            rebalance_timeout_ms=REBALANCE_S * 1000 if says_all else None,
            topics=client.topics if says_all else None,
            regex=client.regex if says_all else None,
            assignor=client.assignor if says_all else None,
            owned=client.reads,
        )

    def beat(self, client: Client, *, is_lost: bool = False) -> None:
        """A heartbeat, and what the client makes of the answer. `is_lost`: of the answer, which does not arrive."""
        if client.is_waiting:
            return
        answer, _ = self.group.heartbeat(self.request(client), self, self.now)
        client.says_all = is_lost
        if isinstance(answer, Waiting):
            client.is_waiting = not is_lost
            self.waiting.append((answer, lambda waiting: self.answer(client, waiting, is_lost=is_lost)))
        elif not is_lost:
            self.told(client, answer)

    def answer(self, client: Client, waiting: Waiting | None, *, is_lost: bool) -> None:
        if waiting is not None:
            answer, _ = self.group.answer(waiting, self.now)
        if not is_lost:
            client.is_waiting = False
            client.says_all = client.says_all or waiting is None
            if waiting is not None and self.clients.get(client.member_id) is client:
                self.told(client, answer)

    def told(self, client: Client, answer: HeartbeatAnswer) -> None:
        match answer.error:
            case ErrorCode.NONE:
                client.epoch = answer.epoch
                if answer.assignment is not None:
                    client.reads = answer.assignment
            case ErrorCode.UNRELEASED_INSTANCE_ID:
                del self.clients[client.member_id]  # it gives up
            case _:
                client.epoch, client.reads, client.says_all = JOINING, NOTHING, True
                if answer.error is ErrorCode.FENCED_INSTANCE_ID:
                    del self.clients[client.member_id]

    def topics_of(self, client: Client) -> frozenset[str]:
        return client.topics | (at_once(self.matching(client.regex)) if client.regex else frozenset())

    # -- what holds ---------------------------------------------------------------------------------------------------

    @invariant()
    def nobody_reads_what_another_one_reads(self) -> None:
        readers: dict[IdPartition, str] = {}
        for client in (*self.clients.values(), *self.classics.values()):
            for partition in client.reads:
                assert partition not in readers, f"{client.member_id} and {readers[partition]} read {partition}"
                readers[partition] = client.member_id

    @invariant()
    def everybody_who_reads_holds(self) -> None:
        for client in (*self.clients.values(), *self.classics.values()):
            for partition in client.reads:
                assert self.group.holder_of(partition) == client.member_id

    def teardown(self) -> None:
        """When nothing more happens, each partition of a subscribed topic is read by one member that subscribes to it."""
        pace.STEP = self.step_before
        for _ in range(12):
            self.work_to_the_end()
            for client in list(self.clients.values()):
                self.beat(client)
            for classic in list(self.classics.values()):
                self.beat_classic(classic)
            away = [member for member in self.group.members.values() if member.is_away]
            for member in away:
                self.group.heartbeat(ConsumerHeartbeat(member.member_id, LEAVING), self, self.now)
        if not self.clients and not self.classics:
            return
        assert self.group.state is ConsumerGroupState.STABLE
        wanted = {name for client in self.clients.values() for name in self.topics_of(client) if name in self.counts}
        wanted |= {name for client in self.classics.values() for name in client.topics if name in self.counts}
        expected = {IdPartition(name.encode(), n) for name in wanted for n in range(self.counts[name])}
        readers = (*self.clients.values(), *self.classics.values())
        read = [partition for client in readers for partition in client.reads]
        assert sorted(read) == sorted(expected)
        for client in self.clients.values():
            assert {partition.topic_id.decode() for partition in client.reads} <= self.topics_of(client)


def stored(group: ConsumerGroup) -> set[Change]:
    """All that the log would have of the group."""
    return set(group.everything())


TestConsumers = Consumers.TestCase
