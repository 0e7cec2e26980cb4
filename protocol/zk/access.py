"""How ZooKeeper is reached, from Kafka's settings `zookeeper.ssl.*` and those of the login: the same for brokers and tools.

As in ZooKeeper's client, the type of a store without `zookeeper.ssl.keystore.type` follows from the file's name, and
`zookeeper.ssl.keystore.password` is also that of a key in PEM.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

from protocol.jaas import ZOOKEEPERS_MODULES, BadJaas, read_jaas
from protocol.pkcs12_apart import read_pkcs12_apart
from protocol.tls_settings import PEM, PKCS12, VERSIONS, Followed, TlsSettings
from protocol.zk.protection import ZooKeeperLogin

ENABLE = "zookeeper.ssl.client.enable"
SOCKET = "zookeeper.clientCnxnSocket"
NETTY, NIO = "org.apache.zookeeper.ClientCnxnSocketNetty", "org.apache.zookeeper.ClientCnxnSocketNIO"
PROTOCOL = "zookeeper.ssl.protocol"
KEYSTORE = "zookeeper.ssl.keystore.location"
STORES = (KEYSTORE, "zookeeper.ssl.truststore.location")
"""The settings that name files."""
DIGEST_USER, DIGEST_PASSWORD = "zookeeper.digest.user", "zookeeper.digest.password"
SASL = "zookeeper.sasl.jaas.config"
SET_ACL = "zookeeper.set.acl"
REVOCATION = ("zookeeper.ssl.crl.enable", "zookeeper.ssl.ocsp.enable")
DEFAULTS: Mapping[str, str] = {
    PROTOCOL: "TLSv1.2",
    "zookeeper.ssl.endpoint.identification.algorithm": "HTTPS",
}
TYPES = {".pem": PEM, ".p12": PKCS12, ".pfx": PKCS12, ".jks": "JKS", ".bcfks": "BCFKS"}
"""The end of a file's name -> the type of the store (ZooKeeper's KeyStoreFileType)."""
UNSAFE_WITHOUT_IDENTITY = (
    f"{SET_ACL}=true: nobody would own the new nodes; log in by {DIGEST_USER} and {DIGEST_PASSWORD}, "
    f"by {SASL}, or by a certificate ({ENABLE}=true, {KEYSTORE})"
)


class BadAccess(ValueError):
    """A setting of the way to ZooKeeper that cannot be used. The text has its name, and nothing secret."""


@dataclass(frozen=True, slots=True)
class ZooKeeperAccess:
    """`login`: as whom every connection logs in by the scheme `digest`, `sasl`: by SASL DIGEST-MD5; None: as nobody. `tls`: None: in the
    clear. `protects`: new nodes are those of the login or of the certificate (`protection.py`)."""

    login: ZooKeeperLogin | None = None
    tls: ZooKeeperTls | None = None
    protects: bool = False
    sasl: ZooKeeperLogin | None = None


ANONYMOUS = ZooKeeperAccess()


class ZooKeeperTls:
    """The current context of connections to ZooKeeper. New connections take it; those that exist keep what they have."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        """Raises BadAccess."""
        reading = _Reading(properties)
        self._contexts = Followed("ZooKeeper", reading.digest_of_files, reading.context)
        reading.read_store = read_pkcs12_apart  # from now on, the loop serves
        self.has_certificate = reading.has("keystore")

    @property
    def client_context(self) -> ssl.SSLContext:
        return self._contexts.current

    async def read_again(self) -> bool:
        """As of `Followed`."""
        return await self._contexts.read_again()


def zookeeper_access(properties: Mapping[str, str]) -> ZooKeeperAccess:
    """Reads the settings by their keys; others are ignored. Raises BadAccess."""
    user, password = properties.get(DIGEST_USER, ""), properties.get(DIGEST_PASSWORD, "")
    if ":" in user or bool(user) != bool(password):
        raise BadAccess(f"{DIGEST_USER} and {DIGEST_PASSWORD} belong together, and the user has no colon")
    login = ZooKeeperLogin(user, password) if user else None
    uses_tls = _is_true(properties, ENABLE)
    socket = properties.get(SOCKET, "")
    if socket not in ("", NETTY, NIO) or (uses_tls and socket == NIO):
        expected = NETTY if uses_tls else f"{NETTY}, {NIO} or nothing"
        raise BadAccess(f"{SOCKET}={socket!r}: expected {expected}")
    for key in REVOCATION:
        if uses_tls and _is_true(properties, key):
            raise BadAccess(
                f"{key}=true: nobody would check whether ZooKeeper's certificate was revoked, which is not supported; remove it, and "
                "let certificates expire soon"
            )
    tls = ZooKeeperTls(properties) if uses_tls else None
    protects = _is_true(properties, SET_ACL)
    sasl = _sasl_login(properties.get(SASL, ""))
    if protects and login is None and sasl is None and not (tls is not None and tls.has_certificate):
        raise BadAccess(UNSAFE_WITHOUT_IDENTITY)
    return ZooKeeperAccess(login, tls, protects, sasl)


def _sasl_login(jaas: str) -> ZooKeeperLogin | None:
    if not jaas.strip():
        return None
    try:
        found = read_jaas(jaas, ZOOKEEPERS_MODULES)
    except BadJaas as problem:
        raise BadAccess(f"{SASL}: {problem}") from None
    return ZooKeeperLogin(found.username, found.password)


def _is_true(properties: Mapping[str, str], key: str) -> bool:
    text = properties.get(key, "false").strip().lower()
    if text not in ("true", "false"):
        raise BadAccess(f"{key}={properties[key]!r}: expected true or false")
    return text == "true"


class _Reading(TlsSettings):
    """The settings `zookeeper.ssl.*`."""

    refuses_passwords_of_pem = False

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._properties = properties

    def value(self, key: str) -> str:
        given = self._properties.get(self.name(key), "").strip()
        if key == "ssl.enabled.protocols":
            return given or self._of(PROTOCOL)
        if key == "ssl.endpoint.identification.algorithm":
            return self._of(self.name(key))  # empty is a value of its own
        if key in ("ssl.keystore.type", "ssl.truststore.type"):
            return given or self._type_of(key.removesuffix("type") + "location")
        return given

    def name(self, key: str) -> str:
        return f"zookeeper.{'ssl.keystore.password' if key == 'ssl.key.password' else key}"

    def wrong(self, key: str, problem: str) -> BadAccess:
        name = self.name(key)
        if key == "ssl.enabled.protocols" and not self._properties.get(name, "").strip():
            name = PROTOCOL
        return BadAccess(f"{name}: {problem}")

    def context(self) -> ssl.SSLContext:
        """Raises BadAccess."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        for name in self.items("ssl.enabled.protocols"):
            if name not in VERSIONS:
                raise self.wrong("ssl.enabled.protocols", f"{name!r}: expected {', '.join(VERSIONS)}, or both")
        self.limit(context)
        identity = self.identity()
        if identity is not None:
            self.load(context, identity)
        self.trust(context, self.trusted())
        context.check_hostname = self.checks_host()
        return context

    def _of(self, key: str) -> str:
        return self._properties.get(key, DEFAULTS[key]).strip()

    def _type_of(self, location: str) -> str:
        """The type of a store whose setting does not say it; "" for a file whose name does not say it either."""
        path = self._properties.get(self.name(location), "")
        return TYPES.get(PurePath(path).suffix.lower(), "")
