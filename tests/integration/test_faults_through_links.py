"""`ottla links` before a cluster: clients never go around it, feel each rule, and follow a leader that is killed (docs/FAULTS.md)."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from tests.conftest import ClusterFactory
from tests.support.cli import COMMAND, ottla
from tests.support.invariants import eventually
from tests.support.links import links_before
from tests.support.request_faults import READS, WRITES
from tests.support.topics import new_topic
from tests.support.verified import ORDERS
from tools.cluster.local_cluster import LocalCluster
from tools.cluster.ports import free_ports
from tools.faults.proxied import ProxiedCluster
from tools.faults.request_hits import request_hits
from tools.faults.roles import Roles

pytestmark = pytest.mark.integration
COUNT = 20
VALUES = {f"value {number}" for number in range(COUNT)}
OF_MEMBERS = (
    *READS,
    "garble the answer to fetch of topic {topic} once",
    "answer join-group with REBALANCE_IN_PROGRESS once",
)
"""Also felt by the members of a group."""


@pytest.fixture(scope="module")
def cluster(new_module_cluster: ClusterFactory) -> LocalCluster:
    return new_module_cluster(brokers=3, overrides={"offsets.topic.num.partitions": "1"})


@pytest.fixture(scope="module")
def links(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with links_before(cluster.bootstrap_servers, tmp_path_factory.mktemp("links")) as directory:
        yield directory


@pytest.fixture
def servers(links: Path) -> str:
    return ProxiedCluster(links).bootstrap_servers


def fault(links: Path, line: str) -> str:
    """The output of `ottla fault ... --links`, which must succeed."""
    done = ottla(f"fault {line} --links {links}")
    assert done.exit_code == 0, done.output
    return done.output


def written(servers: str, topic: str) -> None:
    """Produces VALUES through the links; each arrives once."""
    errors: list[object] = []
    settings = {"bootstrap.servers": servers, "enable.idempotence": True, "socket.timeout.ms": 3000, "linger.ms": 0}
    producer = Producer({**settings, "message.timeout.ms": 60_000})
    for value in sorted(VALUES):
        producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error) if error else None)
        producer.poll(0)
    assert producer.flush(60) == 0
    assert not errors


def read(servers: str, topic: str, group: str = "") -> list[str]:
    """COUNT values, or more if there are more, as a member of a group."""
    found: list[str] = []
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group or f"group-{uuid.uuid4().hex[:8]}",
            "auto.offset.reset": "earliest",
            "check.crcs": True,
            "socket.timeout.ms": 3000,
        }
    )
    try:
        consumer.subscribe([topic])

        def all_are_there() -> bool:
            while (message := consumer.poll(0.2)) is not None:
                if not message.error():
                    found.append(message.value().decode())
            return len(found) >= COUNT

        eventually(all_are_there, "the records are read", timeout_s=60)
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return found


def test_clients_are_told_of_no_way_around(cluster: LocalCluster, servers: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    told = admin.list_topics(timeout=30).brokers
    assert sorted(told) == sorted(cluster.broker_ids)
    real = {cluster.address(broker).rpartition(":")[2] for broker in cluster.broker_ids}
    assert not real & {str(broker.port) for broker in told.values()}
    cluster_told = admin.describe_cluster(request_timeout=30).result()
    assert {node.port for node in cluster_told.nodes} == {broker.port for broker in told.values()}


@pytest.mark.parametrize("line", WRITES)
def test_a_producer_feels_a_rule_and_loses_nothing(links: Path, servers: str, line: str) -> None:
    topic = new_topic(servers, replicas=3)
    rule = line.format(topic=topic)
    fault(links, rule)
    try:
        written(servers, topic)
        (name,) = {row.said for row in _noted(links)}
        assert request_hits(links)[name] > 0
    finally:
        fault(links, "heal")
    assert sorted(read(servers, topic)) == sorted(VALUES)


@pytest.mark.parametrize("line", OF_MEMBERS)
def test_a_member_of_a_group_feels_a_rule_and_reads_all(links: Path, servers: str, line: str) -> None:
    topic = new_topic(servers)
    written(servers, topic)
    fault(links, line.format(topic=topic))
    try:
        assert set(read(servers, topic)) == VALUES
        (name,) = {row.said for row in _noted(links)}
        assert request_hits(links)[name] > 0
    finally:
        fault(links, "heal")


def _noted(links: Path) -> list[object]:
    from tools.faults.record import FaultRecord

    return list(FaultRecord(ProxiedCluster(links).record_file).all())


def test_clients_follow_a_leader_that_is_killed(cluster: LocalCluster, links: Path, servers: str) -> None:
    topic = new_topic(servers, assignment=[[1, 2, 3]])
    fault(links, f"answer produce of topic {topic} with NOT_ENOUGH_REPLICAS once at leader of {topic}-0")
    cluster.kill(1)
    try:
        eventually(lambda: Roles(ProxiedCluster(links)).leader(topic, 0) in (2, 3), "another leader")
        written(servers, topic)
        assert sorted(read(servers, topic)) == sorted(VALUES)
    finally:
        cluster.start_broker(1)
        fault(links, "heal")
    cluster.wait_ready()


def test_what_cannot_be_is_one_line(links: Path, cluster: LocalCluster, tmp_path: Path) -> None:
    for line, said in (
        ("kill broker 1", "links reach requests, and no processes"),
        ("drop heartbeat of principal alice", "the links do not know principals"),
        ("drop heartbeat at broker 9", "the cluster has no broker 9"),
        ("answer produce with NO_SUCH_ERROR", "produce cannot give NO_SUCH_ERROR"),
    ):
        done = ottla(f"fault {line} --links {links}")
        assert done.exit_code == 1, done.output
        (text,) = done.output.splitlines()
        assert said in text
    done = ottla(f"fault drop heartbeat --links {tmp_path}")
    assert "no links run in" in done.output
    (closed,) = free_ports(1)
    for arguments, said in (
        (f"--bootstrap-server {cluster.bootstrap_servers} --dir {links}", "other links run in"),
        (f"--bootstrap-server 127.0.0.1:{closed} --dir {tmp_path / 'a'}", "no broker answers"),
        (
            f"--bootstrap-server {cluster.bootstrap_servers} --dir {tmp_path / 'b'} --listen {cluster.address(1)}",
            "choose another address",
        ),
    ):
        ended = subprocess.run(
            [*COMMAND, "links", *arguments.split()], capture_output=True, text=True, timeout=60, check=False
        )
        assert ended.returncode == 1
        (text,) = ended.stderr.splitlines()
        assert said in text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_links_end_cleanly_and_their_rules_with_them(
    cluster: LocalCluster, tmp_path: Path, number: signal.Signals
) -> None:
    with links_before(cluster.bootstrap_servers, tmp_path / "links", number) as directory:
        fault(directory, "drop heartbeat once")
        assert list(directory.glob("claims-*"))
    assert not list(directory.glob("claims-*"))
    assert not (directory / "links.json").exists()
    with links_before(cluster.bootstrap_servers, tmp_path / "links") as directory:
        assert not _noted(directory)


@pytest.mark.thorough
def test_clients_behind_the_links_are_judged(links: Path) -> None:
    line = "answer produce with NOT_LEADER_OR_FOLLOWER 3 times"
    before = request_hits(links)[line]
    arguments = ["--links", str(links), "--fault", f"{line} at 1s", "--seconds", "5"]
    done = subprocess.run(
        [*COMMAND, "verify", "run", *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASSED" in done.stdout
    assert request_hits(links)[line] == before + 3


RECIPES = ("leader-moved", "lost-ack", "lost-commit")


@pytest.mark.thorough
def test_recipes_behind_the_links(links: Path, tmp_path: Path) -> None:
    """What needs a killed broker is left out, and the card says so; the next recipe uses the same topic."""
    file = tmp_path / "card.json"
    done = subprocess.run(recipes(links, "--json", str(file)), capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "leader-moved           -          -          -  not tried: links reach requests, and no pro" in done.stdout
    found = json.loads(file.read_text())["recipes"]
    assert [each["result"] for each in found] == ["not tried", "passed", "passed"]
    assert [each["hits"] for each in found] == [None, 3, 2]


@pytest.mark.thorough
def test_after_an_interrupt_no_other_recipe_begins(links: Path) -> None:
    with subprocess.Popen(recipes(links), stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        guard = threading.Timer(120, process.kill)
        guard.start()
        output = ""
        for line in process.stdout:
            output += line
            if line.startswith("Started:"):
                process.send_signal(signal.SIGINT)
        assert process.wait() == 2, output
        guard.cancel()
    *_, interrupted, later = output.splitlines()
    assert "lost-ack" in interrupted
    assert "  incomplete: " in interrupted
    assert later.split(None, 4)[0::4] == ["lost-commit", "not tried: the run was interrupted before"]
    assert output.count("Started:") == 1


def recipes(links: Path, *options: str) -> list[str]:
    """`ottla verify run` with these recipes of the example in Python."""
    named = [text for recipe in RECIPES for text in ("--recipe", recipe)]
    return [*COMMAND, "verify", "run", "--links", str(links), "--topic", "orders:6", *named, *options, "--", *ORDERS]
