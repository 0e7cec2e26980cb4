"""Which quota counts for a client: the most specific of eight levels (`ClientQuotaManager` in Kafka). Pure.

An entity is named as in ZooKeeper: sanitized, `<default>` for all that have no quota of their own, and "" for what it does not name.

    1  /config/users/<user>/clients/<client-id>    5  /config/users/<default>/clients/<default>
    2  /config/users/<user>/clients/<default>      6  /config/users/<default>
    3  /config/users/<user>                        7  /config/clients/<client-id>
    4  /config/users/<default>/clients/<client-id>  8  /config/clients/<default>

Connections for which the same level counts share what they use: by user and client id, by user (3, 6), or by client id (7, 8).
"""

from __future__ import annotations

from typing import NamedTuple

from protocol.zk.entity_names import DEFAULT, sanitized

NOBODY = ""


class Entity(NamedTuple):
    """Whom a quota is for, or who shares it."""

    user: str
    client_id: str = NOBODY


class Limits:
    """The quotas of one kind. `value` is in the unit of the quota, each second."""

    def __init__(self) -> None:
        self._of: dict[Entity, float] = {}

    def __len__(self) -> int:
        return len(self._of)

    def get(self, entity: Entity) -> float | None:
        """The quota of exactly this entity."""
        return self._of.get(entity)

    def set(self, entity: Entity, value: float | None) -> bool:
        """None: the entity has no quota any more. Returns whether anything changed."""
        if value is None:
            return self._of.pop(entity, None) is not None
        if self._of.get(entity) == value:
            return False
        self._of[entity] = value
        return True

    def entities(self) -> list[Entity]:
        """Those with a quota."""
        return list(self._of)

    def of(self, user: str, client_id: str | None) -> tuple[Entity, float] | None:
        """Who shares the quota of this client, and the quota. None: it has none. `user` and `client_id` are as clients give them.

        Without a client id (None, ""), only the quotas of users count; as in Kafka, a default for client ids hides them from None.
        """
        get = self._of.get
        name = sanitized(user)
        of_user = Entity(name)
        if not client_id:
            for level in (of_user, Entity(DEFAULT)):
                if client_id is None and Entity(level.user, DEFAULT) in self._of:
                    return None
                if (value := get(level)) is not None:
                    return of_user, value
            return None
        client = sanitized(client_id)
        of_both, of_client = Entity(name, client), Entity(NOBODY, client)
        for level, shared_by in (
            (of_both, of_both),
            (Entity(name, DEFAULT), of_both),
            (of_user, of_user),
            (Entity(DEFAULT, client), of_both),
            (Entity(DEFAULT, DEFAULT), of_both),
            (Entity(DEFAULT), of_user),
            (of_client, of_client),
            (Entity(NOBODY, DEFAULT), of_client),
        ):
            if (value := get(level)) is not None:
                return shared_by, value
        return None
