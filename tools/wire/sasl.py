"""SASL over a connection to a broker: SaslHandshake v1, then SaslAuthenticate v1 with the messages of the mechanism."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from protocol.bearer import CONFIRMATION, first_message, unsecured_extensions
from protocol.bearer import MECHANISM as OAUTHBEARER
from protocol.errors import ErrorCode, error_name
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.messages import milliseconds
from protocol.plain_text import escaped, shortened
from protocol.scram import HASHES, ScramClient, ScramError
from tools.wire import frames
from tools.wire.connection import AccessRefused, BrokerConnection
from tools.wire.security import Security

PLAIN = "PLAIN"
MECHANISMS = (PLAIN, *HASHES, OAUTHBEARER)
HANDSHAKE_VERSION = 1
AUTHENTICATE_VERSION = 1
TEXT_MAX = 300


async def authenticate(connection: BrokerConnection, client: str, security: Security, timeout_s: float) -> float:
    """Logs in, on a new connection or again on an old one. Returns for how many seconds the broker accepts the login; 0: for ever.

    Raises AccessRefused, OSError, MalformedRequest.
    """

    async def ask(api_key: ApiKey, version: int, body: Mapping[str, Any]) -> Any:
        request = frames.request_frame(api_key, version, client, body)
        return frames.answer(api_key, version, await connection.ask(request, timeout_s, ahead=True))

    async def exchange(message: bytes) -> Any:
        answer = await ask(ApiKey.SASL_AUTHENTICATE, AUTHENTICATE_VERSION, {"auth_bytes": message})
        if answer.error_code:
            said = shortened(escaped(answer.error_message or error_name(answer.error_code)), TEXT_MAX)
            if security.mechanism == OAUTHBEARER:
                raise AccessRefused(f"it refuses the token: {said}")
            raise AccessRefused(
                f"it refuses user {escaped(security.username)!r} with {security.mechanism}: {said}; "
                "check sasl.username and sasl.password"
            )
        return answer

    answer = await ask(ApiKey.SASL_HANDSHAKE, HANDSHAKE_VERSION, {"mechanism": security.mechanism})
    if answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        offered = ", ".join(map(escaped, answer.mechanisms)) or "nothing"
        raise AccessRefused(f"it does not offer {security.mechanism}; it offers {offered}; set sasl.mechanism")
    if answer.error_code == ErrorCode.ILLEGAL_SASL_STATE:
        raise AccessRefused(f"it takes no SASL at this port; check security.protocol={security.protocol}")
    if answer.error_code:
        raise AccessRefused(f"it refuses the SASL handshake: {error_name(answer.error_code)}")
    if security.mechanism == OAUTHBEARER:
        try:
            message = first_message(security.token(), unsecured_extensions(security.token_options))
        except (OSError, ValueError) as problem:
            raise AccessRefused(f"there is no token for it: {problem}") from None
        said = await exchange(message)
        return _lifetime_s(await exchange(CONFIRMATION) if said.auth_bytes else said)
    if security.mechanism == PLAIN:
        message = f"\0{security.username}\0{security.password}".encode()
        return _lifetime_s(await exchange(message))
    scram = ScramClient(security.mechanism, security.username, security.password, secrets.token_hex(16))
    first = await exchange(scram.first())
    try:
        last = await exchange(scram.final(first.auth_bytes))
        scram.check(last.auth_bytes)
    except ScramError as problem:
        raise AccessRefused(escaped(str(problem))) from None
    return _lifetime_s(last)


def _lifetime_s(answer: Any) -> float:
    return milliseconds(answer.session_lifetime) / 1000
