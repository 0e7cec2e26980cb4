"""Signed tokens: those that the issuer's keys have signed, and the attacks on whoever checks them (CLI-5)."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given
from hypothesis import strategies as st

from broker.security.oauth_bearer import Bearer, TokenRefused
from broker.security.signed_tokens import KEYS_NAMED_MAX, read_keys, validate_signed
from broker.settings.bearer import KeySource, SignedTokens

NOW_MS = 1_700_000_000_000
NOW_S = NOW_MS // 1000
SOURCE = KeySource("file:///keys", 1000, 1, 1)
SETTINGS = SignedTokens(SOURCE, (), "", "sub", 30_000)
RSA = rsa.generate_private_key(65537, 2048)
OTHER = rsa.generate_private_key(65537, 2048)
SMALL = rsa.generate_private_key(65537, 1024)
CURVE = ec.generate_private_key(ec.SECP256R1())
EDWARDS = ed25519.Ed25519PrivateKey.generate()
PUBLIC = RSA.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def jwk(private: Any, algorithm: str, **more: Any) -> dict[str, Any]:
    return {**jwt.get_algorithm_by_name(algorithm).to_jwk(private.public_key(), as_dict=True), **more}


ROWS = [
    jwk(RSA, "RS256", kid="r", use="sig"),
    jwk(CURVE, "ES256", kid="c"),
    jwk(EDWARDS, "EdDSA", kid="e", alg="EdDSA"),
    jwk(OTHER, "RS256", kid="enc", use="enc"),
    {"kty": "oct", "k": "c2VjcmV0", "kid": "secret", "alg": "HS256"},
    {"kty": "RSA", "kid": "broken"},
    jwk(SMALL, "RS256", kid="small"),
    {**jwk(OTHER, "RS256", kid="private"), "d": "AQAB"},
    "x",
]
KEYS, COMPLAINT = read_keys(json.dumps({"keys": ROWS}).encode())


def token(claims: Mapping[str, Any] = {}, private: Any = RSA, algorithm: str = "RS256", kid: str | None = "r") -> str:
    all_claims = {"sub": "alice", "iat": NOW_S, "exp": NOW_S + 60, **claims}
    given = {name: value for name, value in all_claims.items() if value is not None}
    return jwt.encode(given, private, algorithm, headers={"kid": kid} if kid is not None else None)


def encoded(value: Any) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return urlsafe_b64encode(data).decode().rstrip("=")


def forged(header: Mapping[str, Any], key: bytes | None) -> str:
    """A token of the header, signed by HMAC, or not at all."""
    text = f"{encoded(header)}.{encoded({'sub': 'admin', 'iat': NOW_S, 'exp': NOW_S + 60})}"
    return f"{text}.{encoded(hmac.digest(key, text.encode(), hashlib.sha256)) if key is not None else ''}"


def validate(text: str, settings: SignedTokens = SETTINGS, missed: list[str] | None = None) -> Bearer:
    return validate_signed(settings, KEYS, lambda: None if missed is None else missed.append(text), NOW_MS, text)


def test_only_keys_that_may_sign_are_taken() -> None:
    assert [key.kid for key in KEYS] == ["r", "c", "e"]
    assert [key.algorithms[0] for key in KEYS] == ["RS256", "ES256", "EdDSA"]
    assert [part.split("'")[1] for part in COMPLAINT.split("; ")] == ["broken", "small"], "the others are not for us"
    for data in (b"", b"{", b"[]", b'{"keys":{}}', b'{"keys":[]}', b'{"keys":[1]}', b"[" * 100_000):
        with pytest.raises(ValueError, match="key"):
            read_keys(data)


@pytest.mark.parametrize(
    ("count", "end"), [(1, ""), (KEYS_NAMED_MAX, ""), (2000, f"; and {2000 - KEYS_NAMED_MAX} others")]
)
def test_keys_that_cannot_be_used_are_named_but_not_all_of_them(count: int, end: str) -> None:
    """An issuer's set may have thousands, and they are read again and again."""
    broken = [{"kty": "RSA", "n": "AQAB", "e": "AQAB", "kid": f"\ud800\n{number}" * 100} for number in range(count)]
    keys, complaint = read_keys(json.dumps({"keys": [*broken, *ROWS[:1]]}).encode())
    assert [key.kid for key in keys] == ["r"]
    assert complaint.count("kid '") == min(count, KEYS_NAMED_MAX)
    assert complaint.endswith(end)
    assert complaint.isprintable()
    assert len(complaint) < KEYS_NAMED_MAX * 400
    with pytest.raises(ValueError, match=r"no public key that signs, .* \(kid '"):
        read_keys(json.dumps({"keys": broken}).encode())


@pytest.mark.parametrize(
    ("private", "algorithm", "kid"),
    [(RSA, "RS256", "r"), (RSA, "PS512", "r"), (RSA, "RS256", None), (CURVE, "ES256", "c"), (EDWARDS, "EdDSA", "e")],
)
def test_the_issuers_keys_count(private: Any, algorithm: str, kid: str | None) -> None:
    assert validate(token({}, private, algorithm, kid)) == Bearer("alice", NOW_MS + 60_000)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (forged({"alg": "none", "kid": "r"}, None), "no key of the issuer fits"),
        (forged({"alg": "None", "kid": "r"}, None), "no key of the issuer fits"),
        (forged({"alg": "HS256", "kid": "r"}, PUBLIC), "no key of the issuer fits"),
        (forged({"alg": "HS256"}, PUBLIC), "no key of the issuer fits"),
        (forged({"alg": "HS256", "kid": "secret"}, b"secret"), "no key of the issuer fits"),
        (forged({"alg": ["RS256"], "kid": "r"}, None), "no key of the issuer fits"),
        (forged({"alg": "RS256", "kid": 7}, None), "not valid"),
        (forged({"alg": "RS256", "kid": "r"}, None), "not valid"),
        (forged({"alg": "RS256", "kid": "r", "jwk": jwk(OTHER, "RS256")}, PUBLIC), "not valid"),
        (token({}, OTHER), "Signature verification failed"),
        (token({}, OTHER, kid=None), "Signature verification failed"),
        (token({}, OTHER, kid="enc"), "no key of the issuer fits"),
        (token({}, CURVE, "ES256", "r"), "no key of the issuer fits"),
        (token()[:-4] + "AAAA", "Signature verification failed"),
        (f"{token()}.x", "not valid"),
        ("a.b.c", "not valid"),
        (f"{encoded(b'[' * 9000)}.e30.", "not valid"),
        (token({"exp": NOW_S - 31}), "expired"),
        (token({"exp": None}), "without exp"),
        (token({"iat": None}), "without exp or iat"),
        (token({"iat": NOW_S + 31}), "in the future"),
        (token({"nbf": NOW_S + 31}), "does not count yet"),
        (token({"sub": ""}), "names nobody"),
        (token({"aud": "kafka"}), "udience"),
    ],
)
def test_all_others_are_refused(text: str, reason: str) -> None:
    with pytest.raises(TokenRefused, match=reason):
        validate(text)


def test_audience_and_issuer() -> None:
    wanted = SignedTokens(SOURCE, ("kafka", "others"), "https://us", "user", 0)
    claims = {"aud": ["x", "kafka"], "iss": "https://us", "user": "bob"}
    assert validate(token(claims), wanted).name == "bob"
    for wrong in ({"aud": "x"}, {"iss": "https://them"}, {"aud": None}, {"iss": None}):
        with pytest.raises(TokenRefused, match="not valid"):
            validate(token({**claims, **wrong}), wanted)


def test_an_unknown_key_is_asked_for() -> None:
    missed: list[str] = []
    for text, count in ((token(kid="new"), 1), (token({}, OTHER), 1), (token(), 1)):
        with contextlib.suppress(TokenRefused):
            validate(text, missed=missed)
        assert len(missed) == count


@given(
    st.text(max_size=200) | st.binary(max_size=200).map(lambda data: f"{encoded({'alg': 'RS256'})}.{encoded(data)}.x")
)
def test_whatever_comes_is_refused(text: str) -> None:
    with pytest.raises(TokenRefused):
        validate(text)
