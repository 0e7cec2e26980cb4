"""Transactions end to end: unmodified clients, and brokers that die in the middle (CLI-4, KIP-98, KIP-447, KIP-890, INV-1, INV-23).

A consumer with read_committed sees the records of committed transactions, each once, and nothing else, whoever dies when.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import SUPPORTED, ApiKey
from protocol.kafka.record_batch import TRANSACTIONAL_BIT, build_batch
from tests.conftest import START_TIMEOUT_S, ClusterFactory
from tests.support.background_load import read_everything
from tests.support.invariants import ZooKeeperView, eventually
from tests.support.real_kafka import PROGRAMS, java_command
from tests.support.topics import create_topics, new_topic
from tests.support.topics import write as write_values
from tests.support.wire import Wire
from tools.cluster.local_cluster import LocalCluster

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(ApiKey.END_TXN not in SUPPORTED, reason="there is no transaction coordinator"),
]

OVERRIDES = {
    "min.insync.replicas": "1",
    "offsets.topic.num.partitions": "6",
    "transaction.state.log.num.partitions": "6",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
PARTITIONS = 3
CLIENT_TIMEOUT_S = 60
COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
NOT_THE_PRODUCER_ANY_MORE = (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.INVALID_TXN_STATE)
"""What a zombie is told; which of them depends on what it asks first."""


@pytest.fixture(scope="module")
def cluster(new_module_cluster: ClusterFactory) -> LocalCluster:
    """Its brokers die in some tests, and are back at the end of each."""
    return new_module_cluster(brokers=3, overrides=OVERRIDES)


@pytest.fixture
def topic(cluster: LocalCluster) -> str:
    return made(cluster)


def made(cluster: LocalCluster) -> str:
    topic = new_topic(cluster.bootstrap_servers, PARTITIONS, replicas=3)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    eventually(lambda: len(leaders(admin, topic)) == PARTITIONS, f"{topic} has leaders")
    return topic


def leaders(admin: AdminClient, topic: str) -> dict[int, int]:
    """Partition -> its leader, without those that have none."""
    found = admin.list_topics(topic, timeout=CLIENT_TIMEOUT_S).topics[topic].partitions
    return {number: partition.leader for number, partition in found.items() if partition.leader >= 0}


def transactional(cluster: LocalCluster, name: str, **settings: Any) -> Producer:
    """A producer that may begin transactions. The names of settings have `_` for `.`."""
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "transactional.id": name,
            "linger.ms": 0,
            "reconnect.backoff.max.ms": 200,
            "retry.backoff.ms": 50,
            **{key.replace("_", "."): value for key, value in settings.items()},
        }
    )
    retried(producer.init_transactions)
    return producer


def retried(call: Callable[..., Any], *arguments: Any) -> None:
    """A call of the transactional API, again while its error says that it may be repeated."""
    deadline = time.monotonic() + CLIENT_TIMEOUT_S
    while True:
        try:
            call(*arguments, max(1.0, deadline - time.monotonic()))
            return
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise


def write(producer: Producer, topic: str, *values: str, partitions: int = PARTITIONS) -> None:
    """Writes the values to the partitions in turn; returns when they are in the log."""
    write_values(producer, topic, values, partitions, CLIENT_TIMEOUT_S)


def read(cluster: LocalCluster, topic: str, isolation: str = COMMITTED, partitions: int = PARTITIONS) -> list[str]:
    """What a new consumer finds up to the end that it is told: of the log, or of what is decided."""
    found = read_everything(cluster.bootstrap_servers, topic, partitions, isolation, fetch_wait_max_ms=50)
    return [message.value().decode() for message in found]


def names(kind: str, count: int) -> list[str]:
    return [f"{kind}-{number}" for number in range(count)]


@contextmanager
def all_back(cluster: LocalCluster) -> Iterator[None]:
    """Starts the brokers again that were killed within."""
    try:
        yield
    finally:
        for broker in cluster.broker_ids:
            if cluster.pid(broker) is None:
                cluster.start_broker(broker)
        cluster.wait_ready(START_TIMEOUT_S)


def coordinator_of(cluster: LocalCluster, key: str, key_type: int) -> int:
    """The broker that coordinates the group (0) or the transactional id (1)."""

    def found() -> tuple[int] | None:
        for broker in cluster.broker_ids:
            if cluster.pid(broker) is None:
                continue
            try:
                with Wire(cluster.port(broker)) as wire:
                    body = {"key_type": key_type, "coordinator_keys": [key]}
                    (answer,) = wire.call(ApiKey.FIND_COORDINATOR, 4, body).coordinators
            except OSError:
                continue
            if answer.error_code == 0:
                return (answer.node_id,)
        return None

    return int(eventually(found, f"{key} has a coordinator")[0])


# -- what readers see -----------------------------------------------------------------------------------------------------


def test_an_open_transaction_holds_back_what_follows_it(cluster: LocalCluster, topic: str) -> None:
    """The last stable offset: readers get records in the order of the log, and so wait for the first open transaction."""
    first, second = transactional(cluster, f"{topic}-1"), transactional(cluster, f"{topic}-2")
    first.begin_transaction()
    write(first, topic, "first", partitions=1)
    second.begin_transaction()
    write(second, topic, "second", partitions=1)
    retried(second.commit_transaction)
    plain = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 0})
    write(plain, topic, "third", partitions=1)
    assert read(cluster, topic) == []
    assert read(cluster, topic, UNCOMMITTED) == ["first", "second", "third"]
    retried(first.abort_transaction)
    eventually(lambda: read(cluster, topic) == ["second", "third"], "the aborted transaction holds nothing back")


def test_a_zombie_is_fenced(cluster: LocalCluster, topic: str) -> None:
    """The next producer with the transactional id aborts its transaction; nothing of it is seen."""
    zombie = transactional(cluster, topic)
    zombie.begin_transaction()
    write(zombie, topic, *names("zombie", 3))
    successor = transactional(cluster, topic)
    successor.begin_transaction()
    write(successor, topic, *names("successor", 3))
    with pytest.raises(KafkaException) as told:
        zombie.commit_transaction(CLIENT_TIMEOUT_S)
    assert told.value.args[0].code() in NOT_THE_PRODUCER_ANY_MORE, told.value
    assert told.value.args[0].fatal()
    retried(successor.commit_transaction)
    eventually(lambda: sorted(read(cluster, topic)) == names("successor", 3), "the successor's records only")


def test_a_transaction_that_takes_too_long_is_aborted(cluster: LocalCluster, topic: str) -> None:
    producer = transactional(cluster, topic, transaction_timeout_ms=6_000)
    producer.begin_transaction()
    write(producer, topic, *names("forgotten", 3))
    plain = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 0})
    write(plain, topic, *names("plain", 3))
    eventually(lambda: sorted(read(cluster, topic)) == names("plain", 3), "the coordinator aborts the transaction")
    with pytest.raises(KafkaException) as told:
        producer.commit_transaction(CLIENT_TIMEOUT_S)
    error = told.value.args[0]
    assert error.fatal() or error.txn_requires_abort(), error
    assert sorted(read(cluster, topic)) == names("plain", 3)


# -- consume, process, produce --------------------------------------------------------------------------------------------


class Pipeline:
    """Reads `source`, writes each value once to `sink`, and commits both in transactions of a few records."""

    RECORDS_IN_A_TRANSACTION = 10

    def __init__(self, cluster: LocalCluster, source: str, sink: str) -> None:
        self._sink = sink
        self._producer = transactional(cluster, f"{sink}-pipeline")
        self._consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "group.id": f"{sink}-group",
                "isolation.level": COMMITTED,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 500,
                "reconnect.backoff.max.ms": 200,
            }
        )
        self._consumer.subscribe([source])

    def run(self, count: int, *, before_commit: Callable[[int], None] = lambda number: None) -> None:
        """Until `count` records are processed. `before_commit` gets the number of each transaction, from 0 on; if it raises Aborts,
        the transaction is aborted and its records are read again."""
        done = number = 0
        deadline = time.monotonic() + 2 * CLIENT_TIMEOUT_S
        while done < count:
            assert time.monotonic() < deadline, f"{done} of {count} records were processed"
            records = [m for m in self._consumer.consume(self.RECORDS_IN_A_TRANSACTION, 0.5) if m.error() is None]
            if not records:
                continue
            try:
                self._process(records, lambda number=number: before_commit(number))  # type: ignore[misc]
                done += len(records)
            except (KafkaException, Aborts) as error:
                if isinstance(error, KafkaException) and not error.args[0].txn_requires_abort():
                    raise
                retried(self._producer.abort_transaction)
                self._rewind()
            number += 1

    def _process(self, records: Sequence[Any], before_commit: Callable[[], None]) -> None:
        self._producer.begin_transaction()
        for record in records:
            self._producer.produce(self._sink, record.value(), partition=record.partition())
        positions = [p for p in self._consumer.position(self._consumer.assignment()) if p.offset >= 0]
        retried(self._producer.send_offsets_to_transaction, positions, self._consumer.consumer_group_metadata())
        before_commit()
        retried(self._producer.commit_transaction)

    def _rewind(self) -> None:
        assignment = self._consumer.assignment()
        starts = eventually(lambda: committed(self._consumer, assignment) or not assignment, "the committed positions")
        for partition, start in zip(assignment, starts if assignment else (), strict=True):
            self._consumer.seek(TopicPartition(partition.topic, partition.partition, max(start, 0)))

    def vanish(self) -> None:
        """Ends without a word to the transaction coordinator, in the middle of a transaction."""
        self._consumer.unsubscribe()
        self._consumer.close()


class Aborts(Exception):
    """The program decides to abort."""


def filled(cluster: LocalCluster, count: int) -> str:
    topic = made(cluster)
    plain = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    write(plain, topic, *names("order", count))
    return topic


def assert_each_once(cluster: LocalCluster, sink: str, source: str, count: int) -> None:
    eventually(lambda: len(read(cluster, sink)) >= count, "every record is in the sink")
    assert sorted(read(cluster, sink)) == sorted(names("order", count))
    with closing(Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": f"{sink}-group"})) as consumer:
        asked = [TopicPartition(source, number) for number in range(PARTITIONS)]
        eventually(
            lambda: sum(max(offset, 0) for offset in committed(consumer, asked)) == count,
            "the group has committed the end of the source",
        )


def committed(consumer: Consumer, asked: list[TopicPartition]) -> list[int]:
    """The committed offsets; none of them while the client has not found the group's next coordinator."""
    try:
        return [partition.offset for partition in consumer.committed(asked, timeout=10)]
    except KafkaException:
        return []


def test_a_pipeline_processes_each_record_once(cluster: LocalCluster, topic: str) -> None:
    """It aborts a transaction, and ends in the middle of another; its successor goes on from the committed positions."""
    source, count = filled(cluster, 60), 60

    def aborts_once(number: int) -> None:
        if number == 1:
            raise Aborts

    def ends(number: int) -> None:
        if number == 1:
            raise InterruptedError

    first = Pipeline(cluster, source, topic)
    first.run(30, before_commit=aborts_once)
    with pytest.raises(InterruptedError):
        first.run(count, before_commit=ends)
    first.vanish()
    left = count - len(read(cluster, topic))
    assert 0 < left < 30
    second = Pipeline(cluster, source, topic)
    second.run(left)
    assert_each_once(cluster, topic, source, count)
    second.vanish()


@pytest.mark.thorough
@pytest.mark.parametrize("role", ["leader of the sink", "group coordinator", "transaction coordinator"])
def test_a_pipeline_processes_each_record_once_while_brokers_die(cluster: LocalCluster, topic: str, role: str) -> None:
    source, count = filled(cluster, 200), 200
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})

    def victim() -> int:
        if role == "group coordinator":
            return coordinator_of(cluster, f"{topic}-group", 0)
        if role == "transaction coordinator":
            return coordinator_of(cluster, f"{topic}-pipeline", 1)
        return leaders(admin, topic)[0]

    def kills_one(number: int) -> None:
        if number in (3, 9):
            with all_back(cluster):
                cluster.kill(victim())

    pipeline = Pipeline(cluster, source, topic)
    pipeline.run(count, before_commit=kills_one)
    assert_each_once(cluster, topic, source, count)
    pipeline.vanish()


# -- brokers die in a transaction -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_commit", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_a_coordinator_dies_in_a_transaction(cluster: LocalCluster, topic: str, is_commit: bool) -> None:
    """Its successor knows the transaction from `__transaction_state`."""
    producer = transactional(cluster, topic)
    producer.begin_transaction()
    write(producer, topic, *names("before", 3))
    with all_back(cluster):
        cluster.kill(coordinator_of(cluster, topic, 1))
        write(producer, topic, *names("meanwhile", 3))
        retried(producer.commit_transaction if is_commit else producer.abort_transaction)
        producer.begin_transaction()
        write(producer, topic, "next")
        retried(producer.commit_transaction)
        wanted = sorted([*names("before", 3), *names("meanwhile", 3), "next"] if is_commit else ["next"])
        eventually(lambda: sorted(read(cluster, topic)) == wanted, "what was decided is seen")


@pytest.mark.thorough
@pytest.mark.parametrize("wait_s", [0.0, 0.002, 0.01, 0.05])
def test_a_coordinator_dies_right_after_a_commit_was_sent(cluster: LocalCluster, topic: str, wait_s: float) -> None:
    """Whatever it had done of it: a repeated EndTxn, and the markers of its successor, end the transaction once."""
    with all_back(cluster):
        session = RawTransaction(cluster, topic)
        session.write(topic, b"decided")
        coordinator = coordinator_of(cluster, topic, 1)
        with Wire(cluster.port(coordinator)) as wire:
            wire.send(ApiKey.END_TXN, 3, session.ending())
            time.sleep(wait_s)  # so that it dies at different places of the commit
            cluster.kill(coordinator)
        eventually(lambda: session.ask_coordinator(ApiKey.END_TXN, 3, session.ending()) == 0, "the commit is repeated")
        eventually(lambda: read(cluster, topic) == ["decided"], "the transaction is committed")
    assert read(cluster, topic, UNCOMMITTED) == ["decided"]
    successor = transactional(cluster, topic)
    successor.begin_transaction()
    write(successor, topic, "next")
    retried(successor.commit_transaction)
    eventually(lambda: sorted(read(cluster, topic)) == ["decided", "next"], "the id can be used again")


def test_an_open_transaction_outlives_all_brokers(cluster: LocalCluster, topic: str) -> None:
    """Everything about it is in the logs: the open transaction, and the offset that it will commit."""
    producer = transactional(cluster, topic)
    group = f"{topic}-group"
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": group})
    producer.begin_transaction()
    write(producer, topic, *names("open", 3))
    position = TopicPartition(topic, 0, 7)
    retried(producer.send_offsets_to_transaction, [position], consumer.consumer_group_metadata())
    with all_back(cluster):
        for broker in cluster.broker_ids:
            cluster.kill(broker)
    eventually(lambda: sorted(read(cluster, topic, UNCOMMITTED)) == names("open", 3), "the records are there")
    assert read(cluster, topic) == []
    retried(producer.commit_transaction)
    eventually(lambda: sorted(read(cluster, topic)) == names("open", 3), "the transaction is committed")
    asked = [TopicPartition(topic, 0)]
    eventually(lambda: committed(consumer, asked) == [7], "its offset is committed")
    consumer.close()


class RawTransaction:
    """A transaction by single requests, so that a test knows what was sent when. The transactional id is the topic's name."""

    def __init__(self, cluster: LocalCluster, topic: str, partitions: int = 1) -> None:
        self._cluster = cluster
        self._id = topic
        self._admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        self._producer: tuple[int, int] = eventually(self._begin, "a producer id")
        topics = [{"name": topic, "partitions": list(range(partitions))}]
        body = {**self._named(), "topics": topics}
        eventually(lambda: self._added(body), "the partitions are in the transaction")

    def _begin(self) -> tuple[int, int] | None:
        body = {"transactional_id": self._id, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
        answer = self._call_coordinator(ApiKey.INIT_PRODUCER_ID, 4, body)
        return None if answer is None or answer.error_code else (answer.producer_id, answer.producer_epoch)

    def _named(self) -> dict[str, Any]:
        producer_id, producer_epoch = self._producer
        return {
            "transactional_id": self._id,
            "producer_id": producer_id,
            "producer_epoch": producer_epoch,
            "v3_and_below_transactional_id": self._id,
            "v3_and_below_producer_id": producer_id,
            "v3_and_below_producer_epoch": producer_epoch,
        }

    def _added(self, body: dict[str, Any]) -> bool:
        answer = self._call_coordinator(ApiKey.ADD_PARTITIONS_TO_TXN, 3, body | {"v3_and_below_topics": body["topics"]})
        if answer is None:
            return False
        (topic,) = answer.results_by_topic_v3_and_below
        return bool(topic.results_by_partition[0].partition_error_code == 0)

    def ending(self) -> dict[str, Any]:
        return {**self._named(), "committed": True}

    def write(self, topic: str, value: bytes, partition: int = 0) -> None:
        producer_id, producer_epoch = self._producer
        batch = build_batch(
            [(b"k", value, (), int(time.time() * 1000))],
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=0,
            attributes=TRANSACTIONAL_BIT,
        )
        rows = [{"name": topic, "partition_data": [{"index": partition, "records": batch}]}]
        body = {"transactional_id": self._id, "acks": -1, "timeout": 10_000, "topic_data": rows}

        def written() -> bool:
            with Wire(self._cluster.port(leaders(self._admin, topic)[partition])) as wire:
                return bool(wire.call(ApiKey.PRODUCE, 9, body).responses[0].partition_responses[0].error_code == 0)

        eventually(written, "the record is written")

    def ask_coordinator(self, api_key: ApiKey, version: int, body: dict[str, Any]) -> int:
        """The error of the answer; of an answer that does not come, NETWORK_EXCEPTION."""
        answer = self._call_coordinator(api_key, version, body)
        return int(ErrorCode.NETWORK_EXCEPTION if answer is None else answer.error_code)

    def _call_coordinator(self, api_key: ApiKey, version: int, body: dict[str, Any]) -> Any:
        try:
            with Wire(self._cluster.port(coordinator_of(self._cluster, self._id, 1))) as wire:
                return wire.call(api_key, version, body)
        except (OSError, messages.MalformedRequest):
            return None


# -- topics are deleted in a transaction ----------------------------------------------------------------------------------


def delete(cluster: LocalCluster, topic: str) -> None:
    """Returns when no broker's metadata has the topic."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.delete_topics([topic])[topic].result(CLIENT_TIMEOUT_S)
    for broker in cluster.broker_ids:
        if cluster.pid(broker) is not None:
            asked = AdminClient({"bootstrap.servers": cluster.address(broker)})
            eventually(lambda asked=asked: topic not in asked.list_topics(timeout=10).topics, f"{topic} is gone")


def test_a_topic_is_made_again_with_fewer_partitions_in_a_transaction(cluster: LocalCluster, topic: str) -> None:
    """TXN-3: the transaction ends without the partitions that are gone. The marker in the new log ends nothing there."""
    session = RawTransaction(cluster, topic, PARTITIONS)
    for number in range(PARTITIONS):
        session.write(topic, b"gone", number)
    delete(cluster, topic)

    def is_made_again() -> bool:
        try:
            create_topics(cluster.bootstrap_servers, NewTopic(topic, 1, 3))
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return False
            raise
        return True

    eventually(is_made_again, f"{topic} is made again")
    assert session.ask_coordinator(ApiKey.END_TXN, 3, session.ending()) == 0
    successor = transactional(cluster, topic)
    successor.begin_transaction()
    write(successor, topic, "next", partitions=1)
    retried(successor.commit_transaction)
    eventually(lambda: read(cluster, topic, partitions=1) == ["next"], "the id can be used again")


def test_a_topic_is_deleted_in_a_transaction_while_a_replica_is_down(cluster: LocalCluster, topic: str) -> None:
    """TXN-3: ZooKeeper keeps the topic until the dead broker is back, but the transaction ends at once."""
    other = made(cluster)
    session = RawTransaction(cluster, topic, PARTITIONS)
    session.write(topic, b"gone")
    with all_back(cluster), closing(ZooKeeperView(cluster.zookeeper_connect)) as zk:
        needed = (coordinator_of(cluster, topic, 1), zk.controller())
        victim = next(broker for broker in cluster.broker_ids if broker not in needed)
        cluster.kill(victim)
        eventually(lambda: victim not in zk.live_brokers(), "the dead broker's node is gone")
        delete(cluster, topic)
        assert session.ask_coordinator(ApiKey.END_TXN, 3, session.ending()) == 0
        successor = transactional(cluster, topic)
        assert topic in zk.topics()
        successor.begin_transaction()
        write(successor, other, "next")
        retried(successor.commit_transaction)


# -- Kafka's own client and tool ------------------------------------------------------------------------------------------


@pytest.mark.kafka
def test_kafkas_own_client(cluster: LocalCluster, topic: str) -> None:
    """Transactions, a pipeline with a group, a fenced zombie: `tests/kafka/Transactions.java`, whose lines this test compares."""
    source = filled(cluster, 30)
    program = subprocess.run(
        java_command(str(PROGRAMS / "Transactions.java"), cluster.bootstrap_servers, source, topic),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert program.returncode == 0, program.stdout + program.stderr
    assert program.stdout.splitlines() == [
        "committed: [c0, c1, c2]",
        "all: [a0, a1, a2, c0, c1, c2]",
        "processed: 30, each once",
        "position: 30",
        "the zombie is fenced",
    ]
