"""A group coordinator that writes down what it was asked and answers what the test gave it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from broker.groups.group.messages import (
    CommittedOffset,
    FetchedOffset,
    GroupDescription,
    GroupListing,
    JoinAnswer,
    JoinRequest,
    LeavingMember,
    SyncAnswer,
    SyncRequest,
)
from protocol.errors import ErrorCode
from protocol.types import TopicPartition


class FakeGroups:
    """`answer` is given to every question, as the arguments of its callback or as its result; `asked` is what came.

    `waiting` holds the callbacks while `is_slow`, for a test that answers later.
    """

    def __init__(self) -> None:
        self.answer: Any = None
        self.asked: list[Any] = []
        self.is_slow = False
        self.waiting: list[Callable[..., None]] = []

    def _reply(self, respond: Callable[..., None]) -> None:
        if self.is_slow:
            self.waiting.append(respond)
        elif isinstance(self.answer, list):
            respond(*self.answer)
        else:
            respond(self.answer)

    def partition_of(self, group_id: str) -> int:
        return len(group_id)

    def join(self, request: JoinRequest, respond: Callable[[JoinAnswer], None]) -> None:
        self.asked.append(request)
        self._reply(respond)

    def sync(self, request: SyncRequest, respond: Callable[[SyncAnswer], None]) -> None:
        self.asked.append(request)
        self._reply(respond)

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        self.asked.append((group_id, member_id, instance_id, generation))
        error: ErrorCode = self.answer
        return error

    def leave(
        self, group_id: str, members: Sequence[LeavingMember], respond: Callable[[ErrorCode, list[ErrorCode]], None]
    ) -> None:
        self.asked.append((group_id, list(members)))
        self._reply(respond)

    def commit(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        offsets: Mapping[TopicPartition, CommittedOffset],
        respond: Callable[[dict[TopicPartition, ErrorCode]], None],
    ) -> None:
        self.asked.append((group_id, member_id, instance_id, generation, dict(offsets)))
        self._reply(respond)

    def fetch_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition], *, require_stable: bool
    ) -> tuple[ErrorCode, dict[TopicPartition, FetchedOffset]]:
        self.asked.append((group_id, partitions, require_stable))
        answer: tuple[ErrorCode, dict[TopicPartition, FetchedOffset]] = self.answer
        return answer

    def committed_partitions(self, group_id: str) -> tuple[ErrorCode, Mapping[str, Sequence[int]]]:
        """Those of the answer to `fetch_offsets`."""
        error, found = self.answer
        topics: dict[str, list[int]] = {}
        for tp in found:
            topics.setdefault(tp.topic, []).append(tp.partition)
        return error, topics

    def delete_offsets(
        self,
        group_id: str,
        partitions: Sequence[TopicPartition],
        respond: Callable[[ErrorCode, dict[TopicPartition, ErrorCode]], None],
    ) -> None:
        self.asked.append((group_id, list(partitions)))
        self._reply(respond)

    def list_groups(self, states: frozenset[str], types: frozenset[str]) -> tuple[ErrorCode, list[GroupListing]]:
        self.asked.append((states, types))
        answer: tuple[ErrorCode, list[GroupListing]] = self.answer
        return answer

    def describe(self, group_id: str) -> GroupDescription:
        self.asked.append(group_id)
        answer: GroupDescription = self.answer
        return answer

    def delete_groups(self, group_ids: Sequence[str], respond: Callable[[dict[str, ErrorCode]], None]) -> None:
        self.asked.append(list(group_ids))
        self._reply(respond)
