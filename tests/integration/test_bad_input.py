"""Hostile and broken input against one running broker (BAD-1..8, 10, 11, 16, 24, 26, 27, 29): the right answer, and it lives on.

After every case the same broker must still serve a well-behaved client.
"""

from __future__ import annotations

import os
import struct
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import SUPPORTED, ApiKey
from protocol.kafka.record_batch import build_batch, crc32c
from tests.conftest import ClusterFactory
from tests.support.invariants import eventually
from tests.support.wire import Wire
from tools.cluster.local_cluster import LocalCluster

pytestmark = pytest.mark.integration

FRAME_BYTES_MAX = 1_000_000
FRAME_TIMEOUT_MS = 1500
MESSAGE_BYTES_MAX = 100_000
BROKERS = 2

LEADER_AND_ISR, STOP_REPLICA, UPDATE_METADATA, CONTROLLED_SHUTDOWN = 4, 5, 6, 7


@pytest.fixture(scope="module")
def cluster(new_module_cluster: ClusterFactory) -> LocalCluster:
    overrides = {
        "socket.request.max.bytes": str(FRAME_BYTES_MAX),
        "socket.frame.timeout.ms": str(FRAME_TIMEOUT_MS),
        "message.max.bytes": str(MESSAGE_BYTES_MAX),
    }
    return new_module_cluster(brokers=BROKERS, overrides=overrides)


@pytest.fixture
def controller_port(cluster: LocalCluster) -> Iterator[int]:
    """Where the controller serves clients. After the test it must still do so, in the same process."""
    with Wire(cluster.port(cluster.broker_ids[0])) as wire:
        answer = wire.call(ApiKey.METADATA, 9, {"topics": [], "allow_auto_topic_creation": False})
    controller = answer.controller_id
    pid = cluster.pid(controller)
    yield cluster.port(controller)
    with Wire(cluster.port(controller)) as wire:
        assert wire.call(ApiKey.API_VERSIONS, 3, CLIENT_SOFTWARE).error_code == 0
    assert cluster.pid(controller) == pid


@pytest.fixture
def wire(controller_port: int) -> Iterator[Wire]:
    with Wire(controller_port) as connection:
        yield connection


CLIENT_SOFTWARE = {"client_software_name": "test", "client_software_version": "1"}


def frame(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def header(api_key: int, version: int, correlation_id: int = 1) -> bytes:
    return struct.pack(">hhih", api_key, version, correlation_id, -1)


def create_topics(wire: Wire, topics: list[dict[str, Any]], **options: Any) -> list[int]:
    """The error codes, in order."""
    rows = [
        {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []} | topic for topic in topics
    ]
    body = {"topics": rows, "timeout": 10000, "validate_only": False} | options
    return [int(topic.error_code) for topic in wire.call(ApiKey.CREATE_TOPICS, 5, body).topics]


def led_topic(wire: Wire, port: int, cluster: LocalCluster, configs: Mapping[str, str] = MappingProxyType({})) -> str:
    """A new topic of one partition that the broker at `port` leads."""
    name = f"bad-{uuid.uuid4().hex[:8]}"
    broker = next(b for b in cluster.broker_ids if cluster.port(b) == port)
    assignment = {"num_partitions": -1, "replication_factor": -1}
    assignment |= {"assignments": [{"partition_index": 0, "broker_ids": [broker]}]}
    rows = [{"name": key, "value": value} for key, value in configs.items()]
    assert create_topics(wire, [{"name": name, "configs": rows} | assignment]) == [0]
    return name


def produce(wire: Wire, topic: str, records: bytes | None, acks: int = 1) -> Any:
    answer = wire.call(ApiKey.PRODUCE, 9, produce_body(topic, records, acks))
    return answer.responses[0].partition_responses[0]


def produce_body(topic: str, records: bytes | None, acks: int) -> dict[str, Any]:
    data = [{"name": topic, "partition_data": [{"index": 0, "records": records}]}]
    return {"transactional_id": None, "acks": acks, "timeout": 5000, "topic_data": data}


def end_offset(wire: Wire, topic: str) -> int:
    asked = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    body = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": topic, "partitions": [asked]}]}
    return int(wire.call(ApiKey.LIST_OFFSETS, 5, body).topics[0].partitions[0].offset)


CLOSING = {
    "BAD-1 negative size": struct.pack(">i", -1),
    "BAD-1 smallest size": struct.pack(">i", -(2**31)),
    "BAD-2 one byte too many announced": struct.pack(">i", FRAME_BYTES_MAX + 1),
    "BAD-2 two gigabytes announced": struct.pack(">i", 2**31 - 1),
    "BAD-2 http": b"GET / HTTP/1.1\r\n\r\n",
    "BAD-3 size 0": struct.pack(">i", 0),
    "BAD-3 header cut short": frame(b"\x00\x12\x00"),
    "BAD-3 client id beyond the frame": frame(struct.pack(">hhih", ApiKey.API_VERSIONS, 0, 1, 1000)),
    "BAD-3 client id of -2 bytes": frame(struct.pack(">hhih", ApiKey.API_VERSIONS, 0, 1, -2)),
    "BAD-3 client id that is no text": frame(struct.pack(">hhih", ApiKey.API_VERSIONS, 0, 1, 2) + b"\xff\xfe"),
    "BAD-6 unknown api key": frame(header(999, 0)),
    "BAD-6 negative api key": frame(header(-1, 0)),
    "BAD-6 an api that is not served": frame(header(ApiKey.SASL_HANDSHAKE, 1)),
    "BAD-7 version too new": frame(header(ApiKey.METADATA, SUPPORTED[ApiKey.METADATA].max + 1) + b"\x00\x00"),
    "BAD-7 version too old": frame(header(ApiKey.PRODUCE, SUPPORTED[ApiKey.PRODUCE].min - 1)),
    "BAD-7 negative version": frame(header(ApiKey.FETCH, -1)),
    "BAD-10 metadata: a name beyond the frame": frame(header(ApiKey.METADATA, 1) + struct.pack(">ih", 1, 30000) + b"x"),
    "BAD-10 produce: records beyond the frame": frame(
        header(ApiKey.PRODUCE, 3) + struct.pack(">hhiih", -1, 1, 1000, 1, 1) + b"t" + struct.pack(">iii", 1, 0, 2**30)
    ),
    "BAD-11 metadata: 2^31-1 topics": frame(header(ApiKey.METADATA, 1) + struct.pack(">i", 2**31 - 1)),
    "BAD-11 produce: 2^31-1 topics": frame(header(ApiKey.PRODUCE, 3) + struct.pack(">hhii", -1, 1, 1000, 2**31 - 1)),
    "BAD-11 fetch: 2^31-1 topics": frame(
        header(ApiKey.FETCH, 4) + struct.pack(">iiiibi", -1, 0, 1, 1000, 0, 2**31 - 1)
    ),
    "BAD-11 fetch: a compact count of 2^32-2": frame(
        header(ApiKey.FETCH, 12) + b"\x00" + struct.pack(">iiiibii", -1, 0, 1, 1000, 0, 0, -1) + b"\xff\xff\xff\xff\x0f"
    ),
    "BAD-11 tagged fields without end": frame(header(ApiKey.METADATA, 9) + b"\xff\xff\xff\xff\x0f"),
    **{
        f"BAD-29 control request {key}": frame(header(key, 3) + bytes(40))
        for key in (LEADER_AND_ISR, STOP_REPLICA, UPDATE_METADATA, CONTROLLED_SHUTDOWN)
    },
}


@pytest.mark.parametrize("data", CLOSING.values(), ids=CLOSING.keys())
def test_the_connection_is_closed(wire: Wire, controller_port: int, data: bytes) -> None:
    with Wire(controller_port) as other:
        wire.send_raw(data)
        assert wire.is_closed_by_peer()
        # That connection only.
        assert other.call(ApiKey.API_VERSIONS, 3, CLIENT_SOFTWARE).error_code == 0


def test_random_frames_close_or_answer(controller_port: int) -> None:
    """Whatever follows a header, the broker answers or closes that connection; it never hangs."""
    keys = [key for key in SUPPORTED if key is not ApiKey.FETCH]
    for number in range(60):
        key = keys[number % len(keys)]
        version = SUPPORTED[key].min + number % (SUPPORTED[key].max - SUPPORTED[key].min + 1)
        with Wire(controller_port) as wire:
            wire.send_raw(frame(header(key, version) + os.urandom(number)))
            try:
                wire.receive_frame()
            except ConnectionError:
                continue


class TestSlowFrames:
    """BAD-4"""

    def test_a_body_that_never_comes_is_given_up(self, wire: Wire) -> None:
        wire.send_raw(struct.pack(">i", FRAME_BYTES_MAX) + b"only this")
        assert wire.is_closed_by_peer()

    def test_a_length_that_never_ends_is_given_up(self, wire: Wire) -> None:
        wire.send_raw(b"\x00\x00")
        assert wire.is_closed_by_peer()

    def test_a_frame_in_pieces_is_served(self, wire: Wire) -> None:
        payload = messages.encode_request(ApiKey.API_VERSIONS, 3, 5, "slow", CLIENT_SOFTWARE)
        for byte in frame(payload):
            wire.send_raw(bytes([byte]))
        assert messages.decode_response(ApiKey.API_VERSIONS, 3, wire.receive_frame())[0] == 5

    def test_memory_grows_with_what_arrived(self, cluster: LocalCluster, controller_port: int) -> None:
        broker = next(b for b in cluster.broker_ids if cluster.port(b) == controller_port)
        pid = cluster.pid(broker)
        assert pid is not None
        before = resident_bytes(pid)
        connections = [Wire(controller_port) for _ in range(150)]
        try:
            for connection in connections:
                connection.send_raw(struct.pack(">i", FRAME_BYTES_MAX) + bytes(100))
            with Wire(controller_port) as wire:
                assert wire.call(ApiKey.API_VERSIONS, 3, CLIENT_SOFTWARE).error_code == 0
            grown = resident_bytes(pid) - before
        finally:
            for connection in connections:
                connection.socket.close()
        assert grown < 40_000_000  # 150 MB were announced


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_pipelined_requests_are_answered_in_order(wire: Wire) -> None:
    """BAD-5, far more than are held at once."""
    count = 3000
    request = header(ApiKey.API_VERSIONS, 0)
    wire.send_raw(b"".join(frame(request[:4] + struct.pack(">i", n) + request[8:]) for n in range(count)))
    answers = [struct.unpack_from(">i", wire.receive_frame())[0] for _ in range(count)]
    assert answers == list(range(count))


def test_a_parked_fetch_does_not_let_later_answers_overtake(
    wire: Wire, controller_port: int, cluster: LocalCluster
) -> None:
    topic = led_topic(wire, controller_port, cluster)
    partition = {"partition": 0, "current_leader_epoch": -1, "fetch_offset": 0, "log_start_offset": -1}
    partition |= {"partition_max_bytes": 1000}
    fetch = {"replica_id": -1, "max_wait": 700, "min_bytes": 1, "max_bytes": 1000, "isolation_level": 0}
    fetch |= {"session_id": 0, "session_epoch": -1, "forgotten_topics_data": [], "rack_id": ""}
    fetch |= {"topics": [{"topic": topic, "partitions": [partition]}]}
    first = wire.send(ApiKey.FETCH, 11, fetch)
    second = wire.send(ApiKey.API_VERSIONS, 0, {})
    order = [struct.unpack_from(">i", wire.receive_frame())[0] for _ in range(2)]
    assert order == [first, second]


def test_an_unknown_version_of_api_versions_gets_a_v0_answer(wire: Wire) -> None:
    """BAD-8"""
    wire.send_raw(frame(header(ApiKey.API_VERSIONS, 99, 77) + b"\x00"))
    correlation_id, answer = messages.decode_response(ApiKey.API_VERSIONS, 0, wire.receive_frame())
    assert correlation_id == 77
    assert int(answer.error_code) == ErrorCode.UNSUPPORTED_VERSION
    assert [(row.api_key, row.max_version) for row in answer.api_keys] == [
        (ApiKey.API_VERSIONS, SUPPORTED[ApiKey.API_VERSIONS].max)
    ]


@pytest.mark.parametrize("name", ["", "-x", "a b", "ä", "x-"])
def test_a_bad_client_name(wire: Wire, name: str) -> None:
    """BAD-9"""
    answer = wire.call(ApiKey.API_VERSIONS, 3, {"client_software_name": name, "client_software_version": "1"})
    assert int(answer.error_code) == ErrorCode.INVALID_REQUEST


def test_a_wrong_crc_appends_nothing(wire: Wire, controller_port: int, cluster: LocalCluster) -> None:
    """BAD-16"""
    topic = led_topic(wire, controller_port, cluster)
    batch = bytearray(build_batch([(b"key", b"value", [], 1)]))
    assert int(produce(wire, topic, bytes(batch)).error_code) == 0
    batch[-1] ^= 1
    assert int(produce(wire, topic, bytes(batch)).error_code) == ErrorCode.CORRUPT_MESSAGE
    assert end_offset(wire, topic) == 1


def test_bad_batches_append_nothing(wire: Wire, controller_port: int, cluster: LocalCluster) -> None:
    """BAD-13..15, 20"""
    topic = led_topic(wire, controller_port, cluster)
    batch = build_batch([(None, b"value", [], 1)])
    large = build_batch([(None, bytes(MESSAGE_BYTES_MAX), [], 1)])
    cases = {
        b"": ErrorCode.INVALID_RECORD,
        batch[:-1]: ErrorCode.INVALID_RECORD,
        batch + batch: ErrorCode.INVALID_RECORD,
        batch[:16] + b"\x05" + batch[17:]: ErrorCode.CORRUPT_MESSAGE,
        large: ErrorCode.MESSAGE_TOO_LARGE,
    }
    assert {data: int(produce(wire, topic, data).error_code) for data in cases} == cases
    assert end_offset(wire, topic) == 0


def changed(batch: bytes, layout: str, at: int, value: int) -> bytes:
    """The batch with another header field, or byte of its records, and a CRC that fits."""
    data = bytearray(batch)
    struct.pack_into(layout, data, at, value)
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    return bytes(data)


def test_batches_whose_crc_is_right_but_nothing_else(wire: Wire, controller_port: int, cluster: LocalCluster) -> None:
    """BAD-12, 17, 18, 19, 21, 22: nothing is appended."""
    topic = led_topic(wire, controller_port, cluster)
    batch = build_batch([(b"k", b"value", [], 1)])
    compressed = build_batch([(None, b"value" * 100, [], 1)], compression=3)
    bomb = build_batch([(None, bytes(70 * 1024 * 1024), [], 1)], compression=4)
    cases = {
        changed(batch, ">b", len(batch) - 1, 1): ErrorCode.INVALID_RECORD,  # -1 record headers
        changed(batch, ">b", len(batch) - 1, 0x7E): ErrorCode.INVALID_RECORD,
        changed(batch, ">q", 0, 5): ErrorCode.INVALID_RECORD,
        changed(batch, ">i", 57, 2): ErrorCode.INVALID_RECORD,
        changed(batch, ">i", 57, 0): ErrorCode.INVALID_RECORD,
        changed(batch, ">h", 21, 0x20): ErrorCode.INVALID_RECORD,
        changed(batch, ">q", 43, 7): ErrorCode.INVALID_RECORD,
        changed(compressed, ">i", 61, 0): ErrorCode.CORRUPT_MESSAGE,
        bomb: ErrorCode.MESSAGE_TOO_LARGE,
    }
    assert {data: int(produce(wire, topic, data).error_code) for data in cases} == cases
    assert end_offset(wire, topic) == 0


def test_zstd_needs_a_newer_produce(wire: Wire, controller_port: int, cluster: LocalCluster) -> None:
    """BAD-23"""
    topic = led_topic(wire, controller_port, cluster)
    batch = build_batch([(None, b"value", [], 1)], compression=4)
    answer = wire.call(ApiKey.PRODUCE, 6, produce_body(topic, batch, 1))
    assert int(answer.responses[0].partition_responses[0].error_code) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert int(produce(wire, topic, batch).error_code) == 0
    assert end_offset(wire, topic) == 1


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state"])
def test_clients_do_not_write_to_internal_topics(wire: Wire, topic: str) -> None:
    """BAD-25"""
    answer = produce(wire, topic, build_batch([(b"k", b"value", [], 1)]))
    assert int(answer.error_code) == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_the_records_that_a_batch_is_refused_for_are_named(
    wire: Wire, controller_port: int, cluster: LocalCluster
) -> None:
    topic = led_topic(wire, controller_port, cluster, {"cleanup.policy": "compact"})
    refused = produce(wire, topic, build_batch([(b"k", b"v", [], 1), (None, b"v", [], 1)]))
    assert int(refused.error_code) == ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in refused.record_errors] == [1]
    assert "without a key" in refused.error_message


@pytest.mark.parametrize("acks", [-2, 2, 32767])
def test_bad_acks(wire: Wire, controller_port: int, cluster: LocalCluster, acks: int) -> None:
    """BAD-24"""
    topic = led_topic(wire, controller_port, cluster)
    answer = produce(wire, topic, build_batch([(None, b"value", [], 1)]), acks)
    assert int(answer.error_code) == ErrorCode.INVALID_REQUIRED_ACKS
    assert end_offset(wire, topic) == 0


def test_an_error_under_acks_0_closes(wire: Wire) -> None:
    """BAD-24: there is no other way to tell."""
    wire.send(ApiKey.PRODUCE, 9, produce_body("no-such-topic", build_batch([(None, b"value", [], 1)]), 0))
    assert wire.is_closed_by_peer()


BAD_NAMES = ["", ".", "..", "a/b", "a\0b", "x" * 250, "naïve", "a b"]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_topic_names(wire: Wire, name: str) -> None:
    """BAD-26, at CreateTopics and at Metadata's auto-creation"""
    assert create_topics(wire, [{"name": name}]) == [ErrorCode.INVALID_TOPIC_EXCEPTION]
    answer = wire.call(ApiKey.METADATA, 9, {"topics": [{"name": name}], "allow_auto_topic_creation": True})
    assert int(answer.topics[0].error_code) == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_names_that_collide(wire: Wire) -> None:
    """BAD-26: '.' and '_' are the same in metric names"""
    base = uuid.uuid4().hex[:8]
    assert create_topics(wire, [{"name": f"{base}.one"}]) == [0]
    assert create_topics(wire, [{"name": f"{base}_one"}]) == [ErrorCode.INVALID_TOPIC_EXCEPTION]
    assert create_topics(wire, [{"name": f"{base}.one"}]) == [ErrorCode.TOPIC_ALREADY_EXISTS]


def assigned(*replicas: list[int], first: int = 0) -> dict[str, Any]:
    rows = [{"partition_index": first + n, "broker_ids": ids} for n, ids in enumerate(replicas)]
    return {"num_partitions": -1, "replication_factor": -1, "assignments": rows}


BAD_TOPICS = {
    "0 partitions": ({"num_partitions": 0}, ErrorCode.INVALID_PARTITIONS),
    "-2 partitions": ({"num_partitions": -2}, ErrorCode.INVALID_PARTITIONS),
    "replication factor 0": ({"replication_factor": 0}, ErrorCode.INVALID_REPLICATION_FACTOR),
    "replication factor above the brokers": ({"replication_factor": 3}, ErrorCode.INVALID_REPLICATION_FACTOR),
    "a replica twice": (assigned([1, 1]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    "an unknown broker": (assigned([1, 99]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    "no replicas": (assigned([]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    "uneven replicas": (assigned([1, 2], [1]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    "partitions that do not begin at 0": (assigned([1], first=1), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    "an assignment and a count": (assigned([1]) | {"num_partitions": 1}, ErrorCode.INVALID_REQUEST),
    "an unknown setting": ({"configs": [{"name": "no.such", "value": "1"}]}, ErrorCode.INVALID_CONFIG),
    "a bad value": ({"configs": [{"name": "retention.ms", "value": "soon"}]}, ErrorCode.INVALID_CONFIG),
    "a setting without value": ({"configs": [{"name": "retention.ms", "value": None}]}, ErrorCode.INVALID_CONFIG),
}


@pytest.mark.parametrize("validate_only", [False, True])
@pytest.mark.parametrize(("topic", "error"), BAD_TOPICS.values(), ids=BAD_TOPICS.keys())
def test_bad_topics_are_refused(wire: Wire, topic: dict[str, Any], error: ErrorCode, validate_only: bool) -> None:
    """BAD-27"""
    name = f"refused-{uuid.uuid4().hex[:8]}"
    assert create_topics(wire, [{"name": name} | topic], validate_only=validate_only) == [error]
    answer = wire.call(ApiKey.METADATA, 9, {"topics": [{"name": name}], "allow_auto_topic_creation": False})
    assert int(answer.topics[0].error_code) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_twice_in_one_request(wire: Wire) -> None:
    """BAD-27: the others of the request go on"""
    twice, once = f"twice-{uuid.uuid4().hex[:8]}", f"once-{uuid.uuid4().hex[:8]}"
    codes = create_topics(wire, [{"name": twice}, {"name": once}, {"name": twice}])
    assert codes == [ErrorCode.INVALID_REQUEST, 0, ErrorCode.INVALID_REQUEST]


def test_only_the_controller_creates_topics(cluster: LocalCluster, controller_port: int) -> None:
    other = next(cluster.port(b) for b in cluster.broker_ids if cluster.port(b) != controller_port)
    with Wire(other) as wire:
        assert create_topics(wire, [{"name": f"topic-{uuid.uuid4().hex[:8]}"}]) == [ErrorCode.NOT_CONTROLLER]


def test_validate_only_makes_nothing(wire: Wire) -> None:
    name = f"validated-{uuid.uuid4().hex[:8]}"
    assert create_topics(wire, [{"name": name}], validate_only=True) == [0]
    assert create_topics(wire, [{"name": name}]) == [0]
    assert create_topics(wire, [{"name": name}], validate_only=True) == [ErrorCode.TOPIC_ALREADY_EXISTS]


def test_an_unknown_topic_is_made_when_it_is_asked_for(wire: Wire) -> None:
    name = f"auto-{uuid.uuid4().hex[:8]}"

    def ask(allowed: bool) -> int:
        answer = wire.call(ApiKey.METADATA, 9, {"topics": [{"name": name}], "allow_auto_topic_creation": allowed})
        return int(answer.topics[0].error_code)

    assert ask(False) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert ask(True) in (ErrorCode.LEADER_NOT_AVAILABLE, 0)
    eventually(lambda: ask(False) == 0, f"topic {name}")


def test_a_control_listener_closes_on_rubbish(cluster: LocalCluster, controller_port: int) -> None:
    broker = next(b for b in cluster.broker_ids if cluster.port(b) == controller_port)
    properties = (cluster.directory / f"broker-{broker}" / "server.properties").read_text()
    port = int(properties.partition("CONTROLLER://127.0.0.1:")[2].split("\n")[0].split(",")[0])
    for data in (b"GET / HTTP/1.1\r\n\r\n", struct.pack(">i", -5), frame(header(3, 1)), frame(struct.pack(">i", 1))):
        with Wire(port) as wire:
            wire.send_raw(data)
            assert wire.is_closed_by_peer()
