"""Every row of the table of a group's states is taken by a script (CLI-2)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.groups.group.messages import (
    GroupSettings,
)
from broker.groups.group.states import TRANSITIONS, Cause, GroupState, IllegalTransition, next_state
from protocol.errors import ErrorCode
from tests.support.group_scripts import (
    OTHER_TOPICS,
    Row,
    ScriptedGroup,
    completing,
    ended,
    kill,
    preparing,
    preparing_nobody,
    restored,
    stable,
    unload,
)

EMPTY, PREPARING, COMPLETING, STABLE, DEAD = GroupState


# -- the table: for each row a script that takes it


def empty_joined() -> ScriptedGroup:
    script = ScriptedGroup()
    script.join()
    return script


def empty_ended(end: Callable[[ScriptedGroup], None]) -> ScriptedGroup:
    script = ScriptedGroup()
    end(script)
    return script


def preparing_timed_out() -> ScriptedGroup:
    script = preparing()
    script.wait(61, alive=["id-1", "id-2"])
    assert list(script.group.members) == ["id-3"], "the dynamic members that did not rejoin are gone"
    return script


def preparing_left() -> ScriptedGroup:
    script = preparing()
    script.leave("id-1", "id-2", "id-3")
    assert script.group.protocol_name is None
    assert script.group.leader is None
    assert script.stores[max(script.stores)].members == ()
    return script


def not_stored(error: ErrorCode = ErrorCode.COORDINATOR_NOT_AVAILABLE) -> ScriptedGroup:
    script = completing(None)
    ticket = script.sync("id-1", {"id-1": b"x"})
    script.stored(error)
    assert script.error(ticket) is error
    return script


def completing_joined() -> ScriptedGroup:
    script = completing(None)
    script.join()
    return script


def completing_changed() -> ScriptedGroup:
    script = completing(None, None)
    script.join("id-2", protocols=OTHER_TOPICS)
    return script


def completing_left() -> ScriptedGroup:
    script = completing(None, None)
    script.leave("id-2")
    return script


def completing_session_ended() -> ScriptedGroup:
    script = completing(None, None)
    script.wait(11, alive=["id-1"])
    return script


def completing_sync_timed_out() -> ScriptedGroup:
    script = completing(None, None, rebalance_ms=5_000)
    script.wait(6, alive=["id-1", "id-2"])
    return script


def stable_joined() -> ScriptedGroup:
    return preparing()


def stable_changed() -> ScriptedGroup:
    script = stable(None, None)
    script.join("id-2", protocols=OTHER_TOPICS)
    return script


def leader_rejoined() -> ScriptedGroup:
    script = stable(None, None)
    script.join("id-1")
    return script


def stable_left() -> ScriptedGroup:
    script = stable(None, None)
    script.leave("id-2")
    return script


def stable_session_ended() -> ScriptedGroup:
    script = stable(None, None)
    script.wait(11, alive=["id-1"])
    assert list(script.group.members) == ["id-1"]
    return script


def stable_sync_timed_out() -> ScriptedGroup:
    script = completing(None, None, rebalance_ms=5_000)
    script.sync("id-1", {"id-1": b"x"})
    script.stored()
    assert script.group.state is STABLE
    script.wait(6, alive=["id-1", "id-2"])
    assert list(script.group.members) == ["id-1"]
    return script


def over_capacity() -> ScriptedGroup:
    script = stable(None, None)
    restored(script, script.group.snapshot(script.wall_ms), GroupSettings(max_size=1))
    return script


SCRIPTS: dict[Row, Callable[[], ScriptedGroup]] = {
    (EMPTY, Cause.MEMBER_JOINED): empty_joined,
    (EMPTY, Cause.DELETED): lambda: empty_ended(kill),
    (EMPTY, Cause.UNLOADED): lambda: empty_ended(unload),
    (PREPARING, Cause.ALL_JOINED): empty_joined,
    (PREPARING, Cause.JOIN_TIMED_OUT): preparing_timed_out,
    (PREPARING, Cause.NOBODY_JOINED): preparing_nobody,
    (PREPARING, Cause.NOBODY_LEFT): preparing_left,
    (PREPARING, Cause.DELETED): lambda: ended(preparing(), kill),
    (PREPARING, Cause.UNLOADED): lambda: ended(preparing(), unload),
    (COMPLETING, Cause.ASSIGNMENT_STORED): lambda: stable(None),
    (COMPLETING, Cause.ASSIGNMENT_NOT_STORED): not_stored,
    (COMPLETING, Cause.MEMBER_JOINED): completing_joined,
    (COMPLETING, Cause.MEMBER_CHANGED): completing_changed,
    (COMPLETING, Cause.MEMBER_LEFT): completing_left,
    (COMPLETING, Cause.SESSION_ENDED): completing_session_ended,
    (COMPLETING, Cause.SYNC_TIMED_OUT): completing_sync_timed_out,
    (COMPLETING, Cause.DELETED): lambda: ended(completing(None), kill),
    (COMPLETING, Cause.UNLOADED): lambda: ended(completing(None), unload),
    (STABLE, Cause.MEMBER_JOINED): stable_joined,
    (STABLE, Cause.MEMBER_CHANGED): stable_changed,
    (STABLE, Cause.LEADER_REJOINED): leader_rejoined,
    (STABLE, Cause.MEMBER_LEFT): stable_left,
    (STABLE, Cause.SESSION_ENDED): stable_session_ended,
    (STABLE, Cause.SYNC_TIMED_OUT): stable_sync_timed_out,
    (STABLE, Cause.OVER_CAPACITY): over_capacity,
    (STABLE, Cause.DELETED): lambda: ended(stable(None), kill),
    (STABLE, Cause.UNLOADED): lambda: ended(stable(None), unload),
}


def test_every_row_of_the_table_has_a_script() -> None:
    assert set(SCRIPTS) == set(TRANSITIONS)


@pytest.mark.parametrize("row", TRANSITIONS, ids=lambda row: f"{row[0].value}: {row[1].value}")
def test_a_row_of_the_table(row: Row) -> None:
    assert row in SCRIPTS[row]().rows


def test_what_the_table_has_not_is_a_mistake_of_ours() -> None:
    with pytest.raises(IllegalTransition, match="Dead"):
        next_state(DEAD, Cause.MEMBER_JOINED)
