"""Offsets within transactions: pending until their marker is replicated, also over moves, deletions and late answers (KIP-98, KIP-447)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from random import Random

import pytest

from broker.groups import deletions
from broker.groups.group import offsets as group_offsets
from broker.groups.group.messages import TransactionalProducer
from broker.groups.group.offsets import GroupOffsets
from broker.groups.offsets_topic.image import OffsetsImage
from protocol.errors import ErrorCode
from protocol.types import TopicPartition
from tests.support.group_cluster import GROUP, OFFSETS, READ, Answers, GroupCluster, turns
from tests.support.thorough import first_in_quick_run

OTHER = TopicPartition("t", 1)
A = TransactionalProducer("a", 7, 0)
UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT


@pytest.mark.parametrize("is_commit", [True, False])
async def test_offsets_of_a_transaction_count_when_its_commit_marker_is_replicated(
    pair: GroupCluster, is_commit: bool
) -> None:
    pair.commit(1, 5)
    committed = pair.commit(1, 9, producer=A, partitions=(READ, OTHER))
    assert pair.position(1, stable=True) is UNSTABLE
    await pair.settle()
    assert committed == [ErrorCode.NONE]
    assert (pair.position(1), pair.position(1, stable=True)) == (5, UNSTABLE)
    assert (pair.position(1, OTHER), pair.position(1, OTHER, stable=True)) == (None, UNSTABLE)
    marked = pair.mark(1, A, is_commit=is_commit)
    await turns()
    assert (marked, pair.position(1), pair.position(1, stable=True)) == ([], 5, UNSTABLE)
    await pair.settle()
    assert marked == [ErrorCode.NONE]
    expected = (9, 9) if is_commit else (5, None)
    assert (pair.position(1, stable=True), pair.position(1, OTHER, stable=True)) == expected


@pytest.mark.parametrize("is_commit", [True, False])
async def test_an_offset_that_is_being_committed_outlives_the_next_transaction(
    one_step_in_a_turn: None, served: GroupCluster, is_commit: bool
) -> None:
    """INV-23: other work of the coordinator may delay the end of a transaction until its producer's next commit."""
    served.coordinators[1]._sliced.run(iter(range(5)))
    assert served.commit(1, 5, producer=A) == [ErrorCode.NONE]
    assert served.mark(1, A, is_commit=True) == [ErrorCode.NONE]
    assert served.commit(1, 9, producer=A) == [ErrorCode.NONE]
    assert (served.position(1), served.position(1, stable=True)) == (5, UNSTABLE)
    assert served.mark(1, A, is_commit=is_commit) == [ErrorCode.NONE]
    served.time.turn()
    assert served.position(1, stable=True) == (9 if is_commit else 5)


async def test_a_transaction_that_ends_while_the_one_before_does_decides_only_about_its_own_offsets(
    cluster: GroupCluster, one_step_in_a_turn: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-23: the ends take turns with each other, and those of one producer follow each other."""
    monkeypatch.setattr(group_offsets, "ROWS_IN_A_STEP", 1)
    await cluster.start_serving(1)
    cluster.coordinators[1]._sliced.run(iter(range(5)))
    cluster.commit(1, 5, producer=A, partitions=(READ, OTHER))
    cluster.mark(1, A, is_commit=True)
    cluster.commit(1, 9, producer=A, partitions=(TopicPartition("t", 2),), group="second")
    cluster.mark(1, A, is_commit=False)
    cluster.commit(1, 7, producer=A, partitions=(OTHER,))
    cluster.time.turn()
    assert (cluster.position(1, stable=True), cluster.position(1, OTHER)) == (5, 5)
    assert [listing.group_id for listing in cluster.listed(1)] == [GROUP]
    cluster.mark(1, A, is_commit=True)
    cluster.time.turn()
    assert cluster.position(1, OTHER, stable=True) == 7


@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("is_marked_before", [True, False])
async def test_a_transaction_goes_on_at_the_next_coordinator(
    pair: GroupCluster, is_commit: bool, is_marked_before: bool
) -> None:
    """BUG-25: it finds the pending offsets in the log, and the markers that were written by its predecessor."""
    pair.commit(1, 5)
    pair.commit(1, 9, producer=A)
    pair.commit(1, 8, producer=A, group="only in the transaction")
    await pair.settle()
    if is_marked_before:
        pair.mark(1, A, is_commit=is_commit)
        await pair.settle()
    await pair.serve(2, 1, (1, 2))
    if not is_marked_before:
        assert (pair.position(2), pair.position(2, stable=True)) == (5, UNSTABLE)
        assert pair.position(2, group="only in the transaction", stable=True) is UNSTABLE
        assert pair.position(1) is ErrorCode.NOT_COORDINATOR
        pair.mark(2, A, is_commit=is_commit)
        await pair.settle()
    assert pair.position(2, stable=True) == (9 if is_commit else 5)
    assert pair.position(2, group="only in the transaction", stable=True) == (8 if is_commit else None)


async def test_a_marker_that_comes_during_a_load_counts(cluster: GroupCluster) -> None:
    """The log was read before the marker was appended, and the marker is replicated before the groups are served."""
    await cluster.start_serving(1, 2, 3)
    cluster.commit(1, 9, producer=A)
    await cluster.replicate(2)
    cluster.kill(1)
    cluster.lead_groups(2, 1, (2, 3))
    await turns()
    assert cluster.position(2) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # until the commit is replicated
    marked = cluster.mark(2, A, is_commit=True)
    cluster.pass_time(6)  # the load waits again, behind the marker
    assert cluster.coordinators[2].check(GROUP) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    await cluster.settle()
    assert marked == [ErrorCode.NONE]
    assert cluster.position(2, stable=True) == 9


async def test_a_deletion_removes_pending_offsets_for_good(pair: GroupCluster) -> None:
    """The tombstone is later in the log: neither the marker nor a load brings the offset back."""
    pair.commit(1, 5)
    pair.commit(1, 9, producer=A, partitions=(READ, OTHER))
    await pair.settle()
    deleted: Answers = []
    pair.coordinators[1].delete_offsets(GROUP, [READ], lambda *answer: deleted.append(answer))
    await pair.settle()
    assert deleted == [(ErrorCode.NONE, {READ: ErrorCode.NONE})]
    assert pair.position(1, stable=True) is None
    pair.mark(1, A, is_commit=True)
    await pair.settle()
    for broker, epoch in ((1, 0), (2, 1)):
        if epoch:
            await pair.serve(broker, epoch, (1, 2))
        assert pair.position(broker, stable=True) is None
        assert pair.position(broker, OTHER, stable=True) == 9


async def test_a_group_with_pending_offsets_is_not_dropped_until_it_is_deleted(served: GroupCluster) -> None:
    served.commit(1, 9, producer=A)
    served.pass_time(3600)
    assert served.position(1, stable=True) is UNSTABLE
    deleted: Answers = []
    served.coordinators[1].delete_groups([GROUP], deleted.append)
    assert deleted == [{GROUP: ErrorCode.NONE}]
    served.mark(1, A, is_commit=True)
    assert served.position(1, stable=True) is None
    assert served.listed(1) == []


async def test_offsets_of_a_deleted_topic_do_not_return_with_the_marker(cluster: GroupCluster) -> None:
    cluster.topics["u"] = 2
    await cluster.start_serving(1)
    cluster.tell_metadata()
    gone = TopicPartition("u", 0)
    cluster.commit(1, 9, producer=A, partitions=(gone, READ))
    cluster.delete_topic("u")
    assert cluster.position(1, gone, stable=True) is None
    cluster.mark(1, A, is_commit=True)
    assert (cluster.position(1, gone, stable=True), cluster.position(1, stable=True)) == (None, 9)


async def test_a_commit_that_is_not_written_leaves_nothing_pending(cluster: GroupCluster) -> None:
    await cluster.start_serving(1, 2, overrides={"min.insync.replicas": "2"})
    cluster.commit(1, 5)
    await cluster.settle()
    slow = cluster.commit(1, 9, producer=A)
    cluster.pass_time(5.1)
    assert slow == [ErrorCode.REQUEST_TIMED_OUT]
    assert cluster.position(1, stable=True) == 5
    fenced = TransactionalProducer("a", 7, 2)
    cluster.commit(1, 6, producer=fenced)
    await cluster.settle()
    assert cluster.commit(1, 7, producer=A) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert cluster.commit(1, 7, producer=A, group="new") == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert [listing.group_id for listing in cluster.listed(1)] == [GROUP]


async def test_members_and_outsiders_may_commit_as_in_kafka(served: GroupCluster) -> None:
    """INV-24, KIP-447: a request of an old client has neither member nor generation, and is accepted in every state."""
    assert served.commit(1, 1, producer=A, generation=3) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert served.commit(1, 1, producer=A, group="") == [ErrorCode.INVALID_GROUP_ID]
    served.start_group(1)
    assert served.coordinators[1].describe(GROUP).state == "CompletingRebalance"
    assert served.commit(1, 1, "m", 1) == [ErrorCode.REBALANCE_IN_PROGRESS]
    assert served.commit(1, 1, "m", 1, producer=A) == [ErrorCode.NONE]
    assert served.commit(1, 1, producer=A) == [ErrorCode.NONE]
    assert served.commit(1, 1, "m", 0, producer=A) == [ErrorCode.ILLEGAL_GENERATION]
    assert served.commit(1, 1, "m", -1, producer=A) == [ErrorCode.ILLEGAL_GENERATION]
    assert served.commit(1, 1, "x", 1, producer=A) == [ErrorCode.UNKNOWN_MEMBER_ID]


Offsets = dict[tuple[str, TopicPartition], int]
Pending = dict[tuple[str, int, TopicPartition], int]


def in_memory(cluster: GroupCluster, broker: int) -> tuple[Offsets, Pending]:
    return found((held.group_id, held.offsets) for held in cluster.coordinators[broker].groups)


def in_the_log(cluster: GroupCluster, broker: int) -> tuple[Offsets, Pending]:
    """What a load of the whole log gives."""
    partition_log = cluster.nodes[broker].log(OFFSETS)
    image = OffsetsImage()
    records = partition_log.read(0, 1 << 20, partition_log.log_end_offset, True).records
    for piece in records:
        assert list(image.steps(piece)) is not None
    assert image.next_offset == partition_log.log_end_offset
    return found((group_id, offsets) for group_id, _, offsets in image.groups())


def found(groups: Iterable[tuple[str, GroupOffsets]]) -> tuple[Offsets, Pending]:
    """The committed and the pending offsets, as the log offsets of their batches."""
    committed: Offsets = {}
    pending: Pending = {}
    for group_id, offsets in groups:
        committed |= {(group_id, tp): offsets.log_offset(tp) or 0 for tp in offsets}
        for producer in offsets.transactional.producers():
            for tp in offsets.transactional.partitions_of(producer):
                pending[(group_id, producer, tp)] = (offsets.transactional.get(producer, tp) or (-1,))[0]
    return committed, pending


@pytest.mark.parametrize("seed", first_in_quick_run(range(60), 2))
async def test_memory_has_what_a_load_finds(
    cluster: GroupCluster, one_step_in_a_turn: None, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Random commits, markers, deletions, and coordinators that move in the middle of them (INV-23, BUG-25).

    Deletions, and the removal of groups after a loss, pause after each offset and each group.
    """
    monkeypatch.setattr(deletions, "OFFSETS_AT_ONCE", 1)
    random = Random(seed)
    producers = [TransactionalProducer(f"tx-{number}", number, 0) for number in (7, 8, 9)]
    marking: dict[int, list[ErrorCode]] = {}
    await cluster.start_serving(1, 2)
    leader, epoch = 1, 0
    for _ in range(60):
        group = random.choice(["g", "h"])
        some = tuple(random.sample([READ, OTHER, TopicPartition("t", 2)], random.randint(1, 3)))
        producer = random.choice(producers)
        match random.choice(
            ["commit", "commit", "in transaction", "in transaction", "mark", "mark", "delete", "log", "turn", "turn"]
        ):
            case "commit":
                cluster.commit(leader, 1, partitions=some, group=group)
            case "in transaction":
                if marking.get(producer.producer_id) != []:  # else its coordinator refuses the next transaction
                    cluster.commit(leader, 2, partitions=some, group=group, producer=producer)
            case "mark":
                if marking.get(producer.producer_id) != []:
                    marking[producer.producer_id] = cluster.mark(leader, producer, is_commit=random.random() < 0.7)
            case "delete" if random.random() < 0.3:
                cluster.coordinators[leader].delete_groups([group], lambda errors: None)
            case "delete" if random.random() < 0.3:
                cluster.coordinators[leader].topics_deleted(["t"])
            case "delete":
                cluster.coordinators[leader].delete_offsets(group, some, lambda error, errors: None)
            case "turn":
                cluster.time.single_turn()
            case _ if random.random() < 0.4:
                leader, epoch = 3 - leader, epoch + 1
                await cluster.serve(leader, epoch, (1, 2))
            case _ if random.random() < 0.5:
                await cluster.replicate()
            case _:
                await cluster.settle()
                assert in_memory(cluster, leader) == in_the_log(cluster, leader)
    await cluster.settle()
    assert in_memory(cluster, leader) == in_the_log(cluster, leader)
    for producer in producers:
        cluster.mark(leader, producer, is_commit=True)
    await cluster.settle()
    committed, pending = in_memory(cluster, leader)
    assert (committed, pending) == in_the_log(cluster, leader)
    assert pending == {}


class Verifier:
    """Answers what the test wrote down, when `answer` is called."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, int]] = []
        self.added: list[int] = []
        self._answers: list[asyncio.Future[ErrorCode]] = []

    async def verify(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        assert partitions == [OFFSETS]
        self.asked.append((transactional_id, producer_id, producer_epoch))
        self._answers.append(asyncio.get_running_loop().create_future())
        return {OFFSETS: await self._answers[-1]}

    async def add(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        self.added.append(producer_epoch)
        return await self.verify(transactional_id, producer_id, producer_epoch, partitions)

    def answer(self, error: ErrorCode) -> None:
        self._answers.pop(0).set_result(error)


async def verified(cluster: GroupCluster, producer: TransactionalProducer) -> asyncio.Task[ErrorCode] | None:
    """The verification under way; None: none is needed."""
    verification = cluster.coordinators[1].verification(GROUP, producer)
    if verification is None:
        return None
    task = asyncio.ensure_future(verification)
    await turns(2)
    return task


async def test_the_first_commit_of_a_transaction_is_verified(served: GroupCluster) -> None:
    """KIP-890: until the marker; another epoch is another transaction."""
    verifier = Verifier()
    served.nodes[1].manager.appends.verification.verifier = verifier
    assert served.commit(1, 9, producer=A) == [ErrorCode.INVALID_TXN_STATE]
    task = await verified(served, A)
    assert task is not None
    verifier.answer(ErrorCode.NONE)
    assert await task is ErrorCode.NONE
    assert served.commit(1, 9, producer=A) == [ErrorCode.NONE]
    assert await verified(served, A) is None
    newer = A._replace(producer_epoch=1)
    assert await verified(served, newer) is not None
    assert served.commit(1, 9, producer=newer) == [ErrorCode.INVALID_TXN_STATE]
    served.mark(1, A, is_commit=True)
    assert served.commit(1, 10, producer=A) == [ErrorCode.INVALID_TXN_STATE]
    assert await verified(served, A) is not None
    assert verifier.asked == [producer[:3] for producer in (A, newer, A)]
    served.mark(1, newer, is_commit=False)
    assert served.commit(1, 10, producer=A) == [ErrorCode.INVALID_PRODUCER_EPOCH], "as Kafka 4.1.1 (KAFKA-19690)"


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.NETWORK_EXCEPTION, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_COORDINATOR),
    ],
)
async def test_a_verification_may_fail(served: GroupCluster, answer: ErrorCode, told: ErrorCode) -> None:
    verifier = Verifier()
    served.nodes[1].manager.appends.verification.verifier = verifier
    task = await verified(served, A)
    assert task is not None
    verifier.answer(answer)
    assert await task is told
    assert served.commit(1, 9, producer=A) == [ErrorCode.INVALID_TXN_STATE]


@pytest.mark.parametrize("is_lost", [True, False])
async def test_a_verification_does_not_count_after_a_marker_or_a_move(pair: GroupCluster, is_lost: bool) -> None:
    """Otherwise a commit that comes late would start a transaction that nobody ends."""
    verifier = Verifier()
    pair.nodes[1].manager.appends.verification.verifier = verifier
    task = await verified(pair, A)
    assert task is not None
    if is_lost:
        pair.lead_groups(2, 1, (1, 2))
    else:
        pair.mark(1, A, is_commit=False)  # appended, not replicated
    verifier.answer(ErrorCode.NONE)
    assert await task is (ErrorCode.NOT_COORDINATOR if is_lost else ErrorCode.INVALID_TXN_STATE)
    assert pair.commit(1, 9, producer=A) == [ErrorCode.NOT_COORDINATOR if is_lost else ErrorCode.INVALID_TXN_STATE]
    again = await verified(pair, A)
    assert (again is None) == is_lost, "only the commit is refused where the group is not"
    assert len(verifier.asked) == (1 if is_lost else 2)


async def test_a_commit_adds_its_partition_to_the_transaction(served: GroupCluster) -> None:
    """TXN-6: TxnOffsetCommit v5, whether or not transactions are verified."""
    verifier = Verifier()
    verification = served.nodes[1].manager.appends.verification
    verification.verifier, verification.is_enabled = verifier, False
    producer = A._replace(adds=True)
    assert await verified(served, A) is None
    assert served.commit(1, 9, producer=producer) == [ErrorCode.INVALID_TXN_STATE], "it is not added"
    for answer, error in (
        (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ErrorCode.NETWORK_EXCEPTION, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (ErrorCode.NONE, ErrorCode.NONE),
    ):
        task = await verified(served, producer)
        assert task is not None
        verifier.answer(answer)
        assert await task is error
    assert verifier.added == [0, 0, 0]
    assert served.commit(1, 9, producer=producer) == [ErrorCode.NONE]
    assert await verified(served, producer) is None
