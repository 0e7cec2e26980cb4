"""A producer that runs during a fault; it reports how long each partition was unavailable and whether anything was lost."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

RECORDS_PER_S = 400
DRAIN_S = 120.0
READ_TIMEOUT_S = 60.0


class OutageLoad:
    """Produces with acks=all to every partition in turn, from `begin` to `end`. librdkafka with its defaults."""

    def __init__(self, bootstrap_servers: str, topic: str, partitions: int, settings: Mapping[str, Any]) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._topic = topic
        self._partitions = partitions
        self._producer = Producer({"bootstrap.servers": bootstrap_servers, "acks": "all", "log_level": 0, **settings})
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="outage-load", daemon=True)
        self._times: dict[int, list[float]] = {partition: [] for partition in range(partitions)}
        self.positions: dict[bytes, tuple[int, int]] = {}
        self.failures: list[str] = []

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Returns when every record is acknowledged or has failed."""
        self._stopping.set()
        self._thread.join(DRAIN_S)

    def wait_for_each_partition(self, since: float) -> None:
        """Waits for an acknowledgement after `since` (monotonic seconds) in each partition. Raises TimeoutError."""
        deadline = time.monotonic() + DRAIN_S
        while not all(times and times[-1] > since for times in self._times.values()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"a partition of {self._topic} no longer accepts records")
            time.sleep(0.01)

    def outage_s(self, since: float) -> float:
        """The longest time without an acknowledgement in any partition, from shortly before `since` on."""
        gaps = [
            after - before
            for times in self._times.values()
            for before, after in itertools.pairwise(times)
            if after > since
        ]
        return max(gaps, default=0.0)

    def lost(self) -> tuple[int, int]:
        """(acknowledged records that are missing at their offset, records that are there twice)."""
        found = self._read_everything()
        lost = sum(found.get(position) != value for value, position in self.positions.items())
        return lost, len(found) - len(set(found.values()))

    def _run(self) -> None:
        begin = time.monotonic()
        for number in itertools.count():
            if self._stopping.is_set():
                break
            value = b"record-%d" % number
            try:
                self._producer.produce(
                    self._topic, value, partition=number % self._partitions, on_delivery=self._report
                )
            except BufferError:
                self._producer.poll(0.01)
            ahead = begin + number / RECORDS_PER_S - time.monotonic()
            self._producer.poll(max(0.0, ahead))
        self._producer.flush(DRAIN_S)

    def _report(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failures.append(str(error))
            return
        self.positions[message.value()] = (message.partition(), message.offset())
        self._times[message.partition()].append(time.monotonic())

    def _read_everything(self) -> dict[tuple[int, int], bytes]:
        """(partition, offset) -> value, up to the current high watermarks."""
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap_servers,
                "group.id": "unused",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        try:
            ends = {}
            for partition in range(self._partitions):
                low, high = consumer.get_watermark_offsets(TopicPartition(self._topic, partition), timeout=30)
                if high > low:
                    ends[partition] = (low, high)
            consumer.assign([TopicPartition(self._topic, partition, low) for partition, (low, _) in ends.items()])
            next_offset = {partition: low for partition, (low, _) in ends.items()}
            found: dict[tuple[int, int], bytes] = {}
            deadline = time.monotonic() + READ_TIMEOUT_S
            while any(next_offset[partition] < high for partition, (_, high) in ends.items()):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{self._topic} cannot be read to its end")
                for message in consumer.consume(1000, timeout=0.5):
                    if message.error() is None:
                        found[message.partition(), message.offset()] = message.value()
                        next_offset[message.partition()] = message.offset() + 1
            return found
        finally:
            consumer.close()
