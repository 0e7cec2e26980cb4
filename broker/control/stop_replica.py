"""StopReplica: fence, then the replica manager (LAI-6, BUG-20)."""

from __future__ import annotations

from broker.control.fencing import BrokerEpochFence
from broker.replication.replica_manager import ReplicaManager
from protocol.rpc.messages import ControlResponse, StopReplicaRequest


def stop_replica(
    fence: BrokerEpochFence, replica_manager: ReplicaManager, request: StopReplicaRequest
) -> ControlResponse:
    return fence.refusal(request.broker_epoch) or replica_manager.stop_replicas(request)
