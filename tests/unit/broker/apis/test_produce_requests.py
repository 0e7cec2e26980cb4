"""Produce as a client sees it: what is refused before anything reaches a log (REP-4)."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from broker.authorization.authorizer import Authorizer
from broker.requests.long_answers import LongAnswers
from protocol.errors import ErrorCode
from protocol.kafka import produce_codec
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.framing import MalformedRequest, unsigned_varint
from protocol.kafka.produce_codec import ProducePartitionResult
from protocol.kafka.record_batch import TRANSACTIONAL_BIT, build_batch
from protocol.types import TopicPartition
from tests.support.api_world import OTHER_ID, T_ID, World

PLAIN = build_batch([(b"key", b"value", (), 1_000)])
TRANSACTIONAL = build_batch(
    [(b"key", b"value", (), 1_000)], producer_id=5, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL_BIT
)
TRANSACTIONAL_WITHOUT_PRODUCER = build_batch([(b"key", b"value", (), 1_000)], attributes=TRANSACTIONAL_BIT)


VERIFIED, ADDED = -1, -2
"""In the place of a partition: what becomes of the request's partitions at the transaction coordinator."""


class Appends:
    """Takes the replica manager's place."""

    def __init__(self, error: ErrorCode = ErrorCode.NONE) -> None:
        self.taken: list[TopicPartition] = []
        self.appends = self
        self.partitions = self
        self._error = error

    def topic_name(self, topic_id: uuid.UUID) -> str | None:
        return "t" if topic_id == T_ID else None

    def resolve(self, topic_id: uuid.UUID, number: int) -> TopicPartition | None:
        return TopicPartition("t", number) if topic_id == T_ID else None

    def append_in_slices(
        self, acks: int, timeout_ms: int, entries: Sequence[tuple[TopicPartition, Any]], respond: Any
    ) -> None:
        self.taken += [tp for tp, _ in entries]
        respond([ProducePartitionResult(tp.partition, self._error, 0) for tp, _ in entries])

    def append_transactional(self, transactional_id: str, *arguments: Any, adds: bool) -> None:
        self.taken.append(TopicPartition(transactional_id, ADDED if adds else VERIFIED))
        self.append_in_slices(*arguments)


def produced(
    batches: Sequence[bytes],
    *,
    transactional_id: str | None = None,
    version: int = 9,
    indexes: Sequence[int] | None = None,
    error: ErrorCode = ErrorCode.NONE,
) -> tuple[list[tuple[ErrorCode, str | None]], list[TopicPartition]]:
    """The answers for partitions 0, 1, ... of topic `t`, and what was appended. `error`: that of each append."""
    world = World()
    appends = world.context.replica_manager = Appends(error)
    partitions = [
        {"index": index, "records": batch} for index, batch in zip(indexes or range(len(batches)), batches, strict=True)
    ]
    body = {
        "transactional_id": transactional_id,
        "acks": -1,
        "timeout": 1_000,
        "topic_data": [{"name": "t", "topic_id": T_ID, "partition_data": partitions}],
    }
    connection, _ = world.begin(ApiKey.PRODUCE, version, body)
    answer = World.answer(connection, ApiKey.PRODUCE, version)
    rows = [
        (ErrorCode(row.error_code), getattr(row, "error_message", None))
        for topic in answer.responses
        for row in topic.partition_responses
    ]
    return rows, appends.taken


@pytest.mark.parametrize("version", [3, 7, 9, 11, 12, 13])
def test_a_plain_batch_is_appended(version: int) -> None:
    assert produced([PLAIN], version=version) == ([(ErrorCode.NONE, None)], [TopicPartition("t", 0)])


@pytest.mark.parametrize("version", [3, 7, 9, 11, 12, 13])
@pytest.mark.parametrize("batch", [TRANSACTIONAL, TRANSACTIONAL_WITHOUT_PRODUCER], ids=["producer", "no-producer"])
def test_a_transactional_batch_needs_a_transactional_id(batch: bytes, version: int) -> None:
    """The error is Kafka's, and the whole request is refused."""
    rows, appended = produced([PLAIN, batch], version=version)
    assert [code for code, _ in rows] == [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED] * 2
    assert version < 8 or all(message and "transaction" in message for _, message in rows)
    assert appended == []


@pytest.mark.parametrize(("version", "how"), [(3, VERIFIED), (11, VERIFIED), (12, ADDED), (13, ADDED)])
def test_a_transactional_request_is_appended_as_such(version: int, how: int) -> None:
    rows, appended = produced([TRANSACTIONAL, PLAIN], transactional_id="mine", version=version)
    assert [code for code, _ in rows] == [ErrorCode.NONE] * 2
    assert appended == [TopicPartition("mine", how), TopicPartition("t", 0), TopicPartition("t", 1)]


@pytest.mark.parametrize(
    ("version", "answer"), [(10, ErrorCode.INVALID_TXN_STATE), (11, ErrorCode.TRANSACTION_ABORTABLE)]
)
def test_older_clients_do_not_know_transaction_abortable(version: int, answer: ErrorCode) -> None:
    """KIP-890."""
    rows, _ = produced([TRANSACTIONAL], transactional_id="mine", version=version, error=ErrorCode.TRANSACTION_ABORTABLE)
    assert [code for code, _ in rows] == [answer]


@pytest.mark.parametrize("is_guarded", [False, True])
@pytest.mark.parametrize("acks", [-1, 0])
def test_an_unknown_id_concerns_its_partitions_only(is_guarded: bool, acks: int) -> None:
    """KIP-516: as in Kafka, with acks=0 the connection is closed."""
    world = World()
    appends = world.context.replica_manager = Appends()
    if is_guarded:
        world.context.authorizer = Authorizer(frozenset(), allow_if_none=True)
    rows = [{"index": index, "records": PLAIN} for index in (0, 1)]
    topics = [{"topic_id": topic_id, "partition_data": rows} for topic_id in (OTHER_ID, T_ID, None)]
    body = {"transactional_id": None, "acks": acks, "timeout": 1_000, "topic_data": topics}
    connection, _ = world.begin(ApiKey.PRODUCE, 13, body)
    assert appends.taken == [TopicPartition("t", 0), TopicPartition("t", 1)]
    if acks == 0:
        assert ["UNKNOWN_TOPIC_ID" in reason for reason in connection.reasons] == [True]
        return
    answer = World.answer(connection, ApiKey.PRODUCE, 13)
    unknown = [ErrorCode.UNKNOWN_TOPIC_ID] * 2
    assert [(topic.topic_id, [row.error_code for row in topic.partition_responses]) for topic in answer.responses] == [
        (OTHER_ID, unknown),
        (T_ID, [ErrorCode.NONE] * 2),
        (None, unknown),
    ]


def test_a_partition_without_records_is_not_transactional() -> None:
    assert produced([b"", PLAIN[:22], PLAIN])[1] == [TopicPartition("t", n) for n in range(3)]


@pytest.mark.parametrize("version", [3, 8, 11, 13])
def test_a_partition_that_is_named_twice_refuses_the_request(version: int) -> None:
    """Before any append: a request could have thousands of 2 KB batches that each unpack to 64 MiB."""
    rows, appended = produced([PLAIN] * 3, version=version, indexes=[0, 1, 0])
    assert [code for code, _ in rows] == [ErrorCode.INVALID_REQUEST] * 3
    assert appended == []


def test_a_request_of_thousands_of_partitions_is_decoded_in_steps() -> None:
    count = produce_codec.PARTITIONS_MAX // 2
    frame = produce_frame(count)
    steps = produce_codec.decoding(9, frame, 0)
    assert sum(1 for _ in steps) == count // produce_codec.STEP
    assert len(produce_codec.decode_request(9, frame, 0).topics[0][1]) == count


def test_a_request_of_more_partitions_than_a_broker_has() -> None:
    with pytest.raises(MalformedRequest, match="partitions"):
        produce_codec.decode_request(9, produce_frame(produce_codec.PARTITIONS_MAX), 0)


def produce_frame(partitions: int) -> memoryview:
    """The body, v9, of partitions without records."""
    rows = b"".join(number.to_bytes(4, "big") + b"\x00\x00" for number in range(partitions))
    head = b"\x00" + b"\xff\xff" + bytes(4) + b"\x02" + b"\x02t"
    return memoryview(head + unsigned_varint(partitions + 1) + rows + b"\x00\x00")


async def test_thousands_of_topics_are_checked_with_pauses() -> None:
    """NET-4: a turn of the loop that looks up the rights on 9,000 topics took a tenth of a second."""
    world = World()
    turn = 0
    turns: list[int] = []

    class Denies(Authorizer):
        def allows(self, *_: Any) -> bool:
            turns.append(turn)
            return False

    async def count() -> None:
        nonlocal turn
        while True:
            await asyncio.sleep(0)
            turn += 1

    world.context.long_answers = LongAnswers(time.monotonic)
    world.context.authorizer = Denies(frozenset(), allow_if_none=False)
    world.context.replica_manager = Appends()
    world.context.replica_manager.client_budget = SimpleNamespace(pause=lambda: asyncio.sleep(0))
    topics = [{"name": f"topic-{number}", "partition_data": [{"index": 0, "records": PLAIN}]} for number in range(9000)]
    body = {"transactional_id": None, "acks": 1, "timeout": 1000, "topic_data": topics}
    counting = asyncio.create_task(count())
    connection, waiting = world.begin(ApiKey.PRODUCE, 9, body)
    assert waiting is not None
    await waiting
    async with asyncio.timeout(10):
        while not connection.sent:  # noqa: ASYNC110  the answer is written in steps, too
            await asyncio.sleep(0)
    counting.cancel()
    answer = World.answer(connection, ApiKey.PRODUCE, 9)
    assert {row.error_code for topic in answer.responses for row in topic.partition_responses} == {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED
    }
    assert len(turns) == 9000
    assert len(set(turns)) > 5
    assert max(Counter(turns).values()) < 3000
