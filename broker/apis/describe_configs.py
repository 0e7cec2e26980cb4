"""DescribeConfigs (API 32), v1 to v4: what is set, and where it comes from; of topics, of this broker, of all brokers.

v3 adds the settings' types and, when asked, their documentation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

from broker.apis.config_admin import Resource
from broker.apis.context import ApiContext
from broker.config_layers import DescribedSetting
from broker.network.request_channel import Request
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from protocol.zk.session import ZkError

INLINE_MAX = 20
"""Resources whose answer is made at once; that of more is made in a thread."""


def describe_configs(context: ApiContext, request: Request) -> Coroutine[Any, Any, None]:
    header = request.header
    body = messages.decode_request(ApiKey.DESCRIBE_CONFIGS, header.api_version, request.frame, header.body_offset)
    return _describe(context, request, body)


async def _describe(context: ApiContext, request: Request, body: Any) -> None:
    resources = [Resource(row.resource_type, row.resource_name) for row in body.resources]
    found: Sequence[Sequence[DescribedSetting] | KafkaError]
    try:
        found = await context.config_admin.describe(resources)
    except ZkError as error:
        away = KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"ZooKeeper does not answer: {error}")
        found = [away] * len(resources)
    encode = partial(_encoded, request.header.api_version, body, resources, found)
    if len(resources) <= INLINE_MAX:
        request.respond_small(encode())
        return
    # Thousands of topics, as TopicCommand asks for, take seconds: the loop must not stand still for them.
    request.respond_small(await asyncio.get_running_loop().run_in_executor(None, encode))


def _encoded(
    version: int, body: Any, resources: Sequence[Resource], found: Sequence[Sequence[DescribedSetting] | KafkaError]
) -> bytes:
    include_documentation = getattr(body, "include_documentation", False)
    results = []
    shown: dict[tuple[int, frozenset[str]], list[dict[str, Any]]] = {}
    for row, resource, settings in zip(body.resources, resources, found, strict=True):
        if isinstance(settings, KafkaError):
            results.append(_result(resource, settings.code, settings.message, []))
            continue
        wanted = frozenset(row.configuration_keys or ())
        key = (id(settings), wanted)  # most topics have the same settings, which are described once
        if key not in shown:
            shown[key] = [
                _row(setting, body.include_synonyms, include_documentation)
                for setting in settings
                if not wanted or setting.name in wanted
            ]
        results.append(_result(resource, ErrorCode.NONE, "", shown[key]))
    answer = {"throttle_time": 0, "results": results}
    return messages.encode_response(ApiKey.DESCRIBE_CONFIGS, version, answer)


def _result(resource: Resource, error: ErrorCode, message: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "error_code": int(error),
        "error_message": message or None,
        "resource_type": resource.kind,
        "resource_name": resource.name,
        "configs": rows,
    }


def _row(setting: DescribedSetting, include_synonyms: bool, include_documentation: bool) -> dict[str, Any]:
    synonyms = setting.synonyms if include_synonyms else ()
    return {
        "name": setting.name,
        "value": setting.value,
        "read_only": setting.is_read_only,
        "config_source": int(setting.source),
        "is_sensitive": False,
        "synonyms": [{"name": s.name, "value": s.value, "source": int(s.source)} for s in synonyms],
        "config_type": int(setting.config_type),
        "documentation": setting.documentation if include_documentation else None,
    }
