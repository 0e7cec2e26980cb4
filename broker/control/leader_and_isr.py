"""LeaderAndIsr: fence, fetch the settings of topics that are new here, hand over to the replica manager (LAI-1..5)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from broker.control.fencing import BrokerEpochFence
from broker.replication.replica_manager import ReplicaManager
from protocol.rpc.messages import ControlResponse, LeaderAndIsrRequest
from protocol.zk.session import ZkError

log = logging.getLogger(__name__)

RETRY_S = 0.2

LoadTopicOverrides = Callable[[Sequence[str]], Awaitable[Mapping[str, Mapping[str, str]]]]
"""Topics -> the settings of those that have some, from `/config/topics`."""


class LeaderAndIsrHandler:
    """One request at a time: the listener sees to it."""

    def __init__(
        self, fence: BrokerEpochFence, replica_manager: ReplicaManager, load_topic_overrides: LoadTopicOverrides
    ) -> None:
        self._fence = fence
        self._replica_manager = replica_manager
        self._load_topic_overrides = load_topic_overrides

    async def handle(self, request: LeaderAndIsrRequest) -> ControlResponse:
        new_topics = self._replica_manager.topics_to_configure(request)
        overrides: Mapping[str, Mapping[str, str]] = {}
        while new_topics:
            refusal = self._fence.refusal(request.broker_epoch)
            if refusal is not None:
                return refusal
            try:
                overrides = await self._load_topic_overrides(new_topics)
                break
            except ZkError as error:
                # Never lead with defaults where the topic asks for more in-sync replicas (INV-17).
                log.warning("LeaderAndIsr waits for the settings of %d topics: %s", len(new_topics), error)
                await asyncio.sleep(RETRY_S)
        steps = self._replica_manager.applying(request, overrides)
        while True:
            # After each await: this life may have ended meanwhile.
            refusal = self._fence.refusal(request.broker_epoch)
            if refusal is not None:
                steps.close()
                return refusal
            try:
                next(steps)
            except StopIteration as end:
                response: ControlResponse = end.value
                return response
            await asyncio.sleep(0)
