"""From gaining a partition of a coordinator's topic to serving what it stores (LAI-5, BUG-25).

1. `TopicReader` reads the log, one partition after the other, in short time slices.
2. The load waits until everything that was read is below the high watermark. A new leader may have records that are not
   acknowledged. If it dies before they are replicated, they are lost, so no client may see them yet.
3. The items (groups, transactions) are handed out in time slices.

Until then the coordinator answers COORDINATOR_LOAD_IN_PROGRESS. Each step first checks that the partition is still owned. A load
that started before the partition was lost is discarded, even if the partition was gained again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, Protocol, TypeVar

from broker.coordination.ownership import Owned
from broker.process.clock import Clock
from broker.process.loop_budget import SlicedWork, TimeSlice
from broker.purgatory import Timers
from broker.replication.hosted_partitions import HostedPartitions
from broker.replication.replica_manager import ReplicaManager
from broker.storage.log import Log, ReadResult, WouldBlock, is_passing
from protocol.errors import ErrorCode, KafkaError
from protocol.types import Buffer, TopicPartition

log = logging.getLogger(__name__)

LOAD_SLICE_S = 0.0015
"""How long a load keeps the loop in one slice."""
READ_BYTES_MAX = 256 * 1024
"""Bytes of one read. A larger read into memory that was never touched would take longer than a slice."""
GONE = (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.OFFSET_OUT_OF_RANGE)
"""Errors of a read from a log that has failed, or that this broker does not lead any more."""
READ_AGAIN_S = 1.0
"""Wait after a disk error that may pass."""
RETRY_S = 1.0
"""Wait before a log that could not be read is loaded again, and before replicas that were too slow are waited for again."""
REPLICATION_WAIT_MS = 5_000
"""How often a load that waits for the in-sync replicas is logged."""


class Replicas(Protocol):
    """The part of the ReplicaManager that finds logs."""

    partitions: HostedPartitions


class Image(Protocol):
    """What the records of a partition say, as far as they were read."""

    next_offset: int

    def steps(self, records: Buffer) -> Iterable[None]:
        """Takes whole batches in the order of the log, with a pause after every few records."""
        ...


class TopicReader:
    """Step 1: reads whole partitions from the log start to the log end, as Kafka does.

    Requests are served in between. After each pause `is_current` says whether the load is still wanted.
    """

    def __init__(self, replicas: Replicas, clock: Clock, buffer_bytes: int = 5 * 1024 * 1024) -> None:
        self._replicas = replicas
        self._clock = clock
        self._buffer_bytes = buffer_bytes

    def new_slice(self) -> TimeSlice:
        return TimeSlice(self._clock.monotonic, LOAD_SLICE_S)

    async def read(
        self, tp: TopicPartition, image: Image, time_slice: TimeSlice, is_current: Callable[[], bool]
    ) -> bool:
        """Reads the partition into the image. False: the load was given up, because `is_current` is false or this broker does not lead
        the partition.

        Raises KafkaError if the log cannot be read: with a part of the log, the coordinator would answer old state.
        """
        offset = -1
        while True:
            await time_slice.pause()
            partition_log = self._led(tp) if is_current() else None
            if partition_log is None:
                return False
            offset = max(offset, partition_log.log_start_offset)
            if offset >= partition_log.log_end_offset:
                return True
            result = await self._read(tp, partition_log, offset)
            if result is None or not is_current():
                return False
            for records in result.records:
                for _ in image.steps(records):
                    if time_slice.is_over():
                        await time_slice.pause()
                        if not is_current():
                            return False
            if not result.size or image.next_offset <= offset:
                return True
            offset = image.next_offset

    def _led(self, tp: TopicPartition) -> Log | None:
        try:
            return self._replicas.partitions.find(tp).leader_log()
        except KafkaError:
            return None

    async def _read(self, tp: TopicPartition, partition_log: Log, offset: int) -> ReadResult | None:
        """The next batches; None: the disk failed, or this broker does not lead the partition any more."""
        end = partition_log.log_end_offset
        size = min(self._buffer_bytes, READ_BYTES_MAX)
        try:
            while True:
                try:
                    try:
                        return partition_log.read(offset, size, end, True)
                    except WouldBlock:
                        return await partition_log.read_cold(offset, size, end, True)
                except KafkaError as error:
                    if not is_passing(error):
                        raise
                await asyncio.sleep(READ_AGAIN_S)
                if self._led(tp) is not partition_log:
                    return None
        except KafkaError as error:
            # The disk failed, the log was closed, or it was truncated, as only a follower's log is.
            if error.code in GONE:
                return None
            raise


Item = TypeVar("Item")
Load = Callable[[int, Callable[[], bool], Callable[[Item], None]], Awaitable[bool]]
"""(partition, is_current, sink) -> reads the partition and passes each item to the sink. False: the load was given up, and the items
in the sink must be discarded. Raises KafkaError if the log cannot be read."""


class PartitionLoading(Generic[Owned, Item]):
    """Loads one partition of the topic after the other. While the partition is owned, `item_loaded` gets each item, and then
    `partition_loaded` is called."""

    def __init__(
        self,
        topic: str,
        load: Load[Item],
        replicas: ReplicaManager,
        timers: Timers,
        sliced: SlicedWork,
        item_loaded: Callable[[Owned, Item], None],
        partition_loaded: Callable[[Owned], None],
    ) -> None:
        self._topic = topic
        self._load = load
        self._replicas = replicas
        self._timers = timers
        self._sliced = sliced
        self._item_loaded = item_loaded
        self._partition_loaded = partition_loaded
        self._queue: deque[Owned] = deque()
        self._task: asyncio.Task[None] | None = None

    def start(self, owned: Owned) -> None:
        if not owned.is_owned:
            return
        self._queue.append(owned)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        self._queue.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while self._queue:
            owned = self._queue.popleft()
            if owned.is_owned:
                await self._read(owned)

    async def _read(self, owned: Owned) -> None:
        found: list[Item] = []
        try:
            is_whole = await self._load(owned.number, lambda: owned.is_owned, found.append)
        except KafkaError as error:
            # Nothing is served before its log is read: clients would get old state (BUG-25).
            log.error("%s-%d cannot be loaded, trying again: %s", self._topic, owned.number, error)
            self._timers.call_later(RETRY_S, self.start, owned)
            return
        await asyncio.sleep(0)  # The last slice of the load and the first one of step 3 are not in the same turn.
        if is_whole and owned.is_owned:
            partition = self._replicas.partitions.find(TopicPartition(self._topic, owned.number))
            self._await_replicas(owned, found, partition.leader_log().log_end_offset)

    def _await_replicas(self, owned: Owned, found: list[Item], end_offset: int) -> None:
        tp = TopicPartition(self._topic, owned.number)
        self._replicas.appends.when_replicated(
            tp,
            end_offset,
            REPLICATION_WAIT_MS,
            lambda result: self._replicated(owned, found, end_offset, ErrorCode(result.error)),
        )

    def _replicated(self, owned: Owned, found: list[Item], end_offset: int, error: ErrorCode) -> None:
        if not owned.is_owned:
            return
        if error is ErrorCode.REQUEST_TIMED_OUT:
            log.warning("%s-%d was read, but the in-sync replicas do not have all of it yet", self._topic, owned.number)
            # Not at once: if too many requests wait for replicas, the answer comes from within the call.
            self._timers.call_later(RETRY_S, self._await_replicas, owned, found, end_offset)
        elif error in (ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
            # All in-sync replicas have the log. They may be too few for new records, but the old records count.
            self._sliced.for_each(found, lambda item: self._take_if_current(owned, item), lambda: self._end(owned))
        # Else the partition is lost, and `leadership_changed` will follow.

    def _take_if_current(self, owned: Owned, item: Item) -> None:
        if owned.is_owned:
            self._item_loaded(owned, item)

    def _end(self, owned: Owned) -> None:
        if owned.is_owned:
            self._partition_loaded(owned)
