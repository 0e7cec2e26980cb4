"""End-to-end latency as an application sees it: librdkafka produces one record, and its consumer polls until it has the record."""

from __future__ import annotations

import contextlib
import time

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tools.bench.load.cluster import Partition, Target
from tools.bench.load.librdkafka import Window, settings
from tools.bench.load.outcome import BenchError, Measurement, OnProgress

RECEIVED_TIMEOUT_S = 30.0


def end_to_end(
    target: Target,
    partition: Partition,
    record_bytes: int,
    acks: int,
    window_s: tuple[float, float],
    on_progress: OnProgress,
) -> Measurement:
    """One record after the other; the next one is sent when this one was received. Raises BenchError."""
    failures: list[str] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error.str())

    producer = Producer(settings(target) | {"acks": acks, "linger.ms": 0})
    consumer = Consumer(settings(target) | {"group.id": "ottla-bench", "enable.auto.commit": False})
    consumer.assign([TopicPartition(partition.topic, partition.index, partition.end)])
    window = Window(*window_s, on_progress)
    value = bytes(record_bytes)
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
            window.add(time.perf_counter() - sent_at, 1, record_bytes)
        return window.result()
    except KafkaException as problem:
        raise BenchError(f"librdkafka fails: {problem.args[0].str()}") from None
    finally:
        producer.purge()
        producer.flush(1)
        with contextlib.suppress(KafkaException):
            consumer.close()
