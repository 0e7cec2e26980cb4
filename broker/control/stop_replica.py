"""StopReplica: fence, then the replica manager (LAI-6, BUG-20)."""

from __future__ import annotations

from broker.control.steps import StepByStep
from broker.replication.replica_manager import ReplicaManager
from protocol.rpc.messages import ControlResponse, StopReplicaRequest


async def stop_replica(
    steps: StepByStep, replica_manager: ReplicaManager, request: StopReplicaRequest
) -> ControlResponse:
    return await steps.carry_out(replica_manager.stopping(request), request.broker_epoch)
