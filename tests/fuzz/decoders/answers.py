"""Answers that our own clients read: a follower's of its leader, the tools' of a broker."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Coroutine, Iterator, Sequence
from random import Random
from typing import Any, cast

from broker.replication.following.follower_session import FetchPosition, FetchPositions
from broker.replication.following.leader_endpoint import (
    EPOCH_VERSION,
    FETCH_VERSION,
    LIST_OFFSETS_VERSION,
    EpochQuestion,
    FetchSettings,
    LeaderUnavailable,
    NetworkLeaderEndpoint,
)
from protocol.kafka import fetch_codec, messages
from protocol.kafka.api_keys import SUPPORTED, ApiKey
from protocol.kafka.fetch_codec import FetchPartitionData, FetchRequestPartition
from protocol.kafka.framing import MalformedRequest, response_header
from protocol.types import TopicPartition
from tests.fuzz.decoder import Decoder
from tests.support.kafka_values import bodies

T_ID = uuid.UUID(int=7)
TP = TopicPartition("t", 0)
ASKED = FetchRequestPartition(0, 3, 100, 3, 0, 1 << 20)
NEVER_WITH_MEMBERS = (ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.CONSUMER_GROUP_DESCRIBE)
"""Always refused: `by_schema` does not write the assignments of their members."""
KEYS = tuple(key for key in SUPPORTED if key not in NEVER_WITH_MEMBERS)


def decoders() -> list[Decoder]:
    return [
        Decoder("answer-fetch", _fetch, _fetch_seeds, (LeaderUnavailable,)),
        Decoder(
            "answer-epoch-ends",
            _epoch_ends,
            _seeds_of(ApiKey.OFFSET_FOR_LEADER_EPOCH, EPOCH_VERSION),
            (LeaderUnavailable,),
        ),
        Decoder(
            "answer-list-offsets",
            _list_offset,
            _seeds_of(ApiKey.LIST_OFFSETS, LIST_OFFSETS_VERSION),
            (LeaderUnavailable,),
        ),
        Decoder("answer-any", _any, _any_seeds, (MalformedRequest,), bytes_max=600),
    ]


class _Network:
    """Gives the same answer to every request."""

    def __init__(self) -> None:
        self.answer = b""

    async def send(self, address: tuple[str, int], encode: Callable[[int], Sequence[bytes]]) -> memoryview:
        encode(1)
        return memoryview(self.answer)


def _endpoint(answer: bytes) -> NetworkLeaderEndpoint:
    network = _Network()
    network.answer = b"\0\0\0\1" + answer
    settings = FetchSettings(2, lambda: 5, 500, 1, 1 << 24, 1 << 20)
    return NetworkLeaderEndpoint(settings, lambda: ("leader", 1), cast(Any, lambda: network))


def _result(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")


def _fetch(data: bytes) -> object:
    positions = FetchPositions({TP: FetchPosition(T_ID, ASKED)})
    positions.begin_request()
    found = _result(_endpoint(data).fetch(positions))
    assert all(isinstance(answer, FetchPartitionData) for answer in found.values())
    return found


def _epoch_ends(data: bytes) -> object:
    return _result(_endpoint(data).epoch_ends({TP: EpochQuestion(3, 2)}))


def _list_offset(data: bytes) -> object:
    offset = _result(_endpoint(data).list_offset(TP, 3, -1))
    assert -(1 << 63) <= offset < 1 << 63
    return offset


def _fetch_seeds() -> Iterator[bytes]:
    for records in (b"", b"r" * 90):
        for data in (
            FetchPartitionData(0, 0, 5, 5, 0, (records,)),
            FetchPartitionData(0, 0, 5, 5, 0, (records,), (2, 90), None, -1, [(1, 2)]),
            FetchPartitionData(0, 74, current_leader=(3, 4)),
        ):
            body = fetch_codec.encode_response(FETCH_VERSION, 0, 0, 9, [(T_ID, [data]), (uuid.UUID(int=8), [data])])
            yield b"\0" + b"".join(map(bytes, body))
    yield b"\0" + b"".join(map(bytes, fetch_codec.encode_response(FETCH_VERSION, 0, 71, 9, [])))


def _seeds_of(key: ApiKey, version: int) -> Callable[[], Iterator[bytes]]:
    def seeds() -> Iterator[bytes]:
        random = Random(int(key))
        make = bodies((messages.response_schema(key, version),), are_small=True)
        for _ in range(10):
            yield response_header(key, version, 1)[4:] + messages.encode_response(key, version, make(random))

    return seeds


def _any(data: bytes) -> object:
    """Two bytes for the API and the version, then the answer."""
    key = KEYS[(data[0] if data else 0) % len(KEYS)]
    oldest, newest = SUPPORTED[key]
    version = oldest + (data[1] if len(data) > 1 else 0) % (newest - oldest + 1)
    return messages.decode_response(key, version, b"\0\0\0\1" + data[2:])


def _any_seeds() -> Iterator[bytes]:
    random = Random(3)
    for index, key in enumerate(KEYS):
        oldest, newest = SUPPORTED[key]
        for version in range(oldest, newest + 1):
            make = bodies((messages.response_schema(key, version),), are_small=True)
            body = messages.encode_response(key, version, make(random))
            yield bytes((index, version - oldest)) + response_header(key, version, 1)[4:] + body
