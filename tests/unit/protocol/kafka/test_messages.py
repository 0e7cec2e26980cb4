"""Messages through kio: what goes in comes out, in every served version, and broken frames are malformed (BAD-10, 11)."""

from __future__ import annotations

import contextlib
import datetime
import struct
import subprocess
import sys
import uuid
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import SUPPORTED, ApiKey
from protocol.kafka.framing import MalformedRequest, parse_request_header, response_header
from tests.support.kafka_values import bodies
from tests.support.mutations import mutated

SERVED = [(key, version) for key, served in SUPPORTED.items() for version in range(served.min, served.max + 1)]


def as_body(value: Any) -> Any:
    """An entity in our form: a named tuple that was read here, or kio's."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: as_body(inner) for name, inner in value._asdict().items()}
    if is_dataclass(value):
        return {field.name: as_body(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [as_body(element) for element in value]
    if isinstance(value, datetime.timedelta | datetime.datetime):
        return messages.milliseconds(value)
    return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else value


def same(found: Any, sent: Any) -> bool:
    """Equal, except that a missing time is None in kio and -1 on our side."""
    if isinstance(found, dict):
        return found.keys() == sent.keys() and all(same(found[name], sent[name]) for name in found)
    if isinstance(found, list):
        return len(found) == len(sent) and all(map(same, found, sent))
    return bool(found == sent or (found is None and sent == -1))


ANSWERS_WITH_NO_TIME = (
    ApiKey.CREATE_DELEGATION_TOKEN,
    ApiKey.RENEW_DELEGATION_TOKEN,
    ApiKey.EXPIRE_DELEGATION_TOKEN,
    ApiKey.DESCRIBE_TRANSACTIONS,
)
"""Kafka answers with the time -1, which kio refuses here."""
ALWAYS_REFUSED = (ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.CONSUMER_GROUP_DESCRIBE)
"""Their answers never have members, whose assignments `by_schema` does not write: entities with arrays, outside of an array."""
EVERY_MESSAGE = pytest.mark.parametrize(("key", "version"), SERVED)


def drawn_request(data: st.DataObject, key: ApiKey, version: int) -> tuple[dict[str, Any], bytes, int]:
    """The body, its frame, and where the body starts in the frame."""
    body = data.draw(bodies((messages.request_schema(key, version),)))
    frame = messages.encode_request(key, version, 3, "c", body)
    header = parse_request_header(frame)
    assert header[:4] == (key, version, 3, "c")
    return body, frame, header.body_offset


def drawn_response(data: st.DataObject, key: ApiKey, version: int) -> tuple[dict[str, Any], bytes]:
    body = data.draw(bodies((messages.response_schema(key, version),)))
    return body, response_header(key, version, 9) + messages.encode_response(key, version, body)


@EVERY_MESSAGE
@given(data=st.data())
@settings(max_examples=6)
def test_messages_survive(key: ApiKey, version: int, data: st.DataObject) -> None:
    body, frame, at = drawn_request(data, key, version)
    assert same(as_body(messages.decode_request(key, version, frame, at)), body)
    if key in ALWAYS_REFUSED:
        return
    body, frame = drawn_response(data, key, version)
    if key in ANSWERS_WITH_NO_TIME:
        entity = messages.decode_any_response(key, version, frame)
    else:
        correlation_id, entity = messages.decode_response(key, version, frame)
        assert correlation_id == 9
    assert same(as_body(entity), body)


@EVERY_MESSAGE
@given(data=st.data())
@settings(max_examples=8)
def test_nothing_but_malformed_comes_out_of_broken_frames(key: ApiKey, version: int, data: st.DataObject) -> None:
    _, frame, at = drawn_request(data, key, version)
    with contextlib.suppress(MalformedRequest):
        messages.decode_request(key, version, frame[:at] + data.draw(mutated(frame[at:])), at)
    if key in ALWAYS_REFUSED:
        return
    _, frame = drawn_response(data, key, version)
    with contextlib.suppress(MalformedRequest):
        messages.decode_response(key, version, data.draw(mutated(frame)))


def test_fields_of_other_versions_are_left_out_and_missing_ones_take_defaults() -> None:
    body = {"topics": [{"name": "t", "topic_id": uuid.UUID(int=5)}], "allow_auto_topic_creation": True}
    old = messages.encode_request(ApiKey.METADATA, 1, 1, None, body)
    assert old.endswith(b"\x00\x00\x00\x01\x00\x01t")
    new = messages.encode_request(ApiKey.METADATA, 12, 1, None, body)
    entity = messages.decode_request(ApiKey.METADATA, 12, new, parse_request_header(new).body_offset)
    assert entity.topics[0].topic_id == uuid.UUID(int=5)
    assert entity.include_topic_authorized_operations is False


def test_unknown_tagged_fields_are_ignored() -> None:
    """KIP-482: a newer client may send unknown tagged fields, also inside known fields."""
    unknown, twice = b"\x01\x63\x02ab", b"\x02\x63\x02ab\x64\x00"
    topic = b"\x02t" + b"\x02" + struct.pack(">iiq", 3, 4, 5) + unknown + twice
    body = struct.pack(">ib", -1, 0) + b"\x02" + topic + unknown
    (found,) = messages.decode_request(ApiKey.LIST_OFFSETS, 7, b"head" + body, 4).topics
    assert (found.name, found.partitions[0].timestamp) == ("t", 5)

    replica_state = struct.pack(">iq", 2, 3) + unknown
    tags = b"\x02\x01" + bytes((len(replica_state),)) + replica_state + b"\x70\x01x"
    entity = messages.decode_request(ApiKey.FETCH, 17, bytes(21) + b"\x01\x01\x01" + tags, 0)
    assert (entity.replica_state.replica_id, entity.replica_state.replica_epoch) == (2, 3)


@pytest.mark.parametrize(
    "tags",
    [b"\x02\x01\x01x\x01\x01x", b"\x01\x01\x0c" + bytes(12), b"\x01\x01\x0e" + bytes(14), b"\x01\x01\x0d" + bytes(12)],
    ids=["twice", "too short", "too long", "cut"],
)
def test_known_tagged_fields_must_fit(tags: bytes) -> None:
    with pytest.raises(MalformedRequest):
        messages.decode_request(ApiKey.FETCH, 17, bytes(21) + b"\x01\x01\x01" + tags, 0)


def test_a_response_without_a_required_field_raises_key_error() -> None:
    with pytest.raises(KeyError, match="error_code"):
        messages.encode_response(ApiKey.API_VERSIONS, 0, {})


def test_our_error_codes_and_a_missing_uuid_are_encoded() -> None:
    topic = {"name": "t", "topic_id": None, "error_code": ErrorCode.TOPIC_ALREADY_EXISTS}
    body = {"throttle_time": 0, "topics": [topic | {"error_message": None, "configs": None}]}
    frame = bytes(4) + b"\x00" + messages.encode_response(ApiKey.CREATE_TOPICS, 7, body)
    (found,) = messages.decode_response(ApiKey.CREATE_TOPICS, 7, frame)[1].topics
    assert (found.error_code, found.topic_id) == (ErrorCode.TOPIC_ALREADY_EXISTS, None)


HUGE = struct.pack(">i", 2**31 - 1)
HUGE_VARINT = b"\xff\xff\xff\xff\x07"

ABSURD = [
    (ApiKey.METADATA, 1, HUGE + bytes(20)),
    (ApiKey.METADATA, 12, HUGE_VARINT + bytes(20)),
    (ApiKey.METADATA, 12, b"\x01\x00\x00\x01\x00" + HUGE_VARINT),
    (ApiKey.METADATA, 1, struct.pack(">i", 1_000_001) + bytes(2_000_002)),
    (ApiKey.LIST_OFFSETS, 1, bytes(4) + b"\x00\x00\x00\x01\x00\x01t" + HUGE),
    (ApiKey.CREATE_TOPICS, 2, b"\x00\x00\x00\x01\x00\x01t" + bytes(6) + HUGE),
    (ApiKey.CREATE_TOPICS, 7, b"\x02\x02t" + bytes(6) + HUGE_VARINT),
    (ApiKey.CREATE_TOPICS, 2, b"\x00\x00\x00\x01\x7f\xff"),
    (ApiKey.API_VERSIONS, 3, HUGE_VARINT + b"abc"),
    (ApiKey.OFFSET_FOR_LEADER_EPOCH, 3, bytes(4) + HUGE),
    (ApiKey.FETCH, 17, bytes(21) + HUGE_VARINT),
]


@pytest.mark.parametrize(("key", "version", "body"), ABSURD)
def test_absurd_counts_are_malformed(key: ApiKey, version: int, body: bytes) -> None:
    with pytest.raises(MalformedRequest):
        messages.decode_request(key, version, body, 0)


LIMITED = """
import resource, sys
from protocol.kafka import messages
from protocol.kafka.framing import MalformedRequest

def is_refused(key, version, body):
    try:
        messages.decode_request(key, version, body, 0)
    except MalformedRequest:
        return True

absurd = eval(sys.argv[1])
for key, version, _ in absurd:
    assert is_refused(key, version, b""), "which also loads the schema"
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 20_000_000, used + 20_000_000))
for case in absurd:
    assert is_refused(*case), case
print("all refused")
"""


def test_absurd_counts_allocate_nothing() -> None:
    """kio alone aborts the process here: its native reader reserves memory for the announced number of elements."""
    pytest.importorskip("resource")
    absurd = repr([(int(key), version, body[:100]) for key, version, body in ABSURD])
    command = [sys.executable, "-c", LIMITED, absurd]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "all refused"), done.stderr[-500:]
