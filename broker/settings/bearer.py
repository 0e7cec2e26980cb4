"""The settings of SASL OAUTHBEARER (KIP-255, KIP-768): whose tokens a listener takes, and which token this broker sends.

Tokens are *signed*, and checked by the public keys of their issuer; or *unsecured*, for tests: anybody can make one. As in Kafka, the class
of the callback handler decides; a listener with an address of keys and without a class takes signed tokens only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from broker.settings.config import ConfigError
from protocol.bearer import MECHANISM, BadToken, claims_of, principal_claim, unsecured_extensions, unsecured_token
from protocol.numbers import whole_number
from protocol.sasl_login import ClientLogin
from protocol.tls import certificates_in

SERVER_HANDLER: Final = "sasl.server.callback.handler.class"
OAUTHBEARER: Final = MECHANISM
LOGIN_HANDLER: Final = "sasl.login.callback.handler.class"
KEYS_URL: Final = "sasl.oauthbearer.jwks.endpoint.url"
TOKEN_URL: Final = "sasl.oauthbearer.token.endpoint.url"
SIGNED: Final = ("OAuthBearerValidatorCallbackHandler", "OAuthBearerUnsecuredValidatorCallbackHandler")
FROM_URL: Final = ("OAuthBearerLoginCallbackHandler", "OAuthBearerUnsecuredLoginCallbackHandler")
"""The last part of a class of Kafka: that of signed tokens or of an address, and that of unsecured tokens."""
TOKEN_BYTES_MAX: Final = 16 * 1024
VALIDATOR: Final = "unsecuredValidator"


@dataclass(frozen=True, slots=True)
class KeySource:
    """Where the public keys are: a file or an address. `trusted`: PEM of whom to trust; "": the authorities that the machine trusts."""

    url: str
    refresh_ms: int
    retry_ms: int
    retry_max_ms: int
    trusted: str = field(default="", repr=False)

    @property
    def is_file(self) -> bool:
        return self.url.startswith("file:")


@dataclass(frozen=True, slots=True)
class SignedTokens:
    """A listener that takes signed tokens. `audiences`, `issuer`: what a token must name; empty: it need not."""

    source: KeySource
    audiences: tuple[str, ...]
    issuer: str
    sub_claim: str
    skew_ms: int


@dataclass(frozen=True, slots=True)
class UnsecuredTokens:
    """A listener that takes tokens without a signature."""

    principal_claim: str = "sub"
    scope_claim: str = "scope"
    required_scope: tuple[str, ...] = ()
    skew_ms: int = 0


class Given(NamedTuple):
    """The settings of one listener. `value(key)`; `handler(key)`: the class of a callback handler, or "". `options`: of the login module,
    which has the name `jaas_key`."""

    listener: str
    value: Callable[[str], Any]
    handler: Callable[[str], str]
    jaas_key: str
    options: Mapping[str, str]


def tokens_of(given: Given) -> SignedTokens | UnsecuredTokens:
    """Which tokens a listener takes. Raises ConfigError."""
    url = str(given.value(KEYS_URL))
    if not _is_first(given, SERVER_HANDLER, SIGNED, otherwise=bool(url)):
        return _unsecured(given)
    if not url:
        raise ConfigError(
            f"{KEYS_URL} is missing: signed tokens are checked by the keys there (listener {given.listener})"
        )
    _check_url(given, KEYS_URL, url, ("file", "http", "https"))
    source = KeySource(
        url,
        given.value("sasl.oauthbearer.jwks.endpoint.refresh.ms"),
        given.value("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms"),
        given.value("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms"),
        _trusted(given),
    )
    audiences = str(given.value("sasl.oauthbearer.expected.audience")).split(",")
    return SignedTokens(
        source,
        tuple(one.strip() for one in audiences if one.strip()),
        str(given.value("sasl.oauthbearer.expected.issuer")),
        str(given.value("sasl.oauthbearer.sub.claim.name")),
        int(given.value("sasl.oauthbearer.clock.skew.seconds")) * 1000,
    )


def login_of(given: Given) -> ClientLogin:
    """As whom this broker logs in: by the token in a file, or by one that it makes. Raises ConfigError."""
    url = str(given.value(TOKEN_URL))
    options = given.options
    if not _is_first(given, LOGIN_HANDLER, FROM_URL, otherwise=bool(url)):
        try:
            claims = claims_of(unsecured_token(options, time.time()))
        except BadToken as problem:
            raise ConfigError(
                f"{given.jaas_key}: {problem}: this broker logs in with such a token at listener {given.listener} of the others"
            ) from None
        name = str(claims[principal_claim(options)]).strip()
        extensions = unsecured_extensions(options)
        return ClientLogin(
            OAUTHBEARER, name, token=lambda: unsecured_token(options, time.time()), extensions=extensions
        )
    _check_url(given, TOKEN_URL, url, ("file",))
    path = Path(unquote(urlsplit(url).path))
    claim = str(given.value("sasl.oauthbearer.sub.claim.name"))
    try:
        name = str(claims_of(_token_in(path)).get(claim, "")).strip()
    except (OSError, ValueError) as problem:
        raise ConfigError(f"{TOKEN_URL}={url}: {problem} (listener {given.listener})") from None
    if not name:
        raise ConfigError(f"{TOKEN_URL}={url}: the token names nobody in {claim} (listener {given.listener})")
    return ClientLogin(OAUTHBEARER, name, token=lambda: _token_in(path))


def _token_in(path: Path) -> str:
    """The token in a file, which may change at any time. Raises OSError, ValueError."""
    with path.open("rb") as file:
        data = file.read(TOKEN_BYTES_MAX + 1)
    if len(data) > TOKEN_BYTES_MAX:
        raise ValueError(f"more than {TOKEN_BYTES_MAX} bytes")
    return data.decode("ascii", "replace").strip()


def _unsecured(given: Given) -> UnsecuredTokens:
    options = given.options
    try:
        skew_ms = whole_number(options.get(f"{VALIDATOR}AllowableClockSkewMs", "").strip() or "0")
    except ValueError as problem:
        raise ConfigError(f"{given.jaas_key}: {VALIDATOR}AllowableClockSkewMs: {problem}") from None
    if skew_ms < 0:
        raise ConfigError(f"{given.jaas_key}: {VALIDATOR}AllowableClockSkewMs is less than 0")
    return UnsecuredTokens(
        options.get(f"{VALIDATOR}PrincipalClaimName", "").strip() or "sub",
        options.get(f"{VALIDATOR}ScopeClaimName", "").strip() or "scope",
        tuple(options.get(f"{VALIDATOR}RequiredScope", "").split()),
        skew_ms,
    )


def _is_first(given: Given, key: str, classes: tuple[str, str], *, otherwise: bool) -> bool:
    """Whether the setting names the first of the classes. `otherwise`: what holds without the setting."""
    text = given.handler(key)
    if not text:
        return otherwise
    name = text.rpartition(".")[2]
    if name not in classes:
        raise ConfigError(
            f"oauthbearer.{key}={text} is not supported: expected {' or '.join(classes)} (listener {given.listener})"
        )
    return name == classes[0]


def _check_url(given: Given, key: str, url: str, schemes: tuple[str, ...]) -> None:
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in schemes or not (parts.path if parts.scheme == "file" else parts.hostname):
        forms = " or ".join("file:///..." if scheme == "file" else f"{scheme}://..." for scheme in schemes)
        raise ConfigError(f"{key}={url or 'nothing'}: expected {forms} (listener {given.listener})")


def _trusted(given: Given) -> str:
    """Whom to trust at the address of the keys: the options `ssl.truststore.*` of the login module, as in Kafka."""
    options = given.options
    location, text = options.get("ssl.truststore.location", ""), options.get("ssl.truststore.certificates", "")
    if not location and not text:
        return ""
    if options.get("ssl.truststore.type", "").upper() != "PEM":
        raise ConfigError(f"{given.jaas_key}: ssl.truststore.type must be PEM (listener {given.listener})")
    if not text:
        try:
            text = Path(location).read_bytes().decode("latin-1")
        except OSError as problem:
            raise ConfigError(f"{given.jaas_key}: ssl.truststore.location={location}: {problem.strerror}") from None
    if not certificates_in(text):
        raise ConfigError(f"{given.jaas_key}: ssl.truststore.* has no certificate in PEM (listener {given.listener})")
    return text
