"""The coordinator in transaction version 2 (KIP-890): the epoch of each end, and partitions that brokers add. TXN-1 to TXN-6."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.transactions import coordinator as coordinator_module
from broker.transactions.coordinator import NEXT_PARTITIONS_MAX, ProducerAnswer
from broker.transactions.records import TransactionsImage
from broker.transactions.states import TransactionVersion
from broker.transactions.transaction import EPOCH_MAX, ProducerIdAndEpoch, TransactionMetadata
from protocol.errors import ErrorCode
from protocol.kafka.record_batch import parse_header
from protocol.types import TopicPartition
from tests.support.transaction_cluster import ID, STATE, T0, T1, T2, TransactionCluster

TV_2 = TransactionVersion.TV_2
NONE = ErrorCode.NONE


@pytest.fixture
def trio(
    tmp_path: Path, fetchers_are_driven_by_hand: None, runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
) -> Iterator[TransactionCluster]:
    """Broker 1 coordinates."""
    monkeypatch.setattr(coordinator_module, "NEXT_WAIT_OF_BROKERS_S", 60.0)  # time passes in large steps here
    cluster = TransactionCluster(tmp_path, {}, version=TV_2)
    runner.run(started(cluster))
    yield cluster
    cluster.close()


async def started(cluster: TransactionCluster) -> None:
    await cluster.start(1, 2, 3)
    await cluster.serve(1, 0, (1, 2, 3))


async def ongoing(cluster: TransactionCluster, *partitions: TopicPartition) -> ProducerIdAndEpoch:
    producer = await cluster.new_producer(1)
    assert await cluster.add(1, producer, *(partitions or (T0, T1))) is NONE
    return producer


async def exhausted(cluster: TransactionCluster, *partitions: TopicPartition) -> ProducerIdAndEpoch:
    """A producer in its last epoch."""
    producer = await cluster.new_producer(1)
    transaction = cluster.coordinators[1].transactions.get(ID)
    assert transaction is not None
    transaction.transaction.current = transaction.transaction.current._replace(producer_epoch=EPOCH_MAX - 1)
    last = ProducerIdAndEpoch(producer.producer_id, EPOCH_MAX - 1)
    assert await cluster.add(1, last, *partitions) is NONE
    return last


def recorded(cluster: TransactionCluster, broker: int = 1) -> TransactionMetadata:
    """What the next coordinator would load."""
    log = cluster.nodes[broker].log(STATE)
    image = TransactionsImage()
    for _ in image.steps(b"".join(log.read(0, 1_000_000, log.log_end_offset, True).records)):
        pass
    return image.metadata[ID]


async def test_each_end_raises_the_epoch(trio: TransactionCluster) -> None:
    """TXN-6: the marker has the raised epoch, and so has the answer, also if it is given again."""
    producer = await ongoing(trio)
    raised = producer._replace(epoch=1)
    ended = trio.begin_end_and_raise(1, producer)
    assert ended == []
    await trio.until(lambda: trio.state(1) == "CompleteCommit")
    assert ended == [ProducerAnswer(NONE, raised)]
    assert sorted(trio.markers) == [(1, "t-0", 1000, 1, True, 0), (2, "t-1", 1000, 1, True, 0)]
    assert await trio.end_and_raise(1, producer) == ProducerAnswer(NONE, raised), "a repetition"
    assert (await trio.end_and_raise(1, producer, is_commit=False)).error is ErrorCode.INVALID_TXN_STATE
    assert await trio.add(1, producer, T2) is ErrorCode.PRODUCER_FENCED, "a late batch"
    await trio.serve(2, 1, (1, 2, 3))
    assert await trio.end_and_raise(2, producer) == ProducerAnswer(NONE, raised), "at the next coordinator"
    assert await trio.end_and_raise(2, raised, is_commit=False) == ProducerAnswer(NONE, raised._replace(epoch=2))
    await trio.until(lambda: trio.state(2) == "CompleteAbort")
    assert len(trio.markers) == 2, "it was empty"


async def test_brokers_add_at_the_same_time(trio: TransactionCluster) -> None:
    """What comes while a record is being written is in the next one, together."""
    producer = await trio.new_producer(1)
    end = trio.nodes[1].log(STATE).log_end_offset
    answers = [trio.begin_add(1, producer, tp) for tp in (T0, T1, T2, T1)]
    await trio.until(lambda: all(answers))
    assert answers == [[NONE]] * 4
    assert trio.nodes[1].log(STATE).log_end_offset == end + 2
    assert recorded(trio).partitions == {T0, T1, T2}
    assert recorded(trio).client_version is TV_2


async def test_additions_wait_for_the_last_transaction(trio: TransactionCluster) -> None:
    """The first ones are recorded together with its completion. Others are refused: too many, or of a producer that is fenced."""
    producer = await ongoing(trio)
    trio.unreachable = {2}
    raised = (await trio.end_and_raise(1, producer)).producer
    many = [TopicPartition("t", number) for number in range(NEXT_PARTITIONS_MAX)]
    waiting = [trio.begin_add(1, raised, T0), trio.begin_add(1, producer, T0), trio.begin_add(1, raised, T2)]
    assert trio.begin_add(1, raised, *many) == [ErrorCode.CONCURRENT_TRANSACTIONS]
    await trio.go_on()
    assert waiting == [[], [], []]
    log = trio.nodes[1].log(STATE)
    end = log.log_end_offset
    trio.unreachable = set()
    await trio.until(lambda: all(waiting))
    assert waiting == [[NONE], [ErrorCode.PRODUCER_FENCED], [NONE]]
    assert (trio.state(1), recorded(trio).partitions) == ("Ongoing", {T0, T2})
    (batch,) = log.read(end, 10_000, log.log_end_offset, True).records
    assert parse_header(batch).last_offset_delta == 1, "CompleteCommit and Ongoing need one replication"


async def test_a_broker_does_not_wait_for_ever(trio: TransactionCluster) -> None:
    producer = await ongoing(trio)
    trio.unreachable = {1, 2}
    raised = (await trio.end_and_raise(1, producer)).producer
    waiting = trio.begin_add(1, raised, T0)
    assert waiting == []
    trio.pass_time(61)
    assert waiting == [ErrorCode.CONCURRENT_TRANSACTIONS]


@pytest.mark.parametrize("version", TransactionVersion)
async def test_exhausted_epochs(trio: TransactionCluster, version: TransactionVersion) -> None:
    """The next producer id is decided with the end: the next coordinator completes with it, also if the level was set back meanwhile."""
    last = await exhausted(trio, T1)
    trio.unreachable = {1, 2, 3}
    ended = trio.begin_end_and_raise(1, last)
    trio.version = version
    await trio.until(lambda: bool(ended))
    assert ended == [ProducerAnswer(NONE, ProducerIdAndEpoch(1001, 0))]
    assert (recorded(trio).producer, recorded(trio).next_producer_id) == ((1000, EPOCH_MAX), 1001)
    assert (await trio.end_and_raise(1, last)).error is ErrorCode.CONCURRENT_TRANSACTIONS
    trio.kill(1)
    trio.unreachable = set()
    await trio.serve(2, 1, (2, 3))
    await trio.until(lambda: trio.state(2) == "CompleteCommit")
    assert trio.markers == [(2, "t-1", 1000, EPOCH_MAX, True, 1)]
    assert recorded(trio, 2).producer == (1001, 0)
    assert await trio.end_and_raise(2, last) == ProducerAnswer(NONE, ProducerIdAndEpoch(1001, 0)), "a repetition"
    assert await trio.add(2, ProducerIdAndEpoch(1001, 0), T1) is NONE


async def test_the_epoch_is_raised_once_by_the_coordinator(trio: TransactionCluster) -> None:
    """TXN-2, TXN-5: the producer whose transaction was aborted may go on, until another one has taken over."""
    producer = await ongoing(trio, T0)
    assert (await trio.init(1)).error is ErrorCode.CONCURRENT_TRANSACTIONS
    await trio.until(lambda: trio.state(1) == "CompleteAbort")
    assert trio.markers == [(1, "t-0", 1000, 1, False, 0)]
    raised = producer._replace(epoch=1)
    assert (await trio.end_and_raise(1, producer)).error is ErrorCode.PRODUCER_FENCED
    assert await trio.end_and_raise(1, producer, is_commit=False) == ProducerAnswer(NONE, raised)
    assert await trio.new_producer(1) == (1000, 2)
    for fenced in (producer, raised):
        assert (await trio.end_and_raise(1, fenced, is_commit=False)).error is ErrorCode.PRODUCER_FENCED
        assert await trio.add(1, fenced, T0) is ErrorCode.PRODUCER_FENCED


async def test_who_waits_is_answered_when_the_partition_is_lost(trio: TransactionCluster) -> None:
    producer = await trio.new_producer(1)
    answers = [trio.begin_add(1, producer, tp) for tp in (T0, T1)]
    trio.lead(2, 1, (1, 2, 3), replicas=(1, 2, 3), is_new=False)
    await trio.go_on()
    assert answers == [[ErrorCode.NOT_COORDINATOR]] * 2


async def test_old_clients_have_transactions_of_their_own(trio: TransactionCluster) -> None:
    """At the same level, a client without transaction version 2 keeps its epoch."""
    producer = await trio.new_producer(1)
    trio.version = TransactionVersion.TV_0
    assert await trio.add(1, producer, T0) is NONE
    trio.version = TV_2
    assert await trio.end(1, producer) is NONE
    await trio.until(lambda: trio.state(1) == "CompleteCommit")
    assert trio.markers == [(1, "t-0", 1000, 0, True, 0)]
    assert recorded(trio).client_version is TransactionVersion.TV_0
