"""Seeded schedules of faults: the same seed, brokers and kinds make the same schedule."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tools.faults.words import Breakage, parse_words

THEN = {"nothing": 3, "acknowledgements": 5, "full ISRs": 2}
"""What a round waits for after its fault -> the weight of this choice."""


@dataclass(frozen=True, slots=True)
class Kind:
    """An action on the brokers that have a role, for `shortest_s` to `longest_s`. `schedule` draws kinds by `weight`.

    `role`: broker, two brokers, all brokers, controller, leader, follower, coordinator, zookeeper. `breakage`: for isolate and cut.
    """

    action: str
    role: str
    shortest_s: float = 0.0
    longest_s: float = 0.0
    weight: int = 1
    breakage: Breakage | None = None


@dataclass(frozen=True, slots=True)
class Round:
    """One fault, which hits the first brokers of `order`. `then` is what to wait for before the next round.

    `pick`, from 0 to below 1, chooses the partition or group if the role needs one: see `one_of`.
    """

    number: int
    name: str
    kind: Kind
    order: tuple[int, ...]
    seconds: float
    then: str
    pick: float = 0.0

    def one_of(self, choices: Sequence[str]) -> str:
        """The partition, such as `t-0`, or the group that this round means."""
        return choices[int(self.pick * len(choices))]

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


def process_kinds(session_s: float) -> dict[str, Kind]:
    """Faults of processes, for brokers with this session time-out: what every kind of cluster can have."""
    beyond = (1.3 * session_s, 1.3 * session_s + 1)
    return {
        "bounce": Kind("kill", "broker", 0, 0.5, weight=6),
        "pause briefly": Kind("pause", "broker", 0, 0.6 * session_s, weight=5),
        "stop and start": Kind("stop", "broker", 0, 1, weight=3),
        "kill the controller": Kind("kill", "controller", 0, 1, weight=3),
        "restart two": Kind("kill", "two brokers", 0, 1, weight=2),
        "restart all": Kind("kill", "all brokers", 0, 1),
        "kill beyond the session": Kind("kill", "broker", *beyond),
        "pause beyond the session": Kind("pause", "broker", *beyond),
        "pause the controller": Kind("pause", "controller", *beyond),
    }


def role_kinds(session_s: float) -> dict[str, Kind]:
    """Faults of those who have a role, beside the controller, and of ZooKeeper and its sessions."""
    return {
        "kill a leader": Kind("kill", "leader", 0, 1, weight=3),
        "kill a follower": Kind("kill", "follower", 0, 1, weight=2),
        "kill a coordinator": Kind("kill", "coordinator", 0, 1),
        "expire a session": Kind("expire-session", "broker", weight=3),
        "expire the controller's session": Kind("expire-session", "controller", weight=2),
        "restart ZooKeeper": Kind("kill", "zookeeper", 0, 2),
        "pause ZooKeeper": Kind("pause", "zookeeper", 0, 0.6 * session_s),
    }


def link_kinds(session_s: float) -> dict[str, Kind]:
    """Faults of links (FLT-9 to FLT-12, FLT-15, FLT-17 to FLT-19)."""
    brief, beyond = (0.0, 0.6 * session_s), (1.3 * session_s, 2.5 * session_s)
    words = {
        "isolate briefly": ("isolate broker 0", brief, 2),
        "isolate beyond the session": ("isolate broker 0", beyond, 2),
        "cut from peers": ("cut broker 0 from peers", beyond, 2),
        "cut from ZooKeeper": ("cut broker 0 from zookeeper", beyond, 2),
        "cut from ZooKeeper briefly": ("cut broker 0 from zookeeper", brief, 2),
        "cut from the controller": ("cut broker 0 from controller", beyond, 2),
        "deaf": ("cut broker 0 from peers one-way in", beyond, 2),
        "mute": ("cut broker 0 from peers one-way out", beyond, 2),
        "deaf to ZooKeeper": ("cut broker 0 from zookeeper one-way in", beyond, 2),
        "slow links": ("cut broker 0 from peers delay 100ms throttle 3Mbit", beyond, 2),
        "resets": ("cut broker 0 from peers reset", brief, 2),
        "resets by ZooKeeper": ("cut broker 0 from zookeeper reset", brief, 1),
        "halved messages": ("cut broker 0 from peers half", brief, 2),
        "halved answers of ZooKeeper": ("cut broker 0 from zookeeper half", brief, 1),
    }
    found = {}
    for name, (said, seconds, weight) in words.items():
        parsed = parse_words(said)
        found[name] = Kind(parsed.verb, "broker", *seconds, weight=weight, breakage=parsed.breakage)
    isolated = found["isolate beyond the session"]
    found["isolate the controller"] = replace(isolated, role="controller")
    found["isolate a leader"] = replace(isolated, role="leader")
    return found


def disk_kinds() -> dict[str, Kind]:
    return {"fill a disk": Kind("fill-disk", "broker", 0.5, 3)}


def all_kinds(session_s: float) -> dict[str, Kind]:
    """Every kind, by its name in `ottla fault run --kinds`."""
    return {**process_kinds(session_s), **role_kinds(session_s), **link_kinds(session_s), **disk_kinds()}


def _round(number: int, name: str, kind: Kind, brokers: Sequence[int], rng: random.Random) -> Round:
    order = tuple(rng.sample(list(brokers), len(brokers)))
    seconds = kind.shortest_s + rng.random() * (kind.longest_s - kind.shortest_s)
    (then,) = rng.choices(list(THEN), list(THEN.values()))
    return Round(number, name, kind, order, seconds, then, rng.random())
