"""AlterConfigs (API 33), v0 to v2: sets all settings of a topic or a broker; what is not named is reset.

`alter_resources` serves IncrementalAlterConfigs too. Each resource has its own answer; the others go on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Coroutine, Sequence
from typing import Any

from broker.apis.config_admin import Resource
from broker.apis.config_changes import Change, Operation
from broker.apis.context import ApiContext
from broker.network.request_channel import Request
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from protocol.zk.session import ZkError


def alter_configs(context: ApiContext, request: Request) -> Coroutine[Any, Any, None]:
    header = request.header
    body = messages.decode_request(ApiKey.ALTER_CONFIGS, header.api_version, request.frame, header.body_offset)
    asked = [
        (
            Resource(row.resource_type, row.resource_name),
            [Change(config.name, Operation.SET, config.value) for config in row.configs],
        )
        for row in body.resources
    ]
    return alter_resources(
        context, request, ApiKey.ALTER_CONFIGS, asked, replaces_all=True, validate_only=body.validate_only
    )


async def alter_resources(
    context: ApiContext,
    request: Request,
    api_key: ApiKey,
    asked: Sequence[tuple[Resource, Sequence[Change]]],
    *,
    replaces_all: bool,
    validate_only: bool,
) -> None:
    """Changes one resource after the other, and answers."""
    counts = Counter(resource for resource, _ in asked)
    responses = []
    for resource, changes in asked:
        error, message = ErrorCode.NONE, ""
        try:
            if counts[resource] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "each resource must appear at most once")
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
    request.respond_small(messages.encode_response(api_key, request.header.api_version, answer))
