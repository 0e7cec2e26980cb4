"""A group coordinator that writes down what it was asked and answers what the test gave it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from broker.groups.group.messages import TransactionalProducer
from protocol.errors import ErrorCode

WITH_CALLBACK = ("join", "sync", "leave", "commit", "delete_offsets", "delete_groups")
AT_ONCE = ("heartbeat", "fetch_offsets", "list_groups", "describe", "transaction_completed")


class FakeOwnership:
    """Whether the coordinator is certain that it still is one, and how often it has confirmed that."""

    def __init__(self) -> None:
        self.certain = True
        self.confirmations = 0

    def is_certain(self) -> bool:
        return self.certain

    async def confirm(self) -> None:
        await asyncio.sleep(0)
        self.confirmations += 1


class FakeGroups:
    """`answer` is given to every question, as the arguments of its callback or as its result.

    `asked` holds the arguments of each question, or its only argument. While `is_slow`, `waiting` holds the callbacks, for a
    test that answers later.
    """

    def __init__(self) -> None:
        self.answer: Any = None
        self.ownership = FakeOwnership()
        self.asked: list[Any] = []
        self.is_slow = False
        self.knows_epochs = True
        """Of the last commit: whether its request has a version that knows of member epochs."""
        self.waiting: list[Callable[..., None]] = []
        self.verifies: ErrorCode | None = None
        """The result of each verification; None: nothing is to be verified."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in WITH_CALLBACK:
            return self._ask_and_wait
        if name in AT_ONCE:
            return self._ask
        raise AttributeError(name)

    def _ask(self, *arguments: Any, **named: Any) -> Any:
        question = (*arguments, *named.values())
        self.asked.append(question if len(question) > 1 else question[0])
        return self.answer

    def _ask_and_wait(
        self, *arguments: Any, producer: TransactionalProducer | None = None, knows_epochs: bool = True
    ) -> None:
        self.knows_epochs = knows_epochs
        *question, respond = arguments
        self._ask(*question, *(() if producer is None else (producer,)))
        if self.is_slow:
            self.waiting.append(respond)
        elif isinstance(self.answer, list):
            respond(*self.answer)
        else:
            respond(self.answer)

    def verification(self, group_id: str, producer: TransactionalProducer) -> Coroutine[Any, Any, ErrorCode] | None:
        return None if self.verifies is None else self._verify(group_id, producer)

    async def _verify(self, group_id: str, producer: TransactionalProducer) -> ErrorCode:
        self._ask(group_id, producer)
        assert self.verifies is not None
        return self.verifies

    def partition_of(self, group_id: str) -> int:
        return len(group_id)

    def committed_partitions(self, group_id: str) -> tuple[ErrorCode, Mapping[str, Sequence[int]]]:
        """The partitions of the answer to `fetch_offsets`."""
        error, found = self.answer
        topics: dict[str, list[int]] = {}
        for tp in found:
            topics.setdefault(tp.topic, []).append(tp.partition)
        return error, topics
