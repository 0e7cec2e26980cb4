"""KIP-227: sessions, their epochs, what an incremental answer has, and the bound of the cache (BAD-30)."""

from __future__ import annotations

import itertools
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.apis.fetch_sessions import EPOCH_MAX, FetchContext, FetchSessionCache
from broker.metadata_cache import MetadataCache
from broker.replication.quiet_partitions import QuietIndex
from broker.replication.replica_state import FollowerState
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.fetch_codec import FetchPartitionData, FetchRequest, FetchRequestPartition, TopicKey
from protocol.rpc.messages import PartitionState, UpdateMetadataRequest
from protocol.types import TopicPartition
from protocol.zk.znodes import topic_id_text
from tests.support.fake_time import FakeTime

SLOTS = 3


class World:
    def __init__(self) -> None:
        self.time = FakeTime()
        self.metadata = MetadataCache()
        ids = itertools.count(100)
        index = QuietIndex(lambda tp, replica: FollowerState())
        self.cache = FetchSessionCache(
            SLOTS,
            self.time,
            self.metadata.topic_name,
            lambda low, high: next(ids),
            index.open,
            lambda quiet, epoch: index.begin_fetch(quiet, epoch, self.time.monotonic(), looks_at_all=False),
        )

    def open(
        self,
        session_id: int,
        epoch: int,
        wanted: dict[TopicKey, list[int]] | None = None,
        forgotten: dict[TopicKey, list[int]] | None = None,
        *,
        replica_id: int = -1,
        offset: int = 0,
        uses_topic_ids: bool = False,
    ) -> FetchContext:
        topics = [
            (key, [FetchRequestPartition(p, -1, offset, -1, -1, 1000) for p in partitions])
            for key, partitions in (wanted or {}).items()
        ]
        request = FetchRequest(
            replica_id, -1, 500, 1, 10000, 0, session_id, epoch, topics, list((forgotten or {}).items())
        )
        return self.cache.open(request, uses_topic_ids=uses_topic_ids)


def asked(context: FetchContext) -> list[tuple[TopicKey, int]]:
    return [(p.key, p.wanted.partition) for p in context.partitions]


def answer(context: FetchContext, **data: FetchPartitionData) -> list[tuple[TopicKey, list[int]]]:
    """What is answered when each partition has the data named `<topic><partition>`, or nothing new."""
    results = [
        (p, data.get(f"{p.key}{p.wanted.partition}", FetchPartitionData(p.wanted.partition, 0, 0, 0, 0)))
        for p in context.partitions
    ]
    return [(key, [d.partition for d in rows]) for key, rows in context.select(results)]


def test_a_session_tells_news_only() -> None:
    world = World()
    full = world.open(0, 0, {"a": [0, 1], "b": [0]})
    assert full.session_id == 100
    assert answer(full) == [("a", [0, 1]), ("b", [0])]

    assert answer(world.open(100, 1)) == []
    moved = FetchPartitionData(1, 0, 5, 5, 0)
    assert answer(world.open(100, 2), a1=moved) == [("a", [1])]
    assert answer(world.open(100, 3), a1=moved) == []
    assert answer(world.open(100, 4), a1=moved, b0=FetchPartitionData(0, 0, 0, 0, 3)) == [("b", [0])]
    assert answer(world.open(100, 5), a1=moved, b0=FetchPartitionData(0, 0, 0, 0, 3, [b"x"])) == [("b", [0])]


def test_an_error_is_told_until_it_is_over_and_then_once_more() -> None:
    world = World()
    answer(world.open(0, 0, {"a": [0]}))
    failed = FetchPartitionData(0, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    for epoch in (1, 2):
        assert answer(world.open(100, epoch), a0=failed) == [("a", [0])]
    assert answer(world.open(100, 3)) == [("a", [0])]
    assert answer(world.open(100, 4)) == []


def test_partitions_are_added_changed_and_forgotten() -> None:
    world = World()
    world.open(0, 0, {"a": [0, 1]})
    context = world.open(100, 1, {"a": [1], "b": [0]}, {"a": [0]}, offset=7)
    assert asked(context) == [("a", 1), ("b", 0)]
    assert [p.wanted.fetch_offset for p in context.partitions] == [7, 7]
    assert asked(world.open(100, 2)) == [("a", 1), ("b", 0)]


def test_who_got_data_is_served_last_next_time() -> None:
    world = World()
    answer(world.open(0, 0, {"a": [0, 1, 2]}))
    answer(world.open(100, 1), a0=FetchPartitionData(0, 0, 1, 1, 0, [b"x"]))
    assert asked(world.open(100, 2)) == [("a", 1), ("a", 2), ("a", 0)]


def test_a_session_without_partitions_ends() -> None:
    world = World()
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
def test_bad_sessions(session_id: int, epoch: int, error: ErrorCode) -> None:
    world = World()
    world.open(0, 0, {"a": [0]})
    with pytest.raises(KafkaError) as raised:
        world.open(session_id, epoch)
    assert raised.value.code is error
    assert world.open(100, 1).session_id == 100


def test_closing_and_renewing() -> None:
    world = World()
    world.open(0, 0, {"a": [0]})
    renewed = world.open(100, 0, {"a": [0]})
    assert renewed.session_id == 101
    closed = world.open(101, -1, {"a": [0]})
    assert (closed.session_id, asked(closed)) == (0, [("a", 0)])
    assert len(world.cache) == 0


def test_the_epoch_wraps() -> None:
    world = World()
    session = world.open(0, 0, {"a": [0]}).session
    assert session is not None
    session.next_epoch = EPOCH_MAX
    world.open(100, EPOCH_MAX)
    assert world.open(100, 1).session_id == 100


def test_a_full_cache_gives_no_sessions_unless_one_is_idle_or_a_follower_asks() -> None:
    world = World()
    for _ in range(SLOTS):
        assert world.open(0, 0, {"a": [0]}).session_id
    assert world.open(0, 0, {"a": [0]}).session_id == 0
    follower = world.open(0, 0, {"a": [0]}, replica_id=2)
    assert follower.session_id
    world.time.now += 100
    world.open(102, 1)
    world.time.now += 50
    assert world.open(0, 0, {"a": [0]}).session_id  # 101 was idle for 150 s
    assert world.open(0, 0, {"a": [0]}).session_id  # and so was the follower's
    assert world.open(0, 0, {"a": [0]}).session_id == 0
    assert len(world.cache) == SLOTS
    assert world.open(102, 2).session_id == 102


def test_a_topic_id_is_resolved_when_it_becomes_known() -> None:
    world = World()
    topic_id = uuid.uuid4()
    context = world.open(0, 0, {topic_id: [0]}, uses_topic_ids=True)
    assert context.partitions[0].tp is None
    state = PartitionState("a", 0, 1, 1, 0, (1,), 0, (1,))
    world.metadata.update(UpdateMetadataRequest(1, 1, 1, (state,), {"a": topic_id_text(topic_id)}, ()))
    assert world.open(100, 1, uses_topic_ids=True).partitions[0].tp == TopicPartition("a", 0)
    with pytest.raises(KafkaError) as raised:
        world.open(100, 2)
    assert raised.value.code is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


@given(st.lists(st.tuples(st.sampled_from(["add", "forget"]), st.sampled_from("abc"), st.integers(0, 2)), max_size=30))
def test_the_session_is_the_set_that_the_client_named(steps: list[tuple[str, str, int]]) -> None:
    world = World()
    world.open(0, 0, {"z": [0]})
    expected = {("z", 0)}
    for epoch, (step, topic, partition) in enumerate(steps, 1):
        named: dict[TopicKey, list[int]] = {topic: [partition]}
        context = world.open(100, epoch, named if step == "add" else None, named if step == "forget" else None)
        (expected.add if step == "add" else expected.discard)((topic, partition))
        assert set(asked(context)) == expected
