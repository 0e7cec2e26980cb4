"""The TLS of this broker's listeners, from Kafka's `ssl.` settings: read, checked, and read again when settings or files change.

A setting with the prefix `listener.name.<listener>.` counts more than the same setting without. A listener's certificate is also what
this broker shows when it connects to that listener of another broker.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

from broker.settings.config import LISTENER_PREFIX, BrokerConfig, ConfigError, attribute, key_of_all, settings_of
from broker.settings.tls_replacement import Unfit, check_handshakes, check_names
from protocol.bounded_tls import BoundedTls
from protocol.pkcs12_apart import read_pkcs12_apart
from protocol.plain_text import shortened
from protocol.tls import certificates_in, read_pkcs12
from protocol.tls_settings import Followed, TlsSettings

log = logging.getLogger(__name__)

PROBLEM_MAX = 1_000
"""Characters of an error message. It may have a path that a client has chosen."""
LOOK_S = 5.0
"""How often the files of certificates are read, to see whether they have changed."""
CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


@dataclass(frozen=True, slots=True)
class Contexts:
    """What a listener needs to accept connections, and what this broker needs to connect to the others' listener of that name.

    `certificate` is the broker's own, in DER. `tester` is a client that does not compare the host's name, for trials between brokers.
    """

    server: ssl.SSLContext
    client: ssl.SSLContext
    tester: ssl.SSLContext | None
    certificate: bytes


class ListenerTls:
    """The current contexts of one listener. New connections take them; those that exist keep what they have.

    Nothing is read before `load`. Then it follows the settings (`take`) and the files (`read_again`).
    """

    def __init__(
        self, listener: str, config: BrokerConfig, *, has_sasl: bool = False, is_of_brokers: bool = False
    ) -> None:
        """`has_sasl`: clients also log in by SASL. `is_of_brokers`: brokers connect to each other by it."""
        self.listener = listener
        self._reading = _Reading(listener, config, has_sasl=has_sasl, is_of_brokers=is_of_brokers)
        self._contexts: Followed[Contexts] | None = None

    def load(self, config: BrokerConfig) -> None:
        """Reads the files for the first time. Raises ConfigError."""
        self._reading = self._reading.of(config)
        self._reading.read_store = read_pkcs12  # nobody waits for the loop yet
        self._contexts = Followed(self.listener, self._reading.digest_of_files, self._reading.contexts)
        self._reading.read_store = read_pkcs12_apart
        if self.wants_certificates and not self._reading.has("truststore"):
            log.warning(
                "%s wants certificates of clients and has no truststore: whoever has a certificate of an authority that this machine "
                "trusts may connect; set ssl.truststore.location",
                self.listener,
            )

    @property
    def wants_certificates(self) -> bool:
        """Whether clients may show a certificate."""
        return self._reading.verify_mode() is not ssl.CERT_NONE

    @property
    def needs_certificates(self) -> bool:
        """Whether nobody may connect without a certificate."""
        return self._reading.verify_mode() is ssl.CERT_REQUIRED

    @property
    def principal_mapping_rules(self) -> str:
        return self._reading.principal_mapping_rules()

    @property
    def server_context(self) -> ssl.SSLContext:
        return self._followed.current.server

    @property
    def client_context(self) -> ssl.SSLContext:
        return self._followed.current.client

    @property
    def _followed(self) -> Followed[Contexts]:
        assert self._contexts is not None, "load comes first"
        return self._contexts

    async def check(self, config: BrokerConfig) -> None:
        """Whether these settings could take the place of the present ones, as Kafka has it. Raises ConfigError."""
        try:
            await asyncio.to_thread(self._check, self._reading.of(config))
        except OSError as problem:  # such as a lack of descriptors
            raise ConfigError(f"listener {self.listener}: the settings cannot be tried now: {problem}") from None

    def _check(self, wanted: _Reading) -> None:
        present, new = self._followed.current, wanted.contexts()
        if wanted.has("truststore") and not self._reading.has("truststore"):
            raise wanted.wrong(
                "ssl.truststore.location", "the listener has no truststore, and gets one by a restart only"
            )
        if self._reading.has("truststore") and not wanted.has("truststore"):
            raise wanted.wrong(
                "ssl.truststore.location",
                "the listener would trust whom this machine trusts: its truststore is removed by a restart only",
            )
        try:
            check_names(
                present.certificate,
                new.certificate,
                may_change_subject=wanted.is_true("ssl.allow.dn.changes"),
                may_lose_names=wanted.is_true("ssl.allow.san.changes"),
            )
            if present.tester is not None and new.tester is not None:
                check_handshakes((present.server, present.tester), (new.server, new.tester))
        except Unfit as problem:
            raise ConfigError(f"listener {self.listener}: {shortened(str(problem), PROBLEM_MAX)}") from None

    async def take(self, config: BrokerConfig) -> bool:
        """Uses these settings from now on, and what their files have now. Returns whether that is something new.

        What cannot be used is logged, and the earlier contexts stay, until a file has changed.
        """
        wanted = self._reading.of(config)
        if wanted == self._reading:
            return await self.read_again()
        self._reading = wanted
        return await self._followed.read_by(wanted.digest_of_files, wanted.contexts)

    async def read_again(self) -> bool:
        """Takes what the files have now. Returns whether that is something new. What cannot be used is logged, and the earlier stays."""
        return await self._followed.read_again()


class BrokerTls:
    """The TLS of all listeners that have it. `load` comes before anything that needs a certificate."""

    def __init__(
        self,
        config: BrokerConfig,
        listeners: Iterable[str],
        changed: Callable[[str], None],
        uses_sasl: Callable[[str], bool] = lambda listener: False,
        of_brokers: Collection[str] = (),
    ) -> None:
        """`listeners`: the names of those with TLS; `of_brokers`: those by which brokers connect to each other, among others.

        `changed` is called with a name when its certificates have changed.
        """
        self._of = {
            name: ListenerTls(name, config, has_sasl=uses_sasl(name), is_of_brokers=name in of_brokers)
            for name in listeners
        }
        self._changed = changed

    async def load(self, config: BrokerConfig) -> None:
        """Reads the certificates. Raises ConfigError."""
        for key in config.ssl_of_listeners:
            if _listener_of(key) not in (name.lower() for name in self._of):
                log.warning("%s has no effect: listeners has none of that name with TLS", key)
        for tls in self._of.values():
            await asyncio.to_thread(tls.load, config)

    def of(self, listener: str) -> ListenerTls | None:
        """None: the listener is in the clear."""
        return self._of.get(listener)

    def wants_certificates(self, listener: str) -> bool:
        """Whether nobody may connect to the listener without a certificate."""
        tls = self._of.get(listener)
        return tls is not None and tls.needs_certificates

    async def check(self, config: BrokerConfig, keys: Iterable[str]) -> None:
        """Whether these settings could take the place of the present ones, for the listeners whose keys they are. Raises ConfigError."""
        listeners = {_listener_of(key) for key in keys}
        for name, tls in self._of.items():
            if name.lower() in listeners:
                await tls.check(config)

    async def take(self, config: BrokerConfig) -> None:
        """Uses these settings, and what their files have now, for new connections."""
        for name, tls in self._of.items():
            self._tell(name, is_new=await tls.take(config))

    async def follow(self) -> None:
        """Looks for files that have changed, until cancelled."""
        while self._of:
            await asyncio.sleep(LOOK_S)
            for name, tls in self._of.items():
                self._tell(name, is_new=await tls.read_again())

    def _tell(self, name: str, *, is_new: bool) -> None:
        if is_new:
            log.info("%s has new certificates; connections stay", name)
            self._changed(name)


def _listener_of(key: str) -> str:
    return key[len(LISTENER_PREFIX) :].partition(".ssl.")[0].lower()


class _Reading(TlsSettings):
    """The settings of one listener."""

    read_store = staticmethod(read_pkcs12_apart)

    def __init__(self, listener: str, config: BrokerConfig, *, has_sasl: bool, is_of_brokers: bool) -> None:
        self._is_of_brokers = is_of_brokers
        self._listener = listener
        self._config = config
        self._has_sasl = has_sasl
        self._own = {key_of_all(key): (key, value) for key, value in _of_listener(listener, config).items()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Reading) and self._values() == other._values()

    __hash__ = None  # type: ignore[assignment]

    def _values(self) -> dict[str, str]:
        return {key: self.value(key) for key in settings_of(BrokerConfig) if key.startswith("ssl.")}

    def of(self, config: BrokerConfig) -> _Reading:
        """The same listener with other settings."""
        return _Reading(self._listener, config, has_sasl=self._has_sasl, is_of_brokers=self._is_of_brokers)

    def value(self, key: str) -> str:
        return str(self._own[key][1] if key in self._own else getattr(self._config, attribute(key)))

    def is_true(self, key: str) -> bool:
        return self.value(key) == str(True)

    def name(self, key: str) -> str:
        return self._own[key][0] if key in self._own else key

    def wrong(self, key: str, problem: str) -> ConfigError:
        return ConfigError(f"{self.name(key)}: {shortened(problem, PROBLEM_MAX)} (listener {self._listener})")

    def principal_mapping_rules(self) -> str:
        return self.value("ssl.principal.mapping.rules")

    def contexts(self) -> Contexts:
        """Raises ConfigError."""
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        tester = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if self._is_of_brokers else None
        server.sslobject_class = BoundedTls
        server.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
        contexts = [context for context in (server, client, tester) if context is not None]
        for context in contexts:
            self.limit(context)
        identity = self.identity()
        if identity is None:
            raise ConfigError(
                f"listener {self._listener} is SSL and has no certificate: set ssl.keystore.type=PEM and ssl.keystore.location, or "
                "ssl.keystore.key and ssl.keystore.certificate.chain"
            )
        trusted = self.trusted()
        for context in contexts:
            self.load(context, identity)
            self.trust(context, trusted)
        server.verify_mode = self.verify_mode()
        client.check_hostname = self.checks_host()
        if tester is not None:
            tester.check_hostname = False
        return Contexts(server, client, tester, ssl.PEM_cert_to_DER_cert(certificates_in(identity.certificates)[0]))

    def verify_mode(self) -> ssl.VerifyMode:
        """As in Kafka (KIP-684), `ssl.client.auth` for all listeners counts for those without SASL only."""
        key = "ssl.client.auth"
        return CLIENT_AUTH[self.value(key) if key in self._own or not self._has_sasl else "none"]


def _of_listener(listener: str, config: BrokerConfig) -> dict[str, Any]:
    """The settings with the listener's prefix, by their keys."""
    return {key: value for key, value in config.ssl_of_listeners.items() if _listener_of(key) == listener.lower()}
