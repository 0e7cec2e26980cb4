"""The leader of a partition asks the coordinator before a transaction's first batch (TXN-4, KIP-890); queues for each broker."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import pytest

from broker.cluster.metadata_cache import MetadataCache
from broker.transactions import verification
from broker.transactions.peers import BrokerQueues, PeerUnavailable
from broker.transactions.states import TransactionVersion
from broker.transactions.transaction import ProducerIdAndEpoch
from broker.transactions.verification import VERSION, CoordinatorVerifier
from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from protocol.rpc.messages import PartitionState, UpdateMetadataRequest
from protocol.topic_names import TRANSACTION_STATE_TOPIC
from protocol.types import BrokerInfo, TopicPartition
from tests.support.fake_groups import FakeOwnership

A, B = TopicPartition("a", 0), TopicPartition("b", 1)
OWN, OTHER = 1, 2
Reply = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def answers(*codes: tuple[str, int, ErrorCode], whole: ErrorCode = ErrorCode.NONE) -> Reply:
    """An answer about every transaction that is asked for."""

    def reply(body: Mapping[str, Any]) -> Mapping[str, Any]:
        rows = [
            {
                "transactional_id": asked["transactional_id"],
                "topic_results": [
                    {
                        "name": topic,
                        "results_by_partition": [{"partition_index": partition, "partition_error_code": int(code)}],
                    }
                    for topic, partition, code in codes
                ],
            }
            for asked in body["transactions"]
        ]
        return {"throttle_time": 0, "error_code": int(whole), "results_by_transaction": rows}

    return reply


class World:
    """Broker 1 asks; the partition of an id is as many as it has characters: 1 is coordinated here, 2 by broker 2, 3 by nobody."""

    def __init__(self, reply: Reply) -> None:
        self.reply: Reply | None = reply
        self.asked: list[list[str]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        metadata = MetadataCache()
        states = [
            PartitionState(TRANSACTION_STATE_TOPIC, n, 1, leader, 0, (1, 2), 0, (1, 2))
            for n, leader in ((1, OWN), (2, OTHER), (3, -1), (4, 9))
        ]
        brokers = (BrokerInfo(OWN, 1, ()), BrokerInfo(OTHER, 2, ()))
        metadata.update(UpdateMetadataRequest(1, 1, 1, tuple(states), {}, brokers))
        self.verifier = CoordinatorVerifier(OWN, metadata, self, self)
        self.verify_only = True
        self.added: list[tuple[str, ProducerIdAndEpoch, Sequence[TopicPartition]]] = []
        """What was added here."""
        self.own_errors: list[ErrorCode] = []
        self.ownership = FakeOwnership()

    def partition_of(self, transactional_id: str) -> int:
        return len(transactional_id)

    def verify(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        return dict.fromkeys(partitions, ErrorCode.PRODUCER_FENCED)

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
        respond: Callable[[ErrorCode], None],
        version: TransactionVersion,
    ) -> None:
        assert version is TransactionVersion.TV_2
        self.added.append((transactional_id, producer, tuple(partitions)))
        respond(self.own_errors.pop(0) if self.own_errors else ErrorCode.NONE)

    async def ask(self, broker_id: int, api_key: ApiKey, version: int, body: Mapping[str, Any]) -> Any:
        assert (broker_id, api_key, version) == (OTHER, ApiKey.ADD_PARTITIONS_TO_TXN, VERSION)
        messages.encode_request(api_key, version, 1, "test", body)
        assert all(row["verify_only"] is self.verify_only for row in body["transactions"])
        self.asked.append([row["transactional_id"] for row in body["transactions"]])
        await self.may_answer.wait()
        if self.reply is None:
            raise PeerUnavailable("away")
        encoded = b"\0\0\0\1\0" + messages.encode_response(api_key, version, self.reply(body))
        return messages.decode_response(api_key, version, encoded)[1]

    def close(self) -> None:
        """Nothing is open."""

    async def verified(self, transactional_id: str, *partitions: TopicPartition) -> list[str]:
        found = await self.verifier.verify(transactional_id, 7, 0, partitions or (A,))
        return [found[tp].name for tp in partitions or (A,)]

    async def add(self, transactional_id: str, *partitions: TopicPartition) -> list[str]:
        found = await self.verifier.add(transactional_id, 7, 0, partitions or (A,))
        return [found[tp].name for tp in partitions or (A,)]


async def test_who_is_asked() -> None:
    world = World(answers(("a", 0, ErrorCode.NONE), ("b", 1, ErrorCode.TRANSACTION_ABORTABLE)))
    assert await world.verified("x") == ["INVALID_PRODUCER_EPOCH"], (
        "this broker, and producers do not know PRODUCER_FENCED"
    )
    assert await world.verified("xx", A, B) == ["NONE", "TRANSACTION_ABORTABLE"]
    for nobody in ("xxx", "xxxx", "xxxxx"):
        assert await world.verified(nobody) == ["COORDINATOR_NOT_AVAILABLE"]
    assert world.asked == [["xx"]]


async def test_the_own_answer_waits_until_this_broker_is_certain_that_it_coordinates() -> None:
    world = World(answers(("a", 0, ErrorCode.NONE)))
    world.ownership.certain = False
    await world.verified("xx")
    assert world.ownership.confirmations == 0
    await world.verified("x")
    await world.add("x", A)
    assert world.ownership.confirmations == 2


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (None, "NETWORK_EXCEPTION"),
        (answers(whole=ErrorCode.CLUSTER_AUTHORIZATION_FAILED), "INVALID_TXN_STATE"),
        (answers(whole=ErrorCode.COORDINATOR_NOT_AVAILABLE), "COORDINATOR_NOT_AVAILABLE"),
        (answers(("a", 0, ErrorCode.PRODUCER_FENCED)), "INVALID_PRODUCER_EPOCH"),
        (answers(("other", 0, ErrorCode.NONE)), "UNKNOWN_SERVER_ERROR"),
        (lambda body: {"throttle_time": 0, "error_code": 0, "results_by_transaction": []}, "UNKNOWN_SERVER_ERROR"),
        (lambda body: {}, "UNKNOWN_SERVER_ERROR"),
    ],
)
async def test_failures(reply: Reply, error: str) -> None:
    world = World(reply)
    assert await world.verified("xx") == [error]


async def test_partitions_are_added_where_the_id_is_coordinated() -> None:
    """TXN-6."""
    world = World(answers(("a", 0, ErrorCode.NONE), ("b", 1, ErrorCode.PRODUCER_FENCED)))
    world.verify_only = False
    assert await world.add("x", A, B) == ["NONE", "NONE"]
    assert world.added == [("x", (7, 0), (A, B))]
    assert await world.add("xx", A, B) == ["NONE", "INVALID_PRODUCER_EPOCH"]
    assert await world.add("xxx") == ["COORDINATOR_NOT_AVAILABLE"]
    assert world.asked == [["xx"]]


async def test_partitions_are_added_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the last transaction is being completed, or the coordinator has not heard of a new topic."""
    monkeypatch.setattr(verification, "ADD_AGAIN_S", 0.0)
    world = World(answers(("a", 0, ErrorCode.CONCURRENT_TRANSACTIONS)))
    world.verify_only = False
    world.own_errors = [ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert (await world.add("x"), len(world.added)) == (["NONE"], 3)
    assert await world.add("xx") == ["CONCURRENT_TRANSACTIONS"]
    assert len(world.asked) == verification.ADD_ATTEMPTS


async def test_questions_go_together_and_an_id_once() -> None:
    world = World(answers(("a", 0, ErrorCode.NONE)))
    world.may_answer.clear()
    asking = [asyncio.create_task(world.verified(name)) for name in ("ab", "cd", "ef", "cd")]
    for _ in range(5):
        await asyncio.sleep(0)
    world.may_answer.set()
    assert await asyncio.gather(*asking) == [["NONE"]] * 4
    assert world.asked == [["ab", "cd", "ef"], ["cd"]]


async def test_a_stop_answers_who_waits() -> None:
    world = World(answers(("a", 0, ErrorCode.NONE)))
    world.may_answer.clear()
    asking = [asyncio.create_task(world.verified(name)) for name in ("ab", "cd")]
    for _ in range(5):
        await asyncio.sleep(0)
    asking.append(asyncio.create_task(world.verified("ef")))
    await asyncio.sleep(0)
    await world.verifier.close()
    assert await asyncio.gather(*asking) == [["COORDINATOR_NOT_AVAILABLE"]] * 3
    assert await world.verified("gh") == ["COORDINATOR_NOT_AVAILABLE"]


async def test_a_queue_goes_on_after_a_bug(caplog: pytest.LogCaptureFixture) -> None:
    done = []

    async def send(broker_id: int, queue: deque[int]) -> None:
        item = queue.popleft()
        await asyncio.sleep(0)
        if item == 1:
            raise RuntimeError("a bug")
        done.append((broker_id, item))

    queues = BrokerQueues(send)
    for item in range(3):
        queues.add(7, item)
    queues.add(8, 5)
    for _ in range(20):
        await asyncio.sleep(0)
    assert sorted(done) == [(7, 0), (7, 2), (8, 5)]
    assert "a bug" in caplog.text
    await queues.close()
    queues.add(7, 9)
    assert len(queues) == 0
