"""Which settings a log has: its topic's, over the broker's defaults; effective at once."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from broker.settings.config import TopicConfig
from broker.settings.config_layers import believable
from broker.storage.log import Log

log = logging.getLogger(__name__)

Overrides = Mapping[str, str]


class LogConfigs:
    """A value that is not allowed is left out, or the earlier one stays; which is told."""

    def __init__(self, defaults: TopicConfig) -> None:
        self.defaults = defaults
        self._newest: tuple[str, Overrides, TopicConfig, Overrides] | None = None

    def of_new(self, topic: str, overrides: Overrides) -> tuple[TopicConfig, Overrides]:
        """`of`, without earlier ones. The logs of a topic, which are made one after the other, share what it gives."""
        if self._newest is None or self._newest[:2] != (topic, overrides):
            self._newest = (topic, dict(overrides), *self.of(topic, overrides, {}))
        return self._newest[2:]

    def of(self, topic: str, overrides: Overrides, earlier: Overrides) -> tuple[TopicConfig, Overrides]:
        """The config, and those of the overrides that are in it."""
        if not overrides:
            return self.defaults, {}
        usable, complaints = believable(TopicConfig, overrides, earlier, f"topic {topic}")
        for complaint in complaints:
            log.warning("%s", complaint)
        return self.defaults.with_overrides(usable), usable

    def update_topics(self, logs: Iterable[Log], overrides: Mapping[str, Overrides]) -> bool:
        """New overrides of topics. False: none of these logs is concerned."""
        updated: dict[str, tuple[TopicConfig, Overrides]] = {}
        for found in logs:
            topic = found.topic_partition.topic
            if topic not in overrides:
                continue
            if topic not in updated:
                updated[topic] = self.of(topic, overrides[topic], found.overrides)
            found.config, found.overrides = updated[topic]
        return bool(updated)

    def update_defaults(self, logs: Iterable[Log], defaults: TopicConfig) -> None:
        """The broker's settings for topics have changed."""
        self.defaults = defaults
        self._newest = None
        updated: dict[tuple[tuple[str, str], ...], TopicConfig] = {}
        for found in logs:
            key = tuple(found.overrides.items())
            if key not in updated:
                updated[key] = defaults.with_overrides(found.overrides)
            found.config = updated[key]
