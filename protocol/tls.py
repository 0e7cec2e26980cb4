"""TLS as Kafka's settings describe it, for brokers and tools: PEM texts, stores of type PKCS12, cipher suites, and reasons for people.

A private key never comes to a disk, and no message has a piece of a key or of a password.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Sequence
from typing import NamedTuple, Protocol

CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----")
BEGIN_OF_KEY = re.compile(r"-----BEGIN ((?:[A-Z]+ )*PRIVATE KEY)-----")
END_OF_KEY = re.compile(r"-----END ((?:[A-Z]+ )*PRIVATE KEY)-----")
PLACE_IN_PYTHON = re.compile(r" ?\(_ssl\.c:\d+\)")
BODY_OF_CERTIFICATE = re.compile(r"-----[A-Z ]+-----|\s+")
BODY = re.compile(r"[A-Za-z0-9+/=\s]+")
LINE = 64

SUITES_OF_TLS_1_3 = ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")
"""Those that OpenSSL offers by default."""
NEVER = "!aNULL:!eNULL"
"""OpenSSL's words: no suite without a certificate or without encryption."""
SUITE = re.compile(r"TLS_([A-Z0-9_]+)_WITH_([A-Z0-9_]+)")
WITHOUT_TLS = frozenset(
    {"wrong version number", "http request", "https proxy request", "record too large", "packet length too long"}
)
"""OpenSSL's reasons for bytes that are no TLS."""


class TlsError(ValueError):
    """A certificate, a key, a store or a name of a cipher suite that cannot be used. The text says why, without anything secret."""


class ClientTls(Protocol):
    """How this process connects to other brokers by TLS."""

    @property
    def client_context(self) -> ssl.SSLContext:
        """For the next connection."""
        ...


class Identity(NamedTuple):
    """A private key, its certificate, and those between it and its authority, as PEM texts."""

    key: str
    certificates: str

    def __repr__(self) -> str:
        return "Identity(...)"


def certificates_in(text: str) -> list[str]:
    """The certificates in a PEM text, each with lines as OpenSSL wants them. A setting's text may have lost its line ends."""
    return [_with_lines("CERTIFICATE", BODY_OF_CERTIFICATE.sub("", found)) for found in CERTIFICATE.findall(text)]


def private_key_in(text: str) -> str:
    """The first private key in a PEM text; "" if there is none. Takes a time in proportion to the text, whatever it is."""
    last_ends = {found[1]: found.start() for found in END_OF_KEY.finditer(text)}
    for begin in BEGIN_OF_KEY.finditer(text):
        kind = begin[1]
        if last_ends.get(kind, -1) < begin.end():
            continue
        end = text.index(f"-----END {kind}-----", begin.end())
        body = text[begin.end() : end]
        # An old encrypted key has headers between the first line and its body.
        if BODY.fullmatch(body):
            return _with_lines(kind, re.sub(r"\s+", "", body))
        return f"{begin[0]}{body}-----END {kind}-----\n"
    return ""


def _with_lines(kind: str, body: str) -> str:
    lines = [body[at : at + LINE] for at in range(0, len(body), LINE)]
    return "\n".join((f"-----BEGIN {kind}-----", *lines, f"-----END {kind}-----", ""))


def load_identity(context: ssl.SSLContext, identity: Identity, key_password: str) -> None:
    """Gives the context its own certificate. Raises ssl.SSLError."""
    # OpenSSL reads a key from a file only, and the key must not come to a disk.
    memory = os.memfd_create("own-certificate")
    try:
        with open(memory, "w", closefd=False, encoding="ascii", errors="replace") as file:
            file.write(f"{identity.key}\n{identity.certificates}\n")
        # The function keeps OpenSSL from asking for the password at the terminal.
        context.load_cert_chain(f"/proc/self/fd/{memory}", password=lambda: key_password)
    finally:
        os.close(memory)


def trust(context: ssl.SSLContext, certificates: Sequence[str] | None) -> None:
    """Trusts these certificates (PEM texts); None: the authorities that this machine trusts. Raises ssl.SSLError."""
    if certificates is None:
        context.load_default_certs()
        return
    # As in Java, a trusted certificate need not be an authority's.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    # One call holds Python's lock, and so the loop of a broker, until it has read all that it is given: 1 ms per certificate.
    for certificate in certificates:
        context.load_verify_locations(cadata=certificate)


def read_pkcs12(data: bytes, password: str) -> tuple[Identity | None, list[str]]:
    """The key with its certificates, and the other certificates, of a store of type PKCS12. Raises TlsError."""
    # Imported late: few brokers have such a store.
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.serialization import pkcs12

    try:
        store = pkcs12.load_pkcs12(data, password.encode() if password else None)
    except ValueError as problem:
        if "password" in str(problem).lower():
            raise TlsError("the password of the store is wrong") from None
        raise TlsError("it is no store of type PKCS12") from None
    except UnsupportedAlgorithm:
        raise TlsError("it uses an encryption that is not supported") from None
    others = [_pem(found.certificate) for found in store.additional_certs]
    if store.key is None:
        return None, others if store.cert is None else [_pem(store.cert.certificate), *others]
    key = store.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    if store.cert is None:
        raise TlsError("it has a private key without a certificate")
    return Identity(key.decode(), "\n".join((_pem(store.cert.certificate), *others))), others


def _pem(certificate: object) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding

    text: bytes = certificate.public_bytes(Encoding.PEM)  # type: ignore[attr-defined]
    return text.decode()


def set_suites(context: ssl.SSLContext, names: Sequence[str]) -> None:
    """Allows only these cipher suites, by the names of Java or of OpenSSL. Raises TlsError.

    Python cannot choose among the suites of TLS 1.3: all of them, or TLS 1.3 is not spoken.
    """
    newer = set(names) & set(SUITES_OF_TLS_1_3)
    if newer and len(newer) < len(SUITES_OF_TLS_1_3) and context.maximum_version > ssl.TLSVersion.TLSv1_2:
        missing = ", ".join(name for name in SUITES_OF_TLS_1_3 if name not in newer)
        raise TlsError(
            f"of the suites of TLSv1.3, either all or none: {missing} is missing (or leave TLSv1.3 out of the protocols)"
        )
    older = [_openssl_name(name) for name in names if name not in newer]
    if not newer:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    if not older:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        return
    for name in older:
        try:
            context.set_ciphers(f"{name}:{NEVER}")
        except ssl.SSLError:
            raise TlsError(f"the cipher suite {name} is not known, or not safe") from None
        if name not in {found["name"] for found in context.get_ciphers()}:
            raise TlsError(f"the cipher suite {name} is not known, or not safe")
    context.set_ciphers(":".join((*older, NEVER)))


def _openssl_name(name: str) -> str:
    """`ECDHE-RSA-AES128-GCM-SHA256` for `TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256`. Raises TlsError for characters of no name."""
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise TlsError(f"{name[:100]!r} is no name of a cipher suite")
    found = SUITE.fullmatch(name)
    if found is None:
        return name
    exchange, cipher = found.groups()
    cipher = (
        re.sub(r"^AES_(\d+)", r"AES\1", cipher)
        .replace("_CBC_", "_")
        .replace("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305")
    )
    return ("" if exchange == "RSA" else f"{exchange}_").replace("_", "-") + cipher.replace("_", "-")


def tls_reason(problem: ssl.SSLError) -> str:
    """What went wrong, in OpenSSL's words, such as `wrong version number`."""
    reason = problem.reason or PLACE_IN_PYTHON.sub("", str(problem)) or type(problem).__name__
    return reason.replace("_", " ").lower()


def client_reason(problem: ssl.SSLError) -> str:
    """Why this process did not connect, such as `certificate verify failed: certificate has expired`."""
    reason = tls_reason(problem)
    if isinstance(problem, ssl.SSLCertVerificationError) and problem.verify_message:
        return f"{reason}: {problem.verify_message}"
    return reason


def handshake_reason(problem: ssl.SSLError) -> str:
    """Why a client's handshake failed, for the log of a broker."""
    reason = tls_reason(problem)
    if reason in WITHOUT_TLS:
        return "it sent no TLS: a client of this listener needs security.protocol=SSL or SASL_SSL"
    if reason == "peer did not return a certificate":
        return "it has no certificate, and ssl.client.auth is required"
    if isinstance(problem, ssl.SSLCertVerificationError):
        return f"its certificate is not valid: {problem.verify_message or reason}"
    if " alert " in f" {reason} ":
        _, _, alert = reason.rpartition("alert ")
        return f"it ended the handshake: {alert}"
    return reason
