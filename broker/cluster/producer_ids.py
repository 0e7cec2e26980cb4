"""Ids for idempotent producers, unique in the cluster: taken from ZooKeeper in blocks of 1000 (LOG-5, Kafka's ZkProducerIdManager).

`/latest_producer_id_block` names the block that was given out last. A broker that needs ids writes the next block over the
version that it read. After a write whose answer was lost nobody can tell whose block it is, so that block is left alone:
ids are plenty, and no two producers may ever share one.
"""

from __future__ import annotations

import asyncio
import logging

from protocol.errors import ErrorCode, KafkaError
from protocol.zk.session import BadVersion, NoNode, ZkError, ZooKeeperSession
from protocol.zk.znodes import PRODUCER_ID_MAX, ProducerIdBlockZNode

log = logging.getLogger(__name__)

BLOCK_SIZE = 1000
ATTEMPTS = 20


class ProducerIds:
    """Gives out this broker's ids; one per broker."""

    def __init__(self, broker_id: int, zk: ZooKeeperSession) -> None:
        self._broker_id = broker_id
        self._zk = zk
        self._next = 0
        self._end = 0
        self._taking = asyncio.Lock()

    async def next_id(self) -> int:
        """An id that nobody had before.

        Raises KafkaError: COORDINATOR_LOAD_IN_PROGRESS, which clients retry, while ZooKeeper cannot be asked;
        UNKNOWN_SERVER_ERROR when its block is gone or cannot be read, or none is left.
        """
        while self._next >= self._end:
            async with self._taking:
                if self._next >= self._end:
                    self._next, self._end = await self._take_block()
        self._next += 1
        return self._next - 1

    async def _take_block(self) -> tuple[int, int]:
        """(first id, the one after the last)."""
        try:
            for _ in range(ATTEMPTS):
                try:
                    data, stat = await self._zk.get(ProducerIdBlockZNode.PATH)
                    first = ProducerIdBlockZNode.decode(data) + 1
                    if first + BLOCK_SIZE - 1 > PRODUCER_ID_MAX:
                        raise ValueError("all producer ids are given out")
                    block = ProducerIdBlockZNode.encode(self._broker_id, first, first + BLOCK_SIZE - 1)
                    await self._zk.set(ProducerIdBlockZNode.PATH, block, stat.version)
                except BadVersion:
                    continue
                log.info("producer ids %d to %d are this broker's", first, first + BLOCK_SIZE - 1)
                return first, first + BLOCK_SIZE
        except NoNode as error:
            log.error("%s is gone: made anew it would give out ids twice", ProducerIdBlockZNode.PATH)
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{ProducerIdBlockZNode.PATH} is gone") from error
        except ZkError as error:
            log.warning("no block of producer ids: %r", error)
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "ZooKeeper gives no producer ids now") from error
        except ValueError as error:
            log.error("%s: %s", ProducerIdBlockZNode.PATH, error)
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from error
        raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "other brokers take producer ids all the time")
