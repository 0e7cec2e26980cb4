"""ListPartitionReassignments (API 46), v0: only on the controller; the reassignments in progress (CTL-11).

A request without a list gets all reassignments, a request with a list the reassignments of the listed partitions. Partitions that are
not being reassigned are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.network.request_channel import Request
from broker.requests import rights
from broker.requests.context import ApiContext
from broker.requests.steps import Further, Steps, parts_of, respond_in_steps
from protocol.acls import Operation
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka import messages
from protocol.types import Assignment, TopicPartition

MOVES_IN_A_STEP = 500


def list_partition_reassignments(context: ApiContext, request: Request) -> Further:
    return respond_in_steps(context, request, _answer(context, request))


def _answer(context: ApiContext, request: Request) -> Steps:
    header = request.header
    body = yield from messages.decoding(header.api_key, header.api_version, request.frame, header.body_offset)
    error: KafkaError | None = None
    moving: Mapping[TopicPartition, Assignment] = {}
    try:
        if not rights.on_cluster(context, request, Operation.DESCRIBE):
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")
        moving = context.controller.reassignments()
    except KafkaError as refused:
        error = refused
    wanted: dict[str, set[int]] | None = None
    if body.topics is not None:
        wanted = {}
        for topic in body.topics:
            wanted.setdefault(topic.name, set()).update(topic.partition_indexes)
            yield
    topics: dict[str, list[dict[str, Any]]] = {}
    for some in parts_of(sorted(moving.items()), MOVES_IN_A_STEP):
        for tp, assignment in some:
            if wanted is None or tp.partition in wanted.get(tp.topic, ()):
                topics.setdefault(tp.topic, []).append(_row(tp.partition, assignment))
        yield
    answer = {
        "throttle_time": 0,
        "error_code": int(error.code) if error is not None else 0,
        "error_message": error.message if error is not None else "",
        "topics": ({"name": topic, "partitions": rows} for topic, rows in topics.items()),
    }
    return (yield from messages.encoding(header.api_key, header.api_version, answer))


def _row(partition: int, assignment: Assignment) -> dict[str, Any]:
    return {
        "partition_index": partition,
        "replicas": assignment.replicas,
        "adding_replicas": assignment.adding,
        "removing_replicas": assignment.removing,
    }
