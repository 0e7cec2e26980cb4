"""The body of every request and version that is served. An input: a byte for the version, then the body.

What is decoded by hand is compared with `by_schema`: if it takes the bytes, so does the codec, and finds the same in them. What
`by_schema` decodes is compared with kio, encoded and decoded again, to the same.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import fields, is_dataclass
from random import Random
from typing import Any

from protocol.kafka import (
    consumer_heartbeat_codec,
    fetch_codec,
    heartbeat_codec,
    list_offsets_codec,
    messages,
    offset_commit_codec,
    offset_fetch_codec,
    produce_codec,
)
from protocol.kafka.api_keys import SUPPORTED, ApiKey
from protocol.kafka.consumer_heartbeat_codec import HeartbeatRequest as ConsumerHeartbeatRequest
from protocol.kafka.fetch_codec import FetchRequest, FetchRequestPartition
from protocol.kafka.framing import MalformedRequest, is_flexible, request_header
from protocol.kafka.heartbeat_codec import HeartbeatRequest
from protocol.kafka.list_offsets_codec import AskedOffset, ListOffsetsRequest
from protocol.kafka.messages import milliseconds
from protocol.kafka.offset_commit_codec import CommittedPartition, OffsetCommitRequest
from protocol.kafka.offset_fetch_codec import AskedGroup, OffsetFetchRequest
from protocol.kafka.produce_codec import ProduceRequest
from protocol.kafka.wire import NO_UUID
from tests.fuzz.decoder import Decoder, must
from tests.support import kio_oracle
from tests.support.kafka_values import bodies

BODIES = 3
"""The seeds of each version."""

FIRST_BY_HAND = {ApiKey.LIST_OFFSETS: 1}
"""The first version that a codec has."""

Codec = tuple[Callable[[int, memoryview, int], Any], Callable[[int, Any], Any]]
"""(decode(version, frame, offset), what it should find: of (version, the entity of `by_schema`))."""


def decoders() -> list[Decoder]:
    return [
        Decoder(
            f"request-{key.name.lower()}",
            _run(key),
            _seeds(key),
            (MalformedRequest,),
            bytes_max=600,
            cpu_us_per_byte=20,
        )
        for key in SUPPORTED
    ]


def _run(key: ApiKey) -> Callable[[bytes], object]:
    oldest, newest = SUPPORTED[key]
    heads = {v: request_header(key, v, 1, "fuzz", flexible=is_flexible(key, v)) for v in range(oldest, newest + 1)}
    codec = CODECS.get(key)

    def run(data: bytes) -> object:
        version = oldest + (data[0] if data else 0) % (newest - oldest + 1)
        head = heads[version]
        frame = head + data[1:]
        if codec is None or version < FIRST_BY_HAND.get(key, 0):
            return _by_schema(key, version, frame, len(head))
        return _by_hand(codec, key, version, frame, len(head))

    return run


def _by_schema(key: ApiKey, version: int, frame: bytes, offset: int) -> Any:
    found = messages.decode_request(key, version, memoryview(frame), offset)
    schema = messages.request_schema(key, version)
    try:
        entity = kio_oracle.read(schema, frame, offset)  # its lengths are true: they were checked above
    except kio_oracle.Refused:
        return found
    assert _are_same(found, entity), f"{found} is not {entity}"
    written = messages.decode_request(key, version, kio_oracle.written(entity), 0)
    assert _are_same(written, entity), f"{entity} became {written}"
    return found


def _are_same(found: Any, entity: Any) -> bool:
    """Field by field: an entity may be of another type than kio's."""
    if is_dataclass(entity):
        return all(_are_same(getattr(found, field.name), getattr(entity, field.name)) for field in fields(entity))
    if isinstance(entity, tuple):
        return len(found) == len(entity) and all(map(_are_same, found, entity))
    return bool(found == entity)


def _by_hand(codec: Codec, key: ApiKey, version: int, frame: bytes, offset: int) -> Any:
    decode, expected = codec
    try:
        entity = messages.decode_request(key, version, frame, offset)
    except MalformedRequest:
        entity = None
    try:
        found = decode(version, memoryview(frame), offset)
    except MalformedRequest as error:
        must(entity is None or _has_rest(key, version, frame, offset), f"by_schema reads {entity}, not taken: {error}")
        raise
    if entity is not None:
        wanted = expected(version, entity)
        assert found == wanted, f"{found} is not {wanted}"
    return found


def _has_rest(key: ApiKey, version: int, frame: bytes, offset: int) -> bool:
    """Bytes after the message: `messages` passes over them, some codecs refuse them."""
    try:
        messages.decode_request(key, version, frame[:-1], offset)
    except MalformedRequest:
        return False
    return True


def _seeds(key: ApiKey) -> Callable[[], Iterator[bytes]]:
    def seeds() -> Iterator[bytes]:
        random = Random(int(key))
        oldest, newest = SUPPORTED[key]
        for version in range(oldest, newest + 1):
            make = bodies((messages.request_schema(key, version),), are_small=True)
            head = request_header(key, version, 1, None, flexible=is_flexible(key, version))
            for _ in range(BODIES):
                frame = messages.encode_request(key, version, 1, None, make(random))
                yield bytes((version - oldest,)) + frame[len(head) :]

    return seeds


# -- what the codecs should find -----------------------------------------------------------------------------------------


def finished(steps: Generator[None, None, Any]) -> Any:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def _produce(version: int, entity: Any) -> ProduceRequest:
    topics = [
        (
            (t.topic_id or NO_UUID) if version >= produce_codec.TOPIC_IDS_SINCE else t.name,
            [(p.index, p.records) for p in t.partition_data],
        )
        for t in entity.topic_data
    ]
    return ProduceRequest(entity.transactional_id, entity.acks, milliseconds(entity.timeout), topics)


def _fetch(version: int, entity: Any) -> FetchRequest:
    state = getattr(entity, "replica_state", None)
    return FetchRequest(
        state.replica_id if state is not None else entity.replica_id,
        state.replica_epoch if state is not None else -1,
        milliseconds(entity.max_wait),
        entity.min_bytes,
        entity.max_bytes,
        entity.isolation_level,
        getattr(entity, "session_id", 0),
        getattr(entity, "session_epoch", -1),
        [
            (
                _topic_key(version, topic),
                [
                    FetchRequestPartition(
                        p.partition,
                        getattr(p, "current_leader_epoch", -1),
                        p.fetch_offset,
                        getattr(p, "last_fetched_epoch", -1),
                        getattr(p, "log_start_offset", -1),
                        p.partition_max_bytes,
                    )
                    for p in topic.partitions
                ],
            )
            for topic in entity.topics
        ],
        [(_topic_key(version, t), tuple(t.partitions)) for t in getattr(entity, "forgotten_topics_data", ())],
        getattr(entity, "rack_id", ""),
    )


def _topic_key(version: int, topic: Any) -> Any:
    return (topic.topic_id or NO_UUID) if version >= 13 else topic.topic


def _list_offsets(version: int, entity: Any) -> ListOffsetsRequest:
    return ListOffsetsRequest(
        entity.replica_id,
        getattr(entity, "isolation_level", 0),
        [
            (
                t.name,
                [
                    AskedOffset(p.partition_index, getattr(p, "current_leader_epoch", -1), p.timestamp)
                    for p in t.partitions
                ],
            )
            for t in entity.topics
        ],
    )


def _offset_commit(version: int, entity: Any) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        entity.group_id,
        entity.generation_id_or_member_epoch,
        entity.member_id,
        getattr(entity, "group_instance_id", None),
        milliseconds(entity.retention_time) if hasattr(entity, "retention_time") else -1,
        [
            (
                _topic(t),
                [
                    CommittedPartition(
                        p.partition_index,
                        p.committed_offset,
                        getattr(p, "committed_leader_epoch", -1),
                        p.committed_metadata,
                        getattr(p, "commit_timestamp", -1),
                    )
                    for p in t.partitions
                ],
            )
            for t in entity.topics
        ],
    )


def _offset_fetch(version: int, entity: Any) -> OffsetFetchRequest:
    groups = entity.groups if version >= 8 else (entity,)
    return OffsetFetchRequest(
        [
            AskedGroup(
                g.group_id,
                None if g.topics is None else [(_topic(t), tuple(t.partition_indexes)) for t in g.topics],
                getattr(g, "member_id", None),
                getattr(g, "member_epoch", -1),
            )
            for g in groups
        ],
        getattr(entity, "require_stable", False),
    )


def _topic(entity: Any) -> str | uuid.UUID:
    """Its name, or in newer versions its id."""
    return entity.name if hasattr(entity, "name") else entity.topic_id or NO_UUID


def _heartbeat(version: int, entity: Any) -> HeartbeatRequest:
    return HeartbeatRequest(
        entity.group_id, entity.generation_id, entity.member_id, getattr(entity, "group_instance_id", None)
    )


def _consumer_heartbeat(version: int, entity: Any) -> ConsumerHeartbeatRequest:
    rows, topics = entity.topic_partitions, entity.subscribed_topic_names
    return ConsumerHeartbeatRequest(
        entity.group_id,
        entity.member_id,
        entity.member_epoch,
        entity.instance_id,
        entity.rack_id,
        milliseconds(entity.rebalance_timeout),
        None if topics is None else list(topics),
        getattr(entity, "subscribed_topic_regex", None),
        entity.server_assignor,
        None
        if rows is None
        else [((row.topic_id or NO_UUID).bytes, number) for row in rows for number in row.partitions],
    )


CODECS: Mapping[ApiKey, Codec] = {
    ApiKey.PRODUCE: (produce_codec.decode_request, _produce),
    ApiKey.FETCH: (fetch_codec.decode_request, _fetch),
    ApiKey.LIST_OFFSETS: (lambda v, frame, at: finished(list_offsets_codec.decoding(v, frame, at)), _list_offsets),
    ApiKey.OFFSET_COMMIT: (offset_commit_codec.decode_request, _offset_commit),
    ApiKey.OFFSET_FETCH: (offset_fetch_codec.decode_request, _offset_fetch),
    ApiKey.HEARTBEAT: (heartbeat_codec.decode_request, _heartbeat),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: (consumer_heartbeat_codec.decode_request, _consumer_heartbeat),
}
