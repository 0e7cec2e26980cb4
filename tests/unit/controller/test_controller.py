"""The controller's reactions, one scenario each, on a ZooKeeper in memory and stand-in brokers (CTL-1..8, 12..15, STA-1..4)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from controller import term
from controller.reactions import broker_changes
from protocol.errors import ErrorCode
from protocol.rpc.messages import (
    ControlledShutdownRequest,
    ControlResponse,
    LeaderAndIsrRequest,
    UpdateMetadataRequest,
)
from protocol.types import LeaderAndIsr, TopicPartition
from protocol.zk.session import Op, SetOp, Stat, WatchCallback
from protocol.zk.znodes import ControllerEpochZNode, ControllerZNode, IsrChangeZNode, PartitionStateZNode
from tests.support.memory_cluster import MemoryCluster, kinds, on_cluster, scenario

T0 = TopicPartition("t", 0)


async def stop(cluster: MemoryCluster, broker: int) -> ControlResponse:
    """The broker asks for a controlled shutdown."""
    return await cluster.controllers[1].controlled_shutdown(
        ControlledShutdownRequest(broker, cluster.running[broker].epoch)
    )


async def test_a_new_topic_gets_leaders_and_is_announced_to_all(cluster: MemoryCluster) -> None:
    before = len(cluster.running[2].requests)
    await cluster.create_topic("t", {0: (2, 3, 1), 1: (3, 1, 2), 2: (1, 9, 2)})
    assert cluster.state("t", 0) == LeaderAndIsr(2, 0, (2, 3, 1), 1, 0)
    assert cluster.state("t", 2) == LeaderAndIsr(1, 0, (1, 2), 1, 0)
    assert kinds(cluster.running[2].requests[before:]) == ["LeaderAndIsr", "UpdateMetadata"]
    told = cluster.running[2].requests[before]
    assert isinstance(told, LeaderAndIsrRequest)
    assert all(state.is_new for state in told.partitions)
    assert {info.id for info in told.live_leaders} == {1, 2, 3}
    assert not told.is_full


async def test_a_topic_without_a_live_replica_waits_for_one(cluster: MemoryCluster) -> None:
    await cluster.create_topic("t", {0: (8, 9)})
    assert cluster.states() == {}
    await cluster.start(9)
    assert cluster.state("t") == LeaderAndIsr(9, 0, (9,), 1, 0)


async def test_a_dead_leader_is_replaced_in_the_order_of_the_assignment(cluster: MemoryCluster) -> None:
    """CTL-5, FLT-1: the first live replica in the ISR leads, dead brokers leave the ISR, one request of each kind per broker."""
    await cluster.create_topic("t", {0: (2, 3, 1), 1: (1, 2, 3), 2: (2, 1, 3), 3: (3, 1)})
    before = len(cluster.running[3].requests)
    await cluster.kill(2)
    assert cluster.state("t", 0) == LeaderAndIsr(3, 1, (3, 1), 1, 1)
    assert cluster.state("t", 1) == LeaderAndIsr(1, 1, (1, 3), 1, 1)
    assert cluster.state("t", 2) == LeaderAndIsr(1, 1, (1, 3), 1, 1)
    assert cluster.state("t", 3) == LeaderAndIsr(3, 0, (3, 1), 1, 0)
    assert kinds(cluster.running[3].requests[before:]) == ["LeaderAndIsr", "UpdateMetadata"]


@on_cluster(1, 2, 3, 4)
async def test_a_failover_is_one_leader_and_isr_for_each_broker_then_metadata_for_all(cluster: MemoryCluster) -> None:
    """CTL-5. Broker 4 has no replica and gets only the metadata."""
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


async def test_many_new_leaders_are_announced_before_other_isrs_are_written(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever an announcement names is in ZooKeeper before, and no partition is announced twice."""
    monkeypatch.setattr(broker_changes, "LEADERS_FIRST_MIN", 2)
    await cluster.create_topic("t", {p: (2, 3, 1) if p < 3 else (3, 2, 1) for p in range(10)})
    before = len(cluster.running[3].requests)
    writes = len(cluster.server.writes)
    await cluster.kill(2)
    told = cluster.running[3].requests[before:]
    assert kinds(told) == ["LeaderAndIsr", "UpdateMetadata"] * 2
    named = [{state.partition for state in request.partitions} for request in told]
    assert named == [{0, 1, 2}] * 2 + [set(range(3, 10))] * 2
    for request in told:
        for state in request.partitions:
            assert (state.leader, state.isr) == (3, (3, 1))
            assert cluster.state("t", state.partition).zk_version == state.zk_version
    multis = [ops for _, ops in cluster.server.writes[writes:] if any(op.path.endswith("/state") for op in ops)]
    assert [len(ops) for ops in multis] == [1 + 3, 1 + 7]
    assert {broker.id for broker in told[1].brokers} == {1, 3}


async def test_brokers_know_many_new_leaders_before_the_event_log_names_them(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first slice of states has its event at once, and the others after the announcement of all."""
    await cluster.create_topic("t", dict.fromkeys(range(10), (2, 3, 1)))
    monkeypatch.setattr(term, "DECISIONS_AT_ONCE", 2)
    before = len(cluster.events.rows)
    await cluster.kill(2)
    rows = cluster.events.rows[before:]
    order = [kind for kind, _ in rows if kind in ("leader_elected", "control_request_sent")]
    assert order[:2] == ["leader_elected", "control_request_sent"]
    named = [row[0] for kind, fields in rows if kind == "leader_elected" for row in fields["partitions"]]
    assert named == [f"t-{p}" for p in range(10)]


async def test_the_last_member_of_the_isr_stays_in_it_and_leads_again_when_it_returns(cluster: MemoryCluster) -> None:
    await cluster.create_topic("t", {0: (2, 3)})
    await cluster.kill(3)
    await cluster.kill(2)
    assert cluster.state("t") == LeaderAndIsr(-1, 2, (2,), 1, 2)
    await cluster.start(3)
    assert cluster.state("t") == LeaderAndIsr(-1, 2, (2,), 1, 2), "it is not in the ISR"
    await cluster.start(2)
    assert cluster.state("t") == LeaderAndIsr(2, 3, (2,), 1, 3)


@pytest.mark.parametrize(
    ("by_default", "config", "expected"),
    [
        (False, {}, LeaderAndIsr(-1, 2, (2,), 1, 2)),
        (False, {"unclean.leader.election.enable": "true"}, LeaderAndIsr(3, 3, (3,), 1, 3)),
        (True, {"unclean.leader.election.enable": "false"}, LeaderAndIsr(-1, 2, (2,), 1, 2)),
        (True, {}, LeaderAndIsr(3, 3, (3,), 1, 3)),
    ],
)
def test_the_topics_setting_decides_about_unclean_elections(
    by_default: bool, config: dict[str, str], expected: LeaderAndIsr
) -> None:
    """INV-18, when a replica returns that is not in the ISR."""

    async def play(cluster: MemoryCluster) -> None:
        await cluster.create_topic("t", {0: (2, 3)}, config)
        await cluster.kill(3)
        await cluster.kill(2)
        await cluster.start(3)
        assert cluster.state("t") == expected
        assert bool(cluster.events.of("unclean_election")) == (expected.leader == 3)

    scenario(play, unclean_leader_election_enable=by_default)


async def test_a_bounce_is_handled_as_a_failure_and_a_startup(cluster: MemoryCluster) -> None:
    """BUG-16, FLT-23; a broker with a new session in the same process looks the same (FLT-20)."""
    await cluster.create_topic("t", {0: (2, 3), 1: (2,)})
    epoch = cluster.running[2].epoch
    await cluster.bounce(2)
    assert cluster.running[2].epoch > epoch
    assert cluster.state("t", 0) == LeaderAndIsr(3, 1, (3,), 1, 1)
    assert cluster.state("t", 1) == LeaderAndIsr(2, 2, (2,), 1, 2)
    cluster.expire(3)
    await cluster.settle()
    assert cluster.state("t", 0) == LeaderAndIsr(3, 3, (3,), 1, 3)
    assert [row["bounced"] for row in cluster.events.of("brokers_changed")][-2:] == [[2], [3]]


async def test_a_new_broker_first_gets_the_whole_cluster(cluster: MemoryCluster) -> None:
    """STA-1."""
    await cluster.create_topic("t", {0: (1, 4)})
    await cluster.create_topic("u", {0: (4,)})
    await cluster.start(4)
    metadata, leadership = cluster.running[4].requests[:2]
    assert isinstance(metadata, UpdateMetadataRequest)
    assert metadata.is_full
    assert {info.id for info in metadata.brokers} == {1, 2, 3, 4}
    assert isinstance(leadership, LeaderAndIsrRequest)
    assert leadership.is_full
    assert {state.topic_partition for state in leadership.partitions} == {T0, TopicPartition("u", 0)}


async def test_the_next_controller_continues_where_the_last_one_stopped(cluster: MemoryCluster) -> None:
    """FLT-4: it elects for the partitions that the dead controller's broker led, and removes that broker from the other ISRs."""
    await cluster.create_topic("t", {0: (1, 2), 1: (2, 1), 2: (1,), 3: (2, 3)})
    await cluster.kill(1)
    assert (cluster.controller, cluster.controller_epoch) == (2, 2)
    assert cluster.state("t", 0) == LeaderAndIsr(2, 1, (2,), 2, 1)
    assert cluster.state("t", 1) == LeaderAndIsr(2, 1, (2,), 2, 1)
    assert cluster.state("t", 2) == LeaderAndIsr(-1, 1, (1,), 2, 1)
    assert cluster.state("t", 3) == LeaderAndIsr(2, 0, (2, 3), 1, 0), "nothing to do"
    assert not cluster.events.of("control_request_refused"), "a repeated epoch in a full request is not logged"


async def test_deleting_the_controller_by_hand_elects_again(cluster: MemoryCluster) -> None:
    await cluster.create_topic("t", {0: (1, 2)})
    for epoch in (2, 3, 4):
        cluster.server.remove(ControllerZNode.PATH)
        await cluster.settle()
        assert cluster.controller_epoch == epoch
        assert [c.is_active for c in cluster.controllers.values()].count(True) == 1
        assert {c.controller_id for c in cluster.controllers.values()} == {cluster.controller}


async def test_a_deposed_controller_cannot_write(cluster: MemoryCluster) -> None:
    """INV-9, BUG-8, FLT-7: somebody else raised the epoch. The next decision is refused, and not announced."""
    await cluster.create_topic("t", {0: (2, 3)})
    # Another controller, which the old one has not heard of yet.
    cluster.server.ensure(ControllerEpochZNode.PATH, b"2")
    requests = len(cluster.running[3].requests)
    before = cluster.state("t")
    cluster.crash(2)
    await cluster.until(lambda: cluster.events.of("controller_resigned"))
    assert cluster.state("t") == before
    assert len(cluster.running[3].requests) == requests
    await cluster.settle()
    assert cluster.controller_epoch == 3
    assert cluster.state("t") == LeaderAndIsr(3, 1, (3,), 3, 1)


async def test_a_controller_whose_session_expired_resigns_first(cluster: MemoryCluster) -> None:
    """STA-4, BUG-7: at once, before its broker is registered again. The others elect, and it waits."""
    await cluster.create_topic("t", {0: (1,), 1: (1, 2)})
    controller = cluster.controllers[1]
    cluster.sessions[1].expire()
    controller.on_session_expired()
    assert not controller.is_active
    response = await controller.controlled_shutdown(ControlledShutdownRequest(2, cluster.running[2].epoch))
    assert response.error is ErrorCode.NOT_CONTROLLER
    del cluster.running[1]
    await cluster.settle()
    assert cluster.controller == 2
    cluster.running[1] = cluster.disks[1]
    cluster.sessions[1].renew()
    cluster.register(1)
    controller.on_session_restored()
    await cluster.settle()
    assert controller.controller_id == 2
    assert cluster.state("t", 0) == LeaderAndIsr(1, 2, (1,), 2, 2)


async def test_an_isr_change_is_announced_to_all(cluster: MemoryCluster) -> None:
    """CTL-13: the notifications are removed, also those with invalid content."""
    await cluster.create_topic("t", {0: (2, 3, 1)})
    cluster.server.ensure(f"{IsrChangeZNode.PATH_PREFIX}0000000001", b"{rubbish")
    cluster.leader_writes_isr("t", 0, (2, 1))
    await cluster.settle()
    assert cluster.running[3].metadata[T0].isr == (2, 1)
    assert cluster.running[3].metadata[T0].zk_version == 1


async def test_a_broker_that_died_as_it_joined_the_isr_leaves_it_again(cluster: MemoryCluster) -> None:
    """INV-14."""
    await cluster.create_topic("t", {0: (2, 3, 1)})
    await cluster.kill(3)
    cluster.leader_writes_isr("t", 0, (2, 1, 3))
    await cluster.settle()
    assert cluster.state("t") == LeaderAndIsr(2, 2, (2, 1), 1, 3)


@pytest.mark.parametrize("lost", [1, 2, 3])
async def test_after_a_lost_answer_the_states_are_read_again(cluster: MemoryCluster, lost: int) -> None:
    """BUG-5, FLT-19: the write was applied. Its version is adopted, and nothing is written twice."""
    await cluster.create_topic("t", {0: (2, 3), 1: (2, 3)})
    cluster.sessions[1].lose_answers = lost
    await cluster.create_topic("u", {0: (2, 3)})
    assert cluster.state("u") == LeaderAndIsr(2, 0, (2, 3), 1, 0)
    cluster.sessions[1].lose_answers = lost
    await cluster.kill(2)
    assert cluster.state("t", 0) == LeaderAndIsr(3, 1, (3,), 1, 1)
    assert cluster.running[3].replicas[T0].zk_version == 1
    assert cluster.controller_epoch == 1


@pytest.mark.parametrize("lost", [1, 2])
@on_cluster(1)
async def test_a_broker_is_controller_although_the_answer_to_its_election_was_lost(
    cluster: MemoryCluster, lost: int
) -> None:
    cluster.sessions[1].lose_answers = lost
    cluster.server.remove(ControllerZNode.PATH)
    await cluster.settle()
    await asyncio.sleep(0.25)  # the election is looked at again
    await cluster.settle()
    assert cluster.controllers[1].is_active
    assert cluster.controller_epoch == 2


async def test_a_reaction_waits_while_zookeeper_is_away(cluster: MemoryCluster) -> None:
    """CTL-14: nothing is decided. When ZooKeeper is back, the reaction continues."""
    await cluster.create_topic("t", {0: (2, 3)})
    cluster.set_connected(1, False)
    await cluster.kill(2)
    assert cluster.state("t") == LeaderAndIsr(2, 0, (2, 3), 1, 0)
    cluster.set_connected(1, True)
    await cluster.settle()
    assert cluster.state("t") == LeaderAndIsr(3, 1, (3,), 1, 1)


async def test_controlled_shutdown_moves_leaderships_first(cluster: MemoryCluster) -> None:
    """STA-2: one LeaderAndIsr per broker. The stopping broker's replicas stop and leave the ISR."""
    await cluster.create_topic("t", {0: (2, 3, 1), 1: (2, 1), 2: (1, 2), 3: (2,), 4: (3, 1)})
    before = {b: len(broker.requests) for b, broker in cluster.running.items()}
    response = await stop(cluster, 2)
    assert response.error is ErrorCode.NONE
    assert response.partitions == (), "a partition without other replicas does not count"
    assert cluster.state("t", 0) == LeaderAndIsr(3, 1, (3, 1), 1, 1)
    assert cluster.state("t", 1) == LeaderAndIsr(1, 1, (1,), 1, 1)
    assert cluster.state("t", 2) == LeaderAndIsr(1, 1, (1,), 1, 1)
    assert cluster.state("t", 3) == LeaderAndIsr(2, 0, (2,), 1, 0)
    await cluster.settle()
    assert kinds(cluster.running[3].requests[before[3] :]) == ["LeaderAndIsr", "UpdateMetadata"]
    assert kinds(cluster.running[2].requests[before[2] :]) == ["LeaderAndIsr", "StopReplica", "UpdateMetadata"]
    assert cluster.running[2].stopped == {TopicPartition("t", p) for p in (0, 1, 2)}
    await cluster.kill(2)
    assert cluster.state("t", 3) == LeaderAndIsr(-1, 1, (2,), 1, 1)
    await cluster.start(2)
    assert cluster.state("t", 3) == LeaderAndIsr(2, 2, (2,), 1, 2)


async def test_controlled_shutdown_of_the_last_in_sync_replica(cluster: MemoryCluster) -> None:
    await cluster.create_topic("t", {0: (2, 3)})
    cluster.leader_writes_isr("t", 0, (2,))
    await cluster.settle()
    response = await stop(cluster, 2)
    assert [(e.topic, e.partition) for e in response.partitions] == [("t", 0)]
    assert cluster.state("t").leader == 2
    cluster.leader_writes_isr("t", 0, (2, 3))
    await cluster.settle()
    response = await stop(cluster, 2)
    assert response.partitions == ()
    assert cluster.state("t").leader == 3


@pytest.mark.parametrize(
    ("asked", "broker_id", "epoch_off", "error"),
    [
        (2, 1, 0, ErrorCode.NOT_CONTROLLER),
        (1, 7, 0, ErrorCode.BROKER_NOT_AVAILABLE),
        (1, 2, -1, ErrorCode.STALE_BROKER_EPOCH),
    ],
)
async def test_controlled_shutdown_is_refused(
    cluster: MemoryCluster, asked: int, broker_id: int, epoch_off: int, error: ErrorCode
) -> None:
    known = cluster.running.get(broker_id)
    request = ControlledShutdownRequest(broker_id, (known.epoch if known else 0) + epoch_off)
    assert (await cluster.controllers[asked].controlled_shutdown(request)).error is error


async def test_an_unexpected_error_ends_the_term_but_not_the_controller(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug in a reaction: the controller resigns, and the next one repeats the work."""
    await cluster.create_topic("t", {0: (2, 3)})
    failures = iter([True])

    def fail_once(ops: Sequence[Op]) -> None:
        if any(isinstance(op, SetOp) and op.path == PartitionStateZNode.path(T0) for op in ops) and next(failures, 0):
            raise RuntimeError("a bug")

    cluster.sessions[1].before_multi = fail_once
    await cluster.kill(2)
    assert cluster.state("t") == LeaderAndIsr(3, 1, (3,), 2, 1)
    assert cluster.controller == 3


@pytest.mark.parametrize("turns", range(8))
@pytest.mark.parametrize("is_electing", [False, True])
async def test_a_stop_that_is_cancelled_is_finished_by_the_next_one(
    cluster: MemoryCluster, turns: int, is_electing: bool
) -> None:
    """STA-2: a stop has a time limit, and `/controller` must not stay until the session ends."""
    if is_electing:
        cluster.server.remove(ControllerZNode.PATH)
    stopping = asyncio.create_task(cluster.controllers[1].stop())
    for _ in range(turns):
        await asyncio.sleep(0)
    stopping.cancel()
    await asyncio.gather(stopping, return_exceptions=True)
    await cluster.controllers[1].stop()
    assert not cluster.controllers[1].is_active
    await cluster.settle()
    assert (cluster.controller, cluster.controllers[2].is_active) == (2, True)


async def test_a_controller_that_stops_removes_only_its_own_znode(cluster: MemoryCluster) -> None:
    """Between its reads and its deletion another broker is elected: both nodes have version 0."""
    session = cluster.sessions[1]
    exists = session.exists

    async def exists_and_is_replaced(path: str, watch: WatchCallback | None = None) -> Stat | None:
        found = await exists(path, watch)
        if path == ControllerZNode.PATH and watch is None:
            cluster.server.remove(path)
            await cluster.until(lambda: ControllerZNode.PATH in cluster.server.nodes)
        return found

    session.exists = exists_and_is_replaced  # type: ignore[method-assign]
    await cluster.controllers[1].stop()
    await cluster.settle()
    assert (cluster.controller, cluster.controller_epoch) == (2, 2)
