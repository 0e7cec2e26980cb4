"""Consumers that read from the closest replica (KIP-392): who serves them, and what they see when it or the leader dies.

Brokers 1, 2 and 3 are in the racks a, b and c. Broker 1 leads. The brokers' metrics say who sent records to consumers.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from broker.settings.config import RACK_AWARE_SELECTOR
from tests.support.invariants import eventually, metadata_of
from tests.support.metrics_page import Page, text_of
from tests.support.real_kafka import java_command, skip_without_kafka
from tests.support.topics import new_topic
from tools.cluster.local_cluster import LocalCluster

pytestmark = pytest.mark.integration
RACKS = ("a", "b", "c")
SERVED = "kafka_server_brokertopicmetrics_bytesout_total"
BATCH = 100


@pytest.fixture(scope="module")
def cluster(new_module_cluster: Callable[..., LocalCluster]) -> LocalCluster:
    return new_module_cluster(
        brokers=3,
        overrides={"replica.selector.class": RACK_AWARE_SELECTOR},
        own_properties=lambda broker, _: {"broker.rack": RACKS[broker - 1]},
    )


@pytest.fixture
def topic(cluster: LocalCluster) -> Iterator[str]:
    """One partition that broker 1 leads. Afterwards all brokers run again."""
    name = new_topic(cluster.bootstrap_servers, assignment=[[1, 2, 3]], min_insync_replicas="2")
    wait_for_isr(cluster, name)
    yield name
    for broker in cluster.broker_ids:
        if cluster.pid(broker) is None:
            cluster.start_broker(broker)
    cluster.wait_ready()


def wait_for_isr(cluster: LocalCluster, topic: str) -> None:
    def is_whole(broker: int) -> bool:
        _, _, partitions = metadata_of(cluster, topic, broker)
        return 0 in partitions and partitions[0][3] == (1, 2, 3)

    for broker in cluster.broker_ids:
        eventually(lambda broker=broker: is_whole(broker), "all replicas are in sync")


def served_by(cluster: LocalCluster, topic: str, broker: int) -> float:
    """Bytes of the topic that this broker has sent to consumers."""
    return Page(text_of(cluster, broker)).sum(SERVED, topic=topic)


class Reader:
    """A consumer in a rack, which reads the partition from its start, in a thread. `values` grows."""

    def __init__(self) -> None:
        self.values: list[str] = []
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def wait_for(self, count: int) -> None:
        eventually(lambda: len(self.values) >= count, f"{count} records are read")

    def close(self) -> None:
        self._thread.join(30)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        raise NotImplementedError


class LibrdkafkaReader(Reader):
    def __init__(self, cluster: LocalCluster, topic: str, rack: str, isolation: str = "read_uncommitted") -> None:
        super().__init__()
        self._is_closing = False
        settings = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "none", "enable.auto.commit": False}
        self._consumer = Consumer(settings | {"client.rack": rack, "isolation.level": isolation, "log_level": 2})
        self._consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        self.start()

    def close(self) -> None:
        self._is_closing = True
        super().close()
        self._consumer.close()

    def _run(self) -> None:
        while not self._is_closing:
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.values.append(message.value().decode())


class JavaReader(Reader):
    def __init__(self, cluster: LocalCluster, topic: str, rack: str, isolation: str = "read_uncommitted") -> None:
        super().__init__()
        place = ("--bootstrap-server", cluster.bootstrap_servers, "--topic", topic, "--partition", "0")
        self._process = subprocess.Popen(
            java_command(
                "org.apache.kafka.tools.consumer.ConsoleConsumer",
                *place,
                *("--offset", "earliest", "--isolation-level", isolation, "--consumer-property", f"client.rack={rack}"),
                logs="silent",
            ),
            stdout=subprocess.PIPE,
            text=True,
        )
        self.start()

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        super().close()

    def _run(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self.values.append(line.rstrip("\n"))


class Writer:
    """Writes numbers, each acknowledged by all replicas in sync."""

    def __init__(self, cluster: LocalCluster, topic: str) -> None:
        self._topic = topic
        self._producer = Producer(
            {"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True, "log_level": 2}
        )
        self.values: list[str] = []

    def write(self, count: int = BATCH) -> None:
        errors: list[object] = []
        for number in range(len(self.values), len(self.values) + count):
            self.values.append(str(number))
            self._producer.produce(
                self._topic, str(number), partition=0, on_delivery=lambda error, _: errors.append(error)
            )
        assert self._producer.flush(60) == 0
        assert errors == [None] * count


READERS = [LibrdkafkaReader, pytest.param(JavaReader, marks=pytest.mark.kafka)]


@pytest.fixture
def reader_in(cluster: LocalCluster, topic: str) -> Iterator[Callable[..., Reader]]:
    """`reader_in(rack, kind)` starts a reader of the topic, which is closed at the end."""
    made: list[Reader] = []

    def start(rack: str, kind: Callable[..., Reader], isolation: str = "read_uncommitted") -> Reader:
        if kind is JavaReader:
            skip_without_kafka()
        made.append(kind(cluster, topic, rack, isolation))
        return made[-1]

    yield start
    for reader in made:
        reader.close()


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize(("rack", "server"), [("a", 1), ("b", 2), ("c", 3), ("d", 1)])
def test_a_consumer_reads_from_the_replica_in_its_rack(
    cluster: LocalCluster,
    topic: str,
    reader_in: Callable[..., Reader],
    kind: Callable[..., Reader],
    rack: str,
    server: int,
) -> None:
    """All of it: the records that are there, and those that arrive while it waits."""
    writer = Writer(cluster, topic)
    writer.write()
    reader = reader_in(rack, kind)
    reader.wait_for(BATCH)
    for _ in range(5):
        writer.write(1)
        reader.wait_for(len(writer.values))
    assert reader.values == writer.values
    assert {broker for broker in cluster.broker_ids if served_by(cluster, topic, broker)} == {server}


@pytest.mark.parametrize("kind", READERS)
def test_the_follower_that_serves_a_consumer_dies(
    cluster: LocalCluster, topic: str, reader_in: Callable[..., Reader], kind: Callable[..., Reader]
) -> None:
    """The consumer continues at the leader: it misses nothing, and sees nothing twice."""
    writer = Writer(cluster, topic)
    writer.write()
    reader = reader_in("b", kind)
    reader.wait_for(BATCH)
    assert served_by(cluster, topic, 1) == 0
    assert served_by(cluster, topic, 2) > 0
    cluster.kill(2)
    writer.write()
    reader.wait_for(2 * BATCH)
    assert served_by(cluster, topic, 1) > 0
    cluster.restart_broker(2)
    wait_for_isr(cluster, topic)
    writer.write()
    reader.wait_for(3 * BATCH)
    assert reader.values == writer.values


@pytest.mark.parametrize("kind", READERS)
def test_the_leader_dies_while_a_follower_serves_a_consumer(
    cluster: LocalCluster, topic: str, reader_in: Callable[..., Reader], kind: Callable[..., Reader]
) -> None:
    """Broker 2 leads after it. REP-7: what broker 3 had sent is not taken back."""
    writer = Writer(cluster, topic)
    writer.write()
    reader = reader_in("c", kind)
    reader.wait_for(BATCH)
    assert [served_by(cluster, topic, broker) for broker in (1, 2)] == [0, 0]
    cluster.kill(1)
    writer.write()
    reader.wait_for(2 * BATCH)
    assert reader.values == writer.values


@pytest.mark.parametrize("kind", READERS)
def test_a_reader_of_committed_records_at_a_follower(
    cluster: LocalCluster, topic: str, reader_in: Callable[..., Reader], kind: Callable[..., Reader]
) -> None:
    """It leaves out aborted transactions, and gets those that end while it waits."""
    reader = reader_in("b", kind, "read_committed")
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": topic, "log_level": 2})
    producer.init_transactions(30)
    committed = []
    for number in range(6):
        producer.begin_transaction()
        for part in range(3):
            producer.produce(topic, f"{number}-{part}", partition=0)
        producer.flush(30)
        if number % 2:
            producer.abort_transaction(30)
            continue
        producer.commit_transaction(30)
        committed += [f"{number}-{part}" for part in range(3)]
        reader.wait_for(len(committed))
    assert reader.values == committed
    assert served_by(cluster, topic, 2) > 0
    assert served_by(cluster, topic, 1) == 0
