"""REP-9: a partition that cannot be copied is paused, longer after each failure. Its fetcher copies the others without delay."""

from __future__ import annotations

import asyncio
import errno
import itertools
from typing import Any

import pytest

from broker.replication.following.followed_partitions import Phase
from broker.replication.following.follower_session import ADDED_AT_ONCE
from broker.replication.following.leader_endpoint import LeaderUnavailable
from broker.replication.following.replica_fetcher import ReplicaFetcher
from broker.storage.disk.filesystem import FileSystem
from protocol.errors import ErrorCode
from protocol.kafka.fetch_codec import FetchPartitionData
from protocol.types import TopicPartition
from tests.support.replica_cluster import TP, Cluster, FakeEndpoint

GOOD, BAD = TP, TopicPartition(TP.topic, 1)
BACKOFF_S = 1.0


class Followed:
    """Broker 2 follows broker 1, with one fetcher for the partitions GOOD and BAD, which are on two disks."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.leader, self.follower = cluster.nodes[1], cluster.nodes[2]

    @property
    def fetcher(self) -> ReplicaFetcher:
        (fetcher,) = self.follower.manager.fetchers()
        return fetcher

    def ends(self) -> dict[TopicPartition, int]:
        return {tp: self.follower.log(tp).log_end_offset for tp in (GOOD, BAD)}

    async def rounds(self, count: int, seconds: float = 0.0) -> None:
        """In each round both partitions get a record, the follower fetches once, and then `seconds` pass."""
        for _ in range(count):
            for tp in (GOOD, BAD):
                self.cluster.produce(1, "v", acks=1, tp=tp)
            await self.cluster.replicate(2)
            self.cluster.pass_time(seconds)

    async def assert_both_are_copied_after_the_pause(self) -> None:
        self.cluster.change_answer = lambda tp, data: data
        self.cluster.pass_time(BACKOFF_S)
        await self.rounds(3)
        assert self.ends() == {tp: self.leader.log(tp).log_end_offset for tp in (GOOD, BAD)}


@pytest.fixture
def followed(cluster: Cluster, runner: asyncio.Runner) -> Followed:
    async def start() -> Followed:
        cluster.disks = 2
        await cluster.start(1, 2)
        for cluster.tp in (GOOD, BAD):
            cluster.lead(1, 0, (1, 2))
        return Followed(cluster)

    return runner.run(start())


def broken(tp: TopicPartition, data: FetchPartitionData) -> FetchPartitionData:
    """A bit of the bad partition's records is flipped."""
    if tp != BAD or not data.records:
        return data
    records = bytearray(data.records[0])
    records[-1] ^= 1
    return data._replace(records=[memoryview(records)])


def failed(tp: TopicPartition, data: FetchPartitionData) -> FetchPartitionData:
    return data._replace(error=ErrorCode.KAFKA_STORAGE_ERROR, records=[]) if tp == BAD else data


def out_of_range(tp: TopicPartition, data: FetchPartitionData) -> FetchPartitionData:
    return data._replace(error=ErrorCode.OFFSET_OUT_OF_RANGE, records=[]) if tp == BAD else data


@pytest.mark.parametrize("change", [broken, failed])
async def test_other_partitions_are_copied_and_the_pause_grows(followed: Followed, change: Any) -> None:
    cluster = followed.cluster
    await followed.rounds(2)
    assert followed.ends() == {GOOD: 2, BAD: 2}
    cluster.change_answer = change
    cluster.asked.clear()
    await followed.rounds(400, seconds=0.01)
    assert followed.ends() == {GOOD: 402, BAD: 2}
    tries = [number for number, asked in enumerate(cluster.asked) if BAD in asked]
    pauses = [later - earlier for earlier, later in itertools.pairwise(tries)]
    assert pauses[0] <= 3
    assert pauses == sorted(pauses)
    assert 95 <= pauses[-1] <= 105, "the longest pause is replica.fetch.backoff.ms: 100 rounds of 10 ms"
    assert len(tries) < 12
    await followed.assert_both_are_copied_after_the_pause()
    assert cluster.asked[-1] == {GOOD, BAD}


async def test_partitions_of_a_failed_disk_are_dropped_and_the_others_are_copied(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    await followed.rounds(2)
    bad = followed.follower.log(BAD).segments[-1]
    write = FileSystem.write

    def broken_write(self: FileSystem, fd: int, parts: Any, position: int) -> None:
        if fd == bad._fd:
            raise OSError(errno.EIO, "test")
        write(self, fd, parts, position)

    monkeypatch.setattr(FileSystem, "write", broken_write)
    await followed.rounds(5)
    assert followed.follower.logs.offline_dirs == (followed.follower.logs.directories[1],)
    assert followed.fetcher.phase_of(BAD) is None
    assert followed.follower.log(GOOD).log_end_offset == 7


@pytest.mark.parametrize(("start", "end", "expected"), [(3, 4, 3), (0, 1, 1)], ids=["behind", "ahead"])
async def test_a_log_that_ends_outside_of_the_leaders_range_is_emptied_or_cut(
    followed: Followed, monkeypatch: pytest.MonkeyPatch, start: int, end: int, expected: int
) -> None:
    """Below the leader's log start, the log is emptied and starts there. Above the leader's log end, it is cut."""
    await followed.rounds(2)

    async def list_offset(self: FakeEndpoint, tp: TopicPartition, epoch: int, timestamp: int) -> int:
        return start if timestamp == -2 else end

    monkeypatch.setattr(FakeEndpoint, "list_offset", list_offset)
    followed.cluster.change_answer = out_of_range
    await followed.rounds(1)
    assert followed.ends() == {GOOD: 3, BAD: expected}
    assert followed.fetcher.phase_of(BAD) is Phase.TRUNCATING
    await followed.assert_both_are_copied_after_the_pause()


async def test_a_leader_that_does_not_answer_with_its_range_is_asked_again(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    await followed.rounds(1)
    questions: list[TopicPartition] = []

    async def list_offset(self: FakeEndpoint, tp: TopicPartition, epoch: int, timestamp: int) -> int:
        questions.append(tp)
        raise LeaderUnavailable("it has no answer")

    monkeypatch.setattr(FakeEndpoint, "list_offset", list_offset)
    followed.cluster.change_answer = out_of_range
    await followed.rounds(3)
    assert followed.ends() == {GOOD: 4, BAD: 1}
    assert followed.fetcher.phase_of(BAD) is Phase.WAITING
    assert BAD not in followed.cluster.asked[-1]
    assert questions == [BAD]
    followed.cluster.pass_time(BACKOFF_S)
    await followed.rounds(1)
    assert BAD in followed.cluster.asked[-1]
    assert questions == [BAD, BAD]


async def test_the_answer_for_a_partition_removed_meanwhile_is_not_appended(followed: Followed) -> None:
    """BUG-12"""
    await followed.rounds(1)

    def removing(tp: TopicPartition, data: FetchPartitionData) -> FetchPartitionData:
        followed.fetcher.remove(BAD)
        return data

    followed.cluster.change_answer = removing
    await followed.rounds(1)
    assert followed.ends() == {GOOD: 2, BAD: 1}
    assert len(followed.fetcher) == 1


async def test_while_partitions_wait_to_join_no_fetch_waits_long(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request adds ADDED_AT_ONCE partitions, and there are more.

    A long poll between two requests would delay each hundred by up to half a second.
    """
    asked: list[tuple[int, bool]] = []

    async def fetch(self: FakeEndpoint, positions: Any, *, is_short: bool = False) -> dict[Any, Any]:
        asked.append((len(positions), is_short or positions.has_more_changes))
        return {}

    monkeypatch.setattr(FakeEndpoint, "fetch", fetch)
    for number in range(2, 3 * ADDED_AT_ONCE):
        followed.cluster.tp = TopicPartition(TP.topic, number)
        followed.cluster.lead(1, 0, (1, 2))
    for _ in range(10):
        await followed.cluster.replicate(2)
    assert asked[-1] == (3 * ADDED_AT_ONCE, False)
    assert all(is_quick for placed, is_quick in asked if placed < 3 * ADDED_AT_ONCE)
