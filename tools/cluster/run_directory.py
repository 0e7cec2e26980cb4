"""The files of a cluster's run directory (RUN-1). An existing file is never overwritten (RUN-2).

DIR/broker-<id>/{server.properties,server.log,pid,data/}
DIR/zookeeper/{zoo.cfg,server.log,pid,data/}             with the embedded ZooKeeper only
DIR/faults.jsonl                                         what was done to these processes
DIR/unhealed.json                                        while a fault of `ottla fault` is not healed
DIR/links/{links.json,server.log,pid,control}            with `--links` only
DIR/security/, DIR/client.properties                     with `--secure` only (`secured/files.py`)
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from protocol.numbers import is_plain_number
from tools.addresses import is_loopback
from tools.admin.bootstrap import DEFAULT_RUN_DIRECTORY, NoBootstrapServer, client_listeners, read_properties
from tools.cluster.broker_security import security_of
from tools.cluster.fault_log import FAULT_LOG_NAME, FaultLog
from tools.cluster.links.wiring import MARKER, BrokerPorts, LinksDirectory
from tools.cluster.ports import LOCAL_HOST
from tools.cluster.processes import ClusterError, ServerProcess
from tools.cluster.secured.files import (
    CLIENTS,
    CONTROLLER,
    INTERNAL,
    MUTUAL_TLS,
    OWNERS_DIRECTORY,
    SecuredBroker,
    SecuredFiles,
)
from tools.cluster.zookeeper import EmbeddedZooKeeper
from tools.private_files import OWNER_ONLY, write_anew
from tools.wire.security import Security

DEFAULT_DIRECTORY = DEFAULT_RUN_DIRECTORY
BROKER_DIRECTORY = re.compile(r"broker-([0-9]{1,10})")
PARTITION_DIRECTORY = re.compile(r".+-[0-9]+")
BROKER_MARKER = "broker"
FAULT_FILES = ("unhealed.json", "unhealed.json.lock", FAULT_LOG_NAME)
"""What `ottla fault` writes down until it is healed (`tools/faults/record.py`), and the log of all that was done."""
REPLICATION_FACTOR_MAX = 3
UNNAMEABLE = re.compile(r"[,\\\x00-\x1f\x85\u2028\u2029\ud800-\udfff]")
"""What `log.dirs` in `server.properties` cannot name: it is one line of UTF-8, with commas between paths, and backslashes as escapes."""

HEADER = """\
# Broker {broker_id}, created by `ottla cluster start`. Changes are kept and take effect when the broker restarts.
"""


def local_profile(broker_count: int) -> dict[str, str]:
    """The settings in which a local cluster differs from Kafka's defaults: short timeouts, so that a failover is quick.

    The first member of a group does not wait for others, as in the configuration that comes with Kafka.
    """
    replication_factor = str(min(REPLICATION_FACTOR_MAX, broker_count))
    return {
        "default.replication.factor": replication_factor,
        "offsets.topic.replication.factor": replication_factor,
        "transaction.state.log.replication.factor": replication_factor,
        "transaction.state.log.min.isr": "2" if broker_count > 2 else "1",
        "group.initial.rebalance.delay.ms": "0",
        "zookeeper.session.timeout.ms": "3000",
        "replica.lag.time.max.ms": "5000",
        "controlled.shutdown.retry.backoff.ms": "500",
        "broker.fault.injection": "true",
    }


@dataclass(frozen=True, slots=True)
class ClientListener:
    """Where clients find the brokers of a new cluster: an address to listen at, the host that clients are told, and the first port.

    The brokers have consecutive ports. Without `first_port` they have free ones.
    """

    host: str = LOCAL_HOST
    advertised: str = LOCAL_HOST
    first_port: int | None = None


LOCAL_CLIENTS = ClientListener()


@dataclass(frozen=True, slots=True)
class BrokerDirectory:
    """`DIR/broker-<id>`."""

    id: int
    path: Path

    @property
    def config_file(self) -> Path:
        return self.path / "server.properties"

    @property
    def data(self) -> Path:
        return self.path / "data"

    def process(self) -> ServerProcess:
        return ServerProcess(f"broker {self.id}", self.path, self.config_file, BROKER_MARKER)

    def create(
        self,
        zookeeper_connect: str,
        ports: tuple[int, int, int],
        settings: Mapping[str, str],
        links: BrokerPorts | None = None,
        clients: ClientListener = LOCAL_CLIENTS,
        secured: SecuredBroker | None = None,
    ) -> None:
        """Writes `server.properties`; `settings` override the values chosen here. `ports`: clients, control, metrics.

        Only the owner may read the file: it may have passwords. With `links`, clients connect directly, and other brokers through the
        links. With `secured`, all listeners have TLS and a login or a certificate.
        """
        _, _, metrics_port = ports
        _, slash, chroot = zookeeper_connect.partition("/")
        properties = {
            "broker.id": str(self.id),
            **_listeners(ports, links, clients, secured),
            "control.plane.listener.name": CONTROLLER,
            "log.dirs": str(self.data),
            "zookeeper.connect": zookeeper_connect
            if links is None
            else f"{LOCAL_HOST}:{links.link_zookeeper}{slash}{chroot}",
            "metrics.listener": f"{LOCAL_HOST}:{metrics_port}",
            **({} if secured is None else secured.settings),
            **settings,
        }
        self.path.mkdir(parents=True)
        lines = "".join(f"{key}={value}\n" for key, value in properties.items())
        write_anew(self.config_file, HEADER.format(broker_id=self.id) + lines, OWNER_ONLY)

    def properties(self) -> dict[str, str]:
        """The settings currently in the file. Raises ClusterError."""
        try:
            return read_properties(self.config_file)
        except NoBootstrapServer as problem:
            raise ClusterError(str(problem)) from None

    def log_directories(self) -> list[Path]:
        """`log.dirs`. Raises ClusterError."""
        entries = self.properties().get("log.dirs", "").split(",")
        return [self.path / entry.strip() for entry in entries if entry.strip()]

    def address(self) -> tuple[str, int]:
        """The address for clients. Raises ClusterError."""
        return parse_address(self.client_endpoint(), self.config_file)

    def security(self) -> Security:
        """How the address for clients is reached. Raises ClusterError."""
        return security_of(self.properties(), self.path)

    def client_endpoint(self) -> str:
        """`host:port` as advertised to clients. Raises ClusterError."""
        endpoints = list(client_listeners(self.properties()).values())
        if not endpoints:
            raise ClusterError(
                f"{self.config_file} has no listener for clients with a port, for example listeners=PLAINTEXT://host:port"
            )
        return endpoints[0]

    def mutual_tls_endpoint(self) -> str:
        """`host:port` of the listener that wants a client's certificate, in a secured cluster. Raises ClusterError."""
        properties = self.properties()
        told = client_listeners(properties)
        if MUTUAL_TLS not in told:
            raise ClusterError(f"{self.config_file} has no listener {MUTUAL_TLS}")
        return told[MUTUAL_TLS]

    def misleading_endpoint(self) -> tuple[str, str] | None:
        """(listen address, what clients are told) of a listener that others reach although clients are told a loopback address."""
        properties = self.properties()
        bound, told = (_hosts(properties.get(key, "")) for key in ("listeners", "advertised.listeners"))
        for_clients = client_listeners(properties).values()
        for name, address in told.items():
            if address in for_clients and _is_loopback(address) and name in bound and not _is_loopback(bound[name]):
                return bound[name], address
        return None

    def metrics_address(self) -> str:
        """`host:port` of the metrics page; "" if there is none. Raises ClusterError."""
        return self.properties().get("metrics.listener", "").strip()

    def listener_addresses(self) -> list[tuple[str, int]]:
        """The addresses in `listeners` with a fixed port."""
        found = []
        for listener in self.properties().get("listeners", "").split(","):
            host, _, port = listener.partition("://")[2].strip().rpartition(":")
            if is_plain_number(port) and int(port):
                found.append((host.strip("[]"), int(port)))
        return found


def _hosts(listeners: str) -> dict[str, str]:
    """Listener -> `host:port`, from `NAME://host:port,...`."""
    entries = (entry.strip().partition("://") for entry in listeners.split(","))
    return {name: address for name, separator, address in entries if separator}


def _is_loopback(endpoint: str) -> bool:
    return is_loopback(endpoint.rpartition(":")[0].strip("[]"))


def _listeners(
    ports: tuple[int, int, int], links: BrokerPorts | None, clients: ClientListener, secured: SecuredBroker | None
) -> dict[str, str]:
    """The settings of a broker's listeners. Other brokers reach it past the links if there are none."""
    client_port, control_port, _ = ports
    for_clients = "PLAINTEXT" if secured is None else CLIENTS
    bound = {for_clients: f"{clients.host}:{client_port}"}
    told = {for_clients: f"{clients.advertised}:{client_port}"}
    if secured is not None:
        bound[MUTUAL_TLS] = f"{clients.host}:{secured.mutual_tls_port}"
        told[MUTUAL_TLS] = f"{clients.advertised}:{secured.mutual_tls_port}"
    if links is not None:
        bound |= {INTERNAL: f"{LOCAL_HOST}:{links.internal}", CONTROLLER: f"{LOCAL_HOST}:{links.control}"}
        told |= {INTERNAL: f"{LOCAL_HOST}:{links.link_internal}", CONTROLLER: f"{LOCAL_HOST}:{links.link_control}"}
    else:
        inside = {} if secured is None else {INTERNAL: f"{LOCAL_HOST}:{secured.internal_port}"}
        inside[CONTROLLER] = f"{LOCAL_HOST}:{control_port}"
        bound |= inside
        told |= inside

    def protocol(listener: str) -> str:
        return "PLAINTEXT" if secured is None else "SSL" if listener == MUTUAL_TLS else "SASL_SSL"

    def entries(addresses: Mapping[str, str]) -> str:
        return ",".join(f"{listener}://{address}" for listener, address in addresses.items())

    return {
        "listeners": entries(bound),
        **({} if told == bound else {"advertised.listeners": entries(told)}),
        "listener.security.protocol.map": ",".join(f"{listener}:{protocol(listener)}" for listener in bound),
        "inter.broker.listener.name": INTERNAL if INTERNAL in bound else for_clients,
    }


class RunDirectory:
    """`DIR`: reads what is there, creates what is missing, removes what was created."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.zookeeper = EmbeddedZooKeeper(self.path / "zookeeper")
        self.faults = FaultLog(self.path)
        self.links = LinksDirectory(self.path / "links")
        self.secured = SecuredFiles(self.path)

    def make_private(self) -> None:
        """Makes the directory for its owner alone. One that exists stays as it is.

        Raises ClusterError, also if others can put files into it.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                self.path.mkdir(OWNERS_DIRECTORY)
            found = self.path.stat()
        except OSError as error:
            raise ClusterError(
                f"{self.path} cannot be used as a run directory ({error.strerror}): choose another --dir"
            ) from None
        if found.st_uid != os.geteuid() or found.st_mode & stat.S_IWOTH:
            whose = "everybody can write to it" if found.st_uid == os.geteuid() else "it is somebody else's"
            raise ClusterError(f"{self.path} cannot keep what is secret, because {whose}: choose another --dir")

    def close_to_others(self) -> None:
        """Only the owner reaches logs and data: ZooKeeper's has what passwords can be guessed by. Raises OSError."""
        for broker in self.brokers():
            broker.path.chmod(OWNERS_DIRECTORY)
        if self.zookeeper.exists():
            self.zookeeper.directory.chmod(OWNERS_DIRECTORY)
        if self.links.exists():
            self.links.path.chmod(OWNERS_DIRECTORY)

    def links_process(self) -> ServerProcess:
        return ServerProcess("links", self.links.path, self.links.config_file, MARKER)

    def brokers(self) -> list[BrokerDirectory]:
        """The brokers that have a configuration, by id."""
        found = []
        with contextlib.suppress(OSError):
            for entry in self.path.iterdir():
                match = BROKER_DIRECTORY.fullmatch(entry.name)
                if match and (entry / "server.properties").exists():
                    found.append(BrokerDirectory(int(match.group(1)), entry))
        return sorted(found, key=lambda broker: broker.id)

    def broker_directory(self, broker_id: int) -> BrokerDirectory:
        return BrokerDirectory(broker_id, self.path / f"broker-{broker_id}")

    def partitions(self) -> int:
        """The number of partitions that have a replica in a log directory that can be read."""
        names: set[str] = set()
        for broker in self.brokers():
            directories: list[Path] = []
            with contextlib.suppress(ClusterError):  # the broker's own start reports it
                directories = broker.log_directories()
            for directory in directories:
                with contextlib.suppress(OSError):  # the broker's first start makes it
                    names.update(filter(PARTITION_DIRECTORY.fullmatch, os.listdir(directory)))
        return len(names)

    def remove(self) -> None:
        """Removes all that `ottla cluster start` made and the data, and the directory unless it contains something else."""
        for broker in self.brokers():
            shutil.rmtree(broker.path, ignore_errors=True)
        if self.zookeeper.exists():
            shutil.rmtree(self.zookeeper.directory, ignore_errors=True)
        if self.links.exists():
            shutil.rmtree(self.links.path, ignore_errors=True)
        self.secured.remove()
        for name in FAULT_FILES:
            (self.path / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.path.rmdir()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Holds a lock while a command creates or starts the cluster. Raises ClusterError if another command holds the lock.

        The kernel releases the lock when the process ends.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise ClusterError(
                f"{self.path} cannot be used as a run directory ({error.strerror}): choose another --dir"
            ) from None
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ClusterError(f"another command is starting the cluster in {self.path}") from None
            yield
        finally:
            os.close(handle)


def parse_address(text: str, where: Path) -> tuple[str, int]:
    """`host:port`. Raises ClusterError."""
    host, _, port = text.rpartition(":")
    if not is_plain_number(port):
        raise ClusterError(f"{where}: {text!r} is not host:port")
    return host.strip("[]") or LOCAL_HOST, int(port)
