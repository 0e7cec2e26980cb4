"""CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken, DescribeDelegationToken (APIs 38 to 41, KIP-48, KIP-373).

Versions: v1 to v3, v1 and v2, v1 and v2, v1 to v3. Any broker serves them. As in Kafka (`KafkaApis.allowTokenRequests`), they are for
clients with a login or a certificate, and not for those that have logged in by a token: DELEGATION_TOKEN_REQUEST_NOT_ALLOWED. Without
`delegation.token.secret.key`, the error is DELEGATION_TOKEN_AUTH_DISABLED.

What differs: the owner must be of the type User, because whoever logs in by the token is one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from broker.network.request_channel import Request
from broker.requests import rights, waiting
from broker.requests.context import ApiContext
from broker.requests.steps import StepsTo, finished, respond_when_finished
from broker.security.token_store import TokenStore
from protocol.acls import Operation, ResourceType
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka import messages
from protocol.types import ANONYMOUS, USER, Principal
from protocol.zk.session import ZkError
from protocol.zk.token_znodes import DelegationToken

NO_TIME = -1
TOKENS_IN_A_STEP = 20
OWNERS_IN_A_STEP = 500
RENEWERS_MAX = 500
"""Renewers that are read. A token with so many is refused: its node would have too many bytes."""
NOT_ALLOWED = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


async def create_delegation_token(context: ApiContext, request: Request) -> None:
    body = await _body(context, request)
    requester = request.connection.principal
    named = getattr(body, "owner_principal_name", None)
    owner = Principal(body.owner_principal_type or "", named) if named else requester
    renewers = [Principal(row.principal_type, row.principal_name) for row in body.renewers[:RENEWERS_MAX]]
    answer: dict[str, Any] = {
        "throttle_time": 0,
        "error_code": int(ErrorCode.NONE),
        "principal_type": owner.kind,
        "principal_name": owner.name,
        "token_requester_principal_type": requester.kind,
        "token_requester_principal_name": requester.name,
        "issue_timestamp": NO_TIME,
        "expiry_timestamp": NO_TIME,
        "max_timestamp": NO_TIME,
        "token_id": "",
        "hmac": b"",
    }

    async def create(store: TokenStore) -> dict[str, Any]:
        token = await store.create(owner, requester, renewers, messages.milliseconds(body.max_lifetime))
        return {
            "issue_timestamp": token.issued_ms,
            "expiry_timestamp": token.expires_ms,
            "max_timestamp": token.ends_ms,
            "token_id": token.id,
            "hmac": store.tokens.hmac_of(token.id),
        }

    def check() -> None:
        user = ResourceType.USER
        if owner != requester and not rights.may(context, request, Operation.CREATE_TOKENS, user, str(owner)):
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED, "")
        if any(principal.kind != USER for principal in (owner, *renewers)):
            raise KafkaError(ErrorCode.INVALID_PRINCIPAL_TYPE, "")

    await _respond(context, request, answer | await _outcome(context, request, create, check))


async def renew_delegation_token(context: ApiContext, request: Request) -> None:
    body = await _body(context, request)
    principal = request.connection.principal

    async def renew(store: TokenStore) -> dict[str, Any]:
        expires_ms = await store.renew(principal, bytes(body.hmac), messages.milliseconds(body.renew_period))
        return {"expiry_timestamp": expires_ms}

    await _respond(context, request, await _outcome(context, request, renew))


async def expire_delegation_token(context: ApiContext, request: Request) -> None:
    body = await _body(context, request)
    principal = request.connection.principal

    async def expire(store: TokenStore) -> dict[str, Any]:
        expires_ms = await store.expire(principal, bytes(body.hmac), messages.milliseconds(body.expiry_time_period))
        return {"expiry_timestamp": expires_ms}

    await _respond(context, request, await _outcome(context, request, expire))


async def describe_delegation_token(context: ApiContext, request: Request) -> None:
    body = await _body(context, request)

    async def describe(store: TokenStore) -> dict[str, Any]:
        return {"tokens": await finished(context, request, _described(context, request, store, body.owners))}

    await _respond(context, request, {"tokens": []} | await _outcome(context, request, describe))


def _described(
    context: ApiContext, request: Request, store: TokenStore, owners: Sequence[Any] | None
) -> StepsTo[list[dict[str, Any]]]:
    """The tokens of these owners that the client may see: its own, those that it may renew, and those that it has a right to.

    `owners` are rows of the request; None: of everybody.
    """
    principal = request.connection.principal
    wanted: set[Principal] = set()
    for number, row in enumerate(owners or (), 1):
        wanted.add(Principal(row.principal_type, row.principal_name))
        if number % OWNERS_IN_A_STEP == 0:
            yield

    def may_see(token: DelegationToken) -> bool:
        if owners is not None and wanted.isdisjoint((token.owner, *token.renewers)):
            return False
        describe, describe_tokens = Operation.DESCRIBE, Operation.DESCRIBE_TOKENS
        return (
            token.is_of(principal)
            or rights.may(context, request, describe, ResourceType.DELEGATION_TOKEN, token.id, is_quiet=True)
            or rights.may(context, request, describe_tokens, ResourceType.USER, str(token.owner), is_quiet=True)
        )

    rows = []
    for number, token in enumerate(list(store.tokens.tokens.values()), 1):
        if may_see(token):
            rows.append(_row(token, store.tokens.hmac_of(token.id)))
        if number % TOKENS_IN_A_STEP == 0:
            yield
    return rows


def _row(token: DelegationToken, digest: bytes) -> dict[str, Any]:
    return {
        "principal_type": token.owner.kind,
        "principal_name": token.owner.name,
        "token_requester_principal_type": token.requester.kind,
        "token_requester_principal_name": token.requester.name,
        "issue_timestamp": token.issued_ms,
        "expiry_timestamp": token.expires_ms,
        "max_timestamp": token.ends_ms,
        "token_id": token.id,
        "hmac": digest,
        "renewers": [{"principal_type": one.kind, "principal_name": one.name} for one in token.renewers],
    }


async def _outcome(
    context: ApiContext,
    request: Request,
    act: Callable[[TokenStore], Awaitable[dict[str, Any]]],
    check: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """The error, or what `act` returns."""
    connection = request.connection
    try:
        if connection.principal == ANONYMOUS or connection.is_by_token:
            raise KafkaError(NOT_ALLOWED, "")
        check()
        if context.tokens is None:
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, "")
        await waiting.for_zookeeper(context)
        return {"error_code": int(ErrorCode.NONE)} | await act(context.tokens)
    except KafkaError as error:
        code = error.code
    except ZkError:
        code = ErrorCode.REQUEST_TIMED_OUT
    return {"error_code": int(code)}


async def _body(context: ApiContext, request: Request) -> Any:
    header = request.header
    reading = messages.decoding(header.api_key, header.api_version, request.frame, header.body_offset)
    return await finished(context, request, reading)


async def _respond(context: ApiContext, request: Request, answer: dict[str, Any]) -> None:
    header = request.header
    whole = {"throttle_time": 0, "expiry_timestamp": NO_TIME} | answer
    await respond_when_finished(context, request, messages.encoding(header.api_key, header.api_version, whole))
