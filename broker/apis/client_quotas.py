"""DescribeClientQuotas (API 48), v0 and v1, and AlterClientQuotas (API 49), v0 and v1 (KIP-546).

Every broker serves both. An entity is given by the names of its kinds, `user`, `client-id` or `ip`; null is the default.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from broker.admin.quota_admin import EXACT, Alteration, Component
from broker.network.request_channel import Request
from broker.requests import rights, waiting
from broker.requests.context import ApiContext
from broker.requests.steps import finished, respond_when_finished
from protocol.acls import Operation
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka import messages
from protocol.zk.session import ZkError

NOT_ALLOWED = "Cluster authorization failed."
CHANGES_MAX = 1000
"""Limit of the entities in a request: each takes a write to ZooKeeper."""
PARTS_MAX = 100
"""Limit of the parts of an entity, and of its changes."""
COMPONENTS_MAX = 4
"""Components of a filter that are read. There are three kinds of entities, so one more is wrong already."""


async def describe_client_quotas(context: ApiContext, request: Request) -> None:
    body = await _body(context, request)
    answer: dict[str, Any] = {"throttle_time": 0, "error_code": 0, "error_message": "", "entries": None}
    components = [
        Component(row.entity_type, row.match_type, row.match if row.match_type == EXACT else None)
        for row in body.components[:COMPONENTS_MAX]
    ]
    try:
        if not rights.on_cluster(context, request, Operation.DESCRIBE_CONFIGS):
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, NOT_ALLOWED)
        await waiting.for_zookeeper(context)
        described = await context.quota_admin.describe(components, is_strict=body.strict)
    except KafkaError as error:
        answer |= {"error_code": int(error.code), "error_message": error.message or None}
    except ZkError as away:
        answer |= {
            "error_code": int(ErrorCode.REQUEST_TIMED_OUT),
            "error_message": f"ZooKeeper does not answer: {away}",
        }
    else:
        answer["entries"] = (
            {
                "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()],
                "values": [{"key": key, "value": value} for key, value in quotas.items()],
            }
            for entity, quotas in described
        )
    await _respond(context, request, answer)


async def alter_client_quotas(context: ApiContext, request: Request) -> None:
    body = await _body(context, request)
    refusal: KafkaError | None = None
    if not rights.on_cluster(context, request, Operation.ALTER_CONFIGS):
        refusal = KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, NOT_ALLOWED)
    elif len(body.entries) > CHANGES_MAX:
        refusal = KafkaError(ErrorCode.INVALID_REQUEST, f"more than {CHANGES_MAX} entities in one request")
    elif any(max(len(row.entity), len(row.ops)) > PARTS_MAX for row in body.entries):
        refusal = KafkaError(ErrorCode.INVALID_REQUEST, f"more than {PARTS_MAX} parts or changes of one entity")
    answered: Iterable[tuple[Mapping[str, str | None], KafkaError | None]]
    if refusal is not None:
        answered = ((_names(row), refusal) for row in body.entries)
    else:
        await waiting.for_zookeeper(context)
        results = await context.quota_admin.alter(map(_alteration, body.entries), validate_only=body.validate_only)
        # An entity that is named twice is answered once, for its last change.
        last = {frozenset(_names(row).items()): error for row, error in zip(body.entries, results, strict=True)}
        answered = ((dict(names), error) for names, error in last.items())
    entries = (
        {
            "error_code": int(error.code) if error is not None else 0,
            "error_message": error.message or None if error is not None else None,
            "entity": [{"entity_type": kind, "entity_name": name} for kind, name in sorted(names.items())],
        }
        for names, error in answered
    )
    await _respond(context, request, {"throttle_time": 0, "entries": entries})


def _names(row: Any) -> dict[str, str | None]:
    return {part.entity_type: part.entity_name for part in row.entity[:PARTS_MAX]}


def _alteration(row: Any) -> Alteration:
    return Alteration(_names(row), [(op.key, None if op.remove else op.value) for op in row.ops])


async def _body(context: ApiContext, request: Request) -> Any:
    header = request.header
    reading = messages.decoding(header.api_key, header.api_version, request.frame, header.body_offset)
    return await finished(context, request, reading)


async def _respond(context: ApiContext, request: Request, answer: dict[str, Any]) -> None:
    header = request.header
    await respond_when_finished(context, request, messages.encoding(header.api_key, header.api_version, answer))
