"""CreatePartitions (API 37), v0 to v3: on the controller only; waits until the new partitions have leaders (CTL-8).

`count` is how many the topic has afterwards. `validate_only` checks everything and makes nothing. Partitions that are made
but have no leaders in time: REQUEST_TIMED_OUT.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Coroutine, Mapping
from typing import Any

from broker.apis import waiting
from broker.apis.context import ApiContext
from broker.network.request_channel import Request
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from protocol.types import NO_LEADER
from protocol.zk.session import ZkError

Answers = Mapping[str, KafkaError | None]
"""Topic -> None, or why not."""


def create_partitions(context: ApiContext, request: Request) -> Coroutine[Any, Any, None] | None:
    header = request.header
    body = messages.decode_request(ApiKey.CREATE_PARTITIONS, header.api_version, request.frame, header.body_offset)
    if not context.controller.is_active:
        _respond(
            request, {topic.name: KafkaError(ErrorCode.NOT_CONTROLLER, "ask the controller") for topic in body.topics}
        )
        return None
    return _create(context, request, body)


async def _create(context: ApiContext, request: Request, body: Any) -> None:
    deadline = context.clock.monotonic() + messages.milliseconds(body.timeout) / 1000
    counts = Counter(topic.name for topic in body.topics)
    answers: dict[str, KafkaError | None] = {}
    made: dict[str, frozenset[int]] = {}
    for topic in body.topics:
        name = topic.name
        if counts[name] > 1:
            answers[name] = KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic in request.")
            continue
        given = None if topic.assignments is None else [tuple(row.broker_ids) for row in topic.assignments]
        answers[name] = None
        try:
            added = await context.topic_admin.add_partitions(name, topic.count, given, validate_only=body.validate_only)
            if not body.validate_only:
                made[name] = added
        except KafkaError as error:
            answers[name] = error
        except ZkError as error:
            answers[name] = KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"ZooKeeper does not answer: {error}")

    for name in await waiting.for_all(context, made, lambda name: _have_leaders(context, name, made[name]), deadline):
        answers[name] = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "made, but they have no leaders yet")
    _respond(request, answers)


def _have_leaders(context: ApiContext, topic: str, partitions: frozenset[int]) -> bool:
    states = context.metadata.partitions_of(topic)
    return all(partition in states and states[partition].leader != NO_LEADER for partition in partitions)


def _respond(request: Request, answers: Answers) -> None:
    results = [
        {
            "name": name,
            "error_code": int(error.code) if error is not None else 0,
            "error_message": error.message if error is not None else None,
        }
        for name, error in answers.items()
    ]
    body = {"throttle_time": 0, "results": results}
    request.respond_small(messages.encode_response(ApiKey.CREATE_PARTITIONS, request.header.api_version, body))
