"""The simulated world: the same seed is the same history; fixed seeds pass; a rule that is taken out is missed."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest

from tests.sim.find_mutants import seeds_until_found
from tests.support.thorough import thorough
from tools.sim.plan import plan_of
from tools.sim.sim_commands import outcomes

SEEDS = range(1, 9)
SECONDS = 20.0


def test_the_same_seed_is_the_same_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """In other processes, whose own hash seed is another one."""
    first = {outcome.seed: outcome for outcome in outcomes(plan_of(seed, SECONDS) for seed in SEEDS[:3])}
    monkeypatch.setenv("PYTHONHASHSEED", "4711")
    for outcome in outcomes(plan_of(seed, SECONDS) for seed in SEEDS[:3]):
        assert outcome.digest == first[outcome.seed].digest
        assert outcome.events_run == first[outcome.seed].events_run > 1000


def test_seeds_that_pass() -> None:
    for outcome in outcomes(plan_of(seed, SECONDS) for seed in SEEDS):
        print(f"seed {outcome.seed}: {outcome.virtual_s:.0f} s in {outcome.cpu_s:.1f} s, {dict(outcome.counts)}")
        assert not outcome.problems, f"ottla sim run --seed {outcome.seed} --seconds {SECONDS:g}: {outcome.problems}"


@pytest.mark.parametrize("mutant", [thorough("bug_10_any_record_at_the_offset_counts")])
def test_a_rule_that_is_taken_out_is_missed(mutant: str) -> None:
    seeds, what = seeds_until_found(mutant, 200)
    assert seeds, what


@pytest.mark.thorough
def test_an_unmodified_client_runs_on_the_loop() -> None:
    """aiokafka: producers with and without transactions, a group, and a reader of committed records. It puts tasks into sets."""
    plans = [replace(plan_of(seed, SECONDS), aiokafka=2) for seed in SEEDS[:3]]
    digests = defaultdict(set)
    for outcome in outcomes(iter([*plans, *plans])):
        digests[outcome.seed].add(outcome.digest)
        assert not outcome.problems, f"seed {outcome.seed}: {outcome.problems}"
        assert outcome.counts["transactions committed"] > 0 < outcome.counts["consumed"]
    assert [len(of_seed) for of_seed in digests.values()] == [1, 1, 1]
