"""The dynamic settings of this broker that are of the type PASSWORD, between ZooKeeper, where they are encrypted, and the broker.

Keys are computed in a thread. A text that was decrypted before is not decrypted again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from broker.settings.config import BrokerConfig, ConfigError, is_secret, is_tls_of_listener
from broker.settings.password_encoder import KEY_FACTORIES, BadPassword, PasswordEncoder
from protocol.zk.znodes import CONFIG_TEXT_MAX

NO_SECRET = "password.encoder.secret is not set"
HIDDEN = "[hidden]"
"""As Kafka writes a password."""


class StoredSecrets:
    """Encrypts and decrypts by the settings `password.encoder.`."""

    def __init__(self, config: BrokerConfig) -> None:
        self._encoder = _encoder(config, config.password_encoder_secret)
        self._old = _encoder(config, config.password_encoder_old_secret)
        self._known: dict[str, str] = {}
        """What is stored -> the password, of what was encrypted or read last."""

    @property
    def has_old_one(self) -> bool:
        """Whether there is a `password.encoder.old.secret`."""
        return self._old is not None

    async def encoded(self, settings: Mapping[str, str]) -> dict[str, str]:
        """The settings of them that are secret, as they are stored. Raises ConfigError."""
        secrets = {key: text for key, text in settings.items() if is_stored_secret(key)}
        if not secrets:
            return {}
        if self._encoder is None:
            raise ConfigError(f"{min(secrets)} cannot be stored: {NO_SECRET}; set it in server.properties")
        encode = self._encoder.encode
        stored = await asyncio.to_thread(lambda: {key: encode(text) for key, text in secrets.items()})
        for key, text in stored.items():
            if len(text) > CONFIG_TEXT_MAX:
                raise ConfigError(
                    f"{key} is too long: encrypted, it has {len(text)} characters, and may have {CONFIG_TEXT_MAX}"
                )
        self._known |= {text: secrets[key] for key, text in stored.items()}
        return stored

    async def decoded(self, found: Mapping[str, str]) -> tuple[dict[str, str], Sequence[str]]:
        """All settings that were found in ZooKeeper, readable, and what cannot be read and is left out, with the reason."""
        stored = {key: text for key, text in found.items() if is_stored_secret(key)}
        if not stored:
            self._known = {}
            return dict(found), ()
        readable = {key: text for key, text in found.items() if key not in stored}
        if self._encoder is None:
            return readable, [f"{key} cannot be read: {NO_SECRET}" for key in sorted(stored)]
        known = self._known
        unknown = {key: text for key, text in stored.items() if text not in known}
        passwords = await _decrypted(self._encoder, unknown)
        passwords |= {key: known[text] for key, text in stored.items() if text in known}
        complaints = []
        for key, password in sorted(passwords.items()):
            if isinstance(password, BadPassword):
                complaints.append(f"{key} cannot be read: {password}")
            else:
                readable[key] = password
        self._known = {stored[key]: readable[key] for key in stored if key in readable}
        return readable, complaints

    async def encoded_anew(self, found: Mapping[str, str]) -> dict[str, str]:
        """Those of the settings in ZooKeeper that are encrypted by the old secret, encrypted by the present one.

        Raises ConfigError if there is no present one.
        """
        stored = {key: text for key, text in found.items() if is_stored_secret(key)}
        if self._old is None or not stored:
            return {}
        if self._encoder is None:
            raise ConfigError(f"password.encoder.old.secret has no effect: {NO_SECRET}")
        # What the present secret reads is left alone: with CBC, a wrong secret is not always noticed.
        readable, _ = await self.decoded(stored)
        old = await _decrypted(self._old, {key: text for key, text in stored.items() if key not in readable})
        return await self.encoded({key: text for key, text in old.items() if not isinstance(text, BadPassword)})


def is_stored_secret(key: str) -> bool:
    """Whether the dynamic setting is encrypted in ZooKeeper."""
    return is_tls_of_listener(key) and is_secret(key)


def without_secrets(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings for a log or an event."""
    return {key: HIDDEN if is_secret(key) else text for key, text in settings.items()}


def _encoder(config: BrokerConfig, secret: str) -> PasswordEncoder | None:
    if not secret:
        return None
    return PasswordEncoder(
        secret,
        config.password_encoder_keyfactory_algorithm or next(iter(KEY_FACTORIES)),
        config.password_encoder_cipher_algorithm,
        config.password_encoder_key_length,
        config.password_encoder_iterations,
    )


async def _decrypted(encoder: PasswordEncoder, stored: Mapping[str, str]) -> dict[str, str | BadPassword]:
    def attempt(text: str) -> str | BadPassword:
        try:
            return encoder.decode(text)
        except BadPassword as problem:
            return problem

    return await asyncio.to_thread(lambda: {key: attempt(text) for key, text in stored.items()}) if stored else {}
