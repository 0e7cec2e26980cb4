"""The follower's side of an incremental fetch session (KIP-227). Pure.

Each request names only partitions whose position changed, those to forget, and at most NEWS_AT_ONCE that are new, so a
session of very many is built up by several. Answers hold only partitions that have news. After an error everything is named again.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from itertools import islice
from typing import NamedTuple

from protocol.kafka.fetch_codec import FetchRequestPartition
from protocol.types import TopicPartition

NO_SESSION = 0
FIRST_EPOCH = 0
LAST_EPOCH = 2**31 - 1
NEWS_AT_ONCE = 100
"""A request names no more new partitions: the leader looks at each of them, and both ends have other things to do."""

SessionKey = tuple[uuid.UUID, int]
"""(topic id, partition): a topic made again is another partition."""


class FetchPosition(NamedTuple):
    """What one partition fetches: the id of its topic, and the request's fields."""

    topic_id: uuid.UUID
    wanted: FetchRequestPartition


class FetchPositions(dict[TopicPartition, FetchPosition]):
    """All partitions that are fetched, and what has changed, so that nobody has to compare.

    `news` and `forgotten` are for the request that began last; the others came after it. Partitions that are copied already come
    first: a position that has moved on (`moved`) is what a leader's high watermark waits for. Those that are no longer fetched
    (`gone`) are forgotten at once, or the leader would read them again for each answer. Those that are new to the session, or
    followed in another epoch (`new`), may be thousands after a failover, and wait for room.
    """

    def __init__(self, positions: Mapping[TopicPartition, FetchPosition] | None = None) -> None:
        super().__init__()
        self.news: dict[TopicPartition, None] = {}
        self.forgotten: dict[SessionKey, None] = {}
        self.moved: dict[TopicPartition, None] = {}
        self.new: dict[TopicPartition, None] = {}
        self.gone: dict[SessionKey, None] = {}
        for tp, position in (positions or {}).items():
            self[tp] = position

    def __setitem__(self, tp: TopicPartition, position: FetchPosition) -> None:
        before = self.get(tp)
        if before == position:
            return
        super().__setitem__(tp, position)
        if before is None or before.topic_id != position.topic_id:
            if before is not None:
                self.gone[before.topic_id, tp.partition] = None
                self.moved.pop(tp, None)
            self.new[tp] = None
        elif tp not in self.new:
            self.moved[tp] = None

    def drop(self, tp: TopicPartition) -> None:
        """It is not fetched any more."""
        position = self.pop(tp, None)
        if position is not None:
            self.gone[position.topic_id, tp.partition] = None
            self.moved.pop(tp, None)
            self.new.pop(tp, None)

    def begin_request(self) -> None:
        """What changed until now goes into a request; of what is new a part, and the rest into the next ones."""
        self.news, self.moved = self.moved, {}
        for tp in list(islice(self.new, NEWS_AT_ONCE)):
            del self.new[tp]
            self.news[tp] = None
            # It need not be forgotten first: the leader takes its new position for the old one.
            self.gone.pop((self[tp].topic_id, tp.partition), None)
        self.forgotten, self.gone = self.gone, {}

    def begin_whole_request(self, *, is_unlimited: bool) -> None:
        """As `begin_request`, when the leader knows of nothing. Unlimited: it will know of nothing after it either."""
        self.moved, self.new, self.gone = {}, dict.fromkeys(self), {}
        self.begin_request()
        if is_unlimited:
            self.news |= self.new
            self.new = {}

    @property
    def has_more_news(self) -> bool:
        """Something is left for the request after this one."""
        return bool(self.moved or self.new or self.gone)

    def is_as_asked(self, tp: TopicPartition) -> bool:
        """Whether an answer to the last request is for what is wanted now."""
        return tp in self and tp not in self.moved and tp not in self.new


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
        self._is_refused = False
        self.names: dict[uuid.UUID, str] = {}

    def next_request(self, positions: FetchPositions) -> SessionRequest:
        """The request for `positions`, of which one has begun, as a difference to what the leader's session knows."""
        if self._epoch == FIRST_EPOCH:
            self.names = {}
            positions.begin_whole_request(is_unlimited=self._is_refused)
        partitions: dict[SessionKey, FetchRequestPartition] = {}
        for tp in positions.news:
            topic_id, wanted = positions[tp]
            partitions[topic_id, tp.partition] = wanted
            self.names[topic_id] = tp.topic
        return SessionRequest(self._session_id, self._epoch, partitions, list(positions.forgotten))

    def answered(self, session_id: int) -> None:
        """The request succeeded; the leader named the session (0: it keeps none, every request is whole)."""
        self._is_refused = session_id == NO_SESSION
        if self._is_refused:
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
