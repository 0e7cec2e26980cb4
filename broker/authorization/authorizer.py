"""Decides for each request whether its principal may do what it asks (`authorizer.class.name`, Kafka's AclAuthorizer).

A broker without `authorizer.class.name` has no Authorizer, and everybody may do everything.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from broker.authorization.acl_index import EVERYTHING, AclIndex
from broker.settings.config import BrokerConfig, super_users_in
from protocol.acls import OPERATIONS_OF, Operation, ResourceType
from protocol.types import Principal

KEPT_MAX: Final = 20_000
"""Limit of answers that are kept. If there are more, all are dropped."""
KEPT_NAME_MAX: Final = 255
"""Characters of a resource's name. Answers about longer names are not kept."""


class Authorizer:
    """Answers are kept until an ACL changes, so that most questions cost one look into a dict."""

    def __init__(self, super_users: frozenset[str], *, allow_if_none: bool) -> None:
        """`super_users`: texts such as `User:admin`. `allow_if_none`: `allow.everyone.if.no.acl.found`."""
        self._super_users = super_users
        self._allow_if_none = allow_if_none
        self._index = AclIndex()
        self._rights: dict[tuple[Principal, str, ResourceType, str], int] = {}
        self._with_any: dict[tuple[Principal, str, Operation, ResourceType], bool] = {}
        """Kept, because a look at all patterns takes milliseconds."""
        self.on_change: Callable[[], None] = lambda: None
        """Called after ACLs have changed."""

    @property
    def index(self) -> AclIndex:
        return self._index

    def use(self, index: AclIndex) -> None:
        """The ACLs count from now on. Call it again after each change of the index."""
        self._index = index
        self._rights.clear()
        self._with_any.clear()
        self.on_change()

    def rights(self, principal: Principal, address: str, kind: ResourceType, name: str) -> int:
        """The operations that the principal may do with the resource, as bits `1 << operation`."""
        key = (principal, address, kind, name)
        rights = self._rights.get(key)
        if rights is None:
            rights = self._find(principal, address, kind, name)
            if len(name) <= KEPT_NAME_MAX:
                if len(self._rights) >= KEPT_MAX:
                    self._rights.clear()
                self._rights[key] = rights
        return rights

    def allows(self, principal: Principal, address: str, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Whether the principal may do this from the address."""
        return self.rights(principal, address, kind, name) >> operation & 1 == 1

    def grants(self, principal: Principal, address: str, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Whether the principal is a super user, or an ACL allows this: not because there is no ACL (`allow.everyone.if.no.acl.found`)."""
        text = str(principal)
        if text in self._super_users:
            return True
        rights = self._index.rights(text, host_of(address), kind, name, allow_if_none=False)
        return rights >> operation & 1 == 1

    def allows_with_any(self, principal: Principal, address: str, operation: Operation, kind: ResourceType) -> bool:
        """Whether the principal may do this with some resource of the type."""
        key = (principal, address, operation, kind)
        found = self._with_any.get(key)
        if found is None:
            text = str(principal)
            found = text in self._super_users or self._index.may_with_any(
                text, host_of(address), operation, kind, allow_if_none=self._allow_if_none
            )
            if len(self._with_any) >= KEPT_MAX:
                self._with_any.clear()
            self._with_any[key] = found
        return found

    def operations(self, principal: Principal, address: str, kind: ResourceType, name: str) -> int:
        """The operations of this type of resource that are allowed, as the number that answers have (KIP-430)."""
        rights = self.rights(principal, address, kind, name)
        return sum(1 << operation for operation in OPERATIONS_OF[kind] if rights >> operation & 1)

    def _find(self, principal: Principal, address: str, kind: ResourceType, name: str) -> int:
        text = str(principal)
        if text in self._super_users:
            return EVERYTHING
        return self._index.rights(text, host_of(address), kind, name, allow_if_none=self._allow_if_none)


@lru_cache(maxsize=4096)
def host_of(address: str) -> str:
    """The address as Java writes it, as ACLs have it: `0:0:0:0:0:0:0:1` for `::1`, and IPv4 without its prefix in IPv6."""
    if ":" not in address:
        return address
    bare, _, zone = address.partition("%")
    try:
        parsed = ipaddress.IPv6Address(bare)
    except ValueError:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    groups = ":".join(f"{int(group, 16):x}" for group in parsed.exploded.split(":"))
    return f"{groups}%{zone}" if zone else groups


def authorizer_of(config: BrokerConfig) -> Authorizer | None:
    """The authorizer of these settings; None if they name none."""
    if not config.authorizer_class_name:
        return None
    return Authorizer(super_users_in(config.super_users), allow_if_none=config.allow_everyone_if_no_acl_found)
