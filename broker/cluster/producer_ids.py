"""Ids for idempotent producers, unique in the cluster: taken from ZooKeeper in blocks of 1000 (LOG-5, Kafka's ZkProducerIdManager).

`/latest_producer_id_block` has the last allocated block. A broker that needs ids writes the next block, conditional on the version
that it read. If the answer to a write is lost, the broker cannot know whether it owns the block, and does not use it. If the write
was carried out, nobody ever uses these ids. There are plenty of ids, and no two producers may ever share one.
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
    """Allocates this broker's ids."""

    def __init__(self, broker_id: int, zk: ZooKeeperSession) -> None:
        self._broker_id = broker_id
        self._zk = zk
        self._next = 0
        self._end = 0
        self._taking = asyncio.Lock()

    async def next_id(self) -> int:
        """An id that was never used before.

        Raises KafkaError: COORDINATOR_LOAD_IN_PROGRESS, which clients retry, if ZooKeeper does not answer, or if other brokers took
        the block in each of ATTEMPTS attempts; UNKNOWN_SERVER_ERROR if the block's node is missing or not readable, or if no ids
        are left.
        """
        while self._next >= self._end:
            async with self._taking:
                if self._next >= self._end:
                    self._next, self._end = await self._take_block()
        self._next += 1
        return self._next - 1

    async def _take_block(self) -> tuple[int, int]:
        """Returns (first id, last id + 1)."""
        try:
            for _ in range(ATTEMPTS):
                try:
                    data, stat = await self._zk.get(ProducerIdBlockZNode.PATH)
                    first = ProducerIdBlockZNode.decode(data) + 1
                    if first + BLOCK_SIZE - 1 > PRODUCER_ID_MAX:
                        raise ValueError("all producer ids are used up")
                    block = ProducerIdBlockZNode.encode(self._broker_id, first, first + BLOCK_SIZE - 1)
                    await self._zk.set(ProducerIdBlockZNode.PATH, block, stat.version)
                except BadVersion:
                    continue
                log.info("this broker allocated the producer ids %d to %d", first, first + BLOCK_SIZE - 1)
                return first, first + BLOCK_SIZE
        except NoNode as error:
            log.error("%s is missing: creating it again would repeat ids", ProducerIdBlockZNode.PATH)
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{ProducerIdBlockZNode.PATH} is missing") from error
        except ZkError as error:
            log.warning("could not allocate producer ids: %r", error)
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "ZooKeeper does not answer") from error
        except ValueError as error:
            log.error("%s: %s", ProducerIdBlockZNode.PATH, error)
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from error
        raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "other brokers keep allocating producer ids")
