"""Tokens of SASL OAUTHBEARER (RFC 7628, KIP-255) as a client sends them, and the unsecured ones that it makes for tests. Pure.

A token is three parts in base64, with dots between: a header, claims and a signature. An unsecured one has no signature, and anybody can
make it (`OAuthBearerUnsecuredLoginCallbackHandler`).
"""

from __future__ import annotations

import binascii
import json
import math
import re
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Mapping
from typing import Any, Final

MECHANISM: Final = "OAUTHBEARER"
CONFIRMATION: Final = b"\x01"
"""What a client sends after the text that says why its token is refused."""
OPTION: Final = "unsecuredLogin"
LIFETIME_S: Final = 3600
TOKEN: Final = re.compile(r"[-_~+/.a-zA-Z0-9]+=*")
EXTENSION: Final = re.compile(r"[A-Za-z]+=[\x21-\x7e \t\r\n]+")


class BadToken(ValueError):
    """The text says what is wrong, without the token."""


def first_message(token: str, extensions: Mapping[str, str] | None = None) -> bytes:
    """The client's message. Raises BadToken if it cannot be sent."""
    if not TOKEN.fullmatch(token):
        raise BadToken("a token has letters, digits and -_~+/. only")
    pairs = [f"{name}={value}" for name, value in (extensions or {}).items()]
    if not all(EXTENSION.fullmatch(pair) and not pair.startswith("auth=") for pair in pairs):
        raise BadToken("the name of an extension has letters only and is not auth, and its value is plain text")
    return "\x01".join(("n,,", f"auth=Bearer {token}", *pairs, "", "")).encode()


def decoded_part(part: str) -> dict[str, Any]:
    """The JSON object of a header or of claims. Raises BadToken."""
    try:
        data = b64decode(part.translate({ord("-"): "+", ord("_"): "/"}) + "=" * (-len(part) % 4), validate=True)
        value = json.loads(data)
    except (binascii.Error, ValueError, RecursionError):
        raise BadToken("a part that is no JSON in base64") from None
    if not isinstance(value, dict):
        raise BadToken("a part that is no JSON object")
    return value


def claims_of(token: str) -> dict[str, Any]:
    """What the token says; nobody has checked it. Raises BadToken."""
    parts = token.split(".")
    if len(parts) != 3:
        raise BadToken(f"{len(parts)} parts; a token has 3")
    return decoded_part(parts[1])


def unsecured_token(options: Mapping[str, str], now_s: float) -> str:
    """A token of these options of a login module, without a signature. Raises BadToken.

    The options are `unsecuredLoginStringClaim_<name>`, `unsecuredLoginNumberClaim_<name>`, `unsecuredLoginListClaim_<name>` (the first
    character separates the others), `unsecuredLoginLifetimeSeconds` and `unsecuredLoginPrincipalClaimName`.
    """
    try:
        lifetime_s = int(options.get(f"{OPTION}LifetimeSeconds", LIFETIME_S))
        claims: dict[str, Any] = {"exp": now_s + lifetime_s, "iat": now_s}
        for option, value in options.items():
            kind, _, name = option.removeprefix(OPTION).partition("Claim_")
            if not (option.startswith(OPTION) and name):
                continue
            if name in ("exp", "iat"):
                raise BadToken(f"{option}: exp and iat follow from the time")
            if kind == "String":
                claims[name] = value
            elif kind == "Number":
                claims[name] = number = float(value)
                if not math.isfinite(number):
                    raise ValueError
            elif kind == "List":
                claims[name] = value[1:].split(value[0]) if value[1:] else []
    except BadToken:
        raise
    except ValueError:
        raise BadToken("unsecuredLoginLifetimeSeconds or a claim is no number") from None
    if not str(claims.get(principal_claim(options), "")).strip():
        raise BadToken(f"it names nobody: set {OPTION}StringClaim_{principal_claim(options)}")
    return f"{_encoded({'alg': 'none'})}.{_encoded(claims)}."


def unsecured_extensions(options: Mapping[str, str]) -> dict[str, str]:
    """`unsecuredLoginExtension_<name>` of the options."""
    start = f"{OPTION}Extension_"
    return {name.removeprefix(start): value for name, value in options.items() if name.startswith(start)}


def principal_claim(options: Mapping[str, str]) -> str:
    """The name of the claim that says who the client is."""
    return options.get(f"{OPTION}PrincipalClaimName", "").strip() or "sub"


def _encoded(value: object) -> str:
    return urlsafe_b64encode(json.dumps(value, separators=(",", ":")).encode()).decode().rstrip("=")
