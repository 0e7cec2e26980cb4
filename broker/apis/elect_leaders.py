"""ElectLeaders (API 43), v0 to v2: on the controller only; waits until this broker knows the new leaders (CTL-12).

v0 elects preferred leaders only, v1 also uncleanly, v2 is flexible. Without a list all partitions are meant, and only those
that needed an election are answered. Errors are each partition's own, NOT_CONTROLLER included, as Kafka's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from enum import IntEnum
from typing import Any

from broker.apis import waiting
from broker.apis.context import ApiContext
from broker.network.request_channel import Request
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from protocol.types import NO_EPOCH, NO_LEADER, TopicPartition

ELECTION_TYPE_SINCE = 1


class ElectionType(IntEnum):
    """Kafka's numbers."""

    PREFERRED = 0
    UNCLEAN = 1


Answers = Mapping[TopicPartition, KafkaError | None]
"""None: it has the leader that was wanted."""


def elect_leaders(context: ApiContext, request: Request) -> Coroutine[Any, Any, None] | None:
    header = request.header
    version = header.api_version
    body = messages.decode_request(ApiKey.ELECT_LEADERS, version, request.frame, header.body_offset)
    wanted = None
    if body.topic_partitions is not None:
        wanted = [TopicPartition(row.topic, partition) for row in body.topic_partitions for partition in row.partitions]
    kind = body.election_type if version >= ELECTION_TYPE_SINCE else ElectionType.PREFERRED
    if kind not in (ElectionType.PREFERRED, ElectionType.UNCLEAN):
        error = KafkaError(
            ErrorCode.INVALID_REQUEST, f"election type {kind}: allowed are 0 (preferred) and 1 (unclean)"
        )
        _respond(request, dict.fromkeys(_named(context, wanted), error), error.code)
        return None
    if not context.controller.is_active:
        error = KafkaError(ErrorCode.NOT_CONTROLLER, "ask the controller")
        _respond(request, dict.fromkeys(_named(context, wanted), error))
        return None
    return _elect(context, request, wanted, messages.milliseconds(body.timeout), unclean=kind == ElectionType.UNCLEAN)


async def _elect(
    context: ApiContext, request: Request, wanted: list[TopicPartition] | None, timeout_ms: int, *, unclean: bool
) -> None:
    deadline = context.clock.monotonic() + timeout_ms / 1000
    epochs = {tp: state.leader_epoch for tp in _named(context, wanted) if (state := context.metadata.partition(tp))}
    late = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the election has not been completed yet")
    try:
        async with asyncio.timeout(timeout_ms / 1000 if timeout_ms > 0 else None):
            answers = await context.controller.elect_leaders(unclean, wanted)
    except KafkaError as error:
        _respond(request, dict.fromkeys(_named(context, wanted), error))
        return
    except TimeoutError:
        _respond(request, dict.fromkeys(_named(context, wanted), late))
        return
    elected = [tp for tp, error in answers.items() if error is None]

    def is_heard_of(tp: TopicPartition) -> bool:
        return _has_leader(context, tp, epochs.get(tp, NO_EPOCH), unclean=unclean)

    unheard_of = await waiting.for_all(context, elected, is_heard_of, deadline)
    _respond(request, {**answers, **dict.fromkeys(unheard_of, late)})


def _has_leader(context: ApiContext, tp: TopicPartition, epoch_before: int, *, unclean: bool) -> bool:
    """As far as this broker has been told. One that is gone meanwhile is not waited for.

    An election raises the epoch; without it a cache that has not heard of a new order of replicas either would look right.
    """
    state = context.metadata.partition(tp)
    if state is None:
        return True
    is_as_wanted = state.leader != NO_LEADER if unclean else state.leader == state.replicas[0]
    return is_as_wanted and state.leader_epoch > epoch_before


def _named(context: ApiContext, wanted: Iterable[TopicPartition] | None) -> Iterable[TopicPartition]:
    """The partitions of an answer that is the same for all that was asked for."""
    if wanted is not None:
        return wanted
    return [
        TopicPartition(topic, number)
        for topic in context.metadata.topics()
        for number in context.metadata.partitions_of(topic)
    ]


def _respond(request: Request, answers: Answers, error: ErrorCode = ErrorCode.NONE) -> None:
    topics: dict[str, list[dict[str, Any]]] = {}
    for tp, failure in answers.items():
        row = {
            "partition_id": tp.partition,
            "error_code": int(failure.code) if failure is not None else 0,
            "error_message": failure.message if failure is not None else None,
        }
        topics.setdefault(tp.topic, []).append(row)
    results = [{"topic": topic, "partition_result": rows} for topic, rows in topics.items()]
    body = {"throttle_time": 0, "error_code": int(error), "replica_election_results": results}
    request.respond_small(messages.encode_response(ApiKey.ELECT_LEADERS, request.header.api_version, body))
