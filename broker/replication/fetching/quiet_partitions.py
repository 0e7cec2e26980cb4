"""Partitions of fetch sessions that nothing happens to: they are not looked at until something does (KIP-227).

A session names its partitions once. One that had nothing to tell when it was last looked at *rests*: its fetcher is at
the end, in sync, and was told the high watermark. What can change that touches the partition (an append, a move of the
HW, a change of leadership) and *wakes* it. So a fetch costs as much as there are partitions that are awake, however
many rest.

While a follower's partition rests, each fetch of its session shows that the follower still has everything: the times of
`FollowerState` follow the session's `Heartbeat`. Waking comes before the next beat, so an append is never taken for seen.

A failover wakes thousands of a follower's partitions that have no records for it, only a moved HW. Their session takes some with each
request; those that were appended to come first, because producers wait for them.

What touches nothing (a log start moved by retention, a throttle) is seen later: a few that rest are woken regularly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Protocol

from broker.replication.fetching.delayed_fetch import DelayedFetch
from broker.replication.replica_state import FollowerState, Heartbeat
from protocol.kafka.fetch_codec import FetchRequestPartition
from protocol.types import TopicPartition

LOOK_EVERY_S = 0.5
LOOKS_UNTIL_ALL = 64
"""So every partition is looked at twice a minute, and 5,000 cost less than a millisecond at a time."""


WOKEN_AT_ONCE = 50
"""Of a follower's partitions without new records: so many join one fetch."""


class Watched(Protocol):
    """A partition of a session; `wanted` is what the client asks of it."""

    wanted: FetchRequestPartition


class QuietPartitions:
    """Of one session. `replica_id` < 0: a consumer's. `woken` is for the session to take over with its next requests, `appended`
    before the others.

    `idle` has, while a fetch is answered, those of its partitions that may rest.
    """

    __slots__ = (
        "_index",
        "appended",
        "heartbeat",
        "idle",
        "looked_at",
        "members",
        "parked",
        "replica_epoch",
        "replica_id",
        "woken",
    )

    def __init__(self, index: QuietIndex, replica_id: int) -> None:
        self._index = index
        self.replica_id = replica_id
        self.replica_epoch = -1
        self.members: dict[TopicPartition, tuple[Watched, FollowerState | None]] = {}
        self.woken: dict[TopicPartition, Watched] = {}
        self.appended: dict[TopicPartition, None] = {}
        self.parked: DelayedFetch | None = None
        self.idle: list[TopicPartition] = []
        self.heartbeat = Heartbeat()
        self.looked_at = 0.0

    def __len__(self) -> int:
        """Partitions that rest."""
        return len(self.members)

    def rest(self, tp: TopicPartition, watched: Watched) -> bool:
        """It had nothing to tell just now. False: it stays awake."""
        return self._index.rest(self, tp, watched)

    def wake(self, tp: TopicPartition) -> None:
        """The client asks something else of it, or nothing any more."""
        self._index.wake_in(self, (tp,))
        self.woken.pop(tp, None)

    def take_woken(self) -> list[Watched]:
        """Those that were woken since it was last asked; of a follower's not more than one answer should have."""
        taken = [self.woken.pop(tp) for tp in self.appended if tp in self.woken]
        self.appended = {}
        limit = WOKEN_AT_ONCE if self.replica_id >= 0 else len(self.woken)
        taken += [self.woken.pop(tp) for tp in list(islice(self.woken, limit))]
        if not self.woken:
            self._index.caught_up(self)
        return taken

    def note(self, tp: TopicPartition, watched: Watched, *, is_appended: bool) -> None:
        """It rests no more. The fetch that is parked watches it from now on, unless it has enough that tells no records."""
        self.woken[tp] = watched
        if is_appended:
            self.appended[tp] = None
        if self.parked is not None and (is_appended or self.replica_id < 0 or len(self.woken) <= WOKEN_AT_ONCE):
            self.parked.add(tp, watched.wanted)

    def close(self) -> None:
        """The session is over."""
        self._index.close(self)
        self.woken, self.appended = {}, {}
        self.parked = None


class QuietIndex:
    """Who rests where. `follower_of` gives the state of an in-sync follower, None for any other."""

    def __init__(self, follower_of: Callable[[TopicPartition, int], FollowerState | None]) -> None:
        self._follower_of = follower_of
        self._resting: dict[TopicPartition, dict[QuietPartitions, None]] = {}
        self._of_followers: dict[int, dict[QuietPartitions, None]] = {}
        self._behind: dict[QuietPartitions, None] = {}
        """Followers' sessions that have more partitions awake than they have asked for."""

    def __len__(self) -> int:
        """Partitions that rest in some session."""
        return len(self._resting)

    def open(self, replica_id: int) -> QuietPartitions:
        """For a new session."""
        quiet = QuietPartitions(self, replica_id)
        if replica_id >= 0:
            self._of_followers.setdefault(replica_id, {})[quiet] = None
        return quiet

    def close(self, quiet: QuietPartitions) -> None:
        """Nothing of it rests any more, and nothing will."""
        self.wake_in(quiet, tuple(quiet.members))
        sessions = self._of_followers.get(quiet.replica_id, {})
        sessions.pop(quiet, None)
        if not sessions:
            self._of_followers.pop(quiet.replica_id, None)
        self._behind.pop(quiet, None)

    def caught_up(self, quiet: QuietPartitions) -> None:
        """Nothing of it is woken that it has not taken over."""
        self._behind.pop(quiet, None)

    def wake_all_of(self, replica_id: int) -> None:
        """All that rests in sessions of that follower is looked at with the next request, which may be refused."""
        for quiet in tuple(self._of_followers.get(replica_id, ())):
            self.wake_in(quiet, tuple(quiet.members))

    def begin_fetch(self, quiet: QuietPartitions, replica_epoch: int, now: float, *, looks_at_all: bool) -> None:
        """A request of that session came, what was touched until now is awake. Wakes whom it is time to look at."""
        if looks_at_all or replica_epoch != quiet.replica_epoch:
            quiet.replica_epoch = replica_epoch
            self.wake_in(quiet, tuple(quiet.members))
        elif now - quiet.looked_at >= LOOK_EVERY_S:
            quiet.looked_at = now
            count = len(quiet.members) // LOOKS_UNTIL_ALL + 1
            self.wake_in(quiet, [tp for tp, _ in zip(quiet.members, range(count), strict=False)])
        quiet.heartbeat.at = now

    def rest(self, quiet: QuietPartitions, tp: TopicPartition, watched: Watched) -> bool:
        if tp in quiet.members:
            return False
        follower = None
        if quiet.replica_id >= 0:
            follower = self._follower_of(tp, quiet.replica_id)
            if follower is None:
                return False
            follower.rest(quiet.heartbeat)
        quiet.members[tp] = (watched, follower)
        self._resting.setdefault(tp, {})[quiet] = None
        return True

    def wake(self, touched: Iterable[TopicPartition], *, only_followers: bool = False) -> None:
        """Something happened to these; `only_followers`: records were appended. A fetch that is parked may watch them from now on."""
        for tp in touched:
            for quiet in self._behind if only_followers else ():
                if tp in quiet.woken:
                    quiet.note(tp, quiet.woken[tp], is_appended=True)
            resting = self._resting.pop(tp, None)
            if resting is None:
                continue
            if only_followers:
                consumers = {quiet: None for quiet in resting if quiet.replica_id < 0}
                if consumers:
                    self._resting[tp] = consumers
                    resting = {quiet: None for quiet in resting if quiet not in consumers}
            for quiet in resting:
                quiet.note(tp, self._leave(quiet, tp), is_appended=only_followers)
                if quiet.replica_id >= 0:
                    self._behind[quiet] = None

    def wake_in(self, quiet: QuietPartitions, partitions: Iterable[TopicPartition]) -> None:
        """As `wake`, but in that session only."""
        for tp in partitions:
            others = self._resting.get(tp)
            if others is not None and quiet in others:
                del others[quiet]
                if not others:
                    del self._resting[tp]
                quiet.woken[tp] = self._leave(quiet, tp)
                if quiet.replica_id >= 0:
                    self._behind[quiet] = None

    def _leave(self, quiet: QuietPartitions, tp: TopicPartition) -> Watched:
        watched, follower = quiet.members.pop(tp)
        if follower is not None:
            follower.wake(quiet.heartbeat)
        return watched
