"""Carries out a reassignment: sets throttles, starts the moves batch by batch, and watches them until they are done."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from protocol.types import Assignment, TopicPartition
from tools.admin.cluster_view import ClusterView
from tools.admin.config_values import BROKERS, TOPICS, Entity, own_configs
from tools.admin.reassign_plan import Plan
from tools.admin.reassign_progress import Overall, Progress, ProgressTracker, measure
from tools.admin.reassign_throttles import (
    BROKER_THROTTLES,
    TOPIC_THROTTLES,
    Move,
    broker_rates,
    directory_rate,
    throttled_brokers,
    topic_throttles,
)
from tools.admin.topic_views import ids_text
from tools.failures import AdminError, NotServed

if TYPE_CHECKING:
    from tools.admin.kafka_admin import KafkaAdmin

POLL_S = 0.5
SETTLE_S = 5.0
"""How long the brokers' metadata may lag behind the controller's list of reassignments."""
PATIENCE_S = 60.0
"""A watch ends with an error if the cluster has not answered for this time, which is longer than a controller election."""

COMPLETED = "completed"
IN_PROGRESS = "in_progress"
FAILED = "failed"


@dataclass(frozen=True, slots=True)
class MoveOutcome:
    """The state of one partition's move; `replicas` are the current ones, None for a deleted partition."""

    partition: TopicPartition
    state: str
    target: tuple[int, ...]
    replicas: tuple[int, ...] | None
    progress: Progress | None = None

    @property
    def sentence(self) -> str:
        """Kafka's text, and the progress."""
        match self.state:
            case "completed":
                return f"Reassignment of partition {self.partition} is completed."
            case "in_progress":
                progress = "" if self.progress is None else f" ({self.progress})"
                return f"Reassignment of partition {self.partition} is still in progress{progress}."
        if self.replicas is None:
            return f"Partition {self.partition} no longer exists."
        return (
            f"There is no active reassignment of partition {self.partition}, but replica set is "
            f"{ids_text(self.replicas)} rather than {ids_text(self.target)}."
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "topic": self.partition.topic,
            "partition": self.partition.partition,
            "state": self.state,
            "target": list(self.target),
            "replicas": None if self.replicas is None else list(self.replicas),
            **progress_json(self.progress),
        }


def progress_json(progress: Progress | None) -> dict[str, Any]:
    """`{bytes_moved, bytes_left, bytes_total, percent}`; nulls if nothing is known."""
    if progress is None:
        return dict.fromkeys(("bytes_moved", "bytes_left", "bytes_total", "percent"))
    return {
        "bytes_moved": progress.bytes_moved,
        "bytes_left": progress.bytes_left,
        "bytes_total": progress.bytes_total,
        "percent": round(progress.percent, 1),
    }


@dataclass(frozen=True, slots=True)
class Cleared:
    """The topics and brokers whose throttles were removed, and the brokers that did not answer."""

    topics: tuple[str, ...] = ()
    brokers: tuple[int, ...] = ()
    unreachable: tuple[int, ...] = ()


class Report(Protocol):
    """Receives the progress of a watched move."""

    def batch_started(self, number: int, count: int, partitions: Sequence[TopicPartition]) -> None: ...
    def progressed(self, overall: Overall, dead_brokers: Sequence[int]) -> None: ...


class Reassignments:
    """The moves of one cluster. `now` and `pause` are the clock, in seconds."""

    def __init__(
        self,
        admin: KafkaAdmin,
        *,
        now: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.admin = admin
        self._now = now
        self._pause = pause

    def progress(
        self, under_way: Mapping[TopicPartition, Assignment], cluster: ClusterView
    ) -> dict[TopicPartition, Progress]:
        """Progress of each partition that moves; empty if the cluster does not support DescribeLogDirs."""
        if not under_way:
            return {}
        try:
            sizes = self.admin.replica_sizes(cluster.live_brokers, list(under_way))
        except NotServed:
            return {}
        views = cluster.partitions()
        leaders = {partition: views[partition].leader if partition in views else None for partition in under_way}
        return measure(under_way, sizes, leaders)

    def outcomes(
        self, plan: Mapping[TopicPartition, Sequence[int]]
    ) -> tuple[list[MoveOutcome], dict[TopicPartition, Assignment]]:
        """The state of each move in the plan, and all reassignments of the cluster. Raises AdminError."""
        deadline = self._now() + SETTLE_S
        while True:
            under_way = self.admin.reassignments()
            cluster = self.admin.cluster()
            views = cluster.partitions()
            progress = self.progress({p: move for p, move in under_way.items() if p in plan}, cluster)
            found = []
            for partition, target in plan.items():
                replicas = views[partition].replicas if partition in views else None
                if partition in under_way:
                    state = IN_PROGRESS
                else:
                    state = COMPLETED if replicas == tuple(target) else FAILED
                found.append(MoveOutcome(partition, state, tuple(target), replicas, progress.get(partition)))
            if self._now() >= deadline or all(outcome.state != FAILED for outcome in found):
                return found, under_way
            self._pause(POLL_S)

    def set_throttles(self, moving: Mapping[TopicPartition, Move], rate: int, live_brokers: Collection[int]) -> None:
        """Sets throttles before a move: on the topics, then on each live broker that takes part. Raises AdminError."""
        for topic, configs in topic_throttles(moving).items():
            self.admin.alter_configs(Entity(TOPICS, topic), configs)
        for broker in throttled_brokers(moving):
            if broker in live_brokers:
                self.admin.alter_configs(Entity(BROKERS, str(broker)), broker_rates(rate))

    def set_directory_throttle(self, brokers: Iterable[int], rate: int, live_brokers: Collection[int]) -> None:
        """Sets the throttle before replicas move between the log directories of these brokers. Raises AdminError."""
        for broker in sorted(set(brokers) & set(live_brokers)):
            self.admin.alter_configs(Entity(BROKERS, str(broker)), directory_rate(rate))

    def clear_throttles(self, topics: Iterable[str], *, brokers_too: bool = True) -> Cleared:
        """Removes the throttles of the topics and, with `brokers_too`, of all live brokers. Raises AdminError."""
        cluster = self.admin.cluster()
        entities = [Entity(TOPICS, topic) for topic in dict.fromkeys(topics) if topic in cluster.topics]
        cleared_topics = []
        cleared_brokers = []
        unreachable = []
        try:
            for entity, configs in self.admin.describe_configs(entities).items():
                keys = [key for key in own_configs(entity, configs) if key in TOPIC_THROTTLES]
                if keys:
                    self.admin.alter_configs(entity, dict.fromkeys(keys))
                    cleared_topics.append(entity.name)
            for broker in sorted(cluster.live_brokers) if brokers_too else ():
                entity = Entity(BROKERS, str(broker))
                try:
                    configs = self.admin.describe_configs([entity])[entity]
                    keys = [key for key in own_configs(entity, configs) if key in BROKER_THROTTLES]
                    if keys:
                        self.admin.alter_configs(entity, dict.fromkeys(keys))
                        cleared_brokers.append(broker)
                except NotServed:
                    raise
                except AdminError:
                    unreachable.append(broker)
        except NotServed:
            return Cleared()  # a cluster without configs has no throttles
        return Cleared(tuple(cleared_topics), tuple(cleared_brokers), tuple(unreachable))

    def start(self, plan: Plan) -> dict[TopicPartition, str]:
        """Starts the moves. Returns the refused partitions with reasons. Raises AdminError if the request itself failed."""
        answers = self.admin.alter_reassignments(plan)
        return {partition: reason for partition, reason in answers.items() if reason is not None}

    def run(
        self, batches: Sequence[Plan], originals: Mapping[TopicPartition, Sequence[int]], report: Report
    ) -> dict[TopicPartition, str]:
        """Starts batch after batch and watches each until it is done. Returns the refused partitions with reasons.

        Raises AdminError if the cluster does not answer for a minute.
        """
        tracker = ProgressTracker([partition for batch in batches for partition in batch])
        refused: dict[TopicPartition, str] = {}
        for index, batch in enumerate(batches):
            refused |= self.start(batch)
            accepted = [partition for partition in batch if partition not in refused]
            report.batch_started(index + 1, len(batches), accepted)
            waiting = {
                partition: _expected(originals[partition], target)
                for later in batches[index + 1 :]
                for partition, target in later.items()
            }
            self._watch(frozenset(accepted), waiting, tracker, report)
        return refused

    def _watch(
        self,
        batch: frozenset[TopicPartition],
        waiting: Mapping[TopicPartition, Assignment],
        tracker: ProgressTracker,
        report: Report,
    ) -> None:
        answered_at = self._now()
        while True:
            try:
                moving = {p: move for p, move in self.admin.reassignments().items() if p in batch}
                cluster = self.admin.cluster()
                known = self.progress({**waiting, **moving}, cluster)
            except AdminError as problem:
                if self._now() > answered_at + PATIENCE_S:
                    raise AdminError(f"{problem}; the move continues: see `ottla reassign list`") from None
                self._pause(POLL_S)
                continue
            answered_at = self._now()
            nothing_known = Progress(0, 0)
            overall = tracker.update(answered_at, {p: known.get(p, nothing_known) for p in {**waiting, **moving}})
            dead = {broker for move in moving.values() for broker in move.adding} - cluster.live_brokers
            report.progressed(overall, sorted(dead))
            if not moving:
                return
            self._pause(POLL_S)


def _expected(original: Sequence[int], target: Sequence[int]) -> Assignment:
    """The reassignment that the controller lists once the move has started."""
    adding = tuple(broker for broker in target if broker not in original)
    removing = tuple(broker for broker in original if broker not in target)
    return Assignment((*target, *removing), adding, removing)
