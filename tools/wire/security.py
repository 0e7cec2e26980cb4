"""How clients connect to a cluster: TLS and SASL. It can be pickled; the keys must not come to a disk."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----")
PLACE_IN_PYTHON = re.compile(r" ?\(_ssl\.c:\d+\)")


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
        if self.trusted:
            # As in Java, a trusted certificate need not be an authority's.
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            context.load_verify_locations(cadata="\n".join(CERTIFICATE.findall(self.trusted)))
        else:
            context.load_default_certs()
        if self.certificates:
            self._load_own_certificate(context)
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

    def _load_own_certificate(self, context: ssl.SSLContext) -> None:
        # OpenSSL reads a key from a file only, and the key must not come to a disk.
        memory = os.memfd_create("client-certificate")
        try:
            with open(memory, "w", closefd=False) as file:
                file.write(f"{self.key}\n{self.certificates}\n")
            # The function keeps OpenSSL from asking for the password at the terminal.
            context.load_cert_chain(f"/proc/self/fd/{memory}", password=lambda: self.key_password)
        finally:
            os.close(memory)


PLAINTEXT = Security()


def tls_reason(problem: ssl.SSLError) -> str:
    """What went wrong, in OpenSSL's words, such as `wrong version number`."""
    reason = problem.reason or PLACE_IN_PYTHON.sub("", str(problem)) or type(problem).__name__
    return reason.replace("_", " ").lower()
