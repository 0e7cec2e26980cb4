"""The simulated world: the same seed is the same history; fresh seeds and plans that were found pass; rules that are taken out are missed.

`found/NAME.yaml` is a plan that `ottla sim hunt --mutant` has shrunk: with that mutant of `find_mutants.MUTANTS` it must fail.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from broker import compiled
from tests.sim.find_mutants import MUTANTS
from tests.support.thorough import release, thorough
from tools.sim.plan import Plan, from_yaml, plan_of
from tools.sim.sim_commands import outcomes
from tools.sim.simulation import Outcome
from tools.sim.worker import Worker

FOUND = sorted((Path(__file__).parent / "found").glob("*.yaml"))
QUICK = {"edge_answers_go_out_as_they_are_made", "hw_the_slowest_member_does_not_count"}
"""The found plans that `make test` runs."""
SEEDS_OF_A_PLAN = 10
SEEDS_FOR_A_SHARE, SHARE_MIN = 12, 0.25
"""A plan that fewer of its seeds show may show its mutant with none of ten after the next change of the code: by bad luck alone."""
SECONDS = 15.0
AIOKAFKA_SECONDS = 20.0
FIXED_SEED = 3
QUICK_S, LONG_S = 60, 600
"""How long `make test` and `make test-thorough` try fresh seeds. OTTLA_FRESH_SEEDS=0.2 in the environment: a fifth of it."""
SHARE = float(os.environ.get("OTTLA_FRESH_SEEDS", "1"))


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker() as process:
        yield process


def outcome_of(worker: Worker, plan: Plan, mutant: str = "") -> Outcome:
    worker.start(plan, mutant)
    return worker.outcome()


@pytest.mark.parametrize("others", [1, thorough(4), release(20)])
def test_the_same_seed_is_the_same_history(worker: Worker, others: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In other processes, whose own hash seed is another one."""
    first = outcome_of(worker, plan_of(FIXED_SEED, SECONDS))
    assert not first.problems
    for number in range(others):
        monkeypatch.setenv("PYTHONHASHSEED", str(4711 + number))
        with Worker() as other:
            again = outcome_of(other, plan_of(FIXED_SEED, SECONDS))
        assert (again.digest, again.events_run) == (first.digest, first.events_run)
        assert again.events_run > 1000


@pytest.mark.thorough
@pytest.mark.skipif(not compiled.form({})[0], reason="the hot modules are not compiled")
def test_compiled_brokers_have_the_same_history(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = outcome_of(worker, plan_of(FIXED_SEED, SECONDS))
    monkeypatch.delenv(compiled.SWITCH, raising=False)
    with Worker(takes_mutants=False) as other:
        found = outcome_of(other, plan_of(FIXED_SEED, SECONDS))
    assert (found.digest, found.events_run) == (plain.digest, plain.events_run)


@pytest.mark.timeout(LONG_S + 180)
@pytest.mark.parametrize(("for_s", "seconds"), [(QUICK_S, SECONDS), thorough(LONG_S, 60.0)])
def test_fresh_seeds_pass(worker: Worker, for_s: float, seconds: float) -> None:
    """As many as there is time for."""
    first, ends = int(time.time()) % 1_000_000 * 1000 + os.getpid() % 1000, time.monotonic() + for_s * SHARE
    for seed in count(first):
        if time.monotonic() > ends:
            break
        outcome = outcome_of(worker, plan_of(seed, seconds))
        print(f"seed {seed}: {outcome.virtual_s:.0f} s in {outcome.cpu_s:.1f} s, {dict(outcome.counts)}")
        assert not outcome.problems, f"ottla sim run --seed {seed} --seconds {seconds:g}: {outcome.problems}"


@pytest.mark.parametrize(
    "file", [file if file.stem in QUICK else thorough(file) for file in FOUND], ids=lambda file: file.stem
)
def test_a_found_plan_fails_with_its_mutant_only(worker: Worker, file: Path) -> None:
    """Other code draws other times from a seed: the order of events that the plan is about comes with one of a few."""
    plan = from_yaml(file.read_text())
    plans = [replace(plan, seed=seed) for seed in range(plan.seed, plan.seed + SEEDS_OF_A_PLAN)]
    broken = next((one for one in plans if outcome_of(worker, one, MUTANTS[file.stem]).problems), None)
    assert broken is not None, "the mutant is not found any more"
    whole = outcome_of(worker, broken)
    assert not whole.problems, (
        f"ottla sim run --plan {file.relative_to(Path.cwd())}, seed {broken.seed}: {whole.problems}"
    )


@pytest.mark.release
@pytest.mark.parametrize("file", FOUND, ids=lambda file: file.stem)
def test_many_seeds_show_the_mutant_of_a_found_plan(worker: Worker, file: Path) -> None:
    """If this fails, give the plan's faults times that leave more room, or more clients, pauses that are shorter, more rounds."""
    plan = from_yaml(file.read_text())
    plans = [replace(plan, seed=plan.seed + number) for number in range(SEEDS_FOR_A_SHARE)]
    shown = [one.seed for one in plans if outcome_of(worker, one, MUTANTS[file.stem]).problems]
    assert len(shown) >= SHARE_MIN * SEEDS_FOR_A_SHARE, f"only the seeds {shown} show it"


@pytest.mark.thorough
def test_an_unmodified_client_runs_on_the_loop() -> None:
    """aiokafka: producers with and without transactions, a group, and a reader of committed records. It puts tasks into sets."""
    plans = [replace(plan_of(seed, AIOKAFKA_SECONDS), aiokafka=2) for seed in range(1, 3)]
    digests = defaultdict(set)
    for outcome in outcomes(iter([*plans, *plans])):
        digests[outcome.seed].add(outcome.digest)
        assert not outcome.problems, f"seed {outcome.seed}: {outcome.problems}"
        assert outcome.counts["transactions committed"] > 0 < outcome.counts["consumed"]
    assert all(len(of_seed) == 1 for of_seed in digests.values())
