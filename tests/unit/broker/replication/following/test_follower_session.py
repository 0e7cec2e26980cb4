"""The follower's end of an incremental fetch session (KIP-227)."""

from __future__ import annotations

import uuid

import pytest

from broker.replication.following import follower_session
from broker.replication.following.follower_session import LAST_EPOCH, FetchPosition, FetchPositions, FollowerSession
from protocol.kafka.fetch_codec import FetchPartitionData, FetchRequestPartition
from protocol.kafka.wire import TopicKey
from protocol.types import TopicPartition

TOPIC_ID = uuid.UUID(int=7)
TP = TopicPartition("t", 3)


def position(offset: int, topic_id: uuid.UUID = TOPIC_ID, partition: int = TP.partition) -> FetchPosition:
    return FetchPosition(topic_id, FetchRequestPartition(partition, 5, offset, 4, 0, 1000))


def test_a_request_lists_the_changed_positions() -> None:
    """A leader that applies each request knows every position."""
    session, positions = FollowerSession(), FetchPositions()
    tps = [TopicPartition(f"t{number}", TP.partition) for number in range(3)]
    ids = [uuid.UUID(int=number + 1) for number in range(3)]
    for tp, topic_id in zip(tps, ids, strict=True):
        positions[tp] = position(0, topic_id)
    at_leader: dict[tuple[TopicKey, int], FetchRequestPartition] = {}

    def ask() -> int:
        positions.begin_request()
        request = session.next_request(positions)
        named = {(topic_id, wanted.partition): wanted for topic_id, listed in request.topics for wanted in listed}
        at_leader.update(named)
        for topic_id, partitions in request.forgotten:
            for partition in partitions:
                at_leader.pop((topic_id, partition))
        session.answered(9)
        assert at_leader == {(p.topic_id, TP.partition): p.wanted for p in positions.values()}
        return len(named)

    assert ask() == 3
    assert ask() == 0
    positions[tps[0]] = position(5, ids[0])
    positions[tps[1]] = position(0, ids[1])  # unchanged
    assert not positions.is_as_asked(tps[0])
    assert positions.is_as_asked(tps[1])
    positions.drop(tps[2])
    assert ask() == 1
    positions.drop(tps[0])
    positions[tps[0]] = position(5, ids[0])  # dropped, and fetched again
    positions[tps[1]] = position(1, uuid.UUID(int=9))  # the topic was created again
    assert ask() == 2
    session.reset()
    assert ask() == 2


def test_partitions_in_a_new_leader_epoch_are_forgotten_until_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each answer of the leader would have an error for the old epoch until then."""
    monkeypatch.setattr(follower_session, "ADDED_AT_ONCE", 2)
    tps = [TopicPartition("t", n) for n in range(3)]
    positions = FetchPositions({tp: position(0) for tp in tps})
    positions.begin_request()
    positions.begin_request()
    for tp in tps:
        positions.drop(tp)
        positions[tp] = position(0)
    positions.begin_request()
    assert (list(positions.named), list(positions.forgotten)) == (tps[:2], [(TOPIC_ID, 2)])
    assert (positions.has_more_changes, positions.is_as_asked(tps[2])) == (True, False)
    positions.begin_request()
    assert (list(positions.named), list(positions.forgotten)) == (tps[2:], [])


def test_a_copied_partition_does_not_wait_for_new_partitions() -> None:
    """After a failover thousands join a session. Producers of the other partitions wait for the positions in each request."""
    hot = TopicPartition("t", 10_000)
    positions = FetchPositions({hot: position(0)})
    positions.begin_request()
    for n in range(5000):
        positions[TopicPartition("t", n)] = position(0)
    for offset in (1, 2, 3):
        positions[hot] = position(offset)
        assert not positions.is_as_asked(hot)
        positions.begin_request()
        assert hot in positions.named
        assert positions.is_as_asked(hot)
        assert positions.has_more_changes


def test_the_session_epoch_wraps() -> None:
    session = FollowerSession()
    session.next_request(FetchPositions())
    session.answered(5)
    session._epoch = LAST_EPOCH
    assert session.next_request(FetchPositions()).session_epoch == LAST_EPOCH
    session.answered(5)
    assert session.next_request(FetchPositions()).session_epoch == 1


def test_an_answer_is_read_by_topic_names() -> None:
    """Ids that no request of this session named are left out."""
    session = FollowerSession()
    session.next_request(FetchPositions({TP: position(1)}))
    data = FetchPartitionData(TP.partition, 0)
    assert session.by_partition([(TOPIC_ID, [data]), (uuid.UUID(int=8), [data])]) == {TP: data}
