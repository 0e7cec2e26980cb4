"""Whoever issues tokens for OAUTHBEARER: a key, its public half in a file, and the tokens that it signs. Needs pyjwt and cryptography."""

from __future__ import annotations

import json
import time
from pathlib import Path

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

ISSUER, AUDIENCE = "https://issuer.test", "kafka"
KEY_ID = "one"
LIFETIME_S = 3600.0


class Issuer:
    """Signs by RS256. Two issuers have different keys of the same id."""

    def __init__(self, directory: Path) -> None:
        """`directory` gets the files."""
        self._key = rsa.generate_private_key(65537, 2048)
        self._directory = directory
        public = jwt.get_algorithm_by_name("RS256").to_jwk(self._key.public_key(), as_dict=True)
        self._keys = directory / "keys.json"
        self._keys.write_text(json.dumps({"keys": [{**public, "kid": KEY_ID}]}))

    def settings(self, prefix: str = "") -> dict[str, str]:
        """Of a broker that takes the tokens of this issuer. `prefix`: of one listener, such as `listener.name.clients.`."""
        given = {"jwks.endpoint.url": self._keys.as_uri(), "expected.issuer": ISSUER, "expected.audience": AUDIENCE}
        return {f"{prefix}sasl.oauthbearer.{name}": value for name, value in given.items()}

    def token(self, user: str, seconds: float = LIFETIME_S, **claims: object) -> str:
        """`seconds`: until its end, which is over if they are negative."""
        now = time.time()
        issued = min(now, now + seconds - 1)  # before the end
        given = {"sub": user, "iat": issued, "exp": now + seconds, "iss": ISSUER, "aud": AUDIENCE, **claims}
        return str(jwt.encode(given, self._key, "RS256", headers={"kid": KEY_ID}))

    def token_file(self, name: str, token: str) -> Path:
        """A new file with a token."""
        file = self._directory / name
        file.write_text(token)
        return file
