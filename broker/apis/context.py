"""What the APIs work with; made once, by `broker.main`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from broker.apis.fetch_sessions import FetchSessionCache
from broker.apis.topic_admin import TopicAdmin
from broker.clock import Clock
from broker.config import BrokerConfig
from broker.metadata_cache import MetadataCache
from broker.replication.replica_manager import ReplicaManager
from protocol.kafka.produce_codec import NodeEndpoint


@dataclass(frozen=True, slots=True)
class ApiContext:
    """`is_controller` is about this process, now; who the others think it is stands in the metadata cache."""

    config: BrokerConfig
    clock: Clock
    cluster_id: str
    metadata: MetadataCache
    replica_manager: ReplicaManager
    fetch_sessions: FetchSessionCache
    topic_admin: TopicAdmin
    is_controller: Callable[[], bool]

    def node_endpoint(self, broker_id: int, listener: str) -> NodeEndpoint | None:
        """Where a live broker serves clients of that listener."""
        broker = self.metadata.broker(broker_id)
        endpoint = broker.endpoint(listener) if broker is not None else None
        if broker is None or endpoint is None:
            return None
        return NodeEndpoint(broker_id, endpoint.host, endpoint.port, broker.rack)

    def node_endpoints(self, broker_ids: set[int], listener: str) -> list[NodeEndpoint]:
        """As `node_endpoint`, of those that are live; for answers that name a new leader (KIP-951)."""
        found = (self.node_endpoint(broker_id, listener) for broker_id in sorted(broker_ids))
        return [endpoint for endpoint in found if endpoint is not None]
