"""`flush.messages`: nothing is acknowledged, shown or claimed before it is synced, and nobody waits for ever (REP-4, INV-27, FLT-25)."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from broker.replication.following import replica_fetcher
from broker.replication.following.followed_partitions import Phase
from broker.replication.partition import Role
from broker.settings.config import LONG_MAX
from protocol.errors import ErrorCode
from protocol.rpc.messages import StopReplicaPartition, StopReplicaRequest
from tests.support.held_syncs import HeldSyncs, held_syncs, turns
from tests.support.replica_cluster import TP, Cluster, values_of
from tools.sim.world.disk import MemoryDisk

ACKS = pytest.mark.parametrize("acks", [1, -1])
EACH = {"flush.messages": "1"}


class FlushedCluster(Cluster):
    """Disks in memory, whose flushes that producers wait for end when the test says so."""

    def __init__(self, directory: Path, syncs: HeldSyncs) -> None:
        super().__init__(directory)
        self.syncs = syncs
        self.disk_of = {broker: MemoryDisk() for broker in (1, 2, 3)}
        self.filesystem = self.disk_of.__getitem__

    async def produced(self, value: str, acks: int, **options: int) -> list[ErrorCode]:
        """Broker 1 appends. The list gets the error when there is an answer."""
        answer = self.produce(1, value, acks=acks, **options)
        await self.heard()
        return _Errors(answer)

    async def heard(self) -> None:
        """All that has happened is known to whom it concerns."""
        await turns()
        self.time.turn()

    async def flushed(self) -> None:
        """The oldest flush has ended, and all have heard of it."""
        await self.syncs.end()
        await self.heard()


@pytest.fixture
def cluster(
    tmp_path: Path, fetchers_are_driven_by_hand: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FlushedCluster]:
    """A follower that waits for a flush does not make the test wait."""
    monkeypatch.setattr(replica_fetcher, "FLUSH_WAIT_S", 0)
    with closing(FlushedCluster(tmp_path, held_syncs(monkeypatch))) as cluster:
        yield cluster


class _Errors(list[ErrorCode]):
    def __init__(self, answer: list) -> None:  # type: ignore[type-arg]
        self._answer = answer

    def __eq__(self, other: object) -> bool:
        return [ErrorCode(result.error) for result in self._answer] == other

    def __repr__(self) -> str:
        return repr(self._answer)

    __hash__ = None  # type: ignore[assignment]


@ACKS
async def test_a_producer_waits_for_the_sync(cluster: FlushedCluster, acks: int) -> None:
    """Whatever its time-out: Kafka looks at it only when the flush is done."""
    node = await cluster.start_led(1, overrides=EACH)
    answer = await cluster.produced("a", acks, timeout_ms=0 if acks == 1 else 5000)
    assert answer == []
    assert (node.partition().high_watermark, node.log().claimable_end) == (0, 0)
    assert values_of(cluster.consume(1, 0)[0]) == []
    await cluster.flushed()
    assert answer == [ErrorCode.NONE]
    assert (node.partition().high_watermark, node.log().recovery_point) == (1, 1)
    assert node.manager.waiting() == (0, 0)


@ACKS
async def test_appends_during_a_sync_share_the_next(cluster: FlushedCluster, acks: int) -> None:
    await cluster.start_led(1, overrides=EACH)
    first = await cluster.produced("a", acks)
    others = [await cluster.produced(value, acks) for value in "bcdef"]
    assert cluster.syncs.count() == 1
    await cluster.flushed()
    assert first == [ErrorCode.NONE]
    assert others == [[]] * 5
    await cluster.flushed()
    assert others == [[ErrorCode.NONE]] * 5
    assert (cluster.syncs.ended, cluster.syncs.count()) == (2, 0)


@ACKS
async def test_appends_below_the_interval_are_answered_at_once(cluster: FlushedCluster, acks: int) -> None:
    await cluster.start_led(1, overrides={"flush.messages": "3"})
    for value in "ab":
        assert await cluster.produced(value, acks) == [ErrorCode.NONE]
    third = await cluster.produced("c", acks)
    fourth = await cluster.produced("d", acks)
    assert (third, fourth) == ([], [])
    await cluster.flushed()
    assert (third, fourth) == ([ErrorCode.NONE], [ErrorCode.NONE])
    assert await cluster.produced("e", acks) == [ErrorCode.NONE]
    assert (cluster.syncs.ended, cluster.syncs.count()) == (1, 0)


async def test_without_an_interval_nothing_is_synced(cluster: FlushedCluster) -> None:
    await cluster.start_led(1)
    for acks in (1, -1, 0):
        assert await cluster.produced("a", acks) == [ErrorCode.NONE]
    assert cluster.syncs.count() == 0


async def test_a_producer_without_acks_does_not_wait(cluster: FlushedCluster) -> None:
    await cluster.start_led(1, overrides=EACH)
    assert await cluster.produced("a", 0) == [ErrorCode.NONE]


async def test_a_duplicate_waits_for_the_sync_of_the_first(cluster: FlushedCluster) -> None:
    await cluster.start_led(1, overrides=EACH)
    once = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    first = await cluster.produced("a", 1, **once)
    again = await cluster.produced("a", 1, **once)
    assert (first, again) == ([], [])
    await cluster.flushed()
    assert (first, again) == ([ErrorCode.NONE], [ErrorCode.NONE])


async def test_the_leader_counts_what_it_has_synced(cluster: FlushedCluster) -> None:
    """The follower has the record on its disk before the leader does."""
    node = await cluster.start_led(1, 2, overrides=EACH)
    await cluster.replicate(2)
    answer = await cluster.produced("a", -1)
    await cluster.replicate(2)
    await turns()
    await cluster.syncs.end(cluster.disk_of[2])
    await cluster.replicate(2)
    await cluster.heard()
    assert node.partition().followers[2].log_end_offset == 1
    assert (answer, node.partition().high_watermark) == ([], 0)
    await cluster.syncs.end(cluster.disk_of[1])
    await cluster.heard()
    assert (answer, node.partition().high_watermark) == ([ErrorCode.NONE], 1)


async def test_a_follower_claims_what_it_has_synced(cluster: FlushedCluster) -> None:
    """It stays in the ISR as long as it is not slower than a fetcher of Kafka that waits for its disk."""
    node = await cluster.start_led(1, 2, overrides=EACH)
    await cluster.replicate(2)
    answer = await cluster.produced("a", -1, timeout_ms=60_000)
    await cluster.syncs.end(cluster.disk_of[1])
    await cluster.replicate(2)
    await turns()
    (fetcher,) = cluster.nodes[2].manager.fetchers()
    assert (cluster.nodes[2].log().log_end_offset, cluster.syncs.count(cluster.disk_of[2])) == (1, 1)
    cluster.asked.clear()
    for _ in range(3):
        await cluster.replicate(2)
    assert fetcher.phase_of(TP) is Phase.WAITING
    assert cluster.asked == []
    cluster.pass_time(5)
    await node.manager.check_lag()
    assert (answer, cluster.isr.proposals) == ([], [])
    await cluster.syncs.end(cluster.disk_of[2])
    await cluster.replicate(2)
    await cluster.heard()
    assert fetcher.phase_of(TP) is Phase.IN_SYNC
    assert answer == [ErrorCode.NONE]


@ACKS
async def test_after_a_failed_sync_nothing_is_acknowledged(cluster: FlushedCluster, acks: int) -> None:
    """FLT-29."""
    node = await cluster.start_led(1, overrides=EACH)
    answers = [await cluster.produced(value, acks) for value in "ab"]
    cluster.disk_of[1].fail("sync")
    await cluster.flushed()
    assert answers == [[ErrorCode.KAFKA_STORAGE_ERROR]] * 2
    assert (node.partition().role, cluster.syncs.count()) == (Role.OFFLINE, 0)


@ACKS
async def test_a_sync_that_lacked_a_descriptor_is_repeated(cluster: FlushedCluster, acks: int) -> None:
    node = await cluster.start_led(1, overrides=EACH)
    answer = await cluster.produced("a", acks)
    cluster.disk_of[1].fail("sync", errno.EMFILE)
    await cluster.flushed()
    assert (answer, cluster.syncs.count()) == ([], 0)
    cluster.disk_of[1].failures.clear()
    await node.logs.upkeep.tick()
    await turns()
    await cluster.flushed()
    assert answer == [ErrorCode.NONE]


@ACKS
async def test_another_leader_a_deletion_and_a_stop_end_the_wait(cluster: FlushedCluster, acks: int) -> None:
    """What comes of the sync later concerns nobody, least of all the topic that was made again."""
    node = await cluster.start_led(1, overrides=EACH)
    first = await cluster.produced("a", acks)
    cluster.lead(-1, 1, (1,), overrides=EACH)
    await cluster.heard()
    assert first == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    cluster.lead(1, 2, (1,), overrides=EACH)
    second = await cluster.produced("b", acks)
    stop = StopReplicaPartition(TP.topic, TP.partition, 2, delete=True)
    node.carry_out(StopReplicaRequest(9, cluster.controller_epoch, node.epoch, (stop,)))
    await cluster.heard()
    assert second == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    cluster.lead(1, 3, (1,), overrides=EACH)
    third = await cluster.produced("c", acks)
    assert (node.log().log_end_offset, cluster.syncs.count()) == (1, 2)
    await cluster.flushed()  # the deleted log
    assert (third, node.log().claimable_end) == ([], 0)
    await node.manager.shutdown()
    assert third == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert node.manager.waiting() == (0, 0)
    await cluster.syncs.end_all()


@ACKS
async def test_another_interval_frees_nobody_and_holds_nobody_for_ever(cluster: FlushedCluster, acks: int) -> None:
    node = await cluster.start_led(1, overrides=EACH)
    first = await cluster.produced("a", acks)
    second = await cluster.produced("b", acks)
    node.logs.update_topic_configs({TP.topic: {}})
    assert node.log().config.flush_messages == LONG_MAX
    third = await cluster.produced("c", acks)
    assert (first, second, third) == ([], [], [])
    await cluster.flushed()
    assert (first, second, third) == ([ErrorCode.NONE], [], [])
    await cluster.flushed()
    assert (second, third) == ([ErrorCode.NONE], [ErrorCode.NONE])
    assert await cluster.produced("d", acks) == [ErrorCode.NONE]
    node.logs.update_topic_configs({TP.topic: EACH})
    await turns()
    assert cluster.syncs.count() == 1  # of what was not synced before
    await cluster.syncs.end()


@ACKS
async def test_a_restarted_leader_claims_nothing_that_the_last_life_did_not_sync(
    cluster: FlushedCluster, acks: int
) -> None:
    """The process died, and the page cache still has the record. A producer that sends it again is told of a duplicate."""
    await cluster.start_led(1, overrides=EACH)
    once = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    assert await cluster.produced("a", acks, **once) == []
    cluster.kill(1)
    cluster.syncs.under_way.clear()
    cluster.disk_of[1] = cluster.disk_of[1].after_kill()
    node = await cluster.start_broker(1)
    cluster.lead(1, 1, (1,), overrides=EACH)
    assert (node.log().log_end_offset, node.partition().high_watermark) == (1, 0)
    again = await cluster.produced("a", acks, **once)
    assert again == []
    await cluster.flushed()
    assert (again, node.partition().high_watermark) == ([ErrorCode.NONE], 1)


async def test_the_time_out_of_acks_all_includes_the_sync(cluster: FlushedCluster) -> None:
    node = await cluster.start_led(1, overrides=EACH)
    one, all_of_them = await cluster.produced("a", 1), await cluster.produced("b", -1, timeout_ms=1000)
    cluster.pass_time(2)
    assert (one, all_of_them) == ([], [ErrorCode.REQUEST_TIMED_OUT])
    await cluster.syncs.end_all()
    await cluster.heard()
    assert one == [ErrorCode.NONE]
    assert node.manager.waiting() == (0, 0)
