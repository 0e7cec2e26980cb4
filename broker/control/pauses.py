"""Carries out control requests with pauses, in which the loop serves clients and followers (NET-4)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from broker.control.fencing import BrokerEpochFence
from broker.process.loop_budget import LoopBudget
from broker.replication.leadership_changes import Pause
from protocol.errors import ErrorCode
from protocol.rpc.messages import ControlResponse

PAUSES_UNTIL_MUCH_IS_NEW = 1000
"""Pauses between two calls of `much_is_new`. About a thousand partitions, with a hundred thousand objects, have changed by then."""


class StaleBrokerEpoch(Exception):
    """This life of the broker ended during a pause."""


class RequestPauses:
    """`much_is_new` is called whenever very many partitions may have been made or changed since the last call."""

    def __init__(self, fence: BrokerEpochFence, budget: LoopBudget, much_is_new: Callable[[], None]) -> None:
        self._fence = fence
        self._budget = budget
        self._much_is_new = much_is_new
        self._count = 0

    async def carry_out(
        self, broker_epoch: int, request: Callable[[Pause], Awaitable[ControlResponse]]
    ) -> ControlResponse:
        """Calls `request` with the pause that it must await between two partitions. Returns its answer.

        If this life of the broker ends, before the request or during a pause, the rest of the request is not carried out.
        """

        async def pause() -> None:
            await self._budget.pause()
            self._count += 1
            if self._count == PAUSES_UNTIL_MUCH_IS_NEW:
                self._count = 0
                self._much_is_new()
                await asyncio.sleep(0)
            if self._fence.is_stale(broker_epoch):
                raise StaleBrokerEpoch

        if self._fence.is_stale(broker_epoch):
            return ControlResponse(ErrorCode.STALE_BROKER_EPOCH)
        try:
            return await request(pause)
        except StaleBrokerEpoch:
            return ControlResponse(ErrorCode.STALE_BROKER_EPOCH)
