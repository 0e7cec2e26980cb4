"""The services that the APIs use; created once, by `broker.main`."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from broker.admin.config_admin import ConfigAdmin
from broker.admin.quota_admin import QuotaAdmin
from broker.admin.scram_admin import ScramAdmin
from broker.admin.topic_admin import TopicAdmin
from broker.authorization.acl_store import AclStore
from broker.authorization.authorizer import Authorizer
from broker.cluster.metadata_cache import MetadataCache
from broker.cluster.producer_ids import ProducerIds
from broker.cluster.suspected_leaders import SuspectedLeaders
from broker.coordination.confirmation import Certainty
from broker.groups.consumer_group.messages import ConsumerGroupDescription, ConsumerHeartbeat, HeartbeatAnswer
from broker.groups.group.messages import (
    CommittedOffset,
    FetchedOffset,
    GroupDescription,
    GroupListing,
    JoinAnswer,
    JoinRequest,
    LeavingMember,
    SyncAnswer,
    SyncRequest,
    TransactionalProducer,
)
from broker.network.request_metrics import RequestMetrics
from broker.process.audit_log import AuditLog
from broker.process.clock import Clock, SystemClock
from broker.process.rare_lines import RareLine
from broker.quotas.client_quotas import Quotas
from broker.recording.recorder import Recorder
from broker.replication.fetching.fetches import Fetches
from broker.replication.replica_manager import ReplicaManager
from broker.requests.long_answers import LongAnswers
from broker.requests.metadata_topics import MetadataTopics
from broker.security.token_store import TokenStore
from broker.settings.config import BrokerConfig
from broker.settings.dynamic_configs import DynamicConfigs
from broker.settings.group_configs import GroupConfigs
from broker.storage.log_manager import LogManager
from broker.telemetry.client_telemetry import TELEMETRY_BYTES_MAX, ClientTelemetry
from broker.transactions.coordinator import TransactionCoordinator
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.api_keys import ApiLevel
from protocol.kafka.produce_codec import NodeEndpoint
from protocol.types import Assignment, TopicPartition


class ControllerRequests(Protocol):
    """Requests of the APIs to the controller in the same process (CTL-3).

    All except `is_active` raise KafkaError(NOT_CONTROLLER) if that controller is not the active one. In their answers, None instead
    of an error means done, or in progress.
    """

    @property
    def is_active(self) -> bool: ...

    async def alter_reassignments(
        self, targets: Mapping[TopicPartition, tuple[int, ...] | None], *, may_change_factor: bool = True
    ) -> dict[TopicPartition, KafkaError | None]:
        """Starts reassignments to these replicas. Target None cancels the partition's reassignment (CTL-10, CTL-11).

        Unless `may_change_factor`, a target with more or fewer replicas than the partition has is refused.
        """
        ...

    def reassignments(self) -> dict[TopicPartition, Assignment]:
        """The reassignments in progress. `replicas` has the target replicas first, then the replicas to be removed."""
        ...

    async def elect_leaders(
        self, unclean: bool, partitions: Collection[TopicPartition] | None
    ) -> dict[TopicPartition, KafkaError | None]:
        """CTL-12. `partitions` None: all partitions that need an election; the answer contains only these."""
        ...


class ZooKeeperConnection(Protocol):
    """The part of the ZooKeeper connection that APIs use."""

    async def until_connected(self, timeout_s: float) -> None:
        """Returns when there is a connection, or after `timeout_s`."""
        ...


class GroupRequests(Protocol):
    """Requests of members and admins to the coordinator of a group (CLI-2). No method waits: `respond` is called once, now or later.

    The error of every answer may be COORDINATOR_NOT_AVAILABLE, COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR or INVALID_GROUP_ID.
    """

    def partition_of(self, group_id: str) -> int:
        """The partition of `__consumer_offsets` whose leader is the group's coordinator."""
        ...

    @property
    def ownership(self) -> Certainty: ...

    def join(self, request: JoinRequest, respond: Callable[[JoinAnswer], None]) -> None: ...

    def sync(self, request: SyncRequest, respond: Callable[[SyncAnswer], None]) -> None: ...

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode: ...

    @property
    def configs(self) -> GroupConfigs:
        """The settings that groups have of their own."""
        ...

    def keep_alive(self, group_id: str, member_id: str, epoch: int, client_id: str, client_host: str) -> int | None:
        """For a heartbeat that says nothing besides these: the interval until the next one, in ms, if it is only a sign of life. None: it
        is one for `consumer_heartbeat`."""
        ...

    def consumer_heartbeat(
        self,
        group_id: str,
        request: ConsumerHeartbeat,
        respond: Callable[[HeartbeatAnswer], None],
        may_see: Callable[[str], bool] | None = None,
    ) -> None:
        """Of a member of a group of the new kind (KIP-848). `may_see`: the topics that a regular expression may match; None: all."""
        ...

    def describe_consumer_group(self, group_id: str) -> ConsumerGroupDescription: ...

    def leave(
        self, group_id: str, members: Sequence[LeavingMember], respond: Callable[[ErrorCode, list[ErrorCode]], None]
    ) -> None:
        """Calls `respond` at once, with the group's error and, if that is NONE, one error for each member."""
        ...

    def commit(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        offsets: Mapping[TopicPartition, CommittedOffset],
        respond: Callable[[dict[TopicPartition, ErrorCode]], None],
        producer: TransactionalProducer | None = None,
        *,
        knows_epochs: bool = True,
    ) -> None:
        """With a `producer`: in its transaction, after `verification`."""
        ...

    def verification(self, group_id: str, producer: TransactionalProducer) -> Coroutine[Any, Any, ErrorCode] | None:
        """To be awaited before a transactional commit, which is refused unless the result is NONE. None: nothing to await."""
        ...

    def transaction_completed(self, producer_id: int, markers: Mapping[int, int], is_commit: bool) -> None:
        """Called when markers are replicated. `markers`: partition of `__consumer_offsets` -> log offset of the marker."""
        ...

    def fetch_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition], *, require_stable: bool
    ) -> tuple[ErrorCode, dict[TopicPartition, FetchedOffset]]: ...

    def check_fetch(self, group_id: str, member_id: str, member_epoch: int) -> ErrorCode:
        """Whether a member may fetch offsets: in a group of the new kind it needs its epoch."""
        ...

    def committed_partitions(self, group_id: str) -> tuple[ErrorCode, Mapping[str, Sequence[int]]]:
        """Topic -> the partitions for which the group has committed an offset."""
        ...

    def delete_offsets(
        self,
        group_id: str,
        partitions: Sequence[TopicPartition],
        respond: Callable[[ErrorCode, dict[TopicPartition, ErrorCode]], None],
    ) -> None: ...

    def list_groups(
        self, states: Iterable[str], types: Iterable[str]
    ) -> tuple[ErrorCode, Iterable[GroupListing | None]]:
        """Without names, any state or type matches. A group that does not match is None in the answer."""
        ...

    def describe(self, group_id: str) -> GroupDescription: ...

    def delete_groups(self, group_ids: Sequence[str], respond: Callable[[dict[str, ErrorCode]], None]) -> None: ...


_LEVELS = {level.value: level for level in ApiLevel}


@dataclass(frozen=True, slots=True)
class ApiContext:
    """`controller` is the controller in this process, active or not. The metadata cache has the id of the active controller."""

    config: BrokerConfig
    clock: Clock
    cluster_id: str
    zookeeper: ZooKeeperConnection
    metadata: MetadataCache
    metadata_topics: MetadataTopics
    replica_manager: ReplicaManager
    log_manager: LogManager
    fetches: Fetches
    topic_admin: TopicAdmin
    configs: DynamicConfigs
    config_admin: ConfigAdmin
    scram_admin: ScramAdmin
    quota_admin: QuotaAdmin
    quotas: Quotas
    producer_ids: ProducerIds
    controller: ControllerRequests
    suspected_leaders: SuspectedLeaders
    groups: GroupRequests
    transactions: TransactionCoordinator
    replica_listener: str | None
    """The only listener on which a replica id is allowed. None: all listeners, because clients and brokers share one."""
    long_answers: LongAnswers
    recorder: Recorder
    authorizer: Authorizer | None = None
    """None: everybody may do everything."""
    acls: AclStore | None = None
    """Where ACLs are changed; None without an authorizer."""
    tokens: TokenStore | None = None
    """Delegation tokens; None: there are none."""
    request_metrics: RequestMetrics = field(default_factory=RequestMetrics)
    telemetry: ClientTelemetry = field(default_factory=lambda: ClientTelemetry(TELEMETRY_BYTES_MAX, time.monotonic))
    audit: AuditLog = field(default_factory=lambda: AuditLog(None, SystemClock()))
    denials: RareLine = field(default_factory=lambda: RareLine(1.0, time.monotonic))
    """Allows the lines about requests that were denied."""
    old_fetches: RareLine = field(default_factory=lambda: RareLine(1.0, time.monotonic))
    """Allows the lines about fetches of versions that carry no records: an old client asks again at once."""

    @property
    def group_configs(self) -> GroupConfigs:
        """The settings that groups have of their own."""
        return self.groups.configs

    @property
    def api_level(self) -> ApiLevel:
        """Whose APIs this broker serves to clients at present."""
        return _LEVELS[self.configs.layers.effective.broker_api_level]

    def node_endpoint(self, broker_id: int, listener: str) -> NodeEndpoint | None:
        """A broker's address for clients of that listener. None: the broker is not live, or does not have the listener."""
        broker = self.metadata.broker(broker_id)
        endpoint = broker.endpoint(listener) if broker is not None else None
        if broker is None or endpoint is None:
            return None
        return NodeEndpoint(broker_id, endpoint.host, endpoint.port, broker.rack)

    def node_endpoints(self, broker_ids: set[int], listener: str) -> list[NodeEndpoint]:
        """`node_endpoint` of the live brokers, for answers that name a new leader (KIP-951)."""
        found = (self.node_endpoint(broker_id, listener) for broker_id in sorted(broker_ids))
        return [endpoint for endpoint in found if endpoint is not None]
