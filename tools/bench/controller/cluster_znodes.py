"""Writes the znodes of a cluster of any size, as if an admin had created its topics and a controller had elected their leaders."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from protocol.topic_ids import new_topic_id
from protocol.types import Assignment, LeaderAndIsr, TopicPartition
from protocol.zk.session import CreateOp, MultiFailed, Op, SetOp, ZkError, ZooKeeperSession
from protocol.zk.znodes import PERSISTENT_PATHS, ControllerEpochZNode, PartitionStateZNode, TopicZNode

PARTITIONS_PER_TOPIC = 100
OPERATIONS_IN_A_MULTI = 200
TOPICS_AT_ONCE = 50
LEADER_EPOCHS = 1_000_000
"""Leader epochs are random numbers below this, as in an old cluster: equal states would make the measurement faster."""


@dataclass(frozen=True, slots=True)
class ClusterShape:
    """Topics of a hundred partitions on brokers 1 to `brokers`; every leader is preferred, every ISR full."""

    partitions: int
    replication_factor: int
    brokers: int

    def topics(self) -> dict[str, dict[int, tuple[int, ...]]]:
        """topic -> partition -> replicas"""
        sizes = [
            min(PARTITIONS_PER_TOPIC, self.partitions - at) for at in range(0, self.partitions, PARTITIONS_PER_TOPIC)
        ]
        return {
            f"bench-{number:05d}": {partition: self._replicas(number + partition) for partition in range(size)}
            for number, size in enumerate(sizes)
        }

    def _replicas(self, first: int) -> tuple[int, ...]:
        return tuple((first + at) % self.brokers + 1 for at in range(self.replication_factor))


async def write_cluster(zk: ZooKeeperSession, shape: ClusterShape, progress: Callable[[int], None]) -> None:
    """Writes all znodes of the cluster. Calls `progress` with the number of partitions written since its last call."""
    for path in PERSISTENT_PATHS:
        await zk.ensure_path(path)
    await zk.create(ControllerEpochZNode.PATH, ControllerEpochZNode.encode(1))
    for topics in _in_batches(shape.topics()):
        await _apply(zk, [op for topic, replicas in topics.items() for op in _new_topic(topic, replicas)])
        progress(sum(map(len, topics.values())))


async def restore_states(zk: ZooKeeperSession, shape: ClusterShape) -> None:
    """Restores the original leaders and ISRs."""
    for topics in _in_batches(shape.topics()):
        states = [entry for topic, replicas in topics.items() for entry in _states(topic, replicas)]
        await _apply(zk, [SetOp(path, data) for path, data in states])


async def write_topic(zk: ZooKeeperSession, topic: str, replicas: Mapping[int, tuple[int, ...]]) -> None:
    """Writes one more topic, with its states."""
    await _apply(zk, list(_new_topic(topic, replicas)))


def _in_batches(topics: Mapping[str, dict[int, tuple[int, ...]]]) -> Iterator[dict[str, dict[int, tuple[int, ...]]]]:
    names = list(topics)
    for at in range(0, len(names), TOPICS_AT_ONCE):
        yield {name: topics[name] for name in names[at : at + TOPICS_AT_ONCE]}


def _new_topic(topic: str, replicas: Mapping[int, tuple[int, ...]]) -> Iterator[Op]:
    topic_id = new_topic_id(random.Random(topic).randbytes(16))
    assignment = {partition: Assignment(ids) for partition, ids in replicas.items()}
    yield CreateOp(TopicZNode.path(topic), TopicZNode.encode(topic_id, assignment))
    yield CreateOp(f"{TopicZNode.path(topic)}/partitions")
    for path, data in _states(topic, replicas):
        yield CreateOp(path.removesuffix("/state"))
        yield CreateOp(path, data)


def _states(topic: str, replicas: Mapping[int, tuple[int, ...]]) -> Iterator[tuple[str, bytes]]:
    """(path, data) of every state. A topic always gets the same states."""
    chance = random.Random(topic)
    for partition, ids in replicas.items():
        state = LeaderAndIsr(ids[0], chance.randrange(LEADER_EPOCHS), ids, 1)
        yield PartitionStateZNode.path(TopicPartition(topic, partition)), PartitionStateZNode.encode(state)


async def _apply(zk: ZooKeeperSession, operations: list[Op]) -> None:
    batches = [operations[at : at + OPERATIONS_IN_A_MULTI] for at in range(0, len(operations), OPERATIONS_IN_A_MULTI)]
    for result in await zk.multi_many(batches):
        if isinstance(result, MultiFailed):
            raise result.error
        if isinstance(result, ZkError):
            raise result
