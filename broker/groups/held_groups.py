"""The groups that this broker coordinates, and the partitions of `__consumer_offsets` that make it their coordinator."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from sys import getsizeof
from typing import NamedTuple

from broker.coordination.ownership import OwnedPartition
from broker.groups.consumer_group.consumer_group import ConsumerGroup
from broker.groups.group.group import Group
from broker.groups.group.limits import GROUP_BYTES, PENDING_BYTES, PENDING_BYTES_MAX, PENDING_MAX
from broker.groups.group.offsets import GroupOffsets
from broker.groups.open_transactions import OpenTransactions
from broker.groups.timers import NEVER
from broker.purgatory import TimerHandle
from protocol.errors import ErrorCode
from protocol.topic_names import OFFSETS_TOPIC
from protocol.types import TopicPartition


class GroupsPartition(OwnedPartition):
    """A partition of `__consumer_offsets` that this broker leads, with its groups."""

    __slots__ = ("deleted_topics", "groups", "transactions")

    def __init__(self, number: int, leader_epoch: int) -> None:
        super().__init__(number, leader_epoch)
        self.groups: dict[str, HeldGroup] = {}
        self.deleted_topics: set[str] = set()
        """Topics that were deleted while the groups were being loaded."""
        self.transactions = OpenTransactions()

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(OFFSETS_TOPIC, self.number)


AnyGroup = Group | ConsumerGroup


class ChangesWrite:
    """Changes of a group of the new kind that are in the log. `waiting`: who is told when they are below the high watermark, or lost."""

    __slots__ = ("timer", "waiting")

    def __init__(self) -> None:
        self.waiting: list[Callable[[ErrorCode], None]] = []
        self.timer: TimerHandle | None = None

    def answer(self, error: ErrorCode) -> None:
        waiting, self.waiting = self.waiting, []
        for respond in waiting:
            respond(error)


class WaitingRequest(NamedTuple):
    """`epoch`: of the target that it waits for. `answer` is called when there is one, with NONE, or with the error why there is none."""

    epoch: int
    answer: Callable[[ErrorCode], None]


class HeldGroup:
    """A group and its offsets. When the partition is lost or the group removed, `is_held` becomes false: nothing may act for it then.

    `is_being_deleted`: the group's tombstones are being written. A group that is empty may become one of the other kind.
    """

    __slots__ = (
        "armed_at",
        "counted_bytes",
        "group",
        "group_id",
        "is_being_deleted",
        "is_removed",
        "is_worked_on",
        "last_write",
        "offsets",
        "owner",
        "told",
        "waiting",
    )

    def __init__(self, group_id: str, owner: GroupsPartition, group: AnyGroup, offsets: GroupOffsets) -> None:
        self.group_id = group_id
        self.owner = owner
        self.group: AnyGroup = group
        self.offsets = offsets
        self.is_removed = False
        self.is_being_deleted = False
        self.armed_at = NEVER
        self.counted_bytes = 0
        self.last_write: ChangesWrite | None = None
        """The last changes of a group of the new kind that are not below the high watermark yet."""
        self.waiting: deque[WaitingRequest] = deque()
        """Requests of members of a group of the new kind that wait for a new target, the lowest epoch first."""
        self.is_worked_on = False
        """Whether somebody takes the steps to a new target, and answers those who wait for it."""
        self.told = (group.state.value, group.epoch) if isinstance(group, ConsumerGroup) else ("Empty", 0)
        """The state and epoch of a group of the new kind that the event logs of this and earlier coordinators know."""

    @property
    def is_held(self) -> bool:
        """False from the moment on at which the partition is lost: the groups of a large partition are removed later, in steps."""
        return not self.is_removed and self.owner.is_owned

    @property
    def classic(self) -> Group | None:
        """None: it is of the new kind."""
        return self.group if isinstance(self.group, Group) else None

    @property
    def consumer(self) -> ConsumerGroup | None:
        """The group, if it is of the new kind (KIP-848)."""
        return self.group if isinstance(self.group, ConsumerGroup) else None

    def next_deadline(self) -> float | None:
        return self.group.next_deadline()


class HeldGroups:
    """The loaded groups of all partitions that this broker leads, by group id. Those of a lost partition are in it until they are
    removed, and are not found any more."""

    def __init__(self) -> None:
        self._groups: dict[str, HeldGroup] = {}
        self.bytes = 0
        """Approximate size of the groups in memory (`group.memory.max.bytes`)."""

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[HeldGroup]:
        """Iterates over those of a snapshot that are still held."""
        return (held for held in list(self._groups.values()) if held.is_held)

    def get(self, group_id: str) -> HeldGroup | None:
        held = self._groups.get(group_id)
        return held if held is not None and held.owner.is_owned else None

    def owner_of(self, group_id: str) -> GroupsPartition | None:
        held = self.get(group_id)
        return None if held is None else held.owner

    def add(self, held: HeldGroup) -> None:
        self._groups[held.group_id] = held.owner.groups[held.group_id] = held
        self.count(held)

    def count(self, held: HeldGroup) -> None:
        """Updates `bytes` after the group's size may have changed."""
        size = (
            GROUP_BYTES + getsizeof(held.group_id) + held.group.memory_bytes + held.offsets.bytes if held.is_held else 0
        )
        self.bytes += size - held.counted_bytes
        held.counted_bytes = size

    def remove(self, held: HeldGroup) -> None:
        held.is_removed = True
        if self._groups.get(held.group_id) is held:
            del self._groups[held.group_id]
        held.owner.groups.pop(held.group_id, None)
        for producer_id in held.offsets.transactional.producers():
            held.owner.transactions.discard(producer_id, held.group_id)
        self.count(held)


class PendingIds:
    """Member ids of all groups that were given out and are not used yet (KIP-394), the oldest first. Some may have expired."""

    def __init__(self) -> None:
        self._ids: dict[tuple[str, str], None] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, group_id: str, member_id: str) -> None:
        key = (group_id, member_id)
        if key not in self._ids:
            self.bytes += _size(key)
            self._ids[key] = None

    def remove(self, group_id: str, member_id: str) -> None:
        """Called when the client joins with the id, or leaves."""
        key = (group_id, member_id)
        if key in self._ids:
            del self._ids[key]
            self.bytes -= _size(key)

    def too_many(self) -> Iterator[tuple[str, str]]:
        """Removes the oldest ids while the limits are exceeded. Yields their group and member id."""
        while len(self._ids) > PENDING_MAX or self.bytes > PENDING_BYTES_MAX:
            key = next(iter(self._ids))
            self.remove(*key)
            yield key


def _size(key: tuple[str, str]) -> int:
    """Approximate bytes of the id and a whole group: an attacker can name another group in every request."""
    return GROUP_BYTES + PENDING_BYTES + getsizeof(key[0]) + getsizeof(key[1])
