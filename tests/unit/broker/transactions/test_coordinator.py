"""The coordinator and its markers, also when brokers die and coordinators move: TXN-1 to TXN-5, LAI-5, BUG-12, BUG-25."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.transactions import coordinator as coordinator_module
from broker.transactions.coordinator import NEXT_PARTITIONS_MAX, ProducerAnswer, TransactionFilter
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


@pytest.fixture
def pair(cluster: TransactionCluster, runner: asyncio.Runner) -> TransactionCluster:
    runner.run(serving(cluster, 1, 2))
    return cluster


@pytest.fixture
def trio(cluster: TransactionCluster, runner: asyncio.Runner) -> TransactionCluster:
    runner.run(serving(cluster, 1, 2, 3))
    return cluster


async def ongoing(cluster: TransactionCluster, *partitions: TopicPartition) -> ProducerIdAndEpoch:
    producer = await cluster.new_producer(1)
    assert await cluster.add(1, producer, *(partitions or (T0, T1))) is ErrorCode.NONE
    return producer


async def test_a_commit_writes_a_marker_to_each_partition(trio: TransactionCluster) -> None:
    """TXN-1, TXN-3. Everything is answered when it is replicated, and not before."""
    initialized = trio.begin_init(1)
    await trio.asking
    assert initialized == []
    await trio.until(lambda: bool(initialized))
    producer = initialized[0].producer
    assert producer == (1000, 0)
    added = trio.begin_add(1, producer, T0, T1)
    assert added == []
    assert trio.begin_add(1, producer, T2) == [ErrorCode.CONCURRENT_TRANSACTIONS]
    await trio.until(lambda: bool(added))
    assert trio.coordinators[1].verify(ID, producer, (T0, T2)) == {
        T0: ErrorCode.NONE,
        T2: ErrorCode.TRANSACTION_ABORTABLE,
    }
    ended = trio.begin_end(1, producer)
    assert (ended, trio.markers) == ([], [])
    await trio.until(lambda: trio.state(1) == "CompleteCommit")
    assert ended == [ErrorCode.NONE]
    assert sorted(trio.markers) == [(1, "t-0", 1000, 0, True, 0), (2, "t-1", 1000, 0, True, 0)]
    assert await trio.end(1, producer) is ErrorCode.NONE, "a repetition"
    assert await trio.new_producer(1) == (1000, 1)
    assert await trio.end(1, producer) is ErrorCode.PRODUCER_FENCED


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


async def test_a_coordinator_that_is_deposed_refuses_who_waits(pair: TransactionCluster) -> None:
    producer = await ongoing(pair, T2)
    assert await pair.end(1, producer) is ErrorCode.NONE
    waiting = pair.begin_add(1, producer, T0)
    assert waiting == []
    pair.lead(2, 1, (1, 2), replicas=(1, 2), is_new=False)
    assert waiting == [ErrorCode.NOT_COORDINATOR]


async def test_all_ids_of_a_lost_partition_are_given_up_at_once(
    cluster: TransactionCluster, one_step_in_a_turn: None
) -> None:
    """NET-4, LAI-5: their removal takes many turns of the loop. It does not touch those of the partition that is gained again."""
    await serving(cluster, 1)
    coordinator = cluster.coordinators[1]
    producer = await ongoing(cluster, T0)
    answers: list[ProducerAnswer] = []
    for number in range(20):
        await coordinator.init_producer_id(f"{number}", TIMEOUT_MS, None, answers.append)
    assert {answer.error for answer in answers} == {ErrorCode.NONE}
    coordinator.ownership._lost(STATE.partition)
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


async def test_a_new_producer_aborts_the_transaction_of_a_zombie(trio: TransactionCluster) -> None:
    """TXN-2."""
    zombie = await ongoing(trio, T0)
    assert (await trio.init(1)).error is ErrorCode.CONCURRENT_TRANSACTIONS
    await trio.until(lambda: trio.state(1) == "CompleteAbort")
    assert trio.markers == [(1, "t-0", 1000, 1, False, 0)]
    assert await trio.new_producer(1) == (1000, 2)
    assert await trio.add(1, zombie, T0) is ErrorCode.PRODUCER_FENCED
    assert await trio.end(1, zombie) is ErrorCode.PRODUCER_FENCED
    assert (await trio.init(1, zombie)).error is ErrorCode.PRODUCER_FENCED


async def test_a_transaction_that_takes_too_long_is_aborted(trio: TransactionCluster) -> None:
    """TXN-5."""
    producer = await trio.new_producer(1, timeout_ms=4_000)
    await trio.add(1, producer, T0)
    trio.pass_time(12)
    await trio.until(lambda: trio.state(1) == "CompleteAbort")
    assert [marker[4] for marker in trio.markers] == [False]
    assert await trio.end(1, producer) is ErrorCode.PRODUCER_FENCED


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
async def test_the_next_coordinator_ends_what_was_decided(trio: TransactionCluster, is_commit: bool) -> None:
    """TXN-1, TXN-3: the coordinator dies after the answer, before any marker."""
    producer = await ongoing(trio, T1, T2)
    trio.unreachable = {1, 2, 3}
    assert await trio.end(1, producer, is_commit=is_commit) is ErrorCode.NONE
    assert trio.coordinators[1].describe(ID).partitions == {T1, T2}
    trio.kill(1)
    trio.unreachable = set()
    await trio.serve(2, 1, (2, 3))
    await trio.until(lambda: trio.state(2).startswith("Complete"))
    assert trio.state(2) == ("CompleteCommit" if is_commit else "CompleteAbort")
    assert sorted(trio.markers) == [(2, "t-1", 1000, 0, is_commit, 1), (3, "t-2", 1000, 0, is_commit, 1)]
    assert await trio.add(2, producer, T1) is ErrorCode.NONE


async def test_what_was_not_replicated_is_not_decided(trio: TransactionCluster) -> None:
    """The coordinator dies with the decision in its own log only: the transaction is still open at the next one."""
    producer = await ongoing(trio, T1)
    ended = trio.begin_end(1, producer)
    trio.kill(1)
    await trio.serve(2, 1, (2, 3))
    await trio.go_on()
    assert (ended, trio.markers, trio.state(2)) == ([], [], "Ongoing")
    assert await trio.end(2, producer) is ErrorCode.NONE
    await trio.until(lambda: trio.state(2) == "CompleteCommit")


async def test_a_deposed_coordinator_does_nothing_more(trio: TransactionCluster) -> None:
    """BUG-12: answers and markers that come later find the id given up, also if the partition comes back."""
    producer = await ongoing(trio, T1)
    waiting = trio.begin_end(1, producer)
    await trio.serve(2, 1, (1, 2, 3))
    assert waiting == [ErrorCode.NOT_COORDINATOR]
    assert await trio.add(1, producer, T1) is ErrorCode.NOT_COORDINATOR
    assert trio.coordinators[1].verify(ID, producer, (T1,)) == {T1: ErrorCode.NOT_COORDINATOR}
    assert len(trio.coordinators[1].transactions) == 0
    trio.unreachable = {2}
    assert await trio.end(2, producer, is_commit=False) is ErrorCode.NONE
    await trio.serve(1, 2, (1, 2, 3))
    await trio.go_on()
    trio.unreachable = set()
    await trio.until(lambda: trio.state(1) == "CompleteAbort")
    assert trio.markers == [(2, "t-1", 1000, 0, False, 2)]


async def test_a_leader_in_a_new_epoch_keeps_its_transactions(pair: TransactionCluster) -> None:
    """Its markers have the new epoch."""
    producer = await ongoing(pair, T0)
    pair.lead(1, 4, (1, 2), replicas=(1, 2), is_new=False)
    assert await pair.end(1, producer) is ErrorCode.NONE
    await pair.until(lambda: pair.state(1) == "CompleteCommit")
    assert pair.markers == [(1, "t-0", 1000, 0, True, 4)]


async def test_nothing_is_answered_while_it_loads(pair: TransactionCluster) -> None:
    """BUG-25."""
    producer = await ongoing(pair)
    pair.lead(2, 1, (1, 2), replicas=(1, 2), is_new=False)
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert pair.begin_add(2, producer, T0) == [loading]
    assert pair.begin_end(2, producer) == [loading]
    assert pair.coordinators[2].verify(ID, producer, (T0,)) == {T0: loading}
    assert pair.coordinators[2].describe(ID).error is loading
    assert pair.coordinators[2].list_transactions(EVERYTHING)[0] is loading
    await pair.serve(2, 1, (1, 2))
    assert pair.state(2) == "Ongoing"


@pytest.mark.parametrize(
    "error",
    ["NOT_LEADER_OR_FOLLOWER", "UNKNOWN_TOPIC_OR_PARTITION", "NOT_ENOUGH_REPLICAS_AFTER_APPEND", "REQUEST_TIMED_OUT"],
)
async def test_markers_are_sent_again_until_they_are_written(trio: TransactionCluster, error: str) -> None:
    """TXN-3. The leader moves meanwhile."""
    producer = await ongoing(trio, T0, T1)
    trio.marker_error = lambda broker, tp: ErrorCode[error] if broker == 2 else ErrorCode.NONE
    assert await trio.end(1, producer) is ErrorCode.NONE
    await trio.go_on()
    assert trio.state(1) == "PrepareCommit"
    assert trio.coordinators[1].describe(ID).partitions == {T1}
    waiting = [trio.begin_add(1, producer, T0) for _ in range(2)]
    assert waiting == [[], []]
    trio.pass_time(1)
    assert waiting == [[ErrorCode.CONCURRENT_TRANSACTIONS]] * 2
    trio.leaders[T1] = 3
    trio.tell_metadata()
    await trio.until(lambda: trio.state(1) == "CompleteCommit")
    assert [marker[:2] for marker in trio.markers] == [(1, "t-0"), (3, "t-1")]


@pytest.mark.parametrize("assigned", [[], [0]])
@pytest.mark.parametrize("coordinator", [1, 2])
async def test_a_decided_transaction_ends_without_the_partitions_that_are_gone(
    pair: TransactionCluster, assigned: list[int], coordinator: int
) -> None:
    """The topic is deleted, or made again with one partition, which gets its marker. The next coordinator ends it as well."""
    producer = await ongoing(pair, T0, T1, T2)
    pair.marker_error = lambda broker, tp: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await pair.end(1, producer) is ErrorCode.NONE
    pair.delete(*({T0, T1, T2} - {TopicPartition("t", number) for number in assigned}))
    if coordinator == 2:
        await pair.serve(2, 1, (1, 2))
    await pair.go_on()
    pair.marker_error = lambda broker, tp: ErrorCode.NONE
    await pair.go_on()
    assert pair.state(coordinator) == "PrepareCommit", "the metadata alone is no proof"
    pair.assigned["t"] = [0, 1, 2]
    await pair.go_on()
    assert pair.coordinators[coordinator].describe(ID).partitions == {T0, T1, T2} - {T0 if assigned else None}
    pair.assigned["t"] = assigned
    await pair.until(lambda: pair.state(coordinator) == "CompleteCommit")
    assert [marker[:2] for marker in pair.markers] == [(1, f"t-{number}") for number in assigned]
    assert await pair.new_producer(coordinator) == (1000, 1)


async def test_markers_wait_for_a_leader(pair: TransactionCluster) -> None:
    """Whatever ZooKeeper says: the metadata has the partition, and a broker may have its log."""
    producer = await ongoing(pair, T0, T2)
    pair.assigned["t"] = []
    assert await pair.end(1, producer) is ErrorCode.NONE
    await pair.go_on()
    assert pair.coordinators[1].describe(ID).partitions == {T2}, "broker 3 does not live"
    pair.leaders[T2] = 2
    pair.tell_metadata()
    await pair.until(lambda: pair.state(1) == "CompleteCommit")
    assert [marker[:2] for marker in pair.markers] == [(1, "t-0"), (2, "t-2")]


async def test_a_successor_fences_markers(pair: TransactionCluster) -> None:
    producer = await ongoing(pair, T0)
    pair.marker_error = lambda broker, tp: ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert await pair.end(1, producer) is ErrorCode.NONE
    await pair.go_on()
    assert (pair.state(1), pair.coordinators[1].waiting_markers) == ("PrepareCommit", 0)


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


async def test_closing_answers_who_waits(pair: TransactionCluster) -> None:
    producer = await ongoing(pair, T0)
    await pair.coordinators[1].close()
    assert await pair.add(1, producer, T0) is ErrorCode.NOT_COORDINATOR
    assert pair.coordinators[1].list_transactions(EVERYTHING)[0] is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert pair.nodes[1].partition(STATE).log is not None
