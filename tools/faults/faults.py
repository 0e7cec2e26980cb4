"""Faults of a cluster's processes or containers, each with its undo."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from tools.cluster.processes import ClusterError
from tools.cluster.zookeeper import ZooKeeperError
from tools.faults.cluster import Cluster, Node, State, Victim

Hit = TypeVar("Hit", bound=Victim)


@dataclass(frozen=True)
class Action:
    """`undo` is None if there is nothing to undo."""

    do: Callable[[Victim], None]
    undo: Callable[[Victim], None] | None


ACTIONS = {
    "kill": Action(lambda victim: victim.kill(), lambda victim: victim.start()),
    "stop": Action(lambda victim: victim.stop(), lambda victim: victim.start()),
    "pause": Action(lambda victim: victim.pause(), lambda victim: victim.resume()),
    "expire-session": Action(lambda victim: victim.expire_session(), None),
}
"""A bounce is a kill that is undone at once; a restart is a stop that is undone at once."""


def inject(action: str, victims: Sequence[Victim], seconds: float = 0.0) -> float:
    """Hits all victims, waits `seconds`, and undoes the fault whatever happens. Returns the time of its end (monotonic seconds)."""
    undo = ACTIONS[action].undo
    done: list[Victim] = []
    try:
        for victim in victims:
            ACTIONS[action].do(victim)
            done.append(victim)
        time.sleep(seconds)
    finally:
        if undo is not None:
            _raise_first(_to_all(undo, done))
    return time.monotonic()


@contextmanager
def healed(cluster: Cluster) -> Iterator[None]:
    """Heals the cluster at the end of the block, whatever happens in it."""
    try:
        yield
    finally:
        heal(cluster)


def heal(cluster: Cluster) -> None:
    """Resumes everything that is paused and starts everything that has ended, ZooKeeper first, whoever caused it.

    Continues with the others after an error. At the end raises the first ClusterError or ZooKeeperError.
    """
    zookeeper = cluster.zookeeper()
    nodes = [cluster.broker(broker) for broker in cluster.broker_ids]
    if zookeeper is not None:
        nodes.insert(0, zookeeper)
    resumed = _to_all(_resume_if_paused, nodes)
    _raise_first([*resumed, *_to_all(_start_if_ended, nodes)])


def _resume_if_paused(node: Node) -> None:
    if node.state() is State.PAUSED:
        node.resume()


def _start_if_ended(node: Node) -> None:
    if node.state() is State.ENDED:
        node.start()


def _to_all(act: Callable[[Hit], None], victims: Sequence[Hit]) -> list[Exception]:
    """Continues with the other victims after an error; returns the errors."""
    errors: list[Exception] = []
    for victim in victims:
        try:
            act(victim)
        except (ClusterError, ZooKeeperError) as error:
            errors.append(error)
    return errors


def _raise_first(errors: Sequence[Exception]) -> None:
    if errors:
        raise errors[0]
