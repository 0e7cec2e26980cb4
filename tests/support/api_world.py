"""The APIs of one broker over a ZooKeeper in memory, without sockets; the controller is a fake."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

from broker.admin.topic_admin import TopicAdmin
from broker.apis.table import HANDLERS
from broker.cluster.metadata_cache import MetadataCache
from broker.network.request_channel import Request
from broker.network.request_metrics import RequestMetrics
from broker.process.audit_log import AuditLog
from broker.process.clock import SystemClock
from broker.process.rare_lines import RareLine
from broker.quotas.client_quotas import Quotas
from broker.requests.long_answers import LongAnswers
from broker.settings.config import BrokerConfig
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka import messages
from protocol.kafka.api_keys import ANSWERED, ApiKey, ApiLevel
from protocol.kafka.framing import Part, in_memory, parse_request_header
from protocol.rpc.messages import PartitionState, UpdateMetadataRequest
from protocol.topic_ids import topic_id_text
from protocol.types import (
    ANONYMOUS,
    LEADER_DURING_DELETE,
    Assignment,
    BrokerInfo,
    ClientSoftware,
    TopicPartition,
)
from protocol.zk.znodes import TopicZNode
from tests.support.fake_groups import FakeGroups
from tests.support.memory_zookeeper import MemorySession, MemoryZooKeeper

T_ID = uuid.UUID(int=7)
OTHER_ID = uuid.UUID(int=8)
LONG_MS = 20_000
SHORT_MS = 20


def level_of(api_key: int, version: int) -> ApiLevel:
    """The first level whose brokers answer the request."""
    versions = ((level, answered.get(ApiKey(api_key))) for level, answered in ANSWERED.items())
    return next(level for level, found in versions if found is not None and found.min <= version <= found.max)


class FakeController:
    """Gives the test's answers, or those of a controller that is not active."""

    def __init__(self) -> None:
        self.is_active = True
        self.moving: dict[TopicPartition, Assignment] = {}
        self.answers: dict[TopicPartition, KafkaError | None] = {}
        self.asked: list[Any] = []
        self.before_answer: Callable[[], None] = lambda: None
        self.hangs = False
        self.may_change_factor = True

    async def _answer(self, question: Any) -> dict[TopicPartition, KafkaError | None]:
        self._check()
        self.asked.append(question)
        await asyncio.sleep(LONG_MS / 1000 if self.hangs else 0)
        self.before_answer()
        self._check()
        return self.answers

    def _check(self) -> None:
        if not self.is_active:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "this broker is not the controller")

    async def alter_reassignments(
        self, targets: Mapping[TopicPartition, tuple[int, ...] | None], *, may_change_factor: bool = True
    ) -> dict[TopicPartition, KafkaError | None]:
        self.may_change_factor = may_change_factor
        return await self._answer(dict(targets))

    def reassignments(self) -> dict[TopicPartition, Assignment]:
        self._check()
        return self.moving

    async def elect_leaders(
        self, unclean: bool, partitions: Collection[TopicPartition] | None
    ) -> dict[TopicPartition, KafkaError | None]:
        return await self._answer((unclean, partitions))


class FakeConnection:
    """Keeps the bytes of the answer, why it was closed, and the requests whose frames are free."""

    listener = "PLAINTEXT"
    remote_address = "127.0.0.1"
    peer = "the test"
    principal = ANONYMOUS
    is_by_token = False
    remote_port = 4711
    software = ClientSoftware("test", "1.0")

    def __init__(self) -> None:
        self.sent = b""
        self.is_open = True
        self.reasons: list[str] = []
        self.freed: list[Request] = []

    def close(self, reason: str) -> None:
        self.reasons.append(reason)
        self.is_open = False

    def hold(self, reason: int) -> None:
        """Nothing waits."""

    release = hold

    def mute(self, milliseconds: int) -> None:
        """Nothing is read."""

    def frame_handled(self, request: Request) -> None:
        self.freed.append(request)

    def begin_fetch(self, request: Request, *, needs_room: bool) -> bool:
        return True

    def answer_room(self) -> int:
        return 1 << 30

    def reserve(self, size: int) -> None:
        """Nobody counts."""

    def when_answered(self, number: int, callback: Callable[[], object]) -> None:
        """Nobody measures."""

    def at_end(self, number: int, callback: Callable[[], object]) -> None:
        """It does not end."""

    def when_ended(self, callback: Callable[[], object]) -> None:
        """The work does not end."""

    def answer(self, number: int, parts: Sequence[bytes]) -> None:
        assert not self.sent, "answered twice"
        self.sent = b"".join(bytes(part) for part in parts)

    def answer_records(self, number: int, parts: Sequence[Part]) -> None:
        self.answer(number, [bytes(part) for part in in_memory(parts)])

    def answer_in_turn(self, number: int, make: Callable[[], Sequence[bytes]]) -> None:
        self.answer(number, make())


class SteppingClock:
    """Each reading of the clock takes half a millisecond, so answers take long."""

    def __init__(self) -> None:
        self._looks = itertools.count()

    def monotonic(self) -> float:
        return next(self._looks) / 2000


class World:
    """A broker's API context over a ZooKeeper in memory; brokers 1, 2, 3; topic `t` with partitions 0 (1, 2) and 1 (2, 3)."""

    def __init__(self, **settings: Any) -> None:
        self.zk = MemoryZooKeeper()
        self.session = MemorySession(self.zk)
        for path in ("/brokers/topics", "/admin/delete_topics"):
            self.zk.ensure(path)
        self.write_topic("t", T_ID, {0: Assignment((1, 2)), 1: Assignment((2, 3))})
        self.metadata = MetadataCache()
        self.update([state("t", 0, 1, (1, 2)), state("t", 1, 2, (2, 3))], t=T_ID)
        self.controller = FakeController()
        config = BrokerConfig(broker_id=1, **settings)
        zk = cast(Any, self.session)
        self.context: Any = SimpleNamespace(
            config=config,
            clock=SystemClock(),
            zookeeper=zk,
            metadata=self.metadata,
            controller=self.controller,
            topic_admin=TopicAdmin(config, zk, self.metadata, lambda n: 0),
            replica_listener=None,
            long_answers=LongAnswers(lambda: 0.0),
            groups=FakeGroups(),
            transactions=FakeGroups(),
            recorder=SimpleNamespace(recording=None),
            authorizer=None,
            acls=None,
            quotas=quotas(config),
            request_metrics=RequestMetrics(),
            tokens=None,
            audit=AuditLog(None, SystemClock()),
            denials=RareLine(1.0, lambda: 0.0),
            api_level=ApiLevel.KAFKA_3_9,
            old_fetches=RareLine(1.0, lambda: 0.0),
        )
        """Only what the APIs at hand need; a test may add to it. No answer takes long, as time stands still for them."""

    def write_topic(self, name: str, topic_id: uuid.UUID, assignment: Mapping[int, Assignment]) -> None:
        self.zk.ensure(TopicZNode.path(name), TopicZNode.encode(topic_id_text(topic_id), assignment))

    def topic(self, name: str = "t") -> tuple[str | None, dict[int, Assignment]]:
        return TopicZNode.decode(self.zk.nodes[TopicZNode.path(name)].data)

    def update(self, states: Sequence[PartitionState], **ids: uuid.UUID) -> None:
        """As the controller's UpdateMetadata."""
        brokers = tuple(BrokerInfo(n, n, ()) for n in (1, 2, 3))
        texts = {name: topic_id_text(topic_id) for name, topic_id in ids.items()}
        self.metadata.update(UpdateMetadataRequest(1, 1, 1, tuple(states), texts, brokers))

    def forget(self, name: str = "t") -> None:
        """The controller deletes the topic."""
        self.update([gone(name, number) for number in self.metadata.partitions_of(name)])

    def begin(
        self, api_key: ApiKey, version: int, body: Mapping[str, Any]
    ) -> tuple[FakeConnection, Coroutine[Any, Any, None] | None]:
        """Returns what the handler answers at once, and the rest of its work if there is any."""
        return self.begin_frame(messages.encode_request(api_key, version, 1, "test", body))

    def begin_frame(self, data: bytes) -> tuple[FakeConnection, Coroutine[Any, Any, None] | None]:
        """Like `begin`, with the bytes of a request."""
        frame = memoryview(data)
        connection = FakeConnection()
        request = Request(cast(Any, connection), 0, parse_request_header(frame), frame, 0.0)
        return connection, HANDLERS[ApiKey(request.header.api_key)](self.context, request)

    async def call(self, api_key: ApiKey, version: int, body: Mapping[str, Any]) -> Any:
        connection, waiting = self.begin(api_key, version, body)
        if waiting is not None:
            await waiting
        return self.answer(connection, api_key, version)

    @staticmethod
    def answer(connection: FakeConnection, api_key: ApiKey, version: int) -> Any:
        return messages.decode_response(api_key, version, connection.sent[4:])[1]


def state(topic: str, number: int, leader: int, replicas: tuple[int, ...], epoch: int = 0) -> PartitionState:
    return PartitionState(topic, number, 1, leader, epoch, replicas, 0, replicas)


def gone(topic: str, number: int) -> PartitionState:
    return state(topic, number, LEADER_DURING_DELETE, ())


def quotas(config: BrokerConfig | None = None, monotonic: Callable[[], float] = lambda: 0.0) -> Quotas:
    """Those of nobody; time stands still."""
    return Quotas(config or BrokerConfig(), monotonic)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(LONG_MS / 1000):
            await scenario

    asyncio.run(limited())


async def turns(count: int) -> None:
    """Lets the loop turn, so that waiting tasks continue."""
    for _ in range(count):
        await asyncio.sleep(0)


async def turns_until(is_so: Callable[[], bool]) -> None:
    """Lets the loop turn until the condition holds. A few turns are enough for everything here."""
    for _ in range(1000):
        if is_so():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not happen")
