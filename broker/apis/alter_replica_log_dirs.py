"""AlterReplicaLogDirs (API 34), v1 and v2: moves replicas of this broker to other log directories of its (LOG-6, KIP-113).

The answer says that the moves have begun; DescribeLogDirs shows how far they are. Errors are each partition's own:
LOG_DIR_NOT_FOUND, KAFKA_STORAGE_ERROR, and REPLICA_NOT_AVAILABLE for one that is not here: then the directory is remembered, and
the replica is made there if it comes. A partition that is named under two directories goes to the last.
"""

from __future__ import annotations

import logging
from typing import Any

from broker.apis.context import ApiContext
from broker.network.request_channel import Request
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from protocol.types import TopicPartition

log = logging.getLogger(__name__)


def alter_replica_log_dirs(context: ApiContext, request: Request) -> None:
    header = request.header
    body = messages.decode_request(ApiKey.ALTER_REPLICA_LOG_DIRS, header.api_version, request.frame, header.body_offset)
    wanted: dict[TopicPartition, str] = {}
    for directory in body.dirs:
        for topic in directory.topics:
            wanted |= {TopicPartition(topic.name, partition): directory.path for partition in topic.partitions}
    topics: dict[str, list[dict[str, Any]]] = {}
    for tp, path in wanted.items():
        error = _move(context, tp, path)
        topics.setdefault(tp.topic, []).append({"partition_index": tp.partition, "error_code": int(error)})
    results = [{"topic_name": topic, "partitions": rows} for topic, rows in topics.items()]
    answer = {"throttle_time": 0, "results": results}
    request.respond_small(messages.encode_response(ApiKey.ALTER_REPLICA_LOG_DIRS, header.api_version, answer))


def _move(context: ApiContext, tp: TopicPartition, path: str) -> ErrorCode:
    try:
        context.replica_manager.moves.move(tp, path)
    except KafkaError as error:
        log.info("%s is not moved to %s: %s", tp, path, error)
        return error.code
    return ErrorCode.NONE
