"""The settings of users, client ids, and addresses, in ZooKeeper: credentials and quotas (`UserConfigHandler` and others in Kafka). And
the subscriptions to metrics of clients, and the settings of groups.

An entity is named by its path below `/config`: `users/alice`, `users/alice/clients/app`, `clients/app`, `ips/10.0.0.7`,
`client-metrics/slow`, `groups/billing`, with the names of znodes, such as `users/<default>`. `broker/settings/dynamic_configs.py` says
which of them may have changed.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from protocol.topic_names import shown
from protocol.zk.session import ZkError, ZooKeeperSession, each_readable
from protocol.zk.znodes import ConfigZNode

log = logging.getLogger(__name__)

USERS = "users"
CLIENTS = "clients"
IPS = "ips"
CLIENT_METRICS = "client-metrics"
GROUPS = "groups"
READ_AT_ONCE = 500

Configs = Mapping[str, Mapping[str, str]]


class FollowsEntities(Protocol):
    """Who needs the settings of entities."""

    def changed(self, configs: Configs) -> None:
        """These are the settings of these entities now; empty without a znode."""
        ...

    def all_are(self, names: Collection[str]) -> None:
        """Other entities have no settings."""
        ...


class EntityConfigs:
    """Reads, and tells who needs it. `users` is told the names of users, without `users/`; `followers` are told the names of all."""

    def __init__(self, zk: ZooKeeperSession) -> None:
        self.users: FollowsEntities | None = None
        self.followers: list[FollowsEntities] = []
        self._zk = zk

    async def read_all(self) -> None:
        """Raises ZkError."""
        names = await all_entities(self._zk)
        if self.users is not None:
            self.users.all_are(_users(names))
        for follower in self.followers:
            follower.all_are(names)
        await self.read(names)

    async def read(self, names: Sequence[str]) -> None:
        """Reads these entities again, for which `is_entity` is true. Raises ZkError."""
        for at in range(0, len(names), READ_AT_ONCE):
            some = names[at : at + READ_AT_ONCE]
            nodes = await each_readable([f"/config/{name}" for name in some], self._zk.get_many)
            configs: dict[str, Mapping[str, str]] = {}
            for name, node in zip(some, nodes, strict=True):
                if isinstance(node, ZkError):
                    log.warning("the settings of %s cannot be read, the earlier ones stay: %s", shown(name), node)
                    continue
                found = decoded(shown(name), node[0] or None if node is not None else None)
                if found is not None:
                    configs[name] = found
            if self.users is not None:
                of_users = {user: configs[f"{USERS}/{user}"] for user in _users(configs)}
                if of_users:
                    self.users.changed(of_users)
            for follower in self.followers:
                follower.changed(configs)


async def all_entities(zk: ZooKeeperSession) -> list[str]:
    """The names of all entities in ZooKeeper. Raises ZkError."""
    kinds = (USERS, CLIENTS, IPS, CLIENT_METRICS, GROUPS)
    of_kinds = await zk.children_many([ConfigZNode.parent(kind) for kind in kinds])
    names = [f"{kind}/{name}" for kind, found in zip(kinds, of_kinds, strict=True) for name in found or ()]
    users = [name for name in names if name.startswith(f"{USERS}/")]
    for at in range(0, len(users), READ_AT_ONCE):
        some = users[at : at + READ_AT_ONCE]
        clients = await zk.children_many([f"/config/{user}/{CLIENTS}" for user in some])
        names += [
            f"{user}/{CLIENTS}/{client}" for user, found in zip(some, clients, strict=True) for client in found or ()
        ]
    return names


def is_entity(name: str) -> bool:
    """Whether it is the name of an entity. Some others are not even paths."""
    kind, *parts = name.split("/")
    if kind == USERS and len(parts) == 3 and parts[1] == CLIENTS:
        del parts[1]
    elif kind not in (USERS, CLIENTS, IPS, CLIENT_METRICS, GROUPS) or len(parts) != 1:
        return False
    return all(map(ConfigZNode.is_entity_name, parts))


def decoded(entity: str, data: bytes | None) -> dict[str, str] | None:
    """The settings in a config znode; empty if there is no znode; None, with a warning, if it cannot be read."""
    if data is None:
        return {}
    try:
        return ConfigZNode.decode(data)
    except ValueError as error:
        log.warning("the settings of %s cannot be read, the earlier ones stay: %s", entity, error)
        return None


def _users(names: Iterable[str]) -> list[str]:
    return [parts[1] for parts in (name.split("/") for name in names) if parts[0] == USERS and len(parts) == 2]
