"""ACLs as values: who may do what on which resources, and filters of ACLs. Numbers and names are Kafka's.

An ACL allows or denies one operation on the resources that match a pattern, to one principal, from one host (package `common.acl`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from functools import cache
from typing import Final, NamedTuple, TypeVar

WILDCARD: Final = "*"
"""As the name of a literal pattern: every resource of the type. As the host: every host."""
ANYBODY: Final = "User:*"
"""The principal of an ACL for everybody."""
CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the one resource of type Cluster."""


class ResourceType(IntEnum):
    """Kafka's ResourceType. ANY is for filters."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """Kafka's PatternType. ANY and MATCH are for filters; MATCH finds all patterns that a resource matches."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """Kafka's AclOperation. ANY is for filters, ALL for ACLs."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14


class Permission(IntEnum):
    """Kafka's AclPermissionType. ANY is for filters."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


RESOURCE_TYPES: Final = tuple(ResourceType)[ResourceType.TOPIC :]
"""The types that ACLs can have."""

OPERATIONS_OF: Final[Mapping[ResourceType, tuple[Operation, ...]]] = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
    ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
    ResourceType.DELEGATION_TOKEN: (Operation.DESCRIBE,),
    ResourceType.USER: (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
}
"""What can be done with a resource of each type (AclEntry.supportedOperations)."""

Word = TypeVar("Word", bound=IntEnum)


def name_of(word: IntEnum) -> str:
    """The name in znodes and in messages: `TransactionalId`, `ClusterAction`, `Allow` (SecurityUtils)."""
    return "".join(part.capitalize() for part in word.name.split("_"))


def word_of(kind: type[Word], name: str) -> Word | None:
    """The member of `kind` with that name, such as `TransactionalId` or `TRANSACTIONAL_ID`, in any case; None if there is none."""
    return _words(kind).get(name.replace("_", "").lower())


@cache
def _words(kind: type[Word]) -> Mapping[str, Word]:
    return {word.name.replace("_", "").lower(): word for word in kind}


class Pattern(NamedTuple):
    """Which resources an ACL is for. `pattern_type` is LITERAL or PREFIXED."""

    resource_type: ResourceType
    name: str
    pattern_type: PatternType = PatternType.LITERAL

    def __str__(self) -> str:
        return f"{name_of(self.resource_type)}:{self.pattern_type.name}:{self.name}"


class Acl(NamedTuple):
    """One rule for the resources of a pattern (Kafka's AccessControlEntry). `principal` is a text such as `User:alice`."""

    principal: str
    host: str
    operation: Operation
    permission: Permission


class PatternFilter(NamedTuple):
    """Chooses patterns (Kafka's ResourcePatternFilter). `name` None: any name."""

    resource_type: int = ResourceType.ANY
    name: str | None = None
    pattern_type: int = PatternType.ANY

    def matches(self, pattern: Pattern) -> bool:
        if self.resource_type not in (ResourceType.ANY, pattern.resource_type):
            return False
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, pattern.pattern_type):
            return False
        if self.name is None:
            return True
        if self.pattern_type != PatternType.MATCH:
            return self.name == pattern.name
        if pattern.pattern_type is PatternType.PREFIXED:
            return self.name.startswith(pattern.name)
        return pattern.name in (self.name, WILDCARD)

    def only_pattern(self) -> Pattern | None:
        """The pattern, if the filter names one."""
        if self.name is None or self.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
            return None
        if self.resource_type not in RESOURCE_TYPES:
            return None
        return Pattern(ResourceType(self.resource_type), self.name, PatternType(self.pattern_type))


class AclFilter(NamedTuple):
    """Chooses rules (Kafka's AccessControlEntryFilter). None: any principal, any host."""

    principal: str | None = None
    host: str | None = None
    operation: int = Operation.ANY
    permission: int = Permission.ANY

    def matches(self, acl: Acl) -> bool:
        return (
            self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
        )
