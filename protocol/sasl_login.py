"""The client's side of a login by SASL, for a broker that connects to another: requests out, answers in. Pure.

    SaslHandshake v1 -> SaslAuthenticate v2 with the tokens of PLAIN, SCRAM or OAUTHBEARER -> done

The caller sends each request that `ClientLogin.steps` yields, as `(api key, version, body)`, and sends the decoded answer into it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

from protocol import bearer
from protocol.errors import ErrorCode, error_name
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from protocol.plain_text import escaped, shortened
from protocol.scram import HASHES, ScramClient, ScramError
from protocol.types import Buffer

HANDSHAKE_VERSION = 1
AUTHENTICATE_VERSION = 2
CLIENT_ID = "broker"
TEXT_MAX = 300

Asked = tuple[ApiKey, int, Mapping[str, Any]]
Steps = Generator[Asked, Any, int]


class LoginError(ConnectionError):
    """The other side refuses the login, or does not know the password itself. The text starts in the middle of a line."""


@dataclass(frozen=True, slots=True)
class ClientLogin:
    """As whom to log in. Of OAUTHBEARER: `token()` makes or reads the token of each login, and raises OSError or ValueError."""

    mechanism: str
    username: str
    password: str = field(default="", repr=False)
    token: Callable[[], str] | None = field(default=None, repr=False, compare=False)
    extensions: Mapping[str, str] = field(default_factory=dict, compare=False)

    def steps(self) -> Steps:
        """One login. Returns for how many ms it counts; 0: for ever. Raises LoginError."""
        answer = yield ApiKey.SASL_HANDSHAKE, HANDSHAKE_VERSION, {"mechanism": self.mechanism}
        if answer.error_code:
            offered = ", ".join(map(escaped, answer.mechanisms)) or "nothing"
            raise LoginError(
                f"it refuses {self.mechanism}: {error_name(answer.error_code)}; it offers {shortened(offered, TEXT_MAX)}"
            )
        if self.token is not None:
            return (yield from self._bearer(self.token))
        if self.mechanism not in HASHES:
            answer = yield from self._token(f"\0{self.username}\0{self.password}".encode())
            return messages.milliseconds(answer.session_lifetime)
        scram = ScramClient(self.mechanism, self.username, self.password, secrets.token_urlsafe(24))
        try:
            answer = yield from self._token(scram.first())
            answer = yield from self._token(scram.final(answer.auth_bytes))
            scram.check(answer.auth_bytes)
        except ScramError as problem:
            raise LoginError(escaped(str(problem))) from None
        return messages.milliseconds(answer.session_lifetime)

    def _bearer(self, token: Callable[[], str]) -> Steps:
        try:
            message = bearer.first_message(token(), self.extensions)
        except (OSError, ValueError) as problem:
            raise LoginError(f"it has no token to log in as user {escaped(self.username)!r}: {problem}") from None
        answer = yield from self._token(message)
        if answer.auth_bytes:
            # Why the token is refused. The answer to the confirmation is an error with the same text.
            yield from self._token(bearer.CONFIRMATION)
            raise LoginError(f"it neither takes nor refuses the token of user {escaped(self.username)!r}")
        return messages.milliseconds(answer.session_lifetime)

    def _token(self, token: bytes) -> Generator[Asked, Any, Any]:
        answer = yield ApiKey.SASL_AUTHENTICATE, AUTHENTICATE_VERSION, {"auth_bytes": token}
        if answer.error_code != ErrorCode.NONE:
            said = shortened(escaped(answer.error_message or error_name(answer.error_code)), TEXT_MAX)
            raise LoginError(f"it refuses user {escaped(self.username)!r} with {self.mechanism}: {said}")
        return answer


def next_step(steps: Steps, answer: Any) -> tuple[Asked | None, int]:
    """The next request; at the end None, and for how many ms the login counts. `answer`: to the request before. Raises LoginError."""
    try:
        return steps.send(answer), 0
    except StopIteration as end:
        return None, int(end.value)


def request(asked: Asked, correlation_id: int) -> list[Buffer]:
    """The request's frame, without its length."""
    api_key, version, body = asked
    return [messages.encode_request(api_key, version, correlation_id, CLIENT_ID, body)]


def read_answer(asked: Asked, frame: memoryview) -> Any:
    """The decoded answer of a frame without its length. Raises MalformedRequest."""
    _, answer = messages.decode_response(asked[0], asked[1], frame)
    return answer
