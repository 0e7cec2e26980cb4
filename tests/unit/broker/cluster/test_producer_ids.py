"""Producer ids in blocks from ZooKeeper, and InitProducerId: LOG-5, FLT-19."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from broker.cluster.producer_ids import BLOCK_SIZE, ProducerIds
from protocol.errors import ErrorCode
from protocol.kafka.api_keys import ApiKey
from protocol.zk.znodes import PRODUCER_ID_MAX, ProducerIdBlockZNode
from tests.support.api_world import World
from tests.support.memory_zookeeper import MemorySession, MemoryZooKeeper
from tests.support.refusals import refused

PATH = ProducerIdBlockZNode.PATH


def ids_of(zk: MemoryZooKeeper, broker_id: int = 1) -> ProducerIds:
    return ProducerIds(broker_id, cast(Any, MemorySession(zk)))


def new_zookeeper(data: bytes = b"") -> MemoryZooKeeper:
    zk = MemoryZooKeeper()
    zk.ensure(PATH, data)
    return zk


async def test_blocks_follow_each_other_and_no_id_is_given_twice() -> None:
    zk = new_zookeeper()
    brokers = [ids_of(zk, 1), ids_of(zk, 2)]
    first = await brokers[0].next_id()
    assert first == 0
    assert zk.nodes[PATH].data == b'{"version":1,"broker":1,"block_start":"0","block_end":"999"}'
    given = [first, *await asyncio.gather(*(ids.next_id() for ids in brokers * 2500))]
    assert len(set(given)) == len(given) == 5001
    assert ProducerIdBlockZNode.decode(zk.nodes[PATH].data) == 5999


async def test_a_block_whose_write_had_no_answer_is_not_used() -> None:
    """FLT-19: the write was carried out and its answer lost. Clients retry, and get ids of the next block."""
    zk = new_zookeeper()
    session = MemorySession(zk)
    ids = ProducerIds(1, cast(Any, session))
    session.lose_answers = 1
    with refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
        await ids.next_id()
    assert await ids.next_id() == BLOCK_SIZE


async def test_without_the_node_no_id_is_given() -> None:
    """If two producers had one id, records of the second would be taken for those of the first."""
    zk = MemoryZooKeeper()
    with refused(ErrorCode.UNKNOWN_SERVER_ERROR):
        await ids_of(zk).next_id()
    assert PATH not in zk.nodes


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"[]",
        b"{}",
        b'{"version":1,"broker":1,"block_start":"0","block_end":"-5"}',
        b'{"version":1,"broker":1,"block_start":"0","block_end":"many"}',
        b'{"version":1,"broker":1,"block_start":"0","block_end":"9223372036854775808"}',
        ProducerIdBlockZNode.encode(1, PRODUCER_ID_MAX - 1001, PRODUCER_ID_MAX - 2),  # no whole block is left
    ],
)
async def test_an_unreadable_block_is_an_error_and_is_not_overwritten(data: bytes) -> None:
    zk = new_zookeeper(data)
    with refused(ErrorCode.UNKNOWN_SERVER_ERROR):
        await ids_of(zk).next_id()
    assert zk.nodes[PATH].data == data


@pytest.mark.parametrize("version", range(6))
async def test_init_producer_id(version: int) -> None:
    world = World()
    world.zk.ensure(PATH)
    world.context.producer_ids = ProducerIds(1, cast(Any, world.session))

    async def ask(transactional_id: str | None = None, producer_id: int = -1, epoch: int = -1) -> tuple[int, ...]:
        body = {
            "transactional_id": transactional_id,
            "transaction_timeout": 60_000,
            "producer_id": producer_id,
            "producer_epoch": epoch,
        }
        answer = await world.call(ApiKey.INIT_PRODUCER_ID, version, body)
        return int(answer.error_code), answer.producer_id, answer.producer_epoch

    assert await ask() == (0, 0, 0)
    assert await ask() == (0, 1, 0)
    if version >= 3:
        # KIP-360: without a transactional id, a new id in any case, as Kafka does.
        assert await ask(producer_id=0, epoch=4) == (0, 2, 0)
        assert await ask(producer_id=0) == (ErrorCode.INVALID_REQUEST, -1, -1)
        assert await ask(epoch=3) == (ErrorCode.INVALID_REQUEST, -1, -1)
