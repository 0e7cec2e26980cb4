"""Which partitions of a coordinator's topic this broker leads, and thus which keys (group ids, transactional ids) it coordinates (LAI-5).

    gained -> loading (`loading.py`) -> served -> lost

A loss takes effect at once, in each state. When a partition is gained again, it is a new `OwnedPartition`, and pending work for the
earlier object is discarded. A leader that continues in a new epoch keeps what it has: no other broker has led in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from broker.cluster.lease import LeadershipLease
from broker.cluster.metadata_cache import MetadataCache
from broker.coordination.confirmation import Confirmation
from broker.process.clock import Clock
from broker.replication.partition import Partition, Role
from broker.replication.replica_manager import ReplicaManager
from protocol.errors import ErrorCode
from protocol.types import TopicPartition


def partition_for(key: str, partitions: int) -> int:
    """The partition whose leader coordinates the key, as in Kafka: by Java's hash of the text."""
    units = key.encode("utf-16-be", "surrogatepass")
    number = 0
    for at in range(0, len(units), 2):
        number = (31 * number + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    # As Utils.abs: Integer.MIN_VALUE becomes 0, every other negative number is negated.
    if number >= 0x80000000:
        number = 0 if number == 0x80000000 else 0x100000000 - number
    return number % partitions


class OwnedPartition:
    """A partition of the topic that this broker leads. Each time that it gains the leadership, a new object is created."""

    __slots__ = ("is_loaded", "is_owned", "leader_epoch", "number")

    def __init__(self, number: int, leader_epoch: int) -> None:
        self.number = number
        self.leader_epoch = leader_epoch
        self.is_owned = True
        self.is_loaded = False


Owned = TypeVar("Owned", bound=OwnedPartition)


class Ownership(Generic[Owned]):
    """Iterates over the owned partitions, loaded or not.

    `make(number, leader epoch)` makes a partition that is gained; then `gained` is called with it. `lost` is called with each partition
    that is lost. `partitions_expected` is the number of partitions with which the topic will be created. `owner_of_held` finds the
    partition of a key that is held. Such a key keeps its partition, even while the metadata shows another number of partitions.
    """

    def __init__(
        self,
        topic: str,
        partitions_expected: int,
        clock: Clock,
        metadata: MetadataCache,
        replicas: ReplicaManager,
        lease: LeadershipLease,
        make: Callable[[int, int], Owned],
        owner_of_held: Callable[[str], Owned | None],
        gained: Callable[[Owned], None],
        lost: Callable[[Owned], None],
    ) -> None:
        self._topic = topic
        self._partitions_expected = partitions_expected
        self._metadata = metadata
        self._replicas = replicas
        self._lease = lease
        self._make = make
        self._owner_of_held = owner_of_held
        self._on_gained = gained
        self._on_lost = lost
        self._owned: dict[int, Owned] = {}
        self._is_closed = False
        self._confirmation = Confirmation(clock, lease, self._led, replicas.fetches.answer_followers)

    def __iter__(self) -> Iterator[Owned]:
        return iter(list(self._owned.values()))

    def get(self, number: int) -> Owned | None:
        """The partition with this number, if this broker leads it."""
        return self._owned.get(number)

    def partition_of(self, key: str) -> int:
        """The partition whose leader coordinates the key."""
        owned = self._owner_of_held(key)
        if owned is not None:
            return owned.number
        return partition_for(key, self._metadata.partition_count(self._topic) or self._partitions_expected)

    def owner_of(self, key: str) -> Owned | None:
        """None: another broker coordinates the key, or the number of partitions is not known yet."""
        owned = self._owner_of_held(key)
        if owned is not None:
            return owned
        if not self._metadata.partition_count(self._topic):
            return None
        return self._owned.get(self.partition_of(key))

    def check(self, key: str) -> ErrorCode:
        """NONE if this broker may answer for the key now."""
        owned = self.owner_of(key)
        if owned is None or not self.may_act_for(owned):
            return ErrorCode.NOT_COORDINATOR
        return ErrorCode.NONE if owned.is_loaded else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def check_all(self) -> ErrorCode:
        """NONE if this broker may list all keys that it coordinates. COORDINATOR_LOAD_IN_PROGRESS: it knows only some of them."""
        if self._is_closed or self._lease.is_suspect():
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        is_loaded = all(owned.is_loaded for owned in self._owned.values())
        return ErrorCode.NONE if is_loaded else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def may_act_for(self, owned: Owned) -> bool:
        """False if this process stood still, or was cut off: another broker may coordinate the partition's keys by now."""
        if self._lease.is_suspect():
            return False
        if not self._confirmation.is_needed():
            return True
        partition = self._partition_of(owned)
        return partition is not None and not self._confirmation.is_doubted(partition)

    def is_certain(self) -> bool:
        """Whether ZooKeeper has lately confirmed that no other broker coordinates these keys. Otherwise `confirm` comes first."""
        return not self._confirmation.is_needed()

    async def confirm(self) -> None:
        """To be awaited before a request is served. Afterwards `check` knows of each key whether another broker may coordinate it."""
        await self._confirmation.round()

    def _led(self) -> Iterable[Partition]:
        return filter(None, map(self._partition_of, self._owned.values()))

    def _partition_of(self, owned: Owned) -> Partition | None:
        return self._replicas.partitions.get(TopicPartition(self._topic, owned.number))

    # -- gained and lost ----------------------------------------------------------------------------------------------

    def leadership_changed(self, tp: TopicPartition) -> None:
        """Called for partitions of all topics, after each change of this broker's role or of the leader epoch."""
        if tp.topic != self._topic:
            return
        partition = self._replicas.partitions.get(tp)
        if partition is not None and partition.role is Role.LEADER:
            self._gained(tp.partition, partition.leader_epoch)
        else:
            self._lost(tp.partition)

    def close(self) -> None:
        """Gives up all partitions. None is gained afterwards."""
        self._is_closed = True
        self._confirmation.close()
        for number in list(self._owned):
            self._lost(number)

    def _gained(self, number: int, leader_epoch: int) -> None:
        owned = self._owned.get(number)
        if owned is not None:
            owned.leader_epoch = leader_epoch
        elif not self._is_closed:
            owned = self._owned[number] = self._make(number, leader_epoch)
            self._on_gained(owned)

    def _lost(self, number: int) -> None:
        owned = self._owned.pop(number, None)
        if owned is None:
            return
        owned.is_owned = False
        self._on_lost(owned)
