"""DeleteRecords (API 21), v0 to v2: at the leader; waits until all live replicas have moved their log start (LOG-1).

The offset is that of the first record to be kept, -1 the high watermark. Below the log start it succeeds and changes nothing.
The answer's low watermark is the least log start of the live replicas.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.apis.context import ApiContext
from broker.apis.produce import INTERNAL_TOPICS
from broker.network.request_channel import Request
from broker.replication.record_deletions import RecordDeletion
from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from protocol.types import TopicPartition


def delete_records(context: ApiContext, request: Request) -> None:
    header = request.header
    body = messages.decode_request(ApiKey.DELETE_RECORDS, header.api_version, request.frame, header.body_offset)
    offsets: dict[TopicPartition, int] = {}
    refused: dict[TopicPartition, RecordDeletion] = {}
    for topic in body.topics:
        for row in topic.partitions:
            tp = TopicPartition(topic.name, row.partition_index)
            if context.metadata.partition(tp) is None:
                refused[tp] = RecordDeletion(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            elif topic.name in INTERNAL_TOPICS:
                refused[tp] = RecordDeletion(ErrorCode.INVALID_TOPIC_EXCEPTION)
            else:
                offsets[tp] = row.offset
    timeout_s = messages.milliseconds(body.timeout) / 1000
    context.replica_manager.record_deletions.delete(
        offsets, timeout_s, lambda results: _respond(request, {**results, **refused})
    )


def _respond(request: Request, results: Mapping[TopicPartition, RecordDeletion]) -> None:
    topics: dict[str, list[dict[str, Any]]] = {}
    for tp, result in results.items():
        row = {
            "partition_index": tp.partition,
            "low_watermark": result.low_watermark,
            "error_code": int(result.error),
        }
        topics.setdefault(tp.topic, []).append(row)
    body = {"throttle_time": 0, "topics": [{"name": topic, "partitions": rows} for topic, rows in topics.items()]}
    request.respond_small(messages.encode_response(ApiKey.DELETE_RECORDS, request.header.api_version, body))
