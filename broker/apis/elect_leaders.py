"""ElectLeaders (API 43), v0 to v2: only on the controller; waits until this broker knows the new leaders (CTL-12).

v0 elects only preferred leaders, v1 adds unclean elections, v2 the flexible encoding. A request without a list is for all partitions,
and its answer has only the partitions that needed an election. Each partition has its own error, as in Kafka, even NOT_CONTROLLER.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from enum import IntEnum
from typing import Any

from broker.network.request_channel import Request
from broker.requests import rights, waiting
from broker.requests.context import ApiContext
from broker.requests.steps import (
    SharedErrors,
    Steps,
    StepsTo,
    by_topic,
    finished,
    parts_of,
    respond_when_finished,
    slice_of_own,
)
from protocol.acls import Operation
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka import messages
from protocol.types import NO_EPOCH, NO_LEADER, TopicPartition

ELECTION_TYPE_SINCE = 1
PARTITIONS_IN_A_SLICE = 2_000
PARTITIONS_AT_ONCE = 200
"""Limit of partitions in one event for the controller."""


class ElectionType(IntEnum):
    """Kafka's numbers."""

    PREFERRED = 0
    UNCLEAN = 1


Answers = Mapping[TopicPartition, KafkaError | None]
"""Partition -> None if the election succeeded, else the error."""


async def elect_leaders(context: ApiContext, request: Request) -> None:
    header = request.header
    version = header.api_version
    reading = messages.decoding(header.api_key, version, request.frame, header.body_offset)
    body = await finished(context, request, reading)
    wanted = None
    if body.topic_partitions is not None:
        wanted = await finished(context, request, _wanted(body))
    kind = body.election_type if version >= ELECTION_TYPE_SINCE else ElectionType.PREFERRED
    if not rights.on_cluster(context, request, Operation.ALTER):
        error = KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "")
        await _respond(context, request, dict.fromkeys(wanted or (), error), error.code)
    elif kind not in (ElectionType.PREFERRED, ElectionType.UNCLEAN):
        error = KafkaError(
            ErrorCode.INVALID_REQUEST, f"unknown election type {kind}: expected 0 (preferred) or 1 (unclean)"
        )
        await _respond(context, request, dict.fromkeys(_named(context, wanted), error), error.code)
    elif not context.controller.is_active:
        error = KafkaError(ErrorCode.NOT_CONTROLLER, "send the request to the controller")
        await _respond(context, request, dict.fromkeys(_named(context, wanted), error))
    else:
        timeout_ms = messages.milliseconds(body.timeout)
        await _elect(context, request, wanted, timeout_ms, unclean=kind == ElectionType.UNCLEAN)


def _wanted(body: Any) -> StepsTo[dict[TopicPartition, None]]:
    """The requested partitions. A partition that is named twice is answered once."""
    wanted: dict[TopicPartition, None] = {}
    for row in body.topic_partitions:
        for some in parts_of(row.partitions, PARTITIONS_AT_ONCE):
            wanted.update((TopicPartition(row.topic, partition), None) for partition in some)
            yield
        yield
    return wanted


async def _elect(
    context: ApiContext, request: Request, wanted: Collection[TopicPartition] | None, timeout_ms: int, *, unclean: bool
) -> None:
    deadline = context.clock.monotonic() + timeout_ms / 1000
    epochs: dict[TopicPartition, int] = {}
    for number, tp in enumerate(_named(context, wanted), 1):
        state = context.metadata.partition(tp)
        if state is not None:
            epochs[tp] = state.leader_epoch
        if number % PARTITIONS_IN_A_SLICE == 0:
            await slice_of_own(context, request)
    late = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the election is not complete yet")
    try:
        async with asyncio.timeout(timeout_ms / 1000 if timeout_ms > 0 else None):
            answers = await _elected(context, wanted, unclean)
    except KafkaError as error:
        await _respond(context, request, dict.fromkeys(_named(context, wanted), error))
        return
    except TimeoutError:
        await _respond(context, request, dict.fromkeys(_named(context, wanted), late))
        return
    elected = [tp for tp, error in answers.items() if error is None]

    def is_known_here(tp: TopicPartition) -> bool:
        return _has_leader(context, tp, epochs.get(tp, NO_EPOCH), unclean=unclean)

    still_unknown = await waiting.for_all(context, elected, is_known_here, deadline)
    await _respond(context, request, {**answers, **dict.fromkeys(still_unknown, late)})


async def _elected(context: ApiContext, wanted: Collection[TopicPartition] | None, unclean: bool) -> Answers:
    if wanted is None:
        return await context.controller.elect_leaders(unclean, None)
    shared_errors = SharedErrors()
    answers: dict[TopicPartition, KafkaError | None] = {}
    for some in parts_of(wanted, PARTITIONS_AT_ONCE):
        found = await context.controller.elect_leaders(unclean, some)
        answers.update((tp, shared_errors.shared(failure)) for tp, failure in found.items())
    return answers


def _has_leader(context: ApiContext, tp: TopicPartition, epoch_before: int, *, unclean: bool) -> bool:
    """True if the metadata cache has the new leader, or if the partition was deleted meanwhile.

    An election raises the leader epoch. Without the check of the epoch, the old leader would pass if the cache has an old replica
    order too, in which it is the preferred leader.
    """
    state = context.metadata.partition(tp)
    if state is None:
        return True
    is_as_wanted = state.leader != NO_LEADER if unclean else state.leader == state.replicas[0]
    return is_as_wanted and state.leader_epoch > epoch_before


def _named(context: ApiContext, wanted: Iterable[TopicPartition] | None) -> Iterable[TopicPartition]:
    """The requested partitions; all partitions for a request without a list."""
    if wanted is not None:
        return wanted
    return [
        TopicPartition(topic, number)
        for topic in context.metadata.topics()
        for number in context.metadata.partitions_of(topic)
    ]


async def _respond(context: ApiContext, request: Request, answers: Answers, error: ErrorCode = ErrorCode.NONE) -> None:
    await respond_when_finished(context, request, _answer(request, answers, error))


def _answer(request: Request, answers: Answers, error: ErrorCode) -> Steps:
    topics = yield from by_topic(answers)
    results = ({"topic": topic, "partition_result": map(_row, rows)} for topic, rows in topics.items())
    body = {"throttle_time": 0, "error_code": int(error), "replica_election_results": results}
    return (yield from messages.encoding(request.header.api_key, request.header.api_version, body))


def _row(answer: tuple[int, KafkaError | None]) -> dict[str, Any]:
    partition, failure = answer
    return {
        "partition_id": partition,
        "error_code": int(failure.code) if failure is not None else 0,
        "error_message": failure.message if failure is not None else None,
    }
