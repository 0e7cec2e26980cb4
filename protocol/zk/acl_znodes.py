"""Paths and contents of the znodes of ACLs, as Kafka's AclAuthorizer has them (`kafka.zk.ZkData`, `AclEntry`). Pure.

A literal pattern is a node below `/kafka-acl`, a prefixed one below `/kafka-acl-extended/prefixed`. A change is announced below
`/kafka-acl-changes` or `/kafka-acl-extended-changes`. Decoders raise ValueError with a reason.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any, Final

from protocol.acls import (
    RESOURCE_TYPES,
    Acl,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceType,
    name_of,
    word_of,
)
from protocol.topic_names import shown
from protocol.zk.operations import CreateOp

VERSION: Final = 1
PARENTS: Final = {PatternType.LITERAL: "/kafka-acl", PatternType.PREFIXED: "/kafka-acl-extended/prefixed"}
CHANGES: Final = {PatternType.LITERAL: "/kafka-acl-changes", PatternType.PREFIXED: "/kafka-acl-extended-changes"}
CHANGE_PREFIX: Final = "acl_changes_"
TEXT_MAX: Final = 32_767
"""Characters of a principal or a host: the limit of a text in a DescribeAcls response."""

PERSISTENT_PATHS: Final = (
    *(f"{parent}/{name_of(kind)}" for parent in PARENTS.values() for kind in RESOURCE_TYPES),
    *CHANGES.values(),
)
"""A broker with the authorizer creates these nodes (KafkaZkClient.createAclPaths)."""


def path_of(pattern: Pattern) -> str:
    """The node that has the pattern's ACLs."""
    return f"{PARENTS[pattern.pattern_type]}/{name_of(pattern.resource_type)}/{pattern.name}"


def encode(acls: Collection[Acl]) -> bytes:
    """The content of a pattern's node, with keys in the order of Kafka 3.9."""
    rows = [
        {
            "principal": acl.principal,
            "permissionType": name_of(acl.permission),
            "host": acl.host,
            "operation": name_of(acl.operation),
        }
        for acl in acls
    ]
    return _json({"acls": rows, "version": VERSION})


def decode(data: bytes) -> frozenset[Acl]:
    """The ACLs in a pattern's node; none if it is empty."""
    if not data:
        return frozenset()
    value = _object(data)
    if value.get("version") != VERSION:
        raise ValueError(f"version {shown(str(value.get('version')))}: only version {VERSION} is known")
    rows = value.get("acls")
    if not isinstance(rows, list):
        raise ValueError("acls must be a list")
    return frozenset(map(_acl, rows))


def _acl(row: Any) -> Acl:
    if not isinstance(row, dict):
        raise ValueError("an ACL must be an object")
    principal, host, operation, permission = (
        _text(row.get(key), key) for key in ("principal", "host", "operation", "permissionType")
    )
    found = word_of(Operation, operation)
    if found is None or found < Operation.ALL:
        raise ValueError(f"{shown(operation)} is not an operation")
    allowed = word_of(Permission, permission)
    if allowed not in (Permission.ALLOW, Permission.DENY):
        raise ValueError(f"{shown(permission)} is not a permission: expected Allow or Deny")
    if ":" not in principal:
        raise ValueError(f"{shown(principal)} is not a principal such as User:alice")
    return Acl(principal, host, found, allowed)


def encode_change(pattern: Pattern) -> bytes:
    """The content of the announcement. That of a literal pattern is a text and not JSON."""
    if pattern.pattern_type is PatternType.LITERAL:
        return f"{pattern.resource_type.name}:{pattern.name}".encode()
    return _json(
        {
            "version": VERSION,
            "resourceType": pattern.resource_type.name,
            "name": pattern.name,
            "patternType": pattern.pattern_type.name,
        }
    )


def announcement(pattern: Pattern) -> CreateOp:
    """What tells all brokers that the pattern's ACLs have changed."""
    return CreateOp(f"{CHANGES[pattern.pattern_type]}/{CHANGE_PREFIX}", encode_change(pattern), sequence=True)


def decode_change(pattern_type: PatternType, data: bytes) -> Pattern:
    """`pattern_type` is that of the parent, a key of CHANGES."""
    if pattern_type is PatternType.LITERAL:
        kind, colon, name = data.decode().partition(":")
        if not colon:
            raise ValueError(f"{shown(kind)} is not type:name")
    else:
        value = _object(data)
        kind, name = _text(value.get("resourceType"), "resourceType"), _text(value.get("name"), "name")
        if word_of(PatternType, _text(value.get("patternType"), "patternType")) is not pattern_type:
            raise ValueError(f"patternType {shown(value.get('patternType'))}: expected {pattern_type.name}")
    resource_type = word_of(ResourceType, kind)
    if resource_type not in RESOURCE_TYPES or not is_name(name):
        raise ValueError(f"{shown(kind)}:{shown(name)} is not a resource")
    return Pattern(resource_type, name, pattern_type)


def is_name(name: str) -> bool:
    """Whether the name of a pattern can be the name of a node."""
    return bool(name) and name not in (".", "..") and "/" not in name and "\0" not in name and len(name) <= TEXT_MAX


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, found {type(value).__name__}")
    return value


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str) or len(value) > TEXT_MAX:
        raise ValueError(f"{what} must be a text of at most {TEXT_MAX} characters")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} is not a text: {shown(value)}") from None
    return value
