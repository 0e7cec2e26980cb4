"""EIO when one of two log directories is read: its clients get KAFKA_STORAGE_ERROR, the other directory is served (LOG-6, FLT-29)."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from broker.replication.partition import Role
from broker.storage.directories.future_logs import REPLACES_CURRENT
from broker.storage.disk.filesystem import FileSystem
from protocol.errors import ErrorCode
from protocol.types import Buffer, TopicPartition
from tests.support.replica_cluster import TP, Cluster, Node


class BrokenDisk(FileSystem):
    """Reads of files below `path` fail."""

    path = "/nowhere"

    def read(self, fd: int, size: int, position: int) -> bytes:
        self._check(os.readlink(f"/proc/self/fd/{fd}"))
        return super().read(fd, size, position)

    def read_cached(self, fd: int, size: int, position: int) -> Buffer | None:
        self._check(os.readlink(f"/proc/self/fd/{fd}"))
        return super().read_cached(fd, size, position)

    def read_file(self, path: str) -> bytes | None:
        self._check(path)
        return super().read_file(path)

    def _check(self, path: str) -> None:
        if path.startswith(BrokenDisk.path):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)


@pytest.fixture
def cluster(cluster: Cluster, runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Brokers 1 and 2, each with two disks. Broker 1 leads TP, of which both have a record."""
    monkeypatch.setattr("tests.support.replica_cluster.FileSystem", BrokenDisk)
    monkeypatch.setattr(BrokenDisk, "path", "/nowhere")
    cluster.disks = 2

    async def start() -> None:
        await cluster.start_led(1, 2)
        cluster.produce(1, "a")
        await cluster.settle()

    runner.run(start())
    return cluster


def disk_of(node: Node) -> str:
    log = node.logs.get(TP)
    assert log is not None
    return log.log_dir


def _copies(directory: str, *, with_file: str) -> int:
    return len(list(Path(directory).glob(f"{TP}.*-future/{with_file}")))


async def test_a_failed_read_for_a_consumer_takes_the_leader_offline(cluster: Cluster) -> None:
    """After the failed read nothing is appended, and producers that wait for acks are answered (BUG-10)."""
    node = cluster.nodes[1]
    reported: list[bool] = []
    node.manager.failures.on_failure = lambda: reported.append(True)
    waiting = cluster.produce(1, "b")
    assert not waiting
    BrokenDisk.path = disk_of(node)
    assert cluster.consume(1, 0)[0].error == ErrorCode.KAFKA_STORAGE_ERROR
    assert waiting[0].error == ErrorCode.KAFKA_STORAGE_ERROR
    assert node.partition().role is Role.OFFLINE
    assert reported == [True]
    BrokenDisk.path = "/nowhere"
    assert cluster.consume(1, 0)[0].error == ErrorCode.KAFKA_STORAGE_ERROR, "until the next start"
    assert cluster.produce(1, "c")[0].error == ErrorCode.KAFKA_STORAGE_ERROR
    assert [row.error for row in cluster.lead(1, 1, (1, 2), to=(1,))[1].partitions] == [ErrorCode.KAFKA_STORAGE_ERROR]
    cluster.lead(2, 1, (2,), to=(2,))
    assert cluster.nodes[2].records() == ["a"]


async def test_a_failed_read_for_a_follower_takes_the_leader_offline(cluster: Cluster) -> None:
    """The follower gets an error that it retries. The leader's disk is offline, and the controller elects."""
    node = cluster.nodes[1]
    cluster.produce(1, "b")
    BrokenDisk.path = disk_of(node)
    await cluster.replicate(2)
    assert node.partition().role is Role.OFFLINE
    assert cluster.nodes[2].partition().role is Role.FOLLOWER
    assert cluster.nodes[2].records() == ["a"]
    assert cluster.nodes[2].logs.offline_dirs == ()


async def test_a_failed_truncation_takes_the_follower_offline(cluster: Cluster) -> None:
    """The follower's own disk has failed: it stops copying the partition."""
    for value in "bcdef":
        cluster.produce(1, value)
    await cluster.replicate(2)
    cluster.kill(2)
    node = await cluster.start_broker(2)
    BrokenDisk.path = disk_of(node)
    cluster.lead(1, 1, (1,), is_new=False)
    partition = node.partition()
    node.manager.failures.on_failure = lambda: None
    cluster.nodes[1].partition().truncate(2)
    await cluster.replicate(2, rounds=2)
    assert partition.role is Role.OFFLINE
    assert not any(TP in fetcher._followed for fetcher in node.manager.fetchers())


async def test_unreadable_high_watermarks_take_only_their_directory_offline(cluster: Cluster) -> None:
    """The replica in the other directory is served. The replica in the failed directory is offline, and not created again."""
    await cluster.nodes[1].manager.checkpoint_high_watermarks()
    own = disk_of(cluster.nodes[1])
    for is_own in (False, True):
        cluster.kill(1)
        node = await cluster.start_broker(1)
        (other,) = [path for path in node.logs.directories if path != own]
        BrokenDisk.path = f"{own if is_own else other}/replication-offset-checkpoint"
        errors = cluster.lead(2, 5 + is_own, (2,), is_new=False)[1].partitions
        BrokenDisk.path = "/nowhere"
        assert [row.error for row in errors] == ([ErrorCode.KAFKA_STORAGE_ERROR] if is_own else [])
        assert node.logs.offline_dirs == ((own,) if is_own else (other,))
        assert (node.logs.get(TP) is None) == is_own


async def test_a_copy_that_cannot_replace_the_log_leaves_the_replica_offline(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is closed already, so the replica is offline and others lead. It returns at the next start."""
    node = cluster.nodes[1]
    source = disk_of(node)
    (target,) = [path for path in node.logs.directories if path != source]
    reported: list[bool] = []
    node.manager.failures.on_failure = lambda: reported.append(True)
    rename = FileSystem.rename

    def broken(self: FileSystem, old: str, new: str) -> None:
        if new == f"{target}/{TP}":
            raise OSError(errno.EIO, new)
        rename(self, old, new)

    monkeypatch.setattr(FileSystem, "rename", broken)
    node.manager.moves.move(TP, target)
    async with asyncio.timeout(10):
        await node.manager.moves.done()
    assert node.logs.offline_dirs == (target,)
    assert reported == [True]
    assert node.partition().role is Role.OFFLINE
    assert cluster.produce(1, "b")[0].error == ErrorCode.KAFKA_STORAGE_ERROR
    (refused,) = cluster.lead(1, 1, (1, 2), to=(1,), is_new=False)[1].partitions
    assert refused.error == ErrorCode.KAFKA_STORAGE_ERROR
    await node.logs.upkeep._retention_due(
        node.logs._clock.monotonic() + 1e6
    )  # has nothing to do with a log that is closed
    monkeypatch.setattr(FileSystem, "rename", rename)
    cluster.kill(1)
    assert _copies(target, with_file=REPLACES_CURRENT) == 1
    node = await cluster.start_broker(1)
    assert disk_of(node) == source
    cluster.lead(1, 2, (1, 2), to=(1,), is_new=False)
    assert node.records() == ["a"]
    assert node.logs.get(TopicPartition("t", 1)) is None
