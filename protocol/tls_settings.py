"""Kafka's `ssl.` settings of one side of TLS: what its stores have, what is allowed, and the same again when the files change.

The settings have other names where they stand: those of a listener may have its prefix, those for ZooKeeper begin with `zookeeper.`.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import ssl
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from protocol.tls import (
    Identity,
    TlsError,
    certificates_in,
    load_identity,
    private_key_in,
    read_pkcs12,
    set_suites,
    tls_reason,
    trust,
)

log = logging.getLogger(__name__)

Read = TypeVar("Read")

FILE_BYTES_MAX = 1024**2
VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
PEM, PKCS12 = "PEM", "PKCS12"
STORE_TYPES = (PEM, PKCS12)
PARTS: Mapping[str, tuple[str, ...]] = {
    "keystore": ("location", "key", "certificate.chain"),
    "truststore": ("location", "certificates"),
}
"""The settings `ssl.<store>.<part>` that say what a store has."""


class TlsSettings(ABC):
    """The settings by Kafka's keys for listeners, such as `ssl.keystore.type`, and the files that they name."""

    refuses_passwords_of_pem = True
    """Whether `ssl.keystore.password` and `ssl.truststore.password` are wrong for a file of PEM."""

    read_store: Callable[[bytes, str], tuple[Identity | None, list[str]]] = staticmethod(read_pkcs12)
    """How a store of type PKCS12 is read. While a loop serves, `read_pkcs12_apart`."""

    @abstractmethod
    def value(self, key: str) -> str:
        """The setting's text; "" if it is not set."""

    @abstractmethod
    def name(self, key: str) -> str:
        """How the setting is called where it stands."""

    @abstractmethod
    def wrong(self, key: str, problem: str) -> ValueError:
        """The error for a setting that cannot be used. The text has nothing secret."""

    def items(self, key: str) -> list[str]:
        """The items of a list."""
        return [item.strip() for item in self.value(key).split(",") if item.strip()]

    def has(self, store: str) -> bool:
        """Whether there is a `keystore` or a `truststore`."""
        return any(self.value(f"ssl.{store}.{part}") for part in PARTS[store])

    def digest_of_files(self) -> bytes:
        """Changes with the content of the files; also if they are missing."""
        digest = hashlib.sha256()
        for store in PARTS:
            if path := self.value(f"ssl.{store}.location"):
                try:
                    digest.update(hashlib.sha256(_start_of(path)).digest())
                except (OSError, ValueError) as problem:
                    digest.update(str(problem).encode("utf-8", "surrogatepass"))
        return digest.digest()

    def limit(self, context: ssl.SSLContext) -> None:
        """Allows `ssl.enabled.protocols` and `ssl.cipher.suites` alone. Raises what `wrong` returns."""
        versions = [VERSIONS[name] for name in self.items("ssl.enabled.protocols")]
        if not versions:
            raise self.wrong("ssl.enabled.protocols", f"empty: expected {', '.join(VERSIONS)}, or both")
        context.minimum_version, context.maximum_version = min(versions), max(versions)
        if suites := self.items("ssl.cipher.suites"):
            try:
                set_suites(context, suites)
            except TlsError as problem:
                raise self.wrong("ssl.cipher.suites", str(problem)) from None
            if context.minimum_version > context.maximum_version or not min(versions) <= context.minimum_version:
                raise self.wrong("ssl.cipher.suites", f"no suite of it fits {self.name('ssl.enabled.protocols')}")

    def checks_host(self) -> bool:
        """Whether a server's certificate must name its host. Raises what `wrong` returns."""
        algorithm = self.value("ssl.endpoint.identification.algorithm")
        if algorithm.lower() not in ("", "https"):
            raise self.wrong("ssl.endpoint.identification.algorithm", f"{algorithm!r}: expected https, or nothing")
        return bool(algorithm)

    # -- the own certificate --------------------------------------------------------------------------------------------------

    def identity(self) -> Identity | None:
        """The key and its certificates; None without a keystore. Raises what `wrong` returns."""
        kind = self._store_type("keystore")
        location = self.value("ssl.keystore.location")
        key, chain = self.value("ssl.keystore.key"), self.value("ssl.keystore.certificate.chain")
        if key or chain:
            if location:
                raise self.wrong("ssl.keystore.key", "ssl.keystore.location is set, too: remove one of them")
            if kind != PEM:
                raise self.wrong("ssl.keystore.key", "it needs ssl.keystore.type=PEM")
            return self._pem_identity(key, "ssl.keystore.key", chain, "ssl.keystore.certificate.chain")
        if not location:
            return None
        data = self._file("keystore", kind)
        if kind == PEM:
            text = data.decode("latin-1")
            return self._pem_identity(text, "ssl.keystore.location", text, "ssl.keystore.location")
        try:
            identity, _ = self.read_store(data, self.value("ssl.keystore.password"))
        except TlsError as problem:
            key_of_problem = "ssl.keystore.password" if "password" in str(problem) else "ssl.keystore.location"
            raise self.wrong(key_of_problem, f"{location}: {problem}") from None
        if identity is None:
            raise self.wrong("ssl.keystore.location", f"{location} has no private key")
        return identity

    def _pem_identity(self, key: str, key_from: str, chain: str, chain_from: str) -> Identity:
        found, certificates = private_key_in(key), certificates_in(chain)
        if not found:
            raise self.wrong(
                key_from, f"{self._shown(key_from)} has no private key in PEM (-----BEGIN PRIVATE KEY-----)"
            )
        if not certificates:
            raise self.wrong(
                chain_from, f"{self._shown(chain_from)} has no certificate in PEM (-----BEGIN CERTIFICATE-----)"
            )
        return Identity(found, "".join(certificates))

    def load(self, context: ssl.SSLContext, identity: Identity) -> None:
        """Gives the context its own certificate. Raises what `wrong` returns."""
        password = self.value("ssl.key.password")
        try:
            load_identity(context, identity, password)
        except (ssl.SSLError, ValueError) as problem:  # ValueError: a password that is too long for OpenSSL
            key = "ssl.keystore.key" if self.value("ssl.keystore.key") else "ssl.keystore.location"
            reason = tls_reason(problem) if isinstance(problem, ssl.SSLError) else "the password is too long"
            if reason == "key values mismatch":
                raise self.wrong(
                    key, f"{self._shown(key)}: the private key is not that of the first certificate"
                ) from None
            if "ENCRYPTED" in identity.key:
                remedy = "is wrong" if password else "is missing, and the key is encrypted"
                name = self.name("ssl.key.password")
                raise self.wrong(key, f"{self._shown(key)}: {name} {remedy} ({reason})") from None
            raise self.wrong(key, f"{self._shown(key)}: the key or the certificate cannot be used ({reason})") from None

    # -- whom it trusts -------------------------------------------------------------------------------------------------------

    def trusted(self) -> list[str] | None:
        """The trusted certificates as PEM texts; None without a truststore. Raises what `wrong` returns."""
        kind = self._store_type("truststore")
        location, inline = self.value("ssl.truststore.location"), self.value("ssl.truststore.certificates")
        if inline:
            if location:
                raise self.wrong(
                    "ssl.truststore.certificates", "ssl.truststore.location is set, too: remove one of them"
                )
            if kind != PEM:
                raise self.wrong("ssl.truststore.certificates", "it needs ssl.truststore.type=PEM")
            found = certificates_in(inline)
            if not found:
                raise self.wrong("ssl.truststore.certificates", "it has no certificate in PEM")
            return found
        if not location:
            return None
        data = self._file("truststore", kind)
        if kind == PEM:
            found = certificates_in(data.decode("latin-1"))
        else:
            try:
                identity, found = self.read_store(data, self.value("ssl.truststore.password"))
            except TlsError as problem:
                key = "ssl.truststore.password" if "password" in str(problem) else "ssl.truststore.location"
                raise self.wrong(key, f"{location}: {problem}") from None
            if identity is not None:
                found = certificates_in(identity.certificates)
        if not found:
            raise self.wrong("ssl.truststore.location", f"{location} has no certificate")
        return found

    def trust(self, context: ssl.SSLContext, trusted: list[str] | None) -> None:
        """Trusts these, or without a truststore the authorities that this machine trusts. Raises what `wrong` returns."""
        try:
            trust(context, trusted)
        except ssl.SSLError as problem:
            key = (
                "ssl.truststore.certificates"
                if self.value("ssl.truststore.certificates")
                else "ssl.truststore.location"
            )
            raise self.wrong(
                key, f"{self._shown(key)}: a certificate of it cannot be read ({tls_reason(problem)})"
            ) from None

    # -- values and files ----------------------------------------------------------------------------------------------------

    def _store_type(self, store: str) -> str:
        key = f"ssl.{store}.type"
        given = self.value(key)
        kind = given.upper()
        if self.has(store) and not given:
            raise self.wrong(
                key, f"it is not set, and the name of the file does not say whether it is {' or '.join(STORE_TYPES)}"
            )
        if self.has(store) and kind not in STORE_TYPES:
            raise self.wrong(
                key,
                f"stores of type {given} are not read, only PEM and PKCS12; keytool -importkeystore -srckeystore STORE -destkeystore "
                "STORE.p12 -deststoretype PKCS12 converts one",
            )
        return kind

    def _file(self, store: str, kind: str) -> bytes:
        key = f"ssl.{store}.location"
        path = self.value(key)
        password = f"ssl.{store}.password"
        if kind == PEM and self.refuses_passwords_of_pem and self.value(password):
            of_key = self.name("ssl.key.password")
            raise self.wrong(password, f"a PEM file has no password; that of an encrypted key is {of_key}")
        try:
            data = _start_of(path)
        except (OSError, ValueError) as problem:
            raise self.wrong(key, f"{path}: {getattr(problem, 'strerror', None) or problem}") from None
        if len(data) > FILE_BYTES_MAX:
            raise self.wrong(key, f"{path} has more than {FILE_BYTES_MAX} bytes")
        return data

    def _shown(self, key: str) -> str:
        """What an error may say of the place: the file, or nothing of an inline text."""
        return self.value(key) if key.endswith(".location") else "the text"


def _start_of(path: str) -> bytes:
    """At most FILE_BYTES_MAX bytes and one more. Raises OSError, and ValueError for what is no file: a pipe might never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is no file")
        parts, left = [], FILE_BYTES_MAX + 1
        while left and (part := os.read(descriptor, left)):
            parts.append(part)
            left -= len(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)


class Followed(Generic[Read]):
    """What was read from files, and what they have later."""

    def __init__(self, what: str, digest: Callable[[], bytes], read: Callable[[], Read]) -> None:
        """`what` names it in the log. `digest` changes with the files. `read` may raise ValueError with the reason."""
        self._what = what
        self._digest = digest
        self._read = read
        # Before the first reading: a file that changes in between is read again.
        self._seen = digest()
        self.current = read()
        self._looking = asyncio.Lock()

    async def read_again(self) -> bool:
        """Takes what the files have now. Returns whether that is something new. What cannot be used is logged, and the earlier stays."""
        async with self._looking:
            return await self._look()

    async def read_by(self, digest: Callable[[], bytes], read: Callable[[], Read]) -> bool:
        """As `read_again`, with other files or settings from now on."""
        async with self._looking:
            self._digest, self._read, self._seen = digest, read, b""
            return await self._look()

    async def _look(self) -> bool:
        seen = await asyncio.to_thread(self._digest)
        if seen == self._seen:
            return False
        self._seen = seen
        try:
            self.current = await asyncio.to_thread(self._read)
        except ValueError as problem:
            log.warning("the earlier certificates of %s stay: %s", self._what, problem)
            return False
        except Exception as problem:
            # The boundary of this look: neither a file nor a lack of descriptors may end the broker. The next look tries again.
            self._seen = b""
            details = None if isinstance(problem, OSError) else problem
            log.warning("the earlier certificates of %s stay for now: %s", self._what, problem, exc_info=details)
            return False
        return True
