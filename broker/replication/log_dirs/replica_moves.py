"""Moves replicas between this broker's log directories while they are served (LOG-6, KIP-113; Kafka's ReplicaAlterLogDirsThread).

1. AlterReplicaLogDirs makes an empty copy of the log in the other directory (`broker.storage.directories.future_logs`).
2. One task copies all moving logs in turn, up to the LEO, like a follower on the same machine. It copies at most
   `replica.alter.log.dirs.io.max.bytes.per.second`.
3. A complete copy is synced. Then, within one turn of the loop, it gets the records that were appended meanwhile and replaces
   the log.

During the move this broker leads or follows with the old log; a truncation of the old log truncates the copy too. If that takes
long, the copy is cut in parts before anything is copied again. After a restart the broker continues with the part of the copy
that it has. If it is asked to move the replica to another directory, it starts a new copy there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from broker.process.event_log import EventLog
from broker.replication.fetching.replication_throttle import ReplicationThrottle
from broker.replication.hosted_partitions import HostedPartitions
from broker.replication.partition import Role
from broker.storage.directories.future_logs import TOPIC_NAME_MAX
from broker.storage.log import Log, LogDirFailed, LogUnavailable, WouldBlock
from broker.storage.log_manager import LogManager
from protocol.errors import ErrorCode, KafkaError
from protocol.types import Buffer, TopicPartition

log = logging.getLogger(__name__)

COPY_BYTES = 512 * 1024
"""Size of one step, which takes a few milliseconds of the loop's time."""
PAUSE_S_MAX = 1.0
LAST_BYTES_MAX = 1024 * 1024
"""Limit of bytes that are copied without a pause before the swap: those that were appended during the sync of the copy."""


class ReplicaMoves:
    """`checkpoint` writes the high watermarks: the new directory's file must have the replica's before the old log is removed."""

    def __init__(
        self,
        log_manager: LogManager,
        hosted: HostedPartitions,
        throttle: ReplicationThrottle,
        events: EventLog,
        checkpoint: Callable[[], Awaitable[None]],
    ) -> None:
        self._log_manager = log_manager
        self._futures = log_manager.futures
        self._hosted = hosted
        self._throttle = throttle
        self._events = events
        self._checkpoint = checkpoint
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        # (the log in its new place, the path of the old one): swaps that are not on the disk for sure.
        self._unfinished: list[tuple[Log, str]] = []

    def move(self, tp: TopicPartition, directory: str) -> None:
        """Starts to move the replica to `directory`. If the log is there already, cancels its move to another. Returns at once.

        Raises KafkaError: LOG_DIR_NOT_FOUND, KAFKA_STORAGE_ERROR, INVALID_TOPIC_EXCEPTION for a name that is too long, and
        REPLICA_NOT_AVAILABLE if there is no such replica: if it is created later, then in `directory`.
        """
        if len(tp.topic) > TOPIC_NAME_MAX:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"{tp}: the name is too long for the directory of a copy"
            )
        if directory not in self._log_manager.directories:
            raise KafkaError(ErrorCode.LOG_DIR_NOT_FOUND, f"{directory} is not in log.dirs")
        if directory in self._log_manager.offline_dirs:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{directory} is offline")
        partition = self._hosted.get(tp)
        if partition is not None and partition.role is Role.OFFLINE:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{tp} is offline")
        current = self._log_manager.get(tp)
        if partition is None or current is None or partition.log is not current:
            self._futures.prefer(tp, directory)
            raise KafkaError(
                ErrorCode.REPLICA_NOT_AVAILABLE,
                f"{tp} is not on this broker; if created later, it will be in {directory}",
            )
        self._begin(tp, current, directory)

    def _begin(self, tp: TopicPartition, current: Log, directory: str) -> None:
        future = self._futures.get(tp)
        if future is not None:
            if future.log_dir == directory:
                return
            log.info("%s: the move to %s is cancelled", tp, future.log_dir)
            self._log_manager.drop_future(tp)
        if current.log_dir == directory:
            return
        if self._log_manager.offline_dirs:
            # The offline directory may have a copy already: no second copy is made (Kafka's rule).
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{tp}: nothing moves while a log directory is offline")
        self._log_manager.make_future(tp, directory)
        self._events.write("replica_move_begun", partition=str(tp), source=current.log_dir, target=directory)
        self.wake()

    # -- copying --------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """To be called when there may be something to copy: after a LeaderAndIsr, or when a move starts."""
        self._changed.set()
        if len(self._futures) and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="replica moves")

    async def close(self) -> None:
        """Stops copying. The next start continues with what is copied so far."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def done(self) -> None:
        """Waits until no replica moves."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while len(self._futures) or self._unfinished:
                self._changed.clear()
                has_worked = False
                # A log that moved back before that could be complete in two places after a power loss.
                for tp in self._futures.partitions() if await self._have_finished() else ():
                    has_worked |= await self._work_on(tp)
                if not has_worked:
                    await self._wait()
        finally:
            self._task = None

    async def _have_finished(self) -> bool:
        try:
            if self._unfinished:
                await self._finish()
        except LogDirFailed as error:
            log.error("old logs of moved replicas cannot be removed now: %s", error)
        return not self._unfinished

    async def _wait(self) -> None:
        """Waits for `wake` or for the throttle, at most PAUSE_S_MAX."""
        try:
            async with asyncio.timeout(min(self._throttle.free_in() or PAUSE_S_MAX, PAUSE_S_MAX)):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _work_on(self, tp: TopicPartition) -> bool:
        """Copies a piece, or ends the move. False: there is nothing to do now."""
        try:
            return await self._advance(tp)
        except LogUnavailable as error:
            return False if error.is_passing else self._give_up(tp, error)
        except LogDirFailed as error:
            log.error("%s: the move ends: %s", tp, error)
        except KafkaError as error:
            if self._log_and_copy(tp) is not None:
                return self._give_up(tp, error)
        return True

    def _give_up(self, tp: TopicPartition, why: KafkaError) -> bool:
        """Ends the move. False: the copy cannot be removed now, and the next attempt follows after a pause."""
        log.error("%s: the move ends: %s", tp, why)
        try:
            self._log_manager.drop_future(tp)
        except LogDirFailed as error:
            log.error("%s: its copy cannot be removed: %s", tp, error)
            return False
        self._events.write("replica_move_failed", partition=str(tp), reason=str(why))
        return True

    def _log_and_copy(self, tp: TopicPartition) -> tuple[Log, Log] | None:
        """(the log, its copy) of a partition that has a role here; None: there is nothing to copy."""
        current, future, partition = self._log_manager.get(tp), self._futures.get(tp), self._hosted.get(tp)
        if current is None or future is None or partition is None or partition.log is not current:
            return None
        return current, future

    async def _advance(self, tp: TopicPartition) -> bool:
        both = self._log_and_copy(tp)
        if both is None or self._throttle.is_exceeded():
            return False
        current, future = both
        if future.topic_id != current.topic_id:
            log.warning("%s: the copy belongs to another topic of that name and is removed", tp)
            self._log_manager.drop_future(tp)
            return True
        if not self._align(current, future):
            await self._cut_down(tp, current, future)
            return True
        if future.log_end_offset < current.log_end_offset:
            offset = future.log_end_offset
            read = await current.read_cold(offset, COPY_BYTES, current.log_end_offset, min_one_batch=True)
            # If the log was cut meanwhile, the copy was cut too, or will be. The records that were read would leave a gap in the copy
            # (BUG-12).
            is_as_before = future.log_end_offset == offset and self._futures.uncut(tp) is None
            if self._log_and_copy(tp) == both and is_as_before:
                self._append(future, read.records)
            await asyncio.sleep(0)
            if read.size > COPY_BYTES // 2 or not is_as_before or self._log_and_copy(tp) != both:
                return True
            # Under load there is always something left, but little: `_catch_up` copies it.
        await future.flush()
        with self._log_manager.reporting(future.log_dir):
            await asyncio.get_running_loop().run_in_executor(None, self._futures.declare_complete, future)
        is_ready = self._log_and_copy(tp) == both and self._catch_up(current, future)
        if not is_ready and self._log_and_copy(tp) == both and future.log_end_offset == current.log_end_offset:
            # The log was flushed meanwhile, and is again and again if it has `flush.messages`: it waits for the copy.
            async with current.without_flushes():
                await future.flush()
                is_ready = self._log_and_copy(tp) == both and self._catch_up(current, future)
        if is_ready:
            await self._swap(tp, current)
        return True

    def _align(self, current: Log, future: Log) -> bool:
        """Removes from the copy what the log does not have: records that were cut off its end or deleted from its start.

        False: that takes long, see `_cut_down`.
        """
        self._futures.follow(current)
        if self._futures.uncut(current.topic_partition) is not None:
            return False
        future.increment_log_start(current.log_start_offset)
        return True

    async def _cut_down(self, tp: TopicPartition, current: Log, future: Log) -> None:
        """Cuts the copy in parts. In a pause anything may happen to the log: it may also be cut further."""
        while (offset := self._futures.uncut(tp)) is not None:
            step, cuts = future.next_cut(offset), future.cuts
            await future.read_for_cut(step)
            await self._log_manager.upkeep.pause()
            if self._log_and_copy(tp) != (current, future):
                return
            if self._futures.uncut(tp) == offset and future.cuts == cuts:
                if step == offset:
                    self._futures.cut(current)
                else:
                    future.truncate_to(step)

    def _append(self, future: Log, records: Sequence[Buffer]) -> None:
        data = b"".join(records)
        self._throttle.record(future.append_as_follower(memoryview(data)).size_bytes)

    def _catch_up(self, current: Log, future: Log) -> bool:
        """Copies what was appended during the sync, without an await. False if that is too much, or not in memory, or a cut takes long.

        Also False if the recovery point of the copy is below that of the log: what was synced must be synced in the copy too.
        """
        if not self._align(current, future):
            return False
        for _ in range(LAST_BYTES_MAX // COPY_BYTES):
            if future.log_end_offset < current.log_end_offset:
                try:
                    read = current.read(future.log_end_offset, COPY_BYTES, current.log_end_offset, min_one_batch=True)
                except WouldBlock:
                    return False
                self._append(future, read.records)
        is_complete = future.log_end_offset == current.log_end_offset
        return is_complete and future.recovery_point >= current.recovery_point

    async def _swap(self, tp: TopicPartition, current: Log) -> None:
        """Replaces the log with its copy, checkpoints the high watermarks, syncs the directories, and removes the old log."""
        partition = self._hosted.get(tp)
        assert partition is not None
        swapped, removed = self._log_manager.swap(tp)
        partition.replace_log(swapped)
        log.info("%s has moved from %s to %s", tp, current.log_dir, swapped.log_dir)
        self._events.write("replica_moved", partition=str(tp), source=current.log_dir, target=swapped.log_dir)
        self._unfinished.append((swapped, removed))
        await self._finish()

    async def _finish(self) -> None:
        """The end of all swaps. Raises LogDirFailed if the high watermarks cannot be written: then it is tried again."""
        await self._checkpoint()
        unfinished, self._unfinished = self._unfinished, []
        if self._log_manager.offline_dirs:
            log.warning(
                "%d old logs of moved replicas stay until the next start: a directory is offline", len(unfinished)
            )
            return
        for swapped, removed in unfinished:
            try:
                await asyncio.get_running_loop().run_in_executor(None, self._futures.finish, swapped, removed)
            except OSError as error:
                log.warning("%s stays until the next start: %s", removed, error)
