"""Signed tokens (JWT, RFC 7519), checked by the keys of whoever issues them (KIP-768, `ValidatorAccessTokenValidator`).

A token is valid if one of the issuer's *public* keys has signed it. The kind of the key decides which algorithms may be used with it, and
never what the token says alone: `none`, and HMAC with the text of a public key, are no algorithms here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from broker.security.oauth_bearer import Bearer, TokenRefused, checked_claims
from broker.settings.bearer import SignedTokens
from protocol.topic_names import shown

OF_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
OF_CURVES: Final = MappingProxyType(
    {"P-256": ("ES256",), "P-384": ("ES384",), "P-521": ("ES512",), "Ed25519": ("EdDSA",), "Ed448": ("EdDSA",)}
)
RSA_BITS_MIN: Final = 2048
KEYS_TRIED_MAX: Final = 8
"""Keys that are tried for a token that names none."""
KEYS_NAMED_MAX: Final = 5
"""Keys that cannot be used and are named for the log; the others are counted."""


class VerificationKey(NamedTuple):
    """`algorithms`: those by which the key may have signed."""

    kid: str | None
    algorithms: tuple[str, ...]
    key: Any


class KeySet(NamedTuple):
    """`complaint`: which keys should sign, but cannot be used, and why, for one line of the log; "": all can."""

    keys: tuple[VerificationKey, ...]
    complaint: str


class _Unusable(Exception):
    """The text says why."""


def read_keys(data: bytes) -> KeySet:
    """The keys of a JSON Web Key Set (RFC 7517) that sign. Others are left out. Raises ValueError if there is none."""
    try:
        rows = json.loads(data)["keys"]
    except (ValueError, RecursionError, KeyError, TypeError):
        rows = None
    if not isinstance(rows, list):
        raise ValueError('expected JSON with a list "keys"')
    found = []
    problems: list[str] = []
    for row in rows:
        try:
            if isinstance(row, dict) and (key := _key(row)) is not None:
                found.append(key)
        except _Unusable as problem:
            problems.append(f"kid {shown(str(row.get('kid')))}: {problem}" if len(problems) < KEYS_NAMED_MAX else "")
    complaint = "; ".join(problems[:KEYS_NAMED_MAX])
    if len(problems) > KEYS_NAMED_MAX:
        complaint += f"; and {len(problems) - KEYS_NAMED_MAX} others"
    if not found:
        why = f" ({complaint})" if complaint else ""
        raise ValueError(f"it has no public key that signs, of kind RSA, EC or OKP{why}")
    return KeySet(tuple(found), complaint)


def _key(row: dict[str, Any]) -> VerificationKey | None:
    """None: the key is not for signatures. Raises _Unusable."""
    kind, kid = row.get("kty"), row.get("kid")
    algorithms: tuple[str, ...]
    algorithms = OF_RSA if kind == "RSA" else OF_CURVES.get(str(row.get("crv")), ()) if kind in ("EC", "OKP") else ()
    if row.get("alg") is not None:
        algorithms = tuple(one for one in algorithms if one == row["alg"])
    if not algorithms or row.get("use") not in (None, "sig") or "d" in row or not (kid is None or isinstance(kid, str)):
        return None
    try:
        key = _jwt().PyJWK({**row, "alg": algorithms[0]}).key
    except (_jwt().PyJWTError, ValueError, TypeError) as problem:
        raise _Unusable(shown(str(problem))) from None
    if kind == "RSA" and key.key_size < RSA_BITS_MIN:
        raise _Unusable(f"it has less than {RSA_BITS_MIN} bits")
    return VerificationKey(kid, algorithms, key)


def validate_signed(
    settings: SignedTokens,
    keys: Sequence[VerificationKey],
    missed: Callable[[], None],
    wall_ms: int,
    text: str,
) -> Bearer:
    """`missed()` is called if none of the keys can be the token's: there may be newer ones. Raises TokenRefused."""
    jwt = _jwt()
    try:
        header = jwt.get_unverified_header(text)
        kid, algorithm = header.get("kid"), header.get("alg")
        fitting = [key for key in keys if algorithm in key.algorithms and (kid is None or kid == key.kid)]
        if not fitting:
            missed()
            raise TokenRefused(
                f"no key of the issuer fits the token: kid {shown(str(kid))}, alg {shown(str(algorithm))}"
            )
        claims = _verified(settings, fitting[:KEYS_TRIED_MAX], algorithm, text)
    except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as problem:
        raise TokenRefused(f"the token is not valid: {shown(str(problem))}") from None
    return checked_claims(claims, settings.sub_claim, wall_ms, settings.skew_ms, needs_iat=True)


def _verified(settings: SignedTokens, keys: Sequence[VerificationKey], algorithm: str, text: str) -> dict[str, Any]:
    """The claims of a token that one of the keys has signed. Raises PyJWTError. The times are checked elsewhere."""
    jwt = _jwt()
    checks = {"verify_exp": False, "verify_iat": False, "verify_nbf": False, "verify_sub": False, "verify_jti": False}
    for at, one in enumerate(keys, 1):
        try:
            claims: dict[str, Any] = jwt.decode(
                text,
                one.key,
                algorithms=[algorithm],
                audience=list(settings.audiences) or None,
                issuer=settings.issuer or None,
                options=checks,
            )
        except jwt.InvalidSignatureError:
            if at == len(keys):
                raise
        else:
            return claims
    raise AssertionError("not reached")


@cache
def _jwt() -> Any:
    """Not imported by brokers that take no signed tokens."""
    import jwt

    return jwt
