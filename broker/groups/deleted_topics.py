"""Which topics have gone, as the metadata cache tells it. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from broker.metadata_cache import MetadataCache


class DeletedTopics:
    """Remembers the id of each topic: one that was deleted and made again between two updates has gone too."""

    def __init__(self, metadata: MetadataCache) -> None:
        self._metadata = metadata
        self._ids: dict[str, uuid.UUID | None] = {}
        self._learn(metadata.topics())

    def among(self, changed: Iterable[tuple[str, int]]) -> frozenset[str]:
        """The topics of these partitions (topic, number) that have gone since the last call."""
        names = {topic for topic, _ in changed}
        return self._learn(names)

    def _learn(self, names: Iterable[str]) -> frozenset[str]:
        gone = set()
        for name in names:
            is_known = name in self._ids
            before = self._ids.pop(name, None)
            is_there = bool(self._metadata.partitions_of(name))
            now = self._metadata.topic_id(name)
            if is_there:
                self._ids[name] = now
            if is_known and (not is_there or (before is not None and now is not None and before != now)):
                gone.add(name)
        return frozenset(gone)
