"""ZooKeeper's view of a cluster and each broker's, side by side. Pure.

A cell is text, or None if that side does not have the fact; a broker's text that differs from ZooKeeper's is a difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from protocol.types import Assignment, TopicPartition
from protocol.zk.znodes import TopicZNode
from tools.admin.config_values import Entity
from tools.admin.topic_views import ids_text
from tools.cluster.tables import aligned
from tools.cluster.zookeeper_view import ZooKeeperView
from tools.inspect.broker_view import BrokerView, PartitionFacts

NO_ANSWER = "no answer"
MISSING = "missing"
NONE = "none"
SAYS_NOTHING = "-"
MARK = "!= "
SECRET_KEYS = (
    "password",
    "sasl.jaas.config",
    "ssl.keystore.key",
    "ssl.keystore.certificate.chain",
    "ssl.truststore.certificates",
)
"""Parts of the names of Kafka's dynamic configs of type PASSWORD. Kafka writes a listener's prefix before the name."""


@dataclass(frozen=True, slots=True)
class Row:
    """One fact of `subject` (a partition, a topic, a broker, the cluster)."""

    subject: str
    fact: str
    zookeeper: str
    brokers: Mapping[int, str | None]

    def differs(self, broker: int) -> bool:
        cell = self.brokers[broker]
        return cell is not None and cell != self.zookeeper

    @property
    def is_different(self) -> bool:
        return any(self.differs(broker) for broker in self.brokers)


def compare(zookeeper: ZooKeeperView, brokers: Mapping[int, BrokerView | None]) -> list[Row]:
    """`brokers` has the views of the brokers that were asked, None for one that did not answer."""
    return [
        *_cluster_rows(zookeeper, brokers),
        *_topic_rows(zookeeper, brokers),
        *_partition_rows(zookeeper, brokers),
        *_config_rows(zookeeper, brokers),
    ]


def _cluster_rows(zookeeper: ZooKeeperView, brokers: Mapping[int, BrokerView | None]) -> Iterator[Row]:
    yield Row(
        "cluster",
        "brokers",
        ids_text(sorted(zookeeper.brokers)),
        {broker: NO_ANSWER if view is None else ids_text(sorted(view.brokers)) for broker, view in brokers.items()},
    )
    yield Row(
        "cluster",
        "controller",
        _id_text(zookeeper.controller),
        {broker: None if view is None else _id_text(view.controller) for broker, view in brokers.items()},
    )
    epoch = NONE if zookeeper.controller_epoch is None else str(zookeeper.controller_epoch)
    yield Row("cluster", "controller epoch", epoch, dict.fromkeys(brokers))


def _topic_rows(zookeeper: ZooKeeperView, brokers: Mapping[int, BrokerView | None]) -> Iterator[Row]:
    topics = set(zookeeper.topic_ids).union(*(view.topic_ids for view in brokers.values() if view is not None))
    for topic in sorted(topics - zookeeper.to_be_deleted):
        known = zookeeper.topic_ids.get(topic, MISSING)
        yield Row(
            topic,
            "topic id",
            NONE if known is None else known,
            {
                broker: None if view is None or known is None else view.topic_ids.get(topic, MISSING)
                for broker, view in brokers.items()
            },
        )


def _partition_rows(zookeeper: ZooKeeperView, brokers: Mapping[int, BrokerView | None]) -> Iterator[Row]:
    partitions = set(zookeeper.assignment).union(*(view.partitions for view in brokers.values() if view is not None))
    to_be_deleted = zookeeper.to_be_deleted
    for partition in sorted(partition for partition in partitions if partition.topic not in to_be_deleted):
        known = _zookeeper_facts(zookeeper, partition)
        told = {
            broker: None if view is None else _broker_facts(view.partitions.get(partition))
            for broker, view in brokers.items()
        }
        for fact, value in known.items():
            cells = {broker: None if facts is None else facts[fact] for broker, facts in told.items()}
            yield Row(str(partition), fact, value, cells)
        moves = {
            broker: None
            if view is None or view.reassignments is None
            else _move_text(view.reassignments.get(partition))
            for broker, view in brokers.items()
        }
        move = _move_text(zookeeper.assignment.get(partition))
        if move != NONE or any(cell not in (None, NONE) for cell in moves.values()):
            yield Row(str(partition), "reassignment", move, moves)


def _zookeeper_facts(zookeeper: ZooKeeperView, partition: TopicPartition) -> dict[str, str]:
    state = zookeeper.states.get(partition)
    assignment = zookeeper.assignment.get(partition)
    replicas = MISSING if assignment is None else ids_text(assignment.replicas)
    if state is None:
        return {"leader": MISSING, "leader epoch": MISSING, "isr": MISSING, "replicas": replicas}
    return {
        "leader": _id_text(state.leader),
        "leader epoch": str(state.leader_epoch),
        "isr": ids_text(sorted(state.isr)),
        "replicas": replicas,
    }


def _broker_facts(facts: PartitionFacts | None) -> dict[str, str]:
    if facts is None:
        return dict.fromkeys(("leader", "leader epoch", "isr", "replicas"), MISSING)
    return {
        "leader": _id_text(facts.leader),
        "leader epoch": str(facts.leader_epoch),
        "isr": ids_text(sorted(facts.isr)),
        "replicas": ids_text(facts.replicas),
    }


def _config_rows(zookeeper: ZooKeeperView, brokers: Mapping[int, BrokerView | None]) -> Iterator[Row]:
    """Rows for configs that are set anywhere. A broker's secrets are only in ZooKeeper and are not compared."""
    entities = set(zookeeper.configs).union(*(view.configs or {} for view in brokers.values() if view is not None))
    for entity in sorted(entities):
        known = zookeeper.configs.get(entity, {})
        told = {broker: _told_configs(view, entity) for broker, view in brokers.items()}
        for key in sorted({*known, *(key for configs in told.values() for key in configs or {})}):
            cells = {
                broker: None if configs is None or _is_secret(key) else configs.get(key, NONE)
                for broker, configs in told.items()
            }
            yield Row(str(entity), key, "(secret)" if _is_secret(key) else known.get(key, NONE), cells)


def _is_secret(key: str) -> bool:
    return any(part in key for part in SECRET_KEYS)


def _told_configs(view: BrokerView | None, entity: Entity) -> Mapping[str, str] | None:
    return None if view is None or view.configs is None else view.configs.get(entity)


def _move_text(assignment: Assignment | None) -> str:
    """`adding 3, removing 1`."""
    parts = [] if assignment is None else [("adding", assignment.adding), ("removing", assignment.removing)]
    return ", ".join(f"{name} {ids_text(sorted(brokers))}" for name, brokers in parts if brokers) or NONE


def _id_text(broker: int | None) -> str:
    return NONE if broker is None or broker < 0 else str(broker)


def comparison_lines(rows: list[Row], zookeeper: ZooKeeperView, *, differences_only: bool = False) -> Iterator[str]:
    """A table with a column for each side and marked differences; then pending work, faulty znodes and the count."""
    shown = [row for row in rows if row.is_different or not differences_only]
    if shown:
        brokers = list(shown[0].brokers)
        table = [("", "", "ZOOKEEPER", *(f"BROKER {broker}" for broker in brokers))]
        subject = ""
        for row in shown:
            cells = (
                f"{MARK if row.differs(broker) else ''}{row.brokers[broker] or SAYS_NOTHING}" for broker in brokers
            )
            table.append((row.subject if row.subject != subject else "", row.fact, row.zookeeper, *cells))
            subject = row.subject
        yield from aligned(table)
        yield ""
    for path, content in zookeeper.pending.items():
        yield f"pending: {path} {content}"
    for path, reason in zookeeper.unreadable.items():
        yield f"unreadable: {path}: {reason}"
    for topic in zookeeper.topics_without_id:
        yield f"without an id: {TopicZNode.path(topic)}: a tool before Kafka 2.8 wrote it, and the controller gave it none yet"
    count = sum(1 for row in rows if row.is_different)
    yield f"{count} differences" if count != 1 else "1 difference"


def comparison_json(rows: list[Row], zookeeper: ZooKeeperView, *, differences_only: bool = False) -> dict[str, Any]:
    """`{rows: [{subject, fact, zookeeper, brokers: {id: cell}, differs: [id]}], pending, unreadable, without_id, differences}`."""
    return {
        "rows": [
            {
                "subject": row.subject,
                "fact": row.fact,
                "zookeeper": row.zookeeper,
                "brokers": {str(broker): cell for broker, cell in row.brokers.items()},
                "differs": [broker for broker in row.brokers if row.differs(broker)],
            }
            for row in rows
            if row.is_different or not differences_only
        ],
        "pending": zookeeper.pending,
        "unreadable": zookeeper.unreadable,
        "without_id": list(zookeeper.topics_without_id),
        "differences": sum(1 for row in rows if row.is_different),
    }
