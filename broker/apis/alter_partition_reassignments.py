"""AlterPartitionReassignments (API 45), v0: on the controller only; begins, changes and cancels moves of replicas (CTL-10, 11).

A partition without replicas is a cancellation. The answer comes when the moves are written down, long before they are done:
ListPartitionReassignments tells how far they are. NOT_CONTROLLER is the whole answer's error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from broker.apis.context import ApiContext
from broker.network.request_channel import Request
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from protocol.types import TopicPartition


def alter_partition_reassignments(context: ApiContext, request: Request) -> Coroutine[Any, Any, None]:
    header = request.header
    api_key = ApiKey.ALTER_PARTITION_REASSIGNMENTS
    body = messages.decode_request(api_key, header.api_version, request.frame, header.body_offset)
    targets = {
        TopicPartition(topic.name, row.partition_index): None if row.replicas is None else tuple(row.replicas)
        for topic in body.topics
        for row in topic.partitions
    }
    return _alter(context, request, targets, messages.milliseconds(body.timeout))


async def _alter(
    context: ApiContext, request: Request, targets: Mapping[TopicPartition, tuple[int, ...] | None], timeout_ms: int
) -> None:
    try:
        async with asyncio.timeout(timeout_ms / 1000 if timeout_ms > 0 else None):
            answers = await context.controller.alter_reassignments(targets)
    except KafkaError as error:
        _respond(request, {}, error)
    except TimeoutError:
        _respond(request, {}, KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the controller has not come to it yet"))
    else:
        _respond(request, answers)


def _respond(
    request: Request, answers: Mapping[TopicPartition, KafkaError | None], error: KafkaError | None = None
) -> None:
    topics: dict[str, list[dict[str, Any]]] = {}
    for tp, failure in answers.items():
        row = {
            "partition_index": tp.partition,
            "error_code": int(failure.code) if failure is not None else 0,
            "error_message": failure.message if failure is not None else None,
        }
        topics.setdefault(tp.topic, []).append(row)
    body = {
        "throttle_time": 0,
        "error_code": int(error.code) if error is not None else 0,
        "error_message": error.message if error is not None else "",
        "responses": [{"name": topic, "partitions": rows} for topic, rows in topics.items()],
    }
    version = request.header.api_version
    request.respond_small(messages.encode_response(ApiKey.ALTER_PARTITION_REASSIGNMENTS, version, body))
