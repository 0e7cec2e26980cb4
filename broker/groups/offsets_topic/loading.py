"""From gaining a partition of `__consumer_offsets` to serving its groups (LAI-5, BUG-25).

1. The log is read, one partition after the other, in slices (`OffsetsTopic.load`).
2. What was read has to be below the high watermark. A new leader may hold commits that nobody has acknowledged; if it dies before
   they are replicated they never were, so nobody may be shown them.
3. The groups are made from it, in slices. The sessions of their members begin anew: nobody is put out because the coordinator moved.

Until then the coordinator answers COORDINATOR_LOAD_IN_PROGRESS. Each step looks first whether the partition is still the one
that was gained: after a loss, or a loss and another gain, the rest of an earlier load comes to nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from broker.groups.group.messages import GroupMetadata
from broker.groups.group.offsets import GroupOffsets
from broker.groups.held_groups import OwnedPartition
from broker.groups.offsets_topic.topic import OffsetsTopic
from broker.groups.time_slices import Slices
from broker.purgatory import Timers
from broker.replication.replica_manager import ReplicaManager
from protocol.errors import ErrorCode, KafkaError
from protocol.topic_names import OFFSETS_TOPIC
from protocol.types import TopicPartition

log = logging.getLogger(__name__)

RETRY_S = 1.0
"""After a log that could not be read."""
REPLICATION_WAIT_MS = 5_000
"""After which it is said that the replicas are waited for."""

StoredGroup = tuple[str, GroupMetadata | None, GroupOffsets]
"""Group id, what is stored of it (None: only its offsets are), its offsets."""


class GroupLoading:
    """`take` gets the groups one by one, `loaded` is called after the last, both only while `is_current`."""

    def __init__(
        self,
        topic: OffsetsTopic,
        replicas: ReplicaManager,
        timers: Timers,
        slices: Slices,
        is_current: Callable[[OwnedPartition], bool],
        take: Callable[[OwnedPartition, StoredGroup], None],
        loaded: Callable[[OwnedPartition], None],
    ) -> None:
        self._topic = topic
        self._replicas = replicas
        self._timers = timers
        self._slices = slices
        self._is_current = is_current
        self._take = take
        self._loaded = loaded
        self._queue: deque[OwnedPartition] = deque()
        self._task: asyncio.Task[None] | None = None

    def begin(self, owned: OwnedPartition) -> None:
        if not self._is_current(owned):
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
            if self._is_current(owned):
                await self._read(owned)

    async def _read(self, owned: OwnedPartition) -> None:
        found: list[StoredGroup] = []
        try:
            is_whole = await self._topic.load(
                owned.number, lambda: self._is_current(owned), lambda *group: found.append(group)
            )
        except KafkaError as error:
            # Never served without it: offsets of long ago would be answered (BUG-25).
            log.error("%s-%d cannot be loaded, trying again: %s", OFFSETS_TOPIC, owned.number, error)
            self._timers.call_later(RETRY_S, self.begin, owned)
            return
        if is_whole and self._is_current(owned):
            partition = self._replicas.partitions.find(TopicPartition(OFFSETS_TOPIC, owned.number))
            self._await_replicas(owned, found, partition.leader_log().log_end_offset)

    def _await_replicas(self, owned: OwnedPartition, found: list[StoredGroup], end_offset: int) -> None:
        tp = TopicPartition(OFFSETS_TOPIC, owned.number)
        self._replicas.when_replicated(
            tp, end_offset, REPLICATION_WAIT_MS, lambda error: self._replicated(owned, found, end_offset, error)
        )

    def _replicated(self, owned: OwnedPartition, found: list[StoredGroup], end_offset: int, error: ErrorCode) -> None:
        if not self._is_current(owned):
            return
        if error is ErrorCode.REQUEST_TIMED_OUT:
            log.warning("%s-%d is read, its groups wait for the replicas in sync", OFFSETS_TOPIC, owned.number)
            self._await_replicas(owned, found, end_offset)
        elif error in (ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
            # All that are in sync have it; that they are too few for new commits takes nothing from the old ones.
            self._slices.each(found, lambda group: self._take_if_current(owned, group), lambda: self._end(owned))
        # Else it is lost, and this will be told.

    def _take_if_current(self, owned: OwnedPartition, group: StoredGroup) -> None:
        if self._is_current(owned):
            self._take(owned, group)

    def _end(self, owned: OwnedPartition) -> None:
        if self._is_current(owned):
            self._loaded(owned)
