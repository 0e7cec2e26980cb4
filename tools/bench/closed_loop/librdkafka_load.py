"""The load that an application makes: librdkafka with its own batching, through confluent-kafka.

Each of `connections` is a client of its own. A client's CPU time includes Python's, which counts each record.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tools.admin.client_settings import read_librdkafka_config
from tools.bench.closed_loop.load import Load
from tools.bench.closed_loop.measurement import (
    FIRST_ANSWER_S,
    BenchError,
    Measurement,
    OnProgress,
    Progress,
    answered,
    measurement,
)
from tools.bench.closed_loop.target import Partition, Target

LATENCY_EACH = 16
"""The latency of one in so many records is kept."""
PRODUCED_AT_ONCE = 500
CONSUMED_AT_ONCE = 10_000
CONSUME_TIMEOUT_S = 0.2
RECEIVED_TIMEOUT_S = 30.0
NO_PAUSES = {"fetch.queue.backoff.ms": 5, "fetch.wait.max.ms": 50}
"""By default librdkafka fetches nothing for a second once its queue is full, so the faster a broker fills it, the longer the client waits.
And a fetch at the end of the topic is parked for half a second, in which the client cannot start again at the beginning."""


class Window:
    """The time that counts: after the warm-up, for so many seconds, and longer if nothing is answered. It reports whole seconds."""

    def __init__(self, warm_up_s: float, seconds: float, on_progress: OnProgress) -> None:
        self.counts = False
        self.requests = self.records = self.bytes = 0
        self.latencies_s: list[float] = []
        self._from = time.perf_counter() + warm_up_s
        self._seconds = seconds
        self._on_progress = on_progress
        self._reported = 0
        self._cpu = 0.0

    def is_open(self) -> bool:
        """Whether the time is not over. Starts to count when the warm-up is over."""
        now = time.perf_counter()
        if not self.counts and now >= self._from:
            self.counts, self._from, self._cpu = True, now, time.process_time()
        passed = now - self._from
        if self.counts and int(passed) > self._reported and self._reported < int(self._seconds):
            self._reported = int(passed)
            self._on_progress(Progress(self._reported, self.requests, self.records, self.bytes))
        return not self.counts or passed < self._seconds + (0 if self.requests else FIRST_ANSWER_S)

    def add(self, latency_s: float, records: int, size: int) -> None:
        if self.counts:
            self.requests += 1
            self.records += records
            self.bytes += size
            self.latencies_s.append(latency_s)

    def result(self) -> Measurement:
        """Raises BenchError if nothing was answered."""
        elapsed, cpu = time.perf_counter() - self._from, time.process_time() - self._cpu
        self.counts = False
        return answered(measurement(self.requests, self.records, self.bytes, elapsed, self.latencies_s, cpu))


def produce(
    target: Target, topic: str, load: Load, window_s: tuple[float, float], on_progress: OnProgress
) -> Measurement:
    """Produces to all partitions as fast as acknowledgements come. `window_s`: warm-up and measured time. Raises BenchError.

    A request is a record here. Latencies are librdkafka's: from the call of `produce` to the acknowledgement.
    """
    with_acks = settings(target) | {"acks": load.acks, "compression.type": "none"}
    producers = [Producer(with_acks) for _ in range(load.connections)]
    window = Window(*window_s, on_progress)
    value = bytes(load.record_bytes)
    failures: list[str] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failures.append(error.str())
        elif window.counts:
            window.records += 1
            window.requests += 1
            window.bytes += load.record_bytes
            if window.records % LATENCY_EACH == 1:
                window.latencies_s.append(message.latency())

    try:
        while window.is_open() and not failures:
            for producer in producers:
                try:
                    for _ in range(PRODUCED_AT_ONCE):
                        producer.produce(topic, value, on_delivery=delivered)
                    producer.poll(0)
                except BufferError:  # the queue is full
                    producer.poll(0.01)
                except KafkaException as problem:
                    raise BenchError(f"topic {topic!r}: {problem.args[0].str()}") from None
        if failures:
            raise BenchError(f"topic {topic!r}: a record was not acknowledged: {failures[0]}")
        return window.result()
    finally:
        for producer in producers:
            producer.purge()  # what is still on its way is not counted
            producer.flush(1)


def consume(
    target: Target, partitions: Sequence[Partition], load: Load, window_s: tuple[float, float], on_progress: OnProgress
) -> Measurement:
    """Reads the partitions from their log starts to their ends, again and again; each client reads its share. Raises BenchError.

    A request is a call of `consume`, and its latency is the time that the call takes.
    """
    failures: list[str] = []
    for_group = settings(target) | {
        "group.id": "ottla-bench",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "max.partition.fetch.bytes": load.fetch_bytes,
        **NO_PAUSES,
        "error_cb": lambda error: failures.append(error.str()) if error.fatal() else None,
    }
    clients = min(load.connections, len(partitions))
    shares = [partitions[number::clients] for number in range(clients)]
    readers = [_Reader(Consumer(for_group), share) for share in shares]
    window = Window(*window_s, on_progress)
    try:
        while window.is_open() and not failures:
            for reader in readers:
                began = time.perf_counter()
                messages = reader.read()
                if messages:
                    window.add(time.perf_counter() - began, len(messages), sum(map(len, messages)))
        if failures:
            raise BenchError(f"librdkafka fails: {failures[0]}")
        return window.result()
    finally:
        for reader in readers:
            reader.close()


def end_to_end(
    target: Target, partition: Partition, load: Load, window_s: tuple[float, float], on_progress: OnProgress
) -> Measurement:
    """One record after the other; the next one is sent when a consumer, which polls, has received this one. Raises BenchError."""
    failures: list[str] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error.str())

    producer = Producer(settings(target) | {"acks": load.acks, "linger.ms": 0})
    consumer = Consumer(settings(target) | {"group.id": "ottla-bench", "enable.auto.commit": False})
    consumer.assign([TopicPartition(partition.topic, partition.index, partition.end)])
    window = Window(*window_s, on_progress)
    value = bytes(load.record_bytes)
    try:
        while window.is_open():
            sent_at = time.perf_counter()
            producer.produce(partition.topic, value, partition=partition.index, on_delivery=delivered)
            producer.flush(0)
            message = consumer.poll(RECEIVED_TIMEOUT_S)
            producer.poll(0)
            if failures:
                raise BenchError(f"topic {partition.topic!r}: a record was not acknowledged: {failures[0]}")
            if message is None:
                raise BenchError(f"a record did not come to the consumer within {RECEIVED_TIMEOUT_S:g} s")
            if message.error() is not None:
                raise BenchError(f"librdkafka fails: {message.error().str()}")
            window.add(time.perf_counter() - sent_at, 1, load.record_bytes)
        return window.result()
    except KafkaException as problem:
        raise BenchError(f"librdkafka fails: {problem.args[0].str()}") from None
    finally:
        producer.purge()
        producer.flush(1)
        with contextlib.suppress(KafkaException):
            consumer.close()


class _Reader:
    """One consumer that starts again when it has come to the ends of its partitions."""

    def __init__(self, consumer: Any, partitions: Sequence[Partition]) -> None:
        self._consumer = consumer
        self._starts = [TopicPartition(p.topic, p.index, p.start) for p in partitions]
        self._total = sum(p.end - p.start for p in partitions)
        self._read = 0
        consumer.assign(self._starts)

    def read(self) -> list[Message]:
        """Records, at most those that are left. Raises BenchError."""
        messages = self._consumer.consume(min(CONSUMED_AT_ONCE, self._total - self._read), CONSUME_TIMEOUT_S)
        if messages and (error := messages[-1].error()) is not None:
            raise BenchError(f"librdkafka fails: {error.str()}")
        self._read += len(messages)
        if self._read >= self._total:
            self._read = 0
            self._consumer.assign(self._starts)
        return list(messages)

    def close(self) -> None:
        with contextlib.suppress(KafkaException):
            self._consumer.close()


def settings(target: Target) -> dict[str, Any]:
    """What all clients of a measurement have."""
    return {
        "client.id": "ottla-bench",
        "log_level": 2,
        **read_librdkafka_config(target.command_config),
        "bootstrap.servers": target.bootstrap_server,
    }
