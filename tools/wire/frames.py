"""Requests and answers of a client, in bytes: Produce and Fetch by hand, all others by kio's schemas. Pure.

Versions that both Kafka 2.1 and Kafka 4 serve: Produce v7, Fetch v12 (`protocol.kafka.fetch_codec`), Metadata v7.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from protocol.kafka import fetch_codec, messages
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.record_batch import BatchHeader
from protocol.types import Buffer

PRODUCE_VERSION = 7
FETCH_VERSION = 12
COMPRESSION_CODES = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}

_LENGTH = struct.Struct(">i")
_HEADER = struct.Struct(">hhi")
_ACKS_TIMEOUT = struct.Struct(">hi")
_PARTITION = struct.Struct(">ii")
_RESULT = struct.Struct(">ihqqq")
_COUNT = struct.Struct(">i")
_STRING = struct.Struct(">h")


class Produced(NamedTuple):
    """A broker's answer for one partition. `base_offset` is -1 with an error, or if the batch was there already."""

    topic: str
    partition: int
    error: int
    base_offset: int


def produce_frame(
    client: bytes,
    acks: int,
    timeout_ms: int,
    batches: Mapping[bytes, Sequence[tuple[int, Buffer]]],
    transactional_id: bytes | None = None,
) -> bytes:
    """A Produce request with its length before it. `batches`: topic -> (partition, batch). The correlation id is 0."""
    parts: list[Buffer] = [
        b"",
        _HEADER.pack(ApiKey.PRODUCE, PRODUCE_VERSION, 0),
        _STRING.pack(len(client)),
        client,
        b"\xff\xff" if transactional_id is None else _STRING.pack(len(transactional_id)) + transactional_id,
        _ACKS_TIMEOUT.pack(acks, timeout_ms),
        _COUNT.pack(len(batches)),
    ]
    for topic, of_topic in batches.items():
        parts += [_STRING.pack(len(topic)), topic, _COUNT.pack(len(of_topic))]
        for partition, batch in of_topic:
            parts += [_PARTITION.pack(partition, len(batch)), batch]
    parts[0] = _LENGTH.pack(sum(map(len, parts)))
    return b"".join(parts)


def produced(frame: memoryview) -> list[Produced]:
    """The answer to `produce_frame`. Raises struct.error if it is cut off."""
    (topics,) = _COUNT.unpack_from(frame, 4)
    at, found = 8, []
    for _ in range(topics):
        (size,) = _STRING.unpack_from(frame, at)
        topic = str(frame[at + 2 : at + 2 + size], "utf-8")
        (partitions,) = _COUNT.unpack_from(frame, at + 2 + size)
        at += 6 + size
        for _ in range(partitions):
            partition, error, base_offset, _, _ = _RESULT.unpack_from(frame, at)
            found.append(Produced(topic, partition, error, base_offset))
            at += _RESULT.size
    return found


def fetch_frame(
    client: str,
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    partition_max_bytes: int,
    positions: Mapping[str, Sequence[tuple[int, int]]],
    *,
    read_committed: bool = False,
) -> bytes:
    """A Fetch request of a consumer without a session, with its length. `positions`: topic -> (partition, offset)."""
    topics = [
        (
            topic,
            [
                fetch_codec.FetchRequestPartition(partition, -1, offset, -1, -1, partition_max_bytes)
                for partition, offset in of_topic
            ],
        )
        for topic, of_topic in positions.items()
    ]
    request = fetch_codec.FetchRequest(
        -1, -1, max_wait_ms, min_bytes, max_bytes, int(read_committed), 0, -1, topics, ()
    )
    payload = fetch_codec.encode_request(FETCH_VERSION, 0, client, request)
    return _LENGTH.pack(len(payload)) + payload


def fetched(frame: memoryview) -> fetch_codec.FetchResponse:
    """The answer to `fetch_frame`. Raises MalformedRequest."""
    return fetch_codec.decode_response(FETCH_VERSION, frame, 5)  # the correlation id, and no tagged fields


class Aborted:
    """Which batches of an answer are of aborted transactions, as the answer to a reader of committed records says.

    `transactions`: (producer id, first offset) of each.
    """

    def __init__(self, transactions: Iterable[tuple[int, int]]) -> None:
        self._coming = sorted(transactions, key=itemgetter(1), reverse=True)
        self._producers: set[int] = set()

    def has(self, header: BatchHeader) -> bool:
        """To be asked about every batch, in order."""
        while self._coming and self._coming[-1][1] <= header.last_offset:
            self._producers.add(self._coming.pop()[0])
        if header.is_control:
            self._producers.discard(header.producer_id)
            return False
        return header.is_transactional and header.producer_id in self._producers


def request_frame(api_key: int, version: int, client: str, body: Mapping[str, Any]) -> bytes:
    """Any other request, with its length."""
    payload = messages.encode_request(api_key, version, 0, client, body)
    return _LENGTH.pack(len(payload)) + payload


def answer(api_key: int, version: int, frame: memoryview) -> Any:
    """kio's entity of an answer to `request_frame`. Raises MalformedRequest."""
    return messages.decode_response(api_key, version, frame)[1]
