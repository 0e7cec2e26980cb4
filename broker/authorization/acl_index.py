"""The ACLs of the cluster, arranged so that the rights on one resource are found at once (AclAuthorizer.authorizeAction). Pure.

The rules:

- The ACLs of a resource are those of the literal pattern with its name, of the literal pattern `*`, and of each prefixed pattern that its
  name begins with.
- An ACL counts for its principal or, as `User:*`, for everybody; from its host or, as `*`, from every host.
- What an ACL denies is denied, whatever others allow. What none allows is denied.
- Who is allowed to read, write, delete or alter may also describe, and who may alter settings may also describe them.
  A denial implies nothing.
- A resource without any ACL, of anybody, is allowed to everybody if `allow.everyone.if.no.acl.found`.

Operations are bits of a number here: bit `1 << operation`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from protocol.acls import ANYBODY, WILDCARD, Acl, Operation, Pattern, PatternType, Permission, ResourceType

EVERYTHING: Final = sum(1 << operation for operation in Operation if operation > Operation.ALL)
"""The bits of all operations."""
DESCRIBE: Final = 1 << Operation.DESCRIBE
DESCRIBE_CONFIGS: Final = 1 << Operation.DESCRIBE_CONFIGS
ALTER_CONFIGS: Final = 1 << Operation.ALTER_CONFIGS
DESCRIBED_BY: Final = 1 << Operation.READ | 1 << Operation.WRITE | 1 << Operation.DELETE | 1 << Operation.ALTER
"""Who is allowed one of these may also describe."""

Masks = tuple[int, int]
"""The operations that are allowed, and those that are denied."""
ByWhom = dict[tuple[str, str], Masks]
"""Principal and host of the ACLs of one pattern -> what they say."""

NOTHING: Final[Masks] = (0, 0)


def bits_of(operation: Operation) -> int:
    """The bits of an ACL's operation."""
    return EVERYTHING if operation is Operation.ALL else 1 << operation


class AclIndex:
    """Patterns and their ACLs. Texts of principals are such as `User:alice`."""

    def __init__(self) -> None:
        self._acls: dict[Pattern, frozenset[Acl]] = {}
        self._literals: dict[tuple[int, str], ByWhom] = {}
        self._prefixes: dict[tuple[int, str], ByWhom] = {}
        self._lengths: dict[int, dict[int, int]] = {}
        """Resource type -> length of its prefixes -> how many prefixes have it."""

    def __len__(self) -> int:
        """The number of ACLs."""
        return sum(map(len, self._acls.values()))

    def patterns(self) -> Mapping[Pattern, frozenset[Acl]]:
        """The patterns that have ACLs."""
        return self._acls

    def put(self, pattern: Pattern, acls: frozenset[Acl]) -> None:
        """Replaces the ACLs of the pattern."""
        key = (int(pattern.resource_type), pattern.name)
        is_prefix = pattern.pattern_type is PatternType.PREFIXED
        table = self._prefixes if is_prefix else self._literals
        if is_prefix and (pattern in self._acls) != bool(acls):
            lengths = self._lengths.setdefault(key[0], {})
            size = len(pattern.name)
            lengths[size] = lengths.get(size, 0) + (1 if acls else -1)
            if not lengths[size]:
                del lengths[size]
        if acls:
            self._acls[pattern] = acls
            table[key] = _by_whom(acls)
        else:
            self._acls.pop(pattern, None)
            table.pop(key, None)

    def rights(self, principal: str, host: str, kind: ResourceType, name: str, *, allow_if_none: bool) -> int:
        """The operations that the principal may do from this host with the resource."""
        allowed = denied = 0
        is_found = False
        askers = ((principal, host), (principal, WILDCARD), (ANYBODY, host), (ANYBODY, WILDCARD))
        for by_whom in self._that_match(kind, name):
            is_found = True
            for asker in askers:
                if asker in by_whom:
                    more, less = by_whom[asker]
                    allowed |= more
                    denied |= less
        if not is_found:
            return EVERYTHING if allow_if_none else 0
        if allowed & DESCRIBED_BY:
            allowed |= DESCRIBE
        if allowed & ALTER_CONFIGS:
            allowed |= DESCRIBE_CONFIGS
        return allowed & ~denied

    def may_with_any(
        self, principal: str, host: str, operation: Operation, kind: ResourceType, *, allow_if_none: bool
    ) -> bool:
        """Whether the principal may do this with some resource of the type (AclAuthorizer.authorizeByResourceType).

        Only what ACLs say counts, not whether such a resource exists.
        """
        bit = 1 << operation
        askers = ((principal, host), (principal, WILDCARD), (ANYBODY, host), (ANYBODY, WILDCARD))
        said = {
            pattern_type: {
                name: masks
                for (of, name), by_whom in table.items()
                if of == kind and (masks := _said(by_whom, askers, bit)) != NOTHING
            }
            for pattern_type, table in ((PatternType.LITERAL, self._literals), (PatternType.PREFIXED, self._prefixes))
        }
        literals, prefixes = said[PatternType.LITERAL], said[PatternType.PREFIXED]
        if literals.get(WILDCARD, NOTHING)[1]:
            return False
        if allow_if_none:
            return True
        denied = {name for name, (_, less) in prefixes.items() if less}

        def is_covered(name: str) -> bool:
            return any(name[:size] in denied for size in range(len(name) + 1))

        return any(more and not is_covered(name) for name, (more, _) in prefixes.items()) or any(
            more and (name == WILDCARD or not (less or is_covered(name))) for name, (more, less) in literals.items()
        )

    def _that_match(self, kind: int, name: str) -> list[ByWhom]:
        literals = self._literals
        found = [literals[key] for key in ((kind, WILDCARD), (kind, name)) if key in literals]
        lengths = self._lengths.get(kind)
        if lengths:
            prefixes, size_max = self._prefixes, len(name)
            for size in lengths:
                if size <= size_max:
                    by_whom = prefixes.get((kind, name[:size]))
                    if by_whom is not None:
                        found.append(by_whom)
        return found


def _said(by_whom: ByWhom, askers: Iterable[tuple[str, str]], bit: int) -> Masks:
    allowed = denied = 0
    for asker in askers:
        more, less = by_whom.get(asker, NOTHING)
        allowed |= more
        denied |= less
    return allowed & bit, denied & bit


def _by_whom(acls: Collection[Acl]) -> ByWhom:
    found: ByWhom = {}
    for principal, host, operation, permission in acls:
        allowed, denied = found.get((principal, host), NOTHING)
        if permission is Permission.ALLOW:
            allowed |= bits_of(operation)
        else:
            denied |= bits_of(operation)
        found[principal, host] = (allowed, denied)
    return found
