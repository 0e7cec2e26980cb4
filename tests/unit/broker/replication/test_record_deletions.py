"""DeleteRecords: the log start moves at the leader, then at all live replicas, then it is answered (LOG-1)."""

from __future__ import annotations

import asyncio

import pytest

from broker.replication.record_deletions import RecordDeletion
from protocol.errors import ErrorCode
from protocol.types import TopicPartition
from tests.support.replica_cluster import TP, Cluster

DONE = ErrorCode.NONE


@pytest.fixture
def filled(cluster: Cluster, runner: asyncio.Runner) -> Cluster:
    """Broker 1 leads. All three brokers have five records and know that they are committed."""
    runner.run(cluster.start_led(1, 2, 3))
    for number in range(5):
        cluster.produce(1, str(number))
    runner.run(cluster.replicate(2, 3, rounds=3))
    return cluster


def delete(cluster: Cluster, broker: int, offset: int, timeout_s: float = 5.0) -> list[RecordDeletion]:
    """The list gets the answer when there is one."""
    answer: list[RecordDeletion] = []
    deletions = cluster.nodes[broker].manager.record_deletions
    deletions.delete({TP: offset}, timeout_s, lambda results: answer.extend(results.values()))
    return answer


def starts(cluster: Cluster) -> dict[int, int]:
    return {broker: node.partition().log.log_start_offset for broker, node in cluster.nodes.items()}


async def test_all_live_replicas_follow_before_the_answer(filled: Cluster) -> None:
    answer = delete(filled, 1, 3)
    assert starts(filled) == {1: 3, 2: 0, 3: 0}
    await filled.replicate(2, 3)  # they hear of it
    assert starts(filled) == {1: 3, 2: 3, 3: 3}
    assert answer == []
    await filled.replicate(2)
    assert answer == []
    await filled.replicate(3)
    assert answer == [RecordDeletion(DONE, 3)]
    assert [node.records() for node in filled.nodes.values()] == [["3", "4"]] * 3
    assert len(filled.nodes[1].manager.record_deletions) == 0


async def test_up_to_the_high_watermark_and_below_the_start(filled: Cluster) -> None:
    """LOG-1: below the start it succeeds, -1 is the high watermark."""
    everything = delete(filled, 1, -1)
    await filled.replicate(2, 3, rounds=2)
    assert everything == [RecordDeletion(DONE, 5)]
    assert delete(filled, 1, 2) == [RecordDeletion(DONE, 5)]
    filled.produce(1, "more")
    await filled.replicate(2, 3, rounds=2)
    assert filled.nodes[2].records() == ["more"]


@pytest.mark.parametrize(
    ("broker", "offset", "error"),
    [
        (1, 6, ErrorCode.OFFSET_OUT_OF_RANGE),
        (1, -2, ErrorCode.OFFSET_OUT_OF_RANGE),
        (2, 1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ],
)
async def test_refusals(filled: Cluster, broker: int, offset: int, error: ErrorCode) -> None:
    filled.produce(1, "not yet committed")
    assert delete(filled, broker, offset) == [RecordDeletion(error, -1)]
    assert starts(filled) == {1: 0, 2: 0, 3: 0}


async def test_a_compacted_topic_keeps_its_records(cluster: Cluster) -> None:
    await cluster.start_led(1, overrides={"cleanup.policy": "compact"})
    assert delete(cluster, 1, 0) == [RecordDeletion(ErrorCode.POLICY_VIOLATION, -1)]


async def test_an_unknown_partition(cluster: Cluster) -> None:
    await cluster.start(1)
    answer: dict[TopicPartition, RecordDeletion] = {}
    cluster.nodes[1].manager.record_deletions.delete({TP: 0}, 1.0, answer.update)
    assert answer == {TP: RecordDeletion(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)}


async def test_a_deletion_does_not_wait_for_dead_replicas(filled: Cluster) -> None:
    answer = delete(filled, 1, 3)
    await filled.replicate(2, rounds=2)
    assert answer == []
    filled.kill(3)
    assert answer == [RecordDeletion(DONE, 3)]


async def test_a_live_replica_that_does_not_fetch_causes_a_timeout(filled: Cluster) -> None:
    """The records stay deleted at the leader. The answer is REQUEST_TIMED_OUT, with the low watermark so far."""
    answer = delete(filled, 1, 3, timeout_s=2.0)
    await filled.replicate(2, rounds=2)
    filled.time.advance(2.0)
    assert answer == [RecordDeletion(ErrorCode.REQUEST_TIMED_OUT, 0)]
    assert starts(filled) == {1: 3, 2: 3, 3: 0}


async def test_a_lost_leadership_answers_the_deletion(filled: Cluster) -> None:
    answer = delete(filled, 1, 3)
    filled.lead(2, 1, (1, 2, 3))
    assert answer == [RecordDeletion(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]


async def test_a_deletion_continues_in_a_new_epoch_of_the_same_leader(filled: Cluster) -> None:
    """Fetches of an earlier epoch no longer count (INV-12): the deletion waits for the followers again."""
    answer = delete(filled, 1, 3)
    await filled.replicate(2, rounds=2)
    filled.lead(1, 1, (1, 2, 3))
    await filled.replicate(3, rounds=2)
    assert answer == []
    await filled.replicate(2, rounds=2)
    assert answer == [RecordDeletion(DONE, 3)]


async def test_a_leader_that_stood_still_acknowledges_no_deletion(filled: Cluster) -> None:
    """FLT-6."""
    filled.nodes[1].lease.tick(filled.nodes[1].epoch)
    filled.time.advance(60.0)
    assert filled.nodes[1].lease.is_suspect()
    assert delete(filled, 1, 3) == [RecordDeletion(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]


async def test_parked_fetches_of_followers_are_answered_at_once(filled: Cluster) -> None:
    """Otherwise the deletion would wait until the fetches time out."""
    parked = [filled.follower_fetch(1, follower, 5, epoch=0, max_wait_ms=500) for follower in (2, 3)]
    consumer = filled.consume(1, 5, max_wait_ms=500)
    assert parked == [[], []]
    answer = delete(filled, 1, 3)
    assert [[data.log_start_offset for data in fetch] for fetch in parked] == [[3], [3]]
    assert consumer == []
    assert answer == []
    await filled.replicate(2, 3, rounds=2)
    assert answer == [RecordDeletion(DONE, 3)]
