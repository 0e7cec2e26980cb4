"""The failures that every client must survive, each as a few faults: `ottla verify run --recipe all` makes a client's report card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from tools.failures import ExpectedError
from tools.faults.cluster import Cluster
from tools.faults.script import parse_all, why_impossible

AFTERWARDS_S = 10.0
"""How long a program goes on after the last fault of a recipe."""
AT = "at 3s"
"""When it begins, so that the program has written and read before."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """`lines`: faults, in which `{topic}` is the program's topic, `{broker}` a role, and `{of_group}` may name its group.

    `right`: what a client does that gets it right.
    """

    what: str
    lines: Sequence[str]
    right: str

    def faults(self, topic: str, group: str = "", broker: str = "") -> list[str]:
        """`group`: whose heartbeats and commits are hit; empty: those of all. `broker`: who is slow; empty: a leader of the topic."""
        roles = {"of_group": f" of group {group}" if group else "", "broker": broker or f"leader of {topic}-0"}
        return [line.format(topic=topic, **roles) for line in self.lines]

    def seconds(self, topic: str) -> float:
        """How long a run with it takes."""
        faults = parse_all(self.faults(topic))
        return max(fault.at_s + (fault.lasts_s or 0) for fault in faults) + AFTERWARDS_S

    def why_impossible(self, topic: str, cluster: Cluster) -> str | None:
        """Why this cluster cannot have all of its faults."""
        reasons = (why_impossible(fault.words, cluster) for fault in parse_all(self.faults(topic)))
        return next((reason for reason in reasons if reason is not None), None)

    @property
    def has_rules(self) -> bool:
        """Whether some of its faults are in single requests."""
        return any(fault.request is not None for fault in parse_all(self.faults("t")))


RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "leader-moved": Recipe(
            "the leader dies, and another one is elected",
            (f"kill leader of {{topic}}-0 {AT}", "restart it at 8s"),
            "it asks for metadata, and sends again what was not acknowledged",
        ),
        "coordinator-moved": Recipe(
            "the group's coordinator is another broker",
            (
                f"answer heartbeat{{of_group}} with NOT_COORDINATOR 2 times {AT}",
                f"answer offset-commit{{of_group}} with NOT_COORDINATOR 2 times {AT}",
            ),
            "it finds the coordinator again, and commits again",
        ),
        "lost-ack": Recipe(
            "records are written, and the acknowledgement is lost",
            (f"lose the answer to produce of topic {{topic}} 3 times and cut {AT}",),
            "it sends the batch again with the same sequence, so nothing is there twice",
        ),
        "lost-commit": Recipe(
            "a commit is done, and its answer is lost",
            (f"lose the answer to offset-commit{{of_group}} 2 times and cut {AT}",),
            "it commits again, and never an older offset",
        ),
        "fenced-producer": Recipe(
            "the broker says that a newer producer has the id",
            (f"answer produce of topic {{topic}} with INVALID_PRODUCER_EPOCH once {AT}",),
            "it reports the records as failed, or gets a new epoch; it never skips one",
        ),
        "rebalance": Recipe(
            "the group rebalances while the client works",
            (
                f"answer heartbeat{{of_group}} with REBALANCE_IN_PROGRESS 2 times {AT}",
                f"answer offset-commit{{of_group}} with REBALANCE_IN_PROGRESS once {AT}",
                f"answer consumer-group-heartbeat{{of_group}} with FENCED_MEMBER_EPOCH once {AT}",
            ),
            "it joins again, and reads from the last commit",
        ),
        "stale-metadata": Recipe(
            "the leader dies, and metadata names it for 3 s more",
            (
                f"answer metadata with the leaders of 10s ago for 3s {AT}",
                f"kill leader of {{topic}}-0 {AT}",
                "restart it at 10s",
            ),
            "it asks again after a pause, neither for ever nor in a tight loop",
        ),
        "throttled": Recipe(
            "the client is over its quota for 3 s",
            (f"throttle everything by 300ms for 3s {AT}",),
            "it waits, and takes the time for no error",
        ),
        "slow-broker": Recipe(
            "one broker answers late",
            (f"delay everything by 400ms +-200ms at {{broker}} for 5s {AT}",),
            "it goes on with the other brokers",
        ),
        "half-an-answer": Recipe(
            "connections end in the middle of an answer",
            (
                f"cut the connection in the middle of the answer to fetch of topic {{topic}} 2 times {AT}",
                f"cut the connection in the middle of the answer to produce of topic {{topic}} 2 times {AT}",
            ),
            "it drops the half, connects again, and asks again",
        ),
        "refused": Recipe(
            "brokers let nobody in for 3 s",
            (f"refuse connections for 3s {AT}", f"close idle connections now {AT}"),
            "it tries again, with pauses",
        ),
        "full-disk": Recipe(
            "the leader cannot write to its disk for 2 s",
            (f"answer produce of topic {{topic}} with KAFKA_STORAGE_ERROR for 2s {AT}",),
            "it tries again, and loses nothing",
        ),
    }
)


class NoSuchRecipe(ExpectedError, ValueError):
    """The text says which there are."""


def chosen(names: Sequence[str]) -> list[str]:
    """`all`, or some names. Raises NoSuchRecipe."""
    if "all" in names:
        return list(RECIPES)
    for name in names:
        if name not in RECIPES:
            raise NoSuchRecipe(f"{name!r} is no recipe; the recipes are all, {', '.join(RECIPES)}")
    return [name for name in RECIPES if name in names]
