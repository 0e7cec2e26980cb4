"""DeleteTopics (API 20), v0 to v6: only on the controller; waits until this broker's metadata no longer has the topics (CTL-9).

v3 adds TOPIC_DELETION_DISABLED (INVALID_REQUEST before it), v5 the reason in the answer, v6 topic ids in the request. A topic
whose deletion must wait, for example for a reassignment, gets REQUEST_TIMED_OUT: it stays marked and is deleted later.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import NamedTuple

from broker.network.request_channel import Request
from broker.quotas.client_quotas import MutationQuota
from broker.requests import rights, throttling, waiting
from broker.requests.context import ApiContext
from broker.requests.steps import bare, collected, finished, respond_when_finished, slice_of_own
from protocol.acls import Operation
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiLevel
from protocol.topic_ids import topic_id_text
from protocol.zk.session import ZkError

DELETION_DISABLED_SINCE = 3
TOPIC_IDS_SINCE = 6
STRICT_SINCE = 5
"""The first version whose clients know THROTTLING_QUOTA_EXCEEDED (KIP-599)."""
TOPICS_AT_ONCE = 100
"""Topics between two pauses: topics that are refused without a request to ZooKeeper would not yield the loop."""


class Asked(NamedTuple):
    """One row of the request: a topic by its name, or by its id."""

    name: str | None
    topic_id: uuid.UUID | None


async def delete_topics(context: ApiContext, request: Request) -> None:
    header = request.header
    version = header.api_version
    reading = messages.decoding(header.api_key, version, request.frame, header.body_offset)
    body = await finished(context, request, reading)
    if version >= TOPIC_IDS_SINCE:
        asking = collected(body.topics, lambda topic: Asked(topic.name, topic.topic_id))
    else:
        asking = collected(body.topic_names, lambda name: Asked(name, None))
    rows = await finished(context, request, asking)
    refusal = _refusal(context, version, rows)
    quota = throttling.of_mutations(context, request, STRICT_SINCE)
    if refusal is not None:
        await _respond(context, request, rows, [refusal] * len(rows), quota)
    else:
        await _delete(context, request, rows, messages.milliseconds(body.timeout), quota)


def _refusal(context: ApiContext, version: int, rows: Sequence[Asked]) -> KafkaError | None:
    """The reason to refuse the whole request, if there is one."""
    if not context.controller.is_active:
        return KafkaError(ErrorCode.NOT_CONTROLLER, "send the request to the controller")
    if not context.config.delete_topic_enable:
        is_known = version >= DELETION_DISABLED_SINCE
        code = ErrorCode.TOPIC_DELETION_DISABLED if is_known else ErrorCode.INVALID_REQUEST
        return KafkaError(code, "delete.topic.enable is false on the controller")
    if any((row.name is None) is (row.topic_id is None) for row in rows):
        return KafkaError(ErrorCode.INVALID_REQUEST, "each topic needs either its name or its id")
    return None


async def _delete(
    context: ApiContext, request: Request, rows: Sequence[Asked], timeout_ms: int, quota: MutationQuota
) -> None:
    deadline = context.clock.monotonic() + timeout_ms / 1000
    cache = context.metadata
    naming = collected(rows, lambda row: row.name if row.topic_id is None else cache.topic_name(row.topic_id))
    names = await finished(context, request, naming)
    await waiting.for_zookeeper(context, deadline)
    errors: list[KafkaError | None] = []
    deleting: dict[str, uuid.UUID | None] = {}
    hidden: set[int] = set()
    """Rows by id whose topic's name must not be told."""
    for number, (row, name) in enumerate(zip(rows, names, strict=True), 1):
        if number % TOPICS_AT_ONCE == 0:
            await slice_of_own(context, request)
        error = None
        if name is None:
            assert row.topic_id is not None
            error = KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id_text(row.topic_id)}")
        elif row.topic_id is not None and not rights.on_topic(context, request, Operation.DESCRIBE, name):
            error = KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed.")
            hidden.add(number - 1)
        elif not rights.on_topic(context, request, Operation.DELETE, name):
            error = KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed.")
        elif name not in deleting:
            id_before = cache.topic_id(name)
            error = await _request_deletion(context, name, row.topic_id, quota)
            if error is None:
                deleting[name] = id_before
        errors.append(error)

    def is_gone(name: str) -> bool:
        id_before = deleting[name]
        return not cache.partitions_of(name) or (id_before is not None and cache.topic_id(name) != id_before)

    late = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "marked for deletion, but not deleted yet")
    not_deleted = set(await waiting.for_all(context, deleting, is_gone, deadline))
    answers = [
        late if error is None and name in not_deleted else error for name, error in zip(names, errors, strict=True)
    ]
    # At level 4, the answer to a name has the id of the topic that is gone, too, as from a KRaft controller.
    ids = deleting if context.api_level is ApiLevel.KAFKA_4 else {}
    named = [
        Asked(None if at in hidden else name, row.topic_id or (ids.get(name or "") if answers[at] is None else None))
        for at, (name, row) in enumerate(zip(names, rows, strict=True))
    ]
    await _respond(context, request, named, answers, quota)


async def _request_deletion(
    context: ApiContext, name: str, topic_id: uuid.UUID | None, quota: MutationQuota
) -> KafkaError | None:
    """Marks the topic for deletion; returns None on success. Only topics in the metadata cache can be deleted, as in Kafka."""
    partitions = context.metadata.partitions_of(name)
    if not partitions:
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic '{name}' does not exist")
    try:
        quota.take(len(partitions))
        await context.topic_admin.request_deletion(name, topic_id)
    except KafkaError as error:
        return bare(error)
    except ZkError as error:
        return KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"ZooKeeper does not answer: {error}")
    return None


async def _respond(
    context: ApiContext,
    request: Request,
    rows: Sequence[Asked],
    errors: Sequence[KafkaError | None],
    quota: MutationQuota,
) -> None:
    responses = (
        {
            "name": row.name,
            "topic_id": row.topic_id,
            "error_code": int(error.code) if error is not None else 0,
            "error_message": error.message or None if error is not None else None,
        }
        for row, error in zip(rows, errors, strict=True)
    )
    header = request.header
    body = {"throttle_time": throttling.mute_for(request, quota), "responses": responses}
    answer = messages.encoding(header.api_key, header.api_version, body)
    await respond_when_finished(context, request, answer)
