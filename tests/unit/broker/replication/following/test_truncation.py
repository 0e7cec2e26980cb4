"""Where a follower cuts its log: REP-6, INV-19, BUG-1."""

from __future__ import annotations

import pytest

from broker.replication.following.truncation import UNDEFINED, EpochEnd, Truncation, decide, has_diverged


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
