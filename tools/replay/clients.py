"""The confluent-kafka clients of a replay, and queries about its topic."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

ACKS_ALL = -1
METADATA_TIMEOUT_S = 5.0
SAMPLE_INTERVAL_S = 0.5
# librdkafka's own log lines would break the progress bar; brokers going down are part of a replay.
QUIET = {"log_level": 0}


class ReplayError(Exception):
    """A replay that cannot run; the text says in one line why and what to do."""


class Clock:
    """Wall-clock seconds since 1970 that never jump during a replay: the wall clock is read once."""

    def __init__(self) -> None:
        self._offset = time.time() - time.perf_counter()

    def now(self) -> float:
        return self._offset + time.perf_counter()


def ignore_error(_: object) -> None:
    """Ignores librdkafka's reports on connections: it retries, and the operations have the final results."""


def new_producer(bootstrap_servers: str, acks: int, answer_timeout_s: float) -> Producer:
    """A producer that sends at once and retries until `answer_timeout_s` after the send.

    With acks=all (-1) it is idempotent: retried records are written once, and in order.
    """
    return Producer(
        {
            **QUIET,
            "bootstrap.servers": bootstrap_servers,
            "client.id": "ottla-replay",
            "acks": acks,
            "enable.idempotence": acks == ACKS_ALL,
            "linger.ms": 0,
            # Under load, records then wait for a free slot and are sent in batches.
            "max.in.flight.requests.per.connection": 5,
            "message.timeout.ms": int(answer_timeout_s * 1000),
            "error_cb": ignore_error,
        }
    )


def new_consumer(bootstrap_servers: str, group: str = "ottla-replay") -> Consumer:
    """A consumer for assigned partitions, or for requests about `group`; it joins no group (the library requires a name)."""
    return Consumer(
        {
            **QUIET,
            "bootstrap.servers": bootstrap_servers,
            "client.id": "ottla-replay",
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 500,
            "fetch.error.backoff.ms": 50,
            "error_cb": ignore_error,
        }
    )


def partition_leaders(client: Any, topic: str, timeout_s: float = METADATA_TIMEOUT_S) -> dict[int, int]:
    """Partition -> the id of its leader (-1: none); empty for an unknown topic. Raises KafkaException."""
    metadata = client.list_topics(topic, timeout=timeout_s).topics[topic]
    return {number: partition.leader for number, partition in metadata.partitions.items()}


def end_offsets(consumer: Consumer, topic: str, partitions: Sequence[int]) -> dict[int, int]:
    """Partition -> the offset after its last readable record. Raises KafkaException."""
    ends = {}
    for partition in partitions:
        _, ends[partition] = consumer.get_watermark_offsets(TopicPartition(topic, partition), METADATA_TIMEOUT_S)
    return ends


class LeaderSampler:
    """Tracks each partition's leader with a separate client, so that the measured clients learn nothing from it."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self._client = AdminClient({**QUIET, "bootstrap.servers": bootstrap_servers, "error_cb": ignore_error})
        self._topic = topic
        self._leaders: Mapping[int, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leader-sampler", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def leader(self, partition: int) -> int | None:
        leader = self._leaders.get(partition, -1)
        return leader if leader >= 0 else None

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._leaders = partition_leaders(self._client, self._topic, timeout_s=1.0)
            except KafkaException:
                # The broker that was asked has died; the next sample asks another.
                self._stop.wait(SAMPLE_INTERVAL_S / 5)
                continue
            self._stop.wait(SAMPLE_INTERVAL_S)
