"""Whatever is asked of controllers and whatever happens to them, in any order (INV-4, 7, 8, 9, 18, 25, 26, 27).

Controllers of three brokers run on a ZooKeeper in memory. Every write of theirs is checked when it is applied, every
StopReplica(delete) when it arrives; when the faults end, everything that was asked for must have come to its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Coroutine, Sequence
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from controller import announcements, cluster_state, cluster_store, term
from controller.decisions import reassignment
from controller.reactions import broker_changes, failover
from protocol.errors import KafkaError
from protocol.rpc.messages import ControlRequest, ControlResponse, StopReplicaRequest
from protocol.types import Assignment, TopicPartition
from protocol.zk.session import CheckOp, CreateOp, DeleteOp, Op, OpResult, SetOp
from protocol.zk.znodes import (
    ConfigZNode,
    ControllerEpochZNode,
    ControllerZNode,
    DeleteTopicZNode,
    PartitionStateZNode,
    PreferredElectionZNode,
    ReassignPartitionsZNode,
    TopicZNode,
)
from tests.support.memory_cluster import MemoryCluster

BROKERS = (1, 2, 3)
TOPICS = ("a", "b")
PARTITIONS = (0, 1, 2)
UNASSIGNED = Assignment(())

ALL_PARTITIONS = [TopicPartition(topic, partition) for topic in TOPICS for partition in PARTITIONS]

brokers = st.sampled_from(BROKERS)
topics = st.sampled_from(TOPICS)
partitions = st.builds(TopicPartition, topics, st.sampled_from(PARTITIONS))
replica_lists = st.permutations(BROKERS).flatmap(lambda order: st.integers(1, 3).map(lambda n: tuple(order[:n])))


TURNS = (0, 1, 4, 12, 40, 120)
"""Loop turns before the next step. In a turn, ZooKeeper or a broker gives one answer."""


def step(**given: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Any]:
    """A rule of the state machine, followed by some turns of the loop."""

    def decorate(function: Callable[..., None]) -> Any:
        def then_turns(self: ControllerMachine, turns: int, **arguments: Any) -> None:
            function(self, **arguments)
            self.run(self.pass_turns(turns))

        then_turns.__name__ = function.__name__
        return rule(turns=st.sampled_from(TURNS), **given)(then_turns)

    return decorate


class Watched:
    """Checks every write and every request at once."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.cluster = cluster
        self.may_be_unclean: set[TopicPartition] = set()
        """Partitions for which an admin requested an unclean election."""
        self.broken: list[str] = []
        self._multi = cluster.server.multi
        self._leaders: dict[tuple[str, TopicPartition, int], int] = {}
        self._watched_brokers: set[int] = set()
        self.completed: set[tuple[TopicPartition, Assignment]] = set()
        """Moves whose target was in the ISR at some time."""
        self.latest_ids: dict[str, str | None] = {}
        """Name -> the id of the topic that has, or last had, this name."""
        self._apply = cluster.server.apply
        cluster.server.multi = self.multi  # type: ignore[method-assign]
        cluster.server.apply = self.apply  # type: ignore[method-assign]

    # -- ZooKeeper ------------------------------------------------------------------------------------------------

    def require(self, is_kept: bool, rule_broken: str) -> None:
        """Records a broken rule. An assertion here would only make the controller resign."""
        if not is_kept:
            self.broken.append(rule_broken)

    def apply(self, op: Op, session_id: int) -> Op:
        """Checks every change, also those by leaders and admins."""
        result = self._apply(op, session_id)
        if op.path.startswith("/brokers/topics/"):
            topic = op.path.split("/")[3]
            states = self.cluster.states()
            topic_id, assignment = self.topic(topic)
            if assignment:
                self.latest_ids[topic] = topic_id
            for partition, assigned in assignment.items():
                tp = TopicPartition(topic, partition)
                if tp in states and set(reassignment.target_of(assigned)) <= set(states[tp].isr):
                    self.completed.add((tp, assigned))
        return result

    def multi(self, ops: Sequence[Op], session_id: int) -> list[OpResult]:
        states = self.cluster.states()
        before = {topic: self.topic(topic) for topic in TOPICS}
        results = self._multi(ops, session_id)
        for op in ops:
            if isinstance(op, CheckOp) or not op.path.startswith("/brokers/topics/"):
                continue
            self.require(isinstance(ops[0], CheckOp), "INV-9")
            self.require(ops[0].path == ControllerEpochZNode.PATH, "INV-9")
            if op.path.endswith("/state"):
                if not isinstance(op, DeleteOp):
                    self._check_state(op, states)
            elif op.path.count("/") == 3:
                topic = op.path.rpartition("/")[2]
                if isinstance(op, DeleteOp):
                    self._check_removal(topic, *before[topic])
                else:
                    self._check_assignment(topic, before[topic][1])
        return results

    def _check_state(self, op: CreateOp | SetOp, before: dict[TopicPartition, Any]) -> None:
        parts = op.path.split("/")
        tp = TopicPartition(parts[3], int(parts[5]))
        new = PartitionStateZNode.decode(op.data, 0)
        old = before.get(tp)
        self.require(new.isr, f"INV-4: {tp} {old} -> {new}")
        self.require(new.leader == -1 or new.leader in new.isr, f"INV-4: {tp} {old} -> {new}")
        self.require(
            new.leader_epoch == (old.leader_epoch + 1 if old is not None else 0), f"INV-7: {tp} {old} -> {new}"
        )
        if old is not None:
            self.require(new.controller_epoch >= old.controller_epoch, f"INV-7: {tp} {old} -> {new}")
            is_clean = new.leader == -1 or new.leader in old.isr
            self.require(is_clean or tp in self.may_be_unclean, f"INV-18: {tp} {old} -> {new}")
        topic_id = self.topic_id(tp.topic)
        leader = self._leaders.setdefault((topic_id, tp, new.leader_epoch), new.leader)
        self.require(leader == new.leader, f"INV-7: {tp} has two leaders in epoch {new.leader_epoch}")

    def _check_assignment(self, topic: str, before: dict[int, Assignment]) -> None:
        """INV-25: after a move or a cancellation, its replicas are in the ISR and the removed ones are not."""
        for partition, new in self.topic(topic)[1].items():
            old = before.get(partition, UNASSIGNED)
            tp = TopicPartition(topic, partition)
            state = self.cluster.states().get(tp)
            if new == old or state is None:
                continue
            text = f"INV-25: {tp} {old} -> {new}, the ISR is {state.isr}"
            self.require(set(state.isr) <= set(new.replicas), text)
            is_cancelled = set(new.replicas) == set(reassignment.origin_of(old))
            if not new.adding and not new.removing and not is_cancelled:
                self.require((tp, old) in self.completed, text)

    def _check_removal(self, topic: str, topic_id: str | None, before: dict[int, Assignment]) -> None:
        """A replica of an earlier topic of that name is not meant: its broker was away when that one was deleted."""
        holders = {
            replica
            for partition, assigned in before.items()
            for replica in assigned.replicas
            if self.cluster.disks[replica].holds(TopicPartition(topic, partition), topic_id)
        }
        self.require(not holders, f"INV-26: {topic} is removed, brokers {holders} still have replicas")

    def topic(self, topic: str) -> tuple[str | None, dict[int, Assignment]]:
        node = self.cluster.server.nodes.get(TopicZNode.path(topic))
        return TopicZNode.decode(node.data) if node is not None else (None, {})

    def topic_id(self, topic: str) -> str:
        return str(self.topic(topic)[0])

    # -- brokers --------------------------------------------------------------------------------------------------

    def watch_brokers(self) -> None:
        for broker in self.cluster.disks.values():
            if broker.id not in self._watched_brokers:
                self._watched_brokers.add(broker.id)
                self._watch(broker)

    def _watch(self, broker: Any) -> None:
        handle = broker.handle

        def watched(request: ControlRequest) -> ControlResponse:
            had = set(broker.replicas)
            response: ControlResponse = handle(request)
            if isinstance(request, StopReplicaRequest):
                for stop in request.partitions:
                    tp = stop.topic_partition
                    if stop.delete and tp in had and tp not in broker.replicas:
                        self._check_deletion(broker.id, tp)
            return response

        broker.handle = watched

    def _check_deletion(self, broker: int, tp: TopicPartition) -> None:
        """INV-25: nothing is deleted that the partition may still need, unless the whole topic is."""
        if DeleteTopicZNode.path(tp.topic) in self.cluster.server.nodes:
            return
        assigned = self.topic(tp.topic)[1].get(tp.partition)
        if assigned is None:
            return
        isr = set(self.cluster.state(tp.topic, tp.partition).isr)
        text = f"INV-25: {tp} was deleted on {broker}, its replicas are {assigned}, the ISR is {isr}"
        self.require(broker not in reassignment.target_of(assigned), text)
        self.require(broker not in isr, text)
        if broker in assigned.removing:
            self.require((tp, assigned) in self.completed, text)


class ControllerMachine(RuleBasedStateMachine):
    """Rules leave things in the middle: what was begun goes on during the next ones, for as many turns as `pass_turns` gives."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.cluster = MemoryCluster(auto_leader_rebalance_enable=False)
        self.watched = Watched(self.cluster)
        self.asked: list[asyncio.Future[Any]] = []
        self.ids = itertools.count(1)
        self.answers_were_lost = False
        self.short_waits = patch.object(failover, "ANSWERED_WITHIN_S", 0.02)
        self.short_waits.start()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(coroutine)

    def ask(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Makes a request of an admin, which must be answered in the end."""

        async def answered() -> None:
            with contextlib.suppress(KafkaError):
                await coroutine

        self.asked.append(self.loop.create_task(answered()))

    @initialize()
    def three_brokers_and_a_topic(self) -> None:
        self.run(self.cluster.start(*BROKERS))
        self.watched.watch_brokers()
        self.make("a", (1, 2, 3))
        self.run(self.cluster.settle())

    # -- processes ------------------------------------------------------------------------------------------------

    @step(broker=brokers)
    def crash_or_start(self, broker: int) -> None:
        if broker in self.cluster.running:
            self.cluster.crash(broker)
        else:
            self.run(self.cluster.launch(broker))

    @step(what=st.sampled_from(("stop cleanly", "bounce", "expire", "depose", "lose answers")), broker=brokers)
    def disturb(self, what: str, broker: int) -> None:
        match what:
            case "stop cleanly" if broker in self.cluster.running:
                self.run(self.cluster.controllers[broker].stop())
                self.cluster.crash(broker)
            case "bounce" if broker in self.cluster.running:
                self.cluster.crash(broker)
                self.run(self.cluster.launch(broker))
            case "expire" if broker in self.cluster.running:
                self.cluster.expire(broker)
            case "depose" if ControllerZNode.PATH in self.cluster.server.nodes:
                self.cluster.server.remove(ControllerZNode.PATH)
            case "lose answers":
                self.answers_were_lost = True
                for session in self.cluster.sessions.values():
                    session.lose_answers = broker

    async def pass_turns(self, turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)

    # -- leaders --------------------------------------------------------------------------------------------------

    @step(keep=st.sets(brokers, max_size=2))
    def leaders_shrink_isrs(self, keep: set[int]) -> None:
        for tp in sorted(self.cluster.states()):
            self.leader_writes(tp, lambda isr, replicas, leader: tuple(r for r in isr if r in keep or r == leader))

    @step()
    def leaders_expand_isrs(self) -> None:
        for tp in sorted(self.cluster.states()):
            self.expand(tp)

    def expand(self, tp: TopicPartition) -> None:
        running = self.cluster.running

        def grown(isr: tuple[int, ...], replicas: tuple[int, ...], leader: int) -> tuple[int, ...]:
            # A follower fetches only what it was told to follow (INV-14).
            joining = (r for r in replicas if r not in isr and r in running and running[r].follows(tp))
            return (*isr, *joining)

        self.leader_writes(tp, grown)

    def leader_writes(self, tp: TopicPartition, change: Any) -> None:
        """Writes as a leader: conditionally, so it knows the newest state."""
        state = self.cluster.states().get(tp)
        leader = self.cluster.running.get(state.leader) if state is not None else None
        known = leader.replicas.get(tp) if leader is not None else None
        if state is None or known is None or known.leader_epoch != state.leader_epoch or tp in leader.stopped:
            return
        isr = change(state.isr, known.replicas, state.leader)
        if isr != state.isr:
            self.cluster.leader_writes_isr(tp.topic, tp.partition, isr)

    # -- admins ---------------------------------------------------------------------------------------------------

    @step(topic=topics, replicas=replica_lists)
    def make_or_delete(self, topic: str, replicas: tuple[int, ...]) -> None:
        if TopicZNode.path(topic) in self.cluster.server.nodes:
            self.cluster.server.ensure(DeleteTopicZNode.path(topic))
        else:
            self.make(topic, replicas)

    def make(self, topic: str, replicas: tuple[int, ...]) -> None:
        """As CreateTopics: settings and node in one multi."""
        assignment = {p: (*replicas[p % len(replicas) :], *replicas[: p % len(replicas)]) for p in PARTITIONS[:2]}
        self.watched.may_be_unclean -= {TopicPartition(topic, p) for p in PARTITIONS}
        self.cluster.server.ensure(ConfigZNode.path("topics", topic), ConfigZNode.encode({}))
        self.cluster.put_topic(topic, assignment, f"{next(self.ids):A>22}")

    @step(topic=topics, replicas=replica_lists)
    def add_partition(self, topic: str, replicas: tuple[int, ...]) -> None:
        """As CreatePartitions, which does not add to a topic that is being deleted."""
        path = TopicZNode.path(topic)
        topic_id, assignment = self.watched.topic(topic)
        if len(assignment) == 2 and DeleteTopicZNode.path(topic) not in self.cluster.server.nodes:
            self.cluster.server.ensure(path, TopicZNode.encode(topic_id, {**assignment, 2: Assignment(replicas)}))

    @step(asked=st.just(ALL_PARTITIONS) | st.lists(partitions, min_size=1, max_size=3))
    def preferred_election_by_the_znode(self, asked: list[TopicPartition]) -> None:
        self.cluster.server.ensure(PreferredElectionZNode.PATH, PreferredElectionZNode.encode(asked))

    @step(asked=st.none() | st.lists(partitions, min_size=1, max_size=3), unclean=st.booleans())
    def elections_by_request(self, asked: list[TopicPartition] | None, unclean: bool) -> None:
        for controller in self.cluster.controllers.values():
            if controller.is_active:
                if unclean:
                    self.watched.may_be_unclean |= set(asked or ALL_PARTITIONS)
                self.ask(controller.elect_leaders(unclean, asked))

    @step(moves=st.dictionaries(partitions, st.none() | replica_lists, min_size=1, max_size=3))
    def reassign_by_request(self, moves: dict[TopicPartition, tuple[int, ...] | None]) -> None:
        for controller in self.cluster.controllers.values():
            if controller.is_active:
                self.ask(controller.alter_reassignments(moves))

    @step(moves=st.dictionaries(partitions, replica_lists, min_size=1, max_size=3))
    def reassign_by_the_znode(self, moves: dict[TopicPartition, tuple[int, ...]]) -> None:
        self.cluster.server.ensure(ReassignPartitionsZNode.PATH, ReassignPartitionsZNode.encode(moves))

    # -- the end --------------------------------------------------------------------------------------------------

    @invariant()
    def one_controller_at_most(self) -> None:
        epochs = [c.epoch for c in self.cluster.controllers.values() if c.is_active]
        assert len(epochs) == len(set(epochs)), "INV-9: one controller in each epoch"

    @invariant()
    def no_rule_was_broken(self) -> None:
        assert self.watched.broken == []
        errors = [e for e in self.cluster.events.of("controller_resigned") if e["reason"] == "an error of its own"]
        assert not errors, "a controller failed; what it met is in the log"

    @step()
    def settle(self) -> None:
        self.run(self._settle())

    async def _settle(self) -> None:
        for session in self.cluster.sessions.values():
            session.lose_answers = 0
        if self.answers_were_lost:
            self.answers_were_lost = False
            await asyncio.sleep(0.12)
        await self.cluster.settle()

    def teardown(self) -> None:
        try:
            if self.watched.cluster.disks:
                self.run(self._quiesce())
        finally:
            self.run(self.cluster.close())
            self.loop.close()
            self.short_waits.stop()

    def _is_in_office(self) -> bool:
        """Whether the controller of the newest epoch has done everything that a new one does."""
        epoch = self.cluster.controller_epoch
        return any(event["controller_epoch"] == epoch for event in self.cluster.events.of("controller_in_office"))

    async def _quiesce(self) -> None:
        """INV-27: the faults end, and all work that waits is done."""
        await self._settle()
        for broker in BROKERS:
            if broker not in self.cluster.running:
                await self.cluster.start(broker)
        await self.cluster.until(self._is_in_office)  # it may wait for brokers that are dead
        for _ in range(8):
            before = self.cluster.server.zxid
            for tp in sorted(self.cluster.states()):
                self.expand(tp)
            await self.cluster.settle()
            if self.cluster.server.zxid == before:
                break
        assert not self.cluster.server.children(DeleteTopicZNode.PARENT), "every deletion came to its end"
        assert PreferredElectionZNode.PATH not in self.cluster.server.nodes
        assert ReassignPartitionsZNode.PATH not in self.cluster.server.nodes
        self.cluster.check()
        for topic in TOPICS:
            _, assignment = self.watched.topic(topic)
            for partition, assigned in assignment.items():
                assert not assigned.adding, "every reassignment came to its end"
                assert not assigned.removing, "every reassignment came to its end"
                state = self.cluster.state(topic, partition)
                assert state.leader != -1, "every broker lives: all are led"
                assert set(state.isr) == set(assigned.replicas), (topic, partition, state, assigned)
        for tp, state in self.cluster.states().items():
            assert tp.partition in self.watched.topic(tp.topic)[1], f"{tp} is left of a topic that was deleted: {state}"
        await self._restart_brokers_with_replicas_in_doubt()
        for broker in self.cluster.running.values():
            for tp in broker.replicas:
                assigned = self.watched.topic(tp.topic)[1].get(tp.partition)
                assert assigned is not None, f"FLT-36: {tp} is left on {broker.id}"
                assert broker.id in assigned.replicas, f"FLT-36: {tp} is left on {broker.id}"
        assert self.watched.broken == []
        assert all(asked.done() for asked in self.asked), "every request is answered"
        for asked in self.asked:
            asked.result()

    async def _restart_brokers_with_replicas_in_doubt(self) -> None:
        """A replica of a deleted topic is kept when, at its broker's start, another topic of that name was being deleted.

        The next start decides (`stray_replicas.py`).
        """
        for broker in tuple(self.cluster.running.values()):
            if not all(broker.holds(tp, self.watched.latest_ids.get(tp.topic)) for tp in broker.replicas):
                self.cluster.crash(broker.id)
                await self.cluster.settle()
                await self.cluster.start(broker.id)
                await self.cluster.settle()
                for tp in sorted(self.cluster.states()):
                    self.expand(tp)
                await self.cluster.settle()


class ControllerMachineInSlices(ControllerMachine):
    """NET-4: what a controller does for ten thousand partitions it does in slices, here of one; others have their turn in between."""

    def __init__(self) -> None:
        super().__init__()
        self.slices = contextlib.ExitStack()
        for patched in (
            patch.multiple(term, ITEMS_AT_ONCE=1, DECISIONS_AT_ONCE=1, SLICES_WRITTEN_AT_ONCE=3),
            patch.multiple(cluster_store, STATES_IN_A_SLICE=2, STATES_AT_ONCE=1),
            patch.object(announcements, "ROWS_AT_ONCE", 1),
            patch.object(broker_changes, "LEADERS_FIRST_MIN", 1),
            patch.object(cluster_state, "PARTITIONS_IN_A_STEP", 1),
        ):
            self.slices.enter_context(patched)

    def teardown(self) -> None:
        with self.slices:
            super().teardown()


class ControllerMachineAtLength(ControllerMachine):
    """More examples."""


TestController = ControllerMachine.TestCase
TestController.settings = settings(max_examples=15, stateful_step_count=40)
TestControllerInSlices = ControllerMachineInSlices.TestCase
TestControllerInSlices.settings = settings(max_examples=7, stateful_step_count=40)
TestControllerAtLength = pytest.mark.thorough(ControllerMachineAtLength.TestCase)
TestControllerAtLength.settings = settings(max_examples=100, stateful_step_count=40)
