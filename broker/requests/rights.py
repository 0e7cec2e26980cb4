"""Asks for a request whether its client may do something. Without an authorizer, everybody may do everything.

Which API asks what is in `broker/apis/table.py`. Each request is asked about anew, so a right that is taken away counts for the next
request of the same connection.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from broker.network.request_channel import Request
from broker.requests.context import ApiContext
from broker.requests.steps import StepsTo
from protocol.acls import CLUSTER_NAME, OPERATIONS_OF, Operation, ResourceType, name_of
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiLevel
from protocol.topic_names import shown

log = logging.getLogger(__name__)

CONFIGS = (Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)
NAMES_IN_A_STEP = 50
"""Names that are looked up between two pauses. One takes about 10 us if the authorizer does not know it yet."""


def may(
    context: ApiContext,
    request: Request,
    operation: Operation,
    kind: ResourceType,
    name: str,
    *,
    is_quiet: bool = False,
) -> bool:
    """Whether the client may do this with the resource. A denial is in the audit log, and at most one in a second in the server log.

    `is_quiet`: it is not, because the client has not asked for it: what it may not see is left out, or another right suffices.
    """
    authorizer = context.authorizer
    if authorizer is None:
        return True
    connection = request.connection
    if authorizer.allows(connection.principal, connection.remote_address, operation, kind, name):
        return True
    if not is_quiet:
        _log_denial(context, request, operation, kind, name)
    return False


def _log_denial(context: ApiContext, request: Request, operation: Operation, kind: ResourceType, name: str) -> None:
    connection = request.connection
    principal = str(connection.principal)
    api = messages.api_name(request.header.api_key)
    resource = f"{name_of(kind)}:{name}"
    context.audit.denied(connection.remote_address, principal, name_of(operation), resource, api)
    earlier = context.denials.happened()
    if earlier is not None:
        log.info(
            "%s from %s may not %s on %s %s: %s%s",
            shown(principal),
            connection.remote_address,
            name_of(operation),
            name_of(kind),
            shown(name),
            request.named(),
            f" (and {earlier} earlier denials)" if earlier else "",
        )


def on_cluster(context: ApiContext, request: Request, operation: Operation, *, is_quiet: bool = False) -> bool:
    return may(context, request, operation, ResourceType.CLUSTER, CLUSTER_NAME, is_quiet=is_quiet)


def on_topic(
    context: ApiContext, request: Request, operation: Operation, topic: str, *, is_quiet: bool = False
) -> bool:
    return may(context, request, operation, ResourceType.TOPIC, topic, is_quiet=is_quiet)


def on_group(
    context: ApiContext, request: Request, operation: Operation, group_id: str, *, is_quiet: bool = False
) -> bool:
    return may(context, request, operation, ResourceType.GROUP, group_id, is_quiet=is_quiet)


def on_transactional_id(
    context: ApiContext, request: Request, operation: Operation, transactional_id: str, *, is_quiet: bool = False
) -> bool:
    return may(context, request, operation, ResourceType.TRANSACTIONAL_ID, transactional_id, is_quiet=is_quiet)


def on_some_topic(context: ApiContext, request: Request, operation: Operation) -> bool:
    """Whether the client may do this with any topic."""
    authorizer = context.authorizer
    if authorizer is None:
        return True
    connection = request.connection
    return authorizer.allows_with_any(connection.principal, connection.remote_address, operation, ResourceType.TOPIC)


def operations(context: ApiContext, request: Request, kind: ResourceType, name: str, everything: int) -> int:
    """What the client may do with the resource, as the number that answers have (KIP-430). `everything`: without an authorizer."""
    authorizer = context.authorizer
    if authorizer is None:
        return everything
    connection = request.connection
    return authorizer.operations(connection.principal, connection.remote_address, kind, name)


def operations_on_cluster(context: ApiContext, request: Request, everything: int) -> int:
    """As `operations`. Whoever may not describe the cluster gets 0."""
    if not on_cluster(context, request, Operation.DESCRIBE, is_quiet=True):
        return 0
    return operations(context, request, ResourceType.CLUSTER, CLUSTER_NAME, everything)


def operations_on_group(context: ApiContext, request: Request, group_id: str) -> int:
    """As `operations`. Kafka 3.9 does not tell who may see and change the settings of a group."""
    kind = ResourceType.GROUP
    told = [each for each in OPERATIONS_OF[kind] if context.api_level is not ApiLevel.KAFKA_3_9 or each not in CONFIGS]
    everything = sum(1 << operation for operation in told)
    return operations(context, request, kind, group_id, everything) & everything


def denied(
    context: ApiContext,
    request: Request,
    operation: Operation,
    kind: ResourceType,
    names: Iterable[str],
    *,
    is_quiet: bool = False,
) -> StepsTo[frozenset[str]]:
    """Those of the names with whose resources the client may not do this."""
    if context.authorizer is None:
        return frozenset()
    found = set()
    for number, name in enumerate(dict.fromkeys(names), 1):
        if not may(context, request, operation, kind, name, is_quiet=is_quiet):
            found.add(name)
        if number % NAMES_IN_A_STEP == 0:
            yield
    return frozenset(found)


def reader_of_topics(context: ApiContext, request: Request, *, is_follower: bool) -> Callable[[str], bool] | None:
    """Whether the client may fetch from a topic. A follower needs ClusterAction, and then may from all. None: without an authorizer."""
    if context.authorizer is None:
        return None
    if is_follower:
        return lambda topic: on_cluster(context, request, Operation.CLUSTER_ACTION)
    return lambda topic: on_topic(context, request, Operation.READ, topic)
