"""The coordinator moves with the leadership of its partition: LAI-5, INV-23, INV-24, BUG-12, BUG-25, CTL-16."""

from __future__ import annotations

import pytest

from broker.coordination.ownership import partition_for
from broker.groups.group.messages import SyncAnswer
from broker.purgatory import KEYS_MAX
from protocol.errors import ErrorCode
from protocol.rpc.messages import PartitionState, StopReplicaPartition, StopReplicaRequest, UpdateMetadataRequest
from protocol.topic_names import OFFSETS_TOPIC
from tests.support.group_cluster import GROUP, OFFSETS, SESSION_MS, GroupCluster, turns
from tests.support.replica_cluster import SESSION_TIMEOUT_MS


async def a_group_with_an_offset(cluster: GroupCluster) -> None:
    """Brokers 1 (coordinator), 2 and 3; `m` in generation 1 has committed 42."""
    await cluster.start_serving(1, 2, 3)
    cluster.start_group(1)
    synced = cluster.sync(1, "m", 1, {"m": b"mine"})
    await cluster.settle()
    committed = cluster.commit(1, 42, "m", 1)
    await cluster.settle()
    assert [answer.error for answer in synced] == committed == [ErrorCode.NONE]


async def test_members_continue_after_the_coordinator_was_killed(cluster: GroupCluster) -> None:
    """INV-23, INV-24: a move causes no rebalance, loses nothing that was acknowledged, and restarts the sessions."""
    await a_group_with_an_offset(cluster)
    cluster.pass_time(SESSION_MS / 1250)
    cluster.kill(1)
    assert cluster.heartbeat(2, "m", 1) is ErrorCode.NOT_COORDINATOR
    await cluster.serve(2, 1, (2, 3))
    cluster.pass_time(SESSION_MS / 1250)
    assert cluster.heartbeat(2, "m", 1) is ErrorCode.NONE
    assert cluster.position(2) == 42
    described = cluster.coordinators[2].describe(GROUP)
    assert (described.state, described.members[0].assignment) == ("Stable", b"mine")
    assert cluster.sync(2, "m", 1) == [SyncAnswer(ErrorCode.NONE, b"mine", "consumer", "range")]
    committed = cluster.commit(2, 43, "m", 1)
    await cluster.settle()
    assert (committed, cluster.position(2)) == ([ErrorCode.NONE], 43)
    cluster.pass_time(SESSION_MS / 1000 + 0.5)
    assert cluster.heartbeat(2, "m", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    await cluster.settle()
    assert cluster.coordinators[2].describe(GROUP).state == "Empty"


async def test_groups_keep_their_partition_while_the_metadata_lacks_another(cluster: GroupCluster) -> None:
    """The state znode of partition 7 cannot be read, so the metadata has 49 of 50 partitions."""
    cluster.settings |= {"offsets_topic_num_partitions": 20}
    await cluster.start(1)
    states = [PartitionState(OFFSETS_TOPIC, n, 1, 1, 0, (1,), 0, (1,)) for n in range(50) if n != 7]
    head = (9, cluster.controller_epoch, cluster.nodes[1].epoch)
    counts = {OFFSETS_TOPIC: 50}
    request = UpdateMetadataRequest(*head, states, {}, cluster.brokers(), True, partition_counts=counts)
    cluster.nodes[1].carry_out(request)
    groups = [f"group-{n}" for n in range(100)]
    coordinator = cluster.coordinators[1]
    assert [coordinator.partition_of(group) for group in groups] == [partition_for(group, 50) for group in groups]


async def test_offsets_are_not_shown_before_they_are_replicated(cluster: GroupCluster) -> None:
    """BUG-25: the new leader's log has a commit that is not acknowledged. If the leader died, it would be lost."""
    await a_group_with_an_offset(cluster)
    unknown = cluster.commit(1, 43, "m", 1)
    await cluster.replicate(2)
    assert unknown == []
    cluster.kill(1)
    cluster.lead_groups(2, 1, (2, 3))
    await turns()
    assert cluster.position(2) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert cluster.commit(2, 44, "m", 1) == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
    assert cluster.join(2, "m")[0].error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert cluster.coordinators[2].describe(GROUP).error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert cluster.coordinators[2].list_groups(frozenset(), frozenset())[0] is (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    # Clients must not take a load for the loss of their membership.
    assert cluster.heartbeat(2, "m", 1) is ErrorCode.NONE
    assert cluster.sync(2, "m", 1)[0].error is ErrorCode.REBALANCE_IN_PROGRESS
    cluster.pass_time(12)  # however long it takes
    assert cluster.position(2) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    await cluster.until_loaded(2)
    assert cluster.position(2) == 43


async def test_a_load_survives_that_too_many_requests_wait_for_replicas(cluster: GroupCluster) -> None:
    """BUG-25, NET-2: the purgatory answers at once what it has no room for. The load asks again later."""
    await a_group_with_an_offset(cluster)
    cluster.commit(1, 43, "m", 1)
    await cluster.replicate(2)
    cluster.kill(1)
    produces = cluster.nodes[2].manager.produces
    produces._keys_max = 0
    cluster.lead_groups(2, 1, (2, 3))
    await turns()
    cluster.pass_time(3)
    assert cluster.position(2) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    produces._keys_max = KEYS_MAX
    await cluster.until_loaded(2)
    assert cluster.position(2) == 43


async def test_waiting_members_get_not_coordinator_when_the_coordinator_moves(pair: GroupCluster) -> None:
    joining = pair.join(1)
    committing = pair.commit(1, 1, group="simple")
    pair.lead_groups(2, 1, (1, 2))
    assert [answer.error for answer in joining] == [ErrorCode.NOT_COORDINATOR]
    assert committing == [ErrorCode.NOT_COORDINATOR]
    await pair.until_loaded(2)
    pair.start_group(2)
    syncing = pair.sync(2, "m", 1, {"m": b"mine"})
    pair.lead_groups(1, 2, (1, 2))
    assert [answer.error for answer in syncing] == [ErrorCode.NOT_COORDINATOR]
    assert pair.heartbeat(2, "m", 1) is ErrorCode.NOT_COORDINATOR
    # Nothing is left that acts: no deadline, no append, no waiter.
    coordinator = pair.coordinators[2]
    assert len(coordinator._timers) == 0
    assert coordinator._effects.waiting == 0
    pair.pass_time(60)
    assert pair.nodes[2].manager.waiting() == (0, 0)


@pytest.mark.parametrize("how", ["step down", "stop replica", "close"])
async def test_groups_are_given_up_however_the_leadership_ends(served: GroupCluster, how: str) -> None:
    """The session is lost (STA-4), the replica is stopped (LAI-6), or the broker stops (STA-2)."""
    joining = served.join(1)
    manager = served.nodes[1].manager
    if how == "step down":
        manager.step_down_all("the test")
    elif how == "stop replica":
        stop = StopReplicaPartition(OFFSETS.topic, OFFSETS.partition, 1, True)
        served.nodes[1].carry_out(StopReplicaRequest(9, 1, served.nodes[1].epoch, (stop,), {}))
    else:
        await served.coordinators[1].close()
    assert [answer.error for answer in joining] == [ErrorCode.NOT_COORDINATOR]
    assert served.heartbeat(1, "m", 1) is ErrorCode.NOT_COORDINATOR
    assert served.position(1) is ErrorCode.NOT_COORDINATOR
    assert served.commit(1, 1) == [ErrorCode.NOT_COORDINATOR]
    if how == "close":
        served.lead_groups(1, 1, (1,))
        await turns()
        assert served.position(1) is ErrorCode.NOT_COORDINATOR, "a broker that stops gains nothing"
    elif how == "step down":
        await served.serve(1, 0, (1,))
        assert served.position(1) is None, "the controller announces the same leadership again"


async def test_a_leader_that_continues_in_a_new_epoch_keeps_its_groups(cluster: GroupCluster) -> None:
    """For instance when a replica was added: waiting JoinGroups still wait, and sessions continue."""
    await cluster.start(1, 2)
    await cluster.serve(1, 0, (1,))
    await cluster.start_stable_group(1)
    joining = cluster.join(1, group="other")
    cluster.lead_groups(1, 1, (1,), replicas=(1, 2))
    assert cluster.heartbeat(1, "m", 1) is ErrorCode.NONE
    cluster.pass_time(3.1)
    assert [answer.error for answer in joining] == [ErrorCode.NONE]


async def test_a_load_that_started_before_the_partition_was_lost_is_discarded(cluster: GroupCluster) -> None:
    """BUG-12: the partition is lost and gained again during the first load."""
    await a_group_with_an_offset(cluster)
    cluster.lead_groups(2, 1, (1, 2, 3))
    cluster.lead_groups(1, 2, (1, 2, 3))
    cluster.lead_groups(2, 3, (1, 2, 3))
    await cluster.until_loaded(2)
    assert cluster.position(2) == 42
    assert cluster.position(1) is ErrorCode.NOT_COORDINATOR
    assert cluster.commit(1, 1, "m", 1) == [ErrorCode.NOT_COORDINATOR]
    assert len(cluster.listed(2)) == 1


async def test_all_groups_of_a_lost_partition_are_given_up_at_once(
    one_step_in_a_turn: None, served: GroupCluster
) -> None:
    """NET-4, LAI-5: their removal takes many turns of the loop, but nothing acts for them from the first one on."""
    groups = [f"g{number}" for number in range(5)]
    joining = [answers for group in groups for answers in [served.join(1, group=group)]]
    for group in groups:
        served.commit(1, 5, group=f"{group}-simple")
    coordinator = served.coordinators[1]
    served.nodes[1].manager.step_down_all("the test")
    assert [coordinator.check(group) for group in groups] == [ErrorCode.NOT_COORDINATOR] * 5
    assert served.commit(1, 6, group="g0-simple") == [ErrorCode.NOT_COORDINATOR]
    assert (served.listed(1), joining) == ([], [[]] * 5)
    for _ in range(3):
        served.time.single_turn()
    assert 0 < len(coordinator.groups) < 10
    served.time.turn()
    assert [[answer.error for answer in answers] for answers in joining] == [[ErrorCode.NOT_COORDINATOR]] * 5
    assert (len(coordinator.groups), coordinator.groups.bytes, len(coordinator._timers)) == (0, 0, 0)


async def test_a_partition_is_gained_again_while_its_groups_are_removed(
    one_step_in_a_turn: None, served: GroupCluster
) -> None:
    """BUG-12: the removal of the old groups does not touch the new ones, which have the same ids."""
    await served.start_stable_group(1)
    served.commit(1, 5, "m", 1)
    for number in range(4):
        served.commit(1, number, group=f"g{number}")
    for number in range(20):
        served.join(1, group=f"not in the log {number}")
    coordinator = served.coordinators[1]
    old = list(coordinator.groups)
    coordinator.ownership._lost(OFFSETS.partition)
    coordinator.leadership_changed(OFFSETS)
    while coordinator.check(GROUP) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        await turns()
        served.time.single_turn()
    assert any(not held.is_removed for held in old)
    assert (served.heartbeat(1, "m", 1), served.position(1)) == (ErrorCode.NONE, 5)
    served.time.turn()
    assert all(held.is_removed for held in old)
    assert (served.heartbeat(1, "m", 1), served.position(1)) == (ErrorCode.NONE, 5)
    assert [served.position(1, group=f"g{number}") for number in range(4)] == [0, 1, 2, 3]
    assert sorted(listing.group_id for listing in served.listed(1)) == [GROUP, "g0", "g1", "g2", "g3"]
    assert coordinator.groups.bytes == sum(held.counted_bytes for held in coordinator.groups) > 0
    served.pass_time(SESSION_MS / 1000 + 0.5)
    assert coordinator.describe(GROUP).state == "Empty", "its timer is armed"


async def test_a_topic_that_is_deleted_during_a_load_leaves_no_offsets(cluster: GroupCluster) -> None:
    await cluster.start_serving(1, 2, 3)
    cluster.commit(1, 5)
    await cluster.settle()
    cluster.kill(1)
    cluster.lead_groups(2, 1, (2, 3))
    await turns()
    cluster.delete_topic("t")
    await cluster.until_loaded(2)
    await cluster.settle()
    assert cluster.position(2) is None


async def test_a_coordinator_that_is_cut_off_does_not_answer_from_memory(cluster: GroupCluster) -> None:
    """The new coordinator may have newer offsets. Kafka's cut-off coordinator answered old offsets for up to 5.3 s."""
    await a_group_with_an_offset(cluster)
    cluster.cut_off.add(1)
    cluster.pass_time(SESSION_TIMEOUT_MS / 2000 - 0.25)
    assert cluster.position(1) == 42
    cluster.pass_time(1)
    assert cluster.position(1) is ErrorCode.NOT_COORDINATOR
    assert cluster.heartbeat(1, "m", 1) is ErrorCode.NOT_COORDINATOR
    assert cluster.commit(1, 43, "m", 1) == [ErrorCode.NOT_COORDINATOR]
    cluster.cut_off.clear()
    cluster.pass_time(0.25)
    assert cluster.position(1) == 42


async def test_without_zookeeper_a_coordinator_answers_while_its_followers_fetch(cluster: GroupCluster) -> None:
    """CTL-14."""
    await a_group_with_an_offset(cluster)
    cluster.cut_off |= {1, 2, 3}
    for _ in range(10):
        cluster.pass_time(1)
        await cluster.replicate(2, 3)
        assert cluster.position(1) == 42
        assert cluster.heartbeat(1, "m", 1) is ErrorCode.NONE
    cluster.pass_time(1)
    await cluster.replicate(2)
    cluster.pass_time(1.25)
    assert cluster.position(1) is ErrorCode.NOT_COORDINATOR


async def test_without_followers_no_other_broker_can_take_over(served: GroupCluster) -> None:
    served.commit(1, 5)
    served.cut_off.add(1)
    served.pass_time(60)
    assert served.position(1) == 5
