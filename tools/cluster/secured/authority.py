"""A certificate authority for one cluster. Keys are EC keys of P-256, in PEM as Java reads it (PKCS #8)."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID_DAYS = 3650
"""Of the authority and of every certificate: ten years."""
CLOCKS_DIFFER = timedelta(days=1)
"""A certificate is valid so long before it was made: for machines whose clocks are late."""


class Validity(NamedTuple):
    """Both are in UTC."""

    begins: datetime
    ends: datetime


def long_validity() -> Validity:
    """From now on, for VALID_DAYS."""
    now = datetime.now(UTC)
    return Validity(now - CLOCKS_DIFFER, now + timedelta(days=VALID_DAYS))


def past_validity() -> Validity:
    """It ended a minute ago."""
    now = datetime.now(UTC)
    return Validity(now - CLOCKS_DIFFER, now - timedelta(minutes=1))


class Authority:
    """Whoever has `key` can make certificates that the cluster trusts."""

    def __init__(self, key: str, certificate: str) -> None:
        """PEM texts. Raises ValueError if they are none."""
        loaded = load_pem_private_key(key.encode(), password=None)
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise ValueError("the authority's key is no EC key")
        self.key = key
        self.certificate = certificate
        self._key = loaded
        self._certificate = x509.load_pem_x509_certificate(certificate.encode())

    @classmethod
    def new(cls, name: str) -> Authority:
        """`name`: its common name."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _named(name)
        public = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        begun = _begun(subject, subject, key, long_validity())
        begun = begun.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        begun = begun.add_extension(_usage(signs_certificates=True), critical=True)
        signed = begun.add_extension(public, critical=False).sign(key, SHA256())
        return cls(_key_text(key), signed.public_bytes(Encoding.PEM).decode())

    def sign(self, name: str, hosts: Sequence[str] = (), validity: Validity | None = None) -> str:
        """A new key and its certificate, as one PEM text. `name`: its common name. With `hosts`, it is a server's, too.

        Raises ValueError for a host that no certificate can name.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        begun = _begun(_named(name), self._certificate.subject, key, validity or long_validity())
        begun = begun.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        begun = begun.add_extension(_usage(signs_certificates=False), critical=True)
        begun = begun.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        begun = begun.add_extension(issuer, critical=False)
        if hosts:
            names = x509.SubjectAlternativeName([_host(host) for host in dict.fromkeys(hosts)])
            begun = begun.add_extension(names, critical=False)
        certificate: bytes = begun.sign(self._key, SHA256()).public_bytes(Encoding.PEM)
        return _key_text(key) + certificate.decode()


def ended_at(text: str) -> datetime | None:
    """When the first certificate of a PEM text ended, in UTC; None if it has not, or if there is none to be read."""
    try:
        ends: datetime = x509.load_pem_x509_certificate(text.encode()).not_valid_after_utc
    except ValueError:
        return None
    return ends if ends < datetime.now(UTC) else None


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, validity: Validity
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(validity.begins)
        .not_valid_after(validity.ends)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass
    if not host.isascii():
        raise ValueError(f"no certificate can name the host {host!r}: write it in ASCII (xn--...)")
    return x509.DNSName(host)


def _key_text(key: ec.EllipticCurvePrivateKey) -> str:
    text: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return text.decode()
