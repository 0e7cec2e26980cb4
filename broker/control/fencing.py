"""Which life of this broker a control request is for, and whether it comes late (STA-3, INV-8, FLT-18)."""

from __future__ import annotations

from collections.abc import Callable

from broker.replication.replica_manager import ReplicaManager
from protocol.errors import ErrorCode
from protocol.rpc.messages import ControlResponse, LeaderAndIsrRequest, StopReplicaRequest, UpdateMetadataRequest


class BrokerEpochFence:
    """Refuses requests for an earlier life.

    A newer epoch than the known one is let in: the controller may have seen the new znode before this broker heard of
    its own success. The epoch under which this broker stepped down is earlier, though no newer one is known yet.
    """

    def __init__(self, own_broker_epoch: Callable[[], int], replica_manager: ReplicaManager) -> None:
        self._own_broker_epoch = own_broker_epoch
        self._replica_manager = replica_manager

    def refusal(self, broker_epoch: int) -> ControlResponse | None:
        """None: the request is for this life."""
        if broker_epoch < self._own_broker_epoch() or broker_epoch <= self._replica_manager.fenced_broker_epoch:
            return ControlResponse(ErrorCode.STALE_BROKER_EPOCH)
        return None


class NewestRequest:
    """Refuses what is older than a request of the same controller that was handled already.

    A connection that the controller gave up may still deliver: its kernel goes on sending what was written before the
    close. A partition's leadership has an epoch to tell by, but an ISR in the metadata, or the list of brokers, has none.
    """

    def __init__(self) -> None:
        self._newest = (0, 0)

    def refusal(
        self, request: LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest
    ) -> ControlResponse | None:
        """None: it is in order, or the newest one once more."""
        newest_epoch, newest_number = self._newest
        if request.controller_epoch == newest_epoch and 0 < request.number < newest_number:
            return ControlResponse(ErrorCode.STALE_CONTROLLER_EPOCH)
        self._newest = max(self._newest, (request.controller_epoch, request.number))
        return None
