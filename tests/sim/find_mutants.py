"""`python -m tests.sim.find_mutants [LIMIT] [NAME...]`: how many seeds the simulation needs to miss each rule that is taken out."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

from tests.sim.removed_promises import PROMISES
from tests.sim.removed_rules import REMOVALS
from tools.sim.plan import plan_of
from tools.sim.sim_commands import outcomes

SEEDS_MAX = 2_000
SECONDS = 40.0
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


def seeds_until_found(mutant: str, seeds_max: int = SEEDS_MAX) -> tuple[int, str]:
    """(number of seeds, what was found); (0, "") if nothing was."""
    plans = (plan_of(seed, SECONDS) for seed in range(seeds_max))
    for count, outcome in enumerate(outcomes(plans, MUTANTS[mutant]), 1):
        if outcome.problems:
            return count, f"seed {outcome.seed}: {outcome.problems[0]}"
    return 0, ""


def main() -> None:
    arguments = sys.argv[1:]
    seeds_max = int(arguments.pop(0)) if arguments and arguments[0].isdigit() else SEEDS_MAX
    for mutant in arguments or MUTANTS:
        began = time.monotonic()
        seeds, what = seeds_until_found(mutant, seeds_max)
        found = str(seeds) if seeds else f"not in {seeds_max}"
        print(f"{mutant:60} {found:>12}  {time.monotonic() - began:5.0f} s  {what}", flush=True)


if __name__ == "__main__":
    main()
