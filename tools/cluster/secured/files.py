"""The files of a secured cluster in its run directory. Only the owner can read them.

DIR/security/authority.pem, authority.key                who signs the certificates
DIR/security/passwords                                   user=password, a line each
DIR/security/broker-<id>.pem                             a broker's key and certificate
DIR/security/zookeeper.pem                               the key and the certificate of ZooKeeper, and of its clients: those who have it
DIR/security/<user>/client.pem                           the user's key and certificate
DIR/security/<user>/{client.properties,...}              how the user's clients connect (`client_files.py`)
DIR/security/new                                         while users and rights are not yet in ZooKeeper
DIR/client.properties                                    as whom the commands of ottla connect: admin, unless somebody changes it
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from protocol.zk.access import NETTY
from tools.admin.naming import CLIENT_PROPERTIES
from tools.cluster.processes import ClusterError
from tools.cluster.secured.client_files import PLAIN, ClientAccess
from tools.private_files import OWNER_ONLY, write_anew

if TYPE_CHECKING:
    from tools.cluster.secured.authority import Authority, Validity

ADMIN, ALICE, BOB = "admin", "alice", "bob"
USERS = (ADMIN, ALICE, BOB)
BROKER = "broker"
"""As whom brokers log in at each other."""
MECHANISMS = (PLAIN, "SCRAM-SHA-256", "SCRAM-SHA-512")
CLIENTS, MUTUAL_TLS, INTERNAL, CONTROLLER = "SASL_SSL", "SSL", "INTERNAL", "CONTROLLER"
"""The listeners: for clients that log in, for clients with a certificate, for brokers, for the controller."""
PASSWORD_BYTES = 24
LOCAL_NAMES = ("127.0.0.1", "::1", "localhost")
NAME_OF_A_CERTIFICATE = "RULE:^CN=([^,]+).*$/$1/,DEFAULT"
"""A client whose certificate says CN=alice is User:alice, as if it had logged in."""
AUTHORITY = "ottla's authority of one cluster"
OWNERS_DIRECTORY = 0o700
ZOOKEEPER_FILE = "zookeeper.pem"
ZOOKEEPER_PROTOCOL = "TLSv1.3"


@dataclass(frozen=True, slots=True)
class SecuredBroker:
    """The settings of one broker, and the ports of the two listeners that only a secured cluster has."""

    settings: Mapping[str, str]
    mutual_tls_port: int
    internal_port: int


class SecuredFiles:
    """`DIR/security` and `DIR/client.properties`."""

    def __init__(self, run_directory: Path) -> None:
        self.path = run_directory / "security"
        self.client_properties = run_directory / CLIENT_PROPERTIES
        self.authority_file = self.path / "authority.pem"
        self.passwords_file = self.path / "passwords"
        self.zookeeper_file = self.path / ZOOKEEPER_FILE
        self.new_file = self.path / "new"

    def exists(self) -> bool:
        """Whether the cluster was made with `--secure`."""
        return self.authority_file.exists() and self.passwords_file.exists()

    def create(
        self,
        brokers: Sequence[int],
        hosts: Sequence[str],
        servers: str,
        mutual_tls_servers: str,
        *,
        with_zookeeper: bool = False,
    ) -> None:
        """Makes everything. `hosts`: how clients name the brokers, besides this machine. `with_zookeeper`: it is on this machine, and has
        TLS, too. Raises ClusterError, OSError."""
        from tools.cluster.secured.authority import Authority

        self.path.mkdir(parents=True)
        self.path.chmod(OWNERS_DIRECTORY)
        self._write(self.new_file, "")
        passwords = {user: secrets.token_urlsafe(PASSWORD_BYTES) for user in (*USERS, BROKER)}
        self.write_passwords(passwords)
        authority = Authority.new(AUTHORITY)
        self._write(self.path / "authority.key", authority.key)
        self._write(self.authority_file, authority.certificate)
        for broker in brokers:
            self._sign_broker(authority, broker, hosts)
        if with_zookeeper:
            self._sign_zookeeper(authority)
        for user in USERS:
            self.write_user(user, servers, mutual_tls_servers)
        self._write(self.client_properties, (self.path / ADMIN / CLIENT_PROPERTIES).read_text())

    def settings(self, broker: int, only_brokers_at: Sequence[str] = (INTERNAL, CONTROLLER)) -> dict[str, str]:
        """What `server.properties` says about security. Users cannot log in at these listeners. Raises ClusterError."""
        passwords = self.passwords()
        module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        login = f'{module} username="{BROKER}" password="{passwords[BROKER]}"'
        users = " ".join(f'user_{user}="{passwords[user]}"' for user in (*USERS, BROKER))
        of_brokers = {
            f"listener.name.{listener.lower()}.{name}": value
            for listener in only_brokers_at
            for name, value in {
                "sasl.enabled.mechanisms": PLAIN,
                "plain.sasl.jaas.config": f'{login} user_{BROKER}="{passwords[BROKER]}";',
            }.items()
        }
        return {
            **of_brokers,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.keystore(broker)),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority_file),
            "ssl.principal.mapping.rules": NAME_OF_A_CERTIFICATE,
            f"listener.name.{MUTUAL_TLS.lower()}.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "sasl.mechanism.inter.broker.protocol": PLAIN,
            "plain.sasl.jaas.config": f"{login} {users};",
            "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
            "super.users": f"User:{ADMIN};User:{BROKER}",
            **(self._zookeeper_settings() if self.zookeeper_file.exists() else {}),
        }

    def _zookeeper_settings(self) -> dict[str, str]:
        """ZooKeeper and brokers have one certificate, and trust no other: those of users lead to the same authority."""
        file = str(self.zookeeper_file)
        return {
            "zookeeper.ssl.client.enable": "true",
            "zookeeper.clientCnxnSocket": NETTY,
            "zookeeper.ssl.protocol": ZOOKEEPER_PROTOCOL,
            "zookeeper.ssl.keystore.type": "PEM",
            "zookeeper.ssl.keystore.location": file,
            "zookeeper.ssl.truststore.type": "PEM",
            "zookeeper.ssl.truststore.location": file,
            "zookeeper.set.acl": "true",
        }

    def keystore(self, broker: int) -> Path:
        """A broker's key and certificate."""
        return self.path / f"broker-{broker}.pem"

    def certificate(self, user: str) -> Path:
        """A user's key and certificate."""
        return self.path / user / "client.pem"

    def passwords(self) -> dict[str, str]:
        """By user. Raises ClusterError."""
        lines = self._read(self.passwords_file).splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def authority(self) -> Authority:
        """Raises ClusterError."""
        from tools.cluster.secured.authority import Authority

        try:
            return Authority(self._read(self.path / "authority.key"), self._read(self.authority_file))
        except ValueError as problem:
            raise ClusterError(f"{self.path}/authority.key cannot be used: {problem}") from None

    def access(self, user: str, servers: str, mutual_tls_servers: str) -> ClientAccess:
        """Raises ClusterError if the user has no password in this directory."""
        password = self.passwords().get(user)
        if password is None or user == BROKER:
            known = ", ".join(sorted(name for name in self.passwords() if name != BROKER))
            raise ClusterError(f"there is no user {user!r}: the users are {known}")
        return ClientAccess(user, password, servers, mutual_tls_servers, self.authority_file, self.certificate(user))

    def add_user(self, user: str, servers: str, mutual_tls_servers: str) -> None:
        """A new password, a certificate and settings. Raises ClusterError, OSError."""
        if (self.path / user).exists() or self.path / user == self.new_file:
            raise ClusterError(f"{user!r} cannot be a user: {self.path / user} has another use")
        self.write_passwords({**self.passwords(), user: secrets.token_urlsafe(PASSWORD_BYTES)})
        self.write_user(user, servers, mutual_tls_servers)

    def write_user(self, user: str, servers: str, mutual_tls_servers: str) -> None:
        """The certificate and the settings of a user who has a password. Raises ClusterError, OSError."""
        access = self.access(user, servers, mutual_tls_servers)
        directory = self.path / user
        directory.mkdir(exist_ok=True)
        directory.chmod(OWNERS_DIRECTORY)
        self._write(self.certificate(user), self.authority().sign(user))
        for name, text in access.files().items():
            self._write(directory / name, text)

    def remove_user(self, user: str) -> None:
        """Forgets a user's password, certificate and settings. Raises ClusterError, OSError."""
        self.write_passwords({name: password for name, password in self.passwords().items() if name != user})
        shutil.rmtree(self.path / user, ignore_errors=True)

    def sign_broker(self, broker: int, hosts: Sequence[str], validity: Validity | None = None) -> None:
        """Replaces a broker's key and certificate. The broker reads them within seconds. Raises ClusterError, OSError."""
        self._sign_broker(self.authority(), broker, hosts, validity)

    def refuse_expired(self, broker: int) -> None:
        """Other brokers and clients refuse a certificate that has expired. Raises ClusterError."""
        from tools.cluster.secured.authority import ended_at

        file = self.keystore(broker)
        ended = ended_at(self._read(file))
        if ended is not None:
            raise ClusterError(
                f"the certificate of broker {broker} expired on {ended:%Y-%m-%d %H:%M} UTC ({file}): `ottla cluster certificate {broker}` "
                "makes a new one"
            )

    def renew_zookeeper(self) -> None:
        """A new certificate if the one of ZooKeeper has expired, while nothing runs. Raises ClusterError, OSError."""
        from tools.cluster.secured.authority import ended_at

        if self.zookeeper_file.exists() and ended_at(self._read(self.zookeeper_file)) is not None:
            self._sign_zookeeper(self.authority())

    def sign_user(self, user: str, validity: Validity | None = None) -> None:
        """Replaces a user's key and certificate. Raises ClusterError, OSError."""
        self._write(self.certificate(user), self.authority().sign(user, validity=validity))

    def is_new(self) -> bool:
        """Whether users and rights are still to be written to ZooKeeper."""
        return self.new_file.exists()

    def remove(self) -> None:
        """Removes what `create` made. A directory of this name that somebody else made stays."""
        if self.new_file.exists() or self.passwords_file.exists():
            shutil.rmtree(self.path, ignore_errors=True)
            self.client_properties.unlink(missing_ok=True)

    def _sign_broker(
        self, authority: Authority, broker: int, hosts: Sequence[str], validity: Validity | None = None
    ) -> None:
        try:
            signed = authority.sign(f"broker-{broker}", [*LOCAL_NAMES, *hosts], validity)
        except ValueError as problem:
            raise ClusterError(str(problem)) from None
        self._write(self.keystore(broker), signed)

    def _sign_zookeeper(self, authority: Authority) -> None:
        self._write(self.zookeeper_file, authority.sign(BROKER, LOCAL_NAMES))

    def write_passwords(self, passwords: Mapping[str, str]) -> None:
        """By user. Raises OSError."""
        self._write(self.passwords_file, "".join(f"{user}={word}\n" for user, word in passwords.items()))

    def _write(self, path: Path, text: str) -> None:
        write_anew(path, text, OWNER_ONLY)

    def _read(self, path: Path) -> str:
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as problem:
            why = problem.strerror if isinstance(problem, OSError) else "not a text file"
            raise ClusterError(f"{path} cannot be read: {why}") from None
