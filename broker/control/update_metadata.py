"""UpdateMetadata: fence, then the metadata cache (STA-1, CTL-13)."""

from __future__ import annotations

from broker.control.steps import StepByStep
from broker.replication.replica_manager import ReplicaManager
from protocol.rpc.messages import ControlResponse, UpdateMetadataRequest


async def update_metadata(
    steps: StepByStep, replica_manager: ReplicaManager, request: UpdateMetadataRequest
) -> ControlResponse:
    return await steps.carry_out(replica_manager.updating_metadata(request), request.broker_epoch)
