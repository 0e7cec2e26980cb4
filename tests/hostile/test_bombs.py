"""Batches that unpack to much, or have very many records, against a running broker: others hardly notice (BAD-22).

Before, 50 copies of a 2 KB batch in one request held the loop for 3 s, one ListOffsets request 10 s.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import NewTopic

from protocol.errors import ErrorCode
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.record_batch import BatchHeader, build_batch, with_compression
from tests.conftest import ClusterFactory
from tests.hostile.beside import canary_beside
from tests.support.invariants import wait_known_everywhere
from tests.support.thorough import thorough
from tests.support.topics import create_topics, produce_body
from tests.support.wire import Wire
from tools.cluster.local_cluster import LocalCluster

pytestmark = pytest.mark.integration

PARTITIONS = 40
UNPACKED = 60 * 1024 * 1024
WORST_S = 1.0
"""A tenth of what it was, and many times what it is (0.04 s)."""


@pytest.fixture(scope="module")
def cluster(new_module_cluster: ClusterFactory) -> LocalCluster:
    running = new_module_cluster(brokers=1)
    create_topics(running.bootstrap_servers, NewTopic("bombs", PARTITIONS, 1))
    wait_known_everywhere(running, "bombs", PARTITIONS)
    return running


@pytest.fixture(autouse=True)
def canary(cluster: LocalCluster) -> Iterator[None]:
    with canary_beside(cluster, WORST_S):
        yield


def send(cluster: LocalCluster, partitions: list[int], batch: bytes) -> list[ErrorCode]:
    with Wire(cluster.port(1), timeout_s=60) as wire:
        answer = wire.call(ApiKey.PRODUCE, 9, produce_body("bombs", batch, 1, partitions))
    return [ErrorCode(row.error_code) for topic in answer.responses for row in topic.partition_responses]


def tiny_records(count: int, compression: int) -> bytes:
    """Of 7 to 9 bytes; the largest timestamp of the header is wrong, so all are walked."""
    one = build_batch([(None, None, (), 1000)])[61:]
    head, tail = one[1:3], b"\x01\x01\x00"
    payload = bytearray()
    for number in range(count):
        rest = number << 1
        varint = bytearray()
        while rest >= 0x80:
            varint.append(rest & 0x7F | 0x80)
            rest >>= 7
        varint.append(rest)
        payload.append(2 * (len(head) + len(varint) + len(tail)))
        payload += head + varint + tail
    header = BatchHeader(0, 0, -1, 2, 0, 0, count - 1, 1000, 5, -1, -1, -1, count)
    return with_compression(header, bytes(payload), compression)


@pytest.mark.parametrize("compression", [1, thorough(2), thorough(3), 4], ids=["gzip", "snappy", "lz4", "zstd"])
def test_one_bomb_for_each_partition(cluster: LocalCluster, compression: int) -> None:
    """All batches of a request together unpack to 64 MiB."""
    size = UNPACKED if compression != 2 else UNPACKED // 4  # snappy: max.message.bytes
    bomb = build_batch([(None, bytes(size), (), 1000)], compression=compression)
    codes = send(cluster, list(range(PARTITIONS)), bomb)
    taken = codes.count(ErrorCode.NONE)
    assert 1 <= taken <= 5
    assert codes.count(ErrorCode.MESSAGE_TOO_LARGE) == PARTITIONS - taken


def test_one_bomb_many_times_for_one_partition(cluster: LocalCluster) -> None:
    bomb = build_batch([(None, bytes(UNPACKED), (), 1000)], compression=4)
    assert set(send(cluster, [0] * 500, bomb)) == {ErrorCode.INVALID_REQUEST}


@pytest.mark.thorough
def test_very_many_records(cluster: LocalCluster) -> None:
    packed = tiny_records(300_000, 4)
    assert send(cluster, [1, 2], packed) == [ErrorCode.NONE, ErrorCode.NONE]
    plain = tiny_records(50_000, 0)
    assert set(send(cluster, list(range(3, 13)), plain)) == {ErrorCode.NONE}


def test_looking_into_them_by_time(cluster: LocalCluster) -> None:
    send(cluster, [14], build_batch([(None, bytes(UNPACKED), (), 1000)], compression=4))
    rows = [{"partition_index": number, "current_leader_epoch": -1, "timestamp": 1000} for number in range(PARTITIONS)]
    body: dict[str, Any] = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "bombs", "partitions": rows}]}
    with Wire(cluster.port(1), timeout_s=60) as wire:
        answer = wire.call(ApiKey.LIST_OFFSETS, 5, body)
    assert {row.error_code for topic in answer.topics for row in topic.partitions} == {ErrorCode.NONE}
