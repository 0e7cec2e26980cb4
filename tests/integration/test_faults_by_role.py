"""`ottla fault` on a real cluster with links: each action is felt by clients or in ZooKeeper, and its undo heals (FAU-1, FAU-2).

FLT-1, 2, 5, 9 to 15, 17 to 20, 23 and 28, without root except for the small disk.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import signal
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.errors import ErrorCode
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.record_batch import build_batch
from tests.support.background_load import BackgroundProducer, under_load
from tests.support.cli import COMMAND, ottla
from tests.support.faulty_disks import small_volume, why_no_mounts
from tests.support.invariants import ZooKeeperView, assert_healed, eventually
from tests.support.thorough import thorough
from tests.support.topics import new_topic, produce_body
from tests.support.wire import Wire
from tools.cluster.local_cluster import LocalCluster
from tools.faults.faults import heal
from tools.faults.processes import ProcessCluster

pytestmark = pytest.mark.integration

SETTINGS = {
    "zookeeper.session.timeout.ms": "2000",
    "replica.lag.time.max.ms": "3000",
    "replica.socket.timeout.ms": "1500",
    "controller.socket.timeout.ms": "1500",
    "auto.leader.rebalance.enable": "false",
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "1",
}
BROKERS = (1, 2, 3)
SMALL_DISK = 3
FEW = 200
TIMEOUT_S = 90


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three brokers with links; as root, broker 3 has a small disk."""
    running = LocalCluster(tmp_path_factory.mktemp("faults") / "cluster")
    with contextlib.ExitStack() as stack:
        running.create(brokers=3, overrides=SETTINGS, links=True)
        if why_no_mounts(running.directory) is None:
            (data,) = running.log_directories(SMALL_DISK)
            stack.enter_context(small_volume(data, size_bytes=64 << 20))
        stack.callback(running.destroy)
        running.start()
        yield running


@pytest.fixture
def topic(cluster: LocalCluster, zk: ZooKeeperView) -> Iterator[str]:
    """Broker n leads partition n - 1. Every test starts, and leaves the cluster, healed."""
    eventually(lambda: zk.live_brokers() == list(BROKERS), "all brokers live before the test")
    yield new_topic(cluster.bootstrap_servers, assignment=[[1, 2, 3], [2, 3, 1], [3, 1, 2]])
    heal(ProcessCluster(cluster))


def fault(cluster: LocalCluster, line: str) -> str:
    """The output of `ottla fault ...`, which must succeed."""
    done = ottla(f"fault {line} --dir {cluster.directory}")
    assert done.exit_code == 0, done.output
    return done.output


def refused(cluster: LocalCluster, line: str) -> str:
    """The one line of `ottla fault ...`, which must fail."""
    done = ottla(f"fault {line} --dir {cluster.directory}")
    assert done.exit_code == 1, done.output
    (said,) = done.output.splitlines()
    return said


def produced(cluster: LocalCluster, topic: str, broker: int, partition: int | None = None) -> ErrorCode:
    """The answer of that broker to one more record, with acks=all; without a partition, for the one that it led at first."""
    value = bytes(
        ord("a") + byte % 26 for byte in uuid.uuid4().bytes
    )  # without digits, which number the load's records
    with Wire(cluster.port(broker)) as wire:
        partitions = [broker - 1 if partition is None else partition]
        body = produce_body(topic, build_batch([(None, value, [], 0)]), partitions=partitions)
        answer = wire.call(ApiKey.PRODUCE, 9, body)
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


def known_topics(cluster: LocalCluster, broker: int) -> set[str]:
    with Wire(cluster.port(broker)) as wire:
        answer = wire.call(ApiKey.METADATA, 9, {"topics": None, "allow_auto_topic_creation": False})
    return {topic.name for topic in answer.topics}


def another_than_the_controller(zk: ZooKeeperView) -> int:
    return next(broker for broker in BROKERS if broker != zk.controller())


@contextlib.contextmanager
def load(cluster: LocalCluster, zk: ZooKeeperView, topic: str) -> Iterator[BackgroundProducer]:
    with under_load(cluster, zk, topic, len(BROKERS), few=FEW, idempotent=True) as producer:
        yield producer


@pytest.mark.parametrize("verb", ["kill", thorough("stop"), thorough("pause")])
def test_a_process_fault_lasts_until_heal(cluster: LocalCluster, zk: ZooKeeperView, topic: str, verb: str) -> None:
    """FLT-1, FLT-2, FLT-6: the leader is found by its role, another leads meanwhile, and `heal` by the role finds who it was."""
    with load(cluster, zk, topic) as producer:
        assert f"{verb} leader of {topic}-1: broker 2, which leads {topic}-1" in fault(
            cluster, f"{verb} leader {topic}-1"
        )
        eventually(lambda: zk.state(topic, 1).leader not in (2, -1), "another leads")
        assert cluster.is_paused(2) if verb == "pause" else cluster.pid(2) is None
        producer.wait_for_acks(FEW)
        fault(cluster, f"heal leader of {topic}-1")
        assert cluster.pid(2) is not None
        assert not cluster.is_paused(2)
        eventually(lambda: 2 in zk.live_brokers(), "it is back")


@pytest.mark.parametrize(("verb", "is_new"), [("bounce", True), thorough("restart", True), ("resume", False)])
def test_faults_without_an_end(cluster: LocalCluster, zk: ZooKeeperView, topic: str, verb: str, is_new: bool) -> None:
    """FLT-23; a restart is clean."""
    with load(cluster, zk, topic):
        before = cluster.pid(1)
        assert f"{verb} broker 1: broker 1" in fault(cluster, f"{verb} broker 1")
        assert (cluster.pid(1) != before) is is_new


@pytest.mark.thorough
def test_an_expired_session(cluster: LocalCluster, zk: ZooKeeperView, topic: str) -> None:
    """FLT-20: the controller resigns, and everybody registers again."""
    with load(cluster, zk, topic):
        epoch, controller = zk.controller_epoch(), zk.controller()
        assert f"expire-session controller: broker {controller}" in fault(cluster, "expire-session controller")
        eventually(lambda: zk.controller_epoch() > epoch, "another term of office")
        eventually(lambda: zk.live_brokers() == list(BROKERS), "it has registered again")


def test_isolated_from_its_peers(cluster: LocalCluster, zk: ZooKeeperView, topic: str) -> None:
    """FLT-9, INV-17: the leader's ISR shrinks to itself, and nothing is acknowledged below min.insync.replicas."""
    leader = another_than_the_controller(zk)
    with load(cluster, zk, topic):
        fault(cluster, f"isolate broker {leader} --from peers")
        eventually(lambda: zk.state(topic, leader - 1).isr == (leader,), "the leader is alone in the ISR")
        assert leader in zk.live_brokers(), "its session is alive"
        refusals = (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        assert produced(cluster, topic, leader) in refusals
        for other in set(BROKERS) - {leader}:
            eventually(lambda o=other: leader not in zk.state(topic, o - 1).isr, "the others go on without it")
            assert produced(cluster, topic, other) is ErrorCode.NONE
        fault(cluster, "heal")
    peers = " and ".join(str(broker) for broker in BROKERS if broker != leader)
    story = ottla(f"timeline --dir {cluster.directory} --all").output
    assert f"cut the links of broker {leader} to brokers {peers}. Broker {leader} leads " in story
    assert f"heal broker {leader}: join all its broken links" in story


@pytest.mark.thorough
def test_isolated_from_everybody(cluster: LocalCluster, zk: ZooKeeperView, topic: str) -> None:
    """FLT-10 with FLT-9: its session expires, others lead, and it acknowledges nothing."""
    with load(cluster, zk, topic) as producer:
        assert f"isolate leader of {topic}-2 from peers,zookeeper: broker 3" in fault(
            cluster, f"isolate leader {topic}-2"
        )
        eventually(lambda: 3 not in zk.live_brokers(), "its session has expired")
        eventually(lambda: zk.state(topic, 2).leader not in (3, -1), "another leads")
        assert produced(cluster, topic, 3) is not ErrorCode.NONE
        producer.wait_for_acks(FEW)
        fault(cluster, f"heal leader {topic}-2")
        eventually(lambda: 3 in zk.live_brokers(), "it has registered again")


def test_cut_from_zookeeper(cluster: LocalCluster, zk: ZooKeeperView, topic: str) -> None:
    """FLT-10: the session expires and others lead; back on its link it registers again."""
    leader = another_than_the_controller(zk)
    with load(cluster, zk, topic) as producer:
        before = zk.state(topic, leader - 1)
        fault(cluster, f"cut broker {leader} --from zookeeper")
        eventually(lambda: leader not in zk.live_brokers(), "its session has expired")
        eventually(lambda: zk.state(topic, leader - 1).leader not in (leader, -1), "another leads")
        after = zk.state(topic, leader - 1)
        assert after.leader_epoch > before.leader_epoch
        # Until its followers have heard of that, they copy from it, and what they have copied may be acknowledged.
        eventually(lambda: produced(cluster, topic, after.leader, leader - 1) is ErrorCode.NONE, "it serves")
        assert produced(cluster, topic, leader) is not ErrorCode.NONE, "it may take records, and acknowledges none"
        producer.wait_for_acks(FEW)
        fault(cluster, f"heal broker {leader}")
        eventually(lambda: leader in zk.live_brokers(), "it has registered again")


def test_cut_from_the_controller(cluster: LocalCluster, zk: ZooKeeperView, topic: str) -> None:
    """FLT-11, CTL-15: control requests wait, and arrive in order; the broker leads on meanwhile."""
    broker, controller = another_than_the_controller(zk), zk.controller()
    assert controller is not None
    with load(cluster, zk, topic) as producer:
        fault(cluster, f"cut broker {broker} --from controller")
        made = [new_topic(cluster.address(controller), assignment=[[controller, broker]]) for _ in range(2)]
        producer.wait_for_acks(FEW)
        assert not set(made) & known_topics(cluster, broker)
        assert broker in zk.live_brokers()
        assert zk.state(topic, broker - 1).leader == broker
        fault(cluster, "heal")
        eventually(lambda: set(made) <= known_topics(cluster, broker), "it has heard of the topics")
    for name in made:
        assert_healed(cluster, zk, name)


@pytest.mark.parametrize("direction", ["in", thorough("out")])
def test_a_one_way_cut(cluster: LocalCluster, zk: ZooKeeperView, topic: str, direction: str) -> None:
    """FLT-12: as if it were cut both ways, and the ISR does not flap."""
    leader = another_than_the_controller(zk)
    follower = next(broker for broker in BROKERS if broker not in (leader, zk.controller()))
    with load(cluster, zk, topic) as producer:
        before = zk.state(topic, leader - 1)
        fault(cluster, f"cut broker {follower} --from broker:{leader} --one-way {direction}")
        eventually(lambda: follower not in zk.state(topic, leader - 1).isr, "it has left the ISR")
        producer.wait_for_acks(FEW)
        after = zk.state(topic, leader - 1)
        assert (after.leader, after.zk_version) == (leader, before.zk_version + 1), "one write: it did not come and go"
        fault(cluster, f"heal broker {follower}")


def miss_each_other(zk: ZooKeeperView, topic: str, one: int, other: int) -> bool:
    """One of them has left the ISR of what the other led, or another leads it."""
    states = zk.states(topic)
    return any(states[a - 1].leader != a or b not in states[a - 1].isr for a, b in ((one, other), (other, one)))


@pytest.mark.thorough
def test_a_ring_of_majorities(cluster: LocalCluster, zk: ZooKeeperView, topic: str) -> None:
    """FLT-13: each of two brokers sees the third one only; at most one leader per epoch, and acknowledged records stay."""
    with load(cluster, zk, topic) as producer:
        fault(cluster, "cut broker 1 --from broker:3")
        eventually(lambda: 3 not in zk.state(topic, 0).isr and 1 not in zk.state(topic, 2).isr, "they miss each other")
        assert set(zk.state(topic, 1).isr) == {1, 2, 3}, "2 sees both"
        producer.wait_for_acks(FEW)
        fault(cluster, "heal")


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [1, 2])
def test_links_go_one_by_one_and_come_back_in_another_order(
    cluster: LocalCluster, zk: ZooKeeperView, topic: str, seed: int
) -> None:
    """FLT-14: it converges."""
    order = random.Random(seed)
    pairs = list(itertools.combinations(BROKERS, 2))
    with load(cluster, zk, topic) as producer:
        order.shuffle(pairs)
        for one, other in pairs:
            fault(cluster, f"cut broker {one} --from broker:{other}")
            eventually(lambda a=one, b=other: miss_each_other(zk, topic, a, b), f"{one} and {other} miss each other")
        assert cluster.links is not None
        rules = cluster.links.rules()
        for rule in order.sample(rules, len(rules)):
            cluster.links.remove([rule.id])
        producer.wait_for_acks(FEW)
        fault(cluster, "heal")


@pytest.mark.thorough
@pytest.mark.parametrize("whom", ["controller and broker", "leader and follower"])
def test_a_storm_of_resets(cluster: LocalCluster, zk: ZooKeeperView, topic: str, whom: str) -> None:
    """FLT-15: connections between two brokers that live are reset, new ones too. Nothing is lost, and it ends with the storm."""
    others = [broker for broker in BROKERS if broker != zk.controller()]
    one, other = (zk.controller(), others[0]) if whom == "controller and broker" else others
    assert one is not None
    with load(cluster, zk, topic) as producer:
        fault(cluster, f"cut broker {one} --from broker:{other} --reset")
        eventually(lambda: miss_each_other(zk, topic, one, other), "they miss each other")
        if whom == "leader and follower":
            producer.wait_for_acks(FEW)
        fault(cluster, "heal")


@pytest.mark.thorough
def test_slow_links(cluster: LocalCluster, zk: ZooKeeperView, topic: str) -> None:
    """FLT-17: the ISR is stable."""
    with load(cluster, zk, topic) as producer:
        before = zk.states(topic)
        fault(cluster, "cut broker 2 --from peers --delay 100ms --throttle 3Mbit")
        producer.wait_for_acks(FEW)
        assert zk.states(topic) == before
        fault(cluster, "heal")


@pytest.mark.parametrize("how", ["reset", thorough("half")])
@pytest.mark.parametrize("links", ["broker 2 --from peers", thorough("controller --from zookeeper")])
def test_broken_connections(cluster: LocalCluster, zk: ZooKeeperView, topic: str, links: str, how: str) -> None:
    """FLT-15, FLT-18, FLT-19: no duplicates, no stuck fetcher; what ZooKeeper has applied is found out."""
    with load(cluster, zk, topic) as producer:
        fault(cluster, f"cut {links} --{how} --for 1s")
        producer.wait_for_acks(FEW)


@pytest.mark.thorough
def test_an_isolated_zookeeper(cluster: LocalCluster, zk: ZooKeeperView, topic: str) -> None:
    """FLT-21, CTL-14: no broker reaches ZooKeeper, and produce goes on. What was missed meanwhile is handled afterwards."""
    with load(cluster, zk, topic) as producer:
        fault(cluster, "isolate zookeeper")
        producer.wait_for_acks(FEW)
        fault(cluster, "kill broker 2")
        fault(cluster, "heal zookeeper")
        eventually(lambda: zk.state(topic, 1).leader not in (2, -1), "another leads")
        fault(cluster, "heal")


@pytest.mark.thorough
def test_a_full_disk(cluster: LocalCluster, zk: ZooKeeperView, topic: str) -> None:
    """FLT-28: the leaders move, nothing is lost, and after the heal the replicas are back."""
    reason = why_no_mounts(cluster.directory)
    if reason is not None:
        pytest.skip(reason)
    assert "fill-disk fills only file systems of at most 1 GiB" in refused(cluster, "fill-disk broker 1")
    with load(cluster, zk, topic) as producer:
        fault(cluster, f"fill-disk leader {topic}-2")
        eventually(lambda: zk.state(topic, 2).leader not in (SMALL_DISK, -1), "another leads")
        producer.wait_for_acks(FEW)
        fault(cluster, "heal")


@pytest.mark.parametrize("how", [thorough(signal.SIGINT), thorough(signal.SIGTERM), signal.SIGKILL])
def test_a_run_that_is_ended_leaves_no_fault(
    cluster: LocalCluster, zk: ZooKeeperView, topic: str, tmp_path: Path, how: signal.Signals
) -> None:
    """After Ctrl-C and SIGTERM it heals; after SIGKILL the next `ottla fault heal` does, from the record in the run directory."""
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(
        f"faults:\n- pause broker 1 at 0s\n- isolate broker 2 from peers at 0s\n- kill leader of {topic}-2 for 50s at 0s\n"
    )
    record = cluster.directory / "unhealed.json"
    with load(cluster, zk, topic):
        command = [*COMMAND, "fault", "run", str(scenario), "--dir", str(cluster.directory)]
        run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            eventually(
                lambda: cluster.pid(3) is None or run.poll() is not None, "the last fault was carried out", TIMEOUT_S
            )
            assert cluster.is_paused(1)
            assert cluster.links is not None
            assert [rule.of for rule in cluster.links.rules()] == ["2"]
            assert record.exists()
            run.send_signal(how)
            said, _ = run.communicate(timeout=TIMEOUT_S)
        finally:
            run.kill()
            run.wait()
        if how is signal.SIGKILL:
            assert cluster.is_paused(1)
            assert record.exists()
            fault(cluster, "heal")
        else:
            assert run.returncode == 130, said
            assert "Traceback" not in said
        assert not record.exists()
        assert not cluster.is_paused(1)
        assert cluster.pid(3) is not None
        assert cluster.links.rules() == []


@pytest.mark.thorough
def test_links_that_died_are_started_by_heal(cluster: LocalCluster, zk: ZooKeeperView, topic: str) -> None:
    with load(cluster, zk, topic):
        assert cluster.links_process is not None
        cluster.links_process.kill()
        assert "do not answer" in refused(cluster, "isolate broker 1")
        fault(cluster, "heal")


def test_a_cluster_that_is_stopped_is_not_started_by_a_heal(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path)
    cluster.create(brokers=1)
    for line in ("heal", "kill broker 1", "run --random"):
        assert "is not running; `ottla cluster start` starts it" in refused(cluster, line)
    for verb in ("isolate", "cut"):
        assert "`ottla cluster start --links`" in ProcessCluster(cluster).impossible[verb]
    cluster.destroy()
