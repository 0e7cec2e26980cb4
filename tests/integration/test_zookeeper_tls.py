"""ZooKeeper by TLS, with certificates on both sides: sessions, brokers and commands (CLI-5)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from protocol.zk.access import zookeeper_access
from protocol.zk.session import SessionState, WatchEvent, WatchKind, ZkError, ZooKeeperSession, ZooKeeperUnavailable
from tests.conftest import ClusterFactory
from tests.support import forked_commands
from tests.support.cli import Cli
from tests.support.invariants import ZooKeeperView
from tests.support.secure_zookeeper import SASL_LOGIN, SASL_MODULE, SecureZooKeeper
from tests.support.secured import replaces_a_killed_controller
from tests.support.zookeeper_sessions import States, open_session
from tools.cluster.local_cluster import LocalCluster
from tools.cluster.secured.authority import Authority, past_validity

pytestmark = pytest.mark.integration

SOON_S = 20.0
REFUSED_S = 1.5


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureZooKeeper]:
    with SecureZooKeeper(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


@pytest.mark.parametrize("protocol", ["TLSv1.2", "TLSv1.3"])
async def test_a_session_by_tls(secure: SecureZooKeeper, protocol: str) -> None:
    """More than a record of TLS in both directions, watches, many requests at once."""
    access = zookeeper_access({**secure.settings(), "zookeeper.ssl.protocol": protocol})
    events: list[WatchEvent] = []
    async with open_session(f"{secure.connect}/of-{protocol}", access=access) as session:
        large = bytes(range(256)) * 3500
        await session.create("/large", large)
        for number in range(40):
            await session.create(f"/{number}", b"%d" % number)
        found = await session.get_many(["/large", *(f"/{number}" for number in range(40))] * 5)
        assert [node[0] for node in found if node] == [large, *(b"%d" % number for number in range(40))] * 5
        await session.get("/1", watch=events.append)
        await asyncio.gather(*(session.set(f"/{number}", b"x") for number in range(40)))
        await session.heartbeat()
    assert events == [WatchEvent(WatchKind.CHANGED, "/1")]


async def test_a_session_survives_a_restart_and_takes_new_certificates(secure: SecureZooKeeper) -> None:
    """The session's watches stay, too. New connections show the certificate that is in the file by then."""
    keystore = secure.certificate("renewed")
    access = zookeeper_access(secure.settings(keystore=keystore))
    assert access.tls is not None
    events: list[WatchEvent] = []
    async with open_session(f"{secure.connect}/restarted", 20_000, access) as session:
        states, first = States(session), session.session_id
        await session.create("/watched", b"1")
        await session.get("/watched", watch=events.append)
        assert not await access.tls.read_again()
        secure.certificate("renewed")
        assert await access.tls.read_again()
        keystore.write_text("not a certificate")
        assert not await access.tls.read_again(), "the earlier stay"
        await asyncio.to_thread(secure.stop)
        await states.wait_for(SessionState.SUSPENDED)
        await asyncio.to_thread(secure.start)
        await states.wait_for(SessionState.CONNECTED)
        assert session.session_id == first
        await session.set("/watched", b"2")
    assert [event.kind for event in events] == [WatchKind.CHANGED]


def stranger() -> Authority:
    return Authority.new("somebody else")


Change = Callable[[SecureZooKeeper], dict[str, str]]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            lambda zk: {"zookeeper.ssl.truststore.location": str(zk.certificate("other", authority=stranger()))},
            r"its certificate is not valid \(unable to get local issuer certificate\): see zookeeper.ssl.truststore.location",
        ),
        (
            lambda zk: {"zookeeper.ssl.keystore.location": str(zk.certificate("strange", authority=stranger()))},
            "it refuses the certificate of this side .*: see zookeeper.ssl.keystore.location",
        ),
        (
            lambda zk: {"zookeeper.ssl.keystore.location": str(zk.certificate("old", past_validity()))},
            "it refuses the certificate of this side .*: see zookeeper.ssl.keystore.location",
        ),
        (
            lambda _: {"zookeeper.ssl.keystore.location": ""},
            "it refuses the certificate of this side .*: see zookeeper.ssl.keystore.location",
        ),
        (lambda _: {"host": "localhost"}, "its certificate is not for this host .*localhost.*: zookeeper.connect must name it"),
        (
            lambda _: {"zookeeper.ssl.client.enable": "false"},
            "it ended the connection without an answer; if this port wants TLS, set zookeeper.ssl.client.enable=true",
        ),
    ],
    ids=["unknown-server", "unknown-client", "expired-client", "no-client", "other-host", "in-the-clear"],
)  # fmt: skip
async def test_what_is_wrong_is_said_in_one_line(
    secure: SecureZooKeeper, change: Change, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {**secure.settings(), "zookeeper.ssl.protocol": "TLSv1.3", **change(secure)}
    host, port = secure.address
    address = f"{settings.pop('host', host)}:{port}"
    session = ZooKeeperSession(address, session_timeout_ms=4000, access=zookeeper_access(settings))
    with pytest.raises(ZooKeeperUnavailable, match=f"^no ZooKeeper can be used: {address}: ({expected})"):
        await session.start(REFUSED_S)
    said = [line for line in caplog.messages if "cannot be used" in line]
    assert len(said) == (settings["zookeeper.ssl.client.enable"] == "true")


async def test_tls_at_a_port_without_and_without_a_check_of_the_host(
    secure: SecureZooKeeper, new_chroot: Callable[[], str]
) -> None:
    session = ZooKeeperSession(new_chroot(), session_timeout_ms=4000, access=zookeeper_access(secure.settings()))
    with pytest.raises(ZooKeeperUnavailable, match="is this port its secureClientPort"):
        await session.start(REFUSED_S)
    settings = {**secure.settings(), "zookeeper.ssl.endpoint.identification.algorithm": ""}
    async with open_session(f"localhost:{secure.address[1]}", access=zookeeper_access(settings)) as other:
        await other.heartbeat()


def jaas(password: str) -> dict[str, str]:
    return {
        "zookeeper.sasl.jaas.config": f'{SASL_MODULE} required username="{SASL_LOGIN.user}" password="{password}";',
    }


async def test_a_login_by_sasl(secure: SecureZooKeeper, caplog: pytest.LogCaptureFixture) -> None:
    """Nodes are the user's, as Kafka's are, and stay it over a reconnect; also those of whom the certificate names."""
    settings = {**secure.settings("first"), "zookeeper.set.acl": "true", **jaas(SASL_LOGIN.password)}
    async with open_session(f"{secure.connect}/sasl", 20_000, zookeeper_access(settings)) as session:
        await session.create("/mine", b"1")
        states = States(session)
        await asyncio.to_thread(secure.stop)
        await states.wait_for(SessionState.SUSPENDED)
        await asyncio.to_thread(secure.start)
        await states.wait_for(SessionState.CONNECTED)
        await session.set("/mine", b"2")
    with closing(ZooKeeperView(secure.connect, secure.certificate("view"), secure.trusted)) as view:
        acl, _ = view.client.get_acls("/sasl/mine")
    owners = {(entry.id.scheme, entry.id.id) for entry in acl if entry.perms == 31}
    assert owners == {("sasl", SASL_LOGIN.user), ("x509", "CN=first")}
    other = zookeeper_access({**secure.settings("second"), **jaas(SASL_LOGIN.password)})
    async with open_session(f"{secure.connect}/sasl", access=other) as session:
        await session.set("/mine", b"3")
    refused = ZooKeeperSession(
        secure.connect, session_timeout_ms=4000, access=zookeeper_access({**secure.settings(), **jaas("WRONG-ONE")})
    )
    with pytest.raises(ZooKeeperUnavailable, match=r"it refuses the login of 'kafka' by DIGEST-MD5 .*: see zookeeper"):
        await refused.start(REFUSED_S)
    assert "WRONG-ONE" not in caplog.text
    assert SASL_LOGIN.password not in caplog.text


def test_brokers_and_commands(secure: SecureZooKeeper, new_cluster: ClusterFactory, tmp_path: Path) -> None:
    """A broker is killed, its session ends, others lead, and it comes back. Only the brokers' certificate changes their nodes."""
    settings = {**secure.settings(), "zookeeper.set.acl": "true"}
    cluster = new_cluster(brokers=2, overrides=settings, zookeeper=f"{secure.connect}/cluster")
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic("orders", 2, 2)])["orders"].result(30)
    asyncio.run(_only_read(secure))
    _commands(cluster, secure, tmp_path)
    with closing(ZooKeeperView(cluster.zookeeper_connect, secure.certificate("broker"), secure.trusted)) as view:
        replaces_a_killed_controller(cluster, view, "orders", partitions=2)


async def _only_read(secure: SecureZooKeeper) -> None:
    async with open_session(f"{secure.connect}/cluster", access=zookeeper_access(secure.settings("other"))) as other:
        await other.get("/brokers/topics/orders")
        with pytest.raises(ZkError, match=r"to another user only; see .*zookeeper\.ssl\.keystore\.location"):
            await other.set("/brokers/topics/orders", b"{}")
        with pytest.raises(ZkError, match="to another user only"):
            await other.children("/config/users")


def test_a_new_cluster_on_it(secure: SecureZooKeeper, tmp_path: Path) -> None:
    """The brokers get the settings of the file, and so do later commands."""
    file, directory = tmp_path / "zk-tls.properties", tmp_path / "cluster"
    file.write_text("".join(f"{key}={value}\n" for key, value in secure.settings().items()))
    where = ("--zookeeper", f"{secure.connect}/new", "--zk-tls-config-file", str(file), "--dir", str(directory))
    try:
        done = forked_commands.run(("cluster", "start", "--brokers", "1", *where), None, 60.0)
        assert done.returncode == 0, done.stderr
        done = forked_commands.run(("cluster", "health", "--dir", str(directory)), None, SOON_S)
        assert done.returncode == 0, done.stdout
    finally:
        LocalCluster(directory).destroy()


def _commands(cluster: LocalCluster, secure: SecureZooKeeper, tmp_path: Path) -> None:
    """They find the settings in the run directory, or in the file that is named."""
    cli = Cli(cluster.bootstrap_servers, list(cluster.broker_ids), cluster.zookeeper_connect)
    directory, where = str(cluster.directory), ("--zookeeper", cluster.zookeeper_connect)
    for command in (("inspect", "znodes", "--dir", directory), ("cluster", "health", "--dir", directory)):
        done = forked_commands.run(command, None, SOON_S)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
    file = tmp_path / "zk-tls.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in secure.settings().items()) + "other.setting=x\n")
    named = cli.output("inspect", "znodes", *where, "--zk-tls-config-file", str(file))
    assert "orders-0" in named
    assert "if this port wants TLS, set zookeeper.ssl.client.enable=true" in cli.failure("inspect", "znodes", *where)
    file.write_text("zookeeper.ssl.client.enable=true\nzookeeper.ssl.keystore.location=/no/such.jks\n")
    said = cli.failure("cluster", "health", *where, "--zk-tls-config-file", str(file))
    assert f"{file}: zookeeper.ssl.keystore.type: stores of type JKS are not read" in said
