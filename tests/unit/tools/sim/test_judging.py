"""What the judge of simulated histories says about segments that begin at other offsets, and about groups that begin anew."""

from __future__ import annotations

from random import Random

import pytest

from protocol.types import Assignment, LeaderAndIsr, TopicPartition
from tools.sim.clients.history import History, Ownership
from tools.sim.judging import Scene, owned_twice, problems_of
from tools.sim.policies import COMPACTS, Policy
from tools.sim.truth import Replica, StoredBatch
from tools.sim.world.scheduler import Scheduler

TP = TopicPartition("topic", 0)
FIRST, SECOND = (StoredBatch(offset, offset, 0, offset, {offset: name}, -1, None) for offset, name in enumerate("ab"))


@pytest.mark.parametrize(("deletes", "is_right"), [(True, True), (False, False)])
def test_the_log_begins_where_retention_went_furthest(deletes: bool, is_right: bool) -> None:
    """A group has gone on at the start that broker 2 had as leader. Broker 1, which leads now, keeps an older segment."""
    replicas = {1: {TP: Replica([FIRST, SECOND], 2)}, 2: {TP: Replica([SECOND], 2)}}
    scene = Scene({TP: LeaderAndIsr(1, 0, (1, 2), 0)}, {TP: Assignment((1, 2))}, replicas)
    history = History(Scheduler(Random(0)), lambda _tp, _host: True)
    for offset, record in enumerate("ab"):
        history.produced("producer", TP, record)
        history.acked("producer", TP, record, offset)
    history.consumed("group", TP, "b", 1)
    history.committed("group", TP, 2)
    assert (list(problems_of(scene, history, [TP], {TP.topic: Policy(deletes=deletes)})) == []) is is_right


@pytest.mark.parametrize(("compacted", "is_right"), [([SECOND], True), ([FIRST, SECOND], False)])
def test_a_record_may_have_been_compacted_away_where_a_reader_has_read(
    compacted: list[StoredBatch], is_right: bool
) -> None:
    """Broker 1, which leads now, still has it."""
    replicas = {1: {TP: Replica([FIRST, SECOND], 2)}, 2: {TP: Replica(compacted, 2)}}
    scene = Scene({TP: LeaderAndIsr(1, 0, (1, 2), 0)}, {TP: Assignment((1, 2))}, replicas)
    history = History(Scheduler(Random(0)), lambda _tp, _host: True)
    for offset, record in enumerate("ab"):
        history.produced("producer", TP, record)
        history.acked("producer", TP, record, offset)
    history.consumed("group", TP, "b", 1)
    history.read_committed["reader", TP] = [(1, "b")]
    assert (list(problems_of(scene, history, [TP], {TP.topic: COMPACTS})) == []) is is_right


@pytest.mark.parametrize(
    ("later", "is_right"),
    [
        ([(2, "c"), (2, "d")], False),
        ([(2, "c")], True),
        ([(1, "c")], True),
        ([(2, "a")], True),
        ([(2, "b")], False),
        ([(6, "c"), (6, "a")], False),
    ],
)
def test_a_group_begins_anew_with_a_new_member_in_an_earlier_generation(
    later: list[tuple[int, str]], is_right: bool
) -> None:
    """INV-24: `a` had the partition in generation 2, `b` has it in 5. Seed 38027009: nobody had anything in generation 1."""
    history = History(Scheduler(Random(0)), lambda _tp, _host: True)
    for generation, member in [(2, "a"), (5, "b"), *later]:
        history.owned.append(Ownership("group", generation, member, (TP,)))
    assert (list(owned_twice(history)) == []) is is_right
