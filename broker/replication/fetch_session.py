"""The follower's side of an incremental fetch session (KIP-227). Pure.

The first request names every partition; the later ones only those that are new, or whose position changed, and those to
forget. Answers then hold only partitions that have news. After an error the next request names everything again.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import NamedTuple

from protocol.kafka.fetch_codec import FetchRequestPartition
from protocol.types import TopicPartition

NO_SESSION = 0
FIRST_EPOCH = 0
LAST_EPOCH = 2**31 - 1

SessionKey = tuple[uuid.UUID, int]
"""(topic id, partition): a topic made again is another partition."""


class FetchPosition(NamedTuple):
    """What one partition fetches: the id of its topic, and the request's fields."""

    topic_id: uuid.UUID
    wanted: FetchRequestPartition


class FetchPositions(dict[TopicPartition, FetchPosition]):
    """All partitions that are fetched, and what has changed, so that nobody has to compare.

    `news` and `forgotten` are for the request that began last, `changed` and `gone` came after it.
    """

    def __init__(self, positions: Mapping[TopicPartition, FetchPosition] | None = None) -> None:
        super().__init__()
        self.news: dict[TopicPartition, None] = {}
        self.forgotten: dict[SessionKey, None] = {}
        self.changed: dict[TopicPartition, None] = {}
        self.gone: dict[SessionKey, None] = {}
        for tp, position in (positions or {}).items():
            self[tp] = position

    def __setitem__(self, tp: TopicPartition, position: FetchPosition) -> None:
        before = self.get(tp)
        if before == position:
            return
        if before is not None and before.topic_id != position.topic_id:
            self.gone[before.topic_id, tp.partition] = None
        super().__setitem__(tp, position)
        self.gone.pop((position.topic_id, tp.partition), None)
        self.changed[tp] = None

    def drop(self, tp: TopicPartition) -> None:
        """It is not fetched any more."""
        position = self.pop(tp, None)
        if position is not None:
            self.gone[position.topic_id, tp.partition] = None
            self.changed.pop(tp, None)

    def begin_request(self) -> None:
        """What changed until now goes into a request."""
        self.news, self.forgotten = self.changed, self.gone
        self.changed, self.gone = {}, {}

    def is_as_asked(self, tp: TopicPartition) -> bool:
        """Whether an answer to the last request is for what is wanted now."""
        return tp in self and tp not in self.changed


class SessionRequest(NamedTuple):
    """What goes into the next Fetch."""

    session_id: int
    session_epoch: int
    partitions: dict[SessionKey, FetchRequestPartition]
    forgotten: list[SessionKey]


class FetchSession:
    """Alternates `next_request` and `answered` (or `reset`). `names` are those of the topics in it."""

    def __init__(self) -> None:
        self._session_id = NO_SESSION
        self._epoch = FIRST_EPOCH
        self.names: dict[uuid.UUID, str] = {}

    def next_request(self, positions: FetchPositions) -> SessionRequest:
        """The request for exactly `positions`, as a difference to what the leader's session knows."""
        is_whole = self._epoch == FIRST_EPOCH
        if is_whole:
            self.names = {}
        partitions: dict[SessionKey, FetchRequestPartition] = {}
        for tp in positions if is_whole else positions.news:
            topic_id, wanted = positions[tp]
            partitions[topic_id, tp.partition] = wanted
            self.names[topic_id] = tp.topic
        forgotten = [] if is_whole else list(positions.forgotten)
        return SessionRequest(self._session_id, self._epoch, partitions, forgotten)

    def answered(self, session_id: int) -> None:
        """The request succeeded; the leader named the session (0: it keeps none, every request is whole)."""
        if session_id == NO_SESSION:
            self.reset()
        elif self._epoch == FIRST_EPOCH or session_id != self._session_id:
            self._session_id = session_id
            self._epoch = 1
        else:
            self._epoch = 1 if self._epoch == LAST_EPOCH else self._epoch + 1

    def reset(self) -> None:
        """Begin again with a whole request. The old session id is given up with it."""
        self._session_id = NO_SESSION
        self._epoch = FIRST_EPOCH
