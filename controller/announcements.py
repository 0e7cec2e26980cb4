"""What the brokers are to be told after a decision: one request per broker and kind, whatever was decided (CTL-5). Pure.

`offline_replicas` is left empty: which replicas are on dead brokers follows from the live brokers that each UpdateMetadata
names, and a broker's return then need not repeat the state of every partition it hosts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from controller.cluster_state import ClusterState
from protocol.rpc.messages import (
    LeaderAndIsrRequest,
    PartitionState,
    StopReplicaPartition,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from protocol.types import LEADER_DURING_DELETE, NO_EPOCH, TopicPartition

ControllerRequest = LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest

TOPIC_DELETED_EPOCH = -2
"""StopReplica's leader epoch for a partition whose topic is gone: newer than every other (KIP-570)."""


class Announcement:
    """Collects; `requests` then gives each live broker's requests in the order in which they must arrive."""

    def __init__(self, controller_id: int, cluster: ClusterState) -> None:
        self._controller_id = controller_id
        self._cluster = cluster
        self._leadership: dict[int, dict[TopicPartition, bool]] = {}
        self._full_leadership: set[int] = set()
        self._stops: dict[int, dict[TopicPartition, bool]] = {}
        self._metadata: dict[TopicPartition, None] = {}
        self._metadata_to_all = False
        self._full_metadata: set[int] = set()
        self._deleted: list[PartitionState] = []
        self._states: dict[TopicPartition, PartitionState] = {}

    def leadership(self, partitions: Iterable[TopicPartition], *, is_new: bool = False) -> None:
        """Every live replica of these partitions hears who leads; every broker's metadata follows."""
        for tp in partitions:
            for replica in self._cluster.assignment(tp).replicas:
                named = self._leadership.setdefault(replica, {})
                named[tp] = is_new or named.get(tp, False)
            self._metadata[tp] = None
            self._metadata_to_all = True

    def full_leadership(self, brokers: Iterable[int]) -> None:
        """These brokers hear of every partition that they host."""
        self._full_leadership.update(brokers)

    def stop(self, broker: int, tp: TopicPartition, *, delete: bool) -> None:
        self._stops.setdefault(broker, {})[tp] = delete

    def metadata(self, partitions: Iterable[TopicPartition]) -> None:
        """All brokers' caches learn of these partitions, and of the live brokers."""
        self._metadata_to_all = True
        self._metadata.update(dict.fromkeys(partitions))

    def full_metadata(self, brokers: Iterable[int]) -> None:
        """These brokers' caches are replaced."""
        self._full_metadata.update(brokers)

    def deleted(self, partitions: Iterable[TopicPartition]) -> None:
        """All brokers' caches forget these partitions."""
        self._metadata_to_all = True
        epoch = self._cluster.epoch
        self._deleted += [
            PartitionState(tp.topic, tp.partition, epoch, LEADER_DURING_DELETE, NO_EPOCH, (), -1, ())
            for tp in partitions
        ]

    def requests(self) -> dict[int, list[ControllerRequest]]:
        """broker -> what to send to it: full metadata first, then leadership, stops, and changed metadata.

        The states are those of this moment, whatever was decided on the way.
        """
        cluster = self._cluster
        self._states.clear()
        brokers = tuple(cluster.brokers.values())
        everything = self._rows(cluster.partitions()) if self._full_metadata else ()
        everything_ids = self._topic_ids(everything)
        changed = (*self._deleted, *self._rows(self._metadata))
        changed_ids = self._topic_ids(changed)
        out: dict[int, list[ControllerRequest]] = {}
        for broker, info in cluster.brokers.items():
            head = (self._controller_id, cluster.epoch, info.epoch)
            requests: list[ControllerRequest] = []
            if broker in self._full_metadata:
                requests.append(UpdateMetadataRequest(*head, everything, everything_ids, brokers, is_full=True))
            leadership = self._leader_and_isr(broker, head)
            if leadership is not None:
                requests.append(leadership)
            if stops := self._stops.get(broker):
                requests.append(StopReplicaRequest(*head, self._stop_rows(stops)))
            if self._metadata_to_all and broker not in self._full_metadata:
                requests.append(UpdateMetadataRequest(*head, changed, changed_ids, brokers))
            if requests:
                out[broker] = requests
        return out

    def _leader_and_isr(self, broker: int, head: tuple[int, int, int]) -> LeaderAndIsrRequest | None:
        cluster = self._cluster
        is_full = broker in self._full_leadership
        named = self._leadership.get(broker, {})
        wanted: Collection[TopicPartition] = cluster.replicas_on(broker) if is_full else named
        rows = self._rows(wanted)
        if not rows and not is_full:
            return None
        new = {tp for tp, is_new in named.items() if is_new}
        if new:
            rows = tuple(row._replace(is_new=True) if row.topic_partition in new else row for row in rows)
        leaders = {row.leader for row in rows}
        live_leaders = tuple(info for leader, info in cluster.brokers.items() if leader in leaders)
        return LeaderAndIsrRequest(*head, rows, self._topic_ids(rows), live_leaders, is_full)

    def _rows(self, partitions: Iterable[TopicPartition]) -> tuple[PartitionState, ...]:
        """The states of those partitions that have one, each made only once: most go to several brokers."""
        states, leadership = self._states, self._cluster.leadership
        rows = []
        for tp in partitions:
            row = states.get(tp)
            if row is None:
                if tp not in leadership:
                    continue
                row = states[tp] = self._row(tp)
            rows.append(row)
        return tuple(rows)

    def _row(self, tp: TopicPartition) -> PartitionState:
        state = self._cluster.leadership[tp]
        assignment = self._cluster.assignment(tp)
        return PartitionState(
            tp.topic,
            tp.partition,
            state.controller_epoch,
            state.leader,
            state.leader_epoch,
            state.isr,
            state.zk_version,
            assignment.replicas,
            assignment.adding,
            assignment.removing,
        )

    def _topic_ids(self, rows: Iterable[PartitionState]) -> dict[str, str]:
        """Of the topics named; a deleted one has none any more."""
        ids = self._cluster.topic_ids
        return {topic: ids[topic] for topic in dict.fromkeys(row.topic for row in rows) if topic in ids}

    def _stop_rows(self, stops: dict[TopicPartition, bool]) -> tuple[StopReplicaPartition, ...]:
        leadership = self._cluster.leadership
        return tuple(
            StopReplicaPartition(
                tp.topic, tp.partition, leadership[tp].leader_epoch if tp in leadership else TOPIC_DELETED_EPOCH, delete
            )
            for tp, delete in stops.items()
        )
