"""The follower's end of an incremental fetch session (KIP-227; Kafka's FetchSessionHandler). Pure.

`FetchPositions` has the position of each partition that the follower fetches, and the changes since the last request.
`FollowerSession` has the id and epoch of the leader's session (`fetching/fetch_session.py`).

1. A request lists the partitions whose position changed, the partitions to forget, and at most ADDED_AT_ONCE to add. Several
   requests therefore build up a session of very many partitions.
2. The answer contains only partitions that have news.
3. After an error, or when the leader refuses to keep a session, the next request is *whole*: it lists partitions from the beginning.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from protocol.kafka.fetch_codec import FetchPartitionData, FetchRequestPartition
from protocol.kafka.wire import TopicKey
from protocol.types import TopicPartition

NO_SESSION = 0
FIRST_EPOCH = 0
LAST_EPOCH = 2**31 - 1
ADDED_AT_ONCE = 100
"""Limit of partitions that a request adds to the session. The leader reads each of them, and has other work too."""

SessionKey = tuple[uuid.UUID, int]
"""(topic id, partition): a topic that is created again is another topic."""


class FetchPosition(NamedTuple):
    """Where the fetch of one partition continues: its topic id, and its fields in the request."""

    topic_id: uuid.UUID
    wanted: FetchRequestPartition


class FetchPositions(dict[TopicPartition, FetchPosition]):
    """The position of every partition that is fetched, and what changed since the last request.

    Of the last request: `named` has the partitions that it listed, `forgotten` those that it removed from the session.

    For the next requests:
    `moved`: partitions whose position changed. The next request has all of them: a leader's high watermark waits for them.
    `dropped`: partitions that are no longer fetched. The next request has all of them, or the leader would continue to read them.
    `added`: partitions that the session does not have, or has with an old leader epoch. After a failover they may be thousands;
    a request has at most ADDED_AT_ONCE of them.
    """

    def __init__(self, positions: Mapping[TopicPartition, FetchPosition] | None = None) -> None:
        super().__init__()
        self.named: dict[TopicPartition, None] = {}
        self.forgotten: dict[SessionKey, None] = {}
        self.moved: dict[TopicPartition, None] = {}
        self.added: dict[TopicPartition, None] = {}
        self.dropped: dict[SessionKey, None] = {}
        for tp, position in (positions or {}).items():
            self[tp] = position

    def __setitem__(self, tp: TopicPartition, position: FetchPosition) -> None:
        before = self.get(tp)
        if before == position:
            return
        super().__setitem__(tp, position)
        if before is None or before.topic_id != position.topic_id:
            if before is not None:
                self.dropped[before.topic_id, tp.partition] = None
                self.moved.pop(tp, None)
            self.added[tp] = None
        elif tp not in self.added:
            self.moved[tp] = None

    def drop(self, tp: TopicPartition) -> None:
        """The partition is no longer fetched."""
        position = self.pop(tp, None)
        if position is not None:
            self.dropped[position.topic_id, tp.partition] = None
            self.moved.pop(tp, None)
            self.added.pop(tp, None)

    def begin_request(self) -> None:
        """Moves the changes into the next request: all but the added partitions for which it has no room."""
        self.named, self.moved = self.moved, {}
        for tp in list(islice(self.added, ADDED_AT_ONCE)):
            del self.added[tp]
            self.named[tp] = None
            # It need not be forgotten first: the leader replaces its position.
            self.dropped.pop((self[tp].topic_id, tp.partition), None)
        self.forgotten, self.dropped = self.dropped, {}

    def begin_whole_request(self, *, is_unlimited: bool) -> None:
        """Like `begin_request`, for a new session. `is_unlimited`: the leader keeps no session, so the request has all partitions."""
        self.moved, self.added, self.dropped = {}, dict.fromkeys(self), {}
        self.begin_request()
        if is_unlimited:
            self.named |= self.added
            self.added = {}

    @property
    def has_more_changes(self) -> bool:
        """Whether some changes are left for a later request."""
        return bool(self.moved or self.added or self.dropped)

    def is_as_asked(self, tp: TopicPartition) -> bool:
        """Whether the partition is still fetched, at the position that the last request had."""
        return tp in self and tp not in self.moved and tp not in self.added


class SessionRequest(NamedTuple):
    """The session's part of the next Fetch: partitions by topic id."""

    session_id: int
    session_epoch: int
    topics: Sequence[tuple[TopicKey, Sequence[FetchRequestPartition]]]
    forgotten: Sequence[tuple[TopicKey, Sequence[int]]]


class FollowerSession:
    """Each `next_request` is followed by `answered` or `reset`."""

    def __init__(self) -> None:
        self._session_id = NO_SESSION
        self._epoch = FIRST_EPOCH
        self._is_refused = False
        self._names: dict[uuid.UUID, str] = {}

    def next_request(self, positions: FetchPositions) -> SessionRequest:
        """The changes that make the leader's session match `positions`, whose `begin_request` was called."""
        if self._epoch == FIRST_EPOCH:
            self._names = {}
            positions.begin_whole_request(is_unlimited=self._is_refused)
        topics: dict[TopicKey, list[FetchRequestPartition]] = {}
        for tp in positions.named:
            topic_id, wanted = positions[tp]
            topics.setdefault(topic_id, []).append(wanted)
            self._names[topic_id] = tp.topic
        forgotten: dict[TopicKey, list[int]] = {}
        for topic_id, partition in positions.forgotten:
            forgotten.setdefault(topic_id, []).append(partition)
        return SessionRequest(self._session_id, self._epoch, list(topics.items()), list(forgotten.items()))

    def answered(self, session_id: int) -> None:
        """The request succeeded, with this session id. 0: the leader keeps no session, and the next request is whole."""
        self._is_refused = session_id == NO_SESSION
        if self._is_refused:
            self.reset()
        elif self._epoch == FIRST_EPOCH or session_id != self._session_id:
            self._session_id = session_id
            self._epoch = 1
        else:
            self._epoch = 1 if self._epoch == LAST_EPOCH else self._epoch + 1

    def reset(self) -> None:
        """The request failed: the next one is whole, and gives up the old session."""
        self._session_id = NO_SESSION
        self._epoch = FIRST_EPOCH

    def by_partition(
        self, topics: Iterable[tuple[TopicKey, Iterable[FetchPartitionData]]]
    ) -> dict[TopicPartition, FetchPartitionData]:
        """The partitions of the answer, with topic names in place of ids. A topic id that no request named is left out."""
        found: dict[TopicPartition, FetchPartitionData] = {}
        for key, partitions in topics:
            name = self._names.get(key) if isinstance(key, uuid.UUID) else key
            if name is not None:
                found.update((TopicPartition(name, data.partition), data) for data in partitions)
        return found
