"""The follower's side of an incremental fetch session (KIP-227). Pure.

The first request names every partition; the later ones only those that are new, or whose position changed, and those to
forget. Answers then hold only partitions that have news. After an error the next request names everything again.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import NamedTuple

from protocol.kafka.fetch_codec import FetchRequestPartition

NO_SESSION = 0
FIRST_EPOCH = 0
LAST_EPOCH = 2**31 - 1

SessionKey = tuple[uuid.UUID, int]
"""(topic id, partition): a topic made again is another partition."""


class SessionRequest(NamedTuple):
    """What goes into the next Fetch."""

    session_id: int
    session_epoch: int
    partitions: dict[SessionKey, FetchRequestPartition]
    forgotten: list[SessionKey]


class FetchSession:
    """Alternates `next_request` and `answered` (or `reset`)."""

    def __init__(self) -> None:
        self._session_id = NO_SESSION
        self._epoch = FIRST_EPOCH
        self._known: dict[SessionKey, FetchRequestPartition] = {}

    def next_request(self, wanted: Mapping[SessionKey, FetchRequestPartition]) -> SessionRequest:
        """The request for exactly `wanted`, as a difference to what the leader's session knows."""
        known, self._known = self._known, dict(wanted)
        if self._epoch == FIRST_EPOCH:
            return SessionRequest(self._session_id, FIRST_EPOCH, dict(wanted), [])
        changed = {key: position for key, position in wanted.items() if known.get(key) != position}
        forgotten = [key for key in known if key not in wanted]
        return SessionRequest(self._session_id, self._epoch, changed, forgotten)

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
        self._known = {}
