"""Judges the health of a cluster by one broker's Metadata, as `rpk cluster health` does. For any Kafka. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from protocol.types import Assignment, TopicPartition
from tools.admin.cluster_view import ClusterView
from tools.cluster.tables import aligned

PARTITIONS_SHOWN_MAX = 20
NOTHING_KNOWN: Mapping[TopicPartition, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Health:
    """What is wrong, if anything; `unreachable` is the reason if no broker answered."""

    controller: int | None
    nodes: tuple[int, ...]
    nodes_down: tuple[int, ...]
    leaderless: tuple[TopicPartition, ...]
    under_replicated: tuple[TopicPartition, ...]
    unreachable: str | None = None
    why_leaderless: Mapping[TopicPartition, str] = field(default_factory=dict)

    @property
    def reasons(self) -> list[str]:
        """In rpk's words; empty for a healthy cluster."""
        if self.unreachable is not None:
            return ["unreachable"]
        found = {
            "no_elected_controller": self.controller is None,
            "nodes_down": bool(self.nodes_down),
            "leaderless_partitions": bool(self.leaderless),
            "under_replicated_partitions": bool(self.under_replicated),
        }
        return [reason for reason, is_so in found.items() if is_so]

    @property
    def is_healthy(self) -> bool:
        return not self.reasons


def assess(
    cluster: ClusterView,
    under_way: Mapping[TopicPartition, Assignment],
    why_leaderless: Mapping[TopicPartition, str] = NOTHING_KNOWN,
    expected: frozenset[int] = frozenset(),
) -> Health:
    """A replica that a reassignment is adding does not count as missing.

    A broker that is not live is known by its assigned replicas, or is one of those that are `expected`.
    """
    live = cluster.live_brokers
    known = cluster.assigned_brokers | expected
    leaderless = []
    under_replicated = []
    for partition, view in cluster.partitions().items():
        adding = under_way[partition].adding if partition in under_way else ()
        if view.leader not in live:
            leaderless.append(partition)
        if not set(view.replicas) - set(adding) <= set(view.isr):
            under_replicated.append(partition)
    return Health(
        controller=cluster.controller if cluster.controller in live else None,
        nodes=tuple(sorted(live | known)),
        nodes_down=tuple(sorted(known - live)),
        leaderless=tuple(leaderless),
        under_replicated=tuple(under_replicated),
        why_leaderless=why_leaderless,
    )


def unreachable(reason: str) -> Health:
    """The health of a cluster that did not answer."""
    return Health(None, (), (), (), (), reason)


def health_lines(health: Health) -> list[str]:
    """rpk's overview, aligned."""
    rows = [
        ("Healthy:", str(health.is_healthy).lower()),
        ("Unhealthy reasons:", _listed(health.reasons)),
        ("Controller ID:", "none" if health.controller is None else str(health.controller)),
        ("All nodes:", _listed(health.nodes)),
        ("Nodes down:", _listed(health.nodes_down)),
        (f"Leaderless partitions ({len(health.leaderless)}):", _listed(health.leaderless)),
        (f"Under-replicated partitions ({len(health.under_replicated)}):", _listed(health.under_replicated)),
    ]
    shown = list(health.why_leaderless.items())[:PARTITIONS_SHOWN_MAX]
    causes = ["", *(f"{partition}: {why}" for partition, why in shown)] if shown else []
    return ["CLUSTER HEALTH OVERVIEW", "=======================", *aligned(rows), *causes]


def health_json(health: Health) -> dict[str, Any]:
    return {
        "healthy": health.is_healthy,
        "unhealthy_reasons": health.reasons,
        "controller": health.controller,
        "nodes": list(health.nodes),
        "nodes_down": list(health.nodes_down),
        "leaderless_partitions": [str(partition) for partition in health.leaderless],
        "under_replicated_partitions": [str(partition) for partition in health.under_replicated],
        "why_leaderless": {str(partition): why for partition, why in health.why_leaderless.items()},
        "error": health.unreachable,
    }


def status_json(
    cluster: ClusterView,
    under_way: Mapping[TopicPartition, Assignment] | None,
    health: Health,
    racks: Mapping[int, str | None],
) -> dict[str, Any]:
    """`{controller, nodes: [{id, address, rack, state, leaders, replicas}], topics, partitions, ...counts}`.

    `reassigning_partitions` is null if the cluster does not list reassignments.
    """
    views = cluster.partitions()
    addresses = {node.id: f"{node.host}:{node.port}" for node in cluster.nodes}
    return {
        "controller": health.controller,
        "nodes": [
            {
                "id": broker,
                "address": addresses.get(broker),
                "rack": racks.get(broker),
                "state": "running" if broker in addresses else "down",
                "leaders": sum(1 for view in views.values() if view.leader == broker),
                "replicas": sum(1 for view in views.values() if broker in view.replicas),
            }
            for broker in health.nodes
        ],
        "topics": len(cluster.topics),
        "partitions": len(views),
        "under_replicated_partitions": len(health.under_replicated),
        "offline_partitions": len(health.leaderless),
        "reassigning_partitions": None if under_way is None else len(under_way),
    }


def status_lines(status: Mapping[str, Any]) -> list[str]:
    """The nodes as a table, then the counts."""
    rows = [("NODE", "ADDRESS", "RACK", "STATE", "LEADERS", "REPLICAS")]
    for node in status["nodes"]:
        is_controller = node["id"] == status["controller"]
        rows.append(
            (
                f"broker {node['id']}",
                node["address"] or "-",
                node["rack"] or "-",
                f"{node['state']}, controller" if is_controller else node["state"],
                str(node["leaders"]),
                str(node["replicas"]),
            )
        )
    reassigning = status["reassigning_partitions"]
    counts = (
        f"{status['partitions']} partitions of {status['topics']} topics: "
        f"{status['under_replicated_partitions']} under-replicated, {status['offline_partitions']} offline, "
        f"{'unknown' if reassigning is None else reassigning} reassigning"
    )
    controller = [] if status["controller"] is not None else ["no controller"]
    return [*aligned(rows), "", counts, *controller]


def _listed(values: Collection[object]) -> str:
    """`[a b c]`, shortened if it is long."""
    texts = [str(value) for value in values]
    more = len(texts) - PARTITIONS_SHOWN_MAX
    return f"[{' '.join(texts[:PARTITIONS_SHOWN_MAX])}{f' and {more} more' if more > 0 else ''}]"
