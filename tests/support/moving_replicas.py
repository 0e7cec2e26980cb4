"""Reassignments on a cluster in memory: leaders that let caught-up followers in, an admin who asks again, and INV-4/25 at every step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

from protocol.errors import ErrorCode, KafkaError
from protocol.rpc.messages import StopReplicaRequest
from protocol.types import NO_LEADER, Assignment, TopicPartition
from protocol.zk.session import CheckOp, DeleteOp, Op, SetOp
from protocol.zk.znodes import ControllerEpochZNode, ReassignPartitionsZNode, TopicZNode
from tests.support.memory_cluster import MemoryCluster, running
from tests.support.persisted_steps import PersistedSteps
from tests.support.played import played

Targets = Mapping[TopicPartition, tuple[int, ...] | None]

ROUNDS = 20


def assignment_of(cluster: MemoryCluster, tp: TopicPartition) -> Assignment:
    """As ZooKeeper has it."""
    return TopicZNode.decode(cluster.server.nodes[TopicZNode.path(tp.topic)].data)[1][tp.partition]


def requested(cluster: MemoryCluster) -> list[tuple[TopicPartition, tuple[int, ...]]] | None:
    """What `/admin/reassign_partitions` still requests; None: the node is removed."""
    node = cluster.server.nodes.get(ReassignPartitionsZNode.PATH)
    return None if node is None else ReassignPartitionsZNode.decode_rows(node.data)


def request(cluster: MemoryCluster, targets: Mapping[TopicPartition, tuple[int, ...]]) -> None:
    """Requests a reassignment as Kafka's older tools do."""
    cluster.server.ensure(ReassignPartitionsZNode.PATH, ReassignPartitionsZNode.encode(targets))


async def ask(cluster: MemoryCluster, targets: Targets) -> dict[TopicPartition, ErrorCode]:
    """Through the API, as an admin client does: again, of the next controller, when there is no answer."""
    for _ in range(ROUNDS):
        await cluster.settle()
        for controller in list(cluster.controllers.values()):
            try:
                answers = await controller.alter_reassignments(targets)
            except KafkaError as error:
                if error.code is not ErrorCode.NOT_CONTROLLER:
                    raise
            else:
                return {tp: ErrorCode.NONE if error is None else error.code for tp, error in answers.items()}
    raise AssertionError("nobody answers")


async def moved_to(cluster: MemoryCluster, target: tuple[int, ...]) -> None:
    """t-0 is asked for there, and its new replicas are not yet in sync."""
    tp = TopicPartition("t", 0)
    assert await ask(cluster, {tp: target}) == {tp: ErrorCode.NONE}
    await cluster.settle()


@asynccontextmanager
async def with_topic_t(*brokers: int) -> AsyncIterator[MemoryCluster]:
    """Brokers 1 to 4, and a topic t that has the replicas 1 and 2 and is led by 1; 1 is the controller."""
    async with running(*(brokers or (1, 2, 3, 4))) as cluster:
        await cluster.create_topic("t", {0: (1, 2)})
        yield cluster


def _play(play: Callable[[MemoryCluster], Awaitable[None]], *brokers: int) -> None:
    async def run() -> None:
        async with with_topic_t(*brokers) as cluster:
            await play(cluster)

    asyncio.run(run())


on_topic_t = partial(played, _play)
"""`@on_topic_t(*brokers)`: the test's argument `cluster` is `with_topic_t` on these brokers, and not the fixture."""


def moving(cluster: MemoryCluster) -> dict[TopicPartition, Assignment]:
    """What the active controller lists."""
    (active,) = [controller for controller in cluster.controllers.values() if controller.is_active]
    return active.reassignments()


def let_in(cluster: MemoryCluster, but: Sequence[int] = ()) -> bool:
    """Each leader that knows the newest state adds its live followers to the ISR. True: a follower was added."""
    changed = False
    for tp, state in cluster.states().items():
        leader = cluster.running.get(state.leader)
        told = leader.replicas.get(tp) if leader is not None else None
        if told is None or (told.leader_epoch, told.leader) != (state.leader_epoch, state.leader):
            continue
        newcomers = [
            replica
            for replica in told.replicas
            if replica not in (*state.isr, *but)
            and replica in cluster.running
            and tp in cluster.running[replica].replicas
            and cluster.running[replica].replicas[tp].leader == state.leader
        ]
        if newcomers:
            cluster.leader_writes_isr(tp.topic, tp.partition, (*state.isr, *newcomers))
            changed = True
    return changed


async def catch_up(cluster: MemoryCluster) -> None:
    """Runs until every live follower is in sync and nothing happens any more."""
    for _ in range(ROUNDS):
        await cluster.settle()
        if not let_in(cluster):
            return
    raise AssertionError("followers never stay in sync")


class Steps(PersistedSteps):
    """`multis` has what each of them writes: `state`, `topic` or `request`."""

    def kind_of(self, ops: Sequence[Op]) -> str | None:
        return _kind(ops)

    def check_multi(self, ops: Sequence[Op]) -> None:
        assert isinstance(ops[0], CheckOp), "fenced (INV-9)"
        assert ops[0].path == ControllerEpochZNode.PATH
        assert all(op.version >= 0 for op in ops[1:] if isinstance(op, SetOp | DeleteOp)), "over what was read"
        self.check_states()

    def check_stop(self, broker_id: int, request: StopReplicaRequest) -> None:
        for stop in request.partitions:
            if stop.delete:
                self._check_deletion(broker_id, stop.topic_partition)

    def check_states(self) -> None:
        """INV-4, and that nobody is in an ISR who has no replica."""
        for tp, state in self.cluster.states().items():
            assert state.isr, tp
            assert state.leader in (NO_LEADER, *state.isr), (tp, state)
            assert set(state.isr) <= set(assignment_of(self.cluster, tp).replicas), (tp, state)

    def _check_deletion(self, broker_id: int, tp: TopicPartition) -> None:
        """INV-25: the target is in sync, or this replica is of a target that was dropped and assigned to nobody."""
        state, assignment = self.cluster.states()[tp], assignment_of(self.cluster, tp)
        target = set(assignment.replicas) - set(assignment.removing)
        assert broker_id not in state.isr, (broker_id, state)
        assert broker_id not in target
        assert broker_id not in assignment.replicas or target <= set(state.isr), (assignment, state)


def _kind(ops: Sequence[Op]) -> str | None:
    paths = {op.path for op in ops if isinstance(op, SetOp | DeleteOp)}
    if any(path.endswith("/state") and path.startswith(TopicZNode.PARENT) for path in paths):
        return "state"
    if ReassignPartitionsZNode.PATH in paths:
        return "request"
    if any(path.rpartition("/")[0] == TopicZNode.PARENT for path in paths):
        return "topic"
    return None


def check_finished(cluster: MemoryCluster, finals: Mapping[TopicPartition, tuple[int, ...]]) -> None:
    """AR is the target and nothing is under way; only AR has replicas, and all of AR is in the ISR."""
    assert requested(cluster) is None
    assert moving(cluster) == {}
    for tp, final in finals.items():
        assert assignment_of(cluster, tp) == Assignment(final)
        state = cluster.states()[tp]
        assert set(state.isr) == set(final), (tp, state)
        assert state.leader in final
        holders = {broker.id for broker in cluster.running.values() if tp in broker.replicas}
        assert holders == set(final), (tp, holders)
        for broker in cluster.running.values():
            told = broker.metadata[tp]
            assert (told.replicas, told.adding, told.removing) == (final, (), ()), broker.id
