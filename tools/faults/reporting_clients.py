"""A load during faults: a producer in the background, which reports."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tools.judge.reports import ACKED, FAILED, PRODUCED, Report

PROMPT = {
    "retry.backoff.ms": 50,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "topic.metadata.refresh.fast.interval.ms": 50,
}
"""Settings with which librdkafka looks for a new leader sooner than by default."""
READER = {"group.id": "unused", "enable.auto.commit": False, "log_level": 2}
MOVING = {
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.KAFKA_STORAGE_ERROR,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError._TRANSPORT,
}
"""What a question about a partition gets while its leader changes, or begins to lead."""
DRAIN_S = 120.0
PURGED_S = 10.0
"""How long to wait until the records of a producer that ended are reported as failed."""


class Load:
    """Produces numbered records with acks=all to every partition in turn, from the start of its `with` to `stop`, and reports them.

    A record's id is its key; its value is the id and `padding`. `settings` override librdkafka's defaults. An idempotent producer ends
    with a fatal error if the new leader of an unclean election lacks batches that were acknowledged. Its unanswered records have then
    failed, and the load continues with a new producer.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        partitions: int,
        padding: bytes = b"",
        *,
        name: str = "record",
        records_per_s: float | None = None,
        began: float = 0.0,
        report: Callable[[Report], None] | None = None,
        settings: Mapping[str, Any],
    ) -> None:
        """`name`: how each id begins. `began`: the monotonic time from which the times of reports count. `report`: takes each report, in
        the place of the list `reports`."""
        self.bootstrap_servers = bootstrap_servers
        self.topic = topic
        self.partitions = partitions
        self.reports: list[Report] = []
        self.sent = 0
        self.failed: list[str] = []
        """Why records failed."""
        self._padding = padding
        self._name = name
        self._records_per_s = records_per_s
        self._began = began
        self._take = report or self.reports.append
        common = {"bootstrap.servers": bootstrap_servers, "acks": "all", "log_level": 2}
        self._settings = {**common, **settings}
        self._producer = Producer(self._settings)
        self._ended_by = ""
        """While the records of a producer that ended are reported: its fatal error."""
        self._acknowledged = 0
        self._stopping = threading.Event()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"load of {topic}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._stopping.set()
            self._producer.purge()  # nobody waits for these answers
        self.stop()

    def stop(self) -> None:
        """Stops sending. Returns when every record was answered, or after a minute."""
        self._stopping.set()
        self._thread.join(DRAIN_S)
        if self._thread.is_alive():
            raise TimeoutError(f"the records for {self.topic} were not answered in {DRAIN_S:g} s")

    def id_of(self, message: Any) -> str:
        """Of a record that was read back: its value without the padding, so that a value that was changed is another record's."""
        return str((message.value() or b"").removesuffix(self._padding).decode(errors="backslashreplace"))

    def wait_for_acks(self, count: int, timeout_s: float = 60.0) -> None:
        """Waits until `count` more records are acknowledged. Raises TimeoutError."""
        with self._changed:
            wanted = self._acknowledged + count
            if not self._changed.wait_for(lambda: self._acknowledged >= wanted, timeout_s):
                raise TimeoutError(
                    f"{self.topic}: no {count} acknowledgements in {timeout_s:g} s; failed: {self.failed[:3]}"
                )

    def _run(self) -> None:
        began = time.monotonic()
        while not self._stopping.is_set():
            number = self.sent
            early_s = number / self._records_per_s - (time.monotonic() - began) if self._records_per_s else 0.0
            try:
                if early_s <= 0:
                    self._send(number)
                self._producer.poll(max(early_s, 0.001))
            except KafkaException as error:
                self._begin_again(error)
        try:
            self._producer.flush(DRAIN_S / 2)
        except KafkaException as error:
            self._begin_again(error)

    def _send(self, number: int) -> None:
        partition, id_, at = number % self.partitions, f"{self._name}-{number}", self._now()
        key = id_.encode()
        try:
            self._producer.produce(self.topic, key + self._padding, key, partition=partition, on_delivery=self._report)
        except BufferError:
            return
        self._take(Report(PRODUCED, self.topic, partition, id=id_, at=at))
        self.sent = number + 1

    def _begin_again(self, error: KafkaException) -> None:
        """Replaces the producer after a fatal error: it sends nothing more, and answers nothing. Raises other errors."""
        if not error.args[0].fatal():
            raise error
        self._ended_by = str(error.args[0])
        self._producer.purge()
        self._producer.flush(PURGED_S)
        self._ended_by = ""
        self._producer = Producer(self._settings)

    def _report(self, error: Any, message: Any) -> None:
        id_, partition, at = message.key().decode(), message.partition(), self._now()
        with self._changed:
            if error is None:
                self._take(Report(ACKED, self.topic, partition, message.offset(), id_, at=at))
                self._acknowledged += 1
            else:
                self._take(Report(FAILED, self.topic, partition, id=id_, at=at))
                self.failed.append(self._ended_by or str(error))
            self._changed.notify_all()

    def _now(self) -> float:
        return time.monotonic() - self._began


def watermarks(consumer: Consumer, partition: TopicPartition) -> tuple[int, int]:
    """The log start and the high watermark. Retries for 30 s while the leader changes. Raises KafkaException."""
    deadline = time.monotonic() + 30
    while True:
        try:
            low, high = consumer.get_watermark_offsets(partition, timeout=30)
            return low, high
        except KafkaException as problem:
            if problem.args[0].code() not in MOVING or time.monotonic() > deadline:
                raise
            time.sleep(0.1)
