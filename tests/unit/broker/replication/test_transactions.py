"""Transactions over several brokers: what readers of committed records get, and which batches may begin one (LOG-7, KIP-890)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import pytest

from broker.storage.log_types import AppendOrigin
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.fetch_codec import READ_COMMITTED, FetchPartitionData
from protocol.kafka.produce_codec import ProducePartitionResult
from protocol.kafka.record_batch import TRANSACTIONAL_BIT, build_batch, parse_header
from protocol.types import TopicPartition
from tests.support.replica_cluster import TP, Cluster, list_offset, values_of

P, Q = 7, 8
LATEST = -1


def send(cluster: Cluster, broker: int, producer_id: int, sequence: int, *, epoch: int = 0) -> None:
    cluster.produce(
        broker,
        f"{producer_id}-{sequence}",
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        attributes=TRANSACTIONAL_BIT,
    )


def committed(cluster: Cluster, broker: int, offset: int = 0, *, max_wait_ms: int = 0) -> list[FetchPartitionData]:
    return cluster.consume(broker, offset, max_wait_ms=max_wait_ms, isolation_level=READ_COMMITTED)


def offsets_of(data: FetchPartitionData) -> tuple[int, int]:
    return data.high_watermark, data.last_stable_offset


async def test_a_parked_reader_of_committed_records_waits_for_a_replicated_marker(pair: Cluster) -> None:
    await pair.replicate(2)
    send(pair, 1, P, 0)
    await pair.replicate(2, rounds=2)
    parked = committed(pair, 1, max_wait_ms=10_000)
    assert parked == []
    (seen,) = pair.consume(1, 0)
    assert (values_of(seen), offsets_of(seen), seen.aborted_transactions) == (["7-0"], (1, 0), None)
    pair.end_transaction(1, P, is_commit=True)
    pair.time.turn()
    assert parked == []
    assert list_offset(pair.nodes[1].manager, TP, LATEST, isolation_level=READ_COMMITTED)[1] == 0
    await pair.replicate(2, rounds=2)
    assert len(values_of(parked[0])) == 2  # the marker is a record, too
    assert offsets_of(parked[0]) == (2, 2)
    assert parked[0].aborted_transactions == ()
    assert list_offset(pair.nodes[1].manager, TP, LATEST, isolation_level=READ_COMMITTED)[1] == 2
    assert pair.nodes[2].log().producers.state.unreplicated.first is None


async def test_the_next_leader_knows_the_same_transactions(pair: Cluster) -> None:
    """It has them from the copied batches, and after a restart from its own log."""
    await pair.replicate(2)
    send(pair, 1, P, 0)
    send(pair, 1, Q, 0)
    pair.end_transaction(1, P, is_commit=False)
    await pair.replicate(2, rounds=2)
    pair.kill(1)
    pair.kill(2)
    await pair.start_broker(2)
    pair.lead(2, 1, (2,), is_new=False)
    (seen,) = committed(pair, 2)
    assert offsets_of(seen) == (3, 1)
    assert seen.aborted_transactions == [(P, 0)]
    (refused,) = pair.end_transaction(2, Q, is_commit=True, epoch=-1)
    assert refused.error == ErrorCode.INVALID_PRODUCER_EPOCH
    (written,) = pair.end_transaction(2, Q, is_commit=True)
    assert (written.error, written.base_offset) == (ErrorCode.NONE, 3)
    assert offsets_of(committed(pair, 2)[0]) == (4, 4)


async def test_a_marker_that_is_cut_off_ends_nothing(pair: Cluster) -> None:
    """INV-5: the old leader's marker was not replicated; the next leader's log has another outcome."""
    await pair.replicate(2)
    send(pair, 1, P, 0)
    await pair.replicate(2, rounds=2)
    pair.end_transaction(1, P, is_commit=False)
    assert pair.nodes[1].log().producers.state.ongoing == []
    pair.lead(2, 1, (2,))
    await pair.replicate(1, rounds=2)
    assert pair.nodes[1].log().producers.state.ongoing == [0]
    pair.end_transaction(2, P, is_commit=True)
    await pair.settle()
    pair.lead(1, 2, (1, 2))
    await pair.settle()
    (seen,) = committed(pair, 1)
    assert (offsets_of(seen), seen.aborted_transactions) == ((2, 2), ())


# -- verification -------------------------------------------------------------------------------------------------------


class Coordinator:
    """Answers when it is told to, with `code` for each partition; `meanwhile` happens before the answer."""

    def __init__(self, code: ErrorCode = ErrorCode.NONE, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.code = code
        self.meanwhile = meanwhile
        self.asked: list[tuple[str, int, int, list[TopicPartition]]] = []
        self.added: list[int] = []

    async def verify(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        self.asked.append((transactional_id, producer_id, producer_epoch, list(partitions)))
        await asyncio.sleep(0)
        self.meanwhile()
        return dict.fromkeys(partitions, self.code)

    async def add(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        self.added.append(producer_epoch)
        return await self.verify(transactional_id, producer_id, producer_epoch, partitions)


async def produce(
    cluster: Cluster,
    sequence: int,
    *,
    producer_id: int = P,
    epoch: int = 0,
    attributes: int = TRANSACTIONAL_BIT,
    at_once: bool = False,
    adds: bool = False,
) -> ProducePartitionResult:
    """A Produce request of a transactional producer, with acks=1. `at_once`: no coroutine is needed. `adds`: as of v12."""
    batch = build_batch(
        [(b"k", b"v", (), 1000)],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        attributes=attributes,
    )
    answer: list[ProducePartitionResult] = []
    appends = cluster.nodes[1].manager.appends
    rest = appends.append_transactional("mine", 1, 1000, [(TP, memoryview(batch))], answer.extend, adds=adds)
    assert not (at_once and rest is not None)
    if rest is not None:
        working = asyncio.create_task(rest)
        while not working.done():
            cluster.time.turn()
            await asyncio.sleep(0)
        await working
    assert not cluster.nodes[1].log().producers.verified.guards, "a guard is left"
    return answer[0]


async def verified_by(cluster: Cluster, coordinator: Coordinator | None) -> Cluster:
    leader = await cluster.start_led(1)
    leader.manager.appends.verification.verifier = coordinator
    return cluster


async def test_only_the_first_batch_of_a_transaction_is_verified(cluster: Cluster) -> None:
    coordinator = Coordinator()
    await verified_by(cluster, coordinator)
    for sequence in range(3):
        assert (await produce(cluster, sequence, at_once=sequence > 0)).error == ErrorCode.NONE
    assert coordinator.asked == [("mine", P, 0, [TP])]
    cluster.end_transaction(1, P, is_commit=True)
    assert (await produce(cluster, 3)).error == ErrorCode.NONE
    assert len(coordinator.asked) == 2
    cluster.end_transaction(1, P, is_commit=True)
    assert (await produce(cluster, 4, attributes=0)).error == ErrorCode.NONE  # not transactional
    assert len(coordinator.asked) == 2
    cluster.nodes[1].manager.appends.verification.is_enabled = False
    assert (await produce(cluster, 5)).error == ErrorCode.NONE
    assert len(coordinator.asked) == 2


async def test_without_a_verifier_nothing_is_verified(cluster: Cluster) -> None:
    await verified_by(cluster, None)
    assert (await produce(cluster, 0)).error == ErrorCode.NONE


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_ENOUGH_REPLICAS),
    ],
)
async def test_what_the_coordinator_refuses_is_not_appended(
    cluster: Cluster, code: ErrorCode, expected: ErrorCode
) -> None:
    coordinator = Coordinator(code)
    await verified_by(cluster, coordinator)
    assert (await produce(cluster, 0)).error == expected
    assert cluster.nodes[1].log().log_end_offset == 0
    if expected is ErrorCode.NOT_ENOUGH_REPLICAS:
        coordinator.code = ErrorCode.NONE
        assert (await produce(cluster, 1)).error == expected, "INV-20: the batch before it comes again first"
        assert (await produce(cluster, 0)).error == ErrorCode.NONE


@pytest.mark.parametrize("is_commit", [True, False])
async def test_a_marker_while_the_coordinator_is_asked_makes_its_answer_void(cluster: Cluster, is_commit: bool) -> None:
    """The answer may be about the transaction that the marker has just ended."""
    await verified_by(cluster, Coordinator(meanwhile=lambda: cluster.end_transaction(1, P, is_commit=is_commit)))
    assert (await produce(cluster, 0)).error == ErrorCode.INVALID_TXN_STATE
    assert cluster.nodes[1].log().producers.state.ongoing == []


async def test_a_producer_whose_transaction_was_aborted_meanwhile_is_fenced(cluster: Cluster) -> None:
    """Kafka 4.1.1 (KAFKA-19690): INVALID_TXN_STATE would end a Kafka Streams application whose transaction has only timed out."""
    await verified_by(cluster, Coordinator(meanwhile=lambda: end_in_next_epoch(cluster, 1, is_commit=False)))
    assert (await produce(cluster, 0)).error == ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize("adds", [False, True])
async def test_so_is_one_whose_batch_waits_for_the_verification_of_another_partition(
    cluster: Cluster, adds: bool
) -> None:
    await verified_by(cluster, Coordinator())
    assert (await produce(cluster, 0, adds=adds)).error == ErrorCode.NONE
    batch = build_batch(
        [(b"k", b"v", (), 1)], producer_id=P, producer_epoch=0, base_sequence=1, attributes=TRANSACTIONAL_BIT
    )
    transactions = cluster.nodes[1].manager.appends.verification
    verification = transactions.of_batches([(TP, batch)], adds=adds)
    assert verification is not None
    assert not verification.is_needed
    assert end_in_next_epoch(cluster, 1, is_commit=False) is ErrorCode.NONE
    with pytest.raises(KafkaError) as refused:
        verification.check(TP, parse_header(batch))
    assert refused.value.code is ErrorCode.INVALID_PRODUCER_EPOCH


async def test_a_batch_of_the_same_transaction_while_the_coordinator_is_asked(cluster: Cluster) -> None:
    await verified_by(cluster, Coordinator(meanwhile=lambda: send(cluster, 1, P, 0)))
    assert (await produce(cluster, 1)).error == ErrorCode.NONE


async def test_a_leader_that_is_deposed_while_the_coordinator_is_asked(cluster: Cluster) -> None:
    def depose() -> None:
        cluster.lead(2, 1, (2,), replicas=(1, 2))

    await verified_by(cluster, Coordinator(meanwhile=depose))
    assert (await produce(cluster, 0)).error == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_verification_that_never_starts_leaves_no_guard(cluster: Cluster) -> None:
    """The task of the request is cancelled before its first step."""
    await verified_by(cluster, Coordinator())
    batch = build_batch(
        [(b"k", b"v", (), 1)], producer_id=P, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL_BIT
    )
    rest = cluster.nodes[1].manager.appends.append_transactional(
        "mine", 1, 1, [(TP, memoryview(batch))], lambda _: None
    )
    assert rest is not None
    rest.close()
    assert not cluster.nodes[1].log().producers.verified.guards


async def test_a_log_that_was_emptied_knows_no_verified_transaction(cluster: Cluster) -> None:
    """TXN-4: the marker may be among the records that it skips. A late batch would begin a transaction that nobody ends."""
    await verified_by(cluster, coordinator := Coordinator())
    asking = cluster.nodes[1].manager.appends.verification.of_commit(TP, P, 0)
    assert asking is not None
    await asking.ask("mine")
    assert cluster.nodes[1].log().producers.is_in_transaction(P, 0)
    cluster.nodes[1].log().truncate_fully_and_start_at(10)
    coordinator.code = ErrorCode.INVALID_TXN_STATE
    assert (await produce(cluster, 0)).error == ErrorCode.INVALID_TXN_STATE


# -- transaction version 2 ----------------------------------------------------------------------------------------------


def end_in_next_epoch(cluster: Cluster, epoch: int, *, is_commit: bool = True) -> ErrorCode:
    """The marker of a transaction of transaction version 2 in the epoch before."""
    (written,) = cluster.end_transaction(1, P, is_commit=is_commit, epoch=epoch, origin=AppendOrigin.RAISED_EPOCH)
    return ErrorCode(written.error)


async def test_each_transaction_is_added_and_late_batches_are_fenced(cluster: Cluster) -> None:
    """TXN-6."""
    await verified_by(cluster, coordinator := Coordinator())
    cluster.nodes[1].manager.appends.verification.is_enabled = False  # only what is not added
    for epoch in range(2):
        for sequence in range(2):
            assert (await produce(cluster, sequence, epoch=epoch, adds=True)).error == ErrorCode.NONE
        assert end_in_next_epoch(cluster, epoch + 1) is ErrorCode.NONE
    assert coordinator.added == [0, 1]
    assert (await produce(cluster, 2, epoch=1, adds=True)).error == ErrorCode.INVALID_PRODUCER_EPOCH
    assert cluster.nodes[1].log().producers.state.ongoing == []


async def test_a_late_marker_does_not_end_the_next_transaction(cluster: Cluster) -> None:
    """TXN-6. Without a transaction it is written twice: the coordinator had no answer."""
    await verified_by(cluster, Coordinator())
    await produce(cluster, 0, adds=True)
    assert end_in_next_epoch(cluster, 1) is ErrorCode.NONE
    assert end_in_next_epoch(cluster, 1) is ErrorCode.NONE
    assert (await produce(cluster, 0, epoch=1, adds=True)).error == ErrorCode.NONE
    assert end_in_next_epoch(cluster, 1) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert cluster.nodes[1].log().producers.state.is_ongoing(P, 1)
    assert end_in_next_epoch(cluster, 2, is_commit=False) is ErrorCode.NONE
    assert not cluster.nodes[1].log().producers.state.is_ongoing(P, 1)


async def test_the_last_transaction_may_end_while_the_next_one_is_added(cluster: Cluster) -> None:
    """Its marker has the epoch of the next one. The answer is about the next one all the same."""
    await verified_by(cluster, coordinator := Coordinator())
    await produce(cluster, 0, adds=True)
    coordinator.meanwhile = lambda: end_in_next_epoch(cluster, 1)
    assert (await produce(cluster, 0, epoch=1, adds=True)).error == ErrorCode.NONE
    assert coordinator.added == [0, 1]


async def test_a_transaction_that_ends_while_it_is_added_is_asked_for_again(cluster: Cluster) -> None:
    """Its marker may be that of a client of an earlier version. The second answer is about what is now."""
    await verified_by(cluster, coordinator := Coordinator())
    ends = iter((True, False))
    coordinator.meanwhile = lambda: next(ends) and cluster.end_transaction(1, P, is_commit=True)
    assert (await produce(cluster, 0, adds=True)).error == ErrorCode.NONE
    assert coordinator.added == [0, 0]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
async def test_what_cannot_be_added_is_not_appended(cluster: Cluster, code: ErrorCode, expected: ErrorCode) -> None:
    await verified_by(cluster, Coordinator(code))
    assert (await produce(cluster, 0, adds=True)).error == expected
    assert cluster.nodes[1].log().log_end_offset == 0


async def test_a_transaction_begins_at_sequence_0(cluster: Cluster) -> None:
    """The batch before may have been refused. A producer that the log has forgotten cannot be told from that one."""
    await verified_by(cluster, Coordinator())
    assert (await produce(cluster, 5, adds=True)).error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert (await produce(cluster, 0, adds=True)).error == ErrorCode.NONE
    assert (await produce(cluster, 1, adds=True)).error == ErrorCode.NONE
    assert (await produce(cluster, 5, producer_id=Q)).error == ErrorCode.NONE, "before version 2"
