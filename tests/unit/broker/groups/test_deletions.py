"""Deletion of offsets and groups: by request, with their topic, by age (CLI-2, INV-23, KIP-211, KIP-496)."""

from __future__ import annotations

import pytest

from broker.groups import deletions, effects
from broker.groups.group.messages import LeavingMember
from protocol.errors import ErrorCode
from protocol.topic_names import OFFSETS_TOPIC
from protocol.types import TopicPartition
from tests.support.group_cluster import GROUP, OFFSETS, READ, Answers, GroupCluster

SECOND = TopicPartition("t", 1)
ELSEWHERE = TopicPartition("u", 0)
DAY_S = 86_400


def delete_offsets(cluster: GroupCluster, *partitions: TopicPartition, group: str = GROUP) -> Answers:
    answers: Answers = []
    cluster.coordinators[1].delete_offsets(group, partitions, lambda *answer: answers.append(answer))
    return answers


def delete_groups(cluster: GroupCluster, *groups: str) -> Answers:
    answers: Answers = []
    cluster.coordinators[1].delete_groups(groups, answers.append)
    return answers


def listed(cluster: GroupCluster, broker: int = 1) -> list[str]:
    return [listing.group_id for listing in cluster.listed(broker)]


async def reloaded(cluster: GroupCluster) -> None:
    """Makes broker 1 load its groups from the log again."""
    cluster.nodes[1].manager.step_down_all("the test")
    cluster.lead_groups(1, 0, (1,))
    await cluster.until_loaded(1)


async def test_a_group_is_deleted_with_its_offsets(served: GroupCluster) -> None:
    served.commit(1, 5, partitions=(READ, SECOND))
    served.commit(1, 5, group="kept")
    assert delete_groups(served, GROUP, "unknown") == [{GROUP: ErrorCode.NONE, "unknown": ErrorCode.GROUP_ID_NOT_FOUND}]
    assert (served.position(1), listed(served)) == (None, ["kept"])
    await reloaded(served)
    assert (served.position(1), listed(served)) == (None, ["kept"])
    assert served.commit(1, 6) == [ErrorCode.NONE]


async def test_a_deleted_group_does_not_come_back_with_a_load(served: GroupCluster) -> None:
    """The record of the group gets a tombstone too. A group with members is not deleted."""
    await served.start_stable_group(1)
    served.commit(1, 5, "m", 1)
    assert delete_groups(served, GROUP) == [{GROUP: ErrorCode.NON_EMPTY_GROUP}]
    assert served.heartbeat(1, "m", 1) is ErrorCode.NONE
    served.pass_time(11)
    assert delete_groups(served, GROUP) == [{GROUP: ErrorCode.NONE}]
    await reloaded(served)
    assert listed(served) == []


async def test_a_deletion_is_answered_and_takes_effect_when_it_is_replicated(pair: GroupCluster) -> None:
    """Until then nobody can join the group or commit to it."""
    pair.commit(1, 5)
    await pair.settle()
    answers = delete_groups(pair, GROUP)
    assert (answers, pair.position(1)) == ([], 5)
    assert pair.commit(1, 6) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert pair.join(1)[0].error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert delete_groups(pair, GROUP) == [{GROUP: ErrorCode.GROUP_ID_NOT_FOUND}]
    await pair.settle()
    assert (answers, pair.position(1)) == ([{GROUP: ErrorCode.NONE}], None)


async def test_a_group_that_is_deleted_is_not_stored_afterwards(
    pair: GroupCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While many members of other groups are answered, the record of a group that has become empty waits for its turn."""
    await pair.start_stable_group(1)
    monkeypatch.setattr(effects, "EFFECTS_AT_ONCE", 0)
    left: Answers = []
    pair.coordinators[1].leave(GROUP, [LeavingMember("m", None)], lambda *answer: left.append(answer))
    answers = delete_groups(pair, GROUP)
    monkeypatch.undo()
    await pair.settle()
    assert (left, answers) == ([(ErrorCode.NONE, [ErrorCode.NONE])], [{GROUP: ErrorCode.NONE}])
    pair.kill(1)
    await pair.serve(2, 1, (2,), replicas=(1, 2))
    assert listed(pair, 2) == []


async def test_a_deletion_that_cannot_be_written_changes_nothing(cluster: GroupCluster) -> None:
    """INV-17, INV-23."""
    await cluster.start_serving(1, 2, overrides={"min.insync.replicas": "2"})
    cluster.commit(1, 5, partitions=(READ, SECOND))
    await cluster.settle()
    cluster.lead_groups(1, 1, (1,), replicas=(1, 2))
    assert delete_groups(cluster, GROUP) == [{GROUP: ErrorCode.COORDINATOR_NOT_AVAILABLE}]
    assert delete_offsets(cluster, READ) == [(ErrorCode.NONE, {READ: ErrorCode.COORDINATOR_NOT_AVAILABLE})]
    assert cluster.position(1) == 5
    cluster.lead_groups(1, 2, (1, 2))
    committed = cluster.commit(1, 6)
    await cluster.settle()
    assert (committed, cluster.position(1)) == ([ErrorCode.NONE], 6)


async def test_a_deletion_of_offsets_that_fails_does_not_end_the_deletion_of_the_group(pair: GroupCluster) -> None:
    """INV-23: a commit after the tombstones would be acknowledged, and removed with the group."""
    pair.commit(1, 5, partitions=(READ, SECOND))
    await pair.settle()
    offsets_deleted = delete_offsets(pair, READ)
    pair.pass_time(3)
    group_deleted = delete_groups(pair, GROUP)
    pair.pass_time(3)
    assert (offsets_deleted, group_deleted) == ([(ErrorCode.NONE, {READ: ErrorCode.REQUEST_TIMED_OUT})], [])
    assert pair.commit(1, 6) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]


async def test_a_pending_commit_is_deleted_with_its_group(pair: GroupCluster) -> None:
    """The commit is before the tombstones in the log: a load must not bring the group back."""
    committed = pair.commit(1, 5)
    answers = delete_groups(pair, GROUP)
    await pair.settle()
    assert (committed, answers) == ([ErrorCode.NONE], [{GROUP: ErrorCode.NONE}])
    assert listed(pair) == []
    pair.kill(1)
    await pair.serve(2, 1, (2,), replicas=(1, 2))
    assert listed(pair, 2) == []


async def test_a_group_without_members_is_deleted_with_its_last_offset(served: GroupCluster) -> None:
    served.commit(1, 5, partitions=(READ, SECOND))
    assert delete_offsets(served, READ, ELSEWHERE) == [
        (ErrorCode.NONE, {READ: ErrorCode.NONE, ELSEWHERE: ErrorCode.NONE})
    ]
    assert (served.position(1), served.position(1, SECOND), listed(served)) == (None, 5, [GROUP])
    assert delete_offsets(served, SECOND) == [(ErrorCode.NONE, {SECOND: ErrorCode.NONE})]
    assert listed(served) == []
    assert delete_groups(served, GROUP) == [{GROUP: ErrorCode.GROUP_ID_NOT_FOUND}]


async def test_offsets_of_a_subscribed_topic_cannot_be_deleted(served: GroupCluster) -> None:
    await served.start_stable_group(1)
    served.commit(1, 5, "m", 1, partitions=(READ, ELSEWHERE))
    assert delete_offsets(served, READ, ELSEWHERE) == [
        (ErrorCode.NONE, {READ: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ELSEWHERE: ErrorCode.NONE})
    ]
    assert (served.position(1), served.position(1, ELSEWHERE)) == (5, None)
    served.join(1, group="workers", protocol_type="connect")
    assert delete_offsets(served, READ, group="workers") == [(ErrorCode.NON_EMPTY_GROUP, {})]


async def test_offsets_of_a_deleted_topic_are_deleted(served: GroupCluster) -> None:
    served.commit(1, 5, partitions=(READ, ELSEWHERE))
    served.commit(1, 5, group="reads nothing else")
    served.delete_topic("t")
    assert (served.position(1), served.position(1, ELSEWHERE)) == (None, 5)
    assert listed(served) == [GROUP]
    await reloaded(served)
    assert (served.position(1), served.position(1, ELSEWHERE)) == (None, 5)


async def test_offsets_stay_if_a_full_update_does_not_contain_their_topic(served: GroupCluster) -> None:
    """A full update lacks a topic if the controller could not read its znode."""
    served.commit(1, 5, partitions=(READ, ELSEWHERE))
    known = served.topics.pop("t")
    served.tell_metadata(is_full=True)
    assert served.nodes[1].metadata.partition(READ) is None
    assert served.position(1) == 5
    served.topics["t"] = known
    served.tell_metadata(is_full=True)
    assert served.position(1) == 5
    del served.topics["t"]
    served.tell_metadata(is_full=True)
    served.topics["t"] = known + 100
    served.tell_metadata()
    assert (served.position(1), served.position(1, ELSEWHERE)) == (None, 5), "made again"


async def test_offsets_and_groups_expire(served: GroupCluster) -> None:
    """KIP-211: a week after the last commit, or after the last member has left."""
    await served.start_stable_group(1)
    served.commit(1, 5, "m", 1)
    served.commit(1, 5, group="simple")
    for _ in range(8):
        days_pass(served, 1)
        served.heartbeat(1, "m", 1)
    assert (served.position(1, group="simple"), served.position(1)) == (None, 5)
    assert listed(served) == [GROUP]
    served.pass_time(11)
    assert served.heartbeat(1, "m", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    days_pass(served, 6)
    assert served.position(1) == 5
    days_pass(served, 2)
    assert (served.position(1), listed(served)) == (None, [])
    await reloaded(served)
    assert listed(served) == []


def days_pass(cluster: GroupCluster, days: int, broker: int = 1) -> None:
    """Moves the clock without a gap for the lease, and starts the next round of expiry."""
    cluster.time.now += days * DAY_S
    cluster.nodes[broker].lease._last_tick = cluster.time.now
    cluster.coordinators[broker]._stood_still_s += days * DAY_S
    cluster.pass_time(0.1)
    cluster.coordinators[broker]._deletions._expire()


async def test_nothing_expires_while_the_lease_is_suspect(served: GroupCluster) -> None:
    """FLT-6."""
    served.commit(1, 5)
    end = served.nodes[1].partition(served.tp).log.log_end_offset  # type: ignore[union-attr]
    served.time.advance(9 * DAY_S)
    assert served.nodes[1].lease.is_suspect()
    assert served.nodes[1].partition(served.tp).log.log_end_offset == end  # type: ignore[union-attr]
    served.nodes[1].lease.reset()
    served.pass_time(700)
    assert served.position(1) is None


MANY = tuple(TopicPartition("t", number) for number in range(5))


def log_end(cluster: GroupCluster) -> int:
    return cluster.nodes[1].log(OFFSETS).log_end_offset


@pytest.fixture
def one_offset_at_once(one_step_in_a_turn: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deletion pauses after each offset."""
    monkeypatch.setattr(deletions, "OFFSETS_AT_ONCE", 1)


async def test_other_requests_are_served_while_a_large_group_is_deleted(
    one_offset_at_once: None, served: GroupCluster
) -> None:
    """NET-4. Nobody can join the group or commit to it."""
    served.commit(1, 5, partitions=MANY)
    before = log_end(served)
    answers = delete_groups(served, GROUP)
    for number in range(len(MANY)):
        served.time.single_turn()
        assert (log_end(served), served.position(1, MANY[number])) == (before + number + 1, None)
        assert served.commit(1, 6) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        assert served.join(1)[0].error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert delete_groups(served, GROUP) == [{GROUP: ErrorCode.GROUP_ID_NOT_FOUND}]
        assert answers == []
    served.time.turn()
    assert (answers, listed(served)) == ([{GROUP: ErrorCode.NONE}], [])
    assert served.commit(1, 6) == [ErrorCode.NONE]
    await reloaded(served)
    assert (served.position(1), len(served.coordinators[1].groups.get(GROUP).offsets)) == (6, 1)  # type: ignore[union-attr]


async def test_a_partition_that_is_lost_ends_the_deletion_of_a_large_group(
    one_offset_at_once: None, served: GroupCluster
) -> None:
    """LAI-5: also if it is gained again before the next step."""
    served.commit(1, 5, partitions=MANY)
    answers = delete_groups(served, GROUP)
    served.time.single_turn()
    served.time.single_turn()
    await reloaded(served)
    assert answers == [{GROUP: ErrorCode.NOT_COORDINATOR}]
    assert [served.position(1, tp) for tp in MANY] == [None, None, 5, 5, 5]
    assert served.commit(1, 6) == [ErrorCode.NONE]
    assert delete_groups(served, GROUP) == []
    served.time.turn()
    assert listed(served) == []


async def test_a_large_deletion_that_fails_keeps_the_rest(one_offset_at_once: None, served: GroupCluster) -> None:
    """INV-23: memory has what a load would find, and the group is used again."""
    served.commit(1, 5, partitions=MANY)
    answers = delete_groups(served, GROUP)
    served.time.single_turn()
    served.time.single_turn()
    logs = served.nodes[1].logs
    logs.update_topic_configs({OFFSETS_TOPIC: {"min.insync.replicas": "2"}})
    served.time.turn()
    assert answers == [{GROUP: ErrorCode.COORDINATOR_NOT_AVAILABLE}]
    assert [served.position(1, tp) for tp in MANY] == [None, None, 5, 5, 5]
    logs.update_topic_configs({OFFSETS_TOPIC: {}})
    assert served.commit(1, 6) == [ErrorCode.NONE]
    await reloaded(served)
    assert [served.position(1, tp) for tp in MANY] == [6, None, 5, 5, 5]


async def test_expiry_looks_again_after_each_pause(cluster: GroupCluster, one_offset_at_once: None) -> None:
    """A commit, or a member that joins, keeps the offsets that no tombstone was written for yet."""
    cluster.settings |= {"offsets_retention_check_interval_ms": 10**12}
    await cluster.start_serving(1)
    cluster.commit(1, 5, partitions=MANY)
    days_pass(cluster, 8)
    cluster.time.single_turn()
    cluster.time.single_turn()
    assert [cluster.position(1, tp) for tp in MANY] == [None, None, 5, 5, 5]
    cluster.commit(1, 6, partitions=(MANY[0], MANY[3]))
    cluster.time.single_turn()
    cluster.time.single_turn()
    assert [cluster.position(1, tp) for tp in MANY] == [6, None, None, 6, 5]
    cluster.join(1)
    cluster.time.turn()
    assert [cluster.position(1, tp) for tp in MANY] == [6, None, None, 6, 5]


async def test_a_group_that_is_used_again_outlives_its_last_offset(pair: GroupCluster) -> None:
    """The group's own tombstone is written when those of its offsets are replicated: until then it may get another offset."""
    joined = pair.join(1)
    pair.pass_time(3.1)
    assert joined[0].error is ErrorCode.NONE
    pair.pass_time(11)
    await pair.settle()
    pair.commit(1, 5)
    await pair.settle()
    answers = delete_offsets(pair, READ)
    committed = pair.commit(1, 6, partitions=(SECOND,))
    await pair.settle()
    assert answers == [(ErrorCode.NONE, {READ: ErrorCode.NONE})]
    assert (committed, pair.position(1), pair.position(1, SECOND)) == ([ErrorCode.NONE], None, 6)
    answers = delete_offsets(pair, SECOND)
    await pair.settle()
    assert (answers, listed(pair)) == ([(ErrorCode.NONE, {SECOND: ErrorCode.NONE})], [])


async def test_offsets_of_a_topic_that_was_made_again_stay(one_offset_at_once: None, served: GroupCluster) -> None:
    """While the old topic's offsets are being deleted, group by group, a commit for the new one must wait: a tombstone could follow."""
    served.commit(1, 5, partitions=(*MANY, ELSEWHERE))
    served.commit(1, 5, partitions=MANY, group="other")
    served.delete_topic("t")
    served.time.single_turn()
    served.topics["t"] = 99
    served.tell_metadata()
    held = served.coordinators[1].groups.get(GROUP)
    assert held is not None
    assert len(held.offsets) == 5, "one is deleted"
    assert [served.position(1, tp) for tp in MANY] == [None] * 5
    assert served.commit(1, 1) == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
    assert served.commit(1, 6, partitions=(ELSEWHERE, READ)) == [ErrorCode.NONE]
    assert (served.position(1, ELSEWHERE), served.position(1, READ)) == (6, None)
    served.time.turn()
    assert served.commit(1, 2) == [ErrorCode.NONE]
    assert [served.position(1, tp) for tp in MANY] == [2, None, None, None, None]
    assert listed(served) == [GROUP]
    await reloaded(served)
    assert served.position(1) == 2


async def test_offsets_of_an_earlier_topic_are_not_those_of_the_next(
    cluster: GroupCluster, one_offset_at_once: None
) -> None:
    """The coordinator dies in the middle of the deletion, and its successor knew of the deletion before it led."""
    await cluster.start_serving(1, 2, 3)
    cluster.commit(1, 5, partitions=(*MANY, ELSEWHERE))
    await cluster.settle()
    cluster.delete_topic("t")
    cluster.time.single_turn()
    cluster.kill(1)
    cluster.topics["t"] = 99
    cluster.tell_metadata()
    await cluster.serve(2, 1, (2, 3))
    assert [cluster.position(2, tp) for tp in MANY] == [None] * 5
    assert cluster.coordinators[2].committed_partitions(GROUP) == (ErrorCode.NONE, {"u": [0]})
    committed = cluster.commit(2, 1)
    await cluster.settle()
    assert (committed, cluster.position(2)) == ([ErrorCode.NONE], 1)
    days_pass(cluster, 0, broker=2)
    await cluster.settle()
    cluster.kill(2)
    del cluster.topics["t"]  # now the metadata does not tell whose the offsets are
    cluster.tell_metadata(is_full=True)
    await cluster.serve(3, 2, (3,), replicas=(2, 3))
    assert [cluster.position(3, tp) for tp in (*MANY, ELSEWHERE)] == [1, None, None, None, None, 5]


async def test_a_pending_commit_is_deleted_with_its_topic(pair: GroupCluster) -> None:
    pair.commit(1, 5, partitions=(ELSEWHERE,))
    await pair.settle()
    committed = pair.commit(1, 5)
    pair.delete_topic("t")
    await pair.settle()
    assert (committed, pair.position(1), pair.position(1, ELSEWHERE)) == ([ErrorCode.NONE], None, 5)


async def test_no_round_of_expiry_follows_a_stop(cluster: GroupCluster, one_offset_at_once: None) -> None:
    cluster.settings |= {"offsets_retention_check_interval_ms": 10**12}
    await cluster.start_serving(1)
    cluster.commit(1, 5, partitions=MANY)
    days_pass(cluster, 8)
    before = cluster.time.armed()
    await cluster.coordinators[1].close()
    cluster.time.turn()
    assert cluster.time.armed() == before - 1, "its timer was cancelled, and the round under way arms no other"
