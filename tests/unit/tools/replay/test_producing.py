"""A replayed producer against a broker that fails as brokers do: every batch once, in order, or with an error in its row."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from protocol.errors import ErrorCode
from protocol.kafka import produce_codec
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.framing import parse_request_header
from protocol.kafka.record_batch import parse_header
from protocol.types import TopicPartition
from tools.replay.load.background import Background
from tools.replay.load.operations import Operation
from tools.replay.load.producing import LANE_IN_FLIGHT, NOT_ANSWERED, ProducingClient
from tools.wire.frames import PRODUCE_VERSION

S = 1_000_000_000
TOPIC = "t"


class FakeCluster:
    """One partition of one topic. It checks sequences as a leader does (KIP-98), and fails on demand."""

    def __init__(self) -> None:
        self.log: list[tuple[int, int, int]] = []
        """(producer id, base sequence, records) of what was appended."""
        self.next: dict[int, int] = {}
        self.leader_id = 1
        self.errors: list[int | None] = []
        """For the next batches: an error, or None for a connection that ends before (negative: after) the append."""
        self.connections: list[FakeConnection] = []
        self.producer_ids = 0

    # As ClusterView:

    def leader(self, partition: tuple[str, int]) -> int:
        return self.leader_id

    def ask_again(self, then: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(then)

    async def connect(self, broker: int, on_end: Callable[[Any], None]) -> FakeConnection:
        self.connections.append(FakeConnection(self))
        return self.connections[-1]

    async def ask_any(self, api_key: ApiKey, version: int, body: dict[str, Any]) -> Any:
        assert api_key == ApiKey.INIT_PRODUCER_ID

        class Answer:
            error_code = 0
            producer_id = self.producer_ids
            producer_epoch = 0

        self.producer_ids += 1
        return Answer()

    def append(self, batch: memoryview) -> tuple[int, int]:
        """(error, base offset)."""
        header = parse_header(batch)
        known = (header.producer_id, header.base_sequence, header.record_count)
        if header.producer_id >= 0:
            if known in self.log[-LANE_IN_FLIGHT:]:
                return ErrorCode.NONE, sum(row[2] for row in self.log[: self.log.index(known)])
            if header.base_sequence != self.next.get(header.producer_id, 0):
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            self.next[header.producer_id] = header.base_sequence + header.record_count
        self.log.append(known)
        return ErrorCode.NONE, sum(row[2] for row in self.log[:-1])


class FakeConnection:
    """Answers in order, a turn of the loop later."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.is_open = True
        self.cluster = cluster
        self.waiting: list[Callable[[memoryview | None], None]] = []

    def send(self, frame: bytes, on_answer: Callable[[memoryview | None], None] | None) -> None:
        payload = memoryview(frame)[4:]
        request = produce_codec.decode_request(PRODUCE_VERSION, payload, parse_request_header(payload).body_offset)
        ((topic, ((partition, batch),)),) = request.topics
        assert (topic, partition) == (TOPIC, 0)
        assert batch is not None
        if on_answer is None:
            self.cluster.append(batch)
            return
        self.waiting.append(on_answer)
        asyncio.get_running_loop().call_soon(self._answer, batch)

    def _answer(self, batch: memoryview) -> None:
        if not self.is_open:
            return
        fate = self.cluster.errors.pop(0) if self.cluster.errors else 0
        if fate is None or fate < -1:
            if fate is not None:
                self.cluster.append(batch)
            self.close()
            return
        error, offset = (fate, -1) if fate else self.cluster.append(batch)
        body = struct.pack(">iih1sii", 0, 1, 1, TOPIC.encode(), 1, 0) + struct.pack(">hqqq", error, offset, -1, 0)
        self.waiting.pop(0)(memoryview(body))

    def close_if_stuck(self, timeout_s: float) -> None:
        pass

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            for on_answer in self.waiting:
                on_answer(None)


def play(cluster: FakeCluster, batches: int, acks: int = -1, pause: int = 0) -> list[Operation]:
    """Sends batches of 1, 2 or 3 records; returns the operations as they ended."""
    done: list[Operation] = []

    async def run() -> None:
        background = Background()
        client = ProducingClient("c", 9, 7, cluster, background, lambda: S, 10 * S, done.append)  # type: ignore[arg-type]
        for number in range(batches):
            operation = Operation("produce", number, 9, TOPIC, 0, number % 3 + 1, 200, S)
            operation.acks = acks
            client.add(operation)
            client.flush()
            for _ in range(pause):
                await asyncio.sleep(0)
        for _ in range(10_000):
            if len(done) == batches:
                break
            await asyncio.sleep(0)
        assert not background.failed.done()
        client.give_up()

    asyncio.run(run())
    return done


LOST_BEFORE, LOST_AFTER = None, -2
NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER
PASSING = [LOST_BEFORE, LOST_AFTER, NOT_LEADER, ErrorCode.NOT_ENOUGH_REPLICAS, 0, 0, 0]


@settings(max_examples=150)
@given(
    fates=st.lists(st.sampled_from(PASSING), max_size=40),
    batches=st.integers(1, 20),
    pause=st.integers(0, 3),
)
@example(
    fates=[LOST_AFTER, NOT_LEADER, 0, LOST_BEFORE, NOT_LEADER], batches=6, pause=0
)  # the broker forgot the first batch
def test_every_batch_is_in_the_log_once_and_in_order(fates: list[int | None], batches: int, pause: int) -> None:
    cluster = FakeCluster()
    cluster.errors = list(fates)
    # A batch may be acknowledged before the one ahead of it, if that was appended and its answer was lost.
    done = sorted(play(cluster, batches, pause=pause), key=lambda operation: operation.request)
    assert [operation.error for operation in done] == [None] * batches
    assert [row[2] for row in cluster.log] == [number % 3 + 1 for number in range(batches)]
    assert [operation.offset for operation in done] == [
        sum(number % 3 + 1 for number in range(at)) for at in range(batches)
    ]


def test_a_refused_batch_fails_alone() -> None:
    """The sequence numbers after it have a gap, so the rest is sent with another producer id."""
    cluster = FakeCluster()
    cluster.errors = [0, ErrorCode.MESSAGE_TOO_LARGE]
    done = sorted(play(cluster, 8), key=lambda operation: operation.request)
    assert [operation.error for operation in done] == [None, "MESSAGE_TOO_LARGE", *[None] * 6]
    assert len(cluster.log) == 7
    assert {row[0] for row in cluster.log} == {0, 1}


def test_a_batch_without_acknowledgement_is_done_when_it_is_sent() -> None:
    cluster = FakeCluster()
    done = play(cluster, 8, acks=0)
    assert len(done) == len(cluster.log) == 8
    assert all(operation.answered == operation.sent and operation.offset == -1 for operation in done)


def test_what_is_made_ahead_is_there_for_the_first_batch() -> None:
    """A connection and a producer id, each asked for once; the first batch is in the log after one turn of the loop."""
    cluster = FakeCluster()
    done: list[Operation] = []

    async def run() -> None:
        client = ProducingClient("c", 9, 7, cluster, Background(), lambda: S, 10 * S, done.append)  # type: ignore[arg-type]
        limit = asyncio.Semaphore(1)
        opening = [task for _ in range(2) for task in client.connect_ahead(TopicPartition(TOPIC, 0), -1, limit)]
        await asyncio.gather(*opening)
        assert (len(opening), len(cluster.connections), cluster.producer_ids) == (2, 1, 1)
        operation = Operation("produce", 0, 9, TOPIC, 0, 1, 200, S)
        operation.acks = -1
        client.add(operation)
        client.flush()
        await asyncio.sleep(0)
        assert (len(cluster.log), done) == (1, [operation])
        assert (len(cluster.connections), cluster.producer_ids) == (1, 1)
        client.give_up()

    asyncio.run(run())


def test_lanes_and_the_coordinator_share_one_connection_to_a_broker() -> None:
    """Also if both need it at the same time: an operation on another one would have no leader in its row."""

    class FarCluster(FakeCluster):
        async def connect(self, broker: int, on_end: Callable[[Any], None]) -> FakeConnection:
            await asyncio.sleep(0)
            return await super().connect(broker, on_end)

    cluster = FarCluster()

    async def run() -> None:
        client = ProducingClient("c", 9, 7, cluster, Background(), lambda: S, 10 * S, lambda _: None)  # type: ignore[arg-type]
        operation = Operation("produce", 0, 9, TOPIC, 0, 1, 200, S, acks=1)
        client.add(operation)
        own = await asyncio.gather(client.connection_to(1), client.connection_to(1))
        for _ in range(5):
            await asyncio.sleep(0)
        assert [connection for connection in cluster.connections if connection.is_open] == own[:1] == own[1:]
        assert (operation.leader, len(cluster.log)) == (1, 1)
        client.give_up()

    asyncio.run(run())


def test_without_a_leader_everything_fails_at_its_time() -> None:
    cluster = FakeCluster()
    cluster.leader_id = -1
    done: list[Operation] = []

    async def run() -> None:
        now = S
        client = ProducingClient("c", 9, 7, cluster, Background(), lambda: now, 10 * S, done.append)  # type: ignore[arg-type]
        for number in range(3):
            operation = Operation("produce", number, 9, TOPIC, 0, 1, 200, S * (1 + 20 * (number == 2)))
            operation.acks = -1
            client.add(operation)
        await asyncio.sleep(0)
        now = 12 * S
        client.expire()
        assert [operation.error for operation in done] == [NOT_ANSWERED] * 2
        client.give_up()

    asyncio.run(run())
    assert [operation.error for operation in done] == [NOT_ANSWERED] * 3
    assert all(operation.answered == operation.sent == 0 for operation in done)
