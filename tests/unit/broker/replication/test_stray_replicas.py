"""Strays, i.e. replicas on disk that a full LeaderAndIsr does not name, are deleted only on evidence (LAI-6, FLT-36)."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from broker.replication.stray_replicas import StrayAction, action_for_stray
from protocol.errors import ErrorCode
from protocol.rpc.messages import LeaderAndIsrRequest, PartitionState, UpdateMetadataRequest
from protocol.types import NO_LEADER, TopicPartition
from tests.support.replica_cluster import TOPIC_ID, TP, Cluster, Node

OTHER_ID = "AAAAAAAAAAAAAAAAAAAAWA"


def state(leader: int, replicas: tuple[int, ...], isr: tuple[int, ...] = (2,)) -> PartitionState:
    return PartitionState(TP.topic, TP.partition, 1, leader, 7, isr, 3, replicas)


@pytest.mark.parametrize(
    ("own_topic_id", "is_known", "known_topic_id", "known_state", "other_topics", "action"),
    [
        (TOPIC_ID, False, None, None, (), StrayAction.SET_ASIDE),
        (None, False, None, None, (), StrayAction.SET_ASIDE),
        (TOPIC_ID, False, None, None, (TP.topic,), StrayAction.KEEP),
        (TOPIC_ID, True, OTHER_ID, state(2, (2, 3)), (), StrayAction.SET_ASIDE),
        (TOPIC_ID, True, OTHER_ID, None, (TP.topic,), StrayAction.SET_ASIDE),
        (TOPIC_ID, True, TOPIC_ID, state(2, (2, 3)), (), StrayAction.DELETE),
        (TOPIC_ID, True, TOPIC_ID, state(NO_LEADER, (2, 3)), (), StrayAction.SET_ASIDE),
        (TOPIC_ID, True, TOPIC_ID, state(2, (2, 3), isr=(2, 1)), (), StrayAction.KEEP),
        (TOPIC_ID, True, TOPIC_ID, state(2, (1, 2, 3)), (), StrayAction.KEEP),
        (TOPIC_ID, True, TOPIC_ID, None, (TP.topic,), StrayAction.KEEP),
        (None, True, TOPIC_ID, state(2, (2, 3)), (), StrayAction.SET_ASIDE),
        (TOPIC_ID, True, None, state(2, (2, 3)), (), StrayAction.SET_ASIDE),
        (TOPIC_ID, True, None, state(NO_LEADER, (2, 3)), (), StrayAction.SET_ASIDE),
        (None, True, None, None, (), StrayAction.KEEP),
    ],
)
def test_the_action_for_a_stray(
    own_topic_id: str | None,
    is_known: bool,
    known_topic_id: str | None,
    known_state: PartitionState | None,
    other_topics: tuple[str, ...],
    action: StrayAction,
) -> None:
    assert action is action_for_stray(
        TP,
        own_topic_id,
        own_id=1,
        other_topics=other_topics,
        is_known=is_known,
        known_topic_id=known_topic_id,
        state=known_state,
    )


@pytest.fixture
def node(cluster: Cluster, runner: asyncio.Runner) -> Node:
    """Broker 1, which has one record of TP. It has started again, and the controller has sent it nothing yet."""

    async def start() -> Node:
        await cluster.start(1)
        cluster.lead(1, 5, (1,))
        cluster.produce(1, "old")
        cluster.kill(1)
        return await cluster.start_broker(1)

    return runner.run(start())


def tell(
    cluster: Cluster,
    node: Node,
    states: tuple[PartitionState, ...] = (),
    topic_id: str = TOPIC_ID,
    *,
    other_topics: tuple[str, ...] = (),
    metadata_is_full: bool = True,
) -> None:
    """What a controller sends to a broker that has started: the cluster's metadata, then the broker's own replicas."""
    ids = {row.topic: topic_id for row in states}
    head = (9, cluster.controller_epoch, node.epoch)
    node.carry_out(UpdateMetadataRequest(*head, states, ids, cluster.brokers(), is_full=metadata_is_full))
    mine = tuple(row for row in states if node.id in row.replicas)
    request = LeaderAndIsrRequest(*head, mine, ids, cluster.brokers(), is_full=True, other_topics=other_topics)
    assert node.carry_out(request).error is ErrorCode.NONE


def directories(cluster: Cluster) -> list[str]:
    """The partition directories of broker 1, with the random part of a name left out."""
    found = [path.name for path in (cluster.directory / "broker-1-0").iterdir() if path.is_dir()]
    return sorted(f"{name.split('.')[0]}-{name.rpartition('-')[2]}" if "." in name else name for name in found)


@pytest.mark.parametrize("new_topic_id", [TOPIC_ID, None])
async def test_a_replica_of_a_topic_that_is_gone_is_set_aside_and_kept(
    cluster: Cluster, node: Node, new_topic_id: str | None
) -> None:
    tell(cluster, node)
    assert node.logs.get(TP) is None
    assert directories(cluster) == ["t-0-stray"]
    cluster.kill(1)
    again = await cluster.start_broker(1)
    assert again.logs.get(TP) is None, "after a restart the stray is still not a replica"
    tell(cluster, again)
    assert directories(cluster) == ["t-0-stray"], "a person decides"
    cluster.lead(1, 0, (1,), replicas=(1,), topic_id=new_topic_id)
    assert again.records() == [], "created again, even with the same id or without one, the topic starts empty"


@pytest.mark.parametrize(
    "is_doubted_by", ["unreadable", "metadata that is not whole", "an earlier controller's metadata"]
)
async def test_in_doubt_a_stray_is_kept(cluster: Cluster, node: Node, is_doubted_by: str) -> None:
    """For example, somebody has filled the topic's node with rubbish: the topic must not lose its records."""
    match is_doubted_by:
        case "unreadable":
            tell(cluster, node, other_topics=("t",))
        case "metadata that is not whole":
            tell(cluster, node, metadata_is_full=False)
        case _:
            tell(cluster, node, other_topics=("t",))
            request = LeaderAndIsrRequest(9, cluster.controller_epoch + 1, node.epoch, (), {}, (), is_full=True)
            node.carry_out(request)
    assert node.logs.get(TP) is not None
    cluster.controller_epoch += 1
    cluster.lead(1, 6, (1,), replicas=(1,))
    assert node.records() == ["old"]


async def test_the_replica_of_an_earlier_topic_of_the_same_name_is_set_aside(cluster: Cluster, node: Node) -> None:
    """FLT-36: the new topic has no replica on this broker, so nothing else would ever look at the old one."""
    tell(cluster, node, (state(2, (2, 3)),), OTHER_ID)
    assert node.logs.get(TP) is None
    assert directories(cluster) == ["t-0-stray"]


async def test_a_replica_that_was_reassigned_while_its_broker_was_away_is_deleted(cluster: Cluster, node: Node) -> None:
    """CTL-10 step 9 could not reach it; others lead the partition without it."""
    tell(cluster, node, (state(2, (2, 3)),))
    assert node.logs.get(TP) is None
    assert node.manager.partitions.get(TP) is None


def copies_in(log_dir: str) -> list[Path]:
    return [path for path in Path(log_dir).iterdir() if path.name.startswith(str(TP))]


@pytest.mark.parametrize("is_known", [False, True])
async def test_a_copy_whose_log_is_gone_goes_with_its_topic(cluster: Cluster, is_known: bool) -> None:
    """Both were removed, and then the power failed: the volume of the copy has lost that. Nobody would look at the copy again."""
    cluster.disks = 2
    moving = await cluster.start_led(1)
    current = moving.logs.get(TP)
    assert current is not None
    (target,) = [path for path in moving.logs.directories if path != current.log_dir]
    moving.logs.make_future(TP, target)
    cluster.kill(1)
    shutil.rmtree(current.directory)
    again = await cluster.start_broker(1)
    assert again.logs.futures.get(TP) is not None
    tell(cluster, again, (state(1, (1,), isr=(1,)),) if is_known else ())
    assert (again.logs.futures.get(TP) is not None) is is_known
    await again.logs.upkeep.removals.wait()
    assert bool(copies_in(target)) is is_known


async def test_named_replicas_are_never_strays(cluster: Cluster, node: Node) -> None:
    tell(cluster, node, (state(1, (1, 2), isr=(1, 2)), PartitionState("u", 0, 1, 2, 7, (2,), 3, (2,))))
    assert node.records() == ["old"]
    assert node.logs.get(TopicPartition("u", 0)) is None


async def test_waiters_of_a_hosted_stray_are_answered(cluster: Cluster, node: Node) -> None:
    """BUG-10: the controller changed, and the topic's node was removed by hand in between."""
    cluster.lead(1, 6, (1, 2))
    answer = cluster.produce(1, "waits")
    assert not answer
    cluster.controller_epoch += 1
    tell(cluster, node)
    assert [result.error for result in answer] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert directories(cluster) == ["t-0-stray"]
