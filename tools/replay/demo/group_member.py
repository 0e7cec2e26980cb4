"""One member of the demo's consumer group: a consumer in a thread that reads its partitions and commits."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaException, Message

from tools.clients.leave_group import leave_group
from tools.replay.demo.clients import QUIET, ignore_error
from tools.replay.load.stamps import STAMP, STAMP_SIZE
from tools.replay.run.control import Clock

ASSIGNOR = "cooperative-sticky"
COMMIT_INTERVAL_MS = 200
LONGEST_POLL_S = 0.1
MESSAGES_PER_TURN = 1000


class GroupRead(NamedTuple):
    """A record of the replay read by a member (1, 2, ...); `at` is in seconds since 1970 UTC. `event_id`: see `event_id`."""

    member: int
    partition: int
    offset: int
    event_id: int
    at: float


def event_id(producer: int, sequence: int) -> int:
    """A number for each record of a replay: its producer, then 32 bits of its sequence."""
    return producer << 32 | sequence


class GroupMember:
    """Reads in its own thread from `start` to `stop`; its records may be read meanwhile."""

    def __init__(
        self, number: int, group: str, bootstrap_servers: str, properties: Mapping[str, str], topic: str, run: int
    ) -> None:
        """`properties` are librdkafka's."""
        self.number = number
        self.reads: list[GroupRead] = []
        self.partitions: set[int] = set()
        """The partitions currently assigned to it."""
        self.assigned_at: list[float] = []
        """The times of its assignments: one for each generation of the group, even without new partitions."""
        self.committed_at: list[float] = []
        self.failed_commits = 0
        self._topic = topic
        self._run = run
        self._clock = Clock()
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._read_until_stopped, name=f"reader-{number}", daemon=True)
        self._consumer = Consumer(
            {
                **QUIET,
                **properties,
                "bootstrap.servers": bootstrap_servers,
                "client.id": f"reader-{number}",
                "group.id": group,
                "partition.assignment.strategy": ASSIGNOR,
                "auto.offset.reset": "earliest",
                # Only records that were read *and* noted are committed: nothing is skipped if a member dies in between.
                "enable.auto.commit": True,
                "auto.commit.interval.ms": COMMIT_INTERVAL_MS,
                "enable.auto.offset.store": False,
                "fetch.error.backoff.ms": 50,
                "on_commit": self._on_commit,
                "error_cb": ignore_error,
            }
        )

    def start(self) -> None:
        self._consumer.subscribe(
            [self._topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
        )
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Makes it commit and leave the group, in its thread."""
        self._is_stopped.set()

    def join(self, timeout_s: float) -> None:
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _read_until_stopped(self) -> None:
        while not self._is_stopped.is_set():
            first = self._consumer.poll(LONGEST_POLL_S)
            if first is not None:
                self._take([first, *self._consumer.consume(MESSAGES_PER_TURN, timeout=0)])
        leave_group(self._consumer)

    def _take(self, messages: Sequence[Message]) -> None:
        now = self._clock.now_ns() / 1e9
        for message in messages:
            if message.error() is not None:
                continue  # a reported error from which the library recovers; its cost shows in the times
            value = message.value() or b""
            if len(value) >= STAMP_SIZE:
                run, producer, sequence, _ = STAMP.unpack_from(value)
                if run == self._run:
                    event = event_id(producer, sequence)
                    self.reads.append(GroupRead(self.number, message.partition(), message.offset(), event, now))
            try:
                self._consumer.store_offsets(message)
            except KafkaException:
                continue  # the partition has moved to another member, which reads the record again

    def _on_assign(self, _: Consumer, partitions: Sequence[Any]) -> None:
        self.assigned_at.append(self._clock.now_ns() / 1e9)
        self.partitions |= {each.partition for each in partitions}

    def _on_revoke(self, _: Consumer, partitions: Sequence[Any]) -> None:
        self.partitions -= {each.partition for each in partitions}

    def _on_commit(self, error: object, _: Sequence[Any]) -> None:
        if error is None:
            self.committed_at.append(self._clock.now_ns() / 1e9)
        else:
            self.failed_commits += 1
