"""Requests of this process to its own controller. Each has a ticket and waits until the controller has processed it (CTL-3)."""

from __future__ import annotations

import asyncio
from typing import Any

from protocol.errors import ErrorCode, KafkaError


class Tickets:
    """Every ticket is answered exactly once, at the latest when the term ends."""

    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._last = 0

    def issue(self) -> tuple[int, asyncio.Future[Any]]:
        """A new ticket, and the future of its answer."""
        self._last += 1
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[self._last] = answer
        return self._last, answer

    def answer(self, ticket: int, value: Any) -> None:
        waiter = self._waiting.pop(ticket, None)
        if waiter is not None and not waiter.done():
            waiter.set_result(value)

    def refuse(self, ticket: int, error: KafkaError) -> None:
        """Answers with an error: awaiting the ticket's future raises it."""
        waiter = self._waiting.pop(ticket, None)
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)

    def refuse_all(self) -> None:
        """Refuses all tickets with NOT_CONTROLLER, because the term is over."""
        for ticket in list(self._waiting):
            self.refuse(ticket, KafkaError(ErrorCode.NOT_CONTROLLER, "this broker is no longer the controller"))
