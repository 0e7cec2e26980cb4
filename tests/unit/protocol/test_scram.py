"""SCRAM as a client (RPL-2): the example of RFC 7677, and what a false broker says."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode

import pytest

from protocol.scram import HASHES, ScramClient, ScramError

NONCE = "rOprNGfwEbeRWgbNEkqO"
FULL_NONCE = f"{NONCE}%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SERVER_FIRST = f"r={FULL_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()


def the_rfcs_client() -> ScramClient:
    return ScramClient("SCRAM-SHA-256", "user", "pencil", NONCE)


def test_the_example_of_rfc_7677() -> None:
    client = the_rfcs_client()
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    final = f"c=biws,r={FULL_NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    assert client.final(SERVER_FIRST) == final.encode()
    client.check(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize("mechanism", HASHES)
def test_a_broker_that_knows_the_stored_key_accepts_the_proof(mechanism: str) -> None:
    """RFC 5802, section 3, from the broker's side: H(signature XOR proof) is the stored key."""
    hash_name = HASHES[mechanism]
    client = ScramClient(mechanism, "a=b,c", "pässword", NONCE)
    first = client.first()
    assert first == b"n,,n=a=3Db=2Cc,r=" + NONCE.encode()
    without_proof, _, proof = client.final(SERVER_FIRST).partition(b",p=")
    salted = hashlib.pbkdf2_hmac(hash_name, "pässword".encode(), b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), 4096)
    stored = hashlib.new(hash_name, hmac.digest(salted, b"Client Key", hash_name)).digest()
    message = first[3:] + b"," + SERVER_FIRST + b"," + without_proof
    signature = hmac.digest(stored, message, hash_name)
    key = bytes(left ^ right for left, right in zip(signature, b64decode(proof), strict=True))
    assert hashlib.new(hash_name, key).digest() == stored
    client.check(b"v=" + b64encode(hmac.digest(hmac.digest(salted, b"Server Key", hash_name), message, hash_name)))


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"r=other,s=AAAA,i=4096", "nonce does not continue"),
        (f"r={NONCE},s=AAAA,i=4096".encode(), "nonce does not continue"),
        (f"r={FULL_NONCE},s=AAAA,i=4095".encode(), "4095 iterations"),
        (f"r={FULL_NONCE},s=AAAA,i=99999999".encode(), "99999999 iterations"),
        (f"r={FULL_NONCE},s=AAAA,i=many".encode(), "malformed"),
        (f"r={FULL_NONCE},s=?,i=4096".encode(), "malformed"),
        (b"", "malformed"),
        (b"\xff", "not text"),
    ],
)
def test_a_first_message_that_is_refused(said: bytes, why: str) -> None:
    with pytest.raises(ScramError, match=why):
        the_rfcs_client().final(said)


@pytest.mark.parametrize(
    ("said", "why"), [(b"v=AAAA", "does not know the password"), (b"", "does not know"), (b"e=unknown-user", "unknown")]
)
def test_a_last_message_that_is_refused(said: bytes, why: str) -> None:
    client = the_rfcs_client()
    client.final(SERVER_FIRST)
    with pytest.raises(ScramError, match=why):
        client.check(said)


def test_a_signature_before_the_proof_is_refused() -> None:
    with pytest.raises(ScramError, match="signature is wrong"):
        the_rfcs_client().check(b"v=")
