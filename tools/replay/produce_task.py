"""A producing task: sends its operations when they are due, open loop, and notes when each was answered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tools.replay.clients import METADATA_TIMEOUT_S, Clock, LeaderSampler, new_producer
from tools.replay.plan import OperationRow, Plan
from tools.replay.progress import ProgressSender

LONGEST_POLL_S = 0.05
EVENT_HEADER = "ottla-event"
RUN_HEADER = "ottla-run"


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a trace for a task: `due_s` counts from the start, `partition` is already decided,
    `size` is key plus value in bytes."""

    due_s: float
    client: str
    partition: int
    size: int
    acks: int
    event_id: int
    key: bytes | None
    value: bytes | None


class ProduceTask:
    """Replays produce operations. Latency counts from when an operation was due, so stalls are visible: the task never
    waits for an answer before the next send, and delays by the library's full queue count."""

    def __init__(self, task: int, plan: Plan, operations: Sequence[Operation], progress: ProgressSender) -> None:
        self._task = task
        self._plan = plan
        self._operations = sorted(operations, key=lambda operation: operation.due_s)
        self._progress = progress
        self._clock = Clock()
        self._rows: list[OperationRow] = []
        self._unanswered: dict[int, tuple[Operation, float, float]] = {}
        self._leaders = LeaderSampler(plan.bootstrap_servers, plan.topic)
        timeout_s = plan.answer_timeout_s
        acks_used = {operation.acks for operation in self._operations}
        self._producers = {acks: new_producer(plan.bootstrap_servers, acks, timeout_s) for acks in sorted(acks_used)}

    def connect(self) -> None:
        """Fetches the topic's metadata before the start, so that the first operations do not include the handshake."""
        for producer in self._producers.values():
            producer.list_topics(self._plan.topic, timeout=METADATA_TIMEOUT_S)

    def run(self, start: float) -> list[OperationRow]:
        """Replays everything; returns a row for each operation, including those never answered."""
        with self._leaders:
            for operation in self._operations:
                self._wait_until(start + operation.due_s)
                self._send(operation, start + operation.due_s)
            self._await_answers(self._clock.now() + self._plan.answer_timeout_s)
        for operation, scheduled, sent in self._unanswered.values():
            self._rows.append(self._row(operation, scheduled, sent, error="not answered in time"))
        return self._rows

    def _wait_until(self, moment: float) -> None:
        """Handles answers until `moment`, and in any case those that have already arrived."""
        self._progress.send()
        self._poll(0)
        while (remaining := moment - self._clock.now()) > 0:
            self._poll(min(remaining, LONGEST_POLL_S))
            self._progress.send()

    def _poll(self, timeout_s: float) -> None:
        for producer in self._producers.values():
            producer.poll(timeout_s / len(self._producers))

    def _send(self, operation: Operation, scheduled: float) -> None:
        sent = self._clock.now()
        number = operation.event_id
        self._unanswered[number] = (operation, scheduled, sent)
        headers = [(EVENT_HEADER, str(number).encode()), (RUN_HEADER, self._plan.run.encode())]
        value = operation.value if operation.value is not None else bytes(operation.size)
        try:
            self._produce_when_there_is_room(self._producers[operation.acks], operation, value, headers)
        except KafkaException as problem:
            self._answered(number, problem.args[0], None)
            return
        self._progress.progress.sent += 1

    def _produce_when_there_is_room(
        self, producer: Producer, operation: Operation, value: bytes, headers: list[tuple[str, bytes]]
    ) -> None:
        while True:
            try:
                producer.produce(
                    self._plan.topic,
                    value,
                    operation.key,
                    operation.partition,
                    self._when_answered(operation.event_id),
                    headers=headers,
                )
                return
            except BufferError:
                producer.poll(LONGEST_POLL_S)
                self._progress.send()

    def _when_answered(self, number: int) -> Callable[[KafkaError | None, Message], None]:
        return lambda error, message: self._answered(number, error, message.offset())

    def _answered(self, number: int, error: KafkaError | None, offset: int | None) -> None:
        operation, scheduled, sent = self._unanswered.pop(number)
        text = None if error is None else error.str()
        self._rows.append(self._row(operation, scheduled, sent, self._clock.now(), text, offset))
        if error is None:
            self._progress.progress.acknowledged += 1
        else:
            self._progress.progress.failed += 1

    def _await_answers(self, deadline: float) -> None:
        while self._unanswered and self._clock.now() < deadline:
            self._poll(LONGEST_POLL_S)
            self._progress.send()
        self._progress.send(at_once=True)

    def _row(
        self,
        operation: Operation,
        scheduled: float,
        sent: float,
        answered: float | None = None,
        error: str | None = None,
        offset: int | None = None,
    ) -> OperationRow:
        return OperationRow(
            op="produce",
            client=operation.client,
            task=self._task,
            event_id=operation.event_id,
            scheduled=scheduled,
            sent=sent,
            answered=answered,
            bytes=operation.size,
            error=error,
            topic=self._plan.topic,
            partition=operation.partition,
            offset=offset if error is None and offset is not None and offset >= 0 else None,
            leader=self._leaders.leader(operation.partition),
        )


def acknowledged_ends(rows: Sequence[OperationRow]) -> dict[int, int]:
    """Partition -> the offset after the last acknowledged record; everything before it must be readable."""
    ends: dict[int, int] = {}
    for row in rows:
        if row.offset is not None:
            ends[row.partition] = max(ends.get(row.partition, 0), row.offset + 1)
    return ends
