"""A schedule follows from its seed, has every kind, and keeps to the kinds' times."""

from __future__ import annotations

from collections import Counter

import pytest

from tools.faults.schedule import THEN, Kind, schedule

KINDS = {
    "bounce": Kind("kill", "broker", weight=9),
    "pause": Kind("pause", "controller", 2.0, 3.0),
    "restart": Kind("kill", "all brokers", 0, 1),
}


def test_the_seed_decides() -> None:
    assert schedule(7, 20, [1, 2, 3], KINDS) == schedule(7, 20, [1, 2, 3], KINDS)
    assert schedule(7, 20, [1, 2, 3], KINDS) != schedule(8, 20, [1, 2, 3], KINDS)


@pytest.mark.parametrize("rounds", [1, 2, 3, 50])
@pytest.mark.parametrize("seed", range(5))
def test_every_schedule_has_every_kind_within_its_times(seed: int, rounds: int) -> None:
    made = schedule(seed, rounds, [1, 2, 3], KINDS)
    assert [each.number for each in made] == list(range(1, rounds + 1))
    assert len({each.name for each in made}) == min(rounds, len(KINDS)), "each kind, if there are rounds enough"
    for each in made:
        assert each.kind == KINDS[each.name]
        assert sorted(each.order) == [1, 2, 3]
        assert each.kind.shortest_s <= each.seconds <= each.kind.longest_s
        assert each.then in THEN


def test_a_kind_is_drawn_by_its_weight() -> None:
    names = Counter(each.name for each in schedule(1, 1000, [1], KINDS))
    assert names["bounce"] > 700
    assert min(names.values()) > 50
