"""The load that `ottla verify` runs by itself: an idempotent producer and a group of readers that commit what they have read.

    python -m tools.verify.own_load TOPIC GROUP PARTITIONS PROTOCOL

PROTOCOL is Kafka's `group.protocol` of the readers. It is a program like that of a user: it reports by the same lines. SIGTERM ends the
producing; it exits when the group has read everything that was acknowledged.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tools.clients.leave_group import leave_group
from tools.faults.reporting_clients import DRAIN_S, PROMPT, Load
from tools.group_protocols import CLASSIC, CONSUMER
from tools.judge.reports import ACKED, ASSIGNED, COMMITTED, CONSUMED, LEFT, REVOKED, Report, line_of

RECORDS_PER_S = 300
MEMBERS = 3
COMMIT_INTERVAL_S = 0.2
OF_PROTOCOL = {
    CLASSIC: {"group.protocol": CLASSIC, "partition.assignment.strategy": "cooperative-sticky"},
    CONSUMER: {"group.protocol": CONSUMER},
}
"""Settings of the readers. In both protocols a reader reads on in what it keeps."""
CATCH_UP_S = 30.0
GRACE_S = DRAIN_S / 2 + CATCH_UP_S + 15
"""How long it may take to end after SIGTERM."""

PROPERTIES_VARIABLE = "OTTLA_CLIENT_PROPERTIES"
"""The environment variable with librdkafka's properties, as JSON."""

_output = threading.Lock()


def tell(report: Report) -> None:
    with _output:
        sys.stdout.write(line_of(report) + "\n")
        sys.stdout.flush()


class Reader:
    """A member of the group, in a thread of its own. It commits what it has reported."""

    def __init__(self, name: str, settings: dict[str, Any], topic: str, group: str, seen: set[str]) -> None:
        self._name = name
        self._topic, self._group, self._seen = topic, group, seen
        self._next: dict[int, int] = {}
        """Partition -> the offset to commit."""
        self._is_stopped = threading.Event()
        self._settings = {
            **settings,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.error.backoff.ms": 50,
        }
        self._consumer = self._subscribed()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _subscribed(self) -> Consumer:
        consumer = Consumer(self._settings)
        owner = {"on_assign": self._on_assign, "on_revoke": self._on_revoke, "on_lost": self._on_lost}
        consumer.subscribe([self._topic], **owner)
        return consumer

    def start(self) -> None:
        self._thread.start()

    def ask_to_stop(self) -> None:
        self._is_stopped.set()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        committed_at = time.monotonic()
        while not self._is_stopped.is_set():
            message = self._consumer.poll(0.05)
            if message is not None and message.error() is not None:
                if message.error().code() == KafkaError.NOT_COORDINATOR:
                    # librdkafka asks for the offsets of its new partitions no more (its issue 5586).
                    leave_group(self._consumer)
                    self._consumer = self._subscribed()
            elif message is not None:
                id_ = message.key().decode()
                tell(Report(CONSUMED, self._topic, message.partition(), message.offset(), id_, self._group))
                self._seen.add(id_)
                self._next[message.partition()] = message.offset() + 1
            if time.monotonic() - committed_at >= COMMIT_INTERVAL_S:
                self._commit()
                committed_at = time.monotonic()
        self._commit()
        leave_group(self._consumer)
        tell(Report(LEFT, group=self._group, member=self._name))

    def _commit(self) -> None:
        """Waits for the answer, so that the lines have the order of the commits, also when a partition moves to another member."""
        if not self._next:
            return
        offsets = [TopicPartition(self._topic, partition, offset) for partition, offset in self._next.items()]
        try:
            done = self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException:
            return  # the next commit, or the partition's next reader, commits them
        for each in done or ():
            if each.error is None:
                tell(Report(COMMITTED, self._topic, each.partition, each.offset, group=self._group))
                self._next.pop(each.partition, None)

    def _on_assign(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._tell_owner(ASSIGNED, partitions)

    def _on_revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._commit()
        self._on_lost(_, partitions)

    def _on_lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            self._next.pop(each.partition, None)
        self._tell_owner(REVOKED, partitions)

    def _tell_owner(self, event: str, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            tell(Report(event, self._topic, each.partition, group=self._group, member=self._name))


def run(bootstrap_servers: str, topic: str, group: str, partitions: int, protocol: str) -> None:
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    given = json.loads(os.environ.get(PROPERTIES_VARIABLE, "{}"))
    settings = {**PROMPT, **given, "bootstrap.servers": bootstrap_servers, "log_level": 2}
    acknowledged: set[str] = set()
    seen: set[str] = set()

    def take(report: Report) -> None:
        tell(report)
        if report.event == ACKED:
            acknowledged.add(report.id)

    of_readers = {**settings, **OF_PROTOCOL[protocol]}
    readers = [Reader(f"reader-{number}", of_readers, topic, group, seen) for number in range(1, MEMBERS + 1)]
    for reader in readers:
        reader.start()
    producer = {**settings, "enable.idempotence": True}
    with Load(bootstrap_servers, topic, partitions, records_per_s=RECORDS_PER_S, report=take, settings=producer):
        while not stopping.is_set():
            time.sleep(0.05)
    deadline = time.monotonic() + CATCH_UP_S
    while not acknowledged <= set(seen) and time.monotonic() < deadline:
        time.sleep(0.05)
    for reader in readers:
        reader.ask_to_stop()
    for reader in readers:
        reader.join()


if __name__ == "__main__":
    run(os.environ["BOOTSTRAP_SERVERS"], sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
