"""What the load generator has to send: frames that are encoded already, and the connections that send them. Pure.

The C program reads a plan as `encoded` writes it; `generator.c` describes the format. Requests are Produce v3 to v13 and Fetch v4 to v18.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal
from uuid import UUID

from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.record_batch import build_batch
from protocol.types import Address
from tools.bench.closed_loop.load import FETCH_VERSION, PRODUCE_VERSION

CLIENT_ID = "ottla-bench"
PRODUCE_TIMEOUT_MS = 30_000
FETCH_WAIT_MS = 500
OFFSET_MARK = 0x7A6B5C4D3E2F1A0B
"""An offset that no log has, to find where the offset stands in a frame."""

NO_IDS: Mapping[str, UUID] = MappingProxyType({})

Kind = Literal["produce", "fetch", "idle", "paired"]


@dataclass(frozen=True, slots=True)
class Frame:
    """A request with its length before it. `payload`: bytes that its answer counts for; a fetch counts what it gets."""

    data: bytes = field(repr=False)
    records: int = 0
    payload: int = 0
    offset_at: int = -1
    """Position of the fetch offset; -1 for a produce."""
    version: int = PRODUCE_VERSION


@dataclass(frozen=True, slots=True)
class PlannedConnection:
    """Sends `frames` frames of the plan in turns, from `first_frame` on, with `in_flight` unanswered.

    A fetch begins at `start`, and begins there again when it has come to `end` (-1: never). `peer` is the number of the `paired`
    producer whose batches it fetches; the first of them has the producer's `start` as its base offset.
    """

    kind: Kind
    address: Address
    in_flight: int = 0
    first_frame: int = 0
    frames: int = 1
    start: int = 0
    end: int = -1
    peer: int = -1


@dataclass(frozen=True, slots=True)
class Plan:
    """A load: it runs for `warm_up_s` without being counted, then for `seconds`. Addresses are numeric."""

    warm_up_s: float
    seconds: float
    frames: Sequence[Frame]
    connections: Sequence[PlannedConnection]

    def encoded(self) -> bytes:
        """The standard input of the C program."""
        milliseconds = f"{round(self.warm_up_s * 1000)} {round(self.seconds * 1000)}"
        parts = [f"ottla-load {milliseconds} {len(self.frames)} {len(self.connections)}\n".encode()]
        for frame in self.frames:
            numbers = f"{len(frame.data)} {frame.records} {frame.payload} {frame.offset_at} {frame.version}"
            parts += [f"frame {numbers}\n".encode(), frame.data, b"\n"]
        for c in self.connections:
            where = f"{c.address[0]} {c.address[1]}"
            what = f"{c.in_flight} {c.first_frame} {c.frames} {c.start} {c.end} {c.peer}"
            parts.append(f"connection {c.kind} {where} {what}\n".encode())
        return b"".join(parts)


def batch(record_bytes: int, records: int, timestamp_ms: int) -> bytes:
    """A batch of equal records without keys, each with a value of `record_bytes` zero bytes."""
    return build_batch([(None, bytes(record_bytes), [], timestamp_ms)] * records)


def produce_frame(
    partitions: Sequence[tuple[str, int]],
    acks: int,
    records_of_each: bytes,
    version: int = PRODUCE_VERSION,
    topic_ids: Mapping[str, UUID] = NO_IDS,
) -> bytes:
    """A Produce request with the same batch for each (topic, partition), with its length before it.

    `topic_ids`: for a version that names topics by their ids.
    """
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    body = {
        "transactional_id": None,
        "acks": acks,
        "timeout": PRODUCE_TIMEOUT_MS,
        "topic_data": [
            {
                "name": topic,
                "topic_id": topic_ids.get(topic),
                "partition_data": [{"index": index, "records": records_of_each} for index in indexes],
            }
            for topic, indexes in topics.items()
        ],
    }
    return _framed(messages.encode_request(ApiKey.PRODUCE, version, 0, CLIENT_ID, body))


def fetch_frame(
    topic: str, partition: int, max_bytes: int, version: int = FETCH_VERSION, topic_id: UUID | None = None
) -> Frame:
    """A Fetch request for one partition, without a session; the generator writes the offset. It waits for records if there are none.

    `topic_id`: for a version that names the topic by its id.
    """
    of_partition = {
        "partition": partition,
        "current_leader_epoch": -1,
        "fetch_offset": OFFSET_MARK,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": max_bytes,
    }
    body = {
        "replica_id": -1,
        "max_wait": FETCH_WAIT_MS,
        "min_bytes": 1,
        "max_bytes": max_bytes,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": topic, "topic_id": topic_id, "partitions": [of_partition]}],
        "forgotten_topics_data": [],
        "rack_id": "",
    }
    data = _framed(messages.encode_request(ApiKey.FETCH, version, 0, CLIENT_ID, body))
    return Frame(data, offset_at=data.index(struct.pack(">q", OFFSET_MARK)), version=version)


def _framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload
