"""What must survive when leaders change, brokers bounce and answers come late: INV-1, INV-5, INV-14. See also test_classic_bugs.py."""

from __future__ import annotations

import asyncio
import itertools
import random
from contextlib import closing
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.replication.following import replica_fetcher
from broker.replication.following.followed_partitions import Phase
from protocol.errors import ErrorCode
from protocol.kafka.produce_codec import ProducePartitionResult
from protocol.types import TopicPartition
from tests.support.replica_cluster import LAG_S, TP, Cluster


async def test_a_lagging_follower_leaves_the_isr_and_comes_back(cluster: Cluster) -> None:
    """REP-3."""
    await cluster.start_led(1, 2, 3)
    await cluster.replicate()
    cluster.cuts = {(3, 1)}
    answer = cluster.produce(1, "a", timeout_ms=60_000)
    for _ in range(12):
        await cluster.replicate(2)
        cluster.pass_time(1)
    assert answer == []
    await cluster.nodes[1].manager.check_lag()
    assert cluster.isr.apply() == [(1, 2)]
    cluster.time.turn()
    assert answer[0].error == ErrorCode.NONE
    cluster.cuts = set()
    await cluster.replicate(3)
    assert cluster.isr.proposals == []  # it got the record, but has not shown that it has it
    await cluster.replicate(3)
    assert cluster.isr.apply() == [(1, 2, 3)]
    assert cluster.nodes[1].partition().isr == (1, 2, 3)


async def test_only_the_current_life_of_a_live_broker_may_join(cluster: Cluster) -> None:
    """INV-14, BUG-23."""
    await cluster.start_led(1, 2, isr=(1,))
    life = cluster.nodes[2].epoch
    parked = cluster.follower_fetch(1, 2, 0, epoch=0, life=life + 50, max_wait_ms=500)  # not heard of yet
    assert (cluster.isr.proposals, parked) == ([], [])
    cluster.kill(2)
    cluster.next_broker_epoch = life + 50
    await cluster.start_broker(2)  # now it has: it is asked for a fetch that counts
    assert parked[0].error == ErrorCode.NONE
    assert cluster.isr.proposals == []
    cluster.follower_fetch(1, 2, 0, epoch=0)
    assert [p.newcomers for p in cluster.isr.proposals] == [{2: life + 50}]


@pytest.mark.parametrize("is_registered", [True, False])
async def test_a_claimed_newer_broker_epoch_is_not_recorded_and_does_not_lock_out_the_broker(
    pair: Cluster, is_registered: bool
) -> None:
    """BAD-28, INV-12: any client can claim to be a replica in a later life."""
    life = pair.nodes[2].epoch
    if not is_registered:
        pair.kill(2)
    answer = pair.produce(1, "a")
    claimed = pair.follower_fetch(1, 2, 1, epoch=0, life=2**62)
    assert (claimed[0].error == ErrorCode.NONE) is is_registered
    assert not pair.follower_fetch(1, 2, 0, epoch=0, life=2**62)[0].records, "only what is committed"
    partition = pair.nodes[1].partition()
    assert (answer, partition.high_watermark, partition.followers[2].log_end_offset) == ([], 0, -1)
    if not is_registered:
        pair.next_broker_epoch = life + 1
        await pair.start_broker(2)
    pair.follower_fetch(1, 2, 1, epoch=0)
    assert answer[0].error == ErrorCode.NONE
    pair.lead(1, 1, (1, 2), to=(1,))
    assert partition.followers[2].broker_epoch == -1, "a new leader epoch forgets the follower's fetches"


async def test_the_old_leader_cuts_records_that_only_it_has(pair: Cluster) -> None:
    """REP-6, INV-5, BUG-13, BUG-15: it also cuts an epoch without records."""
    await pair.replicate()
    pair.produce(1, "both")
    await pair.replicate(2, rounds=2)
    pair.produce(1, "only 1", acks=1)
    pair.lead(2, 1, (2, 1))
    pair.produce(2, "new")
    await pair.settle()
    assert pair.nodes[1].records() == pair.nodes[2].records() == ["both", "new"]
    pair.lead(1, 2, (1, 2))  # an epoch in which nothing is written
    pair.lead(2, 3, (1, 2))
    pair.produce(2, "last")
    await pair.settle()
    assert pair.nodes[1].records() == pair.nodes[2].records() == ["both", "new", "last"]


async def test_a_leader_that_missed_an_epoch_forgets_its_followers_positions(cluster: Cluster) -> None:
    """INV-12: broker 3 had both records and cut them for leader 2. Broker 1 leads again without knowing of leader 2's epoch."""
    await cluster.start_led(1, 2, 3)
    await cluster.replicate()
    answer = cluster.produce(1, "a", "b")
    await cluster.replicate(3, rounds=2)
    assert cluster.nodes[1].partition().followers[3].log_end_offset == 2
    cluster.lead(2, 1, (1, 2, 3), to=(2, 3))
    await cluster.replicate(3)
    assert cluster.nodes[3].records() == []
    cluster.kill(2)
    cluster.lead(1, 2, (1, 3))
    assert answer == []
    await cluster.replicate(3, rounds=2)
    assert answer[0].error == ErrorCode.NONE
    assert cluster.nodes[3].records() == ["a", "b"]


@pytest.mark.usefixtures("a_pause_after_each_piece")
@pytest.mark.parametrize("new_leader", [None, 1, 3])
async def test_a_follower_appends_in_slices_and_checks_again_after_each(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, new_leader: int | None
) -> None:
    """NET-4, BUG-12: ten megabytes of small batches held the loop for a quarter of a second. In between others have their
    turn; once the partition is followed in another epoch the rest comes to nothing, from the same leader too."""
    monkeypatch.setattr(replica_fetcher, "PIECE_BYTES", 100)

    await cluster.start_led(1, 2, 3)
    await cluster.replicate()
    written = [f"record {n}" for n in range(20)]
    for value in written:
        cluster.produce(1, value, acks=1)
    (fetcher,) = cluster.nodes[2].manager.fetchers()
    fetching = asyncio.create_task(fetcher.fetch_once())
    log = cluster.nodes[2].log()
    seen = set()
    while not fetching.done():
        await asyncio.sleep(0)
        seen.add(log.log_end_offset)
        if new_leader is not None and len(seen) == 4:
            cluster.lead(new_leader, 1, (new_leader, 2))
    assert len(seen) >= 4
    copied = cluster.nodes[2].records()
    assert copied == written[: len(copied)]
    assert (len(copied) == len(written)) is (new_leader is None)


async def test_many_epoch_questions_are_asked_in_several_rounds(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_fetcher, "QUESTIONS_AT_ONCE", 2)

    await cluster.start(1, 2)
    partitions = [TopicPartition(TP.topic, number) for number in range(3)]
    for epoch in (0, 1):
        for cluster.tp in partitions:
            cluster.lead(1, epoch, (1, 2), is_new=epoch == 0)
            for node in cluster.nodes.values():
                log = node.partition(cluster.tp).log
                assert log is not None
                log.leader_epochs.assign(epoch, 0)
    (fetcher,) = cluster.nodes[2].manager.fetchers()
    for fetched in (2, 3):
        await fetcher.truncate_once()
        assert [fetcher.phase_of(tp) for tp in partitions].count(Phase.WAITING) == fetched


async def test_the_high_watermark_survives_a_restart(pair: Cluster) -> None:
    """LOG-3, LAI-5."""
    await pair.settle()
    pair.produce(1, "a", "b")
    await pair.settle()
    await pair.nodes[1].manager.checkpoint_high_watermarks()
    pair.kill(1)
    await pair.start_broker(1)
    pair.lead(1, 1, (1, 2), to=(1,))
    assert pair.nodes[1].partition().high_watermark == 2


FAULTS = ("time", "cut", "heal", "move", "kill", "start", "start")
ACTIONS = ("produce",) * 6 + ("replicate",) * 9 + ("isr",) * 3 + FAULTS
BROKERS = (1, 2, 3)


@dataclass
class RandomRun:
    """A controller that elects from the ISR, brokers that are killed and started, cut links, producers with acks=all."""

    cluster: Cluster
    dice: random.Random
    produced: dict[str, list[ProducePartitionResult]] = field(default_factory=dict)

    def acknowledged(self) -> set[str]:
        return {value for value, answer in self.produced.items() if answer and answer[0].error == ErrorCode.NONE}

    def elect(self, isr: list[int], *, informed: tuple[int, ...] = BROKERS) -> None:
        """A live member of the ISR leads in a new epoch. Only `informed` and the leader learn of it."""
        leader = self.dice.choice(isr)
        epoch = self.cluster.isr.states[TP].leader_epoch + 1
        self.cluster.lead(leader, epoch, tuple(isr), to=(leader, *(b for b in informed if b != leader)))

    async def act(self, action: str, step: int) -> None:
        cluster, dice = self.cluster, self.dice
        state = cluster.isr.states[TP]
        live = [broker for broker in state.isr if broker in cluster.nodes]
        match action:
            case "produce":
                self.produced[f"{step}"] = cluster.produce(state.leader, f"{step}", timeout_ms=3000)
            case "replicate":
                await cluster.replicate(dice.choice(list(cluster.nodes)))
            case "isr":
                cluster.isr.apply()
            case "time":
                cluster.pass_time(LAG_S / 2)
                for node in cluster.nodes.values():
                    await node.manager.check_lag()
            case "cut":
                cluster.cuts = {pair for pair in itertools.product(BROKERS, BROKERS) if dice.random() < 0.2}
            case "heal":
                cluster.cuts = set()
            case "move":
                self.elect(live, informed=tuple(broker for broker in BROKERS if dice.random() < 0.7))
            case "kill" if len(live) > 1:
                victim = dice.choice(live)
                cluster.kill(victim)
                self.elect([broker for broker in live if broker != victim])
            case "start" if len(cluster.nodes) < len(BROKERS):
                await cluster.start_broker(next(broker for broker in BROKERS if broker not in cluster.nodes))
                self.elect(live)

    def check(self) -> None:
        """INV-1, INV-4, INV-11."""
        state = self.cluster.isr.states[TP]
        assert state.leader in state.isr
        for broker, node in self.cluster.nodes.items():
            partition = node.manager.partitions.get(TP)
            if partition is None or partition.log is None:
                continue
            assert partition.log.log_start_offset <= partition.high_watermark <= partition.log.log_end_offset
            if broker in state.isr:
                assert self.acknowledged() <= set(node.records()), f"broker {broker} of the ISR lost a record"

    async def play(self, cluster: Cluster) -> None:
        await cluster.start_led(*BROKERS)
        for step in range(60):
            await self.act(self.dice.choice(ACTIONS), step)
            self.check()
        cluster.cuts = set()
        for broker in BROKERS:
            if broker not in cluster.nodes:
                await cluster.start_broker(broker)
        self.elect(list(cluster.isr.states[TP].isr))
        for _ in range(5):
            await cluster.settle()


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**9))
def test_nothing_acknowledged_is_ever_lost(
    tmp_path_factory: pytest.TempPathFactory, fetchers_are_driven_by_hand: None, seed: int
) -> None:
    """INV-1, INV-5, INV-6, INV-27 under random schedules, and every producer is answered once."""
    with closing(Cluster(tmp_path_factory.mktemp("random"))) as cluster:
        run = RandomRun(cluster, random.Random(seed))
        asyncio.run(run.play(cluster))
        first, second, third = (node.records() for node in cluster.nodes.values())
        assert first == second == third
        assert set(cluster.isr.states[TP].isr) == set(BROKERS)
        assert run.acknowledged() <= set(first)
        assert len(first) == len(set(first))
        assert all(len(answer) == 1 for answer in run.produced.values())
        assert all(node.manager.waiting() == (0, 0) for node in cluster.nodes.values())
