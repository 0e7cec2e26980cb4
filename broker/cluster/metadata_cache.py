"""The broker's view of the cluster: brokers, topics, leaders, ISRs (UpdateMetadata, STA-1, CTL-13). Pure."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from types import MappingProxyType

from protocol.rpc.messages import PartitionState, UpdateMetadataRequest
from protocol.topic_ids import topic_id_uuid
from protocol.types import LEADER_DURING_DELETE, NO_EPOCH, BrokerInfo, TopicPartition

NO_PARTITIONS: Mapping[int, PartitionState] = MappingProxyType({})
STATES_IN_A_STEP = 200


class MetadataCache:
    """The merged contents of all UpdateMetadata requests. The caller checks the sender (controller epoch, broker epoch)."""

    def __init__(self) -> None:
        self.controller_id: int = -1
        self.controller_epoch: int = NO_EPOCH
        self.last_full_update: tuple[int, int] = (NO_EPOCH, NO_EPOCH)
        """Controller epoch and broker epoch of the last full request."""
        self._brokers: dict[int, BrokerInfo] = {}
        self._topics: dict[str, dict[int, PartitionState]] = {}
        self._topic_ids: dict[str, uuid.UUID] = {}
        self._topic_names: dict[uuid.UUID, str] = {}
        self._counts: dict[str, int] = {}
        self._ids_of_absent: dict[str, uuid.UUID] = {}
        """The ids of topics that a full update does not contain. They may exist. If the topic appears with another id, the old
        topic was deleted."""
        self._topic_versions: dict[str, int] = {}
        self.version = 0
        """Increases with each update."""
        self.brokers_version = 0
        """Increases when the live brokers or their addresses change."""
        self._listeners: list[Callable[[list[TopicPartition]], None]] = []
        self._deletion_listeners: list[Callable[[frozenset[str]], None]] = []

    def update(self, request: UpdateMetadataRequest) -> list[TopicPartition]:
        """Like `updating`, without pauses."""
        steps = self.updating(request)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                changed: list[TopicPartition] = end.value
                return changed

    def updating(self, request: UpdateMetadataRequest) -> Generator[None, None, list[TopicPartition]]:
        """Compares the request in steps. The last step applies all of it and calls the listeners, so no reader sees half of it.

        Nothing else may change the cache meanwhile. Returns the partitions that changed or were removed. A topic whose id changed was
        deleted and created again: its old partitions are removed first.
        """
        topics = self._topics
        ids = {topic: topic_id_uuid(text) for topic, text in request.topic_ids.items()}
        recreated = {topic for topic, new in ids.items() if self._known_id(topic, new) != new}
        deleted = set(recreated)
        removed: dict[TopicPartition, None] = {}
        for topic in recreated:
            removed.update((TopicPartition(topic, number), None) for number in topics.get(topic, ()))
        is_full = request.is_full
        staged: dict[str, dict[int, PartitionState]] = {}
        changed: dict[TopicPartition, None] = {}
        for at, state in enumerate(request.partitions, 1):  # perhaps a hundred thousand, from a new controller
            topic, number = state[:2]
            if state.leader == LEADER_DURING_DELETE:
                deleted.add(topic)
            known = None if topic in recreated else topics.get(topic, NO_PARTITIONS).get(number)
            of_topic = staged.get(topic)
            if of_topic is None:
                of_topic = staged[topic] = {}
            if state == known:
                if is_full or number in of_topic:
                    of_topic[number] = known
            else:
                of_topic[number] = state
                if known is not None or state.leader != LEADER_DURING_DELETE:
                    changed[TopicPartition(topic, number)] = None
            if at % STATES_IN_A_STEP == 0:
                yield
        if is_full:
            for topic, states in topics.items():
                missing = states.keys() - staged.get(topic, NO_PARTITIONS).keys()
                removed.update((TopicPartition(topic, number), None) for number in missing)
            if len(request.partitions) > STATES_IN_A_STEP:
                yield
        for tp in removed:
            changed.pop(tp, None)
        result = [*removed, *changed]
        self._apply(request, ids, recreated, staged, result)
        for topic in deleted:
            self._ids_of_absent.pop(topic, None)
        if deleted:
            for on_deletion in list(self._deletion_listeners):
                on_deletion(frozenset(deleted))
        for listener in list(self._listeners):
            listener(result)
        return result

    def _apply(
        self,
        request: UpdateMetadataRequest,
        ids: Mapping[str, uuid.UUID],
        recreated: Collection[str],
        staged: dict[str, dict[int, PartitionState]],
        changed: Iterable[TopicPartition],
    ) -> None:
        """`staged` has the new states of each topic; for a full request, all states. `changed` also has the removed partitions."""
        brokers = {broker.id: broker for broker in request.brokers}
        if brokers != self._brokers:
            self._brokers = brokers
            self.brokers_version += 1
        self.controller_id = request.controller_id
        self.controller_epoch = request.controller_epoch
        maybe_empty = {*ids, *staged}
        if request.is_full:
            self.last_full_update = (request.controller_epoch, request.broker_epoch)
            self._topics, self._counts = {}, {}
            maybe_empty.update(self._topic_ids)
        for topic in recreated:
            self._topics.pop(topic, None)
        for topic, states in staged.items():
            known = self._topics.setdefault(topic, {})
            known.update(states)
            for number, state in states.items():
                if state.leader == LEADER_DURING_DELETE:
                    del known[number]
        touched = dict.fromkeys(tp[0] for tp in changed)
        for topic, new in ids.items():
            if self._topic_ids.get(topic) != new:
                touched[topic] = None
            self._topic_names.pop(self._topic_ids.get(topic, new), None)
            self._topic_ids[topic] = new
            self._topic_names[new] = topic
            self._ids_of_absent.pop(topic, None)
        self._counts.update(request.partition_counts)
        for topic in maybe_empty:
            if not self._topics.get(topic):
                self._topics.pop(topic, None)
                self._counts.pop(topic, None)
                topic_id = self._topic_ids.pop(topic, None)
                if topic_id is not None:
                    self._topic_names.pop(topic_id, None)
                    self._ids_of_absent[topic] = topic_id
        self.version += 1
        versions = self._topic_versions
        for topic in touched:
            if topic in self._topics:
                versions[topic] = self.version
            else:
                versions.pop(topic, None)

    def _known_id(self, topic: str, default: uuid.UUID) -> uuid.UUID:
        """The topic's id, even if the last full update did not contain the topic."""
        return self._topic_ids.get(topic) or self._ids_of_absent.get(topic) or default

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

    def partition_count(self, topic: str) -> int:
        """The number of assigned partitions, also those without a known state; 0 for an unknown topic."""
        states = self._topics.get(topic)
        return max(self._counts.get(topic, 0), len(states)) if states else 0

    def replica_count(self) -> int:
        """The number of replicas, if all partitions of a topic have as many as the first one that is known. Takes 0.5 us per topic."""
        return sum(
            max(self._counts.get(topic, 0), len(states)) * len(next(iter(states.values())).replicas)
            for topic, states in self._topics.items()
            if states
        )

    def topic_version(self, name: str) -> int:
        """The `version` that last changed the topic; 0 for an unknown topic. The same number means the same partition states."""
        return self._topic_versions.get(name, 0)

    def topic_id(self, name: str) -> uuid.UUID | None:
        return self._topic_ids.get(name)

    def topic_name(self, topic_id: uuid.UUID) -> str | None:
        return self._topic_names.get(topic_id)

    @property
    def listener_count(self) -> int:
        """The number of listeners for changes."""
        return len(self._listeners)

    def on_change(self, listener: Callable[[list[TopicPartition]], None]) -> Callable[[], None]:
        """Calls `listener(changed partitions)` after every update. Returns a function that removes the listener."""
        self._listeners.append(listener)

        def remove() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return remove

    def on_deletion(self, listener: Callable[[frozenset[str]], None]) -> None:
        """Calls `listener(topics)` after an update with topics that are deleted, or were deleted and created again.

        A topic that is missing from a full update does not count as deleted: the controller may not have been able to read its node.
        """
        self._deletion_listeners.append(listener)
