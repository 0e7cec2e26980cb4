"""A member of a consumer group as a process of its own, which can be killed, paused, and told to leave (SIGTERM).

    python -m tests.support.group_chaos_member ASSIGNOR SERVERS GROUP TOPIC JOURNAL [tuned]

ASSIGNOR may be `consumer`: a member of a group of the new kind, whose generation is its epoch.

It commits, synchronously and every COMMIT_EVERY_S, what it has processed. All that it sees and does is a line of its journal, in order;
a line that is there tells what has happened, whatever became of the process. Times are of the machine's monotonic clock, so that
the journals of several members can be compared. It ends when its standard input does.

    assigned    generation, member, partitions      which it was given, before it knows where to begin
    revoked     partitions                          also: lost
    processed   partition, first, last              consecutive offsets
    committed   generations, offsets, since         acknowledged; the generation before and after, when the request was made
    refused     error, offsets, since               not acknowledged; it may count all the same
    failed      error                               what no member should meet
"""

from __future__ import annotations

import json
import os
import signal
import struct
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tools.clients.leave_group import leave_group
from tools.faults.reporting_clients import PROMPT

SESSION_MS = 4_000
HEARTBEAT_MS = 300
CLASSIC = {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": HEARTBEAT_MS}
NEW_KIND = "consumer"
"""In place of the assignor: a group of the new kind (KIP-848), for which the broker has these settings."""
OF_THE_NEW_KIND = {"group.protocol": NEW_KIND}
TUNED = {**PROMPT, "retry.backoff.max.ms": 200}
"""As the producers of these tests; without it librdkafka's defaults."""
HARMLESS = {KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._RESOLVE, KafkaError._TIMED_OUT}
METADATA_MAGIC = b"CGMDv2:"
"""How librdkafka begins a group's metadata; the generation follows."""
INPUT_ENDED = 3
"""The exit code when standard input has ended: the test is over."""
COMMIT_EVERY_S = 0.05
POLL_S = 0.02
PROCESSED_AT_ONCE_MAX = 500


class Journal:
    """Each line is in the file when `write` returns."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, what: str, **fields: Any) -> None:
        os.write(self._file, json.dumps({"at": time.monotonic(), "what": what, **fields}).encode() + b"\n")


class Position:
    """Where the member is in its partitions: the next offset of each, and what has not been written down yet."""

    def __init__(self, journal: Journal) -> None:
        self.next: dict[int, int] = {}
        self._journal = journal
        self._unwritten: dict[int, tuple[int, int]] = {}

    def processed(self, partition: int, offset: int) -> None:
        first, last = self._unwritten.get(partition, (offset, offset - 1))
        if offset != last + 1:
            self.write()
            first = offset
        self._unwritten[partition] = (first, offset)
        self.next[partition] = offset + 1

    def write(self) -> None:
        for partition, (first, last) in self._unwritten.items():
            self._journal.write("processed", partition=partition, first=first, last=last)
        self._unwritten.clear()

    def forget(self, partitions: Iterable[int]) -> None:
        self.write()
        for partition in partitions:
            self.next.pop(partition, None)


class Member:
    """`stopping` is set by SIGTERM."""

    def __init__(
        self, assignor: str, servers: str, group: str, topic: str, journal: Journal, *, is_tuned: bool
    ) -> None:
        self.topic, self.journal = topic, journal
        self.position = Position(journal)
        self.stopping = threading.Event()
        self._commit_due = 0.0
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **(OF_THE_NEW_KIND if assignor == NEW_KIND else {**CLASSIC, "partition.assignment.strategy": assignor}),
                "fetch.wait.max.ms": 50,
                "log_level": 2,
                **(TUNED if is_tuned else {}),
            }
        )
        self._consumer.subscribe(
            [topic],
            on_assign=lambda _, given: self.told(at.partition for at in given),
            on_revoke=lambda _, gone: self._revoked(gone),
            on_lost=lambda _, gone: self.taken("lost", (at.partition for at in gone)),
        )

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self._poll()
                if time.monotonic() >= self._commit_due:
                    self.commit_all()
                    self._commit_due = time.monotonic() + COMMIT_EVERY_S
            self.commit_all()
        finally:
            leave_group(self._consumer)
        self.journal.write("closed")

    def told(self, partitions: Iterable[int]) -> None:
        generation, member = self._generation()
        self.journal.write("assigned", generation=generation, member=member, partitions=sorted(partitions))

    def taken(self, what: str, partitions: Iterable[int]) -> None:
        gone = sorted(partitions)
        self.position.forget(gone)
        self.journal.write(what, partitions=gone)

    def commit_all(self) -> None:
        self.position.write()
        offsets = dict(self.position.next)
        if not offsets:
            return
        since, before = time.monotonic(), self._generation()[0]
        error = self._commit(offsets)
        if error is None:
            self.journal.write("committed", generations=[before, self._generation()[0]], offsets=offsets, since=since)
        else:
            self.journal.write("refused", error=error, offsets=offsets, since=since)

    def _revoked(self, gone: list[TopicPartition]) -> None:
        self.commit_all()
        self.taken("revoked", (at.partition for at in gone))

    def _poll(self) -> None:
        wait_s = POLL_S
        for _ in range(PROCESSED_AT_ONCE_MAX):
            message = self._consumer.poll(wait_s)
            if message is None:
                break
            error = message.error()
            if error is None:
                self.position.processed(message.partition(), message.offset())
            elif error.code() not in HARMLESS:
                self.journal.write("told", error=str(error))
            wait_s = 0.0

    def _commit(self, offsets: Mapping[int, int]) -> str | None:
        """The error, or None."""
        wanted = [TopicPartition(self.topic, partition, offset) for partition, offset in offsets.items()]
        try:
            answered = self._consumer.commit(offsets=wanted, asynchronous=False)
        except KafkaException as error:
            return str(error.args[0])
        errors = [str(at.error) for at in answered or () if at.error is not None]
        return errors[0] if errors else None

    def _generation(self) -> tuple[int, str]:
        """Generation (-1: none), member id."""
        return generation_of(self._consumer.consumer_group_metadata())


def _end_with_standard_input() -> None:
    """Reads the file itself: a lock of `sys.stdin` would be held at the end of the process."""
    while os.read(0, 1024):
        pass
    os._exit(INPUT_ENDED)


def generation_of(metadata: Any) -> tuple[int, str]:
    """Generation (-1: none), member id, of librdkafka's group metadata."""
    data = bytes(metadata)
    assert data.startswith(METADATA_MAGIC), data
    (generation,) = struct.unpack_from("=i", data, len(METADATA_MAGIC))
    _, member, *_ = data[len(METADATA_MAGIC) + 4 :].split(b"\0")
    return generation, member.decode()


def main(assignor: str, servers: str, group: str, topic: str, path: str, *options: str) -> int:
    """Runs the member until SIGTERM. An exception is the last line of the journal."""
    journal = Journal(Path(path))
    try:
        member = Member(assignor, servers, group, topic, journal, is_tuned="tuned" in options)
        signal.signal(signal.SIGTERM, lambda *_: member.stopping.set())
        threading.Thread(target=_end_with_standard_input, daemon=True).start()
        member.run()
    except Exception:
        journal.write("failed", error=traceback.format_exc())
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
