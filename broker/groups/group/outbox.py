"""The effects of the event that a group handles: answers to waiting requests, and records to store. Pure."""

from __future__ import annotations

from broker.groups.group.messages import (
    NO_MEMBER,
    AnswerJoin,
    AnswerSync,
    Effect,
    GroupMetadata,
    JoinAnswer,
    Store,
    SyncAnswer,
)
from protocol.errors import ErrorCode


class Outbox:
    """Effects in their order, until `take` hands them to the coordinator."""

    def __init__(self) -> None:
        self._effects: list[Effect] = []
        self._stores = 0

    def answer_join(self, ticket: int, answer: JoinAnswer) -> None:
        self._effects.append(AnswerJoin(ticket, answer))

    def refuse_join(self, ticket: int, error: ErrorCode, member_id: str = NO_MEMBER) -> None:
        self._effects.append(AnswerJoin(ticket, JoinAnswer(error, member_id)))

    def answer_sync(self, ticket: int, answer: SyncAnswer) -> None:
        self._effects.append(AnswerSync(ticket, answer))

    def store(self, metadata: GroupMetadata) -> int:
        """Returns the number under which the outcome is reported."""
        self._stores += 1
        self._effects.append(Store(self._stores, metadata))
        return self._stores

    def take(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects
