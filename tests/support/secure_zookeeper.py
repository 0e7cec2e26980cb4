"""A real ZooKeeper of a test's own whose only port has TLS, and wants a certificate of its authority. Users may log in by SASL."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from protocol.zk.protection import ZooKeeperLogin
from tests.support.zookeeper import START_TIMEOUT_S, ZooKeeperServer
from tools.cluster.ports import LOCAL_HOST
from tools.cluster.secured.authority import Authority, Validity
from tools.cluster.zookeeper import Stores

BOTH_PROTOCOLS = "ssl.enabledProtocols=TLSv1.2,TLSv1.3\n"
"""Of `zoo.cfg`: Kafka's default is TLSv1.2."""


JAAS_FILE = "jaas.conf"
SASL_MODULE = "org.apache.zookeeper.server.auth.DigestLoginModule"
SASL_LOGIN = ZooKeeperLogin("kafka", "the secret, of brokers")
"""Its only user by SASL."""


class SecureZooKeeper(ZooKeeperServer):
    """Its certificate names `hosts`."""

    def __init__(self, directory: Path, hosts: Sequence[str] = (LOCAL_HOST,)) -> None:
        super().__init__(directory, Stores("./server.pem", "./authority.pem"))
        directory.mkdir(parents=True, exist_ok=True)
        self.authority = Authority.new("the authority of a test")
        self.trusted = self._file("authority", self.authority.certificate)
        self._file("server", self.authority.sign("zookeeper", hosts))

    def __enter__(self) -> SecureZooKeeper:
        super().__enter__()
        return self

    def prepare(self) -> None:
        (self.directory / JAAS_FILE).write_text(
            f'Server {{ {SASL_MODULE} required user_{SASL_LOGIN.user}="{SASL_LOGIN.password}"; }};\n'
        )
        with self._zookeeper.config_file.open("a") as file:
            file.write(
                f"{BOTH_PROTOCOLS}authProvider.sasl=org.apache.zookeeper.server.auth.SASLAuthenticationProvider\n"
            )

    def start(self) -> None:
        self._zookeeper.start([f"-Djava.security.auth.login.config={JAAS_FILE}"])
        self._zookeeper.wait_ready(START_TIMEOUT_S)

    def certificate(self, name: str, validity: Validity | None = None, authority: Authority | None = None) -> Path:
        """A new key with its certificate, in PEM."""
        return self._file(name, (authority or self.authority).sign(name, validity=validity))

    def settings(self, name: str = "broker", keystore: Path | None = None) -> dict[str, str]:
        """What a client's properties say; `name` is that of its certificate."""
        return {
            "zookeeper.ssl.client.enable": "true",
            "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty",
            "zookeeper.ssl.keystore.location": str(keystore or self.certificate(name)),
            "zookeeper.ssl.truststore.location": str(self.trusted),
        }

    def _file(self, name: str, text: str) -> Path:
        path = self.directory / f"{name}.pem"
        path.write_text(text)
        return path
