"""The offsets of one group that are in the log, in transactions that have not ended yet (KIP-98, KIP-447). Pure.

A transaction ends with a marker in the same partition of `__consumer_offsets`. The marker decides about the offsets that its producer
wrote before it: a commit makes them the group's offsets, an abort drops them. An offset that a tombstone follows is dropped in either
case, because compaction keeps only the tombstone.
"""

from __future__ import annotations

from collections.abc import Iterator
from sys import getsizeof

from broker.groups.group.limits import OFFSET_BYTES
from protocol.types import TopicPartition

StoredOffset = tuple[int, int, int, str, int, int | None, bytes | None]
"""The log offset of the commit's batch, then the fields of a CommittedOffset."""


class TransactionalOffsets:
    """At most one offset for each producer and partition: the latest in the log. `bytes` is their approximate size in memory."""

    __slots__ = ("_by_partition", "_by_producer", "bytes")

    def __init__(self) -> None:
        self._by_partition: dict[TopicPartition, dict[int, StoredOffset]] = {}
        self._by_producer: dict[int, dict[TopicPartition, None]] = {}
        self.bytes = 0

    def __contains__(self, tp: TopicPartition) -> bool:
        return tp in self._by_partition

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._by_partition)

    def __bool__(self) -> bool:
        return bool(self._by_partition)

    def get(self, producer_id: int, tp: TopicPartition) -> StoredOffset | None:
        return self._by_partition.get(tp, {}).get(producer_id)

    def producers(self) -> list[int]:
        """The producers with an offset; a snapshot."""
        return list(self._by_producer)

    def has(self, producer_id: int) -> bool:
        return producer_id in self._by_producer

    def add(self, producer_id: int, tp: TopicPartition, stored: StoredOffset) -> None:
        """Ignored if the producer has a later offset for the partition."""
        current = self.get(producer_id, tp)
        if current is not None:
            if current[0] >= stored[0]:
                return
            self.bytes -= size_of(current)
        self._by_partition.setdefault(tp, {})[producer_id] = stored
        self._by_producer.setdefault(producer_id, {})[tp] = None
        self.bytes += size_of(stored)

    def partitions_of(self, producer_id: int) -> list[TopicPartition]:
        """A snapshot."""
        return list(self._by_producer.get(producer_id, ()))

    def take(self, producer_id: int, tp: TopicPartition, before: int) -> StoredOffset | None:
        """Removes the offset, if it is in the log before the log offset `before`, and returns it."""
        stored = self.get(producer_id, tp)
        if stored is None or stored[0] >= before:
            return None
        self._remove(producer_id, tp, stored)
        return stored

    def drop(self, tp: TopicPartition, before: int) -> None:
        """Removes the offsets of all producers for the partition that are before the log offset `before`."""
        for producer_id in list(self._by_partition.get(tp, ())):
            self.take(producer_id, tp, before)

    def _remove(self, producer_id: int, tp: TopicPartition, stored: StoredOffset) -> None:
        self.bytes -= size_of(stored)
        producers = self._by_partition[tp]
        del producers[producer_id]
        if not producers:
            del self._by_partition[tp]
        partitions = self._by_producer[producer_id]
        del partitions[tp]
        if not partitions:
            del self._by_producer[producer_id]


def size_of(stored: StoredOffset) -> int:
    """Approximate bytes of an offset in memory."""
    return OFFSET_BYTES + getsizeof(stored[3])


def size_with(metadata: str) -> int:
    """Approximate bytes of an offset with this metadata."""
    return OFFSET_BYTES + getsizeof(metadata)
