"""The topics in Metadata answers, encoded once: every client requests them after every leader change.

A topic is cached until its version in the metadata cache changes. For a large topic each partition is cached too, so that a change
of one partition does not encode the others again. The answers depend on the listener (its clients see no leader on a broker without
it), on the live brokers and on the unreachable brokers. When live or unreachable brokers change, everything is encoded again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Set
from dataclasses import dataclass, field

from broker.cluster.metadata_cache import MetadataCache
from protocol.errors import ErrorCode
from protocol.kafka import metadata_codec
from protocol.kafka.metadata_codec import MetadataPartition, MetadataTopic
from protocol.rpc.messages import PartitionState
from protocol.types import NO_LEADER

LISTENER_NOT_FOUND_SINCE = 6
PARTITIONS_AT_ONCE = 500
"""Partitions that are encoded without a pause. Encoding one takes about 5 us."""
PARTITIONS_IN_A_STEP = 50
LARGE_TOPIC = 100
"""Topics with at least this many partitions have each partition cached."""

Kept = dict[int, tuple[PartitionState, bytes]]


@dataclass(slots=True)
class _Encoded:
    """The cache for one listener and version. `valid_for`: the brokers' version, and the unreachable brokers."""

    valid_for: tuple[int, frozenset[int]]
    topics: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    partitions: dict[str, Kept] = field(default_factory=dict)
    all_topics: tuple[int, list[bytes]] | None = None


class MetadataTopics:
    """See the module. `unreachable()` returns the ids of brokers that may just have died. `internal` are the internal topics."""

    def __init__(self, metadata: MetadataCache, unreachable: Callable[[], Set[int]], internal: Collection[str]) -> None:
        self._internal = internal
        self._metadata = metadata
        self._unreachable = unreachable
        self._encoded: dict[tuple[str, int], _Encoded] = {}

    def encoded(self, listener: str, version: int, name: str) -> bytes:
        """The current topic; UNKNOWN_TOPIC_OR_PARTITION if it does not exist."""
        encoded = self._of(listener, version)
        kept = encoded.topics.get(name)
        if kept is not None and kept[0] == self._metadata.topic_version(name):
            return kept[1]
        for _ in self._encode(encoded, listener, version, name):
            """Without pauses."""
        return encoded.topics[name][1] if name in encoded.topics else self._unknown(version, name)

    def all_encoded(self, listener: str, version: int) -> list[bytes]:
        """All current topics."""
        encoded = self._of(listener, version)
        now = self._metadata.version
        if encoded.all_topics is None or encoded.all_topics[0] != now:
            names = self._metadata.topics()
            encoded.all_topics = (now, [self.encoded(listener, version, name) for name in names])
            for gone in encoded.topics.keys() - set(names):
                del encoded.topics[gone]
                encoded.partitions.pop(gone, None)
        return encoded.all_topics[1]

    def partitions_to_encode(self, listener: str, version: int, names: Iterable[str]) -> int:
        """The number of partitions in topics that must be encoded. Above PARTITIONS_AT_ONCE, run `preparing` before `encoded`."""
        topics = self._of(listener, version).topics
        metadata = self._metadata
        return sum(
            len(metadata.partitions_of(name))
            for name in names
            if name not in topics or topics[name][0] != metadata.topic_version(name)
        )

    def preparing(self, listener: str, version: int, names: Iterable[str]) -> Generator[None, None, None]:
        """Encodes these topics, with pauses for other requests. A topic that changes after that is encoded again by `encoded`."""
        done = 0
        for name in names:
            encoded = self._of(listener, version)
            kept = encoded.topics.get(name)
            if kept is None or kept[0] != self._metadata.topic_version(name):
                for count in self._encode(encoded, listener, version, name):
                    done += count
                    if done >= PARTITIONS_IN_A_STEP:
                        done = 0
                        yield

    def partition(self, state: PartitionState, listener: str) -> MetadataPartition:
        """As clients of this listener see it now."""
        return self._partition(state, listener, LISTENER_NOT_FOUND_SINCE, frozenset(self._unreachable()))

    def _of(self, listener: str, version: int) -> _Encoded:
        valid_for = (self._metadata.brokers_version, frozenset(self._unreachable()))
        encoded = self._encoded.get((listener, version))
        if encoded is None or encoded.valid_for != valid_for:
            encoded = self._encoded[listener, version] = _Encoded(valid_for)
        return encoded

    def _encode(self, encoded: _Encoded, listener: str, version: int, name: str) -> Iterator[int]:
        """Encodes the topic. Yields the number of partitions encoded since the last yield: at pauses, and at the end."""
        states = self._metadata.partitions_of(name)
        kept: Kept = encoded.partitions.setdefault(name, {}) if len(states) >= LARGE_TOPIC else {}
        unreachable = encoded.valid_for[1]
        count = 0
        for index, state in list(states.items()):
            before = kept.get(index)
            if before is None or before[0] is not state:
                partition = self._partition(state, listener, version, unreachable)
                kept[index] = (state, metadata_codec.encode_partition(version, partition))
                count += 1
                if count == PARTITIONS_IN_A_STEP:
                    yield count
                    count = 0
        # No pause from here on. The topic is stored only if no partition changed after it was encoded.
        states = self._metadata.partitions_of(name)
        topic_version = self._metadata.topic_version(name)
        if states and all(index in kept and kept[index][0] is state for index, state in states.items()):
            topic = MetadataTopic(
                ErrorCode.NONE, name, self._metadata.topic_id(name), name in self._internal, partitions=()
            )
            rows = [kept[index][1] for index in sorted(states)]
            encoded.topics[name] = (topic_version, metadata_codec.encode_topic(version, topic, rows))
        else:
            encoded.topics.pop(name, None)
        yield count

    def _partition(
        self, state: PartitionState, listener: str, version: int, unreachable: frozenset[int]
    ) -> MetadataPartition:
        """Reports no leader if the leader is dead or unreachable, or does not have this listener."""
        error, leader = ErrorCode.NONE, state.leader
        broker = self._metadata.broker(leader)
        if broker is None or leader in unreachable:
            error, leader = ErrorCode.LEADER_NOT_AVAILABLE, NO_LEADER
        elif broker.endpoint(listener) is None:
            known = version >= LISTENER_NOT_FOUND_SINCE
            error = ErrorCode.LISTENER_NOT_FOUND if known else ErrorCode.LEADER_NOT_AVAILABLE
            leader = NO_LEADER
        offline = [r for r in state.replicas if self._metadata.broker(r) is None or r in state.offline_replicas]
        return MetadataPartition(error, state.partition, leader, state.leader_epoch, state.replicas, state.isr, offline)

    def _unknown(self, version: int, name: str) -> bytes:
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return metadata_codec.encode_topic(version, MetadataTopic(error, name, None, name in self._internal, ()), ())
