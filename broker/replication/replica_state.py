"""The leader's arithmetic on its replicas: who is in sync, who may join, where the high watermark is. Pure.

Times are seconds of a monotonic clock, offsets are record offsets; LEO = log end offset, HW = high watermark.

Worked example: leader 1, ISR [1, 2, 3], LEO 120, followers at 120 and 110: HW = 110. Follower 3 stops; after
`replica.lag.time.max.ms` the leader proposes [1, 2]. Until ZooKeeper has confirmed that, the *maximal* ISR is still
[1, 2, 3] and the HW stays at 110 (INV-10); then it moves to 120.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from protocol.types import NO_EPOCH

UNKNOWN_OFFSET: Final = -1
"""The LEO of a follower that has not fetched in this leadership. Such a follower holds the HW back if it is in the ISR."""

NEVER: Final = float("-inf")


class Heartbeat:
    """When a fetch session was last used. Each use counts as a fetch of every partition that rests in the session."""

    __slots__ = ("at",)

    def __init__(self) -> None:
        self.at = NEVER


@dataclass(slots=True)
class FollowerState:
    """What the leader knows of one follower, from its fetches in the current leadership.

    `caught_up_at` is the last time at which the follower had everything that the leader had then. `fetched_at`,
    `leader_end_at_fetch` and `log_start_offset` (the start of the follower's log) are of its latest fetch. `broker_epoch` is the
    life of the broker that fetched (INV-14).
    """

    log_end_offset: int = UNKNOWN_OFFSET
    caught_up_at: float = NEVER
    fetched_at: float = NEVER
    leader_end_at_fetch: int = UNKNOWN_OFFSET
    broker_epoch: int = NO_EPOCH
    log_start_offset: int = UNKNOWN_OFFSET
    heartbeat: Heartbeat | None = None
    """The heartbeat of the session in which the partition rests. At each beat the follower has everything."""

    def rest(self, heartbeat: Heartbeat) -> None:
        """The follower is at the leader's log end. Its partition is not read again until the log grows."""
        self.heartbeat = heartbeat

    def wake(self, heartbeat: Heartbeat) -> None:
        """The partition no longer rests. At the last beat the follower had everything."""
        if self.heartbeat is heartbeat:
            self.heartbeat = None
            self.fetched_at = max(self.fetched_at, heartbeat.at)
            self.caught_up_at = max(self.caught_up_at, heartbeat.at)

    def record_fetch(self, fetch_offset: int, leader_end_offset: int, now: float, broker_epoch: int) -> None:
        """Notes a fetch at `fetch_offset`, the follower's log end, while the leader's log ends at `leader_end_offset`.

        A follower that now reaches the leader's log end of its previous fetch was caught up at that fetch. So a follower that
        keeps pace with a steady stream of appends counts as in sync, although it never reaches the log end.
        """
        if self.heartbeat is not None:
            self.wake(self.heartbeat)
        if fetch_offset >= leader_end_offset:
            self.caught_up_at = max(self.caught_up_at, now)
        elif fetch_offset >= self.leader_end_at_fetch > UNKNOWN_OFFSET:
            self.caught_up_at = max(self.caught_up_at, self.fetched_at)
        self.log_end_offset = fetch_offset
        self.leader_end_at_fetch = leader_end_offset
        self.fetched_at = now
        self.broker_epoch = broker_epoch

    def start_epoch(self, *, in_isr: bool, now: float) -> None:
        """A new leader epoch starts. Fetches in earlier epochs no longer count, even if this broker led in them (INV-12).

        Another broker may have led in between, unknown to this one, and the follower may have truncated its log for that
        leader, or come back with an empty disk. A member of the ISR has the full lag time to fetch. Another follower starts as
        lagging, so that it does not hold the HW back.
        """
        self.heartbeat = None
        self.log_end_offset = UNKNOWN_OFFSET
        self.log_start_offset = UNKNOWN_OFFSET
        self.leader_end_at_fetch = UNKNOWN_OFFSET
        self.fetched_at = NEVER
        self.broker_epoch = NO_EPOCH
        self.caught_up_at = now if in_isr else NEVER

    @property
    def heard_at(self) -> float:
        """When the follower last fetched from this leader."""
        return self.fetched_at if self.heartbeat is None else max(self.fetched_at, self.heartbeat.at)

    @property
    def had_all_at(self) -> float:
        """When the follower last had everything that the leader had then."""
        return self.caught_up_at if self.heartbeat is None else max(self.caught_up_at, self.heartbeat.at)

    def is_caught_up(self, leader_end_offset: int, now: float, lag_time_max_s: float) -> bool:
        """True while the follower has everything, or had everything at most `lag_time_max_s` ago."""
        return self.log_end_offset == leader_end_offset or now - self.had_all_at <= lag_time_max_s


def high_watermark(
    *,
    current: int,
    leader_end_offset: int,
    followers: Mapping[int, FollowerState],
    maximal_isr: Collection[int],
    joining: Collection[int] = (),
) -> int:
    """The HW: the least LEO of the maximal ISR (committed plus proposed), never below `current` (INV-10, INV-11).

    `followers` has every assigned replica but the leader. `joining` are followers outside the ISR that are caught up and may
    join. The HW waits for them too: otherwise it would always be ahead of them under load, and they could never join.
    """
    lowest = leader_end_offset
    for replica, state in followers.items():
        if state.log_end_offset < lowest and (replica in maximal_isr or replica in joining):
            lowest = state.log_end_offset
    return max(current, lowest)


def lagging_members(
    isr: Iterable[int],
    followers: Mapping[int, FollowerState],
    *,
    own_id: int,
    leader_end_offset: int,
    now: float,
    lag_time_max_s: float,
    stood_still_at: float = NEVER,
) -> tuple[int, ...]:
    """The members of the ISR that were not caught up at any time within the lag time. Never the leader itself (INV-4).

    At `stood_still_at` all members count as caught up. A member that is no longer assigned (no state) counts as lagging.
    """
    has_just_stood_still = now - stood_still_at <= lag_time_max_s
    return tuple(
        member
        for member in isr
        if member != own_id
        and (
            member not in followers
            or not (has_just_stood_still or followers[member].is_caught_up(leader_end_offset, now, lag_time_max_s))
        )
    )


def has_reached_isr(state: FollowerState, *, high_watermark: int, epoch_start_offset: int) -> bool:
    """INV-13: to join, a follower needs all committed records *and* all records before the leader's own epoch.

    The HW of a new leader lags: records above it may be acknowledged already, hence the second condition.
    """
    return state.log_end_offset >= high_watermark and state.log_end_offset >= epoch_start_offset
