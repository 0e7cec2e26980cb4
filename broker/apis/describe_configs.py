"""DescribeConfigs (API 32), v1 to v4: what is set, and where it comes from; of topics, of this broker, of all brokers.

v3 adds the settings' types and, when asked, their documentation.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any

from broker.apis.config_admin import Resource
from broker.apis.context import ApiContext
from broker.apis.steps import Steps, respond_in_steps
from broker.config_layers import DescribedSetting
from broker.network.request_channel import Request
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka import describe_configs_codec, messages
from protocol.kafka.api_keys import ApiKey
from protocol.zk.session import ZkError

RESOURCES_IN_A_STEP = 5


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
    going_on = respond_in_steps(context, request, _answer(request.header.api_version, body, resources, found))
    if going_on is not None:
        await going_on


def _answer(
    version: int, body: Any, resources: Sequence[Resource], found: Sequence[Sequence[DescribedSetting] | KafkaError]
) -> Steps:
    """Most topics have the same settings, and those that have not have most of them: each is encoded once."""
    with_documentation = getattr(body, "include_documentation", False)
    encoded: dict[DescribedSetting, bytes] = {}
    shown: dict[tuple[int, frozenset[str]], list[bytes]] = {}
    results = []
    for number, (row, resource, settings) in enumerate(zip(body.resources, resources, found, strict=True), 1):
        if number % RESOURCES_IN_A_STEP == 0:
            yield
        if isinstance(settings, KafkaError):
            results.append(_result(version, resource, settings.code, settings.message, ()))
            continue
        wanted = frozenset(row.configuration_keys or ())
        key = (id(settings), wanted)
        if key not in shown:
            rows = shown[key] = []
            for setting in settings:
                if not wanted or setting.name in wanted:
                    if setting not in encoded:
                        encoded[setting] = _encoded(version, setting, body.include_synonyms, with_documentation)
                    rows.append(encoded[setting])
        results.append(_result(version, resource, ErrorCode.NONE, "", shown[key]))
    return describe_configs_codec.encode_response(version, results)


def _result(version: int, resource: Resource, error: ErrorCode, message: str, settings: Sequence[bytes]) -> bytes:
    kind, name = resource
    return describe_configs_codec.encode_result(version, error, message or None, kind, name, settings)


def _encoded(version: int, setting: DescribedSetting, with_synonyms: bool, with_documentation: bool) -> bytes:
    return describe_configs_codec.encode_setting(
        version,
        setting.name,
        setting.value,
        is_read_only=setting.is_read_only,
        source=setting.source,
        synonyms=setting.synonyms if with_synonyms else (),
        config_type=setting.config_type,
        documentation=setting.documentation if with_documentation else None,
    )
