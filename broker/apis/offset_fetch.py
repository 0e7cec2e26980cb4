"""OffsetFetch (API 9), v1 to v10: the committed offsets of a group, or of many groups (v8, KIP-709) (CLI-2).

v2 adds null topics, which mean all partitions of the group, and an error for the group, which v1 has in each partition. v5 adds the
leader epoch, v7 `require_stable`: a partition with a commit in progress gets UNSTABLE_OFFSET_COMMIT. A partition that has no offset,
or does not exist, gets -1 without an error. v9 adds a member's id and epoch, which count in a group of the new kind (KIP-848). v10 names
topics by their ids; UNKNOWN_TOPIC_ID if there is none.

A repeated group is answered again, as in Kafka, up to REPEATED_BYTES_MAX. The answer is made in steps. If this broker stops being the
coordinator meanwhile, the answer has only the group's error.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence

from broker.groups.group.messages import FetchedOffset
from broker.network.request_channel import Request
from broker.requests import rights
from broker.requests.context import ApiContext
from broker.requests.steps import Further, Steps, parts_of, respond_in_steps
from broker.requests.topic_keys import TopicKeys
from protocol.acls import Operation, ResourceType
from protocol.errors import ErrorCode
from protocol.kafka import messages, offset_fetch_codec
from protocol.kafka.by_schema import AnswerTooLarge
from protocol.kafka.offset_fetch_codec import (
    GROUP_ERROR_SINCE,
    TOPIC_ID_SINCE,
    TOPICS_IN_A_STEP,
    AskedGroup,
    Position,
)
from protocol.kafka.wire import TopicKey
from protocol.types import TopicPartition

PARTITIONS_IN_A_STEP = 200
REPEATED_BYTES_MAX = 64 * 1024
"""Limit of the rows of repeated groups in an answer. Further repetitions get INVALID_REQUEST."""


def offset_fetch(context: ApiContext, request: Request) -> Further:
    return respond_in_steps(context, request, _answer(context, request))


def _answer(context: ApiContext, request: Request) -> Steps:
    version = request.header.api_version
    body = yield from offset_fetch_codec.decoding(version, request.frame, request.header.body_offset)
    groups = []
    seen: set[str] = set()
    left, repeated_left = messages.ANSWER_BYTES_MAX, REPEATED_BYTES_MAX
    for group in body.groups:
        if group.group_id in seen and repeated_left <= 0:
            encoded = offset_fetch_codec.encode_group(version, group.group_id, ErrorCode.INVALID_REQUEST, ())
        else:
            encoded = yield from _group(context, request, group, body.require_stable)
            repeated_left -= len(encoded) if group.group_id in seen else 0
        seen.add(group.group_id)
        groups.append(encoded)
        left -= len(encoded)
        if left < 0:
            raise AnswerTooLarge
        yield
    return offset_fetch_codec.encode_response(version, groups)


def _group(
    context: ApiContext, request: Request, asked: AskedGroup, require_stable: bool
) -> Generator[None, None, bytes]:
    version = request.header.api_version
    group_id = asked.group_id
    keys = TopicKeys(context.metadata)
    named = [(keys.name_of(key), partitions) for key, partitions in asked.topics or ()]
    error, wanted = ErrorCode.NONE, (yield from _once_each(named))
    if not rights.on_group(context, request, Operation.DESCRIBE, group_id):
        error = ErrorCode.GROUP_AUTHORIZATION_FAILED
    elif asked.member_id or asked.member_epoch >= 0:
        error = context.groups.check_fetch(group_id, asked.member_id or "", asked.member_epoch)
    if error is not ErrorCode.NONE:
        pass
    elif asked.topics is None:
        error, wanted = context.groups.committed_partitions(group_id)
    elif not wanted:
        error, _ = context.groups.fetch_offsets(group_id, (), require_stable=require_stable)
    denied = yield from rights.denied(context, request, Operation.DESCRIBE, ResourceType.TOPIC, wanted)
    if denied and asked.topics is None:
        wanted = {name: partitions for name, partitions in wanted.items() if name not in denied}
    topics: list[bytes] = []
    is_by_id = version >= TOPIC_ID_SINCE
    if is_by_id and asked.topics is None:
        wanted = {
            name: partitions for name, partitions in wanted.items() if context.metadata.topic_id(name) is not None
        }
    for name, partitions in wanted.items() if error is ErrorCode.NONE else ():
        rows: list[bytes] = []
        for at in range(0, len(partitions), PARTITIONS_IN_A_STEP):
            asked_now = [TopicPartition(name, number) for number in partitions[at : at + PARTITIONS_IN_A_STEP]]
            if name in keys.unknown or name in denied:
                refused = ErrorCode.UNKNOWN_TOPIC_ID if name in keys.unknown else ErrorCode.TOPIC_AUTHORIZATION_FAILED
                positions = [_position(tp.partition, refused) for tp in asked_now]
                rows.append(offset_fetch_codec.encode_positions(version, positions))
                yield
                continue
            error, found = context.groups.fetch_offsets(group_id, asked_now, require_stable=require_stable)
            if error is not ErrorCode.NONE:
                break
            positions = [_position(tp.partition, found.get(tp)) for tp in asked_now]
            rows.append(offset_fetch_codec.encode_positions(version, positions))
            yield
        if error is not ErrorCode.NONE:
            break
        key: TopicKey = keys.id_of(name) if is_by_id and asked.topics is None else keys.key_of(name)
        topics.append(offset_fetch_codec.encode_topic(version, key, len(partitions), rows))
    if error is not ErrorCode.NONE:
        topics = []
        if version < GROUP_ERROR_SINCE:
            topics = yield from _refused(version, wanted, error)
    return offset_fetch_codec.encode_group(version, group_id, error, topics)


def _refused(version: int, topics: Mapping[str, Sequence[int]], error: ErrorCode) -> Generator[None, None, list[bytes]]:
    encoded = []
    for name, partitions in topics.items():
        rows = []
        for some in parts_of(partitions, PARTITIONS_IN_A_STEP):
            rows.append(offset_fetch_codec.encode_positions(version, [_position(number, error) for number in some]))
            yield
        encoded.append(offset_fetch_codec.encode_topic(version, name, len(partitions), rows))
        yield
    return encoded


def _once_each(topics: Iterable[tuple[str, Sequence[int]]]) -> Generator[None, None, Mapping[str, Sequence[int]]]:
    """Topic -> partitions, each once, even if it was requested twice."""
    asked: dict[str, dict[int, None]] = {}
    for count, (name, partitions) in enumerate(topics):
        asked.setdefault(name, {}).update(dict.fromkeys(partitions))
        if count % TOPICS_IN_A_STEP == 0:
            yield
    return {name: tuple(partitions) for name, partitions in asked.items()}


def _position(partition: int, found: FetchedOffset) -> Position:
    if found is None:
        return Position(partition, -1, -1, "", ErrorCode.NONE)
    if isinstance(found, ErrorCode):
        return Position(partition, -1, -1, "", found)
    return Position(partition, found.offset, found.leader_epoch, found.metadata, ErrorCode.NONE)
