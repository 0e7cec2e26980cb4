"""OffsetDelete (API 47), v0: removes committed offsets of a group (KIP-496, CLI-2).

A topic to which members of the group subscribe gets GROUP_SUBSCRIBED_TO_TOPIC. Partitions that do not exist get their own errors.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Iterable, Mapping

from broker.network.request_channel import Request
from broker.requests import rights
from broker.requests.context import ApiContext
from broker.requests.steps import Further, Steps, StepsTo, by_topic, in_steps, parts_of, respond_later
from protocol.acls import Operation, ResourceType
from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.types import TopicPartition

PARTITIONS_IN_A_STEP = 200
DELETIONS_AT_ONCE = 500
"""Partitions whose tombstones are appended together."""


def offset_delete(context: ApiContext, request: Request) -> Further:
    return in_steps(context, request, _begin(context, request))


def _begin(context: ApiContext, request: Request) -> StepsTo[None]:
    header = request.header
    body = yield from messages.decoding(header.api_key, header.api_version, request.frame, header.body_offset)
    known: dict[TopicPartition, None] = {}
    errors: dict[TopicPartition, ErrorCode] = {}
    if not rights.on_group(context, request, Operation.DELETE, body.group_id):
        respond_later(context, request, _answer(request, ErrorCode.GROUP_AUTHORIZATION_FAILED, {}))
        return
    names = [topic.name for topic in body.topics]
    denied = yield from rights.denied(context, request, Operation.READ, ResourceType.TOPIC, names)
    for topic in body.topics:
        for some in parts_of(topic.partitions, PARTITIONS_IN_A_STEP):
            for row in some:
                tp = TopicPartition(topic.name, row.partition_index)
                if topic.name in denied:
                    errors[tp] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                elif context.metadata.partition(tp) is None:
                    errors[tp] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                else:
                    known[tp] = None
            yield
        yield
    _Deletion(context, request, body.group_id, known, errors).go_on()


class _Deletion:
    """Deletes DELETIONS_AT_ONCE offsets at a time: the next when the tombstones of the previous offsets are replicated."""

    def __init__(
        self,
        context: ApiContext,
        request: Request,
        group_id: str,
        known: Iterable[TopicPartition],
        errors: dict[TopicPartition, ErrorCode],
    ) -> None:
        self._context = context
        self._request = request
        self._group_id = group_id
        self._left = deque(parts_of(known, DELETIONS_AT_ONCE))
        self._errors = errors
        self._is_begun = False

    def go_on(self) -> None:
        self._context.groups.delete_offsets(self._group_id, self._left[0], self._take_results)

    def _take_results(self, error: ErrorCode, errors: dict[TopicPartition, ErrorCode]) -> None:
        if error is ErrorCode.GROUP_ID_NOT_FOUND and self._is_begun:
            # The group was removed with its last offset, so the other partitions have no offsets.
            error = ErrorCode.NONE
            errors = dict.fromkeys(itertools.chain.from_iterable(self._left), ErrorCode.NONE)
            self._left.clear()
        else:
            self._left.popleft()
        self._is_begun = True
        self._errors |= errors
        if error is ErrorCode.NONE and self._left:
            # In another turn of the loop: with a single replica, the answer comes from within the call, and calls would nest.
            asyncio.get_running_loop().call_soon(self.go_on)
        else:
            respond_later(self._context, self._request, _answer(self._request, error, self._errors))


def _answer(request: Request, error: ErrorCode, errors: Mapping[TopicPartition, ErrorCode]) -> Steps:
    topics = yield from by_topic(errors if error is ErrorCode.NONE else {})
    body = {
        "error_code": int(error),
        "throttle_time": 0,
        "topics": (
            {"name": name, "partitions": ({"partition_index": p, "error_code": int(e)} for p, e in rows)}
            for name, rows in topics.items()
        ),
    }
    return (yield from messages.encoding(request.header.api_key, request.header.api_version, body))
