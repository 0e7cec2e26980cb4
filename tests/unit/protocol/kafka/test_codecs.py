"""The hand-written codecs compared with kio: every version, any values, and broken frames (BAD-10, 11)."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
import uuid
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import pytest

from protocol.kafka import (
    consumer_heartbeat_codec,
    describe_configs_codec,
    fetch_codec,
    group_lists_codec,
    heartbeat_codec,
    id_partitions,
    list_offsets_codec,
    log_dirs_codec,
    messages,
    metadata_codec,
    offset_commit_codec,
    offset_fetch_codec,
    produce_codec,
)
from protocol.kafka.api_keys import SUPPORTED, ApiKey
from protocol.kafka.fetch_codec import FetchPartitionData
from protocol.kafka.framing import MalformedRequest, parse_request_header
from protocol.kafka.list_offsets_codec import ListOffsetsPartitionResult
from protocol.kafka.metadata_codec import MetadataBroker, MetadataPartition, MetadataTopic
from protocol.kafka.offset_fetch_codec import Position
from protocol.kafka.produce_codec import NodeEndpoint, ProducePartitionResult
from protocol.kafka.wire import NO_UUID, TopicKey, array_length, string
from tests.fuzz.decoders.requests import CODECS, FIRST_BY_HAND, finished
from tests.support import kio_oracle
from tests.support.kafka_values import (
    Special,
    Values,
    blobs,
    bodies,
    dice,
    dictionaries,
    durations_ms,
    just,
    names,
    numbers,
    one_of,
)
from tests.support.mutations import mutate

Body = dict[str, Any]


def tagged(*keys: str) -> Values:
    """A tagged field, or its default, which is not sent."""
    return one_of(just(dict.fromkeys(keys, -1)), dictionaries(dict.fromkeys(keys, numbers(0, 5))))


SENT_SO = (
    ("current_leader", tagged("leader_id", "leader_epoch")),
    ("diverging_epoch", tagged("epoch", "end_offset")),
    ("is_sensitive", just(False)),
    ("snapshot_id", just({"end_offset": -1, "epoch": -1})),
    ("records", blobs),
    ("metadata", names),
)
"""Fields of responses to which our codecs always give these values."""


def versions(api_key: ApiKey, first: int = 0) -> range:
    return range(max(SUPPORTED[api_key].min, first, FIRST_BY_HAND.get(api_key, 0)), SUPPORTED[api_key].max + 1)


def response_body(api_key: ApiKey, version: int, random: Random) -> Body:
    """Has the fields of all versions: a codec leaves out those of other versions."""
    load = messages.response_schema
    body: Body = bodies(tuple(load(api_key, each) for each in (version, *versions(api_key))), SENT_SO)(random)
    if api_key is ApiKey.PRODUCE:
        for row in (row for topic in body["responses"] for row in topic["partition_responses"]):
            if row["error_message"] is None:
                row["record_errors"] = []
    if api_key is ApiKey.METADATA:
        body["error_code"] = 0
    if api_key is ApiKey.DESCRIBE_LOG_DIRS:
        for row in body["results"]:
            row["topics"] = list({topic["name"]: topic for topic in row["topics"]}.values())
    if api_key is ApiKey.CONSUMER_GROUP_HEARTBEAT and body["assignment"] is not None:
        rows = body["assignment"]["topic_partitions"]
        body["assignment"]["topic_partitions"] = list({row["topic_id"]: row for row in rows}.values())
    return body


def values(body: Body, keys: str) -> list[Any]:
    return [body[key] for key in keys.split()]


def dicts(rows: Iterable[Iterable[Any]], keys: str) -> list[Body]:
    return [dict(zip(keys.split(), row, strict=True)) for row in rows]


# -- Responses: kio's body, as each codec takes it ---------------------------------------------------------------------


def produce(version: int, body: Body) -> bytes:
    def result(row: Body) -> ProducePartitionResult:
        head = values(row, "index error_code base_offset log_append_time log_start_offset error_message")
        errors = [tuple(values(error, "batch_index batch_index_error_message")) for error in row["record_errors"]]
        return ProducePartitionResult(*head, *values(row["current_leader"], "leader_id leader_epoch"), errors)

    def key(topic: Body) -> TopicKey:
        return topic["topic_id"] or NO_UUID if version >= produce_codec.TOPIC_IDS_SINCE else topic["name"]

    topics = [(key(topic), [result(row) for row in topic["partition_responses"]]) for topic in body["responses"]]
    arguments = version, topics, body["throttle_time"], endpoints(body)
    assert finished(produce_codec.encoding_response(*arguments)) == produce_codec.encode_response(*arguments)
    return produce_codec.encode_response(*arguments)


def endpoints(body: Body) -> list[NodeEndpoint]:
    return [NodeEndpoint(**row) for row in body["node_endpoints"]]


def fetch_topics(version: int, body: Body) -> list[tuple[Any, list[FetchPartitionData]]]:
    def data(row: Body) -> FetchPartitionData:
        aborted = row["aborted_transactions"]
        middle = len(row["records"]) // 2
        return FetchPartitionData(
            *values(row, "partition_index error_code high_watermark last_stable_offset log_start_offset"),
            records=[row["records"][:middle], row["records"][middle:]],
            diverging_epoch=tag(row["diverging_epoch"], "epoch end_offset"),
            current_leader=tag(row["current_leader"], "leader_id leader_epoch"),
            preferred_read_replica=row["preferred_read_replica"],
            aborted_transactions=None
            if aborted is None
            else [(each["producer_id"], each["first_offset"]) for each in aborted],
        )

    key = "topic_id" if version >= 13 else "topic"
    return [(topic[key], [data(row) for row in topic["partitions"]]) for topic in body["responses"]]


def tag(body: Body, keys: str) -> tuple[int, int] | None:
    """kio leaves out a tagged field with its default."""
    first, second = values(body, keys)
    return None if (first, second) == (-1, -1) else (first, second)


def fetch(version: int, body: Body) -> bytes:
    head = values(body, "throttle_time error_code session_id")
    return b"".join(fetch_codec.encode_response(version, *head, fetch_topics(version, body), endpoints(body)))


def list_offsets(version: int, body: Body) -> bytes:
    def topic(name: TopicKey, partitions: list[Body]) -> bytes:
        keys = "partition_index error_code timestamp offset leader_epoch"
        results = [ListOffsetsPartitionResult(*values(row, keys)) for row in partitions]
        rows = [list_offsets_codec.encode_results(version, results)]
        return list_offsets_codec.encode_topic(version, name, len(results), rows)

    topics = [topic(row["name"], row["partitions"]) for row in body["topics"]]
    return list_offsets_codec.encode_response(version, topics, body["throttle_time"])


def metadata(version: int, body: Body) -> bytes:
    keys = "error_code partition_index leader_id leader_epoch replica_nodes isr_nodes offline_replicas"
    topics = [
        MetadataTopic(
            *values(topic, "error_code name topic_id is_internal"),
            [MetadataPartition(*values(row, keys)) for row in topic["partitions"]],
            topic["topic_authorized_operations"],
        )
        for topic in body["topics"]
    ]
    return metadata_codec.encode_response(
        version,
        [MetadataBroker(**row) for row in body["brokers"]],
        *values(body, "cluster_id controller_id"),
        topics,
        throttle_ms=body["throttle_time"],
        cluster_authorized_operations=body["cluster_authorized_operations"],
    )


def topic_key(version: int, topic: Body) -> TopicKey:
    """Of OffsetCommit and OffsetFetch."""
    if version < offset_commit_codec.TOPIC_ID_SINCE:
        return str(topic["name"])
    return topic["topic_id"] or NO_UUID


def offset_commit(version: int, body: Body) -> bytes:
    topics = [
        (topic_key(version, topic), [(row["partition_index"], row["error_code"]) for row in topic["partitions"]])
        for topic in body["topics"]
    ]
    return offset_commit_codec.encode_response(version, topics, body["throttle_time"])


def offset_fetch(version: int, body: Body) -> bytes:
    def topic(name: TopicKey, partitions: list[Body]) -> bytes:
        keys = "partition_index committed_offset committed_leader_epoch metadata error_code"
        positions = [Position(*values(row, keys)) for row in partitions]
        rows = [offset_fetch_codec.encode_positions(version, positions)]
        return offset_fetch_codec.encode_topic(version, name, len(positions), rows)

    groups = body["groups"] if version >= offset_fetch_codec.MANY_SINCE else [body | {"group_id": ""}]
    encoded = [
        offset_fetch_codec.encode_group(
            version,
            group["group_id"],
            group["error_code"],
            [topic(topic_key(version, t), t["partitions"]) for t in group["topics"]],
        )
        for group in groups
    ]
    return offset_fetch_codec.encode_response(version, encoded, body["throttle_time"])


def heartbeat(version: int, body: Body) -> bytes:
    return heartbeat_codec.encode_response(version, body["error_code"], body["throttle_time"])


def consumer_heartbeat(version: int, body: Body) -> bytes:
    rows = body["assignment"] and body["assignment"]["topic_partitions"]
    topics = {(row["topic_id"] or NO_UUID).bytes: row["partitions"] for row in rows or ()}
    return consumer_heartbeat_codec.encode_response(
        *values(body, "error_code error_message member_id member_epoch heartbeat_interval"),
        None if rows is None else id_partitions.encoded(topics),
        body["throttle_time"],
    )


def list_groups(version: int, body: Body) -> bytes:
    keys = "group_id protocol_type group_state group_type"
    rows = [group_lists_codec.encode_listed(version, *values(row, keys)) for row in body["groups"]]
    return group_lists_codec.encode_list_groups(version, body["error_code"], rows, body["throttle_time"])


def describe_groups(version: int, body: Body) -> bytes:
    keys = "member_id group_instance_id client_id client_host member_metadata member_assignment"

    def group(row: Body) -> bytes:
        texts = values(row, "group_id group_state protocol_type protocol_data")
        members = [group_lists_codec.encode_member(version, *values(member, keys)) for member in row["members"]]
        error, operations = values(row, "error_code authorized_operations")
        names: Any = tuple(texts)
        return group_lists_codec.encode_described(version, error, names, members, operations, row["error_message"])

    groups = [group(row) for row in body["groups"]]
    return group_lists_codec.encode_describe_groups(version, groups, body["throttle_time"])


def describe_configs(version: int, body: Body) -> bytes:
    def setting(row: Body) -> bytes:
        return describe_configs_codec.encode_setting(
            version,
            *values(row, "name value"),
            is_read_only=row["read_only"],
            is_sensitive=row["is_sensitive"],
            source=row["config_source"],
            synonyms=[tuple(values(each, "name value source")) for each in row["synonyms"]],  # type: ignore[misc]
            config_type=row["config_type"],
            documentation=row["documentation"],
        )

    keys = "error_code error_message resource_type resource_name"
    results = [
        describe_configs_codec.encode_result(version, *values(row, keys), [setting(each) for each in row["configs"]])
        for row in body["results"]
    ]
    return describe_configs_codec.encode_response(version, results, body["throttle_time"])


def describe_log_dirs(version: int, body: Body) -> bytes:
    def replica(row: Body) -> bytes:
        numbers = values(row, "partition_index partition_size offset_lag")
        return log_dirs_codec.encode_replica(version, *numbers, is_future=row["is_future_key"])

    def directory(row: Body) -> bytes:
        topics = {topic["name"]: [replica(each) for each in topic["partitions"]] for topic in row["topics"]}
        space = row["total_bytes"], row["usable_bytes"]
        return log_dirs_codec.encode_directory(version, row["error_code"], row["log_dir"], topics, space)

    rows = [directory(row) for row in body["results"]]
    return log_dirs_codec.encode_response(version, body["error_code"], rows, body["throttle_time"])


RESPONSES: dict[ApiKey, Callable[[int, Body], bytes]] = {
    ApiKey.PRODUCE: produce,
    ApiKey.FETCH: fetch,
    ApiKey.LIST_OFFSETS: list_offsets,
    ApiKey.METADATA: metadata,
    ApiKey.OFFSET_COMMIT: offset_commit,
    ApiKey.OFFSET_FETCH: offset_fetch,
    ApiKey.HEARTBEAT: heartbeat,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: consumer_heartbeat,
    ApiKey.LIST_GROUPS: list_groups,
    ApiKey.DESCRIBE_GROUPS: describe_groups,
    ApiKey.DESCRIBE_CONFIGS: describe_configs,
    ApiKey.DESCRIBE_LOG_DIRS: describe_log_dirs,
}


@pytest.mark.parametrize(("api_key", "version"), [(key, version) for key in RESPONSES for version in versions(key)])
def test_responses_are_kios_byte_for_byte(api_key: ApiKey, version: int) -> None:
    for random in dice(10):
        body = response_body(api_key, version, random)
        assert RESPONSES[api_key](version, body) == messages.encode_response(api_key, version, body)


@pytest.mark.parametrize("count", [126, 127, 128, 300])
@pytest.mark.parametrize("version", [8, 9, 12])
def test_metadata_of_any_number_of_replicas_and_partitions(version: int, count: int) -> None:
    replicas = tuple(range(count))
    keys = "error_code partition_index leader_id leader_epoch replica_nodes isr_nodes offline_replicas"
    partitions = dicts([(0, 0, 1, 2, replicas, replicas[:3], replicas[1:])] * count, keys)
    topic = {"error_code": 0, "name": "t", "topic_id": None, "is_internal": False, "partitions": partitions}
    topic["topic_authorized_operations"] = 7
    body = {"throttle_time": 0, "brokers": [], "cluster_id": None, "controller_id": -1, "topics": [topic]}
    body["cluster_authorized_operations"] = 7
    assert metadata(version, body) == messages.encode_response(ApiKey.METADATA, version, body)


@pytest.mark.parametrize("version", versions(ApiKey.FETCH, 12))
def test_fetch_responses_are_read_back(version: int) -> None:
    """With the follower's decoder."""

    def plain(data: FetchPartitionData) -> FetchPartitionData:
        return data._replace(records=b"".join(data.records), aborted_transactions=data.aborted_transactions or None)

    for random in dice(20):
        body = response_body(ApiKey.FETCH, version, random)
        frame = memoryview(b"head" + fetch(version, body))
        answer = fetch_codec.decode_response(version, frame, 4)
        assert list(answer[:3]) == values(body, "throttle_time error_code session_id")
        assert [(key, list(map(plain, rows))) for key, rows in answer.topics] == [
            (key, list(map(plain, rows))) for key, rows in fetch_topics(version, body)
        ]


@pytest.mark.parametrize("version", versions(ApiKey.FETCH, 12))
def test_nothing_but_malformed_comes_out_of_a_broken_fetch_response(version: int) -> None:
    for random in dice(30):
        good = fetch(version, response_body(ApiKey.FETCH, version, random))
        with contextlib.suppress(MalformedRequest):
            fetch_codec.decode_response(version, memoryview(broken(good, random)), 0)


# -- Requests: what kio finds, as each codec gives it; tests/fuzz has the translation ---------------------------------

EVERY_REQUEST = pytest.mark.parametrize(
    ("api_key", "version"), [(key, version) for key in CODECS for version in versions(key)]
)
SPECIAL = (("retention_time", one_of(durations_ms, just(-1))), ("isolation_level", numbers(0, 1)))


def broken(frame: bytes, random: Random) -> bytes:
    return mutate(frame, random, size_max=len(frame) + 4096)


def drawn(api_key: ApiKey, version: int, random: Random, special: Special = SPECIAL) -> tuple[bytes, int]:
    return framed(api_key, version, bodies((messages.request_schema(api_key, version),), special)(random))


def framed(api_key: ApiKey, version: int, body: Body) -> tuple[bytes, int]:
    frame = messages.encode_request(api_key, version, 1, "c", body)
    return frame, parse_request_header(frame).body_offset


@EVERY_REQUEST
def test_requests_are_read_as_kio_writes_them(api_key: ApiKey, version: int) -> None:
    decode, expected = CODECS[api_key]
    for random in dice(20):
        frame, at = drawn(api_key, version, random)
        entity = kio_oracle.read(messages.request_schema(api_key, version), frame, at)
        assert decode(version, memoryview(frame), at) == expected(version, entity)
        if api_key is ApiKey.FETCH:
            in_steps = finished(fetch_codec.decoding(version, memoryview(frame), at))
            assert in_steps == decode(version, memoryview(frame), at)


@EVERY_REQUEST
def test_missing_bytes_are_malformed_and_more_bytes_are_ignored(api_key: ApiKey, version: int) -> None:
    decode, _ = CODECS[api_key]
    for random in dice(15):
        frame, at = drawn(api_key, version, random)
        with pytest.raises(MalformedRequest):
            decode(version, memoryview(frame[: random.randrange(at, len(frame))]), at)
        assert decode(version, memoryview(frame + b"abc"), at) == decode(version, memoryview(frame), at)


@EVERY_REQUEST
def test_nothing_but_malformed_comes_out_of_a_broken_request(api_key: ApiKey, version: int) -> None:
    for random in dice(15):
        frame, at = drawn(api_key, version, random)
        with contextlib.suppress(MalformedRequest):
            CODECS[api_key][0](version, memoryview(frame[:at] + broken(frame[at:], random)), at)


@pytest.mark.parametrize("version", versions(ApiKey.FETCH, 12))
def test_kio_reads_our_fetch_requests(version: int) -> None:
    for random in dice(20):
        unused = (
            ("cluster_id", just(None)),
            ("replica_directory_id", just(None)),
            ("high_watermark", just(2**63 - 1)),
        )
        frame, at = drawn(ApiKey.FETCH, version, random, unused)
        own = fetch_codec.encode_request(
            version, 7, "ottla", fetch_codec.decode_request(version, memoryview(frame), at)
        )
        header = parse_request_header(own)
        assert (header.api_key, header.api_version, header.correlation_id, header.client_id) == (
            ApiKey.FETCH,
            version,
            7,
            "ottla",
        )
        entity = messages.decode_request(ApiKey.FETCH, version, own, header.body_offset)
        assert entity == messages.decode_request(ApiKey.FETCH, version, frame, at)


@pytest.mark.parametrize("version", versions(ApiKey.PRODUCE))
@pytest.mark.parametrize("size", [0, 1, 62, 126, 127, 128, 16_382, 16_383, 16_384, 3_000_000])
def test_records_of_one_partition_are_a_slice_of_the_frame(version: int, size: int) -> None:
    topic_id = uuid.UUID(int=5)
    topic = {"name": "departures", "topic_id": topic_id, "partition_data": [{"index": 0, "records": bytes(size)}]}
    body = {"transactional_id": None, "acks": -1, "timeout": 30_000, "topic_data": [topic]}
    frame, at = framed(ApiKey.PRODUCE, version, body)
    ((_, ((_, records),)),) = produce_codec.decode_request(version, memoryview(frame), at).topics
    assert records == bytes(size)
    assert records.obj is frame
    found = produce_codec.one_partition(version, memoryview(frame), at)
    assert found == produce_codec.one_partition(version, bytes(frame), at)
    is_short = found != produce_codec.NOT_ONE_PARTITION
    assert is_short == (version >= produce_codec.TRANSACTIONS_SINCE), "the most common request takes the short way"


def test_records_of_a_fetch_are_neither_copied_when_written_nor_when_read() -> None:
    records = memoryview(bytearray(100_000))
    partition = FetchPartitionData(0, 0, 5, 5, 0, [records[:60_000], records[60_000:]])
    parts = fetch_codec.encode_response(12, 0, 0, 0, [("t", [partition])])
    assert [part.obj for part in parts if isinstance(part, memoryview)] == [records.obj, records.obj]
    assert sum(len(part) for part in parts if not isinstance(part, memoryview)) < 200
    whole = b"".join(parts)
    ((_, (found,)),) = fetch_codec.decode_response(12, memoryview(whole), 0).topics
    (view,) = found.records
    assert isinstance(view, memoryview)
    assert view.obj is whole


def test_the_longest_retention_is_read() -> None:
    """It has more milliseconds than kio's timedelta can hold."""
    frame = b"\0\1g" + bytes(4) + b"\0\1m" + struct.pack(">q", 2**63 - 1) + bytes(4)
    assert offset_commit_codec.decode_request(2, frame, 0).retention_ms == 2**63 - 1


HUGE = struct.pack(">i", 2**31 - 1)
HUGE_VARINT = b"\xff\xff\xff\xff\x07"
V3_PRODUCE = b"\xff\xff\xff\xff\x00\x00\x00\x01"
V9_PRODUCE = b"\x00\xff\xff\x00\x00\x00\x01"
V4_FETCH, V12_FETCH = bytes(17), bytes(25)
ONE_TOPIC = b"\x00\x00\x00\x01\x00\x01t"


@pytest.mark.parametrize(
    ("api_key", "version", "body"),
    [
        (ApiKey.PRODUCE, 3, V3_PRODUCE + HUGE),
        (ApiKey.PRODUCE, 3, V3_PRODUCE + HUGE + bytes(1000)),
        (ApiKey.PRODUCE, 3, V3_PRODUCE + ONE_TOPIC + HUGE),
        (ApiKey.PRODUCE, 3, V3_PRODUCE + ONE_TOPIC + b"\x00\x00\x00\x01\x00\x00\x00\x00" + HUGE),
        (ApiKey.PRODUCE, 3, V3_PRODUCE + struct.pack(">i", -2)),
        (ApiKey.PRODUCE, 9, V9_PRODUCE + HUGE_VARINT),
        (ApiKey.PRODUCE, 9, V9_PRODUCE + b"\x02\x02t" + HUGE_VARINT),
        (ApiKey.PRODUCE, 9, V9_PRODUCE + b"\x02\x02t\x02\x00\x00\x00\x00" + HUGE_VARINT),
        (ApiKey.PRODUCE, 9, V9_PRODUCE + b"\x02\x02t\x02\x00\x00\x00\x00" + b"\xff" * 100_000),
        (ApiKey.PRODUCE, 9, V9_PRODUCE + b"\x02\x00\x01\x00\x00"),
        (ApiKey.PRODUCE, 9, V9_PRODUCE + b"\x01" + HUGE_VARINT),
        # Each of more than a million partitions is well formed; to read them all would take seconds.
        (ApiKey.PRODUCE, 3, V3_PRODUCE + struct.pack(">ihi", 1, 0, 1_000_001) + bytes(8) * 1_000_001),
        (ApiKey.FETCH, 4, V4_FETCH + HUGE),
        (ApiKey.FETCH, 4, V4_FETCH + ONE_TOPIC + HUGE),
        (ApiKey.FETCH, 7, V4_FETCH + bytes(8) + bytes(4) + HUGE),
        (ApiKey.FETCH, 12, V12_FETCH + HUGE_VARINT),
        (ApiKey.FETCH, 12, V12_FETCH + b"\x02\x02t" + HUGE_VARINT),
        (ApiKey.FETCH, 12, V12_FETCH + b"\x01" + HUGE_VARINT),
        (ApiKey.FETCH, 12, V12_FETCH + b"\x01\x02\x02t" + HUGE_VARINT),
        (ApiKey.FETCH, 12, V12_FETCH + b"\x01\x01\x01" + HUGE_VARINT),
        (ApiKey.FETCH, 4, V4_FETCH + struct.pack(">ihi", 1, 0, 1_000_001) + bytes(16) * 1_000_001),
        (ApiKey.LIST_OFFSETS, 1, bytes(4) + HUGE),
        (ApiKey.LIST_OFFSETS, 6, bytes(5) + HUGE_VARINT),
        (ApiKey.OFFSET_COMMIT, 5, b"\0\1g" + bytes(4) + b"\0\1m" + HUGE),
        (ApiKey.OFFSET_COMMIT, 8, b"\2g" + bytes(4) + b"\2m\0" + HUGE_VARINT),
        (ApiKey.OFFSET_FETCH, 1, b"\0\1g" + HUGE),
        (ApiKey.OFFSET_FETCH, 6, b"\2g" + HUGE_VARINT),
        (ApiKey.OFFSET_FETCH, 8, HUGE_VARINT),
        (ApiKey.OFFSET_FETCH, 8, b"\2\2g" + HUGE_VARINT),
    ],
)
def test_absurd_counts_allocate_nothing(api_key: ApiKey, version: int, body: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(MalformedRequest):
            CODECS[api_key][0](version, memoryview(body), 0)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("flexible", [False, True])
def test_a_fetch_with_too_many_partitions_is_refused(flexible: bool) -> None:
    """300,000 partitions took 0.3 s to decode and 0.5 s more to process."""
    version, most = 12 if flexible else 4, fetch_codec.REQUEST_PARTITIONS_MAX

    def decode(topics: int, partitions: int) -> int:
        row = bytes(33 if flexible else 16)
        topic = string("t", flexible) + array_length(partitions, flexible) + row * partitions + b"\x00" * flexible
        head = V12_FETCH if flexible else V4_FETCH
        body = head + array_length(topics, flexible) + topic * topics + b"\x01\x01\x00" * flexible
        return sum(max(len(rows), 1) for _, rows in fetch_codec.decode_request(version, memoryview(body), 0).topics)

    for topics, partitions in ((2, most // 2), (most, 0)):
        assert decode(topics, partitions) == most
        with pytest.raises(MalformedRequest):
            decode(topics + 1, partitions)
