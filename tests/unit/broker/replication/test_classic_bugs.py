"""The classic bugs of a replicated log, each schedule built exactly, on the real classes (docs/RULES.md).

BUG-11 is in test_idempotence.py, BUG-18 in test_crash_points.py, BUG-24 in test_log_producers.py. tests/sim finds the others by
random schedules too, and shows that they come back when their rule is taken out of the code (removed_rules.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.replication.partition import Partition
from protocol.errors import ErrorCode
from protocol.kafka.record_batch import build_batch
from tests.support.replica_cluster import LAG_S, TP, Cluster, Scenario, play, values_of

pytestmark = pytest.mark.usefixtures("fetchers_are_driven_by_hand")


async def bug_01(cluster: Cluster) -> None:
    """A follower restarts with a HW that lags, has time to truncate but not to fetch, and then leads."""
    await cluster.start(1, 2)
    cluster.lead(1, 0, (1, 2), replicas=(1, 2))
    await cluster.replicate()
    answer = cluster.produce(1, "a")
    await cluster.replicate(2)
    cluster.follower_fetch(1, 2, 1, epoch=0)
    assert answer[0].error == ErrorCode.NONE
    assert cluster.nodes[2].partition().high_watermark == 0
    cluster.kill(2)
    await cluster.start_broker(2)
    cluster.lead(1, 1, (1, 2), replicas=(1, 2))
    (fetcher,) = cluster.nodes[2].manager.fetchers()
    await fetcher.truncate_once()
    cluster.kill(1)
    cluster.lead(2, 2, (2,), replicas=(1, 2))
    assert values_of(cluster.consume(2, 0)[0]) == ["a"], "an acknowledged record is gone"


def test_bug_01_truncation_to_the_high_watermark(tmp_path: Path) -> None:
    play(tmp_path, bug_01)


async def bug_02(cluster: Cluster) -> None:
    """The leader drops a follower, the write of the ISR fails, and that follower is elected."""
    await cluster.start(1, 2)
    cluster.lead(1, 0, (1, 2), replicas=(1, 2))
    await cluster.replicate()
    answer = cluster.produce(1, "a", timeout_ms=60_000)
    cluster.pass_time(LAG_S + 1)
    await cluster.nodes[1].manager.check_lag()
    assert [proposal.state.isr for proposal in cluster.isr.proposals] == [(1,)]
    cluster.nodes[1].partition().advance_high_watermark()
    cluster.time.turn()
    cluster.lead(2, 1, (2,), replicas=(1, 2), to=(2,))  # 1 has not heard of it yet
    assert cluster.isr.apply() == [], "the write is refused"
    cluster.nodes[1].partition().look_again()
    cluster.time.turn()
    acknowledged = [result for result in answer if result.error == ErrorCode.NONE]
    assert not acknowledged or values_of(cluster.consume(2, 0)[0]) == ["a"], "an acknowledged record is gone"


def test_bug_02_the_high_watermark_is_taken_over_the_maximal_isr(tmp_path: Path) -> None:
    play(tmp_path, bug_02)


async def bug_03(cluster: Cluster) -> None:
    """Two failovers pass by a follower; then it fetches on where it was, from the same leader in another epoch."""
    await cluster.start(1, 2, 3)
    cluster.lead(1, 0, (1, 2, 3))
    await cluster.replicate()
    cluster.produce(1, "x")
    await cluster.replicate(rounds=2)
    cluster.produce(1, "old", acks=1)
    await cluster.replicate(3)
    assert cluster.nodes[3].records() == ["x", "old"]
    cluster.lead(2, 1, (2,), to=(1, 2))
    cluster.produce(2, "new")
    await cluster.replicate(1, rounds=2)
    cluster.lead(1, 2, (1, 2), to=(1, 2))
    cluster.produce(1, "last", acks=1)
    assert cluster.nodes[1].records() == ["x", "new", "last"]
    await cluster.replicate(3)  # 3 still follows 1 in epoch 0
    theirs = cluster.nodes[1].records()
    mine = cluster.nodes[3].records()
    assert mine[-1] != theirs[-1] or mine == theirs, f"diverged in the middle: {mine}, the leader has {theirs}"
    cluster.lead(1, 3, (1, 2))
    await cluster.settle()
    assert cluster.nodes[3].records() == theirs


def test_bug_03_every_fetch_carries_its_epoch(tmp_path: Path) -> None:
    play(tmp_path, bug_03)


async def bug_03_fencing(cluster: Cluster) -> None:
    """A fetch of another epoch tells the leader nothing, and gets nothing (INV-12)."""
    await cluster.start(1, 2)
    cluster.lead(1, 1, (1, 2), replicas=(1, 2))
    cluster.produce(1, "a", acks=1)
    for epoch, error in ((0, ErrorCode.FENCED_LEADER_EPOCH), (2, ErrorCode.UNKNOWN_LEADER_EPOCH)):
        (answer,) = cluster.follower_fetch(1, 2, 1, epoch=epoch)
        assert answer.error == error
    assert cluster.nodes[1].partition().high_watermark == 0


def test_bug_03_a_fetch_of_another_epoch_is_fenced(tmp_path: Path) -> None:
    play(tmp_path, bug_03_fencing)


async def bug_09(cluster: Cluster) -> None:
    """Right after a failover the new leader's HW lags. A follower that is at that HW joins, and is elected next."""
    await cluster.start(1, 2, 3)
    cluster.lead(1, 0, (1, 2))
    await cluster.replicate()
    cluster.produce(1, "a")
    await cluster.replicate(rounds=3)
    cluster.isr.proposals.clear()
    cluster.nodes[1].partition()._proposal = None  # ZooKeeper refused 3
    cluster.cuts = {(3, 1)}
    answer = cluster.produce(1, "b", timeout_ms=60_000)
    cluster.pass_time(LAG_S + 1)  # nobody waits for 3 any more
    await cluster.replicate(2, rounds=2)
    assert answer[0].error == ErrorCode.NONE
    cluster.nodes[2].partition().high_watermark = 1  # it has not heard of the last move
    cluster.lead(2, 1, (1, 2))
    cluster.follower_fetch(2, 3, 1, epoch=1)
    cluster.isr.apply()
    elected = 3 if 3 in cluster.isr.states[TP].isr else 1
    cluster.kill(2)
    cluster.lead(elected, 2, (elected,))
    assert values_of(cluster.consume(elected, 0)[0]) == ["a", "b"], f"{elected} lost an acknowledged record"


def test_bug_09_joining_the_isr_needs_the_start_of_the_epoch(tmp_path: Path) -> None:
    play(tmp_path, bug_09)


async def bug_10(cluster: Cluster) -> None:
    """A producer waits for offset 1; leadership away, its record cut, leadership back, another record at that offset."""
    await cluster.start(1, 2)
    cluster.lead(1, 0, (1, 2), replicas=(1, 2))
    await cluster.replicate(2)
    answer = cluster.produce(1, "lost", timeout_ms=60_000)
    cluster.lead(2, 1, (1, 2), replicas=(1, 2))
    await cluster.replicate(1)
    assert cluster.nodes[1].records() == []
    cluster.lead(1, 2, (1, 2), replicas=(1, 2))
    cluster.produce(1, "kept")
    await cluster.replicate(2, rounds=2)
    assert cluster.nodes[2].records() == ["kept"]
    assert [result.error for result in answer] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_bug_10_who_waits_is_answered_when_leadership_goes(tmp_path: Path) -> None:
    play(tmp_path, bug_10)


async def bug_12(cluster: Cluster) -> None:
    """A fetch is sent, LeaderAndIsr names another leader, and the late answer arrives."""
    await cluster.start(1, 2, 3)
    cluster.lead(1, 0, (1, 2, 3))
    await cluster.replicate()
    cluster.produce(1, "late", acks=1)
    cluster.before_answer = lambda: cluster.lead(3, 1, (3, 2), to=(2, 3))
    (fetcher,) = cluster.nodes[2].manager.fetchers()
    await fetcher.fetch_once()
    assert cluster.nodes[2].records() == [], "what the old leader sent was appended"


def test_bug_12_a_late_answer_is_void(tmp_path: Path) -> None:
    play(tmp_path, bug_12)


async def bug_12_offset(cluster: Cluster) -> None:
    """The epoch is the same, but the log was cut while the answer was under way: it would leave a hole."""
    await cluster.start(1, 2)
    cluster.lead(1, 0, (1, 2), replicas=(1, 2))
    await cluster.replicate()
    for value in "ab":
        cluster.produce(1, value, acks=1)
    await cluster.replicate(2)
    cluster.produce(1, "c", acks=1)
    cluster.before_answer = lambda: cluster.nodes[2].partition().truncate(1)
    (fetcher,) = cluster.nodes[2].manager.fetchers()
    await fetcher.fetch_once()
    assert cluster.nodes[2].records() == ["a"]
    await cluster.replicate(2)
    assert cluster.nodes[2].records() == ["a", "b", "c"]


def test_bug_12_an_answer_for_another_offset_is_void(tmp_path: Path) -> None:
    play(tmp_path, bug_12_offset)


async def bug_14(cluster: Cluster) -> None:
    """Two fast failovers fork the histories twice: one answer of the leader does not tell where they agree."""
    await cluster.start(1, 2, 3)
    cluster.lead(1, 0, (1, 2, 3))
    await cluster.replicate()
    cluster.produce(1, "x")
    await cluster.replicate(rounds=2)
    cluster.produce(1, "1 alone", "1 alone", acks=1)
    cluster.lead(2, 1, (2, 3), to=(2,))
    cluster.produce(2, "2 alone", acks=1)
    cluster.lead(1, 2, (1,), to=(1,))  # unclean, so that both histories fork
    cluster.produce(1, "1 again", acks=1)
    cluster.lead(2, 3, (2,))
    (fetcher,) = cluster.nodes[1].manager.fetchers()
    for _ in range(5):
        await fetcher.truncate_once()
    assert cluster.nodes[1].records() == ["x"]
    cluster.produce(2, "2 again", acks=1)
    await cluster.settle()
    assert [cluster.nodes[broker].records() for broker in (1, 2, 3)] == [["x", "2 alone", "2 again"]] * 3


def test_bug_14_truncation_is_repeated_until_the_epochs_match(tmp_path: Path) -> None:
    play(tmp_path, bug_14)


async def bug_15(cluster: Cluster) -> None:
    """A leader's epoch gets no record. Asked for an epoch that it never had, it would know of none, and 3 cut to its HW."""
    await cluster.start(1, 2, 3)
    cluster.lead(1, 0, (1, 2, 3))
    await cluster.replicate()
    answer = cluster.produce(1, "x")
    await cluster.replicate()
    for follower in (2, 3):
        cluster.follower_fetch(1, follower, 1, epoch=0)
    assert answer[0].error == ErrorCode.NONE
    cluster.lead(3, 1, (3, 2), to=(3,))
    cluster.produce(3, "3 alone", acks=1)
    assert cluster.nodes[3].partition().high_watermark == 0
    cluster.lead(2, 2, (2, 3), to=(2, 3))
    (fetcher,) = cluster.nodes[3].manager.fetchers()
    for _ in range(3):
        await fetcher.truncate_once()
    cluster.kill(2)
    cluster.lead(3, 3, (3,), to=(3,))
    assert values_of(cluster.consume(3, 0)[0]) == ["x"], "an acknowledged record is gone"


def test_bug_15_an_epoch_without_records_is_kept(tmp_path: Path) -> None:
    play(tmp_path, bug_15)


async def bug_19(cluster: Cluster) -> None:
    """The HW moves while a consumer's fetch is read: what it gets lies below the HW that it is told (INV-15)."""
    await cluster.start(1, 2)
    cluster.lead(1, 0, (1, 2), replicas=(1, 2))
    await cluster.replicate()
    for value in "ab":
        cluster.produce(1, value, acks=1)
    partition = cluster.nodes[1].partition()
    partition.high_watermark = 1
    partition.__class__ = MovingPartition
    (data,) = cluster.consume(1, 0)
    partition.__class__ = Partition
    assert len(values_of(data)) <= data.high_watermark
    assert data.high_watermark <= data.last_stable_offset


class MovingPartition(Partition):
    """Whenever its HW is looked at, it has moved by the next look."""

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name == "high_watermark":
            self.__dict__[name] = min(value + 1, 2)
        return value


def test_bug_19_the_high_watermark_is_read_once(tmp_path: Path) -> None:
    play(tmp_path, bug_19)


async def bug_19_divergence(cluster: Cluster) -> None:
    """A follower's log diverges below the leader's HW: the HW in that answer is not for what the follower has."""
    await cluster.start(1, 2, 3)
    cluster.lead(1, 0, (1, 2, 3))
    await cluster.replicate()
    cluster.produce(1, "x")
    await cluster.replicate(rounds=2)
    cluster.cuts = {(2, 1)}
    cluster.lead(3, 1, (3, 1), to=(1, 3))
    cluster.produce(3, "theirs", acks=1)
    cluster.cuts = set()
    await cluster.replicate(1, rounds=3)
    assert cluster.nodes[3].partition().high_watermark == 2
    partition = cluster.nodes[2].partition()
    cluster.lead(3, 2, (3, 1), to=(2, 3))
    (fetcher,) = cluster.nodes[2].manager.fetchers()
    await fetcher.truncate_once()
    # Since it agreed with the leader, a record of a lost leader's: as after a late write, or a repair by hand.
    assert partition.log is not None
    cluster.nodes[3].partition().advance_high_watermark()
    stray = build_batch([(None, b"mine", (), 1000)])
    partition.log.append_as_leader(stray, 0)
    await fetcher.fetch_once()
    assert partition.high_watermark <= 1, "a record that the leader does not have counts as committed"
    await cluster.replicate(2, rounds=3)
    assert cluster.nodes[2].records() == ["x", "theirs"]


def test_bug_19_divergence_comes_before_the_high_watermark(tmp_path: Path) -> None:
    play(tmp_path, bug_19_divergence)


async def bug_22_append(cluster: Cluster) -> None:
    """Alone in the ISR, nobody's fetch moves the HW: the append has to."""
    await cluster.start(1, 2)
    cluster.lead(1, 0, (1,), replicas=(1, 2))
    answer = cluster.produce(1, "a", timeout_ms=60_000)
    assert [result.error for result in answer] == [ErrorCode.NONE]


async def bug_22_shrink(cluster: Cluster) -> None:
    """The last member that the HW waited for leaves the ISR."""
    await cluster.start(1, 2)
    cluster.lead(1, 0, (1, 2), replicas=(1, 2))
    await cluster.replicate()
    answer = cluster.produce(1, "a", timeout_ms=60_000)
    cluster.pass_time(LAG_S + 1)
    await cluster.nodes[1].manager.check_lag()
    assert answer == []
    assert cluster.isr.apply() == [(1,)]
    cluster.time.turn()
    assert [result.error for result in answer] == [ErrorCode.NONE]


async def bug_22_become_leader(cluster: Cluster) -> None:
    """A new leader alone in the ISR: what it has is committed, and consumers see it, without any produce."""
    await cluster.start(1, 2)
    cluster.lead(1, 0, (1, 2), replicas=(1, 2))
    await cluster.replicate()
    cluster.produce(1, "a", acks=1)
    await cluster.replicate(2)
    assert cluster.nodes[2].partition().high_watermark == 0
    cluster.kill(1)
    cluster.lead(2, 1, (2,), replicas=(1, 2))
    assert values_of(cluster.consume(2, 0)[0]) == ["a"]


BUG_22 = [bug_22_append, bug_22_shrink, bug_22_become_leader]


@pytest.mark.parametrize("scenario", BUG_22)
def test_bug_22_the_high_watermark_is_computed_anew(tmp_path: Path, scenario: Scenario) -> None:
    play(tmp_path, scenario)
