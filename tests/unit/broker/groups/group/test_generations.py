"""A group is unloaded, restored, deleted, described (CLI-2, LAI-5)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.groups.group.group import Group
from broker.groups.group.messages import AnswerJoin, GroupMetadata, GroupSettings, MemberMetadata, Store
from broker.groups.group.states import Cause, GroupState, IllegalTransition, next_state
from protocol.errors import ErrorCode
from tests.support.group_scripts import START_MS, ScriptedGroup, completing, kill, preparing, stable, unload

EMPTY = GroupState.EMPTY
COMPLETING = GroupState.COMPLETING_REBALANCE
STABLE = GroupState.STABLE
DEAD = GroupState.DEAD


# -- unloaded, restored, deleted


@pytest.mark.parametrize("end", [kill, unload])
@pytest.mark.parametrize("make", [ScriptedGroup, preparing, lambda: completing(None), lambda: stable(None)])
def test_a_group_ends_from_every_state(make: Callable[[], ScriptedGroup], end: Callable[[ScriptedGroup], None]) -> None:
    """The random schedules take every other row of the table (`test_group_properties`)."""
    script = make()
    end(script)
    assert script.group.state is DEAD


def test_a_transition_that_is_not_in_the_table_raises() -> None:
    with pytest.raises(IllegalTransition, match="Dead"):
        next_state(DEAD, Cause.MEMBER_JOINED)


@pytest.mark.parametrize("make", [preparing, lambda: completing(None, None), lambda: stable("a", None)])
def test_unloading_answers_all_waiting_members(make: Callable[[], ScriptedGroup]) -> None:
    script = make()
    waiting = [script.join("id-1"), script.join(instance="a")]
    if script.group.state is COMPLETING:
        waiting.append(script.sync("id-2"))
    unload(script)
    assert all(ticket in script.answers for ticket in waiting)
    assert script.error(waiting[-1]) in (ErrorCode.NOT_COORDINATOR, ErrorCode.REBALANCE_IN_PROGRESS)
    assert script.group.state is DEAD
    assert script.group.next_deadline() is None
    script.stored(ErrorCode.NONE, number=max(script.stores))
    script.wait(400)
    unload(script)
    assert script.group.state is DEAD
    assert script.error(script.join()) is script.error(script.join("id-1")) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert script.error(script.sync("id-1")) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert script.leave("id-1") == [ErrorCode.COORDINATOR_NOT_AVAILABLE]


def member(member_id: str, instance: str | None = None) -> MemberMetadata:
    return MemberMetadata(member_id, instance, "c", "/h", 60_000, 10_000, b"sub", b"asg")


def test_a_record_that_no_broker_writes_is_restored_as_far_as_possible() -> None:
    """An unknown leader, no protocol, two members with one instance id."""
    stored = GroupMetadata("", 7, None, "who", -1, (member("m1", "i"), member("m2"), member("m3", "i"), member("m2")))
    group = Group.restored("g", stored, GroupSettings(), 5.0)
    assert (group.state, group.generation, group.leader) == (STABLE, 7, "m3")
    assert list(group.members) == ["m3", "m2"]
    assert group.describe().members[0].metadata == b"sub"
    assert group.heartbeat("m1", "i", 7, 5.0) is ErrorCode.FENCED_INSTANCE_ID


def test_an_empty_group_is_restored_with_the_time_since_which_it_is_empty() -> None:
    group = Group.restored("g", GroupMetadata("consumer", 3, None, None, START_MS, ()), GroupSettings(), 5.0)
    assert (group.state, group.state_since_ms, group.next_deadline()) == (EMPTY, START_MS, None)
    assert group.subscribed_topics() == frozenset()


# -- what is shown


def test_only_a_stable_group_is_described_with_metadata_and_assignments() -> None:
    script = stable("a", None)
    shown = script.group.describe()
    assert (shown.state, shown.protocol_type, shown.protocol_name) == ("Stable", "consumer", "range")
    assert [(one.member_id, one.instance_id, one.metadata, one.assignment) for one in shown.members] == [
        ("id-1", "a", b"topics", b"id-1"),
        ("id-2", None, b"topics", b"id-2"),
    ]
    script.join()
    shown = script.group.describe()
    assert (shown.state, shown.protocol_name, len(shown.members)) == ("PreparingRebalance", "", 3)
    assert {(one.client_id, one.client_host, one.metadata, one.assignment) for one in shown.members} == {
        ("client", "/10.0.0.1", b"", b"")
    }


def test_effects_are_returned_once() -> None:
    group = Group("g", GroupSettings(initial_rebalance_delay_ms=0))
    script = ScriptedGroup()
    script.group = group
    script.join()
    assert group.advance(script.now_s, script.wall_ms) == []
    assert isinstance(group.unload(ErrorCode.NOT_COORDINATOR), list)
    assert not any(isinstance(effect, AnswerJoin | Store) for effect in group.kill())
