"""Is a partition in the transaction that a batch names? The transaction coordinator is asked before the batch is appended (KIP-890).

Otherwise a batch that arrives late, after its transaction was ended, would begin a transaction that nobody ends, and readers of
committed records would stop there for good. Only the first batch of a transaction in a partition is verified: from then on, the log
itself says that the transaction is ongoing.

A producer of transaction version 2 (KIP-890, Produce v12 and TxnOffsetCommit v5) does not add partitions to its transaction. Here the
coordinator is asked to add them, instead of only whether they are in it. The rest is the same.

1. `of_batches`, `of_commit` find the partitions whose log does not know the transaction.
2. `ask` makes a guard in each of these logs (`verified_transactions` ●), and asks the coordinator for all of them together. If it says
   yes, and the guard is still valid, the log knows the transaction.
3. `check` is called right before each append: the log must know the transaction. If the marker of the transaction came meanwhile, because
   the coordinator aborted it, the producer is fenced: INVALID_PRODUCER_EPOCH, as in Kafka 4.1.1 (KAFKA-19690). INVALID_TXN_STATE would end
   a Kafka Streams application.

In transaction version 2 the coordinator may answer after the producer's last transaction has ended in this log, which makes the guard
void. Such a partition is asked for once more.

As in Kafka's ReplicaManager, an error of the coordinator that may pass becomes NOT_ENOUGH_REPLICAS for Produce, which all clients retry
without asking for metadata. Only CONCURRENT_TRANSACTIONS stays as it is in transaction version 2. Commits of offsets have errors of
their own (`broker/groups/transactions.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from broker.replication.hosted_partitions import HostedPartitions
from broker.storage.log import Log
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.record_batch import HEADER_SIZE, BatchHeader, parse_header
from protocol.types import Buffer, TopicPartition

log = logging.getLogger(__name__)

PASSING_ERRORS = frozenset(
    (
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    )
)
"""Errors of the coordinator that may pass: the client sends its batch again. Kafka's ReplicaManager names exactly these."""


class TransactionVerifier(Protocol):
    """Asks the transaction coordinator."""

    async def verify(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        """NONE for each partition that is in the producer's ongoing transaction; the coordinator's error for the others."""
        ...

    async def add(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Adds the partitions to the producer's transaction, which begins if need be. NONE for each that is in it now."""
        ...


class Verification:
    """Of one producer in some partitions. See the module for the order of the calls."""

    __slots__ = ("_adds", "_asked", "_errors", "_hosted", "_logs", "_producer_epoch", "_producer_id", "_verifier")

    def __init__(
        self,
        hosted: HostedPartitions,
        verifier: TransactionVerifier,
        producer_id: int,
        producer_epoch: int,
        partitions: Iterable[TopicPartition],
        *,
        adds: bool = False,
    ) -> None:
        """A partition that this broker does not lead gets its error for good: if this broker leads it later, nothing was verified.

        `adds`: partitions are added to the transaction (transaction version 2).
        """
        self._adds = adds
        self._hosted = hosted
        self._verifier = verifier
        self._producer_id = producer_id
        self._producer_epoch = producer_epoch
        self._errors: dict[TopicPartition, ErrorCode] = {}
        self._logs: dict[TopicPartition, Log] = {}
        self._asked: list[TopicPartition] = []
        for tp in partitions:
            try:
                found = hosted.find(tp).leader_log()
            except KafkaError as error:
                self._errors[tp] = error.code
                continue
            self._logs[tp] = found
            if not self._is_known(found):
                self._asked.append(tp)

    @property
    def is_needed(self) -> bool:
        """Whether `ask` must be awaited."""
        return bool(self._asked)

    async def ask(self, transactional_id: str) -> None:
        """Asks the coordinator. What cannot be verified is refused by `check`."""
        await self._ask(transactional_id, self._asked)
        if self._adds:
            again = [tp for tp in self._asked if tp not in self._errors and not self._is_known(self._logs[tp])]
            if again:
                await self._ask(transactional_id, again)

    async def _ask(self, transactional_id: str, asked: Sequence[TopicPartition]) -> None:
        producer_id, epoch = self._producer_id, self._producer_epoch
        # Not made earlier: a request that is cancelled before it asks would leave them in the logs.
        guards = {tp: self._logs[tp].producers.verified.begin(producer_id, epoch) for tp in asked}
        answers: Mapping[TopicPartition, ErrorCode] = {}
        try:
            ask = self._verifier.add if self._adds else self._verifier.verify
            answers = await ask(transactional_id, producer_id, epoch, asked)
        except KafkaError as error:
            answers = dict.fromkeys(asked, error.code)
        finally:
            for tp, guard in guards.items():
                is_verified = answers.get(tp) is ErrorCode.NONE
                self._logs[tp].producers.verified.end(producer_id, guard, is_verified=is_verified)
        for tp in asked:
            code = answers.get(tp, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            if code is not ErrorCode.NONE:
                log.info("transaction of %.200s, %s is not verified: %s", transactional_id, tp, code.name)
                self._errors[tp] = code

    def _is_known(self, found: Log) -> bool:
        return found.producers.is_in_transaction(self._producer_id, self._producer_epoch)

    def outcome(self, tp: TopicPartition) -> ErrorCode:
        """NONE: a batch that is appended in the same turn of the loop is in the transaction. INVALID_TXN_STATE: it would begin another one.
        INVALID_PRODUCER_EPOCH: the producer is fenced in the log.

        NOT_ENOUGH_REPLICAS: the log was replaced meanwhile. Otherwise the coordinator's error, or that of a replica that does not lead.
        """
        if tp in self._errors:
            return self._errors[tp]
        try:
            found = self._hosted.find(tp).leader_log()
        except KafkaError as error:
            return error.code
        code = _error_in(found, self._producer_id, self._producer_epoch)
        if code is ErrorCode.INVALID_TXN_STATE and self._logs.get(tp) is not found:
            return ErrorCode.NOT_ENOUGH_REPLICAS
        return code

    def check(self, tp: TopicPartition, header: BatchHeader) -> None:
        """`outcome` for Produce. Raises KafkaError if the batch must not be appended.

        Of a producer that the log does not know, any sequence is accepted, because it may have been forgotten. In transaction version 2
        each transaction begins at sequence 0: another one means that an earlier batch of the transaction was refused (Kafka's
        ProducerAppendInfo.checkSequence).
        """
        code = self.outcome(tp)
        if code is not ErrorCode.NONE:
            raise _for_producers(code, adds=self._adds)
        if not self._adds or header.base_sequence <= 0:
            return
        if not self._hosted.find(tp).leader_log().producers.knows(header.producer_id):
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id}, epoch {header.producer_epoch}: sequence {header.base_sequence}, expected 0",
            )


def _error_in(found: Log, producer_id: int, epoch: int) -> ErrorCode:
    """NONE: the log knows the producer's transaction."""
    if found.producers.is_in_transaction(producer_id, epoch):
        return ErrorCode.NONE
    is_fenced = found.producers.is_fenced(producer_id, epoch)
    return ErrorCode.INVALID_PRODUCER_EPOCH if is_fenced else ErrorCode.INVALID_TXN_STATE


def _for_producers(code: ErrorCode, *, adds: bool) -> KafkaError:
    """The coordinator's error as producers know it."""
    if code is ErrorCode.CONCURRENT_TRANSACTIONS and adds:
        return KafkaError(code, "the producer's last transaction is not complete yet")
    if code in PASSING_ERRORS:
        return KafkaError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"the coordinator could not say whether the partition is in the transaction: {code.name}",
        )
    if code is ErrorCode.PRODUCER_FENCED:
        return KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, "a newer instance of the producer has taken over")
    if code is ErrorCode.INVALID_PRODUCER_EPOCH:
        return KafkaError(code, "the transaction was ended, and the producer fenced")
    if code is ErrorCode.INVALID_TXN_STATE:
        return KafkaError(code, "the batch is not part of an ongoing transaction")
    return KafkaError(code)


class TransactionVerification:
    """Whether transactions are verified, and by whom. `verifier` None: not at all.

    `is_enabled` is `transaction.partition.verification.enable`. Partitions are added without it, too.
    """

    def __init__(self, hosted: HostedPartitions, is_enabled: bool) -> None:
        self._hosted = hosted
        self.is_enabled = is_enabled
        self.verifier: TransactionVerifier | None = None

    def of_batches(
        self, entries: Iterable[tuple[TopicPartition, Buffer]], *, adds: bool = False
    ) -> Verification | None:
        """Begins the verification of a client's transactional batches. None: there are none, or nothing is verified.

        `adds`: their partitions are added to the transaction. Raises KafkaError(INVALID_PRODUCER_ID_MAPPING) if they are not all of one
        producer.
        """
        if self.verifier is None or not (self.is_enabled or adds):
            return None
        headers = {tp: header for tp, records in entries if (header := transactional_header(records)) is not None}
        producers = {(header.producer_id, header.producer_epoch) for header in headers.values()}
        if not producers:
            return None
        if len(producers) > 1:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING, "the transactional batches of a request are of several producers"
            )
        return Verification(self._hosted, self.verifier, *producers.pop(), headers, adds=adds)

    def of_commit(
        self, tp: TopicPartition, producer_id: int, producer_epoch: int, *, adds: bool = False
    ) -> Verification | None:
        """Begins the verification of a commit in this partition of `__consumer_offsets`. None: nothing is verified."""
        if self.verifier is None or not (self.is_enabled or adds):
            return None
        return Verification(self._hosted, self.verifier, producer_id, producer_epoch, (tp,), adds=adds)

    def error_of_commit(
        self, tp: TopicPartition, producer_id: int, producer_epoch: int, *, adds: bool = False
    ) -> ErrorCode:
        """NONE: a commit of the producer may be appended now: its log knows the transaction, or nothing is verified."""
        if self.verifier is None or not (self.is_enabled or adds):
            return ErrorCode.NONE
        try:
            return _error_in(self._hosted.find(tp).leader_log(), producer_id, producer_epoch)
        except KafkaError:
            return ErrorCode.NONE  # the append fails


def transactional_header(records: Buffer) -> BatchHeader | None:
    """The header of a producer's transactional batch; None for other batches, and for bytes that are too short for one."""
    if len(records) < HEADER_SIZE:
        return None
    header = parse_header(records)
    return header if header.is_transactional and not header.is_control and header.producer_id >= 0 else None
