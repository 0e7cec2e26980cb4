"""One transactional id: a request or a time comes in, and a change to record or an error goes out (Kafka's `TransactionMetadata`). Pure.

A change is recorded in three steps: a method returns it and marks it as pending; the caller appends it to `__transaction_state`; when it
is replicated, `recorded` makes it the current state, otherwise `failed` drops it. Meanwhile every request that could change the state
gets CONCURRENT_TRANSACTIONS. After a failure the log may contain the change all the same. That is harmless: nobody was answered, and
the next change follows it in the log.

Times are in ms since 1970, by the coordinator's clock.
"""

from __future__ import annotations

from collections.abc import Collection, Set
from typing import NamedTuple

from broker.transactions.states import COMPLETED, PREPARED, Cause, TransactionState, TransactionVersion, next_state
from protocol.errors import ErrorCode
from protocol.types import TopicPartition

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
EPOCH_MAX = 2**15 - 1
NO_TIME = -1
NO_PARTITIONS: frozenset[TopicPartition] = frozenset()
PARTITIONS_MAX = 10_000
"""Partitions of one transaction. Each change of it is one record, which is written in one turn of the loop and names all of them."""


class ProducerIdAndEpoch(NamedTuple):
    producer_id: int
    epoch: int

    @property
    def is_exhausted(self) -> bool:
        """True for the last epoch that a producer may use. One more is left, to fence that producer."""
        return self.epoch >= EPOCH_MAX - 1


class TransactionMetadata(NamedTuple):
    """The state of a transactional id. -1: unknown, or none.

    `last_producer_epoch`: that of the producer before the last request that raised it, by which a repetition of InitProducerId is
    recognized (KIP-360). The log does not have it. `previous_producer_id`: before the last change, of whatever kind.
    `next_producer_id`: what the producer gets, with epoch 0, when the transaction is complete, because its epochs are exhausted.
    These two ids, and `client_version`, are only in records of version 1.
    `start_ms` is when the first partition was added, -1 before the first transaction.
    """

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = NO_PARTITIONS
    updated_ms: int = NO_TIME
    start_ms: int = NO_TIME
    previous_producer_id: int = NO_PRODUCER_ID
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    next_producer_id: int = NO_PRODUCER_ID
    client_version: TransactionVersion = TransactionVersion.TV_0

    @property
    def producer(self) -> ProducerIdAndEpoch:
        return ProducerIdAndEpoch(self.producer_id, self.producer_epoch)

    @property
    def next_producer(self) -> ProducerIdAndEpoch:
        """Whose the next transaction is, if nobody else takes over."""
        if self.next_producer_id != NO_PRODUCER_ID:
            return ProducerIdAndEpoch(self.next_producer_id, 0)
        return self.producer


class Change(NamedTuple):
    """A transition, and the metadata after it."""

    cause: Cause
    metadata: TransactionMetadata


class NeedsProducerId(Exception):
    """The caller must get a new producer id and ask again with it."""


class Transaction:
    """`current` is the last recorded metadata. `unmarked` are the partitions whose markers are not written yet, in a prepared state."""

    def __init__(self, metadata: TransactionMetadata) -> None:
        self.current = metadata
        self.pending: Change | None = None
        self.unmarked: set[TopicPartition] = set(metadata.partitions) if metadata.state in PREPARED else set()
        self.speaks_version_2 = metadata.client_version.raises_epoch
        """The producer has spoken version 2 where the cluster had it, and has not added partitions by an earlier version since."""
        self._has_failed_fence = False
        """A fence could not be recorded, but the epoch was raised: the next fence does not raise it again."""

    @classmethod
    def new(cls, producer_id: int, timeout_ms: int, now_ms: int) -> Transaction:
        """An id that was never used. `init_producer_id` follows."""
        return cls(TransactionMetadata(producer_id, NO_PRODUCER_EPOCH, timeout_ms, updated_ms=now_ms))

    @property
    def state(self) -> TransactionState:
        return self.current.state

    @property
    def partitions(self) -> Set[TopicPartition]:
        """The partitions of the transaction, without those that have their marker."""
        return self.unmarked if self.state in PREPARED else self.current.partitions

    @property
    def is_busy(self) -> bool:
        """True while a change is being recorded, or markers are being written."""
        return self.pending is not None or self.state in PREPARED

    # -- requests -----------------------------------------------------------------------------------------------------

    def init_producer_id(
        self,
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None,
        new_id: int | None,
        now_ms: int,
        version: TransactionVersion = TransactionVersion.TV_0,
    ) -> Change | ErrorCode:
        """InitProducerId. `expected` is what the producer believes to have (KIP-360). Raises NeedsProducerId if `new_id` is None and the
        epochs are exhausted.

        An ongoing transaction is aborted first, in the next epoch: the change is a fence, and its producer must ask again.
        `version` is the cluster's, and that of the fence.
        """
        if self.is_busy:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        current = self.current
        if expected is not None and not self._may_be(expected):
            return ErrorCode.PRODUCER_FENCED
        if current.state is TransactionState.ONGOING:
            return self._fence(Cause.FENCED, now_ms, version)
        if current.producer.is_exhausted and (expected is None or self._is_last(expected.epoch)):
            if new_id is None:
                raise NeedsProducerId
            last_epoch = NO_PRODUCER_EPOCH if expected is None else expected.epoch
            return self._initialize(new_id, 0, last_epoch, timeout_ms, now_ms)
        epoch, last_epoch = current.producer_epoch + 1, NO_PRODUCER_EPOCH
        if expected is not None:
            if current.producer_epoch in (NO_PRODUCER_EPOCH, expected.epoch):
                last_epoch = current.producer_epoch
            elif expected.epoch == current.last_producer_epoch:
                # The answer to the same request was lost. Another producer would have set the last epoch to -1.
                epoch, last_epoch = current.producer_epoch, current.last_producer_epoch
            else:
                return ErrorCode.PRODUCER_FENCED
        return self._initialize(current.producer_id, epoch, last_epoch, timeout_ms, now_ms)

    def add_partitions(
        self,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
        now_ms: int,
        version: TransactionVersion = TransactionVersion.TV_0,
    ) -> Change | ErrorCode:
        """AddPartitionsToTxn, AddOffsetsToTxn. NONE: all partitions are in the transaction already. INVALID_REQUEST: too many.

        In transaction version 2 the producer may be the next one, which it is only when the last transaction is complete. So a pending
        change comes before a wrong producer.
        """
        if self.is_busy and version.raises_epoch:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        error = self._check_producer(producer)
        if error is not ErrorCode.NONE:
            return error
        if not version.raises_epoch:
            self.speaks_version_2 = False
        if self.is_busy:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        current = self.current
        is_ongoing = current.state is TransactionState.ONGOING
        if is_ongoing and current.partitions.issuperset(partitions):
            return ErrorCode.NONE
        if len(partitions) > PARTITIONS_MAX or len(every := current.partitions.union(partitions)) > PARTITIONS_MAX:
            return ErrorCode.INVALID_REQUEST
        return self._begin(
            Cause.PARTITIONS_ADDED,
            partitions=every,
            start_ms=current.start_ms if is_ongoing else now_ms,
            updated_ms=now_ms,
            client_version=version,
        )

    def verify(
        self, producer: ProducerIdAndEpoch, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """KIP-890: TRANSACTION_ABORTABLE for each partition that is not in the ongoing transaction. A pending change does not matter:
        the log checks again at the append."""
        error = self._check_producer(producer)
        if error is ErrorCode.NONE and self.state in PREPARED:
            error = ErrorCode.CONCURRENT_TRANSACTIONS
        if error is not ErrorCode.NONE:
            return dict.fromkeys(partitions, error)
        added = self.current.partitions
        return {tp: ErrorCode.NONE if tp in added else ErrorCode.TRANSACTION_ABORTABLE for tp in partitions}

    def end(
        self,
        producer: ProducerIdAndEpoch,
        is_commit: bool,
        now_ms: int,
        version: TransactionVersion = TransactionVersion.TV_0,
    ) -> Change | ErrorCode:
        """EndTxn before v5. `version` is the cluster's. NONE: the transaction has ended in this way already.

        NONE, too, for an abort of no transaction by a producer of transaction version 2, where the cluster no longer has it. It learns so
        at the end of its next transaction only; of that one, the leaders refuse all batches, as nobody has added their partitions, and
        INVALID_TXN_STATE would end the producer.
        """
        error = self._check_producer(producer)
        if error is not ErrorCode.NONE:
            return error
        if self.is_busy:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if self.state is TransactionState.ONGOING:
            return self._begin(
                Cause.COMMITTED if is_commit else Cause.ABORTED,
                updated_ms=now_ms,
                client_version=TransactionVersion.TV_0,
            )
        is_lost = self.speaks_version_2 and not version.raises_epoch
        is_accepted = self._has_ended(is_commit) or (is_lost and not is_commit)
        return ErrorCode.NONE if is_accepted else ErrorCode.INVALID_TXN_STATE

    def end_and_raise(
        self, producer: ProducerIdAndEpoch, is_commit: bool, new_id: int | None, now_ms: int
    ) -> Change | ErrorCode:
        """EndTxn since v5, in transaction version 2: the producer goes on as `next_producer` of the change.

        NONE: a repetition of the request that ended the transaction in this way; the producer goes on as the current one. Raises
        NeedsProducerId if `new_id` is None and the epochs are exhausted. A pending change comes before a wrong producer, as in
        `add_partitions`.

        PRODUCER_FENCED, also for a commit after the coordinator has aborted the transaction, as in later Kafka (KAFKA-20785). Kafka 4.1.1
        answers INVALID_TXN_STATE, which ends a Kafka Streams application.
        """
        if self.is_busy:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        current = self.current
        if self.state in COMPLETED and self._has_gone_on(producer):
            if current.producer_epoch == EPOCH_MAX:
                return (
                    ErrorCode.PRODUCER_FENCED
                )  # the epoch that is there to fence: the producer must ask for another id
            if self._has_ended(is_commit):
                return ErrorCode.NONE
            return ErrorCode.PRODUCER_FENCED if is_commit else ErrorCode.INVALID_TXN_STATE
        error = self._check_producer(producer)
        if error is not ErrorCode.NONE:
            return error
        self.speaks_version_2 = True
        is_ongoing = self.state is TransactionState.ONGOING
        if is_commit and not is_ongoing:
            return ErrorCode.INVALID_TXN_STATE
        if current.producer.is_exhausted and new_id is None:
            raise NeedsProducerId
        return self._begin(
            Cause.COMMITTED if is_commit else Cause.ABORTED,
            producer_epoch=min(current.producer_epoch + 1, EPOCH_MAX),
            last_producer_epoch=current.producer_epoch,
            next_producer_id=new_id if current.producer.is_exhausted else NO_PRODUCER_ID,
            start_ms=current.start_ms if is_ongoing else now_ms,
            updated_ms=now_ms,
            client_version=TransactionVersion.TV_2,
        )

    # -- time ---------------------------------------------------------------------------------------------------------

    def time_out(self, now_ms: int, version: TransactionVersion = TransactionVersion.TV_0) -> Change | None:
        """Aborts a transaction that is older than its time-out, and fences its producer. `version` is the cluster's."""
        current = self.current
        is_late = current.state is TransactionState.ONGOING and current.start_ms + current.timeout_ms < now_ms
        return self._fence(Cause.TIMED_OUT, now_ms, version) if is_late and not self.is_busy else None

    def expire(self, now_ms: int, expiration_ms: int) -> Change | None:
        """A change to Dead, whose record is a tombstone, if the id was not used for so long."""
        current = self.current
        if self.is_busy or current.state is TransactionState.ONGOING or current.updated_ms > now_ms - expiration_ms:
            return None
        return self._begin(Cause.EXPIRED, partitions=NO_PARTITIONS)

    # -- markers ------------------------------------------------------------------------------------------------------

    def marked(self, partitions: Collection[TopicPartition]) -> None:
        """The markers of these partitions are written, or the partitions are gone."""
        self.unmarked.difference_update(partitions)

    def complete(self, now_ms: int) -> Change:
        """All markers are written. If the producer's epochs are exhausted, its next id takes the place of the id."""
        producer_id, epoch = self.current.next_producer
        return self._begin(
            Cause.MARKED,
            producer_id=producer_id,
            producer_epoch=epoch,
            next_producer_id=NO_PRODUCER_ID,
            partitions=NO_PARTITIONS,
            updated_ms=now_ms,
        )

    def next_after(
        self,
        completion: Change,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
        now_ms: int,
        version: TransactionVersion = TransactionVersion.TV_0,
    ) -> Change | None:
        """The start of the next transaction, if it is recorded together with the completion of this one. None: it is refused."""
        change = Transaction(completion.metadata).add_partitions(producer, partitions, now_ms, version)
        return change if isinstance(change, Change) else None

    # -- records ------------------------------------------------------------------------------------------------------

    def recorded(self, change: Change) -> None:
        """The change is replicated."""
        self.pending = None
        self.current = change.metadata
        if change.metadata.state in PREPARED:
            self.unmarked = set(change.metadata.partitions)
            self._has_failed_fence = False

    def failed(self, change: Change) -> None:
        """The change was not recorded in time. It may be in the log.

        A fence fences all the same: no producer was told its epoch, and a producer with the old epoch must not continue.
        """
        self.pending = None
        if change.cause in (Cause.FENCED, Cause.TIMED_OUT):
            self._has_failed_fence = True
            self.current = self.current._replace(
                producer_epoch=change.metadata.producer_epoch, last_producer_epoch=NO_PRODUCER_EPOCH
            )

    # -- parts --------------------------------------------------------------------------------------------------------

    def _may_be(self, expected: ProducerIdAndEpoch) -> bool:
        """False: the producer is certainly not the current one. True for a producer whose id expired, or was replaced because its epochs
        were exhausted, if it has not got the answer. The epoch is checked later."""
        current = self.current
        return (
            current.producer_epoch == NO_PRODUCER_EPOCH
            or expected.producer_id == current.producer_id
            or (expected.producer_id == current.previous_producer_id and expected.is_exhausted)
        )

    def _is_last(self, epoch: int) -> bool:
        """Whether a producer with this epoch, of the current id, is the last one. None has the epoch that is there to fence: its
        transaction was aborted by the coordinator."""
        current = self.current
        return epoch == current.producer_epoch or (
            current.producer_epoch == EPOCH_MAX and epoch == current.last_producer_epoch
        )

    def _has_ended(self, is_commit: bool) -> bool:
        return self.state is (TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT)

    def _has_gone_on(self, producer: ProducerIdAndEpoch) -> bool:
        """Whether the current producer is what this one has become at the end of its transaction, in transaction version 2.

        If the last transaction was of an earlier version, it was that of another producer, which got its epoch from InitProducerId. (Kafka
        4.1 does not look, and tells a fenced producer how that transaction ended.)
        """
        current = self.current
        if not current.client_version.raises_epoch:
            return False
        if producer.producer_id == current.producer_id and producer.epoch + 1 == current.producer_epoch:
            return True
        return (
            current.producer_epoch == 0
            and producer.producer_id == current.previous_producer_id
            and producer.epoch == EPOCH_MAX - 1
        )

    def _check_producer(self, producer: ProducerIdAndEpoch) -> ErrorCode:
        if producer.producer_id != self.current.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        return ErrorCode.NONE if producer.epoch == self.current.producer_epoch else ErrorCode.PRODUCER_FENCED

    def _initialize(self, producer_id: int, epoch: int, last_epoch: int, timeout_ms: int, now_ms: int) -> Change:
        return self._begin(
            Cause.INITIALIZED,
            producer_id=producer_id,
            producer_epoch=epoch,
            timeout_ms=timeout_ms,
            partitions=NO_PARTITIONS,
            start_ms=NO_TIME,
            updated_ms=now_ms,
            last_producer_epoch=last_epoch,
        )

    def _fence(self, cause: Cause, now_ms: int, version: TransactionVersion) -> Change:
        """Aborts the transaction in the next epoch. Whoever calls InitProducerId without an epoch gets a later one.

        In transaction version 2 the end raises the epoch anyway, so it does not count twice. The producer whose transaction is aborted may
        go on in the new epoch: it repeats EndTxn, or asks with its last epoch.
        """
        raised = not self._has_failed_fence
        epoch = self.current.producer_epoch
        return self._begin(
            cause,
            producer_epoch=min(epoch + raised, EPOCH_MAX),
            last_producer_epoch=epoch if version.raises_epoch and raised else NO_PRODUCER_EPOCH,
            next_producer_id=NO_PRODUCER_ID,
            updated_ms=now_ms,
            client_version=version if version.raises_epoch else TransactionVersion.TV_0,
        )

    def _begin(self, cause: Cause, **fields: object) -> Change:
        assert self.pending is None
        current = self.current
        metadata = current._replace(
            state=next_state(self.state, cause),
            previous_producer_id=current.producer_id,
            **fields,  # type: ignore[arg-type]
        )
        self.pending = Change(cause, metadata)
        return self.pending
