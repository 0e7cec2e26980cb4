"""A replayed consumer against brokers that answer when the test says so: how long its fetches wait, and what they ask for (RPL-2)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, cast

import pytest

from protocol.kafka import fetch_codec, messages
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.framing import parse_request_header
from tools.replay.load.background import Background
from tools.replay.load.fetching import ComingFetch, FetchingClient, wait_ms
from tools.replay.load.membership import Groups
from tools.replay.load.operations import Operation
from tools.wire import offsets
from tools.wire.cluster_view import TopicPartition
from tools.wire.frames import FETCH_VERSION

MS = 1_000_000
NOW = 1_700_000_000_000 * MS
TOPIC = "t"
MAX_WAIT_MS = 500


@pytest.mark.parametrize(
    ("recorded", "next_due_ms", "expected"),
    [
        (500, None, 500),  # nothing is known
        (500, 2000, 500),  # at most as long as recorded: a slow replay
        (500, 100, 99),
        (500, 501, 500),
        (500, 1, 0),
        (500, 0, 0),
        (500, -3000, 0),  # late
        (0, 100, 0),
    ],
)
def test_a_fetch_waits_until_the_next_one_is_due(recorded: int, next_due_ms: int | None, expected: int) -> None:
    next_due = None if next_due_ms is None else NOW + next_due_ms * MS
    assert wait_ms(recorded, NOW, next_due) == expected


class Asked(NamedTuple):
    """A Fetch request."""

    max_wait_ms: int
    partitions: set[int]


class FakeBroker:
    """One connection. `waiting` has the fetches without an answer."""

    def __init__(self) -> None:
        self.is_open = True
        self.asked: list[Asked] = []
        self.waiting: list[tuple[Any, Callable[[memoryview | None], None]]] = []

    async def ask(self, frame: bytes, timeout_s: float) -> memoryview:
        payload = memoryview(frame)[4:]
        header = parse_request_header(payload)
        assert header.api_key == ApiKey.LIST_OFFSETS
        asked = messages.decode_request(ApiKey.LIST_OFFSETS, offsets.VERSION, payload, header.body_offset)
        known = {"error_code": 0, "timestamp": -1, "offset": 100, "leader_epoch": 0}
        topics = [
            {"name": topic.name, "partitions": [{"partition_index": row.partition_index, **known} for row in topic.partitions]}
            for topic in asked.topics
        ]  # fmt: skip
        body = messages.encode_response(ApiKey.LIST_OFFSETS, offsets.VERSION, {"throttle_time": 0, "topics": topics})
        return memoryview(bytes(4) + body)

    def send(self, frame: bytes, on_answer: Callable[[memoryview | None], None]) -> None:
        payload = memoryview(frame)[4:]
        request = fetch_codec.decode_request(FETCH_VERSION, payload, parse_request_header(payload).body_offset)
        ((_, partitions),) = request.topics
        self.asked.append(Asked(request.max_wait_ms, {row.partition for row in partitions}))
        self.waiting.append((partitions, on_answer))

    def answer(self) -> None:
        """Answers the oldest fetch, without records."""
        partitions, on_answer = self.waiting.pop(0)
        rows = [fetch_codec.FetchPartitionData(row.partition, 0) for row in partitions]
        body = fetch_codec.encode_response(FETCH_VERSION, 0, 0, 0, [(TOPIC, rows)])
        on_answer(memoryview(bytes(5) + b"".join(map(bytes, body))))

    def close_if_stuck(self, timeout_s: float) -> None:
        pass

    def close(self) -> None:
        self.is_open = False


class FakeView:
    """Leads the even partitions by broker 0, the odd ones by broker 1; as ClusterView."""

    def __init__(self) -> None:
        self.brokers: dict[int, FakeBroker] = {}
        self.leaders = {partition: partition % 2 for partition in range(8)}

    def leader(self, partition: TopicPartition) -> int:
        return self.leaders[partition[1]]

    async def connect(self, broker: int, on_end: object) -> FakeBroker:
        assert broker not in self.brokers, "a second connection to the broker"
        self.brokers[broker] = FakeBroker()
        return self.brokers[broker]


class FakeMember:
    def __init__(self, lose: Callable[[Iterable[TopicPartition]], None]) -> None:
        self.lose = lose
        self.read: list[tuple[TopicPartition, int]] = []

    def reads(self, partition: TopicPartition, scheduled: int) -> None:
        self.read.append((partition, scheduled))


class FakeGroups:
    def __init__(self) -> None:
        self.members: dict[str, FakeMember] = {}

    def join(self, group: str, client: str, offsets: object, lose: Any) -> FakeMember:
        self.members[group] = FakeMember(lose)
        return self.members[group]


class World:
    """One client; the trace's rows are (milliseconds, partition)."""

    def __init__(self, group: str | None = None) -> None:
        self.now = NOW
        self.view = FakeView()
        self.groups = FakeGroups()
        self.done: list[Operation] = []
        self.background = Background()
        self._group = group
        self.client = FetchingClient(
            "reader",
            cast(Any, self.view),
            self.background,
            lambda: self.now,
            10_000 * MS,
            self.done.append,
            asyncio.Semaphore(1),
            cast(Groups, self.groups),
        )

    def expect(self, *rows: tuple[int, int]) -> None:
        self.client.expect([ComingFetch(NOW + at * MS, (TOPIC, partition)) for at, partition in rows])

    async def send(self, at_ms: int, partition: int, late_ms: int = 0) -> None:
        """The next row of the trace is due. The client gets it late by `late_ms`."""
        self.now = NOW + (at_ms + late_ms) * MS
        operation = Operation("fetch", at_ms, 0, TOPIC, partition, 0, 0, NOW + at_ms * MS)
        operation.max_wait_ms = MAX_WAIT_MS
        operation.group = self._group
        self.client.add([operation])
        await settled()

    def waits(self, broker: int) -> list[int]:
        return [asked.max_wait_ms for asked in self.view.brokers[broker].asked]


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def play(work: Callable[[World], Any], group: str | None = None) -> None:
    async def run() -> None:
        world = World(group)
        await work(world)
        assert not world.background.failed.done()
        world.client.give_up()

    asyncio.run(run())


def test_the_wait_ends_before_the_clients_next_fetch_at_that_broker() -> None:
    async def work(world: World) -> None:
        world.expect((0, 0), (30, 1), (200, 2), (300, 3), (2000, 2), (2001, 1))
        await settled()
        assert world.view.brokers.keys() == {0, 1}, "the connections are there before the fetches are due"
        await world.send(0, 0)
        await world.send(30, 1)
        world.view.brokers[0].answer()
        world.view.brokers[1].answer()
        await world.send(200, 2)
        await world.send(300, 3)
        assert world.waits(0) == [199, MAX_WAIT_MS]
        assert world.waits(1) == [269, MAX_WAIT_MS]

    play(work)


def test_a_late_client_does_not_wait() -> None:
    async def work(world: World) -> None:
        world.expect((0, 0), (10, 0), (20, 0), (400, 0))
        await world.send(0, 0)
        await world.send(10, 0, late_ms=50)
        await world.send(20, 0, late_ms=50)
        for _ in range(2):
            world.view.brokers[0].answer()
            await settled()
        # The first fetch was on time. The second one is answered at once, because the third one is due. The third one waits.
        assert world.waits(0) == [9, 0, 329]
        assert [operation.error for operation in world.done] == [None, None]

    play(work)


def test_a_fetch_whose_partition_has_moved_no_longer_limits_the_wait() -> None:
    async def work(world: World) -> None:
        world.expect((0, 0), (100, 2), (250, 0))
        world.view.leaders[2] = 1
        await world.send(0, 0)
        assert world.waits(0) == [249]

    play(work)


def test_without_times_a_fetch_waits_only_if_no_other_is_known() -> None:
    async def work(world: World) -> None:
        world.client.expect([ComingFetch(0, (TOPIC, 0))] * 2)
        await world.send(0, 0)
        await world.send(0, 0)
        world.view.brokers[0].answer()
        await settled()
        assert world.waits(0) == [0, MAX_WAIT_MS]

    play(work)


def test_a_member_does_not_ask_for_a_partition_that_it_lost_until_the_trace_has_it_again() -> None:
    async def work(world: World) -> None:
        rows = [(0, 0), (10, 2), (20, 0), (30, 2), (40, 0)]
        world.expect(*rows)
        broker = None
        for number, (at, partition) in enumerate(rows):
            if number == 2:
                world.groups.members["readers"].lose([(TOPIC, 2)])
            await world.send(at, partition)
            broker = world.view.brokers[0]
            broker.answer()
        assert broker is not None
        assert [asked.partitions for asked in broker.asked] == [{0}, {0, 2}, {0}, {0, 2}, {0, 2}]
        read = world.groups.members["readers"].read
        assert read == [((TOPIC, partition), NOW + at * MS) for at, partition in rows]

    play(work, group="readers")
