"""A producer that runs beside a fault and knows exactly what was acknowledged, and a reader that gets everything back."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

DIGITS = re.compile(rb"[0-9]+")
MOVING = {KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE}


@dataclass
class Acknowledged:
    """What the broker said yes to: value -> (partition, offset, None if not told), and when (monotonic seconds)."""

    positions: dict[bytes, tuple[int, int | None]] = field(default_factory=dict)
    times: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


class BackgroundProducer:
    """Produces numbered records to every partition of a topic, acks=all, until stopped; `idempotent`: each once, in order.

    `padding` ends every value; `records_per_s`: not more of them. `wait_for_acks(n)` blocks until n more records
    were acknowledged: the way a test knows that the topic is writable again.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        partitions: int,
        padding: bytes = b"",
        *,
        idempotent: bool = False,
        records_per_s: float | None = None,
        **config: Any,
    ) -> None:
        settings = {
            "bootstrap.servers": bootstrap_servers,
            "acks": "all",
            "enable.idempotence": idempotent,
            "linger.ms": 2,
            "retry.backoff.ms": 50,
            "retry.backoff.max.ms": 200,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "topic.metadata.refresh.fast.interval.ms": 50,
            "message.timeout.ms": 60000,
            "log_level": 2,
        } | {key.replace("_", "."): value for key, value in config.items()}
        self.topic = topic
        self.partitions = partitions
        self.padding = padding
        self.acknowledged = Acknowledged()
        self.sent = 0
        self._records_per_s = records_per_s
        self._producer = Producer(settings)
        self._stopping = threading.Event()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="background-producer", daemon=True)

    def __enter__(self) -> BackgroundProducer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> Acknowledged:
        """Stops producing, waits until every record sent is acknowledged or failed, and returns what was acknowledged."""
        self._stopping.set()
        self._thread.join(timeout=120)
        assert not self._thread.is_alive(), "the producer did not drain in 120 s"
        return self.acknowledged

    def wait_for_acks(self, count: int, timeout_s: float = 60.0) -> None:
        with self._changed:
            wanted = len(self.acknowledged.positions) + count
            reached = self._changed.wait_for(lambda: len(self.acknowledged.positions) >= wanted, timeout_s)
        assert reached, f"no {count} acknowledgements in {timeout_s} s; failed: {self.acknowledged.failed[:3]}"

    def longest_gap_s(self) -> float:
        """The longest time without any acknowledgement, for printing (never asserted)."""
        times = self.acknowledged.times
        return max((b - a for a, b in itertools.pairwise(times)), default=0.0)

    def _run(self) -> None:
        number = 0
        began = time.monotonic()
        while not self._stopping.is_set():
            if self._records_per_s is not None and number > self._records_per_s * (time.monotonic() - began):
                self._producer.poll(0.01)
                continue
            value = b"record-%d" % number + self.padding
            try:
                self._producer.produce(
                    self.topic,
                    value,
                    key=b"%d" % (number % 7),
                    partition=number % self.partitions,
                    on_delivery=self._report,
                )
                number += 1
            except BufferError:
                pass
            self._producer.poll(0.001)
        self.sent = number
        self._producer.flush(60)

    def _report(self, error: Any, message: Any) -> None:
        with self._changed:
            if error is None:
                self.acknowledged.positions[message.value()] = (message.partition(), message.offset())
                self.acknowledged.times.append(time.monotonic())
            else:
                self.acknowledged.failed.append(str(error))
            self._changed.notify_all()


def read_everything(bootstrap_servers: str, topic: str, partitions: int) -> list[Any]:
    """Every record of the topic from the first offset to the high watermark as it is now."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "log_level": 2,
        }
    )
    try:
        ends = {}
        for partition in range(partitions):
            low, high = watermarks(consumer, TopicPartition(topic, partition))
            if high > low:
                ends[partition] = (low, high)
        consumer.assign([TopicPartition(topic, p, low) for p, (low, _) in ends.items()])
        records: list[Any] = []
        position = {p: low for p, (low, _) in ends.items()}
        deadline = time.monotonic() + 60
        while any(position[p] < high for p, (_, high) in ends.items()):
            assert time.monotonic() < deadline, f"read only to {position} of {ends}"
            for message in consumer.consume(1000, timeout=0.5):
                assert message.error() is None, message.error()
                records.append(message)
                position[message.partition()] = message.offset() + 1
        return records
    finally:
        consumer.close()


def watermarks(consumer: Consumer, tp: TopicPartition) -> tuple[int, int]:
    """The first offset and the high watermark. Asked again when the leader that Metadata names does not know yet that it leads."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return consumer.get_watermark_offsets(tp, timeout=30)
        except KafkaException as problem:
            if problem.args[0].code() not in MOVING or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def assert_once_and_in_order(acknowledged: Acknowledged, records: list[Any]) -> None:
    """INV-20, of an idempotent BackgroundProducer: every acknowledged record once, and each partition in the order sent."""
    assert assert_nothing_lost(acknowledged, records) == 0, "records are in the log twice"
    last: dict[int, int] = {}
    for message in records:
        number = int(DIGITS.findall(message.value())[0])
        before = last.get(message.partition(), -1)
        assert number > before, f"record {number} after {before} in partition {message.partition()}"
        last[message.partition()] = number


def assert_nothing_lost(acknowledged: Acknowledged, records: list[Any]) -> int:
    """Every acknowledged record is there, at the offset that was acknowledged. Returns how many records are there twice.

    Of a record whose answer was lost librdkafka may know no offset (None): when a later one of the partition was acknowledged,
    or when a new leader, which knows only a producer's last batch from a snapshot, said DUPLICATE_SEQUENCE_NUMBER.
    """
    at = {(m.partition(), m.offset()): m.value() for m in records}
    somewhere = {(m.partition(), m.value()) for m in records}
    lost = [
        value
        for value, (partition, offset) in acknowledged.positions.items()
        if ((partition, value) not in somewhere if offset is None else at.get((partition, offset)) != value)
    ]
    assert not lost, f"{len(lost)} acknowledged records lost, among them {lost[:5]}"
    counts = Counter(m.value() for m in records)
    return sum(n - 1 for n in counts.values())
