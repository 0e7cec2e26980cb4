"""A fetch of thousands of partitions, read in slices so that other requests get their turn of the loop (NET-4).

A partition that is touched after its read, but before the last read of the fetch, is read again. The fetch is answered or parked in
the same turn of the loop as its last read, so it misses no touch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from broker.replication.fetching.fetch_reads import NO_ROOM, FetchEntry, FetchParams, FetchReads, PartitionRead
from protocol.types import TopicPartition

READS_IN_A_SLICE = 20
"""A read that finds nothing takes about 10 us, a read that finds records up to 100 us."""
LARGE = 150
"""A fetch with more partitions is read in slices."""


class WaitingFetch(Protocol):
    """A fetch that is not answered yet."""

    @property
    def is_completed(self) -> bool: ...

    def complete_now(self) -> bool:
        """Answers the fetch with the reads so far, or as soon as it can. True: it was answered by this call."""
        ...


class LargeFetch:
    """`reads` has the results so far, in the order of `entries`. `parked` is the fetch if it was parked after its last read."""

    def __init__(self, source: FetchReads, params: FetchParams, entries: list[FetchEntry]) -> None:
        self._source = source
        self._params = params
        self._entries = entries
        self._index = {tp: index for index, (tp, _) in enumerate(entries)}
        self._touched: set[int] = set()
        self._total = 0
        self._throttled = 0
        self.reads: list[PartitionRead] = []
        self.parked: WaitingFetch | None = None
        self.is_hurried = False
        """`complete_now` was called: the fetch is answered after its last read, and not parked."""
        self.is_completed = False

    @property
    def min_bytes(self) -> int:
        """The fetch is answered at once if it has this many bytes."""
        return self._params.min_bytes

    def complete_now(self) -> bool:
        self.is_hurried = True
        return self.parked is not None and self.parked.complete_now()

    def note(self, touched: Iterable[TopicPartition]) -> None:
        """These partitions were touched. Those that have been read already are read again."""
        for tp in touched:
            index = self._index.get(tp)
            if index is not None and index < len(self.reads):
                self._touched.add(index)

    def read_some(self) -> bool:
        """Reads one slice. True: every partition has been read, and none was touched after its read."""
        start, reads = len(self.reads), self.reads
        end = min(start + READS_IN_A_SLICE, len(self._entries))
        for index in range(start, end):
            reads.append(self._read(index, records_fetch=True))
        if start == end:
            for index in sorted(self._touched)[:READS_IN_A_SLICE]:
                self._touched.discard(index)
                self._total -= reads[index].size
                self._throttled -= reads[index].throttled_size
                reads[index] = self._read(index, records_fetch=False)
        return len(reads) == len(self._entries) and not self._touched

    def _read(self, index: int, *, records_fetch: bool) -> PartitionRead:
        tp, wanted = self._entries[index]
        read = self._source.read(
            self._params,
            tp,
            wanted,
            self._params.max_bytes - self._total,
            min_one_batch=self._total <= 0 and self._params.max_bytes != NO_ROOM,
            records_fetch=records_fetch,
            pending=self._throttled,
        )
        self._total += read.size
        self._throttled += read.throttled_size
        return read
