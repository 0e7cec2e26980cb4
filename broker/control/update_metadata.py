"""UpdateMetadata: fence, then the metadata cache (STA-1, CTL-13)."""

from __future__ import annotations

from broker.control.fencing import BrokerEpochFence
from broker.replication.replica_manager import ReplicaManager
from protocol.rpc.messages import ControlResponse, UpdateMetadataRequest


def update_metadata(
    fence: BrokerEpochFence, replica_manager: ReplicaManager, request: UpdateMetadataRequest
) -> ControlResponse:
    return fence.refusal(request.broker_epoch) or replica_manager.maybe_update_metadata(request)
