"""Runs a real ZooKeeper in its own process, from the jars that the wheel of ottla has (`make wheel`), or that come with pyspark."""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Sequence
from importlib import util
from pathlib import Path
from typing import NamedTuple

from protocol.numbers import is_plain_number
from protocol.zk.access import BadAccess, ZooKeeperTls
from protocol.zk.handshake import open_connection
from tools.cluster import class_archive
from tools.cluster.java import find_java
from tools.cluster.ports import LOCAL_HOST
from tools.cluster.processes import POLL_S, ServerProcess
from tools.failures import ExpectedError
from tools.private_files import write_anew

MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
PACKED_JARS = Path(__file__).parent / "jars"
"""Where `make wheel` puts what `jars/pom.xml` names."""
JARS = (
    "zookeeper-*",
    "slf4j-api-*",
    "log4j-api-*",
    "log4j-core-*",
    "log4j-slf4j2-impl-*",
    "netty-*",
    "metrics-core-*",
    "snappy-java-*",
)
"""The jars of pyspark that the server needs. All of pyspark's jars would work too, but start a second slower."""

JVM_OPTIONS = (
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dzookeeper.jmx.log4j.disable=true",
    "-Dlog4j2.disableJmx=true",
)

TLS_OPTIONS = (
    "-Dio.netty.jfr.enabled=false",
    "-Djavax.net.ssl.trustStore=NONE",
    "-Dkeystore.pkcs12.keyPbeIterationCount=1",
)
"""With TLS, the first connection is half a second sooner: without events for Java's flight recorder, without the authorities that Java
itself trusts and ZooKeeper does not, and with the key in netty's own store, which is in memory only, encrypted in one round."""

MANY_PARTITIONS = 20_000
"""A ZooKeeper for more partitions gets MANY_PARTITIONS_OPTIONS."""
MANY_PARTITIONS_OPTIONS = ("-Xmx1500m", "-XX:TieredStopAtLevel=4")
"""Both compilers: a start takes up to 0.2 s longer, and a write of a hundred thousand states a third less processor time. The heap is
enough for the two hundred thousand nodes of a hundred thousand partitions while all of them are written."""

ZOO_CFG = """\
# Created by `ottla cluster start`; changes are kept. Times are in milliseconds, purgeInterval in hours. ZooKeeper runs in this directory.
tickTime=500
minSessionTimeout=1000
maxSessionTimeout=60000
dataDir=./data
{ports}
maxClientCnxns=4096
admin.enableServer=false
4lw.commands.whitelist=srvr,ruok,stat,mntr,dump,cons
preAllocSize=4096
autopurge.snapRetainCount=3
autopurge.purgeInterval=1
"""

PLAIN_PORT = """\
clientPortAddress={host}
clientPort={port}"""
TLS_PORT = """\
secureClientPortAddress={host}
secureClientPort={port}
serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory
ssl.protocol=TLSv1.3
ssl.keyStore.type=PEM
ssl.keyStore.location={keystore}
ssl.trustStore.type=PEM
ssl.trustStore.location={truststore}"""
"""Clients need a certificate: ssl.clientAuth is `need` by default."""

LOGGING = """\
status = error
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = server.log
appender.file.filePattern = server.log.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{ISO8601} %-5p %enc{%m}{CRLF} (%c{1})%n
appender.file.policies.type = SizeBasedTriggeringPolicy
appender.file.policies.size = 32MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.fileIndex = min
appender.file.strategy.max = 4
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
"""


class Stores(NamedTuple):
    """PEM files of a ZooKeeper with TLS, as paths from its directory: its key with the certificate, and whom it trusts."""

    keystore: str
    truststore: str


class ZooKeeperError(ExpectedError):
    """ZooKeeper cannot run; the message says why and what to do."""


class EmbeddedZooKeeper:
    """The ZooKeeper of a run directory: `directory/{zoo.cfg,log4j2.properties,server.log,pid,data/}`.

    Paths in its files are relative: Java reads these files as Latin-1, with escapes, so it would misread a path such as `/home/josé`.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()
        self.config_file = self.directory / "zoo.cfg"
        self.process = ServerProcess("ZooKeeper", self.directory, self.config_file, MAIN_CLASS)

    def exists(self) -> bool:
        return self.config_file.exists()

    def create(self, port: int, stores: Stores | None = None) -> None:
        """Writes the configuration. Existing files are kept. With `stores`, the port has TLS, and there is none in the clear."""
        self.directory.mkdir(parents=True, exist_ok=True)
        if not self.config_file.exists():
            ports = PLAIN_PORT.format(host=LOCAL_HOST, port=port)
            if stores is not None:
                ports = TLS_PORT.format(host=LOCAL_HOST, port=port, **stores._asdict())
            write_anew(self.config_file, ZOO_CFG.format(ports=ports))
        logging = self.directory / "log4j2.properties"
        if not logging.exists():
            write_anew(logging, LOGGING)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port from `zoo.cfg`. Raises ZooKeeperError."""
        settings = self._settings()
        prefix = "clientPort" if "clientPort" in settings else "secureClientPort"
        port = settings.get(prefix, "")
        if not is_plain_number(port):
            raise ZooKeeperError(f"{self.config_file} has no clientPort=<number>")
        return settings.get(f"{prefix}Address", LOCAL_HOST), int(port)

    def tls(self) -> ZooKeeperTls | None:
        """How to reach the address: by the server's own certificate; None: in the clear. Raises ZooKeeperError."""
        settings = self._settings()
        if "clientPort" in settings:
            return None
        found = {"zookeeper.ssl.enabled.protocols": "TLSv1.2,TLSv1.3"}
        for store in ("key", "trust"):
            for part in ("location", "password", "type"):
                value = settings.get(f"ssl.{store}Store.{part}", "")
                if value and part == "location":
                    value = str(self.directory / value)
                found[f"zookeeper.ssl.{store}store.{part}"] = value
        try:
            return ZooKeeperTls(found)
        except BadAccess as problem:
            raise ZooKeeperError(f"{self.config_file}: {problem}") from None

    def _settings(self) -> dict[str, str]:
        lines = self.config_file.read_text(encoding="utf-8", errors="replace").splitlines()
        return {key.strip(): value.strip() for key, _, value in (line.partition("=") for line in lines)}

    @property
    def connect(self) -> str:
        """`host:port`, for `zookeeper.connect`."""
        host, port = self.address
        return f"{host}:{port}"

    def start(self, jvm_options: Sequence[str] = (), *, partitions: int = 0) -> None:
        """Starts the process without waiting for it; `jvm_options` override ours. Raises ZooKeeperError, JavaNotFound.

        `partitions`: how many the cluster has.
        """
        java, jars = find_java(), class_path()
        command = [
            java,
            *JVM_OPTIONS,
            *(TLS_OPTIONS if "secureClientPort" in self._settings() else ()),
            *(MANY_PARTITIONS_OPTIONS if partitions > MANY_PARTITIONS else ()),
            *class_archive.options(java, jars),
            *jvm_options,
            "-Dlog4j2.configurationFile=log4j2.properties",
            "-cp",
            jars,
            MAIN_CLASS,
            f"./{self.config_file.name}",
        ]
        # For Java, paths have the encoding of the locale.
        self.process.start(command, {**os.environ, "LC_ALL": "C.UTF-8"})

    def wait_ready(self, timeout_s: float) -> None:
        """Waits until it serves. Raises ZooKeeperError if it ends, or does not serve in time."""
        deadline = time.monotonic() + timeout_s
        while not self.is_serving():
            if self.process.pid() is None:
                raise ZooKeeperError(f"ZooKeeper did not start: {self.process.last_words()} ({self.process.log_file})")
            if time.monotonic() > deadline:
                raise ZooKeeperError(
                    f"ZooKeeper at {self.connect} does not serve after {timeout_s:g} s; see {self.process.log_file}"
                )
            time.sleep(POLL_S)

    def is_serving(self, timeout_s: float = 1.0) -> bool:
        """Whether it answers its `ruok` command."""
        try:
            host, port = self.address
            with open_connection((host, port), host, timeout_s, self.tls(), timeout_s) as connection:
                connection.sendall(b"ruok")
                return connection.recv(4) == b"imok"
        except OSError:
            return False


def class_path() -> str:
    """The jars of ZooKeeper and its dependencies: those of `make wheel`, else pyspark's. Raises ZooKeeperError."""
    packed = sorted(map(str, PACKED_JARS.glob("*.jar")))
    if packed:
        return os.pathsep.join(packed)
    package = util.find_spec("pyspark")
    if package is None or package.origin is None:
        raise ZooKeeperError(
            "the embedded ZooKeeper has no jars: `pip install` of a source tree brings none. Run `pip install 'pyspark>=3.5'`, "
            "whose jars have a ZooKeeper, or install the wheel of `make wheel` (`pip install dist/ottla-*.whl`), which has its own; "
            "`ottla cluster start --zookeeper HOST:PORT` needs none"
        )
    jars = Path(package.origin).parent / "jars"
    found = [jar for pattern in JARS for jar in sorted(glob.glob(f"{glob.escape(str(jars))}/{pattern}.jar"))]
    if not any(Path(jar).name.startswith("zookeeper-") for jar in found):
        raise ZooKeeperError(f"{jars} has no ZooKeeper: use another ZooKeeper with --zookeeper host:port")
    return os.pathsep.join(found)
