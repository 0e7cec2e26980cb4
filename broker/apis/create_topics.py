"""CreateTopics (API 19), v0 to v7: only on the controller; waits until the new partitions have leaders.

v1 adds `validate_only` and the reason in the answer, v4 -1 for the broker's defaults, v5 partitions, replication factor and settings in
the answer, v7 the topic id in the answer.
`validate_only` checks everything and creates nothing. REQUEST_TIMED_OUT has two causes, and the message says which: the topic was
created but has no leaders in time, or ZooKeeper failed, and the outcome is unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from broker.admin.partition_additions import TOPIC_PARTITIONS_MAX
from broker.admin.topic_admin import ZOOKEEPER_WAIT_MAX_S, NewTopic, PlannedTopic, TopicNames
from broker.network.request_channel import Request
from broker.quotas.client_quotas import MutationQuota
from broker.requests import rights, throttling, waiting
from broker.requests.context import ApiContext
from broker.requests.steps import StepsTo, each, finished, respond_when_finished, slice_of_own
from protocol.acls import Operation
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka import messages
from protocol.types import NO_LEADER
from protocol.zk.session import ZkError

VALIDATE_ONLY_SINCE = 1
STRICT_SINCE = 6
"""The first version whose clients know THROTTLING_QUOTA_EXCEEDED (KIP-599)."""
ASSIGNMENTS_IN_A_STEP = 200
TOPICS_IN_A_STEP = 100
TOPICS_AT_ONCE = 10
"""Topics between two pauses: topics that are refused without a request to ZooKeeper would not yield the loop."""
CONFIGS_MAX = 1_000
"""Limit of settings of one topic in a request. Far fewer settings exist."""
NEW_PARTITIONS_MAX = 10_000
"""Limit of new partitions in one request (as in Kafka with KRaft): placing and writing them takes 30 ms of the broker's time."""


async def create_topics(context: ApiContext, request: Request) -> None:
    header = request.header
    reading = messages.decoding(header.api_key, header.api_version, request.frame, header.body_offset)
    body = await finished(context, request, reading)
    rows: Iterable[Mapping[str, Any]]
    quota = throttling.of_mutations(context, request, STRICT_SINCE)
    if context.controller.is_active:
        rows = await _create(context, request, body, quota)
    else:
        rows = (
            _failure(topic.name, ErrorCode.NOT_CONTROLLER, "send the request to the controller")
            for topic in body.topics
        )
    answer = messages.encoding(
        header.api_key, header.api_version, {"throttle_time": throttling.mute_for(request, quota), "topics": rows}
    )
    await respond_when_finished(context, request, answer)


async def _create(
    context: ApiContext, request: Request, body: Any, quota: MutationQuota
) -> Iterable[Mapping[str, Any]]:
    """One row for each topic of the request."""
    validate_only = request.header.api_version >= VALIDATE_ONLY_SINCE and body.validate_only
    deadline = context.clock.monotonic() + messages.milliseconds(body.timeout) / 1000
    counts: Counter[str] = Counter()
    counting = each(body.topics, lambda topic: counts.update((topic.name,)), TOPICS_IN_A_STEP)
    await finished(context, request, counting)
    await waiting.for_zookeeper(context, deadline)
    answers: list[PlannedTopic | dict[str, Any]] = []
    made: list[PlannedTopic] = []
    names: TopicNames | None = None
    left = NEW_PARTITIONS_MAX
    may_all = rights.on_cluster(context, request, Operation.CREATE, is_quiet=True)
    for number, topic in enumerate(body.topics, 1):
        if number % TOPICS_AT_ONCE == 0:
            await slice_of_own(context, request)
        if counts[topic.name] > 1:
            answers.append(_failure(topic.name, ErrorCode.INVALID_REQUEST, "the topic is named twice in the request"))
            continue
        if not (may_all or rights.on_topic(context, request, Operation.CREATE, topic.name)):
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            answers.append(_failure(topic.name, error, "Authorization failed."))
            continue
        try:
            wanted = max(topic.num_partitions, len(topic.assignments))
            if left < wanted <= TOPIC_PARTITIONS_MAX:
                raise KafkaError(
                    ErrorCode.POLICY_VIOLATION, f"more than {NEW_PARTITIONS_MAX} partitions in one request"
                )
            planned = await context.topic_admin.planned(await finished(context, request, _new_topic(topic)))
            left -= len(planned.assignment)
            if names is None and (len(body.topics) > 1 or validate_only):
                names = await context.topic_admin.names()
            if not validate_only:
                quota.take(len(planned.assignment))
                left_s = max(0.0, deadline - context.clock.monotonic())
                await context.topic_admin.write(planned, names, wait_s=min(left_s, ZOOKEEPER_WAIT_MAX_S))
                made.append(planned)
            elif names is not None:
                names.check_absent(planned.name)
            answers.append(planned)
        except KafkaError as error:
            answers.append(_failure(topic.name, error.code, error.message))
        except ZkError as error:
            answers.append(_failure(topic.name, ErrorCode.REQUEST_TIMED_OUT, f"ZooKeeper does not answer: {error}"))
    late = await _without_leaders(context, made, deadline)
    return (_row(context, request, answer, late, is_made=not validate_only) for answer in answers)


def _row(
    context: ApiContext,
    request: Request,
    answer: PlannedTopic | dict[str, Any],
    late: Collection[str],
    *,
    is_made: bool,
) -> Mapping[str, Any]:
    if isinstance(answer, dict):
        return answer
    if answer.name in late:
        failure = _failure(answer.name, ErrorCode.REQUEST_TIMED_OUT, "created, but it has no leaders yet")
        return {**failure, "topic_id": answer.topic_id}
    row = _success(context, answer, is_made=is_made)
    if not rights.on_topic(context, request, Operation.DESCRIBE_CONFIGS, answer.name, is_quiet=True):
        hidden = {"num_partitions": -1, "replication_factor": -1, "configs": None}
        return {**row, **hidden, "topic_config_error_code": int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)}
    return row


def _new_topic(topic: Any) -> StepsTo[NewTopic]:
    """Raises KafkaError."""
    assignments: dict[int, tuple[int, ...]] = {}
    for number, row in enumerate(topic.assignments, 1):
        if row.partition_index in assignments:
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"partition {row.partition_index} is assigned twice")
        assignments[row.partition_index] = row.broker_ids
        if number % ASSIGNMENTS_IN_A_STEP == 0:
            yield
    if len(topic.configs) > CONFIGS_MAX:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"more than {CONFIGS_MAX} settings of one topic")
    configs = {config.name: config.value for config in topic.configs}
    return NewTopic(topic.name, topic.num_partitions, topic.replication_factor, assignments, configs)


async def _without_leaders(context: ApiContext, topics: Sequence[PlannedTopic], deadline: float) -> set[str]:
    """Waits until every partition of the topics has a leader in the metadata cache. Returns topics without leaders at `deadline`."""
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


def _described_configs(context: ApiContext, overrides: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Every setting of the new topic, with its source."""
    return (
        {
            "name": setting.name,
            "value": setting.value,
            "read_only": False,
            "config_source": int(setting.source),
            "is_sensitive": False,
        }
        for setting in context.configs.layers.describe_topic(overrides)
    )


def _failure(name: str, error: ErrorCode, message: str) -> dict[str, Any]:
    return {
        "name": name,
        "topic_id": None,
        "error_code": int(error),
        "error_message": message or None,
        "num_partitions": -1,
        "replication_factor": -1,
        "configs": [],
    }
