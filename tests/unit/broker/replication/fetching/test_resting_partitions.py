"""Resting partitions: they are read only when something happened to them, and their followers still count as in sync."""

from __future__ import annotations

import asyncio
import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from broker.replication.fetching import fetches
from broker.replication.fetching.fetch_reads import FetchParams, FetchReads, PartitionRead
from broker.replication.fetching.fetch_session import (
    LOOK_EVERY_S,
    WOKEN_AT_ONCE,
    FetchedPartition,
    FetchSession,
    RestingIndex,
)
from broker.replication.replica_state import FollowerState
from protocol.errors import ErrorCode
from protocol.kafka.fetch_codec import FetchPartitionData, FetchRequestPartition
from protocol.types import TopicPartition
from tests.support.fetch_sessions import SessionOf
from tests.support.replica_cluster import LAG_S, TP, Cluster, values_of


@pytest.fixture
def cluster(cluster: Cluster, runner: asyncio.Runner) -> Cluster:
    """Broker 1 leads TP, broker 2 follows. The touch of becoming leader is over."""
    runner.run(cluster.start_led(1, 2))
    cluster.time.turn()
    return cluster


@pytest.fixture
def session(cluster: Cluster) -> SessionOf:
    """Broker 2's."""
    return SessionOf(cluster, 2)


Reads = list[tuple[int, TopicPartition]]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    """(replica, partition) of each read of the leader's fetches."""
    found: Reads = []
    original = FetchReads._read

    def noted(self: FetchReads, params: FetchParams, tp: TopicPartition, *rest: Any) -> PartitionRead:
        found.append((params.replica_id, tp))
        return original(self, params, tp, *rest)

    monkeypatch.setattr(FetchReads, "_read", noted)
    return found


async def test_a_move_of_the_high_watermark_reads_no_parked_fetch_of_a_follower(cluster: Cluster, reads: Reads) -> None:
    """It is read for its answer, which therefore has the new high watermark."""
    await cluster.start_broker(3)
    cluster.lead(1, 1, (1, 2, 3), is_new=False)
    cluster.time.turn()
    cluster.produce(1, "a")
    cluster.time.turn()
    waiting = cluster.follower_fetch(1, 2, 1, epoch=1, max_wait_ms=500)
    cluster.time.turn()
    assert waiting == []
    assert cluster.nodes[1].partition().high_watermark == 0
    reads.clear()
    cluster.follower_fetch(1, 3, 1, epoch=1, max_wait_ms=500)
    cluster.time.turn()
    assert cluster.nodes[1].partition().high_watermark == 1
    assert reads == [(3, TP)]
    cluster.time.advance(0.6)
    assert [data.high_watermark for data in waiting] == [1]


async def test_a_resting_partition_is_not_read(session: SessionOf, cluster: Cluster, reads: Reads) -> None:
    session.rest()
    session.not_looked_at()
    reads.clear()
    for _ in range(5):
        session.fetch()
        cluster.pass_time(0.6)
    assert session.answers[-1] == []
    assert reads == []


async def test_a_partition_does_not_rest_for_an_unknown_broker_epoch(session: SessionOf) -> None:
    """BAD-28: the heartbeats of such a session would show the follower as in sync."""
    session.fetch(max_wait_ms=0, life=2**62)
    assert session.is_awake
    session.rest()


async def test_a_parked_fetch_does_not_read_untouched_partitions_again_at_its_timeout(
    cluster: Cluster, reads: Reads
) -> None:
    """In a session of ten thousand partitions that could not rest, this took a tenth of a second."""
    session = SessionOf(cluster, -1)
    session.fetch()
    assert (session.answers, reads) == ([], [(-1, TP)])
    cluster.pass_time(0.5)
    assert ([len(answer) for answer in session.answers], reads) == ([1], [(-1, TP)])


async def test_an_append_checks_a_parked_consumer_once_when_it_is_committed(cluster: Cluster, reads: Reads) -> None:
    """Not for the append, which a consumer does not see, but for the move of the high watermark."""
    session = SessionOf(cluster, -1)
    session.rest()
    session.not_looked_at()
    session.fetch()
    waiting = cluster.consume(1, 0, max_wait_ms=500)
    reads.clear()
    cluster.produce(1, "a")
    cluster.time.turn()
    assert (reads, session.session.resting, waiting) == ([], 1, [])
    cluster.follower_fetch(1, 2, 1, epoch=0)
    cluster.time.turn()
    assert sorted(replica for replica, _ in reads) == [-1, -1, 2]
    assert values_of(waiting[0]) == values_of(session.answers[-1][0]) == ["a"]


async def test_very_many_touched_partitions_are_handled_in_slices(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after the loss of the ZooKeeper session: the first slice answers the fetch, the others are for the next fetch."""
    monkeypatch.setattr(fetches, "TOUCHED_IN_A_TURN", 2)
    for cluster.tp in (TopicPartition(TP.topic, number) for number in range(1, 5)):
        cluster.lead(1, 0, (1,))
    cluster.time.turn()
    looked_at: list[list[int]] = []
    original = fetches._take_first

    def noted(partitions: dict[TopicPartition, None]) -> dict[TopicPartition, None]:
        some = original(partitions)
        if some:
            looked_at.append([tp.partition for tp in some])
        return some

    monkeypatch.setattr(fetches, "_take_first", noted)
    waiting = cluster.consume(1, 0, max_wait_ms=60_000)
    cluster.nodes[1].manager.step_down_all("test")
    cluster.time.turn()
    assert looked_at == [[0, 1], [2, 3], [4]]
    assert [data.error for data in waiting] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


@pytest.mark.parametrize("is_parked", [True, False])
async def test_an_append_wakes_a_resting_partition(session: SessionOf, cluster: Cluster, is_parked: bool) -> None:
    session.rest()
    if is_parked:
        session.fetch()
    cluster.produce(1, "a")
    if not is_parked:
        session.fetch()  # in the same turn of the loop
    cluster.time.turn()
    assert values_of(session.answers[-1][0]) == ["a"]
    assert session.is_awake


async def test_a_resting_follower_gets_the_high_watermark(session: SessionOf, cluster: Cluster) -> None:
    """In its next answer, not at once."""
    cluster.produce(1, "a", acks=1)
    session.fetch(to=1, max_wait_ms=0)
    partition = cluster.nodes[1].partition()
    (answered,) = session.session.partitions.values()
    partition.high_watermark = answered.high_watermark = 0
    partition.advance_high_watermark()
    session.fetch()
    cluster.pass_time(0.6)
    assert [data.high_watermark for data in session.answers[-1]] == [1]


async def test_a_resting_follower_is_in_sync_while_its_session_fetches(session: SessionOf, cluster: Cluster) -> None:
    """REP-3: the lag starts with the last fetch of the session before the append that the follower does not get."""
    leader = cluster.nodes[1].manager
    session.rest()
    for _ in range(30):
        session.fetch()
        cluster.pass_time(0.6)
    cluster.produce(1, "a", acks=1)
    cluster.time.turn()
    await leader.check_lag()
    assert cluster.isr.proposals == [], "it had everything 0.6 s ago"
    cluster.pass_time(LAG_S - 1)
    await leader.check_lag()
    assert cluster.isr.proposals == []
    cluster.pass_time(1.5)
    await leader.check_lag()
    assert [proposal.state.isr for proposal in cluster.isr.proposals] == [(1,)]


async def test_a_follower_that_fetches_without_progress_leaves_the_isr(session: SessionOf, cluster: Cluster) -> None:
    session.rest()
    cluster.produce(1, "a", acks=1)
    cluster.time.turn()
    for _ in range(20):
        session.fetch()  # at its old offset
        cluster.pass_time(0.6)
    await cluster.nodes[1].manager.check_lag()
    assert [proposal.state.isr for proposal in cluster.isr.proposals] == [(1,)]
    assert session.is_awake


async def test_a_change_of_leadership_wakes_resting_partitions(session: SessionOf, cluster: Cluster) -> None:
    session.rest()
    session.fetch()
    cluster.lead(2, 1, (1, 2))
    cluster.time.turn()
    assert session.answers[-1][0].error


async def test_a_new_life_of_the_follower_wakes_its_partitions(session: SessionOf, cluster: Cluster) -> None:
    """INV-14: a session of the old life proves nothing for the new one."""
    session.rest()
    session.not_looked_at()
    session.fetch()
    old_life, answers_before = cluster.nodes[2].epoch, len(session.answers)
    assert len(session.fetches._resting) == 1
    cluster.kill(2)
    await cluster.start_broker(2)
    assert len(session.fetches._resting) == 0
    assert len(session.answers) > answers_before, "the parked fetch is answered, so that the next fetch is refused"
    assert old_life != cluster.nodes[2].epoch
    refused = cluster.follower_fetch(1, 2, 0, epoch=0, life=old_life)
    assert [data.error for data in refused] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


@pytest.mark.parametrize("replica", [2, -1])
async def test_a_change_of_a_third_broker_wakes_no_partition(cluster: Cluster, replica: int) -> None:
    """Otherwise each change of the brokers would check all resting partitions in one turn of the loop."""
    session = SessionOf(cluster, replica)
    session.rest()
    session.not_looked_at()
    session.fetch()
    await cluster.start_broker(3)
    cluster.time.turn()
    cluster.kill(3)
    cluster.time.turn()
    assert session.session.resting == 1
    assert len(session.answers) == 1


async def test_resting_partitions_are_read_now_and_then(session: SessionOf, cluster: Cluster) -> None:
    """So a change that touches no partition, for example by retention, is answered too."""
    cluster.produce(1, "a", acks=1)
    session.fetch(to=1, max_wait_ms=0)
    session.fetch(max_wait_ms=0)
    cluster.nodes[1].log().increment_log_start(1)
    cluster.pass_time(2 * LOOK_EVERY_S)
    session.fetch(max_wait_ms=0)
    assert session.answers[-1][0].log_start_offset == 1


@pytest.mark.parametrize("is_parked", [True, False])
async def test_a_session_that_ended_leaves_nothing_in_the_index(
    session: SessionOf, cluster: Cluster, is_parked: bool
) -> None:
    session.fetch(max_wait_ms=500 if is_parked else 0)
    session.fetch(is_last=True)
    cluster.pass_time(0.6)
    assert len(session.answers) == 2
    assert len(session.fetches._resting) == 0
    assert cluster.nodes[1].partition().followers[2].heartbeat is None


def test_a_partition_listed_by_two_topic_ids_keeps_both() -> None:
    """A topic was deleted and created again; the client names its old id and its new one."""
    hosted: Any = None
    index = RestingIndex(hosted)
    session = FetchSession(1, -1, index, is_follower=False, uses_topic_ids=True)
    wanted = FetchRequestPartition(0, 0, 0, -1, 0, 2**20)
    old, new = (FetchedPartition(uuid.UUID(int=number), wanted, TP) for number in (1, 2))
    for partition in (old, new):
        session.set((partition.key, 0), partition)
    idle = PartitionRead(FetchPartitionData(0, ErrorCode.NONE), is_idle=True)
    for partition in (old, new):
        session.take_answer(partition, idle, may_rest=True)
    assert (list(session.awake), session.resting) == ([new], 1)
    session.remove((new.key, 0))
    assert (list(session.awake), session.resting, len(index)) == ([old], 0, 0)


@pytest.mark.parametrize("replica", [2, -1], ids=["follower", "consumer"])
def test_of_very_many_woken_partitions_those_with_appended_records_come_first(replica: int) -> None:
    """A failover moves the HW of thousands: a producer's records do not wait behind them. A consumer gets all at once."""
    follower: Any = SimpleNamespace(get=lambda tp: SimpleNamespace(isr=(2,), followers={2: FollowerState()}))
    index = RestingIndex(follower)
    session = FetchSession(1, replica, index, is_follower=replica >= 0, uses_topic_ids=False)
    partitions = [TopicPartition("t", number) for number in range(4 * WOKEN_AT_ONCE)]
    for tp in partitions:
        partition = FetchedPartition("t", FetchRequestPartition(tp.partition, 0, 0, -1, 0, 2**20), tp)
        session.set(("t", tp.partition), partition)
        idle = PartitionRead(FetchPartitionData(tp.partition, ErrorCode.NONE), is_idle=True)
        session.take_answer(partition, idle, may_rest=True)
    assert (session.resting, len(index)) == (len(partitions), len(partitions))
    index.wake(partitions[:-1])
    index.wake(partitions[-2:], only_followers=True)
    rounds = []
    while session.is_behind:
        session.awake.clear()
        session.begin_request(-1, 0.0, looks_at_all=False)
        rounds.append([partition.wanted.partition for partition in session.awake])
    if replica < 0:
        assert list(map(len, rounds)) == [len(partitions) - 1], (
            "an append above the HW does not wake a consumer's partition"
        )
    else:
        numbers = [tp.partition for tp in partitions]
        assert rounds[0][:2] == numbers[-2:]
        assert list(map(len, rounds)) == [WOKEN_AT_ONCE + 2, WOKEN_AT_ONCE, WOKEN_AT_ONCE, WOKEN_AT_ONCE - 2]
        assert sorted(number for taken in rounds for number in taken) == numbers
