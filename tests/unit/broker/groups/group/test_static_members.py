"""Static members (KIP-345, KIP-814) rejoin, are replaced, or are away (CLI-2, INV-24)."""

from __future__ import annotations

import pytest

from broker.groups.group.messages import LeavingMember
from broker.groups.group.states import GroupState
from protocol.errors import ErrorCode
from tests.support.group_scripts import BOTH, OTHER_TOPICS, RANGE, STICKY_FIRST, ScriptedGroup, completing, stable

EMPTY = GroupState.EMPTY
PREPARING = GroupState.PREPARING_REBALANCE
COMPLETING = GroupState.COMPLETING_REBALANCE
STABLE = GroupState.STABLE


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("instance", ["a", "b"])
def test_a_static_member_rejoins_without_a_rebalance(instance: str, skip: bool) -> None:
    """KIP-814: a leader that can skip the assignment is told to. For one that cannot, the answer names the old id as leader."""
    script = stable("a", "b")
    old = {"a": "id-1", "b": "id-2"}[instance]
    generation, rows = script.group.generation, len(script.rows)
    ticket = script.join(instance=instance, skip=skip, host="/10.0.0.9")
    assert ticket not in script.answers, "not before the new id is stored"
    assert script.heartbeat(old, instance=instance) is ErrorCode.FENCED_INSTANCE_ID
    script.stored()
    answer = script.joined(ticket)
    assert (answer.error, answer.generation, answer.member_id) == (ErrorCode.NONE, generation, "id-3")
    leads = instance == "a" and skip
    assert (answer.skip_assignment, len(answer.members)) == (leads, 2 if leads else 0)
    assert answer.leader == ("id-3" if leads else "id-1")
    assert len(script.rows) == rows, "no rebalance"
    assert script.synced(script.sync("id-3", instance=instance)).assignment == old.encode()
    assert script.heartbeat("id-3", instance=instance) is ErrorCode.NONE
    assert script.group.members["id-3"].client_host == "/10.0.0.9"


def test_a_replacement_that_cannot_be_stored_is_undone() -> None:
    script = stable("a", "b")
    ticket = script.join(instance="a", protocols=STICKY_FIRST, session_ms=20_000)
    script.stored(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert script.error(ticket) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert script.joined(ticket).member_id == ""
    member = script.group.members["id-1"]
    assert (script.group.leader, member.protocols, member.session_timeout_ms) == ("id-1", RANGE, 10_000)
    assert script.heartbeat("id-1", instance="a") is ErrorCode.NONE
    assert script.group.state is STABLE


@pytest.mark.parametrize("error", [ErrorCode.NONE, ErrorCode.NOT_COORDINATOR])
def test_the_session_of_a_replacement_starts_with_its_answer(error: ErrorCode) -> None:
    script = stable("a")
    script.join(instance="a")
    script.wait(15)
    script.stored(error)
    (member,) = script.group.members.values()
    assert member.expires_s() - script.now_s == 10


def test_a_replacement_that_is_replaced_while_both_are_stored() -> None:
    """The outcome of the first store must not answer the second JoinGroup. If both fail, the stored id is restored."""
    script = stable("a", "b")
    first = script.join(instance="a")
    second = script.join(instance="a")
    numbers = sorted(script.stores)[-2:]
    assert script.error(first) is ErrorCode.FENCED_INSTANCE_ID
    assert script.joined(first).member_id == "id-3"
    script.stored(ErrorCode.REBALANCE_IN_PROGRESS, number=numbers[0])
    assert second not in script.answers
    script.stored(ErrorCode.REBALANCE_IN_PROGRESS, number=numbers[1])
    assert script.error(second) is ErrorCode.REBALANCE_IN_PROGRESS
    assert set(script.group.members) == {"id-1", "id-2"}


def test_a_stored_replacement_is_restored_when_the_next_one_fails() -> None:
    script = stable("a", "b")
    script.join(instance="a")
    second = script.join(instance="a")
    numbers = sorted(script.stores)[-2:]
    script.stored(number=numbers[0])
    script.stored(ErrorCode.NOT_COORDINATOR, number=numbers[1])
    assert script.error(second) is ErrorCode.NOT_COORDINATOR
    assert set(script.group.members) == {"id-3", "id-2"}


@pytest.mark.parametrize("error", [ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE])
def test_a_rebalance_overtakes_a_replacement(error: ErrorCode) -> None:
    """Stored or not, the rebalance answers its JoinGroup. Kafka answers with the old generation."""
    script = stable("a", "b")
    ticket = script.join(instance="b")
    script.join("id-1", instance="a")
    assert script.group.state is COMPLETING
    assert script.joined(ticket).generation == script.group.generation
    script.stored(error, number=max(script.stores))
    assert set(script.group.members) == {"id-1", "id-3"}
    assert script.group.state is COMPLETING

    script = stable("a", "b", None)
    ticket = script.join(instance="b")
    script.join("id-1", instance="a")
    script.stored(error, number=max(script.stores))
    assert script.group.state is PREPARING
    assert ticket not in script.answers
    script.join("id-3")
    assert script.joined(ticket).generation == script.group.generation


def test_a_replacement_that_is_removed_while_it_is_stored() -> None:
    script = stable("a", "b")
    ticket = script.join(instance="b")
    assert script.leave(LeavingMember("", "b")) == [ErrorCode.NONE]
    assert script.error(ticket) is ErrorCode.UNKNOWN_MEMBER_ID
    script.stored(ErrorCode.NOT_COORDINATOR, number=max(script.stores))
    assert set(script.group.members) == {"id-1"}


def test_a_replacement_that_would_change_the_protocol_rebalances() -> None:
    script = ScriptedGroup()
    script.join(instance="a", protocols=BOTH)
    script.complete()
    ticket = script.join(instance="a", protocols=STICKY_FIRST)
    assert script.joined(ticket).protocol_name == "sticky"
    assert script.joined(ticket).generation == 2


def test_a_replacement_while_completing_rebalances() -> None:
    """The leader may know the old member id already."""
    script = completing("a", "b")
    waiting = script.sync("id-2", instance="b")
    script.join(instance="b")
    assert script.error(waiting) is ErrorCode.FENCED_INSTANCE_ID
    assert script.group.state is PREPARING


def test_a_replacement_while_preparing_joins_in_place_of_the_old_member() -> None:
    script = stable("a", "b")
    old = script.join("id-1", instance="a")
    new = script.join(instance="a")
    assert script.error(old) is ErrorCode.FENCED_INSTANCE_ID
    assert new not in script.answers
    script.join("id-2", instance="b")
    assert script.joined(new).leader == "id-3"


def test_a_process_whose_instance_id_another_process_uses_is_fenced() -> None:
    script = stable("a", "b")
    script.join(instance="a")
    script.stored()
    fenced = ErrorCode.FENCED_INSTANCE_ID
    assert script.error(script.join("id-1", instance="a")) is fenced
    assert script.error(script.sync("id-1", instance="a")) is fenced
    assert script.commit("id-1", script.group.generation, "a") is fenced
    assert script.leave(LeavingMember("id-1", "a")) == [fenced]
    assert script.heartbeat("id-1") is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_that_is_away_stays_for_its_session() -> None:
    script = stable("a", "b", rebalance_ms=5_000, session_ms=30_000)
    script.join("id-1", instance="a", rebalance_ms=5_000)
    script.wait(5.1)
    assert script.group.state is COMPLETING
    assert set(script.group.members) == {"id-1", "id-2"}
    assert script.heartbeat("id-2", 2, "b") is ErrorCode.ILLEGAL_GENERATION
    answer = script.joined(script.join("id-2", instance="b"))
    assert (answer.error, answer.generation) == (ErrorCode.NONE, 3)


def test_a_rebalance_waits_while_all_static_members_are_away() -> None:
    script = stable("a", "b", None, rebalance_ms=5_000)
    script.leave("id-3")
    script.wait(6, alive=["id-1", "id-2"])
    assert script.group.state is PREPARING
    assert len(script.group.members) == 2
    script.wait(20)
    assert script.group.state is EMPTY
    assert script.group.members == {}


def test_if_the_leader_does_not_rejoin_the_oldest_member_that_did_leads() -> None:
    script = stable("a", None, rebalance_ms=5_000, session_ms=30_000)
    ticket = script.join("id-2", protocols=OTHER_TOPICS, rebalance_ms=5_000)
    script.wait(5.1)
    assert script.joined(ticket).leader == "id-2"
    assert len(script.joined(ticket).members) == 2
