"""The TLS of this broker's listeners, from Kafka's `ssl.` settings: read, checked, and read again when files change.

A setting with the prefix `listener.name.<listener>.` counts more than the same setting without. A listener's certificate is also what
this broker shows when it connects to that listener of another broker.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker.settings.config import LISTENER_PREFIX, BrokerConfig, ConfigError, key_of_all
from protocol.bounded_tls import BoundedTls
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

FILE_BYTES_MAX = 1024**2
LOOK_S = 5.0
"""How often the files of certificates are read, to see whether they have changed."""
VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
PEM, PKCS12 = "PEM", "PKCS12"
STORE_TYPES = (PEM, PKCS12)


@dataclass(frozen=True, slots=True)
class Contexts:
    """What a listener needs to accept connections, and what this broker needs to connect to the others' listener of that name."""

    server: ssl.SSLContext
    client: ssl.SSLContext


class ListenerTls:
    """The current contexts of one listener. New connections take them; those that exist keep what they have."""

    def __init__(self, listener: str, config: BrokerConfig, *, has_sasl: bool = False) -> None:
        """`has_sasl`: clients also log in by SASL. Raises ConfigError."""
        self.listener = listener
        self._reading = _Reading(listener, config, has_sasl=has_sasl)
        # Before the contexts: a file that changes in between is read again.
        self._seen = self._reading.digest_of_files()
        self._contexts = self._reading.contexts()
        if self.server_context.verify_mode is not ssl.CERT_NONE and not self._reading.has_truststore():
            log.warning(
                "%s wants certificates of clients and has no truststore: whoever has a certificate of an authority that this machine "
                "trusts may connect; set ssl.truststore.location",
                listener,
            )

    @property
    def wants_certificates(self) -> bool:
        """Whether clients may show a certificate."""
        return self.server_context.verify_mode is not ssl.CERT_NONE

    @property
    def principal_mapping_rules(self) -> str:
        return self._reading.principal_mapping_rules()

    @property
    def server_context(self) -> ssl.SSLContext:
        return self._contexts.server

    @property
    def client_context(self) -> ssl.SSLContext:
        return self._contexts.client

    async def read_again(self) -> bool:
        """Takes what the files have now. Returns whether that is something new. What cannot be used is logged, and the earlier stays."""
        seen = await asyncio.to_thread(self._reading.digest_of_files)
        if seen == self._seen:
            return False
        self._seen = seen
        try:
            self._contexts = await asyncio.to_thread(self._reading.contexts)
        except ConfigError as problem:
            log.warning("the earlier certificates of %s stay: %s", self.listener, problem)
            return False
        except Exception as problem:
            # The boundary of this look: neither a file nor a lack of descriptors may end the broker. The next look tries again.
            self._seen = b""
            details = None if isinstance(problem, OSError) else problem
            log.warning("the earlier certificates of %s stay for now: %s", self.listener, problem, exc_info=details)
            return False
        return True


class BrokerTls:
    """The TLS of all listeners that have it."""

    def __init__(
        self,
        config: BrokerConfig,
        listeners: Iterable[str],
        changed: Callable[[str], None],
        uses_sasl: Callable[[str], bool] = lambda listener: False,
    ) -> None:
        """`listeners`: the names of those with TLS. `changed` is called with a name when its certificates were read again.

        Raises ConfigError.
        """
        self._of = {name: ListenerTls(name, config, has_sasl=uses_sasl(name)) for name in listeners}
        self._changed = changed
        for key in config.ssl_of_listeners:
            if _listener_of(key) not in (name.lower() for name in self._of):
                log.warning("%s has no effect: listeners has none of that name with TLS", key)

    def of(self, listener: str) -> ListenerTls | None:
        """None: the listener is in the clear."""
        return self._of.get(listener)

    def wants_certificates(self, listener: str) -> bool:
        """Whether nobody may connect to the listener without a certificate."""
        tls = self._of.get(listener)
        return tls is not None and tls.server_context.verify_mode is ssl.CERT_REQUIRED

    async def follow(self) -> None:
        """Looks for files that have changed, until cancelled."""
        while self._of:
            await asyncio.sleep(LOOK_S)
            for name, tls in self._of.items():
                if await tls.read_again():
                    log.info("the certificates of %s were read again; connections stay", name)
                    self._changed(name)


def _listener_of(key: str) -> str:
    return key[len(LISTENER_PREFIX) :].partition(".ssl.")[0].lower()


class _Reading:
    """Reads the settings of one listener, and the files that they name."""

    def __init__(self, listener: str, config: BrokerConfig, *, has_sasl: bool) -> None:
        self._listener = listener
        self._config = config
        self._has_sasl = has_sasl
        self._own = {key_of_all(key): (key, value) for key, value in _of_listener(listener, config).items()}

    def has_truststore(self) -> bool:
        return any(self._value(f"ssl.truststore.{part}") for part in _PARTS["truststore"])

    def principal_mapping_rules(self) -> str:
        return self._value("ssl.principal.mapping.rules")

    def digest_of_files(self) -> bytes:
        """Changes with the content of the files; also if they are missing."""
        digest = hashlib.sha256()
        for store in _PARTS:
            if path := self._value(f"ssl.{store}.location"):
                try:
                    with Path(path).open("rb") as file:
                        digest.update(hashlib.sha256(file.read(FILE_BYTES_MAX)).digest())
                except (OSError, ValueError) as problem:
                    digest.update(str(problem).encode())
        return digest.digest()

    def contexts(self) -> Contexts:
        """Raises ConfigError."""
        server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        server.sslobject_class = BoundedTls
        server.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
        self._limit(server)
        self._limit(client)
        identity = self._identity()
        if identity is None:
            raise ConfigError(
                f"listener {self._listener} is SSL and has no certificate: set ssl.keystore.type=PEM and ssl.keystore.location, or "
                "ssl.keystore.key and ssl.keystore.certificate.chain"
            )
        trusted = self._trusted()
        for context in (server, client):
            self._load(context, identity)
            self._trust(context, trusted)
        server.verify_mode = CLIENT_AUTH[self._client_auth()]
        algorithm = self._value("ssl.endpoint.identification.algorithm")
        if algorithm.lower() not in ("", "https"):
            raise self._wrong("ssl.endpoint.identification.algorithm", f"{algorithm!r}: expected https, or nothing")
        client.check_hostname = bool(algorithm)
        return Contexts(server, client)

    def _client_auth(self) -> str:
        """As in Kafka (KIP-684), the setting for all listeners counts for those without SASL only."""
        key = "ssl.client.auth"
        return self._value(key) if key in self._own or not self._has_sasl else "none"

    def _limit(self, context: ssl.SSLContext) -> None:
        versions = [VERSIONS[name] for name in self._items("ssl.enabled.protocols")]
        if not versions:
            raise self._wrong("ssl.enabled.protocols", f"empty: expected {', '.join(VERSIONS)}, or both")
        context.minimum_version, context.maximum_version = min(versions), max(versions)
        if suites := self._items("ssl.cipher.suites"):
            try:
                set_suites(context, suites)
            except TlsError as problem:
                raise self._wrong("ssl.cipher.suites", str(problem)) from None
            if context.minimum_version > context.maximum_version or not min(versions) <= context.minimum_version:
                raise self._wrong("ssl.cipher.suites", "no suite of it fits ssl.enabled.protocols")

    # -- this broker's own certificate --------------------------------------------------------------------------------------

    def _identity(self) -> Identity | None:
        kind = self._store_type("keystore")
        location = self._value("ssl.keystore.location")
        key, chain = self._value("ssl.keystore.key"), self._value("ssl.keystore.certificate.chain")
        if key or chain:
            if location:
                raise self._wrong("ssl.keystore.key", "ssl.keystore.location is set, too: remove one of them")
            if kind != PEM:
                raise self._wrong("ssl.keystore.key", "it needs ssl.keystore.type=PEM")
            return self._pem_identity(key, "ssl.keystore.key", chain, "ssl.keystore.certificate.chain")
        if not location:
            return None
        data = self._file("keystore", kind)
        if kind == PEM:
            text = data.decode("latin-1")
            return self._pem_identity(text, "ssl.keystore.location", text, "ssl.keystore.location")
        try:
            identity, _ = read_pkcs12(data, self._value("ssl.keystore.password"))
        except TlsError as problem:
            key_of_problem = "ssl.keystore.password" if "password" in str(problem) else "ssl.keystore.location"
            raise self._wrong(key_of_problem, f"{location}: {problem}") from None
        if identity is None:
            raise self._wrong("ssl.keystore.location", f"{location} has no private key")
        return identity

    def _pem_identity(self, key: str, key_from: str, chain: str, chain_from: str) -> Identity:
        found, certificates = private_key_in(key), certificates_in(chain)
        if not found:
            raise self._wrong(
                key_from, f"{self._shown(key_from)} has no private key in PEM (-----BEGIN PRIVATE KEY-----)"
            )
        if not certificates:
            raise self._wrong(
                chain_from, f"{self._shown(chain_from)} has no certificate in PEM (-----BEGIN CERTIFICATE-----)"
            )
        return Identity(found, "".join(certificates))

    def _load(self, context: ssl.SSLContext, identity: Identity) -> None:
        password = self._value("ssl.key.password")
        try:
            load_identity(context, identity, password)
        except (ssl.SSLError, ValueError) as problem:  # ValueError: a password that is too long for OpenSSL
            key = "ssl.keystore.key" if self._value("ssl.keystore.key") else "ssl.keystore.location"
            reason = tls_reason(problem) if isinstance(problem, ssl.SSLError) else "the password is too long"
            if reason == "key values mismatch":
                raise self._wrong(
                    key, f"{self._shown(key)}: the private key is not that of the first certificate"
                ) from None
            if "ENCRYPTED" in identity.key:
                remedy = "is wrong" if password else "is missing, and the key is encrypted"
                raise self._wrong(key, f"{self._shown(key)}: ssl.key.password {remedy} ({reason})") from None
            raise self._wrong(
                key, f"{self._shown(key)}: the key or the certificate cannot be used ({reason})"
            ) from None

    # -- whom it trusts -------------------------------------------------------------------------------------------------------

    def _trusted(self) -> list[str] | None:
        kind = self._store_type("truststore")
        location, inline = self._value("ssl.truststore.location"), self._value("ssl.truststore.certificates")
        if inline:
            if location:
                raise self._wrong(
                    "ssl.truststore.certificates", "ssl.truststore.location is set, too: remove one of them"
                )
            if kind != PEM:
                raise self._wrong("ssl.truststore.certificates", "it needs ssl.truststore.type=PEM")
            found = certificates_in(inline)
            if not found:
                raise self._wrong("ssl.truststore.certificates", "it has no certificate in PEM")
            return found
        if not location:
            return None
        data = self._file("truststore", kind)
        if kind == PEM:
            found = certificates_in(data.decode("latin-1"))
        else:
            try:
                identity, found = read_pkcs12(data, self._value("ssl.truststore.password"))
            except TlsError as problem:
                key = "ssl.truststore.password" if "password" in str(problem) else "ssl.truststore.location"
                raise self._wrong(key, f"{location}: {problem}") from None
            if identity is not None:
                found = certificates_in(identity.certificates)
        if not found:
            raise self._wrong("ssl.truststore.location", f"{location} has no certificate")
        return found

    def _trust(self, context: ssl.SSLContext, trusted: list[str] | None) -> None:
        try:
            trust(context, trusted)
        except ssl.SSLError as problem:
            key = (
                "ssl.truststore.certificates"
                if self._value("ssl.truststore.certificates")
                else "ssl.truststore.location"
            )
            raise self._wrong(
                key, f"{self._shown(key)}: a certificate of it cannot be read ({tls_reason(problem)})"
            ) from None

    # -- values and files ----------------------------------------------------------------------------------------------------

    def _store_type(self, store: str) -> str:
        key = f"ssl.{store}.type"
        given = self._value(key)
        kind = given.upper()
        is_used = any(self._value(f"ssl.{store}.{part}") for part in _PARTS[store])
        if is_used and kind not in STORE_TYPES:
            raise self._wrong(
                key,
                f"stores of type {given} are not read, only PEM and PKCS12; keytool -importkeystore -srckeystore STORE -destkeystore "
                "STORE.p12 -deststoretype PKCS12 converts one",
            )
        return kind

    def _file(self, store: str, kind: str) -> bytes:
        key = f"ssl.{store}.location"
        path = self._value(key)
        password = f"ssl.{store}.password"
        if kind == PEM and self._value(password):
            raise self._wrong(password, "a PEM file has no password; that of an encrypted key is ssl.key.password")
        try:
            with Path(path).open("rb") as file:
                data = file.read(FILE_BYTES_MAX + 1)
        except (OSError, ValueError) as problem:
            raise self._wrong(key, f"{path}: {getattr(problem, 'strerror', None) or problem}") from None
        if len(data) > FILE_BYTES_MAX:
            raise self._wrong(key, f"{path} has more than {FILE_BYTES_MAX} bytes")
        return data

    def _value(self, key: str) -> str:
        return self._own[key][1] if key in self._own else str(getattr(self._config, key.replace(".", "_")))

    def _items(self, key: str) -> list[str]:
        return [item.strip() for item in self._value(key).split(",") if item.strip()]

    def _shown(self, key: str) -> str:
        """What an error may say of the place: the file, or nothing of an inline text."""
        return self._value(key) if key.endswith(".location") else "the text"

    def _wrong(self, key: str, problem: str) -> ConfigError:
        return ConfigError(f"{self._own[key][0] if key in self._own else key}: {problem} (listener {self._listener})")


_PARTS: Mapping[str, tuple[str, ...]] = {
    "keystore": ("location", "key", "certificate.chain"),
    "truststore": ("location", "certificates"),
}


def _of_listener(listener: str, config: BrokerConfig) -> dict[str, Any]:
    """The settings with the listener's prefix, by their keys."""
    return {key: value for key, value in config.ssl_of_listeners.items() if _listener_of(key) == listener.lower()}
