"""The metadata cache: updates, deletions, topics that are created again (CTL-13, STA-1)."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.cluster.metadata_cache import MetadataCache
from protocol.rpc.messages import PartitionState, UpdateMetadataRequest
from protocol.topic_ids import topic_id_text
from protocol.types import LEADER_DURING_DELETE, BrokerInfo, Endpoint, TopicPartition

FIRST_ID, SECOND_ID = uuid.UUID(int=11), uuid.UUID(int=12)


def state(topic: str, partition: int, leader: int = 1, epoch: int = 0) -> PartitionState:
    return PartitionState(topic, partition, 1, leader, epoch, (1, 2), 0, (1, 2))


def update(
    *states: PartitionState,
    ids: dict[str, uuid.UUID] | None = None,
    brokers: tuple[int, ...] = (1, 2),
    is_full: bool = False,
    counts: dict[str, int] | None = None,
) -> UpdateMetadataRequest:
    infos = tuple(BrokerInfo(b, 100 + b, (Endpoint("PLAINTEXT", "h", 9000 + b),)) for b in brokers)
    texts = {topic: topic_id_text(topic_id) for topic, topic_id in (ids or {}).items()}
    return UpdateMetadataRequest(1, 5, 7, states, texts, infos, is_full, partition_counts=counts or {})


@pytest.fixture
def cache() -> MetadataCache:
    return MetadataCache()


def test_an_update_merges_partitions_and_replaces_brokers(cache: MetadataCache) -> None:
    cache.update(update(state("a", 0), state("a", 1), ids={"a": FIRST_ID}))
    changed = cache.update(update(state("a", 1, leader=2, epoch=1), state("b", 0), brokers=(2,)))
    assert changed == [TopicPartition("a", 1), TopicPartition("b", 0)]
    assert [b.id for b in cache.brokers()] == [2]
    assert cache.broker(1) is None
    assert set(cache.partitions_of("a")) == {0, 1}
    assert cache.partition(TopicPartition("a", 1)) == state("a", 1, leader=2, epoch=1)
    assert cache.update(update(state("b", 0), brokers=(2,))) == [], "unchanged"
    assert (cache.controller_id, cache.controller_epoch) == (1, 5)


def test_a_topic_has_a_new_version_when_it_changed(cache: MetadataCache) -> None:
    cache.update(update(state("a", 0), state("b", 0), ids={"a": FIRST_ID, "b": SECOND_ID}))
    a, b = cache.topic_version("a"), cache.topic_version("b")
    brokers = cache.brokers_version
    cache.update(update(state("a", 0), state("b", 0, epoch=1), is_full=True, ids={"a": FIRST_ID, "b": SECOND_ID}))
    assert (cache.topic_version("a"), cache.brokers_version) == (a, brokers)
    assert cache.topic_version("b") > b
    cache.update(update(ids={"a": SECOND_ID}))
    cache.update(update(state("a", 0), ids={"a": SECOND_ID}, brokers=(1,)))
    assert cache.topic_version("a") > a
    assert cache.brokers_version > brokers
    cache.update(update(state("c", 0)))
    before = cache.topic_version("c")
    cache.update(update(ids={"c": uuid.UUID(int=13)}))
    assert cache.topic_version("c") > before, "its id becomes known"


def test_a_full_update_removes_the_partitions_that_it_does_not_contain(cache: MetadataCache) -> None:
    cache.update(update(state("a", 0), state("b", 0), ids={"a": FIRST_ID, "b": SECOND_ID}))
    assert cache.update(update(state("b", 0), ids={"b": SECOND_ID}, is_full=True)) == [TopicPartition("a", 0)]
    assert cache.topics() == ("b",)
    assert (cache.topic_id("a"), cache.topic_name(FIRST_ID)) == (None, None)


def test_a_topic_that_was_created_again_starts_empty(cache: MetadataCache) -> None:
    """FLT-36."""
    cache.update(update(state("a", 0), state("a", 1), ids={"a": FIRST_ID}))
    changed = cache.update(update(state("a", 0), ids={"a": SECOND_ID}))
    assert set(changed) == {TopicPartition("a", 0), TopicPartition("a", 1)}
    assert set(cache.partitions_of("a")) == {0}
    assert cache.topic_id("a") == SECOND_ID
    assert cache.topic_name(SECOND_ID) == "a"
    assert cache.topic_name(FIRST_ID) is None


def test_listeners_are_called_for_every_update_until_they_are_removed(cache: MetadataCache) -> None:
    heard: list[list[TopicPartition]] = []
    leave = cache.on_change(heard.append)
    cache.update(update(state("a", 0)))
    leave()
    leave()
    cache.update(update(state("b", 0)))
    assert heard == [[TopicPartition("a", 0)]]


def test_the_partition_count_comes_from_the_controller_not_from_the_states(cache: MetadataCache) -> None:
    """A partition whose state znode cannot be read counts too: the hash of a group id is taken over all partitions."""
    assert cache.partition_count("a") == 0
    cache.update(update(state("a", 0), state("a", 2), counts={"a": 5}))
    assert cache.partition_count("a") == 5
    cache.update(update(state("a", 1)))
    assert cache.partition_count("a") == 5
    cache.update(update(state("a", 0), counts={"a": 6}, is_full=True))
    assert cache.partition_count("a") == 6
    cache.update(update(state("b", 0), state("b", 1), is_full=True))
    assert (cache.partition_count("a"), cache.partition_count("b")) == (0, 2)
    cache.update(update(state("a", 0), counts={"a": 3}))
    cache.update(update(state("a", 0, leader=LEADER_DURING_DELETE)))
    assert cache.partition_count("a") == 0


def test_only_a_deletion_that_the_controller_reports_counts(cache: MetadataCache) -> None:
    """A full update may lack a topic because the controller could not read its node."""
    deleted: list[frozenset[str]] = []
    cache.on_deletion(deleted.append)
    both = {"a": FIRST_ID, "b": SECOND_ID}
    cache.update(update(state("a", 0), state("b", 0), ids=both))
    cache.update(update(state("b", 0), ids=both, is_full=True))
    cache.update(update(state("a", 0), state("b", 0), ids=both, is_full=True))
    assert deleted == []
    cache.update(update(state("b", 0), ids=both, is_full=True))
    cache.update(update(state("a", 0), ids={"a": uuid.UUID(int=13)}))
    assert deleted == [frozenset("a")], "made again while nobody told of it"
    cache.update(update(state("b", 0, leader=LEADER_DURING_DELETE)))
    assert deleted == [frozenset("a"), frozenset("b")]
    cache.update(update(state("a", 0, leader=LEADER_DURING_DELETE), is_full=True))
    assert deleted == [frozenset("a"), frozenset("b"), frozenset("a")]
    cache.update(update(state("a", 0), state("b", 0), ids={"a": FIRST_ID, "b": FIRST_ID}))
    assert len(deleted) == 3, "made again after it was told"


topics = st.sampled_from(["a", "b", "c"])
partition_states = st.builds(state, topics, st.integers(0, 2), st.sampled_from([-2, -1, 1, 2]), st.integers(0, 3))


@given(st.lists(st.tuples(st.lists(partition_states, max_size=4), st.booleans()), max_size=6))
def test_the_cache_equals_a_replay_of_all_updates(updates: list[tuple[list[PartitionState], bool]]) -> None:
    cache = MetadataCache()
    model: dict[TopicPartition, PartitionState] = {}
    for states, is_full in updates:
        cache.update(update(*states, is_full=is_full))
        if is_full:
            model = {}
        for each in states:
            if each.leader == LEADER_DURING_DELETE:
                model.pop(each.topic_partition, None)
            else:
                model[each.topic_partition] = each
    found = {TopicPartition(t, p): s for t in cache.topics() for p, s in cache.partitions_of(t).items()}
    assert found == model
