"""Runs a real ZooKeeper in its own process, from the jars that the wheel of ottla has (`make wheel`), or that come with pyspark."""

from __future__ import annotations

import glob
import os
import socket
import time
from collections.abc import Sequence
from importlib import util
from pathlib import Path

from protocol.numbers import is_plain_number
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
clientPortAddress={host}
clientPort={port}
maxClientCnxns=4096
admin.enableServer=false
4lw.commands.whitelist=srvr,ruok,stat,mntr,dump,cons
preAllocSize=4096
autopurge.snapRetainCount=3
autopurge.purgeInterval=1
"""

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

    def create(self, port: int) -> None:
        """Writes the configuration. Existing files are kept."""
        self.directory.mkdir(parents=True, exist_ok=True)
        if not self.config_file.exists():
            write_anew(self.config_file, ZOO_CFG.format(host=LOCAL_HOST, port=port))
        logging = self.directory / "log4j2.properties"
        if not logging.exists():
            write_anew(logging, LOGGING)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port from `zoo.cfg`. Raises ZooKeeperError."""
        host, port = LOCAL_HOST, ""
        for line in self.config_file.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition("=")
            if key.strip() == "clientPort":
                port = value.strip()
            elif key.strip() == "clientPortAddress":
                host = value.strip()
        if not is_plain_number(port):
            raise ZooKeeperError(f"{self.config_file} has no clientPort=<number>")
        return host, int(port)

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
            with socket.create_connection(self.address, timeout_s) as connection:
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
