"""The memory that clients can make groups use is bounded (BAD-32)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from broker.groups import effects, held_groups
from broker.groups.group import group as group_module
from broker.groups.group import limits
from broker.groups.group.limits import NAME_MAX, PENDING_IS_OLD_S, PROTOCOLS_MAX
from broker.groups.group.messages import GroupSettings, LeavingMember, Protocol
from broker.groups.group.states import GroupState
from protocol.errors import ErrorCode
from protocol.types import TopicPartition
from tests.support.group_cluster import GroupCluster
from tests.support.group_scripts import ScriptedGroup, stable

ROOM_FOR_TWO = GroupSettings(initial_rebalance_delay_ms=0, max_size=2)


def test_ids_that_were_given_out_count_until_they_are_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the limit, 3,000 ids took 92 MB for half an hour, whatever `group.max.size` was."""
    monkeypatch.setattr(group_module, "PENDING_OF_A_GROUP", 2)
    script = ScriptedGroup(ROOM_FOR_TWO)
    tickets = [script.join(needs_id=True, session_ms=1_800_000) for _ in range(3)]
    expected = [ErrorCode.MEMBER_ID_REQUIRED] * 2 + [ErrorCode.GROUP_MAX_SIZE_REACHED]
    assert [script.error(ticket) for ticket in tickets] == expected
    assert script.group.pending_members == 2
    # A client with an id may join. An id that was not used for too long makes room; its client may start again.
    script.join("id-1")
    script.wait(PENDING_IS_OLD_S)
    for _ in range(2):
        assert script.error(script.join(needs_id=True)) is ErrorCode.MEMBER_ID_REQUIRED
    assert script.error(script.join("id-2")) is ErrorCode.UNKNOWN_MEMBER_ID
    script.join("id-4")
    script.join("id-1")
    assert script.group.members.keys() == {"id-1", "id-4"}
    assert script.error(script.join(needs_id=True)) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert script.group.pending_members == 1


def test_static_members_that_are_away_do_not_accumulate() -> None:
    """In each round the static members of the round before stay away, and new ones take their places."""
    script = ScriptedGroup(ROOM_FOR_TWO)
    fields: dict[str, Any] = {"rebalance_ms": 1_000, "session_ms": 1_800_000}
    script.join(instance="stays", **fields)
    script.complete()
    refused = []
    for number in range(8):
        metadata = Protocol("range", str(number).encode())
        script.join("id-1", instance="stays", protocols=(metadata,), **fields)
        refused.append(script.join(instance=f"goes-{number}", **fields))
        script.wait(1.1)
        script.complete()
    assert len(script.group.members) == 2 * ROOM_FOR_TWO.max_size
    assert script.error(refused[-1]) is ErrorCode.GROUP_MAX_SIZE_REACHED


@pytest.mark.parametrize(
    "fields",
    [
        {"instance": "i" * (NAME_MAX + 1)},
        {"protocol_type": "t" * (NAME_MAX + 1)},
        {"protocols": (Protocol("p" * (NAME_MAX + 1), b""),)},
        {"protocols": tuple(Protocol(f"p{n}", b"") for n in range(PROTOCOLS_MAX + 1))},
        {"protocols": (Protocol("a", bytes(limits.MEMBER_BYTES_MAX // 2)), Protocol("b", bytes(2**21 + 1)))},
    ],
    ids=["instance id", "protocol type", "protocol name", "protocols", "metadata"],
)
def test_the_metadata_of_a_member_is_bounded(fields: dict[str, Any]) -> None:
    script = ScriptedGroup()
    assert script.error(script.join(**fields)) is ErrorCode.INVALID_REQUEST
    assert script.group.memory_bytes == 0


def test_the_size_of_a_group_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_module, "GROUP_BYTES_MAX", 10_000)
    script = ScriptedGroup()
    large = (Protocol("range", bytes(6_000)),)
    script.join(protocols=large)
    assert script.error(script.join(protocols=large)) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert script.group.members.keys() == {"id-1"}
    monkeypatch.setattr(group_module, "MEMBERS_MAX", 1)
    assert script.error(script.join()) is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_member_that_becomes_too_large_leaves_its_partitions_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it were removed without a rebalance, nobody would read its partitions."""
    script = stable(None, None)
    monkeypatch.setattr(group_module, "GROUP_BYTES_MAX", 10_000)
    assert script.error(script.join("id-1", protocols=(Protocol("range", bytes(20_000)),))) is (
        ErrorCode.GROUP_MAX_SIZE_REACHED
    )
    assert script.group.members.keys() == {"id-2"}
    assert script.group.state is GroupState.PREPARING_REBALANCE


def test_the_bytes_of_a_group_are_those_of_its_members() -> None:
    """After every event: joined, joined again with more, replaced, assigned, left."""
    script = stable("a", "b", None)
    group = script.group

    def is_right() -> bool:
        return group.memory_bytes == sum(member.size() for member in group.members.values())

    assert is_right()
    script.join(instance="b")
    script.stored(ErrorCode.UNKNOWN_SERVER_ERROR)
    assert is_right()
    script.join("id-1", instance="a", protocols=(Protocol("range", b"other topics, which are more"),))
    assert is_right()
    script.join(needs_id=True)
    script.leave("id-5")
    assert is_right()
    script.leave("id-2", "id-3")
    assert is_right()
    script.leave("id-1")
    assert group.memory_bytes == 0
    assert group.state is GroupState.EMPTY


# -- all groups of a broker


async def test_the_pending_ids_of_all_groups_are_bounded(
    cluster: GroupCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_groups, "PENDING_MAX", 5)
    await cluster.start_serving(1)
    for number in range(20):
        joined = cluster.join(1, group=f"g{number}", needs_member_id=True, session_timeout_ms=1_800_000)
        assert [answer.error for answer in joined] == [ErrorCode.MEMBER_ID_REQUIRED]
    groups = cluster.coordinators[1]._groups
    assert [held.group_id for held in groups] == [f"g{number}" for number in range(15, 20)]
    # A forgotten id gets an error; an id that was given back leaves nothing behind.
    assert cluster.join(1, "m", group="g3")[0].error is ErrorCode.UNKNOWN_MEMBER_ID
    left: list[Any] = []
    cluster.coordinators[1].leave("g19", [LeavingMember("m", None)], lambda *answer: left.append(answer))
    assert left == [(ErrorCode.NONE, [ErrorCode.NONE])]
    assert len(groups) == len(cluster.coordinators[1]._pending_ids) == 4
    monkeypatch.setattr(held_groups, "PENDING_BYTES_MAX", 10_000)
    cluster.join(1, group="g" * 2_000, needs_member_id=True)
    assert len(groups) == 1
    assert groups.bytes < 10_000


async def test_the_memory_of_all_groups_is_bounded_and_existing_members_continue(
    cluster: GroupCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.settings |= {"group_memory_max_bytes": 30_000}
    await cluster.start_serving(1)
    await cluster.start_stable_group(1)
    assert cluster.commit(1, 1, "m", 1) == [ErrorCode.NONE]
    errors = [cluster.commit(1, 1, group=f"g{n}", metadata="x" * 1_000)[0] for n in range(10)]
    assert errors[0] is ErrorCode.NONE
    assert errors[-1] is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert caplog.text.count("group.memory.max.bytes is 30000") == 1
    groups = cluster.coordinators[1]._groups
    assert 20_000 < groups.bytes <= 30_000
    new = cluster.join(1, new_member_id="new", protocols=(Protocol("range", bytes(10_000)),))
    assert new[0].error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert cluster.join(1, group="x", protocols=(Protocol("p", bytes(10_000)),))[0].error is (
        ErrorCode.COORDINATOR_NOT_AVAILABLE
    )
    assert cluster.commit(1, 2, "m", 1) == [ErrorCode.NONE]
    assert cluster.heartbeat(1, "m", 1) is ErrorCode.NONE
    # A deletion gives room again.
    cluster.coordinators[1].delete_groups([f"g{n}" for n in range(10)], lambda _: None)
    await cluster.settle()
    assert cluster.commit(1, 1, group="again", metadata="x" * 1_000) == [ErrorCode.NONE]
    expected = sum(held.counted_bytes for held in groups)
    assert groups.bytes == expected


async def test_the_bytes_of_offsets_are_the_same_after_a_load(served: GroupCluster) -> None:
    many = tuple(TopicPartition("t", n) for n in range(10))
    served.commit(1, 1, metadata="first", partitions=many)
    served.commit(1, 2, metadata="a second one that is longer", partitions=many[:5])
    before = served.coordinators[1]._groups.bytes
    served.kill(1)
    await served.start_broker(1)
    await served.serve(1, 1, (1,))
    assert served.coordinators[1]._groups.bytes == before > 10 * limits.OFFSET_BYTES


async def test_answers_to_thousands_of_members_are_sent_in_slices(
    served: GroupCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4,000 members get the answers of a rebalance at once."""
    answered = [served.join(1, new_member_id=f"m{n}") for n in range(20)]
    monkeypatch.setattr(effects, "EFFECTS_AT_ONCE", 5)
    timers = served.coordinators[1]._effects._timers
    turns: list[int] = []
    real = timers.call_soon

    def noted(*arguments: Any) -> Any:
        turns.append(sum(map(len, answered)))
        return real(*arguments)

    monkeypatch.setattr(timers, "call_soon", noted)
    served.pass_time(4)
    served.pass_time(4)
    assert all(answered)
    assert len(turns) >= 3
    assert max(after - before for before, after in itertools.pairwise(turns)) <= 5
