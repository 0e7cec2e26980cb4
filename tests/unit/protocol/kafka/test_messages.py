"""Every message in every served version: what goes in comes out, as with kio, and broken frames are malformed (BAD-10, 11)."""

from __future__ import annotations

import contextlib
import struct
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple

import pytest

from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import SUPPORTED, ApiKey
from protocol.kafka.framing import MalformedRequest, parse_request_header, response_header
from tests.support import kio_oracle
from tests.support.kafka_values import bodies, dice
from tests.support.kio_oracle import as_body
from tests.support.mutations import mutate

SERVED = [(key, version) for key, served in SUPPORTED.items() for version in range(served.min, served.max + 1)]


def same(found: Any, sent: Any) -> bool:
    """Equal, except that a missing time is None in kio and -1 on our side. Not a number is the same as itself."""
    if isinstance(found, dict):
        return found.keys() == sent.keys() and all(same(found[name], sent[name]) for name in found)
    if isinstance(found, list):
        return len(found) == len(sent) and all(map(same, found, sent))
    return bool(found == sent or (found is None and sent == -1) or (found != found and sent != sent))


HAVE_TIMES = (
    ApiKey.CREATE_DELEGATION_TOKEN,
    ApiKey.RENEW_DELEGATION_TOKEN,
    ApiKey.EXPIRE_DELEGATION_TOKEN,
    ApiKey.DESCRIBE_TRANSACTIONS,
)
"""kio refuses the time -1 here, with which Kafka answers, and rounds times that are centuries away."""
EVERY_MESSAGE = pytest.mark.parametrize(("key", "version"), SERVED)


class Message(NamedTuple):
    """A message that was written by its schema. Its body starts at `at` of `data`."""

    schema: Any
    data: bytes
    at: int
    decode: Callable[[bytes], Any]


def drawn(random: Random, key: ApiKey, version: int) -> Iterator[tuple[dict[str, Any], Message]]:
    """A request and a response, each with its body."""
    schema = messages.request_schema(key, version)
    body = bodies((schema,))(random)
    frame = messages.encode_request(key, version, 3, "c", body)
    header = parse_request_header(frame)
    assert (header.api_key, header.api_version, header.correlation_id, header.client_id) == (key, version, 3, "c")
    at = header.body_offset
    yield body, Message(schema, frame, at, lambda frame: messages.decode_request(key, version, frame, at))

    schema = messages.response_schema(key, version)
    body = bodies((schema,))(random)
    head = response_header(key, version, 9)
    frame = head + messages.encode_response(key, version, body)
    assert messages.decode_response(key, version, frame)[0] == 9
    yield body, Message(schema, frame, len(head), lambda frame: messages.decode_response(key, version, frame)[1])


def by_kio(message: Message, data: bytes) -> Any:
    """kio's entity, or None if it refuses."""
    try:
        return kio_oracle.read(message.schema, data, message.at)
    except kio_oracle.Refused:
        return None


@EVERY_MESSAGE
def test_messages_survive_and_kio_reads_and_writes_the_same(key: ApiKey, version: int) -> None:
    for random in dice(4):
        for body, message in drawn(random, key, version):
            assert same(as_body(message.decode(message.data)), body)
            entity = by_kio(message, message.data)
            assert entity is not None or key in HAVE_TIMES
            if entity is not None:
                assert same(as_body(entity), body)
                assert kio_oracle.written(entity) == message.data[message.at :]


@EVERY_MESSAGE
def test_broken_frames_are_malformed_or_read_as_by_kio(key: ApiKey, version: int) -> None:
    for random in dice(4):
        for _, message in drawn(random, key, version):
            if message.at < len(message.data):
                cut = message.data[: random.randrange(message.at, len(message.data))]
                with pytest.raises(MalformedRequest):
                    message.decode(cut)
                assert by_kio(message, cut) is None
            sound = message.data[message.at :]
            broken = message.data[: message.at] + mutate(sound, random, size_max=len(sound) + 4096)
            with contextlib.suppress(MalformedRequest):
                found = message.decode(broken)
                entity = by_kio(message, broken)
                assert entity is None or key in HAVE_TIMES or same(as_body(found), as_body(entity))


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


ABSURD_ANSWERS = [
    (ApiKey.METADATA, 1, bytes(4) + HUGE + bytes(20)),
    (ApiKey.METADATA, 12, bytes(9) + HUGE_VARINT + bytes(20)),
    (ApiKey.OFFSET_FOR_LEADER_EPOCH, 2, bytes(8) + HUGE + bytes(20)),
    (ApiKey.API_VERSIONS, 3, bytes(4) + b"\x00\x00\x01" + bytes(4) + b"\x01\x00\x05" + HUGE_VARINT),
]
"""The last one has the count in a tagged field."""


@pytest.mark.parametrize(("key", "version", "frame"), ABSURD_ANSWERS)
def test_absurd_counts_in_answers_are_malformed(key: ApiKey, version: int, frame: bytes) -> None:
    with pytest.raises(MalformedRequest, match="elements"):
        messages.decode_response(key, version, frame)


LIMITED = """
import resource, sys
from protocol.kafka import messages
from protocol.kafka.framing import MalformedRequest

def is_refused(key, version, body, is_answer):
    try:
        messages.decode_response(key, version, body) if is_answer else messages.decode_request(key, version, body, 0)
    except MalformedRequest:
        return True

absurd = eval(sys.argv[1])
for key, version, _, is_answer in absurd:
    assert is_refused(key, version, b"", is_answer), "which also loads the schema"
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 20_000_000, used + 20_000_000))
for case in absurd:
    assert is_refused(*case), case
print("all refused")
"""


def test_absurd_counts_allocate_nothing() -> None:
    """kio aborts the process here: its native reader reserves memory for the announced number of elements."""
    pytest.importorskip("resource")
    absurd = [(int(key), version, body[:100], False) for key, version, body in ABSURD]
    absurd += [(int(key), version, frame, True) for key, version, frame in ABSURD_ANSWERS]
    command = [sys.executable, "-c", LIMITED, repr(absurd)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "all refused"), done.stderr[-500:]
