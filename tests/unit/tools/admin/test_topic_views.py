"""Selection, filters and text of `ottla topic list|describe`, by tables."""

from __future__ import annotations

import re

import pytest

from protocol.types import Assignment, TopicPartition
from tools.admin.config_values import DEFAULT_SOURCE, TOPIC_SOURCE, ConfigValue
from tools.admin.topic_views import (
    PartitionFilter,
    PartitionView,
    TopicView,
    describe_json,
    describe_lines,
    partition_predicate,
    select_topics,
    with_moves,
)

NAMES = ["orders", "orders.v1", "ordersXv1", "__consumer_offsets"]
HEALTHY = PartitionView(0, 1, (1, 2, 3), (1, 2, 3))
AT_MIN = PartitionView(1, 2, (2, 3, 1), (2, 3))
UNDER_MIN = PartitionView(2, 3, (3, 1, 2), (3,))
LEADERLESS = PartitionView(3, None, (1, 2, 3), (1,))
LED_BY_THE_DEAD = PartitionView(4, 9, (9, 2, 3), (9, 2, 3))
CONFIGS = {
    "min.insync.replicas": ConfigValue("2", "STATIC_BROKER_CONFIG"),
    "retention.ms": ConfigValue("1000", TOPIC_SOURCE),
    "segment.bytes": ConfigValue("1073741824", DEFAULT_SOURCE),
}
TOPIC = TopicView("orders", "id", (HEALTHY, AT_MIN, UNDER_MIN, LEADERLESS, LED_BY_THE_DEAD), CONFIGS)


@pytest.mark.parametrize(
    ("patterns", "exclude_internal", "selected"),
    [
        ([], False, ["__consumer_offsets", "orders", "orders.v1", "ordersXv1"]),
        ([], True, ["orders", "orders.v1", "ordersXv1"]),
        (["orders"], False, ["orders"]),
        (["orders.v1"], False, ["orders.v1"]),  # the name of a topic: its dot is no wildcard
        (["orders.v."], False, ["orders.v1", "ordersXv1"]),
        (["orders.*", "__.*"], True, ["orders", "orders.v1", "ordersXv1"]),
        (["order"], False, []),  # a pattern must match the whole name
    ],
)
def test_select_topics(patterns: list[str], exclude_internal: bool, selected: list[str]) -> None:
    assert select_topics(NAMES, patterns, exclude_internal=exclude_internal) == selected


def test_select_topics_refuses_a_broken_pattern() -> None:
    with pytest.raises(re.error):
        select_topics(NAMES, ["["])


@pytest.mark.parametrize(
    ("kind", "partitions"),
    [
        (PartitionFilter.UNDER_REPLICATED, [1, 2, 3]),
        (PartitionFilter.UNAVAILABLE, [3, 4]),
        (PartitionFilter.UNDER_MIN_ISR, [2, 3]),
        (PartitionFilter.AT_MIN_ISR, [1]),
    ],
)
def test_partition_filters(kind: PartitionFilter, partitions: list[int]) -> None:
    matches = partition_predicate(kind, {1, 2, 3})
    assert [partition.partition for partition in TOPIC.partitions if matches(TOPIC, partition)] == partitions


def test_describe_lines_are_kafkas() -> None:
    topic = TopicView("orders", "id", (HEALTHY, LEADERLESS), CONFIGS)
    header, *lines = describe_lines(topic)
    assert header.split("\t") == [
        "Topic: orders",
        "TopicId: id",
        "PartitionCount: 2",
        "ReplicationFactor: 3",
        "Configs: min.insync.replicas=2,retention.ms=1000",
    ]
    assert lines == [
        "\tTopic: orders\tPartition: 0\tLeader: 1\tReplicas: 1,2,3\tIsr: 1,2,3",
        "\tTopic: orders\tPartition: 3\tLeader: none\tReplicas: 1,2,3\tIsr: 1",
    ]


def test_without_configs_the_field_stays_empty_in_text_and_null_in_json() -> None:
    topic = TopicView("orders", "id", (HEALTHY,), None)
    assert next(describe_lines(topic)).endswith("\tConfigs: ")
    assert not topic.has_overrides
    assert describe_json(topic) == {
        "topic": "orders",
        "topic_id": "id",
        "partition_count": 1,
        "replication_factor": 3,
        "configs": None,
        "partitions": [
            {
                "partition": 0,
                "leader": 1,
                "replicas": (1, 2, 3),
                "isr": (1, 2, 3),
                "adding_replicas": (),
                "removing_replicas": (),
            }
        ],
    }


def test_a_moving_partition_shows_adding_and_removing_replicas() -> None:
    partition = PartitionView(0, 1, (4, 1, 2), (1, 2))
    moves = {TopicPartition("orders", 0): Assignment((4, 1, 2), (4,), (2,))}
    topic = with_moves(TopicView("orders", "id", (partition, HEALTHY), None), moves)
    header, first, _ = describe_lines(topic)
    assert "\tReplicationFactor: 2\t" in header  # as Kafka counts: without the one that is being added
    assert first.endswith("\tReplicas: 4,1,2\tIsr: 1,2\tAdding Replicas: 4\tRemoving Replicas: 2")
    assert not partition_predicate(PartitionFilter.UNDER_REPLICATED, {1, 2, 4})(topic, topic.partitions[0])
