"""OffsetCommit (API 8), v2 to v9: a group's positions, answered when they are replicated (CLI-2, INV-23, BAD-33).

v2 to v4 with a retention of their own (one beyond the end of time is for ever), v6 leader epoch (KIP-320), v7 static members.
Partitions that do not exist are refused one by one; the others go on. Who commits without membership has generation -1 and
no member id. What is there twice counts as it comes last. The members of KIP-848's groups (v9) are not served: their epoch
is taken for a generation.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker.apis.context import ApiContext
from broker.config import LONG_MAX
from broker.groups.group_types import CommittedOffset
from broker.network.request_channel import Request
from protocol.errors import ErrorCode
from protocol.kafka import offset_commit_codec
from protocol.kafka.offset_commit_codec import BROKERS_RETENTION
from protocol.types import TopicPartition


def offset_commit(context: ApiContext, request: Request) -> None:
    header = request.header
    body = offset_commit_codec.decode_request(header.api_version, request.frame, header.body_offset)
    now_ms = context.clock.wall_ms()
    expires = None
    if body.retention_ms != BROKERS_RETENTION:
        expires = min(max(now_ms + body.retention_ms, 0), LONG_MAX)
    offsets: dict[TopicPartition, CommittedOffset] = {}
    refused: dict[TopicPartition, ErrorCode] = {}
    for topic, rows in body.topics:
        for row in rows:
            tp = TopicPartition(topic, row.partition)
            if context.metadata.partition(tp) is None:
                refused[tp] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                offsets[tp] = CommittedOffset(row.offset, row.leader_epoch, row.metadata or "", now_ms, expires)
    if not offsets:
        _respond(request, refused)
        return
    context.groups.commit(
        body.group_id,
        body.member_id,
        body.instance_id,
        body.generation,
        offsets,
        lambda errors: _respond(request, {**refused, **errors}),
    )


def _respond(request: Request, errors: Mapping[TopicPartition, ErrorCode]) -> None:
    topics: dict[str, list[tuple[int, int]]] = {}
    for tp, error in errors.items():
        topics.setdefault(tp.topic, []).append((tp.partition, error))
    request.respond_small(offset_commit_codec.encode_response(request.header.api_version, list(topics.items())))
