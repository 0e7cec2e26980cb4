"""SCRAM (RFC 5802, RFC 7677) as Kafka speaks it, without channel binding and SASLprep: the client's side, and a user's keys. Pure.

`broker/security/mechanisms.py` has the server's side.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

HASHES: Mapping[str, str] = MappingProxyType({"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"})
ITERATIONS_MIN = 4096
"""Kafka's minimum. With fewer iterations, a false broker could guess the password from the proof."""
ITERATIONS_MAX = 1_000_000
"""Half a second of computing."""
NO_BINDING = b"n,,"


class Credential(NamedTuple):
    """What a broker keeps of a user's password: enough to check a login, and not enough to log in (RFC 5802, section 3)."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"Credential(..., iterations={self.iterations})"


def credential_of(mechanism: str, salted: bytes, salt: bytes, iterations: int) -> Credential:
    """`salted`: the salted password (`salted_password`)."""
    name = HASHES[mechanism]
    stored = hashlib.new(name, hmac.digest(salted, b"Client Key", name)).digest()
    return Credential(salt, stored, hmac.digest(salted, b"Server Key", name), iterations)


class ScramError(ValueError):
    """What the broker says is not SCRAM, or not from a broker that knows the password."""


class ScramClient:
    """One login: send `first()`, then `final(...)` of the broker's answer, then `check(...)` its last message."""

    def __init__(self, mechanism: str, username: str, password: str, nonce: str, *, tokenauth: bool = False) -> None:
        """`nonce`: random, printable, without a comma. `tokenauth`: user and password are those of a delegation token."""
        self._hash = HASHES[mechanism]
        self._password = password
        self._nonce = nonce
        escaped = username.replace("=", "=3D").replace(",", "=2C")
        self._first = f"n={escaped},r={nonce}{',tokenauth=true' * tokenauth}".encode()
        self._signature = b""

    def first(self) -> bytes:
        return NO_BINDING + self._first

    def final(self, server_first: bytes) -> bytes:
        """The proof that the password is known. Raises ScramError."""
        fields = _fields(server_first)
        try:
            nonce, salt, iterations = fields["r"], b64decode(fields["s"], validate=True), int(fields["i"])
        except (KeyError, ValueError):
            raise ScramError("the broker's first SCRAM message is malformed") from None
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ScramError("the broker's SCRAM nonce does not continue the client's")
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise ScramError(f"SCRAM with {iterations} iterations; {ITERATIONS_MIN} to {ITERATIONS_MAX} are possible")
        salted = salted_password(self._hash, self._password, salt, iterations)
        client_key = self._hmac(salted, b"Client Key")
        without_proof = b"c=" + b64encode(NO_BINDING) + b",r=" + nonce.encode()
        message = b",".join((self._first, server_first, without_proof))
        proof = self._hmac(hashlib.new(self._hash, client_key).digest(), message)
        self._signature = self._hmac(self._hmac(salted, b"Server Key"), message)
        proof = bytes(left ^ right for left, right in zip(client_key, proof, strict=True))
        return without_proof + b",p=" + b64encode(proof)

    def check(self, server_final: bytes) -> None:
        """Raises ScramError unless the broker knows the password, too."""
        fields = _fields(server_final)
        if "e" in fields:
            raise ScramError(fields["e"])
        try:
            signature = b64decode(fields.get("v", ""), validate=True)
        except ValueError:
            signature = b""
        if not self._signature or not hmac.compare_digest(signature, self._signature):
            raise ScramError("the broker's SCRAM signature is wrong: it does not know the password")

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._hash)


@lru_cache(maxsize=16)
def salted_password(hash_name: str, password: str, salt: bytes, iterations: int) -> bytes:
    """Cached, because it takes milliseconds and is the same on each connection."""
    return hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, iterations)


def _fields(message: bytes) -> dict[str, str]:
    try:
        text = message.decode()
    except UnicodeDecodeError:
        raise ScramError("the broker's SCRAM message is not text") from None
    return {part[:1]: part[2:] for part in text.split(",") if part[1:2] == "="}
