"""The TLS of this broker's listeners, from Kafka's `ssl.` settings: read, checked, and read again when files change.

A setting with the prefix `listener.name.<listener>.` counts more than the same setting without. A listener's certificate is also what
this broker shows when it connects to that listener of another broker.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from broker.settings.config import LISTENER_PREFIX, BrokerConfig, ConfigError, key_of_all
from protocol.bounded_tls import BoundedTls
from protocol.tls_settings import Followed, TlsSettings

log = logging.getLogger(__name__)

LOOK_S = 5.0
"""How often the files of certificates are read, to see whether they have changed."""
CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


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
        self._contexts = Followed(listener, self._reading.digest_of_files, self._reading.contexts)
        if self.server_context.verify_mode is not ssl.CERT_NONE and not self._reading.has("truststore"):
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
        return self._contexts.current.server

    @property
    def client_context(self) -> ssl.SSLContext:
        return self._contexts.current.client

    async def read_again(self) -> bool:
        """Takes what the files have now. Returns whether that is something new. What cannot be used is logged, and the earlier stays."""
        return await self._contexts.read_again()


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


class _Reading(TlsSettings):
    """The settings of one listener."""

    def __init__(self, listener: str, config: BrokerConfig, *, has_sasl: bool) -> None:
        self._listener = listener
        self._config = config
        self._has_sasl = has_sasl
        self._own = {key_of_all(key): (key, value) for key, value in _of_listener(listener, config).items()}

    def value(self, key: str) -> str:
        return self._own[key][1] if key in self._own else str(getattr(self._config, key.replace(".", "_")))

    def name(self, key: str) -> str:
        return self._own[key][0] if key in self._own else key

    def wrong(self, key: str, problem: str) -> ConfigError:
        return ConfigError(f"{self.name(key)}: {problem} (listener {self._listener})")

    def principal_mapping_rules(self) -> str:
        return self.value("ssl.principal.mapping.rules")

    def contexts(self) -> Contexts:
        """Raises ConfigError."""
        server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        server.sslobject_class = BoundedTls
        server.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
        self.limit(server)
        self.limit(client)
        identity = self.identity()
        if identity is None:
            raise ConfigError(
                f"listener {self._listener} is SSL and has no certificate: set ssl.keystore.type=PEM and ssl.keystore.location, or "
                "ssl.keystore.key and ssl.keystore.certificate.chain"
            )
        trusted = self.trusted()
        for context in (server, client):
            self.load(context, identity)
            self.trust(context, trusted)
        server.verify_mode = CLIENT_AUTH[self._client_auth()]
        client.check_hostname = self.checks_host()
        return Contexts(server, client)

    def _client_auth(self) -> str:
        """As in Kafka (KIP-684), the setting for all listeners counts for those without SASL only."""
        key = "ssl.client.auth"
        return self.value(key) if key in self._own or not self._has_sasl else "none"


def _of_listener(listener: str, config: BrokerConfig) -> dict[str, Any]:
    """The settings with the listener's prefix, by their keys."""
    return {key: value for key, value in config.ssl_of_listeners.items() if _listener_of(key) == listener.lower()}
