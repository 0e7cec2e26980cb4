"""DescribeLogDirs (API 35), v1 to v4: the replicas in each log directory of this broker, and their sizes.

v3 adds an error for the whole answer, v4 the size of the volume. Without a list, all replicas are returned; an unknown replica is left
out. A directory that failed has KAFKA_STORAGE_ERROR and no replicas. `offset_lag` of a copy that is to replace a replica in another
directory (`is_future_key`) is how many records it is behind that replica. `offset_lag` of a replica is, as in Kafka, how far its log
end is below its high watermark, and therefore 0; -1 if no LeaderAndIsr has named the replica since the broker started.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Collection, Mapping

from broker.network.request_channel import Request
from broker.requests import rights
from broker.requests.context import ApiContext
from broker.requests.steps import Steps, StepsTo, finished, parts_of, respond_when_finished
from broker.storage.log import Log
from protocol.acls import Operation
from protocol.errors import ErrorCode
from protocol.kafka import log_dirs_codec, messages
from protocol.types import TopicPartition

UNKNOWN_LAG = -1
UNKNOWN_SPACE = (-1, -1)
REPLICAS_IN_A_STEP = 100
PARTITIONS_IN_A_STEP = 500


async def describe_log_dirs(context: ApiContext, request: Request) -> None:
    header = request.header
    wanted = await finished(context, request, _wanted(request))
    if not rights.on_cluster(context, request, Operation.DESCRIBE):
        refused = log_dirs_codec.encode_response(header.api_version, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, [])
        request.respond_small(refused)
        return
    # In a thread: a volume that hangs must not block the broker.
    spaces = await asyncio.get_running_loop().run_in_executor(None, context.log_manager.log_directories.spaces)
    await respond_when_finished(context, request, _answer(context, header.api_version, wanted, spaces))


def _wanted(request: Request) -> StepsTo[Collection[TopicPartition] | None]:
    header = request.header
    body = yield from messages.decoding(header.api_key, header.api_version, request.frame, header.body_offset)
    if body.topics is None:
        return None
    wanted: set[TopicPartition] = set()
    for row in body.topics:
        for some in parts_of(row.partitions, PARTITIONS_IN_A_STEP):
            wanted.update(TopicPartition(row.topic, partition) for partition in some)
            yield
        yield
    return wanted


def _answer(
    context: ApiContext,
    version: int,
    wanted: Collection[TopicPartition] | None,
    spaces: Mapping[str, tuple[int, int] | None],
) -> Steps:
    manager = context.log_manager
    topics: dict[str, dict[str, list[bytes]]] = {path: {} for path, space in spaces.items() if space is not None}
    described = itertools.chain(
        ((log, False) for log in list(manager.logs())), ((log, True) for log in list(manager.futures.logs()))
    )
    for number, (log, is_future) in enumerate(described, 1):
        if number % REPLICAS_IN_A_STEP == 0:
            yield
        tp = log.topic_partition
        found = topics.get(log.log_dir)
        if found is not None and (wanted is None or tp in wanted):
            lag = _lag_behind_current(manager.get(tp), log) if is_future else _lag(context, log)
            row = log_dirs_codec.encode_replica(version, tp.partition, log.size, lag, is_future=is_future)
            found.setdefault(tp.topic, []).append(row)
    directories = []
    for path, space in spaces.items():
        error = ErrorCode.NONE if space is not None else ErrorCode.KAFKA_STORAGE_ERROR
        rows = topics.get(path, {})
        directories.append(log_dirs_codec.encode_directory(version, error, path, rows, space or UNKNOWN_SPACE))
        yield
    return log_dirs_codec.encode_response(version, ErrorCode.NONE, directories)


def _lag(context: ApiContext, log: Log) -> int:
    partition = context.replica_manager.partitions.get(log.topic_partition)
    is_ours = partition is not None and partition.log is log
    return max(partition.high_watermark - log.log_end_offset, 0) if partition is not None and is_ours else UNKNOWN_LAG


def _lag_behind_current(current: Log | None, future: Log) -> int:
    return max(current.log_end_offset - future.log_end_offset, 0) if current is not None else UNKNOWN_LAG
