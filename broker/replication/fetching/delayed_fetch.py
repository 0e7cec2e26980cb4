"""A parked fetch: waits for enough bytes, or for its time-out (REP-5). Parked fetches are checked once per turn of the loop."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from broker.purgatory import CheckResult, DelayedOperation
from broker.replication.fetching.closest_replica import NO_REPLICA
from broker.replication.fetching.fetch_reads import NO_ROOM, FetchEntry, FetchParams, FetchReads, PartitionRead
from protocol.errors import ErrorCode
from protocol.kafka.fetch_codec import FetchPartitionData, FetchRequestPartition
from protocol.types import TopicPartition

AnswerWith = Callable[[list[PartitionRead]], None]
"""Answers with these reads, which are in the order of the entries. Cold reads are finished first."""


def is_decisive(read: PartitionRead) -> bool:
    """Whether a fetch with this read is answered at once, even with less than `min_bytes`."""
    data = read.data
    return (
        data.error != ErrorCode.NONE
        or data.diverging_epoch is not None
        or read.cold is not None
        or data.preferred_read_replica != NO_REPLICA
    )


class DelayedFetch(DelayedOperation[TopicPartition]):
    """Reads only partitions that were touched, so its cost does not depend on how many others it has.

    If there are not enough records yet, the records that were read are dropped, and read again for the answer (`_incomplete`). A
    parked fetch therefore holds no records in memory.
    """

    __slots__ = (
        "_answer",
        "_asked",
        "_entries",
        "_incomplete",
        "_index",
        "_is_urgent",
        "_params",
        "_reads",
        "_source",
        "_throttled",
        "_total",
    )

    def __init__(
        self,
        params: FetchParams,
        entries: list[FetchEntry],
        reads: list[PartitionRead],
        source: FetchReads,
        answer: AnswerWith,
        is_urgent: Callable[[int, PartitionRead], bool] | None = None,
    ) -> None:
        """`add` appends to `entries`. `is_urgent` says of the read of an entry whether it is answered at once, even without records."""
        super().__init__()
        self._asked = params
        self._params = params
        self._entries = entries
        self._reads = reads
        self._source = source
        self._answer = answer
        self._is_urgent = is_urgent
        self._index = {tp: index for index, (tp, _) in enumerate(entries)}
        self._total = sum(read.size for read in reads)
        self._throttled = sum(read.throttled_size for read in reads)
        self._incomplete: set[int] = set()
        self._drop_records(index for index, read in enumerate(reads) if read.size)

    def partitions(self) -> list[TopicPartition]:
        """The partitions that the fetch watches."""
        return [tp for tp, _ in self._entries]

    def add(self, tp: TopicPartition, wanted: FetchRequestPartition) -> None:
        """Adds a partition of the session that was resting. It is read when it is touched again, or for the answer."""
        if tp in self._index or self._purgatory is None:
            return
        self._index[tp] = index = len(self._entries)
        self._entries.append((tp, wanted))
        self._reads.append(PartitionRead(FetchPartitionData(wanted.partition, ErrorCode.NONE)))
        self._incomplete.add(index)
        self._purgatory.watch_also(self, tp)

    def read_later(self, tp: TopicPartition) -> bool:
        """The high watermark moved, and nothing was appended: the partition is read again for the answer, so that this has the new one.

        False: its last read left something unread, so it has to be checked now.
        """
        index = self._index.get(tp)
        if index is None:
            return True
        if index in self._incomplete:
            return not self._reads[index].size  # it was resting, or is noted already
        if self._reads[index].is_idle:
            self._incomplete.add(index)
            return True
        return False

    def try_complete(self, keys: Collection[TopicPartition]) -> CheckResult:
        self._params = params = self._asked.bounded()
        is_due = False
        touched: list[int] = []
        for key in keys:
            index = self._index.get(key)
            if index is None:
                continue
            read = self._read_again(index)
            self._incomplete.discard(index)
            is_due = is_due or is_decisive(read) or (self._is_urgent is not None and self._is_urgent(index, read))
            touched.append(index)
        if is_due or self._total >= params.min_bytes:
            return CheckResult.DONE
        self._drop_records(index for index in touched if self._reads[index].size)
        return CheckResult.WAIT

    def on_complete(self, *, expired: bool) -> None:
        """Answers. At the time-out, partitions that had something to read, but were held up for example by a throttle, are read
        again. A partition that had nothing to read and was not touched since then is not.
        """
        if not self._asked.room.is_open:
            self._answer(self._reads)
            return
        self._params = self._asked.bounded()
        again = self._incomplete
        if expired:
            again = again | {index for index, read in enumerate(self._reads) if not read.is_idle}
        for index in sorted(again):
            self._read_again(index)
        self._answer(self._reads)

    def _read_again(self, index: int) -> PartitionRead:
        tp, wanted = self._entries[index]
        before = self._reads[index]
        self._total -= before.size
        self._throttled -= before.throttled_size
        budget = self._params.max_bytes - self._total
        read = self._source.read(
            self._params,
            tp,
            wanted,
            budget,
            min_one_batch=self._total <= 0 and self._params.max_bytes != NO_ROOM,
            pending=self._throttled,
        )
        self._reads[index] = read
        self._total += read.size
        self._throttled += read.throttled_size
        return read

    def _drop_records(self, indexes: Iterable[int]) -> None:
        for index in indexes:
            read = self._reads[index]
            self._reads[index] = PartitionRead(
                read.data._replace(records=(), aborted_transactions=None, stored=None),
                read.size,
                is_throttled=read.is_throttled,
            )
            self._incomplete.add(index)
