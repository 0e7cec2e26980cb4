"""The plan of a simulated history: a function of the seed, as a file, and made smaller."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tools.sim.plan import API_LEVEL, LEVEL_4, BrokenPlan, from_yaml, plan_of, smaller, to_yaml


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_is_the_same_from_its_file(seed: int) -> None:
    plan = plan_of(seed)
    assert plan_of(seed) == plan
    assert from_yaml(to_yaml(plan)) == plan


@pytest.mark.parametrize("seed", range(20))
def test_smaller_plans_end(seed: int) -> None:
    plan = plan_of(seed)
    steps = 0
    while (candidate := next(smaller(plan), None)) is not None:
        plan, steps = candidate, steps + 1
        assert steps < 200
    assert not plan.faults
    assert plan.seconds <= 10


def test_level_4_has_groups_of_each_kind() -> None:
    plans = [plan_of(seed) for seed in range(60)]
    kinds = {(plan.settings.get(API_LEVEL) == LEVEL_4, plan.members > 0, plan.new_members > 0) for plan in plans}
    level_4 = {(True, False, False), (True, False, True), (True, True, False), (True, True, True)}
    assert kinds == level_4 | {(False, False, False), (False, True, False)}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("seed: 1", "exactly these keys"),
        (
            to_yaml(plan_of(3)).replace("replicas: 3", "replicas: many").replace("replicas: 2", "replicas: many"),
            "replicas is a number",
        ),
        (
            to_yaml(plan_of(3)).replace("has_admin: true", "has_admin: 1").replace("has_admin: false", "has_admin: 1"),
            "has_admin is true",
        ),
        (to_yaml(plan_of(3)).replace("faults:", "faults:\n- kill 2 at 1.2.3 for 4"), "is no fault"),
        (to_yaml(plan_of(3)).replace("faults:", "faults:\n- kill 0 at 1 for 4"), "is no fault"),
        (to_yaml(plan_of(3)).replace("seconds: 60.0", "seconds: .nan"), "seconds are above 0"),
        (to_yaml(replace(plan_of(3), log_dirs=3)), "log_dirs are 1 or 2"),
        (to_yaml(replace(plan_of(3), new_members=1, settings={})), "new_members need broker.api.level: '4'"),
        (to_yaml(plan_of(3)).replace("faults:", "faults:\n- burn 1 at 2 for 3"), "'burn 1 at 2 for 3' is no fault"),
    ],
)
def test_a_file_that_is_no_plan(text: str, why: str) -> None:
    with pytest.raises(BrokenPlan, match=why):
        from_yaml(text)
