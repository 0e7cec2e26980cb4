"""A lack of file descriptors fails requests only while it lasts; a path that the disk refuses fails only its partition (FLT-30, LOG-6)."""

from __future__ import annotations

import asyncio
import errno
import os

import pytest

from broker.replication.leadership_changes import Lookup
from broker.replication.partition import Role
from broker.storage.disk.filesystem import FileSystem
from protocol.errors import ErrorCode
from protocol.rpc.messages import LeaderAndIsrRequest, PartitionState
from tests.support.replica_cluster import TOPIC_ID, TP, Cluster, Node


class ScarceDisk(FileSystem):
    """Files below `path` cannot be opened, with the error `number`."""

    path = "/nowhere"
    number = errno.EMFILE

    def _open(self, path: str, flags: int, *, is_kept: bool = False, directory: int | None = None) -> int:
        if path.startswith(ScarceDisk.path):
            raise OSError(ScarceDisk.number, os.strerror(ScarceDisk.number), path)
        return super()._open(path, flags, is_kept=is_kept, directory=directory)


@pytest.fixture
def cluster(cluster: Cluster, runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Brokers 1 and 2. Broker 1 leads TP, of which both have a record."""
    monkeypatch.setattr("tests.support.replica_cluster.FileSystem", ScarceDisk)
    monkeypatch.setattr(ScarceDisk, "path", "/nowhere")
    monkeypatch.setattr(ScarceDisk, "number", errno.EMFILE)

    async def start() -> None:
        await cluster.start_led(1, 2)
        cluster.produce(1, "a")
        await cluster.settle()

    runner.run(start())
    return cluster


def close_files(node: Node) -> str:
    """Closes the log's files, as after a time without use. Returns the log's directory."""
    log = node.log()
    for segment in log.segments:
        segment.is_unsynced = False
        assert segment.rest()
    return log.directory


def take(node: Node, *partitions: int) -> tuple[dict[int, int], list[PartitionState]]:
    """A LeaderAndIsr for new partitions: (errors by partition, those that are held)."""
    states = tuple(PartitionState(TP.topic, n, 1, 1, 0, (1,), 0, (1,), is_new=True) for n in partitions)
    request = LeaderAndIsrRequest(9, 1, node.epoch, states, {TP.topic: TOPIC_ID})
    held: list[PartitionState] = []
    answer = node.carry_out(request, Lookup(), held)
    return {row.partition: row.error for row in answer.partitions}, held


async def test_producers_and_consumers_get_an_error_that_they_retry(cluster: Cluster) -> None:
    node = cluster.nodes[1]
    ScarceDisk.path = close_files(node)
    assert cluster.produce(1, "b")[0].error == ErrorCode.KAFKA_STORAGE_ERROR
    assert cluster.consume(1, 0)[0].error == ErrorCode.KAFKA_STORAGE_ERROR
    assert node.partition().role is Role.LEADER
    assert node.logs.offline_dirs == ()
    ScarceDisk.path = "/nowhere"
    cluster.produce(1, "c")
    await cluster.settle()
    assert cluster.nodes[1].records() == cluster.nodes[2].records() == ["a", "c"]


async def test_a_follower_continues_when_a_descriptor_is_free(cluster: Cluster) -> None:
    node = cluster.nodes[2]
    ScarceDisk.path = close_files(node)
    waiting = cluster.produce(1, "b")
    await cluster.replicate(2, rounds=3)
    assert node.partition().role is Role.FOLLOWER
    assert node.logs.offline_dirs == ()
    assert not waiting
    ScarceDisk.path = "/nowhere"
    cluster.pass_time(2.0)
    await cluster.settle()
    assert waiting[0].error == ErrorCode.NONE
    assert node.records() == ["a", "b"]


async def test_a_partition_whose_log_cannot_be_created_now_is_held_and_created_later(cluster: Cluster) -> None:
    """The controller gets no error: after one it would never ask again."""
    node = cluster.nodes[1]
    directory = str(node.logs.directories[0])
    ScarceDisk.path = f"{directory}/{TP.topic}-7/"
    errors, held = take(node, 6, 7, 8)
    assert errors == {}
    assert [state.partition for state in held] == [7]
    assert node.partition(TP._replace(partition=6)).role is Role.LEADER
    assert node.partition(TP._replace(partition=8)).role is Role.LEADER
    assert take(node, 7)[1], "still"
    ScarceDisk.path = "/nowhere"
    assert take(node, 7) == ({}, [])
    assert node.partition(TP._replace(partition=7)).role is Role.LEADER
    assert node.logs.offline_dirs == ()


async def test_a_refused_path_takes_only_its_partition_offline(cluster: Cluster) -> None:
    node = cluster.nodes[1]
    ScarceDisk.number = errno.ENAMETOOLONG
    ScarceDisk.path = f"{node.logs.directories[0]}/{TP.topic}-7/"
    reported: list[bool] = []
    node.manager.failures.on_failure = lambda: reported.append(True)
    errors, held = take(node, 6, 7, 8)
    assert errors == {7: ErrorCode.KAFKA_STORAGE_ERROR}
    assert held == []
    assert node.partition(TP._replace(partition=7)).role is Role.OFFLINE
    assert node.partition(TP._replace(partition=8)).role is Role.LEADER
    assert node.logs.offline_dirs == ()
    assert reported == [True], "others may lead"
    cluster.produce(1, "b")
    await cluster.settle()
    assert cluster.nodes[2].records() == ["a", "b"]
