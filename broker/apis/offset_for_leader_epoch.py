"""OffsetForLeaderEpoch (API 23), v2 to v4: where a leader epoch ends in the leader's log. Followers and consumers ask, to find
where their records diverge (REP-6, KIP-320).
"""

from __future__ import annotations

from typing import Any

from broker.network.request_channel import Request
from broker.requests import rights
from broker.requests.context import ApiContext
from broker.requests.followers import may_ask_as_replica
from broker.requests.steps import Further, Steps, respond_in_steps
from protocol.acls import Operation, ResourceType
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka import messages
from protocol.types import TopicPartition

REPLICA_ID_SINCE = 3


def offset_for_leader_epoch(context: ApiContext, request: Request) -> Further:
    return respond_in_steps(context, request, _answer(context, request))


def _answer(context: ApiContext, request: Request) -> Steps:
    header = request.header
    version = header.api_version
    body = yield from messages.decoding(header.api_key, version, request.frame, header.body_offset)
    replica_id = body.replica_id if version >= REPLICA_ID_SINCE else -1
    find = _find if replica_id < 0 or may_ask_as_replica(context, request) else _refuse
    denied: frozenset[str] = frozenset()
    if not rights.on_cluster(context, request, Operation.CLUSTER_ACTION, is_quiet=True):
        names = [topic.topic for topic in body.topics]
        denied = yield from rights.denied(context, request, Operation.DESCRIBE, ResourceType.TOPIC, names)
    topics = (
        {
            "topic": topic.topic,
            "partitions": (
                _failed(p, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                if topic.topic in denied
                else find(context, topic.topic, p, replica_id)
                for p in topic.partitions
            ),
        }
        for topic in body.topics
    )
    answer = {"throttle_time": 0, "topics": topics}
    return (yield from messages.encoding(header.api_key, version, answer))


def _refuse(context: ApiContext, topic: str, asked: Any, replica_id: int) -> dict[str, int]:
    """The row for a request whose replica id is not allowed. It has the parameters of `_find`."""
    return _failed(asked, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def _failed(asked: Any, error: ErrorCode) -> dict[str, int]:
    return {"error_code": int(error), "partition": asked.partition, "leader_epoch": -1, "end_offset": -1}


def _find(context: ApiContext, topic: str, asked: Any, replica_id: int) -> dict[str, int]:
    answer = {"error_code": 0, "partition": asked.partition, "leader_epoch": -1, "end_offset": -1}
    try:
        answer["leader_epoch"], answer["end_offset"] = context.replica_manager.offset_for_leader_epoch(
            TopicPartition(topic, asked.partition), asked.current_leader_epoch, asked.leader_epoch, replica_id
        )
    except KafkaError as error:
        answer["error_code"] = int(ErrorCode(error.code))
    return answer
