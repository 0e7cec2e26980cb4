"""Throttled replicas at both sides of a fetch (KIP-73): only replicas that catch up are delayed."""

from __future__ import annotations

import asyncio

import pytest

from broker.replication.following.followed_partitions import Phase
from broker.settings.config import LONG_MAX, BrokerConfig
from protocol.errors import ErrorCode
from tests.support.replica_cluster import TP, Cluster, values_of

LEADER_LIST = "leader.replication.throttled.replicas"
FOLLOWER_LIST = "follower.replication.throttled.replicas"
RATE = 100
BIG = "x" * 500


def throttle(cluster: Cluster, broker: int, *, leader: int = LONG_MAX, follower: int = LONG_MAX) -> None:
    config = BrokerConfig(
        broker_id=broker, leader_replication_throttled_rate=leader, follower_replication_throttled_rate=follower
    )
    cluster.nodes[broker].manager.update_throttles(config)


async def start(cluster: Cluster, *, leader: str = "", follower: str = "") -> None:
    """Broker 1 leads, 2 is in sync, 3 is not and misses two big records. 1 and 3 have the rate.

    `leader` and `follower` are the topic's lists of throttled replicas.
    """
    await cluster.start_led(1, 2, 3, isr=(1, 2), overrides={LEADER_LIST: leader, FOLLOWER_LIST: follower})
    await cluster.replicate(2, rounds=2)
    for _ in range(2):
        cluster.produce(1, BIG, acks=1)
    throttle(cluster, 1, leader=RATE)
    throttle(cluster, 3, follower=RATE)


@pytest.mark.parametrize(("replicas", "is_throttled"), [("*", True), ("0:1", True), ("0:3", False), ("1:1", False)])
async def test_the_leader_answers_without_data_while_the_rate_is_exceeded(
    cluster: Cluster, replicas: str, is_throttled: bool
) -> None:
    """The leader's list names the leader's replica. The first answer is sent, and later answers wait for its bytes."""
    await start(cluster, leader=replicas)
    first = cluster.follower_fetch(1, 3, 0, epoch=0)
    assert values_of(first[0]) == [BIG, BIG]
    again = cluster.follower_fetch(1, 3, 0, epoch=0)
    assert again[0].error == ErrorCode.NONE
    assert values_of(again[0]) == ([] if is_throttled else [BIG, BIG])
    cluster.pass_time(20)
    assert values_of(cluster.follower_fetch(1, 3, 0, epoch=0)[0]) == [BIG, BIG]


async def test_a_throttled_fetch_is_parked_and_answered_at_its_timeout(cluster: Cluster) -> None:
    """No busy loop: the fetch is parked like a fetch that finds nothing, and reads again at its time-out."""
    await start(cluster, leader="*")
    cluster.follower_fetch(1, 3, 0, epoch=0)
    waiting = cluster.follower_fetch(1, 3, 0, epoch=0, max_wait_ms=500)
    cluster.produce(1, "more", acks=1)
    cluster.time.turn()
    assert waiting == []
    cluster.pass_time(0.5)
    assert values_of(waiting[0]) == []
    waiting = cluster.follower_fetch(1, 3, 0, epoch=0, max_wait_ms=20_000)
    cluster.pass_time(19.9)
    assert waiting == []
    cluster.pass_time(0.2)
    assert values_of(waiting[0])[-1] == "more"


async def test_a_follower_in_sync_is_not_throttled(cluster: Cluster) -> None:
    """acks=all is not delayed, and the copied bytes are not counted."""
    await start(cluster, leader="*", follower="*")
    throttle(cluster, 1, leader=0)
    throttle(cluster, 2, follower=0)
    answer = cluster.produce(1, "all")
    await cluster.replicate(2, rounds=3)
    assert answer[0].error == ErrorCode.NONE
    assert cluster.nodes[2].records()[-1] == "all"
    assert values_of(cluster.follower_fetch(1, 3, 0, epoch=0)[0]) == []
    throttle(cluster, 1, leader=RATE)
    assert values_of(cluster.follower_fetch(1, 3, 0, epoch=0)[0]) != []


@pytest.mark.parametrize(("replicas", "is_throttled"), [("*", True), ("0:3", True), ("0:1", False)])
async def test_the_follower_does_not_fetch_while_the_rate_is_exceeded(
    cluster: Cluster, replicas: str, is_throttled: bool
) -> None:
    """The follower's list names the follower's replica."""
    await start(cluster, follower=replicas)
    await cluster.replicate(3)
    assert len(cluster.nodes[3].records()) == 2
    cluster.isr.proposals.clear()
    for _ in range(3):
        cluster.produce(1, BIG, acks=1)
    # Behind again, and out of sync as far as it knows.
    (fetcher,) = cluster.nodes[3].manager.fetchers()
    fetcher._followed.move(fetcher._followed[TP], Phase.CATCHING_UP)
    await cluster.replicate(3)
    assert len(cluster.nodes[3].records()) == (2 if is_throttled else 5)
    cluster.pass_time(15)
    await cluster.replicate(3)
    assert len(cluster.nodes[3].records()) == 5


async def test_a_member_of_the_isr_is_not_throttled_before_its_first_fetch(cluster: Cluster) -> None:
    """With rate 0 and a new leader, the ISR must not shrink."""
    await start(cluster, follower="*")
    throttle(cluster, 2, follower=0)
    cluster.lead(1, 1, (1, 2), overrides={FOLLOWER_LIST: "*", LEADER_LIST: "*"})
    answer = cluster.produce(1, "all")
    await cluster.replicate(2, rounds=3)
    assert answer[0].error == ErrorCode.NONE


async def test_the_fetchers_loop_sleeps_while_it_may_not_fetch(live_cluster: Cluster) -> None:
    cluster = await live_cluster.start(1, 2)
    throttle(cluster, 2, follower=0)
    cluster.lead(1, 0, (1,), overrides={FOLLOWER_LIST: "*"})
    cluster.produce(1, "a")
    (fetcher,) = cluster.nodes[2].manager.fetchers()
    rounds = 0
    fetch_once = fetcher.fetch_once

    async def counted() -> None:
        nonlocal rounds
        rounds += 1
        await fetch_once()

    fetcher.fetch_once = counted  # type: ignore[method-assign]
    for _ in range(200):
        cluster.time.turn()
        await asyncio.sleep(0)
    assert rounds <= 1
    assert cluster.nodes[2].records() == []
    for node in cluster.nodes.values():
        await node.manager.shutdown()
