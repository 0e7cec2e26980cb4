"""The SCRAM credentials of users, as ZooKeeper has them in `/config/users/<user>` (KIP-84). Pure.

`{"version":1,"config":{"SCRAM-SHA-256":"salt=...,stored_key=...,server_key=...,iterations=4096"}}`, with keys in base64. Kafka's
`kafka-configs` and ottla read what the other has written (`ScramCredentialUtils`, `Sanitizer`).
"""

from __future__ import annotations

import logging
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping

from protocol.numbers import whole_number
from protocol.plain_text import escaped, shortened
from protocol.scram import HASHES, ITERATIONS_MIN, Credential
from protocol.zk.entity_names import DEFAULT, desanitized, sanitized

log = logging.getLogger(__name__)

FIELDS = ("salt", "stored_key", "server_key", "iterations")
SHOWN_MAX = 100


def shown_user(name: str) -> str:
    """A user's name for one line of a log."""
    return repr(shortened(escaped(name), SHOWN_MAX))


def credential_text(credential: Credential) -> str:
    """The value in ZooKeeper."""
    salt, stored, server = (b64encode(part).decode() for part in credential[:3])
    return f"salt={salt},stored_key={stored},server_key={server},iterations={credential.iterations}"


def read_credential(text: str) -> Credential:
    """Raises ValueError, without any part of the text."""
    given = dict(part.partition("=")[::2] for part in text.split(","))
    if set(given) != set(FIELDS):
        raise ValueError(f"expected {', '.join(FIELDS)}")
    try:
        salt, stored, server = (b64decode(given[name], validate=True) for name in FIELDS[:3])
        iterations = whole_number(given["iterations"])
    except ValueError:
        raise ValueError("a key is not in base64, or iterations is no number") from None
    if not (salt and stored and server) or iterations < ITERATIONS_MIN:
        raise ValueError(f"a key is empty, or iterations is less than {ITERATIONS_MIN}")
    return Credential(salt, stored, server, iterations)


class ScramUsers:
    """The credentials of all users. `broker/settings/dynamic_configs.py` says what changes."""

    def __init__(self) -> None:
        self._of: dict[str, dict[str, Credential]] = {}

    def __len__(self) -> int:
        return len(self._of)

    def credential(self, mechanism: str, user: str) -> Credential | None:
        """None: the user cannot log in by the mechanism."""
        return self._of.get(user, {}).get(mechanism)

    def changed(self, configs: Mapping[str, Mapping[str, str]]) -> None:
        """`configs`: the name of a znode -> its settings now; empty without a znode. What cannot be read is left out, and logged."""
        for name, config in configs.items():
            if name == DEFAULT:
                continue
            try:
                user = desanitized(name)
            except ValueError:
                log.warning(
                    "/config/users/%s is no name of a user, and is ignored", shortened(escaped(name), SHOWN_MAX)
                )
                continue
            credentials = dict(_readable(user, config))
            if credentials:
                self._of[user] = credentials
            else:
                self._of.pop(user, None)

    def all_are(self, names: Iterable[str]) -> None:
        """Forgets users whose znodes are not among these."""
        kept = set(names)
        for user in [user for user in self._of if sanitized(user) not in kept]:
            del self._of[user]


def _readable(user: str, config: Mapping[str, str]) -> Iterable[tuple[str, Credential]]:
    for mechanism in HASHES:
        if mechanism in config:
            try:
                yield mechanism, read_credential(config[mechanism])
            except ValueError as problem:
                log.warning("the credential of user %s for %s cannot be used: %s", shown_user(user), mechanism, problem)
