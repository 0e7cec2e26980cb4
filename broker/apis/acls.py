"""DescribeAcls, CreateAcls, DeleteAcls (APIs 29 to 31), v1 to v3 (AclApis, AclAuthorizer).

They need Describe or Alter on the cluster. Any broker serves them: the ACLs are in ZooKeeper, and the answer comes when this broker applies
the change; the others follow within milliseconds. DescribeAcls answers with what this broker applies.

Each creation and each filter has its own error. A deleted ACL is in the answer to the first filter that matches it. As in Kafka, a request
with type, operation or permission 0, which Kafka calls unknown, closes the connection. Without an authorizer, every answer is
SECURITY_DISABLED.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from broker.authorization.acl_store import AclStore, CannotChangeAcls
from broker.network.request_channel import Request
from broker.requests import rights, waiting
from broker.requests.context import ApiContext
from broker.requests.steps import StepsTo, collected, finished, respond_when_finished, slice_of_own
from protocol.acls import (
    CLUSTER_NAME,
    Acl,
    AclFilter,
    Operation,
    Pattern,
    PatternFilter,
    PatternType,
    Permission,
    ResourceType,
)
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.framing import MalformedRequest
from protocol.zk import acl_znodes
from protocol.zk.session import ZkError

NO_AUTHORIZER = KafkaError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured on the broker")
NOT_ALLOWED = KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")
CHANGE_TIMEOUT_S = 5.0
"""How long a change waits for ZooKeeper after a lost connection."""
PATTERNS_IN_A_STEP = 100

Filter = tuple[PatternFilter, AclFilter]
NO_ERROR: Mapping[str, Any] = {"error_code": 0, "error_message": None}


async def acls(context: ApiContext, request: Request) -> None:
    header = request.header
    reading = messages.decoding(header.api_key, header.api_version, request.frame, header.body_offset)
    body = await finished(context, request, reading)
    match header.api_key:
        case ApiKey.DESCRIBE_ACLS:
            answer = await _describe(context, request, body)
        case ApiKey.CREATE_ACLS:
            answer = await _create(context, request, body)
        case _:
            answer = await _delete(context, request, body)
    encoding = messages.encoding(header.api_key, header.api_version, {"throttle_time": 0, **answer})
    await respond_when_finished(context, request, encoding)


def _refusal(context: ApiContext, request: Request, operation: Operation) -> KafkaError | None:
    if context.acls is None:
        return NO_AUTHORIZER
    return None if rights.on_cluster(context, request, operation) else NOT_ALLOWED


def _error(error: KafkaError) -> dict[str, Any]:
    return {"error_code": int(error.code), "error_message": error.message or None}


# -- describe ---------------------------------------------------------------------------------------------------------


async def _describe(context: ApiContext, request: Request, body: Any) -> dict[str, Any]:
    refusal = _refusal(context, request, Operation.DESCRIBE)
    if refusal is not None or context.authorizer is None:
        return {**_error(refusal or NO_AUTHORIZER), "resources": []}
    resources = await finished(context, request, _described(context, _filter(body)))
    return {**NO_ERROR, "resources": resources}


def _described(context: ApiContext, chosen: Filter) -> StepsTo[list[dict[str, Any]]]:
    assert context.authorizer is not None
    of_patterns, of_acls = chosen
    resources = []
    for number, (pattern, acls) in enumerate(list(context.authorizer.index.patterns().items()), 1):
        if number % PATTERNS_IN_A_STEP == 0:
            yield
        found = [acl for acl in acls if of_acls.matches(acl)] if of_patterns.matches(pattern) else ()
        if found:
            resources.append({**_pattern_row(pattern), "acls": [_acl_row(acl) for acl in found]})
    return resources


def _pattern_row(pattern: Pattern) -> dict[str, Any]:
    return {
        "resource_type": int(pattern.resource_type),
        "resource_name": pattern.name,
        "pattern_type": int(pattern.pattern_type),
    }


def _acl_row(acl: Acl) -> dict[str, Any]:
    return {
        "principal": acl.principal,
        "host": acl.host,
        "operation": int(acl.operation),
        "permission_type": int(acl.permission),
    }


# -- create -----------------------------------------------------------------------------------------------------------


async def _create(context: ApiContext, request: Request, body: Any) -> dict[str, Any]:
    refusal = _refusal(context, request, Operation.ALTER)
    if refusal is not None or context.acls is None:
        return {"results": itertools.repeat(_error(refusal or NO_AUTHORIZER), len(body.creations))}
    wanted = await finished(context, request, collected(body.creations, _creation))
    by_pattern: dict[Pattern, set[Acl]] = {}
    for creation in wanted:
        if not isinstance(creation, KafkaError):
            by_pattern.setdefault(creation[0], set()).add(creation[1])
    failed: dict[Pattern, KafkaError] = {}
    await waiting.for_zookeeper(context)
    for pattern, new in by_pattern.items():
        await slice_of_own(context, request)
        try:
            await _change(context.acls, pattern, frozenset(new), frozenset())
        except KafkaError as error:
            failed[pattern] = error
    return {
        "results": [
            _error(creation)
            if isinstance(creation, KafkaError)
            else _error(failed[creation[0]])
            if creation[0] in failed
            else NO_ERROR
            for creation in wanted
        ]
    }


def _creation(row: Any) -> tuple[Pattern, Acl] | KafkaError:
    """The ACL of a row, or why it cannot be made."""
    kind = _word(ResourceType, row.resource_type)
    pattern_type = _word(PatternType, row.resource_pattern_type)
    operation, permission = _word(Operation, row.operation), _word(Permission, row.permission_type)
    name = str(row.resource_name)
    reason = ""
    if 0 in (kind, pattern_type, operation, permission):
        reason = "ACL binding contains unknown elements"
    elif ResourceType.ANY is kind or pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        reason = "an ACL needs a type of resources, and a pattern that is literal or prefixed"
    elif Operation.ANY is operation or Permission.ANY is permission:
        reason = "an ACL allows or denies one operation, or All"
    elif kind is ResourceType.CLUSTER and name != CLUSTER_NAME:
        reason = f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    elif not name:
        reason = "Invalid empty resource name"
    elif not acl_znodes.is_name(name):
        reason = "ACL binding contains invalid resource name"
    elif not _is_principal(str(row.principal)):
        reason = "a principal is a text such as User:alice"
    if reason:
        return KafkaError(ErrorCode.INVALID_REQUEST, reason)
    return Pattern(kind, name, pattern_type), Acl(str(row.principal), str(row.host), operation, permission)


def _is_principal(text: str) -> bool:
    kind, _, name = text.partition(":")
    return bool(kind and name)


async def _change(store: AclStore, pattern: Pattern, new: frozenset[Acl], gone: frozenset[Acl]) -> None:
    """Raises KafkaError."""
    try:
        await store.change(pattern, lambda before: (before | new) - gone, CHANGE_TIMEOUT_S)
    except ZkError as error:
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"ZooKeeper does not answer: {error}") from None
    except (CannotChangeAcls, ValueError) as error:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from None


# -- delete -----------------------------------------------------------------------------------------------------------


async def _delete(context: ApiContext, request: Request, body: Any) -> dict[str, Any]:
    refusal = _refusal(context, request, Operation.ALTER)
    if refusal is not None or context.acls is None or context.authorizer is None:
        row = {**_error(refusal or NO_AUTHORIZER), "matching_acls": []}
        return {"filter_results": itertools.repeat(row, len(body.filters))}
    filters = await finished(context, request, collected(body.filters, _filter))
    found: list[list[dict[str, Any]]] = [[] for _ in filters]
    await waiting.for_zookeeper(context)
    # Named patterns are looked up in ZooKeeper: this broker may not have heard of them yet.
    named = (pattern for chosen, _ in filters if (pattern := chosen.only_pattern()) is not None)
    for pattern in dict.fromkeys((*context.authorizer.index.patterns(), *named)):
        of_pattern = [(at, of_acls) for at, (chosen, of_acls) in enumerate(filters) if chosen.matches(pattern)]
        if not of_pattern or not acl_znodes.is_name(pattern.name):
            continue
        await slice_of_own(context, request)
        for at, row in await _deleted(context.acls, pattern, of_pattern):
            found[at].append(row)
    return {"filter_results": [{**NO_ERROR, "matching_acls": rows} for rows in found]}


async def _deleted(
    store: AclStore, pattern: Pattern, filters: Sequence[tuple[int, AclFilter]]
) -> Iterable[tuple[int, dict[str, Any]]]:
    """Deletes the pattern's ACLs that a filter matches. Returns a row for each, with the index of its first filter."""
    chosen: dict[Acl, int] = {}

    def change(before: frozenset[Acl]) -> frozenset[Acl]:
        chosen.clear()
        for at, of_acls in filters:
            for acl in before:
                if of_acls.matches(acl):
                    chosen.setdefault(acl, at)
        return before - chosen.keys()

    result: Mapping[str, Any] = NO_ERROR
    try:
        before, after = await store.change(pattern, change, CHANGE_TIMEOUT_S)
        for at, of_acls in filters:  # again: of a lost answer, the last attempt has found nothing to delete
            for acl in before - after:
                if of_acls.matches(acl):
                    chosen.setdefault(acl, at)
    except ZkError as error:
        result = _error(KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"ZooKeeper does not answer: {error}"))
    except (CannotChangeAcls, ValueError) as error:
        result = _error(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)))
    return [(at, {**result, **_pattern_row(pattern), **_acl_row(acl)}) for acl, at in chosen.items()]


# -- what requests have -----------------------------------------------------------------------------------------------


def _filter(row: Any) -> Filter:
    return (
        PatternFilter(
            _word(ResourceType, row.resource_type_filter),
            row.resource_name_filter,
            _word(PatternType, row.pattern_type_filter),
        ),
        AclFilter(
            row.principal_filter,
            row.host_filter,
            _word(Operation, row.operation),
            _word(Permission, row.permission_type),
        ),
    )


def _word(kind: type[Any], number: int) -> Any:
    """Numbers that do not exist are UNKNOWN, which no ACL has. Raises MalformedRequest for the number of UNKNOWN itself, as Kafka."""
    if number == kind.UNKNOWN:
        raise MalformedRequest(f"{kind.__name__} {number}: unknown")
    try:
        return kind(number)
    except ValueError:
        return kind.UNKNOWN
