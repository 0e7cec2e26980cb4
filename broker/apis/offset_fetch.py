"""OffsetFetch (API 9), v1 to v9: the committed positions of a group, or of many (v8, KIP-709) (CLI-2).

v2 all partitions of the group (null topics), and the group's error; v1 has it in each partition. v5 leader epoch, v7
`require_stable`: a partition with a commit under way is answered UNSTABLE_OFFSET_COMMIT. A partition that has
no offset, or that nobody has, is -1 without an error. Member and epoch (v9, KIP-848) are not looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from broker.apis.context import ApiContext
from broker.groups.group_types import CommittedOffset
from broker.network.request_channel import Request
from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from protocol.types import TopicPartition

GROUP_ERROR_SINCE = 2
MANY_SINCE = 8

NOTHING = CommittedOffset(-1, -1, "", -1)


def offset_fetch(context: ApiContext, request: Request) -> None:
    header = request.header
    version = header.api_version
    body = messages.decode_request(ApiKey.OFFSET_FETCH, version, request.frame, header.body_offset)
    is_stable = bool(getattr(body, "require_stable", False))
    answer: dict[str, Any] = {"throttle_time": 0}
    if version >= MANY_SINCE:
        answer["groups"] = [_group(context, row.group_id, row.topics, is_stable) for row in body.groups]
    else:
        answer |= _group(context, body.group_id, body.topics, is_stable, has_group_error=version >= GROUP_ERROR_SINCE)
    request.respond_small(messages.encode_response(ApiKey.OFFSET_FETCH, version, answer))


def _group(
    context: ApiContext, group_id: str, topics: Sequence[Any] | None, is_stable: bool, *, has_group_error: bool = True
) -> dict[str, Any]:
    """`topics` None: all that the group has committed."""
    wanted = None
    if topics is not None:
        wanted = [TopicPartition(topic.name, partition) for topic in topics for partition in topic.partition_indexes]
    error, found = context.groups.fetch_offsets(group_id, wanted, require_stable=is_stable)
    partition_error = ErrorCode.NONE
    if error is not ErrorCode.NONE:
        partition_error = error
        found = {} if has_group_error else dict.fromkeys(wanted or ())
    rows: dict[str, list[dict[str, Any]]] = {}
    for tp, committed in found.items():
        if isinstance(committed, ErrorCode):
            row = _partition(tp.partition, NOTHING, committed)
        else:
            row = _partition(tp.partition, committed or NOTHING, partition_error)
        rows.setdefault(tp.topic, []).append(row)
    return {
        "group_id": group_id,
        "error_code": int(error),
        "topics": [{"name": name, "partitions": partitions} for name, partitions in rows.items()],
    }


def _partition(partition: int, committed: CommittedOffset, error: ErrorCode) -> dict[str, Any]:
    return {
        "partition_index": partition,
        "committed_offset": committed.offset,
        "committed_leader_epoch": committed.leader_epoch,
        "metadata": committed.metadata,
        "error_code": int(error),
    }
