"""States packed once are the same on the wire as states packed in each request (FMT-4)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.rpc import framing
from protocol.rpc.messages import LeaderAndIsrRequest, PartitionState, UpdateMetadataRequest
from protocol.rpc.packed_states import PackedStates, pack_rows, pack_state, pack_states
from protocol.types import Assignment, BrokerInfo, Endpoint, LeaderAndIsr, TopicPartition

NUMBERS = st.integers(0, 2**31 - 1)
IDS = st.lists(NUMBERS, max_size=4).map(tuple)
ROWS = st.lists(
    st.tuples(
        st.builds(TopicPartition, st.sampled_from(["t", "x-1"]), st.integers(0, 300)),
        st.builds(LeaderAndIsr, st.integers(-2, 9), NUMBERS, IDS, st.integers(0, 2), st.integers(-1, 2**31 - 1)),
        st.builds(Assignment, IDS, IDS, IDS),
        st.booleans(),
    ),
    max_size=20,
)
BROKERS = (BrokerInfo(1, 10, (Endpoint("CONTROL", "h", 1),)),)


def state(tp: TopicPartition, known: LeaderAndIsr, assignment: Assignment, is_new: bool) -> PartitionState:
    return PartitionState(
        *(tp.topic, tp.partition, known.controller_epoch, known.leader, known.leader_epoch, known.isr),
        *(known.zk_version, assignment.replicas, assignment.adding, assignment.removing, is_new),
    )


@given(ROWS)
def test_packed_states_equal_the_states(
    rows: list[tuple[TopicPartition, LeaderAndIsr, Assignment, bool]],
) -> None:
    states = tuple(state(*row) for row in rows)
    packed = PackedStates([pack_state(tp, known, replicas, is_new=new) for tp, known, replicas, new in rows])
    assert packed == states
    assert (len(packed), list(packed), packed[:1]) == (len(states), list(states), states[:1])
    assert PackedStates(pack_rows(states)) == packed
    requests = [
        (
            UpdateMetadataRequest(1, 2, 3, partitions, {"t": "A" * 22}, BROKERS, True),
            LeaderAndIsrRequest(1, 2, 3, partitions, {}, BROKERS, True, ("x",)),
        )
        for partitions in (packed, states)
    ]
    for ours, plain in zip(*requests, strict=True):
        assert framing.request_frame(7, ours) == framing.request_frame(7, plain)
        assert framing.parse_request(framing.request_payload(7, ours)) == (7, plain)


@given(ROWS)
def test_states_packed_together_equal_states_packed_alone(
    rows: list[tuple[TopicPartition, LeaderAndIsr, Assignment, bool]],
) -> None:
    states = {tp: known for tp, known, _, _ in rows}
    assignments = {tp: replicas for tp, _, replicas, _ in rows}
    without_state = TopicPartition("none", 0)
    assert pack_states([*states, without_state], states, assignments.__getitem__) == {
        tp: pack_state(tp, known, assignments[tp]) for tp, known in states.items()
    }


@pytest.mark.parametrize("count", [15, 16, 65_535, 65_536])
def test_arrays_of_every_size_are_packed(count: int) -> None:
    row = PartitionState("t", 0, 1, 2, 3, (2,), 4, (2, 1))
    request = UpdateMetadataRequest(1, 2, 3, PackedStates(pack_rows([row]) * count), {}, ())
    parsed = framing.parse_request(framing.request_payload(7, request))[1]
    assert parsed == UpdateMetadataRequest(1, 2, 3, (row,) * count, {}, ())
