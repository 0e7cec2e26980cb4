"""The APIs of transactional producers and of admins, over a real coordinator (TXN-1, TXN-2, TXN-4; KIP-360, KIP-664, KIP-890)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from broker.transactions.transaction import ProducerIdAndEpoch
from protocol.errors import ErrorCode
from protocol.kafka.api_keys import SUPPORTED, ApiKey
from protocol.topic_names import OFFSETS_TOPIC
from protocol.types import TopicPartition
from protocol.zk.znodes import TopicZNode
from tests.support.api_world import World
from tests.support.fake_groups import FakeGroups
from tests.support.transaction_cluster import ID, T0, TransactionCluster

FENCED = ErrorCode.PRODUCER_FENCED
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def versions(key: ApiKey) -> range:
    return range(SUPPORTED[key].min, SUPPORTED[key].max + 1)


class TransactionWorld(World):
    """The APIs of broker 1, which coordinates all ids alone."""

    def __init__(self, cluster: TransactionCluster) -> None:
        super().__init__()
        self.cluster = cluster
        self.context.transactions = cluster.coordinators[1]
        self.context.metadata = cluster.nodes[1].metadata
        self.context.groups = FakeGroups()

    async def ask(self, api_key: ApiKey, version: int, body: Mapping[str, Any]) -> Any:
        connection, waiting = self.begin(api_key, version, body)
        if waiting is not None:
            await waiting
        await self.cluster.until(lambda: bool(connection.sent))
        return self.answer(connection, api_key, version)

    async def init(self, version: int, producer: ProducerIdAndEpoch | None = None) -> tuple[int, int, int]:
        producer_id, epoch = producer or (-1, -1)
        body = {
            "transactional_id": ID,
            "transaction_timeout": 60_000,
            "producer_id": producer_id,
            "producer_epoch": epoch,
        }
        answer = await self.ask(ApiKey.INIT_PRODUCER_ID, version, body)
        return int(answer.error_code), int(answer.producer_id), int(answer.producer_epoch)

    async def add(
        self, version: int, producer: ProducerIdAndEpoch, *partitions: int, verify_only: bool = False
    ) -> dict[int, ErrorCode]:
        topics = [{"name": "t", "partitions": partitions}]
        body: dict[str, Any] = {
            "v3_and_below_transactional_id": ID,
            "v3_and_below_producer_id": producer.producer_id,
            "v3_and_below_producer_epoch": producer.epoch,
            "v3_and_below_topics": topics,
            "transactions": [
                {
                    "transactional_id": ID,
                    "producer_id": producer.producer_id,
                    "producer_epoch": producer.epoch,
                    "verify_only": verify_only,
                    "topics": topics,
                }
            ],
        }
        answer = await self.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, body)
        if version < 4:
            (topic,) = answer.results_by_topic_v3_and_below
        else:
            assert answer.error_code == 0
            ((topic,),) = (result.topic_results for result in answer.results_by_transaction)
        return {int(r.partition_index): ErrorCode(r.partition_error_code) for r in topic.results_by_partition}

    async def end(self, version: int, producer: ProducerIdAndEpoch, *, committed: bool = True) -> ErrorCode:
        body = {
            "transactional_id": ID,
            "producer_id": producer[0],
            "producer_epoch": producer[1],
            "committed": committed,
        }
        return ErrorCode((await self.ask(ApiKey.END_TXN, version, body)).error_code)

    async def add_offsets(self, version: int, producer: ProducerIdAndEpoch, group: str) -> ErrorCode:
        body = {"transactional_id": ID, "producer_id": producer[0], "producer_epoch": producer[1], "group_id": group}
        return ErrorCode((await self.ask(ApiKey.ADD_OFFSETS_TO_TXN, version, body)).error_code)

    async def described(self, transactional_id: str = ID) -> tuple[Any, ...]:
        answer = await self.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": [transactional_id]})
        (row,) = answer.transaction_states
        topics = {str(topic.topic): list(topic.partitions) for topic in row.topics}
        return row.error_code, row.transaction_state, int(row.producer_id), int(row.producer_epoch), topics


@pytest.fixture
def cluster(tmp_path: Path, fetchers_are_driven_by_hand: None) -> Iterator[TransactionCluster]:
    cluster = TransactionCluster(tmp_path, {})
    yield cluster
    cluster.close()


@pytest.fixture
def world(cluster: TransactionCluster, runner: asyncio.Runner) -> TransactionWorld:
    """Broker 1 coordinates all transactions."""
    runner.run(cluster.start(1))
    cluster.leaders = dict.fromkeys(cluster.leaders, 1)
    runner.run(cluster.serve(1, 0, (1,)))
    return TransactionWorld(cluster)


@pytest.mark.parametrize("version", versions(ApiKey.INIT_PRODUCER_ID))
async def test_init_producer_id(world: TransactionWorld, version: int) -> None:
    assert await world.init(version) == (0, 1000, 0)
    assert await world.init(version) == (0, 1000, 1)
    if version >= 3:
        assert await world.init(version, ProducerIdAndEpoch(1000, 1)) == (0, 1000, 2)
        assert await world.init(version, ProducerIdAndEpoch(1000, 1)) == (0, 1000, 2), "a repetition"
        error = FENCED if version >= 4 else ErrorCode.INVALID_PRODUCER_EPOCH
        assert await world.init(version, ProducerIdAndEpoch(1000, 0)) == (error, -1, -1)
        assert (await world.init(version, ProducerIdAndEpoch(1000, -1)))[0] == ErrorCode.INVALID_REQUEST
    body = {"transactional_id": "", "transaction_timeout": 1, "producer_id": -1, "producer_epoch": -1}
    assert (await world.ask(ApiKey.INIT_PRODUCER_ID, version, body)).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", versions(ApiKey.ADD_PARTITIONS_TO_TXN))
async def test_partitions(world: TransactionWorld, cluster: TransactionCluster, version: int) -> None:
    """One unknown partition, and none is added."""
    producer = await cluster.new_producer(1)
    assert await world.add(version, producer, 0, 77) == {0: ErrorCode.OPERATION_NOT_ATTEMPTED, 77: UNKNOWN}
    assert cluster.state(1) == "Empty"
    assert await world.add(version, producer, 1, 0) == {0: ErrorCode.NONE, 1: ErrorCode.NONE}
    assert await world.described() == (0, "Ongoing", 1000, 0, {"t": [0, 1]})
    fenced = FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert await world.add(version, ProducerIdAndEpoch(1000, 4), 0) == {0: fenced}
    if version >= 4:
        verified = await world.add(version, producer, 0, 2, 77, verify_only=True)
        abortable = ErrorCode.TRANSACTION_ABORTABLE
        assert verified == {0: ErrorCode.NONE, 2: abortable, 77: abortable}


@pytest.mark.parametrize("version", [4, 5])
async def test_batches_of_brokers(world: TransactionWorld, cluster: TransactionCluster, version: int) -> None:
    """Answered when all are; refused on a listener for clients."""
    producer = await cluster.new_producer(1)
    rows = [
        {
            "transactional_id": transactional_id,
            "producer_id": producer.producer_id,
            "producer_epoch": producer.epoch,
            "verify_only": False,
            "topics": [{"name": "t", "partitions": [0]}],
        }
        for transactional_id in ("other", ID)
    ]
    answer = await world.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, {"transactions": rows})
    found = {
        str(result.transactional_id): result.topic_results[0].results_by_partition[0].partition_error_code
        for result in answer.results_by_transaction
    }
    assert found == {"other": ErrorCode.INVALID_PRODUCER_ID_MAPPING, ID: 0}
    assert not (await world.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, {"transactions": []})).results_by_transaction
    world.context.replica_listener = "BROKERS"
    refused = await world.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, {"transactions": rows})
    assert refused.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


async def test_two_phases_are_refused(world: TransactionWorld) -> None:
    """KIP-939, as by a Kafka 4.1 that does not enable them. The client that wants neither goes on as before."""
    body = {"transactional_id": ID, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
    for wishes, error in (
        ({"enable2_pc": True}, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        ({"enable2_pc": True, "keep_prepared_txn": True}, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        ({"keep_prepared_txn": True}, ErrorCode.UNSUPPORTED_VERSION),
        ({}, ErrorCode.NONE),
    ):
        answer = await world.ask(ApiKey.INIT_PRODUCER_ID, 6, body | wishes)
        assert (answer.error_code, answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch) == (error, -1, -1)


@pytest.mark.parametrize("committed", [True, False])
async def test_an_end_that_raises_the_epoch(
    world: TransactionWorld, cluster: TransactionCluster, committed: bool
) -> None:
    """TXN-6."""
    producer = await cluster.new_producer(1)
    body = {"transactional_id": ID, "producer_id": 1000, "producer_epoch": 0, "committed": committed}
    assert await world.add(5, producer, 0) == {0: ErrorCode.NONE}
    for _ in range(2):
        answer = await world.ask(ApiKey.END_TXN, 5, body)
        assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (0, 1000, 1)
        await cluster.until(lambda: cluster.state(1).startswith("Complete"))
    assert cluster.markers == [(1, "t-0", 1000, 1, committed, 0)]
    assert await world.add(5, producer, 0) == {0: FENCED}
    refused = await world.ask(ApiKey.END_TXN, 5, body | {"producer_epoch": 7})
    assert (refused.error_code, refused.producer_id, refused.producer_epoch) == (FENCED, -1, -1)


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("committed", [True, False])
async def test_the_end(world: TransactionWorld, cluster: TransactionCluster, version: int, committed: bool) -> None:
    producer = await cluster.new_producer(1)
    assert await world.end(version, producer) is ErrorCode.INVALID_TXN_STATE
    assert await cluster.add(1, producer, T0) is ErrorCode.NONE
    fenced = FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert await world.end(version, ProducerIdAndEpoch(1000, 1)) is fenced
    assert await world.end(version, producer, committed=committed) is ErrorCode.NONE
    await cluster.until(lambda: cluster.state(1).startswith("Complete"))
    assert [marker[4] for marker in cluster.markers] == [committed]


@pytest.mark.parametrize("version", versions(ApiKey.ADD_OFFSETS_TO_TXN))
async def test_offsets_of_a_group(world: TransactionWorld, cluster: TransactionCluster, version: int) -> None:
    """The fake coordinator's groups are in the partition with as many as their ids have characters.

    The first request creates the topic; a partition that does not exist is not added.
    """
    producer = await cluster.new_producer(1)
    world.zk.ensure("/config/topics")
    assert await world.add_offsets(version, producer, "333") is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert TopicZNode.path(OFFSETS_TOPIC) in world.zk.nodes
    cluster.leaders[TopicPartition(OFFSETS_TOPIC, 3)] = 1
    cluster.tell_metadata()
    assert await world.add_offsets(version, producer, "4444") is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert cluster.state(1) == "Empty"
    assert await world.add_offsets(version, producer, "333") is ErrorCode.NONE
    assert (await world.described())[-1] == {"__consumer_offsets": [3]}
    fenced = FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert await world.add_offsets(version, ProducerIdAndEpoch(1000, 9), "333") is fenced


@pytest.mark.parametrize("version", versions(ApiKey.LIST_TRANSACTIONS))
async def test_lists(world: TransactionWorld, cluster: TransactionCluster, version: int) -> None:
    producer = await cluster.new_producer(1)
    await cluster.add(1, producer, T0)

    async def listed(**body: Any) -> tuple[list[str], list[str]]:
        body = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1, **body}
        answer = await world.ask(ApiKey.LIST_TRANSACTIONS, version, body)
        assert answer.error_code == 0
        names = [str(row.transactional_id) for row in answer.transaction_states]
        return names, list(answer.unknown_state_filters)

    assert await listed() == ([ID], [])
    assert await listed(state_filters=["Ongoing", "Sleeping"]) == ([ID], ["Sleeping"])
    assert await listed(state_filters=["Sleeping"]) == ([], ["Sleeping"])
    assert await listed(producer_id_filters=[1]) == ([], [])
    assert (await listed(duration_filter=10**9))[0] == ([] if version >= 1 else [ID])


@pytest.mark.parametrize(
    ("pattern", "found"),
    [(None, True), ("", True), (ID, True), (f"{ID[0]}.*", True), (ID[:-1], False), ("(", None), ("(?=a)", None)],
)
async def test_lists_those_that_match_a_whole_expression(
    world: TransactionWorld, cluster: TransactionCluster, pattern: str | None, found: bool | None
) -> None:
    """KIP-1152. None: the expression is none."""
    await cluster.new_producer(1)
    body = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1, "transactional_id_pattern": pattern}
    answer = await world.ask(ApiKey.LIST_TRANSACTIONS, 2, body)
    error = ErrorCode.INVALID_REGULAR_EXPRESSION if found is None else ErrorCode.NONE
    assert (answer.error_code, [row.transactional_id for row in answer.transaction_states]) == (
        error,
        [ID] if found else [],
    )


async def test_descriptions_of_ids_that_are_not_there(world: TransactionWorld, cluster: TransactionCluster) -> None:
    assert (await world.described("other"))[0] == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert (await world.described(""))[0] == ErrorCode.INVALID_REQUEST
    await cluster.coordinators[1].close()
    assert (await world.described())[0] == ErrorCode.NOT_COORDINATOR
