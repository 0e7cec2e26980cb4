"""Seeded schedules of faults: the same seed, brokers and kinds make the same schedule."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

THEN = {"nothing": 3, "acknowledgements": 5, "full ISRs": 2}
"""What a round waits for after its fault -> the weight of this choice."""


@dataclass(frozen=True, slots=True)
class Kind:
    """An action on the brokers that have a role, for `shortest_s` to `longest_s`. `schedule` draws kinds by `weight`."""

    action: str
    role: str
    shortest_s: float = 0.0
    longest_s: float = 0.0
    weight: int = 1


@dataclass(frozen=True, slots=True)
class Round:
    """One fault, which hits the first brokers of `order`. `then` is what to wait for before the next round."""

    number: int
    name: str
    kind: Kind
    order: tuple[int, ...]
    seconds: float
    then: str

    def __str__(self) -> str:
        return (
            f"round {self.number}: {self.name}, brokers in order {self.order}, {self.seconds:.2f} s, then {self.then}"
        )


def schedule(seed: int, rounds: int, brokers: Sequence[int], kinds: Mapping[str, Kind]) -> list[Round]:
    """Each kind occurs once if there are enough rounds. The other rounds are drawn by weight; the order is shuffled."""
    rng = random.Random(seed)
    names = list(kinds)
    weights = [kind.weight for kind in kinds.values()]
    bag = [*names, *rng.choices(names, weights, k=max(0, rounds - len(names)))]
    rng.shuffle(bag)
    return [_round(number, name, kinds[name], brokers, rng) for number, name in enumerate(bag[:rounds], 1)]


def _round(number: int, name: str, kind: Kind, brokers: Sequence[int], rng: random.Random) -> Round:
    order = tuple(rng.sample(list(brokers), len(brokers)))
    seconds = kind.shortest_s + rng.random() * (kind.longest_s - kind.shortest_s)
    (then,) = rng.choices(list(THEN), list(THEN.values()))
    return Round(number, name, kind, order, seconds, then)
