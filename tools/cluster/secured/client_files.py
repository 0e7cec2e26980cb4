"""How a client connects to a secured cluster, in the settings of each client library. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

PLAIN = "PLAIN"
MECHANISM = "SCRAM-SHA-512"
"""How clients log in unless they choose: it also lets in users who are created later."""
FOR_JAVA = "for Java clients, Kafka's tools and ottla"
ASCII_END = 0x80
ABOUT = """\
# {about}
# Only the owner may read this file: it has a password or names a private key.
"""


@dataclass(frozen=True, slots=True)
class ClientAccess:
    """One user's way to the cluster. `servers`: of the listener with SASL; `mutual_tls_servers`: of the one that wants a certificate."""

    user: str
    password: str = field(repr=False)
    servers: str
    mutual_tls_servers: str
    authority: Path
    certificate: Path
    """The user's key and certificate in PEM, in one file."""

    def java(self, mechanism: str = MECHANISM) -> dict[str, str]:
        """For Java clients, Kafka's tools and `--command-config`."""
        return {
            "bootstrap.servers": self.servers,
            "security.protocol": "SASL_SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority),
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": f'{_login_module(mechanism)} required username="{self.user}" password="{self.password}";',
        }

    def java_mutual_tls(self) -> dict[str, str]:
        """The same by the certificate."""
        return {
            "bootstrap.servers": self.mutual_tls_servers,
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.certificate),
        }

    def librdkafka(self, mechanism: str = MECHANISM) -> dict[str, str]:
        """For librdkafka: confluent-kafka, kcat and others."""
        return {
            "bootstrap.servers": self.servers,
            "security.protocol": "sasl_ssl",
            "ssl.ca.location": str(self.authority),
            "sasl.mechanism": mechanism,
            "sasl.username": self.user,
            "sasl.password": self.password,
        }

    def librdkafka_mutual_tls(self) -> dict[str, str]:
        """The same by the certificate."""
        return {
            "bootstrap.servers": self.mutual_tls_servers,
            "security.protocol": "ssl",
            "ssl.ca.location": str(self.authority),
            "ssl.certificate.location": str(self.certificate),
            "ssl.key.location": str(self.certificate),
        }

    def python(self) -> dict[str, Mapping[str, str]]:
        """Library -> its settings. For aiokafka, `ssl_cafile` becomes an `ssl_context` (docs/SECURITY.md)."""
        login = {
            "bootstrap_servers": self.servers,
            "security_protocol": "SASL_SSL",
            "ssl_cafile": str(self.authority),
            "sasl_mechanism": MECHANISM,
            "sasl_plain_username": self.user,
            "sasl_plain_password": self.password,
        }
        return {"confluent-kafka": self.librdkafka(), "kafka-python": login, "aiokafka": login}

    def python_mutual_tls(self) -> dict[str, Mapping[str, str]]:
        """The same by the certificate."""
        certified = {
            "bootstrap_servers": self.mutual_tls_servers,
            "security_protocol": "SSL",
            "ssl_cafile": str(self.authority),
            "ssl_certfile": str(self.certificate),
            "ssl_keyfile": str(self.certificate),
        }
        return {"confluent-kafka": self.librdkafka_mutual_tls(), "kafka-python": certified, "aiokafka": certified}

    def files(self) -> dict[str, str]:
        """Name -> content."""
        return {
            "client.properties": _java_properties(self.java(), f"User {self.user}, {FOR_JAVA}."),
            "mutual-tls.properties": _java_properties(
                self.java_mutual_tls(), f"User {self.user} by a certificate, {FOR_JAVA}."
            ),
            "librdkafka.properties": _properties(
                self.librdkafka(), f"User {self.user}, for librdkafka, such as kcat -F."
            ),
            "python.json": json.dumps(self.python(), indent=1) + "\n",
        }


def _login_module(mechanism: str) -> str:
    kind = "plain.Plain" if mechanism == PLAIN else "scram.Scram"
    return f"org.apache.kafka.common.security.{kind}LoginModule"


def _java_properties(settings: Mapping[str, str], about: str) -> str:
    """Java reads such a file as Latin-1: what is not ASCII, such as the name of a directory, is written with escapes."""
    text = _properties(settings, about)
    units = text.encode("utf-16-be")
    codes = (int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2))
    return "".join(chr(code) if code < ASCII_END else f"\\u{code:04x}" for code in codes)


def _properties(settings: Mapping[str, str], about: str) -> str:
    return ABOUT.format(about=about) + "".join(f"{key}={value}\n" for key, value in settings.items())
