"""Certificates made by openssl: an authority, a broker's certificate for 127.0.0.1 and a client's."""

from __future__ import annotations

import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from broker.settings.config import BrokerConfig
    from broker.settings.tls import ListenerTls

DAYS = "2"
KEY_PASSWORD = "opens-the-key"


def loaded_tls(listener: str, config: BrokerConfig) -> ListenerTls:
    """The TLS of a listener whose files were read. Raises ConfigError."""
    from broker.settings.tls import ListenerTls

    tls = ListenerTls(listener, config)
    tls.load(config)
    return tls


class Certificates:
    """PEM files in a directory. Skips the test where openssl is missing."""

    def __init__(self, directory: Path) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("no certificates: install openssl")
        self._directory = directory
        self.authority = self._self_signed("authority")
        self.stranger = self._self_signed("stranger")
        """An authority that signed nothing."""
        self.broker = self._signed("broker", "subjectAltName=IP:127.0.0.1")
        self.client = self._signed("client", "extendedKeyUsage=clientAuth")
        """The key is encrypted by KEY_PASSWORD; the certificate follows it."""
        self.with_encrypted_key(self.client)

    def with_encrypted_key(self, both: Path) -> Path:
        """Encrypts the key in this file by KEY_PASSWORD; the certificate follows it."""
        key, encrypted = both.with_suffix(".key"), both.with_suffix(".key.encrypted")
        self._openssl(
            "pkcs8", "-topk8", "-v2", "aes-256-cbc", "-in", key, "-out", encrypted, "-passout", f"pass:{KEY_PASSWORD}"
        )
        both.write_text(encrypted.read_text() + both.with_suffix(".crt").read_text())
        return both

    def of(self, user: str) -> Path:
        """A client's, with its key in the clear, for `CN=user`."""
        return self._signed(user, "extendedKeyUsage=clientAuth")

    def next_of_broker(self, name: str, subject: str = "/CN=broker", names: str = "IP:127.0.0.1") -> Path:
        """A further certificate for the broker, with its key; by default one that may follow `broker`."""
        return self._signed(name, f"subjectAltName={names}", subject=subject)

    def expired(self) -> Path:
        """A client's, with its key, which has just stopped to be valid."""
        return self._signed("expired", "extendedKeyUsage=clientAuth", days="-1")

    def not_yet_valid(self) -> Path:
        """A client's, with its key, which is valid from tomorrow on. Skips the test without the package cryptography."""
        pytest.importorskip("cryptography")
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

        both = self._signed("future", "extendedKeyUsage=clientAuth")
        signed = x509.load_pem_x509_certificate(both.with_suffix(".crt").read_bytes())
        signer = serialization.load_pem_private_key(self.authority.with_suffix(".key").read_bytes(), None)
        assert isinstance(signer, RSAPrivateKey)
        tomorrow = datetime.now(UTC) + timedelta(days=1)
        builder = x509.CertificateBuilder(signed.issuer, signed.subject, signed.public_key(), signed.serial_number)
        builder = builder.not_valid_before(tomorrow).not_valid_after(tomorrow + timedelta(days=1))
        later = builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        both.write_bytes(both.with_suffix(".key").read_bytes() + later)
        return both

    def strange(self) -> Path:
        """A client's, with its key, which the client has signed itself."""
        both = self._directory / "strange.pem"
        both.write_text(self.stranger.with_suffix(".key").read_text() + self.stranger.read_text())
        return both

    def pkcs12(self, name: str, password: str) -> Path:
        """A store with the key and the certificate `name`."""
        store = self._directory / f"{name}.p12"
        self._openssl("pkcs12", "-export", "-inkey", self._directory / f"{name}.key", "-in", self._directory / f"{name}.crt",
                      "-out", store, "-passout", f"pass:{password}")  # fmt: skip
        return store

    def trusted_pkcs12(self, password: str) -> Path:
        """A store with the authority's certificate alone."""
        store = self._directory / "trusted.p12"
        self._openssl(
            "pkcs12", "-export", "-nokeys", "-in", self.authority, "-out", store, "-passout", f"pass:{password}"
        )
        return store

    def _openssl(self, *arguments: str | Path) -> None:
        done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def _self_signed(self, name: str) -> Path:
        key, certificate = self._directory / f"{name}.key", self._directory / f"{name}.crt"
        self._openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", DAYS, "-subj", f"/CN={name}",
                      "-keyout", key, "-out", certificate)  # fmt: skip
        return certificate

    def _signed(self, name: str, extension: str, days: str = DAYS, subject: str = "") -> Path:
        """A file with the key and the certificate."""
        at = self._directory
        request, extensions, certificate = at / f"{name}.csr", at / f"{name}.ext", at / f"{name}.crt"
        extensions.write_text(f"{extension}\n")
        self._openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", subject or f"/CN={name}",
                      "-keyout", at / f"{name}.key", "-out", request)  # fmt: skip
        self._openssl("x509", "-req", "-in", request, "-CA", self.authority, "-CAkey", at / "authority.key",
                      "-CAcreateserial", "-days", days, "-extfile", extensions, "-out", certificate)  # fmt: skip
        both = at / f"{name}.pem"
        both.write_text((at / f"{name}.key").read_text() + certificate.read_text())
        return both
