"""The server's side of SASL OAUTHBEARER (RFC 7628, KIP-255): a token in, nothing or an error out. Pure.

    the client's message --valid--> done
                         --not----> the error as JSON --any answer, usually %x01--> the login fails with that error

Kafka's classes are OAuthBearerSaslServer, OAuthBearerClientInitialResponse and OAuthBearerUnsecuredValidatorCallbackHandler. What differs:
after a refused token, Kafka takes further ones on the same connection.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from broker.security.mechanisms import LoginRefused, Mechanism
from broker.settings.bearer import UnsecuredTokens
from protocol.bearer import BadToken, decoded_part

SASL_NAME = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
PAIRS = r"(?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*"
FIRST: Final = re.compile(rf"n,(?:a=({SASL_NAME}))?,\x01({PAIRS})\x01")
AUTH: Final = re.compile(r"(\w+) +([-_~+/.a-zA-Z0-9]+=*)", re.ASCII)
INVALID: Final = "invalid_token"
INSUFFICIENT: Final = "insufficient_scope"
TIME_MAX_S: Final = 2**53
"""Limit of a time in seconds since 1970. In milliseconds it fits into the answer to a login."""


class Bearer(NamedTuple):
    """Whom a token names, and until when it counts."""

    name: str
    expires_ms: int


class TokenRefused(Exception):
    """The text is for the log, without the token. The client gets `status` and `scope`: what the token lacks."""

    def __init__(self, reason: str, status: str = INVALID, scope: str = "") -> None:
        super().__init__(reason)
        self.status = status
        self.scope = scope


Validate = Callable[[str], Bearer]
"""Raises TokenRefused."""


class OAuthBearer(Mechanism):
    """One login."""

    def __init__(self, validate: Validate, wall_ms: Callable[[], int]) -> None:
        super().__init__()
        self._validate = validate
        self._wall_ms = wall_ms
        self._error = ""

    def take(self, token: bytes) -> bytes:
        if self._error:
            raise LoginRefused("", self._error)
        acts_as, text = _read(token)
        try:
            bearer = self._validate(text)
        except TokenRefused as refused:
            self.refusal = str(refused)
            scope = f', "scope":{json.dumps(refused.scope)}' if refused.scope else ""
            self._error = f'{{"status":"{refused.status}"{scope}}}'
            return self._error.encode()
        self.user = bearer.name
        if acts_as and acts_as != bearer.name:
            raise LoginRefused(
                "it wants to act as another user",
                "Authentication failed: Client requested an authorization id that is different from the token's principal name",
            )
        # A token may count for some seconds after its end (clock skew); 0 would be for ever.
        self.lifetime_ms = max(bearer.expires_ms - self._wall_ms(), 1)
        self.is_complete = True
        return b""


def _read(token: bytes) -> tuple[str, str]:
    """Whom the client wants to act as, or "", and its token. Raises LoginRefused."""
    found = FIRST.fullmatch(token.decode("utf-8", "replace"))
    if found is None:
        raise LoginRefused("its message is not that of OAUTHBEARER")
    acts_as, pairs = found.groups()
    properties = dict(pair.split("=", 1) for pair in pairs.split("\x01") if pair)
    auth = AUTH.fullmatch(properties.get("auth", ""))
    if auth is None or auth[1].lower() != "bearer":
        raise LoginRefused("its message has no token")
    return (acts_as or "").replace("=2C", ",").replace("=3D", "="), auth[2]


def validate_unsecured(settings: UnsecuredTokens, wall_ms: int, text: str) -> Bearer:
    """The token of anybody who says who he is. Raises TokenRefused."""
    parts = text.split(".")
    if len(parts) != 3:
        raise TokenRefused(f"a token of {len(parts)} parts; it has 3")
    try:
        header, claims = decoded_part(parts[0]), decoded_part(parts[1])
    except BadToken as problem:
        raise TokenRefused(str(problem)) from None
    if header.get("alg") != "none" or parts[2]:
        raise TokenRefused("a token with a signature; this listener takes those without (alg is none)")
    bearer = checked_claims(claims, settings.principal_claim, wall_ms, settings.skew_ms, needs_iat=False)
    if not set(settings.required_scope) <= set(_scopes(claims.get(settings.scope_claim))):
        wanted = f"[{', '.join(settings.required_scope)}]"
        raise TokenRefused(f"its scope lacks some of {wanted}", INSUFFICIENT, wanted)
    return bearer


def checked_claims(claims: dict[str, Any], name_claim: str, wall_ms: int, skew_ms: int, *, needs_iat: bool) -> Bearer:
    """Checks who is named, and the times, which are in seconds. Raises TokenRefused."""
    expires, issued = _milliseconds(claims, "exp"), _milliseconds(claims, "iat")
    begins = _milliseconds(claims, "nbf")
    if expires is None or (needs_iat and issued is None):
        raise TokenRefused("a token without exp" + " or iat" * needs_iat)
    if wall_ms - skew_ms >= expires:
        raise TokenRefused("the token has expired")
    if issued is not None and (issued > wall_ms + skew_ms or issued >= expires):
        raise TokenRefused("the token was issued in the future, or after its end")
    if begins is not None and begins > wall_ms + skew_ms:
        raise TokenRefused("the token does not count yet")
    name = claims.get(name_claim)
    if not isinstance(name, str) or not name.strip():
        raise TokenRefused(f"the token names nobody in {name_claim}")
    try:
        name.encode()
    except UnicodeEncodeError:  # an escape of JSON can be half of a surrogate pair
        raise TokenRefused(f"the name in {name_claim} of the token is no text in UTF-8") from None
    return Bearer(name.strip(), expires)


def _milliseconds(claims: dict[str, Any], claim: str) -> int | None:
    value = claims.get(claim)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not -TIME_MAX_S < value < TIME_MAX_S:
        raise TokenRefused(f"{claim} of the token is no time")
    return round(value * 1000)


def _scopes(value: object) -> Iterable[str]:
    """As Kafka's: a text is one scope."""
    values = value if isinstance(value, list) else [value]
    return [one.strip() for one in values if isinstance(one, str) and one.strip()]
