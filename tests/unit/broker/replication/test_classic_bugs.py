"""Classic bugs (docs/RULES.md), each in a schedule that is built exactly.

BUG-1 and BUG-14 are in test_truncation.py, BUG-3 and BUG-10 in test_replica_manager.py, BUG-5 and BUG-23 in test_isr_updates.py, BUG-6
in test_leader_election.py, BUG-9 in test_replica_state.py, BUG-11 and BUG-24 in test_idempotence.py, BUG-16 in test_takeover_steps.py,
BUG-18 in test_crash_points.py, BUG-20 in test_stop_replica.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from broker.process.loop_budget import LoopBudget
from broker.replication.following import replica_fetcher
from broker.replication.following.leader_endpoint import EpochAnswer
from broker.replication.following.truncation import EpochEnd
from broker.replication.partition import Partition
from protocol.errors import ErrorCode
from protocol.kafka.fetch_codec import FetchPartitionData
from protocol.kafka.record_batch import build_batch
from protocol.types import TopicPartition
from tests.support.replica_cluster import LAG_S, Cluster, FakeEndpoint, values_of


async def test_bug_2_a_shrink_counts_when_zookeeper_has_it(pair: Cluster) -> None:
    """INV-10: until then the high watermark waits for the member that is to leave."""
    await pair.replicate()
    leader = pair.nodes[1].partition()
    answer = pair.produce(1, "a", timeout_ms=60_000)
    pair.pass_time(2 * LAG_S)
    assert leader.shrink_if_lagging()
    leader.advance_high_watermark()
    assert (leader.high_watermark, answer) == (0, [])
    assert pair.isr.apply() == [(1,)]
    pair.time.turn()
    assert (leader.high_watermark, answer[0].error) == (1, ErrorCode.NONE)


async def test_bug_12_an_answer_for_another_offset_is_void(pair: Cluster) -> None:
    """The epoch is the same, but the log was cut while the answer was under way: it would leave a hole."""
    await pair.replicate()
    for value in "ab":
        pair.produce(1, value, acks=1)
    await pair.replicate(2)
    pair.produce(1, "c", acks=1)

    def cut(tp: TopicPartition, data: FetchPartitionData) -> FetchPartitionData:
        pair.nodes[2].partition().truncate(1)
        return data

    pair.change_answer = cut
    (fetcher,) = pair.nodes[2].manager.fetchers()
    await fetcher.fetch_once()
    assert pair.nodes[2].records() == ["a"]
    pair.change_answer = lambda tp, data: data
    await pair.replicate(2)
    assert pair.nodes[2].records() == ["a", "b", "c"]


async def test_bug_12_a_late_answer_about_an_epoch_does_not_cut(pair: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that lacks a record answers when the partition is followed in the next epoch already, whose leader may have the record."""
    await pair.replicate()
    for value in "ab":
        pair.produce(1, value, acks=1)
    await pair.replicate(2, rounds=2)
    pair.lead(1, 1, (1, 2))

    async def epoch_ends(endpoint: FakeEndpoint, questions: object) -> dict[TopicPartition, EpochAnswer]:
        pair.lead(1, 2, (1, 2))
        return {pair.tp: EpochAnswer(ErrorCode.NONE, EpochEnd(0, 1))}

    monkeypatch.setattr(FakeEndpoint, "epoch_ends", epoch_ends)
    (fetcher,) = pair.nodes[2].manager.fetchers()
    await fetcher.truncate_once()
    assert pair.nodes[2].records() == ["a", "b"]


async def test_bug_12_after_a_cut_the_rest_of_an_answer_is_not_appended(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is cut between two pieces of one answer, in the same epoch: the next piece would leave a hole."""
    monkeypatch.setattr(replica_fetcher, "PIECE_BYTES", 1)
    await cluster.start_led(1, 2)
    await cluster.replicate()
    for value in "abc":
        cluster.produce(1, value, acks=1)
    follower = cluster.nodes[2]
    pauses = 0

    async def pause(budget: LoopBudget) -> None:
        nonlocal pauses
        pauses += 1
        if pauses == 2:
            follower.partition().truncate(1)

    monkeypatch.setattr(LoopBudget, "pause", pause)
    (fetcher,) = follower.manager.fetchers()
    await fetcher.fetch_once()
    assert (pauses, follower.records()) == (2, ["a"])
    await cluster.replicate(2)
    assert follower.records() == ["a", "b", "c"]


async def test_bug_12_an_offset_out_of_range_is_checked_again(pair: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is cut while the follower asks for the leader's offsets: the answer is about another log end offset."""
    await pair.replicate()
    for value in "ab":
        pair.produce(1, value, acks=1)
    await pair.replicate(2)
    follower = pair.nodes[2]
    pair.change_answer = lambda tp, data: data._replace(error=ErrorCode.OFFSET_OUT_OF_RANGE, records=[])

    async def list_offset(endpoint: FakeEndpoint, tp: TopicPartition, leader_epoch: int, timestamp: int) -> int:
        if follower.log().log_end_offset == 2:
            follower.partition().truncate(1)
        return 5

    monkeypatch.setattr(FakeEndpoint, "list_offset", list_offset)
    (fetcher,) = follower.manager.fetchers()
    await fetcher.fetch_once()
    assert follower.records() == ["a"], "it is not emptied to start at offset 5"


async def test_bug_13_the_same_leader_may_have_cut_its_log_meanwhile(cluster: Cluster) -> None:
    """Broker 2 does not hear that broker 3 led in between, and that broker 1 has cut a record for it."""
    await cluster.start_led(1, 2, 3)
    await cluster.replicate()
    cluster.produce(1, "cut", acks=1)
    await cluster.replicate(2)
    cluster.lead(3, 1, (3, 1, 2), to=(1, 3))
    await cluster.replicate(1)
    assert (cluster.nodes[1].records(), cluster.nodes[2].records()) == ([], ["cut"])
    cluster.lead(1, 2, (1, 3, 2))
    cluster.produce(1, "kept", acks=1)
    await cluster.replicate(2, rounds=2)
    assert cluster.nodes[2].records() == ["kept"]


async def test_bug_15_an_epoch_without_records_is_known(pair: Cluster) -> None:
    """A follower that asks for the epoch before learns that it has ended, and where the new one begins."""
    await pair.replicate()
    pair.produce(1, "a", acks=1)
    await pair.replicate(2)
    pair.lead(2, 1, (1, 2))
    ends = [pair.nodes[2].manager.offset_for_leader_epoch(pair.tp, 1, epoch, 1) for epoch in (0, 1)]
    assert ends == [(0, 1), (1, 1)]


class MovingPartition(Partition):
    """Its high watermark moves after every read of it."""

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name == "high_watermark":
            self.__dict__[name] = min(value + 1, 2)
        return value


async def test_bug_19_the_high_watermark_is_read_once(pair: Cluster) -> None:
    """INV-15: a consumer gets only records below the high watermark of the same answer."""
    await pair.replicate()
    for value in "ab":
        pair.produce(1, value, acks=1)
    partition = pair.nodes[1].partition()
    partition.high_watermark = 1
    partition.__class__ = MovingPartition
    (data,) = pair.consume(1, 0)
    partition.__class__ = Partition
    assert len(values_of(data)) <= data.high_watermark
    assert data.high_watermark <= data.last_stable_offset


async def test_bug_19_a_diverged_follower_ignores_the_high_watermark_of_the_answer(cluster: Cluster) -> None:
    """The follower's log diverges below the leader's HW: its records above the divergence are not committed."""
    await cluster.start_led(1, 2, 3)
    await cluster.replicate()
    cluster.produce(1, "x")
    await cluster.replicate(rounds=2)
    cluster.cuts = {(2, 1)}
    cluster.lead(3, 1, (3, 1), to=(1, 3))
    cluster.produce(3, "theirs", acks=1)
    cluster.cuts = set()
    await cluster.replicate(1, rounds=3)
    assert cluster.nodes[3].partition().high_watermark == 2
    follower = cluster.nodes[2]
    cluster.lead(3, 2, (3, 1), to=(2, 3))
    (fetcher,) = follower.manager.fetchers()
    await fetcher.truncate_once()
    # After it agreed with the leader, a record of a lost leader appears: a late write, or a repair by hand.
    cluster.nodes[3].partition().advance_high_watermark()
    follower.log().append_as_leader(build_batch([(None, b"mine", (), 1000)]), 0)
    await fetcher.fetch_once()
    assert follower.partition().high_watermark <= 1, "a record that the leader does not have counts as committed"
    await cluster.replicate(2, rounds=3)
    assert follower.records() == ["x", "theirs"]


async def test_bug_22_a_leader_alone_in_the_isr_acknowledges_at_once(cluster: Cluster) -> None:
    """No fetch moves the high watermark, so the append moves it."""
    await cluster.start_led(1, 2, isr=(1,))
    assert cluster.produce(1, "a")[0].error == ErrorCode.NONE
    assert cluster.nodes[1].partition().high_watermark == 1


async def test_bug_22_a_new_leader_alone_in_the_isr_commits_all_its_records(pair: Cluster) -> None:
    """Consumers see these records before another append."""
    await pair.replicate()
    pair.produce(1, "a", acks=1)
    await pair.replicate(2)
    assert pair.nodes[2].partition().high_watermark == 0
    pair.kill(1)
    pair.lead(2, 1, (2,))
    assert values_of(pair.consume(2, 0)[0]) == ["a"]


async def test_bug_22_the_high_watermark_does_not_wait_for_a_dead_broker_outside_the_isr(cluster: Cluster) -> None:
    await cluster.start_led(1, 2, isr=(1,))
    cluster.produce(1, "a")
    cluster.follower_fetch(1, 2, 0, epoch=0)
    cluster.follower_fetch(1, 2, 1, epoch=0)
    cluster.isr.proposals.clear()
    cluster.nodes[1].partition()._proposal = None  # it was refused
    answer = cluster.produce(1, "b", timeout_ms=60_000)
    assert answer == []
    cluster.kill(2)
    cluster.time.turn()
    assert answer[0].error == ErrorCode.NONE
