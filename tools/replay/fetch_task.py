"""A reading task: reads its partitions while they are written, until everything acknowledged is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from confluent_kafka import KafkaException, Message, TopicPartition

from tools.replay.clients import METADATA_TIMEOUT_S, Clock, LeaderSampler, end_offsets, new_consumer
from tools.replay.plan import OperationRow, Plan
from tools.replay.produce_task import EVENT_HEADER, RUN_HEADER, Operation
from tools.replay.progress import ProgressSender

LONGEST_POLL_S = 0.1
MESSAGES_PER_TURN = 1000


class FetchTask:
    """Replays fetch operations. Latency counts from when an event was due. The consumer polls all the time, as consumers
    do; an operation is answered by the poll that returns its event. An event read twice gives two rows, an event never read a
    row with an error."""

    def __init__(
        self,
        task: int,
        plan: Plan,
        partitions: Sequence[int],
        operations: Iterable[Operation],
        progress: ProgressSender,
    ) -> None:
        self._task = task
        self._plan = plan
        self._partitions = partitions
        self._expected = {operation.event_id: operation for operation in operations}
        self._read: set[int] = set()
        self._progress = progress
        self._clock = Clock()
        self._rows: list[OperationRow] = []
        self._positions = {partition: plan.start_offsets[partition] for partition in partitions}
        self._leaders = LeaderSampler(plan.bootstrap_servers, plan.topic)
        self._consumer = new_consumer(plan.bootstrap_servers)

    def connect(self) -> None:
        self._consumer.list_topics(self._plan.topic, timeout=METADATA_TIMEOUT_S)
        self._consumer.assign([TopicPartition(self._plan.topic, *position) for position in self._positions.items()])

    def run(self, start: float, acknowledged: Callable[[], Mapping[int, int] | None]) -> list[OperationRow]:
        """Reads until everything is read. `acknowledged` returns the ends of what all producing tasks got acknowledged
        (partition -> offset), or None until they are done."""
        with self._leaders:
            while (acknowledged_ends := acknowledged()) is None:
                self._turn(start)
            self._read_up_to(start, acknowledged_ends)
        self._consumer.close()
        missing = [operation for number, operation in self._expected.items() if number not in self._read]
        self._rows.extend(self._row(operation, start, error="not read") for operation in missing)
        self._progress.send(at_once=True)
        return self._rows

    def _read_up_to(self, start: float, acknowledged_ends: Mapping[int, int]) -> None:
        """Reads to the end of the partitions: a repeated record may come even after the last acknowledged one."""
        deadline = self._clock.now() + self._plan.read_timeout_s
        targets: dict[int, int] | None = None
        while self._clock.now() < deadline:
            if targets is None:
                targets = self._targets(acknowledged_ends)
            if targets is not None and all(self._positions[each] >= end for each, end in targets.items()):
                return
            self._turn(start)

    def _targets(self, acknowledged_ends: Mapping[int, int]) -> dict[int, int] | None:
        try:
            ends = end_offsets(self._consumer, self._plan.topic, self._partitions)
        except KafkaException:
            return None  # a leader is unavailable; retried on the next turn
        return {each: max(end, acknowledged_ends.get(each, 0)) for each, end in ends.items()}

    def _turn(self, start: float) -> None:
        began = self._clock.now()
        first = self._consumer.poll(LONGEST_POLL_S)
        if first is not None:
            messages = [first, *self._consumer.consume(MESSAGES_PER_TURN, timeout=0)]
            now = self._clock.now()
            for message in messages:
                self._take(message, start, began, now)
        self._progress.send()

    def _take(self, message: Message, start: float, began: float, now: float) -> None:
        if message.error() is not None:
            return  # a reported error from which the library recovers; its cost shows in the rows
        partition, offset = message.partition(), message.offset()
        self._positions[partition] = max(self._positions[partition], offset + 1)
        headers = dict(message.headers() or ())
        if headers.get(RUN_HEADER) != self._plan.run.encode():
            return  # another program also writes to this topic
        operation = self._expected.get(int(headers[EVENT_HEADER]))
        if operation is None:
            return  # the trace has no fetch of this event
        self._read.add(operation.event_id)
        self._progress.progress.read = len(self._read)
        self._rows.append(self._row(operation, start, began, now, None, offset))

    def _row(
        self,
        operation: Operation,
        start: float,
        sent: float | None = None,
        answered: float | None = None,
        error: str | None = None,
        offset: int | None = None,
    ) -> OperationRow:
        return OperationRow(
            op="fetch",
            client=operation.client,
            task=self._task,
            event_id=operation.event_id,
            scheduled=start + operation.due_s,
            sent=sent,
            answered=answered,
            bytes=operation.size,
            error=error,
            topic=self._plan.topic,
            partition=operation.partition,
            offset=offset,
            leader=self._leaders.leader(operation.partition),
        )
