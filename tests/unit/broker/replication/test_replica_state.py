"""The leader's arithmetic: INV-4, INV-10, INV-11, INV-13, REP-3."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.replication.replica_state import (
    NEVER,
    UNKNOWN_OFFSET,
    FollowerState,
    has_reached_isr,
    high_watermark,
    lagging_members,
)
from protocol.types import NO_EPOCH


def followers(**offsets: int) -> dict[int, FollowerState]:
    return {int(name[1:]): FollowerState(log_end_offset=offset, caught_up_at=0.0) for name, offset in offsets.items()}


@pytest.mark.parametrize(
    ("leader_end", "ends", "maximal_isr", "joining", "current", "expected"),
    [
        (120, {"b2": 120, "b3": 110}, (1, 2, 3), (), 100, 110),
        (120, {"b2": 120, "b3": 110}, (1, 2), (), 100, 120),  # one outside does not count
        (120, {"b2": 120, "b3": 110}, (1, 2), (3,), 100, 110),  # unless it is about to join
        (120, {}, (1,), (), 100, 120),  # the sole member moves it at once
        (120, {"b2": UNKNOWN_OFFSET}, (1, 2), (), 100, 100),  # not heard yet in this leadership
        (120, {"b2": 90}, (1, 2), (), 100, 100),  # never backward (INV-11)
        (120, {"b2": 130}, (1, 2), (), 100, 120),  # never beyond the leader's end
    ],
)
def test_high_watermark(
    leader_end: int,
    ends: dict[str, int],
    maximal_isr: tuple[int, ...],
    joining: tuple[int, ...],
    current: int,
    expected: int,
) -> None:
    assert (
        high_watermark(
            current=current,
            leader_end_offset=leader_end,
            followers=followers(**ends),
            maximal_isr=maximal_isr,
            joining=joining,
        )
        == expected
    )


offsets = st.integers(-1, 50)


@given(
    current=st.integers(0, 50),
    above=st.integers(0, 50),
    ends=st.dictionaries(st.integers(2, 6), offsets),
    committed=st.sets(st.integers(2, 6)),
    proposed=st.sets(st.integers(2, 6)),
)
def test_every_member_of_both_isrs_has_the_records_below_the_high_watermark(
    current: int, above: int, ends: dict[int, int], committed: set[int], proposed: set[int]
) -> None:
    """INV-10: ZooKeeper may have either of the two ISRs."""
    states = {broker: FollowerState(log_end_offset=end) for broker, end in ends.items()}
    leader_end = current + above
    moved = high_watermark(
        current=current, leader_end_offset=leader_end, followers=states, maximal_isr={1} | committed | proposed
    )
    assert current <= moved <= leader_end
    if moved > current:
        for isr in (committed, proposed):
            assert all(ends[member] >= moved for member in isr if member in ends)


def test_a_follower_at_the_end_is_caught_up_now() -> None:
    state = FollowerState()
    state.record_fetch(100, 100, now=5.0, broker_epoch=7)
    assert (state.log_end_offset, state.caught_up_at, state.broker_epoch) == (100, 5.0, 7)


def test_a_follower_that_keeps_pace_with_a_stream_is_caught_up_at_its_previous_fetch() -> None:
    state = FollowerState()
    state.record_fetch(100, 150, now=1.0, broker_epoch=7)
    assert state.caught_up_at == NEVER
    state.record_fetch(150, 200, now=2.0, broker_epoch=7)
    assert state.caught_up_at == 1.0
    state.record_fetch(180, 260, now=3.0, broker_epoch=7)  # below 200: it falls behind
    assert state.caught_up_at == 1.0


@pytest.mark.parametrize(("in_isr", "caught_up_at"), [(True, 9.0), (False, NEVER)])
def test_a_new_epoch_forgets_the_fetches_of_earlier_epochs(in_isr: bool, caught_up_at: float) -> None:
    state = FollowerState()
    state.record_fetch(40, 40, now=1.0, broker_epoch=7)
    state.start_epoch(in_isr=in_isr, now=9.0)
    assert (state.log_end_offset, state.caught_up_at, state.broker_epoch) == (UNKNOWN_OFFSET, caught_up_at, NO_EPOCH)


@pytest.mark.parametrize(
    ("end", "caught_up_at", "now", "lags"),
    [
        (100, NEVER, 99.0, False),  # it has everything, however long ago it fetched
        (90, 10.0, 20.0, False),  # exactly the lag time
        (90, 10.0, 20.1, True),
        (UNKNOWN_OFFSET, 10.0, 15.0, False),  # a new epoch gives it the whole lag time
    ],
)
def test_lag_is_by_time_only(end: int, caught_up_at: float, now: float, lags: bool) -> None:
    states = {2: FollowerState(log_end_offset=end, caught_up_at=caught_up_at)}
    lagging = lagging_members((1, 2), states, own_id=1, leader_end_offset=100, now=now, lag_time_max_s=10.0)
    assert lagging == ((2,) if lags else ())


@pytest.mark.parametrize(("now", "lags"), [(15.0, ()), (25.0, (2,))])
def test_after_a_standstill_of_the_leader_the_lag_time_of_followers_starts_again(
    now: float, lags: tuple[int, ...]
) -> None:
    """FLT-5. A member that is no longer assigned lags nevertheless."""
    states = {2: FollowerState(log_end_offset=90, caught_up_at=0.0)}
    limits = {"leader_end_offset": 100, "now": now, "lag_time_max_s": 10.0, "stood_still_at": 8.0}
    assert lagging_members((1, 2, 3), states, own_id=1, **limits) == (*lags, 3)  # type: ignore[arg-type]


@given(st.sets(st.integers(1, 5), min_size=1), st.floats(0, 1e6))
def test_the_leader_never_leaves_its_own_isr(isr: set[int], now: float) -> None:
    """INV-4."""
    assert 1 not in lagging_members(isr, {}, own_id=1, leader_end_offset=9, now=now, lag_time_max_s=1.0)


@pytest.mark.parametrize(
    ("end", "mark", "epoch_start", "may_join"),
    [(100, 100, 100, True), (99, 100, 90, False), (100, 90, 105, False), (105, 90, 105, True)],
)
def test_joining_needs_the_high_watermark_and_the_start_of_the_epoch(
    end: int, mark: int, epoch_start: int, may_join: bool
) -> None:
    """INV-13, BUG-9."""
    state = FollowerState(log_end_offset=end)
    assert has_reached_isr(state, high_watermark=mark, epoch_start_offset=epoch_start) is may_join
