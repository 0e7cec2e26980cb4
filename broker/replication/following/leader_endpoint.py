"""A follower's requests to one leader: Fetch, OffsetForLeaderEpoch, ListOffsets (REP-1, REP-6). Also the addresses of leaders.

An endpoint has two connections. The leader may park a Fetch for `replica.fetch.wait.max.ms`, and answers are sent in order: an
epoch question on the same connection would wait for the parked Fetch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from broker.replication.following.follower_session import FetchPositions, FollowerSession
from broker.replication.following.truncation import EpochEnd
from broker.settings.config import BrokerConfig
from protocol.errors import ErrorCode, error_name
from protocol.kafka import fetch_codec, messages
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.fetch_codec import FetchPartitionData, FetchRequest
from protocol.kafka.framing import MalformedRequest, skip_tagged_fields
from protocol.network_client import Disconnected, NetworkClient, RequestTimedOut
from protocol.types import BrokerInfo, TopicPartition

CLIENT_ID = "ottla-replica-fetcher"
FETCH_VERSION = 15  # the first that carries the follower's broker epoch
EPOCH_VERSION = 4
LIST_OFFSETS_VERSION = 7
CORRELATION_ID_BYTES = 4
READ_UNCOMMITTED = 0
SHORT_WAIT_MS = 10
WAIT_MS_MAX = 1000
"""Longest wait of a fetch at the leader. While ZooKeeper does not answer, a group coordinator continues to serve only if its
followers fetch at least every two seconds."""
EARLIEST = -2
LATEST = -1
DEFAULT_CONTROL_LISTENER = "CONTROLLER"


class LeaderUnavailable(Exception):
    """There is no answer, or it cannot be read. The fetcher asks again after a pause."""


class EpochQuestion(NamedTuple):
    """Where does `leader_epoch` end? `current_leader_epoch` is the epoch of the leader that the follower follows."""

    current_leader_epoch: int
    leader_epoch: int


class EpochAnswer(NamedTuple):
    error: ErrorCode
    end: EpochEnd


class LeaderEndpoint(Protocol):
    """The requests of a fetcher to a leader. They use the network, or in tests a leader in the same process."""

    async def fetch(
        self, positions: FetchPositions, *, is_short: bool = False
    ) -> dict[TopicPartition, FetchPartitionData]:
        """Fetches from all positions, whose `begin_request` was called. Partitions without news are not in the answer.

        An error of one partition, such as a topic id that the leader does not know yet, does not end the session.
        The leader may wait for records; with `is_short`, at most SHORT_WAIT_MS. Raises LeaderUnavailable.
        """
        ...

    async def epoch_ends(self, questions: Mapping[TopicPartition, EpochQuestion]) -> dict[TopicPartition, EpochAnswer]:
        """Raises LeaderUnavailable."""
        ...

    async def list_offset(self, tp: TopicPartition, current_leader_epoch: int, timestamp: int) -> int:
        """The leader's log start (EARLIEST) or log end (LATEST). Raises LeaderUnavailable, also when the answer is an error."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """The settings `replica.fetch.*`, and the follower's id and broker epoch, which may change while the process runs (STA-4)."""

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


class LeaderAddresses:
    """The other brokers' endpoints, as the controller last sent them. Dead brokers are kept: a leader may be among them."""

    def __init__(self, config: BrokerConfig) -> None:
        self._listener = config.inter_broker_listener_name
        self._control_listener = config.control_plane_listener_name or DEFAULT_CONTROL_LISTENER
        self._brokers: dict[int, BrokerInfo] = {}

    def learn(self, broker: BrokerInfo) -> None:
        """Takes a broker's endpoints, unless they are those of an earlier life."""
        known = self._brokers.get(broker.id)
        if known is None or known.epoch <= broker.epoch:
            self._brokers[broker.id] = broker

    def of(self, leader: int) -> tuple[str, int] | None:
        """Host and port of the listener `inter.broker.listener.name`; if that is not set, of the first listener for clients."""
        broker = self._brokers.get(leader)
        if broker is None:
            return None
        for endpoint in broker.endpoints:
            name = endpoint.listener
            if name == self._listener or (not self._listener and name != self._control_listener):
                return endpoint.host, endpoint.port
        return None


class NetworkLeaderEndpoint:
    """The endpoint over the network. Calls `address_of` before every request: a restarted leader may have another port."""

    def __init__(
        self,
        settings: FetchSettings,
        address_of: Callable[[], tuple[str, int] | None],
        open_network_client: Callable[[], NetworkClient],
    ) -> None:
        self._settings = settings
        self._address_of = address_of
        self._fetch_client = open_network_client()
        self._question_client = open_network_client()
        self._session = FollowerSession()

    async def close(self) -> None:
        self._fetch_client.close()
        self._question_client.close()

    async def fetch(
        self, positions: FetchPositions, *, is_short: bool = False
    ) -> dict[TopicPartition, FetchPartitionData]:
        session = self._session.next_request(positions)
        settings = self._settings
        wait_ms = SHORT_WAIT_MS if is_short else settings.max_wait_ms
        request = FetchRequest(
            replica_id=settings.own_id,
            replica_epoch=settings.own_broker_epoch(),
            max_wait_ms=0 if positions.has_more_changes else min(settings.max_wait_ms, wait_ms),
            min_bytes=settings.min_bytes,
            max_bytes=settings.max_bytes,
            isolation_level=READ_UNCOMMITTED,
            session_id=session.session_id,
            session_epoch=session.session_epoch,
            topics=session.topics,
            forgotten=session.forgotten,
            rack_id="",
        )
        try:
            frame = await self._send(
                self._fetch_client,
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
        return self._session.by_partition(answer.topics)

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
        raise LeaderUnavailable(f"ListOffsets of {tp}: the answer does not have the partition")

    async def _ask(self, api_key: ApiKey, version: int, body: Mapping[str, Any]) -> Any:
        frame = await self._send(
            self._question_client,
            lambda correlation: [messages.encode_request(api_key, version, correlation, CLIENT_ID, body)],
        )
        try:
            return messages.decode_response(api_key, version, frame)[1]
        except MalformedRequest as error:
            raise LeaderUnavailable(str(error)) from error

    async def _send(self, client: NetworkClient, encode: Callable[[int], list[bytes]]) -> memoryview:
        address = self._address_of()
        if address is None:
            raise LeaderUnavailable("the leader's address is not known")
        try:
            return await client.send(address, encode)
        except (Disconnected, RequestTimedOut) as error:
            raise LeaderUnavailable(str(error)) from error
