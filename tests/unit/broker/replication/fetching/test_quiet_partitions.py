"""Partitions of a session that rest: looked at when something happens to them, and their followers still count as in sync."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path

import pytest

from broker.replication import replica_manager
from broker.replication.fetching import fetch_reads
from broker.replication.fetching.fetch_reads import FetchReads
from broker.replication.fetching.fetch_sessions import FetchedPartition
from broker.replication.fetching.fetches import Fetches
from broker.replication.fetching.quiet_partitions import LOOK_EVERY_S, WOKEN_AT_ONCE, QuietIndex, QuietPartitions
from broker.replication.replica_manager import FetchParams
from broker.replication.replica_state import FollowerState
from protocol.errors import ErrorCode
from protocol.kafka.fetch_codec import FetchPartitionData, FetchRequestPartition
from protocol.types import TopicPartition
from tests.support.replica_cluster import LAG_S, TP, Cluster, values_of

Scenario = Callable[[Cluster, "SessionOf"], Awaitable[None]]


class SessionOf:
    """A session with one partition, of a follower or (-1) of a consumer, as the API keeps it."""

    def __init__(self, cluster: Cluster, replica: int) -> None:
        self.cluster = cluster
        self.replica = replica
        self.quiet: QuietPartitions = cluster.nodes[1].manager.quiet.open(replica)
        self.offset = 0
        self.answers: list[list[FetchPartitionData]] = []
        self.partition: FetchedPartition | None = None
        self.is_awake = True

    def fetch(self, *, max_wait_ms: int = 500, to: int | None = None, life: int | None = None) -> None:
        """The next request of the session; `to`: with another offset; `life`: with another broker epoch."""
        manager = self.cluster.nodes[1].manager
        epoch = life or (self.cluster.nodes[self.replica].epoch if self.replica >= 0 else -1)
        manager.begin_fetch(self.quiet, epoch)
        if self.quiet.take_woken():
            self.is_awake = True
        if to is not None or self.partition is None:
            self.quiet.wake(TP)
            self.offset = self.offset if to is None else to
            wanted = FetchRequestPartition(TP.partition, 0, self.offset, -1, 0, 2**20)
            self.partition = FetchedPartition("t", wanted, TP)
            self.is_awake = True
        partition = self.partition

        def respond(found: list[tuple[TopicPartition, FetchPartitionData]]) -> None:
            self.answers.append([data for _, data in found])
            if self.quiet.woken.pop(TP, None) is not None:
                self.is_awake = True
            if TP in self.quiet.idle and self.quiet.rest(TP, partition):
                self.is_awake = False
            self.quiet.idle = []

        params = FetchParams(self.replica, epoch, max_wait_ms, 1, 2**20)
        entries = [(TP, partition.wanted)] if self.is_awake else []
        manager.fetch(params, entries, respond, self.quiet)

    def rest(self) -> None:
        """Fetches until there is nothing more to tell."""
        self.fetch(max_wait_ms=0)
        assert not self.is_awake
        assert len(self.quiet) == 1


def play(directory: Path, replica: int, scenario: Scenario) -> None:
    cluster = Cluster(directory)

    async def run() -> None:
        await cluster.start(1, 2)
        cluster.lead(1, 0, (1, 2), replicas=(1, 2))
        await scenario(cluster, SessionOf(cluster, replica))

    try:
        asyncio.run(run())
    finally:
        cluster.close()


pytestmark = pytest.mark.usefixtures("fetchers_are_driven_by_hand")


def test_who_rests_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[TopicPartition] = []
    original = FetchReads._read

    def counted(self: FetchReads, params: FetchParams, tp: TopicPartition, *rest: object) -> fetch_reads.PartitionRead:
        reads.append(tp)
        return original(self, params, tp, *rest)  # type: ignore[arg-type]

    async def scenario(cluster: Cluster, session: SessionOf) -> None:
        cluster.time.turn()  # becoming leader touches
        session.rest()
        session.quiet.looked_at = cluster.time.monotonic() + 3600
        reads.clear()
        for _ in range(5):
            session.fetch()
            cluster.pass_time(0.6)
        assert session.answers[-1] == []
        assert reads == []

    monkeypatch.setattr(FetchReads, "_read", counted)
    play(tmp_path, 2, scenario)


def test_who_claims_a_broker_epoch_that_nobody_told_of_does_not_rest(tmp_path: Path) -> None:
    """BAD-28: the heartbeats of such a session would show the follower as in sync."""

    async def scenario(cluster: Cluster, session: SessionOf) -> None:
        cluster.time.turn()
        session.fetch(max_wait_ms=0, life=2**62)
        assert session.is_awake
        session.rest()

    play(tmp_path, 2, scenario)


def test_what_a_parked_fetch_found_empty_is_not_read_again_at_its_time_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a session of ten thousand partitions that could not rest this took a tenth of a second."""
    reads: list[TopicPartition] = []
    original = FetchReads._read

    def counted(self: FetchReads, params: FetchParams, tp: TopicPartition, *rest: object) -> fetch_reads.PartitionRead:
        reads.append(tp)
        return original(self, params, tp, *rest)  # type: ignore[arg-type]

    async def scenario(cluster: Cluster, session: SessionOf) -> None:
        cluster.time.turn()
        session.fetch()
        assert (session.answers, reads) == ([], [TP])
        cluster.pass_time(0.5)
        assert ([len(answer) for answer in session.answers], reads) == ([1], [TP])

    monkeypatch.setattr(FetchReads, "_read", counted)
    play(tmp_path, -1, scenario)


def test_an_append_looks_at_a_parked_consumer_once_and_only_when_it_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was looked at for the append too, which it cannot see, and again for the high watermark."""
    reads: list[int] = []
    original = FetchReads._read

    def counted(self: FetchReads, params: FetchParams, *rest: object) -> fetch_reads.PartitionRead:
        reads.append(params.replica_id)
        return original(self, params, *rest)  # type: ignore[arg-type]

    async def scenario(cluster: Cluster, session: SessionOf) -> None:
        cluster.time.turn()
        session.rest()
        session.quiet.looked_at = cluster.time.monotonic() + 3600
        session.fetch()
        waiting = cluster.consume(1, 0, max_wait_ms=500)
        reads.clear()
        cluster.produce(1, "a")
        cluster.time.turn()
        assert (reads, len(session.quiet), waiting) == ([], 1, [])
        cluster.follower_fetch(1, 2, 1, epoch=0)
        cluster.time.turn()
        assert sorted(reads) == [-1, -1, 2]
        assert values_of(waiting[0]) == values_of(session.answers[-1][0]) == ["a"]

    monkeypatch.setattr(FetchReads, "_read", counted)
    play(tmp_path, -1, scenario)


def test_when_everything_is_touched_at_once_it_is_looked_at_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the session is lost: the first slice answers the fetch, the others are for the next one."""
    monkeypatch.setattr(replica_manager, "TOUCHED_IN_A_TURN", 2)
    looked_at: list[list[int]] = []
    original = Fetches.touched

    def noted(self: Fetches, partitions: Collection[TopicPartition]) -> None:
        looked_at.append([tp.partition for tp in partitions])
        original(self, partitions)

    async def run(cluster: Cluster) -> None:
        await cluster.start(1)
        for cluster.tp in (TopicPartition(TP.topic, number) for number in range(5)):
            cluster.lead(1, 0, (1,), replicas=(1,))
        cluster.time.turn()
        monkeypatch.setattr(Fetches, "touched", noted)
        waiting = cluster.consume(1, 0, max_wait_ms=60_000)
        cluster.nodes[1].manager.step_down_all("test")
        cluster.time.turn()
        assert looked_at == [[0, 1], [2, 3], [4]]
        assert [data.error for data in waiting] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]

    cluster = Cluster(tmp_path)
    try:
        asyncio.run(run(cluster))
    finally:
        cluster.close()


@pytest.mark.parametrize("is_parked", [True, False])
def test_an_append_is_answered_to_who_rests(tmp_path: Path, is_parked: bool) -> None:
    async def scenario(cluster: Cluster, session: SessionOf) -> None:
        session.rest()
        if is_parked:
            session.fetch()
        cluster.produce(1, "a")
        if not is_parked:
            session.fetch()  # in the same turn of the loop
        cluster.time.turn()
        assert values_of(session.answers[-1][0]) == ["a"]
        assert session.is_awake

    play(tmp_path, 2, scenario)


def test_a_consumer_rests_until_the_high_watermark_moves(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster, session: SessionOf) -> None:
        session.rest()
        session.fetch()
        cluster.produce(1, "a")
        cluster.time.turn()
        assert len(session.answers) == 1
        cluster.follower_fetch(1, 2, 1, epoch=0)
        cluster.time.turn()
        assert values_of(session.answers[-1][0]) == ["a"]

    play(tmp_path, -1, scenario)


def test_a_follower_that_rests_is_told_the_high_watermark(tmp_path: Path) -> None:
    """Not at once, but with the next answer."""

    async def scenario(cluster: Cluster, session: SessionOf) -> None:
        cluster.produce(1, "a", acks=1)
        session.fetch(to=1, max_wait_ms=0)
        partition = cluster.nodes[1].partition()
        partition.high_watermark = 0
        partition.advance_high_watermark()
        session.fetch()
        cluster.pass_time(0.6)
        assert [data.high_watermark for data in session.answers[-1]] == [1]

    play(tmp_path, 2, scenario)


def test_resting_is_being_in_sync_and_silence_is_not(tmp_path: Path) -> None:
    """REP-3: the lag counts from the last fetch of the session before the append that the follower does not get."""

    async def scenario(cluster: Cluster, session: SessionOf) -> None:
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

    play(tmp_path, 2, scenario)


def test_who_fetches_on_without_getting_on_leaves_the_isr(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster, session: SessionOf) -> None:
        session.rest()
        cluster.produce(1, "a", acks=1)
        cluster.time.turn()
        for _ in range(20):
            session.fetch()  # at its old offset
            cluster.pass_time(0.6)
        await cluster.nodes[1].manager.check_lag()
        assert [proposal.state.isr for proposal in cluster.isr.proposals] == [(1,)]
        assert session.is_awake

    play(tmp_path, 2, scenario)


def test_a_change_of_leadership_wakes(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster, session: SessionOf) -> None:
        session.rest()
        session.fetch()
        cluster.lead(2, 1, (1, 2), replicas=(1, 2))
        cluster.time.turn()
        assert session.answers[-1][0].error

    play(tmp_path, 2, scenario)


def test_another_life_of_the_follower_is_looked_at(tmp_path: Path) -> None:
    """INV-14: the sessions of the old one are no proof for the new one."""

    async def scenario(cluster: Cluster, session: SessionOf) -> None:
        cluster.time.turn()  # becoming leader touches
        session.rest()
        session.quiet.looked_at = cluster.time.monotonic()
        session.fetch()
        old_life, told = cluster.nodes[2].epoch, len(session.answers)
        assert len(cluster.nodes[1].manager.quiet) == 1
        cluster.kill(2)
        await cluster.start_broker(2)
        assert len(cluster.nodes[1].manager.quiet) == 0
        assert len(session.answers) > told, "the fetch that was parked is answered, so that the next one is refused"
        assert old_life != cluster.nodes[2].epoch
        refused = cluster.follower_fetch(1, 2, 0, epoch=0, life=old_life)
        assert [data.error for data in refused] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]

    play(tmp_path, 2, scenario)


@pytest.mark.parametrize("replica", [2, -1])
def test_a_third_brokers_coming_and_going_wakes_nobody(tmp_path: Path, replica: int) -> None:
    """Each change of the brokers looked at everything that rested, in one turn of the loop."""

    async def scenario(cluster: Cluster, session: SessionOf) -> None:
        cluster.time.turn()
        session.rest()
        session.quiet.looked_at = cluster.time.monotonic()
        session.fetch()
        await cluster.start_broker(3)
        cluster.time.turn()
        cluster.kill(3)
        cluster.time.turn()
        assert len(session.quiet) == 1
        assert len(session.answers) == 1

    play(tmp_path, replica, scenario)


def test_everybody_is_looked_at_now_and_then(tmp_path: Path) -> None:
    """What touches nothing, as retention, is told all the same."""

    async def scenario(cluster: Cluster, session: SessionOf) -> None:
        cluster.produce(1, "a", acks=1)
        session.fetch(to=1, max_wait_ms=0)
        session.fetch(max_wait_ms=0)
        log = cluster.nodes[1].partition().log
        assert log is not None
        log.increment_log_start(1)
        cluster.pass_time(2 * LOOK_EVERY_S)
        session.fetch(max_wait_ms=0)
        assert session.answers[-1][0].log_start_offset == 1

    play(tmp_path, 2, scenario)


def test_an_ended_session_leaves_nothing(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster, session: SessionOf) -> None:
        session.rest()
        session.quiet.close()
        assert len(cluster.nodes[1].manager.quiet) == 0
        assert cluster.nodes[1].partition().followers[2].heartbeat is None

    play(tmp_path, 2, scenario)


@pytest.mark.parametrize("replica", [2, -1], ids=["follower", "consumer"])
def test_of_very_many_that_are_woken_those_that_were_appended_to_come_first(replica: int) -> None:
    """A failover moves the HW of thousands: a producer's records do not wait behind them. A consumer is told of all."""
    index = QuietIndex(lambda tp, replica: FollowerState())
    quiet = index.open(replica)
    partitions = [TopicPartition("t", number) for number in range(4 * WOKEN_AT_ONCE)]
    for tp in partitions:
        quiet.rest(tp, FetchedPartition("t", FetchRequestPartition(tp.partition, 0, 0, -1, 0, 2**20), tp))
    index.wake(partitions[:-1])
    index.wake(partitions[-2:], only_followers=True)
    rounds = []
    while taken := quiet.take_woken():
        rounds.append([watched.wanted.partition for watched in taken])
    if replica < 0:
        assert list(map(len, rounds)) == [len(partitions) - 1], "an append above the HW is no news for a consumer"
    else:
        numbers = [tp.partition for tp in partitions]
        assert rounds[0][:2] == numbers[-2:]
        assert list(map(len, rounds)) == [WOKEN_AT_ONCE + 2, WOKEN_AT_ONCE, WOKEN_AT_ONCE, WOKEN_AT_ONCE - 2]
        assert sorted(number for taken in rounds for number in taken) == numbers
