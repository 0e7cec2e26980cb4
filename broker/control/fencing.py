"""Refuses control requests for an earlier life of this broker, and requests that arrive late (STA-3, INV-8, FLT-18)."""

from __future__ import annotations

from collections.abc import Callable

from broker.replication.replica_manager import ReplicaManager
from protocol.errors import ErrorCode
from protocol.rpc.messages import ControlResponse, LeaderAndIsrRequest, StopReplicaRequest, UpdateMetadataRequest


class BrokerEpochFence:
    """Refuses requests for an earlier life.

    A broker epoch above the known one is accepted: the controller may see the new znode before this broker learns that it
    is registered. The epoch under which this broker stepped down is of an earlier life, even while no newer epoch is known.
    """

    def __init__(self, own_broker_epoch: Callable[[], int], replica_manager: ReplicaManager) -> None:
        self._own_broker_epoch = own_broker_epoch
        self._replica_manager = replica_manager

    def is_stale(self, broker_epoch: int) -> bool:
        """True if a request with this broker epoch is for an earlier life."""
        return broker_epoch < self._own_broker_epoch() or broker_epoch <= self._replica_manager.fenced_broker_epoch


class NewestRequest:
    """Refuses a request if a newer request of the same controller was carried out already.

    A connection that the controller has closed may still deliver requests: its kernel sends the data written before the close.
    A leader epoch shows that such a request is late, but an ISR in the metadata and the list of brokers have no epoch.
    """

    def __init__(self) -> None:
        self._newest = (0, 0)

    def refusal(
        self, request: LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest
    ) -> ControlResponse | None:
        """None if the request is in order, or repeats the newest one."""
        newest_epoch, newest_number = self._newest
        if request.controller_epoch == newest_epoch and 0 < request.number < newest_number:
            return ControlResponse(ErrorCode.STALE_CONTROLLER_EPOCH)
        self._newest = max(self._newest, (request.controller_epoch, request.number))
        return None
