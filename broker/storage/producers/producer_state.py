"""The idempotent producers of a log (LOG-5, INV-20; Kafka's ProducerStateManager). Pure.

A producer numbers its records. A batch contains the producer id, the producer epoch and the sequence of its first record. The
state keeps each producer's epoch and last five batches, as five may be in flight. The rules of `check` are those of Kafka 3.9
(UnifiedLog.analyzeAndValidateProducerState, ProducerAppendInfo):

    epoch below the known one                          INVALID_PRODUCER_EPOCH
    epoch and first and last sequence of a kept batch  a duplicate: answered with that batch's offsets, nothing is written
    epoch above the known one                          must start at sequence 0, else OUT_OF_ORDER_SEQUENCE_NUMBER
    the known epoch                                    must continue where the last batch ended, after 2^31-1 at 0
    an unknown producer                                may start at any sequence: it may have expired, or its records were deleted

A batch of an ended transaction has no duplicates: librdkafka may give the sequences of an aborted batch to other records, if it was
told that the batch is not in the log (NOT_ENOUGH_REPLICAS for its repetition). As a duplicate they would be acknowledged, and lost.
They get OUT_OF_ORDER_SEQUENCE_NUMBER. (Kafka takes them for duplicates.) A producer repeats no batch after the end of its transaction.

UNKNOWN_PRODUCER_ID is never returned (KIP-360). Only the leader checks: `check` the batches of clients, `check_coordinated` those
of coordinators, whose sequences mean nothing. A follower and a rebuild accept the batches as they are. The state is a function of the log
(BUG-24): the checks change nothing, and `append` is called after the batch is in the log, with the same header and marker that a
rebuild finds there.

Transactions (KIP-98). A producer's first transactional batch begins its transaction in this log, a marker ends it. A transaction is
*ongoing* until its marker is in the log, and *unreplicated* until the high watermark has passed the marker. The first offset of all
these is the first unstable offset: readers of committed records stop there (`first_unstable`).

After a cut the log calls `truncate`. If that returns False the state is empty, and the log rebuilds it from the newest usable
snapshot (`producer_snapshots`) and the batches from its `end_offset` on.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from broker.storage.producers.produced_batches import Sequenced
from broker.storage.producers.unreplicated import Unreplicated
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.control_records import Marker
from protocol.kafka.record_batch import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader

SEQUENCE_MAX: Final = 2**31 - 1
BATCHES_KEPT: Final = 5
"""Per producer: an idempotent producer has at most five requests in flight to a broker."""
PRODUCERS_MAX: Final = 50_000
"""Maximum per log, because a client may invent a producer id for each batch (Kafka has no limit). Producers that wrote longest ago
are dropped, but not those with an open transaction: an unknown producer begins none beyond this number. If a producer that was dropped
writes again, it is unknown, like an expired one."""
COMPARED: Final = 512
"""Number of producers compared when the log has PRODUCERS_MAX. The half of them that wrote longest ago is dropped."""

NO_SEQUENCE: Final = -1
NO_TIMESTAMP: Final = -1
NO_TRANSACTION: Final = -1
NO_COORDINATOR_EPOCH: Final = -1
NOT_HEARD: Final = -1
NOBODY: Final = 0
LAST_OFFSET_MAX: Final = 2**63

RETRIES_END_MS: Final = 3_600_000
"""Minimum time to keep a producer after a restart. Its retries have ended by then."""


_owners = itertools.count(NOBODY + 1)


class BatchMetadata(NamedTuple):
    """A batch of the log: sequence and offset of its last record, number of records before that one, timestamp in ms."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        first = self.last_sequence - self.offset_delta
        return first if first >= 0 else first + SEQUENCE_MAX + 1

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class Duplicate(NamedTuple):
    """The batch in the log that a duplicate repeats. Like a new one, it is acknowledged at the high watermark (BUG-11)."""

    first_offset: int
    last_offset: int
    timestamp: int


class EndedTransaction(NamedTuple):
    """A transaction that has its marker, at `last_offset`. `last_stable_offset` is the log's, but for the high watermark."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int
    is_commit: bool


@dataclass(slots=True)
class ProducerEntry:
    """One producer. A `ProducerState` changes only the entries that it owns (`owner`, see `freeze`).

    `batches`: at most five, oldest first, all of `epoch`.

    `last_timestamp`, in ms, is that of the last batch or transaction marker. `transaction_first_offset` is the start of the
    open transaction, -1 without one. `coordinator_epoch` is from the last transaction marker. `is_heard` (a batch arrived since
    the last `expire`) and `heard_ms` (when `expire` last saw that) are for `expire`, and not a function of the log.
    """

    epoch: int
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    last_timestamp: int = NO_TIMESTAMP
    transaction_first_offset: int = NO_TRANSACTION
    batches: list[BatchMetadata] = field(default_factory=list)
    is_heard: bool = field(default=False, compare=False)
    heard_ms: int = field(default=NOT_HEARD, compare=False)
    owner: int = field(default=NOBODY, compare=False)

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        """The last offset of the last batch, -1 without one."""
        return self.batches[-1][1] if self.batches else -1

    def is_of_open_transaction(self, batch: BatchMetadata) -> bool:
        return NO_TRANSACTION != self.transaction_first_offset <= batch.last_offset

    def copy(self, owner: int) -> ProducerEntry:
        return ProducerEntry(
            self.epoch,
            self.coordinator_epoch,
            self.last_timestamp,
            self.transaction_first_offset,
            self.batches.copy(),
            self.is_heard,
            self.heard_ms,
            owner,
        )

    def begin_epoch(self, epoch: int) -> None:
        """Drops the kept batches of another epoch: sequences restart with every epoch."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.batches = []

    def add(self, batch: BatchMetadata) -> None:
        if len(self.batches) >= BATCHES_KEPT:
            del self.batches[0]
        self.batches.append(batch)


def last_sequence_of(header: BatchHeader) -> int:
    """The sequence of a batch's last record: after 2^31-1 comes 0. A batch without a sequence has none (-1)."""
    if header.base_sequence < 0:
        return NO_SEQUENCE
    last = header.base_sequence + header.last_offset_delta
    return last if last <= SEQUENCE_MAX else last - SEQUENCE_MAX - 1


class ProducerState:
    """The producers of one log, from its records below `end_offset`.

    `ongoing`: the first offsets of transactions without a marker, in order. `unreplicated`: transactions whose marker the high watermark
    may not have passed.
    """

    __slots__ = ("_changed_up_to", "_owner", "end_offset", "ongoing", "producers", "unreplicated")

    def __init__(self, end_offset: int = 0, producers: Mapping[int, ProducerEntry] | None = None) -> None:
        self.end_offset = end_offset
        self.producers: dict[int, ProducerEntry] = dict(producers) if producers is not None else {}
        self.ongoing: list[int] = []
        self.unreplicated = Unreplicated()
        self._owner = next(_owners)
        # Records below this offset may have changed the state; records from it on did not.
        self._changed_up_to = end_offset if self.producers else 0

    def check(self, header: BatchHeader) -> Duplicate | None:
        """None when a client's batch may be appended, else the batch in the log that it duplicates. Changes nothing.

        Hot path: returns at once without a producer id. Raises KafkaError by the module's rules, and INVALID_TXN_STATE for a
        batch outside of its producer's open transaction.
        """
        if header.producer_id < 0:
            return None
        entry = self.producers.get(header.producer_id)
        if entry is None:
            if len(self.ongoing) >= PRODUCERS_MAX and header.is_transactional:
                raise KafkaError(
                    ErrorCode.NOT_ENOUGH_REPLICAS, f"{len(self.ongoing)} transactions are open in this partition"
                )
            return None
        if header.producer_epoch == entry.epoch:
            last = last_sequence_of(header)
            for batch in entry.batches:
                if batch[0] == last and batch.first_sequence == header.base_sequence:
                    if header.is_transactional and not entry.is_of_open_transaction(batch):
                        raise KafkaError(
                            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                            f"producer {header.producer_id}, epoch {header.producer_epoch}: sequence {header.base_sequence} "
                            f"was used at offset {batch.first_offset}, in a transaction that has ended",
                        )
                    return Duplicate(batch.first_offset, batch.last_offset, batch.timestamp)
            last = entry.batches[-1][0] if entry.batches else NO_SEQUENCE
            expected = 0 if last == SEQUENCE_MAX else last + 1
        elif header.producer_epoch < entry.epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id}: epoch {header.producer_epoch}, the log has epoch {entry.epoch}",
            )
        else:
            expected = 0
        if header.base_sequence != expected:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id}, epoch {header.producer_epoch}: "
                f"sequence {header.base_sequence}, expected {expected}",
            )
        if entry.transaction_first_offset != NO_TRANSACTION and not header.is_transactional:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} has a transaction open since offset {entry.transaction_first_offset}",
            )
        return None

    def continues(self, producer: Sequenced) -> bool:
        """Whether `check` surely accepts this batch, which is of no transaction, for one of the two most common reasons: its producer is
        new here, or it continues where the producer's last batch ended.
        """
        producer_id, epoch, sequence = producer
        entry = self.producers.get(producer_id)
        if entry is None:
            return True
        if entry.epoch != epoch or entry.transaction_first_offset != NO_TRANSACTION or not entry.batches:
            return False
        last = entry.batches[-1][0]
        return last >= 0 and last + 1 == sequence

    def check_coordinated(self, header: BatchHeader, marker: Marker | None, *, is_epoch_raised: bool = False) -> None:
        """Refuses a coordinator's batch of an earlier epoch of its producer, and a marker of an earlier coordinator. Changes nothing.

        `is_epoch_raised`: the marker has the epoch after that of its transaction. If the open transaction has that epoch already, the
        marker comes late, and was written before. Without an open transaction, it is written twice. (TXN-6, KAFKA-19446, KAFKA-19999.)

        Kafka's ProducerAppendInfo.checkProducerEpoch and checkCoordinatorEpoch. Raises KafkaError.
        """
        entry = self.producers.get(header.producer_id)
        if entry is None:
            return
        is_late = (
            is_epoch_raised
            and header.producer_epoch == entry.epoch
            and entry.transaction_first_offset != NO_TRANSACTION
        )
        if header.producer_epoch < entry.epoch or is_late:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id}: epoch {header.producer_epoch}, the log has epoch {entry.epoch}",
            )
        if marker is not None and marker.coordinator_epoch < entry.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"producer {header.producer_id}: a marker of coordinator epoch {marker.coordinator_epoch}, "
                f"the log has one of epoch {entry.coordinator_epoch}",
            )

    def is_ongoing(self, producer_id: int, epoch: int) -> bool:
        """Whether the producer has a transaction without a marker in this log, in that epoch."""
        entry = self.producers.get(producer_id)
        return entry is not None and entry.transaction_first_offset != NO_TRANSACTION and entry.epoch == epoch

    def first_unstable(self, high_watermark: int) -> int | None:
        """The first offset of all transactions that are ongoing, or whose marker is at or above the high watermark; None: there is none.

        Forgets transactions whose marker is below the high watermark, so it must not be called with a higher one than the log's.
        """
        self.unreplicated.forget(high_watermark)
        return _least(self.ongoing, self.unreplicated.first)

    def look_for_unstable(self, high_watermark: int) -> int | None:
        """Like `first_unstable`, for another thread: changes nothing."""
        return _least(self.ongoing[:1], self.unreplicated.first_from(high_watermark))

    def append(self, header: BatchHeader, base_offset: int, marker: Marker | None = None) -> EndedTransaction | None:
        """Notes a batch that is in the log at `base_offset`, and the marker in it. Returns the transaction that the marker ends.

        A control batch without a marker changes nothing: it is of another kind, or compaction removed the marker, and before it the
        whole transaction. Hot path, so the header is unpacked in one step.
        """
        _, _, _, _, _, attributes, delta, _, max_timestamp, producer_id, epoch, sequence, _ = header
        last_offset = base_offset + delta
        self.end_offset = last_offset + 1
        if producer_id < 0:
            return None
        is_control = attributes & CONTROL_BIT
        if is_control and marker is None:
            return None
        entry = self._heard(producer_id, epoch, last_offset, max_timestamp)
        if marker is not None:
            return self._end_transaction(producer_id, entry, last_offset, marker)
        last = sequence + delta
        if last > SEQUENCE_MAX:
            last -= SEQUENCE_MAX + 1
        elif sequence < 0:
            last = NO_SEQUENCE
        entry.add(BatchMetadata._make((last, last_offset, delta, max_timestamp)))
        if attributes & TRANSACTIONAL_BIT and entry.transaction_first_offset == NO_TRANSACTION:
            entry.transaction_first_offset = base_offset
            self.ongoing.append(base_offset)
        return None

    def append_plain(self, producer: Sequenced, last_offset: int, delta: int, newest: int) -> None:
        """As `append`, for a batch that `produced_batches.plain` accepted."""
        producer_id, epoch, sequence = producer
        self.end_offset = last_offset + 1
        last = sequence + delta
        if last > SEQUENCE_MAX:
            last -= SEQUENCE_MAX + 1
        entry = self._heard(producer_id, epoch, last_offset, newest)
        entry.add(BatchMetadata._make((last, last_offset, delta, newest)))

    def _heard(self, producer_id: int, epoch: int, last_offset: int, newest: int) -> ProducerEntry:
        """The producer, which has a batch of that epoch and largest timestamp in the log, up to `last_offset`."""
        self._changed_up_to = last_offset + 1
        entry = self.producers.get(producer_id)
        if entry is None:
            if len(self.producers) >= PRODUCERS_MAX:
                self._make_room()
            entry = self.producers[producer_id] = ProducerEntry(epoch, owner=self._owner)
        elif entry.owner != self._owner:
            entry = self.producers[producer_id] = entry.copy(self._owner)
        if entry.epoch != epoch:
            entry.begin_epoch(epoch)
        entry.is_heard = True
        entry.last_timestamp = newest
        return entry

    def _end_transaction(
        self, producer_id: int, entry: ProducerEntry, marker_offset: int, marker: Marker
    ) -> EndedTransaction | None:
        """The marker ends the producer's transaction. None: it had no batch in this log."""
        entry.coordinator_epoch = marker.coordinator_epoch
        first_offset = entry.transaction_first_offset
        if first_offset == NO_TRANSACTION:
            return None
        entry.transaction_first_offset = NO_TRANSACTION
        ongoing = self.ongoing
        del ongoing[bisect_left(ongoing, first_offset)]
        self.unreplicated.add(first_offset, marker_offset)
        stable = ongoing[0] if ongoing else marker_offset + 1
        return EndedTransaction(producer_id, first_offset, marker_offset, stable, marker.is_commit)

    def changes_below(self, end_offset: int) -> bool:
        """Whether a cut to `end_offset` would change the state: whether a producer's batch would be cut."""
        return end_offset < self._changed_up_to

    def freeze(self) -> ProducerState:
        """An immutable copy of the state: later batches change a copy of their producer's entry.

        As fast as copying a dict: 25 us for 1,000 producers.
        """
        frozen = ProducerState(self.end_offset, self.producers)
        frozen.ongoing = self.ongoing.copy()
        frozen.unreplicated = self.unreplicated.copy()
        self._owner = next(_owners)
        return frozen

    def truncate(self, end_offset: int) -> bool:
        """The log was cut to `end_offset`. False when the state is now empty and must be rebuilt.

        A cut that removes no producer's batch needs no rebuild.
        """
        if not self.changes_below(end_offset):
            self.end_offset = min(self.end_offset, end_offset)
            return True
        self.restart_at(0)
        return False

    def restart_at(self, offset: int) -> None:
        """The log was emptied and continues at `offset`."""
        self.producers.clear()
        self.ongoing.clear()
        self.unreplicated.clear()
        self.end_offset = offset
        self._changed_up_to = 0

    def skip_to(self, offset: int) -> None:
        """The log ends at least at `offset`: the offsets before it have no batch."""
        self.end_offset = max(self.end_offset, offset)

    def _make_room(self) -> None:
        """Drops half of the first COMPARED producers, those that wrote longest ago, and moves the others to the end of the dict."""
        producers = self.producers
        some = [
            (producer_id, producers.pop(producer_id)) for producer_id in list(itertools.islice(producers, COMPARED))
        ]
        some.sort(key=lambda item: (item[1].transaction_first_offset != NO_TRANSACTION, item[1].last_offset))
        dropped = sum(entry.transaction_first_offset == NO_TRANSACTION for _, entry in some[: len(some) // 2])
        producers.update(some[dropped:])

    def keep(self, count: int) -> int:
        """Keeps the `count` producers that wrote last, and those with an open transaction. Returns how many were dropped.

        Takes half a microsecond for each producer.
        """
        before = len(self.producers)
        if before > count:
            offsets = sorted(entry.last_offset for entry in self.producers.values())
            since = offsets[before - count] if count else LAST_OFFSET_MAX
            self.producers = {
                producer_id: entry
                for producer_id, entry in self.producers.items()
                if entry.last_offset >= since or entry.transaction_first_offset != NO_TRANSACTION
            }
        return before - len(self.producers)

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forgets producers without an open transaction that wrote nothing for `producer.id.expiration.ms`.

        Kafka uses only the record timestamps, which the client sets. A producer that writes records of 2013 is forgotten
        between two of its batches, at the next check (every ten minutes) or restart, and a batch that it retries is written
        twice. Here the later of that timestamp and the time when this process last saw the producer counts. A producer not seen
        since the start is kept for at least an hour, until its retries have ended. It is not kept for the whole expiration
        time, or a broker that restarts every day would never forget any producer.

        Called every few minutes; a batch counts as seen at the next call. Returns how many producers were forgotten.
        """
        expired = []
        for producer_id, entry in self.producers.items():
            if entry.is_heard:
                entry.is_heard = False
                entry.heard_ms = now_ms
            elif entry.heard_ms == NOT_HEARD:
                entry.heard_ms = now_ms - expiration_ms + min(expiration_ms, RETRIES_END_MS)
            last_ms = max(entry.last_timestamp, entry.heard_ms)
            if entry.transaction_first_offset == NO_TRANSACTION and now_ms - last_ms >= expiration_ms:
                expired.append(producer_id)
        for producer_id in expired:
            del self.producers[producer_id]
        return len(expired)


def _least(ongoing: Sequence[int], unreplicated: int | None) -> int | None:
    """The first offset of all. `ongoing` is in order."""
    if not ongoing:
        return unreplicated
    return ongoing[0] if unreplicated is None else min(ongoing[0], unreplicated)
