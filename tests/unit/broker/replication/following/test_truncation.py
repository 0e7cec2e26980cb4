"""Where a follower cuts its log: REP-6, INV-5, INV-19, BUG-1, BUG-14."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.replication.following.truncation import UNDEFINED, EpochEnd, Truncation, decide, has_diverged

Records = list[int]
"""A log as the leader epoch of each record."""


def end_of(records: Records, epoch: int) -> EpochEnd:
    """What a log answers to OffsetForLeaderEpoch, from its records."""
    if not records or epoch > max(records):
        return UNDEFINED
    if epoch == max(records):
        return EpochEnd(epoch, len(records))
    higher = next(offset for offset, e in enumerate(records) if e > epoch)
    lower = [e for e in records if e <= epoch]
    return EpochEnd(max(lower) if lower else epoch, higher)


@pytest.mark.parametrize(
    ("leader", "local", "end", "mark", "expected"),
    [
        (EpochEnd(3, 90), EpochEnd(3, 80), 80, 50, Truncation(80, True)),  # behind: nothing to cut
        (EpochEnd(3, 70), EpochEnd(3, 80), 80, 50, Truncation(70, True)),  # ahead in the same epoch
        (EpochEnd(2, 90), EpochEnd(1, 50), 80, 50, Truncation(50, False)),  # an epoch we never had: ask again
        (EpochEnd(2, 40), EpochEnd(2, 60), 80, 50, Truncation(40, True)),
        (EpochEnd(2, 40), UNDEFINED, 80, 50, Truncation(40, True)),
        (UNDEFINED, EpochEnd(3, 80), 80, 50, Truncation(50, True)),  # the leader knows nothing: high watermark
        (EpochEnd(-1, 60), EpochEnd(3, 80), 80, 50, Truncation(60, True)),
        (UNDEFINED, UNDEFINED, 0, 0, Truncation(0, True)),
    ],
)
def test_decide(leader: EpochEnd, local: EpochEnd, end: int, mark: int, expected: Truncation) -> None:
    assert decide(leader, log_end_offset=end, high_watermark=mark, local_end_of=lambda _: local) == expected


@pytest.mark.parametrize(
    ("asked", "offset", "leader", "diverged"),
    [
        (3, 80, EpochEnd(3, 90), False),
        (3, 90, EpochEnd(3, 90), False),
        (3, 91, EpochEnd(3, 90), True),
        (3, 80, EpochEnd(2, 90), True),
    ],
)
def test_has_diverged(asked: int, offset: int, leader: EpochEnd, diverged: bool) -> None:
    assert has_diverged(asked, offset, leader) is diverged


@st.composite
def two_logs(draw: st.DrawFn) -> tuple[Records, Records, int]:
    """(leader, follower, length of what they share): beyond it no epoch is in both."""
    shared = sorted(draw(st.lists(st.integers(0, 4), min_size=1, max_size=8)))
    epochs = st.lists(st.integers(0, 3), max_size=6)
    top = shared[-1]
    # Beyond the fork each epoch belongs to one leader: odd ones to one log, even ones to the other. At most one of
    # the two logs may also go on in the last shared epoch.
    leader_tail = sorted(top + 2 + 2 * e for e in draw(epochs))
    follower_tail = sorted(top + 1 + 2 * e for e in draw(epochs))
    more = [top] * draw(st.integers(0, 3))
    if draw(st.booleans()):
        leader_tail = more + leader_tail
    else:
        follower_tail = more + follower_tail
    # The leader has begun an epoch of its own, newer than every other, before it is asked.
    newest = max([*leader_tail, *follower_tail, top]) + 1
    return [*shared, *leader_tail, newest], [*shared, *follower_tail], len(shared)


@given(two_logs())
def test_repeated_truncation_ends_exactly_where_the_logs_agree(logs: tuple[Records, Records, int]) -> None:
    """INV-19: not below the fork; INV-5: what is left is the leader's own prefix."""
    leader, follower, shared = logs
    agreed = shared
    while agreed < min(len(leader), len(follower)) and leader[agreed] == follower[agreed]:
        agreed += 1
    for _ in range(len(follower) + 1):
        asked = follower[-1]
        decision = decide(
            end_of(leader, asked),
            log_end_offset=len(follower),
            high_watermark=0,
            local_end_of=lambda epoch: end_of(follower, epoch),  # noqa: B023
        )
        assert decision.offset <= len(follower)
        follower = follower[: decision.offset]
        if decision.is_complete:
            break
    else:
        pytest.fail("truncation does not end")
    assert follower == leader[: len(follower)]
    assert len(follower) == agreed
