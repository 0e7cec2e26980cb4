"""The only adapter to confluent-kafka's Producer: takes records with line numbers, and reports an outcome for each line."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tools.admin.bootstrap import addresses_of, no_answer, resolves
from tools.admin.client_settings import read_librdkafka_config
from tools.clients.deliveries import Delivery
from tools.clients.librdkafka_errors import NOBODY_ANSWERS, error_code, error_text
from tools.clients.records import Record
from tools.failures import AdminError

ACKS = {"0": 0, "1": 1, "all": -1}
CONNECT_TIMEOUT_S = 5.0
QUEUE_FULL_WAIT_S = 0.1
RETRY_PAUSE_S = 0.1
NEW_TOPIC_PATIENCE_S = 1.0
"""Brokers learn of a new topic some milliseconds after its creation."""

MAY_BE_WRITTEN = frozenset(
    {
        KafkaError._MSG_TIMED_OUT,
        KafkaError._PURGE_INFLIGHT,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    }
)
ADVICE = {
    KafkaError._UNKNOWN_PARTITION: "the topic has no such partition",
    KafkaError.MSG_SIZE_TOO_LARGE: "see max.message.bytes of the topic, and message.max.bytes for --command-config",
    KafkaError.INVALID_RECORD: "does the topic need a key? It does when it is compacted",
    KafkaError._MSG_TIMED_OUT: "not acknowledged in time; it may have been written",
    KafkaError._PURGE_INFLIGHT: "discarded before it was acknowledged; it may have been written",
    KafkaError._PURGE_QUEUE: "discarded before it was sent",
    KafkaError.NOT_ENOUGH_REPLICAS: "too few replicas are in sync: see `ottla topic describe`",
}

Delivered = Callable[[Delivery, int, str], None]


class KafkaProducer:
    """Writes records to one topic. `send`, `serve` and `give_up` call `delivered(outcome, line, what)` once per line."""

    def __init__(
        self,
        bootstrap_servers: str,
        command_config: Path | None,
        *,
        acks: str,
        compression: str,
        timeout_s: float,
        delivered: Delivered,
    ) -> None:
        """Does not connect yet. Raises AdminError for a bad command config or address."""
        self._bootstrap_servers = bootstrap_servers
        self._acks = acks
        self._delivered = delivered
        settings: dict[str, Any] = {
            "client.id": "ottla-produce",
            # Choose partitions by key as Java's producers do.
            "partitioner": "murmur2_random",
            "linger.ms": 5,
            # A retried record is written once, and in order.
            "enable.idempotence": acks == "all",
            **read_librdkafka_config(command_config),
            "acks": ACKS[acks],
            "compression.type": compression,
            "message.timeout.ms": int(timeout_s * 1000),
            "bootstrap.servers": bootstrap_servers,
            "log_level": "2",
            "error_cb": _ignored,
        }
        try:
            self._client = Producer(settings)
        except (KafkaException, ValueError) as problem:
            source = f"{command_config}: " if command_config else ""
            raise AdminError(f"{source}{error_text(problem)}") from None

    def partition_count(self, topic: str) -> int:
        """The topic's number of partitions. Raises AdminError if no broker answers, or the topic does not exist."""
        deadline = time.monotonic() + NEW_TOPIC_PATIENCE_S
        while True:
            found = topic_partitions(self._client, self._bootstrap_servers, topic)
            if found:
                return len(found)
            if time.monotonic() > deadline:
                raise AdminError(
                    f"topic {topic!r} does not exist, or ACLs hide it; create it with `ottla topic create {topic}`"
                )
            time.sleep(RETRY_PAUSE_S)

    def send(self, topic: str, record: Record, line: int, stopping: Callable[[], bool]) -> bool:
        """Queues the record. Returns False if `stopping` became true while the queue was full. Raises AdminError."""
        optional: dict[str, Any] = {}
        if record.partition is not None:
            optional["partition"] = record.partition
        if record.timestamp is not None:
            optional["timestamp"] = record.timestamp
        while True:
            try:
                self._client.produce(
                    topic,
                    record.value,
                    record.key,
                    headers=list(record.headers),
                    on_delivery=partial(self._on_delivery, line),
                    **optional,
                )
            except BufferError:
                if stopping():
                    return False
                self._client.poll(QUEUE_FULL_WAIT_S)
            except KafkaException as problem:
                if problem.args[0].fatal():
                    raise AdminError(f"line {line}: the producer cannot continue: {error_text(problem)}") from None
                self._delivered(Delivery.REFUSED, line, _reason(problem.args[0]))
                return True
            else:
                self._client.poll(0)
                return True

    def serve(self, wait_s: float) -> int:
        """Handles deliveries for at most `wait_s`; returns the number of lines without an outcome."""
        self._client.poll(wait_s)
        return len(self._client)

    def give_up(self) -> None:
        """Sets the outcome of every line that has none: unknown, or not sent."""
        self._client.purge(in_queue=True, in_flight=True, blocking=True)
        while self.serve(QUEUE_FULL_WAIT_S):
            pass

    def _on_delivery(self, line: int, error: KafkaError | None, message: Message) -> None:
        if error is None:
            where = f"{message.topic()}-{message.partition()}@{message.offset()}"
            if self._acks == "0":
                self._delivered(Delivery.SENT, line, where)
            else:
                self._delivered(Delivery.ACKNOWLEDGED, line, where)
        elif error.code() == KafkaError._PURGE_QUEUE:
            self._delivered(Delivery.NOT_SENT, line, _reason(error))
        else:
            outcome = Delivery.UNKNOWN if error.code() in MAY_BE_WRITTEN else Delivery.REFUSED
            self._delivered(outcome, line, _reason(error))


def topic_partitions(client: Any, bootstrap_servers: str, topic: str) -> list[int]:
    """The topic's partition numbers, none if it does not exist. Fetches all topics, because a request that names one topic
    could create it. Raises AdminError.
    """
    found = list_topics(client, bootstrap_servers).get(topic)
    return [] if found is None else sorted(found.partitions)


def list_topics(client: Any, bootstrap_servers: str, timeout_s: float = CONNECT_TIMEOUT_S) -> Mapping[str, Any]:
    """The metadata of all topics, by their names, for any of librdkafka's clients. Raises AdminError."""
    if not any(resolves(host) for host, _ in addresses_of(bootstrap_servers)):
        raise AdminError(no_answer(bootstrap_servers))  # librdkafka would only find that nobody answers in time
    try:
        return client.list_topics(timeout=timeout_s).topics  # type: ignore[no-any-return]
    except KafkaException as problem:
        if error_code(problem) not in NOBODY_ANSWERS:
            raise AdminError(error_text(problem)) from None
        raise AdminError(no_answer(bootstrap_servers, timeout_s)) from None


def _reason(error: KafkaError) -> str:
    advice = ADVICE.get(error.code())
    return " ".join(error.str().split()) + (f"; {advice}" if advice else "")


def _ignored(_: object) -> None:
    """Ignores librdkafka's reports on connections: it retries, and each line's outcome is reported."""
