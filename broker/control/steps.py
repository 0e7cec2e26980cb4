"""A control request is carried out in steps, so that clients and followers have their turn in between (NET-4)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from broker.control.fencing import BrokerEpochFence
from broker.process.loop_budget import LoopBudget
from broker.replication.steps import Steps
from protocol.rpc.messages import ControlResponse

STEPS_UNTIL_MUCH_IS_NEW = 1000
"""About a thousand partitions, and so a hundred thousand objects."""


class StepByStep:
    """`much_is_new` is called whenever very many partitions may have been made or changed since the last time."""

    def __init__(self, fence: BrokerEpochFence, budget: LoopBudget, much_is_new: Callable[[], None]) -> None:
        self._fence = fence
        self._budget = budget
        self._much_is_new = much_is_new
        self._steps_taken = 0

    async def carry_out(self, steps: Steps, broker_epoch: int) -> ControlResponse:
        """The answer of `steps`, or the fence's: this life may end between two steps, then the rest is not done."""
        while True:
            refusal = self._fence.refusal(broker_epoch)
            if refusal is not None:
                steps.close()
                return refusal
            try:
                next(steps)
            except StopIteration as end:
                response: ControlResponse = end.value
                return response
            await self._budget.pause()
            self._steps_taken += 1
            if self._steps_taken == STEPS_UNTIL_MUCH_IS_NEW:
                self._steps_taken = 0
                self._much_is_new()
                await asyncio.sleep(0)
