"""All sections of the metrics page, in their order. docs/METRICS.md explains each metric."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from broker.groups.held_groups import HeldGroups
from broker.metrics.controller import MeasuredController, cluster_section, controller_section
from broker.metrics.groups import group_section
from broker.metrics.quotas import quota_section
from broker.metrics.replication import fetcher_section, purgatory_section, replica_section, topic_section
from broker.metrics.requests import network_section, request_section
from broker.metrics.server import BrokerState, SessionStats, disk_section, session_section, state_section
from broker.metrics.telemetry import telemetry_section
from broker.metrics.transactions import transaction_section
from broker.network.acceptor import Acceptor
from broker.network.request_channel import RequestChannel
from broker.network.request_metrics import RequestMetrics
from broker.process.exposition import Section
from broker.quotas.client_quotas import Quotas
from broker.replication.replica_manager import ReplicaManager
from broker.storage.log_manager import LogManager
from broker.telemetry.client_telemetry import ClientTelemetry
from broker.transactions.coordinator import TransactionCoordinator


@dataclass(frozen=True, slots=True)
class Measured:
    """The parts of a broker whose numbers are read, in the thread of the metrics server."""

    state: Callable[[], BrokerState]
    session: SessionStats
    requests: RequestMetrics
    channel: RequestChannel
    acceptors: Mapping[str, Acceptor]
    replicas: ReplicaManager
    logs: LogManager
    groups: HeldGroups
    transactions: TransactionCoordinator
    quotas: Quotas
    telemetry: ClientTelemetry
    controller: MeasuredController
    partitions_max: int
    """`metrics.max.partitions`."""


def sections(of: Measured) -> list[Section]:
    return [
        lambda: state_section(of.state()),
        lambda: topic_section(of.replicas.topic_stats),
        lambda: replica_section(of.replicas, of.partitions_max),
        lambda: fetcher_section(of.replicas.fetchers, of.partitions_max),
        lambda: purgatory_section(of.replicas),
        lambda: request_section(of.requests),
        lambda: network_section(of.channel, of.acceptors),
        lambda: cluster_section(of.controller),
        lambda: controller_section(of.controller),
        lambda: group_section(of.groups),
        lambda: transaction_section(of.transactions),
        lambda: quota_section(of.quotas),
        lambda: telemetry_section(of.telemetry),
        lambda: session_section(of.session),
        lambda: disk_section(of.logs),
    ]
