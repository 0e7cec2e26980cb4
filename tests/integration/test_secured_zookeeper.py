"""The ZooKeeper of `ottla cluster start --secure`: who gets in, and faults between it and the brokers (CLI-5, FLT-10, FLT-20, FLT-21)."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from protocol.zk.access import zookeeper_access
from protocol.zk.session import ZooKeeperSession, ZooKeeperUnavailable
from tests.conftest import ClusterFactory
from tests.support import forked_commands
from tests.support.invariants import ZooKeeperView, eventually
from tools.cluster.local_cluster import LocalCluster

pytestmark = pytest.mark.integration

COMMAND_S = 60.0
SOON_S = 30.0
TOPIC = "orders"


@pytest.fixture(scope="module")
def cluster(new_module_cluster: ClusterFactory) -> LocalCluster:
    return new_module_cluster(brokers=3, secure=True, links=True)


@pytest.fixture
def client(cluster: LocalCluster) -> dict[str, object]:
    found = {**cluster.access("alice").librdkafka("PLAIN"), "log_level": 0}
    admin = AdminClient(found)
    if TOPIC not in admin.list_topics(timeout=30).topics:
        admin.create_topics([NewTopic(TOPIC, 6, 3, config={"min.insync.replicas": "2"})])[TOPIC].result(30)
    return found


def ottla(cluster: LocalCluster, line: str) -> str:
    done = forked_commands.run((*line.split(), "--dir", str(cluster.directory)), None, COMMAND_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def appends(client: dict[str, object]) -> None:
    failed: list[object] = []
    producer = Producer({**client, "acks": "all", "retry.backoff.ms": 50})
    for number in range(300):
        producer.produce(TOPIC, b"x", partition=number % 6, on_delivery=lambda e, _: failed.append(e) if e else None)
    assert producer.flush(60) == 0
    assert not failed


def session_of(zk: ZooKeeperView, broker: int) -> int:
    """The id of the session that the broker is registered in; 0 if it is not."""
    found = zk.client.exists(f"/brokers/ids/{broker}")
    return 0 if found is None else int(found.ephemeralOwner)


def all_in_sync(zk: ZooKeeperView) -> bool:
    return all(len(state.isr) == 3 and state.leader >= 0 for state in zk.states(TOPIC).values())


async def test_only_its_own_certificate_gets_in(cluster: LocalCluster) -> None:
    """Those of the users are of the same authority. There is no port in the clear."""
    secured, settings = cluster.secured, cluster.broker_directory(1) / "server.properties"
    assert secured is not None
    assert "zookeeper.set.acl=true\n" in settings.read_text()
    assert not [
        line
        for line in (cluster.directory / "zookeeper" / "zoo.cfg").read_text().splitlines()
        if line.startswith("clientPort")
    ]
    by_tls = {"zookeeper.ssl.client.enable": "true", "zookeeper.ssl.protocol": "TLSv1.3"}
    alice = {
        **by_tls,
        "zookeeper.ssl.keystore.location": str(secured.certificate("alice")),
        "zookeeper.ssl.truststore.location": str(secured.zookeeper_file),
    }
    for access, reason in ((alice, "it refuses the certificate of this side"), ({}, "if this port wants TLS")):
        session = ZooKeeperSession(cluster.zookeeper_connect, session_timeout_ms=4000, access=zookeeper_access(access))
        with pytest.raises(ZooKeeperUnavailable, match=reason):
            await session.start(2.0)


def test_commands_find_it(cluster: LocalCluster, client: dict[str, object]) -> None:
    appends(client)
    assert "0 differences" in ottla(cluster, "inspect znodes")
    ottla(cluster, "cluster health --exit-when-healthy --timeout 30")


def test_a_broker_that_is_cut_from_it(cluster: LocalCluster, client: dict[str, object], zk: ZooKeeperView) -> None:
    """Through the links: its session ends, others lead, and it comes back when the link does."""
    victim = zk.state(TOPIC, 0).leader
    ottla(cluster, f"fault isolate broker {victim} --from zookeeper")
    eventually(lambda: victim not in zk.live_brokers(), "its session ends", SOON_S)
    eventually(lambda: zk.state(TOPIC, 0).leader not in (victim, -1), "another broker leads", SOON_S)
    ottla(cluster, "fault heal")
    eventually(lambda: victim in zk.live_brokers() and all_in_sync(zk), "it is back", SOON_S)
    appends(client)


def test_a_session_that_ends_and_a_zookeeper_that_is_killed(
    cluster: LocalCluster, client: dict[str, object], zk: ZooKeeperView
) -> None:
    before = session_of(zk, 1)
    ottla(cluster, "fault expire-session broker 1")
    eventually(lambda: session_of(zk, 1) not in (0, before), "it registers again", SOON_S)
    eventually(lambda: all_in_sync(zk), "nothing waits for ZooKeeper when it is killed", SOON_S)
    appends(client)
    ottla(cluster, "fault kill zookeeper")
    appends(client)
    ottla(cluster, "fault heal")
    eventually(lambda: len(zk.live_brokers()) == 3 and all_in_sync(zk), "all are back", SOON_S)
    appends(client)
