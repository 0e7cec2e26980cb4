"""`python -m tests.sim.find_mutants [LIMIT] [NAME...]`: how many seeds the simulation needs to miss each rule that is taken out.

It tries a few seeds of every mutant, then more of those that are not found, and so on. What it knows is in RESULTS: a run that was
interrupted goes on where it was, as long as the code is the same. `JOBS=N` in the environment: so many histories at a time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.sim.removed_promises import PROMISES
from tests.sim.removed_rules import REMOVALS
from tools.sim.plan import plan_of
from tools.sim.worker import ROOT, Worker

SEEDS_MAX = 2_000
SECONDS = 15.0
"""Sequences of faults need 10 s. Longer histories find more, and cost more."""
ROUNDS = (3, 10, 30, 100, 300, 1000, SEEDS_MAX)
RESULTS = Path(".sim-mutants.json")
INVISIBLE = frozenset(
    {"half_of_bug_3_no_fencing", "bug_14_truncation_once", "bug_15_epochs_without_records_are_forgotten"}
)
"""Unit tests miss these rules, a history cannot: docs/SIMULATION.md says why."""
MUTANTS: Mapping[str, str] = {
    name: f"{function.__module__}:{name}"
    for name, function in {**REMOVALS, **PROMISES}.items()
    if name not in INVISIBLE
}
"""Name -> module:function, as `ottla sim` takes it."""


@dataclass
class Search:
    """`seeds`: how many were tried; the last one has found the mutant if there is a `problem`. `cpu_s`: what all took."""

    seeds: int = 0
    cpu_s: float = 0.0
    problem: str = ""

    def go_on(self, mutant: str, limit: int, workers: Sequence[Worker]) -> None:
        """Tries seeds until one finds the mutant, or so many were tried."""
        while not self.problem and self.seeds < limit:
            seeds = range(self.seeds, min(limit, self.seeds + len(workers)))
            for seed, worker in zip(seeds, workers, strict=False):
                worker.start(plan_of(seed, SECONDS), MUTANTS[mutant])
            for outcome in [worker.outcome() for worker in workers[: len(seeds)]]:
                if not self.problem:
                    self.seeds += 1
                    self.cpu_s += outcome.cpu_s
                    self.problem = outcome.problems[0] if outcome.problems else ""


def main() -> None:
    arguments = sys.argv[1:]
    limit = int(arguments.pop(0)) if arguments and arguments[0].isdigit() else SEEDS_MAX
    version = _version()
    searches = _known(version)
    left = [mutant for mutant in arguments or MUTANTS if not searches.setdefault(mutant, Search()).problem]
    with ExitStack() as stack:
        jobs = int(os.environ.get("JOBS", os.cpu_count() or 1))
        workers = [stack.enter_context(Worker()) for _ in range(jobs)]
        for seeds in ROUNDS:
            for mutant in left:
                search = searches[mutant]
                before = search.seeds
                search.go_on(mutant, min(seeds, limit), workers)
                rows = {name: asdict(one) for name, one in searches.items()}
                RESULTS.write_text(json.dumps({"version": version, "searches": rows}, indent=1))
                if search.seeds > before:
                    print(row_of(mutant, search), flush=True)
            left = [mutant for mutant in left if not searches[mutant].problem]


def _known(version: str) -> dict[str, Search]:
    """What an earlier run of the same code has found out."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return {
        name: Search(**row)
        for name, row in known.get("searches", {}).items()
        if known["version"] == version and name in MUTANTS
    }


def _version() -> str:
    """Of all code that decides what a seed finds, and the seconds of each history."""
    trees = [f"HEAD:{name}" for name in ("broker", "controller", "protocol", "tools/sim", "tests/sim")]
    found = subprocess.run(["git", "rev-parse", *trees], cwd=ROOT, capture_output=True, text=True, check=True)
    return f"{' '.join(tree[:8] for tree in found.stdout.split())}, {SECONDS:g} s"


def row_of(mutant: str, search: Search) -> str:
    found = f"{search.seeds}" if search.problem else f"not in {search.seeds}"
    return f"{mutant:60} {found:>12}  {search.cpu_s:6.1f} s  {search.problem}"


if __name__ == "__main__":
    main()
