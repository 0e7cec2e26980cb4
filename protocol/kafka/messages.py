"""Reads and writes requests and responses by kio's schemas and those of `earlier_schemas`, through `by_schema`.

A handler gets an entity of the request's version, with kio's field names, and returns a nested dict with the same names. The dict may
have fields that the version does not have, so that one handler serves all versions. In the dict, times and durations are milliseconds and
error codes are ints; in the entity, times and durations are datetime and timedelta. Schemas are imported when they are first needed.

A broker reads requests and writes responses in steps. Clients (tools, tests, and a broker that asks another) write requests and read
responses without pauses.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Generator, Iterable, Mapping
from functools import cache
from typing import Any

import protocol.kafka.kio_without_hypothesis  # isort: skip  # noqa: F401
import kio.index
import kio.schema.index

from protocol.kafka import by_schema, earlier_schemas
from protocol.kafka.api_keys import SERVED, ApiKey, ApiLevel
from protocol.kafka.framing import MalformedRequest, request_header, skip_tagged_fields
from protocol.kafka.wire import ELEMENTS_MAX, REQUEST_ELEMENTS_MAX
from protocol.types import Buffer

CORRELATION_ID_SIZE = 4
THROTTLE_TIME = "throttle_time"
ERROR_SIZE = 2
AFTER_ROWS = -1
ANSWER_BYTES_MAX = 100 * 1024 * 1024
"""Limit of a response. It equals the default limit of a request (`socket.request.max.bytes`). A Fetch response is limited by the
client and `fetch.max.bytes` instead."""

_WITHOUT_SCHEMA = {
    4: "leader_and_isr",
    5: "stop_replica",
    6: "update_metadata",
    7: "controlled_shutdown",
}
"""Names of APIs that kio does not have."""

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@cache
def _schema_of_request(api_key: int, version: int) -> Any:
    """Cached: kio resolves the name of the module anew in each call, which takes longer than reading a small message."""
    if earlier_schemas.has_schemas(api_key, version):
        return earlier_schemas.schemas(api_key, version).request
    return kio.index.load_request_schema(api_key, version)


@cache
def _schema_of_response(api_key: int, version: int) -> Any:
    if earlier_schemas.has_schemas(api_key, version):
        return earlier_schemas.schemas(api_key, version).response
    return kio.index.load_response_schema(api_key, version)


def decoding(api_key: int, version: int, frame: Buffer, offset: int) -> Generator[None, None, Any]:
    """The entity of the request body at `offset`, with a pause after each fraction of a millisecond.

    Raises MalformedRequest if the body is broken (BAD-10, 11).
    """
    return by_schema.reading(_schema_of_request(api_key, version), bytes(frame), offset, REQUEST_ELEMENTS_MAX)


def decode_request(api_key: int, version: int, frame: Buffer, offset: int) -> Any:
    """Like `decoding`, without pauses."""
    return by_schema.at_once(decoding(api_key, version, frame, offset))


def encoding(api_key: int, version: int, body: Mapping[str, Any]) -> Generator[None, None, list[bytes]]:
    """The response body as pieces, with a pause after each fraction of a millisecond. Arrays may be iterators.

    Raises AnswerTooLarge above ANSWER_BYTES_MAX. Raises KeyError if `body` lacks a field of the schema, which is our bug.
    """
    return by_schema.writing(_schema_of_response(api_key, version), body, ANSWER_BYTES_MAX)


def encode_response(api_key: int, version: int, body: Mapping[str, Any]) -> bytes:
    """Like `encoding`, without pauses and in one piece."""
    return b"".join(by_schema.at_once(encoding(api_key, version, body)))


def encode_request(
    api_key: int, version: int, correlation_id: int, client_id: str | None, body: Mapping[str, Any]
) -> bytes:
    """Header and body of a request, without the length before them. Raises KeyError if `body` lacks a field without a default."""
    schema = _schema_of_request(api_key, version)
    header = request_header(api_key, version, correlation_id, client_id, flexible=schema.__flexible__)
    return header + b"".join(by_schema.at_once(by_schema.writing(schema, body, ANSWER_BYTES_MAX)))


def api_name(api_key: int) -> str:
    """Kafka's name of the API, such as `ListOffsets`; "API 999" for a key that Kafka does not have."""
    old = _WITHOUT_SCHEMA.get(api_key) or kio.schema.index.api_key_map.get(api_key)
    return "".join(word.capitalize() for word in old.split("_")) if old else f"API {api_key}"


def versions_with_schemas(api_key: int) -> range:
    """The versions of the API whose messages can be written and read here; empty for an API without schemas."""
    versions = kio.schema.index.schema_name_map.get(kio.schema.index.api_key_map.get(api_key, ""), {})
    if not versions:
        return range(0)
    oldest = min(versions)
    while earlier_schemas.has_schemas(api_key, oldest - 1):
        oldest -= 1
    return range(oldest, max(versions) + 1)


def request_schema(api_key: int, version: int) -> Any:
    """The schema of a request, for `by_schema.fields_of`. Its version is one of `versions_with_schemas`."""
    return _schema_of_request(api_key, version)


def response_schema(api_key: int, version: int) -> Any:
    """The same of a response."""
    return _schema_of_response(api_key, version)


def decode_response(api_key: int, version: int, frame: Buffer) -> tuple[int, Any]:
    """(correlation id, entity) of a response frame (without its length). Raises MalformedRequest on broken bytes."""
    schema = _schema_of_response(api_key, version)
    data = bytes(frame)
    if len(data) < CORRELATION_ID_SIZE:
        raise MalformedRequest(f"a response of {len(data)} bytes")
    correlation_id = int.from_bytes(data[:CORRELATION_ID_SIZE], "big", signed=True)
    offset = CORRELATION_ID_SIZE
    if schema.__header_schema__.__version__ >= 1:
        offset = skip_tagged_fields(data, offset)
    return correlation_id, by_schema.at_once(by_schema.reading(schema, data, offset, ELEMENTS_MAX))


@cache
def throttle_time_at(api_key: int, version: int) -> int | None:
    """Bytes before the throttle time of a response; AFTER_ROWS: it comes after an array; None: the response has none."""
    names = [field.name for field in dataclasses.fields(_schema_of_response(api_key, version))]
    if THROTTLE_TIME not in names:
        return None
    before = names[: names.index(THROTTLE_TIME)]
    return {(): 0, ("error_code",): ERROR_SIZE}.get(tuple(before), AFTER_ROWS)


def preload(api_keys: Iterable[ApiKey], level: ApiLevel) -> None:
    """Imports and compiles the schemas of the newest version of these APIs. Run it in a thread: it can take a quarter of a second."""
    for key in api_keys:
        version = SERVED[level][key].max
        by_schema.prepare(_schema_of_request(key, version), _schema_of_response(key, version))


def milliseconds(value: datetime.timedelta | datetime.datetime | None) -> int:
    """A duration or time as Kafka's milliseconds; None is -1."""
    if value is None:
        return -1
    since = value if isinstance(value, datetime.timedelta) else value - _EPOCH
    return since // datetime.timedelta(milliseconds=1)
