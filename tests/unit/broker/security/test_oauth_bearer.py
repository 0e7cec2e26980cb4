"""The server's side of OAUTHBEARER: the messages of clients, unsecured tokens, and those that must be refused (CLI-5)."""

from __future__ import annotations

import contextlib
import json
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.security.mechanisms import LoginRefused
from broker.security.oauth_bearer import Bearer, OAuthBearer, TokenRefused, validate_unsecured
from broker.settings.bearer import UnsecuredTokens
from protocol.bearer import CONFIRMATION, BadToken, first_message, unsecured_extensions, unsecured_token
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey

NOW_MS = 1_700_000_000_000
NOW_S = NOW_MS // 1000
ALICE = {"unsecuredLoginStringClaim_sub": "alice"}


def encoded(value: Any) -> str:
    return urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def token(claims: Mapping[str, Any], header: Any = None, signature: str = "") -> str:
    return f"{encoded(header or {'alg': 'none'})}.{encoded({'sub': 'alice', 'exp': NOW_S + 60, **claims})}.{signature}"


def validate(text: str, settings: UnsecuredTokens = UnsecuredTokens()) -> Bearer:  # noqa: B008
    return validate_unsecured(settings, NOW_MS, text)


def login() -> OAuthBearer:
    return OAuthBearer(validate, lambda: NOW_MS)


def test_a_client_with_a_token_is_let_in() -> None:
    one = login()
    options = {**ALICE, "unsecuredLoginExtension_traceId": "1 2", "unsecuredLoginLifetimeSeconds": "90"}
    message = first_message(unsecured_token(options, NOW_S), unsecured_extensions(options))
    assert message.endswith(b".\x01traceId=1 2\x01\x01")
    assert one.take(message) == b""
    assert (one.is_complete, one.user, one.lifetime_ms, one.refusal) == (True, "alice", 90_000, "")


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"", "not that of OAUTHBEARER"),
        (b"\x01", "not that of OAUTHBEARER"),
        (b"\0alice\0secret", "not that of OAUTHBEARER"),
        (b"y,,\x01auth=Bearer x\x01\x01", "not that of OAUTHBEARER"),
        (b"n,,\x01auth=Bearer x\x01", "not that of OAUTHBEARER"),
        (b"n,,\x01\x01", "has no token"),
        (b"n,,\x01auth=Basic x\x01\x01", "has no token"),
        (b"n,,\x01auth=Bearer x y\x01\x01", "has no token"),
        ("n,,\x01auth=Bearer \u0660\x01\x01".encode(), "not that of OAUTHBEARER"),
    ],
)
def test_what_is_no_message(message: bytes, reason: str) -> None:
    with pytest.raises(LoginRefused) as refused:
        login().take(message)
    assert reason in refused.value.reason
    assert refused.value.text == ""


def test_a_client_may_say_who_it_is_but_not_who_it_is_not() -> None:
    bearer = f"\x01auth=Bearer {token({})}\x01\x01"
    for name, is_taken in (("a=alice", True), ("a=bob", False), ("a=al=2Cice", False)):
        one = login()
        if is_taken:
            one.take(f"n,{name},{bearer}".encode())
            assert one.is_complete
        else:
            with pytest.raises(LoginRefused, match="another user"):
                one.take(f"n,{name},{bearer}".encode())


def test_a_refused_token_is_told_as_json_and_then_ends_the_login() -> None:
    one = OAuthBearer(lambda text: validate(text, UnsecuredTokens(required_scope=("a", "b"))), lambda: NOW_MS)
    answer = one.take(first_message(token({"scope": ["a", "c"]})))
    assert json.loads(answer) == {"status": "insufficient_scope", "scope": "[a, b]"}
    assert (one.is_complete, one.refusal) == (False, "its scope lacks some of [a, b]")
    for _ in range(2):
        with pytest.raises(LoginRefused) as refused:
            one.take(CONFIRMATION)
        assert (refused.value.text, refused.value.reason) == (answer.decode(), "")


def test_after_a_refused_token_no_other_one_is_looked_at() -> None:
    one = login()
    assert json.loads(one.take(first_message("a.b.c"))) == {"status": "invalid_token"}
    with pytest.raises(LoginRefused):
        one.take(first_message(token({})))
    assert not one.is_complete


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a.b", "2 parts"),
        ("a.b.c.d", "4 parts"),
        ("a.b.", "no JSON in base64"),
        (f"{encoded([1])}.{encoded({})}.", "no JSON object"),
        (f"{encoded({'alg': 'none'})}.{'A' * 4000}.", "no JSON"),
        (f"{encoded({'alg': 'none'})}.{urlsafe_b64encode(b'[' * 9000).decode()}.", "no JSON"),
        (token({}, signature="c2ln"), "with a signature"),
        (token({}, {"alg": "RS256"}), "with a signature"),
        (token({}, {"alg": "NONE"}), "with a signature"),
        (token({"sub": None}), "names nobody"),
        (token({"sub": "  "}), "names nobody"),
        (token({"sub": ["alice"]}), "names nobody"),
        (token({"sub": "\ud800"}), "the name in sub of the token is no text in UTF-8"),
        (token({"sub": "alice\udfff\ud800"}), "no text in UTF-8"),
        (token({"exp": None}), "without exp"),
        (token({"exp": "soon"}), "no time"),
        (token({"exp": True}), "no time"),
        (token({"exp": float("inf")}), "no time"),
        (token({"exp": float("nan")}), "no time"),
        (token({"exp": 10**400}), "no time"),
        (token({"exp": 1e306}), "no time"),
        (token({"exp": 2**53}), "no time"),
        (token({"exp": NOW_S}), "has expired"),
        (token({"iat": NOW_S + 1}), "in the future"),
        (token({"iat": NOW_S - 1, "exp": NOW_S - 1}), "has expired"),
        (token({"nbf": NOW_S + 1}), "does not count yet"),
    ],
)
def test_tokens_that_are_refused(text: str, reason: str) -> None:
    with pytest.raises(TokenRefused, match=reason):
        validate(text)


def test_the_answer_has_the_longest_lifetime() -> None:
    one = OAuthBearer(validate, lambda: 0)
    one.take(first_message(token({"exp": 2**53 - 1})))
    messages.encode_response(
        ApiKey.SASL_AUTHENTICATE,
        2,
        {"error_code": 0, "error_message": None, "auth_bytes": b"", "session_lifetime": one.lifetime_ms},
    )


def test_clocks_may_differ_and_an_expired_token_does_not_count_for_ever() -> None:
    settings = UnsecuredTokens(skew_ms=5000)
    expired, future = token({"exp": NOW_S - 4}), token({"iat": NOW_S + 4})
    assert validate(future, settings) == Bearer("alice", NOW_MS + 60_000)
    one = OAuthBearer(lambda text: validate(text, settings), lambda: NOW_MS)
    one.take(first_message(expired))
    assert (one.is_complete, one.lifetime_ms) == (True, 1)
    with pytest.raises(TokenRefused, match="expired"):
        validate(token({"exp": NOW_S - 6}), settings)


def test_other_claims_may_be_named() -> None:
    settings = UnsecuredTokens("user", "groups", ("x",))
    assert validate(token({"user": "bob", "groups": "x"}), settings).name == "bob"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "it names nobody: set unsecuredLoginStringClaim_sub"),
        ({**ALICE, "unsecuredLoginPrincipalClaimName": "user"}, "set unsecuredLoginStringClaim_user"),
        ({**ALICE, "unsecuredLoginLifetimeSeconds": "x"}, "no number"),
        ({**ALICE, "unsecuredLoginNumberClaim_n": "nan"}, "no number"),
        ({**ALICE, "unsecuredLoginStringClaim_exp": "1"}, "follow from the time"),
    ],
)
def test_options_that_make_no_token(options: Mapping[str, str], problem: str) -> None:
    with pytest.raises(BadToken, match=problem):
        unsecured_token(options, NOW_S)


def test_lists_and_numbers_in_a_token() -> None:
    options = {**ALICE, "unsecuredLoginListClaim_scope": "|a|b", "unsecuredLoginNumberClaim_n": "1.5"}
    settings = UnsecuredTokens(required_scope=("a", "b"))
    assert validate(unsecured_token(options, NOW_S), settings) == Bearer("alice", NOW_MS + 3_600_000)


@given(st.binary(max_size=300) | st.text(max_size=100).map(lambda text: f"n,,\x01auth=Bearer {text}\x01\x01".encode()))
def test_whatever_comes_is_refused_and_nothing_else_happens(message: bytes) -> None:
    one = login()
    with contextlib.suppress(LoginRefused):
        assert b"invalid_token" in one.take(message)
    assert not one.is_complete
