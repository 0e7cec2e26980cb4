"""The phases of a followed partition, the allowed moves between phases, and the partitions of one fetcher by phase. Pure.

    added --> TRUNCATING --> WAITING --> { CATCHING_UP <--> IN_SYNC }    in the fetch session, in one of the two
                  ^             ^                    |
                  |             '--------------------+                   an error, the throttle, a flush, or a single cut
                  '----------------------------------'                   the leader has to be asked where to cut

A partition starts in TRUNCATING in every leader epoch, even when the leader stays the same (BUG-13). It stays there until
an answer of the leader shows that the two logs agree (BUG-14). It can be removed in any phase.

A fetcher does not search all its partitions for work. `FollowedPartitions` has one index for each kind of work, and `move`
changes a partition's phase and its indexes together:

| phase       | index        | looked at                                                        | in `positions` |
|-------------|--------------|------------------------------------------------------------------|----------------|
| TRUNCATING  | `truncating` | in each round of epoch questions: is it due?                     |                |
| WAITING     | `unsettled`  | before each fetch: is it due, and is there room in the request?  |                |
| CATCHING_UP | `unsettled`  | before each fetch: does the throttle slow it now?                | yes            |
| IN_SYNC     | `in_sync`    | only when an answer has something for it                         | yes            |

The cost of a fetch therefore depends on how many partitions changed or are unsettled, not on how many are in sync.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from broker.replication.following.follower_session import FetchPositions
from broker.replication.partition import Partition
from broker.storage.log import Log
from protocol.types import TopicPartition


class Phase(Enum):
    """What a fetcher does with a partition. In TRUNCATING and WAITING it does so from `not_before` on."""

    TRUNCATING = "finding where the logs agree"
    """The log may contain records that the leader's does not. The fetcher asks the leader where epochs end, and cuts."""
    WAITING = "waiting to be fetched"
    """The logs agree, but the partition is not in the fetch session: it waits for the end of a pause after an error, for the
    throttle, for a flush of its log, or for room in a request."""
    CATCHING_UP = "catching up"
    """Each fetch copies more of it. After its last fetch it did not have everything below the leader's high watermark. The
    throttle may slow it (KIP-73)."""
    IN_SYNC = "in sync"
    """Each fetch copies what is new. After its last fetch it had everything below the leader's high watermark, or it has not
    been fetched yet and is in the ISR. Nothing slows it: producers with acks=all wait for it."""


_TRUNCATING, _WAITING, _CATCHING_UP, _IN_SYNC = Phase

MOVES: Mapping[tuple[Phase, Phase], str] = MappingProxyType(
    {
        (_TRUNCATING, _WAITING): "the logs agree",
        #
        (_WAITING, _CATCHING_UP): "it is due, and not in sync",
        (_WAITING, _IN_SYNC): "it is due, and in sync",
        #
        (_CATCHING_UP, _IN_SYNC): "it has everything below the leader's high watermark",
        (
            _CATCHING_UP,
            _WAITING,
        ): "an error, the throttle or a flush; or the logs diverged, and agree after a single cut",
        (_CATCHING_UP, _TRUNCATING): "the logs diverged further; or the leader's log does not have its end offset",
        #
        (_IN_SYNC, _CATCHING_UP): "it lacks records below the leader's high watermark",
        (_IN_SYNC, _WAITING): "an error or a flush; or the logs diverged, and agree after a single cut",
        (_IN_SYNC, _TRUNCATING): "the logs diverged further; or the leader's log does not have its end offset",
    }
)
"""Every allowed move, and when it is made."""


class IllegalMove(AssertionError):
    """A bug: the move is not in `MOVES`."""


class OutOfRange(NamedTuple):
    """The log's end offset is not in the leader's log, which has the records from `start` to `end`."""

    offset: int
    start: int
    end: int


@dataclass(slots=True, eq=False)
class FollowedPartition:
    """A partition in one leader epoch. Each epoch has its own object: `FollowedPartitions.holds` compares identities."""

    partition: Partition
    topic_id: uuid.UUID
    leader_epoch: int
    generation: int
    phase: Phase = Phase.TRUNCATING
    not_before: float = 0.0
    """The end of its pause after an error, by the monotonic clock."""
    failures: int = 0
    """Errors since the last success."""
    is_in_sync: bool = False
    """Whether it was in sync after its last fetch; before its first fetch, whether this broker is in the ISR."""

    leader_high_watermark: int = 0
    """As of its last fetch."""
    out_of_range: OutOfRange | None = None
    """In TRUNCATING: the log must first be brought into the range of the leader's, which takes long."""

    @property
    def is_copied(self) -> bool:
        """Whether it is in the fetch session."""
        return self.phase is Phase.IN_SYNC or self.phase is Phase.CATCHING_UP

    def log(self) -> Log | None:
        """The log, while this epoch is still followed."""
        return self.partition.follows(self.leader_epoch, self.generation)


class FollowedPartitions:
    """The partitions of one fetcher, by phase. See the module."""

    def __init__(self) -> None:
        self._all: dict[TopicPartition, FollowedPartition] = {}
        self.truncating: dict[TopicPartition, FollowedPartition] = {}
        self.unsettled: dict[TopicPartition, FollowedPartition] = {}
        self.in_sync: dict[TopicPartition, FollowedPartition] = {}
        self.positions = FetchPositions()
        """Where the next fetch continues, for each copied partition. The fetcher sets them; `move` and `remove` drop them."""
        self._indexes = {
            Phase.TRUNCATING: self.truncating,
            Phase.WAITING: self.unsettled,
            Phase.CATCHING_UP: self.unsettled,
            Phase.IN_SYNC: self.in_sync,
        }

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[FollowedPartition]:
        """Iterates over a copy: partitions may be added and removed meanwhile."""
        return iter(list(self._all.values()))

    def __contains__(self, tp: TopicPartition) -> bool:
        return tp in self._all

    def __getitem__(self, tp: TopicPartition) -> FollowedPartition:
        return self._all[tp]

    def get(self, tp: TopicPartition) -> FollowedPartition | None:
        return self._all.get(tp)

    def holds(self, followed: FollowedPartition) -> bool:
        """False: the partition was removed, or is followed in another epoch. To be checked after every await (BUG-12)."""
        return self._all.get(followed.partition.tp) is followed

    def add(self, followed: FollowedPartition) -> None:
        """Adds a partition. It replaces the same partition's earlier epoch."""
        tp = followed.partition.tp
        self.remove(tp)
        self._all[tp] = followed
        self._indexes[followed.phase][tp] = followed

    def remove(self, tp: TopicPartition) -> None:
        followed = self._all.pop(tp, None)
        if followed is not None:
            self._indexes[followed.phase].pop(tp, None)
            self.positions.drop(tp)

    def move(self, followed: FollowedPartition, phase: Phase) -> None:
        """The only function that changes a phase. When the partition enters a copied phase, the caller sets its position.

        A partition that is in that phase already, or was removed, is left as it is.
        """
        before, tp = followed.phase, followed.partition.tp
        if before is phase or not self.holds(followed):
            return
        if (before, phase) not in MOVES:
            raise IllegalMove(f"{tp}: {before.name} -> {phase.name}")
        self._indexes[before].pop(tp, None)
        self._indexes[phase][tp] = followed
        followed.phase = phase
        if followed.is_copied:
            followed.is_in_sync = phase is Phase.IN_SYNC
        else:
            self.positions.drop(tp)

    def put_last(self, tp: TopicPartition) -> None:
        """Moves a partition that was checked to the end of `unsettled`: the next check starts with the others."""
        self.unsettled[tp] = self.unsettled.pop(tp)
