"""SASL DIGEST-MD5 of a client (RFC 2831, with qop=auth), as ZooKeeper's login wants it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import md5
from hmac import compare_digest

DIRECTIVE = re.compile(r'\s*([A-Za-z-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^",\s]+))\s*(?:,|$)')
ESCAPE = re.compile(r"\\(.)")
NONCE_COUNT = "00000001"
QOP = "auth"


class BadChallenge(ValueError):
    """The server's message cannot be used. The text has nothing secret."""


class DigestMd5:
    """One login."""

    def __init__(self, user: str, password: str, uri: str, own_nonce: str) -> None:
        """`uri`: service/host. `own_nonce`: random, without quotes."""
        self._user, self._password, self._uri, self._own_nonce = user, password, uri, own_nonce
        self._expected = ""

    def answer(self, challenge: bytes) -> bytes:
        """The answer to the server's first message. Raises BadChallenge."""
        found = _directives(challenge)
        nonce, realm = found.get("nonce"), found.get("realm", "")
        if nonce is None or found.get("algorithm") != "md5-sess":
            raise BadChallenge("it is no challenge of DIGEST-MD5")
        if QOP not in [word.strip() for word in found.get("qop", QOP).split(",")]:
            raise BadChallenge(f"it does not offer qop={QOP}")
        secret = md5(f"{self._user}:{realm}:{self._password}".encode(), usedforsecurity=False).digest()
        session = secret + f":{nonce}:{self._own_nonce}".encode()
        self._expected = self._signed(session, nonce, f":{self._uri}")
        parts = {
            "username": _quoted(self._user),
            "realm": _quoted(realm),
            "nonce": _quoted(nonce),
            "cnonce": _quoted(self._own_nonce),
            "nc": NONCE_COUNT,
            "qop": QOP,
            "digest-uri": _quoted(self._uri),
            "response": self._signed(session, nonce, f"AUTHENTICATE:{self._uri}"),
            "charset": "utf-8",
        }
        return ",".join(f"{key}={value}" for key, value in parts.items()).encode()

    def check(self, last: bytes) -> None:
        """Whether the server knows the password, too. Raises BadChallenge."""
        if not self._expected or not compare_digest(
            _directives(last).get("rspauth", "").encode(), self._expected.encode()
        ):
            raise BadChallenge("the server does not prove that it knows the password")

    def _signed(self, session: bytes, nonce: str, action: str) -> str:
        text = f"{_hex(session)}:{nonce}:{NONCE_COUNT}:{self._own_nonce}:{QOP}:{_hex(action.encode())}"
        return _hex(text.encode())


def _hex(data: bytes) -> str:
    return md5(data, usedforsecurity=False).hexdigest()


def _quoted(text: str) -> str:
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'


def _directives(message: bytes) -> Mapping[str, str]:
    text, at, found = message.decode("utf-8", "replace"), 0, {}
    while at < len(text):
        match = DIRECTIVE.match(text, at)
        if match is None:
            raise BadChallenge("it is no message of DIGEST-MD5")
        name, quoted, word = match.groups()
        found[name] = word if quoted is None else ESCAPE.sub(r"\1", quoted)
        at = match.end()
    return found
