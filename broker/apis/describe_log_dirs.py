"""DescribeLogDirs (API 35), v1 to v4: the replicas in each log directory of this broker, and how large they are.

v3 has an error of its own, v4 the size of the volume. Without a list all replicas are told; an unknown one is left out. A
directory that failed is KAFKA_STORAGE_ERROR and has none. `offset_lag` is how far a replica is behind its own high watermark,
which a follower never is; -1 when this broker has not been told what it is to do with the replica. A copy that is to replace a
replica in another directory (`is_future_key`) is behind that one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine
from typing import Any

from broker.apis.context import ApiContext
from broker.network.request_channel import Request
from broker.storage.log import Log
from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from protocol.types import TopicPartition

UNKNOWN_LAG = -1


def describe_log_dirs(context: ApiContext, request: Request) -> Coroutine[Any, Any, None]:
    header = request.header
    body = messages.decode_request(ApiKey.DESCRIBE_LOG_DIRS, header.api_version, request.frame, header.body_offset)
    wanted = None
    if body.topics is not None:
        wanted = {TopicPartition(row.topic, partition) for row in body.topics for partition in row.partitions}
    return _describe(context, request, wanted)


async def _describe(context: ApiContext, request: Request, wanted: Collection[TopicPartition] | None) -> None:
    # In a thread: a volume that hangs must not hold up the broker.
    spaces = await asyncio.get_running_loop().run_in_executor(None, context.log_manager.disk_spaces)
    results: dict[str, dict[str, Any]] = {}
    for path, space in spaces.items():
        error = ErrorCode.NONE if space is not None else ErrorCode.KAFKA_STORAGE_ERROR
        total, usable = space or (-1, -1)
        results[path] = {
            "error_code": int(error),
            "log_dir": path,
            "topics": {},
            "total_bytes": total,
            "usable_bytes": usable,
        }
    manager = context.log_manager
    copies = [_copy(manager.get(log.topic_partition), log) for log in manager.futures.logs()]
    for log, described in [*((log, _replica(context, log)) for log in manager.logs()), *copies]:
        tp = log.topic_partition
        row = results.get(log.log_dir)
        if row is not None and (wanted is None or tp in wanted) and row["error_code"] == ErrorCode.NONE:
            row["topics"].setdefault(tp.topic, []).append(described)
    for row in results.values():
        row["topics"] = [{"name": topic, "partitions": rows} for topic, rows in row["topics"].items()]
    answer = {"throttle_time": 0, "error_code": 0, "results": list(results.values())}
    request.respond_small(messages.encode_response(ApiKey.DESCRIBE_LOG_DIRS, request.header.api_version, answer))


def _replica(context: ApiContext, log: Log) -> dict[str, Any]:
    partition = context.replica_manager.partitions.get(log.topic_partition)
    is_ours = partition is not None and partition.log is log
    lag = max(partition.high_watermark - log.log_end_offset, 0) if partition is not None and is_ours else UNKNOWN_LAG
    return {
        "partition_index": log.topic_partition.partition,
        "partition_size": log.size,
        "offset_lag": lag,
        "is_future_key": False,
    }


def _copy(current: Log | None, future: Log) -> tuple[Log, dict[str, Any]]:
    lag = max(current.log_end_offset - future.log_end_offset, 0) if current is not None else UNKNOWN_LAG
    return future, {
        "partition_index": future.topic_partition.partition,
        "partition_size": future.size,
        "offset_lag": lag,
        "is_future_key": True,
    }
