"""What compaction and retention may remove from a topic of a simulated cluster."""

from __future__ import annotations

import pytest

from protocol.types import TopicPartition
from tools.sim.plan import CONFIGS
from tools.sim.policies import COMPACTS, Policy, key_of, outdated, policy_of, unlike_what_is_left

TP = TopicPartition("topic", 0)
OLD = "a"
NEW = next(record for record in map(str, range(1000)) if key_of(record) == key_of(OLD))
OTHER = next(record for record in map(str, range(1000)) if key_of(record) != key_of(OLD))


def test_the_policies_of_a_plan() -> None:
    assert [policy_of(configs) for configs in CONFIGS] == [COMPACTS, Policy(deletes=True), Policy(deletes=True)]
    assert policy_of({}).keeps_all


@pytest.mark.parametrize(
    ("visible", "is_right"),
    [
        ([(3, OLD)], True),
        ([(4, NEW)], True),
        ([(2, NEW)], False),
        ([(4, OTHER)], False),
        ([], False),
    ],
)
def test_the_newest_record_of_each_key_is_there(visible: list[tuple[int, str]], is_right: bool) -> None:
    assert (list(outdated(TP, [(3, OLD)], visible)) == []) is is_right


def test_a_record_without_an_offset_has_one_with_its_key() -> None:
    assert not list(outdated(TP, [(None, OLD)], [(0, NEW)]))
    assert list(outdated(TP, [(None, OLD)], [(0, OTHER)]))


@pytest.mark.parametrize(
    ("seen", "is_right"),
    [
        ([(0, "removed"), (1, "b"), (2, "c")], True),
        ([(1, "b")], True),
        ([(2, "c")], False),
        ([(1, "x"), (2, "c")], False),
        ([(0, "aborted"), (1, "b")], False),
        ([(1, "b"), (1, "b")], False),
    ],
)
def test_a_reader_gets_what_is_left_and_nothing_aborted(seen: list[tuple[int, str]], is_right: bool) -> None:
    visible = [(1, "b"), (2, "c"), (5, "d")]
    assert (list(unlike_what_is_left("reader", TP, seen, visible, {"aborted"})) == []) is is_right
