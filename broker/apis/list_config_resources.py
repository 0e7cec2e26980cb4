"""ListConfigResources (API 74), v0 and v1: the names of resources that have settings (KIP-1142).

v0 lists the subscriptions to metrics of clients. v1 lists resources of the types that it names, of all types if it names none: topics,
brokers, the loggers of brokers, and those subscriptions. A type that does not exist gets UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker.admin.config_admin import ResourceType
from broker.network.request_channel import Request
from broker.requests import rights
from broker.requests.context import ApiContext
from broker.requests.steps import Further, Steps, respond_in_steps
from protocol.acls import Operation
from protocol.errors import ErrorCode
from protocol.kafka import messages

TYPES_SINCE = 1
EVERY_TYPE = (
    ResourceType.TOPIC,
    ResourceType.BROKER,
    ResourceType.BROKER_LOGGER,
    ResourceType.CLIENT_METRICS,
    ResourceType.GROUP,
)


def list_config_resources(context: ApiContext, request: Request) -> Further:
    return respond_in_steps(context, request, _answer(context, request))


def _answer(context: ApiContext, request: Request) -> Steps:
    header = request.header
    body = yield from messages.decoding(header.api_key, header.api_version, request.frame, header.body_offset)
    types: Iterable[int] = (ResourceType.CLIENT_METRICS,)
    if header.api_version >= TYPES_SINCE:
        types = dict.fromkeys(body.resource_types) or EVERY_TYPE
    yield
    error = ErrorCode.NONE
    if not rights.on_cluster(context, request, Operation.DESCRIBE_CONFIGS):
        error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    elif any(kind not in EVERY_TYPE for kind in types):
        error = ErrorCode.UNSUPPORTED_VERSION
    answer = {
        "throttle_time": 0,
        "error_code": int(error),
        "config_resources": [
            {"resource_name": name, "resource_type": int(kind)} for kind in types for name in _names(context, kind)
        ]
        if error is ErrorCode.NONE
        else [],
    }
    return (yield from messages.encoding(header.api_key, header.api_version, answer))


def _names(context: ApiContext, kind: int) -> Iterable[str]:
    if kind == ResourceType.TOPIC:
        return context.metadata.topics()
    if kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER):
        return (str(broker.id) for broker in context.metadata.brokers())
    return context.telemetry.names() if kind == ResourceType.CLIENT_METRICS else context.group_configs.names()
