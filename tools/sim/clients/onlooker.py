"""Looks at the offsets of a group all the time, and asks every broker: only the coordinator may answer, and it knows all commits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

from protocol.errors import ErrorCode
from protocol.kafka.api_keys import ApiKey
from protocol.types import Address, TopicPartition
from tools.sim.clients.group_member import ONE_GROUP_NEWEST, offsets_body
from tools.sim.clients.history import History
from tools.sim.clients.wire_client import NoAnswer, WireClient, WireConnection

PAUSE_S = 0.8


class Onlooker:
    """Runs until `stop`. It does not look for the coordinator, so it also finds one that does not know that it was replaced."""

    is_reader = True

    def __init__(
        self,
        name: str,
        group: str,
        bootstrap: Sequence[Address],
        partitions: Sequence[TopicPartition],
        random: Random,
        history: History,
    ) -> None:
        self._client = WireClient(name, bootstrap, random, history)
        self.name = name
        self._group = group
        self._brokers = bootstrap
        self._partitions = partitions
        self._random = random
        self._history = history
        self._is_stopping = False

    def stop(self) -> None:
        self._is_stopping = True

    async def run(self) -> None:
        await asyncio.gather(*map(self._watch, self._brokers))
        self._client.close()

    async def _watch(self, broker: Address) -> None:
        """Does not wait for an answer before it asks again: one that stood still has old and new ones to answer."""
        asked: set[asyncio.Task[None]] = set()
        while not self._is_stopping:
            try:
                connection = await self._client.connection(broker)
                asked = {one for one in asked if not one.done()}
                asked.add(asyncio.create_task(self._look(connection, broker[0])))
            except NoAnswer:
                await self._client.back_off()
            await asyncio.sleep(self._random.expovariate(1 / PAUSE_S))
        for one in asked:
            one.cancel()

    async def _look(self, connection: WireConnection, broker: str) -> None:
        committed = dict(self._history.last_committed)
        version = min(ONE_GROUP_NEWEST, self._client.version(ApiKey.OFFSET_FETCH, 2))
        try:
            answer = await connection.ask(ApiKey.OFFSET_FETCH, version, offsets_body(self._group, self._partitions))
        except NoAnswer:
            return
        if answer.error_code != ErrorCode.NONE:
            return
        for topic in answer.topics:
            for row in topic.partitions:
                tp = TopicPartition(topic.name, row.partition_index)
                if row.error_code == ErrorCode.NONE:
                    before = committed.get((self._group, tp), 0)
                    found = max(0, row.committed_offset)
                    self._history.check_committed(self.name, self._group, tp, found, before, broker)
