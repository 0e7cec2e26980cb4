"""The requests to each broker after a decision, in order (CTL-5)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from controller import announcements
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


def test_replicas_that_were_named_before_stay_named() -> None:
    """The assignment changes between two announcements of the partition: the replica that left is told, too."""
    state = cluster()
    announcement = Announcement(1, state)
    announcement.leadership([T0])
    state.begin_move(T0, Assignment((3, 2)))
    announcement.leadership([T0, T1], is_new=True)
    told = {broker: requests[0].partitions for broker, requests in announcement.requests().items()}
    assert {broker: {row.partition: getattr(row, "is_new", None) for row in rows} for broker, rows in told.items()} == {
        1: {0: False},
        2: {0: True, 1: True},
        3: {0: True},
    }


def test_a_broker_that_registers_later_is_not_named() -> None:
    state = cluster()
    announcement = Announcement(1, state)
    announcement.leadership([T1])
    state.broker_came(BrokerInfo(4, 400, ()))
    assert names(announcement.requests())[4] == [("UpdateMetadata", [T1])]


def test_a_partition_that_is_named_twice_is_sent_once() -> None:
    announcement = Announcement(1, cluster())
    announcement.leadership([T0])
    announcement.metadata([T0, T1])
    announcement.repeat_leadership(T0, 1)
    announcement.repeat_leadership(T1, 2)
    assert names(announcement.requests()) == {
        1: [("LeaderAndIsr", [T0]), ("UpdateMetadata", [T0, T1])],
        2: [("LeaderAndIsr", [T0, T1]), ("UpdateMetadata", [T0, T1])],
        3: [("UpdateMetadata", [T0, T1])],
    }


# -- packed rows are never sent after their partition has changed (CTL-2, INV-7) ---------------------------------------


def announced_cluster() -> ClusterState:
    state = ClusterState(epoch=6)
    for broker in (1, 2, 3):
        state.broker_came(BrokerInfo(broker, broker * 100, ()))
    state.set_assignment("t", "id", {0: Assignment((1, 2)), 1: Assignment((2, 3))})
    state.load_leadership({T0: LeaderAndIsr(1, 7, (1, 2), 5, 8), T1: LeaderAndIsr(2, 9, (2, 3), 5, 10)})
    state.start_state_machines()
    return state


def everything(state: ClusterState) -> Announcement:
    announcement = Announcement(1, state)
    announcement.full_metadata(state.brokers)
    announcement.full_leadership(state.brokers)
    return announcement


def told(requests: dict[int, list[ControllerRequest]]) -> dict[int, list[list[tuple[object, ...]]]]:
    return {
        broker: [sorted(map(tuple, r.partitions)) for r in rows if not isinstance(r, StopReplicaRequest)]
        for broker, rows in requests.items()
    }


@pytest.mark.parametrize(("rows_at_once", "stops"), [(1000, 0), (1, 1)])
def test_slices_pack_what_requests_needs(monkeypatch: pytest.MonkeyPatch, rows_at_once: int, stops: int) -> None:
    monkeypatch.setattr(announcements, "ROWS_AT_ONCE", rows_at_once)
    state = announced_cluster()
    expected = told(everything(announced_cluster()).requests())
    announcement = everything(state)
    assert list(announcement.pack_in_slices()) == [None] * stops
    assert state.packed_rows.keys() == {T0, T1}
    assert told(announcement.requests()) == expected


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.set_leadership(T0, LeaderAndIsr(2, 8, (2,), 6, 9)),
        lambda state: state.set_assignment("t", "id", {0: Assignment((2, 1)), 1: Assignment((2, 3))}),
        lambda state: state.begin_move(T0, Assignment((1, 2, 3), (3,), (2,))),
        lambda state: state.remove_topic("t"),
        lambda state: state.begin_deletion("t"),
    ],
)
def test_a_change_after_packing_is_sent(change: Callable[[ClusterState], object]) -> None:
    unprepared, prepared = announced_cluster(), announced_cluster()
    list(everything(prepared).pack_in_slices())
    change(unprepared)
    change(prepared)
    assert told(everything(prepared).requests()) == told(everything(unprepared).requests())


def test_loading_all_states_at_once_equals_setting_them_one_by_one() -> None:
    loaded, one_by_one = announced_cluster(), ClusterState(epoch=6)
    for broker in (1, 2, 3):
        one_by_one.broker_came(BrokerInfo(broker, broker * 100, ()))
    one_by_one.set_assignment("t", "id", {0: Assignment((1, 2)), 1: Assignment((2, 3))})
    for tp, state in loaded.leadership.items():
        one_by_one.set_leadership(tp, state)
    one_by_one.start_state_machines()
    assert loaded == one_by_one
