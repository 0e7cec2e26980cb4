"""Requests of members to their group, in schedules that are easy to get wrong (CLI-2, INV-24, BAD-32)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.groups.group.messages import GroupSettings, JoinedMember, LeavingMember, Protocol
from broker.groups.group.states import GroupState
from protocol.errors import ErrorCode
from tests.support.group_scripts import (
    BOTH,
    OTHER_TOPICS,
    RANGE,
    STICKY_FIRST,
    ScriptedGroup,
    completing,
    preparing,
    restored,
    stable,
    unload,
)

EMPTY = GroupState.EMPTY
PREPARING = GroupState.PREPARING_REBALANCE
COMPLETING = GroupState.COMPLETING_REBALANCE
STABLE = GroupState.STABLE


# -- joining


def test_two_members_become_a_stable_group() -> None:
    script = ScriptedGroup(delay_ms=3_000)
    first, second = script.join(), script.join()
    assert script.group.state is PREPARING
    assert not script.answers
    script.wait(6.1)
    assert script.group.state is COMPLETING
    assert script.group.generation == 1
    led, follows = script.joined(first), script.joined(second)
    assert led.leader == follows.leader == led.member_id == "id-1"
    assert led.members == (JoinedMember("id-1", None, b"topics"), JoinedMember("id-2", None, b"topics"))
    assert follows.members == ()
    assert (follows.protocol_type, follows.protocol_name) == ("consumer", "range")
    waiting = script.sync("id-2")
    leading = script.sync("id-1", {"id-1": b"one", "id-2": b"two"})
    assert not {waiting, leading} & set(script.answers), "no member gets an assignment before it is stored (INV-24)"
    assert [member.assignment for member in script.stores[1].members] == [b"one", b"two"]
    script.stored()
    assert (script.synced(leading).assignment, script.synced(waiting).assignment) == (b"one", b"two")
    assert script.group.state is STABLE
    assert script.group.state_since_ms == script.wall_ms


@pytest.mark.parametrize(
    ("joins_at_s", "rebalance_ms", "ready_at_s"),
    [([], 60_000, 3), ([1], 60_000, 6), ([1, 4], 60_000, 9), ([2, 5], 7_000, 7), ([1], 3_000, 3)],
)
def test_the_initial_delay_is_extended_while_new_members_join(
    joins_at_s: list[int], rebalance_ms: int, ready_at_s: int
) -> None:
    """`group.initial.rebalance.delay.ms` of 3 s, at most the rebalance time-out in all."""
    script = ScriptedGroup(delay_ms=3_000)
    script.join(rebalance_ms=rebalance_ms)
    for second in range(1, ready_at_s + 3):
        assert (script.group.state is COMPLETING) == (second > ready_at_s), second
        if second - 1 in joins_at_s:
            script.join(rebalance_ms=rebalance_ms)
        script.wait(1)


def test_a_new_member_first_gets_its_id() -> None:
    """KIP-394. The next generation waits until the id is used, or its session has ended."""
    script = stable(None)
    ticket = script.join(needs_id=True, session_ms=8_000)
    assert script.joined(ticket).error is ErrorCode.MEMBER_ID_REQUIRED
    assert script.joined(ticket).member_id == "id-2"
    assert script.group.state is STABLE
    assert script.group.pending_members == 1
    leader = script.join("id-1")
    assert script.group.state is PREPARING
    assert leader not in script.answers
    script.wait(5)
    assert leader not in script.answers
    second = script.join("id-2")
    assert script.error(leader) is script.error(second) is ErrorCode.NONE
    assert script.group.pending_members == 0


@pytest.mark.parametrize(
    "end", [lambda script: script.wait(8.1), lambda script: script.leave("id-2")], ids=["session over", "left"]
)
def test_an_id_that_is_not_used_is_forgotten(end: Callable[[ScriptedGroup], object]) -> None:
    script = stable(None)
    script.join(needs_id=True, session_ms=8_000)
    leader = script.join("id-1")
    end(script)
    assert script.error(leader) is ErrorCode.NONE
    assert script.group.pending_members == 0
    assert script.error(script.join("id-2")) is ErrorCode.UNKNOWN_MEMBER_ID


REFUSED = [
    ("session too short", {"session_ms": 5_999}, ErrorCode.INVALID_SESSION_TIMEOUT),
    ("session too long", {"session_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
    ("other type", {"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ("no common protocol", {"protocols": (Protocol("sticky", b""),)}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ("no protocol", {"protocols": ()}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ("unknown member", {"member_id": "who"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ("unknown instance", {"member_id": "id-1", "instance": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
]


@pytest.mark.parametrize(("request_", "error"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_a_join_that_is_refused_changes_nothing(request_: dict[str, object], error: ErrorCode) -> None:
    """BAD-32."""
    script = stable(None)
    before = script.group.snapshot(0)
    ticket = script.join(**request_)  # type: ignore[arg-type]
    assert script.error(ticket) is error
    assert script.group.snapshot(0) == before
    assert script.group.state is STABLE


@pytest.mark.parametrize("request_", [{"protocol_type": ""}, {"protocols": ()}])
def test_the_first_member_has_to_name_type_and_protocol(request_: dict[str, object]) -> None:
    """BAD-32."""
    script = ScriptedGroup()
    assert script.error(script.join(**request_)) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL  # type: ignore[arg-type]
    assert script.group.state is EMPTY


def test_a_group_has_at_most_the_maximum_size() -> None:
    """BAD-32. A static member may rejoin a full group."""
    script = ScriptedGroup(GroupSettings(initial_rebalance_delay_ms=0, max_size=2))
    script.stable("a", None)
    ticket = script.join()
    assert script.error(ticket) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert script.joined(ticket).member_id == ""
    assert script.group.state is STABLE
    ticket = script.join(instance="a")
    script.stored()
    assert script.error(ticket) is ErrorCode.NONE


def test_a_group_that_is_loaded_too_large_refuses_the_last_to_rejoin() -> None:
    script = stable(None, None, None)
    restored(script, script.group.snapshot(0), GroupSettings(max_size=2))
    assert script.group.state is PREPARING
    tickets = [script.join(f"id-{number}") for number in (3, 1, 2)]
    assert [script.error(ticket) for ticket in tickets] == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
    ]
    assert set(script.group.members) == {"id-1", "id-3"}


@pytest.mark.parametrize(
    ("members", "chosen"),
    [
        ([BOTH], "range"),
        ([BOTH, STICKY_FIRST], "range"),
        ([BOTH, STICKY_FIRST, STICKY_FIRST], "sticky"),
        ([STICKY_FIRST, STICKY_FIRST, RANGE], "range"),
        ([(Protocol("range", b"1"), Protocol("range", b"2"))], "range"),
    ],
)
def test_members_vote_for_a_protocol_that_all_support(members: list[tuple[Protocol, ...]], chosen: str) -> None:
    script = ScriptedGroup(delay_ms=3_000)
    for protocols in members:
        script.join(protocols=protocols)
    script.wait(6.1)
    assert script.group.protocol_name == chosen


def test_a_repeated_join_replaces_the_first() -> None:
    script = preparing()
    first, second = script.join("id-1"), script.join("id-1")
    assert script.error(first) is ErrorCode.REBALANCE_IN_PROGRESS
    assert second not in script.answers
    script.join("id-2")
    assert script.error(second) is ErrorCode.NONE


@pytest.mark.parametrize(
    ("make", "member_id", "members"), [(completing, "id-1", 2), (completing, "id-2", 0), (stable, "id-2", 0)]
)
def test_a_member_that_missed_the_answer_gets_it_again(
    make: Callable[..., ScriptedGroup], member_id: str, members: int
) -> None:
    """A leader also gets the members."""
    script = make(None, None)
    generation = script.group.generation
    answer = script.joined(script.join(member_id, protocols=script.group.members[member_id].protocols))
    assert (answer.error, answer.generation, answer.leader) == (ErrorCode.NONE, generation, "id-1")
    assert len(answer.members) == members
    assert script.group.generation == generation


def test_a_new_member_whose_client_is_gone_is_removed_after_five_minutes() -> None:
    """A client before v4 that gives up waiting joins again as another member."""
    script = stable(None, rebalance_ms=3_600_000)
    lost = script.join(rebalance_ms=3_600_000)
    script.wait(299, alive=["id-1"])
    assert lost not in script.answers
    script.wait(1.1, alive=["id-1"])
    assert script.error(lost) is ErrorCode.UNKNOWN_MEMBER_ID
    assert set(script.group.members) == {"id-1"}


def test_a_session_starts_again_with_each_answer() -> None:
    """A member that waits for an answer is not removed."""
    script = stable(None, None)

    def left_s(member_id: str) -> float:
        return script.group.members[member_id].expires_s() - script.now_s

    script.join("id-1")
    script.wait(50, alive=["id-2"])
    assert left_s("id-1") == float("inf")
    script.join("id-2")
    assert left_s("id-1") == 10
    script.wait(5)
    script.sync("id-1")
    assert left_s("id-1") == float("inf")
    script.wait(3)
    script.stored()
    assert (left_s("id-1"), left_s("id-2")) == (10, 2)
    script.sync("id-2")
    assert left_s("id-2") == 10
    script.wait(9.9)
    assert set(script.group.members) == {"id-1", "id-2"}
    script.wait(0.2)
    assert (script.group.members, script.group.state) == ({}, EMPTY)


# -- assignments


def test_a_join_while_completing_starts_another_rebalance() -> None:
    script = completing(None, None)
    waiting = script.sync("id-2")
    script.join()
    assert script.error(waiting) is ErrorCode.REBALANCE_IN_PROGRESS
    assert script.error(script.sync("id-1")) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_leader_that_leaves_while_its_assignment_is_stored() -> None:
    script = completing(None, None)
    waiting, leading = script.sync("id-2"), script.sync("id-1", {"id-2": b"x"})
    assert script.leave("id-1") == [ErrorCode.NONE]
    assert script.error(leading) is ErrorCode.UNKNOWN_MEMBER_ID
    assert script.error(waiting) is ErrorCode.REBALANCE_IN_PROGRESS
    script.stored()
    assert script.group.state is PREPARING, "that generation is over"
    assert script.error(script.join("id-2")) is ErrorCode.NONE
    assert script.group.leader == "id-2"


@pytest.mark.parametrize("error", [ErrorCode.NONE, ErrorCode.NOT_COORDINATOR])
def test_the_outcome_of_a_store_of_an_earlier_generation_is_ignored(error: ErrorCode) -> None:
    script = completing(None)
    script.sync("id-1", {"id-1": b"old"})
    number = max(script.stores)
    script.join("id-1", protocols=OTHER_TOPICS)
    assert script.group.state is COMPLETING
    ticket = script.sync("id-1", {"id-1": b"new"})
    script.stored(error, number=number)
    assert script.group.state is COMPLETING
    assert ticket not in script.answers
    script.stored()
    assert script.synced(ticket).assignment == b"new"


def test_only_the_first_assignment_of_a_generation_counts() -> None:
    """INV-24: the leader sends another assignment. Kafka would store both."""
    script = completing(None)
    first = script.sync("id-1", {"id-1": b"first"})
    stores = len(script.stores)
    second = script.sync("id-1", {"id-1": b"second"})
    assert script.error(first) is ErrorCode.REBALANCE_IN_PROGRESS
    assert len(script.stores) == stores
    script.stored()
    assert script.synced(second).assignment == b"first"
    assert script.synced(script.sync("id-1", {"id-1": b"third"})).assignment == b"first"


def test_only_the_leader_assigns_and_only_to_members() -> None:
    script = completing(None, None)
    script.sync("id-2", {"id-2": b"everything"})
    assert script.group.state is COMPLETING
    script.sync("id-1", {"id-1": b"x", "stranger": b"y"})
    assert {member.member_id: member.assignment for member in script.stores[max(script.stores)].members} == {
        "id-1": b"x",
        "id-2": b"",
    }


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        ({"member_id": "who"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "id-1", "generation": 0}, ErrorCode.ILLEGAL_GENERATION),
        ({"member_id": "id-1", "generation": 9}, ErrorCode.ILLEGAL_GENERATION),
        ({"member_id": "id-1", "instance": "b"}, ErrorCode.FENCED_INSTANCE_ID),
        ({"member_id": "id-1", "instance": "c"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "id-1", "protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "id-1", "protocol_name": "sticky"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "id-1", "protocol_name": "range", "protocol_type": "consumer"}, ErrorCode.NONE),
    ],
)
def test_who_may_have_an_assignment(request_: dict[str, object], error: ErrorCode) -> None:
    """INV-24: a stale generation or member is refused."""
    script = stable("a", "b")
    assert script.error(script.sync(**request_)) is error  # type: ignore[arg-type]


# -- leaving


def test_leaving_in_a_batch_is_one_rebalance() -> None:
    script = stable(None, "b", None, "d")
    generation = script.group.generation
    errors = script.leave(
        "id-1", LeavingMember("", "b"), LeavingMember("id-3", "x"), "who", "id-1", LeavingMember("", None)
    )
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    assert errors == [ErrorCode.NONE, ErrorCode.NONE, unknown, unknown, unknown, unknown]
    assert set(script.group.members) == {"id-3", "id-4"}
    assert script.group.generation == generation
    script.join("id-3")
    script.join("id-4", instance="d")
    assert script.group.generation == generation + 1


def test_the_last_one_that_leaves_empties_the_group() -> None:
    script = stable(None)
    script.leave("id-1")
    assert script.group.state is EMPTY
    assert script.group.generation == 2
    stored = script.stores[max(script.stores)]
    assert (stored.generation, stored.members, stored.leader, stored.protocol_name) == (2, (), None, None)
    assert stored.state_since_ms == script.wall_ms
    assert stored.protocol_type == "consumer"
    script.stored(ErrorCode.NOT_COORDINATOR)
    assert script.group.state is EMPTY
    assert script.group.next_deadline() is None
    script.join(protocol_type="connect")
    assert script.group.protocol_type == "connect"
    assert script.group.generation == 3


# -- heartbeats and commits


def unloaded() -> ScriptedGroup:
    script = stable(None)
    unload(script)
    return script


@pytest.mark.parametrize(
    ("make", "heartbeat", "commit"),
    [
        (lambda: stable(None, None), ErrorCode.NONE, ErrorCode.NONE),
        (preparing, ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.NONE),
        (lambda: completing(None, None), ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS),
        (unloaded, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ScriptedGroup, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_heartbeat_and_commit_by_state(
    make: Callable[[], ScriptedGroup], heartbeat: ErrorCode, commit: ErrorCode
) -> None:
    script = make()
    assert script.heartbeat("id-1") is heartbeat
    assert script.commit("id-1", script.group.generation) is commit


@pytest.mark.parametrize(
    ("member_id", "generation", "instance", "empty", "lively"),
    [
        ("", -1, None, ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID),
        ("who", -1, None, ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", 0, None, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.UNKNOWN_MEMBER_ID),
        ("id-1", 0, None, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION),
        ("id-1", -1, None, ErrorCode.NONE, ErrorCode.ILLEGAL_GENERATION),
        ("id-1", 1, "i", ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.UNKNOWN_MEMBER_ID),
        ("id-1", 1, None, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NONE),
    ],
)
def test_who_may_commit(
    member_id: str, generation: int, instance: str | None, empty: ErrorCode, lively: ErrorCode
) -> None:
    """INV-24. Non-members may commit while there are no members."""
    assert ScriptedGroup().commit(member_id, generation, instance) is empty
    assert stable(None).commit(member_id, generation, instance) is lively


def test_a_commit_counts_as_a_heartbeat() -> None:
    script = stable(None)
    script.wait(9)
    script.commit("id-1", 1)
    script.wait(9)
    assert "id-1" in script.group.members
    script.wait(2)
    assert script.group.state is EMPTY
