"""The partitions that this broker hosts, and the error for those that it does not."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping

from broker.cluster.metadata_cache import MetadataCache
from broker.replication.partition import LeaderHint, Partition
from protocol.errors import ErrorCode, KafkaError
from protocol.topic_ids import topic_id_uuid
from protocol.types import NO_EPOCH, NO_LEADER, TopicPartition


class HostedPartitions:
    """TopicPartition -> Partition. `make` creates a Partition without a log and a role."""

    def __init__(self, metadata: MetadataCache, make: Callable[[TopicPartition], Partition]) -> None:
        self._metadata = metadata
        self._make = make
        self._partitions: dict[TopicPartition, Partition] = {}
        self._new_topics: dict[uuid.UUID, str] = {}
        """Topics of states that were carried out, which the metadata does not have yet."""

    def __iter__(self) -> Iterator[Partition]:
        """A snapshot: partitions may be added and removed while the caller iterates."""
        return iter(list(self._partitions.values()))

    def __len__(self) -> int:
        return len(self._partitions)

    @property
    def by_key(self) -> Mapping[tuple[str, int], Partition]:
        """(topic, number) -> partition. Looking up very many partitions by tuples is faster."""
        return self._partitions  # type: ignore[return-value]

    def get(self, tp: TopicPartition) -> Partition | None:
        return self._partitions.get(tp)

    def is_compacted(self, tp: TopicPartition) -> bool:
        """Whether a log is here that compaction may remove records from."""
        partition = self._partitions.get(tp)
        log = None if partition is None else partition.log
        return log is not None and "compact" in log.config.cleanup_policy

    def exists(self, tp: TopicPartition) -> bool:
        """Whether the partition exists, here or on another broker."""
        return tp in self._partitions or self._metadata.partition(tp) is not None

    def topic_name(self, topic_id: uuid.UUID) -> str | None:
        """The name, from the metadata or a LeaderAndIsr: followers fetch new partitions before UpdateMetadata arrives."""
        return self._metadata.topic_name(topic_id) or self._new_topics.get(topic_id)

    def topic_id(self, tp: TopicPartition) -> str | None:
        """The topic id of the partition's log, as text. None if it is not here or has no id."""
        partition = self._partitions.get(tp)
        return None if partition is None else partition.topic_id

    def resolve(self, topic_id: uuid.UUID, number: int) -> TopicPartition | None:
        """None if the id is unknown, or if the log that is here belongs to another topic of the same name, which was created after the
        deletion of the first one."""
        name = self.topic_name(topic_id)
        if name is None:
            return None
        tp = TopicPartition(name, number)
        of_log = self.topic_id(tp)
        return None if of_log is not None and topic_id_uuid(of_log) != topic_id else tp

    def learn_topic(self, topic: str, topic_id: str | None) -> None:
        """Adds the topic of a state that is carried out; `topic_id` as text."""
        if topic_id is not None:
            self._new_topics[topic_id_uuid(topic_id)] = topic

    def forget_topics_in_metadata(self) -> None:
        """To be called after a metadata change: drops the topics that the metadata has now."""
        known = self._metadata.topic_name
        self._new_topics = {key: name for key, name in self._new_topics.items() if known(key) is None}

    def find(self, tp: TopicPartition) -> Partition:
        """The partition. Raises KafkaError if it is not here, or does not exist."""
        partition = self._partitions.get(tp)
        if partition is None:
            known = self._metadata.partition(tp) is not None
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return partition

    def find_or_make(self, tp: TopicPartition) -> Partition:
        partition = self._partitions.get(tp)
        if partition is None:
            partition = self._partitions[tp] = self._make(tp)
        return partition

    def remove(self, tp: TopicPartition) -> Partition | None:
        partition = self._partitions.pop(tp, None)
        if partition is not None:
            partition.removed()
        return partition

    def leader_hint(self, tp: TopicPartition) -> LeaderHint:
        """The leader in the newest epoch that this broker knows of."""
        hosted = self._partitions.get(tp)
        cached = self._metadata.partition(tp)
        hints = [hosted.hint] if hosted is not None else []
        if cached is not None:
            hints.append(LeaderHint(cached.leader, cached.leader_epoch))
        return max(hints, key=lambda hint: hint.leader_epoch, default=LeaderHint(NO_LEADER, NO_EPOCH))
