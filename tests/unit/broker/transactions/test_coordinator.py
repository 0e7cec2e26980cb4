"""The coordinator and its markers, also when brokers die and coordinators move: TXN-1 to TXN-5, LAI-5, BUG-12, BUG-25."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.transactions import coordinator as coordinator_module
from broker.transactions.coordinator import NEXT_PARTITIONS_MAX, InitializedProducer, TransactionFilter
from broker.transactions.states import TransactionState
from broker.transactions.transaction import ProducerIdAndEpoch
from protocol.errors import ErrorCode
from protocol.kafka.record_batch import parse_header
from protocol.types import TopicPartition
from tests.support.transaction_cluster import ID, STATE, T0, T1, T2, TIMEOUT_MS, TransactionCluster

EVERYTHING = TransactionFilter(frozenset(), False, frozenset(), -1)


@pytest.fixture
def cluster(tmp_path: Path, fetchers_are_driven_by_hand: None) -> Iterator[TransactionCluster]:
    """No broker runs yet."""
    cluster = TransactionCluster(tmp_path, {})
    yield cluster
    cluster.close()


async def serving(cluster: TransactionCluster, *brokers: int) -> None:
    """The first one coordinates."""
    await cluster.start(*brokers)
    await cluster.serve(brokers[0], 0, brokers)


async def ongoing(cluster: TransactionCluster, *partitions: TopicPartition) -> ProducerIdAndEpoch:
    producer = await cluster.new_producer(1)
    assert await cluster.add(1, producer, *(partitions or (T0, T1))) is ErrorCode.NONE
    return producer


async def test_a_commit_writes_a_marker_to_each_partition(cluster: TransactionCluster) -> None:
    """TXN-1, TXN-3. Everything is answered when it is replicated, and not before."""
    await serving(cluster, 1, 2, 3)
    initialized = cluster.begin_init(1)
    await cluster.asking
    assert initialized == []
    await cluster.until(lambda: bool(initialized))
    producer = initialized[0].producer
    assert producer == (1000, 0)
    added = cluster.begin_add(1, producer, T0, T1)
    assert added == []
    assert cluster.begin_add(1, producer, T2) == [ErrorCode.CONCURRENT_TRANSACTIONS]
    await cluster.until(lambda: bool(added))
    assert cluster.coordinators[1].verify(ID, producer, (T0, T2)) == {
        T0: ErrorCode.NONE,
        T2: ErrorCode.TRANSACTION_ABORTABLE,
    }
    ended = cluster.begin_end(1, producer)
    assert (ended, cluster.markers) == ([], [])
    await cluster.until(lambda: cluster.state(1) == "CompleteCommit")
    assert ended == [ErrorCode.NONE]
    assert sorted(cluster.markers) == [(1, "t-0", 1000, 0, True, 0), (2, "t-1", 1000, 0, True, 0)]
    assert await cluster.end(1, producer) is ErrorCode.NONE, "a repetition"
    assert await cluster.new_producer(1) == (1000, 1)
    assert await cluster.end(1, producer) is ErrorCode.PRODUCER_FENCED


async def test_the_next_transaction_begins_when_the_last_one_is_complete(
    cluster: TransactionCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its producer need not ask again: the request waits for the last marker and for CompleteCommit."""
    monkeypatch.setattr(coordinator_module, "NEXT_WAIT_S", 60.0)  # time passes in large steps here
    await serving(cluster, 1, 2, 3)
    producer = await ongoing(cluster, T0, T1)
    cluster.unreachable = {2}
    assert await cluster.end(1, producer) is ErrorCode.NONE
    many = [TopicPartition("t", number) for number in range(NEXT_PARTITIONS_MAX + 1)]
    assert cluster.begin_add(1, producer, *many) == [ErrorCode.CONCURRENT_TRANSACTIONS], "too many to be kept"
    stale = ProducerIdAndEpoch(producer.producer_id, producer.epoch - 1)
    assert cluster.begin_add(1, stale, T2) == [ErrorCode.PRODUCER_FENCED]
    waiting = cluster.begin_add(1, producer, T2)
    await cluster.go_on()
    assert (waiting, cluster.state(1)) == ([], "PrepareCommit")
    state_log = cluster.nodes[1].log(STATE)
    end = state_log.log_end_offset
    cluster.unreachable = set()
    await cluster.until(lambda: bool(waiting))
    assert (waiting, cluster.state(1)) == ([ErrorCode.NONE], "Ongoing")
    (batch,) = state_log.read(end, 10_000, state_log.log_end_offset, True).records
    assert parse_header(batch).last_offset_delta == 1, "CompleteCommit and Ongoing need one replication"
    await cluster.serve(2, 1, (1, 2, 3))
    assert (cluster.state(2), cluster.coordinators[2].describe(ID).partitions) == ("Ongoing", {T2})
    assert await cluster.end(2, producer) is ErrorCode.NONE
    await cluster.until(lambda: cluster.state(2) == "CompleteCommit")
    assert sorted(marker[1] for marker in cluster.markers) == ["t-0", "t-1", "t-2"]
    cluster.pass_time(61)
    assert waiting == [ErrorCode.NONE], "answered once"


async def test_a_coordinator_that_is_deposed_refuses_who_waits(cluster: TransactionCluster) -> None:
    await serving(cluster, 1, 2)
    producer = await ongoing(cluster, T2)
    assert await cluster.end(1, producer) is ErrorCode.NONE
    waiting = cluster.begin_add(1, producer, T0)
    assert waiting == []
    cluster.lead(2, 1, (1, 2), replicas=(1, 2), is_new=False)
    assert waiting == [ErrorCode.NOT_COORDINATOR]


async def test_all_ids_of_a_lost_partition_are_given_up_at_once(
    cluster: TransactionCluster, one_step_in_a_turn: None
) -> None:
    """NET-4, LAI-5: their removal takes many turns of the loop. It does not touch those of the partition that is gained again."""
    await serving(cluster, 1)
    coordinator = cluster.coordinators[1]
    producer = await ongoing(cluster, T0)
    answers: list[InitializedProducer] = []
    for number in range(20):
        await coordinator.init_producer_id(f"{number}", TIMEOUT_MS, None, answers.append)
    assert {answer.error for answer in answers} == {ErrorCode.NONE}
    coordinator._owned._lost(STATE.partition)
    assert cluster.begin_add(1, producer, T1) == [ErrorCode.NOT_COORDINATOR]
    assert (list(coordinator.transactions), len(coordinator.transactions)) == ([], 21)
    cluster.time.single_turn()
    assert len(coordinator.transactions) == 20
    coordinator.leadership_changed(STATE)
    while coordinator.check(ID) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        await asyncio.sleep(0)
        cluster.time.single_turn()
    cluster.time.turn()
    assert (len(coordinator.transactions), cluster.state(1)) == (21, "Ongoing")
    assert coordinator.transactions.bytes == sum(held.counted_bytes for held in coordinator.transactions) > 0
    assert await cluster.end(1, producer) is ErrorCode.NONE
    await cluster.until(lambda: cluster.state(1) == "CompleteCommit")


async def test_a_new_producer_aborts_the_transaction_of_a_zombie(cluster: TransactionCluster) -> None:
    """TXN-2."""
    await serving(cluster, 1, 2, 3)
    zombie = await ongoing(cluster, T0)
    assert (await cluster.init(1)).error is ErrorCode.CONCURRENT_TRANSACTIONS
    await cluster.until(lambda: cluster.state(1) == "CompleteAbort")
    assert cluster.markers == [(1, "t-0", 1000, 1, False, 0)]
    assert await cluster.new_producer(1) == (1000, 2)
    assert await cluster.add(1, zombie, T0) is ErrorCode.PRODUCER_FENCED
    assert await cluster.end(1, zombie) is ErrorCode.PRODUCER_FENCED
    assert (await cluster.init(1, zombie)).error is ErrorCode.PRODUCER_FENCED


async def test_a_transaction_that_takes_too_long_is_aborted(cluster: TransactionCluster) -> None:
    """TXN-5."""
    await serving(cluster, 1, 2, 3)
    producer = await cluster.new_producer(1, timeout_ms=4_000)
    await cluster.add(1, producer, T0)
    cluster.pass_time(12)
    await cluster.until(lambda: cluster.state(1) == "CompleteAbort")
    assert [marker[4] for marker in cluster.markers] == [False]
    assert await cluster.end(1, producer) is ErrorCode.PRODUCER_FENCED


async def test_unused_ids_expire(cluster: TransactionCluster) -> None:
    """TXN-5. The next coordinator does not know them either."""
    cluster.settings |= {
        "transactional_id_expiration_ms": 5_000,
        "transaction_remove_expired_transaction_cleanup_interval_ms": 10_000,
    }
    await serving(cluster, 1, 2)
    producer = await cluster.new_producer(1)
    cluster.pass_time(11)
    await cluster.until(lambda: cluster.coordinators[1].transactions.bytes == 0)
    assert cluster.state(1) == "TRANSACTIONAL_ID_NOT_FOUND"
    await cluster.serve(2, 1, (1, 2))
    assert cluster.state(2) == "TRANSACTIONAL_ID_NOT_FOUND"
    assert await cluster.new_producer(2, expected=producer) == (2000, 0)


@pytest.mark.parametrize("is_commit", [True, False])
async def test_the_next_coordinator_ends_what_was_decided(cluster: TransactionCluster, is_commit: bool) -> None:
    """TXN-1, TXN-3: the coordinator dies after the answer, before any marker."""
    await serving(cluster, 1, 2, 3)
    producer = await ongoing(cluster, T1, T2)
    cluster.unreachable = {1, 2, 3}
    assert await cluster.end(1, producer, is_commit=is_commit) is ErrorCode.NONE
    assert cluster.coordinators[1].describe(ID).partitions == {T1, T2}
    cluster.kill(1)
    cluster.unreachable = set()
    await cluster.serve(2, 1, (2, 3))
    await cluster.until(lambda: cluster.state(2).startswith("Complete"))
    assert cluster.state(2) == ("CompleteCommit" if is_commit else "CompleteAbort")
    assert sorted(cluster.markers) == [(2, "t-1", 1000, 0, is_commit, 1), (3, "t-2", 1000, 0, is_commit, 1)]
    assert await cluster.add(2, producer, T1) is ErrorCode.NONE


async def test_what_was_not_replicated_is_not_decided(cluster: TransactionCluster) -> None:
    """The coordinator dies with the decision in its own log only: the transaction is still open at the next one."""
    await serving(cluster, 1, 2, 3)
    producer = await ongoing(cluster, T1)
    ended = cluster.begin_end(1, producer)
    cluster.kill(1)
    await cluster.serve(2, 1, (2, 3))
    await cluster.go_on()
    assert (ended, cluster.markers, cluster.state(2)) == ([], [], "Ongoing")
    assert await cluster.end(2, producer) is ErrorCode.NONE
    await cluster.until(lambda: cluster.state(2) == "CompleteCommit")


async def test_a_deposed_coordinator_does_nothing_more(cluster: TransactionCluster) -> None:
    """BUG-12: answers and markers that come later find the id given up, also if the partition comes back."""
    await serving(cluster, 1, 2, 3)
    producer = await ongoing(cluster, T1)
    waiting = cluster.begin_end(1, producer)
    await cluster.serve(2, 1, (1, 2, 3))
    assert waiting == [ErrorCode.NOT_COORDINATOR]
    assert await cluster.add(1, producer, T1) is ErrorCode.NOT_COORDINATOR
    assert cluster.coordinators[1].verify(ID, producer, (T1,)) == {T1: ErrorCode.NOT_COORDINATOR}
    assert len(cluster.coordinators[1].transactions) == 0
    cluster.unreachable = {2}
    assert await cluster.end(2, producer, is_commit=False) is ErrorCode.NONE
    await cluster.serve(1, 2, (1, 2, 3))
    await cluster.go_on()
    cluster.unreachable = set()
    await cluster.until(lambda: cluster.state(1) == "CompleteAbort")
    assert cluster.markers == [(2, "t-1", 1000, 0, False, 2)]


async def test_a_leader_in_a_new_epoch_keeps_its_transactions(cluster: TransactionCluster) -> None:
    """Its markers have the new epoch."""
    await serving(cluster, 1, 2)
    producer = await ongoing(cluster, T0)
    cluster.lead(1, 4, (1, 2), replicas=(1, 2), is_new=False)
    assert await cluster.end(1, producer) is ErrorCode.NONE
    await cluster.until(lambda: cluster.state(1) == "CompleteCommit")
    assert cluster.markers == [(1, "t-0", 1000, 0, True, 4)]


async def test_nothing_is_answered_while_it_loads(cluster: TransactionCluster) -> None:
    """BUG-25."""
    await serving(cluster, 1, 2)
    producer = await ongoing(cluster)
    cluster.lead(2, 1, (1, 2), replicas=(1, 2), is_new=False)
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert cluster.begin_add(2, producer, T0) == [loading]
    assert cluster.begin_end(2, producer) == [loading]
    assert cluster.coordinators[2].verify(ID, producer, (T0,)) == {T0: loading}
    assert cluster.coordinators[2].describe(ID).error is loading
    assert cluster.coordinators[2].list_transactions(EVERYTHING)[0] is loading
    await cluster.serve(2, 1, (1, 2))
    assert cluster.state(2) == "Ongoing"


@pytest.mark.parametrize(
    "error",
    ["NOT_LEADER_OR_FOLLOWER", "UNKNOWN_TOPIC_OR_PARTITION", "NOT_ENOUGH_REPLICAS_AFTER_APPEND", "REQUEST_TIMED_OUT"],
)
async def test_markers_are_sent_again_until_they_are_written(cluster: TransactionCluster, error: str) -> None:
    """TXN-3. The leader moves meanwhile."""
    await serving(cluster, 1, 2, 3)
    producer = await ongoing(cluster, T0, T1)
    cluster.marker_error = lambda broker, tp: ErrorCode[error] if broker == 2 else ErrorCode.NONE
    assert await cluster.end(1, producer) is ErrorCode.NONE
    await cluster.go_on()
    assert cluster.state(1) == "PrepareCommit"
    assert cluster.coordinators[1].describe(ID).partitions == {T1}
    waiting = cluster.begin_add(1, producer, T0)
    assert cluster.begin_add(1, producer, T0) == [ErrorCode.CONCURRENT_TRANSACTIONS], "only one request waits"
    assert waiting == []
    cluster.pass_time(1)
    assert waiting == [ErrorCode.CONCURRENT_TRANSACTIONS]
    cluster.leaders[T1] = 3
    cluster.tell_metadata()
    await cluster.until(lambda: cluster.state(1) == "CompleteCommit")
    assert [marker[:2] for marker in cluster.markers] == [(1, "t-0"), (3, "t-1")]


@pytest.mark.parametrize("assigned", [[], [0]])
@pytest.mark.parametrize("coordinator", [1, 2])
async def test_a_decided_transaction_ends_without_the_partitions_that_are_gone(
    cluster: TransactionCluster, assigned: list[int], coordinator: int
) -> None:
    """The topic is deleted, or made again with one partition, which gets its marker. The next coordinator ends it as well."""
    await serving(cluster, 1, 2)
    producer = await ongoing(cluster, T0, T1, T2)
    cluster.marker_error = lambda broker, tp: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await cluster.end(1, producer) is ErrorCode.NONE
    cluster.delete(*({T0, T1, T2} - {TopicPartition("t", number) for number in assigned}))
    if coordinator == 2:
        await cluster.serve(2, 1, (1, 2))
    await cluster.go_on()
    cluster.marker_error = lambda broker, tp: ErrorCode.NONE
    await cluster.go_on()
    assert cluster.state(coordinator) == "PrepareCommit", "the metadata alone is no proof"
    cluster.assigned["t"] = [0, 1, 2]
    await cluster.go_on()
    assert cluster.coordinators[coordinator].describe(ID).partitions == {T0, T1, T2} - {T0 if assigned else None}
    cluster.assigned["t"] = assigned
    await cluster.until(lambda: cluster.state(coordinator) == "CompleteCommit")
    assert [marker[:2] for marker in cluster.markers] == [(1, f"t-{number}") for number in assigned]
    assert await cluster.new_producer(coordinator) == (1000, 1)


async def test_markers_wait_for_a_leader(cluster: TransactionCluster) -> None:
    """Whatever ZooKeeper says: the metadata has the partition, and a broker may have its log."""
    await serving(cluster, 1, 2)
    producer = await ongoing(cluster, T0, T2)
    cluster.assigned["t"] = []
    assert await cluster.end(1, producer) is ErrorCode.NONE
    await cluster.go_on()
    assert cluster.coordinators[1].describe(ID).partitions == {T2}, "broker 3 does not live"
    cluster.leaders[T2] = 2
    cluster.tell_metadata()
    await cluster.until(lambda: cluster.state(1) == "CompleteCommit")
    assert [marker[:2] for marker in cluster.markers] == [(1, "t-0"), (2, "t-2")]


async def test_a_successor_fences_markers(cluster: TransactionCluster) -> None:
    await serving(cluster, 1, 2)
    producer = await ongoing(cluster, T0)
    cluster.marker_error = lambda broker, tp: ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert await cluster.end(1, producer) is ErrorCode.NONE
    await cluster.go_on()
    assert (cluster.state(1), cluster.coordinators[1].waiting_markers) == ("PrepareCommit", 0)


async def test_the_completion_is_recorded_when_replicas_are_back(
    cluster: TransactionCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All markers are written; the record fails for want of replicas, and is repeated."""
    monkeypatch.setattr(coordinator_module, "NEXT_WAIT_S", 60.0)  # time passes in large steps here
    await cluster.start(1, 2)
    await cluster.serve(1, 0, (1, 2), overrides={"min.insync.replicas": "2"})
    producer = await ongoing(cluster, T0)
    cluster.unreachable = {1}
    assert await cluster.end(1, producer) is ErrorCode.NONE
    cluster.lead(1, 1, (1,), replicas=(1, 2), is_new=False, overrides={"min.insync.replicas": "2"})
    cluster.unreachable = set()
    cluster.cuts = {(2, 1)}
    waiting = cluster.begin_add(1, producer, T1)
    for _ in range(3):
        cluster.pass_time(1)
        await cluster.go_on()
    assert (cluster.state(1), len(cluster.markers)) == ("PrepareCommit", 1)
    assert waiting == [ErrorCode.COORDINATOR_NOT_AVAILABLE], "its start failed with the completion"
    assert (await cluster.init(1)).error is ErrorCode.CONCURRENT_TRANSACTIONS
    cluster.cuts = set()
    await cluster.until(lambda: cluster.state(1) == "CompleteCommit")
    assert len(cluster.markers) == 1


async def test_requests_that_are_refused(cluster: TransactionCluster) -> None:
    cluster.settings |= {"transaction_max_timeout_ms": 5_000}
    await serving(cluster, 1)
    for timeout_ms in (0, -1, 5_001):
        assert (await cluster.init(1, timeout_ms=timeout_ms)).error is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    producer = ProducerIdAndEpoch(5, 0)
    assert await cluster.end(1, producer) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    coordinator = cluster.coordinators[1]
    for transactional_id in ("", "x" * 32_768):
        assert coordinator.check(transactional_id) is ErrorCode.INVALID_REQUEST
    assert coordinator.describe("other").error is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


async def test_memory_is_limited(cluster: TransactionCluster) -> None:
    """What exists can end."""
    cluster.settings |= {"transaction_memory_max_bytes": 2_000}
    await serving(cluster, 1)
    producer = await ongoing(cluster, T0)
    assert await cluster.add(1, producer, *(TopicPartition("t", n) for n in range(9))) is (
        ErrorCode.COORDINATOR_NOT_AVAILABLE
    )
    answers: list[ErrorCode] = []
    await cluster.coordinators[1].init_producer_id("b", TIMEOUT_MS, None, lambda a: answers.append(a.error))
    assert answers == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert await cluster.end(1, producer) is ErrorCode.NONE
    await cluster.until(lambda: cluster.state(1) == "CompleteCommit")


async def test_transactions_are_listed_by_state_id_and_duration(cluster: TransactionCluster) -> None:
    await serving(cluster, 1)
    await ongoing(cluster, T0)
    coordinator = cluster.coordinators[1]
    cluster.pass_time(2)

    def listed(wanted: TransactionFilter) -> list[str]:
        error, rows = coordinator.list_transactions(wanted)
        assert error is ErrorCode.NONE
        return [row.state for row in rows if row is not None]

    assert listed(EVERYTHING) == ["Ongoing"]
    assert listed(TransactionFilter(frozenset((TransactionState.EMPTY,)), True, frozenset(), -1)) == []
    assert listed(TransactionFilter(frozenset(), True, frozenset(), -1)) == [], "only unknown states"
    assert listed(TransactionFilter(frozenset(), False, frozenset((1000,)), 1_000)) == ["Ongoing"]
    assert listed(TransactionFilter(frozenset(), False, frozenset((1001,)), -1)) == []
    assert listed(TransactionFilter(frozenset(), False, frozenset(), 60_000)) == []


async def test_closing_answers_who_waits(cluster: TransactionCluster) -> None:
    await serving(cluster, 1, 2)
    producer = await ongoing(cluster, T0)
    await cluster.coordinators[1].close()
    assert await cluster.add(1, producer, T0) is ErrorCode.NOT_COORDINATOR
    assert cluster.coordinators[1].list_transactions(EVERYTHING)[0] is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert cluster.nodes[1].partition(STATE).log is not None
