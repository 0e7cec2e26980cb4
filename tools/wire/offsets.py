"""ListOffsets: its request for partitions of any topics, and the offsets in its answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from protocol.kafka.api_keys import ApiKey
from protocol.types import Address, TopicPartition
from tools.wire.client import Client

VERSION = 5
EARLIEST, LATEST = -2, -1


def offsets_body(partitions: Iterable[TopicPartition], timestamp: int = LATEST) -> dict[str, Any]:
    topics: dict[str, list[dict[str, int]]] = {}
    for topic, index in partitions:
        row = {"partition_index": index, "current_leader_epoch": -1, "timestamp": timestamp}
        topics.setdefault(topic, []).append(row)
    rows = [{"name": topic, "partitions": of_topic} for topic, of_topic in topics.items()]
    return {"replica_id": -1, "isolation_level": 0, "topics": rows}


def offsets_in(answer: Any) -> dict[TopicPartition, int]:
    """Without the partitions that have an error, such as those that the broker does not lead."""
    return {
        TopicPartition(topic.name, int(found.partition_index)): int(found.offset)
        for topic in answer.topics
        for found in topic.partitions
        if int(found.error_code) == 0
    }


async def offsets_at(
    client: Client, address: Address, partitions: Iterable[TopicPartition], timestamp: int = LATEST
) -> dict[TopicPartition, int]:
    """The offsets of the partitions that the broker leads; others are missing. Raises OSError, MalformedRequest."""
    return offsets_in(await client.ask(address, ApiKey.LIST_OFFSETS, VERSION, offsets_body(partitions, timestamp)))
