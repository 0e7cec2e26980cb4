"""A load during faults: a producer with a journal, a consumer beside it, and a reader of the whole topic afterwards."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tools.faults.verdict import Journal, Place

PROMPT = {
    "retry.backoff.ms": 50,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "topic.metadata.refresh.fast.interval.ms": 50,
}
"""Settings with which librdkafka looks for a new leader sooner than by default."""
READER = {"group.id": "unused", "enable.auto.commit": False, "log_level": 2}
MOVING = {KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE}
DRAIN_S = 120.0
READ_TIMEOUT_S = 60.0
PURGED_S = 10.0
"""How long to wait until the records of a producer that ended are reported as failed."""


class Load:
    """Produces numbered records with acks=all to every partition in turn, from the start of its `with` to `stop`.

    Every value ends with `padding`. `settings` override librdkafka's defaults. An idempotent producer ends with a fatal error if the new
    leader of an unclean election lacks batches that were acknowledged. Its unanswered records have then failed, and the load
    continues with a new producer.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        partitions: int,
        padding: bytes = b"",
        *,
        records_per_s: float | None = None,
        settings: Mapping[str, Any],
    ) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.topic = topic
        self.partitions = partitions
        self.journal = Journal()
        self._padding = padding
        self._records_per_s = records_per_s
        common = {"bootstrap.servers": bootstrap_servers, "acks": "all", "log_level": 2}
        self._settings = {**common, **settings}
        self._producer = Producer(self._settings)
        self._ended_by = ""
        """While the records of a producer that ended are reported: its fatal error."""
        self._stopping = threading.Event()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"load of {topic}", daemon=True)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._stopping.set()
            self._producer.purge()  # nobody waits for these answers
        self.stop()

    def stop(self) -> Journal:
        """Stops sending. Returns when every record was answered, or after a minute: a `Verdict` counts the others as failed."""
        self._stopping.set()
        self._thread.join(DRAIN_S)
        if self._thread.is_alive():
            raise TimeoutError(f"the records for {self.topic} were not answered in {DRAIN_S:g} s")
        return self.journal

    def wait_for_acks(self, count: int, timeout_s: float = 60.0) -> None:
        """Waits until `count` more records are acknowledged. Raises TimeoutError."""
        with self._changed:
            wanted = len(self.journal.positions) + count
            self._wait(lambda: len(self.journal.positions) >= wanted, f"no {count} acknowledgements", timeout_s)

    def _wait(self, check: Callable[[], bool], otherwise: str, timeout_s: float) -> None:
        if not self._changed.wait_for(check, timeout_s):
            raise TimeoutError(f"{self.topic}: {otherwise} in {timeout_s:g} s; failed: {self.journal.failed[:3]}")

    def _run(self) -> None:
        began = time.monotonic()
        while not self._stopping.is_set():
            number = self.journal.sent
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
        value = b"record-%d" % number + self._padding
        key = b"%d" % (number % 7)
        try:
            self._producer.produce(self.topic, value, key, partition=number % self.partitions, on_delivery=self._report)
        except BufferError:
            return
        self.journal.sent = number + 1

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
        with self._changed:
            if error is None:
                partition = message.partition()
                self.journal.positions[message.value()] = (partition, message.offset())
                self.journal.times.append(time.monotonic())
            else:
                self.journal.failed.append(self._ended_by or str(error))
            self._changed.notify_all()


class BackgroundReader:
    """Reads a topic from its start during the faults. `values`: place -> all values that it received for that place."""

    def __init__(self, bootstrap_servers: str, topic: str, partitions: int) -> None:
        self.values: dict[Place, set[bytes]] = {}
        settings = {"bootstrap.servers": bootstrap_servers, "auto.offset.reset": "earliest", **READER, **PROMPT}
        self._consumer = Consumer(settings)
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"reader of {topic}", daemon=True)

    def __enter__(self) -> BackgroundReader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(30)
        self._consumer.close()

    def misread(self, log: Mapping[Place, bytes]) -> dict[Place, set[bytes]]:
        """The places for which it received anything else than what is in the final log."""
        return {place: values for place, values in self.values.items() if values != {log.get(place)}}

    def _run(self) -> None:
        while not self._stopping.is_set():
            for message in self._consumer.consume(1000, timeout=0.2):
                if message.error() is None:
                    at = (message.partition(), message.offset())
                    self.values.setdefault(at, set()).add(message.value())


def read_everything(bootstrap_servers: str, topic: str, partitions: int) -> list[Any]:
    """Every record of the topic, from the log start to the current high watermark. Raises KafkaException, TimeoutError."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "auto.offset.reset": "error", **READER})
    try:
        ranges = {p: watermarks(consumer, TopicPartition(topic, p)) for p in range(partitions)}
        missing = {p: high for p, (low, high) in ranges.items() if high > low}
        consumer.assign([TopicPartition(topic, p, ranges[p][0]) for p in missing])
        records: list[Any] = []
        deadline = time.monotonic() + READ_TIMEOUT_S
        while missing:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"{topic} was not read to its end in {READ_TIMEOUT_S:g} s; partition -> high watermark: {missing}"
                )
            for message in consumer.consume(1000, timeout=0.5):
                if message.error() is not None:
                    raise KafkaException(message.error())
                records.append(message)
                if message.offset() + 1 >= missing.get(message.partition(), 0):
                    missing.pop(message.partition(), None)
        return records
    finally:
        consumer.close()


def log_of(records: Iterable[Any]) -> dict[Place, bytes]:
    """The records of `read_everything` by place, for `Verdict.of`."""
    return {(message.partition(), message.offset()): message.value() or b"" for message in records}


def watermarks(consumer: Consumer, partition: TopicPartition) -> tuple[int, int]:
    """The log start and the high watermark. Retries for 30 s while the leader that Metadata names does not know yet that it leads."""
    deadline = time.monotonic() + 30
    while True:
        try:
            low, high = consumer.get_watermark_offsets(partition, timeout=30)
            return low, high
        except KafkaException as problem:
            if problem.args[0].code() not in MOVING or time.monotonic() > deadline:
                raise
            time.sleep(0.1)
