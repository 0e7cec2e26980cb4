"""ListOffsets (API 2), v1 to v9: INV-16, REP-8.

Times in ms, or -1 latest, -2 earliest, -3 the record with the largest time (v7), -4 earliest on local disk (v8). There is
no remote storage: -5 (v9) finds nothing. Other negative times, and those of a later version: UNSUPPORTED_VERSION, as in Kafka.
"""

from __future__ import annotations

from typing import Any

from broker.apis.context import ApiContext
from broker.network.request_channel import Request
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka import list_offsets_codec, messages
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.list_offsets_codec import ListOffsetsPartitionResult
from protocol.types import TopicPartition

ISOLATION_SINCE = 2
LEADER_EPOCH_SINCE = 4
SPECIAL_TIME_SINCE = {-1: 1, -2: 1, -3: 7, -4: 8, -5: 9}


def list_offsets(context: ApiContext, request: Request) -> None:
    header = request.header
    version = header.api_version
    body = messages.decode_request(ApiKey.LIST_OFFSETS, version, request.frame, header.body_offset)
    isolation_level = body.isolation_level if version >= ISOLATION_SINCE else 0
    asked = [(topic.name, p.partition_index) for topic in body.topics for p in topic.partitions]
    twice = {key for key in asked if asked.count(key) > 1} if len(set(asked)) != len(asked) else set()
    topics = [
        (
            topic.name,
            [
                _failed(p.partition_index, ErrorCode.INVALID_REQUEST)
                if (topic.name, p.partition_index) in twice
                else _find(context, version, topic.name, p, isolation_level, body.replica_id)
                for p in topic.partitions
            ],
        )
        for topic in body.topics
    ]
    request.respond_small(list_offsets_codec.encode_response(version, topics))


def _failed(partition: int, error: ErrorCode) -> ListOffsetsPartitionResult:
    return ListOffsetsPartitionResult(partition, error)


def _find(
    context: ApiContext, version: int, topic: str, asked: Any, isolation_level: int, replica_id: int
) -> ListOffsetsPartitionResult:
    index = asked.partition_index
    if asked.timestamp < 0 and version < SPECIAL_TIME_SINCE.get(asked.timestamp, version + 1):
        return _failed(index, ErrorCode.UNSUPPORTED_VERSION)
    current_epoch = asked.current_leader_epoch if version >= LEADER_EPOCH_SINCE else -1
    try:
        timestamp, offset, epoch = context.replica_manager.list_offset(
            TopicPartition(topic, index), asked.timestamp, current_epoch, isolation_level, replica_id
        )
    except KafkaError as error:
        return _failed(index, error.code)
    return ListOffsetsPartitionResult(index, ErrorCode.NONE, timestamp, offset, epoch)
