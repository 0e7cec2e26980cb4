"""Carries out what the controller decides about this broker's replicas: LeaderAndIsr (LAI-1..5) and StopReplica (LAI-6).

Requests are carried out one at a time, in the order in which they arrived. One partition changes without an await, so no
other part of the broker sees a half-changed partition. Between two partitions the request *pauses*, and the loop serves others (NET-4).
No other control request is carried out during a pause, but the session may be lost (`step_down`) and a disk may fail.
Therefore each partition is looked up again when its turn comes.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from broker.cluster.metadata_cache import MetadataCache
from broker.process.event_log import EventLog
from broker.replication.following.fetcher_manager import FetcherManager
from broker.replication.following.followed_partitions import FollowedPartition
from broker.replication.hosted_partitions import HostedPartitions
from broker.replication.partition import Partition, Role
from broker.replication.stray_replicas import StrayAction, action_for_stray
from broker.storage.log import Log, LogUnavailable, is_passing
from broker.storage.log_manager import LogManager
from protocol.errors import ErrorCode, KafkaError
from protocol.rpc.messages import (
    NO_TOPIC_ID,
    ControlResponse,
    LeaderAndIsrRequest,
    PartitionError,
    PartitionState,
    StopReplicaPartition,
    StopReplicaRequest,
)
from protocol.topic_ids import topic_id_text, topic_id_uuid
from protocol.types import NO_EPOCH, NO_LEADER, TopicPartition

log = logging.getLogger(__name__)

TopicOverrides = Mapping[str, Mapping[str, str]]
"""Topic -> its own settings, under Kafka's keys."""

Pause = Callable[[], Awaitable[None]]
"""Yields the loop. Raises if the request has become void meanwhile: the rest of it is not carried out."""

YOUNGEST = 2**63
"""A creation zxid later than any other. It stands for a partition that ZooKeeper no longer has: it has no records to lose."""

PARTITIONS_IN_A_SLICE = 1
"""Partitions changed between two pauses. Creating or deleting a log takes up to a millisecond."""

WORK_OF_A_CHANGE = 20
"""The cost of changing a replica, as a multiple of the cost of finding that nothing changes."""

WORK_IN_A_SLICE = PARTITIONS_IN_A_SLICE * WORK_OF_A_CHANGE

ROWS_IN_AN_EVENT = 100
"""Writing an event of so many rows takes half a millisecond."""

REASONS = {
    ErrorCode.STALE_CONTROLLER_EPOCH: "its leader epoch is not newer than the one known here",
    ErrorCode.FENCED_LEADER_EPOCH: "its leader epoch is older than the one known here",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "this broker is not among its replicas",
    ErrorCode.KAFKA_STORAGE_ERROR: "its log cannot be used here",
    ErrorCode.REPLICA_NOT_AVAILABLE: "this broker is in its ISR, but has lost its log",
}
"""Why a partition of a request is refused, for the event log."""

TOPIC_DELETED_EPOCH = -2
"""StopReplica's leader epoch for a topic that is being deleted: newer than every other (KIP-570)."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """What ZooKeeper has about partitions whose log must be opened.

    `overrides` are the settings of their topics. `created` has the zxid at which the state of each partition without a log was
    created. `unknown` are the topics and partitions that could not be read.
    """

    overrides: TopicOverrides = field(default_factory=dict)
    created: Mapping[TopicPartition, int] = field(default_factory=dict)
    unknown: Collection[str | TopicPartition] = ()

    def lacks(self, state: PartitionState) -> bool:
        return bool(self.unknown) and (state.topic in self.unknown or state.topic_partition in self.unknown)


class LeadershipChanges:
    """Carries out the requests. `leadership_changed` answers parked requests that can no longer succeed (BUG-10).

    When a log raises an error because its disk failed, the replica is already offline: storage reports the failure first.
    """

    def __init__(
        self,
        own_id: int,
        hosted: HostedPartitions,
        log_manager: LogManager,
        fetchers: FetcherManager,
        leadership_changed: Callable[[TopicPartition], None],
        events: EventLog,
        metadata: MetadataCache,
    ) -> None:
        self._own_id = own_id
        self._metadata = metadata
        self._hosted = hosted
        self._log_manager = log_manager
        self._fetchers = fetchers
        self._leadership_changed = leadership_changed
        self._events = events
        self._checkpointed: dict[TopicPartition, int] | None = None
        self.controller_epoch = NO_EPOCH

    def refuse_controller(self, controller_id: int, controller_epoch: int, kind: str) -> ControlResponse | None:
        """LAI-1: the refusal of a deposed controller's request. Otherwise None, and the controller epoch is noted."""
        if controller_epoch < self.controller_epoch:
            self._events.write(
                "control_refused",
                request=kind,
                controller=controller_id,
                controller_epoch=controller_epoch,
                known_epoch=self.controller_epoch,
            )
            return ControlResponse(ErrorCode.STALE_CONTROLLER_EPOCH)
        if controller_epoch > self.controller_epoch:
            self._events.write(
                "controller_epoch_raised",
                controller=controller_id,
                controller_epoch=controller_epoch,
                before=self.controller_epoch,
            )
        self.controller_epoch = controller_epoch
        return None

    # -- LeaderAndIsr ---------------------------------------------------------------------------------------------

    async def become_leader_or_follower(
        self, request: LeaderAndIsrRequest, lookup: Lookup, held: list[PartitionState] | None, pause: Pause
    ) -> ControlResponse:
        """Carries out the state of every partition. Each partition has its own error, which does not stop the others.

        A state is added to `held` and not carried out if its log cannot be opened now: ZooKeeper could not be read, or there is no
        free file descriptor. With `held` None, nothing is held. A state that a full request only repeats is skipped. The caller has
        checked the controller (`refuse_controller`).
        """
        results = _PartitionResults(self._events, "leader_and_isr", "taken", request)
        known_ids: dict[str, str] = {}
        # The partitions that this broker leads come first: their followers wait for it.
        states = sorted(request.partitions, key=lambda s: s.leader != self._own_id)
        if len(states) > WORK_IN_A_SLICE:
            await pause()
            await self._stop_copying(states, pause)
        room = WORK_IN_A_SLICE
        try:
            for state in states:
                topic_id = request.topic_ids.get(state.topic)
                if topic_id is None and self._own_id in state.isr:
                    known_ids[state.topic] = known_ids.get(state.topic) or self._topic_id_here(state.topic_partition)
                if held is not None and lookup.lacks(state) and self.opens_log(state, topic_id):
                    held.append(state)
                    room -= 1
                elif request.is_full and self._is_known(state, topic_id):
                    room -= 1
                else:
                    self._take_or_hold(state, topic_id, lookup, held, results)
                    room -= WORK_OF_A_CHANGE
                if room <= 0:
                    room = WORK_IN_A_SLICE
                    await pause()
            if request.is_full:
                await self._sort_out_strays(request, pause)
        finally:
            self._fetchers.close_idle()
            results.end()
        return ControlResponse(ErrorCode.NONE, tuple(results.errors), known_ids)

    def _topic_id_here(self, tp: TopicPartition) -> str:
        """What this broker knows of the id of a topic that the controller does not know: see `controller.reactions.topic_ids`."""
        found = self._log_manager.get(tp)
        if found is not None and found.topic_id is not None:
            return found.topic_id
        cached = self._metadata.topic_id(tp.topic)
        return NO_TOPIC_ID if cached is None else topic_id_text(cached)

    async def _stop_copying(self, states: Sequence[PartitionState], pause: Pause) -> None:
        """Before the first state of a long request is carried out: stops fetching partitions whose leader epoch has ended (LAI-4).

        Their leader may have carried out its own request already. It would answer FENCED_LEADER_EPOCH for thousands of partitions
        in every fetch, and delay the records of the other partitions in the same fetch.
        """
        for at, state in enumerate(states, 1):
            partition = self._hosted.by_key.get(state[:2])
            if partition is not None and partition.role is Role.FOLLOWER and _is_newer(partition, state.leader_epoch):
                self._fetchers.remove(partition.tp)
            if at % WORK_IN_A_SLICE == 0:
                await pause()

    def opens_log(self, state: PartitionState, topic_id: str | None) -> bool:
        """Whether a log must be opened or created to carry out that state."""
        partition = self._hosted.by_key.get(state[:2])
        if partition is None:
            return True
        if partition.log is None:
            return partition.role is not Role.OFFLINE
        return partition.topic_id is not None and topic_id not in (None, partition.topic_id)

    def _is_known(self, state: PartitionState, topic_id: str | None) -> bool:
        """Whether the replica here is in this leader epoch already, and of the same topic."""
        partition = self._hosted.get(state.topic_partition)
        return (
            partition is not None
            and partition.role is not Role.OFFLINE
            and partition.leader_epoch == state.leader_epoch
            and not partition.accepts_equal_epoch
            and topic_id in (None, partition.topic_id)
            and self._own_id in state.replicas
        )

    def _take_or_hold(
        self,
        state: PartitionState,
        topic_id: str | None,
        lookup: Lookup,
        held: list[PartitionState] | None,
        results: _PartitionResults,
    ) -> None:
        try:
            error = self._take(state, topic_id, lookup)
        except LogUnavailable:
            if held is not None:
                # Not an error: the controller would treat the replica as offline until the broker starts again.
                held.append(state)
                return
            error = ErrorCode.KAFKA_STORAGE_ERROR
        tp = state.topic_partition
        row: list[object] = [str(tp), state.leader, state.leader_epoch, list(state.isr)]
        partition = self._hosted.get(tp)
        if partition is not None and partition.log is not None:
            row += [partition.log.log_end_offset, partition.high_watermark]
        results.note(tp, error, row)

    def _take(self, state: PartitionState, topic_id: str | None, lookup: Lookup) -> ErrorCode:
        """Carries out one partition's state. Raises LogUnavailable if it must be retried."""
        tp = state.topic_partition
        if self._own_id not in state.replicas:
            log.error("%s: LeaderAndIsr refused: this broker is not among the replicas %s", tp, state.replicas)
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        try:
            self._set_other_topic_aside(state, topic_id)
            partition = self._hosted.get(tp)
            if partition is not None and partition.role is Role.OFFLINE:
                return ErrorCode.KAFKA_STORAGE_ERROR
            has_got_id = partition is not None and self._name_topic(partition, topic_id)
            if partition is not None and not _is_newer(partition, state.leader_epoch):
                if has_got_id and state.leader_epoch == partition.leader_epoch:
                    self._follow(partition, is_in_sync=self._own_id in state.isr)
                    return ErrorCode.NONE
                log.info(
                    "%s: leader epoch %d refused: it is not newer than %d",
                    tp,
                    state.leader_epoch,
                    partition.leader_epoch,
                )
                return ErrorCode.STALE_CONTROLLER_EPOCH
            if self.is_log_missing(state) and lookup.created.get(tp, YOUNGEST) < self._log_manager.disks_since:
                return self._refuse_missing(state)
            partition = self._hosted.find_or_make(tp)
            if partition.log is None:
                self._open_log(partition, topic_id, lookup.overrides.get(state.topic, {}), is_new=state.is_new)
                self._hosted.learn_topic(state.topic, partition.topic_id)
            self._apply(partition, state)
        except KafkaError as error:
            if is_passing(error):
                raise
            log.error("%s: LeaderAndIsr failed: %s", tp, error)
            return error.code
        return ErrorCode.NONE

    def is_log_missing(self, state: PartitionState) -> bool:
        """Whether this broker is in the ISR of a partition that is not new, but has no log of it.

        The log is lost if the partition is older than one of this broker's disks (`disk_history`). Else it was never created.
        """
        if state.is_new or self._own_id not in state.isr or self._log_manager.get(state.topic_partition) is not None:
            return False
        return not self._log_manager.offline_dirs  # an offline directory may have the log: see `_open_log`

    def _refuse_missing(self, state: PartitionState) -> ErrorCode:
        """FLT-33, INV-1, REP-7: a replica with an empty log in the ISR could be elected, and all others would truncate to it.

        No log is created, so the broker refuses again after its next start. The controller elects another member, or nobody. Once
        this replica is out of the ISR, it starts with an empty log and copies.
        """
        tp = state.topic_partition
        log.error(
            "%s: refused: this broker is in the ISR %s but has no log, because a disk was emptied or replaced",
            tp,
            state.isr,
        )
        self._events.write("log_missing", partition=str(tp), leader_epoch=state.leader_epoch, isr=list(state.isr))
        return ErrorCode.REPLICA_NOT_AVAILABLE

    def _apply(self, partition: Partition, state: PartitionState) -> None:
        self._fetchers.remove(partition.tp)
        if state.leader == self._own_id:
            partition.make_leader(state)
        else:
            partition.make_follower(state)
        self._leadership_changed(partition.tp)
        self._follow(partition, is_in_sync=self._own_id in state.isr)

    def _follow(self, partition: Partition, *, is_in_sync: bool) -> None:
        """Starts to copy, if this broker follows a leader. A topic without an id cannot be fetched: it waits for its id."""
        if partition.role is Role.FOLLOWER and partition.leader != NO_LEADER and partition.topic_id is not None:
            followed = FollowedPartition(
                partition,
                topic_id_uuid(partition.topic_id),
                partition.leader_epoch,
                partition.generation,
                is_in_sync=is_in_sync,
            )
            self._fetchers.add(partition.leader, followed)

    def _name_topic(self, partition: Partition, topic_id: str | None) -> bool:
        """Gives a replica without a topic id the controller's, also in its current leader epoch. False: it has one, or there is none."""
        if partition.log is None or partition.topic_id is not None or topic_id is None:
            return False
        self._log_manager.adopt(partition.tp, topic_id)
        partition.topic_id = topic_id
        self._hosted.learn_topic(partition.tp.topic, topic_id)
        return True

    def _set_other_topic_aside(self, state: PartitionState, topic_id: str | None) -> None:
        """Sets aside the log of another topic of this name, which was deleted while this broker was down (FLT-36).

        The log is kept as a stray and not deleted, as in Kafka, because the file with the topic id has no CRC. But if this replica
        is in the ISR, the state is refused (KAFKA_STORAGE_ERROR) and the log is left where it is: an empty log must not replace
        records of the ISR. Another replica leads, and this replica starts empty once it is out of the ISR.
        """
        tp = state.topic_partition
        found = self._log_manager.get(tp)
        if found is None:
            return
        # A log of a new topic is created with the topic's id: one without an id was there before.
        is_older = state.is_new and topic_id is not None and found.topic_id is None
        if not is_older and self._log_manager.is_of(tp, topic_id):
            return
        is_refused = not state.is_new and self._own_id in state.isr
        self._events.write(
            "other_topics_log", partition=str(tp), own_topic_id=found.topic_id, topic_id=topic_id, is_refused=is_refused
        )
        self._forget(tp)
        if is_refused:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{found.directory} has topic id {found.topic_id}, not {topic_id}, but this replica is in the ISR: not changed",
            )
        log.warning(
            "%s: the log has topic id %s, but the topic has %s: the log is set aside", tp, found.topic_id, topic_id
        )
        self._remove_stray(tp, is_kept_aside=True)

    def _open_log(
        self, partition: Partition, topic_id: str | None, overrides: Mapping[str, str], *, is_new: bool
    ) -> None:
        """Finds or creates the log. A log that may be on a failed disk is not created again on another disk. Raises KafkaError."""
        tp = partition.tp
        if self._checkpointed is None:
            self._checkpointed = dict(self._log_manager.checkpoints.read_high_watermarks())
        found: Log | None = self._log_manager.get(tp)
        if found is None:
            if not is_new and self._log_manager.offline_dirs:
                # An offline directory may have the log. An empty log elsewhere must not replace acknowledged records (KIP-112).
                partition.stop(Role.OFFLINE)
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "no log found, and a log directory is offline")
            found = self._log_manager.get_or_create(tp, topic_id, overrides)
            high_watermark = 0
        else:
            found = self._log_manager.get_or_create(tp, topic_id, overrides)
            high_watermark = self._checkpointed.get(tp, 0)
        partition.attach(found, topic_id or found.topic_id, high_watermark)

    # -- stray replicas -------------------------------------------------------------------------------------------

    async def _sort_out_strays(self, request: LeaderAndIsrRequest, pause: Pause) -> None:
        """Deals with logs on the disks that the request does not name: see `stray_replicas`.

        Does nothing until the same controller has sent the metadata of the whole cluster.
        """
        if self._metadata.last_full_update != (request.controller_epoch, request.broker_epoch):
            return
        named = {state[:2] for state in request.partitions}
        others = frozenset(request.other_topics)
        for at, stray in enumerate([found for found in self._log_manager.logs() if found.topic_partition not in named]):
            if at % PARTITIONS_IN_A_SLICE == 0:
                await pause()
            tp = stray.topic_partition
            if self._log_manager.get(tp) is not stray:
                continue  # its disk failed during the pause
            try:
                verdict = self._action_for(stray, others)
                log.warning("%s, topic id %s, was not named by the controller: %s", tp, stray.topic_id, verdict.value)
                self._events.write("stray_replica", partition=str(tp), topic_id=stray.topic_id, verdict=verdict.name)
                if verdict is not StrayAction.KEEP:
                    self._remove_stray(tp, is_kept_aside=verdict is StrayAction.SET_ASIDE)
            except KafkaError:
                continue  # its disk failed, which storage has reported
        self._remove_stray_copies(named, others)

    def _remove_stray_copies(self, named: Collection[tuple[str, int]], others: frozenset[str]) -> None:
        """Removes copies for a move whose log is gone: after a power loss, one volume may have its removal and the other may not."""
        if self._log_manager.offline_dirs:
            return  # their logs may be there
        for copy in list(self._log_manager.futures.logs()):
            tp = copy.topic_partition
            if tp not in named and self._log_manager.get(tp) is None:
                with contextlib.suppress(KafkaError):  # its disk failed, which storage has reported
                    if self._action_for(copy, others) is not StrayAction.KEEP:
                        log.warning("%s: a copy is removed, as its log is gone", copy.directory)
                        self._log_manager.drop_future(tp)

    def _action_for(self, stray: Log, others: frozenset[str]) -> StrayAction:
        """Raises LogDirFailed."""
        tp = stray.topic_partition
        known_id = self._metadata.topic_id(tp.topic)
        known_text = topic_id_text(known_id) if known_id is not None else None
        own_text = stray.topic_id
        if own_text is not None and known_text is not None and self._log_manager.is_of(tp, known_text):
            own_text = known_text
        return action_for_stray(
            tp,
            own_text,
            own_id=self._own_id,
            other_topics=others,
            is_known=bool(self._metadata.partitions_of(tp.topic)),
            known_topic_id=known_text,
            state=self._metadata.partition(tp),
        )

    def _remove_stray(self, tp: TopicPartition, *, is_kept_aside: bool) -> None:
        """Raises LogDirFailed."""
        self._forget(tp)
        if is_kept_aside:
            self._log_manager.set_aside(tp)
        else:
            self._log_manager.delete(tp)
        if self._checkpointed is not None:
            self._checkpointed.pop(tp, None)

    # -- StopReplica ----------------------------------------------------------------------------------------------

    async def stop_replicas(self, request: StopReplicaRequest, pause: Pause) -> ControlResponse:
        """Stops every replica of the request. Each replica has its own error, which does not affect the others.

        If `pause` raises, the remaining replicas are not stopped: the controller repeats the request in the broker's next life.
        """
        refusal = self.refuse_controller(request.controller_id, request.controller_epoch, "StopReplica")
        if refusal is not None:
            return refusal
        results = _PartitionResults(self._events, "stop_replica", "partitions", request)
        try:
            for at, stop in enumerate(request.partitions, 1):
                error = self._stop(stop, request.topic_ids.get(stop.topic))
                tp = stop.topic_partition
                results.note(tp, error, [str(tp), stop.leader_epoch, stop.delete], is_row_of_all=True)
                if at % PARTITIONS_IN_A_SLICE == 0:
                    await pause()
        finally:
            self._fetchers.close_idle()
            results.end()
        return ControlResponse(ErrorCode.NONE, tuple(results.errors))

    def _stop(self, stop: StopReplicaPartition, topic_id: str | None) -> ErrorCode:
        """Stops one replica. NONE also if there is nothing to stop: the controller may repeat a request."""
        tp = stop.topic_partition
        partition = self._hosted.get(tp)
        found = self._log_manager.get(tp)
        own_topic_id = found.topic_id if found is not None else partition.topic_id if partition is not None else None
        if topic_id is not None and own_topic_id is not None and own_topic_id != topic_id:
            # The topic was created again. There is no replica of the old topic here (BUG-20, FLT-36).
            log.warning("%s: StopReplica for topic id %s ignored: the replica has %s", tp, topic_id, own_topic_id)
            return ErrorCode.NONE
        is_for_all_epochs = stop.leader_epoch == TOPIC_DELETED_EPOCH
        newest_epoch = max(
            partition.leader_epoch if partition is not None else NO_EPOCH,
            found.leader_epochs.latest_epoch() if found is not None else NO_EPOCH,
        )
        if not is_for_all_epochs and stop.leader_epoch < newest_epoch:
            # Sent before the replica was assigned here again (BUG-20).
            return ErrorCode.FENCED_LEADER_EPOCH
        # If the file system refused only the partition's path, there is no log anywhere, and nothing to delete.
        may_have_log = found is not None or bool(self._log_manager.offline_dirs)
        if partition is not None and partition.role is Role.OFFLINE and stop.delete and may_have_log:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if not stop.delete:
            self._halt(tp)
            return ErrorCode.NONE
        self._forget(tp)
        try:
            if found is not None:
                self._log_manager.delete(tp)
        except KafkaError as error:
            return error.code
        if self._checkpointed is not None:
            self._checkpointed.pop(tp, None)
        return ErrorCode.NONE

    def _halt(self, tp: TopicPartition) -> None:
        self._fetchers.remove(tp)
        partition = self._hosted.get(tp)
        if partition is not None and partition.role is not Role.OFFLINE:
            partition.stop()
            self._leadership_changed(tp)

    def _forget(self, tp: TopicPartition) -> None:
        self._halt(tp)
        self._hosted.remove(tp)

    # -- the session is lost --------------------------------------------------------------------------------------

    def step_down(self, partitions: Iterable[Partition]) -> None:
        """Stops leading these partitions. The next LeaderAndIsr is accepted even if it repeats the leader epoch (STA-4)."""
        for partition in partitions:
            partition.accepts_equal_epoch = True
            if partition.role is Role.LEADER:
                self._halt(partition.tp)


class _PartitionResults:
    """The results of one request: `errors` for the answer, and rows for the event log, at most ROWS_IN_AN_EVENT per event."""

    def __init__(
        self, events: EventLog, kind: str, name: str, request: LeaderAndIsrRequest | StopReplicaRequest
    ) -> None:
        self._events = events
        self._kind = kind
        self._name = name
        self._request = request
        self._rows: list[list[object]] = []
        self._refused: list[list[str]] = []
        self._is_written = False
        self.errors: list[PartitionError] = []

    def note(self, tp: TopicPartition, error: ErrorCode, row: list[object], *, is_row_of_all: bool = False) -> None:
        """The event gets `row` if the partition succeeded; with `is_row_of_all` also if it failed."""
        if error is not ErrorCode.NONE:
            self.errors.append(PartitionError(tp.topic, tp.partition, error))
            self._refused.append([str(tp), error.name, REASONS.get(error, "")])
        if error is ErrorCode.NONE or is_row_of_all:
            self._rows.append(row)
        if len(self._rows) + len(self._refused) >= ROWS_IN_AN_EVENT:
            self._write()

    def end(self) -> None:
        """Writes the remaining rows. A request without rows is written as one event too."""
        if self._rows or self._refused or not self._is_written:
            self._write()

    def _write(self) -> None:
        request = self._request
        rows, refused, self._rows, self._refused, self._is_written = self._rows, self._refused, [], [], True
        head = {
            "controller": request.controller_id,
            "controller_epoch": request.controller_epoch,
            "number": request.number,
        }
        self._events.write(self._kind, **head, **{self._name: rows}, refused=refused)


def _is_newer(partition: Partition, leader_epoch: int) -> bool:
    """LAI-2, INV-8."""
    return leader_epoch > partition.leader_epoch or (
        partition.accepts_equal_epoch and leader_epoch == partition.leader_epoch
    )
