"""`sasl.jaas.config` as Kafka's brokers and tools have it: a login module and its options. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

MODULES: Mapping[str, str] = MappingProxyType(
    {"PlainLoginModule": "PLAIN", "ScramLoginModule": "SCRAM", "OAuthBearerLoginModule": "OAUTHBEARER"}
)
"""The last part of a login module's class -> how the names of its mechanisms start."""
ZOOKEEPERS_MODULES: Mapping[str, str] = MappingProxyType({"DigestLoginModule": "DIGEST-MD5"})
"""The same for a login at ZooKeeper."""
FLAGS = ("required", "requisite", "sufficient", "optional")
PACKAGE = "org.apache.kafka.common.security"
LOGIN = 'required username="..." password="...";'
EXAMPLES: Mapping[str, str] = MappingProxyType(
    {
        "PLAIN": f"{PACKAGE}.plain.PlainLoginModule {LOGIN}",
        "SCRAM": f"{PACKAGE}.scram.ScramLoginModule {LOGIN}",
        "OAUTHBEARER": f"{PACKAGE}.oauthbearer.OAuthBearerLoginModule required;",
        "DIGEST-MD5": f"org.apache.zookeeper.server.auth.DigestLoginModule {LOGIN}",
    }
)
TOKEN = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s"'=;]+)|([=;]))""", re.DOTALL)
ESCAPE = re.compile(r"\\(.)", re.DOTALL)


class BadJaas(ValueError):
    """The text says what is wrong. It has names only, no values, because those may be passwords."""


class Login(NamedTuple):
    """`mechanism`: how the mechanism's name starts."""

    mechanism: str
    username: str
    password: str


class Entry(NamedTuple):
    """`mechanism`: how the mechanism's name starts. `options` may be passwords."""

    mechanism: str
    options: Mapping[str, str]

    def __repr__(self) -> str:
        return f"Entry({self.mechanism!r}, ...)"


def read_jaas(text: str, modules: Mapping[str, str] = MODULES) -> Login:
    """A client's entry, with the options `username` and `password`. Raises BadJaas."""
    mechanism, options = read_entry(text, modules)
    for name in options:
        if name not in ("username", "password"):
            raise BadJaas(f"option {name} is not supported; username and password are")
    if len(options) < 2:
        raise BadJaas(f"it needs username and password: {EXAMPLES[mechanism]}")
    return Login(mechanism, options["username"], options["password"])


def read_entry(text: str, modules: Mapping[str, str] = MODULES) -> Entry:
    """Reads one entry: a login module, `required`, its options, a semicolon. Raises BadJaas."""
    tokens = _tokens(text)
    mechanism = modules.get(tokens[0].rpartition(".")[2]) if tokens else None
    example = EXAMPLES[mechanism or ("SCRAM" if modules is MODULES else next(iter(modules.values())))]
    if len(tokens) < 3 or tokens[1].lower() not in FLAGS or tokens[-1] != ";":
        raise BadJaas(f"expected {example}")
    if mechanism is None:
        raise BadJaas(
            f"login module {tokens[0]} is not supported; {', '.join(modules)} {'are' if len(modules) > 1 else 'is'}"
        )
    rest = tokens[2:-1]
    if len(rest) % 3 or any(equals != "=" for equals in rest[1::3]):
        raise BadJaas(f"expected {example}")
    return Entry(mechanism, dict(zip(rest[::3], rest[2::3], strict=True)))


def _tokens(text: str) -> list[str]:
    found, at = [], 0
    text = text.strip()
    while at < len(text):
        token = TOKEN.match(text, at)
        if token is None:
            raise BadJaas("a quote is not closed")
        double, single, word, mark = token.groups()
        quoted = double if double is not None else single
        found.append(word or mark if quoted is None else ESCAPE.sub(r"\1", quoted))
        at = token.end()
    return found
