"""DescribeLogDirs: the replicas of each directory; one that failed tells its error only (LOG-6)."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from broker.settings.config import BrokerConfig
from broker.storage.disk.filesystem import FileSystem
from broker.storage.log_manager import LogManager
from protocol.errors import ErrorCode
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.record_batch import build_batch
from protocol.types import TopicPartition
from tests.support.api_world import World
from tests.support.fake_time import FakeTime


async def make_logs(*directories: Path) -> LogManager:
    """Partitions 0 to 3 of `t` over the directories, each with one record."""
    logs = LogManager(
        [str(d) for d in directories], BrokerConfig(broker_id=1).topic_defaults(), FileSystem(), FakeTime()
    )
    await logs.start()
    for number in range(4):
        log = logs.get_or_create(TopicPartition("t", number), None, {})
        log.append_as_leader(memoryview(build_batch([(None, b"x", (), 1000)])), 0)
    return logs


@pytest.mark.parametrize("version", [1, 2, 3, 4])
async def test_replicas_with_sizes(world: World, tmp_path: Path, version: int) -> None:
    logs = await make_logs(tmp_path / "a", tmp_path / "b")
    ours = {
        TopicPartition("t", 0): SimpleNamespace(log=logs.get(TopicPartition("t", 0)), high_watermark=0),
        TopicPartition("t", 1): SimpleNamespace(log=None, high_watermark=0),
    }
    world.context.log_manager = logs
    world.context.replica_manager = SimpleNamespace(partitions=ours)
    answer = await world.call(ApiKey.DESCRIBE_LOG_DIRS, version, {"topics": None})
    assert [result.log_dir for result in answer.results] == [str(tmp_path / "a"), str(tmp_path / "b")]
    rows = {p.partition_index: p for r in answer.results for t in r.topics for p in t.partitions}
    size = logs.get(TopicPartition("t", 0)).size
    assert size > 0
    assert {n: (p.partition_size, p.offset_lag, p.is_future_key) for n, p in rows.items()} == {
        0: (size, 0, False),
        1: (size, -1, False),  # the broker has not been told what to do with these
        2: (size, -1, False),
        3: (size, -1, False),
    }
    if version >= 4:
        assert all(0 < result.usable_bytes <= result.total_bytes for result in answer.results)
    wanted = [{"topic": "t", "partitions": [1, 9]}, {"topic": "nope", "partitions": [0]}]
    answer = await world.call(ApiKey.DESCRIBE_LOG_DIRS, version, {"topics": wanted})
    assert [[[p.partition_index for p in t.partitions] for t in r.topics] for r in answer.results] == [[], [[1]]]
    await logs.shutdown()


async def test_a_directory_that_failed(world: World, tmp_path: Path) -> None:
    logs = await make_logs(tmp_path / "a", tmp_path / "b")
    logs.fail_directory(str(tmp_path / "a"))
    world.context.log_manager = logs
    world.context.replica_manager = SimpleNamespace(partitions={})
    first, second = (await world.call(ApiKey.DESCRIBE_LOG_DIRS, 4, {"topics": None})).results
    assert (first.error_code, first.topics, first.total_bytes) == (ErrorCode.KAFKA_STORAGE_ERROR, (), -1)
    assert second.error_code == 0
    assert [p.partition_index for t in second.topics for p in t.partitions] == [1, 3]
    await logs.shutdown()
