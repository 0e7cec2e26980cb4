"""A packed row is never sent after its partition has changed (CTL-2, INV-7)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from controller import announcements
from controller.announcements import Announcement, ControllerRequest
from controller.cluster_state import ClusterState
from protocol.rpc.messages import StopReplicaRequest
from protocol.types import Assignment, BrokerInfo, LeaderAndIsr, TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def cluster() -> ClusterState:
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
    state = cluster()
    expected = told(everything(cluster()).requests())
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
    unprepared, prepared = cluster(), cluster()
    list(everything(prepared).pack_in_slices())
    change(unprepared)
    change(prepared)
    assert told(everything(prepared).requests()) == told(everything(unprepared).requests())


def test_loading_all_states_at_once_equals_setting_them_one_by_one() -> None:
    loaded, one_by_one = cluster(), ClusterState(epoch=6)
    for broker in (1, 2, 3):
        one_by_one.broker_came(BrokerInfo(broker, broker * 100, ()))
    one_by_one.set_assignment("t", "id", {0: Assignment((1, 2)), 1: Assignment((2, 3))})
    for tp, state in loaded.leadership.items():
        one_by_one.set_leadership(tp, state)
    one_by_one.start_state_machines()
    assert loaded == one_by_one
