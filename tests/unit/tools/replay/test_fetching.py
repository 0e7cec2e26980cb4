"""A replayed consumer against brokers that answer when the test says so: how long its fetches wait, and what they ask for (RPL-2)."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, cast

import pytest

from protocol.kafka import fetch_codec, messages
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.control_records import Marker, marker_batch
from protocol.kafka.framing import parse_request_header
from protocol.kafka.record_batch import TRANSACTIONAL_BIT
from protocol.types import TopicPartition
from tools.replay.load import fetching, stamps
from tools.replay.load.background import Background
from tools.replay.load.fetching import ComingFetch, FetchingClient, wait_ms
from tools.replay.load.groups import Groups
from tools.replay.load.operations import Operation
from tools.wire import offsets
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


def a_batch(records: int, offset: int, producer_id: int = -1) -> memoryview:
    """With a producer id: in a transaction. Without records: the marker of an end."""
    bits = 0 if producer_id < 0 else TRANSACTIONAL_BIT
    if records:
        of_producer = {"producer_id": producer_id, "attributes": bits}
        batch = stamps.build(records, 0, run=1, producer=1, first_sequence=0, timestamp_ms=0, **of_producer)
    else:
        batch = marker_batch(producer_id, 0, Marker(False, 0), 0)
    return memoryview(struct.pack(">q", offset) + batch[8:])


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
        assert len(self.asked[-1].partitions) == len(partitions)
        self.waiting.append((partitions, on_answer))

    def answer(self, records: int = 0) -> None:
        """Answers the oldest fetch with so many records of each partition."""
        partitions, on_answer = self.waiting.pop(0)
        rows = [
            fetch_codec.FetchPartitionData(
                row.partition, 0, records=[a_batch(records, row.fetch_offset)] if records else []
            )
            for row in partitions
        ]
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
    def __init__(self) -> None:
        self.topics: set[str] = set()
        self.read: list[tuple[dict[int, int], dict[int, int], int]] = []
        """Partition -> offset asked for; partition -> offset after the answer; milliseconds overdue."""

    def expect(self, topic: str, due: int) -> None:
        self.topics.add(topic)

    def note_read(
        self, first: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], records: int, overdue_ns: int
    ) -> None:
        by_number = [{partition.partition: offset for partition, offset in each.items()} for each in (first, ends)]
        self.read.append((by_number[0], by_number[1], overdue_ns // MS))


class FakeGroups:
    def __init__(self) -> None:
        self.member = FakeMember()

    def join(self, group: str, client: str, reader: object) -> FakeMember:
        assert group == "readers"
        return self.member


class World:
    """One client; the trace's rows are (milliseconds, partition)."""

    def __init__(self, group: str | None, merges: bool) -> None:
        self.now = NOW
        self.view = FakeView()
        self.groups = FakeGroups()
        self.done: list[Operation] = []
        self.background = Background()
        self.client = FetchingClient(
            "reader",
            cast(Any, self.view),
            self.background,
            lambda: self.now,
            10_000 * MS,
            self.done.append,
            asyncio.Semaphore(1),
            cast(Groups, self.groups),
            group,
            merges=merges,
        )

    def expect(self, *rows: tuple[int, int]) -> None:
        self.client.expect([ComingFetch(NOW + at * MS, TopicPartition(TOPIC, partition)) for at, partition in rows])

    async def send(self, at_ms: int, partition: int, late_ms: int = 0) -> None:
        """The next row of the trace is due. The client gets it late by `late_ms`."""
        self.now = NOW + (at_ms + late_ms) * MS
        operation = Operation("fetch", at_ms, 0, TOPIC, partition, 0, 0, NOW + at_ms * MS)
        operation.max_wait_ms = MAX_WAIT_MS
        self.client.add([operation])
        await settled()

    async def assign(self, offsets: Mapping[int, int], others: Collection[TopicPartition] = ()) -> None:
        """The group assigns these partitions. `others`: those for which it has committed nothing."""
        known = {TopicPartition(TOPIC, partition): offset for partition, offset in offsets.items()}
        await self.client.assign([*known, *others], known)
        await settled()

    def waits(self, broker: int) -> list[int]:
        return [asked.max_wait_ms for asked in self.view.brokers[broker].asked]


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def play(work: Callable[[World], Any], group: str | None = None, *, merges: bool = True) -> None:
    async def run() -> None:
        world = World(group, merges)
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
        world.view.brokers[0].answer()
        await settled()
        # The first fetch was on time. The other two are one fetch, which waits for the next one.
        assert world.waits(0) == [9, 329]
        world.view.brokers[0].answer()
        assert [operation.error for operation in world.done] == [None] * 3

    play(work)


def test_a_fetch_whose_partition_has_moved_no_longer_limits_the_wait() -> None:
    async def work(world: World) -> None:
        world.expect((0, 0), (100, 2), (250, 0))
        world.view.leaders[2] = 1
        await world.send(0, 0)
        assert world.waits(0) == [249]

    play(work)


@pytest.mark.parametrize(("merges", "fetches"), [(True, 2), (False, 201)])
def test_overdue_fetches_of_an_open_loop_are_one(merges: bool, fetches: int) -> None:
    """A broker that answers 10 s late: 200 fetches of two partitions wait for it. Each row has its answer, the records count once."""

    async def work(world: World) -> None:
        rows = [(10 * at, at % 2 * 2) for at in range(201)]
        world.expect(*rows)
        for at, partition in rows:
            await world.send(at, partition)
        world.now = NOW + 12_000 * MS
        broker = world.view.brokers[0]
        while broker.waiting:
            broker.answer(records=3)
            await settled()
        assert len(broker.asked) == fetches
        assert len(world.done) == 201
        assert {operation.answered for operation in world.done} == {world.now}
        if merges:
            assert broker.asked[1].partitions == {0, 2}
            # Of the first fetch, then of both partitions in the second one.
            assert [operation.records for operation in world.done if operation.records] == [3, 3, 3]
            reads = [read for operation in world.done for read in operation.reads or ()]
            assert reads == [(TOPIC, 0, 100, 103), (TOPIC, 2, 100, 103), (TOPIC, 0, 103, 106)]

    play(work, merges=merges)


def test_without_times_a_fetch_waits_only_if_no_other_is_known() -> None:
    async def work(world: World) -> None:
        world.client.expect([ComingFetch(0, TopicPartition(TOPIC, 0))] * 2)
        await world.send(0, 0)
        await world.send(0, 0)
        world.view.brokers[0].answer()
        await settled()
        assert world.waits(0) == [0, MAX_WAIT_MS]

    play(work, merges=False)


@pytest.mark.parametrize(
    ("aborted", "records", "reads"),
    [
        ([], 11, [(101, 114)]),
        ([(1, 100)], 8, [(104, 114)]),  # offset 101 is within its batch
        ([(2, 105)], 9, [(101, 105), (107, 114)]),
        ([(2, 105), (1, 100), (1, 112)], 4, [(104, 105), (107, 112), (114, 114)]),
        ([(1, 90), (2, 105), (1, 112)], 4, [(104, 105), (107, 112), (114, 114)]),
        ([(1, 112)], 9, [(101, 112), (114, 114)]),
        ([(1, 100), (2, 105), (3, 109)], 3, [(104, 105), (107, 109), (112, 114)]),
    ],
)
def test_records_of_aborted_transactions_and_markers_do_not_count(
    aborted: list[tuple[int, int]], records: int, reads: list[tuple[int, int]]
) -> None:
    """The answer has batches of three producers, of which 1 ends a transaction in between."""
    log = [(100, 4, 1), (104, 0, 1), (105, 2, 2), (107, 0, 2), (108, 1, -1), (109, 3, 3), (112, 2, 1)]
    data = fetch_codec.FetchPartitionData(
        0,
        0,
        records=[memoryview(b"".join(a_batch(n, at, producer) for at, n, producer in log))],
        aborted_transactions=aborted,
    )
    body = fetch_codec.encode_response(FETCH_VERSION, 0, 0, 0, [(TOPIC, [data])])
    answer = memoryview(bytes(5) + b"".join(map(bytes, body)))
    place = TopicPartition(TOPIC, 0)
    found = fetching._results(answer, {place: 101})[place]
    assert (found.records, found.next_offset, found.reads) == (records, 114, reads)


def test_a_member_fetches_what_it_owns() -> None:
    async def work(world: World) -> None:
        world.expect((0, 0), (10, 1), (20, 6), (30, 6), (40, 5), (50, 5))
        await world.send(0, 0)
        assert not world.view.brokers, "it waits for its assignment"
        await world.assign({2: 7, 5: 8, 6: 9})
        broker = world.view.brokers[0]
        assert broker.asked == [Asked(9, {2, 6})], "2 instead of 0, and 6 has the same leader"
        broker.answer()
        await world.send(10, 1)
        assert world.view.brokers[1].asked == [Asked(29, {5})], "the one that was not fetched for the longest time"
        world.view.brokers[1].answer()
        await world.send(20, 6)
        assert broker.asked[1:] == [Asked(9, {2, 6})]
        assert [operation.partition for operation in world.done] == [2, 5]
        world.client.revoke()
        broker.answer()
        await world.send(30, 6)
        assert len(broker.asked) == 2
        await world.assign({})
        assert [(operation.error, operation.records) for operation in world.done] == [(None, 0)] * 4, (
            "it has nothing to fetch"
        )
        assert world.groups.member.topics == {TOPIC}
        assert world.groups.member.read[0] == ({2: 7, 6: 9}, {2: -1, 6: -1}, -9)

    play(work, group="readers")


def test_a_member_goes_on_where_it_was_while_partitions_come_and_go() -> None:
    async def work(world: World) -> None:
        world.expect((0, 2), (10, 6), (20, 6), (30, 2))
        await world.assign({2: 7, 6: 9})
        await world.send(0, 2)
        broker = world.view.brokers[0]
        await world.send(10, 6)
        world.client.release([TopicPartition(TOPIC, 6)])
        assert world.client.offsets() == {TopicPartition(TOPIC, 2): 7}
        broker.answer(records=3)
        assert broker.asked[1:] == [Asked(9, {2})], "the fetch of 6 that waited for its turn fetches what is left"
        assert world.client.offsets() == {TopicPartition(TOPIC, 2): 10}, "the fetch under way moves on in 2 only"
        await world.client.assign([TopicPartition(TOPIC, 2), TopicPartition(TOPIC, 4)], {TopicPartition(TOPIC, 4): 5})
        broker.answer()
        await world.send(20, 6)
        assert broker.asked[2:] == [Asked(9, {2, 4})]
        assert world.client.offsets() == {TopicPartition(TOPIC, 2): 10, TopicPartition(TOPIC, 4): 5}
        broker.answer()
        world.client.release([TopicPartition(TOPIC, 2), TopicPartition(TOPIC, 4)])
        await world.send(30, 2)
        assert [operation.partition for operation in world.done] == [2, 2, 4, 2]
        assert len(broker.asked) == 3, "a member that owns nothing has nothing to fetch"

    play(work, group="readers")


def test_a_member_starts_at_the_end_where_the_group_has_committed_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ends(view: object, partitions: list[TopicPartition], timeout_s: float) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 100)

    monkeypatch.setattr(fetching, "end_offsets", ends)

    async def work(world: World) -> None:
        world.expect((0, 3))
        await world.send(0, 3)
        await world.assign({}, [TopicPartition(TOPIC, 2)])
        world.view.brokers[0].answer()
        assert [(operation.partition, operation.offset) for operation in world.done] == [(2, 100)]

    play(work, group="readers")
