"""Judges the health of a cluster by one broker's Metadata, as `rpk cluster health` does. For any Kafka. Pure.

Metadata leaves out partitions without a state: their state node is missing or unreadable. ZooKeeper's nodes say which they are; without
ZooKeeper, a gap in the numbers of a topic's partitions does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from protocol.types import Assignment, TopicPartition
from protocol.zk.znodes import PartitionStateZNode
from tools.admin.cluster_view import ClusterView
from tools.cluster.tables import aligned

PARTITIONS_SHOWN_MAX = 20
NOTHING_KNOWN: Mapping[TopicPartition, str] = MappingProxyType({})


NO_PROBLEMS: Mapping[str, str] = MappingProxyType({})
NOBODY: Mapping[int, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ZnodeProblems:
    """What is wrong with ZooKeeper's nodes. `unreadable`: path -> the reason. `without_state`: partition -> why it has no state."""

    unreadable: Mapping[str, str] = field(default_factory=dict)
    without_id: tuple[str, ...] = ()
    without_state: Mapping[TopicPartition, str] = field(default_factory=dict)


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
    unreadable_nodes: Mapping[str, str] = field(default_factory=dict)
    topics_without_id: tuple[str, ...] = ()
    why_down: Mapping[int, str] = field(default_factory=dict)

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
            "unreadable_nodes": bool(self.unreadable_nodes),
            "topics_without_id": bool(self.topics_without_id),
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
    znodes: ZnodeProblems | None = None,
    why_down: Mapping[int, str] = NOBODY,
) -> Health:
    """A replica that a reassignment is adding does not count as missing. `why_down`: nodes that the metadata lists, and that are gone.

    A broker that is not live is known by its assigned replicas, or is one of those that are `expected`. `znodes` is None if
    ZooKeeper is not known.
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
    left_out = _gaps(cluster) if znodes is None else znodes.without_state
    left_out = {partition: reason for partition, reason in left_out.items() if partition not in cluster.partitions()}
    return Health(
        controller=cluster.controller if cluster.controller in live else None,
        nodes=tuple(sorted(live | known)),
        nodes_down=tuple(sorted((known - live) | why_down.keys())),
        leaderless=tuple(sorted([*leaderless, *left_out])),
        under_replicated=tuple(under_replicated),
        why_leaderless={**why_leaderless, **left_out},
        unreadable_nodes=znodes.unreadable if znodes is not None else NO_PROBLEMS,
        topics_without_id=znodes.without_id if znodes is not None else (),
        why_down=why_down,
    )


def _gaps(cluster: ClusterView) -> dict[TopicPartition, str]:
    """The partitions between others of their topic that Metadata leaves out."""
    found = {}
    for topic, views in cluster.topics.items():
        numbers = {view.partition for view in views}
        for number in set(range(max(numbers, default=-1))) - numbers:
            partition = TopicPartition(topic, number)
            path = PartitionStateZNode.path(partition)
            found[partition] = f"it is not in the metadata: {path} in ZooKeeper is missing or not readable"
    return found


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
    if health.unreachable is not None:
        rows = rows[:2]  # nothing else is known
    if health.unreadable_nodes:
        rows.append((f"Unreadable nodes ({len(health.unreadable_nodes)}):", _listed(health.unreadable_nodes)))
    if health.topics_without_id:
        rows.append((f"Topics without an id ({len(health.topics_without_id)}):", _listed(health.topics_without_id)))
    why_down = {f"broker {broker}": why for broker, why in health.why_down.items()}
    reasons = {
        **why_down,
        **{str(partition): why for partition, why in health.why_leaderless.items()},
        **health.unreadable_nodes,
    }
    shown = list(reasons.items())[:PARTITIONS_SHOWN_MAX]
    causes = ["", *(f"{what}: {why}" for what, why in shown)] if shown else []
    return ["CLUSTER HEALTH OVERVIEW", "=======================", *aligned(rows), *causes]


def health_json(health: Health) -> dict[str, Any]:
    return {
        "healthy": health.is_healthy,
        "unhealthy_reasons": health.reasons,
        "controller": health.controller,
        "nodes": list(health.nodes),
        "nodes_down": list(health.nodes_down),
        "why_down": {str(broker): why for broker, why in health.why_down.items()},
        "leaderless_partitions": [str(partition) for partition in health.leaderless],
        "under_replicated_partitions": [str(partition) for partition in health.under_replicated],
        "why_leaderless": {str(partition): why for partition, why in health.why_leaderless.items()},
        "unreadable_nodes": dict(health.unreadable_nodes),
        "topics_without_id": list(health.topics_without_id),
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
                "state": "down" if broker in health.nodes_down else "running",
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
