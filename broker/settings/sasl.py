"""The SASL of this broker's listeners, from Kafka's settings: whom a listener lets in, and as whom this broker logs in at the others.

A setting with the prefix `listener.name.<listener>.` counts more than the same setting without.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from broker.settings.bearer import OAUTHBEARER, Given, SignedTokens, UnsecuredTokens, login_of, tokens_of
from broker.settings.config import LISTENER_PREFIX, BrokerConfig, ConfigError, attribute
from protocol.jaas import BadJaas, Entry, read_entry
from protocol.sasl_login import ClientLogin
from protocol.scram import HASHES

log = logging.getLogger(__name__)

PLAIN = "PLAIN"
MECHANISMS = (PLAIN, *HASHES, OAUTHBEARER)
USER_PREFIX = "user_"
JAAS = "sasl.jaas.config"
ENABLED = "sasl.enabled.mechanisms"
BETWEEN_BROKERS = "sasl.mechanism.inter.broker.protocol"
MAX_REAUTH = "connections.max.reauth.ms"


@dataclass(frozen=True, slots=True)
class ListenerSasl:
    """Whom one listener lets in. `passwords`: of PLAIN, by user. `tokens`: of OAUTHBEARER."""

    listener: str
    mechanisms: tuple[str, ...]
    passwords: Mapping[str, str] = field(repr=False)
    max_reauth_ms: Mapping[str, int]
    receive_bytes_max: int
    tokens: SignedTokens | UnsecuredTokens | None = None

    def lifetime_ms(self, mechanism: str) -> int:
        """How long a login counts; 0: for ever."""
        return self.max_reauth_ms.get(mechanism, 0)


class BrokerSasl:
    """The SASL of all listeners that have it."""

    def __init__(self, config: BrokerConfig, listeners: Iterable[str], of_brokers: Iterable[str]) -> None:
        """`listeners`: the names of those with SASL; `of_brokers`: those of them at which brokers log in. Raises ConfigError."""
        names = tuple(listeners)
        self._of = {name: _Reading(name, config).sasl() for name in names}
        self._logins = {name: _Reading(name, config).own_login() for name in of_brokers if name in self._of}
        for key in (*config.jaas, *config.sasl_of_listeners, *config.sasl_handlers):
            ours = any(key.lower().startswith(_prefix(name)) for name in names)
            if key.startswith(LISTENER_PREFIX) and not ours:
                log.warning("%s has no effect: listeners has none of that name with SASL", key)

    def of(self, listener: str) -> ListenerSasl | None:
        """None: the listener asks for no login."""
        return self._of.get(listener)

    def login_at(self, listener: str) -> ClientLogin | None:
        """How this broker logs in at that listener of the others. None: they ask for no login."""
        return self._logins.get(listener)

    @property
    def has_scram(self) -> bool:
        """Whether any listener asks for credentials in ZooKeeper."""
        return any(mechanism in HASHES for sasl in self._of.values() for mechanism in sasl.mechanisms)


def _prefix(listener: str) -> str:
    return f"{LISTENER_PREFIX}{listener.lower()}."


class _Reading:
    """Reads the settings of one listener."""

    def __init__(self, listener: str, config: BrokerConfig) -> None:
        self._listener = listener
        self._config = config
        own = _prefix(listener)
        self._own = {
            key.lower()[len(own) :]: (key, value)
            for key, value in config.sasl_of_listeners.items()
            if key.lower().startswith(own)
        }

    def sasl(self) -> ListenerSasl:
        """Raises ConfigError."""
        mechanisms = tuple(dict.fromkeys(self._items(ENABLED)))
        for name in mechanisms or ("",):
            if name not in MECHANISMS:
                raise self._wrong(
                    ENABLED,
                    f"{name or 'nothing'} is not supported: expected {', '.join(MECHANISMS)}, or several of them",
                )
        entries = {name: self._entry(name) for name in mechanisms}
        plain = entries.get(PLAIN)
        if PLAIN in mechanisms and plain is None:
            raise ConfigError(
                f"listener {self._listener} has SASL PLAIN and no users: set {self._jaas_key(PLAIN)}="
                f'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="...";'
            )
        passwords = {
            name.removeprefix(USER_PREFIX): value
            for name, value in (plain.options if plain is not None else {}).items()
            if name.startswith(USER_PREFIX)
        }
        return ListenerSasl(
            self._listener,
            mechanisms,
            passwords,
            {name: int(self._value(MAX_REAUTH, name)) for name in mechanisms},
            int(self._value("sasl.server.max.receive.size")),
            tokens_of(self._given()) if OAUTHBEARER in mechanisms else None,
        )

    def own_login(self) -> ClientLogin:
        """Raises ConfigError."""
        mechanism = str(self._config.sasl_mechanism_inter_broker_protocol)
        if mechanism not in MECHANISMS:
            raise ConfigError(
                f"{BETWEEN_BROKERS}={mechanism}: brokers log in at listener {self._listener}; expected {', '.join(MECHANISMS)}"
            )
        if mechanism not in self._items(ENABLED):
            raise ConfigError(
                f"{BETWEEN_BROKERS}={mechanism}: {ENABLED} of listener {self._listener} does not have it, so other brokers "
                "could not log in"
            )
        if mechanism == OAUTHBEARER:
            return login_of(self._given())
        entry = self._entry(mechanism)
        options = entry.options if entry is not None else {}
        if not options.get("username") or not options.get("password"):
            raise ConfigError(
                f"{self._jaas_key(mechanism)} needs username and password: this broker logs in with them at listener "
                f"{self._listener} of the others"
            )
        return ClientLogin(mechanism, options["username"], options["password"])

    def _given(self) -> Given:
        """What belongs to OAUTHBEARER."""
        handlers = {key.lower(): text for key, text in self._config.sasl_handlers.items()}

        def handler(key: str) -> str:
            short = f"{OAUTHBEARER.lower()}.{key}"
            return handlers.get(_prefix(self._listener) + short) or handlers.get(short) or ""

        entry = self._entry(OAUTHBEARER)
        options = entry.options if entry is not None else {}
        value = partial(self._value, mechanism=OAUTHBEARER)
        return Given(self._listener, value, handler, self._jaas_key(OAUTHBEARER), options)

    def _entry(self, mechanism: str) -> Entry | None:
        """The JAAS entry of a mechanism. None: there is none."""
        texts = {key.lower(): (key, text) for key, text in self._config.jaas.items()}
        short = f"{mechanism.lower()}.{JAAS}"
        key, text = texts.get(_prefix(self._listener) + short) or texts.get(short) or ("", "")
        if not key:
            return None
        try:
            entry = read_entry(text)
        except BadJaas as problem:
            raise ConfigError(f"{key}: {problem} (listener {self._listener})") from None
        if not mechanism.startswith(entry.mechanism):
            raise ConfigError(f"{key}: the login module is not for {mechanism} (listener {self._listener})")
        return entry

    def _jaas_key(self, mechanism: str) -> str:
        return f"{_prefix(self._listener)}{mechanism.lower()}.{JAAS}"

    def _value(self, key: str, mechanism: str = "") -> Any:
        of_mechanism = self._own.get(f"{mechanism.lower()}.{key}")
        if of_mechanism is not None:
            return of_mechanism[1]
        return self._own[key][1] if key in self._own else getattr(self._config, attribute(key))

    def _items(self, key: str) -> list[str]:
        return [item.strip() for item in str(self._value(key)).split(",") if item.strip()]

    def _wrong(self, key: str, problem: str) -> ConfigError:
        return ConfigError(f"{self._own[key][0] if key in self._own else key}: {problem} (listener {self._listener})")
