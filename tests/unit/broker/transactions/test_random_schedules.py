"""Random schedules: coordinators die and move, brokers do not answer, records fail. Each transaction ends in one way (TXN-1 to TXN-3).

A transaction has an epoch of its own, so its markers are known by their producer id and epoch. In transaction version 2 that of the
markers is one higher, and a producer has several transactions.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from broker.transactions.coordinator import ProducerAnswer
from broker.transactions.states import TransactionVersion
from broker.transactions.transaction import ProducerIdAndEpoch
from protocol.errors import ErrorCode
from protocol.types import TopicPartition
from tests.support.thorough import thorough
from tests.support.transaction_cluster import T0, T1, T2, TransactionCluster

BROKERS = (1, 2, 3)
STEPS = 50
MARKER_ERRORS = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.NONE)


class Schedule:
    """One producer after the other with the same transactional id, and what they were told."""

    def __init__(self, cluster: TransactionCluster, seed: int) -> None:
        self.cluster = cluster
        self.chance = Random(seed)
        self.coordinator = 1
        self.epoch = 0
        self.producer: ProducerIdAndEpoch | None = None
        self.added: set[TopicPartition] = set()
        self.told: dict[ProducerIdAndEpoch, tuple[bool, frozenset[TopicPartition]]] = {}
        """Producer -> whether its transaction was committed, and its partitions: for EndTxns that were answered with NONE."""
        self.given_out: list[ProducerIdAndEpoch] = []

    async def run(self) -> None:
        await self.cluster.start(*BROKERS)
        await self.cluster.serve(1, 0, BROKERS)
        for _ in range(STEPS):
            await self.chance.choice((*[self.ask] * 6, self.move, self.disturb))()
        self.heal()
        await self.cluster.go_on()
        await self.cluster.until(lambda: not self.cluster.state(self.coordinator).startswith("Prepare"))

    @property
    def is_raising(self) -> bool:
        return self.cluster.version.raises_epoch

    def begin_end(self, producer: ProducerIdAndEpoch, *, is_commit: bool) -> list[ErrorCode] | list[ProducerAnswer]:
        if self.is_raising:
            return self.cluster.begin_end_and_raise(self.coordinator, producer, is_commit=is_commit)
        return self.cluster.begin_end(self.coordinator, producer, is_commit=is_commit)

    async def ask(self) -> None:
        """The answer may be lost: the producer does not wait for it long."""
        cluster, at = self.cluster, self.coordinator
        if self.producer is None:
            initialized = cluster.begin_init(at)
            await cluster.go_on()
            if initialized and initialized[0].error is ErrorCode.NONE:
                self.producer, self.added = initialized[0].producer, set()
                self.given_out.append(self.producer)
            return
        if not self.added or self.chance.random() < 0.4:
            partition = self.chance.choice((T0, T1, T2))
            added = cluster.begin_add(at, self.producer, partition)
            await cluster.go_on()
            if added == [ErrorCode.NONE]:
                self.added.add(partition)
            elif self.chance.random() < 0.5:
                self.producer = None  # another producer takes over
            return
        producer, self.producer = self.producer, None
        is_commit = self.chance.random() < 0.5
        for _ in range(self.chance.choice((1, 2)) if self.is_raising else 1):  # the answer may be lost
            ended = self.begin_end(producer, is_commit=is_commit)
            await cluster.go_on()
            if ended == [ErrorCode.NONE]:
                self.told[producer] = is_commit, frozenset(self.added)
            elif ended and isinstance(ended[0], ProducerAnswer) and ended[0].error is ErrorCode.NONE:
                self.told[producer] = is_commit, frozenset(self.added)
                self.producer = ended[0].producer
        self.added = set()
        if self.producer is not None:
            self.given_out.append(self.producer)

    async def move(self) -> None:
        """The coordinator dies or is deposed, perhaps in the middle of a request."""
        cluster = self.cluster
        if self.producer is not None and self.added:
            self.begin_end(self.producer, is_commit=self.chance.random() < 0.5)
            self.producer = None
            for _ in range(self.chance.randrange(8)):
                await asyncio.sleep(0)
        dies = self.chance.random() < 0.5
        before = self.coordinator
        self.coordinator = self.chance.choice([broker for broker in BROKERS if broker != before])
        self.epoch += 1
        if dies:
            cluster.kill(before)
            await cluster.serve(self.coordinator, self.epoch, tuple(b for b in BROKERS if b != before))
            await cluster.start_broker(before)
            self.epoch += 1
        await cluster.serve(self.coordinator, self.epoch, BROKERS)

    async def disturb(self) -> None:
        cluster = self.cluster
        cluster.unreachable = {broker for broker in BROKERS if self.chance.random() < 0.3}
        cluster.marker_error = lambda broker, tp: self.chance.choice(MARKER_ERRORS)
        if self.chance.random() < 0.5:
            self.heal()
        cluster.leaders = {tp: self.chance.choice(BROKERS) for tp in cluster.leaders}
        cluster.tell_metadata()
        await cluster.go_on()

    def heal(self) -> None:
        self.cluster.unreachable = set()
        self.cluster.marker_error = lambda broker, tp: ErrorCode.NONE
        self.cluster.tell_metadata()


@pytest.mark.parametrize("version", [TransactionVersion.TV_0, TransactionVersion.TV_2])
@pytest.mark.parametrize("seed", [*range(3), *(thorough(seed) for seed in range(3, 40))])
async def test_each_transaction_ends_in_one_way(
    tmp_path: Path, fetchers_are_driven_by_hand: None, seed: int, version: TransactionVersion
) -> None:
    cluster = TransactionCluster(tmp_path, {}, version=version)
    try:
        schedule = Schedule(cluster, seed)
        await schedule.run()
    finally:
        cluster.close()
    check(schedule, cluster)


def check(schedule: Schedule, cluster: TransactionCluster) -> None:
    """A fence aborts in an epoch that no producer gets: the transaction that it aborts has the epoch before."""
    ends: dict[tuple[int, int], set[bool]] = {}
    marked = set()
    for _, partition, producer_id, epoch, is_commit, _ in cluster.markers:
        is_raised = schedule.is_raising or ProducerIdAndEpoch(producer_id, epoch) not in schedule.given_out
        ends.setdefault((producer_id, epoch - is_raised), set()).add(is_commit)
        marked.add((partition, producer_id, epoch - schedule.is_raising, is_commit))
    assert all(len(kinds) == 1 for kinds in ends.values()), ends
    for producer, (is_commit, partitions) in schedule.told.items():
        assert {(str(tp), *producer, is_commit) for tp in partitions} <= marked
    assert len(set(schedule.given_out)) == len(schedule.given_out), "no epoch is given out twice"
