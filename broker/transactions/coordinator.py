"""The coordinator of the transactional ids whose partitions of `__transaction_state` this broker leads (TXN-1, LAI-5, BUG-25).

    request -> `Transaction` (pure) -> change -> record in `__transaction_state` -> when replicated: `Transaction`, answer
                                                  PrepareCommit, PrepareAbort -> markers -> CompleteCommit, CompleteAbort

Everything runs on the loop. `init_producer_id` and `end_and_raise` may await a block of producer ids from ZooKeeper. An id is held until
its partition is lost or it expires. If an append or a marker ends later, its callback finds `is_held` false and does nothing: the next
coordinator continues from the log.

Requests get NOT_COORDINATOR while the lease is suspect (this process stood still), or while this broker is cut off from ZooKeeper and
its followers: another broker may coordinate the ids by now.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from broker.cluster.lease import LeadershipLease
from broker.cluster.metadata_cache import MetadataCache
from broker.coordination.appending import append_batch
from broker.coordination.loading import PartitionLoading, TopicReader
from broker.coordination.memory_limit import MemoryLimit
from broker.coordination.ownership import Ownership
from broker.process.clock import Clock
from broker.process.event_log import EventLog
from broker.process.loop_budget import SlicedWork
from broker.purgatory import TimerHandle, Timers
from broker.replication.replica_manager import ReplicaManager
from broker.settings.config import BrokerConfig
from broker.transactions.held_transactions import (
    ID_BYTES,
    PARTITION_BYTES,
    Addition,
    HeldTransaction,
    HeldTransactions,
    TransactionsPartition,
)
from broker.transactions.markers import AssignedPartitions, MarkerSender
from broker.transactions.peers import PeerRequests
from broker.transactions.records import (
    FLEXIBLE_VALUE,
    PLAIN_VALUE,
    TRANSACTIONAL_ID_BYTES_MAX,
    TransactionsImage,
    encode_key,
    encode_value,
)
from broker.transactions.states import PREPARED, Cause, TransactionState, TransactionVersion
from broker.transactions.transaction import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    Change,
    NeedsProducerId,
    ProducerIdAndEpoch,
    Transaction,
    TransactionMetadata,
)
from broker.transactions.transaction_events import TransactionEvents
from protocol.errors import ErrorCode, KafkaError
from protocol.topic_names import TRANSACTION_STATE_TOPIC
from protocol.types import TopicPartition

log = logging.getLogger(__name__)

COMPLETE_AGAIN_S = 0.5
"""Wait before CompleteCommit or CompleteAbort is recorded again, after a failure."""
NEXT_WAIT_S = 0.2
"""How long AddPartitionsToTxn of a producer waits until the previous transaction is complete. Usually that takes a few milliseconds. A
producer that gets CONCURRENT_TRANSACTIONS asks again after 20 ms."""
NEXT_WAIT_OF_BROKERS_S = 0.025
"""The same for a broker, whose request also has the partitions of other producers. It asks again, too (`verification`)."""
NEXT_PARTITIONS_MAX = 100
"""Partitions of the requests of an id that wait. They are kept in memory meanwhile."""

ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""The error of an append -> the error for the producer (TransactionStateManager.appendTransactionToLog). Others stay as they are."""

Respond = Callable[[ErrorCode], None]
StoredTransaction = tuple[str, TransactionMetadata]


class ProducerIdSource(Protocol):
    """The part of ProducerIds that the coordinator uses."""

    async def next_id(self) -> int:
        """Raises KafkaError."""
        ...


class ProducerAnswer(NamedTuple):
    """The answer to InitProducerId and EndTxn: as whom the producer goes on."""

    error: ErrorCode
    producer: ProducerIdAndEpoch = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


class TransactionDescription(NamedTuple):
    """DescribeTransactions. After an error the other fields mean nothing."""

    error: ErrorCode
    metadata: TransactionMetadata | None = None
    partitions: Collection[TopicPartition] = ()


class TransactionListing(NamedTuple):
    transactional_id: str
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class TransactionFilter:
    """ListTransactions. Empty collections, and a negative duration, match all."""

    states: frozenset[TransactionState]
    has_states: bool
    producer_ids: frozenset[int]
    longer_than_ms: int

    def matches(self, current: TransactionMetadata, now_ms: int) -> bool:
        return (
            (not self.producer_ids or current.producer_id in self.producer_ids)
            and (not self.has_states or current.state in self.states)
            and (self.longer_than_ms < 0 or now_ms - current.start_ms > self.longer_than_ms)
        )


class TransactionCoordinator:
    """See the module's docstring. `start` starts time-outs and expiry; `close` gives up all transactional ids."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        timers: Timers,
        metadata: MetadataCache,
        replicas: ReplicaManager,
        lease: LeadershipLease,
        events: EventLog,
        producer_ids: ProducerIdSource,
        peers: PeerRequests,
        assigned_partitions: AssignedPartitions,
        version: Callable[[], TransactionVersion] = lambda: TransactionVersion.TV_0,
    ) -> None:
        """`version` is the finalized feature `transaction.version` of the broker's present level."""
        self._config = config
        self._clock = clock
        self._timers = timers
        self._replicas = replicas
        self._producer_ids = producer_ids
        self._held = HeldTransactions()
        self._events = TransactionEvents(events, clock.monotonic)
        self._sliced = SlicedWork(timers, clock.monotonic)
        self._reader = TopicReader(replicas, clock, config.transaction_state_log_load_buffer_size)
        self._loading = PartitionLoading[TransactionsPartition, StoredTransaction](
            TRANSACTION_STATE_TOPIC,
            self._load,
            replicas,
            timers,
            self._sliced,
            self._transaction_loaded,
            self._partition_loaded,
        )
        self.ownership = Ownership[TransactionsPartition](
            TRANSACTION_STATE_TOPIC,
            config.transaction_state_log_num_partitions,
            clock,
            metadata,
            replicas,
            lease,
            TransactionsPartition,
            self._held.owner_of,
            self._loading.start,
            self._partition_lost,
        )
        self._version = version
        self._markers = MarkerSender(metadata, peers, timers, assigned_partitions, self._all_marked)
        self._timeout_timer: TimerHandle | None = None
        self._expiry_timer: TimerHandle | None = None
        self._memory = MemoryLimit(
            "transaction.memory.max.bytes",
            config.transaction_memory_max_bytes,
            self._held,
            "transactional ids",
            "new ids and partitions",
            clock.monotonic,
        )
        self._is_closed = False

    def start(self) -> None:
        self._schedule_time_outs()
        self._schedule_expiry()

    async def close(self) -> None:
        """Gives up all transactional ids. Waiting requests get NOT_COORDINATOR, and this broker gains no more partitions."""
        self._is_closed = True
        for timer in (self._timeout_timer, self._expiry_timer):
            if timer is not None:
                timer.cancel()
        self.ownership.close()
        await self._sliced.finish()
        await self._loading.close()
        await self._markers.close()

    @property
    def transactions(self) -> HeldTransactions:
        """For the metrics, which only read."""
        return self._held

    @property
    def waiting_markers(self) -> int:
        """Markers that wait for a leader or a retry."""
        return self._markers.waiting

    # -- which ids ----------------------------------------------------------------------------------------------------

    def partition_of(self, transactional_id: str) -> int:
        """The partition of `__transaction_state` whose leader is the coordinator of the id."""
        return self.ownership.partition_of(transactional_id)

    def check(self, transactional_id: str) -> ErrorCode:
        """NONE if this broker may answer for the id now. INVALID_REQUEST: no id, or one that is too long to be recorded."""
        size = len(transactional_id)
        if not size or (
            size * 4 > TRANSACTIONAL_ID_BYTES_MAX and len(transactional_id.encode()) > TRANSACTIONAL_ID_BYTES_MAX
        ):
            return ErrorCode.INVALID_REQUEST
        return self.ownership.check(transactional_id)

    # -- requests -----------------------------------------------------------------------------------------------------

    async def init_producer_id(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None,
        respond: Callable[[ProducerAnswer], None],
    ) -> None:
        """`respond` is called when the producer's epoch is replicated; not before this returns only if no new id is needed.

        `expected` is the id and epoch that the producer has (KIP-360). CONCURRENT_TRANSACTIONS: a transaction of the id is being ended,
        first aborted if need be; the producer asks again.
        """
        if transactional_id and not 0 < timeout_ms <= self._config.transaction_max_timeout_ms:
            respond(ProducerAnswer(ErrorCode.INVALID_TRANSACTION_TIMEOUT))
            return
        new_id = None
        while True:
            error = self.check(transactional_id)
            if error is not ErrorCode.NONE:
                respond(ProducerAnswer(error))
                return
            try:
                self._init_producer_id(transactional_id, timeout_ms, expected, new_id, respond)
                return
            except NeedsProducerId:
                pass
            try:
                new_id = await self._producer_ids.next_id()
            except KafkaError as failure:
                respond(ProducerAnswer(failure.code))
                return

    def _init_producer_id(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None,
        new_id: int | None,
        respond: Callable[[ProducerAnswer], None],
    ) -> None:
        """Raises NeedsProducerId."""
        held = self._held.get(transactional_id)
        now_ms = self._clock.wall_ms()
        if held is None:
            if not self._memory.has_room_for(ID_BYTES):
                respond(ProducerAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE))
                return
            if new_id is None:
                raise NeedsProducerId
            owned = self.ownership.owner_of(transactional_id)
            assert owned is not None
            held = HeldTransaction(transactional_id, owned, Transaction.new(new_id, timeout_ms, now_ms))
            self._held.add(held)
        change = held.transaction.init_producer_id(timeout_ms, expected, new_id, now_ms, self._version())
        if isinstance(change, ErrorCode):
            respond(ProducerAnswer(change))
            return
        producer = change.metadata.producer

        def recorded(error: ErrorCode) -> None:
            if change.cause is Cause.FENCED:
                respond(ProducerAnswer(error or ErrorCode.CONCURRENT_TRANSACTIONS))
            elif error is ErrorCode.NONE:
                respond(ProducerAnswer(error, producer))
            else:
                respond(ProducerAnswer(error))

        self._record(held, change, recorded)

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
        respond: Respond,
        version: TransactionVersion = TransactionVersion.TV_0,
    ) -> None:
        """`respond` is called when the partitions are recorded. The caller has checked that they exist.

        If the previous transaction is not complete yet, the request waits for that, and after NEXT_WAIT_S gets CONCURRENT_TRANSACTIONS.
        In transaction version 2, in which several brokers add partitions, it also waits until those of another request are recorded.
        The waiting requests of an id have at most NEXT_PARTITIONS_MAX partitions; those beyond get it at once.
        """
        held = self._find(transactional_id, respond)
        if held is not None:
            self._add_partitions(held, Addition(producer, partitions, version, respond))

    def _add_partitions(self, held: HeldTransaction, addition: Addition) -> None:
        transaction = held.transaction
        change = transaction.add_partitions(
            addition.producer, addition.partitions, self._clock.wall_ms(), addition.version
        )
        is_refused = isinstance(change, ErrorCode) and change is not ErrorCode.NONE
        if addition.version.raises_epoch and self._version().raises_epoch and not is_refused:
            transaction.speaks_version_2 = True
        if change is ErrorCode.CONCURRENT_TRANSACTIONS and _may_wait(held, addition):
            wait_s = NEXT_WAIT_OF_BROKERS_S if addition.version.raises_epoch else NEXT_WAIT_S
            held.wait(addition, self._timers.call_later(wait_s, _refuse, held, addition))
            return
        if not isinstance(change, ErrorCode):
            added = len(change.metadata.partitions) - len(transaction.current.partitions)
            if not self._memory.has_room_for(added * PARTITION_BYTES):
                transaction.failed(change)
                change = ErrorCode.COORDINATOR_NOT_AVAILABLE
        self._record_or_refuse(held, change, addition.respond)

    def verify(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """KIP-890: whether the partitions are in the ongoing transaction. From memory, so only the certain coordinator answers."""
        errors: list[ErrorCode] = []
        held = self._find(transactional_id, errors.append)
        if held is None:
            return dict.fromkeys(partitions, errors[0])
        return held.transaction.verify(producer, tuple(partitions))

    def end(self, transactional_id: str, producer: ProducerIdAndEpoch, is_commit: bool, respond: Respond) -> None:
        """EndTxn before v5. `respond` is called when the decision is replicated. The markers are written afterwards, as in Kafka."""
        held = self._find(transactional_id, respond)
        if held is not None:
            change = held.transaction.end(producer, is_commit, self._clock.wall_ms(), self._version())
            self._record_or_refuse(held, change, respond)

    def end_and_raise(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        is_commit: bool,
        respond: Callable[[ProducerAnswer], None],
    ) -> Coroutine[Any, Any, None] | None:
        """EndTxn since v5, as `end`. The answer names the producer of the next transaction.

        Returns what remains to be awaited, if the producer's epochs are exhausted, so that it needs another id.
        """
        try:
            self._end_and_raise(transactional_id, producer, is_commit, None, respond)
        except NeedsProducerId:
            return self._end_with_new_id(transactional_id, producer, is_commit, respond)
        return None

    async def _end_with_new_id(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        is_commit: bool,
        respond: Callable[[ProducerAnswer], None],
    ) -> None:
        try:
            new_id = await self._producer_ids.next_id()
        except KafkaError as failure:
            respond(ProducerAnswer(failure.code))
            return
        self._end_and_raise(transactional_id, producer, is_commit, new_id, respond)

    def _end_and_raise(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        is_commit: bool,
        new_id: int | None,
        respond: Callable[[ProducerAnswer], None],
    ) -> None:
        """Raises NeedsProducerId."""
        held = self._find(transactional_id, lambda error: respond(ProducerAnswer(error)))
        if held is None:
            return
        change = held.transaction.end_and_raise(producer, is_commit, new_id, self._clock.wall_ms())
        if isinstance(change, ErrorCode):
            current = held.transaction.current
            respond(ProducerAnswer(change, current.producer) if change is ErrorCode.NONE else ProducerAnswer(change))
            return
        goes_on_as = change.metadata.next_producer
        self._record(
            held,
            change,
            lambda error: respond(
                ProducerAnswer(error, goes_on_as) if error is ErrorCode.NONE else ProducerAnswer(error)
            ),
        )

    def _find(self, transactional_id: str, refuse: Respond) -> HeldTransaction | None:
        error = self.check(transactional_id)
        held = self._held.get(transactional_id)
        if error is ErrorCode.NONE and held is None:
            error = ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if error is not ErrorCode.NONE:
            refuse(error)
            return None
        return held

    # -- for admins ---------------------------------------------------------------------------------------------------

    def describe(self, transactional_id: str) -> TransactionDescription:
        error = self.check(transactional_id)
        held = self._held.get(transactional_id)
        if error is ErrorCode.NONE and (held is None or _is_dying(held)):
            error = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        if error is not ErrorCode.NONE or held is None:
            return TransactionDescription(error)
        return TransactionDescription(error, held.transaction.current, held.transaction.partitions)

    def list_transactions(self, wanted: TransactionFilter) -> tuple[ErrorCode, Iterable[TransactionListing | None]]:
        """The iterable reads each transaction when it comes to it, and yields None for one that does not match."""
        error = self.ownership.check_all()
        return error, () if error is not ErrorCode.NONE else self._listed(wanted, self._clock.wall_ms())

    def _listed(self, wanted: TransactionFilter, now_ms: int) -> Iterator[TransactionListing | None]:
        for held in self._held:
            current = held.transaction.current
            if held.is_held and not _is_dying(held) and wanted.matches(current, now_ms):
                yield TransactionListing(held.transactional_id, current.producer_id, current.state.value)
            else:
                yield None

    # -- records ------------------------------------------------------------------------------------------------------

    def _record_or_refuse(self, held: HeldTransaction, change: Change | ErrorCode, respond: Respond) -> None:
        if isinstance(change, ErrorCode):
            respond(change)
        else:
            self._record(held, change, respond)

    def _record(self, held: HeldTransaction, change: Change, respond: Respond, following: Change | None = None) -> None:
        """Appends the change, which is pending. When it is replicated it is in effect, and what follows from it is started.

        `following` is recorded in the same batch; `respond` puts it into effect.
        """
        metadata = change.metadata
        try:
            is_tombstone = metadata.state is TransactionState.DEAD
            key = encode_key(held.transactional_id)
            records = [(key, None if is_tombstone else encode_value(metadata, self._value_version(metadata)))]
            if following is not None:
                records.append((key, encode_value(following.metadata, self._value_version(following.metadata))))
        except Exception:
            log.exception("transactional id %.200s: %s cannot be recorded", held.transactional_id, metadata.state.value)
            self._recorded(held, change, ErrorCode.UNKNOWN_SERVER_ERROR, respond)
            return
        append_batch(
            self._replicas.appends,
            self._clock,
            TopicPartition(TRANSACTION_STATE_TOPIC, held.owner.number),
            records,
            lambda error, _: self._recorded(held, change, ERRORS.get(error, error), respond),
            timeout_ms=metadata.timeout_ms,
        )

    def _value_version(self, metadata: TransactionMetadata) -> int:
        """That of the level. The level may have been set back since a transaction was begun: what only version 1 can say is not lost."""
        is_flexible = self._version() >= TransactionVersion.TV_1 or metadata.next_producer_id != NO_PRODUCER_ID
        return FLEXIBLE_VALUE if is_flexible else PLAIN_VALUE

    def _recorded(self, held: HeldTransaction, change: Change, error: ErrorCode, respond: Respond) -> None:
        if not held.is_held:
            respond(ErrorCode.NOT_COORDINATOR)
            return
        transaction = held.transaction
        if error is not ErrorCode.NONE:
            transaction.failed(change)
            if error not in (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR):
                log.error(
                    "transactional id %.200s: %s could not be recorded: %s",
                    held.transactional_id,
                    change.metadata.state.value,
                    error.name,
                )
            if transaction.current.producer_epoch == NO_PRODUCER_EPOCH:
                self._held.remove(held)  # It was never recorded, and nobody knows its producer id.
            respond(error)
            if change.cause is Cause.PARTITIONS_ADDED:
                self._add_waiting(held)
            return
        transaction.recorded(change)
        self._held.count(held)
        respond(error)
        if change.cause is Cause.PARTITIONS_ADDED:
            self._add_waiting(held)
        if transaction.state in PREPARED:
            self._events.decided(held, change)
            self._send_markers(held)
        elif change.cause is Cause.MARKED:
            self._events.completed(held, change)
        elif change.cause is Cause.EXPIRED:
            self._held.remove(held)

    def _add_waiting(self, held: HeldTransaction) -> None:
        """Nothing is pending: the requests that wait are carried out. One may begin a change, for which the others wait again."""
        for addition in held.take_waiting():
            if held.is_held:
                self._add_partitions(held, addition)
            else:
                addition.respond(ErrorCode.NOT_COORDINATOR)

    # -- the end of a transaction -------------------------------------------------------------------------------------

    def _send_markers(self, held: HeldTransaction) -> None:
        held.ended_at = self._clock.monotonic()
        self._markers.send(held)

    def _all_marked(self, held: HeldTransaction) -> None:
        """Records CompleteCommit or CompleteAbort, until it succeeds or the partition is lost.

        If AddPartitionsToTxn of the next transaction waits, both are recorded in one batch: it need not wait for a second replication.
        """
        transaction = held.transaction
        if not held.is_held or transaction.pending is not None or transaction.state not in PREPARED:
            return
        now_ms = self._clock.wall_ms()
        completion = transaction.complete(now_ms)
        waiting, start, begins = held.take_waiting(), None, None
        for addition in waiting:
            if start is None and self._memory.has_room_for(len(addition.partitions) * PARTITION_BYTES):
                start = transaction.next_after(
                    completion, addition.producer, addition.partitions, now_ms, addition.version
                )
                begins = addition if start is not None else None

        def recorded(error: ErrorCode) -> None:
            if error is not ErrorCode.NONE:
                if held.is_held:
                    self._timers.call_later(COMPLETE_AGAIN_S, self._all_marked, held)
                for addition in waiting:
                    addition.respond(error)
                return
            if start is not None and begins is not None:
                transaction.recorded(start)
                self._held.count(held)
                begins.respond(error)
            for addition in (
                *waiting,
                *held.take_waiting(),
            ):  # The latter have come while the batch was being replicated.
                if addition is not begins:
                    self._add_partitions(held, addition)

        self._record(held, completion, recorded, start)

    # -- time ---------------------------------------------------------------------------------------------------------

    def _schedule_time_outs(self) -> None:
        if not self._is_closed:
            interval_ms = self._config.transaction_abort_timed_out_transaction_cleanup_interval_ms
            self._timeout_timer = self._timers.call_later(interval_ms / 1000, self._time_out_all)

    def _time_out_all(self) -> None:
        self._sliced.for_each(self._held, self._time_out, self._schedule_time_outs)

    def _time_out(self, held: HeldTransaction) -> None:
        if not held.is_held or not held.owner.is_loaded or not self.ownership.may_act_for(held.owner):
            return
        change = held.transaction.time_out(self._clock.wall_ms(), self._version())
        if change is not None:
            log.info(
                "transactional id %.200s: aborted, it took longer than %d ms",
                held.transactional_id,
                change.metadata.timeout_ms,
            )
            self._record(held, change, _quiet)

    def _schedule_expiry(self) -> None:
        if not self._is_closed:
            interval_ms = self._config.transaction_remove_expired_transaction_cleanup_interval_ms
            self._expiry_timer = self._timers.call_later(interval_ms / 1000, self._expire_all)

    def _expire_all(self) -> None:
        self._sliced.for_each(self._held, self._expire, self._schedule_expiry)

    def _expire(self, held: HeldTransaction) -> None:
        if not held.is_held or not held.owner.is_loaded or not self.ownership.may_act_for(held.owner):
            return
        change = held.transaction.expire(self._clock.wall_ms(), self._config.transactional_id_expiration_ms)
        if change is not None:
            self._record(held, change, _quiet)

    # -- moving with leadership (LAI-5) -------------------------------------------------------------------------------

    def leadership_changed(self, tp: TopicPartition) -> None:
        """Called by the replica manager, after it has answered pending appends."""
        self.ownership.leadership_changed(tp)

    async def _load(
        self, partition: int, is_current: Callable[[], bool], sink: Callable[[StoredTransaction], None]
    ) -> bool:
        tp = TopicPartition(TRANSACTION_STATE_TOPIC, partition)
        image = TransactionsImage()
        if not await self._reader.read(tp, image, self._reader.new_slice(), is_current):
            return False
        for reason, count in image.skipped.items():
            log.warning("%s: skipped %d records, which stay in the log: %s", tp, count, reason)
        for stored in image.metadata.items():
            sink(stored)
        return True

    def _transaction_loaded(self, owned: TransactionsPartition, stored: StoredTransaction) -> None:
        transactional_id, metadata = stored
        self._held.add(HeldTransaction(transactional_id, owned, Transaction(metadata)))

    def _partition_loaded(self, owned: TransactionsPartition) -> None:
        """Continues the transactions whose end is decided: perhaps some of their markers are written."""
        owned.is_loaded = True
        self._events.loaded(owned)
        count = len(owned.transactions)
        log.info("%s-%d: %d transactional ids are served", TRANSACTION_STATE_TOPIC, owned.number, count)

        def go_on(held: HeldTransaction) -> None:
            if held.is_held and held.transaction.state in PREPARED and not held.ended_at:
                self._send_markers(held)

        self._sliced.for_each(list(owned.transactions.values()), go_on)

    def _partition_lost(self, owned: TransactionsPartition) -> None:
        """Nothing acts for its ids from now on (`HeldTransaction.is_held`). They are removed in slices, perhaps while the partition,
        gained again, is loaded. The replica manager has answered the pending appends before."""
        self._events.lost(owned)
        held_there = list(owned.transactions.values())
        log.info(
            "%s-%d, epoch %d: %d transactional ids given up",
            TRANSACTION_STATE_TOPIC,
            owned.number,
            owned.leader_epoch,
            len(held_there),
        )
        self._sliced.for_each(held_there, self._give_up)

    def _give_up(self, held: HeldTransaction) -> None:
        self._held.remove(held)
        for addition in held.take_waiting():
            addition.respond(ErrorCode.NOT_COORDINATOR)


def _is_dying(held: HeldTransaction) -> bool:
    pending = held.transaction.pending
    return pending is not None and pending.metadata.state is TransactionState.DEAD


def _may_wait(held: HeldTransaction, addition: Addition) -> bool:
    """Whether what the addition waits for takes a moment only, and few wait already."""
    transaction = held.transaction
    is_adding = transaction.pending is not None and transaction.pending.cause is Cause.PARTITIONS_ADDED
    if transaction.state not in PREPARED and not (is_adding and addition.version.raises_epoch):
        return False
    count = sum(len(waiting.partitions) for waiting in held.waiting)
    return count + len(addition.partitions) <= NEXT_PARTITIONS_MAX


def _refuse(held: HeldTransaction, addition: Addition) -> None:
    """It has waited long enough."""
    if held.wait_no_more(addition):
        addition.respond(ErrorCode.CONCURRENT_TRANSACTIONS)


def _quiet(error: ErrorCode) -> None:
    """No client waits for the outcome. The next round tries again."""
