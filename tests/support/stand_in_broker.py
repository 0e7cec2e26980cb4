"""A broker for the controller's tests: takes control requests as a broker must (INV-8) and remembers what it was told."""

from __future__ import annotations

from protocol.errors import ErrorCode
from protocol.rpc.messages import (
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
        self.steps_down = False
        """After a lost session an equal leader epoch is taken again."""
        self.requests: list[ControlRequest] = []
        self.refused: list[tuple[ControlRequest, ErrorCode]] = []

    def begin_life(self, broker_epoch: int) -> None:
        """Registered (again): what an earlier life was told is only on its disk."""
        self.epoch = broker_epoch
        self.steps_down = True

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
                self.stopped |= {stop.topic_partition for stop in request.partitions}
                for stop in request.partitions:
                    if stop.leader_epoch == -2:
                        self.replicas.pop(stop.topic_partition, None)
                return ControlResponse()

    def _update_metadata(self, request: UpdateMetadataRequest) -> ControlResponse:
        if request.is_full:
            self.metadata.clear()
        self.brokers = request.brokers
        for state in request.partitions:
            if state.leader == LEADER_DURING_DELETE:
                self.metadata.pop(state.topic_partition, None)
            else:
                self.metadata[state.topic_partition] = state
        return ControlResponse()

    def _leader_and_isr(self, request: LeaderAndIsrRequest) -> ControlResponse:
        errors = []
        for state in request.partitions:
            tp = state.topic_partition
            assert self.id in state.replicas, f"{state} was told to broker {self.id}"
            known = self.replicas.get(tp)
            is_stale = known is not None and (
                state.leader_epoch < known.leader_epoch
                or (state.leader_epoch == known.leader_epoch and not self.steps_down)
            )
            if is_stale:
                errors.append(PartitionError(tp.topic, tp.partition, ErrorCode.STALE_CONTROLLER_EPOCH))
            else:
                self.replicas[tp] = state
                self.stopped.discard(tp)
        if request.is_full:
            self.steps_down = False
        return ControlResponse(ErrorCode.NONE, tuple(errors))
