"""Carries out the rounds of a schedule, one after the other. Each round undoes its fault before it returns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from tools.cluster.processes import ClusterError
from tools.faults.cluster import Cluster, Node
from tools.faults.faults import ACTIONS
from tools.faults.roles import Roles
from tools.faults.schedule import Kind, Round
from tools.faults.script import DoneFault, Faulted, ScriptedFault, why_not_broken
from tools.faults.words import Words

NEEDS_PARTITION, NEEDS_GROUP = ("leader", "follower"), ("coordinator", "transaction-coordinator")


def words_of_round(round_: Round, partitions: Sequence[str], groups: Sequence[str], cluster: Cluster) -> list[Words]:
    """The faults of the round, one for each victim. `partitions`: such as `t-0`."""
    kind = round_.kind
    if kind.role in NEEDS_PARTITION:
        roles = [f"{kind.role} of {round_.one_of(partitions)}"]
    elif kind.role in NEEDS_GROUP:
        roles = [f"{kind.role} of {round_.one_of(groups)}"]
    elif kind.role in ("controller", "zookeeper"):
        roles = [kind.role]
    else:
        roles = [f"broker {broker}" for broker in Roles(cluster).some(kind.role, round_.order)]
    return [Words(kind.action, role, kind.breakage) for role in roles]


def as_script(
    rounds: Sequence[Round],
    partitions: Sequence[str],
    groups: Sequence[str],
    cluster: Cluster,
    pauses_s: Iterator[float],
) -> list[ScriptedFault]:
    """The rounds with times. The first begins after the first pause, each later one a pause after the end of the one before."""
    found: list[ScriptedFault] = []
    at_s = next(pauses_s)
    for round_ in rounds:
        lasts_s = round_.seconds if ACTIONS[round_.kind.action].undo is not None else None
        found.extend(
            ScriptedFault(words.verb, words.role, round(at_s, 3), words.breakage, lasts_s)
            for words in words_of_round(round_, partitions, groups, cluster)
        )
        at_s += round_.seconds + next(pauses_s)
    return found


class Rounds:
    """The rounds of one schedule, on one cluster."""

    def __init__(
        self,
        cluster: Cluster,
        faulted: Faulted,
        partitions: Sequence[str],
        groups: Sequence[str],
        say: Callable[[DoneFault], None],
    ) -> None:
        """`say` is called with each fault, and with each undo, when it was tried."""
        self._say = say
        self._cluster = cluster
        self._faulted = faulted
        self._partitions = partitions
        self._groups = groups

    def play(self, round_: Round) -> None:
        """Carries the fault out, waits, and always undoes it. Raises ClusterError if the undo fails, because the next round needs it."""
        harmed: list[tuple[Words, list[Node]]] = []
        try:
            for words in words_of_round(round_, self._partitions, self._groups, self._cluster):
                rows, victims = self._faulted.carry_out(words)
                harmed.append((words, victims))
                for row in rows:
                    self._say(row)
            time.sleep(round_.seconds)
        finally:
            if ACTIONS[round_.kind.action].undo is not None:
                undone = [row for words, victims in harmed for row in self._faulted.undo(words, victims)]
                for row in undone:
                    self._say(row)
                errors = [row.error for row in undone if row.error]
                if errors:
                    raise ClusterError(f"{round_.name} was not undone: {errors[0]}")


def why_not(kind: Kind, cluster: Cluster, partitions: Sequence[str], groups: Sequence[str]) -> str | None:
    """The reason why this cluster cannot have the kind of fault; None if none is known before it happens."""
    if kind.action in cluster.impossible:
        return cluster.impossible[kind.action]
    if kind.breakage is not None and (reason := why_not_broken(kind.breakage, cluster)) is not None:
        return reason
    if kind.role == "zookeeper" and cluster.zookeeper() is None:
        return "the cluster has no ZooKeeper of its own"
    if kind.role in NEEDS_PARTITION and not partitions:
        return "there is no topic; --topic names one"
    if kind.role in NEEDS_GROUP and not groups:
        return "--group names no group"
    return None
