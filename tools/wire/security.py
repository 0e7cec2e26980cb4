"""How clients connect to a cluster: TLS and SASL. It can be pickled; the keys must not come to a disk."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

from protocol.tls import Identity, certificates_in, load_identity, private_key_in, trust

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


@dataclass(frozen=True, slots=True)
class Security:
    """The certificates and the key are PEM texts. Empty: there is none."""

    protocol: str = "PLAINTEXT"
    mechanism: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
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

    def librdkafka_properties(self) -> dict[str, str]:
        """The same for confluent-kafka."""
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
        found = {key: value for key, value in given.items() if value}
        if self.uses_tls:
            found["ssl.endpoint.identification.algorithm"] = "https" if self.checks_host else "none"
        return found


PLAINTEXT = Security()
