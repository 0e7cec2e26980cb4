"""A worker of an exactly-once pipeline as a process of its own: it reads, writes and commits its positions in one transaction (KIP-447).

    python -m tests.support.pipeline_worker TRANSACTIONAL_ID SERVERS GROUP INPUT OUTPUT OUTPUT_PARTITIONS SIDE KIND JOURNAL

For each record of INPUT it writes one record to OUTPUT and one to SIDE, whose value is the place of the record that was read, such as
`3@117`. SIDE may be deleted and made again at any time, with another number of partitions; librdkafka chooses the partition.
If KIND is `fleeting`, this may happen to INPUT too: the positions may go back, and the value that was read is before the place.
It does what librdkafka asks of an application: it retries a retriable error, aborts if the transaction must be aborted, and
replaces the producer after a fatal error, such as being fenced. Then it continues at the committed positions. It leaves the
group at SIGTERM, and ends when its standard input does. The lines of its journal are those of `group_chaos_member`, but:

    committed   generations, offsets, since, places   the transaction is committed; places: partition -> ranges (first, last) that were read
    refused     error, offsets, since, does           the transaction is not committed, or that is unknown; does: abort or replace
    skipped     partition, from, to                   the records from `from` to before `to` are not there any more
    hung        call                                  librdkafka does not go on by itself; the worker has ended itself (HUNG)
    stale                                             nothing of a fleeting input came for STALE_S; the worker has ended itself (STALE)

librdkafka (2.16) keeps the leader of a topic that is made again if the leader epochs of the old topic were higher: "ignoring outdated
metadata update". Its messages then time out, and its fetches fail, until the client is replaced. Messages for a partition that is gone
may even stay for ever, beyond their time-out.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.support.journalled_member import (
    HARMLESS,
    HEARTBEAT_MS,
    SESSION_MS,
    TUNED,
    Journal,
    generation_of,
    run_member,
)
from tools.clients.leave_group import leave_group

TRANSACTION_TIMEOUT_MS = 6_000
CALL_TIMEOUT_S = 3.0
"""After this time a call is made again: librdkafka continues what it was doing."""
HUNG_S = 3 * CALL_TIMEOUT_S
"""librdkafka 2.16 may never return from send_offsets_to_transaction if the coordinator of the group moves meanwhile: its issues 5456 and
5511. The worker then ends itself. Another call that does not return is an error."""
NEVER_FETCHED = "Failed to fetch committed offsets for 0 partition(s)"
"""With NOT_COORDINATOR: librdkafka 2.16 does not ask the next coordinator, and never reads the partitions (its issue 5586)."""
HUNG = 4
"""The exit code."""
FLEETING = "fleeting"
STALE_S = 10.0
STALE = 5
"""The exit code."""
TIMED_OUT_MAX = 2
"""A producer whose messages timed out in so many transactions, one after the other, is replaced."""
INSISTED_S = 15.0
"""More than the time-out of a transaction: its messages must have timed out."""
BATCH_MAX = 200
POLL_S = 0.02
RETRY_S = 0.05


TIMED_OUT = {KafkaError._TIMED_OUT, KafkaError._MSG_TIMED_OUT, KafkaError._INCONSISTENT}


class MustAbort(Exception):
    """The worker aborts its transaction, although librdkafka does not ask for it."""


def ranges_of(batch: Iterable[tuple[int, int]]) -> dict[int, list[list[int]]]:
    """Partition -> the ranges (first, last) of its offsets, which are in order."""
    found: dict[int, list[list[int]]] = {}
    for partition, offset in batch:
        ranges = found.setdefault(partition, [])
        if ranges and ranges[-1][1] == offset - 1:
            ranges[-1][1] = offset
        else:
            ranges.append([offset, offset])
    return found


class Worker:
    """`stopping` is set by SIGTERM."""

    def __init__(
        self,
        transactional_id: str,
        servers: str,
        group: str,
        topic: str,
        output: str,
        partitions: int,
        side: str,
        kind: str,
        journal: Journal,
    ) -> None:
        self._is_fleeting = kind == FLEETING
        self.stopping = threading.Event()
        self._topic, self._output, self._output_partitions, self._side = topic, output, partitions, side
        self._journal = journal
        self._batch: list[tuple[int, int, bytes]] = []
        """The places of the records that were read and are in no transaction yet, and what to write for each."""
        self._next: dict[int, int | None] = {}
        """Own partition -> the offset that must be read next; None: whichever is committed."""
        self._misplaced: set[int] = set()
        """Own partitions where the consumer is not at the committed position."""
        common = {"bootstrap.servers": servers, "log_level": 2, **TUNED}
        self._producer_settings = {
            **common,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "linger.ms": 2,
            # A side output with fewer partitions is noticed.
            "topic.metadata.refresh.interval.ms": 1000,
        }
        self._producer: Producer | None = None
        self._timed_out = 0
        self._read_at = time.monotonic()
        self._consumer = Consumer(
            {
                **common,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": HEARTBEAT_MS,
                "partition.assignment.strategy": "cooperative-sticky",
                "fetch.wait.max.ms": 50,
                "topic.metadata.refresh.interval.ms": 1000,
            }
        )
        self._consumer.subscribe(
            [topic],
            on_assign=lambda _, given: self._given([at.partition for at in given]),
            on_revoke=lambda _, gone: self._taken("revoked", {at.partition for at in gone}),
            on_lost=lambda _, gone: self._taken("lost", {at.partition for at in gone}),
        )

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self._read()
                if self._is_stale():
                    self._journal.write("stale")
                    os._exit(STALE)
                if self._misplaced:
                    self._continue_at_committed()
                elif self._batch:
                    self._transact()
        finally:
            leave_group(self._consumer)
        self._journal.write("closed")

    def _is_stale(self) -> bool:
        if not self._next or not self._is_fleeting or self._batch:
            self._read_at = time.monotonic()
        return time.monotonic() - self._read_at > STALE_S

    def _given(self, partitions: list[int]) -> None:
        generation, member = generation_of(self._consumer.consumer_group_metadata())
        self._journal.write("assigned", generation=generation, member=member, partitions=sorted(partitions))
        self._next |= dict.fromkeys(partitions)

    def _taken(self, what: str, partitions: set[int]) -> None:
        self._journal.write(what, partitions=sorted(partitions))
        self._batch = [place for place in self._batch if place[0] not in partitions]
        self._misplaced -= partitions
        for partition in partitions:
            self._next.pop(partition, None)

    def _read(self) -> None:
        wait_s = POLL_S
        while len(self._batch) < BATCH_MAX:
            message = self._consumer.poll(wait_s)
            if message is None:
                break
            wait_s = 0.0
            error = message.error()
            if error is not None:
                if error.code() not in HARMLESS:
                    self._journal.write("told", error=str(error))
                if error.code() == KafkaError.NOT_COORDINATOR and NEVER_FETCHED in error.str():
                    self._journal.write("hung", call="the fetch of committed offsets")
                    os._exit(HUNG)
                continue
            partition, offset = message.partition(), message.offset()
            if partition in self._misplaced or partition not in self._next:
                continue
            expected = self._next[partition]
            if expected is not None and offset > expected:
                self._journal.write("skipped", partition=partition, **{"from": expected, "to": offset})
            elif expected is not None and offset < expected and not self._is_fleeting:
                self._journal.write("failed", error=f"{partition}@{offset} was read, not {expected}")
            self._next[partition] = offset + 1
            value = b"%d@%d" % (partition, offset)
            if self._is_fleeting:
                value = b"%s at %s" % (message.value(), value)
            self._batch.append((partition, offset, value))

    def _transact(self) -> None:
        batch, self._batch = self._batch, []
        offsets: dict[int, int] = {}
        for partition, offset, _ in batch:
            offsets[partition] = offset + 1
        since = time.monotonic()
        producer = self._producer
        try:
            if producer is None:
                self._producer = producer = Producer(self._producer_settings)
                self._insist(lambda: producer.init_transactions(CALL_TIMEOUT_S))
            producer.begin_transaction()
            self._produce(producer, batch)
            metadata = self._consumer.consumer_group_metadata()
            generation, _ = generation_of(metadata)
            if generation < 0:
                raise MustAbort("in no generation of the group: the commit would not be fenced")
            positions = [TopicPartition(self._topic, *position) for position in offsets.items()]
            self._insist(
                lambda: producer.send_offsets_to_transaction(positions, metadata, CALL_TIMEOUT_S), may_hang=True
            )
            self._insist(lambda: producer.commit_transaction(CALL_TIMEOUT_S))
        except (KafkaException, MustAbort) as problem:
            self._misplaced = set(self._next)
            error = problem.args[0]
            can_abort = isinstance(problem, MustAbort) or error.txn_requires_abort()
            self._journal.write(
                "refused", error=str(error), offsets=offsets, since=since, does="abort" if can_abort else "replace"
            )
            is_late = isinstance(problem, KafkaException) and error.code() in TIMED_OUT
            self._timed_out = self._timed_out + 1 if is_late else 0
            if not can_abort or not self._abort(producer) or self._timed_out >= TIMED_OUT_MAX:
                self._producer = None
                self._timed_out = 0
        else:
            self._timed_out = 0
            self._journal.write(
                "committed",
                generations=[generation] * 2,
                offsets=offsets,
                since=since,
                places=ranges_of(at[:2] for at in batch),
            )

    def _produce(self, producer: Producer, batch: Iterable[tuple[int, int, bytes]]) -> None:
        try:
            for _, offset, value in batch:
                producer.produce(self._output, value, partition=offset % self._output_partitions)
                producer.produce(self._side, value)
        except KafkaException as problem:
            raise MustAbort(f"produce: {problem.args[0]}") from problem  # such as an unknown topic

    def _abort(self, producer: Producer | None) -> bool:
        """False: the producer must be replaced."""
        try:
            if producer is not None:
                self._insist(lambda: producer.abort_transaction(CALL_TIMEOUT_S))
        except KafkaException as problem:
            self._journal.write("told", error=f"abort: {problem.args[0]}")
            return False
        return True

    def _insist(self, call: Callable[[], Any], *, may_hang: bool = False) -> None:
        """Calls again after each retriable error. Raises KafkaException for other errors, and after INSISTED_S."""
        began = time.monotonic()
        while True:
            watch = threading.Timer(HUNG_S, self._hung, [may_hang])
            watch.daemon = True
            watch.start()
            try:
                call()
                return
            except KafkaException as problem:
                error = problem.args[0]
                if error.fatal() or error.txn_requires_abort() or not error.retriable():
                    raise
                if time.monotonic() - began > INSISTED_S:
                    raise  # the producer is replaced
                self._journal.write("told", error=f"retriable: {error}")
            finally:
                watch.cancel()

    def _hung(self, may_hang: bool) -> None:
        if may_hang:
            self._journal.write("hung", call="send_offsets_to_transaction")
        else:
            self._journal.write("failed", error=f"a call did not return in {HUNG_S:g} s")
        os._exit(HUNG)

    def _continue_at_committed(self) -> None:
        """Tries it once. The batch has records of other partitions only, which were assigned meanwhile."""
        wanted = [TopicPartition(self._topic, partition) for partition in sorted(self._misplaced)]
        try:
            for at in self._consumer.committed(wanted, timeout=CALL_TIMEOUT_S):
                if at.error is not None:
                    raise KafkaException(at.error)
                offset = max(at.offset, 0)  # without a committed offset: the log start
                self._consumer.seek(TopicPartition(self._topic, at.partition, offset))
                self._next[at.partition] = offset
                self._misplaced.discard(at.partition)
        except KafkaException as problem:
            self._journal.write("told", error=f"committed: {problem.args[0]}")
            time.sleep(RETRY_S)


def main(
    transactional_id: str,
    servers: str,
    group: str,
    topic: str,
    output: str,
    partitions: str,
    side: str,
    kind: str,
    path: str,
) -> int:
    def worker(journal: Journal) -> Worker:
        return Worker(transactional_id, servers, group, topic, output, int(partitions), side, kind, journal)

    return run_member(path, worker)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
