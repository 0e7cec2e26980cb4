"""A follower's questions to one leader, over the wire: Fetch, OffsetForLeaderEpoch, ListOffsets (REP-1, REP-6).

Two connections: a Fetch may be parked at the leader for `replica.fetch.wait.max.ms`, and answers leave in order, so an
epoch question on the same connection would wait behind it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from broker.replication.following.fetch_session import FetchPosition, FetchPositions, FetchSession, SessionKey
from broker.replication.following.truncation import EpochEnd
from broker.settings.config import BrokerConfig
from protocol.errors import ErrorCode, error_name
from protocol.kafka import fetch_codec, messages
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.fetch_codec import FetchPartitionData, FetchRequest, FetchRequestPartition
from protocol.kafka.framing import MalformedRequest, skip_tagged_fields
from protocol.network_client import Disconnected, NetworkClient, RequestTimedOut
from protocol.types import TopicPartition

__all__ = ["FetchPosition", "FetchPositions", "LeaderEndpoint", "NetworkLeaderEndpoint"]

CLIENT_ID = "ottla-replica-fetcher"
FETCH_VERSION = 15  # the first that carries the follower's broker epoch
EPOCH_VERSION = 4
LIST_OFFSETS_VERSION = 7
CORRELATION_ID_BYTES = 4
READ_UNCOMMITTED = 0
SHORT_WAIT_MS = 10
WAIT_MS_MAX = 1000
"""A coordinator of groups that ZooKeeper does not answer goes on while it hears its followers, at least every two seconds."""
EARLIEST = -2
LATEST = -1


class LeaderUnavailable(Exception):
    """No answer, or none that can be read: everything asked of this leader is asked again after a pause."""


class EpochQuestion(NamedTuple):
    """`leader_epoch` is the one whose end is asked for; `current_leader_epoch` the one the follower is in."""

    current_leader_epoch: int
    leader_epoch: int


class EpochAnswer(NamedTuple):
    error: ErrorCode
    end: EpochEnd


class LeaderEndpoint(Protocol):
    """What a fetcher needs; over the network here, inside one process in tests."""

    async def fetch(
        self, positions: FetchPositions, *, is_short: bool = False
    ) -> dict[TopicPartition, FetchPartitionData]:
        """Asks for all positions, of which a request has just begun. Partitions without news are not in the answer. An error
        of a partition, as a topic id that the leader has not heard of yet, is that partition's: the session goes on.

        Long-polls, with `is_short` not for long. Raises LeaderUnavailable.
        """
        ...

    async def epoch_ends(self, questions: Mapping[TopicPartition, EpochQuestion]) -> dict[TopicPartition, EpochAnswer]:
        """Raises LeaderUnavailable."""
        ...

    async def list_offset(self, tp: TopicPartition, current_leader_epoch: int, timestamp: int) -> int:
        """The leader's log start (EARLIEST) or end (LATEST). Raises LeaderUnavailable, also for an error in the answer."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """`replica.fetch.*`, and who asks. `own_broker_epoch` may change while the process lives (STA-4)."""

    own_id: int
    own_broker_epoch: Callable[[], int]
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    partition_max_bytes: int

    @classmethod
    def of(cls, config: BrokerConfig, own_broker_epoch: Callable[[], int]) -> FetchSettings:
        return cls(
            own_id=config.broker_id,
            own_broker_epoch=own_broker_epoch,
            max_wait_ms=min(config.replica_fetch_wait_max_ms, WAIT_MS_MAX),
            min_bytes=config.replica_fetch_min_bytes,
            max_bytes=config.replica_fetch_response_max_bytes,
            partition_max_bytes=config.replica_fetch_max_bytes,
        )


class NetworkLeaderEndpoint:
    """The real one. `address_of()` is asked before every request: the leader may come back at another port."""

    def __init__(
        self,
        settings: FetchSettings,
        address_of: Callable[[], tuple[str, int] | None],
        open_network_client: Callable[[], NetworkClient],
    ) -> None:
        self._settings = settings
        self._address_of = address_of
        self._fetches = open_network_client()
        self._questions = open_network_client()
        self._session = FetchSession()

    async def close(self) -> None:
        self._fetches.close()
        self._questions.close()

    async def fetch(
        self, positions: FetchPositions, *, is_short: bool = False
    ) -> dict[TopicPartition, FetchPartitionData]:
        session = self._session.next_request(positions)
        names = self._session.names
        settings = self._settings
        wait_ms = SHORT_WAIT_MS if is_short else settings.max_wait_ms
        request = FetchRequest(
            replica_id=settings.own_id,
            replica_epoch=settings.own_broker_epoch(),
            max_wait_ms=0 if positions.has_more_news else min(settings.max_wait_ms, wait_ms),
            min_bytes=settings.min_bytes,
            max_bytes=settings.max_bytes,
            isolation_level=READ_UNCOMMITTED,
            session_id=session.session_id,
            session_epoch=session.session_epoch,
            topics=_by_topic(session.partitions),
            forgotten=_forgotten_by_topic(session.forgotten),
            rack_id="",
        )
        try:
            frame = await self._send(
                self._fetches,
                lambda correlation: [fetch_codec.encode_request(FETCH_VERSION, correlation, CLIENT_ID, request)],
            )
            body = skip_tagged_fields(frame, CORRELATION_ID_BYTES)
            answer = fetch_codec.decode_response(FETCH_VERSION, frame, body)
        except (LeaderUnavailable, MalformedRequest) as error:
            self._session.reset()
            raise LeaderUnavailable(str(error)) from error
        if answer.error != ErrorCode.NONE:
            self._session.reset()
            raise LeaderUnavailable(f"fetch session: {error_name(answer.error)}")
        self._session.answered(answer.session_id)
        found: dict[TopicPartition, FetchPartitionData] = {}
        for topic_id, partitions in answer.topics:
            name = names.get(topic_id) if isinstance(topic_id, uuid.UUID) else topic_id
            if name is not None:
                found.update((TopicPartition(name, data.partition), data) for data in partitions)
        return found

    async def epoch_ends(self, questions: Mapping[TopicPartition, EpochQuestion]) -> dict[TopicPartition, EpochAnswer]:
        topics: dict[str, list[dict[str, int]]] = {}
        for tp, question in questions.items():
            topics.setdefault(tp.topic, []).append(
                {
                    "partition": tp.partition,
                    "current_leader_epoch": question.current_leader_epoch,
                    "leader_epoch": question.leader_epoch,
                }
            )
        body = {
            "replica_id": self._settings.own_id,
            "topics": [{"topic": topic, "partitions": partitions} for topic, partitions in topics.items()],
        }
        answer = await self._ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, EPOCH_VERSION, body)
        return {
            TopicPartition(topic.topic, entry.partition): EpochAnswer(
                ErrorCode(int(entry.error_code)), EpochEnd(int(entry.leader_epoch), int(entry.end_offset))
            )
            for topic in answer.topics
            for entry in topic.partitions
        }

    async def list_offset(self, tp: TopicPartition, current_leader_epoch: int, timestamp: int) -> int:
        partition = {
            "partition_index": tp.partition,
            "current_leader_epoch": current_leader_epoch,
            "timestamp": timestamp,
        }
        body = {
            "replica_id": self._settings.own_id,
            "isolation_level": READ_UNCOMMITTED,
            "topics": [{"name": tp.topic, "partitions": [partition]}],
        }
        answer = await self._ask(ApiKey.LIST_OFFSETS, LIST_OFFSETS_VERSION, body)
        for topic in answer.topics:
            for entry in topic.partitions:
                if entry.error_code != ErrorCode.NONE:
                    raise LeaderUnavailable(f"ListOffsets of {tp}: {ErrorCode(int(entry.error_code)).name}")
                return int(entry.offset)
        raise LeaderUnavailable(f"ListOffsets of {tp}: no answer for it")

    async def _ask(self, api_key: ApiKey, version: int, body: Mapping[str, Any]) -> Any:
        frame = await self._send(
            self._questions,
            lambda correlation: [messages.encode_request(api_key, version, correlation, CLIENT_ID, body)],
        )
        try:
            return messages.decode_response(api_key, version, frame)[1]
        except MalformedRequest as error:
            raise LeaderUnavailable(str(error)) from error

    async def _send(self, client: NetworkClient, encode: Callable[[int], list[bytes]]) -> memoryview:
        address = self._address_of()
        if address is None:
            raise LeaderUnavailable("its address is not known")
        try:
            return await client.send(address, encode)
        except (Disconnected, RequestTimedOut) as error:
            raise LeaderUnavailable(str(error)) from error


def _by_topic(
    partitions: Mapping[SessionKey, FetchRequestPartition],
) -> list[tuple[str | uuid.UUID, list[FetchRequestPartition]]]:
    topics: dict[str | uuid.UUID, list[FetchRequestPartition]] = {}
    for (topic_id, _), wanted in partitions.items():
        topics.setdefault(topic_id, []).append(wanted)
    return list(topics.items())


def _forgotten_by_topic(keys: list[SessionKey]) -> list[tuple[str | uuid.UUID, list[int]]]:
    topics: dict[str | uuid.UUID, list[int]] = {}
    for topic_id, partition in keys:
        topics.setdefault(topic_id, []).append(partition)
    return list(topics.items())
