"""The server's side of PLAIN and SCRAM: the example of RFC 7677, our own client, and whoever does not know the password (CLI-5)."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
from base64 import b64decode, b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.security.mechanisms import LoginRefused, Plain, Scram
from broker.security.scram_users import ScramUsers, credential_text, read_credential
from protocol.scram import HASHES, ScramClient, credential_of, salted_password
from protocol.zk.entity_names import desanitized, sanitized

CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SALT = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
FIRST = f"n,,n=user,r={CLIENT_NONCE}".encode()
FINAL = f"c=biws,r={CLIENT_NONCE}{SERVER_NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()
SECRET = b"secret of this process"


def users_with(user: str, password: str, iterations: int = 4096) -> ScramUsers:
    users = ScramUsers()
    config = {
        name: credential_text(
            credential_of(name, salted_password(HASHES[name], password, SALT, iterations), SALT, iterations)
        )
        for name in HASHES
    }
    users.changed({sanitized(user): config})
    return users


KNOWN = users_with("user", "pencil")


def server(mechanism: str = "SCRAM-SHA-256", users: ScramUsers = KNOWN) -> Scram:
    return Scram(mechanism, users, SERVER_NONCE, SECRET)


def test_the_example_of_rfc_7677() -> None:
    scram = server()
    assert scram.take(FIRST) == f"r={CLIENT_NONCE}{SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
    assert not scram.is_complete
    assert scram.take(FINAL) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert (scram.is_complete, scram.user) == (True, "user")


@pytest.mark.parametrize("mechanism", HASHES)
@pytest.mark.parametrize("user", ["alice", "a=b,c", "ünï cødé", "*~+%"])
def test_our_client_logs_in(mechanism: str, user: str) -> None:
    users = users_with(user, "pässword", 8192)
    client, scram = ScramClient(mechanism, user, "pässword", "nonce"), server(mechanism, users)
    client.check(scram.take(client.final(scram.take(client.first()))))
    assert (scram.is_complete, scram.user) == (True, user)


def test_an_old_librdkafka_repeats_its_nonce_and_logs_in() -> None:
    """Before 2.6.1. Kafka 3.9's ScramSaslServer asks only how the nonce ends, for its sake; the proof still covers all messages."""
    scram = server()
    first = scram.take(FIRST)
    without_proof = f"c=biws,r={CLIENT_NONCE}{CLIENT_NONCE}{SERVER_NONCE}".encode()
    message = b",".join((FIRST.removeprefix(b"n,,"), first, without_proof))
    client_key = hmac.digest(salted_password("sha256", "pencil", SALT, 4096), b"Client Key", "sha256")
    signature = hmac.digest(hashlib.sha256(client_key).digest(), message, "sha256")
    proof = bytes(left ^ right for left, right in zip(client_key, signature, strict=True))
    scram.take(without_proof + b",p=" + b64encode(proof))
    assert scram.is_complete


@pytest.mark.parametrize("mechanism", HASHES)
@pytest.mark.parametrize(("user", "reason"), [("user", "the password is wrong"), ("nobody", "there is no such user")])
def test_a_wrong_password_and_an_unknown_user_end_at_the_same_step(mechanism: str, user: str, reason: str) -> None:
    client, scram = ScramClient(mechanism, user, "guess", "nonce"), server(mechanism)
    first = scram.take(client.first())
    again = server(mechanism)
    assert again.take(client.first()) == first, "the salt is the same each time"
    with pytest.raises(LoginRefused) as refused:
        scram.take(client.final(first))
    assert (refused.value.reason, refused.value.text, scram.is_complete) == (reason, "", False)


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        (b"", "channel binding"),
        (b"\xff", "no text"),
        (b"y,,n=user,r=x", "channel binding"),
        (b"p=tls-unique,,n=user,r=x", "channel binding"),
        (b"n,,n=us=er,r=x", "channel binding"),
        (b"n,,n=user,r=", "channel binding"),
        (b"n,a=other,n=user,r=x", "another user"),
        (b"n,,n=user,r=x,tokenauth=true", "delegation tokens"),
    ],
)
def test_a_first_message_that_is_refused(token: bytes, reason: str) -> None:
    with pytest.raises(LoginRefused, match=reason):
        server().take(token)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b"c=biws", b"c=eSws", "another binding"),  # y,,
        (b"r=rO", b"r=xx", "another nonce"),
        (b"hNlF$k0", b"hNlF$k0x", "another nonce"),
        (b"r=rO", b"r=xrO", "the password is wrong"),
        (b"p=dH", b"p=dI", "the password is wrong"),
        (b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=", b"p=", "the password is wrong"),
        (b",p=", b",q=", "not that of SCRAM"),
    ],
)
def test_a_last_message_that_is_refused(old: bytes, new: bytes, reason: str) -> None:
    scram = server()
    scram.take(FIRST)
    with pytest.raises(LoginRefused, match=reason):
        scram.take(FINAL.replace(old, new))
    assert not scram.is_complete


def test_nothing_follows_the_last_message() -> None:
    scram = server()
    scram.take(FIRST)
    scram.take(FINAL)
    with pytest.raises(LoginRefused, match="after the last"):
        scram.take(FINAL)


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_no_bytes_log_in_or_fail_in_another_way(first: bytes, last: bytes) -> None:
    scram = server()
    for token in (first, last):
        with contextlib.suppress(LoginRefused):
            scram.take(token)
        assert not scram.is_complete


# -- PLAIN -----------------------------------------------------------------------------------------------------------------

PASSWORDS = {"alice": "wonder", "bob": "ünï"}
WRONG = "Authentication failed: Invalid username or password"


@pytest.mark.parametrize("token", ["\0alice\0wonder", "alice\0alice\0wonder", "\0bob\0ünï"])
def test_a_user_logs_in_by_plain(token: str) -> None:
    plain = Plain(PASSWORDS)
    assert plain.take(token.encode()) == b""
    assert plain.is_complete
    assert plain.user in PASSWORDS


@pytest.mark.parametrize(
    ("token", "text"),
    [
        (b"\0alice\0wrong", WRONG),
        (b"\0nobody\0wonder", WRONG),
        (b"\0nobody\0\0", ""),
        (b"alice\0wonder", ""),
        (b"", ""),
        (b"\0\0wonder", "Authentication failed: username not specified"),
        (b"\0alice\0", "Authentication failed: password not specified"),
        (
            b"bob\0alice\0wonder",
            "Authentication failed: Client requested an authorization id that is different from username",
        ),
    ],
)
def test_a_token_of_plain_that_is_refused(token: bytes, text: str) -> None:
    """The texts of Kafka's PlainSaslServer; "" stands for its general one."""
    plain = Plain(PASSWORDS)
    with pytest.raises(LoginRefused) as refused:
        plain.take(token)
    assert refused.value.text == text
    assert not plain.is_complete


# -- credentials in ZooKeeper ----------------------------------------------------------------------------------------------


def test_a_credential_is_kafkas_text() -> None:
    """As Kafka's ScramCredentialUtils writes it."""
    keys = [hashlib.sha256(name).digest() for name in (b"stored", b"server")]
    stored, server_key = (b64encode(key).decode() for key in keys)
    text = f"salt=W22ZaJ0SNY7soEsUEjb6gQ==,stored_key={stored},server_key={server_key},iterations=4096"
    credential = read_credential(text)
    assert (credential.salt, credential.stored_key, credential.server_key, credential.iterations) == (SALT, *keys, 4096)
    assert credential_text(credential) == text
    assert stored not in repr(credential)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "salt=AAAA",
        "salt=AAAA,stored_key=AAAA,server_key=AAAA,iterations=4095",
        "salt=AAAA,stored_key=AAAA,server_key=?,iterations=4096",
        "salt=,stored_key=AAAA,server_key=AAAA,iterations=4096",
        "salt=AAAA,stored_key=AAAA,server_key=AAAA,iterations=many",
    ],
)
def test_a_credential_that_cannot_be_used_lets_nobody_in(text: str, caplog: pytest.LogCaptureFixture) -> None:
    users = users_with("user", "pencil")
    users.changed({"user": {"SCRAM-SHA-256": text}})
    assert users.credential("SCRAM-SHA-256", "user") is None
    assert "the credential of user 'user' for SCRAM-SHA-256 cannot be used" in caplog.text
    assert "AAAA" not in caplog.text


@pytest.mark.parametrize(
    ("user", "name"),
    [("alice", "alice"), ("a b", "a%20b"), ("CN=x,O=y", "CN%3Dx%2CO%3Dy"), ("*", "%2A"), ("~", "%7E"), ("ü", "%C3%BC")],
)
def test_the_znode_of_a_user_has_kafkas_name(user: str, name: str) -> None:
    """As Kafka's Sanitizer."""
    assert (sanitized(user), desanitized(name)) == (name, user)


def test_users_come_and_go() -> None:
    users = users_with("user", "pencil")
    users.changed({"<default>": {"producer_byte_rate": "1"}, "quota-only": {"producer_byte_rate": "1"}, "%ff": {}})
    assert len(users) == 1
    users.all_are(["user"])
    assert len(users) == 1
    users.all_are([])
    assert len(users) == 0
