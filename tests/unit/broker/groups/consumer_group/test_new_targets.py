"""What arrives while a new target is being made, one member, topic or partition after the other (INV-24)."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from broker.groups.consumer_group import consumer_group, pace, subscriptions
from broker.groups.consumer_group.assignors.problem import NOTHING, IdPartition, Owned
from broker.groups.consumer_group.consumer_group import ConsumerGroup
from broker.groups.consumer_group.member import JOINING, LEAVING, LEAVING_FOR_A_WHILE, MemberState
from broker.groups.consumer_group.messages import (
    ConsumerGroupSettings,
    ConsumerHeartbeat,
    HeartbeatAnswer,
    MemberChanged,
    RegexResolved,
    Waiting,
)
from protocol.errors import ErrorCode

SUBSCRIPTION = {"client_id": "c", "rebalance_timeout_ms": 60_000, "topics": frozenset({"t"}), "owned": NOTHING}


class OneTopic:
    def __init__(self) -> None:
        self.count = 10

    def find(self, name: str) -> tuple[bytes, int] | None:
        return (name.encode(), self.count)

    def name_of(self, topic_id: bytes) -> str | None:
        return topic_id.decode()

    def check(self, regex: str) -> None:
        pass

    def matching(self, regex: str) -> Generator[None, None, frozenset[str]]:
        yield
        return frozenset({"t"})


TOPICS = OneTopic()


def partitions(*numbers: int) -> Owned:
    return frozenset(IdPartition(b"t", number) for number in numbers)


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> ConsumerGroup:
    monkeypatch.setattr(pace, "STEP", 1)
    return ConsumerGroup("g", ConsumerGroupSettings())


def waits(group: ConsumerGroup, member_id: str, **more: object) -> Waiting:
    request = ConsumerHeartbeat(member_id, JOINING, **{**SUBSCRIPTION, **more})  # type: ignore[arg-type]
    waiting, _ = group.heartbeat(request, TOPICS, 0.0)
    assert isinstance(waiting, Waiting)
    return waiting


def begin(group: ConsumerGroup) -> None:
    """The topics are known, and it is clear for which members the target is."""
    for _ in range(4):
        group.go_on()
    assert group.is_working


def finish(group: ConsumerGroup, epoch: int | None = None) -> None:
    """`epoch`: the first target to be there. None: all work is done."""
    while group.is_working and (epoch is None or group.target_epoch < epoch):
        group.go_on()


def answered(group: ConsumerGroup, waiting: Waiting) -> HeartbeatAnswer:
    answer, _ = group.answer(waiting, 0.0)
    return answer


def test_members_that_join_meanwhile_are_in_the_next_target(group: ConsumerGroup) -> None:
    """All of them in one: the first target has the first member, the second one all."""
    first = waits(group, "m0")
    begin(group)
    others = [waits(group, f"m{number}") for number in range(1, 10)]
    finish(group, 1)
    assert answered(group, first).assignment == partitions(*range(10))
    targets = set()
    while group.is_working:
        group.go_on()
        targets.add(group.target_epoch)
    assert targets == {1, 10}
    assert [answered(group, other).error for other in others] == [ErrorCode.NONE] * 9
    assert sorted(len(group.target_of(f"m{number}")) for number in range(10)) == [1] * 10


def test_a_topic_that_a_member_brings_while_the_topics_are_looked_at(group: ConsumerGroup) -> None:
    """An earlier look has found it, for a member that has left. This one does not look for it."""
    first, second = waits(group, "a", topics=frozenset({"t", "u", "v"})), waits(group, "b", topics=frozenset({"x"}))
    finish(group)
    epoch = answered(group, first).epoch
    answered(group, second)
    group.heartbeat(ConsumerHeartbeat("b", LEAVING), TOPICS, 0.0)
    group.subscriptions.is_stale = True
    group.heartbeat(ConsumerHeartbeat("a", epoch, client_id="c"), TOPICS, 0.0)
    assert group.is_working
    third = waits(group, "c", topics=frozenset({"x"}))
    finish(group)
    assert answered(group, third).assignment == {IdPartition(b"x", number) for number in range(10)}


def test_a_topic_that_comes_while_a_regular_expression_is_matched(
    group: ConsumerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next look is for it, and the member's next heartbeat is not a mere sign of life."""
    answer = waits(group, "a", topics=None, regex="t|u")
    group.subscriptions.is_stale = True
    finish(group)
    epoch = answered(group, answer).epoch

    def matching(regex: str) -> Generator[None, None, frozenset[str]]:
        yield
        return frozenset({"t", "u"})

    monkeypatch.setattr(TOPICS, "matching", matching)
    assert not group.keep_alive("a", epoch, "c", "", 0.0)
    group.heartbeat(ConsumerHeartbeat("a", epoch, client_id="c"), TOPICS, 0.0)
    finish(group)
    assert len(group.target_of("a")) == 20


def test_a_topic_that_grows_while_a_regular_expression_is_matched(group: ConsumerGroup) -> None:
    waits(group, "a", topics=None, regex="t")
    assert group.subscriptions.concern({"t"}, has_moved=False)
    finish(group)
    assert group.subscriptions.concern({"t"}, has_moved=False)
    assert not group.subscriptions.concern({"u"}, has_moved=False)


def test_what_many_regular_expressions_match_is_stored_in_parts(
    group: ConsumerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log would refuse all of it in one batch."""
    monkeypatch.setattr(subscriptions, "LOOK_BYTES_MAX", 8)
    first = waits(group, "a")
    begin(group)
    for number in range(10):
        waits(group, f"m{number}", topics=None, regex=f"t|{number}")
    sizes = []
    while group.is_working:
        sizes.append(sum(isinstance(change, RegexResolved) for change in group.go_on()))
    assert (sum(sizes), max(sizes)) == (10, 2)
    assert answered(group, first).error is ErrorCode.NONE
    assert [len(group.target_of(f"m{number}")) for number in range(10)].count(1) == 9


def test_many_members_that_are_silent_are_removed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log would refuse the tombstones of all of them in one batch, and they would stay."""
    monkeypatch.setattr(consumer_group, "REMOVED_AT_ONCE", 3)
    group = ConsumerGroup("g", ConsumerGroupSettings())
    for number in range(7):
        request = ConsumerHeartbeat(f"m{number}", JOINING, **SUBSCRIPTION)  # type: ignore[arg-type]
        group.heartbeat(request, TOPICS, 0.0)
    removed = []
    while not group.is_empty:
        changes = group.advance(60.0)
        removed.append(sum(isinstance(change, MemberChanged) for change in changes))
    assert removed == [3, 3, 1]


def test_a_member_that_does_not_give_up_what_it_must_is_removed_also_after_an_undo() -> None:
    """It has given up some, and must give up more: the log refuses that step, but not the member's time-out."""
    group = ConsumerGroup("g", ConsumerGroupSettings(session_timeout_ms=300_000))

    def beat(member_id: str, epoch: int, owned: Owned = NOTHING) -> HeartbeatAnswer:
        said = SUBSCRIPTION if epoch == JOINING else {"client_id": "c", "owned": owned}
        answer, _ = group.heartbeat(ConsumerHeartbeat(member_id, epoch, **said), TOPICS, 0.0)  # type: ignore[arg-type]
        assert isinstance(answer, HeartbeatAnswer)
        return answer

    owned = beat("a", JOINING).assignment
    beat("b", JOINING)
    left = beat("a", 1, owned or NOTHING).assignment
    beat("c", JOINING)
    before = group.members["a"]
    beat("a", 1, left or NOTHING)
    assert (group.members["a"].state, before.state) == (MemberState.UNREVOKED_PARTITIONS,) * 2
    assert group.members["a"].epoch > before.epoch
    group.undo(0.0)
    assert group.members["a"] == before
    group.advance(61.0)
    assert "a" not in group.members


def test_what_a_request_says_that_waits_is_old_when_its_member_got_more(group: ConsumerGroup) -> None:
    """The second request of `a` was sent when it read nothing. The answer to the first one lets it read everything."""
    first = waits(group, "a")
    begin(group)
    waits(group, "b")
    second = waits(group, "a", topics=frozenset({"t", "u"}))
    finish(group, 1)
    assert answered(group, first).assignment == partitions(*range(10))
    finish(group)
    answered(group, second)
    assert group.members["a"].state is MemberState.UNREVOKED_PARTITIONS


def test_the_target_of_a_static_member_is_that_of_who_takes_its_place(group: ConsumerGroup) -> None:
    answer = waits(group, "a", instance_id="i")
    finish(group)
    answered(group, answer)
    waits(group, "b")
    group.go_on()
    group.heartbeat(ConsumerHeartbeat("a", LEAVING_FOR_A_WHILE, "i"), TOPICS, 0.0)
    waits(group, "a2", instance_id="i")
    finish(group)
    assert group.target_of("a2") | group.target_of("b") == partitions(*range(10))
    assert not group.target_of("a2") & group.target_of("b")


def test_who_has_left_is_no_member_any_more(group: ConsumerGroup) -> None:
    waiting = waits(group, "a", instance_id="i")
    group.heartbeat(ConsumerHeartbeat("a", LEAVING_FOR_A_WHILE, "i"), TOPICS, 0.0)
    finish(group)
    assert answered(group, waiting).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert group.members["a"].is_away


def test_a_look_that_cannot_be_stored_is_done_again(group: ConsumerGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = waits(group, "a")
    finish(group)
    epoch = answered(group, answer).epoch
    monkeypatch.setattr(TOPICS, "count", 12)
    group.subscriptions.is_stale = True
    beat = ConsumerHeartbeat("a", epoch, client_id="c", owned=partitions(*range(10)))
    group.heartbeat(beat, TOPICS, 0.0)
    while not group.go_on():
        pass
    group.undo(0.0)
    group.give_up_work()
    assert group.epoch == epoch
    group.heartbeat(beat, TOPICS, 0.0)
    finish(group)
    assert group.target_of("a") == partitions(*range(12))


def test_members_go_on_with_the_target_before(group: ConsumerGroup) -> None:
    answer = waits(group, "a")
    finish(group)
    epoch = answered(group, answer).epoch
    waits(group, "b")
    told, changes = group.heartbeat(
        ConsumerHeartbeat("a", epoch, client_id="c", owned=partitions(*range(10))), TOPICS, 0.0
    )
    assert isinstance(told, HeartbeatAnswer)
    assert (told.error, told.epoch, told.assignment, list(changes)) == (ErrorCode.NONE, epoch, None, [])
