"""KIP-227: sessions, their epochs, incremental answers, and the limits of the cache (BAD-30)."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.cluster.metadata_cache import MetadataCache
from broker.replication.fetching.fetch_reads import PartitionRead
from broker.replication.fetching.fetch_session import FetchContext, Owner
from broker.replication.fetching.session_cache import (
    EPOCH_MAX,
    SESSIONS_PER_CONNECTION,
    SESSIONS_PER_FOLLOWER,
    UNKNOWN_PARTITIONS_MAX,
    CacheLimits,
    FetchSessionCache,
)
from broker.replication.hosted_partitions import HostedPartitions
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.fetch_codec import FetchPartitionData, FetchRequest, FetchRequestPartition
from protocol.kafka.wire import TopicKey
from protocol.rpc.messages import PartitionState, UpdateMetadataRequest
from protocol.topic_ids import topic_id_text
from protocol.types import BrokerInfo, TopicPartition
from tests.support.fake_time import FakeTime
from tests.support.refusals import refused

SLOTS = 3
OWN_ID = 1
EPOCH = 77


class Hosted(HostedPartitions):
    def exists(self, tp: TopicPartition) -> bool:
        return not tp.topic.startswith("no")


class World:
    """Topics whose names begin with `no` do not exist; the brokers 2 and 3 live, in the epoch EPOCH."""

    def __init__(self, *, slots: int = SLOTS, partitions: int = 1000) -> None:
        self.time = FakeTime()
        self.metadata = MetadataCache()
        brokers = tuple(BrokerInfo(broker, EPOCH, ()) for broker in (1, 2, 3))
        self.metadata.update(UpdateMetadataRequest(1, 1, 1, (), {}, brokers))
        ids = itertools.count(100)
        random: Any = SimpleNamespace(randint=lambda low, high: next(ids))
        make: Any = lambda tp: SimpleNamespace(topic_id=None)  # noqa: E731
        self.hosted = Hosted(self.metadata, make)
        self.cache = FetchSessionCache(
            CacheLimits(slots, partitions), self.time, self.hosted, self.metadata, OWN_ID, random
        )

    def open(
        self,
        session_id: int,
        epoch: int,
        wanted: dict[TopicKey, list[int]] | None = None,
        forgotten: dict[TopicKey, list[int]] | None = None,
        *,
        replica_id: int = -1,
        replica_epoch: int = -1,
        offset: int = 0,
        leader_epoch: int = -1,
        uses_topic_ids: bool = False,
        connection: Owner | None = None,
    ) -> FetchContext:
        topics = [
            (key, [FetchRequestPartition(p, leader_epoch, offset, -1, -1, 1000) for p in partitions])
            for key, partitions in (wanted or {}).items()
        ]
        gone = list((forgotten or {}).items())
        request = FetchRequest(replica_id, replica_epoch, 500, 1, 10000, 0, session_id, epoch, topics, gone)
        return self.cache.open(request, uses_topic_ids=uses_topic_ids, connection=connection)

    def follow(self, replica_id: int, topic: str = "a") -> int:
        """A follower's new session; returns its id, 0 if it gets none."""
        return self.open(0, 0, {topic: [0]}, replica_id=replica_id, replica_epoch=EPOCH).session_id

    def is_open(self, session_id: int) -> bool:
        return session_id in self.cache._sessions


def asked(context: FetchContext) -> list[tuple[TopicKey, int]]:
    return [(tp.topic, tp.partition) for tp, _ in context.entries]


def answer(context: FetchContext, **data: FetchPartitionData) -> list[tuple[TopicKey, list[int]]]:
    """The partitions of the answer, when each partition has the data named `<topic><partition>`, or nothing new."""
    found = [
        data.get(f"{tp.topic}{tp.partition}", FetchPartitionData(tp.partition, 0, 0, 0, 0)) for tp, _ in context.entries
    ]
    topics = context.answer([PartitionRead(data) for data in found], may_rest=True)
    return [(key, [d.partition for d in rows]) for key, rows in topics]


@pytest.fixture
def world() -> World:
    return World()


def test_an_incremental_answer_has_only_changed_partitions(world: World) -> None:
    full = world.open(0, 0, {"a": [0, 1], "b": [0]})
    assert full.session_id == 100
    assert answer(full) == [("a", [0, 1]), ("b", [0])]

    assert answer(world.open(100, 1)) == []
    moved = FetchPartitionData(1, 0, 5, 5, 0)
    assert answer(world.open(100, 2), a1=moved) == [("a", [1])]
    assert answer(world.open(100, 3), a1=moved) == []
    assert answer(world.open(100, 4), a1=moved, b0=FetchPartitionData(0, 0, 0, 0, 3)) == [("b", [0])]
    assert answer(world.open(100, 5), a1=moved, b0=FetchPartitionData(0, 0, 0, 0, 3, [b"x"])) == [("b", [0])]


def test_after_a_change_of_rights_the_next_good_request_reads_what_rested(world: World) -> None:
    """A request with a wrong epoch reads nothing, so the look is still due."""
    idle = PartitionRead(FetchPartitionData(0, 0, 0, 0, 0), is_idle=True)
    world.open(0, 0, {"a": [0]}).answer([idle], may_rest=True)
    assert asked(world.open(100, 1)) == []
    world.cache.look_at_all()
    with refused(ErrorCode.INVALID_FETCH_SESSION_EPOCH):
        world.open(100, 1)
    assert asked(world.open(100, 2)) == [("a", 0)]


def test_an_error_is_in_each_answer_and_its_end_in_one(world: World) -> None:
    answer(world.open(0, 0, {"a": [0]}))
    failed = FetchPartitionData(0, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    for epoch in (1, 2):
        assert answer(world.open(100, epoch), a0=failed) == [("a", [0])]
    assert answer(world.open(100, 3)) == [("a", [0])]
    assert answer(world.open(100, 4)) == []


def test_partitions_are_added_changed_and_forgotten(world: World) -> None:
    world.open(0, 0, {"a": [0, 1]})
    context = world.open(100, 1, {"a": [1], "b": [0]}, {"a": [0]}, offset=7)
    assert asked(context) == [("a", 1), ("b", 0)]
    assert [wanted.fetch_offset for _, wanted in context.entries] == [7, 7]
    assert asked(world.open(100, 2)) == [("a", 1), ("b", 0)]


@pytest.mark.parametrize(
    ("offset", "leader_epoch", "is_told_again"),
    [(8, 2, False), (8, 3, True), (7, 3, True), (7, 2, True), (6, 2, True)],
    ids=["forward", "forward in a new epoch", "a new epoch", "at the same offset", "back"],
)
def test_a_high_watermark_of_a_void_answer_is_told_again(
    world: World, offset: int, leader_epoch: int, is_told_again: bool
) -> None:
    """Simulation, seed 29200024: a follower's high watermark stayed behind, and so did a consumer that read from it (KIP-392)."""
    answer(world.open(0, 0, {"a": [0]}, offset=7, leader_epoch=2))
    moved = FetchPartitionData(0, 0, 5, 5, 0)
    assert answer(world.open(100, 1), a0=moved) == [("a", [0])]
    changed = world.open(100, 2, {"a": [0]}, offset=offset, leader_epoch=leader_epoch)
    assert answer(changed, a0=moved) == [("a", [0])] * is_told_again
    assert answer(world.open(100, 3), a0=moved) == []


def test_a_partition_that_got_records_is_read_last_next_time(world: World) -> None:
    answer(world.open(0, 0, {"a": [0, 1, 2]}))
    answer(world.open(100, 1), a0=FetchPartitionData(0, 0, 1, 1, 0, [b"x"]))
    assert asked(world.open(100, 2)) == [("a", 1), ("a", 2), ("a", 0)]


def test_a_session_without_partitions_ends(world: World) -> None:
    world.open(0, 0, {"a": [0]})
    assert world.open(100, 1, forgotten={"a": [0]}).session_id == 0
    assert len(world.cache) == 0


@pytest.mark.parametrize(
    ("session_id", "epoch", "error"),
    [
        (99, 1, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (0, 1, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (100, 2, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (100, EPOCH_MAX, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
    ],
)
def test_bad_sessions(world: World, session_id: int, epoch: int, error: ErrorCode) -> None:
    world.open(0, 0, {"a": [0]})
    with refused(error):
        world.open(session_id, epoch)
    assert world.open(100, 1).session_id == 100


def test_a_session_is_closed_and_replaced(world: World) -> None:
    world.open(0, 0, {"a": [0]})
    renewed = world.open(100, 0, {"a": [0]})
    assert renewed.session_id == 101
    closed = world.open(101, -1, {"a": [0]})
    assert (closed.session_id, asked(closed)) == (0, [("a", 0)])
    assert len(world.cache) == 0


def test_the_epoch_wraps(world: World) -> None:
    session = world.open(0, 0, {"a": [0]}).session
    assert session is not None
    session.next_epoch = EPOCH_MAX
    world.open(100, EPOCH_MAX)
    assert world.open(100, 1).session_id == 100


def test_a_full_cache_evicts_only_an_idle_session_or_one_for_a_follower(world: World) -> None:
    for _ in range(SLOTS):
        assert world.open(0, 0, {"a": [0]}).session_id
    assert world.open(0, 0, {"a": [0]}).session_id == 0
    assert world.follow(2)
    world.time.now += 100
    world.open(102, 1)
    world.time.now += 50
    assert world.open(0, 0, {"a": [0]}).session_id  # 101 was idle for 150 s
    assert world.open(0, 0, {"a": [0]}).session_id  # and so was the follower's
    assert world.open(0, 0, {"a": [0]}).session_id == 0
    assert len(world.cache) == SLOTS
    assert world.open(102, 2).session_id == 102


def test_a_topic_id_is_resolved_when_it_becomes_known(world: World) -> None:
    topic_id = uuid.uuid4()
    context = world.open(0, 0, {topic_id: [0]}, uses_topic_ids=True)
    assert (context.entries, context.has_unknown_topics) == ([], True)
    ((_, (data,)),) = context.answer([], may_rest=False)
    assert (data.error, data.aborted_transactions) == (ErrorCode.UNKNOWN_TOPIC_ID, ()), "as in Kafka, not null"
    state = PartitionState("a", 0, 1, 1, 0, (1,), 0, (1,))
    world.metadata.update(UpdateMetadataRequest(1, 1, 1, (state,), {"a": topic_id_text(topic_id)}, ()))
    assert asked(world.open(100, 1, uses_topic_ids=True)) == [("a", 0)]
    with refused(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR):
        world.open(100, 2)


def test_a_topic_that_was_created_again_is_not_read_by_the_old_id(world: World) -> None:
    """Neither when the new log is here before the metadata has the new id, nor by a request that opens a session."""
    old, new = uuid.uuid4(), uuid.uuid4()
    state = PartitionState("a", 0, 1, 1, 0, (1,), 0, (1,))
    world.metadata.update(UpdateMetadataRequest(1, 1, 1, (state,), {"a": topic_id_text(old)}, ()))
    partition: Any = world.hosted.find_or_make(TopicPartition("a", 0))
    partition.topic_id = topic_id_text(old)
    assert asked(world.open(0, 0, {old: [0]}, uses_topic_ids=True)) == [("a", 0)]
    assert asked(world.open(100, 1, uses_topic_ids=True)) == [("a", 0)]
    partition.topic_id = topic_id_text(new)
    for context in (world.open(100, 2, uses_topic_ids=True), world.open(0, 0, {old: [0]}, uses_topic_ids=True)):
        assert (context.entries, context.has_unknown_topics) == ([], True)
    world.metadata.update(UpdateMetadataRequest(1, 1, 1, (state,), {"a": topic_id_text(new)}, ()))
    assert world.open(100, 3, uses_topic_ids=True).entries == []
    assert asked(world.open(0, 0, {new: [0]}, uses_topic_ids=True)) == [("a", 0)]


@given(st.lists(st.tuples(st.sampled_from(["add", "forget"]), st.sampled_from("abc"), st.integers(0, 2)), max_size=30))
def test_a_session_has_the_partitions_that_the_client_listed(steps: list[tuple[str, str, int]]) -> None:
    world = World()
    world.open(0, 0, {"z": [0]})
    expected = {("z", 0)}
    for epoch, (step, topic, partition) in enumerate(steps, 1):
        named: dict[TopicKey, list[int]] = {topic: [partition]}
        context = world.open(100, epoch, named if step == "add" else None, named if step == "forget" else None)
        (expected.add if step == "add" else expected.discard)((topic, partition))
        assert set(asked(context)) == expected


class Socket:
    """A connection: a session can belong to it."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[], object]] = []

    def when_ended(self, callback: Callable[[], object]) -> None:
        self._callbacks.append(callback)

    def end(self) -> None:
        for callback in self._callbacks:
            callback()


def test_a_session_ends_with_its_connection_and_sessions_of_a_connection_are_limited() -> None:
    world = World(slots=100)
    connection = Socket()
    ids = [world.open(0, 0, {"a": [0]}, connection=connection).session_id for _ in range(SESSIONS_PER_CONNECTION + 2)]
    assert [world.is_open(session_id) for session_id in ids[:3]] == [False, False, True]
    assert len(world.cache) == world.cache.partitions == SESSIONS_PER_CONNECTION
    other = world.open(0, 0, {"a": [0]}, connection=Socket()).session_id
    connection.end()
    assert world.is_open(other)
    assert len(world.cache) == world.cache.partitions == 1


def test_partitions_that_do_not_exist_are_limited() -> None:
    """300,000 of them in one session were 80 MB."""
    world = World(partitions=10 * UNKNOWN_PARTITIONS_MAX)
    many = list(range(UNKNOWN_PARTITIONS_MAX))
    session = world.open(0, 0, {"nowhere": many})
    assert session.session_id
    assert world.open(0, 0, {"nowhere": [*many, UNKNOWN_PARTITIONS_MAX]}).session_id == 0
    assert world.open(0, 0, {"no" * 200: [0]}).session_id == 0
    # Others may join it, and new unknown ones in the place of forgotten ones; one more ends it.
    assert world.open(session.session_id, 1, {"a": many}, {"nowhere": [0]}).session_id
    assert world.open(session.session_id, 2, {"no": [0]}).session_id
    with refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND):
        world.open(session.session_id, 3, {"no": [1]})
    assert len(world.cache) == world.cache.partitions == 0
    # It is none of a follower's business when the broker hears of a topic.
    named = {"nowhere": [*many, UNKNOWN_PARTITIONS_MAX]}
    assert world.open(0, 0, dict(named), replica_id=2, replica_epoch=EPOCH).session_id


def test_the_partitions_of_all_consumers_are_limited_and_the_largest_session_is_evicted() -> None:
    world = World(slots=100, partitions=100)
    large = world.open(0, 0, {"a": list(range(70))}).session_id
    small = world.open(0, 0, {"a": list(range(30))}).session_id
    assert large
    assert small
    assert world.open(0, 0, {"a": list(range(80))}).session_id == 0
    assert world.follow(2)
    assert world.open(0, 0, {"a": [0]}).session_id
    assert [world.is_open(large), world.is_open(small)] == [False, True]
    # One that grows above all others is the one to go.
    with pytest.raises(KafkaError):
        world.open(small, 1, {"a": list(range(200))})
    assert not world.is_open(small)
    assert world.cache.partitions == 1


def test_many_consumers_do_not_evict_a_followers_session() -> None:
    world = World(slots=SLOTS)
    follower = world.follow(2)
    for _ in range(5 * SLOTS):
        world.open(0, 0, {"a": [0]})
        world.open(0, 0, {"a": [0]}, replica_id=3, replica_epoch=EPOCH + 1)  # says that it is one
    assert world.is_open(follower)
    assert world.follow(3)


def test_the_sessions_of_a_follower_are_limited() -> None:
    world = World(slots=10 * SESSIONS_PER_FOLLOWER)
    other = world.follow(3)
    first, *rest = (world.follow(2) for _ in range(SESSIONS_PER_FOLLOWER + 1))
    assert not world.is_open(first)
    assert all(map(world.is_open, (other, *rest)))


def test_a_client_cannot_continue_the_session_of_a_follower(world: World) -> None:
    """A request in it counts as the follower's fetch of all its partitions that rest."""
    session_id = world.follow(2)
    for other in (-1, 3):
        with refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND):
            world.open(session_id, 1, replica_id=other, replica_epoch=EPOCH)
    assert world.open(session_id, 1, replica_id=2, replica_epoch=EPOCH).session_id == session_id


def test_nothing_is_kept_for_replica_ids_that_do_not_exist() -> None:
    world = World(slots=1)
    for replica in range(100):
        world.time.now += 200
        assert world.open(0, 0, {"a": [0]}, replica_id=replica).session_id
    assert len(world.cache.resting._of_followers) == 1
    assert len(world.cache._of_followers) == 0
