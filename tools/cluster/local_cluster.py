"""A cluster of real processes on this machine, for the command line, the demo and tests. Synchronous.

If `start` cannot finish, it stops what it started, also on Ctrl-C. Brokers and ZooKeeper start at the same time: brokers try
to connect until ZooKeeper answers.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from protocol.numbers import is_plain_number
from tools.admin.bootstrap import resolves
from tools.cluster.fault_log import FaultLog, now_ms
from tools.cluster.forks import CannotFork, forks
from tools.cluster.java import JavaNotFound, find_java
from tools.cluster.links.control import LinksControl, NoLinks
from tools.cluster.links.wiring import MARKER, BadWiring, BrokerPorts
from tools.cluster.ports import LOCAL_HOST, NoFreePorts, accepts_connections, free_ports, is_free
from tools.cluster.processes import ClusterError, ServerProcess, stop_all
from tools.cluster.readiness import broker_view, not_ready
from tools.cluster.run_directory import (
    DEFAULT_DIRECTORY,
    LOCAL_CLIENTS,
    UNNAMEABLE,
    BrokerDirectory,
    ClientListener,
    RunDirectory,
    local_profile,
    parse_address,
)
from tools.cluster.secured.client_files import ClientAccess
from tools.cluster.secured.files import USERS, ZOOKEEPER_FILE, SecuredBroker, SecuredFiles
from tools.cluster.zookeeper import Stores, ZooKeeperError, class_path
from tools.wire.security import Security

__all__ = ["DEFAULT_DIRECTORY", "ClusterError", "LocalCluster", "NotServing"]

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
"""Above the broker's own limit, `broker.stop.timeout.ms`."""
READY_POLL_S = 0.01
SLOW_S = 5.0
"""A start that takes longer says what brokers complain about."""
LINKS_TIMEOUT_S = 15.0
FULL_DISK_BYTES = 1024 * 1024
"""With less space than this, a server may end without a word in its log."""
SESSION_TIMEOUT, KAFKA_SESSION_TIMEOUT_MS = "zookeeper.session.timeout.ms", 18_000
ANSWER_TIMEOUT_S = 2.0
ZOOKEEPER_CONNECT_TIMEOUT_S = 5.0
EVERY_ADDRESS = ("0.0.0.0", "::", "[::]", "")
"""What to listen at, and not whom to connect to."""
NOT_FOR_ALL_BROKERS = ("broker.id", "listeners", "advertised.listeners", "log.dirs")
FAULTS = {
    signal.SIGKILL: "broker_killed",
    signal.SIGTERM: "broker_stopped",
    signal.SIGSTOP: "broker_paused",
    signal.SIGCONT: "broker_resumed",
}
"""What `faults.jsonl` calls these signals."""
START_ERROR = "ottla broker: "
"""A broker that cannot start prints one line with this prefix and the reason."""
UNKNOWN_SETTING = re.compile(r"unknown setting '.*")
"""The end of a broker's warning; the start, which says where the setting is, differs between brokers."""
ZOOKEEPER_STORES = Stores(f"../security/{ZOOKEEPER_FILE}", f"../security/{ZOOKEEPER_FILE}")
"""Relative to the directory of ZooKeeper."""
SOURCE_ROOT = Path(__file__).resolve().parents[2]


class NotServing(ClusterError):
    """A process ended without a START_ERROR line, or did not become ready in time: its log may say why, unless the disk is full."""


class LocalCluster:
    """The cluster of one run directory."""

    def __init__(self, directory: Path | str) -> None:
        self._files = RunDirectory(Path(directory))
        self._processes: dict[int, ServerProcess] = {}
        self._links_process: ServerProcess | None = None
        self._made: list[Path] = []
        self._has_made_directory = False

    # reading

    @property
    def directory(self) -> Path:
        return self._files.path

    def exists(self) -> bool:
        """Whether the directory has a cluster, running or not."""
        return bool(self._files.brokers())

    @property
    def broker_ids(self) -> tuple[int, ...]:
        return tuple(broker.id for broker in self._files.brokers())

    @property
    def bootstrap_servers(self) -> str:
        """`host:port,...` of all brokers, by id."""
        return ",".join(broker.client_endpoint() for broker in self._existing())

    @property
    def zookeeper_connect(self) -> str:
        """`zookeeper.connect`, past the links if there are some."""
        if self._files.links.exists():
            return self._zookeeper_past_links()
        return self._existing()[0].properties().get("zookeeper.connect", "")

    @property
    def zookeeper(self) -> ServerProcess | None:
        """The embedded ZooKeeper's process; None if the cluster uses another ZooKeeper."""
        return self._files.zookeeper.process if self._files.zookeeper.exists() else None

    @property
    def links(self) -> LinksControl | None:
        """What cuts and slows the links between the brokers; None for a cluster without `--links`."""
        return LinksControl(self._files.links.control_socket) if self._files.links.exists() else None

    @property
    def links_process(self) -> ServerProcess | None:
        if self._links_process is None and self._files.links.exists():
            self._links_process = self._files.links_process()
        return self._links_process

    @property
    def fault_log(self) -> FaultLog:
        """What was done to the cluster on purpose; the methods of this class write there, too."""
        return self._files.faults

    def broker_directory(self, broker_id: int) -> Path:
        return self._broker(broker_id).path

    def log_directories(self, broker_id: int) -> list[Path]:
        """The broker's `log.dirs`."""
        return self._broker(broker_id).log_directories()

    def session_timeout_ms(self) -> int:
        """`zookeeper.session.timeout.ms` of the first broker."""
        text = self._existing()[0].properties().get(SESSION_TIMEOUT, "")
        return int(text) if is_plain_number(text) else KAFKA_SESSION_TIMEOUT_MS

    def address(self, broker_id: int) -> str:
        """`host:port` for clients."""
        return self._broker(broker_id).client_endpoint()

    def metrics_address(self, broker_id: int) -> str:
        """`host:port` of the broker's metrics page; "" if there is none."""
        return self._broker(broker_id).metrics_address()

    def port(self, broker_id: int) -> int:
        """The client port."""
        return self._broker(broker_id).address()[1]

    def pid(self, broker_id: int) -> int | None:
        """The pid of a running or paused broker, else None."""
        return self._process(broker_id).pid()

    def is_paused(self, broker_id: int) -> bool:
        return self._process(broker_id).is_paused()

    def running(self) -> list[ServerProcess]:
        """All running processes of the cluster: brokers, links, ZooKeeper."""
        everything = [self._process(broker_id) for broker_id in self.broker_ids]
        everything += [process for process in (self.links_process, self.zookeeper) if process is not None]
        return [process for process in everything if process.pid() is not None]

    def controller_id(self) -> int:
        """The controller according to the first broker that answers; -1 if none does."""
        for broker in self._existing():
            view = (
                broker_view(broker.address(), ANSWER_TIMEOUT_S, broker.security())
                if self._may_answer(broker.id)
                else None
            )
            if view is not None and view.controller_id >= 0:
                return view.controller_id
        return -1

    def security(self) -> Security:
        """How the brokers' listeners for clients are reached."""
        return self._existing()[0].security()

    @property
    def secured(self) -> SecuredFiles | None:
        """Certificates and passwords; None for a cluster without `--secure`."""
        return self._files.secured if self._files.secured.exists() else None

    def access(self, user: str) -> ClientAccess:
        """How a user of a secured cluster connects. Raises ClusterError."""
        if self.secured is None:
            raise ClusterError(f"the cluster in {self.directory} is not secured: it was made without `--secure`")
        certified = ",".join(broker.mutual_tls_endpoint() for broker in self._existing())
        return self.secured.access(user, self.bootstrap_servers, certified)

    def problems(self) -> dict[int, str]:
        """Broker id -> why it does not serve, for those that do not."""
        running = {broker.id: broker.address() for broker in self._existing() if self._may_answer(broker.id)}
        reasons = not_ready(running, running, ANSWER_TIMEOUT_S, self.security())
        for broker_id in self.broker_ids:
            if broker_id not in running:
                reasons[broker_id] = "paused" if self.is_paused(broker_id) else "stopped"
        return dict(sorted(reasons.items()))

    # creating and removing

    def create(
        self,
        brokers: int = 3,
        zookeeper: str | None = None,
        overrides: Mapping[str, str] | None = None,
        *,
        links: bool = False,
        clients: ClientListener = LOCAL_CLIENTS,
        secure: bool = False,
    ) -> None:
        """Writes the files of a new cluster: `brokers` brokers with ids from 1, on free ports of 127.0.0.1, or where `clients` says.

        `zookeeper` is `host:port[/chroot]` of a ZooKeeper to use instead of the embedded one; `overrides` are Kafka settings for
        every broker; with `links`, brokers reach each other and ZooKeeper through links that can be cut; with `secure`, it has TLS, users
        and ACLs (docs/SECURITY.md).

        Raises ClusterError if the directory already has a cluster, or if files cannot be written.
        """
        if self.exists():
            raise ClusterError(
                f"{self.directory} already has a cluster: start it unchanged, or remove it with `ottla cluster destroy`"
            )
        if (unnameable := UNNAMEABLE.search(str(self.directory))) is not None:
            raise ClusterError(
                f"{self.directory} cannot be a run directory, because log.dirs cannot name a path with {unnameable.group()!r}: "
                "choose another --dir"
            )
        if brokers < 1:
            raise ClusterError(f"a cluster has at least one broker, not {brokers}")
        for key in NOT_FOR_ALL_BROKERS:
            if key in (overrides or {}):
                raise ClusterError(
                    f"{key} cannot be the same for all brokers: change it in broker-<id>/server.properties"
                )
        if "zookeeper.connect" in (overrides or {}):
            raise ClusterError("zookeeper.connect cannot be overridden: name the ZooKeeper with --zookeeper HOST:PORT")
        if zookeeper is None:
            _require_embedded_zookeeper()
        settings = {**local_profile(brokers), **(overrides or {})}
        for text in (zookeeper or "", clients.host, clients.advertised, *settings, *settings.values()):
            if not text.isprintable():
                raise ClusterError(
                    f"{text!r} cannot stand in server.properties, which has one line of UTF-8 for each setting"
                )
        was_there = self.directory.exists()
        if secure:
            self._files.make_private()
        with self._files.locked():
            self._has_made_directory = not was_there  # another command that makes it at this moment has the lock
            try:
                if secure:
                    self._make_room_for_secrets()
                self._make_files(brokers, zookeeper, settings, links, clients, secure)
            except (OSError, NoFreePorts) as error:
                self.undo_create()
                raise ClusterError(f"could not create a cluster in {self.directory}: {error}") from None
            except BaseException:
                self.undo_create()
                raise

    def _make_files(
        self,
        brokers: int,
        zookeeper: str | None,
        settings: Mapping[str, str],
        links: bool,
        clients: ClientListener,
        secure: bool,
    ) -> None:
        zookeeper_port, *ports = free_ports(1 + 3 * brokers)
        if clients.first_port is not None:
            ports[::3] = range(clients.first_port, clients.first_port + brokers)
        linked: dict[int, BrokerPorts] = {}
        if links:
            more = free_ports(4 * brokers)
            linked = {
                index + 1: BrokerPorts(more[4 * index], ports[3 * index + 1], *more[4 * index + 1 : 4 * index + 4])
                for index in range(brokers)
            }
        is_embedded = zookeeper is None
        if zookeeper is None:
            self._note_new(self._files.zookeeper.directory)
            self._files.zookeeper.create(zookeeper_port, ZOOKEEPER_STORES if secure else None)
            zookeeper = self._files.zookeeper.connect
        if links:
            self._note_new(self._files.links.path)
            self._files.links.create(LOCAL_HOST, zookeeper, linked)
        secured: list[SecuredBroker] = self._secure(clients, ports[::3], with_zookeeper=is_embedded) if secure else []
        for index in range(brokers):
            broker = self._files.broker_directory(index + 1)
            self._note_new(broker.path)
            own = (ports[3 * index], ports[3 * index + 1], ports[3 * index + 2])
            broker.create(zookeeper, own, settings, linked.get(broker.id), clients, secured[index] if secure else None)
        if secure:
            self._files.close_to_others()

    def _make_room_for_secrets(self) -> None:
        secured = self._files.secured
        if secured.is_new():
            secured.remove()  # of a start that was killed before there was a broker
        if secured.client_properties.exists():
            raise ClusterError(
                f"{secured.client_properties} is there already, and --secure would replace it: move it away"
            )

    def _secure(
        self, clients: ClientListener, client_ports: Sequence[int], *, with_zookeeper: bool
    ) -> list[SecuredBroker]:
        """Makes certificates and passwords."""
        count = len(client_ports)
        more = free_ports(2 * count)
        self._note_new(self._files.secured.path)
        for_login, for_certificates = (
            ",".join(f"{clients.advertised}:{port}" for port in ports) for ports in (client_ports, more[:count])
        )
        hosts = [host for host in (clients.advertised, clients.host) if host not in EVERY_ADDRESS]
        self._files.secured.create(
            range(1, count + 1), hosts, for_login, for_certificates, with_zookeeper=with_zookeeper
        )
        return [
            SecuredBroker(self._files.secured.settings(index + 1), more[index], more[count + index])
            for index in range(count)
        ]

    def _note_new(self, path: Path) -> None:
        if not path.exists():
            self._made.append(path)

    def undo_create(self) -> None:
        """Ends the processes and removes the files of a cluster that this object created; touches nothing else."""
        if self._made:
            for process in self.running():
                process.kill()
        for path in self._made:
            shutil.rmtree(path, ignore_errors=True)
        if self._made:
            self._files.faults.path.unlink(missing_ok=True)
        if self._files.secured.path in self._made:
            self._files.secured.client_properties.unlink(missing_ok=True)
        self._made.clear()
        if self._has_made_directory:
            with contextlib.suppress(OSError):
                self.directory.rmdir()

    def destroy(self) -> None:
        """Kills all processes and removes brokers and ZooKeeper with their data."""
        for process in self.running():
            process.kill()
        self._files.remove()

    # starting and stopping

    def start(self, timeout: float = READY_TIMEOUT_S, say: Callable[[str], None] | None = None) -> None:
        """Starts all brokers, and the embedded ZooKeeper if there is one; returns when all are ready to serve.

        `say` gets lines about what keeps brokers from being ready for long. Raises ClusterError after it has stopped what it started;
        `timeout` is in seconds.
        """
        brokers = self._existing()
        with self._files.locked():
            self._refuse_if_in_use(brokers)
            self._refuse_expired(brokers)
            try:
                self._start_zookeeper()
                self.start_links()
                self._files.faults.write("cluster_started", brokers=[broker.id for broker in brokers])
                self._start_brokers(brokers)
                self.wait_ready(timeout, say=say)
                self._set_up_users(brokers)
            except BaseException:
                for process in self.running():
                    process.kill()
                raise

    def _set_up_users(self, brokers: Sequence[BrokerDirectory]) -> None:
        """The users and rights of a cluster that is secured and new."""
        secured = self._files.secured
        if not secured.exists() or not secured.is_new():
            return
        from tools.cluster.secured.rights import set_up

        has_acls = bool(brokers[0].properties().get("authorizer.class.name"))
        set_up([self.access(user) for user in USERS], [broker.address() for broker in brokers], has_acls=has_acls)
        secured.new_file.unlink()

    def unknown_settings(self) -> list[str]:
        """The brokers' warnings about unknown settings since they were started here, each once."""
        lines = [line for broker_id in self.broker_ids for line in self._process(broker_id).words_since_start()]
        found = [match.group() for line in lines if (match := UNKNOWN_SETTING.search(line))]
        return list(dict.fromkeys(found))

    def misleading_addresses(self) -> list[str]:
        """One line if brokers listen for other machines, but tell clients an address that leads to the client's own machine."""
        found = [endpoints for broker in self._existing() if (endpoints := broker.misleading_endpoint()) is not None]
        if not found:
            return []
        bound, told = found[0]
        advice = "`--advertise HOST` makes a new cluster tell them HOST; for this one, edit advertised.listeners"
        problem = f"brokers listen at {bound}, but tell clients {told}, which leads a client on another machine to itself, not to a broker"
        return [f"{problem}. {advice} in {self.directory}/broker-*/server.properties"]

    def wait_ready(
        self,
        timeout: float = READY_TIMEOUT_S,
        brokers: Sequence[int] | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        """Waits until each of `brokers` (default: all) answers Metadata, lists all of them and knows a controller.

        After SLOW_S, and more and more rarely, `say` gets a line for each that does not, and for each broker that complains in its log.
        Raises ClusterError if one
        of them ends, or after `timeout` seconds.
        """
        began, since = time.monotonic(), _as_in_logs(now_ms())
        deadline, say_after_s = began + timeout, SLOW_S
        waiting = {
            broker.id: broker.address() for broker in self._existing() if brokers is None or broker.id in brokers
        }
        expected = frozenset(waiting)
        while waiting:
            self._refuse_the_dead(expected)
            reasons = not_ready(waiting, expected, ANSWER_TIMEOUT_S, self.security())
            waiting = {broker_id: address for broker_id, address in waiting.items() if broker_id in reasons}
            if waiting and time.monotonic() > deadline:
                broker_id, reason = next(iter(reasons.items()))
                log = self._process(broker_id).log_file
                said = "".join(f"; {line}" for line in self._complaints(since))
                raise NotServing(f"after {timeout:g} s broker {broker_id} {reason}{said}; its log is {log}")
            if waiting and say is not None and time.monotonic() - began > say_after_s:
                for broker_id, reason in reasons.items():
                    say(f"Still waiting: broker {broker_id} {reason}")
                for line in self._complaints(since):
                    say(line)
                say_after_s *= 2
            if waiting:
                time.sleep(READY_POLL_S)

    def stop(self, timeout: float = STOP_TIMEOUT_S) -> list[str]:
        """Stops brokers, then ZooKeeper; keeps all data. Returns the names of those that were killed after `timeout` seconds."""
        running = self.running()
        if running:
            self._files.faults.write("cluster_stopping")
        brokers = [process for process in running if process not in (self.zookeeper, self.links_process)]
        # The controller stops last: it moves the leaderships of the others, which need not wait for a new controller.
        controller_id = self.controller_id() if len(brokers) > 1 else -1
        last = [process for process in brokers if controller_id >= 0 and process is self._process(controller_id)]
        late = stop_all([process for process in brokers if process not in last], timeout) + stop_all(last, timeout)
        if self.links_process is not None:
            self.links_process.kill()
        if self.zookeeper is not None:
            self.zookeeper.kill()  # ZooKeeper's data is in its transaction log, so it needs no clean shutdown
        return [process.name for process in late]

    # one broker

    def start_broker(self, broker_id: int) -> None:
        """Starts a stopped broker without waiting for it (see `wait_ready`). Raises ClusterError."""
        broker = self._broker(broker_id)
        pid = self.pid(broker_id)
        if pid is not None:
            raise ClusterError(f"broker {broker_id} is already running (pid {pid})")
        self._refuse_taken_ports([broker])
        self._files.faults.write("broker_started", broker=broker_id)
        self._start_brokers([broker])

    def stop_broker(self, broker_id: int, timeout: float = STOP_TIMEOUT_S) -> None:
        """Sends SIGTERM, so that leaderships move away first; SIGKILL after `timeout` seconds."""
        if self.pid(broker_id) is not None:
            self._files.faults.write("broker_stopped", broker=broker_id)
        stop_all([self._process(broker_id)], timeout)

    def restart_broker(self, broker_id: int, timeout: float = READY_TIMEOUT_S) -> None:
        """Stops the broker if it is running, starts it and waits until it serves. It keeps port and data."""
        self.stop_broker(broker_id)
        self.start_broker(broker_id)
        self.wait_ready(timeout, brokers=[broker_id])

    def signal(self, broker_id: int, number: signal.Signals) -> None:
        """Sends a signal to a broker. Raises ClusterError if it is not running."""
        sent_at = now_ms()
        if not self._process(broker_id).send(number):
            raise ClusterError(
                f"broker {broker_id} is not running: `ottla cluster restart-broker {broker_id}` starts it"
            )
        kind = FAULTS.get(number)
        if kind is not None:
            self._files.faults.write(kind, sent_at, broker=broker_id)
        else:
            self._files.faults.write("broker_signalled", sent_at, broker=broker_id, signal=number.name)

    def kill(self, broker_id: int) -> None:
        """Sends SIGKILL; returns when the process has ended."""
        self.signal(broker_id, signal.SIGKILL)
        self._process(broker_id).kill()

    def pause(self, broker_id: int) -> None:
        """Sends SIGSTOP: the broker is paused until `resume`."""
        self.signal(broker_id, signal.SIGSTOP)

    def resume(self, broker_id: int) -> None:
        """Sends SIGCONT."""
        self.signal(broker_id, signal.SIGCONT)

    # inside

    def _existing(self) -> list[BrokerDirectory]:
        brokers = self._files.brokers()
        if not brokers:
            raise ClusterError(f"there is no cluster in {self.directory}: `ottla cluster start` creates one")
        return brokers

    def _broker(self, broker_id: int) -> BrokerDirectory:
        for broker in self._existing():
            if broker.id == broker_id:
                return broker
        ids = ", ".join(map(str, self.broker_ids))
        raise ClusterError(f"there is no broker {broker_id} in {self.directory}: the brokers are {ids}")

    def _process(self, broker_id: int) -> ServerProcess:
        if broker_id not in self._processes:
            self._processes[broker_id] = self._broker(broker_id).process()
        return self._processes[broker_id]

    def _complaints(self, since: str) -> list[str]:
        """The last complaint of each broker in its log."""
        found = ((broker_id, self._process(broker_id).last_complaint(since)) for broker_id in self.broker_ids)
        return [f"broker {broker_id} says: {line}" for broker_id, line in found if line]

    def _may_answer(self, broker_id: int) -> bool:
        return self.pid(broker_id) is not None and not self.is_paused(broker_id)

    def _start_brokers(self, brokers: Sequence[BrokerDirectory]) -> None:
        environment = _broker_environment()
        processes = [self._process(broker.id) for broker in brokers]
        try:
            with forks(brokers[0].config_file.name, processes[0].log_file.name, environment) as forking:
                for process in processes:
                    process.fork(forking, environment)
        except CannotFork as problem:
            raise ClusterError(f"no broker started: {problem}") from None

    def start_links(self) -> None:
        """Starts the process of the links, if the cluster has links and it does not run; returns when it serves. Raises ClusterError."""
        process, links = self.links_process, self.links
        if process is None or links is None or process.pid() is not None:
            return
        self._zookeeper_past_links()
        command = [sys.executable, "-m", MARKER, "--config", str(self._files.links.config_file)]
        process.start(command, {**os.environ, "PYTHONPATH": _python_path()})
        deadline = time.monotonic() + LINKS_TIMEOUT_S
        while True:
            try:
                links.rules()
                return
            except NoLinks as problem:
                if process.pid() is None or time.monotonic() > deadline:
                    raise NotServing(f"the links did not start: {process.last_words() or problem}") from None
            time.sleep(READY_POLL_S)

    def _zookeeper_past_links(self) -> str:
        try:
            return self._files.links.zookeeper_connect
        except BadWiring as problem:
            raise ClusterError(str(problem)) from None

    def _start_zookeeper(self) -> None:
        """Starts the embedded ZooKeeper without waiting for it; another ZooKeeper must already answer."""
        try:
            if self.zookeeper is not None:
                self._files.zookeeper.start(partitions=self._files.partitions())
                return
        except (ZooKeeperError, JavaNotFound) as error:
            raise ClusterError(str(error)) from None
        addresses = self.zookeeper_connect.partition("/")[0]
        hosts = [parse_address(text.strip(), Path("zookeeper.connect")) for text in addresses.split(",")]
        if not any(accepts_connections(host, port, ZOOKEEPER_CONNECT_TIMEOUT_S) for host, port in hosts):
            unknown = next((host for host, _ in hosts if not resolves(host)), None)
            why = (
                "is it running, and is the address right?"
                if unknown is None
                else f"the host name {unknown} does not resolve"
            )
            raise ClusterError(f"no ZooKeeper answers at {addresses}: {why}")

    def _refuse_expired(self, brokers: Sequence[BrokerDirectory]) -> None:
        """They would wait for each other until the start takes too long."""
        if self.secured is None:
            return
        for broker in brokers:
            if broker.properties().get("ssl.keystore.location") == str(self.secured.keystore(broker.id)):
                self.secured.refuse_expired(broker.id)
        self.secured.renew_zookeeper()

    def _refuse_if_in_use(self, brokers: Sequence[BrokerDirectory]) -> None:
        running = self.running()
        if running:
            names = ", ".join(f"{process.name} (pid {process.pid()})" for process in running)
            raise ClusterError(
                f"{self.directory} is in use by a running cluster: {names}; `ottla cluster stop` stops it, "
                "`ottla cluster restart-broker ID` starts one broker"
            )
        self._refuse_taken_ports(brokers)
        if self._files.links.exists():
            for port in self._link_ports():
                if not is_free(LOCAL_HOST, port):
                    raise ClusterError(_taken("the links", port, self._files.links.config_file))
        zookeeper = self._files.zookeeper
        if zookeeper.exists() and not is_free(*zookeeper.address):
            raise ClusterError(_taken("ZooKeeper", zookeeper.address[1], zookeeper.config_file))

    def _link_ports(self) -> list[int]:
        try:
            return [port.port for port in self._files.links.ports()]
        except BadWiring as problem:
            raise ClusterError(str(problem)) from None

    def _refuse_taken_ports(self, brokers: Sequence[BrokerDirectory]) -> None:
        for broker in brokers:
            for host, port in broker.listener_addresses():
                if not is_free(host, port):
                    raise ClusterError(_taken(f"broker {broker.id}", port, broker.config_file))

    def _refuse_the_dead(self, broker_ids: frozenset[int]) -> None:
        """Raises ClusterError with the last output of a process that should be running but is not."""
        expected = [self._process(broker_id) for broker_id in sorted(broker_ids)]
        if self.links_process is not None:
            expected.insert(0, self.links_process)
        if self.zookeeper is not None:
            expected.insert(0, self.zookeeper)  # named first: brokers end because ZooKeeper ended, not the reverse
        for process in expected:
            if process.pid() is None:
                if shutil.disk_usage(process.directory).free < FULL_DISK_BYTES:
                    raise NotServing(f"{process.name} did not start: the disk of {process.directory} is full")
                words = process.last_words()
                if words.startswith(START_ERROR):
                    raise ClusterError(f"{process.name} did not start: {words.removeprefix(START_ERROR)}")
                raise NotServing(
                    f"{process.name} did not start: {words or 'it printed nothing'}; its log is {process.log_file}"
                )


def _as_in_logs(at_ms: float) -> str:
    """A time as server.log writes it."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _broker_environment() -> dict[str, str]:
    environment = {**os.environ, "PYTHONPATH": _python_path()}
    for key in (*NOT_FOR_ALL_BROKERS, "zookeeper.connect"):
        environment.pop(f"KAFKA_{key.replace('.', '_').upper()}", None)  # it would override each broker's file
    return environment


def _python_path() -> str:
    return os.pathsep.join(filter(None, [str(SOURCE_ROOT), os.environ.get("PYTHONPATH", "")]))


def _taken(name: str, port: int, config_file: Path) -> str:
    # The files of a new cluster are gone after this error.
    return (
        f"port {port} of {name} is in use by another program: stop that program, or choose another --port for a new cluster, "
        f"or change the port of an existing one in {config_file}"
    )


def _require_embedded_zookeeper() -> None:
    """Checks that Java and the jars are there, before anything is written."""
    try:
        find_java()
        class_path()
    except (ZooKeeperError, JavaNotFound) as error:
        raise ClusterError(str(error)) from None
