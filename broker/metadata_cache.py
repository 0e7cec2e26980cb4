"""What this broker knows of the cluster: brokers, topics, leaders, ISRs (UpdateMetadata, STA-1, CTL-13). Pure."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from types import MappingProxyType

from protocol.rpc.messages import PartitionState, UpdateMetadataRequest
from protocol.types import LEADER_DURING_DELETE, NO_EPOCH, BrokerInfo, TopicPartition
from protocol.zk.znodes import topic_id_uuid

NO_PARTITIONS: Mapping[int, PartitionState] = MappingProxyType({})


class MetadataCache:
    """The newest UpdateMetadata, merged. Who may send one (controller epoch, broker epoch) is the caller's check."""

    def __init__(self) -> None:
        self.controller_id: int = -1
        self.controller_epoch: int = NO_EPOCH
        self.last_full_update: tuple[int, int] = (NO_EPOCH, NO_EPOCH)
        """Controller epoch and broker epoch of the newest request that named the whole cluster."""
        self._brokers: dict[int, BrokerInfo] = {}
        self._topics: dict[str, dict[int, PartitionState]] = {}
        self._topic_ids: dict[str, uuid.UUID] = {}
        self._topic_names: dict[uuid.UUID, str] = {}
        self._listeners: list[Callable[[list[TopicPartition]], None]] = []

    def update(self, request: UpdateMetadataRequest) -> list[TopicPartition]:
        """Applies the request whole, then tells the listeners. Returns the partitions that changed or went away.

        A topic whose id changed was deleted and made again: its old partitions go first.
        """
        changed: dict[TopicPartition, None] = {}
        if request.is_full:
            self.last_full_update = (request.controller_epoch, request.broker_epoch)
            named = {state[:2] for state in request.partitions if state.leader != LEADER_DURING_DELETE}
            for gone in [tp for tp in self._all_partitions() if tp not in named]:
                self._remove(gone)
                changed[gone] = None
        self.controller_id = request.controller_id
        self.controller_epoch = request.controller_epoch
        self._brokers = {broker.id: broker for broker in request.brokers}
        for topic, text in request.topic_ids.items():
            for gone in self._learn_topic_id(topic, text):
                changed[gone] = None
        topics = self._topics
        for state in request.partitions:  # a hundred thousand, when a controller takes office
            topic, partition = state[:2]
            if state.leader == LEADER_DURING_DELETE:
                is_change = self._remove(state.topic_partition)
            else:
                states = topics.get(topic)
                if states is None:
                    states = topics[topic] = {}
                is_change = states.get(partition) != state
                states[partition] = state
            if is_change:
                changed[TopicPartition(topic, partition)] = None
        for topic in [t for t in self._topic_ids if t not in self._topics]:
            self._topic_names.pop(self._topic_ids.pop(topic), None)
        result = list(changed)
        for listener in list(self._listeners):
            listener(result)
        return result

    def brokers(self) -> tuple[BrokerInfo, ...]:
        """The live brokers, by id."""
        return tuple(self._brokers[broker_id] for broker_id in sorted(self._brokers))

    def broker(self, broker_id: int) -> BrokerInfo | None:
        return self._brokers.get(broker_id)

    def topics(self) -> tuple[str, ...]:
        return tuple(self._topics)

    def partition(self, tp: TopicPartition) -> PartitionState | None:
        return self._topics.get(tp.topic, NO_PARTITIONS).get(tp.partition)

    def partitions_of(self, topic: str) -> Mapping[int, PartitionState]:
        """Partition number -> state; empty for an unknown topic."""
        return MappingProxyType(self._topics[topic]) if topic in self._topics else NO_PARTITIONS

    def topic_id(self, name: str) -> uuid.UUID | None:
        return self._topic_ids.get(name)

    def topic_name(self, topic_id: uuid.UUID) -> str | None:
        return self._topic_names.get(topic_id)

    def on_change(self, listener: Callable[[list[TopicPartition]], None]) -> Callable[[], None]:
        """Calls `listener(changed partitions)` after every update. Returns the function that ends it."""
        self._listeners.append(listener)

        def remove() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return remove

    def _all_partitions(self) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for topic, states in self._topics.items() for number in states]

    def _remove(self, tp: TopicPartition) -> bool:
        states = self._topics.get(tp.topic)
        if states is None or states.pop(tp.partition, None) is None:
            return False
        if not states:
            del self._topics[tp.topic]
        return True

    def _learn_topic_id(self, topic: str, text: str) -> list[TopicPartition]:
        new = topic_id_uuid(text)
        old = self._topic_ids.get(topic)
        gone: list[TopicPartition] = []
        if old is not None and old != new:
            gone = [TopicPartition(topic, number) for number in self._topics.pop(topic, {})]
            self._topic_names.pop(old, None)
        self._topic_ids[topic] = new
        self._topic_names[new] = topic
        return gone
