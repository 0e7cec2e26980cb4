"""AlterPartitionReassignments (API 45), v0 and v1: only on the controller; starts, changes and cancels reassignments (CTL-10, CTL-11).

Null replicas cancel the reassignment of their partition. The answer is sent when the reassignments are persisted, long before they
are complete: ListPartitionReassignments shows their progress. NOT_CONTROLLER and REQUEST_TIMED_OUT are errors of the whole answer.
With `allow_replication_factor_change` false (v1, KIP-860), a target with another number of replicas gets INVALID_REPLICATION_FACTOR.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from broker.network.request_channel import Request
from broker.requests import rights
from broker.requests.context import ApiContext
from broker.requests.steps import SharedErrors, Steps, StepsTo, by_topic, finished, parts_of, respond_when_finished
from protocol.acls import Operation
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka import messages
from protocol.types import TopicPartition

Targets = Mapping[TopicPartition, tuple[int, ...] | None]
Answers = Mapping[TopicPartition, KafkaError | None]

PARTITIONS_AT_ONCE = 200
"""Limit of partitions in one event for the controller."""


async def alter_partition_reassignments(context: ApiContext, request: Request) -> None:
    header = request.header
    reading = messages.decoding(header.api_key, header.api_version, request.frame, header.body_offset)
    body = await finished(context, request, reading)
    targets = await finished(context, request, _targets(body))
    may_change_factor = bool(getattr(body, "allow_replication_factor_change", True))
    timeout_ms = messages.milliseconds(body.timeout)
    answers: dict[TopicPartition, KafkaError | None] = {}
    shared_errors = SharedErrors()
    error = None
    if not rights.on_cluster(context, request, Operation.ALTER):
        error = KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")
        await respond_when_finished(context, request, _answer(request, may_change_factor, {}, error))
        return
    try:
        async with asyncio.timeout(timeout_ms / 1000 if timeout_ms > 0 else None):
            for part in parts_of(targets.items(), PARTITIONS_AT_ONCE):
                found = await context.controller.alter_reassignments(dict(part), may_change_factor=may_change_factor)
                answers.update((tp, shared_errors.shared(failure)) for tp, failure in found.items())
    except KafkaError as refused:
        error = refused
    except TimeoutError:
        error = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the controller has not processed the request yet")
    await respond_when_finished(
        context, request, _answer(request, may_change_factor, {} if error is not None else answers, error)
    )


def _targets(body: Any) -> StepsTo[Targets]:
    """The request's targets. A partition that is named twice gets the last replicas."""
    targets: dict[TopicPartition, tuple[int, ...] | None] = {}
    for topic in body.topics:
        for row in topic.partitions:
            targets[TopicPartition(topic.name, row.partition_index)] = row.replicas
            if len(targets) % PARTITIONS_AT_ONCE == 0:
                yield
    return targets


def _answer(request: Request, may_change_factor: bool, answers: Answers, error: KafkaError | None) -> Steps:
    topics = yield from by_topic(answers)
    body = {
        "throttle_time": 0,
        "allow_replication_factor_change": may_change_factor,
        "error_code": int(error.code) if error is not None else 0,
        "error_message": error.message if error is not None else "",
        "responses": ({"name": topic, "partitions": map(_row, rows)} for topic, rows in topics.items()),
    }
    return (yield from messages.encoding(request.header.api_key, request.header.api_version, body))


def _row(answer: tuple[int, KafkaError | None]) -> dict[str, Any]:
    partition, failure = answer
    return {
        "partition_index": partition,
        "error_code": int(failure.code) if failure is not None else 0,
        "error_message": failure.message if failure is not None else None,
    }
