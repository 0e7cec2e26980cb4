"""CTL-5: each step of a broker's failure."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.rpc.messages import LeaderAndIsrRequest, UpdateMetadataRequest
from protocol.types import LeaderAndIsr, TopicPartition
from protocol.zk.session import CheckOp, Op, SetOp
from protocol.zk.znodes import ControllerEpochZNode, PartitionStateZNode
from tests.support.memory_cluster import MemoryCluster, kinds, on_cluster


def written_states(cluster: MemoryCluster) -> list[list[Op]]:
    """Collects the multis of the controller (broker 1) that write state znodes, from now on."""
    multis: list[list[Op]] = []

    def see(ops: Sequence[Op]) -> None:
        if any(isinstance(op, SetOp) and op.path.endswith("/state") for op in ops):
            multis.append(list(ops))

    cluster.sessions[1].before_multi = see
    return multis


@on_cluster()
async def test_step_1_only_the_partitions_of_the_dead_are_touched(cluster: MemoryCluster) -> None:
    """set_p: what the dead broker led gets a leader; what it followed, a smaller ISR; the rest is not even read."""
    await cluster.create_topic("t", {0: (2, 3), 1: (3, 2), 2: (3, 1)})
    multis = written_states(cluster)
    await cluster.kill(2)
    paths = {op.path for multi in multis for op in multi if isinstance(op, SetOp)}
    assert paths == {PartitionStateZNode.path(TopicPartition("t", partition)) for partition in (0, 1)}
    assert cluster.state("t", 2) == LeaderAndIsr(3, 0, (3, 1), 1, 0)


@on_cluster(1, 2, 3, 4)
async def test_step_2_the_first_live_replica_of_the_assignment_in_the_isr_leads(cluster: MemoryCluster) -> None:
    """Not the first of the ISR, and not the first of the assignment (which is not in the ISR)."""
    await cluster.create_topic("t", {0: (2, 4, 3, 1)})
    cluster.leader_writes_isr("t", 0, (1, 2, 3))
    await cluster.settle()
    await cluster.kill(2)
    assert cluster.state("t") == LeaderAndIsr(3, 1, (1, 3), 1, 2)


@on_cluster(1, 2, 3, 4)
async def test_step_3_none_of_the_isr_lives_and_unclean_election_is_on(cluster: MemoryCluster) -> None:
    """Any live replica leads, and is the ISR alone."""
    await cluster.create_topic("t", {0: (2, 3, 4)}, {"unclean.leader.election.enable": "true"})
    cluster.leader_writes_isr("t", 0, (2,))
    await cluster.settle()
    await cluster.kill(2)
    assert cluster.state("t") == LeaderAndIsr(3, 1, (3,), 1, 2)


@on_cluster(1, 2, 3, 4)
async def test_step_4_none_of_the_isr_lives_and_unclean_election_is_off(cluster: MemoryCluster) -> None:
    """INV-18, INV-4: no leader, and the ISR is kept for the one that returns."""
    await cluster.create_topic("t", {0: (2, 3, 4)})
    cluster.leader_writes_isr("t", 0, (2,))
    await cluster.settle()
    await cluster.kill(2)
    assert cluster.state("t") == LeaderAndIsr(-1, 1, (2,), 1, 2)


@on_cluster()
async def test_step_5_the_write_is_fenced_conditional_and_raises_the_epoch(cluster: MemoryCluster) -> None:
    """One multi for all: behind the check of the controller epoch, each over the version that was read."""
    await cluster.create_topic("t", dict.fromkeys(range(20), (2, 3)))
    multis = written_states(cluster)
    await cluster.kill(2)
    (multi,) = multis
    fence = multi[0]
    assert isinstance(fence, CheckOp)
    assert fence.path == ControllerEpochZNode.PATH
    assert fence.version == cluster.server.nodes[ControllerEpochZNode.PATH].version
    assert all(isinstance(op, SetOp) and op.version == 0 for op in multi[1:])
    assert {cluster.state("t", p) for p in range(20)} == {LeaderAndIsr(3, 1, (3,), 1, 1)}


@on_cluster(1, 2, 3, 4)
async def test_step_5_on_a_conflict_it_is_read_and_decided_again(cluster: MemoryCluster) -> None:
    """The dying leader's last ISR write came in between: broker 3 must not lead."""
    await cluster.create_topic("t", {0: (2, 3, 4)})
    pending = iter([True])

    def overtake(ops: Sequence[Op]) -> None:
        if any(isinstance(op, SetOp) and op.path.endswith("/state") for op in ops) and next(pending, False):
            cluster.leader_writes_isr("t", 0, (2, 4))

    cluster.sessions[1].before_multi = overtake
    await cluster.kill(2)
    assert cluster.state("t") == LeaderAndIsr(4, 1, (4,), 1, 2)


@on_cluster()
async def test_step_6_followers_on_the_dead_broker_leave_the_isr(cluster: MemoryCluster) -> None:
    """With a new leader epoch, so that the leader takes it over (BUG-6)."""
    await cluster.create_topic("t", {0: (3, 2, 1)})
    await cluster.kill(2)
    assert cluster.state("t") == LeaderAndIsr(3, 1, (3, 1), 1, 1)


@on_cluster(1, 2, 3, 4)
async def test_step_7_one_leader_and_isr_per_broker_then_metadata_to_all(cluster: MemoryCluster) -> None:
    """Broker 4 hosts nothing of it and hears only the metadata."""
    await cluster.create_topic("t", {p: (2, 3, 1) if p % 2 else (3, 2) for p in range(10)})
    before = {broker: len(cluster.running[broker].requests) for broker in (1, 3, 4)}
    await cluster.kill(2)
    told = {broker: cluster.running[broker].requests[at:] for broker, at in before.items()}
    assert kinds(told[1]) == ["LeaderAndIsr", "UpdateMetadata"]
    assert kinds(told[3]) == ["LeaderAndIsr", "UpdateMetadata"]
    assert kinds(told[4]) == ["UpdateMetadata"]
    leadership, metadata = told[3]
    assert isinstance(leadership, LeaderAndIsrRequest)
    assert isinstance(metadata, UpdateMetadataRequest)
    assert {state.partition for state in leadership.partitions} == set(range(10))
    assert {state.partition for state in metadata.partitions} == set(range(10))
    assert {broker.id for broker in metadata.brokers} == {1, 3, 4}
