"""`--command-config` and `--client-property`: what they may say, under the names of Kafka's clients and of librdkafka.

They say how to connect. Properties about anything else have no effect here, and are refused unless the caller ignores them.
"""

from __future__ import annotations

import difflib
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, NoReturn

from protocol.bearer import MECHANISM as OAUTHBEARER
from protocol.bearer import BadToken, unsecured_token
from protocol.jaas import BadJaas, read_entry, read_jaas
from protocol.plain_text import escaped
from protocol.tls import CERTIFICATE, tls_reason
from tools.failures import ExpectedError
from tools.properties_file import BadProperties, read_properties
from tools.wire.sasl import MECHANISMS
from tools.wire.security import PROTOCOLS, Security


class BadClientProperties(ExpectedError):
    """What the properties say cannot be used. The text names the file, the line or the option, and what to do."""


TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"
TOKEN_HANDLER = "sasl.login.callback.handler.class"
TOKEN_HANDLERS = ("OAuthBearerLoginCallbackHandler", "OAuthBearerUnsecuredLoginCallbackHandler")
HOST_CHECK = "ssl.endpoint.identification.algorithm"
KNOWN = (
    "security.protocol",
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.username",
    "sasl.password",
    "sasl.jaas.config",
    "sasl.login.callback.handler.class",
    "sasl.oauthbearer.token.endpoint.url",
    "ssl.truststore.type",
    "ssl.truststore.location",
    "ssl.truststore.certificates",
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.keystore.type",
    "ssl.keystore.location",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.certificate.location",
    "ssl.certificate.pem",
    "ssl.key.location",
    "ssl.key.pem",
    "ssl.key.password",
    HOST_CHECK,
)
SERVERS = ("bootstrap.servers", "metadata.broker.list")
STORE_PASSWORDS = ("ssl.truststore.password", "ssl.keystore.password")

NOT_ABOUT_CONNECTING = re.compile(
    r"bootstrap\.servers|client\..*|group\..*|acks|request\..*|compression\..*|(queue\.buffering|linger|batch)\..*|buffer\.memory"
    r"|max\..*|enable\.(?!ssl|sasl).*|transaction(al)?\..*|partition.*|(key|value)\..*serializer|fetch\..*|auto\..*"
    r"|isolation\.level|allow\..*|session\.timeout\.ms|heartbeat\.interval\.ms|(default\.)?api\..*|retr(y|ies).*"
    r"|reconnect\..*|socket\..*|(send|receive)\.buffer\.bytes|connections\..*|(topic\.)?metadata\..*|message\..*"
    r"|interceptor\..*|metric.*|statistics\..*|log.*|debug|broker\..*|internal\..*|delivery\..*|queued\..*"
)
"""Other properties of clients."""
UNSUPPORTED = re.compile(r"(sasl|ssl|enable)\..*")

TO_PEM = MappingProxyType(
    {
        "truststore": "convert it: keytool -list -rfc -keystore STORE > trusted.pem",
        "keystore": "convert it: keytool -importkeystore -srckeystore STORE -destkeystore store.p12 -deststoretype PKCS12, "
        "then openssl pkcs12 -in store.p12 -out client.pem",
    }
)


class Given(NamedTuple):
    """A property's value. `where` says in an error where it was given, such as `client.properties: line 3: ssl.ca.location`."""

    value: str
    where: str


def read_security(
    command_config: Path | None, options: Sequence[tuple[str, str]] = (), *, ignores_others: bool = False
) -> Security:
    """The file's properties; those of `options` (key, value) count more.

    `ignores_others`: properties that do not say how to connect are ignored, because other commands read the same file.

    Raises BadClientProperties, which never shows a value that is secret.
    """
    given: dict[str, Given] = {}
    if command_config is not None:
        try:
            properties = read_properties(command_config.read_text(encoding="utf-8"))
        except OSError as problem:
            raise BadClientProperties(f"--command-config {command_config}: {problem.strerror}") from None
        except UnicodeDecodeError:
            raise BadClientProperties(f"--command-config {command_config}: not a text file") from None
        except BadProperties as problem:
            raise BadClientProperties(f"{command_config}: {problem}") from None
        for key, value, line in properties:
            given[key] = Given(value, f"{command_config}: line {line}: {key}")
    for key, value in options:
        given[key] = Given(value, f"--client-property {key}")
    for key in given:
        if key not in KNOWN and not (ignores_others and NOT_ABOUT_CONNECTING.fullmatch(key)):
            _fail(given[key], _advice(key))
    return _Reading(given).security()


def _advice(key: str) -> str:
    if key in STORE_PASSWORDS:
        return "only PEM stores are supported, and they have no password; the key's is ssl.key.password"
    close = difflib.get_close_matches(key, KNOWN, n=1, cutoff=0.9)
    if close:
        return f"unknown property; did you mean {close[0]}?"
    if key in SERVERS:
        return "use --bootstrap-server"
    if NOT_ABOUT_CONNECTING.fullmatch(key):
        return "this does not say how to connect; remove it"
    if UNSUPPORTED.fullmatch(key):
        return f"not supported; these are: {', '.join(KNOWN)}"
    close = difflib.get_close_matches(key, KNOWN, n=1, cutoff=0.6)
    return f"unknown property; did you mean {close[0]}?" if close else f"unknown property; known are {', '.join(KNOWN)}"


def _fail(given: Given, problem: str) -> NoReturn:
    raise BadClientProperties(escaped(f"{given.where}: {problem}"))


class _Reading:
    """The known properties, whose values are checked here."""

    def __init__(self, given: Mapping[str, Given]) -> None:
        self._given = given

    def security(self) -> Security:
        protocol = self._choice("security.protocol", PROTOCOLS) or "PLAINTEXT"
        security = Security(protocol)
        if security.uses_sasl:
            security = self._with_login(security)
        else:
            self._refuse("sasl.", security, "SASL_PLAINTEXT or SASL_SSL")
        if security.uses_tls:
            security = self._with_certificates(security)
        else:
            self._refuse("ssl.", security, "SSL or SASL_SSL")
        return security

    def _refuse(self, prefix: str, security: Security, protocols: str) -> None:
        for key, given in self._given.items():
            if key.startswith(prefix):
                _fail(given, f"no effect with security.protocol={security.protocol}; set it to {protocols}")

    def _with_login(self, security: Security) -> Security:
        mechanism_key = self._one_of("sasl.mechanism", "sasl.mechanisms")
        if mechanism_key is None:
            _fail(self._given["security.protocol"], f"also set sasl.mechanism: {', '.join(MECHANISMS)}")
        mechanism = self._choice(mechanism_key, MECHANISMS)
        if mechanism == OAUTHBEARER:
            return self._with_token(replace(security, mechanism=mechanism))
        for key in (TOKEN_URL, TOKEN_HANDLER):
            if key in self._given:
                _fail(self._given[key], f"no effect with {mechanism_key}={mechanism}; set it to {OAUTHBEARER}")
        if jaas := self._given.get("sasl.jaas.config"):
            for key in ("sasl.username", "sasl.password"):
                if other := self._given.get(key):
                    _fail(other, "sasl.jaas.config is given, too; remove one of them")
            try:
                login = read_jaas(jaas.value)
            except BadJaas as problem:
                _fail(jaas, str(problem))
            if not mechanism.startswith(login.mechanism):
                _fail(jaas, f"the login module is not for {mechanism_key}={mechanism}")
            return replace(security, mechanism=mechanism, username=login.username, password=login.password)
        username, password = self._value("sasl.username"), self._value("sasl.password")
        for key, value in (("sasl.username", username), ("sasl.password", password)):
            if not value:
                _fail(
                    self._given.get(key, self._given[mechanism_key]),
                    f"{mechanism} needs sasl.username and sasl.password, or sasl.jaas.config; {key} is missing or empty",
                )
        return replace(security, mechanism=mechanism, username=username, password=password)

    def _with_token(self, security: Security) -> Security:
        """A token from a file, or an unsecured one of the login module's options."""
        for key in ("sasl.username", "sasl.password"):
            if key in self._given:
                _fail(self._given[key], f"no effect with {OAUTHBEARER}; remove it")
        handler = self._given.get(TOKEN_HANDLER)
        if handler is not None and handler.value.rpartition(".")[2] not in TOKEN_HANDLERS:
            _fail(handler, f"not supported; expected {' or '.join(TOKEN_HANDLERS)}")
        options: Mapping[str, str] = {}
        if jaas := self._given.get("sasl.jaas.config"):
            try:
                entry = read_entry(jaas.value)
            except BadJaas as problem:
                _fail(jaas, str(problem))
            if entry.mechanism != OAUTHBEARER:
                _fail(jaas, f"the login module is not for {OAUTHBEARER}")
            options = entry.options
        if url := self._given.get(TOKEN_URL):
            if not url.value.startswith("file:///"):
                _fail(url, "only file:///... is supported: a file with the token, which another program keeps fresh")
            return replace(security, token_url=url.value, token_options=options)
        try:
            unsecured_token(options, 0)
        except BadToken as problem:
            _fail(jaas or self._given["security.protocol"], f"{problem}; or set {TOKEN_URL} to a file with a token")
        return replace(security, token_options=options)

    def _with_certificates(self, security: Security) -> Security:
        check = self._choice(HOST_CHECK, ("https", "none", "")) if HOST_CHECK in self._given else "https"
        self._store_type("truststore")
        self._store_type("keystore")
        trusted_key = self._one_of(
            "ssl.truststore.location", "ssl.truststore.certificates", "ssl.ca.location", "ssl.ca.pem"
        )
        chain_key = self._one_of(
            "ssl.keystore.location", "ssl.keystore.certificate.chain", "ssl.certificate.location", "ssl.certificate.pem"
        )
        key_key = self._one_of("ssl.keystore.key", "ssl.key.location", "ssl.key.pem")
        security = replace(security, checks_host=check == "https", key_password=self._value("ssl.key.password"))
        if trusted_key is not None:
            security = replace(security, trusted=self._pem(trusted_key))
            self._try(security, trusted_key, "its certificates cannot be read")
        if chain_key is None:
            if other := key_key or ("ssl.key.password" if "ssl.key.password" in self._given else None):
                _fail(self._given[other], "the certificate is missing; set ssl.keystore.location")
            return security
        chain = self._pem(chain_key)
        if chain_key == "ssl.keystore.location":
            if key_key is not None:
                _fail(self._given[key_key], "the key is in the file of ssl.keystore.location; remove one of them")
            key_key, key = chain_key, chain
        elif key_key is None:
            _fail(self._given[chain_key], "the key is missing; set ssl.keystore.key or ssl.key.location")
        else:
            key = self._text(key_key)
        if "PRIVATE KEY-----" not in key:
            _fail(self._given[key_key], "it has no private key in PEM (-----BEGIN PRIVATE KEY-----)")
        chain = "\n".join(CERTIFICATE.findall(chain))
        security = replace(security, certificates=chain, key=key)
        self._try(
            security, key_key, "the key does not open, or does not fit the certificate; is ssl.key.password right?"
        )
        return security

    def _try(self, security: Security, key: str, otherwise: str) -> None:
        try:
            security.tls_context()
        except ssl.SSLError as problem:
            _fail(self._given[key], f"{otherwise} ({tls_reason(problem)})")

    def _value(self, key: str) -> str:
        return self._given[key].value if key in self._given else ""

    def _choice(self, key: str, choices: Sequence[str]) -> str:
        """One of `choices`, in any case; empty if the property is not given."""
        given = self._given.get(key)
        if given is None:
            return ""
        for choice in choices:
            if given.value.upper() == choice.upper():
                return choice
        _fail(given, f"{given.value!r} is not one of {', '.join(choice or '(empty)' for choice in choices)}")

    def _one_of(self, *keys: str) -> str | None:
        """The one of the properties that is given."""
        found = [key for key in keys if key in self._given]
        if len(found) > 1:
            _fail(self._given[found[1]], f"{found[0]} is given, too; remove one of them")
        return found[0] if found else None

    def _store_type(self, store: str) -> None:
        given = self._given.get(f"ssl.{store}.type")
        if given is not None and given.value.upper() != "PEM":
            _fail(given, f"stores of type {given.value} are not supported, only PEM; {TO_PEM[store]}")

    def _text(self, key: str) -> str:
        """The property's value, or the text of the file that it names."""
        given = self._given[key]
        if not key.endswith(".location"):
            return given.value
        try:
            return Path(given.value).read_bytes().decode("latin-1")
        except OSError as problem:
            _fail(given, f"{given.value}: {problem.strerror}")

    def _pem(self, key: str) -> str:
        """A text with at least one certificate."""
        text = self._text(key)
        if not CERTIFICATE.search(text):
            store = "keystore" if key.startswith(("ssl.keystore", "ssl.certificate")) else "truststore"
            hint = f"; if it is a JKS or PKCS12 store, {TO_PEM[store]}" if key.endswith(".location") else ""
            _fail(self._given[key], f"it has no certificate in PEM (-----BEGIN CERTIFICATE-----){hint}")
        return text
