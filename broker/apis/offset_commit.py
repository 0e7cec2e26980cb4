"""OffsetCommit (API 8), v1 to v10: a group's positions, answered when they are replicated (CLI-2, INV-23, BAD-33).

In v1 each offset has a commit time (-1: now), from which the broker's retention counts. A request of v2 to v4 has its own retention time
in ms; offsets that would expire after the largest timestamp never expire. v6 adds the leader epoch (KIP-320), v7 static members. v0,
which Kafka stores in ZooKeeper, is not served. Partitions that do not exist get their own errors; the others are committed. A client that
commits without membership has generation -1 and no member id. If a partition is repeated, the last offset counts. A member of a group of
the new kind has its epoch in place of a generation (v9, KIP-848); before v9 it gets UNSUPPORTED_VERSION. v10 names topics by their ids;
UNKNOWN_TOPIC_ID if there is none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from broker.groups.group.messages import CommittedOffset, TransactionalProducer
from broker.network.request_channel import Request
from broker.requests import rights
from broker.requests.context import ApiContext
from broker.requests.steps import Further, Steps, StepsTo, by_topic, in_steps, parts_of, respond_later
from broker.requests.topic_keys import TopicKeys
from broker.settings.config import LONG_MAX
from protocol.acls import Operation, ResourceType
from protocol.errors import ErrorCode
from protocol.kafka import messages, offset_commit_codec
from protocol.kafka.offset_commit_codec import BROKERS_RETENTION, NOW
from protocol.kafka.wire import TopicKey
from protocol.types import TopicPartition

MEMBER_EPOCH_SINCE = 9
PARTITIONS_IN_A_STEP = 100
OFFSETS_AT_ONCE = 1_000
"""Offsets in one batch of the log. A larger request becomes several batches, one after the other."""


def offset_commit(context: ApiContext, request: Request) -> Further:
    return in_steps(context, request, _begin(context, request))


def _begin(context: ApiContext, request: Request) -> StepsTo[None]:
    header = request.header
    body = yield from offset_commit_codec.decoding(header.api_version, request.frame, header.body_offset)
    now_ms = context.clock.wall_ms()
    expires = None
    if body.retention_ms != BROKERS_RETENTION:
        expires = min(max(now_ms + body.retention_ms, 0), LONG_MAX)
    offsets: dict[TopicPartition, CommittedOffset] = {}
    errors: dict[TopicPartition, ErrorCode] = {}
    denied_group = not rights.on_group(context, request, Operation.READ, body.group_id)
    keys = TopicKeys(context.metadata)
    topics = [(keys.name_of(key), rows) for key, rows in body.topics]
    denied = yield from rights.denied(
        context, request, Operation.READ, ResourceType.TOPIC, [topic for topic, _ in topics]
    )
    if context.recorder.recording is not None:
        context.recorder.recording.member(request, body.group_id, {topic for topic, _ in topics})
    for topic, rows in topics:
        for number, row in enumerate(rows, 1):
            tp = TopicPartition(topic, row.partition)
            if denied_group:
                errors[tp] = ErrorCode.GROUP_AUTHORIZATION_FAILED
            elif topic in keys.unknown:
                errors[tp] = ErrorCode.UNKNOWN_TOPIC_ID
            elif topic in denied:
                errors[tp] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif context.metadata.partition(tp) is None:
                errors[tp] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                at_ms = now_ms if row.commit_time_ms == NOW else row.commit_time_ms
                offsets[tp] = CommittedOffset(row.offset, row.leader_epoch, row.metadata or "", at_ms, expires)
            if number % PARTITIONS_IN_A_STEP == 0:
                yield
        if len(topics) > 1:
            yield
    if offsets:
        knows_epochs = header.api_version >= MEMBER_EPOCH_SINCE
        committer = Committer(body.group_id, body.member_id, body.instance_id, body.generation, None, knows_epochs)
        Commit(context, committer, offsets, errors, lambda errors: _respond(context, request, keys, errors)).go_on()
    else:
        _respond(context, request, keys, errors)


class Committer(NamedTuple):
    """Who commits. `producer`: the commit is in its transaction. `knows_epochs`: its request has a version that knows of member epochs."""

    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    producer: TransactionalProducer | None = None
    knows_epochs: bool = True


class Commit:
    """Commits OFFSETS_AT_ONCE offsets at a time: the next when the previous offsets are replicated.

    `respond` gets the errors of all partitions, and those that the caller has found before.
    """

    def __init__(
        self,
        context: ApiContext,
        committer: Committer,
        offsets: dict[TopicPartition, CommittedOffset],
        errors: dict[TopicPartition, ErrorCode],
        respond: Callable[[dict[TopicPartition, ErrorCode]], None],
    ) -> None:
        self._context = context
        self._committer = committer
        self._parts = iter((offsets,)) if len(offsets) <= OFFSETS_AT_ONCE else _parts_of(offsets)
        self._errors = errors
        self._respond = respond

    def go_on(self) -> None:
        """Partitions are looked up again: since the request was read, a topic may have been deleted, and its offsets."""
        by, metadata = self._committer, self._context.metadata
        for some in self._parts:
            gone = [tp for tp in some if metadata.partition(tp) is None]
            if gone:
                self._errors |= dict.fromkeys(gone, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                some = {tp: at for tp, at in some.items() if tp not in self._errors}
            if some:
                self._context.groups.commit(
                    by.group_id,
                    by.member_id,
                    by.instance_id,
                    by.generation,
                    some,
                    self._committed,
                    producer=by.producer,
                    knows_epochs=by.knows_epochs,
                )
                return
        self._respond(self._errors)

    def _committed(self, errors: dict[TopicPartition, ErrorCode]) -> None:
        self._errors |= errors
        if len(errors) < OFFSETS_AT_ONCE:
            self.go_on()
        else:
            # In another turn of the loop: with a single replica, the answer comes from within the call, and calls would nest.
            asyncio.get_running_loop().call_soon(self.go_on)


def _parts_of(offsets: Mapping[TopicPartition, CommittedOffset]) -> Iterator[dict[TopicPartition, CommittedOffset]]:
    return map(dict, parts_of(offsets.items(), OFFSETS_AT_ONCE))


def _respond(
    context: ApiContext, request: Request, keys: TopicKeys, errors: Mapping[TopicPartition, ErrorCode]
) -> None:
    if len(errors) <= OFFSETS_AT_ONCE:
        topics: dict[TopicKey, list[tuple[int, int]]] = {}
        for tp, error in errors.items():
            topics.setdefault(keys.key_of(tp.topic), []).append((tp.partition, error))
        request.respond_small(offset_commit_codec.encode_response(request.header.api_version, list(topics.items())))
    else:
        respond_later(context, request, _long_answer(request, keys, errors))


def _long_answer(request: Request, keys: TopicKeys, errors: Mapping[TopicPartition, ErrorCode]) -> Steps:
    topics = yield from by_topic(errors)
    rows = (
        {
            keys.field: keys.key_of(name),
            "partitions": ({"partition_index": p, "error_code": int(e)} for p, e in of_topic),
        }
        for name, of_topic in topics.items()
    )
    header = request.header
    return (yield from messages.encoding(header.api_key, header.api_version, {"throttle_time": 0, "topics": rows}))
