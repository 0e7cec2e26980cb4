"""How the commands of a local cluster reach its own brokers if these have TLS or SASL: by the brokers' own keys and passwords."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from protocol.bearer import MECHANISM as OAUTHBEARER
from protocol.bearer import BadToken, unsecured_token
from protocol.jaas import BadJaas, read_entry
from protocol.tls import TlsError, certificates_in, private_key_in, read_pkcs12
from tools.admin.bootstrap import client_listeners, protocol_of
from tools.wire.security import PLAINTEXT, PROTOCOLS, Security


def security_of(properties: Mapping[str, str], directory: Path) -> Security:
    """The way to the listener for clients, from a broker's settings; its files are relative to `directory`, where the broker runs.

    The host is not checked: it is this machine. Certificates that cannot be read are left out, because the broker says why.
    """
    listener = next(iter(client_listeners(properties)), "")
    protocol = protocol_of(listener, properties)
    if protocol not in PROTOCOLS:
        return PLAINTEXT
    security = _encrypted(listener, properties, directory) if protocol.endswith("SSL") else PLAINTEXT
    if protocol.startswith("SASL_") and properties.get("sasl.mechanism.inter.broker.protocol") == OAUTHBEARER:
        options = _token_options(listener, properties)
        url = "" if options else properties.get("sasl.oauthbearer.token.endpoint.url", "")
        return replace(security, protocol=protocol, mechanism=OAUTHBEARER, token_url=url, token_options=options)
    mechanism, username, password = _login(listener, properties) if protocol.startswith("SASL_") else ("", "", "")
    return replace(security, protocol=protocol, mechanism=mechanism, username=username, password=password)


def _login(listener: str, properties: Mapping[str, str]) -> tuple[str, str, str]:
    """Mechanism, user and password: those by which brokers log in, else those of the first user of PLAIN. Without any, nobody's."""
    prefix = f"listener.name.{listener.lower()}."
    between_brokers = properties.get("sasl.mechanism.inter.broker.protocol", "")
    for mechanism in dict.fromkeys((between_brokers, "PLAIN")):
        key = f"{mechanism.lower()}.sasl.jaas.config"
        try:
            options = read_entry(properties.get(prefix + key) or properties.get(key, "")).options
        except BadJaas:  # the broker says so
            continue
        if mechanism == between_brokers and options.get("username") and options.get("password"):
            return mechanism, options["username"], options["password"]
        for name, password in options.items():
            if mechanism == "PLAIN" and name.startswith("user_"):
                return mechanism, name.removeprefix("user_"), password
    return between_brokers or "PLAIN", "", ""


def _token_options(listener: str, properties: Mapping[str, str]) -> Mapping[str, str]:
    """What tokens without a signature are made of; empty: brokers read theirs from a file."""
    key = f"{OAUTHBEARER.lower()}.sasl.jaas.config"
    try:
        options = read_entry(
            properties.get(f"listener.name.{listener.lower()}.{key}") or properties.get(key, "")
        ).options
        unsecured_token(options, 0)
    except (BadJaas, BadToken):
        return {}
    return options


def _encrypted(listener: str, properties: Mapping[str, str], directory: Path) -> Security:
    prefix = f"listener.name.{listener.lower()}."

    def value(key: str) -> str:
        return properties.get(prefix + key) or properties.get(key, "")

    def content(key: str) -> bytes:
        location = value(key)
        try:
            return (directory / location).read_bytes() if location else b""
        except OSError:
            return b""

    key, chain = value("ssl.keystore.key"), value("ssl.keystore.certificate.chain")
    trusted = value("ssl.truststore.certificates")
    if not key and value("ssl.keystore.type").upper() == "PKCS12":
        identity, _ = _store(content("ssl.keystore.location"), value("ssl.keystore.password"))
        key, chain = identity
    elif not key:
        key = chain = content("ssl.keystore.location").decode("latin-1")
    if not trusted and value("ssl.truststore.type").upper() == "PKCS12":
        _, certificates = _store(content("ssl.truststore.location"), value("ssl.truststore.password"))
        trusted = "".join(certificates)
    elif not trusted:
        trusted = content("ssl.truststore.location").decode("latin-1")
    own = "".join(certificates_in(chain)) if private_key_in(key) else ""
    return Security(
        "SSL",
        # Without trusted certificates, those of the machine; the broker's own certificate is trusted in any case.
        trusted="".join((*certificates_in(trusted), own)),
        certificates=own,
        key=private_key_in(key),
        key_password=value("ssl.key.password"),
        checks_host=False,
    )


def _store(data: bytes, password: str) -> tuple[tuple[str, str], list[str]]:
    try:
        identity, certificates = read_pkcs12(data, password)
    except TlsError:
        return ("", ""), []
    return (identity or ("", "")), certificates
