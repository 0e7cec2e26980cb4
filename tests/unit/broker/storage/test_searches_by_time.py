"""ListOffsets by time in batches that take long to look through: in slices, and unpacked in a thread."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

import pytest

from broker.storage import timestamps
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.record_batch import build_batch, parse_header
from protocol.kafka.record_checks import STEP
from tests.support.replica_cluster import TP, Cluster, play

COUNT = 5 * STEP


def stops(batch: bytes, timestamp_ms: int) -> tuple[int, int, timestamps.Found | None]:
    """(how often it stops, how often for a thread, what it finds)"""
    search = timestamps.searching(batch, parse_header(batch), timestamp_ms, 0)
    count = threads = 0
    done = None
    while True:
        try:
            work = search.send(done)
        except StopIteration as end:
            return count, threads, end.value
        count += 1
        threads += work is not None
        done = work() if work is not None else None


@pytest.mark.parametrize("compression", [0, 1, 2, 3, 4])
def test_many_records_are_searched_in_steps(compression: int) -> None:
    batch = build_batch([(None, None, (), number) for number in range(COUNT)], compression=compression)
    assert stops(batch, COUNT - 1)[0] >= COUNT // STEP - 1
    assert stops(batch, COUNT - 1)[2] == (COUNT - 1, COUNT - 1, -1)
    assert stops(batch, COUNT) == (COUNT // STEP, 0, None)


@pytest.mark.parametrize("compression", [1, 2, 3, 4])
@pytest.mark.parametrize("value", [bytes(2 * 1024 * 1024), os.urandom(100_000)], ids=["unpacks to much", "is large"])
def test_a_large_batch_is_unpacked_in_a_thread(compression: int, value: bytes) -> None:
    batch = build_batch([(None, value, (), 7)], compression=compression)
    assert stops(batch, 5) == (1, 1, (7, 0, -1))


@pytest.mark.usefixtures("fetchers_are_driven_by_hand")
def test_a_broker_that_stopped_leading_during_the_search_does_not_answer_with_the_offset(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.start(1, 2)
        cluster.lead(1, 0, (1,), replicas=(1, 2))
        cluster.produce(1, *("value",) * COUNT, acks=1)
        listing = cluster.nodes[1].manager.offsets.listing_offset(TP, 1001, -1, 0, -1)
        with pytest.raises(StopIteration):
            next(listing)  # later than all
        listing = cluster.nodes[1].manager.offsets.listing_offset(TP, -3, -1, 0, -1)
        with pytest.raises(StopIteration) as found:
            next(listing)
        assert found.value.value[:2] == (1000, 0)
        batch = build_batch([(None, None, (), 2000 + number) for number in range(COUNT)])
        cluster.nodes[1].manager.appends.append(1, 5000, [(TP, memoryview(batch))], lambda _: None)
        listing = cluster.nodes[1].manager.offsets.listing_offset(TP, 2000 + COUNT - 1, -1, 0, -1)
        next(listing)
        cluster.lead(2, 1, (1, 2), replicas=(1, 2))
        with pytest.raises(KafkaError) as caught:
            deque(listing, maxlen=0)
        assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER

    play(tmp_path, scenario)
