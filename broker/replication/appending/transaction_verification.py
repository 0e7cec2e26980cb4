"""Is a partition in the transaction that a batch names? The transaction coordinator is asked before the batch is appended (KIP-890).

Otherwise a batch that arrives late, after its transaction was ended, would begin a transaction that nobody ends, and readers of
committed records would stop there for good. Only the first batch of a transaction in a partition is verified: from then on, the log
itself says that the transaction is ongoing.

1. `begin` finds the partitions whose log does not know the transaction, and makes a guard in each log (`verified_transactions` ●).
2. `ask` asks the coordinator for all of them together.
3. `check` is called right before each append: the transaction must be ongoing in the log, or its guard must still be valid.
4. `end` removes the guards.

As in Kafka's ReplicaManager, an error of the coordinator that may pass becomes NOT_ENOUGH_REPLICAS, which all clients retry without
asking for metadata.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from broker.replication.hosted_partitions import HostedPartitions
from broker.replication.partition import Partition
from broker.storage.log import Log
from broker.storage.producers.verified_transactions import VerificationGuard
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.record_batch import HEADER_SIZE, BatchHeader, Buffer, parse_header
from protocol.types import TopicPartition

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
"""Errors of the coordinator that may pass: the client sends its batch again."""


class TransactionVerifier(Protocol):
    """Asks the transaction coordinator."""

    async def verify(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        """NONE for each partition that is in the producer's ongoing transaction; the coordinator's error for the others."""
        ...


class Verification:
    """The transactional batches of one request, which are all of one producer. See the module for the order of the calls."""

    __slots__ = ("_errors", "_guards", "_hosted", "_producer_epoch", "_producer_id")

    def __init__(self, hosted: HostedPartitions, producer_id: int, producer_epoch: int) -> None:
        self._hosted = hosted
        self._producer_id = producer_id
        self._producer_epoch = producer_epoch
        self._guards: dict[TopicPartition, tuple[Log, VerificationGuard]] = {}
        self._errors: dict[TopicPartition, KafkaError] = {}

    def begin(self, partitions: Iterable[TopicPartition]) -> None:
        """Makes guards for the partitions that the coordinator must be asked about.

        A partition that this broker does not lead gets its error for good: if this broker leads it later, nothing was verified.
        """
        for tp in partitions:
            try:
                found = self._hosted.find(tp).leader_log()
            except KafkaError as error:
                self._errors[tp] = error
                continue
            if not found.producers.state.is_ongoing(self._producer_id, self._producer_epoch):
                self._guards[tp] = found, found.producers.verifying.begin(self._producer_id)

    @property
    def is_needed(self) -> bool:
        """Whether the coordinator must be asked, and `end` be called."""
        return bool(self._guards)

    async def ask(self, verifier: TransactionVerifier, transactional_id: str) -> None:
        """Asks the coordinator. What cannot be verified is refused by `check`."""
        if not self._guards:
            return
        asked = list(self._guards)
        try:
            answers = await verifier.verify(transactional_id, self._producer_id, self._producer_epoch, asked)
        except KafkaError as error:
            answers = dict.fromkeys(asked, error.code)
        for tp in asked:
            code = answers.get(tp, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            if code is not ErrorCode.NONE:
                log.info("transaction of %s, %s is not verified: %s", transactional_id, tp, code.name)
                self._errors[tp] = _for_producers(code)

    def check(self, partition: Partition, header: BatchHeader) -> None:
        """To be called in the same turn of the loop as the append. Raises KafkaError if the batch must not be appended."""
        tp = partition.tp
        if tp in self._errors:
            raise self._errors[tp]
        found = partition.leader_log()
        if found.producers.state.is_ongoing(header.producer_id, header.producer_epoch):
            return
        guarded, guard = self._guards.get(tp, (found, None))
        if guarded is not found:
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "the log was replaced while the transaction was verified")
        if guard is None or not found.producers.verifying.is_valid(self._producer_id, guard):
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, "the batch is not part of an ongoing transaction")

    def end(self) -> None:
        """The batches are appended or refused."""
        for guarded, guard in self._guards.values():
            guarded.producers.verifying.end(self._producer_id, guard)
        self._guards = {}


def _for_producers(code: ErrorCode) -> KafkaError:
    """The coordinator's error as producers know it."""
    if code in PASSING_ERRORS:
        return KafkaError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"the coordinator could not say whether the partition is in the transaction: {code.name}",
        )
    if code is ErrorCode.PRODUCER_FENCED:
        return KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, "a newer instance of the producer has taken over")
    if code is ErrorCode.INVALID_TXN_STATE:
        return KafkaError(code, "the partition was not added to the transaction")
    return KafkaError(code)


class TransactionVerification:
    """Whether transactions are verified, and by whom. `verifier` None: not at all.

    `is_enabled` is `transaction.partition.verification.enable`.
    """

    def __init__(self, hosted: HostedPartitions, is_enabled: bool) -> None:
        self._hosted = hosted
        self.is_enabled = is_enabled
        self.verifier: TransactionVerifier | None = None

    def of_batches(self, entries: Iterable[tuple[TopicPartition, Buffer]]) -> Verification | None:
        """Begins the verification of a client's transactional batches. None: there are none, or nothing is verified.

        Raises KafkaError(INVALID_PRODUCER_ID_MAPPING) if they are not all of one producer.
        """
        if self.verifier is None or not self.is_enabled:
            return None
        headers = {tp: header for tp, records in entries if (header := transactional_header(records)) is not None}
        producers = {(header.producer_id, header.producer_epoch) for header in headers.values()}
        if not producers:
            return None
        if len(producers) > 1:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING, "the transactional batches of a request are of several producers"
            )
        verification = Verification(self._hosted, *producers.pop())
        verification.begin(headers)
        return verification


def transactional_header(records: Buffer) -> BatchHeader | None:
    """The header of a producer's transactional batch; None for other batches, and for bytes that are too short for one."""
    if len(records) < HEADER_SIZE:
        return None
    header = parse_header(records)
    return header if header.is_transactional and not header.is_control and header.producer_id >= 0 else None
