"""The login of one connection: frames in, answers out (KIP-43, KIP-152, KIP-368). Pure.

    BEGINS --ApiVersions--> HANDSHAKE --SaslHandshake--> TOKENS --the mechanism is complete--> done
       +-----------------SaslHandshake-----------------^  |
                                                          +-- anything else: LoginFailed

As in Kafka (SaslServerAuthenticator), ApiVersions may come once before the handshake, and nothing else comes before the login is done.
One that gets an error may be repeated, but not for ever: whoever has not logged in must not keep the broker busy. After a
SaslHandshake v0, frames are bare tokens; after v1, they are SaslAuthenticate requests. Only these fail with an answer.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

from broker.process.audit_log import AuditLog
from broker.security.mechanisms import PLAIN, FindToken, LoginRefused, Mechanism, Plain, Scram
from broker.security.oauth_bearer import OAuthBearer, Validate
from broker.security.scram_users import ScramUsers
from broker.settings.sasl import ListenerSasl
from protocol.bearer import MECHANISM as OAUTHBEARER
from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import SUPPORTED, ApiKey
from protocol.kafka.framing import MalformedRequest, RequestHeader, parse_request_header, response_header
from protocol.types import USER, Buffer, ClientSoftware, Principal

LENGTH_BYTES = 4
VERSIONS_REFUSED_MAX = 5
"""Limit of the ApiVersions of a login that are answered with an error. A client asks again once, with v0."""

AnswerApiVersions = Callable[[RequestHeader, Buffer], tuple[bytes, ClientSoftware | None]]
"""(header, frame) -> (the body of the answer, what the client says of itself, or None if the answer does not have the versions). May set
the version in the header to that of the answer."""


class _State(Enum):
    BEGINS = "begins"
    HANDSHAKE = "handshake"
    TOKENS = "tokens"


class LoginFailed(Exception):
    """`answer` is sent before the connection is closed; empty: nothing is. `reason` is for the log; "": that has it already."""

    def __init__(self, reason: str, answer: bytes = b"") -> None:
        super().__init__(reason)
        self.reason = reason
        self.answer = answer


class LoggedIn(NamedTuple):
    """`lifetime_ms`: how long the login counts (`connections.max.reauth.ms`, the end of a token); 0: for ever. `is_by_token`: by a
    delegation token.
    """

    principal: Principal
    mechanism: str
    lifetime_ms: int
    is_by_token: bool = False


class Logins:
    """What all logins on one listener need."""

    def __init__(
        self,
        sasl: ListenerSasl,
        users: ScramUsers,
        answer_api_versions: AnswerApiVersions,
        audit: AuditLog,
        validate: Validate | None = None,
        wall_ms: Callable[[], int] = lambda: 0,
        *,
        find_token: FindToken | None = None,
        are_for_ever: bool = False,
    ) -> None:
        """`validate`: checks tokens of OAUTHBEARER; None: the listener does not have it. `find_token`: finds delegation tokens.
        `are_for_ever`: no login ends, as long as its connection lasts.
        """
        self.sasl = sasl
        self.are_for_ever = are_for_ever
        self._validate = validate
        self._find_token = find_token
        self._wall_ms = wall_ms
        self._audit = audit
        self.users = users
        self.answer_api_versions = answer_api_versions
        self._secret = secrets.token_bytes(32)

    def refused(self, address: str, reason: str, login: Login | None = None) -> None:
        """A line in the audit log. `login`: as far as it came."""
        user, mechanism = (login.user, login.mechanism) if login is not None else ("", "")
        self._audit.login_refused(address, self.sasl.listener, user, mechanism, reason)

    def mechanism(self, name: str) -> Mechanism:
        """The server's side of a login. `name` is one of the listener's mechanisms."""
        if name == PLAIN:
            return Plain(self.sasl.passwords)
        if name == OAUTHBEARER and self._validate is not None:
            return OAuthBearer(self._validate, self._wall_ms)
        nonce = secrets.token_urlsafe(24)
        return Scram(name, self.users, nonce, self._secret, self._find_token, self._wall_ms)


class Login:
    """One login; another one for each time that the connection logs in again, with `before`, what it was logged in as."""

    def __init__(self, logins: Logins, before: LoggedIn | None = None) -> None:
        self.result: LoggedIn | None = None
        """Set when the login is done."""
        self.software: ClientSoftware | None = None
        """Set when the client has said it."""
        self._logins = logins
        self._before = before
        self._state = _State.BEGINS if before is None else _State.HANDSHAKE
        self._name = ""
        self._mechanism: Mechanism | None = None
        self._has_headers = False
        self._versions_refused = 0

    @property
    def user(self) -> str:
        """The name that the client gives; "" until it is known."""
        return self._mechanism.user if self._mechanism is not None else ""

    @property
    def refusal(self) -> str:
        """For the log: why the client has been refused, although it is still to confirm that; "" otherwise."""
        return self._mechanism.refusal if self._mechanism is not None else ""

    @property
    def mechanism(self) -> str:
        """The mechanism that the client asks for; "" until it is known."""
        return self._name

    def take(self, frame: Buffer) -> bytes:
        """The answer to a frame (without its length), with its length. Raises LoginFailed, MalformedRequest."""
        if self._state is _State.TOKENS and not self._has_headers:
            answer = self._bare_token(bytes(frame))
            return len(answer).to_bytes(LENGTH_BYTES, "big") + answer
        header = parse_request_header(frame)
        if self._state is _State.TOKENS:
            return self._authenticate(header, frame)
        if header.api_key == ApiKey.SASL_HANDSHAKE:
            return self._handshake(header, frame)
        if header.api_key == ApiKey.API_VERSIONS and self._state is _State.BEGINS:
            body, software = self._logins.answer_api_versions(header, frame)
            if software is not None:
                self._state = _State.HANDSHAKE
                self.software = software
            elif self._versions_refused == VERSIONS_REFUSED_MAX:
                raise LoginFailed("it repeats ApiVersions that cannot be answered")
            else:
                self._versions_refused += 1
            return _framed(header, body)
        raise LoginFailed(f"it sends {messages.api_name(header.api_key)} before it has logged in")

    def _handshake(self, header: RequestHeader, frame: Buffer) -> bytes:
        body = _body(header, frame)
        self._name = name = body.mechanism
        offered = self._logins.sasl.mechanisms
        if name not in offered:
            answer = {"error_code": int(ErrorCode.UNSUPPORTED_SASL_MECHANISM), "mechanisms": offered}
            raise LoginFailed(f"it wants {name[:40]!r}, and there is {', '.join(offered)}", _answer(header, answer))
        if self._before is not None and name != self._before.mechanism:
            raise LoginFailed(f"it logged in by {self._before.mechanism}, and must not change that")
        self._mechanism = self._logins.mechanism(name)
        self._has_headers = header.api_version >= 1
        self._state = _State.TOKENS
        return _answer(header, {"error_code": 0, "mechanisms": offered})

    def _bare_token(self, token: bytes) -> bytes:
        assert self._mechanism is not None
        try:
            answer = self._mechanism.take(token)
        except LoginRefused as refused:
            raise LoginFailed(refused.reason) from None
        if self._mechanism.is_complete:
            self._done()
        return answer

    def _authenticate(self, header: RequestHeader, frame: Buffer) -> bytes:
        if header.api_key != ApiKey.SASL_AUTHENTICATE:
            raise LoginFailed(f"it sends {messages.api_name(header.api_key)} in place of a token")
        body = _body(header, frame)
        assert self._mechanism is not None
        lifetime_ms = 0
        try:
            token = self._mechanism.take(body.auth_bytes)
            if self._mechanism.is_complete:
                lifetime_ms = self._done().lifetime_ms
        except LoginRefused as refused:
            again = "re-authentication" if self._before is not None else "authentication"
            general = (
                f"Authentication failed during {again} due to invalid credentials with SASL mechanism {self._name}"
            )
            answer = {
                "error_code": int(ErrorCode.SASL_AUTHENTICATION_FAILED),
                "error_message": refused.text or general,
                "auth_bytes": b"",
                "session_lifetime": 0,
            }
            raise LoginFailed(refused.reason, _answer(header, answer)) from None
        answer = {"error_code": 0, "error_message": None, "auth_bytes": token, "session_lifetime": lifetime_ms}
        return _answer(header, answer)

    def _done(self) -> LoggedIn:
        assert self._mechanism is not None
        owner = self._mechanism.owner
        principal = Principal(USER, self.user if owner is None else owner)
        if self._before is not None and principal != self._before.principal:
            raise LoginRefused(
                f"it was logged in as {self._before.principal}",
                f"Cannot change principals during re-authentication from {self._before.principal.kind}."
                f"{self._before.principal.name}: {principal.kind}.{principal.name}",
            )
        self.result = LoggedIn(principal, self._name, self._lifetime_ms(), is_by_token=owner is not None)
        return self.result

    def _lifetime_ms(self) -> int:
        assert self._mechanism is not None
        limits = (self._logins.sasl.lifetime_ms(self._name), self._mechanism.lifetime_ms)
        return 0 if self._logins.are_for_ever else min(filter(None, limits), default=0)


def _body(header: RequestHeader, frame: Buffer) -> Any:
    api_key, version = header.api_key, header.api_version
    served = SUPPORTED[ApiKey(api_key)]
    if not served.min <= version <= served.max:
        raise MalformedRequest(f"{messages.api_name(api_key)} v{version}; v{served.min} to v{served.max} are supported")
    return messages.decode_request(api_key, version, frame, header.body_offset)


def _answer(header: RequestHeader, body: dict[str, Any]) -> bytes:
    return _framed(header, messages.encode_response(header.api_key, header.api_version, body))


def _framed(header: RequestHeader, body: bytes) -> bytes:
    head = response_header(header.api_key, header.api_version, header.correlation_id)
    return (len(head) + len(body)).to_bytes(LENGTH_BYTES, "big") + head + body
