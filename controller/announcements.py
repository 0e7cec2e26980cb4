"""What the brokers are to be told after a decision: one request per broker and kind, whatever was decided (CTL-5). Pure."""

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
from protocol.types import LEADER_DURING_DELETE, TopicPartition

ControllerRequest = LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest


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

    def leadership(self, partitions: Iterable[TopicPartition], *, is_new: bool = False) -> None:
        """Every live replica of these partitions hears who leads; every broker's metadata follows."""
        for tp in partitions:
            for replica in self._cluster.assignment(tp).replicas:
                self._leadership.setdefault(replica, {})[tp] = is_new
            self.metadata((tp,))

    def full_leadership(self, brokers: Collection[int]) -> None:
        """These brokers hear of every partition that they host."""
        self._full_leadership.update(brokers)

    def stop(self, broker: int, tp: TopicPartition, *, delete: bool) -> None:
        self._stops.setdefault(broker, {})[tp] = delete

    def metadata(self, partitions: Iterable[TopicPartition]) -> None:
        """All brokers' caches learn of these partitions, and of the live brokers."""
        self._metadata_to_all = True
        self._metadata.update(dict.fromkeys(partitions))

    def full_metadata(self, brokers: Collection[int]) -> None:
        """These brokers' caches are replaced."""
        self._full_metadata.update(brokers)

    def deleted(self, partitions: Iterable[TopicPartition]) -> None:
        """All brokers' caches forget these partitions."""
        self._metadata_to_all = True
        epoch = self._cluster.epoch
        self._deleted += [
            PartitionState(tp.topic, tp.partition, epoch, LEADER_DURING_DELETE, -1, (), -1, ()) for tp in partitions
        ]

    def requests(self) -> dict[int, list[ControllerRequest]]:
        """broker -> what to send to it: full metadata first, then leadership, stops, and changed metadata."""
        cluster = self._cluster
        everything = self._states(cluster.partitions()) if self._full_metadata else ()
        changed = (*self._deleted, *self._states(self._metadata))
        out: dict[int, list[ControllerRequest]] = {}
        for broker, info in cluster.brokers.items():
            requests: list[ControllerRequest] = []
            if broker in self._full_metadata:
                requests.append(self._update_metadata(info.epoch, everything, is_full=True))
            leadership = self._leader_and_isr(broker, info.epoch)
            if leadership is not None:
                requests.append(leadership)
            stops = self._stops.get(broker)
            if stops:
                requests.append(self._stop_replica(info.epoch, stops))
            if self._metadata_to_all and broker not in self._full_metadata:
                requests.append(self._update_metadata(info.epoch, changed, is_full=False))
            if requests:
                out[broker] = requests
        return out

    def _states(self, partitions: Iterable[TopicPartition]) -> tuple[PartitionState, ...]:
        return tuple(self._state(tp, False) for tp in partitions if tp in self._cluster.leadership)

    def _state(self, tp: TopicPartition, is_new: bool) -> PartitionState:
        state = self._cluster.leadership[tp]
        assignment = self._cluster.assignment(tp)
        brokers = self._cluster.brokers
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
            is_new,
            tuple(replica for replica in assignment.replicas if replica not in brokers),
        )

    def _topic_ids(self, partitions: Iterable[PartitionState]) -> dict[str, str]:
        ids = self._cluster.topic_ids
        return {state.topic: ids[state.topic] for state in partitions if state.topic in ids}

    def _leader_and_isr(self, broker: int, broker_epoch: int) -> LeaderAndIsrRequest | None:
        cluster = self._cluster
        is_full = broker in self._full_leadership
        named = self._leadership.get(broker, {})
        wanted = cluster.replicas_on(broker) | named.keys() if is_full else named.keys()
        states = tuple(self._state(tp, named.get(tp, False)) for tp in wanted if tp in cluster.leadership)
        if not states and not is_full:
            return None
        leaders = {state.leader for state in states}
        return LeaderAndIsrRequest(
            self._controller_id,
            cluster.epoch,
            broker_epoch,
            states,
            self._topic_ids(states),
            tuple(info for leader, info in cluster.brokers.items() if leader in leaders),
            is_full,
        )

    def _stop_replica(self, broker_epoch: int, stops: dict[TopicPartition, bool]) -> StopReplicaRequest:
        cluster = self._cluster
        rows = tuple(
            StopReplicaPartition(
                tp.topic, tp.partition, cluster.leadership[tp].leader_epoch if tp in cluster.leadership else -2, delete
            )
            for tp, delete in stops.items()
        )
        return StopReplicaRequest(self._controller_id, cluster.epoch, broker_epoch, rows)

    def _update_metadata(
        self, broker_epoch: int, states: tuple[PartitionState, ...], *, is_full: bool
    ) -> UpdateMetadataRequest:
        cluster = self._cluster
        return UpdateMetadataRequest(
            self._controller_id,
            cluster.epoch,
            broker_epoch,
            states,
            self._topic_ids(states),
            tuple(cluster.brokers.values()),
            is_full,
        )
