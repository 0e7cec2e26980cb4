"""Loading half a million committed offsets costs as much for each of them as loading twenty-five thousand (BUG-25).

Compared within one run, in processor time of the loop's thread. That no other request waits for a load is a matter of steps, not of
seconds: tests/unit/broker/groups/offsets_topic/test_writer_and_loading.py.
"""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import uvloop

from broker.groups.group.messages import CommittedOffset
from broker.groups.offsets_topic.loading import OffsetsReader, StoredGroup
from broker.groups.offsets_topic.records import encode_offset_key, encode_offset_value, topic_id_headers
from broker.main import GC_THRESHOLDS
from broker.process.clock import SystemClock
from broker.settings.config import TopicConfig
from broker.storage.disk.filesystem import FileSystem
from broker.storage.log import Log
from broker.storage.log_manager import LogManager
from protocol.kafka.record_batch import build_batch
from protocol.topic_names import OFFSETS_TOPIC
from protocol.types import TopicPartition

pytestmark = pytest.mark.integration

FEW, MANY = 25_000, 500_000
COST_RATIO_MAX = 3
"""A load whose cost grows with the square would have 20."""
PARTITIONS = 100
"""The partitions of a topic. Each group has committed an offset for each."""
BATCHES_PER_WRITE = 1_000


def batches(offsets: int, per_batch: int) -> Iterator[bytes]:
    """As commits write them, `per_batch` partitions at a time."""
    headers = topic_id_headers(b"flights' id 16 b")
    for first in range(0, offsets, per_batch):
        records = []
        for number in range(first, first + per_batch):
            group, partition = divmod(number, PARTITIONS)
            key = encode_offset_key(f"consumers-of-flights-{group:05}", TopicPartition("flights", partition))
            committed = CommittedOffset(1_000_000 + number, 3, "", 1_700_000_000_000 + first)
            records.append((key, encode_offset_value(committed), headers, 1_700_000_000_000 + first))
        yield build_batch(records, base_offset=first, leader_epoch=0)


async def written(directory: Path, offsets: int, per_batch: int) -> Log:
    manager = LogManager([str(directory)], TopicConfig(), FileSystem(), SystemClock())
    await manager.start()
    log = manager.get_or_create(TopicPartition(OFFSETS_TOPIC, 0), "AAAAAAAAAAAAAAAAAAAAWA", {})
    made = batches(offsets, per_batch)
    while several := b"".join(itertools.islice(made, BATCHES_PER_WRITE)):
        log.append_as_follower(memoryview(several))
    return log


def cost_of_load(directory: Path, offsets: int, per_batch: int) -> float:
    """Processor seconds for each offset."""
    count = 0
    kept: list[object] = []

    def sink(group: StoredGroup) -> None:
        nonlocal count
        count += len(group[2])
        kept.append(group[2])

    async def play() -> float:
        log = await written(directory, offsets, per_batch)
        replicas = SimpleNamespace(partitions=SimpleNamespace(find=lambda tp: SimpleNamespace(leader_log=lambda: log)))
        reader = OffsetsReader(replicas, SystemClock())
        began = time.thread_time()
        assert await reader.load(0, lambda: True, sink)
        return (time.thread_time() - began) / offsets

    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        cost = uvloop.run(play())
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
    assert count == offsets
    return cost


@pytest.mark.thorough
@pytest.mark.timeout(400)
@pytest.mark.parametrize("per_batch", [PARTITIONS, 1], ids=["commits of 100 partitions", "commits of one partition"])
def test_many_offsets(tmp_path: Path, per_batch: int) -> None:
    few = cost_of_load(tmp_path / "few", FEW, per_batch)
    assert cost_of_load(tmp_path / "many", MANY, per_batch) < few * COST_RATIO_MAX
