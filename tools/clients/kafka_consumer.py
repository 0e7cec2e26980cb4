"""The only adapter to confluent-kafka's Consumer: reads assigned partitions or as a group's member, returns plain records."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from confluent_kafka import (
    OFFSET_END,
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from tools.admin.client_settings import read_librdkafka_config
from tools.clients.kafka_producer import NEW_TOPIC_PATIENCE_S, topic_partitions
from tools.clients.leave_group import leave_group
from tools.clients.librdkafka_errors import error_code, error_text
from tools.clients.records import ReadRecord
from tools.clients.starts import Start, StartKind, first_offset
from tools.failures import AdminError

REQUEST_TIMEOUT_S = 10.0
RETRY_PAUSE_S = 0.1
NO_GROUP = "ottla-consume"
"""The client requires a group name; without `--group` it joins none and commits nothing."""

TIMESTAMP_TYPES = {TIMESTAMP_CREATE_TIME: "CreateTime", TIMESTAMP_LOG_APPEND_TIME: "LogAppendTime"}

PASSING = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REBALANCE_IN_PROGRESS,
    }
)
"""Errors after which the client retries by itself: a leader or coordinator moved, or a broker is down."""
NOT_SEEN = frozenset(
    {
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)
"""Errors for a partition that exists: the broker that was asked, or the client, has not seen it yet."""
Answer = TypeVar("Answer")


class KafkaConsumer:
    """Reads one topic. `close` it: a group's member then leaves the group."""

    def __init__(
        self,
        bootstrap_servers: str,
        command_config: Path | None,
        topic: str,
        *,
        group: str | None,
        from_beginning: bool,
        isolation_level: str,
        warn: Callable[[str], None],
    ) -> None:
        """Does not connect yet. Calls `warn` for errors that pass by themselves. Raises AdminError for a bad command config or address."""
        self._bootstrap_servers = bootstrap_servers
        self._topic = topic
        self._warn = warn
        self._warned: set[int] = set()
        self._at_end: set[int] = set()
        self._is_reading = False
        self._must_leave = False
        self.is_assigned = False
        settings: dict[str, Any] = {
            "client.id": "ottla-consume",
            **read_librdkafka_config(command_config),
            "group.id": NO_GROUP if group is None else group,
            # Only printed records are committed.
            "enable.auto.commit": group is not None,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error" if group is None else "earliest" if from_beginning else "latest",
            "isolation.level": isolation_level,
            "bootstrap.servers": bootstrap_servers,
            "log_level": "2",
            "error_cb": self._on_error,
        }
        self._is_static = "group.instance.id" in settings
        try:
            self._client = Consumer(settings)
        except (KafkaException, ValueError) as problem:
            source = f"{command_config}: " if command_config else ""
            raise AdminError(f"{source}{error_text(problem)}") from None

    def partitions(self) -> list[int]:
        """The topic's partitions. Raises AdminError if no broker answers, or the topic does not exist."""
        deadline = time.monotonic() + NEW_TOPIC_PATIENCE_S
        while True:
            found = topic_partitions(self._client, self._bootstrap_servers, self._topic)
            if found:
                return found
            if time.monotonic() > deadline:
                raise AdminError(
                    f"topic {self._topic!r} does not exist, or ACLs hide it; `ottla topic list` shows the topics"
                )
            time.sleep(RETRY_PAUSE_S)

    def assign(self, partitions: Sequence[int], start: Start) -> None:
        """Reads these partitions from `start` on. Raises AdminError, also for an offset that a partition does not have."""
        places = [TopicPartition(self._topic, partition) for partition in partitions]
        try:
            if start.kind is StartKind.TIME:
                for place in places:
                    place.offset = start.number
                places = _while_a_leader_moves(lambda: self._offsets_for_times(places))
                for place in places:
                    place.offset = place.offset if place.offset >= 0 else OFFSET_END
            else:
                for place in places:
                    place.offset = self._first_offset(place, start)
            self._client.assign(places)
        except KafkaException as problem:
            raise AdminError(f"topic {self._topic!r} cannot be read: {error_text(problem)}") from None
        self.is_assigned = True

    def _offsets_for_times(self, places: Sequence[TopicPartition]) -> list[TopicPartition]:
        found: list[TopicPartition] = self._client.offsets_for_times(list(places), timeout=REQUEST_TIMEOUT_S)
        for place in found:
            if place.error is not None:
                raise KafkaException(place.error)
        return found

    def _first_offset(self, place: TopicPartition, start: Start) -> int:
        low, high = _while_a_leader_moves(lambda: self._client.get_watermark_offsets(place, timeout=REQUEST_TIMEOUT_S))
        offset = first_offset(start, low, high)
        if offset is None:
            raise AdminError(
                f"partition {place.partition} of {self._topic!r} has no offset {start.number}, only {low} to {high} "
                "(the end); -N reads the last N records"
            )
        return offset

    def subscribe(self) -> None:
        """Joins the group."""
        self._must_leave = not self._is_static
        self._client.subscribe([self._topic], on_assign=self._on_assign, on_revoke=self._on_revoke)

    def _on_assign(self, _client: Consumer, _partitions: Sequence[TopicPartition]) -> None:
        self.is_assigned = True
        self._at_end.clear()

    def _on_revoke(self, _client: Consumer, partitions: Sequence[TopicPartition]) -> None:
        self._at_end -= {place.partition for place in partitions}

    def read(self, count: int, wait_s: float) -> list[tuple[ReadRecord, Message]]:
        """Up to `count` records that arrive within `wait_s`, each with its message for `mark_printed`. Raises AdminError."""
        found = []
        self._is_reading = True
        try:
            messages = self._client.consume(count, timeout=wait_s)
        except KafkaException as problem:
            raise AdminError(f"topic {self._topic!r} cannot be read: {error_text(problem)}") from None
        for message in messages:
            error = message.error()
            if error is None:
                self._at_end.discard(message.partition())
                found.append((_record(message), message))
            elif error.code() == KafkaError._PARTITION_EOF:
                self._at_end.add(message.partition())
            else:
                self._on_error(error)
                if error.code() not in PASSING and not error.retriable():
                    raise AdminError(f"topic {self._topic!r} cannot be read: {_text(error)}")
        return found

    @property
    def is_at_end(self) -> bool:
        """Whether every partition that this consumer reads has been read to its end."""
        return self.is_assigned and {place.partition for place in self._client.assignment()} <= self._at_end

    def mark_printed(self, message: Message) -> None:
        """Allows a commit of this record and those before it in its partition."""
        try:
            self._client.store_offsets(message)
        except KafkaException as problem:
            # The partition has moved to another member, which will read these records again.
            self._warn(
                f"offset {message.offset()} of partition {message.partition()} can no longer be committed here: "
                f"{error_text(problem)}"
            )

    def commit(self) -> None:
        """Commits the printed records. Raises AdminError; they are then read again next time."""
        try:
            self._client.commit(asynchronous=False)
        except KafkaException as problem:
            if error_code(problem) != KafkaError._NO_OFFSET:
                raise AdminError(f"the last records read were not committed: {error_text(problem)}") from None

    def close(self) -> None:
        if self._must_leave:
            leave_group(self._client)
        else:
            self._client.close()

    def _on_error(self, error: KafkaError) -> None:
        """Warns once per error code, because the client repeats errors while a broker is down.

        Before reading starts there is no warning: `partitions` and `assign` raise the error.
        """
        if self._is_reading and error.code() in PASSING and error.code() not in self._warned:
            self._warned.add(error.code())
            self._warn(f"{_text(error)}; still trying")


def _while_a_leader_moves(ask: Callable[[], Answer]) -> Answer:
    """Asks again for REQUEST_TIMEOUT_S while the partition, which exists, has no leader, or the client does not know it.

    librdkafka says then that the partition is unknown. Raises KafkaException.
    """
    deadline = time.monotonic() + REQUEST_TIMEOUT_S
    while True:
        try:
            return ask()
        except KafkaException as problem:
            if error_code(problem) not in PASSING | NOT_SEEN or time.monotonic() > deadline:
                raise
        time.sleep(RETRY_PAUSE_S)


def _record(message: Message) -> ReadRecord:
    kind, timestamp = message.timestamp()
    return ReadRecord(
        topic=message.topic(),
        partition=message.partition(),
        offset=message.offset(),
        timestamp=None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp,
        timestamp_type=TIMESTAMP_TYPES.get(kind, "NoTimestampType"),
        key=message.key(),
        value=message.value(),
        headers=tuple(message.headers() or ()),
    )


def _text(error: KafkaError) -> str:
    return " ".join(error.str().split())
