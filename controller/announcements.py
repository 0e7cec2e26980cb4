"""Builds the requests to brokers after a decision: at most one of each kind per broker (CTL-5). Pure.

`offline_replicas` contains only replicas on failed log directories (LOG-6). Brokers derive the replicas on dead brokers from the live
brokers in each UpdateMetadata. When a broker returns, the states of the partitions that it hosts are therefore not sent again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from operator import itemgetter

from controller.cluster_state import ClusterState
from protocol.rpc.messages import (
    LeaderAndIsrRequest,
    PartitionState,
    StopReplicaPartition,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from protocol.rpc.packed_states import PackedStates, marked_new, pack_rows, pack_state, pack_states
from protocol.types import LEADER_DURING_DELETE, NO_EPOCH, TopicPartition

ControllerRequest = LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest

ROWS_AT_ONCE = 1000
NOTHING: tuple[PackedStates, dict[str, str], dict[str, int]] = (PackedStates(()), {}, {})
_topic_of = itemgetter(0)
TOPIC_DELETED_EPOCH = -2
"""StopReplica's leader epoch for a partition of a deleted topic: newer than every other (KIP-570)."""


class Announcement:
    """Collects changes. `requests` then returns the requests to each live broker, in the order in which they must arrive."""

    def __init__(self, controller_id: int, cluster: ClusterState) -> None:
        self._controller_id = controller_id
        self._cluster = cluster
        self._to_replicas: dict[TopicPartition, tuple[int, ...]] = {}
        """Partition -> the live replicas that get its leadership."""
        self._leadership: dict[int, dict[TopicPartition, None]] = {}
        """Broker -> other partitions whose leadership it gets."""
        self._new: dict[int, set[TopicPartition]] = {}
        self._full_leadership: set[int] = set()
        self._stops: dict[int, dict[TopicPartition, bool]] = {}
        self._metadata: dict[TopicPartition, None] = {}
        self._metadata_to_all = False
        self._full_metadata: set[int] = set()
        self._deleted: list[PartitionState] = []

    def leadership(self, partitions: Iterable[TopicPartition], *, is_new: bool = False) -> None:
        """Sends the leadership of these partitions to every live replica, and their metadata to every broker.

        A broker that registers later needs `full_leadership`.
        """
        cluster = self._cluster
        assignment, live = cluster.assignment, cluster.brokers
        live_of: dict[tuple[int, ...], tuple[int, ...]] = {}
        named: dict[TopicPartition, tuple[int, ...]] = {}
        for tp in partitions:
            replicas = assignment(tp).replicas
            live_replicas = live_of.get(replicas)
            if live_replicas is None:
                live_replicas = live_of[replicas] = tuple(replica for replica in replicas if replica in live)
            named[tp] = live_replicas
        if is_new:
            for replica in {replica for live_replicas in live_of.values() for replica in live_replicas}:
                new = (tp for tp, live_replicas in named.items() if replica in live_replicas)
                self._new.setdefault(replica, set()).update(new)
        if not self._to_replicas.keys().isdisjoint(named):
            for tp in self._to_replicas.keys() & named.keys():
                named[tp] = tuple(dict.fromkeys(self._to_replicas[tp] + named[tp]))
        self._to_replicas.update(named)
        self._metadata_to_all = True

    def new_replicas(self, tp: TopicPartition, replicas: Iterable[int]) -> None:
        """Announces the partition to these replicas as new: their brokers may create the logs, even if a log directory has failed."""
        for replica in replicas:
            self._leadership.setdefault(replica, {})[tp] = None
            self._new.setdefault(replica, set()).add(tp)

    def repeat_leadership(self, tp: TopicPartition, broker: int) -> None:
        """Sends the partition's leadership once more, to a broker that refused it."""
        self._leadership.setdefault(broker, {})[tp] = None

    def full_leadership(self, brokers: Iterable[int]) -> None:
        """Sends these brokers the leadership of every partition that they host."""
        self._full_leadership.update(brokers)

    def stop(self, broker: int, tp: TopicPartition, *, delete: bool) -> None:
        self._stops.setdefault(broker, {})[tp] = delete

    def metadata(self, partitions: Iterable[TopicPartition]) -> None:
        """Updates these partitions, and the set of live brokers, in the metadata caches of all brokers."""
        self._metadata_to_all = True
        self._metadata.update(dict.fromkeys(partitions))

    def full_metadata(self, brokers: Iterable[int]) -> None:
        """Replaces the metadata caches of these brokers."""
        self._full_metadata.update(brokers)

    def deleted(self, partitions: Iterable[TopicPartition]) -> None:
        """Removes these partitions from the metadata caches of all brokers."""
        self._metadata_to_all = True
        self._deleted += self._deletion_rows(partitions)

    def pack_in_slices(self) -> Iterator[None]:
        """Packs every state that `requests` needs, with a pause after every ROWS_AT_ONCE states."""
        wanted: list[Iterable[TopicPartition]] = [self._to_replicas, self._metadata]
        if self._full_metadata:
            wanted.append(self._cluster.partitions())
        elif self._full_leadership:
            wanted += [self._cluster.replicas_on(broker) for broker in self._full_leadership]
        wanted += self._leadership.values()
        packed = self._cluster.packed_rows
        missing = list(dict.fromkeys(tp for tp in chain.from_iterable(wanted) if tp not in packed))
        for at in range(0, len(missing), ROWS_AT_ONCE):
            if at:
                yield
            self.pack(missing[at : at + ROWS_AT_ONCE])

    @property
    def is_large(self) -> bool:
        """Whether building the requests needs pauses."""
        rows = [self._metadata, self._deleted, *self._leadership.values(), *self._stops.values()]
        count = len(self._to_replicas) + sum(map(len, rows))
        return bool(self._full_metadata or self._full_leadership) or count > ROWS_AT_ONCE

    def requests(self) -> dict[int, list[ControllerRequest]]:
        """broker -> its requests: full metadata first, then leadership, stops, and changed metadata."""
        return dict(self.requests_by_broker())

    def requests_by_broker(self) -> Iterator[tuple[int, list[ControllerRequest]]]:
        """Like `requests`, one broker after the other.

        The requests contain the states at the time of this call, not at the time of the decision. Each state is packed only once, because
        most are sent to several brokers.
        """
        cluster = self._cluster
        brokers = tuple(cluster.brokers.values())
        everything, everything_ids, everything_counts = self._everything() if self._full_metadata else NOTHING
        metadata = [*self._to_replicas, *(tp for tp in self._metadata if tp not in self._to_replicas)]
        changed = PackedStates(pack_rows(self._deleted) + self._rows(metadata))
        topics = dict.fromkeys(map(_topic_of, metadata))
        changed_ids = self._topic_ids([*(state.topic for state in self._deleted), *topics])
        changed_counts = self._partition_counts(topics)
        for broker, info in list(cluster.brokers.items()):
            head = (self._controller_id, cluster.epoch, info.epoch)
            requests: list[ControllerRequest] = []
            if broker in self._full_metadata:
                full = UpdateMetadataRequest(
                    *head, everything, everything_ids, brokers, is_full=True, partition_counts=everything_counts
                )
                requests.append(full)
            leadership = self._leader_and_isr(broker, head)
            if leadership is not None:
                requests.append(leadership)
            if stops := self._stops.get(broker):
                rows = self._stop_rows(stops)
                requests.append(StopReplicaRequest(*head, rows, self._topic_ids(row.topic for row in rows)))
            if self._metadata_to_all and broker not in self._full_metadata:
                requests.append(
                    UpdateMetadataRequest(*head, changed, changed_ids, brokers, partition_counts=changed_counts)
                )
            if requests:
                yield broker, requests

    def _leader_and_isr(self, broker: int, head: tuple[int, int, int]) -> LeaderAndIsrRequest | None:
        cluster = self._cluster
        is_full = broker in self._full_leadership
        partitions = list(cluster.replicas_on(broker)) if is_full else self._named(broker)
        rows = self._rows(partitions)
        if len(rows) < len(partitions):
            partitions = [tp for tp in partitions if tp in cluster.leadership]
        if not partitions and not is_full:
            return None
        new = self._new.get(broker)
        if new:
            rows = [self._new_row(tp, row) if tp in new else row for tp, row in zip(partitions, rows, strict=True)]
        live_leaders = tuple(
            info for leader, info in cluster.brokers.items() if cluster.leads_one_of(leader, partitions)
        )
        others = self._other_topics() if is_full else ()
        ids = self._topic_ids(map(_topic_of, partitions))
        return LeaderAndIsrRequest(*head, PackedStates(rows), ids, live_leaders, is_full, others)

    def _named(self, broker: int) -> list[TopicPartition]:
        """The partitions whose leadership the broker gets."""
        named = [tp for tp, replicas in self._to_replicas.items() if broker in replicas]
        others = self._leadership.get(broker)
        return list(dict.fromkeys(chain(named, others))) if others else named

    def _other_topics(self) -> tuple[str, ...]:
        """Topics that are unreadable, to be deleted, or have partitions without a state. Their logs on disk are not stray replicas."""
        cluster = self._cluster
        without_state = {tp.topic for tp in cluster.waiting_for_leader() if tp not in cluster.leadership}
        return tuple(sorted(cluster.unreadable_topics | cluster.topics_to_delete | without_state))

    def _rows(self, partitions: Iterable[TopicPartition]) -> list[bytes]:
        """The packed states of those partitions that have one."""
        wanted = list(partitions)
        packed = self._cluster.packed_rows
        rows = list(filter(None, map(packed.get, wanted)))
        if len(rows) < len(wanted):
            self.pack([tp for tp in wanted if tp not in packed])
            rows = list(filter(None, map(packed.get, wanted)))
        return rows

    def pack(self, partitions: Collection[TopicPartition]) -> None:
        """Packs these partitions' states ahead of `requests`. A state that changes meanwhile is packed again."""
        cluster = self._cluster
        leadership, assignment, failed = cluster.leadership, cluster.assignment, cluster.failed_replicas
        usual = [tp for tp in partitions if tp not in failed] if failed else partitions
        cluster.packed_rows.update(pack_states(usual, leadership, assignment))
        if failed:
            cluster.packed_rows.update(
                (tp, pack_state(tp, leadership[tp], assignment(tp), offline_replicas=failed[tp]))
                for tp in partitions
                if tp in failed and tp in leadership
            )

    def _new_row(self, tp: TopicPartition, row: bytes) -> bytes:
        cluster = self._cluster
        failed = cluster.failed_replicas.get(tp, ())
        if not failed:
            return marked_new(row)
        return pack_state(tp, cluster.leadership[tp], cluster.assignment(tp), is_new=True, offline_replicas=failed)

    def _everything(self) -> tuple[PackedStates, dict[str, str], dict[str, int]]:
        """(all partitions, topic ids, numbers of partitions). Topics being deleted are removals, for brokers that missed the first."""
        cluster = self._cluster
        going = cluster.deletions_begun
        gone = self._deletion_rows(TopicPartition(topic, n) for topic in going for n in cluster.topics.get(topic, ()))
        others = [topic for topic in cluster.topics if topic not in going]
        rows = pack_rows(gone) + self._rows(cluster.partitions())
        return PackedStates(rows), self._topic_ids(others), self._partition_counts(others)

    def _deletion_rows(self, partitions: Iterable[TopicPartition]) -> list[PartitionState]:
        epoch = self._cluster.epoch
        return [
            PartitionState(tp.topic, tp.partition, epoch, LEADER_DURING_DELETE, NO_EPOCH, (), -1, ())
            for tp in partitions
        ]

    def _partition_counts(self, topics: Iterable[str]) -> dict[str, int]:
        assigned = self._cluster.topics
        return {topic: len(assigned[topic]) for topic in dict.fromkeys(topics) if topic in assigned}

    def _topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """The ids of these topics; a deleted topic has none."""
        ids = self._cluster.topic_ids
        return {topic: ids[topic] for topic in dict.fromkeys(topics) if topic in ids}

    def _stop_rows(self, stops: dict[TopicPartition, bool]) -> tuple[StopReplicaPartition, ...]:
        leadership = self._cluster.leadership
        return tuple(
            StopReplicaPartition(
                tp.topic, tp.partition, leadership[tp].leader_epoch if tp in leadership else TOPIC_DELETED_EPOCH, delete
            )
            for tp, delete in stops.items()
        )
