"""Elections: a table for each kind, and rules that hold for any input (INV-4, INV-7, INV-18)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.decisions import leader_election
from protocol.types import NO_LEADER, LeaderAndIsr, TopicPartition

EPOCH = 9
TP = TopicPartition("t", 0)


def known(leader: int, isr: tuple[int, ...]) -> LeaderAndIsr:
    return LeaderAndIsr(leader, 4, isr, 7, 21)


def written(leader: int, isr: tuple[int, ...]) -> LeaderAndIsr:
    return LeaderAndIsr(leader, 5, isr, EPOCH, 21)


@pytest.mark.parametrize(
    ("replicas", "live", "expected"),
    [
        ((1, 2, 3), {1, 2, 3}, LeaderAndIsr(1, 0, (1, 2, 3), EPOCH)),
        ((3, 1, 2), {1, 2}, LeaderAndIsr(1, 0, (1, 2), EPOCH)),
        ((3,), {1, 2}, None),
        ((), {1}, None),
    ],
)
def test_first_leader(replicas: tuple[int, ...], live: set[int], expected: LeaderAndIsr | None) -> None:
    assert leader_election.first_leader(replicas, live, EPOCH) == expected


@pytest.mark.parametrize(
    ("state", "replicas", "live", "unclean", "expected"),
    [
        (known(1, (1, 2, 3)), (1, 2, 3), {2, 3}, False, written(2, (2, 3))),
        (known(1, (3, 2, 1)), (1, 2, 3), {2, 3}, False, written(2, (3, 2))),  # the order of AR decides, not of the ISR
        (known(1, (1, 3)), (1, 2, 3), {2, 3}, False, written(3, (3,))),  # 2 lives but is not in the ISR
        (known(1, (1,)), (1, 2, 3), {2, 3}, False, written(NO_LEADER, (1,))),  # the ISR is kept
        (known(1, (1,)), (1, 2, 3), {2, 3}, True, written(2, (2,))),  # unclean: alone
        (known(1, (1, 3)), (1, 2, 3), {2, 3}, True, written(3, (3,))),  # clean goes first
        (known(1, (1, 2)), (1, 2), set(), True, written(NO_LEADER, (1, 2))),
        (known(NO_LEADER, (1,)), (1, 2), {2}, False, None),  # nothing to write
        (known(NO_LEADER, (1,)), (1, 2), {1, 2}, False, written(1, (1,))),
        (known(NO_LEADER, (1,)), (1, 2), {2}, True, written(2, (2,))),
        (known(1, (1, 4)), (1, 2), {2, 4}, False, written(NO_LEADER, (1, 4))),  # in the ISR, but no replica any more
    ],
)
def test_after_failure(
    state: LeaderAndIsr,
    replicas: tuple[int, ...],
    live: set[int],
    unclean: bool,
    expected: LeaderAndIsr | None,
) -> None:
    assert leader_election.after_failure(state, replicas, live, EPOCH, unclean_allowed=unclean) == expected
    at_once = leader_election.each_after_failure([(TP, state, replicas)], frozenset(live), EPOCH)
    alone = leader_election.after_failure(state, replicas, live, EPOCH, unclean_allowed=False)
    is_clean = alone is not None and alone.leader != NO_LEADER
    assert at_once == ({TP: alone} if is_clean else {})


@pytest.mark.parametrize(
    ("state", "gone", "expected"),
    [
        (known(1, (1, 2, 3)), {3}, written(1, (1, 2))),
        (known(1, (1, 2, 3)), {2, 3}, written(1, (1,))),
        (known(1, (1, 2)), {3}, None),
        (known(1, (1,)), {1}, None),  # the last member stays
        (known(1, (1, 2)), {1, 2}, written(1, (1,))),  # the leader is another election's work
        (known(NO_LEADER, (1, 2)), {1}, None),  # without a leader the ISR says who may lead again
    ],
)
def test_without_replicas(state: LeaderAndIsr, gone: set[int], expected: LeaderAndIsr | None) -> None:
    assert leader_election.without_replicas(state, gone, EPOCH) == expected
    at_once = leader_election.each_without_replicas([(TP, state)], frozenset(gone), EPOCH)
    assert at_once == ({} if expected is None else {TP: expected})


@pytest.mark.parametrize(
    ("state", "live", "stopping", "expected"),
    [
        (known(1, (1, 2, 3)), {1, 2, 3}, {1}, written(2, (2, 3))),
        (known(1, (1, 2, 3)), {1, 2, 3}, {1, 2}, written(3, (3,))),
        (known(1, (1, 3)), {1, 2, 3}, {1}, written(3, (3,))),
        (known(1, (1,)), {1, 2, 3}, {1}, None),
        (known(1, (1, 2)), {1}, {1}, None),
    ],
)
def test_before_shutdown(
    state: LeaderAndIsr, live: set[int], stopping: set[int], expected: LeaderAndIsr | None
) -> None:
    assert leader_election.before_shutdown(state, (1, 2, 3), live, stopping, EPOCH) == expected


@pytest.mark.parametrize(
    ("state", "live", "expected"),
    [
        (known(2, (2, 1)), {1, 2}, written(1, (2, 1))),
        (known(1, (2, 1)), {1, 2}, None),
        (known(2, (2,)), {1, 2}, None),
        (known(2, (2, 1)), {2}, None),
    ],
)
def test_preferred(state: LeaderAndIsr, live: set[int], expected: LeaderAndIsr | None) -> None:
    assert leader_election.preferred(state, (1, 2), live, EPOCH) == expected


ALL = {1, 2, 3}


@pytest.mark.parametrize(
    ("state", "live", "bounced", "answering", "expected"),
    [
        (known(1, (1, 2, 3)), ALL, {1}, ALL, written(2, (2, 3))),  # the leader, others did not
        (known(3, (3, 2, 1)), ALL, {3}, ALL, written(1, (2, 1))),  # in the order of the assignment
        (known(1, (1, 2, 3)), ALL, {1, 2}, ALL, written(3, (3,))),
        (known(1, (1, 2, 3)), ALL, {2}, ALL, written(1, (1, 3))),  # a follower
        (known(1, (1, 2)), ALL, {3}, ALL, None),  # not in the ISR
        (known(1, (1, 2, 3)), ALL, ALL, set(), written(1, (1, 2, 3))),  # the whole cluster
        (known(2, (2, 3)), ALL, ALL, ALL, written(2, (2, 3))),
        (known(2, (2, 3)), {2}, {2}, ALL, written(2, (2,))),  # the others are not back yet
        (known(1, (1,)), ALL, {1}, ALL, written(1, (1,))),  # alone
        (known(1, (1, 2, 3)), {2, 3}, {2}, ALL, written(3, (3,))),  # the leader is dead: not the bounced one
        (known(1, (1, 2, 3)), {2, 3}, {2, 3}, ALL, None),  # the leader is dead: an ordinary election
        (known(1, (1, 2, 3)), ALL, {1}, {1}, written(1, (1, 2, 3))),  # do the others live? nobody knows
        (known(1, (1, 2, 3)), ALL, {1}, {1, 3}, written(3, (2, 3))),
        (known(1, (1, 2, 3)), ALL, {2}, {2}, None),
        (known(1, (1, 2, 3)), ALL, {2}, {3}, written(1, (1, 3))),
        (known(NO_LEADER, (1, 2)), ALL, {1}, ALL, None),  # an ordinary election
        (known(NO_LEADER, (1, 2)), ALL, {1, 2}, ALL, None),
    ],
)
def test_after_unseen_bounces(
    state: LeaderAndIsr, live: set[int], bounced: set[int], answering: set[int], expected: LeaderAndIsr | None
) -> None:
    """CTL-5, INV-5."""
    assert leader_election.after_unseen_bounces(state, (1, 2, 3), live, bounced, answering, EPOCH) == expected


brokers = st.integers(1, 5)
replica_lists = st.lists(brokers, min_size=1, max_size=5, unique=True)


@given(data=st.data(), replicas=replica_lists, live=st.sets(brokers), gone=st.sets(brokers), unclean=st.booleans())
def test_rules_that_hold_for_every_election(
    data: st.DataObject, replicas: list[int], live: set[int], gone: set[int], unclean: bool
) -> None:
    """The leader is in the ISR, which is never empty. Each write raises the epoch by one and has the version that was read."""
    isr = tuple(data.draw(st.lists(st.sampled_from(replicas), min_size=1, unique=True)))
    before = known(data.draw(st.sampled_from([NO_LEADER, *isr])), isr)
    after_failure = leader_election.after_failure(before, replicas, live, EPOCH, unclean_allowed=unclean)
    outcomes = {
        "failure": after_failure,
        "gone": leader_election.without_replicas(before, gone, EPOCH),
        "shutdown": leader_election.before_shutdown(before, replicas, live, gone, EPOCH),
        "preferred": leader_election.preferred(before, replicas, live, EPOCH),
        "bounces": leader_election.after_unseen_bounces(before, replicas, live, gone & live, live, EPOCH),
    }
    for path, after in outcomes.items():
        if after is None:
            continue
        assert after.isr
        assert after.leader in (NO_LEADER, *after.isr)
        assert (after.leader_epoch, after.controller_epoch, after.zk_version) == (5, EPOCH, 21)
        if after.leader not in (NO_LEADER, before.leader):
            assert after.leader in live
        if not (unclean and path == "failure"):
            assert set(after.isr) <= set(before.isr)
            assert not leader_election.is_unclean(before, after)
        if leader_election.is_unclean(before, after):
            assert live.isdisjoint(before.isr)
            assert after.isr == (after.leader,)
