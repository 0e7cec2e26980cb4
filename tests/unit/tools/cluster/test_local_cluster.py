"""LocalCluster's care with files, ports and processes, with a stand-in for the broker: a few lines that answer Metadata."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tools.admin.bootstrap import NoBootstrapServer, parse_properties, run_directory_endpoints
from tools.cluster import local_cluster
from tools.cluster.links.wiring import LinksDirectory
from tools.cluster.local_cluster import ClusterError, LocalCluster
from tools.cluster.log_parts import events_of
from tools.cluster.ports import free_ports
from tools.cluster.run_directory import ClientListener
from tools.cluster.views import cluster_json
from tools.cluster.zookeeper_place import ZooKeeperPlace, place_of_brokers

REPOSITORY = Path(__file__).resolve().parents[4]
TIMEOUT_S = 30

STAND_IN = """
import json, os, signal, socket, struct, sys
from pathlib import Path
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.framing import frame, parse_request_header, response_header
from protocol.kafka.messages import encode_response
from tools.cluster.run_directory import RunDirectory

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    request = json.loads(line)
    if os.fork() == 0:
        break
else:
    sys.exit()
os.chdir(request["directory"])
print(os.getpid(), flush=True)
log = os.open("server.log", os.O_WRONLY | os.O_APPEND)
os.dup2(log, 1)
os.dup2(log, 2)
config = Path("server.properties").absolute()
directory = RunDirectory(config.parent.parent)
me = next(broker for broker in directory.brokers() if broker.config_file == config)
if "fail" in me.properties():
    sys.exit("ottla broker: refused: " + me.properties()["fail"])
server = socket.create_server(me.address(), reuse_port=False)
brokers = [{"node_id": b.id, "host": "h", "port": 1, "rack": None} for b in directory.brokers()]
answer = {"throttle_time": 0, "brokers": brokers, "cluster_id": "c", "controller_id": 1, "topics": []}
while True:
    connection, _ = server.accept()
    with connection:
        size = struct.unpack("!i", connection.recv(4))[0]
        header = parse_request_header(connection.recv(size))
        body = encode_response(ApiKey.METADATA, header.api_version, answer)
        head = response_header(ApiKey.METADATA, header.api_version, header.correlation_id)
        connection.sendall(b"".join(frame([head, body])))
"""


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[str]:
    """A listener: LocalCluster only checks that another ZooKeeper accepts connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    package = tmp_path / "stand-in" / "broker"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(STAND_IN)
    monkeypatch.setattr(local_cluster, "SOURCE_ROOT", package.parent)
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    running = LocalCluster(tmp_path / "run")
    yield running
    running.destroy()


def test_a_cluster_from_create_to_destroy(cluster: LocalCluster, zookeeper: str) -> None:
    cluster.create(brokers=2, zookeeper=f"{zookeeper}/chroot", overrides={"num.partitions": "4"})
    assert cluster.broker_ids == (1, 2)
    assert cluster.zookeeper_connect == f"{zookeeper}/chroot"
    assert cluster.zookeeper is None
    assert cluster.bootstrap_servers == f"127.0.0.1:{cluster.port(1)},127.0.0.1:{cluster.port(2)}"
    cluster.start(TIMEOUT_S)
    assert cluster.problems() == {}
    assert cluster.controller_id() == 1
    with pytest.raises(ClusterError, match=r"in use by a running cluster: broker 1 \(pid \d+\)"):
        LocalCluster(cluster.directory).start(TIMEOUT_S)

    first, port = cluster.pid(1), cluster.port(1)
    cluster.kill(1)
    assert cluster.pid(1) is None
    assert cluster.problems() == {1: "stopped"}
    with pytest.raises(ClusterError, match="broker 1 is not running"):
        cluster.kill(1)
    cluster.start_broker(1)
    with pytest.raises(ClusterError, match="is already running"):
        cluster.start_broker(1)
    cluster.wait_ready(TIMEOUT_S)
    assert cluster.pid(1) not in (None, first)
    assert cluster.port(1) == port

    cluster.pause(2)
    assert LocalCluster(cluster.directory).stop(TIMEOUT_S) == []
    assert cluster.running() == []
    faults = [(row["kind"], row.get("broker")) for row in events_of(cluster.directory / "faults.jsonl")]
    assert faults == [
        ("cluster_started", None),
        ("broker_killed", 1),
        ("broker_started", 1),
        ("broker_paused", 2),
        ("cluster_stopping", None),
    ], "what was refused is not written"


def test_files_are_kept_and_only_those_of_the_cluster_are_removed(cluster: LocalCluster, zookeeper: str) -> None:
    cluster.create(brokers=1, zookeeper=zookeeper)
    config = cluster.broker_directory(1) / "server.properties"
    assert config.stat().st_mode & 0o077 == 0, "it may have passwords"
    config.write_text(config.read_text() + "# mine\nnum.partitions=9\n")
    (cluster.directory / "notes").write_text("keep")
    with pytest.raises(ClusterError, match="already has a cluster"):
        cluster.create(brokers=3, zookeeper=zookeeper)
    cluster.undo_create()
    assert not cluster.exists()
    assert [path.name for path in cluster.directory.iterdir()] == ["notes"]


@pytest.mark.parametrize("links", [False, True])
def test_clients_may_find_the_brokers_elsewhere(cluster: LocalCluster, zookeeper: str, links: bool) -> None:
    """For containers: clients connect to published ports, brokers to each other inside."""
    clients = ClientListener("0.0.0.0", "kafka.test", 19092)
    cluster.create(brokers=2, zookeeper=zookeeper, links=links, clients=clients)
    assert cluster.bootstrap_servers == "kafka.test:19092,kafka.test:19093"
    properties = parse_properties((cluster.broker_directory(2) / "server.properties").read_text())
    listeners, advertised = (properties[key].split(",") for key in ("listeners", "advertised.listeners"))
    assert (listeners[0], advertised[0]) == ("PLAINTEXT://0.0.0.0:19093", "PLAINTEXT://kafka.test:19093")
    assert len(listeners) == len(advertised) == (3 if links else 2)
    assert all("127.0.0.1" in listener for listener in (*listeners[1:], *advertised[1:]))


@pytest.mark.parametrize("links", [False, True])
@pytest.mark.parametrize(
    ("clients", "is_misleading"),
    [
        (ClientListener("0.0.0.0", "localhost", 19092), True),
        (ClientListener("192.0.2.7", "127.0.0.1", 19092), True),
        (ClientListener("0.0.0.0", "kafka.test", 19092), False),
        (ClientListener("127.0.0.1", "localhost", 19092), False),
        (ClientListener(), False),
    ],
)
def test_an_advertised_address_that_leads_others_to_themselves_is_said(
    cluster: LocalCluster, zookeeper: str, clients: ClientListener, is_misleading: bool, links: bool
) -> None:
    cluster.create(brokers=2, zookeeper=zookeeper, links=links, clients=clients)
    said = cluster.misleading_addresses()
    assert len(said) == is_misleading
    for line in said:
        assert f"listen at {clients.host}:19092, but tell clients {clients.advertised}:19092" in line
        assert "--advertise" in line


def test_undo_removes_only_what_create_made(cluster: LocalCluster, zookeeper: str) -> None:
    (cluster.directory / "broker-2" / "data").mkdir(parents=True)
    with pytest.raises(ClusterError, match="broker-2"):
        cluster.create(brokers=3, zookeeper=zookeeper)
    assert [path.name for path in cluster.directory.iterdir()] == ["broker-2"]


def test_a_broker_that_refuses_stops_the_others(cluster: LocalCluster, zookeeper: str) -> None:
    cluster.create(brokers=2, zookeeper=zookeeper)
    config = cluster.broker_directory(2) / "server.properties"
    config.write_text(config.read_text() + "fail=because\n")
    with pytest.raises(ClusterError, match=r"^broker 2 did not start: refused: because$"):
        cluster.start(TIMEOUT_S)
    assert cluster.running() == []


def test_a_port_in_use_is_named_before_anything_starts(cluster: LocalCluster, zookeeper: str) -> None:
    cluster.create(brokers=2, zookeeper=zookeeper)
    with (
        socket.create_server(("127.0.0.1", cluster.port(2))),
        pytest.raises(ClusterError, match=rf"port {cluster.port(2)} of broker 2 is in use by another program"),
    ):
        cluster.start(TIMEOUT_S)
    assert cluster.running() == []


def test_an_unreachable_zookeeper_is_an_error(cluster: LocalCluster) -> None:
    (port,) = free_ports(1)
    cluster.create(brokers=1, zookeeper=f"127.0.0.1:{port}/x")
    with pytest.raises(ClusterError, match=f"no ZooKeeper answers at 127.0.0.1:{port}:"):
        cluster.start(TIMEOUT_S)


@pytest.mark.parametrize("host", ["nosuch.invalid", "a..b"])
def test_a_zookeeper_whose_name_does_not_resolve(cluster: LocalCluster, host: str) -> None:
    cluster.create(brokers=1, zookeeper=f"{host}:2181")
    with pytest.raises(
        ClusterError, match=f"no ZooKeeper answers at {host}:2181: the host name {host} does not resolve"
    ):
        cluster.start(TIMEOUT_S)


def test_without_java_nothing_is_created(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise local_cluster.JavaNotFound("no Java: install it")

    monkeypatch.setattr(local_cluster, "find_java", none)
    with pytest.raises(ClusterError, match="no Java: install it"):
        cluster.create()
    assert not cluster.directory.exists()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"overrides": {"broker.id": "7"}}, "broker.id cannot be the same"),
        ({"overrides": {"zookeeper.connect": "h:1"}}, "name the ZooKeeper with --zookeeper"),
        ({"brokers": 0}, "at least one broker"),
        ({"overrides": {"a": "b\nc=d"}}, r"'b\\nc=d' cannot stand in server.properties"),
        ({"clients": ClientListener("h\udcff")}, r"'h\\udcff' cannot stand in server.properties"),
    ],
)
def test_bad_settings(cluster: LocalCluster, zookeeper: str, settings: dict[str, object], reason: str) -> None:
    with pytest.raises(ClusterError, match=reason):
        cluster.create(zookeeper=zookeeper, **settings)  # type: ignore[arg-type]
    assert not cluster.directory.exists()


@pytest.mark.parametrize("name", ["a,b", "a\\b", "a\nb", "a\u2028b", "a\udcffb"], ids=ascii)
def test_a_directory_that_log_dirs_cannot_name(tmp_path: Path, zookeeper: str, name: str) -> None:
    with pytest.raises(ClusterError, match=r"cannot be a run directory, because log.dirs cannot name a path with"):
        LocalCluster(tmp_path / name).create(zookeeper=zookeeper)
    assert list(tmp_path.iterdir()) == []


def test_settings_that_are_not_utf_8_are_named(cluster: LocalCluster, zookeeper: str) -> None:
    cluster.create(brokers=1, zookeeper=zookeeper)
    config = cluster.broker_directory(1) / "server.properties"
    config.write_bytes(b"broker.id=1\n# \xff\n")
    with pytest.raises(ClusterError, match=r"server.properties is not UTF-8 \(byte 14\): save it as UTF-8"):
        cluster.start()
    with pytest.raises(NoBootstrapServer, match=r"server.properties is not UTF-8 \(byte 14\)"):
        run_directory_endpoints(cluster.directory)


def test_a_directory_without_a_cluster_is_an_error(cluster: LocalCluster, zookeeper: str) -> None:
    for call in (cluster.start, lambda: cluster.kill(1), lambda: cluster.bootstrap_servers):
        with pytest.raises(ClusterError, match="there is no cluster in"):
            call()
    cluster.create(brokers=2, zookeeper=zookeeper)
    with pytest.raises(ClusterError, match=r"no broker 3 in .*: the brokers are 1, 2"):
        cluster.kill(3)


def test_no_two_callers_get_the_same_port() -> None:
    """Otherwise a cluster in another process could get the port of a broker that was killed."""
    ask = "from tools.cluster.ports import free_ports; print(*free_ports(500)); input()"
    asked = [sys.executable, "-c", ask]
    with ExitStack() as stack:
        others = [
            stack.enter_context(subprocess.Popen(asked, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            for _ in range(3)
        ]
        found = [free_ports(500), free_ports(500)]
        for other in others:
            assert other.stdout is not None
            found.append([int(port) for port in other.stdout.readline().split()])
    ports = [port for some in found for port in some]
    assert len(set(ports)) == len(ports) == 5 * 500


def test_ports_stay_free_for_their_servers() -> None:
    ports = free_ports(50)
    assert len(set(ports)) == 50
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert not [port for port in ports if low <= port <= high]


def test_links_are_for_brokers_only(cluster: LocalCluster, zookeeper: str) -> None:
    """Other brokers and ZooKeeper are behind the links; clients, and tools that look into ZooKeeper, are not."""
    cluster.create(brokers=2, zookeeper=f"{zookeeper}/chroot", links=True)
    ports = {
        (port.target, port.plane, port.source): port for port in LinksDirectory(cluster.directory / "links").ports()
    }
    assert set(ports) == {
        *((str(broker), plane, None) for broker in (1, 2) for plane in ("data", "control")),
        *(("zookeeper", "sessions", str(broker)) for broker in (1, 2)),
    }
    taken = [port.port for port in ports.values()]
    for broker in (1, 2):
        properties = parse_properties((cluster.broker_directory(broker) / "server.properties").read_text())
        advertised = dict(entry.split("://") for entry in properties["advertised.listeners"].split(","))
        bound = dict(entry.split("://") for entry in properties["listeners"].split(","))
        assert advertised["PLAINTEXT"] == bound["PLAINTEXT"] == cluster.address(broker)
        for name, plane in (("INTERNAL", "data"), ("CONTROLLER", "control")):
            port = ports[str(broker), plane, None]
            assert advertised[name] == f"127.0.0.1:{port.port}"
            assert port.addresses == (bound[name],)
            taken.append(int(bound[name].rpartition(":")[2]))
        link = ports["zookeeper", "sessions", str(broker)]
        assert properties["zookeeper.connect"] == f"127.0.0.1:{link.port}/chroot"
        assert link.addresses == (zookeeper,)
    assert len(set(taken)) == len(taken)
    assert cluster.zookeeper_connect == f"{zookeeper}/chroot"
    assert place_of_brokers(cluster.directory) == ZooKeeperPlace(f"{zookeeper}/chroot")
    assert run_directory_endpoints(cluster.directory) == [cluster.address(1), cluster.address(2)]


def test_the_process_of_the_links_starts_and_stops_with_the_cluster(cluster: LocalCluster, zookeeper: str) -> None:
    cluster.create(brokers=1, zookeeper=zookeeper, links=True)
    cluster.start(TIMEOUT_S)
    assert cluster.links is not None
    assert cluster.links_process is not None
    assert cluster.links.rules() == []
    rows = {node["name"]: node for node in cluster_json(cluster)["nodes"]}
    assert rows["links"]["state"] == "running"
    assert rows["links"]["pid"] == cluster.links_process.pid() is not None
    cluster.stop()
    assert cluster.links_process.pid() is None
    (cluster.directory / "links" / "links.json").write_text("[]")
    with pytest.raises(ClusterError, match=r"links.json: expected an object with zookeeper and ports"):
        cluster.start(TIMEOUT_S)
    cluster.destroy()
    assert not cluster.directory.exists()
