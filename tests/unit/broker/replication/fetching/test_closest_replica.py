"""Reading from the closest replica (KIP-392): which replica a leader names, and what a follower answers."""

from __future__ import annotations

import pytest

from broker.replication.fetching.closest_replica import NO_REPLICA, ReplicaView, rack_aware
from broker.settings.config import RACK_AWARE_SELECTOR
from protocol.errors import ErrorCode
from protocol.kafka.fetch_codec import READ_COMMITTED, FetchPartitionData
from protocol.kafka.record_batch import TRANSACTIONAL_BIT
from protocol.types import TopicPartition
from tests.support.fetch_sessions import SessionOf
from tests.support.replica_cluster import TP, Cluster, values_of

LEADER = ReplicaView(1, "a", 100, 0.0)


@pytest.mark.parametrize(
    ("rack", "followers", "expected"),
    [
        ("b", [ReplicaView(2, "b", 100, 0), ReplicaView(3, "c", 100, 0)], 2),
        ("a", [ReplicaView(2, "a", 100, 0)], 1),  # the leader, if it is there
        ("d", [ReplicaView(2, "b", 100, 0)], 1),
        ("", [ReplicaView(2, "", 100, 0)], 1),  # the consumer has no rack
        ("b", [ReplicaView(2, None, 100, 0)], 1),
        ("b", [], 1),
        ("b", [ReplicaView(2, "b", 99, 0), ReplicaView(3, "b", 100, 5)], 3),  # the log end decides,
        ("b", [ReplicaView(2, "b", 100, 1), ReplicaView(3, "b", 100, 2)], 2),  # then the time,
        ("b", [ReplicaView(2, "b", 100, 1), ReplicaView(3, "b", 100, 1)], 3),  # then the id
    ],
)
def test_a_replica_of_the_consumers_rack_is_chosen(rack: str, followers: list[ReplicaView], expected: int) -> None:
    """Kafka's RackAwareReplicaSelector, and its order of replicas (ReplicaView.comparator)."""
    assert rack_aware(rack, LEADER, followers).broker_id == expected


@pytest.fixture
def cluster(cluster: Cluster) -> Cluster:
    """Brokers in racks of their own. The leader names replicas."""
    cluster.settings = {"replica_selector_class": RACK_AWARE_SELECTOR}
    cluster.racks = {1: "a", 2: "b", 3: "c"}
    return cluster


def only(answers: list[FetchPartitionData]) -> FetchPartitionData:
    (data,) = answers
    return data


async def lead_with_records(cluster: Cluster, *values: str) -> None:
    """Broker 1 leads; 2 and 3 have every record, and know the high watermark."""
    await cluster.start_led(1, 2, 3)
    for value in values:
        cluster.produce(1, value, acks=1)
    await cluster.replicate(2, 3, rounds=3)
    assert cluster.nodes[2].partition().high_watermark == len(values)


async def test_the_leader_names_a_replica_and_sends_no_records(cluster: Cluster) -> None:
    """At once, also to a consumer that would wait."""
    await lead_with_records(cluster, "x", "y")
    for offset in (0, 2):
        data = only(cluster.consume(1, offset, rack="b", max_wait_ms=60_000))
        assert (data.preferred_read_replica, data.error, data.records) == (2, ErrorCode.NONE, ())
        assert (data.high_watermark, data.last_stable_offset, data.log_start_offset) == (2, 2, 0)


@pytest.mark.parametrize("rack", ["a", "d", "", None])
async def test_the_leader_serves_its_own_rack_and_unknown_ones(cluster: Cluster, rack: str | None) -> None:
    await lead_with_records(cluster, "x")
    data = only(cluster.consume(1, 0, rack=rack))
    assert (data.preferred_read_replica, values_of(data)) == (NO_REPLICA, ["x"])


async def test_without_a_selector_the_leader_names_nobody(cluster: Cluster) -> None:
    cluster.settings = {}
    await lead_with_records(cluster, "x")
    assert only(cluster.consume(1, 0, rack="b")).preferred_read_replica == NO_REPLICA


async def test_only_a_live_follower_in_sync_that_has_the_offset_is_named(cluster: Cluster) -> None:
    """ReplicaManager.findPreferredReadReplica: ISR, offset, and an address for the consumer's listener."""
    await cluster.start_led(1, 2, 3)

    def named(offset: int, listener: str = "PLAINTEXT") -> int:
        return only(cluster.consume(1, offset, rack="b", listener=listener)).preferred_read_replica

    cluster.produce(1, "x", acks=1)
    assert named(0) == NO_REPLICA  # broker 2 has not fetched in this epoch
    await cluster.replicate(2, 3, rounds=2)
    assert named(1) == 2
    cluster.produce(1, "y", acks=1)
    assert (named(1), named(2)) == (2, NO_REPLICA)  # its log ends at 1
    assert named(1, listener="OTHER") == NO_REPLICA
    cluster.nodes[1].partition().followers[2].log_start_offset = 1
    assert (named(0), named(1)) == (NO_REPLICA, 2)
    state = cluster.nodes[1].partition()
    state.isr = (1, 3)
    assert named(1) == NO_REPLICA
    state.isr = (1, 2, 3)
    cluster.kill(2)
    assert named(1) == NO_REPLICA


async def test_a_wrong_epoch_is_refused_before_a_replica_is_named(cluster: Cluster) -> None:
    """REP-8."""
    await cluster.start_led(1, 2, 3)
    await cluster.replicate(2, 3, rounds=2)
    cluster.lead(1, 4, (1, 2, 3))
    await cluster.replicate(2, 3, rounds=2)
    errors = [only(cluster.consume(1, 0, rack="b", epoch=epoch)).error for epoch in (3, 5, 4)]
    assert errors == [ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.NONE]


# -- at a follower ------------------------------------------------------------------------------------------------------


async def test_a_follower_serves_consumers_up_to_its_high_watermark(cluster: Cluster) -> None:
    """REP-2 with the follower's offsets: nothing above its high watermark, an error beyond its log."""
    await lead_with_records(cluster, "x", "y")
    cluster.produce(1, "z", acks=1)
    await cluster.replicate(2)
    follower = cluster.nodes[2].partition()
    assert (follower.high_watermark, cluster.nodes[2].log().log_end_offset) == (2, 3)
    data = only(cluster.consume(2, 0, rack="b"))
    assert (values_of(data), data.high_watermark, data.preferred_read_replica) == (["x", "y"], 2, NO_REPLICA)
    assert only(cluster.consume(2, 3, rack="b")) == data._replace(records=())
    assert only(cluster.consume(2, 4, rack="b")).error == ErrorCode.OFFSET_OUT_OF_RANGE
    cluster.nodes[2].log().increment_log_start(1)
    assert only(cluster.consume(2, 0, rack="b")).error == ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize(
    ("rack", "epoch", "expected"),
    [
        (None, -1, ErrorCode.NOT_LEADER_OR_FOLLOWER),  # versions before 11
        ("", -1, ErrorCode.NONE),  # the rack is the leader's business
        ("b", 3, ErrorCode.NONE),
        ("b", 2, ErrorCode.FENCED_LEADER_EPOCH),
        ("b", 4, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
async def test_which_consumers_a_follower_serves(
    cluster: Cluster, rack: str | None, epoch: int, expected: ErrorCode
) -> None:
    await lead_with_records(cluster, "x")
    cluster.lead(1, 3, (1, 2, 3))
    data = only(cluster.consume(2, 0, rack=rack, epoch=epoch))
    assert data.error == expected
    assert values_of(data) == (["x"] if expected is ErrorCode.NONE else [])


async def test_a_follower_that_was_stopped_serves_nobody(cluster: Cluster) -> None:
    await lead_with_records(cluster, "x")
    cluster.nodes[2].partition().stop()
    assert only(cluster.consume(2, 0, rack="b")).error == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_another_follower_cannot_copy_from_a_follower(cluster: Cluster) -> None:
    await lead_with_records(cluster, "x")
    assert only(cluster.follower_fetch(2, 3, 1, epoch=0)).error == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_readers_of_committed_records_at_a_follower(cluster: Cluster) -> None:
    """LOG-7: the last stable offset is the follower's own, and aborted transactions are named there, too."""
    await cluster.start_led(1, 2, 3)
    for producer in (7, 8):
        cluster.produce(
            1,
            f"of {producer}",
            acks=1,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=0,
            attributes=TRANSACTIONAL_BIT,
        )
    cluster.end_transaction(1, 7, is_commit=False)
    await cluster.replicate(2, 3, rounds=3)

    def committed() -> FetchPartitionData:
        return only(cluster.consume(2, 0, rack="b", isolation_level=READ_COMMITTED))

    seen = committed()
    assert (seen.high_watermark, seen.last_stable_offset, values_of(seen)) == (3, 1, ["of 7"])
    assert seen.aborted_transactions == [(7, 0)]
    cluster.end_transaction(1, 8, is_commit=True)
    await cluster.replicate(2)
    assert committed().last_stable_offset == 1  # the marker is here, but not replicated
    await cluster.replicate(2, 3, rounds=3)
    seen = committed()
    assert (seen.last_stable_offset, seen.aborted_transactions, len(values_of(seen))) == (4, [(7, 0)], 4)


@pytest.mark.parametrize("in_session", [True, False])
async def test_a_consumer_that_waits_at_a_follower_gets_what_is_committed_there(
    cluster: Cluster, in_session: bool
) -> None:
    await lead_with_records(cluster, "x")
    session = SessionOf(cluster, -1, at=2, rack="b")
    session.offset = 1
    if in_session:
        session.rest()
        session.not_looked_at()
        session.fetch(max_wait_ms=60_000)
    waiting = cluster.consume(2, 1, rack="b", max_wait_ms=60_000)
    cluster.produce(1, "y", acks=1)
    await cluster.replicate(2)
    cluster.time.turn()
    assert waiting == []  # the record is here, but not committed
    await cluster.replicate(3, 2, 3, 2)
    assert values_of(only(waiting)) == ["y"]
    if in_session:
        assert values_of(session.answers[-1][0]) == ["y"]


async def test_a_consumer_that_waits_at_a_follower_gets_an_error_in_a_new_epoch(cluster: Cluster) -> None:
    await lead_with_records(cluster, "x")
    waiting = cluster.consume(2, 1, rack="b", epoch=0, max_wait_ms=60_000)
    cluster.lead(3, 1, (2, 3))
    cluster.time.turn()
    data = only(waiting)
    assert (data.error, data.current_leader) == (ErrorCode.FENCED_LEADER_EPOCH, (3, 1))


async def test_a_consumer_that_waits_at_a_follower_hears_of_a_cut_below_the_high_watermark(cluster: Cluster) -> None:
    """After an unclean election. The consumer then asks the leader again."""
    await lead_with_records(cluster, "x", "y")
    waiting = cluster.consume(2, 2, rack="b", max_wait_ms=60_000)
    cluster.nodes[2].partition().truncate(1)
    cluster.time.turn()
    assert only(waiting).error == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_records_without_a_consumer_here_are_not_looked_at(cluster: Cluster) -> None:
    """Each append of a follower moves its high watermark: without consumers that must cost nothing."""
    await lead_with_records(cluster, "x")
    cluster.nodes[2].manager.fetches.look()
    cluster.nodes[2].manager.fetches.follower_moved(TP)
    assert not cluster.nodes[2].manager.fetches.is_turn_due
    cluster.consume(2, 1, rack="b", max_wait_ms=60_000)
    cluster.nodes[2].manager.fetches.follower_moved(TopicPartition("t", 1))
    assert not cluster.nodes[2].manager.fetches.is_turn_due
    cluster.nodes[2].manager.fetches.follower_moved(TP)
    assert cluster.nodes[2].manager.fetches.is_turn_due


# -- the high watermark reaches followers -------------------------------------------------------------------------------


@pytest.mark.parametrize("names_closest", [True, False])
async def test_a_follower_learns_of_a_moved_high_watermark_at_once(cluster: Cluster, names_closest: bool) -> None:
    """With a selector, because consumers wait there. Otherwise with the next records, which saves requests."""
    cluster.settings = cluster.settings if names_closest else {}
    await cluster.start_led(1, 2, 3)
    cluster.time.turn()
    waiting = SessionOf(cluster, 2)
    waiting.rest()
    waiting.not_looked_at()
    cluster.produce(1, "x", acks=1)
    waiting.fetch(max_wait_ms=60_000)
    assert values_of(waiting.answers[-1][0]) == ["x"]
    waiting.fetch(to=1, max_wait_ms=60_000)
    answers = len(waiting.answers)
    cluster.follower_fetch(1, 3, 1, epoch=0)
    cluster.time.turn()
    assert cluster.nodes[1].partition().high_watermark == 1
    told = waiting.answers[answers:]
    if not names_closest:
        assert told == []
        return
    assert [(data.high_watermark, data.records) for data in told[0]] == [(1, ())]
    waiting.fetch(max_wait_ms=60_000)
    cluster.time.turn()
    assert len(waiting.answers) == answers + 1  # told once
