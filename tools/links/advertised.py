"""The addresses of brokers in answers: clients are told those of the proxy, and never go around it. Pure.

Metadata, FindCoordinator, DescribeCluster    every broker
Produce v10+, Fetch v16+, share fetches       the new leader, beside an error of a partition (KIP-951)
ApiVersions                                   no version of these APIs that cannot be rewritten
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache

from protocol.conversation.asked import Plain, plain
from protocol.errors import ErrorCode
from protocol.kafka import fetch_codec, messages
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.framing import MalformedRequest, is_flexible, response_header, skip_tagged_fields
from protocol.kafka.wire import (
    INT,
    SHORT,
    nullable_string,
    read_array_length,
    read_nullable_string,
    read_string,
    string,
)
from tools.links.frames import Frame, framed

Moved = Callable[[int, str, int], tuple[str, int]]
"""(broker, host, port), as a broker advertises itself -> the address for clients."""

SHARE_FETCH, SHARE_ACKNOWLEDGE = 78, 79
NAMING_BROKERS = (
    ApiKey.PRODUCE,
    ApiKey.FETCH,
    ApiKey.METADATA,
    ApiKey.FIND_COORDINATOR,
    ApiKey.DESCRIBE_CLUSTER,
    SHARE_FETCH,
    SHARE_ACKNOWLEDGE,
)
"""The APIs whose answers have addresses of brokers."""
PRODUCE_WITH_ENDPOINTS, FETCH_WITH_ENDPOINTS = 10, 16
API_VERSIONS_FLEXIBLE = 3
BROKERS = 1
"""`endpoint_type` of DescribeCluster; the other one is for controllers, which have addresses of their own."""
_BODY_AT = 8
"""Behind the length and the correlation id."""
_VERSIONS = struct.Struct(">hhh")


def names_brokers(api_key: int, version: int) -> bool:
    """Whether `rewritten` changes such answers."""
    if api_key == ApiKey.PRODUCE:
        return version >= PRODUCE_WITH_ENDPOINTS
    if api_key == ApiKey.FETCH:
        return version >= FETCH_WITH_ENDPOINTS
    return api_key in NAMING_BROKERS or api_key == ApiKey.API_VERSIONS


def is_readable(api_key: int, version: int) -> bool:
    """Whether the addresses in such answers can be found."""
    return api_key in (ApiKey.METADATA, ApiKey.API_VERSIONS) or version in messages.versions_with_schemas(api_key)


def rewritten(api_key: int, version: int, frame: Frame, moved: Moved) -> Frame:
    """An answer, with its length, in which all addresses are those for clients. Raises MalformedRequest."""
    try:
        if api_key == ApiKey.API_VERSIONS:
            return _limited(version, frame)
        if api_key == ApiKey.METADATA:
            return _metadata(version, frame, moved)
        if api_key == ApiKey.FETCH and not _has_errors(version, frame):
            return frame
        answer = plain(messages.decode_response(api_key, version, memoryview(frame)[4:])[1])
    except struct.error:
        raise MalformedRequest("an answer that is cut off") from None
    if not _move(api_key, answer, moved):
        return frame
    correlation_id = INT.unpack_from(frame, 4)[0]
    head = response_header(api_key, version, correlation_id)
    return framed(head, messages.encode_response(api_key, version, answer))


def _move(api_key: int, answer: Plain, moved: Moved) -> bool:
    """Changes the addresses in place. False: there were none."""
    if api_key == ApiKey.FIND_COORDINATOR:
        rows = answer.get("coordinators", [answer])
    elif api_key == ApiKey.DESCRIBE_CLUSTER:
        rows = answer["brokers"] if answer.get("endpoint_type", BROKERS) == BROKERS else []
    else:
        rows = answer["node_endpoints"]
    has_moved = False
    for row in rows:
        broker = row["broker_id" if "broker_id" in row else "node_id"]
        if broker >= 0 and row["host"]:
            row["host"], row["port"] = moved(broker, row["host"], row["port"])
            has_moved = True
    return has_moved


def _metadata(version: int, frame: Frame, moved: Moved) -> Frame:
    """The brokers stand before the topics, which may be many and are not looked at."""
    flexible = is_flexible(ApiKey.METADATA, version)
    at = skip_tagged_fields(frame, _BODY_AT) if flexible else _BODY_AT
    if version >= 3:
        at += INT.size  # the throttle time
    after_array_length = at
    count, at = read_array_length(frame, at, flexible, 10)
    parts = [frame[4:after_array_length], frame[after_array_length:at]]
    for _ in range(count):
        (broker,) = INT.unpack_from(frame, at)
        host, at = read_string(frame, at + INT.size, flexible)
        (port,) = INT.unpack_from(frame, at)
        at += INT.size
        host, port = moved(broker, host, port)
        parts += [INT.pack(broker), string(host, flexible), INT.pack(port)]
        if version >= 1:
            rack, at = read_nullable_string(frame, at, flexible)
            parts.append(nullable_string(rack, flexible))
        if flexible:
            end = skip_tagged_fields(frame, at)
            parts.append(frame[at:end])
            at = end
    return framed(*parts, frame[at:])


def _has_errors(version: int, frame: Frame) -> bool:
    """Whether a Fetch answer may name brokers. Its records are not copied for that."""
    answer = fetch_codec.decode_response(version, memoryview(frame), skip_tagged_fields(frame, _BODY_AT))
    return any(row.error for _, rows in answer.topics for row in rows)


def _limited(version: int, frame: Frame) -> Frame:
    """An ApiVersions answer. If the broker does not know the version of the request, it has the form of v0."""
    changed = bytearray(frame)
    (error,) = SHORT.unpack_from(frame, _BODY_AT)
    flexible = version >= API_VERSIONS_FLEXIBLE and error != ErrorCode.UNSUPPORTED_VERSION
    count, at = read_array_length(frame, _BODY_AT + SHORT.size, flexible, _VERSIONS.size)
    for _ in range(count):
        key, oldest, newest = _VERSIONS.unpack_from(frame, at)
        if key in NAMING_BROKERS:
            _VERSIONS.pack_into(changed, at, key, oldest, max(oldest, min(newest, _newest(key))))
        at += _VERSIONS.size
        if flexible:
            at = skip_tagged_fields(frame, at)
    return bytes(changed)


@cache
def _newest(api_key: int) -> int:
    return messages.versions_with_schemas(api_key).stop - 1
