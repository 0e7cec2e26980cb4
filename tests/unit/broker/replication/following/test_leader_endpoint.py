"""A follower's requests on the wire, read back by the codecs of the server's side."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from broker.coordination.confirmation import FOLLOWERS_SILENCE_S_MAX
from broker.replication.following import follower_session
from broker.replication.following.follower_session import FetchPosition, FetchPositions
from broker.replication.following.leader_endpoint import (
    EARLIEST,
    EpochAnswer,
    EpochQuestion,
    FetchSettings,
    LeaderUnavailable,
    NetworkLeaderEndpoint,
)
from broker.replication.following.truncation import EpochEnd
from broker.settings.config import BrokerConfig
from protocol.errors import ErrorCode
from protocol.kafka import fetch_codec, messages
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.fetch_codec import FetchPartitionData, FetchRequest, FetchRequestPartition
from protocol.kafka.framing import parse_request_header, response_header
from protocol.network_client import Disconnected
from protocol.types import TopicPartition

TOPIC_ID = uuid.UUID(int=7)
TP = TopicPartition("t", 3)
Answer = Callable[[int, int, Any], Sequence[Any]]


class FakeNetwork:
    """A network client whose peer is `answer(api key, version, request)`."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    async def send(self, address: tuple[str, int], encode: Callable[[int], Sequence[Any]]) -> memoryview:
        assert address == ("leader", 9092)
        frame = memoryview(b"".join(bytes(part) for part in encode(41)))
        header = parse_request_header(frame)
        decode = fetch_codec.decode_request if header.api_key == ApiKey.FETCH else None
        if decode is not None:
            request: Any = decode(header.api_version, frame, header.body_offset)
        else:
            request = messages.decode_request(header.api_key, header.api_version, frame, header.body_offset)
        parts = self._answer(header.api_key, header.api_version, request)
        head = response_header(header.api_key, header.api_version, header.correlation_id)
        return memoryview(b"".join([head, *(bytes(part) for part in parts)]))

    def close(self) -> None:
        return None


def endpoint(answer: Answer, address: tuple[str, int] | None = ("leader", 9092)) -> NetworkLeaderEndpoint:
    settings = FetchSettings(2, lambda: 102, 500, 1, 10_000, 1000)
    return NetworkLeaderEndpoint(settings, lambda: address, lambda: FakeNetwork(answer))  # type: ignore[arg-type,return-value]


def position(offset: int) -> FetchPosition:
    return FetchPosition(TOPIC_ID, FetchRequestPartition(TP.partition, 5, offset, 4, 0, 1000))


def fetch(leader: NetworkLeaderEndpoint, positions: FetchPositions) -> Any:
    positions.begin_request()
    return leader.fetch(positions)


async def test_fetches_carry_the_broker_epoch_and_become_incremental() -> None:
    seen: list[FetchRequest] = []

    def answer(key: int, version: int, request: FetchRequest) -> Sequence[Any]:
        seen.append(request)
        data = FetchPartitionData(TP.partition, 0, 9, 9, 0, [b"abc"], diverging_epoch=(4, 8))
        topics = [(TOPIC_ID, [data])] if request.topics else []
        return fetch_codec.encode_response(version, 0, 0, 77, topics)

    leader = endpoint(answer)
    positions = FetchPositions({TP: position(10)})
    first = await fetch(leader, positions)
    assert (bytes(first[TP].records[0]), first[TP].diverging_epoch, first[TP].high_watermark) == (b"abc", (4, 8), 9)
    positions[TP] = position(10)
    assert await fetch(leader, positions) == {}
    positions[TP] = position(11)
    await fetch(leader, positions)
    positions.drop(TP)
    await fetch(leader, positions)
    assert {(r.replica_id, r.replica_epoch, r.max_wait_ms) for r in seen} == {(2, 102, 500)}
    assert [(r.session_id, r.session_epoch) for r in seen] == [(0, 0), (77, 1), (77, 2), (77, 3)]
    assert [[(key, [p.fetch_offset for p in ps]) for key, ps in r.topics] for r in seen] == [
        [(TOPIC_ID, [10])],
        [],
        [(TOPIC_ID, [11])],
        [],
    ]
    assert [(key, list(numbers)) for key, numbers in seen[3].forgotten] == [(TOPIC_ID, [TP.partition])]


async def test_a_lost_session_is_opened_again() -> None:
    errors = [0, ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0]
    seen: list[tuple[int, int, int]] = []

    def answer(key: int, version: int, request: FetchRequest) -> Sequence[Any]:
        seen.append((request.session_id, request.session_epoch, len(request.topics)))
        return fetch_codec.encode_response(version, 0, errors.pop(0), 77, [])

    leader = endpoint(answer)
    positions = FetchPositions({TP: position(10)})
    await fetch(leader, positions)
    with pytest.raises(LeaderUnavailable):
        await fetch(leader, positions)
    await fetch(leader, positions)
    assert seen == [(0, 0, 1), (77, 1, 0), (0, 0, 1)]


def many(count: int) -> FetchPositions:
    wanted = position(1).wanted
    return FetchPositions(
        {TopicPartition("t", n): FetchPosition(TOPIC_ID, wanted._replace(partition=n)) for n in range(count)}
    )


@pytest.mark.parametrize("session_id", [77, 0])
async def test_several_requests_build_up_a_session_of_very_many_partitions(
    session_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten thousand partitions in one request hold both loops for a tenth of a second. A leader without sessions gets all partitions."""
    monkeypatch.setattr(follower_session, "ADDED_AT_ONCE", 1000)
    seen: list[FetchRequest] = []

    def answer(key: int, version: int, request: FetchRequest) -> Sequence[Any]:
        seen.append(request)
        return fetch_codec.encode_response(version, 0, 0, session_id, [])

    leader, positions = endpoint(answer), many(2500)
    asked = []
    for _ in range(4):
        await fetch(leader, positions)
        asked.append(sum(map(positions.is_as_asked, positions)))
    for n in range(1500):
        positions.drop(TopicPartition("t", n))
    for _ in range(3):
        await fetch(leader, positions)
    named = [sum(len(partitions) for _, partitions in request.topics) for request in seen]
    forgotten = [sum(len(numbers) for _, numbers in request.forgotten) for request in seen]
    waits = [request.max_wait_ms for request in seen]
    if session_id:
        assert asked == [1000, 2000, 2500, 2500]
        assert named == [1000, 1000, 500, 0, 0, 0, 0]
        assert forgotten == [0, 0, 0, 0, 1500, 0, 0]
        assert waits == [0, 0, 500, 500, 500, 500, 500]
    else:
        assert (named, waits) == ([1000, 2500, 2500, 2500, 1000, 1000, 1000], [0, *[500] * 6])


async def test_a_topic_id_unknown_to_the_leader_does_not_end_the_session() -> None:
    """Followers learn of a topic before the leader's metadata has it. A new session would have to list all other partitions again."""
    seen: list[tuple[int, int]] = []

    def answer(key: int, version: int, request: FetchRequest) -> Sequence[Any]:
        seen.append((request.session_id, request.session_epoch))
        data = FetchPartitionData(TP.partition, ErrorCode.UNKNOWN_TOPIC_ID)
        return fetch_codec.encode_response(version, 0, 0, 77, [(TOPIC_ID, [data])])

    leader, positions = endpoint(answer), FetchPositions({TP: position(10)})
    for _ in range(2):
        assert (await fetch(leader, positions))[TP].error == ErrorCode.UNKNOWN_TOPIC_ID
    assert seen == [(0, 0), (77, 1)]


async def test_epoch_questions() -> None:
    def answer(key: int, version: int, request: Any) -> Sequence[Any]:
        assert (key, request.replica_id) == (ApiKey.OFFSET_FOR_LEADER_EPOCH, 2)
        (topic,) = request.topics
        (partition,) = topic.partitions
        assert (topic.topic, partition.partition) == TP
        assert (partition.current_leader_epoch, partition.leader_epoch) == (5, 4)
        entry = {"error_code": 0, "partition": 3, "leader_epoch": 4, "end_offset": 88}
        return [
            messages.encode_response(
                key, version, {"throttle_time": 0, "topics": [{"topic": "t", "partitions": [entry]}]}
            )
        ]

    answers = await endpoint(answer).epoch_ends({TP: EpochQuestion(5, 4)})
    assert answers == {TP: EpochAnswer(ErrorCode.NONE, EpochEnd(4, 88))}


@pytest.mark.parametrize("error", [ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER])
async def test_list_offset(error: ErrorCode) -> None:
    def answer(key: int, version: int, request: Any) -> Sequence[Any]:
        assert (key, request.replica_id) == (ApiKey.LIST_OFFSETS, 2)
        assert request.topics[0].partitions[0].current_leader_epoch == 5
        entry = {"partition_index": 3, "error_code": error, "timestamp": -1, "offset": 12, "leader_epoch": 5}
        return [
            messages.encode_response(
                key, version, {"throttle_time": 0, "topics": [{"name": "t", "partitions": [entry]}]}
            )
        ]

    ask = endpoint(answer).list_offset(TP, 5, EARLIEST)
    if error is ErrorCode.NONE:
        assert await ask == 12
    else:
        with pytest.raises(LeaderUnavailable):
            await ask


async def test_every_failure_of_the_network_is_leader_unavailable() -> None:
    def refuse(key: int, version: int, request: Any) -> Sequence[Any]:
        raise Disconnected("test")

    for leader in (endpoint(refuse), endpoint(refuse, None), endpoint(lambda *_: [b"rubbish"])):
        for ask in (fetch(leader, FetchPositions({TP: position(1)})), leader.epoch_ends({TP: EpochQuestion(5, 4)})):
            with pytest.raises(LeaderUnavailable):
                await ask


@pytest.mark.parametrize(("configured_ms", "asked_ms"), [(0, 0), (500, 500), (1000, 1000), (5000, 1000)])
def test_a_fetch_waits_less_than_a_coordinator_tolerates_silence(configured_ms: int, asked_ms: int) -> None:
    """While ZooKeeper is away, a coordinator serves only while its followers fetch often enough."""
    config = BrokerConfig(broker_id=2, replica_fetch_wait_max_ms=configured_ms)
    settings = FetchSettings.of(config, lambda: 102)
    assert settings.max_wait_ms == asked_ms
    assert 2 * settings.max_wait_ms / 1000 <= FOLLOWERS_SILENCE_S_MAX
