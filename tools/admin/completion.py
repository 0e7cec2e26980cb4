"""Names from the cluster for shell completion. If the cluster does not answer within TIMEOUT_S, completes nothing and prints no error."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from tools.admin.bootstrap import NoBootstrapServer, find_bootstrap_servers
from tools.admin.failures import AdminError

if TYPE_CHECKING:
    from tools.admin.cluster_view import ClusterView

TIMEOUT_S = 1.0


def complete_topics(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Topics that start with `incomplete`; after a comma, completes the next name of a list."""
    cluster = _cluster(context)
    return [] if cluster is None else _extended(incomplete, cluster.topics)


def complete_brokers(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Ids of the live brokers; after a comma, completes the next id of a list."""
    cluster = _cluster(context)
    return [] if cluster is None else _extended(incomplete, [str(node.id) for node in cluster.nodes])


def complete_groups(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Consumer groups that start with `incomplete`."""
    from tools.groups.kafka_groups import KafkaGroups

    try:
        servers = find_bootstrap_servers(context.params.get("bootstrap_server"))
        client = KafkaGroups(servers, context.params.get("command_config"), connect_timeout_s=TIMEOUT_S)
        groups, _ = client.list_groups(timeout_s=TIMEOUT_S)
    except (NoBootstrapServer, AdminError):
        return []
    return [group.group for group in groups if group.group.startswith(incomplete)]


def _extended(incomplete: str, names: Iterable[str]) -> list[str]:
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in names if name.startswith(last)]


def _cluster(context: click.Context) -> ClusterView | None:
    from tools.admin.kafka_admin import KafkaAdmin

    try:
        servers = find_bootstrap_servers(context.params.get("bootstrap_server"))
        return KafkaAdmin(servers, context.params.get("command_config"), connect_timeout_s=TIMEOUT_S).cluster()
    except (NoBootstrapServer, AdminError):
        return None
