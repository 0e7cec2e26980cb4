"""Real Kafka's DumpLogSegments reads our segments and indexes without complaint (FMT-3)."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest

from broker.process.clock import SystemClock
from broker.settings.config import TopicConfig
from broker.storage.disk.filesystem import FileSystem
from broker.storage.log_manager import LogManager
from protocol.kafka.record_batch import build_batch, parse_header
from protocol.types import TopicPartition
from tests.support.kafka_tools import KafkaTools
from tests.support.logs import check, split

pytestmark = pytest.mark.kafka
CONFIG = TopicConfig(segment_bytes=10_000, index_interval_bytes=1_000)
COMPRESSIONS = (0, 1, 2, 4)


async def write(path: str) -> dict[str, int]:
    """A leader's log, cut and written on; its follower's, appended in large pieces; both after a restart. -> records"""
    manager = LogManager([path], CONFIG, FileSystem(), SystemClock())
    await manager.start()
    manager.log_directories.ensure_meta(1, "cluster")
    leader = manager.get_or_create(TopicPartition("leader", 0), "AAAAAAAAAAAAAAAAAAAAWA", {})
    moments = random.Random(7)
    for number in range(400):
        count = 1 + number % 3
        stamp = 1_700_000_000_000 + number * 10 + moments.randrange(200)
        records = [(b"k", bytes(80), (("h", b"x"),), stamp + moments.randrange(5)) for _ in range(count)]
        leader.append_as_leader(build_batch(records, compression=COMPRESSIONS[number % 4]), number // 100)
        if number == 300:
            leader.truncate_to(350)
    follower = manager.get_or_create(TopicPartition("follower", 0), "AAAAAAAAAAAAAAAAAAAAWA", {})
    while follower.log_end_offset < leader.log_end_offset:
        end = leader.log_end_offset
        piece = await leader.read_cold(follower.log_end_offset, 3_000, end, True)
        follower.append_as_follower(memoryview(bytes(piece.records[0])))
    await manager.shutdown()
    os.unlink(f"{path}/.kafka_cleanshutdown")
    again = LogManager([path], CONFIG, FileSystem(), SystemClock())
    await again.start()
    sizes = {}
    for log in again.logs():
        sizes[str(log.topic_partition)] = sum(header.record_count for header in check(log))
        assert len(log.segments) > 2
    await again.shutdown()
    return sizes


def test_segments_and_indexes(tmp_path: Path, kafka_tools: KafkaTools) -> None:
    records = asyncio.run(write(str(tmp_path)))
    assert set(records) == {"leader-0", "follower-0"}
    logs = sorted(tmp_path.glob("*-0/*.log"))
    dumped = kafka_tools.dump(logs, "--deep-iteration")
    assert dumped.count("| offset: ") == sum(records.values())
    assert dumped.count("baseOffset: ") == sum(len(split(path.read_bytes())) for path in logs)
    assert f"baseOffset: {parse_header(logs[-1].read_bytes()).base_offset} " in dumped
    indexes = sorted([*tmp_path.glob("*-0/*.index"), *tmp_path.glob("*-0/*.timeindex")])
    sane = kafka_tools.dump(indexes, "--index-sanity-check")
    assert sane.count("passed sanity check") + sane.count("is empty") == 2 * len(logs)
    assert "timestamp: 17" in kafka_tools.dump(indexes)
