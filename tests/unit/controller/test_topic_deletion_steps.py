"""A topic's deletion is completed, at whatever step the controller dies (CTL-9, CTL-2, INV-26, FLT-36).

Every multi that a deletion persists, and every answer to a StopReplica, is a moment for the controller to die: before it is
applied, or after it is applied and before anybody has heard.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from controller import cluster_store
from protocol.network_client import Disconnected
from protocol.rpc import framing
from protocol.rpc.messages import StopReplicaRequest
from protocol.types import Buffer, TopicPartition
from protocol.zk.session import CheckOp, DeleteOp, Op
from protocol.zk.znodes import ConfigZNode, DeleteTopicZNode, TopicZNode
from tests.support.memory_cluster import MemoryCluster, scenario
from tests.support.persisted_steps import (
    MOMENTS,
    Disturb,
    PersistedSteps,
    at_multi,
    at_stop,
    depose_controller,
    kill_controller,
    lose_answers,
)

ID_1, ID_2 = "AAAAAAAAAAAAAAAAAAAAAA", "BAAAAAAAAAAAAAAAAAAAAA"
ASSIGNMENT = {0: (2, 3), 1: (1, 2), 2: (3, 1)}
PERSISTED_STEPS = 5
"""3 states, 3 partition nodes and the one above them in multis of 2 deletions, then the last three nodes in one."""
ANSWERS = 3


def nodes_of(cluster: MemoryCluster, topic: str) -> list[str]:
    bases = (TopicZNode.path(topic), ConfigZNode.path("topics", topic), DeleteTopicZNode.path(topic))
    return [n for n in cluster.server.nodes if any(n == base or n.startswith(f"{base}/") for base in bases)]


class Deletions(PersistedSteps):
    """Counts the multis that delete nodes of a topic, and checks INV-26 at each."""

    def __init__(self, cluster: MemoryCluster) -> None:
        super().__init__(cluster)
        self.broken: list[str] = []
        """Records a broken rule. An assertion here would only make the controller resign."""

    def kind_of(self, ops: Sequence[Op]) -> Sequence[Op] | None:
        return ops if any(isinstance(op, DeleteOp) and op.path.startswith("/brokers/topics/") for op in ops) else None

    def check_multi(self, ops: Sequence[Op]) -> None:
        if not isinstance(ops[0], CheckOp):
            self.broken.append(f"INV-9: {ops} is not fenced")
        for op in ops[1:]:
            topic = op.path.split("/")[3]
            holders = {b.id for b in self.cluster.disks.values() for tp in b.replicas if tp.topic == topic}
            if holders:
                self.broken.append(f"INV-26: {op.path} is removed, brokers {holders} still have replicas")


def finished_after(disturb: Disturb) -> Deletions:
    """Deletes a topic of three partitions on three brokers, with the faults of `disturb`. Afterwards everything must be deleted."""
    watched: list[Deletions] = []

    async def play(cluster: MemoryCluster) -> None:
        cluster.server.ensure(ConfigZNode.path("topics", "t"), ConfigZNode.encode({"retention.ms": "1"}))
        cluster.put_topic("t", ASSIGNMENT, ID_1)
        await cluster.create_topic("other", {0: (1, 2, 3)})
        deletions = Deletions(cluster)
        watched.append(deletions)
        disturb(cluster, deletions)
        cluster.server.ensure(DeleteTopicZNode.path("t"))
        await cluster.settle()
        for broker_id in (1, 2, 3):
            if broker_id not in cluster.running:
                await cluster.start(broker_id)
        await cluster.settle()
        assert deletions.broken == []
        assert nodes_of(cluster, "t") == []
        for broker in cluster.running.values():
            assert all(tp.topic == "other" for tp in (*broker.replicas, *broker.metadata)), broker.id
        cluster.put_topic("t", ASSIGNMENT, ID_2)
        await cluster.settle()
        assert [cluster.state("t", p).leader_epoch for p in ASSIGNMENT] == [0, 0, 0]
        assert TopicPartition("t", 0) in cluster.running[1].metadata

    scenario(play)
    return watched[0]


@pytest.fixture(autouse=True)
def small_multis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_store, "BATCH", 2)


def test_the_steps_of_an_undisturbed_deletion() -> None:
    """CTL-9: metadata first, one StopReplica(delete) for each broker, then the nodes in bounded multis, the request last."""
    deletions = finished_after(lambda cluster, deletions: None)
    assert len(deletions.multis) == PERSISTED_STEPS
    assert all(len(ops) <= 4 for ops in deletions.multis)
    assert [op.path for op in deletions.multis[-1][1:]] == [
        "/brokers/topics/t",
        "/config/topics/t",
        "/admin/delete_topics/t",
    ]
    assert sorted(broker for broker, _ in deletions.stops) == [1, 2, 3]
    for _, request in deletions.stops:
        assert len(request.partitions) == 2
        assert all(stop.delete and stop.leader_epoch == -2 for stop in request.partitions)
        assert request.topic_ids == {"t": ID_1}
    for broker in deletions.cluster.disks.values():
        kinds = [type(request).__name__ for request in broker.requests]
        at = kinds.index("StopReplicaRequest")
        assert kinds[at - 1] == "UpdateMetadataRequest"


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("step", range(PERSISTED_STEPS))
def test_the_controller_dies_at_a_persisted_step(step: int, moment: str) -> None:
    """CTL-9 step 6 at each of its multis."""
    assert finished_after(at_multi(step, moment, kill_controller)).cluster.controller_epoch == 2


@pytest.mark.parametrize("step", range(PERSISTED_STEPS))
def test_every_controller_dies_at_the_same_step_twice(step: int) -> None:
    def disturb(cluster: MemoryCluster, deletions: Deletions) -> None:
        kills: list[int] = []

        def act(index: int, when: str) -> None:
            if index % (step + 1) == step and when == "after" and len(kills) < 2:
                kills.append(index)
                kill_controller(cluster)

        deletions.at_multi = act

    finished_after(disturb)


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("answer", range(ANSWERS))
def test_the_controller_dies_at_an_answer(answer: int, moment: str) -> None:
    """CTL-9 steps 4 and 5: the request is lost with the controller, or the replicas are deleted and the answer is lost."""
    assert finished_after(at_stop(answer, moment, kill_controller)).cluster.controller_epoch == 2


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("broker_id", [2, 3])
@pytest.mark.parametrize("answer", range(ANSWERS))
def test_a_broker_dies_at_an_answer(answer: int, broker_id: int, moment: str) -> None:
    """CTL-9: the topic becomes ineligible. Its deletion continues when the broker is back."""

    def disturb(cluster: MemoryCluster, deletions: Deletions) -> None:
        def act(index: int, when: str) -> None:
            if (index, when) == (answer, moment):
                cluster.crash(broker_id)
                if when == "before" and deletions.stops[index][0] == broker_id:
                    raise Disconnected("the request is lost")

        deletions.at_stop = act

    finished_after(disturb)


@pytest.mark.parametrize("step", range(PERSISTED_STEPS))
def test_an_answer_of_zookeeper_is_lost_at_each_step(step: int) -> None:
    """BUG-5: the write was applied. The retry must not fail, and must not touch nodes created since then."""
    finished_after(at_multi(step, "before", lose_answers))


def test_a_deposed_controller_removes_nothing() -> None:
    """INV-9, FLT-7: another controller is elected just before it removes the nodes."""
    finished_after(at_multi(0, "before", depose_controller))


async def test_a_topic_created_again_while_the_last_answer_is_lost_is_kept(cluster: MemoryCluster) -> None:
    """FLT-36: the retry of the last multi finds a topic of that name with another id."""
    cluster.put_topic("t", ASSIGNMENT, ID_1)
    await cluster.settle()
    deletions = Deletions(cluster)

    def at_multi(index: int, when: str) -> None:
        if deletions.multis[index][-1].path == DeleteTopicZNode.path("t"):
            if when == "before":
                lose_answers(cluster)
            else:
                cluster.put_topic("t", {0: (2, 3)}, ID_2)

    deletions.at_multi = at_multi
    cluster.server.ensure(DeleteTopicZNode.path("t"))
    await cluster.settle()
    assert cluster.state("t").leader == 2
    assert cluster.running[3].metadata.keys() == {TopicPartition("t", 0)}


async def test_a_late_answer_does_not_confirm_the_deletion_of_the_next_topic(cluster: MemoryCluster) -> None:
    """INV-26, FLT-36: while broker 3 is slow to answer, a person removes the nodes, and another topic of that name is deleted."""
    cluster.put_topic("t", {0: (1, 3)}, ID_1)
    await cluster.settle()
    arrived, send = [asyncio.Event() for _ in range(2)], cluster.network.send
    go_on = [asyncio.Event() for _ in range(2)]

    async def send_slowly(node: tuple[str, int], encode: Callable[[int], Sequence[Buffer]]) -> memoryview:
        _, request = framing.parse_request(b"".join(encode(7)))
        if node[1] != 3 or not isinstance(request, StopReplicaRequest) or not request.partitions[0].delete:
            return await send(node, encode)
        at = [request.topic_ids["t"] == topic_id for topic_id in (ID_1, ID_2)].index(True)
        answer = (
            await send(node, encode) if at == 0 else None
        )  # the second request arrives late, the first answer returns late
        arrived[at].set()
        await go_on[at].wait()
        return answer if answer is not None else await send(node, encode)

    cluster.network.send = send_slowly  # type: ignore[method-assign]
    cluster.server.ensure(DeleteTopicZNode.path("t"))
    await arrived[0].wait()
    cluster.server.remove(TopicZNode.path("t"))
    await cluster.settle()
    cluster.put_topic("t", {0: (1, 3)}, ID_2)
    await cluster.settle()
    cluster.server.ensure(DeleteTopicZNode.path("t"))
    await cluster.settle()
    go_on[0].set()
    await arrived[1].wait()
    await cluster.settle()
    assert TopicPartition("t", 0) in cluster.running[3].replicas
    assert nodes_of(cluster, "t") != []
    go_on[1].set()
    await cluster.settle()
    assert (nodes_of(cluster, "t"), cluster.running[3].replicas) == ([], {})
