"""DescribeUserScramCredentials (API 50), v0, and AlterUserScramCredentials (API 51), v0 (KIP-554).

Only the active controller alters; others answer NOT_CONTROLLER. The secrets in an answer are none: mechanisms and iterations.
"""

from __future__ import annotations

from typing import Any

from broker.admin.scram_admin import Deletion, Described, Upsertion, users_of
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
"""Limit of the changes in a request: each takes a write to ZooKeeper."""


async def describe_user_scram_credentials(context: ApiContext, request: Request) -> None:
    body = await _body(context, request)
    answer: dict[str, Any] = {"throttle_time": 0, "error_code": 0, "error_message": None, "results": []}
    described: dict[str, Described] = {}
    try:
        if not rights.on_cluster(context, request, Operation.DESCRIBE):
            answer |= {"error_code": int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED), "error_message": NOT_ALLOWED}
        else:
            await waiting.for_zookeeper(context)
            described = await context.scram_admin.describe([row.name for row in body.users or ()])
    except ZkError as away:
        answer |= {
            "error_code": int(ErrorCode.REQUEST_TIMED_OUT),
            "error_message": f"ZooKeeper does not answer: {away}",
        }
    for user, found in described.items():
        error = found if isinstance(found, KafkaError) else None
        infos = () if isinstance(found, KafkaError) else found
        answer["results"].append(
            _result(user, error) | {"credential_infos": [{"mechanism": m, "iterations": i} for m, i in infos]}
        )
    await _respond(context, request, answer)


async def alter_user_scram_credentials(context: ApiContext, request: Request) -> None:
    body = await _body(context, request)
    upsertions = [
        Upsertion(row.name, row.mechanism, row.iterations, row.salt, row.salted_password) for row in body.upsertions
    ]
    deletions = [Deletion(row.name, row.mechanism) for row in body.deletions]
    users = users_of(upsertions, deletions)
    results: dict[str, KafkaError | None]
    if not context.controller.is_active:
        refused = KafkaError(ErrorCode.NOT_CONTROLLER, "")
        results = dict.fromkeys(users, refused)
    elif not rights.on_cluster(context, request, Operation.ALTER):
        refused = KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, NOT_ALLOWED)
        results = dict.fromkeys(users, refused)
    elif len(upsertions) + len(deletions) > CHANGES_MAX:
        refused = KafkaError(ErrorCode.INVALID_REQUEST, f"more than {CHANGES_MAX} changes in one request")
        results = dict.fromkeys(users, refused)
    else:
        await waiting.for_zookeeper(context)
        results = await context.scram_admin.alter(upsertions, deletions)
    rows = [_result(user, error) for user, error in results.items()]
    await _respond(context, request, {"throttle_time": 0, "results": rows})


def _result(user: str, error: KafkaError | None) -> dict[str, Any]:
    code = error.code if error is not None else ErrorCode.NONE
    return {"user": user, "error_code": int(code), "error_message": error.message or None if error else None}


async def _body(context: ApiContext, request: Request) -> Any:
    header = request.header
    reading = messages.decoding(header.api_key, header.api_version, request.frame, header.body_offset)
    return await finished(context, request, reading)


async def _respond(context: ApiContext, request: Request, answer: dict[str, Any]) -> None:
    header = request.header
    await respond_when_finished(context, request, messages.encoding(header.api_key, header.api_version, answer))
