"""ListPartitionReassignments (API 46), v0: on the controller only; the moves that are under way (CTL-11).

Without a list all of them; of a list those that move, and nothing is said of the others, unknown ones included.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.apis.context import ApiContext
from broker.network.request_channel import Request
from protocol.errors import KafkaError
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from protocol.types import Assignment, TopicPartition


def list_partition_reassignments(context: ApiContext, request: Request) -> None:
    header = request.header
    api_key = ApiKey.LIST_PARTITION_REASSIGNMENTS
    body = messages.decode_request(api_key, header.api_version, request.frame, header.body_offset)
    try:
        moving = context.controller.reassignments()
    except KafkaError as error:
        _respond(request, {}, error)
        return
    if body.topics is not None:
        wanted = {TopicPartition(topic.name, index) for topic in body.topics for index in topic.partition_indexes}
        moving = {tp: assignment for tp, assignment in moving.items() if tp in wanted}
    _respond(request, moving)


def _respond(request: Request, moving: Mapping[TopicPartition, Assignment], error: KafkaError | None = None) -> None:
    topics: dict[str, list[dict[str, Any]]] = {}
    for tp, assignment in sorted(moving.items()):
        row = {
            "partition_index": tp.partition,
            "replicas": assignment.replicas,
            "adding_replicas": assignment.adding,
            "removing_replicas": assignment.removing,
        }
        topics.setdefault(tp.topic, []).append(row)
    body = {
        "throttle_time": 0,
        "error_code": int(error.code) if error is not None else 0,
        "error_message": error.message if error is not None else "",
        "topics": [{"name": topic, "partitions": rows} for topic, rows in topics.items()],
    }
    version = request.header.api_version
    request.respond_small(messages.encode_response(ApiKey.LIST_PARTITION_REASSIGNMENTS, version, body))
