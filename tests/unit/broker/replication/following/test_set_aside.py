"""REP-9: a partition that cannot be copied is set aside with a pause that grows; the others of its fetcher are not delayed."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from broker.process.event_log import EventLog
from broker.process.loop_budget import LoopBudget
from broker.replication.fetching.replication_throttle import ReplicationThrottle
from broker.replication.following.followed_partitions import FollowedPartition, Phase
from broker.replication.following.follower_session import ADDED_AT_ONCE
from broker.replication.following.leader_endpoint import EpochAnswer, EpochQuestion, LeaderUnavailable
from broker.replication.following.replica_fetcher import ReplicaFetcher
from broker.replication.following.truncation import EpochEnd
from broker.storage.log import Log, LogDirFailed
from broker.storage.log_types import LogListener
from protocol.errors import ErrorCode
from protocol.kafka.fetch_codec import FetchPartitionData
from protocol.kafka.record_batch import build_batch, patch
from protocol.types import TopicPartition
from tests.support.fake_time import FakeTime
from tests.support.logs import open_at
from tests.support.memory_disk import MemoryDisk

GOOD, BAD = TopicPartition("good", 0), TopicPartition("bad", 0)
BACKOFF_S = 1.0


def batch_at(offset: int) -> bytes:
    data = bytearray(build_batch([(b"k", b"value", (), 1000)]))
    patch(data, 0, offset, 0)
    return bytes(data)


class FollowingPartition(LogListener):
    """As much of a Partition as a fetcher needs, on a real log. `disk_failed` hears of it before the fetcher does."""

    def __init__(self, tp: TopicPartition, disk_failed: Callable[[TopicPartition], None]) -> None:
        self.tp = tp
        self.log: Log = open_at(MemoryDisk(), listener=self)
        self.disk_failed = disk_failed
        self.high_watermark = 0

    def failed(self, log: Log, failure: LogDirFailed) -> None:
        self.disk_failed(self.tp)

    def follows(self, leader_epoch: int, generation: int) -> Log:
        return self.log

    def append_as_follower(self, records: memoryview | None, high_watermark: int, log_start: int) -> None:
        if records is not None:
            self.log.append_as_follower(records)

    def truncate(self, offset: int) -> None:
        self.log.truncate_to(offset)

    def restart_at(self, offset: int) -> None:
        self.log.truncate_fully_and_start_at(offset)
        self.high_watermark = offset

    def end_of_epoch(self, epoch: int) -> EpochEnd:
        return EpochEnd(*self.log.leader_epochs.end_offset_for(epoch, self.log.log_end_offset))


class ScriptedLeader:
    """Answers with one batch for each partition, at its offset. `change` may change the answer of a partition."""

    def __init__(self) -> None:
        self.asked: list[set[TopicPartition]] = []
        self.change: Any = lambda tp, data: data
        self.start, self.end = 0, 100

    async def fetch(self, positions: Mapping[TopicPartition, Any], *, is_short: bool = False) -> dict[Any, Any]:
        self.asked.append(set(positions))
        return {
            tp: self.change(
                tp, FetchPartitionData(0, 0, 100, 100, 0, [memoryview(batch_at(position.wanted.fetch_offset))])
            )
            for tp, position in list(positions.items())
        }

    async def epoch_ends(self, questions: Mapping[TopicPartition, EpochQuestion]) -> dict[TopicPartition, EpochAnswer]:
        return {tp: EpochAnswer(ErrorCode.NONE, EpochEnd(0, self.end)) for tp in questions}

    async def list_offset(self, tp: TopicPartition, epoch: int, timestamp: int) -> int:
        if self.end < 0:
            raise LeaderUnavailable("it has no answer")
        return self.start if timestamp == -2 else self.end

    async def close(self) -> None:
        return None


class World:
    def __init__(self) -> None:
        self.time = FakeTime()
        self.leader = ScriptedLeader()
        self.partitions = {tp: FollowingPartition(tp, self.disk_failed) for tp in (GOOD, BAD)}
        throttle = ReplicationThrottle(2, lambda topic: "", self.time.monotonic, samples=11, sample_s=1)
        self.failed: list[TopicPartition] = []
        self.fetcher = ReplicaFetcher(
            "fetcher",
            self.leader,  # type: ignore[arg-type]
            self.time,
            EventLog(None, self.time),
            retry_s_max=BACKOFF_S,
            partition_max_bytes=1000,
            throttle=throttle,
            budget=LoopBudget(self.time, self.time.monotonic),
        )
        for partition in self.partitions.values():
            self.fetcher.add(FollowedPartition(partition, uuid.UUID(int=1), 0, 0))  # type: ignore[arg-type]

    def disk_failed(self, tp: TopicPartition) -> None:
        self.failed.append(tp)
        self.fetcher.remove(tp)

    def ends(self) -> dict[TopicPartition, int]:
        return {tp: partition.log.log_end_offset for tp, partition in self.partitions.items()}

    async def rounds(self, count: int, seconds: float = 0.0) -> None:
        for _ in range(count):
            await self.fetcher.truncate_once()
            await self.fetcher.fetch_once()
            self.time.advance(seconds)


def broken(tp: TopicPartition, data: FetchPartitionData) -> FetchPartitionData:
    """A bit of the bad partition's records is flipped."""
    if tp != BAD:
        return data
    records = bytearray(data.records[0])
    records[-1] ^= 1
    return data._replace(records=[memoryview(records)])


def failed(tp: TopicPartition, data: FetchPartitionData) -> FetchPartitionData:
    return data._replace(error=ErrorCode.KAFKA_STORAGE_ERROR, records=[]) if tp == BAD else data


def run(scenario: Any) -> None:
    asyncio.run(scenario(World()))


@pytest.mark.parametrize("change", [broken, failed])
def test_the_others_go_on_and_the_pause_grows(change: Any) -> None:
    async def scenario(world: World) -> None:
        await world.rounds(2)
        assert world.ends() == {GOOD: 2, BAD: 2}
        world.leader.change = change
        world.leader.asked.clear()
        await world.rounds(400, seconds=0.01)
        assert world.ends() == {GOOD: 402, BAD: 2}
        tries = [number for number, asked in enumerate(world.leader.asked) if BAD in asked]
        pauses = [later - earlier for earlier, later in itertools.pairwise(tries)]
        assert pauses[0] <= 3
        assert pauses == sorted(pauses)
        assert 95 <= pauses[-1] <= 105, "at most replica.fetch.backoff.ms"
        assert len(tries) < 12
        world.leader.change = lambda tp, data: data
        await world.rounds(110, seconds=0.01)
        assert world.ends()[BAD] > 2, "it is tried again, and copied when that is possible"
        assert {GOOD, BAD} == world.leader.asked[-1]

    run(scenario)


def test_a_disk_that_fails_is_given_up_and_the_others_go_on() -> None:
    async def scenario(world: World) -> None:
        await world.rounds(2)
        disk: Any = world.partitions[BAD].log._filesystem
        disk.fail("write")
        await world.rounds(5)
        assert world.failed == [BAD]
        assert world.fetcher.phase_of(BAD) is None
        assert world.ends()[GOOD] == 7

    run(scenario)


def out_of_range(tp: TopicPartition, data: FetchPartitionData) -> FetchPartitionData:
    return data._replace(error=ErrorCode.OFFSET_OUT_OF_RANGE, records=[]) if tp == BAD else data


@pytest.mark.parametrize(("start", "end", "expected"), [(50, 90, 50), (0, 1, 1)], ids=["behind", "ahead"])
def test_a_log_that_is_not_in_the_leaders_range(start: int, end: int, expected: int) -> None:
    """Below the leader's log start, the log is emptied and starts there. Above the leader's log end, it is cut."""

    async def scenario(world: World) -> None:
        await world.rounds(3)
        world.leader.start, world.leader.end = start, end
        world.leader.change = out_of_range
        await world.fetcher.fetch_once()
        assert world.ends() == {GOOD: 4, BAD: expected}
        assert world.fetcher.phase_of(BAD) is Phase.TRUNCATING
        world.leader.change = lambda tp, data: data
        world.leader.end = 100
        world.time.advance(BACKOFF_S)
        await world.rounds(2)
        assert world.ends() == {GOOD: 6, BAD: expected + 2}

    run(scenario)


def test_a_leader_that_does_not_say_its_range_is_asked_again() -> None:
    async def scenario(world: World) -> None:
        await world.rounds(1)
        world.leader.end = -1
        world.leader.change = out_of_range
        await world.rounds(3)
        assert world.ends() == {GOOD: 4, BAD: 1}
        assert world.fetcher.phase_of(BAD) is Phase.WAITING
        assert BAD not in world.leader.asked[-1]

    run(scenario)


def test_one_that_is_removed_while_its_answer_is_under_way() -> None:
    """BUG-12"""

    async def scenario(world: World) -> None:
        await world.rounds(1)

        def removing(tp: TopicPartition, data: FetchPartitionData) -> FetchPartitionData:
            world.fetcher.remove(BAD)
            return data

        world.leader.change = removing
        await world.fetcher.fetch_once()
        assert world.ends() == {GOOD: 2, BAD: 1}
        assert len(world.fetcher) == 1

    run(scenario)


def test_while_partitions_are_to_join_no_fetch_waits_long() -> None:
    """There are more than one request adds. A long poll between two requests would delay each hundred by half a second."""

    async def scenario(world: World) -> None:
        asked: list[tuple[int, bool]] = []

        async def fetch(positions: Any, *, is_short: bool = False) -> dict[Any, Any]:
            asked.append((len(positions), is_short or positions.has_more_changes))
            return {}

        world.leader.fetch = fetch  # type: ignore[method-assign]
        for number in range(3 * ADDED_AT_ONCE):
            partition: Any = FollowingPartition(TopicPartition("many", number), world.disk_failed)
            world.fetcher.add(FollowedPartition(partition, uuid.UUID(int=2), 0, 0))
        await world.rounds(10)
        everything = 3 * ADDED_AT_ONCE + 2
        assert asked[-1] == (everything, False)
        assert all(is_quick for placed, is_quick in asked if placed < everything)

    run(scenario)
