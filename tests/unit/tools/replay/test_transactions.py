"""A replayed transactional producer against a coordinator and a leader that fail as brokers do: each transaction ends as the trace says, or
is an operation that failed (RPL-2)."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import ErrorCode
from protocol.kafka import messages, produce_codec
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.framing import parse_request_header
from protocol.kafka.record_batch import parse_header
from tools.replay.load import transactions
from tools.replay.load.background import Background
from tools.replay.load.operations import Operation
from tools.replay.load.transactions import TransactionalProducer
from tools.wire.cluster_view import ClusterView
from tools.wire.frames import PRODUCE_VERSION

S = 1_000_000_000
RUN, OWN = 7, "00000007"
TOPIC = "t"
COMMIT, ABORT = "commit", "abort"
OFFSETS = "offsets"
COMMITTED = {0: 6000, 1: 5000}
"""What the replay's group has committed; in partition 1 in another replay."""
START_OFFSETS = {TOPIC: [1000, 2000]}
OFFSETS_EXPECTED = [(0, 6000), (1, 2000)]
LOST = None
"""An answer that does not come, because the connection ends before (LOST) or after (-2) the broker has done what it should."""
LOST_AFTER = -2
PASSING = [
    *(LOST, LOST_AFTER, 0, 0, 0),
    *(ErrorCode.NOT_COORDINATOR, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
]


class FakeCluster:
    """One broker: leader of two partitions, and coordinator of one transactional id."""

    def __init__(self, fates: list[int | None] | None = None, of_batches: list[int | None] | None = None) -> None:
        self.fates = {"coordinator": list(fates or ()), "leader": list(of_batches or ())}
        self.epoch = -1
        self.partitions: set[int] = set()
        self.open: list[tuple[int, int]] = []
        """(partition, records) of each batch."""
        self.has_group = False
        self.offsets: list[tuple[int, int]] = []
        """(partition, offset) of each in the transaction."""
        self.ended: list[tuple[bool, list[tuple[int, int]]]] = []
        self.finds = 0
        self.log: dict[int, list[Any]] = {}

    # As ClusterView:

    def leader(self, partition: tuple[str, int]) -> int:
        return 7

    def ask_again(self, then: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(then)

    async def connect(self, broker: int, on_end: Callable[[Any], None]) -> FakeConnection:
        assert broker == 7
        return FakeConnection(self)

    async def ask_any(self, api_key: ApiKey, version: int, body: dict[str, Any]) -> Any:
        assert api_key == ApiKey.FIND_COORDINATOR
        assert body in ({"key": "id", "key_type": 1}, {"key": "group", "key_type": 0})
        self.finds += 1
        return SimpleNamespace(error_code=0, node_id=7, host="h", port=1)

    def coordinate(self, key: int, body: Any) -> dict[str, Any]:
        if key == ApiKey.INIT_PRODUCER_ID:
            if self.open or self.partitions or self.has_group:
                self._end(is_commit=False)
            self.epoch += 1
            self.log.clear()
            return {"error_code": 0, "producer_id": 1, "producer_epoch": self.epoch}
        if key == ApiKey.END_TXN:
            assert (body.transactional_id, body.producer_id, body.producer_epoch) == ("id", 1, self.epoch)
            if self.partitions or self.has_group:  # else it is sent again
                self._end(is_commit=body.committed)
            return {"error_code": 0}
        if key == ApiKey.ADD_OFFSETS_TO_TXN:
            assert (body.group_id, body.producer_epoch) == ("group", self.epoch)
            self.has_group = True
            return {"error_code": 0}
        if key == ApiKey.OFFSET_FETCH:
            rows = [
                {"partition_index": at, "committed_offset": offset, "metadata": OWN if at == 0 else "other"}
                | {"committed_leader_epoch": -1, "error_code": 0}
                for at, offset in COMMITTED.items()
            ]
            return {"topics": [{"name": TOPIC, "partitions": rows}], "error_code": 0}
        if key == ApiKey.TXN_OFFSET_COMMIT:
            assert self.has_group
            assert (body.transactional_id, body.group_id, body.producer_epoch) == ("id", "group", self.epoch)
            ((topic, rows),) = [(str(topic.name), topic.partitions) for topic in body.topics]
            assert (topic, {row.committed_metadata for row in rows}) == (TOPIC, {OWN})
            self.offsets = [(int(row.partition_index), int(row.committed_offset)) for row in rows]
            return self.refusal(key, body, 0)
        assert body.v3_and_below_producer_epoch == self.epoch
        self.partitions |= {number for topic in body.v3_and_below_topics for number in topic.partitions}
        return self.refusal(key, body, 0)

    def _end(self, *, is_commit: bool) -> None:
        self.ended.append((is_commit, self.open + self.offsets))
        self.open, self.offsets, self.partitions, self.has_group = [], [], set(), False

    def refusal(self, key: int, body: Any, error: int) -> dict[str, Any]:
        if key == ApiKey.INIT_PRODUCER_ID:
            return {"error_code": error, "producer_id": -1, "producer_epoch": -1}
        if key in (ApiKey.END_TXN, ApiKey.ADD_OFFSETS_TO_TXN):
            return {"error_code": error}
        if key == ApiKey.OFFSET_FETCH:
            return {"topics": [], "error_code": error}
        if key == ApiKey.TXN_OFFSET_COMMIT:
            found = [{"partition_index": row.partition_index, "error_code": error} for row in body.topics[0].partitions]
            return {"topics": [{"name": TOPIC, "partitions": found}]}
        rows = [
            {"name": topic.name, "results_by_partition": [{"partition_index": n, "partition_error_code": error} for n in topic.partitions]}
            for topic in body.v3_and_below_topics
        ]  # fmt: skip
        return {"results_by_topic_v3_and_below": rows}

    def append(self, partition: int, batch: memoryview) -> int:
        header = parse_header(batch)
        known, row = (
            self.log.setdefault(partition, []),
            (header.producer_epoch, header.base_sequence, header.record_count),
        )
        if row in known:
            return ErrorCode.NONE
        if header.producer_epoch != self.epoch or partition not in self.partitions or not header.is_transactional:
            return ErrorCode.INVALID_TXN_STATE
        if header.base_sequence != sum(count for *_, count in known):
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        known.append(row)
        self.open.append((partition, header.record_count))
        return ErrorCode.NONE


class FakeConnection:
    def __init__(self, cluster: FakeCluster) -> None:
        self.is_open = True
        self.cluster = cluster
        self.waiting: list[Callable[[memoryview | None], None]] = []

    async def ask(self, frame: bytes, timeout_s: float) -> memoryview:
        await asyncio.sleep(0)
        payload = memoryview(frame)[4:]
        header = parse_request_header(payload)
        key = header.api_key
        body = messages.decode_request(key, header.api_version, payload, header.body_offset)
        fates = self.cluster.fates["coordinator"]
        fate = fates.pop(0) if fates else 0
        if fate == LOST:
            self.close()
        elif fate == 0 or fate == LOST_AFTER:
            answer = self.cluster.coordinate(key, body)
            if fate == LOST_AFTER:
                self.close()
        else:
            answer = self.cluster.refusal(key, body, fate)
        if not self.is_open:
            raise ConnectionResetError
        encoded = messages.encode_response(key, header.api_version, {"throttle_time": 0, **answer})
        return memoryview(struct.pack(">i", 0) + encoded)

    def send(self, frame: bytes, on_answer: Callable[[memoryview | None], None]) -> None:
        payload = memoryview(frame)[4:]
        request = produce_codec.decode_request(PRODUCE_VERSION, payload, parse_request_header(payload).body_offset)
        assert request.transactional_id == "id"
        ((_, batches),) = request.topics
        self.waiting.append(on_answer)
        asyncio.get_running_loop().call_soon(self._answer, batches)

    def _answer(self, batches: list[tuple[int, memoryview]]) -> None:
        if not self.is_open:
            return
        fates = self.cluster.fates["leader"]
        fate = fates.pop(0) if fates else 0
        if fate == LOST:
            self.close()
            return
        results = [
            (number, fate if fate and fate > 0 else self.cluster.append(number, batch)) for number, batch in batches
        ]
        if fate == LOST_AFTER:
            self.close()
            return
        rows = b"".join(struct.pack(">ihqqq", number, error, -1 if error else 0, -1, 0) for number, error in results)
        self.waiting.pop(0)(memoryview(struct.pack(">iih1si", 0, 1, 1, TOPIC.encode(), len(results)) + rows))

    def close_if_stuck(self, timeout_s: float) -> None:
        pass

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            for on_answer in self.waiting:
                on_answer(None)


Step = int | str
"""A batch for a partition, offsets of both partitions, or the end of a transaction."""


def play(cluster: FakeCluster, steps: list[Step], pause: int = 0) -> list[Operation]:
    """Sends the steps; each batch has one record more than the one before. Returns the operations in their order, as they ended."""
    done: list[Operation] = []
    operations: list[Operation] = []

    async def run() -> None:
        background = Background()
        view = cast(ClusterView, cluster)
        common = ("c", 9, RUN, view, background, lambda: S, 10 * S, done.append)
        producer = TransactionalProducer(*common, "id", START_OFFSETS)
        for number, step in enumerate(steps):
            if step == OFFSETS:
                of_step = [Operation(OFFSETS, number, 9, TOPIC, at, 0, 0, S, group="group") for at in range(2)]
            elif isinstance(step, str):
                of_step = [Operation(step, number, 9, "", 0, 0, 0, S)]
            else:
                of_step = [Operation("produce", number, 9, TOPIC, step, number + 1, 200, S, acks=-1)]
            operations.extend(of_step)
            for operation in of_step:
                producer.add(operation)
            producer.flush()
            for _ in range(pause):
                await asyncio.sleep(0)
        for _ in range(20_000):
            if len(done) == len(operations):
                break
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        await producer.abort()
        assert not background.failed.done()
        producer.give_up()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transactions, "RETRY_S", 0)
        asyncio.run(run())
    assert len(done) == len(operations) == len(set(map(id, done)))
    return operations


def wanted(steps: list[Step]) -> list[tuple[bool, list[tuple[int, int]]]]:
    """What the cluster has if nothing fails: each transaction, whether it was committed, with its batches."""
    found: list[tuple[bool, list[tuple[int, int]]]] = [(False, [])]
    for number, step in enumerate(steps):
        if step == OFFSETS:
            found[-1] = (False, list({*found[-1][1], *OFFSETS_EXPECTED}))
        elif isinstance(step, str):
            found[-1] = (step == COMMIT, found[-1][1])
            found.append((False, []))
        else:
            found[-1][1].append((int(step), number + 1))
    return [(is_commit, sorted(batches)) for is_commit, batches in found if batches]


@settings(max_examples=150)
@given(
    steps=st.lists(st.sampled_from([0, 0, 1, OFFSETS, COMMIT, ABORT]), max_size=25),
    fates=st.lists(st.sampled_from(PASSING), max_size=40),
    of_batches=st.lists(st.sampled_from([LOST, LOST_AFTER, ErrorCode.NOT_LEADER_OR_FOLLOWER, 0, 0, 0]), max_size=40),
    pause=st.integers(0, 3),
)
def test_transactions_end_as_in_the_trace_whatever_passes(
    steps: list[Step], fates: list[int | None], of_batches: list[int | None], pause: int
) -> None:
    """What the trace leaves open is aborted at the end."""
    cluster = FakeCluster(fates, of_batches)
    operations = play(cluster, steps, pause)
    assert {operation.error for operation in operations} <= {None}
    assert [(is_commit, sorted(batches)) for is_commit, batches in cluster.ended] == wanted(steps)
    assert cluster.epoch <= 0 or None in fates or LOST_AFTER in fates, "one epoch, unless an answer with one was lost"
    numbers = [operation.transaction for operation in operations]
    assert numbers == [
        sum(step in (COMMIT, ABORT) for step in steps[:at])
        for at, step in enumerate(steps)
        for _ in range(2 if step == OFFSETS else 1)
    ]


def test_a_transaction_with_a_refused_batch_is_aborted_and_the_next_one_is_committed() -> None:
    cluster = FakeCluster(of_batches=[0, ErrorCode.MESSAGE_TOO_LARGE])
    operations = play(cluster, [0, 1, 0, COMMIT, 0, COMMIT, 0, ABORT], pause=20)
    aborted = "the transaction was aborted: MESSAGE_TOO_LARGE"
    assert [operation.error for operation in operations] == [None, "MESSAGE_TOO_LARGE", aborted, aborted, *[None] * 4]
    assert cluster.ended == [(False, [(0, 1)]), (True, [(0, 5)]), (False, [(0, 7)])]
    assert cluster.epoch == 1


def test_a_transaction_whose_offsets_are_refused_is_aborted() -> None:
    """By the group's coordinator, at TxnOffsetCommit."""
    cluster = FakeCluster(fates=[0, 0, 0, ErrorCode.GROUP_AUTHORIZATION_FAILED])
    operations = play(cluster, [OFFSETS, 0, COMMIT, OFFSETS, COMMIT])
    reason = "GROUP_AUTHORIZATION_FAILED"
    aborted = f"the transaction was aborted: {reason}"
    assert [operation.error for operation in operations] == [reason, reason, aborted, aborted, *[None] * 3]
    assert cluster.ended == [(False, []), (True, OFFSETS_EXPECTED)]


@pytest.mark.parametrize("refused_at", [1, 2])
def test_a_producer_that_was_fenced_says_so_and_goes_on_with_a_new_epoch(refused_at: int) -> None:
    """At AddPartitionsToTxn or at EndTxn."""
    cluster = FakeCluster(fates=[0] * refused_at + [ErrorCode.INVALID_PRODUCER_EPOCH])
    operations = play(cluster, [0, COMMIT, 0, COMMIT])
    errors = [operation.error or "" for operation in operations]
    assert ["INVALID_PRODUCER_EPOCH" in error for error in errors] == [refused_at == 1, True, False, False]
    assert cluster.ended[-1] == (True, [(0, 3)])


def test_the_end_of_a_transaction_without_batches_asks_nobody() -> None:
    cluster = FakeCluster()
    (operation,) = play(cluster, [COMMIT])
    assert (operation.error, cluster.finds, operation.answered) == (None, 0, S)
