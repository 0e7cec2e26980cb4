"""One cluster's admin APIs by raw requests, and their answers in a form that is the same for every cluster."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from protocol.kafka.api_keys import ApiKey
from tests.support.invariants import eventually
from tests.support.wire import Wire

TIMEOUT_MS = 20_000


class AdminWire:
    """Connections to every broker of a cluster of three, and a topic that the refusals are tried on.

    `ids` are the brokers', `topic` has partition 0 on the first and second of them, partition 1 on the second and third.
    """

    def __init__(self, bootstrap_servers: str) -> None:
        host, _, port = bootstrap_servers.split(",")[0].rpartition(":")
        with Wire(int(port), host) as wire:
            self.ports = {
                broker.node_id: broker.port
                for broker in eventually(lambda: three_brokers(wire), "three brokers are known")
            }
        self.ids = sorted(self.ports)
        self.wires = {broker: Wire(port) for broker, port in self.ports.items()}
        first, second, third = self.ids
        self.topic = self.create([[first, second], [second, third]])

    def __enter__(self) -> AdminWire:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for wire in self.wires.values():
            wire.socket.close()

    def controller(self) -> int:
        answer = self.wires[self.ids[0]].call(ApiKey.METADATA, 9, {"topics": []})
        return int(answer.controller_id)

    def at_controller(self, api_key: ApiKey, version: int, body: Mapping[str, Any]) -> Any:
        return self.wires[self.controller()].call(api_key, version, body)

    def elsewhere(self, api_key: ApiKey, version: int, body: Mapping[str, Any]) -> Any:
        other = next(broker for broker in self.ids if broker != self.controller())
        return self.wires[other].call(api_key, version, body)

    def create(self, assignment: Sequence[Sequence[int]], configs: Mapping[str, str] | None = None) -> str:
        """A new topic with these replicas, known to every broker."""
        name = f"admin-{uuid.uuid4().hex[:8]}"
        topic = {
            "name": name,
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": [{"partition_index": n, "broker_ids": replicas} for n, replicas in enumerate(assignment)],
            "configs": [{"name": key, "value": value} for key, value in (configs or {}).items()],
        }
        body = {"topics": [topic], "timeout": TIMEOUT_MS, "validate_only": False}
        (row,) = self.at_controller(ApiKey.CREATE_TOPICS, 7, body).topics
        assert row.error_code == 0, row
        eventually(lambda: self.is_known_everywhere(name, len(assignment)), f"{name} is known to every broker")
        return name

    def is_known_everywhere(self, topic: str, partitions: int) -> bool:
        """With leaders of all its partitions, and the whole ISR."""
        views = [self.partitions(topic, broker) for broker in self.ids]
        return all(len(view) == partitions and all(row[0] >= 0 for row in view.values()) for view in views)

    def partitions(self, topic: str, broker: int | None = None) -> dict[int, tuple[int, list[int], list[int]]]:
        """partition -> (leader, replicas, ISR in order of ids), as one broker has it; {} for an unknown topic."""
        body = {"topics": [{"name": topic}], "allow_auto_topic_creation": False}
        (found,) = self.wires[self.ids[0] if broker is None else broker].call(ApiKey.METADATA, 9, body).topics
        return {
            row.partition_index: (row.leader_id, list(row.replica_nodes), sorted(row.isr_nodes))
            for row in found.partitions
        }

    def reassign(self, topic: str, targets: Mapping[int, Sequence[int] | None]) -> list[tuple[Any, ...]]:
        rows = [{"partition_index": number, "replicas": replicas} for number, replicas in targets.items()]
        body = {"timeout": TIMEOUT_MS, "topics": [{"name": topic, "partitions": rows}]}
        return list(rows_of(self.at_controller(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, body), self))

    def moving(self) -> dict[tuple[str, int], tuple[list[int], list[int], list[int]]]:
        """(topic, partition) -> (replicas, adding, removing)."""
        answer = self.at_controller(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, {"timeout": TIMEOUT_MS, "topics": None})
        return {
            (topic.name, row.partition_index): (
                list(row.replicas),
                list(row.adding_replicas),
                list(row.removing_replicas),
            )
            for topic in answer.topics
            for row in topic.partitions
        }

    def sizes(self, topic: str) -> dict[tuple[int, int], int]:
        """(broker, partition) -> bytes on its disk."""
        found = {}
        for broker, wire in self.wires.items():
            for directory in wire.call(ApiKey.DESCRIBE_LOG_DIRS, 4, {"topics": None}).results:
                for row in directory.topics:
                    if row.name == topic:
                        found |= {(broker, p.partition_index): p.partition_size for p in row.partitions}
        return found


def three_brokers(wire: Wire) -> Sequence[Any]:
    brokers = wire.call(ApiKey.METADATA, 9, {"topics": []}).brokers
    return brokers if len(brokers) == 3 else ()


def rows_of(answer: Any, cluster: AdminWire) -> Iterator[tuple[Any, ...]]:
    """(topic or "A" for the cluster's own, partition if it has one, error code, low watermark if it has one), sorted.

    An error of the answer as a whole comes first, alone.
    """
    if getattr(answer, "error_code", 0):
        yield (int(answer.error_code),)
    yield from sorted(_rows(answer, cluster), key=repr)


def _rows(answer: Any, cluster: AdminWire) -> Iterator[tuple[Any, ...]]:
    def name(text: str | None) -> str | None:
        return "A" if text == cluster.topic else text

    for attribute in ("responses", "results", "topics", "replica_election_results"):
        for topic in getattr(answer, attribute, ()):
            parts = getattr(topic, "partition_result", None)
            parts = parts if parts is not None else getattr(topic, "partitions", None)
            label = name(topic.topic if hasattr(topic, "topic") else topic.name)
            if parts is None:
                yield (label, int(topic.error_code))
                continue
            for part in parts:
                number = part.partition_id if hasattr(part, "partition_id") else part.partition_index
                extra = (part.low_watermark,) if hasattr(part, "low_watermark") else ()
                yield (label, number, int(part.error_code), *extra)
