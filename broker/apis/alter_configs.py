"""AlterConfigs (API 33), v0 to v2: replaces all settings of a topic or a broker. Settings that are not in the request are reset.

`alter_resources` also serves IncrementalAlterConfigs. Each resource has its own result; an error of one does not affect the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from broker.admin import config_changes
from broker.admin.config_admin import Resource, ResourceType
from broker.admin.config_changes import Change
from broker.network.request_channel import Request
from broker.requests import rights, waiting
from broker.requests.context import ApiContext
from broker.requests.steps import each, finished, respond_when_finished, slice_of_own
from protocol.acls import Operation
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka import messages
from protocol.zk.session import ZkError

RESOURCES_IN_A_STEP = 100
RESOURCES_AT_ONCE = 20
"""Resources between two pauses: resources that are refused without a request to ZooKeeper would not yield the loop."""
CHANGES_MAX = 1_000
"""Limit of settings of one resource in a request. Far fewer settings exist."""


def alter_configs(context: ApiContext, request: Request) -> Coroutine[Any, Any, None]:
    def changes_of(row: Any) -> list[Change]:
        return [Change(config.name, config_changes.Operation.SET, config.value) for config in row.configs]

    return alter_resources(context, request, changes_of, replaces_all=True)


async def alter_resources(
    context: ApiContext, request: Request, changes_of: Callable[[Any], Sequence[Change]], *, replaces_all: bool
) -> None:
    """Changes the resources of the request one after the other, and answers."""
    header = request.header
    reading = messages.decoding(header.api_key, header.api_version, request.frame, header.body_offset)
    body = await finished(context, request, reading)
    validate_only = body.validate_only
    counts: Counter[Resource] = Counter()
    counting = each(body.resources, lambda row: counts.update((_resource(row),)), RESOURCES_IN_A_STEP)
    await finished(context, request, counting)
    await waiting.for_zookeeper(context)
    responses = []
    for number, row in enumerate(body.resources, 1):
        if number % RESOURCES_AT_ONCE == 0:
            await slice_of_own(context, request)
        resource = _resource(row)
        error, message = ErrorCode.NONE, ""
        try:
            if counts[resource] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "the resource is named twice in the request")
            if len(row.configs) > CHANGES_MAX:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"more than {CHANGES_MAX} settings of one resource")
            refusal = refused_for(context, request, Operation.ALTER_CONFIGS, resource)
            if refusal is not None:
                raise refusal
            changes = changes_of(row)
            await context.config_admin.alter(resource, changes, replaces_all=replaces_all, validate_only=validate_only)
        except KafkaError as refused:
            error, message = refused.code, refused.message
        except ZkError as away:
            error, message = ErrorCode.REQUEST_TIMED_OUT, f"ZooKeeper does not answer: {away}"
        responses.append(
            {
                "error_code": int(error),
                "error_message": message or None,
                "resource_type": resource.kind,
                "resource_name": resource.name,
            }
        )
    answer = {"throttle_time": 0, "responses": responses}
    await respond_when_finished(context, request, messages.encoding(header.api_key, header.api_version, answer))


def refused_for(context: ApiContext, request: Request, operation: Operation, resource: Resource) -> KafkaError | None:
    """The error if the client may not do this with the settings of the resource: a topic's, a group's, or else the cluster's."""
    if resource.kind == ResourceType.TOPIC:
        if not rights.on_topic(context, request, operation, resource.name):
            return KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "")
    elif resource.kind == ResourceType.GROUP:
        if not rights.on_group(context, request, operation, resource.name):
            return KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "")
    elif not rights.on_cluster(context, request, operation):
        return KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "")
    return None


def _resource(row: Any) -> Resource:
    return Resource(row.resource_type, row.resource_name)
