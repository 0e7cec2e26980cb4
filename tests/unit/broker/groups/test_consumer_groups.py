"""Groups of the new kind, while their coordinator's log refuses, is slow, or moves (KIP-848, INV-23, INV-24)."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from broker.groups.consumer_group import pace
from broker.groups.consumer_group.assignors.problem import NOTHING, IdPartition, Owned
from broker.groups.consumer_group.member import LEAVING, LEAVING_FOR_A_WHILE, MemberState
from broker.groups.consumer_group.messages import ConsumerGroupSettings, ConsumerHeartbeat, HeartbeatAnswer
from broker.groups.consumer_group.subscriptions import MATCH_BYTES
from broker.groups.group.messages import CommittedOffset, Protocol
from broker.process import loop_budget
from protocol.errors import ErrorCode
from protocol.types import TopicPartition
from tests.support.group_cluster import GROUP, READ, GroupCluster, turns

T = uuid.UUID(int=10).bytes
"""The id of the topic `t`, which has ten partitions."""
SESSION_S = ConsumerGroupSettings().session_timeout_ms / 1000


def partitions(*numbers: int) -> Owned:
    return frozenset(IdPartition(T, number) for number in numbers)


ALL = partitions(*range(10))


async def joined(cluster: GroupCluster, broker: int, member_id: str) -> int:
    """The member's epoch."""
    answers = cluster.consumer_heartbeat(broker, member_id, 0)
    await cluster.settle()
    assert answers[0].error is ErrorCode.NONE
    return answers[0].epoch


async def test_an_answer_waits_for_the_followers(pair: GroupCluster) -> None:
    """Also one that says nothing new: its member must not act on what a failover could take back."""
    first = pair.consumer_heartbeat(1, "a", 0)
    again = pair.consumer_heartbeat(1, "a", 1, owned=NOTHING)
    await turns()
    assert (first, again) == ([], [])
    await pair.settle()
    assert [(answer.error, answer.epoch, answer.assignment) for answer in (*first, *again)] == [
        (ErrorCode.NONE, 1, ALL),
        (ErrorCode.NONE, 1, None),
    ]


async def test_what_the_log_refuses_has_not_happened(cluster: GroupCluster) -> None:
    await cluster.start_serving(1, 2, overrides={"min.insync.replicas": "2"})
    epoch = await joined(cluster, 1, "a")
    cluster.lead_groups(1, 1, (1,), replicas=(1, 2))
    await cluster.until_loaded(1)
    before = cluster.coordinators[1].describe_consumer_group(GROUP)
    (refused,) = cluster.consumer_heartbeat(1, "b", 0)
    assert refused.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert cluster.coordinators[1].describe_consumer_group(GROUP) == before
    (answer,) = cluster.consumer_heartbeat(1, "a", epoch, owned=ALL)
    assert (answer.error, answer.epoch) == (ErrorCode.NONE, epoch), "a sign of life needs no record"


async def test_followers_that_are_slow(pair: GroupCluster) -> None:
    """The member hears of it after `offsets.commit.timeout.ms`. What is in the log stays, and counts when it is replicated."""
    waiting = pair.consumer_heartbeat(1, "a", 0)
    pair.pass_time(5.1)
    assert [answer.error for answer in waiting] == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    later = pair.consumer_heartbeat(1, "a", 0)
    await turns()
    assert later == [], "no answer before the records are replicated"
    await pair.settle()
    assert [(answer.error, answer.epoch, answer.assignment) for answer in later] == [(ErrorCode.NONE, 1, ALL)]


async def test_everybody_who_waits_for_slow_followers_is_answered(pair: GroupCluster) -> None:
    """Also a member that asks when others have been told already."""
    pair.consumer_heartbeat(1, "a", 0)
    pair.pass_time(5.1)
    later = pair.consumer_heartbeat(1, "a", 0)
    pair.pass_time(5.1)
    assert [answer.error for answer in later] == [ErrorCode.COORDINATOR_NOT_AVAILABLE]


async def test_what_may_be_lost_is_stored_again(pair: GroupCluster) -> None:
    """A change that was not replicated for minutes is in memory, and perhaps nowhere else: nobody is told of it before it is stored."""
    pair.consumer_heartbeat(1, "a", 0)
    pair.pass_time(30)
    pair.consumer_heartbeat(1, "a", 1, owned=NOTHING)  # its session goes on
    held = pair.coordinators[1].groups.get(GROUP)
    assert held is not None
    assert held.last_write is not None
    assert held.consumer is not None
    pair.coordinators[1]._consumers._stored(held, held.last_write, ErrorCode.REBALANCE_IN_PROGRESS)
    waiting = pair.consumer_heartbeat(1, "a", 1)
    await turns()
    assert waiting == []
    await pair.settle()
    assert [answer.error for answer in waiting] == [ErrorCode.NONE]


async def test_who_leaves_when_everything_is_stored_again_is_gone(pair: GroupCluster) -> None:
    """Also for the next coordinator."""
    await joined(pair, 1, "a")
    await joined(pair, 1, "b")
    held = pair.coordinators[1].groups.get(GROUP)
    assert held is not None
    assert held.consumer is not None
    held.consumer.must_store_all = True
    pair.consumer_heartbeat(1, "b", LEAVING)
    await pair.settle()
    await pair.serve(2, 1, (1, 2), replicas=(1, 2))
    members = pair.coordinators[2].describe_consumer_group(GROUP).members
    assert [each.member.member_id for each in members] == ["a"]


async def test_a_member_that_was_not_told_to_give_up_partitions_stays(cluster: GroupCluster) -> None:
    """The log refused its step, and the time that it would have had is over."""
    await cluster.start_serving(1, 2, overrides={"min.insync.replicas": "2"})
    epoch = await joined(cluster, 1, "a")
    await joined(cluster, 1, "b")
    cluster.lead_groups(1, 1, (1,), replicas=(1, 2))
    await cluster.until_loaded(1)
    (refused,) = cluster.consumer_heartbeat(1, "a", epoch, owned=ALL)
    assert refused.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    held = cluster.coordinators[1].groups.get(GROUP)
    assert held is not None
    assert held.consumer is not None
    assert held.consumer.members["a"].state is MemberState.STABLE
    cluster.pass_time(25)
    assert held.consumer.advance(cluster.time.since_boot()) == []


@pytest.mark.parametrize(("member_id", "regex"), [("b" * 40_000, None), ("b", "b" * 40_000)])
async def test_what_no_record_can_hold_has_not_happened(pair: GroupCluster, member_id: str, regex: str | None) -> None:
    await joined(pair, 1, "a")
    before = pair.coordinators[1].describe_consumer_group(GROUP)
    for _ in range(2):
        answers = pair.consumer_heartbeat(1, member_id, 0, regex=regex)
        assert [answer.error for answer in answers] == [ErrorCode.UNKNOWN_SERVER_ERROR]
        assert pair.coordinators[1].describe_consumer_group(GROUP) == before


async def test_the_next_coordinator_goes_on(pair: GroupCluster) -> None:
    """Epochs and assignments are those that the members know, and nobody is expelled; a waiting member is told to look elsewhere."""
    epoch = await joined(pair, 1, "a")
    waiting = pair.consumer_heartbeat(1, "b", 0)
    await pair.serve(2, 1, (1, 2), replicas=(1, 2))
    assert [answer.error for answer in waiting] == [ErrorCode.NOT_COORDINATOR]
    (answer,) = pair.consumer_heartbeat(2, "a", epoch)
    assert (answer.error, answer.epoch, answer.assignment) == (ErrorCode.NONE, epoch, None)
    group = pair.coordinators[2].describe_consumer_group(GROUP)
    assert [(each.member.member_id, each.member.assigned, each.target) for each in group.members] == [("a", ALL, ALL)]
    held = pair.coordinators[2]._groups.get(GROUP)
    assert held is not None
    assert held.told == (group.state, epoch), "the next event is of a change from there"


async def test_a_sign_of_life(pair: GroupCluster) -> None:
    """It keeps the member for another session. What changes something, or must wait for what is in the log, is none."""
    epoch = await joined(pair, 1, "a")
    coordinator = pair.coordinators[1]
    assert coordinator.keep_alive(GROUP, "a", epoch, "c", "h") == 5_000
    for other in (("b", epoch, "c", "h"), ("a", epoch - 1, "c", "h"), ("a", epoch, "d", "h"), ("a", epoch, "c", "i")):
        assert coordinator.keep_alive(GROUP, *other) is None
    for _ in range(3):
        pair.pass_time(SESSION_S - 5)
        assert coordinator.keep_alive(GROUP, "a", epoch, "c", "h") == 5_000
    pair.consumer_heartbeat(1, "b", 0)
    assert coordinator.keep_alive(GROUP, "a", epoch, "c", "h") is None
    await pair.settle()
    assert coordinator.keep_alive(GROUP, "a", epoch, "c", "h") is None, "it has to give up partitions"
    await pair.serve(2, 1, (1, 2), replicas=(1, 2))
    assert coordinator.keep_alive(GROUP, "b", epoch + 1, "c", "h") is None, (
        "this broker is not the coordinator any more"
    )


async def test_a_member_that_is_silent_is_removed(pair: GroupCluster) -> None:
    """By a coordinator that has loaded it, too: its session begins anew there."""
    epoch = await joined(pair, 1, "a")
    await pair.serve(2, 1, (1, 2), replicas=(1, 2))
    pair.pass_time(SESSION_S - 3)  # loading took some of it
    assert len(pair.coordinators[2].describe_consumer_group(GROUP).members) == 1
    pair.pass_time(4)
    await pair.settle()
    assert pair.coordinators[2].describe_consumer_group(GROUP).state == "Empty"
    assert pair.consumer_heartbeat(2, "a", epoch)[0].error is ErrorCode.UNKNOWN_MEMBER_ID


async def test_offsets_need_the_epoch_of_their_member(pair: GroupCluster) -> None:
    epoch = await joined(pair, 1, "a")
    for wrong, error in ((epoch - 1, ErrorCode.STALE_MEMBER_EPOCH), (epoch + 1, ErrorCode.STALE_MEMBER_EPOCH)):
        assert pair.commit(1, 10, "a", wrong) == [error]
    assert pair.commit(1, 10, "b", epoch) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert pair.commit(1, 10) == [ErrorCode.UNKNOWN_MEMBER_ID], "nobody from outside, while it has members"
    committed = pair.commit(1, 10, "a", epoch)
    await pair.settle()
    assert (committed, pair.position(1)) == ([ErrorCode.NONE], 10)


async def test_a_group_becomes_one_of_the_other_kind(pair: GroupCluster) -> None:
    """When it is empty, by its first member; also for the coordinator that loads it. Its offsets stay."""
    epoch = await joined(pair, 1, "a")
    pair.commit(1, 10, "a", epoch)
    left = pair.consumer_heartbeat(1, "a", LEAVING)
    await pair.settle()
    assert [answer.epoch for answer in left] == [LEAVING]
    pair.start_group(1)
    pair.sync(1, "m", 1, {"m": b""})
    await pair.settle()
    await pair.serve(2, 1, (1, 2), replicas=(1, 2))
    assert pair.coordinators[2].describe(GROUP).state == "Stable"
    assert pair.position(2) == 10


async def test_members_of_both_kinds(pair: GroupCluster) -> None:
    """A classic member keeps what it reads when the group is converted, and the group survives a move, also back to a classic one."""
    subscription = b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"
    pair.start_group(1)
    assignment = b"\0\0\0\0\0\1\0\1t\0\0\0\2\0\0\0\0\0\0\0\1\xff\xff\xff\xff"
    pair.sync(1, "m", 1, {"m": assignment})
    await pair.settle()
    await joined(pair, 1, "a")
    await pair.serve(2, 1, (1, 2), replicas=(1, 2))
    held = {
        each.member.member_id: each.member.held for each in pair.coordinators[2].describe_consumer_group(GROUP).members
    }
    assert held["m"] == partitions(0, 1)
    assert held["a"] <= ALL - held["m"]
    assert pair.heartbeat(2, "m", 1) is ErrorCode.REBALANCE_IN_PROGRESS
    again = pair.join(2, "m", protocols=(Protocol("range", subscription),))
    await pair.settle()
    assert again[0].error is ErrorCode.NONE
    synced = pair.sync(2, "m", again[0].generation)
    assert synced[0].error is ErrorCode.NONE
    pair.consumer_heartbeat(2, "a", LEAVING)
    await pair.settle()
    assert pair.coordinators[2].describe(GROUP).state == "PreparingRebalance"
    assert pair.heartbeat(2, "m", again[0].generation) is not ErrorCode.UNKNOWN_MEMBER_ID
    await pair.serve(1, 2, (1, 2), replicas=(1, 2))
    assert [member.member_id for member in pair.coordinators[1].describe(GROUP).members] == ["m"]


async def test_a_group_has_settings_of_its_own(pair: GroupCluster) -> None:
    """They count for members that are there from their next heartbeat on."""
    epoch = await joined(pair, 1, "a")
    configs = {"consumer.heartbeat.interval.ms": "7000", "consumer.session.timeout.ms": "60000"}
    pair.coordinators[1].configs.changed({f"groups/{GROUP}": configs})
    assert pair.consumer_heartbeat(1, "a", epoch)[0].heartbeat_interval_ms == 7_000
    pair.pass_time(50)
    assert pair.consumer_heartbeat(1, "a", epoch)[0].error is ErrorCode.NONE


async def test_a_shorter_session_counts_from_now_on(pair: GroupCluster) -> None:
    """Also of a member whose heartbeat came before."""
    configs = {"consumer.session.timeout.ms": "60000"}
    pair.coordinators[1].configs.changed({f"groups/{GROUP}": configs})
    await joined(pair, 1, "a")
    pair.coordinators[1].configs.changed({f"groups/{GROUP}": {}})
    pair.pass_time(46)
    await pair.settle()
    assert pair.coordinators[1].describe_consumer_group(GROUP).members == ()


async def test_a_member_needs_a_version_that_knows_its_epoch(pair: GroupCluster) -> None:
    epoch = await joined(pair, 1, "a")
    errors: list[dict[TopicPartition, ErrorCode]] = []
    offsets = {READ: CommittedOffset(10, -1, "", 0)}
    pair.coordinators[1].commit(GROUP, "a", None, epoch, offsets, errors.append, knows_epochs=False)
    assert errors == [{READ: ErrorCode.UNSUPPORTED_VERSION}]


@pytest.mark.parametrize(
    ("member_id", "fields", "error"),
    [
        ("", {"session_timeout_ms": 1}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ("", {"protocols": ()}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ("m", {}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
async def test_a_group_stays_of_its_kind_if_it_refuses_a_member(
    pair: GroupCluster, member_id: str, fields: dict[str, Any], error: ErrorCode
) -> None:
    """An empty one, also for the next coordinator."""
    await joined(pair, 1, "a")
    pair.consumer_heartbeat(1, "a", LEAVING)
    await pair.settle()
    assert [answer.error for answer in pair.join(1, member_id, **fields)] == [error]
    assert [listing.group_type for listing in pair.listed(1)] == ["consumer"]
    await pair.serve(2, 1, (1, 2), replicas=(1, 2))
    assert [listing.group_type for listing in pair.listed(2)] == ["consumer"]


def may_see_all(topic: str) -> bool:
    return True


def may_see_none(topic: str) -> bool:
    return False


async def regex_joined(cluster: GroupCluster, member_id: str, regex: str, may_see: Callable[[str], bool]) -> int:
    """The member's epoch."""
    request = ConsumerHeartbeat(
        member_id, 0, client_id="c", client_host="h", rebalance_timeout_ms=20_000, regex=regex, owned=NOTHING
    )
    answers: list[HeartbeatAnswer] = []
    cluster.coordinators[1].consumer_heartbeat(GROUP, request, answers.append, may_see)
    await cluster.settle()
    assert answers[0].error is ErrorCode.NONE
    return answers[0].epoch


def targets(cluster: GroupCluster) -> dict[str, Owned]:
    return {
        each.member.member_id: each.target for each in cluster.coordinators[1].describe_consumer_group(GROUP).members
    }


async def test_a_regular_expression_matches_what_its_member_may_see(pair: GroupCluster) -> None:
    """Whoever else has one, may see more or less, or uses the classic protocol."""
    pair.tell_metadata()
    await regex_joined(pair, "blind", "t|x", may_see_none)
    await regex_joined(pair, "seeing", "t", may_see_all)
    await regex_joined(pair, "blind too", "t|x|y", may_see_none)
    assert targets(pair) == {"blind": NOTHING, "seeing": ALL, "blind too": NOTHING}
    classic = pair.join(1, "m", protocols=(Protocol("range", b"\0\0\0\0\0\1\0\1u\xff\xff\xff\xff"),))
    await pair.settle()
    assert classic[0].error is ErrorCode.NONE
    pair.topics["x"] = 12
    pair.tell_metadata()
    assert pair.heartbeat(1, "m", classic[0].generation) is ErrorCode.NONE
    assert targets(pair) == {"blind": NOTHING, "seeing": ALL, "blind too": NOTHING, "m": NOTHING}


async def test_a_regular_expression_is_matched_again_after_a_while(pair: GroupCluster) -> None:
    """Its member may see other topics by then."""
    pair.tell_metadata()
    epoch = await regex_joined(pair, "a", "t", may_see_none)

    def beat() -> None:
        request = ConsumerHeartbeat("a", epoch, client_id="c", client_host="h")
        pair.coordinators[1].consumer_heartbeat(GROUP, request, lambda answer: None, may_see_all)

    for _ in range(23):
        pair.pass_time(25)
        beat()
    assert targets(pair) == {"a": NOTHING}
    pair.pass_time(25)
    beat()
    assert targets(pair) == {"a": ALL}


async def test_what_a_regular_expression_matches_takes_memory(cluster: GroupCluster) -> None:
    """A new one is refused if there is no room for all topics; the members that are there go on."""
    cluster.topics |= {f"x{number}": 100 + number for number in range(200)}
    await cluster.start_serving(1)
    cluster.tell_metadata()
    await regex_joined(cluster, "a", "x.*", may_see_all)
    coordinator = cluster.coordinators[1]
    coordinator._memory._limit = coordinator.groups.bytes + 100 * MATCH_BYTES
    (same,) = cluster.consumer_heartbeat(1, "b", 0, topics=None, regex="x.*")
    (another,) = cluster.consumer_heartbeat(1, "c", 0, topics=None, regex="x.+")
    assert (same.error, another.error) == (ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE)


async def test_regular_expressions_that_are_not_resolved_yet_take_memory(
    cluster: GroupCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of members that join together."""
    monkeypatch.setattr(pace, "STEP", 1)
    monkeypatch.setattr(loop_budget, "LONG_SLICE_S", -1.0)  # one step in each turn of the loop
    cluster.topics |= {f"x{number}": 100 + number for number in range(200)}
    await cluster.start_serving(1)
    cluster.tell_metadata()
    coordinator = cluster.coordinators[1]
    coordinator._memory._limit = coordinator.groups.bytes + 1_000 * MATCH_BYTES
    answers = [cluster.consumer_heartbeat(1, f"m{n}", 0, topics=None, regex=f"x.*|{n}") for n in range(10)]
    refused = [answer[0].error for answer in answers if answer]
    assert refused == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 7


async def test_a_regular_expression_finds_a_topic_that_comes(pair: GroupCluster) -> None:
    """By the heartbeat of a member that has it, also if another member's heartbeat came first."""
    pair.tell_metadata()
    epoch = await joined(pair, 1, "a")
    await regex_joined(pair, "b", "x.*", may_see_all)
    pair.topics["x1"] = 11
    pair.tell_metadata()
    first = pair.consumer_heartbeat(1, "a", epoch, owned=ALL)
    await pair.settle()
    assert first[0].error is ErrorCode.NONE
    assert targets(pair)["b"] == NOTHING
    epoch = pair.coordinators[1].describe_consumer_group(GROUP).members[1].member.epoch
    pair.consumer_heartbeat(1, "b", epoch)
    assert targets(pair)["b"] == {IdPartition(uuid.UUID(int=11).bytes, number) for number in range(10)}


async def test_a_member_whose_record_is_too_large_leaves_a_classic_group_as_it_was(pair: GroupCluster) -> None:
    """Also in the log, where the group's record had a tombstone by then, and for the next coordinator."""
    pair.start_group(1)
    pair.sync(1, "m", 1, {"m": b"\0\0\0\0\0\0\xff\xff\xff\xff"})
    await pair.settle()
    topics = frozenset("t" * 200 + str(number) for number in range(6_000))
    (refused,) = pair.consumer_heartbeat(1, "a", 0, topics=topics)
    assert refused.error is ErrorCode.UNKNOWN_SERVER_ERROR
    await pair.serve(2, 1, (1, 2), replicas=(1, 2))
    assert pair.coordinators[2].describe(GROUP).state == "Stable"


async def test_a_late_store_of_a_group_that_was_converted_and_back(pair: GroupCluster) -> None:
    """It says nothing of the store of the group that there is now, which has the same number."""
    subscription = b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"
    empty = b"\0\0\0\0\0\0\xff\xff\xff\xff"
    pair.start_group(1)
    pair.sync(1, "m", 1, {"m": empty})
    coordinator = pair.coordinators[1]
    stored = [coordinator._effects._stored]
    late: list[tuple[Any, ...]] = []
    coordinator._effects._stored = lambda *outcome: late.append(outcome)
    await pair.settle()
    coordinator._effects._stored = stored[0]
    await joined(pair, 1, "a")
    pair.consumer_heartbeat(1, "a", LEAVING)
    await pair.settle()
    again = pair.join(1, "m", protocols=(Protocol("range", subscription),))
    generation = again[0].generation
    waiting = pair.sync(1, "m", generation, {"m": empty})
    await turns()
    assert waiting == []
    for outcome in late:
        stored[0](*outcome)
    assert waiting == [], "its own record is not replicated yet"
    await pair.settle()
    assert [answer.error for answer in waiting] == [ErrorCode.NONE]


async def test_a_static_member_comes_back_with_another_subscription(pair: GroupCluster) -> None:
    """What it does not say when it joins is not what its predecessor said."""
    pair.tell_metadata()
    pair.consumer_heartbeat(1, "a", 0, instance_id="i", topics=frozenset({"t"}), regex="x.*", assignor="range")
    pair.consumer_heartbeat(1, "a", LEAVING_FOR_A_WHILE, instance_id="i")
    pair.consumer_heartbeat(1, "b", 0, instance_id="i", topics=None, regex="y.*")
    await pair.settle()
    (described,) = pair.coordinators[1].describe_consumer_group(GROUP).members
    member = described.member
    assert (member.member_id, member.topics, member.regex, member.assignor) == ("b", frozenset(), "y.*", None)


# -- while a new target is being made ---------------------------------------------------------------------------------


@pytest.fixture
def slow(pair: GroupCluster, monkeypatch: pytest.MonkeyPatch) -> GroupCluster:
    """Each turn of the loop has one step of work, which looks at one member, topic or partition."""
    monkeypatch.setattr(pace, "STEP", 1)
    for coordinator in pair.coordinators.values():
        ticks = itertools.count()
        coordinator._sliced._monotonic = lambda ticks=ticks: float(next(ticks))
        coordinator._sliced._left_s = 0.0
    return pair


async def test_answers_wait_for_the_new_target(slow: GroupCluster) -> None:
    """Those of members that join; together they need few targets."""
    waiting = [slow.consumer_heartbeat(1, f"m{number}", 0) for number in range(5)]
    slow.time.single_turn()
    assert waiting == [[]] * 5
    await slow.settle()
    assert [answers[0].error for answers in waiting] == [ErrorCode.NONE] * 5
    group = slow.coordinators[1].describe_consumer_group(GROUP)
    assert (group.epoch, group.target_epoch) == (5, 5)
    assert sorted(len(each.target) for each in group.members) == [2] * 5


async def test_who_waits_for_a_target_when_the_coordinator_moves(slow: GroupCluster) -> None:
    """The next coordinator knows the member, and makes a target for it."""
    waiting = slow.consumer_heartbeat(1, "a", 0)
    await turns()
    assert waiting == []
    await slow.serve(2, 1, (1, 2), replicas=(1, 2))
    assert [answer.error for answer in waiting] == [ErrorCode.NOT_COORDINATOR]
    again = slow.consumer_heartbeat(2, "a", 0)
    await slow.settle()
    assert [(answer.error, answer.assignment) for answer in again] == [(ErrorCode.NONE, ALL)]


async def test_a_group_that_is_deleted_while_its_target_is_made(slow: GroupCluster) -> None:
    """Nothing follows its tombstones in the log."""
    await joined(slow, 1, "a")
    await joined(slow, 1, "b")
    slow.consumer_heartbeat(1, "a", LEAVING)
    slow.consumer_heartbeat(1, "b", 2, topics=frozenset({"u"}))
    slow.consumer_heartbeat(1, "b", LEAVING)
    held = slow.coordinators[1].groups.get(GROUP)
    assert held is not None
    assert held.is_worked_on
    deleted: list[dict[str, ErrorCode]] = []
    slow.coordinators[1].delete_groups([GROUP], deleted.append)
    await slow.settle()
    assert deleted == [{GROUP: ErrorCode.NONE}]
    await slow.serve(2, 1, (1, 2), replicas=(1, 2))
    assert slow.listed(2) == []


async def test_a_group_that_becomes_classic_while_its_target_is_made(slow: GroupCluster) -> None:
    await joined(slow, 1, "a")
    waiting = slow.consumer_heartbeat(1, "b", 0)
    slow.consumer_heartbeat(1, "a", LEAVING)
    slow.consumer_heartbeat(1, "b", LEAVING)
    slow.start_group(1)
    slow.sync(1, "m", 1, {"m": b""})
    await slow.settle()
    assert [answer.error for answer in waiting] == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert slow.coordinators[1].describe(GROUP).state == "Stable"


async def test_a_target_that_the_log_refuses(slow: GroupCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for it is told, and the next heartbeat makes it again."""
    waiting = slow.consumer_heartbeat(1, "a", 0)
    refuses: Callable[..., ErrorCode] = lambda *arguments, **options: ErrorCode.COORDINATOR_NOT_AVAILABLE  # noqa: E731
    with monkeypatch.context() as patched:
        patched.setattr(slow.coordinators[1]._writer, "store_changes", refuses)
        await slow.settle()
    assert [answer.error for answer in waiting] == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert slow.coordinators[1].describe_consumer_group(GROUP).state == "Assigning"
    again = slow.consumer_heartbeat(1, "a", 0)
    await slow.settle()
    assert [(answer.error, answer.assignment) for answer in again] == [(ErrorCode.NONE, ALL)]
