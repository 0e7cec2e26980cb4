"""OffsetDelete (API 47), v0: committed positions of a group are forgotten, partition by partition (KIP-496, CLI-2).

GROUP_SUBSCRIBED_TO_TOPIC for a topic that members of the group read; partitions that do not exist are refused one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.apis.context import ApiContext
from broker.network.request_channel import Request
from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from protocol.types import TopicPartition


def offset_delete(context: ApiContext, request: Request) -> None:
    header = request.header
    body = messages.decode_request(ApiKey.OFFSET_DELETE, header.api_version, request.frame, header.body_offset)
    asked = [TopicPartition(topic.name, row.partition_index) for topic in body.topics for row in topic.partitions]
    known = [tp for tp in dict.fromkeys(asked) if context.metadata.partition(tp) is not None]
    refused = {tp: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for tp in asked if context.metadata.partition(tp) is None}
    context.groups.delete_offsets(
        body.group_id, known, lambda error, errors: _respond(request, error, {**refused, **errors})
    )


def _respond(request: Request, error: ErrorCode, errors: Mapping[TopicPartition, ErrorCode]) -> None:
    topics: dict[str, list[dict[str, Any]]] = {}
    if error is ErrorCode.NONE:
        for tp, partition_error in errors.items():
            row = {"partition_index": tp.partition, "error_code": int(partition_error)}
            topics.setdefault(tp.topic, []).append(row)
    body = {
        "error_code": int(error),
        "throttle_time": 0,
        "topics": [{"name": name, "partitions": rows} for name, rows in topics.items()],
    }
    request.respond_small(messages.encode_response(ApiKey.OFFSET_DELETE, request.header.api_version, body))
