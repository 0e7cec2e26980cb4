"""Real clients of consumer groups: a plain consumer, and members in a thread each by two libraries."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from kafka import KafkaConsumer
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor

from tests.support.group_chaos_member import generation_of
from tests.support.invariants import eventually
from tools.clients.leave_group import leave_group

Client = Literal["confluent", "confluent cooperative", "kafka-python", "kafka-python cooperative", "confluent new"]
CLIENTS: tuple[Client, ...] = ("confluent", "confluent cooperative", "kafka-python", "kafka-python cooperative")
NEW: Client = "confluent new"
"""A member of a group of the new kind (KIP-848), for brokers with the APIs of Kafka 4. The brokers have its times."""
SESSION_MS = 10_000
HEARTBEAT_MS = 300
METADATA_AGE_MS = 2_000
"""Of kafka-python: its leader assigns nothing of a topic that is not in its metadata yet, and looks again when they are old."""
POLL_S = 0.1
STOP_TIMEOUT_S = 30.0
HARMLESS = {KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT}


def new_consumer(bootstrap_servers: str, group: str, **settings: Any) -> Consumer:
    """A consumer of librdkafka that reads from the start and commits nothing by itself."""
    defaults = {"auto.offset.reset": "earliest", "enable.auto.commit": False}
    return Consumer({"bootstrap.servers": bootstrap_servers, "group.id": group, **defaults, **settings})


@contextlib.contextmanager
def joined_consumer(bootstrap_servers: str, group: str, topic: str, **settings: Any) -> Iterator[Consumer]:
    """A consumer that has partitions, and has read a record."""
    consumer = new_consumer(bootstrap_servers, group, **settings)
    try:
        consumer.subscribe([topic])

        def has_read() -> bool:
            message = consumer.poll(0.1)
            return message is not None and message.error() is None

        eventually(has_read, "a record for the member")
        yield consumer
    finally:
        consumer.close()


class Member:
    """Joins at once, and reads until it is closed. All attributes can be read at any time.

    `owned`: its partitions. `seen`: (partition, offset) of the records that it has read, in order. `assignments` counts its
    assignments; `generation` is that of the last one (librdkafka; else 0). `commit` makes it commit all that it has read.
    """

    def __init__(
        self, client: Client, bootstrap_servers: str, group: str, topic: str, instance_id: str | None = None
    ) -> None:
        self.owned: frozenset[int] = frozenset()
        self.seen: list[tuple[int, int]] = []
        self.assignments = 0
        self.generation = 0
        self._servers, self._group, self._topic, self._instance_id = bootstrap_servers, group, topic, instance_id
        self._is_cooperative = client.endswith("cooperative") or client == NEW
        self._is_new = client == NEW
        self._stop = threading.Event()
        self._wanted_commits = 0
        self._commits = 0
        run = self._run_confluent if client.startswith("confluent") else self._run_kafka_python
        self._executor = ThreadPoolExecutor(1)
        self._running = self._executor.submit(run)

    def __enter__(self) -> Member:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def commit(self) -> None:
        """Returns at once; `has_committed` tells when it is done."""
        self._wanted_commits = self._commits + 1

    @property
    def has_committed(self) -> bool:
        self.check()
        return self._commits >= self._wanted_commits

    def check(self) -> None:
        """Raises what its client has raised."""
        if self._running.done():
            self._running.result()

    def close(self) -> None:
        """Leaves the group, if it is not a static member."""
        self._stop.set()
        self._running.result(STOP_TIMEOUT_S)
        self._executor.shutdown()

    def _assigned(self, partitions: set[int]) -> None:
        self.owned = frozenset(partitions)
        self.assignments += 1

    # -- librdkafka ---------------------------------------------------------------------------------------------------

    def _run_confluent(self) -> None:
        settings: dict[str, Any] = {
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "partition.assignment.strategy": "cooperative-sticky" if self._is_cooperative else "range",
        }
        if self._is_new:
            settings = {"group.protocol": "consumer"}
        if self._instance_id:
            settings["group.instance.id"] = self._instance_id
        consumer = new_consumer(self._servers, self._group, **settings)

        def assigned(_: Any, partitions: list[Any]) -> None:
            self.generation, _ = generation_of(consumer.consumer_group_metadata())
            new = {p.partition for p in partitions}
            self._assigned(set(self.owned) | new if self._is_cooperative else new)

        def revoked(_: Any, partitions: list[Any]) -> None:
            self.owned -= {p.partition for p in partitions}

        consumer.subscribe([self._topic], on_assign=assigned, on_revoke=revoked, on_lost=revoked)
        try:
            while not self._stop.is_set():
                message = consumer.poll(POLL_S)
                if message is not None and message.error() is None:
                    self.seen.append((message.partition(), message.offset()))
                elif message is not None and message.error().code() not in HARMLESS:
                    raise KafkaException(message.error())
                if self._commits < self._wanted_commits:
                    self._commit_confluent(consumer)
                    self._commits += 1
        finally:
            if self._instance_id:
                consumer.close()
            else:
                leave_group(consumer)

    @staticmethod
    def _commit_confluent(consumer: Consumer) -> None:
        try:
            consumer.commit(asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._NO_OFFSET:  # it has read nothing since
                raise

    # -- kafka-python -------------------------------------------------------------------------------------------------

    def _run_kafka_python(self) -> None:
        assignor = CooperativeStickyAssignor if self._is_cooperative else RangePartitionAssignor
        consumer = KafkaConsumer(
            bootstrap_servers=self._servers,
            group_id=self._group,
            group_instance_id=self._instance_id,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            partition_assignment_strategy=[assignor],
            metadata_max_age_ms=METADATA_AGE_MS,
        )
        # A leader that hears of the topic later joins again. If a poll times out meanwhile, kafka-python 3.0.12 forgets the assignment
        # that comes then, and sends no heartbeat any more.
        consumer.partitions_for_topic(self._topic)
        consumer.subscribe([self._topic])
        try:
            while not self._stop.is_set():
                for records in consumer.poll(timeout_ms=int(POLL_S * 1000)).values():
                    self.seen += [(record.partition, record.offset) for record in records]
                owned = {tp.partition for tp in consumer.assignment()}
                if owned != self.owned:
                    self._assigned(owned)
                if self._commits < self._wanted_commits:
                    consumer.commit()
                    self._commits += 1
        finally:
            consumer.close()


def commit_from_outside(bootstrap_servers: str, group: str, topic: str, offsets: Mapping[int, int]) -> None:
    """Commits like a simple consumer, which is not a member. The coordinator may still be loading."""
    consumer = new_consumer(bootstrap_servers, group)
    places = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]

    def is_committed() -> bool:
        try:
            consumer.commit(offsets=places, asynchronous=False)
        except KafkaException as problem:
            if not problem.args[0].retriable():
                raise
            return False
        return True

    eventually(is_committed, "the commit")
    consumer.close()
