"""Idempotent producers over two or three brokers in one process: LOG-5, INV-20, BUG-11, BUG-24."""

from __future__ import annotations

import uuid

import pytest

from broker.replication.appending.refused_batches import GAP_S
from protocol.errors import ErrorCode
from protocol.kafka.produce_codec import ProducePartitionResult
from protocol.rpc.messages import StopReplicaPartition, StopReplicaRequest
from protocol.topic_ids import topic_id_text
from tests.support.logs import produced
from tests.support.replica_cluster import TOPIC_ID, TP, Cluster

PRODUCER = 7


def send(
    cluster: Cluster, broker: int, sequence: int, *, acks: int = -1, epoch: int = 0
) -> list[ProducePartitionResult]:
    """One record; the list gets the result when there is one."""
    answer: list[ProducePartitionResult] = []
    batch = memoryview(produced(PRODUCER, sequence, 1, epoch=epoch))
    cluster.nodes[broker].manager.appends.append(acks, 5000, [(TP, batch)], answer.extend)
    return answer


def offsets(*answers: list[ProducePartitionResult]) -> list[list[int]]:
    return [[result.base_offset for result in answer] for answer in answers]


async def test_bug_11_a_duplicate_is_not_acknowledged_below_the_high_watermark(pair: Cluster) -> None:
    """The producer repeats a batch that only the leader has. An answer would acknowledge a batch that the next leader does not have."""
    await pair.replicate(2)
    first = send(pair, 1, 0)
    again = send(pair, 1, 0)
    assert (first, again) == ([], [])
    await pair.replicate(2)  # it gets the record
    assert again == []
    await pair.replicate(2)  # it reports that it has it
    assert offsets(first, again) == [[0], [0]]
    assert again[0].error == ErrorCode.NONE
    third = send(pair, 1, 0)
    assert offsets(third) == [[0]]  # below the HW: at once


async def test_bug_11_a_duplicate_behind_other_requests_is_answered_in_order(pair: Cluster) -> None:
    await pair.replicate(2)
    answers = [send(pair, 1, number) for number in range(3)]
    again = send(pair, 1, 1)
    await pair.replicate(2)
    pair.follower_fetch(1, 2, 2, epoch=0)
    assert offsets(*answers, again) == [[0], [1], [], []]
    pair.follower_fetch(1, 2, 3, epoch=0)
    assert offsets(*answers, again) == [[0], [1], [2], [1]]
    assert pair.nodes[1].manager.waiting()[0] == 0


async def test_bug_11_a_lost_leadership_answers_the_duplicate_too(pair: Cluster) -> None:
    """BUG-10: the batch is cut; the same producer then writes it at the new leader, once."""
    await pair.replicate(2)
    send(pair, 1, 0)
    again = send(pair, 1, 0)
    pair.lead(2, 1, (1, 2))
    assert again[0].error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    await pair.replicate(1)
    answer = send(pair, 2, 0)
    await pair.replicate(1, rounds=2)
    assert offsets(answer) == [[0]]
    assert len(pair.nodes[1].records()) == len(pair.nodes[2].records()) == 1


@pytest.mark.parametrize("acks", [0, 1])
async def test_other_acks_get_the_first_offset_at_once(pair: Cluster, acks: int) -> None:
    for number in range(3):
        send(pair, 1, number, acks=acks)
    assert offsets(*(send(pair, 1, number, acks=acks) for number in (1, 0, 2))) == [[1], [0], [2]]
    assert send(pair, 1, 4, acks=acks)[0].error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert len(pair.nodes[1].records()) == 3


async def test_bug_24_the_next_leader_knows_replicated_batches_and_forgets_those_that_it_cuts(pair: Cluster) -> None:
    """INV-20: through two failovers, every batch is in the log once, and answered with its first offset."""
    await pair.replicate(2)
    for number in range(3):
        send(pair, 1, number)
    await pair.replicate(2, rounds=2)
    send(pair, 1, 3)  # only the leader has this one
    pair.lead(2, 1, (1, 2))
    await pair.replicate(1)  # and cuts it
    assert offsets(send(pair, 2, 2)) == [[2]]
    assert send(pair, 2, 4, acks=1)[0].error == ErrorCode.NOT_ENOUGH_REPLICAS, "the one before it may still come"
    pair.pass_time(GAP_S + 1)
    assert send(pair, 2, 4, acks=1)[0].error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    repeated = send(pair, 2, 3)
    await pair.replicate(1, rounds=2)
    assert offsets(repeated) == [[3]]
    pair.lead(1, 2, (1, 2))
    await pair.replicate(2, rounds=2)
    assert offsets(*(send(pair, 1, number) for number in range(4))) == [[0], [1], [2], [3]]
    assert len(pair.nodes[1].records()) == 4


@pytest.mark.parametrize("epoch", [0, 1])
async def test_the_first_batches_of_a_producer_or_an_epoch_wait_for_the_one_that_the_previous_leader_refused(
    pair: Cluster, epoch: int
) -> None:
    """INV-20: the second batch comes to the new leader first. Accepted alone, it would make the first one a batch out of order."""
    await pair.replicate(2)
    if epoch:
        send(pair, 1, 0)
        await pair.replicate(2, rounds=2)
    before = pair.nodes[2].log().log_end_offset
    pair.lead(2, 1, (1, 2))
    assert send(pair, 2, 1, acks=1, epoch=epoch)[0].error == ErrorCode.NOT_ENOUGH_REPLICAS
    assert offsets(*(send(pair, 2, number, acks=1, epoch=epoch) for number in (0, 1))) == [[before], [before + 1]]


async def test_a_producer_that_the_new_leader_does_not_know_waits_for_a_few_seconds(pair: Cluster) -> None:
    """Perhaps it was only forgotten. Then the answer is Kafka's, which accepts it."""
    pair.lead(2, 1, (1, 2))
    assert send(pair, 2, 4, acks=1)[0].error == ErrorCode.NOT_ENOUGH_REPLICAS
    pair.pass_time(GAP_S + 1)
    assert offsets(send(pair, 2, 4, acks=1)) == [[0]]


@pytest.mark.parametrize("is_here", [True, False])
async def test_a_topic_that_is_made_again_does_not_wait_for_batches_of_the_earlier_one(
    pair: Cluster, is_here: bool
) -> None:
    """The producer gave up what was refused, and goes on with the next sequence. A log that does not know it accepts any."""
    node = pair.nodes[2]
    deleted = StopReplicaRequest(9, 1, node.epoch, (StopReplicaPartition(*TP, -2, True),), {TP.topic: TOPIC_ID})
    if is_here:
        assert send(pair, 2, 5, acks=1)[0].error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    node.carry_out(deleted)
    if not is_here:
        assert send(pair, 2, 5, acks=1)[0].error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        pair.pass_time(GAP_S + 1)
    pair.lead(2, 0, (2,), to=(2,), topic_id=topic_id_text(uuid.uuid4()))
    assert offsets(send(pair, 2, 6, acks=1)) == [[0]]
