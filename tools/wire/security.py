"""How clients connect to a cluster: TLS and SASL. It can be pickled; the keys must not come to a disk."""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from protocol.bearer import MECHANISM, claims_of, unsecured_token
from protocol.tls import Identity, certificates_in, load_identity, private_key_in, trust

TOKEN_LENGTH_MAX = 16 * 1024
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


@dataclass(frozen=True, slots=True)
class Security:
    """The certificates and the key are PEM texts. Empty: there is none."""

    protocol: str = "PLAINTEXT"
    mechanism: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    token_url: str = ""
    """Of OAUTHBEARER: the file of the token, as `file:///...`. Empty: a token without a signature, of `token_options`."""
    token_options: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    """The options of the login module (`protocol/bearer.py`)."""
    trusted: str = ""
    """The certificates that brokers' certificates may lead to. Empty: the authorities that this machine trusts."""
    certificates: str = ""
    """The client's own certificate, and those between it and its authority."""
    key: str = field(default="", repr=False)
    key_password: str = field(default="", repr=False)
    checks_host: bool = True
    """Whether the broker's certificate must name the host."""

    @property
    def uses_tls(self) -> bool:
        return self.protocol.endswith("SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.protocol.startswith("SASL_")

    def token(self) -> str:
        """The token of OAUTHBEARER for one login. Raises OSError, ValueError."""
        if not self.token_url:
            return unsecured_token(self.token_options, time.time())
        with Path(unquote(urlsplit(self.token_url).path)).open(encoding="ascii") as file:
            return file.read(TOKEN_LENGTH_MAX).strip()

    def tls_context(self) -> ssl.SSLContext | None:
        """None without TLS. Raises ssl.SSLError if a certificate or the key cannot be used."""
        if not self.uses_tls:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = self.checks_host
        trust(context, certificates_in(self.trusted) if self.trusted else None)
        if self.certificates:
            load_identity(context, Identity(private_key_in(self.key) or self.key, self.certificates), self.key_password)
        return context

    def librdkafka_properties(self) -> dict[str, Any]:
        """The same for confluent-kafka. Its `oauth_cb` is a function."""
        given: Mapping[str, str] = {
            "security.protocol": self.protocol,
            "sasl.mechanism": self.mechanism,
            "sasl.username": self.username,
            "sasl.password": self.password,
            "ssl.ca.pem": self.trusted,
            "ssl.certificate.pem": self.certificates,
            "ssl.key.pem": self.key,
            "ssl.key.password": self.key_password,
        }
        found: dict[str, Any] = {key: value for key, value in given.items() if value}
        if self.mechanism == MECHANISM:
            found["oauth_cb"] = self._token_of_librdkafka
        if self.uses_tls:
            found["ssl.endpoint.identification.algorithm"] = "https" if self.checks_host else "none"
        return found

    def _token_of_librdkafka(self, _: str) -> tuple[str, float]:
        """As `oauth_cb`: the token, and its end in seconds since 1970."""
        token = self.token()
        return token, float(claims_of(token).get("exp", 0))


PLAINTEXT = Security()
