"""Replication of one partition over two or three brokers in one process: REP-1..5, REP-8, LAI-2..4, INV-10..17."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import uuid
import weakref

import pytest

from broker.replication import offset_queries, replica_manager
from broker.replication.partition import Role
from broker.storage.timestamps import at_once
from protocol.errors import ErrorCode
from protocol.kafka.fetch_codec import FetchPartitionData
from protocol.rpc.messages import ControlResponse, LeaderAndIsrRequest, PartitionState, UpdateMetadataRequest
from protocol.topic_ids import topic_id_text, topic_id_uuid
from protocol.types import BrokerInfo, Endpoint, TopicPartition
from tests.support.refusals import refused
from tests.support.replica_cluster import LAG_S, TOPIC_ID, TP, Cluster, list_offset, values_of


def error_of(answer: list[FetchPartitionData]) -> ErrorCode:
    return ErrorCode(answer[0].error)


async def test_acks_all_waits_for_the_whole_isr(cluster: Cluster) -> None:
    """REP-1, REP-4: append, fetch, fetch again, acknowledge. Consumers do not see the record before that."""
    await cluster.start_led(1, 2, 3)
    await cluster.replicate(2, 3)
    answer = cluster.produce(1, "a", "b")
    assert answer == []
    assert values_of(cluster.consume(1, 0)[0]) == []
    await cluster.replicate(2, 3)  # they get the data
    await cluster.replicate(2)  # only one reports that it has it
    assert answer == []
    await cluster.replicate(3)
    assert [(r.error, r.base_offset) for r in answer] == [(ErrorCode.NONE, 0)]
    assert values_of(cluster.consume(1, 0)[0]) == ["a", "b"]
    assert cluster.nodes[2].records() == cluster.nodes[3].records() == ["a", "b"]
    await cluster.replicate(2)
    assert cluster.nodes[2].partition().high_watermark == 2
    assert cluster.nodes[1].manager.waiting() == (0, 0)


async def test_an_append_below_min_insync_appends_nothing(cluster: Cluster) -> None:
    """INV-17."""
    await cluster.start_led(1, 2, isr=(1,), overrides={"min.insync.replicas": "2"})
    assert cluster.produce(1, "a")[0].error == ErrorCode.NOT_ENOUGH_REPLICAS
    assert cluster.nodes[1].records() == []
    assert cluster.produce(1, "a", acks=1)[0].error == ErrorCode.NONE


async def test_appended_records_are_counted_every_second_and_when_a_role_ends(cluster: Cluster) -> None:
    """docs/METRICS.md: `messagesin` and `bytesin`. What was appended in an earlier role is not counted again."""
    leader = await cluster.start_led(1, 2, isr=(1,))
    stats = leader.partition().stats
    cluster.produce(1, "a", "b", acks=1)
    cluster.time.turn()
    assert stats.messages_in == 0
    await leader.manager.count_appended()
    await leader.manager.count_appended()
    assert (stats.messages_in, stats.bytes_in) == (2, leader.log().size)
    cluster.produce(1, "c", acks=1)
    cluster.lead(2, 1, (1, 2))
    await cluster.settle()
    cluster.produce(2, "d")
    await cluster.settle()
    await leader.manager.count_appended()
    assert stats.messages_in == 3


@pytest.mark.parametrize("known", [True, False], ids=["of a known producer", "of a new producer"])
async def test_a_batch_behind_a_refused_batch_is_refused_too(cluster: Cluster, known: bool) -> None:
    """INV-17, INV-20: the ISR is large enough again when the second batch in flight is checked."""
    await cluster.start(1, 2)
    settings = {"min.insync.replicas": "2"}
    cluster.lead(1, 0, (1, 2), overrides=settings)

    def produce(value: str, sequence: int) -> list[ErrorCode]:
        answer = cluster.produce(1, value, producer_id=7, producer_epoch=0, base_sequence=sequence)
        return [result.error for result in answer]

    first = 0
    if known:
        assert produce("before", 0) == []
        first = 1
    cluster.lead(1, 1, (1,), overrides=settings)
    assert produce("a", first) == [ErrorCode.NOT_ENOUGH_REPLICAS]
    cluster.lead(1, 2, (1, 2), overrides=settings)
    assert produce("b", first + 1) == [ErrorCode.NOT_ENOUGH_REPLICAS]
    assert produce("a", first) == produce("b", first + 1) == []
    assert produce("d", first + 3) == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
    assert cluster.nodes[1].records()[first:] == ["a", "b"]


async def test_a_batch_behind_one_that_came_before_the_leadership_is_refused_too(cluster: Cluster) -> None:
    """INV-20: a broker that has just started gets a batch before the LeaderAndIsr that makes it leader."""
    await cluster.start(1, 2)

    def produce(sequence: int) -> ErrorCode:
        return cluster.produce(1, "v", producer_id=7, producer_epoch=0, base_sequence=sequence)[0].error

    assert produce(0) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    cluster.lead(1, 0, (1,))
    assert produce(1) == ErrorCode.NOT_ENOUGH_REPLICAS
    assert [produce(0), produce(1)] == [ErrorCode.NONE, ErrorCode.NONE]


async def test_an_isr_that_shrinks_after_the_append_is_an_error(cluster: Cluster) -> None:
    """INV-17, REP-3, INV-10: the proposed ISR acknowledges nothing until ZooKeeper has it."""
    await cluster.start_led(1, 2, overrides={"min.insync.replicas": "2"})
    await cluster.replicate(2)
    answer = cluster.produce(1, "a", timeout_ms=60_000)
    cluster.pass_time(LAG_S + 1)
    await cluster.nodes[1].manager.check_lag()
    assert [p.state.isr for p in cluster.isr.proposals] == [(1,)]
    assert answer == []
    assert cluster.nodes[1].partition().high_watermark == 0
    assert cluster.isr.apply() == [(1,)]
    cluster.time.turn()
    assert answer[0].error == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


async def test_a_leader_knows_a_topic_id_as_soon_as_it_leads(cluster: Cluster) -> None:
    """Its followers fetch by that id before the controller's UpdateMetadata, which comes after LeaderAndIsr."""
    await cluster.start(1, 2)
    manager = cluster.nodes[1].manager
    topic_id = topic_id_uuid(TOPIC_ID)
    assert manager.partitions.topic_name(topic_id) is None
    cluster.lead(1, 0, (1, 2))
    cluster.tell_metadata()
    assert manager.partitions.topic_name(topic_id) == TP.topic, "other metadata came first"
    head = (9, 1, cluster.nodes[1].epoch)
    state = PartitionState(TP.topic, 0, 1, 1, 0, (1, 2), 0, (1, 2))
    update = UpdateMetadataRequest(*head, (state,), {TP.topic: TOPIC_ID}, cluster.brokers(), is_full=True)
    cluster.nodes[1].carry_out(update)
    assert manager.partitions.topic_name(topic_id) == TP.topic
    gone = dataclasses.replace(update, partitions=(), topic_ids={})
    cluster.nodes[1].carry_out(gone)
    assert manager.partitions.topic_name(topic_id) is None


@pytest.mark.usefixtures("a_pause_after_each_piece")
async def test_the_lag_check_of_many_partitions_pauses(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """What happens in a pause, such as a standstill, counts for the remaining partitions."""
    monkeypatch.setattr(replica_manager, "LOOKS_IN_A_SLICE", 1)

    await cluster.start(1, 2)
    for number in range(3):
        cluster.tp = TopicPartition(TP.topic, number)
        cluster.lead(1, 0, (1, 2))
    cluster.pass_time(LAG_S + 1)
    check = asyncio.create_task(cluster.nodes[1].manager.check_lag())
    await asyncio.sleep(0)
    assert [proposal.topic_partition for proposal in cluster.isr.proposals] == [TP]
    cluster.time.now += 3 * LAG_S
    await check
    assert len(cluster.isr.proposals) == 1


async def test_the_lag_check_skips_a_partition_only_while_nothing_is_to_be_done(cluster: Cluster) -> None:
    """REP-3: that is when every replica is in the ISR and at the log end, and the high watermark is there, too."""
    partition = (await cluster.start_led(1, 2)).partition()
    assert not partition.is_settled(), "the follower has not fetched yet"
    await cluster.replicate(2)
    assert partition.is_settled()
    assert cluster.nodes[2].partition().is_settled(), "a follower checks nobody"
    cluster.produce(1, "a", acks=1)
    cluster.time.turn()
    assert not partition.is_settled(), "the follower has not got the record"
    await cluster.replicate(2, rounds=2)
    assert partition.is_settled()
    partition.followers[2].log_end_offset = 0
    assert not partition.is_settled(), "the follower has lost records below the high watermark"
    partition.followers[2].log_end_offset = 1
    partition.high_watermark = 0
    assert not partition.is_settled(), "the high watermark may move"
    partition.high_watermark = 1
    for isr in ((1,), (1, 3), (1, 2, 3)):
        partition.isr = isr
        assert not partition.is_settled(), "a replica may join, or a broker without a replica must leave"


@pytest.mark.parametrize("brokers", [(1,), (1, 2), (1, 2, 3)])
async def test_the_lag_check_changes_no_partition_that_it_skips(cluster: Cluster, brokers: tuple[int, ...]) -> None:
    """However much time passes, also without any fetch."""
    partition = (await cluster.start_led(*brokers)).partition()
    cluster.produce(1, "a", acks=1)
    await cluster.replicate(rounds=2)
    cluster.pass_time(5 * LAG_S)
    assert partition.is_settled()
    assert not partition.shrink_if_lagging()
    partition.look_again()
    assert (partition.isr, partition.high_watermark, cluster.isr.proposals) == (brokers, 1, [])


@pytest.mark.usefixtures("a_pause_after_each_piece")
async def test_the_lag_check_of_many_partitions_that_it_skips_pauses(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_manager, "LOOKS_IN_A_SLICE", 2)
    monkeypatch.setattr(replica_manager, "SKIP_IN_LOOKS", 1)
    await cluster.start(1)
    for number in range(5):
        cluster.tp = TopicPartition(TP.topic, number)
        cluster.lead(1, 0, (1,))
    check = asyncio.create_task(cluster.nodes[1].manager.check_lag())
    await asyncio.sleep(0)
    assert not check.done()
    await check


async def test_an_answered_isr_proposal_leaves_no_garbage(pair: Cluster) -> None:
    """NET-4: the garbage collector would go through very many of them in one turn of the loop."""
    pair.pass_time(LAG_S + 1)
    await pair.nodes[1].manager.check_lag()
    (on_result,) = (weakref.ref(proposal.on_result) for proposal in pair.isr.proposals)
    gc.disable()
    try:
        assert pair.isr.apply() == [(1,)]
        assert on_result() is None
    finally:
        gc.enable()


async def test_a_conflicting_isr_write_stops_the_high_watermark_until_the_next_leader_and_isr(pair: Cluster) -> None:
    """BUG-2, BUG-6: the follower that was to leave the ISR may lead already."""
    answer = pair.produce(1, "a", timeout_ms=60_000)
    pair.pass_time(LAG_S + 1)
    await pair.nodes[1].manager.check_lag()
    pair.lead(2, 1, (2,), to=(2,))
    assert pair.isr.apply() == []
    await pair.replicate()
    pair.pass_time(LAG_S + 1)
    await pair.nodes[1].manager.check_lag()
    assert pair.isr.proposals == []
    assert answer == []
    pair.lead(2, 1, (2,), to=(1,))
    assert answer[0].error == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_the_timeout_answers_the_producer(pair: Cluster) -> None:
    answer = pair.produce(1, "a", timeout_ms=1500)
    pair.pass_time(1.6)
    assert answer[0].error == ErrorCode.REQUEST_TIMED_OUT


async def test_a_lost_leadership_answers_the_producers_and_never_acknowledges_them_later(pair: Cluster) -> None:
    """BUG-10: leadership away, the record cut, leadership back, another record at the same offset."""
    await pair.replicate(2)
    answer = pair.produce(1, "lost")
    generation = pair.nodes[1].partition().generation
    pair.lead(2, 1, (1, 2))
    assert answer[0].error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    await pair.replicate(1)
    assert pair.nodes[1].records() == []
    pair.lead(1, 2, (1, 2))
    kept = pair.produce(1, "kept")
    await pair.replicate(2, rounds=2)
    assert kept[0].base_offset == 0
    assert pair.nodes[2].records() == ["kept"]
    assert pair.nodes[1].partition().acknowledgement(1, generation) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert len(answer) == 1


async def test_a_producer_survives_a_new_epoch_of_the_same_leader(cluster: Cluster) -> None:
    await cluster.start_led(1, 2, 3)
    await cluster.replicate()
    answer = cluster.produce(1, "a")
    cluster.kill(3)
    cluster.lead(1, 1, (1, 2))
    assert answer == []
    await cluster.replicate(2, rounds=2)
    assert answer[0].error == ErrorCode.NONE


async def test_consumers_are_bounded_by_the_high_watermark(pair: Cluster) -> None:
    """REP-2, BAD-31."""
    await pair.replicate(2)
    pair.produce(1, "a")
    await pair.replicate(2, rounds=2)
    pair.produce(1, "b")
    assert values_of(pair.consume(1, 0)[0]) == ["a"]
    for offset in (1, 2):
        between = pair.consume(1, offset)[0]
        assert (between.error, values_of(between), between.high_watermark) == (ErrorCode.NONE, [], 1)
    for offset in (3, -1):
        assert error_of(pair.consume(1, offset)) is ErrorCode.OFFSET_OUT_OF_RANGE


async def test_a_parked_consumer_waits_for_min_bytes_and_gets_all_records(cluster: Cluster) -> None:
    await cluster.start_led(1)
    answer = cluster.consume(1, 0, max_wait_ms=1000, min_bytes=150)
    for value in ("a", "b"):
        cluster.produce(1, value)
        cluster.time.turn()
        assert answer == []
    cluster.produce(1, "c")
    cluster.time.turn()
    assert values_of(answer[0]) == ["a", "b", "c"]
    late = cluster.consume(1, 2, max_wait_ms=1000, min_bytes=1000)
    cluster.pass_time(1.1)
    assert values_of(late[0]) == ["c"]


async def test_parked_followers_are_answered_once_per_turn_with_all_new_records(pair: Cluster) -> None:
    answer = pair.follower_fetch(1, 2, 0, epoch=0, max_wait_ms=500)
    pair.produce(1, "a")
    pair.produce(1, "b")
    assert answer == []
    pair.time.turn()
    assert [values_of(data) for data in answer] == [["a", "b"]]


async def test_an_epoch_question_of_a_follower_answers_its_parked_fetch(pair: Cluster) -> None:
    answer = pair.follower_fetch(1, 2, 0, epoch=0, max_wait_ms=500)
    pair.nodes[1].manager.offset_for_leader_epoch(TP, 0, 0, 2)
    assert len(answer) == 1


@pytest.mark.parametrize(
    ("epoch", "error"), [(0, ErrorCode.FENCED_LEADER_EPOCH), (2, ErrorCode.UNKNOWN_LEADER_EPOCH), (1, ErrorCode.NONE)]
)
async def test_fencing_by_leader_epoch(cluster: Cluster, epoch: int, error: ErrorCode) -> None:
    """REP-8, BUG-3."""
    await cluster.start(1, 2)
    cluster.lead(1, 1, (1, 2))
    assert error_of(cluster.consume(1, 0, epoch=epoch)) is error
    assert error_of(cluster.follower_fetch(1, 2, 0, epoch=epoch)) is error
    manager = cluster.nodes[1].manager
    for ask in (
        lambda: list_offset(manager, TP, -2, epoch),
        lambda: manager.offset_for_leader_epoch(TP, epoch, 1),
    ):
        if error is ErrorCode.NONE:
            ask()
        else:
            with refused(error):
                ask()


async def test_only_a_partition_that_does_not_exist_has_an_empty_list_of_aborted_transactions(cluster: Cluster) -> None:
    """As in Kafka: other errors have null."""
    await cluster.start(1, 2)
    (unknown,) = cluster.consume(1, 0)
    cluster.lead(1, 1, (1, 2))
    (fenced,) = cluster.consume(1, 0, epoch=0)
    assert [(row.error, row.aborted_transactions) for row in (unknown, fenced)] == [
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ()),
        (ErrorCode.FENCED_LEADER_EPOCH, None),
    ]


async def test_a_fetch_in_another_epoch_is_not_recorded(cluster: Cluster) -> None:
    """INV-12: nor a fetch without an epoch, of an earlier life of the broker, or of a broker that is not a replica."""
    await cluster.start(1, 2, 3)
    cluster.lead(1, 1, (1, 2), replicas=(1, 2))
    life = cluster.nodes[2].epoch
    answer = cluster.produce(1, "a")
    for epoch, follower, its_life in ((0, 2, life), (2, 2, life), (-1, 2, life), (1, 2, life - 1), (1, 3, 99)):
        refused = cluster.follower_fetch(1, follower, 1, epoch=epoch, life=its_life)
        assert error_of(refused) is not ErrorCode.NONE
        assert answer == []
    cluster.follower_fetch(1, 2, 1, epoch=1)
    assert answer[0].error == ErrorCode.NONE


async def test_errors_for_unknown_partitions_and_for_partitions_led_elsewhere(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    assert cluster.produce(1, "a")[0].error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert error_of(cluster.consume(1, 0)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    cluster.lead(1, 3, (1, 2))
    refused = cluster.produce(2, "a")[0]
    assert (refused.error, refused.leader_id, refused.leader_epoch) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 1, 3)
    data = cluster.consume(2, 0)[0]
    assert (data.error, data.current_leader) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, (1, 3))


async def test_a_broker_that_stops_does_not_follow_again(pair: Cluster) -> None:
    """LAI-4: it would join the ISR that it has just left, and acks=all would wait for it."""
    pair.nodes[2].manager.begin_stop()
    assert [len(fetcher) for fetcher in pair.nodes[2].manager.fetchers()] == [1], "until StopReplica"
    pair.lead(1, 1, (1,))
    assert pair.nodes[2].manager.fetchers() == ()
    assert pair.nodes[2].partition().role is Role.FOLLOWER


async def test_leader_and_isr_is_checked_per_partition(cluster: Cluster) -> None:
    """LAI-1, LAI-2, LAI-3, INV-8."""
    await cluster.start(1, 2)
    cluster.controller_epoch = 5
    assert cluster.lead(1, 3, (1, 2))[1].partitions == ()
    for epoch in (3, 2):
        (refused,) = cluster.lead(2, epoch, (1, 2), to=(1,))[1].partitions
        assert refused.error == ErrorCode.STALE_CONTROLLER_EPOCH
    (refused,) = cluster.lead(2, 9, (2,), replicas=(2,), to=(1,))[1].partitions
    assert refused.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    cluster.controller_epoch = 4
    answer = cluster.lead(2, 9, (1, 2), to=(1,))[1]
    assert (answer.error, answer.partitions) == (ErrorCode.STALE_CONTROLLER_EPOCH, ())
    assert cluster.nodes[1].partition().role is Role.LEADER
    assert cluster.nodes[1].partition().leader_epoch == 3


async def test_a_refused_leader_and_isr_changes_nothing(cluster: Cluster) -> None:
    """LAI-1, LAI-2, LAI-3: not even a topic's id or a leader's address is learned from it."""
    other_id = uuid.UUID(int=78)
    await cluster.start(1, 2)
    cluster.controller_epoch = 5
    cluster.lead(1, 3, (1, 2))
    partitions, leaders = cluster.nodes[1].manager.partitions, cluster.nodes[1].manager._leaders
    address = leaders.of(2)
    assert partitions.topic_name(topic_id_uuid(TOPIC_ID)) == TP.topic

    def refused(topic: str, controller_epoch: int, replicas: tuple[int, ...]) -> ControlResponse:
        state = PartitionState(topic, 0, controller_epoch, 2, 9, (2,), 0, replicas, is_new=True)
        moved = BrokerInfo(2, cluster.nodes[2].epoch, (Endpoint("PLAINTEXT", "elsewhere", 1),))
        ids = {topic: topic_id_text(other_id)}
        request = LeaderAndIsrRequest(9, controller_epoch, cluster.nodes[1].epoch, (state,), ids, (moved,))
        return cluster.nodes[1].carry_out(request)

    assert refused("deposed", 4, (1, 2)).error is ErrorCode.STALE_CONTROLLER_EPOCH
    assert leaders.of(2) == address
    assert refused("elsewhere", 5, (2,)).partitions[0].error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert partitions.topic_name(other_id) is None
    assert [partition.tp for partition in partitions] == [TP]


async def test_list_offsets(cluster: Cluster) -> None:
    """INV-16: the HW for consumers, the LEO for replicas; OFFSET_NOT_AVAILABLE while a new leader's HW lags."""
    await cluster.start_led(1, 2, 3)
    await cluster.replicate()
    cluster.produce(1, "a")
    await cluster.replicate(2, 3)
    await cluster.replicate(2, 3)
    cluster.produce(1, "b")
    manager = cluster.nodes[1].manager
    assert list_offset(manager, TP, -1) == (-1, 1, 0)
    assert list_offset(manager, TP, -1, replica_id=2) == (-1, 2, 0)
    for ask in (
        lambda: list_offset(manager, TP, -1, replica_id=4),
        lambda: manager.offset_for_leader_epoch(TP, 0, 0, 4),
    ):
        with refused(ErrorCode.NOT_LEADER_OR_FOLLOWER):
            ask()
    assert list_offset(manager, TP, -2) == (-1, 0, 0)
    assert list_offset(manager, TP, 1000) == (1000, 0, 0)
    assert list_offset(manager, TP, 1001) == (-1, -1, -1)
    await cluster.replicate(2)
    # 2 leads now, with both records but a HW of 1.
    cluster.lead(2, 1, (2, 3), to=(2,))
    with refused(ErrorCode.OFFSET_NOT_AVAILABLE):
        list_offset(cluster.nodes[2].manager, TP, -1)


async def test_offsets_of_segments(cluster: Cluster) -> None:
    """ListOffsets v0, as Kafka answers it: the log end and where segments start, newest first, below the HW for consumers."""
    await cluster.start_led(1, 2, overrides={"segment.bytes": "250"})
    for value in "abcd":
        cluster.produce(1, value * 100)
    await cluster.replicate(2, rounds=6)
    cluster.produce(1, "e" * 100)
    node = cluster.nodes[1]
    starts = [segment.base_offset for segment in node.log().segments]
    assert starts == [0, 1, 2, 3, 4]

    def found(timestamp: int, count: int = 100, replica_id: int = -1, now_ms: int = 0) -> list[int]:
        return at_once(node.manager.offsets.offsets_before(TP, timestamp, count, replica_id, now_ms))

    assert found(-1) == [4, 4, 3, 2, 1, 0], "the HW in the place of the log end, which is 5"
    assert found(-1, 1) == [4]
    assert found(-1, 3, replica_id=2) == [5, 4, 3]
    assert found(-1, 0) == []
    assert found(-2) == [0]
    written_ms = node.log().segments[2].written_ms()
    assert found(written_ms - 1_000_000, now_ms=written_ms) == []
    assert found(2**62, 2, now_ms=written_ms) == [4, 4]
    node.log().increment_log_start(3)
    assert found(-2) == [3]
    assert found(-1)[:4] == [4, 4, 3, 3]
    with refused(ErrorCode.NOT_LEADER_OR_FOLLOWER):
        at_once(cluster.nodes[2].manager.offsets.offsets_before(TP, -1, 1, -1, 0))


async def test_offsets_of_segments_that_are_removed_meanwhile(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their files may be gone, which is no failure of the disk."""
    monkeypatch.setattr(offset_queries, "SEGMENTS_IN_A_STEP", 2)
    node = await cluster.start_led(1, overrides={"segment.bytes": "250"})
    for value in "abcdef":
        cluster.produce(1, value * 100)
    steps = node.manager.offsets.offsets_before(TP, 0, 100, -1, 1)
    next(steps)
    node.log().truncate_fully_and_start_at(9)
    assert at_once(steps) == []
    assert node.partition().role is Role.LEADER


async def test_after_a_lost_session_the_broker_stops_leading_and_accepts_the_same_epoch_again(pair: Cluster) -> None:
    """STA-4."""
    answer = pair.produce(1, "a")
    manager = pair.nodes[1].manager
    manager.step_down_all("test")
    assert answer[0].error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert pair.produce(1, "b")[0].error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert manager.fenced_broker_epoch == pair.nodes[1].epoch
    assert pair.lead(1, 0, (1, 2), to=(1,))[1].partitions == ()
    assert pair.produce(1, "c", acks=1)[0].base_offset == 1
    (refused,) = pair.lead(1, 0, (1, 2), to=(1,))[1].partitions
    assert refused.error == ErrorCode.STALE_CONTROLLER_EPOCH


async def test_after_standing_still_nothing_is_acknowledged_before_the_session_is_confirmed(cluster: Cluster) -> None:
    """FLT-6: not even by callbacks that run before any timer. FLT-5: the ISR does not shrink."""

    class Session:
        session_id = 0

        async def heartbeat(self) -> None:
            return None

    node = await cluster.start_led(1, 2)
    node.lease.tick(0)
    waiting = cluster.produce(1, "a", timeout_ms=60_000)
    cluster.time.now += 3 * LAG_S
    assert error_of(cluster.follower_fetch(1, 2, 1, epoch=0)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert cluster.produce(1, "b", acks=1)[0].error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    await node.manager.check_lag()
    assert cluster.isr.proposals == []
    assert waiting == []
    assert await node.lease.confirm(Session())
    await node.manager.check_lag()
    assert cluster.isr.proposals == []
    cluster.follower_fetch(1, 2, 1, epoch=0)
    assert waiting[0].error == ErrorCode.NONE
    assert node.records() == ["a"]
