"""CreateTopics (API 19), v2 to v7: on the controller only; waits until the new partitions have leaders.

v4 -1 for the broker's defaults, v5 answers with partitions, replication factor and settings, v7 with the topic's id.
`validate_only` checks everything and makes nothing. A topic that is made but has no leaders in time: REQUEST_TIMED_OUT.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from broker.apis import waiting
from broker.apis.context import ApiContext
from broker.apis.topic_admin import NewTopic, PlannedTopic
from broker.network.request_channel import Request
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from protocol.types import NO_LEADER
from protocol.zk.session import ZkError

INLINE_MAX = 20
"""Topics whose answer is made at once; that of more is made in a thread."""


def create_topics(context: ApiContext, request: Request) -> Coroutine[Any, Any, None] | None:
    header = request.header
    body = messages.decode_request(ApiKey.CREATE_TOPICS, header.api_version, request.frame, header.body_offset)
    if not context.controller.is_active:
        _respond(request, [_failure(t.name, ErrorCode.NOT_CONTROLLER, "ask the controller") for t in body.topics])
        return None
    return _create(context, request, body)


async def _create(context: ApiContext, request: Request, body: Any) -> None:
    deadline = context.clock.monotonic() + messages.milliseconds(body.timeout) / 1000
    counts = Counter(topic.name for topic in body.topics)
    answers: list[dict[str, Any]] = []
    made: list[PlannedTopic] = []
    for topic in body.topics:
        if counts[topic.name] > 1:
            answers.append(_failure(topic.name, ErrorCode.INVALID_REQUEST, "the topic is there twice in one request"))
            continue
        try:
            planned = context.topic_admin.plan(_new_topic(topic))
            if body.validate_only:
                await context.topic_admin.check_absent(planned.name)
            else:
                await context.topic_admin.write(planned)
                made.append(planned)
            answers.append(_success(context, planned, is_made=not body.validate_only))
        except KafkaError as error:
            answers.append(_failure(topic.name, error.code, error.message))
        except ZkError as error:
            answers.append(_failure(topic.name, ErrorCode.REQUEST_TIMED_OUT, f"ZooKeeper does not answer: {error}"))
    late = await _without_leaders(context, made, deadline)
    for answer in answers:
        if answer["name"] in late and answer["error_code"] == 0:
            answer.update(_failure(answer["name"], ErrorCode.REQUEST_TIMED_OUT, "made, but it has no leaders yet"))
    if len(answers) <= INLINE_MAX:
        _respond(request, answers)
    else:
        # Each has all its settings: the loop must not stand still for them.
        version = request.header.api_version
        request.respond_small(await asyncio.get_running_loop().run_in_executor(None, _encoded, version, answers))


def _new_topic(topic: Any) -> NewTopic:
    assignments: dict[int, tuple[int, ...]] = {}
    for row in topic.assignments:
        if row.partition_index in assignments:
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"partition {row.partition_index} is assigned twice")
        assignments[row.partition_index] = tuple(row.broker_ids)
    configs = {config.name: config.value for config in topic.configs}
    return NewTopic(topic.name, topic.num_partitions, topic.replication_factor, assignments, configs)


async def _without_leaders(context: ApiContext, topics: Sequence[PlannedTopic], deadline: float) -> set[str]:
    """Waits until every partition of the topics has a leader in the metadata cache. The names of those that do not in time."""
    late = await waiting.for_all(context, topics, lambda topic: _has_leaders(context, topic), deadline)
    return {topic.name for topic in late}


def _has_leaders(context: ApiContext, topic: PlannedTopic) -> bool:
    states = context.metadata.partitions_of(topic.name)
    return all(partition in states and states[partition].leader != NO_LEADER for partition in topic.assignment)


def _success(context: ApiContext, topic: PlannedTopic, *, is_made: bool) -> dict[str, Any]:
    return {
        "name": topic.name,
        "topic_id": topic.topic_id if is_made else None,
        "error_code": 0,
        "error_message": None,
        "num_partitions": len(topic.assignment),
        "replication_factor": topic.replication_factor,
        "configs": _described_configs(context, topic.configs),
    }


def _described_configs(context: ApiContext, overrides: Mapping[str, str]) -> list[dict[str, Any]]:
    """Every setting of the new topic, with where its value comes from."""
    return [
        {
            "name": setting.name,
            "value": setting.value,
            "read_only": False,
            "config_source": int(setting.source),
            "is_sensitive": False,
        }
        for setting in context.configs.layers.describe_topic(overrides)
    ]


def _failure(name: str, error: ErrorCode, message: str) -> dict[str, Any]:
    return {
        "name": name,
        "topic_id": None,
        "error_code": int(error),
        "error_message": message or None,
        "num_partitions": -1,
        "replication_factor": -1,
        "configs": None,
    }


def _respond(request: Request, answers: Sequence[Mapping[str, Any]]) -> None:
    request.respond_small(_encoded(request.header.api_version, answers))


def _encoded(version: int, answers: Sequence[Mapping[str, Any]]) -> bytes:
    return messages.encode_response(ApiKey.CREATE_TOPICS, version, {"throttle_time": 0, "topics": answers})
