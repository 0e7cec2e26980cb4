"""DescribeProducers: every replica tells of its log, as Kafka's `kafka-transactions find-hanging --broker-id` asks (KIP-664)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from broker.replication.partition import Role
from protocol.errors import ErrorCode
from protocol.kafka.api_keys import ApiKey
from tests.support.api_world import World
from tests.support.replica_cluster import Cluster

UNKNOWN = 9


async def described(cluster: Cluster, broker: int, *numbers: int) -> list[tuple[ErrorCode, list[int]]]:
    """(error, producer ids) of partitions of `t`."""
    world = World()
    world.context.replica_manager = SimpleNamespace(partitions=cluster.nodes[broker].manager.partitions)
    body: dict[str, Any] = {"topics": [{"name": "t", "partition_indexes": numbers}]}
    (topic,) = (await world.call(ApiKey.DESCRIBE_PRODUCERS, 0, body)).topics
    return [
        (ErrorCode(row.error_code), [int(producer.producer_id) for producer in row.active_producers])
        for row in topic.partitions
    ]


async def test_every_replica_describes_its_log(cluster: Cluster) -> None:
    await cluster.start_led(1, 2)
    cluster.produce(1, "x", producer_id=7, producer_epoch=0, base_sequence=0)
    await cluster.replicate(2)
    for broker in (1, 2):
        assert await described(cluster, broker, 0, UNKNOWN) == [
            (ErrorCode.NONE, [7]),
            (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []),
        ]
    follower = cluster.nodes[2]
    follower.manager.step_down_all("the session is lost")
    assert await described(cluster, 2, 0) == [(ErrorCode.NONE, [7])]
    follower.partition().stop(Role.OFFLINE)
    assert await described(cluster, 2, 0) == [(ErrorCode.KAFKA_STORAGE_ERROR, [])]
