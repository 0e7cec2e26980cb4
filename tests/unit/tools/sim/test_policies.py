"""What compaction and retention may remove from a topic of a simulated cluster."""

from __future__ import annotations

import pytest

from protocol.types import TopicPartition
from tools.sim.plan import CONFIGS
from tools.sim.policies import (
    COMPACTS,
    ID,
    Policy,
    id_of,
    is_tombstone,
    key_of,
    outdated,
    policy_of,
    text_of,
    unlike_what_is_left,
)

TP = TopicPartition("topic", 0)
OLD = "a"
NEW = next(record for record in map(str, range(1000)) if key_of(record) == key_of(OLD))
TOMBSTONE = next(
    record for record in (f"producer{n}" for n in range(1000)) if is_tombstone(record) and key_of(record) == key_of(OLD)
)
OTHER = next(record for record in map(str, range(1000)) if key_of(record) != key_of(OLD))


def test_the_policies_of_a_plan() -> None:
    assert [policy_of(configs) for configs in CONFIGS] == [
        COMPACTS,
        Policy(compacts=True, has_tombstones=True),
        Policy(compacts=True, has_tombstones=True, forgets=True),
        Policy(deletes=True),
        Policy(deletes=True),
    ]
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


@pytest.mark.parametrize(("at", "forgets", "is_right"), [(4, True, True), (4, False, False), (2, True, False)])
def test_a_key_that_was_deleted_need_not_be_there(at: int, forgets: bool, is_right: bool) -> None:
    assert is_tombstone(TOMBSTONE)
    assert key_of(TOMBSTONE) == key_of(OLD)
    acked = [(3, OLD), (at, TOMBSTONE)]
    assert (list(outdated(TP, acked, [], forgets=forgets)) == []) is is_right


def test_a_tombstone_has_its_id_in_a_header() -> None:
    assert id_of(text_of(None, (("other", b"x"), (ID, b"id-1")))) == "id-1"
    assert id_of(text_of(b"id-2 ...", ((ID, b"id-1"),))) == "id-2"
    assert id_of(text_of(None, ())) == ""


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
