"""Cycles in a graph, by the standard library's graphlib. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter

CYCLES_MAX = 20
"""So many are looked for: each takes a walk over the whole graph."""


def cycles_in(edges: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Cycles of which no two share a node, at most CYCLES_MAX. `edges`: node -> where its edges lead to.

    Each is the nodes in the order of the edges, the least one first; the last one leads to it. An edge of a node to itself is none.
    """
    # In a fixed order: that of a set of strings is another one in each process, and which cycle is found depends on it.
    left = {node: sorted({to for to in targets if to != node}) for node, targets in edges.items()}
    found: list[list[str]] = []
    while len(found) < CYCLES_MAX:
        try:
            # The sorter takes the nodes that come before, so it names a cycle in the reverse order of `edges`.
            TopologicalSorter(left).prepare()
        except CycleError as error:
            cycle = error.args[1][:-1][::-1]
            first = cycle.index(min(cycle))
            cycle = cycle[first:] + cycle[:first]
        else:
            break
        found.append(cycle)
        gone = set(cycle)
        left = {node: [to for to in targets if to not in gone] for node, targets in left.items() if node not in gone}
    return found
