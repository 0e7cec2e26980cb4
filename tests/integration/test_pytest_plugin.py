"""The pytest plugin in real runs of pytest, which these tests start: what a test gets, and that nothing is left (RUN-4)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla import OttlaCluster, OttlaError
from tests.conftest import processes_below
from tests.support.invariants import eventually

pytest_plugins = ("pytester",)
pytestmark = pytest.mark.integration

REPOSITORY = Path(__file__).parents[2]
OPTIONS = ("-p", "ottla.pytest_plugin", "-p", "no:cacheprovider")

TESTS = """
import time, unittest
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tools.mine import GREETING

seen = {}

@pytest.fixture(scope="module")
def lasting(ottla_cluster):
    return ottla_cluster.create_topic("lasting")

def client(cluster, **settings):
    return {"bootstrap.servers": cluster.bootstrap_servers, "log_level": 2, **settings}

@pytest.mark.ottla_topic(partitions=2, configs={"retention.ms": 3600000})
def test_a_killed_leader(ottla_cluster, ottla_topic, ottla_verdict, lasting):
    settings = (ottla_cluster.directory / "broker-1" / "server.properties").read_text().splitlines()
    assert "broker.api.level=4" in settings
    assert GREETING == "a package of the project under test"
    verdict = ottla_verdict
    producer = verdict.watch(Producer(client(ottla_cluster, **{"enable.idempotence": True})))
    leader = ottla_cluster.leader_of(ottla_topic, 1)
    for number in range(200):
        if number == 100:
            producer.flush(30)
            ottla_cluster.kill(leader)
        producer.produce(ottla_topic, f"order {number}", partition=number % 2)
    assert producer.flush(30) == 0
    assert ottla_cluster.leader_of(ottla_topic, 1) != leader
    assert leader not in ottla_cluster.in_sync_replicas(ottla_topic, 1)
    consumer = Consumer(client(
        ottla_cluster, **{"group.id": "billing", "auto.offset.reset": "earliest", "on_commit": verdict.on_commit("billing")}
    ))
    consumer.subscribe([ottla_topic])
    for _ in range(200):
        message = consumer.poll(30)
        assert message.error() is None
        verdict.processed("billing", message)
    consumer.commit(asynchronous=False)
    ottla_cluster.coordinator_of("billing")
    consumer.close()
    result = verdict.check(finished=True)
    assert result.counts["acked"] == result.counts["consumed"] == 200
    seen.update(topic=ottla_topic, leader=leader, addresses=ottla_cluster.bootstrap_servers)

def test_the_next_test_finds_an_empty_cluster_that_is_well(ottla_cluster, lasting):
    from confluent_kafka.admin import AdminClient
    admin = AdminClient(client(ottla_cluster))
    topics = admin.list_topics(timeout=10).topics
    assert lasting in topics and seen["topic"] not in topics
    assert [group.group_id for group in admin.list_consumer_groups().result().valid] == []
    assert ottla_cluster.bootstrap_servers == seen["addresses"]
    assert ottla_cluster.fault(f"pause broker {seen['leader']}").broker == seen["leader"]  # it is paused until the end

def test_links_and_faults_that_end(ottla_cluster, ottla_topic, ottla_faults):
    with ottla_faults(f"isolate leader of {ottla_topic}-0 from peers") as fault:
        assert fault.broker == ottla_cluster.leader_of(ottla_topic)
    with ottla_faults(f"drop produce of topic {ottla_topic} and cut"):
        producer = Producer(client(ottla_cluster, **{"enable.idempotence": True}))
        producer.produce(ottla_topic, "order")
        assert producer.flush(2) == 1
    assert producer.flush(30) == 0  # the rule ends with the block
    with pytest.raises(Exception, match="has no broker 9"):
        ottla_faults("kill broker 9")
    killed = ottla_faults("kill controller for 200ms").broker
    deadline = time.monotonic() + 30
    while ottla_cluster.in_sync_replicas(ottla_topic) == () or killed not in ottla_cluster.in_sync_replicas(ottla_topic):
        assert time.monotonic() < deadline

class TestOld(unittest.TestCase):
    @pytest.fixture(autouse=True)
    def _cluster(self, ottla_cluster, ottla_topic):
        self.cluster, self.topic = ottla_cluster, ottla_topic

    def test_in_a_class_of_unittest(self):
        self.assertIn(self.cluster.leader_of(self.topic), self.cluster.broker_ids)
        self.cluster.restart(self.cluster.controller())

def test_a_reader_of_uncommitted_records(ottla_cluster, ottla_topic, ottla_verdict):
    source = f"{ottla_topic}-source"
    ottla_cluster.create_topic(source)
    orders = ottla_verdict.watch(Producer(client(ottla_cluster)))
    orders.produce(source, "order")
    assert orders.flush(30) == 0
    reading = {"auto.offset.reset": "earliest", "enable.auto.commit": False, "isolation.level": "read_uncommitted"}
    consumer = Consumer(client(ottla_cluster, **reading, **{"group.id": "billing"}))
    consumer.subscribe([source])
    message = consumer.poll(30)
    offsets = [TopicPartition(source, message.partition(), message.offset() + 1)]
    invoices = ottla_verdict.watch(Producer(client(ottla_cluster, **{"transactional.id": "billing"})))
    invoices.init_transactions(30)
    for end in (invoices.abort_transaction, invoices.commit_transaction):
        invoices.begin_transaction()
        ottla_verdict.processed("billing", message, txn=invoices.txn)
        invoices.produce(ottla_topic, "invoice")
        assert invoices.flush(30) == 0
        invoices.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 30)
        end(30)
    consumer.close()
    result = ottla_verdict.check(finished=True)
    assert (result.counts["committed-txn"], result.counts["aborted-txn"]) == (1, 1)
    reader = Consumer(client(ottla_cluster, **reading, **{"group.id": "post"}))
    reader.subscribe([ottla_topic])
    for _ in range(2):
        ottla_verdict.processed("post", reader.poll(30))
    reader.close()
    assert ottla_verdict.judge(finished=True).findings == {"aborted-read": 1}

def test_that_must_fail_because_a_record_is_lost(ottla_cluster, ottla_topic, ottla_verdict):
    producer = Producer(client(ottla_cluster))
    for number in range(3):
        producer.produce(ottla_topic, b"", key=f"order {number}", on_delivery=ottla_verdict.delivered)
    producer.flush(30)
    ottla_verdict.acked(ottla_topic, 0, 3, "order 3")
    ottla_cluster.stop(ottla_cluster.leader_of(ottla_topic))

def test_that_must_fail_because_nothing_was_reported(ottla_verdict):
    pass
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project under test, with a package of a name that ottla has, too. Clusters have their files in it."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("TMPDIR", str(pytester.mkdir("tmp")))
    monkeypatch.setenv("KAFKA_BROKER_ID", "77")  # of the user's program, and not for the brokers
    pytester.mkpydir("tools").joinpath("mine.py").write_text("GREETING = 'a package of the project under test'")
    return pytester


def test_a_run(project: pytest.Pytester) -> None:
    project.makepyfile(test_orders=TESTS)
    project.makeini(
        "[pytest]\nottla_links = true\nottla_api_level = 4\nottla_settings =\n    offsets.topic.num.partitions=4\n"
    )
    done = project.run(sys.executable, "-m", "pytest", *OPTIONS, "-v")
    done.assert_outcomes(passed=5, failed=2)
    done.stdout.fnmatch_lines(
        [
            "FAILED  1 lost",
            "*1 lost: acknowledged, but not in the log*",
            "*ottla timeline of this test*",
            "*SIGTERM*",
            "*nothing was reported, so nothing is judged*",
        ]
    )
    assert processes_below(project.path) == {}
    assert list(Path(os.environ["TMPDIR"]).glob("ottla-test-*")) == []


WAITING = """
import os, signal
def test_waits(ottla_cluster):
    os.write({fd}, str(ottla_cluster.directory).encode() + b"\\n")
    signal.pause()
"""


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGKILL,
        pytest.param(signal.SIGINT, marks=pytest.mark.thorough),
        pytest.param(signal.SIGTERM, marks=pytest.mark.thorough),
    ],
)
def test_nothing_is_left_when_a_run_is_ended(project: pytest.Pytester, number: signal.Signals) -> None:
    ours, theirs = os.pipe()
    project.makepyfile(test_waits=WAITING.format(fd=theirs))
    run = subprocess.Popen(
        [sys.executable, "-m", "pytest", *OPTIONS, "--ottla-brokers=1", "--capture=no"],
        cwd=project.path,
        pass_fds=[theirs],
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(theirs)
    with open(ours) as reports:
        directory = Path(reports.readline().strip())
    try:
        assert len(processes_below(directory)) == 2, "ZooKeeper and a broker"
        os.kill(run.pid, number)
        run.wait()
    finally:
        run.kill()
        run.wait()
    eventually(lambda: not processes_below(directory) and not directory.exists(), "all have ended, and no file is left")


@pytest.mark.thorough
def test_workers_of_xdist_have_a_cluster_each_and_a_crashed_one_leaves_nothing(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_workers="""
        import os, signal
        import pytest

        @pytest.mark.parametrize("number", range(4))
        def test_one(ottla_cluster, ottla_topic, number):
            assert "-gw" in ottla_topic
            ottla_cluster.kill(ottla_cluster.leader_of(ottla_topic))

        def test_crash(ottla_cluster):
            os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    done = project.run(sys.executable, "-m", "pytest", *OPTIONS, "-p", "xdist", "-n", "2", "--ottla-brokers=2", "-v")
    done.assert_outcomes(passed=4, failed=1)
    done.stdout.fnmatch_lines(["*worker * crashed while running *test_crash*"])
    eventually(lambda: not processes_below(project.path), "all have ended")
    assert list(Path(os.environ["TMPDIR"]).glob("ottla-test-*")) == []


@pytest.mark.thorough
def test_beside_asyncio(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_async="""
        import asyncio
        import pytest
        from aiokafka import AIOKafkaProducer

        @pytest.mark.asyncio
        async def test_orders(ottla_cluster, ottla_topic, ottla_verdict):
            async with AIOKafkaProducer(bootstrap_servers=ottla_cluster.bootstrap_servers, enable_idempotence=True) as producer:
                for number in range(50):
                    if number == 25:
                        leader = await asyncio.to_thread(ottla_cluster.leader_of, ottla_topic)
                        await asyncio.to_thread(ottla_cluster.kill, leader)
                    order = f"order {number}"
                    ottla_verdict.produced(ottla_topic, order)
                    place = await producer.send_and_wait(ottla_topic, key=order.encode())
                    ottla_verdict.acked(place.topic, place.partition, place.offset, order)
        """
    )
    done = project.run(sys.executable, "-m", "pytest", *OPTIONS, "-p", "pytest_asyncio.plugin", "-v")
    done.assert_outcomes(passed=1)


@pytest.fixture
def one_broker(tmp_path: Path) -> Iterator[OttlaCluster]:
    cluster = OttlaCluster(1, settings={"auto.create.topics.enable": False, "num.partition": 3}, keep=tmp_path / "kept")
    with pytest.warns(UserWarning, match="unknown setting 'num.partition'"):
        cluster.start()
    with contextlib.closing(cluster):
        yield cluster


def test_without_pytest(one_broker: OttlaCluster, tmp_path: Path) -> None:
    """A broker keeps its port and data, a fork does no harm, and the logs can be kept."""
    cluster = one_broker
    address = cluster.address(1)
    cluster.create_topic("orders", partitions=2)
    cluster.kill(1)
    cluster.restart(1)
    assert (cluster.address(1), cluster.leader_of("orders", 1), cluster.controller()) == (address, 1, 1)
    with pytest.raises(OttlaError, match="no links to cut: start it with links=True"):
        cluster.isolate(1)
    with pytest.raises(OttlaError, match="is in use by a running cluster"):
        OttlaCluster(1, keep=cluster.directory).start()
    child = os.fork()
    if child == 0:
        try:
            cluster.controller()
        except OttlaError:
            cluster.close()
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert cluster.clear() == []
    with pytest.raises(OttlaError, match="does not exist"):
        cluster.delete_topic("orders")
    cluster.close()
    with pytest.raises(OttlaError, match="is not started"):
        cluster.controller()
    assert processes_below(tmp_path) == {}
    assert (tmp_path / "kept" / "broker-1" / "events.jsonl").exists()
    with pytest.warns(UserWarning, match="num.partition"):
        cluster.start()  # again, in the same directory
    assert cluster.controller() == 1
