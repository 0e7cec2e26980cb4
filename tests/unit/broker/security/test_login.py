"""The frames of a login, in every order and version: what is answered, and what ends it (KIP-43, KIP-152, KIP-368)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.apis.api_versions import answer_before_login
from broker.process.audit_log import AuditLog
from broker.process.clock import SystemClock
from broker.security.login import VERSIONS_REFUSED_MAX, LoggedIn, Login, LoginFailed, Logins
from broker.security.oauth_bearer import Bearer
from broker.security.scram_users import ScramUsers
from broker.settings.sasl import ListenerSasl
from protocol.bearer import first_message
from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey, ApiLevel
from protocol.kafka.framing import MalformedRequest
from protocol.types import Principal

ALICE = b"\0alice\0wonder"

SILENT = AuditLog(None, SystemClock())


def logins(max_reauth_ms: int = 0) -> Logins:
    sasl = ListenerSasl(
        "CLIENTS",
        ("PLAIN", "SCRAM-SHA-256"),
        {"alice": "wonder", "bob": "builder"},
        {"PLAIN": max_reauth_ms},
        1000,
    )
    return Logins(sasl, ScramUsers(), partial(answer_before_login, ApiLevel.KAFKA_3_9), SILENT)


def ask(login: Login, key: ApiKey, version: int, body: Mapping[str, Any]) -> Any:
    """The decoded answer."""
    return answer(login.take(messages.encode_request(key, version, 7, "me", body)), key, version)


def answer(framed: bytes, key: ApiKey, version: int) -> Any:
    assert int.from_bytes(framed[:4], "big") == len(framed) - 4
    correlation_id, decoded = messages.decode_response(key, version, memoryview(framed[4:]))
    assert correlation_id == 7
    return decoded


def failure(login: Login, key: ApiKey, version: int, body: Mapping[str, Any]) -> LoginFailed:
    with pytest.raises(LoginFailed) as failed:
        ask(login, key, version, body)
    return failed.value


VERSIONS = {"client_software_name": "x", "client_software_version": "1"}


@pytest.mark.parametrize("version", [None, 0, 3, 4])
@pytest.mark.parametrize("authenticate", [0, 1, 2])
def test_a_login(version: int | None, authenticate: int) -> None:
    login = Login(logins(60_000))
    if version is not None:
        assert ask(login, ApiKey.API_VERSIONS, version, VERSIONS if version >= 3 else {}).error_code == 0
    said = ask(login, ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
    assert (said.error_code, said.mechanisms) == (0, ("PLAIN", "SCRAM-SHA-256"))
    assert login.result is None
    said = ask(login, ApiKey.SASL_AUTHENTICATE, authenticate, {"auth_bytes": ALICE})
    assert (said.error_code, said.auth_bytes) == (0, b"")
    if authenticate:
        assert messages.milliseconds(said.session_lifetime) == 60_000
    assert login.result == LoggedIn(Principal("User", "alice"), "PLAIN", 60_000)


def test_bare_tokens_after_an_old_handshake() -> None:
    login = Login(logins())
    ask(login, ApiKey.SASL_HANDSHAKE, 0, {"mechanism": "PLAIN"})
    assert login.take(ALICE) == bytes(4)
    assert login.result is not None
    login = Login(logins())
    ask(login, ApiKey.SASL_HANDSHAKE, 0, {"mechanism": "PLAIN"})
    with pytest.raises(LoginFailed) as failed:
        login.take(b"\0alice\0wrong")
    assert failed.value.answer == b""


def test_an_unknown_version_of_api_versions_is_answered_and_may_be_repeated() -> None:
    login = Login(logins())
    frame = messages.encode_request(ApiKey.API_VERSIONS, 4, 7, "me", VERSIONS)
    said = answer(login.take(frame[:2] + b"\0\x63" + frame[4:]), ApiKey.API_VERSIONS, 0)
    assert said.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert ask(login, ApiKey.API_VERSIONS, 3, {**VERSIONS, "client_software_name": "!"}).error_code != 0
    assert ask(login, ApiKey.API_VERSIONS, 3, VERSIONS).error_code == 0
    assert "ApiVersions before" in failure(login, ApiKey.API_VERSIONS, 3, VERSIONS).reason


def test_nobody_asks_for_versions_for_ever() -> None:
    login = Login(logins())
    refused = {**VERSIONS, "client_software_name": "!"}
    for _ in range(VERSIONS_REFUSED_MAX):
        assert ask(login, ApiKey.API_VERSIONS, 3, refused).error_code == ErrorCode.INVALID_REQUEST
    assert "repeats ApiVersions" in failure(login, ApiKey.API_VERSIONS, 3, refused).reason


@pytest.mark.parametrize("mechanism", ["GSSAPI", "plain", "", "SCRAM-SHA-512"])
def test_another_mechanism_gets_the_list(mechanism: str) -> None:
    failed = failure(Login(logins()), ApiKey.SASL_HANDSHAKE, 1, {"mechanism": mechanism})
    said = answer(failed.answer, ApiKey.SASL_HANDSHAKE, 1)
    assert (said.error_code, said.mechanisms) == (ErrorCode.UNSUPPORTED_SASL_MECHANISM, ("PLAIN", "SCRAM-SHA-256"))


def test_other_requests_end_the_login_without_an_answer() -> None:
    assert failure(Login(logins()), ApiKey.METADATA, 1, {"topics": None}).answer == b""
    assert failure(Login(logins()), ApiKey.SASL_AUTHENTICATE, 1, {"auth_bytes": ALICE}).answer == b""
    login = Login(logins())
    ask(login, ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
    assert failure(login, ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"}).answer == b""


GENERAL = "Authentication failed during authentication due to invalid credentials with SASL mechanism "


@pytest.mark.parametrize(
    ("mechanism", "token", "text"),
    [
        ("PLAIN", b"\0alice\0x", "Authentication failed: Invalid username or password"),
        ("PLAIN", b"x", f"{GENERAL}PLAIN"),
        ("SCRAM-SHA-256", b"x", f"{GENERAL}SCRAM-SHA-256"),
    ],
)
def test_a_refusal_has_kafkas_text(mechanism: str, token: bytes, text: str) -> None:
    login = Login(logins())
    ask(login, ApiKey.SASL_HANDSHAKE, 1, {"mechanism": mechanism})
    failed = failure(login, ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": token})
    said = answer(failed.answer, ApiKey.SASL_AUTHENTICATE, 2)
    assert (said.error_code, said.error_message) == (ErrorCode.SASL_AUTHENTICATION_FAILED, text)


# -- again ---------------------------------------------------------------------------------------------------------------

BEFORE = LoggedIn(Principal("User", "alice"), "PLAIN", 60_000)


def test_a_client_logs_in_again() -> None:
    login = Login(logins(60_000), BEFORE)
    ask(login, ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
    ask(login, ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": ALICE})
    assert login.result == BEFORE


def test_neither_user_nor_mechanism_may_change() -> None:
    login = Login(logins(60_000), BEFORE)
    ask(login, ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
    failed = failure(login, ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": b"\0bob\0builder"})
    said = answer(failed.answer, ApiKey.SASL_AUTHENTICATE, 2)
    assert said.error_message == "Cannot change principals during re-authentication from User.alice: User.bob"
    assert login.result is None
    assert (
        "must not change"
        in failure(Login(logins(), BEFORE), ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "SCRAM-SHA-256"}).reason
    )


@given(st.lists(st.binary(min_size=1, max_size=60), max_size=4), st.sampled_from(["", "handshake", "old handshake"]))
def test_no_bytes_log_in_or_fail_in_another_way(frames: list[bytes], before: str) -> None:
    login = Login(logins())
    if before:
        ask(login, ApiKey.SASL_HANDSHAKE, int(before == "handshake"), {"mechanism": "PLAIN"})
    for frame in frames:
        try:
            login.take(frame)
        except (LoginFailed, MalformedRequest):
            break
    assert login.result is None


@pytest.mark.parametrize(
    ("max_reauth_ms", "are_for_ever", "lifetime_ms"),
    [(0, False, 5000), (9000, False, 5000), (1000, False, 1000), (0, True, 0)],
)
def test_a_login_by_a_token_ends_with_it(max_reauth_ms: int, are_for_ever: bool, lifetime_ms: int) -> None:
    sasl = ListenerSasl("CLIENTS", ("OAUTHBEARER",), {}, {"OAUTHBEARER": max_reauth_ms}, 1000)
    bearer = Bearer("alice", 105_000)
    logins = Logins(
        sasl,
        ScramUsers(),
        partial(answer_before_login, ApiLevel.KAFKA_3_9),
        SILENT,
        lambda _: bearer,
        lambda: 100_000,
        are_for_ever=are_for_ever,
    )
    login = Login(logins)
    ask(login, ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "OAUTHBEARER"})
    said = ask(login, ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": first_message("a.b.")})
    assert messages.milliseconds(said.session_lifetime) == lifetime_ms
    assert login.result == LoggedIn(Principal("User", "alice"), "OAUTHBEARER", lifetime_ms)
