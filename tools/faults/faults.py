"""The table of faults, each with its undo."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tools.failures import ExpectedError
from tools.faults.cluster import Cluster, Node, State, Victim
from tools.faults.words import Breakage

Hit = TypeVar("Hit", bound=Victim)


@dataclass(frozen=True)
class Action:
    """`undo` is None if there is nothing to undo. Both get the links that the fault names, if it names some."""

    do: Callable[[Any, Breakage | None], None]
    undo: Callable[[Any, Breakage | None], None] | None = None


def _restart(victim: Victim) -> None:
    """Stops cleanly and starts again. Starts a process that has ended."""
    if victim.state() is not State.ENDED:
        victim.stop()
    victim.start()


def _bounce(victim: Victim) -> None:
    victim.kill()
    victim.start()


def _start_if_ended(victim: Victim) -> None:
    if victim.state() is State.ENDED:
        victim.start()


def _resume_if_paused(victim: Victim) -> None:
    if victim.state() is State.PAUSED:
        victim.resume()


def _sever(node: Node, breakage: Breakage | None) -> None:
    node.sever(breakage or Breakage())


def heal_node(node: Node) -> None:
    """Undoes every fault of one broker or of ZooKeeper. Raises ClusterError, ZooKeeperError."""
    node.join(None)
    _resume_if_paused(node)
    node.remove_rules(None)
    node.free_disk()
    _start_if_ended(node)


ACTIONS = {
    "kill": Action(lambda victim, _: victim.kill(), lambda victim, _: _start_if_ended(victim)),
    "stop": Action(lambda victim, _: victim.stop(), lambda victim, _: _start_if_ended(victim)),
    "pause": Action(lambda victim, _: victim.pause(), lambda victim, _: _resume_if_paused(victim)),
    "bounce": Action(lambda victim, _: _bounce(victim)),
    "restart": Action(lambda victim, _: _restart(victim)),
    "resume": Action(lambda victim, _: victim.resume()),
    "isolate": Action(_sever, lambda node, breakage: node.join(breakage)),
    "cut": Action(_sever, lambda node, breakage: node.join(breakage)),
    "expire-session": Action(lambda node, _: node.expire_session()),
    "fill-disk": Action(lambda node, _: node.fill_disk(), lambda node, _: node.free_disk()),
    "heal": Action(lambda node, _: heal_node(node)),
}
"""Every action, by its word. The victims are Nodes; those of the first six may be any Victim."""


def heal(cluster: Cluster) -> None:
    """Undoes every fault, whoever caused it: links, pauses, disks, and what has ended; ZooKeeper first.

    Continues with the others after an error. At the end raises the first ClusterError or ZooKeeperError.
    """
    zookeeper = cluster.zookeeper()
    nodes: list[Node] = [cluster.broker(broker) for broker in cluster.broker_ids]
    if zookeeper is not None:
        nodes.insert(0, zookeeper)
    joined = to_all(lambda node: node.join(None), nodes)
    cluster.drop_claims()
    resumed = to_all(_resume_if_paused, nodes)
    unruled = to_all(lambda node: node.remove_rules(None), nodes)
    freed = to_all(lambda node: node.free_disk(), nodes)
    raise_first([*joined, *resumed, *unruled, *freed, *to_all(_start_if_ended, nodes)])


def to_all(act: Callable[[Hit], None], victims: Sequence[Hit]) -> list[Exception]:
    """Continues with the other victims after an error; returns the errors."""
    errors: list[Exception] = []
    for victim in victims:
        try:
            act(victim)
        except ExpectedError as error:
            errors.append(error)
    return errors


def raise_first(errors: Sequence[Exception]) -> None:
    if errors:
        raise errors[0]
