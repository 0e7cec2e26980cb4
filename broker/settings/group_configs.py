"""The settings that a group of the new kind may have of its own (KIP-848, `GroupConfig` in Kafka), below `/config/groups`.

The broker's `group.consumer.*` has what they may be, and what a group without them has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from broker.settings.config import INT_MAX, BrokerConfig, ConfigError, setting
from broker.settings.config_layers import believable
from broker.settings.entity_configs import GROUPS
from protocol.topic_names import shown
from protocol.zk.entity_names import desanitized

log = logging.getLogger(__name__)

SESSION = "consumer.session.timeout.ms"
HEARTBEAT = "consumer.heartbeat.interval.ms"


@dataclass(frozen=True, kw_only=True)
class GroupConfig:
    """A group's settings, in Kafka's names."""

    consumer_session_timeout_ms: int = setting(
        45_000, minimum=1, maximum=INT_MAX, doc="After how long without a heartbeat a member is removed, in ms."
    )
    consumer_heartbeat_interval_ms: int = setting(
        5_000, minimum=1, maximum=INT_MAX, doc="How often members send a heartbeat, in ms."
    )


def defaults(config: BrokerConfig) -> dict[str, str]:
    """What a group without settings of its own has."""
    return {
        SESSION: str(config.group_consumer_session_timeout_ms),
        HEARTBEAT: str(config.group_consumer_heartbeat_interval_ms),
    }


def check(configs: Mapping[str, str], config: BrokerConfig) -> None:
    """Raises ConfigError for settings that are outside of the broker's limits, or do not fit each other."""
    limits = {
        SESSION: (config.group_consumer_min_session_timeout_ms, config.group_consumer_max_session_timeout_ms),
        HEARTBEAT: (config.group_consumer_min_heartbeat_interval_ms, config.group_consumer_max_heartbeat_interval_ms),
    }
    for key, (least, most) in limits.items():
        if key in configs and not least <= int(configs[key]) <= most:
            raise ConfigError(f"{key}={configs[key]}: expected {least} to {most}, by the broker's group.consumer.*")
    both = {**defaults(config), **configs}
    if int(both[SESSION]) <= int(both[HEARTBEAT]):
        raise ConfigError(f"{SESSION}={both[SESSION]}: expected more than {HEARTBEAT}, which is {both[HEARTBEAT]}")


class GroupConfigs:
    """The settings of groups in ZooKeeper. `on_change` is called with the group's id."""

    def __init__(self) -> None:
        self.on_change: Callable[[str], None] = lambda group_id: None
        self._configs: dict[str, dict[str, str]] = {}

    def of(self, group_id: str) -> Mapping[str, str]:
        """Those that the group has of its own."""
        return self._configs.get(group_id, {})

    def names(self) -> list[str]:
        """The groups that have some."""
        return sorted(self._configs)

    def changed(self, configs: Mapping[str, Mapping[str, str]]) -> None:
        """As a `FollowsEntities`."""
        for entity, found in configs.items():
            group_id = _group_of(entity)
            if group_id is None:
                continue
            usable, complaints = believable(GroupConfig, found, self.of(group_id), shown(entity))
            for complaint in complaints:
                log.warning("%s", complaint)
            self._configs[group_id] = usable
            if not usable:
                del self._configs[group_id]
            self.on_change(group_id)

    def all_are(self, names: Collection[str]) -> None:
        """As a `FollowsEntities`."""
        kept = {_group_of(name) for name in names}
        for gone in self._configs.keys() - kept:
            del self._configs[gone]
            self.on_change(gone)


def _group_of(entity: str) -> str | None:
    """None: it is another kind of entity, or cannot be read."""
    kind, _, node = entity.partition("/")
    if kind != GROUPS:
        return None
    try:
        return desanitized(node)
    except ValueError:
        return None
