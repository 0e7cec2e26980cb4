"""The topics of a request that names them, or gives their ids (KIP-516): OffsetCommit and OffsetFetch since v10."""

from __future__ import annotations

import uuid

from broker.cluster.metadata_cache import MetadataCache
from protocol.kafka.wire import NO_UUID, TopicKey


class TopicKeys:
    """Knows the names of a request's topics, and what to call them in the answer.

    `unknown`: names that stand for an id that no topic has. They are no legal names of topics.
    """

    def __init__(self, metadata: MetadataCache) -> None:
        self._metadata = metadata
        self._ids: dict[str, uuid.UUID] = {}
        self.unknown: set[str] = set()

    @property
    def field(self) -> str:
        """What kio calls the field with the key."""
        return "topic_id" if self._ids else "name"

    def name_of(self, key: TopicKey) -> str:
        if isinstance(key, str):
            return key
        name = self._metadata.topic_name(key)
        if name is None:
            name = f"?{key}"
            self.unknown.add(name)
        self._ids[name] = key
        return name

    def key_of(self, name: str) -> TopicKey:
        """What the request calls the topic."""
        return self._ids.get(name, name)

    def id_of(self, name: str) -> uuid.UUID:
        """For an answer about topics that the request did not give."""
        return self._metadata.topic_id(name) or NO_UUID
