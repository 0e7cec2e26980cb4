"""Which life of this broker a control request is for (STA-3, INV-8)."""

from __future__ import annotations

from collections.abc import Callable

from broker.replication.replica_manager import ReplicaManager
from protocol.errors import ErrorCode
from protocol.rpc.messages import ControlResponse


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
