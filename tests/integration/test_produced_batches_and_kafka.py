"""The same odd batches to a real Kafka and to ottla: what is refused, with which error, and what is stored (BAD-12..20).

ottla accepts nothing that Kafka refuses. Where both refuse, the error is the same. `STRICTER` has the batches that only ottla refuses.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.compression import COMPRESSIONS, compress
from protocol.kafka.record_batch import HEADER_SIZE, build_batch, crc32c, decode_records, parse_header
from tests.support.kafka_tools import KafkaTools
from tests.support.real_kafka import running_kafka
from tests.support.topics import fetch_body, new_topic, produce_batch
from tests.support.wire import Wire
from tools.cluster.local_cluster import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.kafka]

NOW = int(time.time() * 1000)
COUNT = 20
TOPICS: Mapping[str, Mapping[str, str]] = {
    "producer": {},
    "compacted": {"cleanup.policy": "compact"},
    "gzip": {"compression.type": "gzip"},
    "uncompressed": {"compression.type": "uncompressed"},
    "LogAppendTime": {"message.timestamp.type": "LogAppendTime"},
    "limits": {"message.timestamp.before.max.ms": "3600000", "message.timestamp.after.max.ms": "3600000"},
}
STRICTER = (
    "offset delta",  # Kafka stores it, or fails with UNKNOWN_SERVER_ERROR
    "length -2",  # Kafka takes it for null
    "length of record",  # Kafka does not compare lengths in compressed batches
    "a byte after the batch",
    "half a batch after the batch",
    "epoch -1",
    "LogAppendTime",
)
HOUR = 3_600_000


def varint(number: int) -> bytes:
    number = number * 2 if number >= 0 else -number * 2 - 1
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def record(
    delta: int, *, key: bytes = b"\x02k", value: bytes = b"\x02v", headers: bytes = b"\x00", time_delta: int = 0
) -> bytes:
    """A record whose fields are given as bytes, with their lengths."""
    body = b"\x00" + varint(time_delta) + varint(delta) + key + value + headers
    return varint(len(body)) + body


def sealed(batch: bytes, **fields: tuple[str, int, int]) -> bytes:
    """With other values (layout, position, value) in the header, and the CRC that fits."""
    changed = bytearray(batch)
    for layout, at, value in fields.values():
        struct.pack_into(layout, changed, at, value)
    struct.pack_into(">I", changed, 17, crc32c(bytes(changed[21:])))
    return bytes(changed)


def batch_of(records: list[bytes], compression: int, *, count: int = COUNT) -> bytes:
    template = build_batch([(b"k", b"v", (), NOW)])
    payload = b"".join(records)
    whole = bytearray(template[:HEADER_SIZE] + (compress(payload, compression) if compression else payload))
    struct.pack_into(">i", whole, 8, len(whole) - 12)
    return sealed(bytes(whole), attributes=(">h", 21, compression), last=(">i", 23, count - 1), count=(">i", 57, count))


GOOD = [record(delta) for delta in range(COUNT)]


def other(number: int, changed: bytes) -> list[bytes]:
    return [*GOOD[:number], changed, *GOOD[number + 1 :]]


RECORDS: Mapping[str, list[bytes]] = {
    "good": GOOD,
    "a byte more": [*GOOD, b"\x00"],
    "a byte less": [*GOOD[:-1], GOOD[-1][:-1]],
    "a record less": GOOD[:-1],
    "a record more": [*GOOD, record(COUNT)],
    "no records": [],
    "offset delta 16 twice": other(15, record(16)),
    "a key of length -2": other(15, record(15, key=b"\x03")),
    "a value of length -2": other(15, record(15, value=b"\x03")),
    "a key that is too long": other(15, record(15, key=b"\x50k")),
    "null key": other(15, record(15, key=b"\x01")),
    "null value": other(15, record(15, value=b"\x01")),
    "-1 headers": other(15, record(15, headers=b"\x01")),
    "more headers than there are": other(15, record(15, headers=b"\x0a")),
    "a header without a name": other(15, record(15, headers=b"\x02\x01\x01")),
    "a header with a null value": other(15, record(15, headers=b"\x02\x02h\x01")),
    "length of record 15 too small": other(15, b"\x04" + GOOD[15][1:]),
    "length of record 19 too large": other(19, b"\x7e" + GOOD[19][1:]),
    "a record two hours ago": other(15, record(15, time_delta=-2 * HOUR)),
    "a record in two hours": other(15, record(15, time_delta=2 * HOUR)),
}
PLAIN = build_batch([(b"k", b"v", (), NOW)] * 3)
SEQUENCED = build_batch([(b"k", b"v", (), NOW)], producer_id=9, producer_epoch=0, base_sequence=0)
HEADERS: Mapping[str, bytes] = {
    "a byte after the batch": PLAIN + b"\x00",
    "16 zeros after the batch": PLAIN + bytes(16),
    "half a batch after the batch": PLAIN + PLAIN[:40],
    "two batches": PLAIN + PLAIN,
    "largest timestamp -1": sealed(PLAIN, newest=(">q", 35, -1)),
    "largest timestamp too large": sealed(PLAIN, newest=(">q", 35, NOW + HOUR)),
    "producer epoch -1": sealed(SEQUENCED, epoch=(">h", 51, -1)),
    "LogAppendTime in the batch": sealed(PLAIN, attributes=(">h", 21, 0x08)),
    "a control batch": sealed(PLAIN, attributes=(">h", 21, 0x20)),
    "a count of 2": sealed(PLAIN, count=(">i", 57, 2)),
    "unknown magic": PLAIN[:16] + b"\x07" + PLAIN[17:],
}
CASES = {
    f"{COMPRESSIONS[compression]}: {name}": batch_of(records, compression)
    for compression in range(5)
    for name, records in RECORDS.items()
} | HEADERS


def answers(bootstrap_servers: str) -> dict[tuple[str, str], Any]:
    """(topic, case) -> the error, or what is stored."""
    found: dict[tuple[str, str], Any] = {}
    with Wire(int(bootstrap_servers.rpartition(":")[2])) as wire:
        for kind, settings in TOPICS.items():
            topic = new_topic(bootstrap_servers, **{key.replace(".", "_"): value for key, value in settings.items()})
            for case, batch in CASES.items():
                if kind != "producer" and case.startswith(("snappy", "lz4")):
                    continue
                found[kind, case] = answer(wire, topic, batch, keeps_times=kind != "LogAppendTime")
    return found


def answer(wire: Wire, topic: str, batch: bytes, *, keeps_times: bool) -> Any:
    row = produce_batch(wire, topic, batch)
    while row.error_code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER):
        row = produce_batch(wire, topic, batch)  # the broker has not heard of the new topic yet
    if row.error_code:
        return ErrorCode(row.error_code), [error.batch_index for error in row.record_errors]
    body = fetch_body(topic, row.base_offset, max_wait_ms=10_000, bytes_max=1)
    stored = bytes(wire.call(ApiKey.FETCH, 11, body).responses[0].partitions[0].records)
    header = parse_header(stored)
    kept = [header.attributes, header.last_offset_delta, header.record_count, *header[9:12]]
    try:
        found = decode_records(stored)
    except KafkaError:
        return kept, "records that this decoder does not read"
    records = [(item.offset - header.base_offset, item.key, item.value, item.headers) for item in found]
    times = [header.base_timestamp, header.max_timestamp, *(item.timestamp for item in found)]
    return kept, records, times if keeps_times else []


@pytest.mark.timeout(240)
def test_batches_are_refused_and_stored_as_by_kafka(
    new_cluster: Callable[..., LocalCluster], tmp_path: Path, kafka_tools: KafkaTools
) -> None:
    """Each cluster has one broker, which leads every topic."""
    subject = answers(new_cluster(brokers=1).bootstrap_servers)
    (tmp_path / "kafka").mkdir()
    with running_kafka(tmp_path / "kafka", brokers=1) as kafka:
        reference = answers(kafka.bootstrap_servers)
    different = {key: (reference[key], subject[key]) for key in reference if reference[key] != subject[key]}
    unexpected = {
        key: pair
        for key, pair in different.items()
        if not (pair[0][0] == ErrorCode.UNKNOWN_SERVER_ERROR and isinstance(pair[1][0], ErrorCode))
        and not (any(word in key[1] for word in STRICTER) and isinstance(pair[1][0], ErrorCode))
    }
    assert unexpected == {}
    refused = {case for (_, case), found in reference.items() if isinstance(found[0], ErrorCode)}
    assert len(refused) > 40
    assert {word for word in STRICTER if any(word in case for _, case in different)} == set(STRICTER)
