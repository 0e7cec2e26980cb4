"""What the controller decides about this broker's replicas: LeaderAndIsr (LAI-1..5) and StopReplica (LAI-6).

Called in the order in which the requests came, never concurrently. A request is applied without an await in between, so
that no other part of the broker sees it half done.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from broker.event_log import EventLog
from broker.replication.fetcher_manager import FetcherManager
from broker.replication.hosted_partitions import HostedPartitions
from broker.replication.partition import Partition, Role
from broker.replication.replica_fetcher import FollowedPartition
from broker.storage.log import Log, LogDirFailed
from broker.storage.log_manager import LogManager
from protocol.errors import ErrorCode, KafkaError
from protocol.rpc.messages import (
    ControlResponse,
    LeaderAndIsrRequest,
    PartitionError,
    PartitionState,
    StopReplicaPartition,
    StopReplicaRequest,
)
from protocol.types import NO_EPOCH, NO_LEADER, TopicPartition
from protocol.zk.znodes import topic_id_uuid

log = logging.getLogger(__name__)

TopicOverrides = Mapping[str, Mapping[str, str]]
"""Topic -> its own settings, under Kafka's keys."""

TOPIC_DELETED_EPOCH = -2
"""StopReplica's leader epoch for a topic that is being deleted: newer than every other (KIP-570)."""


class Waiters(Protocol):
    """Those that wait for something in the purgatories."""

    def leadership_changed(self, tp: TopicPartition) -> None:
        """Answers producers and fetches that cannot be answered as they hoped (BUG-10)."""
        ...


class LeadershipChanges:
    """Applies the requests. `disk_failed` is told of a log that failed on the way."""

    def __init__(
        self,
        own_id: int,
        hosted: HostedPartitions,
        log_manager: LogManager,
        fetchers: FetcherManager,
        waiters: Waiters,
        events: EventLog,
        disk_failed: Callable[[Partition, LogDirFailed], None],
    ) -> None:
        self._own_id = own_id
        self._hosted = hosted
        self._log_manager = log_manager
        self._fetchers = fetchers
        self._waiters = waiters
        self._events = events
        self._disk_failed = disk_failed
        self._checkpointed: dict[TopicPartition, int] | None = None
        self.controller_epoch = NO_EPOCH

    def refuse_controller(self, controller_id: int, controller_epoch: int, kind: str) -> ControlResponse | None:
        """LAI-1: the refusal of a request of a deposed controller; None, and its epoch is noted, otherwise."""
        if controller_epoch < self.controller_epoch:
            self._events.write(
                "control_refused",
                request=kind,
                controller=controller_id,
                controller_epoch=controller_epoch,
                known_epoch=self.controller_epoch,
            )
            return ControlResponse(ErrorCode.STALE_CONTROLLER_EPOCH)
        self.controller_epoch = controller_epoch
        return None

    # -- LeaderAndIsr ---------------------------------------------------------------------------------------------

    def become_leader_or_follower(self, request: LeaderAndIsrRequest, overrides: TopicOverrides) -> ControlResponse:
        """Every partition is taken or gets its own error; the others go on."""
        refusal = self.refuse_controller(request.controller_id, request.controller_epoch, "LeaderAndIsr")
        if refusal is not None:
            return refusal
        taken: list[PartitionState] = []
        errors: list[PartitionError] = []
        # Leaders first: a follower elsewhere waits for them.
        for state in sorted(request.partitions, key=lambda s: s.leader != self._own_id):
            error = self._take(state, request.topic_ids.get(state.topic), overrides.get(state.topic, {}))
            if error is ErrorCode.NONE:
                taken.append(state)
            else:
                errors.append(PartitionError(state.topic, state.partition, error))
        self._fetchers.close_idle()
        self._events.write(
            "leader_and_isr",
            controller=request.controller_id,
            controller_epoch=request.controller_epoch,
            taken=[[str(s.topic_partition), s.leader, s.leader_epoch, list(s.isr)] for s in taken],
            refused=[[f"{e.topic}-{e.partition}", ErrorCode(e.error).name] for e in errors],
        )
        return ControlResponse(ErrorCode.NONE, tuple(errors))

    def _take(self, state: PartitionState, topic_id: str | None, overrides: Mapping[str, str]) -> ErrorCode:
        tp = state.topic_partition
        if self._own_id not in state.replicas:
            log.error("LeaderAndIsr names %s, but its replicas are %s", tp, state.replicas)
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        try:
            self._discard_other_topic(tp, topic_id)
            partition = self._hosted.get(tp)
            if partition is not None and not _is_newer(partition, state.leader_epoch):
                log.info("%s: leader epoch %d refused, it is in %d", tp, state.leader_epoch, partition.leader_epoch)
                return ErrorCode.STALE_CONTROLLER_EPOCH
            partition = self._hosted.find_or_make(tp)
            if partition.log is None:
                self._open_log(partition, topic_id, overrides, is_new=state.is_new)
            self._apply(partition, state)
        except KafkaError as error:
            log.error("%s: LeaderAndIsr failed: %s", tp, error)
            return error.code
        except LogDirFailed as error:
            failed = self._hosted.find_or_make(tp)
            self._disk_failed(failed, error)
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NONE

    def _apply(self, partition: Partition, state: PartitionState) -> None:
        self._fetchers.remove(partition.tp)
        if state.leader == self._own_id:
            partition.make_leader(state)
        else:
            partition.make_follower(state)
        self._waiters.leadership_changed(partition.tp)
        if partition.role is Role.FOLLOWER and state.leader != NO_LEADER and partition.topic_id is not None:
            followed = FollowedPartition(
                partition, topic_id_uuid(partition.topic_id), partition.leader_epoch, partition.generation
            )
            self._fetchers.add(state.leader, followed)

    def _discard_other_topic(self, tp: TopicPartition, topic_id: str | None) -> None:
        """A log of another topic of this name, deleted while this broker was away: it must not come back (FLT-36)."""
        found = self._log_manager.get(tp)
        if found is None or topic_id is None or found.topic_id is None or found.topic_id == topic_id:
            return
        log.warning("%s: the log is of topic id %s, the topic is %s now: deleted", tp, found.topic_id, topic_id)
        self._events.write("stale_log_deleted", partition=str(tp), old_topic_id=found.topic_id, topic_id=topic_id)
        self._forget(tp)
        self._log_manager.delete(tp)
        if self._checkpointed is not None:
            self._checkpointed.pop(tp, None)

    def _open_log(
        self, partition: Partition, topic_id: str | None, overrides: Mapping[str, str], *, is_new: bool
    ) -> None:
        """Finds or makes the log. A log that is gone because its disk failed is not made anew elsewhere."""
        tp = partition.tp
        found: Log | None = self._log_manager.get(tp)
        if found is None:
            if partition.role is Role.OFFLINE or (not is_new and self._log_manager.offline_dirs):
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "its log directory failed")
            found = self._log_manager.get_or_create(tp, topic_id, overrides)
            high_watermark = 0
        else:
            found = self._log_manager.get_or_create(tp, topic_id, overrides)
            if self._checkpointed is None:
                self._checkpointed = dict(self._log_manager.read_high_watermarks())
            high_watermark = self._checkpointed.get(tp, 0)
        partition.attach(found, topic_id or found.topic_id, high_watermark)

    # -- StopReplica ----------------------------------------------------------------------------------------------

    def stop_replicas(self, request: StopReplicaRequest) -> ControlResponse:
        refusal = self.refuse_controller(request.controller_id, request.controller_epoch, "StopReplica")
        if refusal is not None:
            return refusal
        errors = []
        for stop in request.partitions:
            error = self._stop(stop)
            if error is not ErrorCode.NONE:
                errors.append(PartitionError(stop.topic, stop.partition, error))
        self._fetchers.close_idle()
        self._events.write(
            "stop_replica",
            controller=request.controller_id,
            controller_epoch=request.controller_epoch,
            partitions=[[str(s.topic_partition), s.leader_epoch, s.delete] for s in request.partitions],
            refused=[[f"{e.topic}-{e.partition}", ErrorCode(e.error).name] for e in errors],
        )
        return ControlResponse(ErrorCode.NONE, tuple(errors))

    def _stop(self, stop: StopReplicaPartition) -> ErrorCode:
        tp = stop.topic_partition
        partition = self._hosted.get(tp)
        is_for_all_epochs = stop.leader_epoch == TOPIC_DELETED_EPOCH
        if partition is not None and not is_for_all_epochs and stop.leader_epoch < partition.leader_epoch:
            # Sent before the replica was assigned here again (BUG-20).
            return ErrorCode.FENCED_LEADER_EPOCH
        if partition is not None and partition.role is Role.OFFLINE and stop.delete:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if not stop.delete:
            self._halt(tp)
            return ErrorCode.NONE
        self._forget(tp)
        try:
            if self._log_manager.get(tp) is not None:
                self._log_manager.delete(tp)
        except LogDirFailed as error:
            self._disk_failed(self._hosted.find_or_make(tp), error)
            return ErrorCode.KAFKA_STORAGE_ERROR
        if self._checkpointed is not None:
            self._checkpointed.pop(tp, None)
        return ErrorCode.NONE

    def _halt(self, tp: TopicPartition) -> None:
        self._fetchers.remove(tp)
        partition = self._hosted.get(tp)
        if partition is not None and partition.role is not Role.OFFLINE:
            partition.stop()
            self._waiters.leadership_changed(tp)

    def _forget(self, tp: TopicPartition) -> None:
        self._halt(tp)
        self._hosted.remove(tp)

    # -- the session is lost --------------------------------------------------------------------------------------

    def step_down(self, partitions: Iterable[Partition]) -> None:
        """Leads and follows nothing any more; the next LeaderAndIsr is taken also if it repeats the epoch (STA-4)."""
        for partition in partitions:
            partition.accepts_equal_epoch = True
            if partition.role is Role.LEADER:
                self._halt(partition.tp)


def _is_newer(partition: Partition, leader_epoch: int) -> bool:
    """LAI-2, INV-8."""
    return leader_epoch > partition.leader_epoch or (
        partition.accepts_equal_epoch and leader_epoch == partition.leader_epoch
    )
