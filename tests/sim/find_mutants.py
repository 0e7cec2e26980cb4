"""`python -m tests.sim.find_mutants [NAME...]`: how many seeds the simulation needs to miss each rule that is taken out."""

from __future__ import annotations

import sys

from tests.sim.removed_rules import REMOVALS
from tools.sim.plan import plan_of
from tools.sim.sim_commands import outcomes

SEEDS_MAX = 2_000
SECONDS = 40.0


def seeds_until_found(mutant: str, seeds_max: int = SEEDS_MAX) -> tuple[int, str]:
    """(number of seeds, what was found); (0, "") if nothing was."""
    plans = (plan_of(seed, SECONDS) for seed in range(seeds_max))
    for count, outcome in enumerate(outcomes(plans, f"tests.sim.removed_rules:{mutant}"), 1):
        if outcome.problems:
            return count, f"seed {outcome.seed}: {outcome.problems[0]}"
    return 0, ""


def main() -> None:
    seeds_max = SEEDS_MAX
    for mutant in sys.argv[1:] or REMOVALS:
        if mutant.isdigit():
            seeds_max = int(mutant)
            continue
        seeds, what = seeds_until_found(mutant, seeds_max)
        print(f"{mutant:55} {seeds or f'not in {seeds_max}':>12}  {what}", flush=True)


if __name__ == "__main__":
    main()
