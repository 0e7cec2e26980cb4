"""DescribeConfigs (API 32), v1 to v4: the settings of topics, of this broker, and of all brokers, with their sources.

v3 adds the settings' types and, if requested, their documentation. A resource that is named twice is answered once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from broker.admin.config_admin import Overrides, Resource, ResourceType
from broker.apis.alter_configs import refused_for
from broker.network.request_channel import Request
from broker.requests import waiting
from broker.requests.context import ApiContext
from broker.requests.steps import Steps, StepsTo, finished, respond_when_finished, slice_of_own
from broker.settings.config_layers import DescribedSetting
from protocol.acls import Operation
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka import describe_configs_codec, messages
from protocol.kafka.by_schema import AnswerTooLarge
from protocol.zk.session import ZkError

RESOURCES_IN_A_STEP = 100

Settings = Sequence[DescribedSetting] | KafkaError


async def describe_configs(context: ApiContext, request: Request) -> None:
    header = request.header
    reading = messages.decoding(header.api_key, header.api_version, request.frame, header.body_offset)
    body = await finished(context, request, reading)
    rows = await finished(context, request, _once_each(body))
    refused = await finished(context, request, _refused(context, request, rows))
    topics = [resource.name for resource in rows if resource.kind == ResourceType.TOPIC and resource not in refused]
    found: Mapping[str, Overrides] = {}
    away: KafkaError | None = None
    try:
        if topics:
            await waiting.for_zookeeper(context)
            found = await context.config_admin.topic_overrides(topics, lambda: slice_of_own(context, request))
    except ZkError as error:
        away = KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"ZooKeeper does not answer: {error}")
    await respond_when_finished(
        context, request, _answer(context, header.api_version, body, rows, found, away, refused)
    )


def _refused(context: ApiContext, request: Request, rows: Iterable[Resource]) -> StepsTo[Mapping[Resource, KafkaError]]:
    """The resources whose settings the client may not describe."""
    refused: dict[Resource, KafkaError] = {}
    for number, resource in enumerate(rows, 1):
        error = refused_for(context, request, Operation.DESCRIBE_CONFIGS, resource)
        if error is not None:
            refused[resource] = error
        if number % RESOURCES_IN_A_STEP == 0:
            yield
    return refused


def _once_each(body: Any) -> StepsTo[Mapping[Resource, Any]]:
    """Resource -> its first row in the request."""
    rows: dict[Resource, Any] = {}
    for number, row in enumerate(body.resources, 1):
        rows.setdefault(Resource(row.resource_type, row.resource_name), row)
        if number % RESOURCES_IN_A_STEP == 0:
            yield
    return rows


def _answer(
    context: ApiContext,
    version: int,
    body: Any,
    rows: Mapping[Resource, Any],
    found: Mapping[str, Overrides],
    away: KafkaError | None,
    refused: Mapping[Resource, KafkaError],
) -> Steps:
    """Encodes equal settings once: most settings of most topics are equal."""
    with_documentation = getattr(body, "include_documentation", False)
    encoded: dict[DescribedSetting, bytes] = {}
    kept: dict[tuple[tuple[str, str], ...], list[DescribedSetting]] = {}
    shown: dict[tuple[int, frozenset[str]], list[bytes]] = {}
    results = []
    left = messages.ANSWER_BYTES_MAX
    for resource, row in rows.items():
        settings: Settings = refused.get(resource) or away or context.config_admin.described(resource, found, kept)
        yield
        if isinstance(settings, KafkaError):
            result = _result(version, resource, settings.code, settings.message, ())
        else:
            wanted = frozenset(row.configuration_keys or ())
            # Only topics are in `shown`. `kept` keeps their lists, so the id of a list that was freed is never found.
            key = (id(settings), wanted)
            chosen = shown.get(key)
            if chosen is None:
                chosen = []
                for setting in settings:
                    if not wanted or setting.name in wanted:
                        if setting not in encoded:
                            encoded[setting] = _encoded(version, setting, body.include_synonyms, with_documentation)
                            yield
                        chosen.append(encoded[setting])
                if resource.kind == ResourceType.TOPIC:
                    shown[key] = chosen
            result = _result(version, resource, ErrorCode.NONE, "", chosen)
        results.append(result)
        left -= len(result)
        if left < 0:
            raise AnswerTooLarge
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
        is_sensitive=setting.is_sensitive,
        source=setting.source,
        synonyms=setting.synonyms if with_synonyms else (),
        config_type=setting.config_type,
        documentation=setting.documentation if with_documentation else None,
    )
