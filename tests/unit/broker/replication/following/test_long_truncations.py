"""A follower cuts a log of many segments in parts; in each pause anything may happen to the replica (REP-6, NET-4, BUG-12)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.process.loop_budget import LoopBudget
from broker.replication.following.followed_partitions import Phase
from broker.replication.following.replica_fetcher import ReplicaFetcher
from broker.replication.partition import Role
from broker.storage.log import SEGMENTS_CUT_AT_ONCE
from protocol.rpc.messages import StopReplicaPartition, StopReplicaRequest
from tests.support.logs import check, everything
from tests.support.replica_cluster import TOPIC_ID, TP, Cluster, Node, play

SMALL = {"segment.bytes": "160"}
"""Two records to a segment."""


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[int], object]]:
    """What is called with the number of each pause, from 1."""
    acts: list[Callable[[int], object]] = []
    numbers = itertools.count(1)

    async def pause(budget: LoopBudget) -> None:
        number = next(numbers)
        for act in acts:
            act(number)

    monkeypatch.setattr(LoopBudget, "pause", pause)
    return acts


def fetcher_of(node: Node) -> ReplicaFetcher:
    (fetcher,) = node.manager.fetchers()
    return fetcher


async def diverged(cluster: Cluster, *, keeps: int = 3) -> Node:
    """Broker 2 has led without a follower, and now follows broker 1: all its records but the first `keeps` are to be cut."""
    await cluster.start_led(1, 2, overrides=SMALL)
    for number in range(keeps):
        cluster.produce(1, f"both {number}", acks=1)
    await cluster.replicate(rounds=2)
    cluster.lead(2, 1, (2, 1), to=(2,), overrides=SMALL)
    for number in range(60):
        cluster.produce(2, f"only 2 has {number}", acks=1, producer_id=7, producer_epoch=0, base_sequence=number)
    cluster.lead(1, 2, (1, 2), overrides=SMALL)
    cluster.produce(1, "later", acks=1)
    assert len(cluster.nodes[2].log().segments) > 5 * SEGMENTS_CUT_AT_ONCE
    return cluster.nodes[2]


async def behind(cluster: Cluster) -> Node:
    """Broker 2 ends before the first record that broker 1 still has."""
    await cluster.start_led(1, 2, isr=(1,), overrides=SMALL)
    for number in range(60):
        cluster.produce(1, f"deleted {number}", acks=1)
        await cluster.replicate(2, rounds=2)
    cluster.cuts = {(2, 1)}
    for number in range(10):
        cluster.produce(1, f"later {number}", acks=1)
    cluster.nodes[1].log().increment_log_start(65)
    cluster.nodes[1].log().delete_old_segments(70, 0)
    cluster.cuts = set()
    assert len(cluster.nodes[2].log().segments) > 5 * SEGMENTS_CUT_AT_ONCE
    return cluster.nodes[2]


SITUATIONS = {"diverged": diverged, "behind": behind}


async def settled(cluster: Cluster) -> None:
    cluster.produce(1, "last", acks=1)
    await cluster.settle()
    follower, leader = cluster.nodes[2], cluster.nodes[1]
    assert everything(follower.log()) == everything(leader.log())
    check(follower.log())
    assert follower.log().leader_epochs.entries == leader.log().leader_epochs.entries


@pytest.mark.parametrize("name", SITUATIONS)
async def test_a_few_segments_are_dropped_between_two_pauses(
    cluster: Cluster, pauses: list[Callable[[int], object]], name: str
) -> None:
    follower = await SITUATIONS[name](cluster)
    log = follower.log()
    segments = [len(log.segments)]
    pauses.append(lambda number: segments.append(len(log.segments)))
    await settled(cluster)
    dropped = [before - after for before, after in itertools.pairwise(segments) if after < before]
    assert max(dropped) == SEGMENTS_CUT_AT_ONCE
    assert len(dropped) > 5


async def test_a_fetch_does_not_wait_for_a_long_cut(cluster: Cluster) -> None:
    """Other partitions are copied meanwhile: what an answer says is done by the other loop."""
    follower = await behind(cluster)
    fetcher, log = fetcher_of(follower), follower.log()
    cluster.change_answer = lambda tp, data: data._replace(error=0, diverging_epoch=(0, 5))
    await fetcher.fetch_once()
    assert (fetcher.phase_of(TP), log.log_end_offset) == (Phase.TRUNCATING, 60)
    await fetcher.truncate_once()
    assert (fetcher.phase_of(TP), log.log_end_offset) == (Phase.WAITING, 60), "the leader was asked"
    cluster.change_answer = lambda tp, data: data
    await fetcher.fetch_once()
    assert (fetcher.phase_of(TP), log.log_end_offset) == (Phase.TRUNCATING, 60)
    await fetcher.truncate_once()
    assert log.log_end_offset == 65


def led_again(cluster: Cluster) -> None:
    cluster.lead(1, 5, (1, 2), overrides=SMALL)


def leads_itself(cluster: Cluster) -> None:
    cluster.lead(2, 5, (2, 1), overrides=SMALL)
    cluster.produce(2, "it leads", acks=1)


def deleted(cluster: Cluster) -> None:
    node = cluster.nodes[2]
    request = StopReplicaRequest(9, 1, node.epoch, (StopReplicaPartition(TP.topic, 0, -2, True),), {TP.topic: TOPIC_ID})
    node.carry_out(request)


def cut(cluster: Cluster) -> None:
    partition = cluster.nodes[2].partition()
    if partition.role is Role.FOLLOWER and partition.log is not None and partition.log.log_end_offset > 4:
        partition.truncate(partition.log.log_end_offset - 1)


def moved(cluster: Cluster) -> None:
    """To the other log directory (KIP-113)."""
    node = cluster.nodes[2]
    log = node.log()
    (other,) = (path for path in node.logs.directories if path != log.log_dir)
    copy = node.logs.make_future(TP, other)
    if log.log_end_offset > 0:
        copy.append_as_follower(memoryview(everything(log)))
    swapped, _ = node.logs.swap(TP)
    node.partition().replace_log(swapped)


@pytest.mark.usefixtures("fetchers_are_driven_by_hand")
@pytest.mark.parametrize("change", [led_again, leads_itself, deleted, cut, moved])
@pytest.mark.parametrize("name", SITUATIONS)
def test_the_replica_changes_in_a_pause(
    tmp_path: Path, pauses: list[Callable[[int], object]], name: str, change: Callable[[Cluster], None]
) -> None:
    async def scenario(cluster: Cluster, at: int) -> bool:
        cluster.disks = 2
        await SITUATIONS[name](cluster)
        changes = 0

        def act(number: int) -> None:
            nonlocal changes, at
            at -= 1
            if at == 0:
                changes += 1
                change(cluster)

        pauses[:] = [act]
        for _ in range(3):
            await cluster.replicate(2)
        pauses.clear()
        if change is deleted:
            assert cluster.nodes[2].logs.offline_dirs == ()
            return changes > 0
        if change is leads_itself and changes:
            assert everything(cluster.nodes[2].log()).endswith(b"it leads\0")
        cluster.lead(1, 9, (1, 2), overrides=SMALL)
        cluster.pass_time(1.0)
        await settled(cluster)
        return changes > 0

    for at in itertools.count(1, 5):
        has_changed = False

        async def numbered(cluster: Cluster, at: int = at) -> None:
            nonlocal has_changed
            has_changed = await scenario(cluster, at)

        play(tmp_path / str(at), numbered)
        if not has_changed:
            break
    assert at > 8
