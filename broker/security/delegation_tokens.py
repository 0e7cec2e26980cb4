"""Delegation tokens (KIP-48): who logs in by which, and what its password is. Pure.

A token's id is the user, and its *HMAC*, of the id by the secret of all brokers, in base64 the password, of a login by SCRAM with
`tokenauth=true`. Whoever logs in so is the token's owner, until the token expires.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64encode
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from protocol.scram import HASHES, ITERATIONS_MIN, Credential, credential_of, salted_password
from protocol.zk.token_znodes import DelegationToken

SALT_BYTES: Final = 16


class TokenLogin(NamedTuple):
    """What a login by a token needs."""

    credential: Credential
    owner: str
    expires_ms: int


class DelegationTokens:
    """All tokens that a broker knows."""

    def __init__(self, secret: str) -> None:
        """`secret`: `delegation.token.secret.key`."""
        self._secret = secret.encode()
        self._tokens: dict[str, DelegationToken] = {}
        self._ids: dict[bytes, str] = {}
        self._credentials: dict[tuple[str, str], Credential] = {}

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def tokens(self) -> Mapping[str, DelegationToken]:
        """By id."""
        return MappingProxyType(self._tokens)

    def hmac_of(self, token_id: str) -> bytes:
        """The token's password, before base64."""
        return hmac.digest(self._secret, token_id.encode(), "sha512")

    def with_hmac(self, digest: bytes) -> str | None:
        """The id of the token; None: there is none."""
        return self._ids.get(digest)

    def put(self, token: DelegationToken) -> None:
        """The token is new, or has changed."""
        self._tokens[token.id] = token
        self._ids[self.hmac_of(token.id)] = token.id

    def remove(self, token_id: str) -> None:
        """The token does not count any more. It need not be there."""
        if self._tokens.pop(token_id, None) is not None:
            self._ids.pop(self.hmac_of(token_id), None)
            for mechanism in HASHES:
                self._credentials.pop((mechanism, token_id), None)

    def all_are(self, token_ids: Iterable[str]) -> None:
        """Forgets the others."""
        for gone in self._tokens.keys() - set(token_ids):
            self.remove(gone)

    def login(self, mechanism: str, token_id: str, wall_ms: int) -> TokenLogin | None:
        """None: there is no such token, or it has expired. The first login by a token computes for some milliseconds."""
        token = self._tokens.get(token_id)
        if token is None or token.expires_ms <= wall_ms:
            return None
        key = (mechanism, token_id)
        credential = self._credentials.get(key)
        if credential is None:
            credential = self._credentials[key] = self._credential(mechanism, token_id)
        return TokenLogin(credential, token.owner.name, token.expires_ms)

    def _credential(self, mechanism: str, token_id: str) -> Credential:
        password = self.hmac_of(token_id)
        salt = hashlib.sha256(mechanism.encode() + password).digest()[:SALT_BYTES]
        salted = salted_password(HASHES[mechanism], b64encode(password).decode(), salt, ITERATIONS_MIN)
        return credential_of(mechanism, salted, salt, ITERATIONS_MIN)
