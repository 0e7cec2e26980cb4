"""AlterReplicaLogDirs (API 34), v1 and v2: moves replicas of this broker between its log directories (LOG-6, KIP-113).

A partition without an error starts to move, or is in that directory already; DescribeLogDirs shows the progress. Each partition has its own
error: LOG_DIR_NOT_FOUND, KAFKA_STORAGE_ERROR, INVALID_TOPIC_EXCEPTION (the name is too long for a copy), or REPLICA_NOT_AVAILABLE
(this broker does not have the replica). After REPLICA_NOT_AVAILABLE the broker remembers the directory, and creates the replica there
if it is assigned later. If a request names two directories for a partition, the last one counts.
"""

from __future__ import annotations

import logging

from broker.network.request_channel import Request
from broker.requests import rights
from broker.requests.context import ApiContext
from broker.requests.steps import Further, Steps, by_topic, respond_in_steps
from protocol.acls import Operation
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka import messages
from protocol.types import TopicPartition

log = logging.getLogger(__name__)

PARTITIONS_IN_A_STEP = 100


def alter_replica_log_dirs(context: ApiContext, request: Request) -> Further:
    return respond_in_steps(context, request, _answer(context, request))


def _answer(context: ApiContext, request: Request) -> Steps:
    header = request.header
    body = yield from messages.decoding(header.api_key, header.api_version, request.frame, header.body_offset)
    wanted: dict[TopicPartition, str] = {}
    for directory in body.dirs:
        for topic in directory.topics:
            for number, partition in enumerate(topic.partitions, 1):
                wanted[TopicPartition(topic.name, partition)] = directory.path
                if number % PARTITIONS_IN_A_STEP == 0:
                    yield
            yield
        yield
    errors: dict[TopicPartition, ErrorCode] = {}
    if not rights.on_cluster(context, request, Operation.ALTER):
        errors = dict.fromkeys(wanted, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        wanted = {}
    refused: tuple[TopicPartition, str, KafkaError] | None = None
    failures = 0
    for tp, path in wanted.items():
        errors[tp] = ErrorCode.NONE
        try:
            context.replica_manager.moves.move(tp, path)
        except KafkaError as error:
            errors[tp] = error.code
            refused = refused or (tp, path, error)
            failures += 1
        yield
    if refused is not None:
        # One line for all failures: clients choose how many there are.
        log.info("%d replicas were not moved, for example %s to %.200r: %s", failures, *refused)
    topics = yield from by_topic(errors)
    results = (
        {"topic_name": topic, "partitions": ({"partition_index": p, "error_code": int(e)} for p, e in rows)}
        for topic, rows in topics.items()
    )
    answer = {"throttle_time": 0, "results": results}
    return (yield from messages.encoding(header.api_key, header.api_version, answer))
