"""A broker for the controller's tests: takes control requests as a broker must (INV-8) and remembers what it was told."""

from __future__ import annotations

from broker.replication.stray_replicas import StrayAction, action_for_stray
from protocol.errors import ErrorCode
from protocol.rpc.messages import (
    NO_TOPIC_ID,
    ControlledShutdownRequest,
    ControlRequest,
    ControlResponse,
    LeaderAndIsrRequest,
    PartitionError,
    PartitionState,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from protocol.types import LEADER_DURING_DELETE, BrokerInfo, TopicPartition


class StandInBroker:
    """`metadata` and `replicas` are what a real one would act on; `requests` is everything that it took."""

    def __init__(self, broker_id: int) -> None:
        self.id = broker_id
        self.epoch = -1
        self.controller_epoch = -1
        self.controller_id = -1
        self.brokers: tuple[BrokerInfo, ...] = ()
        self.metadata: dict[TopicPartition, PartitionState] = {}
        self.replicas: dict[TopicPartition, PartitionState] = {}
        self.stopped: set[TopicPartition] = set()
        self.known_topic_ids: dict[str, str] = {}
        """From the metadata."""
        self.topic_ids: dict[TopicPartition, str] = {}
        """The topic ids of `replicas`, where they are known."""
        self.failing: set[TopicPartition] = set()
        """Replicas that cannot be deleted: their disk failed."""
        self.offline: set[TopicPartition] = set()
        """Replicas that cannot be served, for the same reason."""
        self.emptied: set[TopicPartition] = set()
        """Replicas whose log is lost. No empty log replaces it while the ISR says that it is here (FLT-33)."""
        self.steps_down = False
        """After a lost session an equal leader epoch is taken again."""
        self.requests: list[ControlRequest] = []
        self.refused: list[tuple[ControlRequest, ErrorCode]] = []

    def begin_life(self, broker_epoch: int) -> None:
        """Registered (again): what an earlier life was told is only on its disk."""
        self.epoch = broker_epoch
        self.steps_down = True

    def empty_disk(self) -> None:
        """Replaces the disk."""
        self.emptied.update(self.replicas)
        self.replicas.clear()
        self.topic_ids.clear()

    def holds(self, tp: TopicPartition, topic_id: str | None) -> bool:
        """Whether the broker has a replica of the topic with that id, as far as ids are known."""
        own_id = self.topic_ids.get(tp)
        return tp in self.replicas and (own_id == topic_id or own_id is None or topic_id is None)

    def follows(self, tp: TopicPartition) -> bool:
        """Whether the broker has a replica and was not told to stop it."""
        return tp in self.replicas and tp not in self.stopped

    def handle(self, request: ControlRequest) -> ControlResponse:
        assert not isinstance(request, ControlledShutdownRequest)
        refusal = ErrorCode.NONE
        if request.broker_epoch < self.epoch:
            refusal = ErrorCode.STALE_BROKER_EPOCH
        elif request.controller_epoch < self.controller_epoch:
            refusal = ErrorCode.STALE_CONTROLLER_EPOCH
        if refusal is not ErrorCode.NONE:
            self.refused.append((request, refusal))
            return ControlResponse(refusal)
        self.controller_epoch = request.controller_epoch
        self.controller_id = request.controller_id
        self.requests.append(request)
        match request:
            case UpdateMetadataRequest():
                return self._update_metadata(request)
            case LeaderAndIsrRequest():
                return self._leader_and_isr(request)
            case StopReplicaRequest():
                return self._stop_replica(request)

    def _update_metadata(self, request: UpdateMetadataRequest) -> ControlResponse:
        if request.is_full:
            self.metadata.clear()
            self.known_topic_ids.clear()
        self.known_topic_ids.update(request.topic_ids)
        self.brokers = request.brokers
        for state in request.partitions:
            if state.leader == LEADER_DURING_DELETE:
                self.metadata.pop(state.topic_partition, None)
            else:
                self.metadata[state.topic_partition] = state
        return ControlResponse()

    def _stop_replica(self, request: StopReplicaRequest) -> ControlResponse:
        errors = []
        for stop in request.partitions:
            tp = stop.topic_partition
            self.stopped.add(tp)
            known = self.replicas.get(tp)
            is_another = self._is_another(tp, request.topic_ids.get(tp.topic))
            if known is not None and not is_another and -2 != stop.leader_epoch < known.leader_epoch:
                errors.append(PartitionError(tp.topic, tp.partition, ErrorCode.FENCED_LEADER_EPOCH))
            elif is_another:
                continue
            elif stop.delete and tp in self.failing:
                errors.append(PartitionError(tp.topic, tp.partition, ErrorCode.KAFKA_STORAGE_ERROR))
            elif stop.delete or stop.leader_epoch == -2:
                self.replicas.pop(tp, None)
        return ControlResponse(ErrorCode.NONE, tuple(errors))

    def _remove_strays(self, request: LeaderAndIsrRequest) -> None:
        named = {state.topic_partition for state in request.partitions}
        for tp in [tp for tp in self.replicas if tp not in named]:
            verdict = action_for_stray(
                tp,
                self.topic_ids.get(tp),
                own_id=self.id,
                other_topics=request.other_topics,
                is_known=any(known.topic == tp.topic for known in self.metadata),
                known_topic_id=self.known_topic_ids.get(tp.topic),
                state=self.metadata.get(tp),
            )
            if verdict is not StrayAction.KEEP:
                del self.replicas[tp]

    def _is_another(self, tp: TopicPartition, topic_id: str | None) -> bool:
        """The replica here is of a topic of that name that was deleted."""
        known = self.topic_ids.get(tp)
        return tp in self.replicas and topic_id is not None and known is not None and known != topic_id

    def _leader_and_isr(self, request: LeaderAndIsrRequest) -> ControlResponse:
        errors = []
        known_ids: dict[str, str] = {}
        for state in request.partitions:
            tp = state.topic_partition
            if tp.topic not in request.topic_ids and self.id in state.isr:
                own_id = self.topic_ids.get(tp) or self.known_topic_ids.get(tp.topic, NO_TOPIC_ID)
                known_ids[tp.topic] = known_ids.get(tp.topic) or own_id
            assert self.id in state.replicas, f"{state} was told to broker {self.id}"
            topic_id = request.topic_ids.get(tp.topic)
            known = None if self._is_another(tp, topic_id) else self.replicas.get(tp)
            if tp in self.offline:
                errors.append(PartitionError(tp.topic, tp.partition, ErrorCode.KAFKA_STORAGE_ERROR))
                continue
            if tp in self.emptied and self.id in state.isr and not state.is_new:
                errors.append(PartitionError(tp.topic, tp.partition, ErrorCode.REPLICA_NOT_AVAILABLE))
                continue
            self.emptied.discard(tp)
            is_stale = known is not None and (
                state.leader_epoch < known.leader_epoch
                or (state.leader_epoch == known.leader_epoch and not self.steps_down)
            )
            gets_id = is_stale and topic_id is not None and tp not in self.topic_ids
            if is_stale and known is not None and gets_id and state.leader_epoch == known.leader_epoch:
                self.topic_ids[tp] = topic_id
            elif is_stale:
                errors.append(PartitionError(tp.topic, tp.partition, ErrorCode.STALE_CONTROLLER_EPOCH))
            else:
                self.replicas[tp] = state
                self.stopped.discard(tp)
                if known is None:
                    self.topic_ids.pop(tp, None)
                if topic_id is not None:
                    self.topic_ids[tp] = topic_id
        if request.is_full:
            self.steps_down = False
            self._remove_strays(request)
        return ControlResponse(ErrorCode.NONE, tuple(errors), known_ids)
