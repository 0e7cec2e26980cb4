"""Fetches that are read in slices: other requests run in between, and the fetch misses no append (NET-4, REP-5)."""

from __future__ import annotations

import asyncio

import pytest

from broker.replication.fetching import large_fetches
from broker.replication.fetching.fetch_reads import FetchParams
from broker.replication.fetching.large_fetches import LargeFetch, WaitingFetch
from protocol.kafka.fetch_codec import FetchPartitionData, FetchRequestPartition
from protocol.kafka.record_batch import build_batch
from protocol.types import TopicPartition
from tests.support.replica_cluster import TP, Cluster, fetch_from, values_of

PARTITIONS = [TopicPartition(TP.topic, number) for number in range(4)]

pytestmark = pytest.mark.usefixtures("a_pause_after_each_piece")


class Fetching:
    """Broker 1 leads four partitions alone; a consumer fetches all, and two are read in a turn."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.answers: list[list[tuple[TopicPartition, FetchPartitionData]]] = []

    def begin(self, max_wait_ms: int = 500) -> WaitingFetch:
        entries = [(tp, FetchRequestPartition(tp.partition, -1, 0, -1, -1, 2**20)) for tp in PARTITIONS]
        params = FetchParams(-1, -1, max_wait_ms, 1, 2**20)
        waiting = fetch_from(self.cluster.nodes[1].manager, params, entries, self.answers.append)
        assert isinstance(waiting, LargeFetch)
        return waiting

    def produce(self, tp: TopicPartition, value: str) -> None:
        batch = memoryview(build_batch([(None, value.encode(), (), 1000)]))
        self.cluster.nodes[1].manager.appends.append(1, 500, [(tp, batch)], lambda _: None)
        self.cluster.time.turn()

    def values(self) -> list[list[str]]:
        """The values of the only answer, which has the partitions in the order of the request."""
        ((*answer,),) = self.answers
        assert [tp for tp, _ in answer] == PARTITIONS
        return [values_of(data) for _, data in answer]


@pytest.fixture
def fetching(cluster: Cluster, runner: asyncio.Runner) -> Fetching:
    async def start() -> Fetching:
        await cluster.start(1)
        for cluster.tp in PARTITIONS:
            cluster.lead(1, 0, (1,))
        cluster.time.turn()
        return Fetching(cluster)

    return runner.run(start())


@pytest.fixture(autouse=True)
def two_reads_in_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_fetches, "LARGE", 2)
    monkeypatch.setattr(large_fetches, "READS_IN_A_SLICE", 2)


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_all_partitions_are_answered_in_order_after_some_turns(fetching: Fetching) -> None:
    fetching.produce(PARTITIONS[3], "last")
    fetching.begin()
    await turns(1)
    assert fetching.answers == []
    await turns(2)
    assert fetching.values() == [[], [], [], ["last"]]


@pytest.mark.parametrize("partition", PARTITIONS)
async def test_records_appended_during_the_reads_are_in_the_answer(
    fetching: Fetching, partition: TopicPartition
) -> None:
    waiting = fetching.begin()
    await turns(1)
    fetching.produce(partition, "new")
    await turns(4)
    assert fetching.values() == [["new"] if tp == partition else [] for tp in PARTITIONS]
    assert waiting.is_completed


async def test_a_large_fetch_that_finds_nothing_is_parked(fetching: Fetching) -> None:
    fetching.begin()
    await turns(4)
    assert (fetching.answers, fetching.cluster.nodes[1].manager.waiting()) == ([], (0, 1))
    fetching.produce(PARTITIONS[1], "new")
    assert fetching.values() == [[], ["new"], [], []]
    assert fetching.cluster.nodes[1].manager.waiting() == (0, 0)


@pytest.mark.parametrize("turns_before", [0, 1, 4])
async def test_a_large_fetch_whose_connection_closes_is_not_left_parked(fetching: Fetching, turns_before: int) -> None:
    waiting = fetching.begin(max_wait_ms=60_000)
    await turns(turns_before)
    waiting.complete_now()
    await turns(4)
    assert fetching.values() == [[]] * 4
    assert fetching.cluster.nodes[1].manager.waiting() == (0, 0)
