"""Cycles in a graph: which are found, and that equal graphs give equal cycles."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.judge.cycles import CYCLES_MAX, cycles_in

RANDOM_GRAPHS = """
import random
from tools.judge.cycles import cycles_in
for seed in range(50):
    numbers = random.Random(seed)
    print(cycles_in({f"t{node}": {f"t{numbers.randrange(20)}" for _ in range(3)} for node in range(20)}))
"""


@pytest.mark.parametrize(
    ("edges", "cycles"),
    [
        ({}, []),
        ({"a": {"a"}}, []),
        ({"a": {"b"}, "b": {"c"}}, []),
        ({"b": {"a"}, "a": {"b"}}, [["a", "b"]]),
        ({"c": {"a"}, "a": {"b"}, "b": {"c"}}, [["a", "b", "c"]]),
        ({"a": {"b"}, "b": {"a"}, "c": {"d"}, "d": {"c"}}, [["a", "b"], ["c", "d"]]),
    ],
)
def test_cycles(edges: dict[str, set[str]], cycles: list[list[str]]) -> None:
    assert sorted(cycles_in(edges)) == cycles


@given(st.dictionaries(st.sampled_from("abcdefgh"), st.sets(st.sampled_from("abcdefgh"))))
def test_each_is_one_and_they_share_no_node(edges: dict[str, set[str]]) -> None:
    found = cycles_in(edges)
    assert len(found) <= CYCLES_MAX
    nodes = [node for cycle in found for node in cycle]
    assert len(nodes) == len(set(nodes))
    for cycle in found:
        assert all(to in edges[node] for node, to in zip(cycle, [*cycle[1:], cycle[0]], strict=True))


def test_equal_graphs_give_equal_cycles_in_every_process() -> None:
    outputs = {
        subprocess.run(
            [sys.executable, "-c", RANDOM_GRAPHS],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
