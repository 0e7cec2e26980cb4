"""Broken input to one running broker gets the right answer, and the same process continues to serve.

BAD-1..12, 14, 16, 20..27, 29. The unit tests have the cases of each check; here is one or two of each kind on a real connection.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import SERVED, SUPPORTED, ApiKey, ApiLevel
from protocol.kafka.compression import compress
from protocol.kafka.record_batch import build_batch, crc32c
from tests.conftest import CALM, ClusterFactory
from tests.support import old_messages
from tests.support.invariants import eventually
from tests.support.topics import end_offset, fetch_body, produce_batch, produce_body
from tests.support.wire import Wire
from tools.cluster.local_cluster import LocalCluster

pytestmark = pytest.mark.integration

FRAME_BYTES_MAX = 1_000_000
MESSAGE_BYTES_MAX = 100_000
CLIENT_SOFTWARE = {"client_software_name": "test", "client_software_version": "1"}
BATCH = build_batch([(b"k", b"value", [], 1)])


@pytest.fixture(scope="module")
def cluster(new_module_cluster: ClusterFactory) -> LocalCluster:
    overrides = CALM | {
        "socket.request.max.bytes": str(FRAME_BYTES_MAX),
        "socket.frame.timeout.ms": "1500",
        "message.max.bytes": str(MESSAGE_BYTES_MAX),
    }
    return new_module_cluster(brokers=2, overrides=overrides)


@pytest.fixture
def controller(cluster: LocalCluster) -> Iterator[int]:
    """The controller's id. After the test it must still serve, in the same process."""
    found = cluster.controller_id()
    pid = cluster.pid(found)
    yield found
    with Wire(cluster.port(found)) as wire:
        assert wire.call(ApiKey.API_VERSIONS, 3, CLIENT_SOFTWARE).error_code == 0
    assert cluster.pid(found) == pid


@pytest.fixture
def wire(cluster: LocalCluster, controller: int) -> Iterator[Wire]:
    with Wire(cluster.port(controller)) as connection:
        yield connection


@pytest.fixture
def topic(wire: Wire, controller: int) -> str:
    """Of one partition, which the controller leads."""
    return new_topic(wire, controller)


def new_topic(wire: Wire, leader: int, **config: str) -> str:
    name = f"bad-{uuid.uuid4().hex[:8]}"
    configs = [{"name": key.replace("_", "."), "value": value} for key, value in config.items()]
    assert create_topics(wire, {"name": name, "configs": configs} | assigned([leader])) == [0]
    return name


def create_topics(wire: Wire, *topics: dict[str, Any], validate_only: bool = False) -> list[int]:
    """The error codes, in order."""
    defaults = {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    body = {"topics": [defaults | topic for topic in topics], "timeout": 10000, "validate_only": validate_only}
    return [int(topic.error_code) for topic in wire.call(ApiKey.CREATE_TOPICS, 5, body).topics]


def assigned(*replicas: list[int]) -> dict[str, Any]:
    rows = [{"partition_index": number, "broker_ids": ids} for number, ids in enumerate(replicas)]
    return {"num_partitions": -1, "replication_factor": -1, "assignments": rows}


def metadata_error(wire: Wire, name: str, may_create: bool = False) -> int:
    body = {"topics": [{"name": name}], "allow_auto_topic_creation": may_create}
    return int(wire.call(ApiKey.METADATA, 9, body).topics[0].error_code)


# -- frames ---------------------------------------------------------------------------------------------------------------


def frame(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def header(api_key: int, version: int, correlation_id: int = 1) -> bytes:
    return struct.pack(">hhih", api_key, version, correlation_id, -1)


CLOSING = {
    "BAD-1 negative size": struct.pack(">i", -1),
    "BAD-2 one byte too many announced": struct.pack(">i", FRAME_BYTES_MAX + 1),
    "BAD-2 http": b"GET / HTTP/1.1\r\n\r\n",
    "BAD-3 size 0": struct.pack(">i", 0),
    "BAD-3 header cut short": frame(b"\x00\x12\x00"),
    "BAD-4 a body that never comes": struct.pack(">i", FRAME_BYTES_MAX) + b"only this",
    "BAD-4 a length that never ends": b"\x00\x00",
    "BAD-6 unknown api key": frame(header(999, 0)),
    "BAD-6 an api that is not served": frame(header(ApiKey.SASL_HANDSHAKE, 1)),
    "BAD-7 version too new": frame(header(ApiKey.METADATA, SUPPORTED[ApiKey.METADATA].max + 1) + b"\x00\x00"),
    "BAD-10 produce: records beyond the frame": frame(
        header(ApiKey.PRODUCE, 3) + struct.pack(">hhiih", -1, 1, 1000, 1, 1) + b"t" + struct.pack(">iii", 1, 0, 2**30)
    ),
    "BAD-11 metadata: 2^31-1 topics": frame(header(ApiKey.METADATA, 1) + struct.pack(">i", 2**31 - 1)),
    "BAD-11 fetch: a compact count of 2^32-2": frame(
        header(ApiKey.FETCH, 12) + b"\x00" + struct.pack(">iiiibii", -1, 0, 1, 1000, 0, 0, -1) + b"\xff\xff\xff\xff\x0f"
    ),
    "BAD-11 tagged fields without end": frame(header(ApiKey.METADATA, 9) + b"\xff\xff\xff\xff\x0f"),
    "BAD-29 LeaderAndIsr": frame(header(4, 3) + bytes(40)),
}


@pytest.mark.parametrize("data", CLOSING.values(), ids=CLOSING.keys())
def test_the_connection_is_closed(cluster: LocalCluster, controller: int, wire: Wire, data: bytes) -> None:
    """Only that connection is closed."""
    with Wire(cluster.port(controller)) as other:
        wire.send_raw(data)
        assert wire.is_closed_by_peer()
        assert other.call(ApiKey.API_VERSIONS, 3, CLIENT_SOFTWARE).error_code == 0


@pytest.mark.parametrize("api_key", [ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.DESCRIBE_CONFIGS])
def test_a_version_that_is_too_old_is_refused(
    cluster: LocalCluster, controller: int, wire: Wire, api_key: ApiKey
) -> None:
    """KIP-896. The log says who asked, which versions the client must use, and where to read more."""
    oldest, newest = SERVED[ApiLevel.KAFKA_4][api_key]
    version = oldest - 1
    wire.send_raw(frame(struct.pack(">hhih", api_key, version, 1, 4) + b"mine" + bytes(40)))
    assert wire.is_closed_by_peer()
    reason = f", client id 'mine': supported versions are v{oldest} to v{newest}; docs/CLIENTS.md"
    log = cluster.broker_directory(controller) / "server.log"

    def is_logged() -> bool:
        lines = log.read_text(encoding="utf-8").splitlines()
        return any(f"{api_key.name} v{version} of" in line and reason in line for line in lines)

    eventually(is_logged, "the reason is in the log")


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("acks", [1, -1])
def test_a_produce_of_an_old_version_is_answered_with_an_error(
    broker_at_level_3_9: LocalCluster, version: int, acks: int
) -> None:
    """kio does not have these versions: the bytes are Kafka's."""
    records = old_messages.messages(min(version, 1))
    (broker,) = broker_at_level_3_9.broker_ids
    with Wire(broker_at_level_3_9.port(broker)) as wire:
        name = new_topic(wire, broker).encode()
        body = struct.pack(">hiih", acks, 1000, 1, len(name)) + name + struct.pack(">iii", 1, 0, len(records)) + records
        wire.send_raw(frame(header(ApiKey.PRODUCE, version, 7) + body))
        answer = wire.receive_frame()
    row = struct.pack(">ihq", 0, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, -1)
    row += struct.pack(">q", -1) if version >= 2 else b""
    expected = struct.pack(">iih", 7, 1, len(name)) + name + struct.pack(">i", 1) + row
    assert answer == expected + (struct.pack(">i", 0) if version >= 1 else b"")


def test_a_produce_of_an_old_version_without_an_answer_ends_the_connection(wire: Wire, topic: str) -> None:
    name = topic.encode()
    body = struct.pack(">hiih", 0, 1000, 1, len(name)) + name + struct.pack(">iii", 1, 0, 0)
    wire.send_raw(frame(header(ApiKey.PRODUCE, 2) + body))
    assert wire.is_closed_by_peer()


def test_answers_come_in_order(wire: Wire, topic: str) -> None:
    """BAD-5: of far more requests than the broker holds at once, behind a fetch that waits for records."""
    first = wire.send(ApiKey.FETCH, 11, fetch_body(topic, max_wait_ms=700, bytes_max=1000))
    numbers = range(first + 1, first + 3000)
    wire.send_raw(b"".join(frame(header(ApiKey.API_VERSIONS, 0, number)) for number in numbers))
    answered = [struct.unpack_from(">i", wire.receive_frame())[0] for _ in (first, *numbers)]
    assert answered == [first, *numbers]


def test_an_unknown_version_of_api_versions_gets_a_v0_answer(wire: Wire) -> None:
    """BAD-8"""
    wire.send_raw(frame(header(ApiKey.API_VERSIONS, 99, 77) + b"\x00"))
    correlation_id, answer = messages.decode_response(ApiKey.API_VERSIONS, 0, wire.receive_frame())
    assert (correlation_id, int(answer.error_code)) == (77, ErrorCode.UNSUPPORTED_VERSION)
    assert [(row.api_key, row.max_version) for row in answer.api_keys] == [
        (ApiKey.API_VERSIONS, SUPPORTED[ApiKey.API_VERSIONS].max)
    ]


@pytest.mark.parametrize("name", ["", "-x", "a b", "ä", "x-"])
def test_an_illegal_client_name_is_refused(wire: Wire, name: str) -> None:
    """BAD-9"""
    answer = wire.call(ApiKey.API_VERSIONS, 3, {"client_software_name": name, "client_software_version": "1"})
    assert int(answer.error_code) == ErrorCode.INVALID_REQUEST


# -- batches --------------------------------------------------------------------------------------------------------------


def changed(layout: str, at: int, value: int, batch: bytes = BATCH) -> bytes:
    """The batch with another header field, or byte of its records, and a CRC that fits."""
    data = bytearray(batch)
    struct.pack_into(layout, data, at, value)
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    return bytes(data)


PACKED = build_batch([(None, b"value" * 100, [], 1)], compression=3)
BOMB = build_batch([(None, bytes(70 * 1024 * 1024), [], 1)], compression=4)
BAD_BATCHES = {
    "BAD-12 -1 record headers": (changed(">b", len(BATCH) - 1, 1), ErrorCode.INVALID_RECORD),
    "BAD-14 format v1, gzip": (
        old_messages.message(1, 2, compress(old_messages.messages(1), 1), attributes=1),
        ErrorCode.INVALID_RECORD,
    ),
    "BAD-16 wrong CRC": (BATCH[:-1] + bytes([BATCH[-1] ^ 1]), ErrorCode.CORRUPT_MESSAGE),
    "BAD-20 too large": (build_batch([(None, bytes(MESSAGE_BYTES_MAX), [], 1)]), ErrorCode.MESSAGE_TOO_LARGE),
    "BAD-21 cannot be unpacked": (changed(">i", 61, 0, PACKED), ErrorCode.CORRUPT_MESSAGE),
    "BAD-22 unpacks to too much": (BOMB, ErrorCode.MESSAGE_TOO_LARGE),
}


def test_bad_batches_append_nothing(wire: Wire, topic: str) -> None:
    answers = {name: int(produce_batch(wire, topic, batch).error_code) for name, (batch, _) in BAD_BATCHES.items()}
    assert answers == {name: int(error) for name, (_, error) in BAD_BATCHES.items()}
    for acks in (-2, 2, 32767):
        refused = produce_batch(wire, topic, BATCH, acks)
        assert int(refused.error_code) == ErrorCode.INVALID_REQUIRED_ACKS, f"BAD-24: acks={acks}"
    zstd = build_batch([(None, b"value", [], 1)], compression=4)
    refused = produce_batch(wire, topic, zstd, version=6)
    assert int(refused.error_code) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "BAD-23: zstd needs a newer Produce"
    assert end_offset(wire, topic) == 0
    assert int(produce_batch(wire, topic, zstd).error_code) == 0
    assert end_offset(wire, topic) == 1


@pytest.mark.parametrize("internal", ["__consumer_offsets", "__transaction_state"])
def test_clients_do_not_write_to_internal_topics(wire: Wire, internal: str) -> None:
    """BAD-25"""
    assert int(produce_batch(wire, internal, BATCH).error_code) == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_the_answer_names_the_records_for_which_a_batch_is_refused(wire: Wire, controller: int) -> None:
    topic = new_topic(wire, controller, cleanup_policy="compact")
    refused = produce_batch(wire, topic, build_batch([(b"k", b"v", [], 1), (None, b"v", [], 1)]))
    assert int(refused.error_code) == ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in refused.record_errors] == [1]
    assert "without a key" in refused.error_message


def test_an_error_under_acks_0_closes(wire: Wire) -> None:
    """BAD-24: the broker has no other way to report the error."""
    wire.send(ApiKey.PRODUCE, 9, produce_body("no-such-topic", BATCH, 0))
    assert wire.is_closed_by_peer()


# -- topics ---------------------------------------------------------------------------------------------------------------


def test_illegal_topic_names_are_refused(wire: Wire) -> None:
    """BAD-26, at CreateTopics and at Metadata's auto-creation. `.` and `_` are the same in the names of metrics."""
    for name in ("", "..", "a/b", "a\0b", "x" * 250, "naïve"):
        assert create_topics(wire, {"name": name}) == [ErrorCode.INVALID_TOPIC_EXCEPTION], name
        assert metadata_error(wire, name, may_create=True) == ErrorCode.INVALID_TOPIC_EXCEPTION, name
    base = uuid.uuid4().hex[:8]
    assert create_topics(wire, {"name": f"{base}.one"}) == [0]
    assert create_topics(wire, {"name": f"{base}_one"}) == [ErrorCode.INVALID_TOPIC_EXCEPTION]
    assert create_topics(wire, {"name": f"{base}.one"}) == [ErrorCode.TOPIC_ALREADY_EXISTS]


def test_bad_topics_are_refused(wire: Wire) -> None:
    """BAD-27, also with validate_only. The other topics of the request are created."""
    name = f"refused-{uuid.uuid4().hex[:8]}"
    for validate_only in (True, False):
        codes = create_topics(wire, {"name": name} | assigned([1, 99]), validate_only=validate_only)
        assert codes == [ErrorCode.INVALID_REPLICA_ASSIGNMENT]
    assert metadata_error(wire, name) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    other = {"name": f"{name}-other"}
    assert create_topics(wire, other, validate_only=True) == [0]
    codes = create_topics(wire, {"name": name}, other, {"name": name})
    assert codes == [ErrorCode.INVALID_REQUEST, 0, ErrorCode.INVALID_REQUEST]
    assert create_topics(wire, other, validate_only=True) == [ErrorCode.TOPIC_ALREADY_EXISTS]


def test_only_the_controller_creates_topics(cluster: LocalCluster, controller: int) -> None:
    (other,) = set(cluster.broker_ids) - {controller}
    with Wire(cluster.port(other)) as wire:
        assert create_topics(wire, {"name": f"topic-{uuid.uuid4().hex[:8]}"}) == [ErrorCode.NOT_CONTROLLER]


def test_an_unknown_topic_is_created_when_metadata_requests_it(wire: Wire) -> None:
    name = f"auto-{uuid.uuid4().hex[:8]}"
    assert metadata_error(wire, name) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert metadata_error(wire, name, may_create=True) in (ErrorCode.LEADER_NOT_AVAILABLE, 0)
    eventually(lambda: metadata_error(wire, name) == 0, f"topic {name}")
