"""TxnOffsetCommit (API 28), v0 to v5: a group's positions, committed in the transaction of a producer (KIP-98, KIP-447, INV-23).

The answer comes when the offsets are replicated. They count from the commit marker of the transaction on; until then they are pending.
The first commit of a transaction is verified with the transaction's coordinator (KIP-890), so the handler may await it. From v5 on it
adds the group's partition of `__consumer_offsets` to the transaction: no AddOffsetsToTxn comes before (transaction version 2).

v2 adds the leader epoch, v3 the member, its generation and static members; requests of older versions are accepted from anybody.
Before v2 COORDINATOR_NOT_AVAILABLE takes the place of COORDINATOR_LOAD_IN_PROGRESS, which those clients do not retry, and before v4
INVALID_TXN_STATE takes the place of TRANSACTION_ABORTABLE. A producer id or epoch below 0 gets INVALID_PRODUCER_ID_MAPPING.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any

from broker.apis.offset_commit import PARTITIONS_IN_A_STEP, Commit, Committer
from broker.groups.group.messages import NO_GENERATION, NO_MEMBER, CommittedOffset, TransactionalProducer
from broker.network.request_channel import Request
from broker.requests import rights
from broker.requests.context import ApiContext
from broker.requests.steps import Further, Steps, StepsTo, by_topic, in_steps, respond_later
from protocol.acls import Operation, ResourceType
from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.types import NO_EPOCH, TopicPartition

LEADER_EPOCH_SINCE = 2
LOADING_SINCE = 2
MEMBER_SINCE = 3
ABORTABLE_SINCE = 4
ADDING_SINCE = 5


def txn_offset_commit(context: ApiContext, request: Request) -> Further:
    return in_steps(context, request, _begin(context, request))


def _begin(context: ApiContext, request: Request) -> StepsTo[Further]:
    header = request.header
    version = header.api_version
    body = yield from messages.decoding(header.api_key, version, request.frame, header.body_offset)
    now_ms = context.clock.wall_ms()
    offsets: dict[TopicPartition, CommittedOffset] = {}
    errors: dict[TopicPartition, ErrorCode] = {}
    refusal = _refusal(context, request, body)
    names = [topic.name for topic in body.topics]
    denied = yield from rights.denied(context, request, Operation.READ, ResourceType.TOPIC, names)
    for topic in body.topics:
        for number, row in enumerate(topic.partitions, 1):
            tp = TopicPartition(topic.name, row.partition_index)
            if refusal is not None:
                errors[tp] = refusal
            elif topic.name in denied:
                errors[tp] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif context.metadata.partition(tp) is None:
                errors[tp] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                epoch = row.committed_leader_epoch if version >= LEADER_EPOCH_SINCE else NO_EPOCH
                offsets[tp] = CommittedOffset(row.committed_offset, epoch, row.committed_metadata or "", now_ms)
            if number % PARTITIONS_IN_A_STEP == 0:
                yield
        yield
    if body.producer_id < 0 or body.producer_epoch < 0:
        errors |= dict.fromkeys(offsets, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        offsets.clear()
    respond = _Responder(context, request, str(body.transactional_id), str(body.group_id))
    if not offsets:
        respond(errors)
        return None
    adds = version >= ADDING_SINCE
    producer = TransactionalProducer(body.transactional_id, body.producer_id, body.producer_epoch, adds)
    if version >= MEMBER_SINCE:
        member = body.member_id, body.group_instance_id, body.generation_id
    else:
        member = NO_MEMBER, None, NO_GENERATION
    commit = Commit(context, Committer(body.group_id, *member, producer), offsets, errors, respond)
    verification = context.groups.verification(body.group_id, producer)
    if verification is not None:
        return _commit_verified(verification, commit, respond, errors | dict.fromkeys(offsets, ErrorCode.NONE))
    commit.go_on()
    return None


def _refusal(context: ApiContext, request: Request, body: Any) -> ErrorCode | None:
    """The error of all partitions if the client may not commit in the transaction, or for the group."""
    if not rights.on_transactional_id(context, request, Operation.WRITE, str(body.transactional_id)):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if not rights.on_group(context, request, Operation.READ, str(body.group_id)):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    return None


async def _commit_verified(
    verification: Coroutine[Any, Any, ErrorCode],
    commit: Commit,
    respond: _Responder,
    refused: dict[TopicPartition, ErrorCode],
) -> None:
    """`refused`: the answer if the verification fails, with NONE for the partitions that get its error."""
    error = await verification
    if error is ErrorCode.NONE:
        commit.go_on()
    else:
        respond({tp: before or error for tp, before in refused.items()})


class _Responder:
    """Answers with the error of each partition, in the words of the request's version."""

    def __init__(self, context: ApiContext, request: Request, transactional_id: str, group: str) -> None:
        self._context = context
        self._request = request
        self._transactional_id = transactional_id
        self._group = group

    def __call__(self, errors: Mapping[TopicPartition, ErrorCode]) -> None:
        respond_later(self._context, self._request, self._answer(errors))
        if (recording := self._context.recorder.recording) is not None:
            committed = [tp for tp, error in errors.items() if error is ErrorCode.NONE]
            recording.offsets(self._request, self._transactional_id, self._group, committed)

    def _answer(self, errors: Mapping[TopicPartition, ErrorCode]) -> Steps:
        topics = yield from by_topic(errors)
        rows = (
            {"name": name, "partitions": ({"partition_index": p, "error_code": self._code(e)} for p, e in of_topic)}
            for name, of_topic in topics.items()
        )
        header = self._request.header
        return (yield from messages.encoding(header.api_key, header.api_version, {"throttle_time": 0, "topics": rows}))

    def _code(self, error: ErrorCode) -> int:
        version = self._request.header.api_version
        if version < LOADING_SINCE and error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return int(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if version < ABORTABLE_SINCE and error is ErrorCode.TRANSACTION_ABORTABLE:
            return int(ErrorCode.INVALID_TXN_STATE)
        return int(error)
