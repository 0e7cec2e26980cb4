"""CreatePartitions (API 37), v0 to v3: only on the controller; waits until the new partitions have leaders (CTL-8).

`count` is the new total. `validate_only` checks everything and creates nothing. REQUEST_TIMED_OUT has three
causes, and the message says which: the partitions were created but have no leaders in time; ZooKeeper failed, and the outcome is
unknown; the topic kept changing, and nothing was created.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from broker.admin.partition_additions import TOPIC_PARTITIONS_MAX
from broker.network.request_channel import Request
from broker.quotas.client_quotas import MutationQuota
from broker.requests import rights, throttling, waiting
from broker.requests.context import ApiContext
from broker.requests.steps import bare, collected, each, finished, respond_when_finished, slice_of_own
from protocol.acls import Operation
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka import messages
from protocol.types import NO_LEADER
from protocol.zk.session import ZkError

Answers = Mapping[str, KafkaError | None]
"""Topic -> None, or the error."""

STRICT_SINCE = 3
"""The first version whose clients know THROTTLING_QUOTA_EXCEEDED (KIP-599)."""
TOPICS_IN_A_STEP = 100
TOPICS_AT_ONCE = 20
"""Topics between two pauses: topics that are refused without a request to ZooKeeper would not yield the loop."""
NEW_PARTITIONS_MAX = 10_000
"""Limit of new partitions in one request (as in Kafka with KRaft): placing and writing them takes 30 ms of the broker's time."""


async def create_partitions(context: ApiContext, request: Request) -> None:
    header = request.header
    reading = messages.decoding(header.api_key, header.api_version, request.frame, header.body_offset)
    body = await finished(context, request, reading)
    quota = throttling.of_mutations(context, request, STRICT_SINCE)
    if context.controller.is_active:
        answers = await _create(context, request, body, quota)
    else:
        error = KafkaError(ErrorCode.NOT_CONTROLLER, "send the request to the controller")
        answers = {topic.name: error for topic in body.topics}
    results = map(_result, answers.items())
    rows = {"throttle_time": throttling.mute_for(request, quota), "results": results}
    answer = messages.encoding(header.api_key, header.api_version, rows)
    await respond_when_finished(context, request, answer)


async def _create(context: ApiContext, request: Request, body: Any, quota: MutationQuota) -> Answers:
    deadline = context.clock.monotonic() + messages.milliseconds(body.timeout) / 1000
    counts: Counter[str] = Counter()
    counting = each(body.topics, lambda topic: counts.update((topic.name,)), TOPICS_IN_A_STEP)
    await finished(context, request, counting)
    await waiting.for_zookeeper(context, deadline)
    answers: dict[str, KafkaError | None] = {}
    made: dict[str, frozenset[int]] = {}
    left = NEW_PARTITIONS_MAX
    for number, topic in enumerate(body.topics, 1):
        if number % TOPICS_AT_ONCE == 0:
            await slice_of_own(context, request)
        name = topic.name
        if counts[name] > 1:
            answers[name] = KafkaError(ErrorCode.INVALID_REQUEST, "the topic is named twice in the request")
            continue
        if not rights.on_topic(context, request, Operation.ALTER, name):
            answers[name] = KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "the topic authorization is failed.")
            continue
        given = None
        if topic.assignments is not None:
            given = await finished(context, request, collected(topic.assignments, lambda row: row.broker_ids))
        answers[name] = None
        try:
            existing = len(context.metadata.partitions_of(name))
            # `add_partitions` refuses more than TOPIC_PARTITIONS_MAX, and decides about topics that the cache does not have.
            if existing and left < topic.count - existing <= TOPIC_PARTITIONS_MAX:
                raise KafkaError(
                    ErrorCode.POLICY_VIOLATION, f"more than {NEW_PARTITIONS_MAX} new partitions in one request"
                )
            added = await context.topic_admin.add_partitions(
                name, topic.count, given, validate_only=body.validate_only, permit=quota.take
            )
            left -= len(added)
            if not body.validate_only:
                made[name] = added
        except KafkaError as error:
            answers[name] = bare(error)
        except ZkError as error:
            answers[name] = KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"ZooKeeper does not answer: {error}")

    for name in await waiting.for_all(context, made, lambda name: _have_leaders(context, name, made[name]), deadline):
        answers[name] = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "created, but they have no leaders yet")
    return answers


def _have_leaders(context: ApiContext, topic: str, partitions: frozenset[int]) -> bool:
    states = context.metadata.partitions_of(topic)
    return all(partition in states and states[partition].leader != NO_LEADER for partition in partitions)


def _result(answer: tuple[str, KafkaError | None]) -> dict[str, Any]:
    name, error = answer
    return {
        "name": name,
        "error_code": int(error.code) if error is not None else 0,
        "error_message": error.message or None if error is not None else None,
    }
