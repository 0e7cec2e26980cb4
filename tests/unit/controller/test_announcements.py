"""The requests to each broker after a decision, in order (CTL-5)."""

from __future__ import annotations

from controller.announcements import Announcement, ControllerRequest
from controller.cluster_state import ClusterState
from protocol.rpc.messages import LeaderAndIsrRequest, StopReplicaPartition, StopReplicaRequest, UpdateMetadataRequest
from protocol.types import LEADER_DURING_DELETE, Assignment, BrokerInfo, LeaderAndIsr, TopicPartition

T0, T1 = (TopicPartition("t", p) for p in range(2))


def cluster() -> ClusterState:
    """Brokers 1, 2, 3 live, 4 is dead; t-2 has no leader yet."""
    state = ClusterState(epoch=6)
    for broker in (1, 2, 3):
        state.broker_came(BrokerInfo(broker, broker * 100, ()))
    state.set_assignment("t", "id", {0: Assignment((1, 2)), 1: Assignment((2, 4)), 2: Assignment((3,))})
    state.set_leadership(T0, LeaderAndIsr(1, 7, (1, 2), 5, 8))
    state.set_leadership(T1, LeaderAndIsr(2, 9, (2,), 6, 10))
    return state


def names(requests: dict[int, list[ControllerRequest]]) -> dict[int, list[tuple[str, list[TopicPartition]]]]:
    """broker -> (kind, partitions) of each request."""
    return {
        broker: [
            (type(r).__name__.removesuffix("Request"), sorted(p.topic_partition for p in r.partitions)) for r in rows
        ]
        for broker, rows in requests.items()
    }


def test_leadership_goes_to_the_live_replicas_and_metadata_to_all() -> None:
    announcement = Announcement(1, cluster())
    announcement.leadership([T0, T1])
    requests = announcement.requests()
    assert names(requests) == {
        1: [("LeaderAndIsr", [T0]), ("UpdateMetadata", [T0, T1])],
        2: [("LeaderAndIsr", [T0, T1]), ("UpdateMetadata", [T0, T1])],
        3: [("UpdateMetadata", [T0, T1])],
    }
    leadership, metadata = requests[1]
    assert isinstance(leadership, LeaderAndIsrRequest)
    assert (leadership.controller_id, leadership.controller_epoch, leadership.broker_epoch) == (1, 6, 100)
    assert leadership.topic_ids == {"t": "id"}
    assert [broker.id for broker in leadership.live_leaders] == [1]
    row = leadership.partitions[0]
    assert (row.leader, row.leader_epoch, row.isr, row.zk_version, row.controller_epoch) == (1, 7, (1, 2), 8, 5)
    assert (row.replicas, row.is_new) == ((1, 2), False)
    assert isinstance(metadata, UpdateMetadataRequest)
    assert [broker.id for broker in metadata.brokers] == [1, 2, 3]
    assert not metadata.is_full


def test_a_new_broker_first_gets_everything() -> None:
    announcement = Announcement(1, cluster())
    announcement.leadership([T1])
    announcement.full_metadata([2])
    announcement.full_leadership([2])
    requests = announcement.requests()
    assert names(requests)[2] == [("UpdateMetadata", [T0, T1]), ("LeaderAndIsr", [T0, T1])]
    assert [getattr(request, "is_full", None) for request in requests[2]] == [True, True]
    assert names(requests)[3] == [("UpdateMetadata", [T1])]


def test_stops_come_after_leadership() -> None:
    announcement = Announcement(1, cluster())
    announcement.stop(2, T0, delete=False)
    announcement.stop(2, TopicPartition("gone", 0), delete=True)
    announcement.stop(4, T1, delete=False)
    announcement.leadership([T0])
    requests = announcement.requests()
    assert [name for name, _ in names(requests)[2]] == ["LeaderAndIsr", "StopReplica", "UpdateMetadata"]
    assert 4 not in requests
    stop = requests[2][1]
    assert isinstance(stop, StopReplicaRequest)
    assert stop.partitions == (StopReplicaPartition("t", 0, 7, False), StopReplicaPartition("gone", 0, -2, True))


def test_the_number_of_partitions_is_sent_with_them() -> None:
    """t-2 has no state that could be announced."""
    announcement = Announcement(1, cluster())
    announcement.metadata([T0])
    announcement.full_metadata([2])
    for requests in announcement.requests().values():
        (request,) = requests
        assert isinstance(request, UpdateMetadataRequest)
        assert request.partition_counts == {"t": 3}


def test_full_metadata_removes_topics_that_are_being_deleted() -> None:
    state = cluster()
    state.set_assignment("gone", "other", {0: Assignment((1,)), 1: Assignment((2,))})
    state.begin_deletion("gone")
    announcement = Announcement(1, state)
    announcement.full_metadata([1])
    (request,) = announcement.requests()[1]
    assert isinstance(request, UpdateMetadataRequest)
    gone = [(row.topic, row.partition) for row in request.partitions if row.leader == LEADER_DURING_DELETE]
    assert gone == [("gone", 0), ("gone", 1)]
    assert (set(request.topic_ids), set(request.partition_counts)) == ({"t"}, {"t"})


def test_requests_have_the_states_at_the_time_of_sending() -> None:
    """A state may change again between the decision and the request."""
    state = cluster()
    announcement = Announcement(1, state)
    announcement.leadership([T0])
    state.set_leadership(T0, LeaderAndIsr(2, 8, (2,), 6, 9))
    request = announcement.requests()[1][0]
    assert isinstance(request, LeaderAndIsrRequest)
    assert request.partitions[0].leader == 2
