"""Names from the cluster for shell completion. If the cluster does not answer within TIMEOUT_S, completes nothing and prints no error."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from tools.admin.naming import Where
from tools.failures import AdminError

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


def _extended(incomplete: str, names: Iterable[str]) -> list[str]:
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in names if name.startswith(last)]


def _cluster(context: click.Context) -> ClusterView | None:
    from tools.admin.kafka_admin import KafkaAdmin

    where = where_of(context)
    try:
        return KafkaAdmin(where.servers(), where.command_config, connect_timeout_s=TIMEOUT_S).cluster()
    except AdminError:
        return None


def where_of(context: click.Context) -> Where:
    """The cluster that the options before this word name."""
    given = context.params
    return Where(given.get("bootstrap_server"), given.get("directory"), given.get("command_config"))
